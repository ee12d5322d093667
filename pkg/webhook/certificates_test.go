package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
)

func secret(data map[string][]byte) client.Object {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: endpoint.Namespace, Name: endpoint.CertificateSecret.Name}, Data: data}
}

// keyPair is a new key pair, as the rotator writes it.
func keyPair(t *testing.T) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		endpoint.CertificateFile:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		endpoint.CertificateKeyFile: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}
}

func TestTheCertificateIsCopiedIntoFiles(t *testing.T) {
	first, second := keyPair(t), keyPair(t)
	tests := map[string]struct {
		cache []client.Object
		there map[string][]byte
		want  map[string][]byte
	}{
		"a new certificate is written":                     {cache: []client.Object{secret(first)}, want: first},
		"a renewed certificate takes the place of the old": {cache: []client.Object{secret(second)}, there: first, want: second},
		"a Secret that is still empty changes nothing":     {cache: []client.Object{secret(nil)}},
		"a Secret that is gone changes nothing":            {there: first, want: first},
		"a certificate with another's key changes nothing": {
			cache: []client.Object{secret(map[string][]byte{endpoint.CertificateFile: first[endpoint.CertificateFile], endpoint.CertificateKeyFile: second[endpoint.CertificateKeyFile]})}, there: first, want: first,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "certs")
			if tc.there != nil {
				if err := (&certificates{reader: cacheOf(t, secret(tc.there)), dir: dir}).look(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := (&certificates{reader: cacheOf(t, tc.cache...), dir: dir}).look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, files(t, dir)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

// files are the contents of a directory that only its owner may read, nil if there is none.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	contents := map[string][]byte{}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode(); mode.Perm() != 0o600 {
			t.Errorf("%s has mode %s", entry.Name(), mode)
		}
		if contents[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return contents
}

func TestReadyMeansThatTheAPIServerTrustsTheCertificate(t *testing.T) {
	configuration := func(bundle string) client.Object {
		return &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "workloadspread.berth.dev", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte(bundle)},
			}},
		}
	}
	mutating := func(bundle string) client.Object {
		return &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "pod.berth.dev", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte(bundle)},
			}},
		}
	}
	ofEvictions := func(bundle string) client.Object {
		return &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "berth-budget"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "evictions.budget.berth.dev", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte(bundle)},
			}},
		}
	}
	ofBudgets := func(bundle string) client.Object {
		return &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "berth-budget"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "pods.budget.berth.dev", ClientConfig: admissionregistrationv1.WebhookClientConfig{CABundle: []byte(bundle)},
			}},
		}
	}
	made := secret(map[string][]byte{endpoint.AuthorityFile: []byte("ours")})
	tests := map[string]struct {
		cache     []client.Object
		wantError string
	}{
		"it has the authority":                             {cache: []client.Object{made, configuration("ours"), mutating("ours")}},
		"it has it for one webhook and not for another":    {cache: []client.Object{made, configuration("ours"), mutating("")}, wantError: "pod.berth.dev"},
		"it has no authority yet":                          {cache: []client.Object{made, configuration("")}, wantError: "workloadspread.berth.dev"},
		"it has it for spreads and not for budgets":        {cache: []client.Object{made, configuration("ours"), ofBudgets("")}, wantError: "pods.budget.berth.dev"},
		"it has it for pods and not for their evictions":   {cache: []client.Object{made, ofBudgets("ours"), ofEvictions("")}, wantError: "evictions.budget.berth.dev"},
		"it has it for evictions and not for pods":         {cache: []client.Object{made, ofBudgets(""), ofEvictions("ours")}, wantError: "pods.budget.berth.dev"},
		"it has the authority of another certificate":      {cache: []client.Object{made, configuration("theirs")}, wantError: "workloadspread.berth.dev"},
		"there is no authority yet":                        {cache: []client.Object{secret(nil), configuration("")}, wantError: "workloadspread.berth.dev"},
		"there is no Secret":                               {cache: []client.Object{configuration("ours")}, wantError: endpoint.CertificateSecret.Name},
		"without a configuration there is nobody to trust": {cache: []client.Object{made}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := (&certificates{reader: cacheOf(t, tc.cache...)}).trusted(t.Context())
			if (err == nil) != (tc.wantError == "") || err != nil && !strings.Contains(err.Error(), tc.wantError) {
				t.Errorf("got %v, want %q", err, tc.wantError)
			}
		})
	}
}

// The authority changes when it is renewed, and a read of it may fail, in all replicas at a time.
func TestAReplicaThatWasReadyStaysSoWhateverBecomesOfTheCertificate(t *testing.T) {
	told := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: endpoint.Configurations[0]}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "workloadspread.berth.dev"}},
	}
	trusts := func(bundle string) client.Reader {
		told := told.DeepCopy()
		told.Webhooks[0].ClientConfig.CABundle = []byte(bundle)
		return cacheOf(t, secret(map[string][]byte{endpoint.AuthorityFile: []byte("ours")}), told)
	}
	c := &certificates{}
	ready := onceTrue(func(*http.Request) error { return c.trusted(t.Context()) })
	for _, step := range []struct {
		name   string
		reader client.Reader
		want   bool
	}{
		{"before the API server knows the authority", trusts(""), false},
		{"when it knows it", trusts("ours"), true},
		{"when the authority was renewed and it knows the old one", trusts("theirs"), true},
		{"when the Secret cannot be read", cacheOf(t, told), true},
	} {
		c.reader = step.reader
		if err := ready(nil); (err == nil) != step.want {
			t.Errorf("%s: ready says %v, want %t", step.name, err, step.want)
		}
	}
}

func TestTheManifestsNameWhatIsServed(t *testing.T) {
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	for content, into := range map[string]any{string(manifests.ValidatingWebhook): &validating, string(manifests.MutatingWebhook): &mutating} {
		if err := yaml.UnmarshalStrict([]byte(content), into); err != nil {
			t.Fatal(err)
		}
	}
	// No path: whoever applies them again would take the secret one away.
	want := []string{"berth-webhook " + endpoint.Spreads, "berth-webhook " + endpoint.UnitedDeployments, "berth-webhook " + endpoint.SpreadRules, "berth-webhook " + endpoint.ClusterSpreadRules,
		"berth-webhook " + endpoint.FederatedReplicaSets, "berth-webhook " + endpoint.Pods, "berth-webhook " + endpoint.RequiredPods}
	var got []string
	for _, configuration := range []client.Object{&validating, &mutating} {
		for _, w := range endpoint.WebhooksOf(configuration) {
			got = append(got, configuration.GetName()+" "+w.Handler)
			if service := w.Client.Service; service == nil || service.Namespace != endpoint.Namespace || service.Name != "berth-webhook" || service.Path != nil {
				t.Errorf("webhook %s is asked at %v", w.Name, service)
			}
		}
	}
	if !slices.Equal(got, want) || len(validating.Webhooks)+len(mutating.Webhooks) != len(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNoCreationOfAPodWaitsLongForTheWebhookOrFailsWithItUnasked(t *testing.T) {
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(manifests.MutatingWebhook, &configuration); err != nil {
		t.Fatal(err)
	}
	policies := []admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Ignore, admissionregistrationv1.Fail} // the second only where it is asked for
	for i, w := range configuration.Webhooks {
		if *w.FailurePolicy != policies[i] || *w.TimeoutSeconds != 2 || *w.SideEffects != admissionregistrationv1.SideEffectClassNone {
			t.Errorf("webhook %s: failurePolicy %s, timeoutSeconds %d, sideEffects %s", w.Name, *w.FailurePolicy, *w.TimeoutSeconds, *w.SideEffects)
		}
		if timeout := time.Duration(*w.TimeoutSeconds) * time.Second; lineage.OwnerTimeout*2 > timeout {
			t.Errorf("webhook %s waits %s for an owner, of a timeout of %s", w.Name, lineage.OwnerTimeout, timeout)
		}
	}
}

func TestTheRotatorListsTheSecretWithTheCertificateAlone(t *testing.T) {
	for _, tc := range []struct{ name, method, url, want string }{
		{"a list", http.MethodGet, "/api/v1/namespaces/berth-system/secrets?limit=500", "fieldSelector=metadata.name%3Dberth-webhook-cert&limit=500"},
		{"a watch", http.MethodGet, "/api/v1/namespaces/berth-system/secrets?watch=true", "fieldSelector=metadata.name%3Dberth-webhook-cert&watch=true"},
		{"an update", http.MethodPut, "/api/v1/namespaces/berth-system/secrets/berth-webhook-cert", ""},
		{"a list of another kind", http.MethodGet, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			transport := onlyCertificate{roundTrip(func(request *http.Request) (*http.Response, error) {
				got = request.URL.RawQuery
				return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
			})}
			request, err := http.NewRequestWithContext(t.Context(), tc.method, tc.url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if got != tc.want {
				t.Errorf("the query is %q, want %q", got, tc.want)
			}
		})
	}
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
