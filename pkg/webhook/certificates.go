package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-project/berth/pkg/endpoint"
)

// manageCertificates makes the rotator create and renew the certificate in the Secret and write its CA into the webhook configurations. Each replica
// keeps a copy of the certificate in dir, and writes the CA into the definitions. Every replica runs the rotator, so that no replica must wait for a leader
// before it serves. An update conflict decides whose certificate is used. Front runs all of this; mgr has the readiness check. The caller runs the cache,
// which newCache makes.
// The rotator complains about a configuration that does not exist, so it is told about that of SidecarSets only if they are served.
func manageCertificates(mgr, front ctrl.Manager, cached cache.Cache, dir string, sidecarSets bool) error {
	var webhooks []rotator.WebhookInfo
	for _, name := range endpoint.Configurations {
		if name == endpoint.SidecarConfiguration && !sidecarSets {
			continue
		}
		webhooks = append(webhooks, rotator.WebhookInfo{Name: name, Type: rotator.Validating}, rotator.WebhookInfo{Name: name, Type: rotator.Mutating})
	}
	r := endpoint.CertificateRotator()
	r.CertDir, r.Webhooks = dir, webhooks
	r.IsReady = make(chan struct{}) // required, but not waited for: it checks only once a second. See certificates.trusted.
	err := rotator.AddRotator(named{front}, r)
	if err != nil {
		return err
	}
	c := &certificates{cache: cached, reader: cached, definitions: &definitions{front.GetAPIReader(), front.GetClient()}, dir: dir}
	if err := front.Add(c); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("webhook-certificate", onceTrue(func(request *http.Request) error { return c.trusted(request.Context()) }))
}

// named is a manager for the rotator, which makes a cache of its own and lists all Secrets of the namespace. The role of the controller allows it the one
// Secret, and the API server accepts that for lists and watches which select the name.
type named struct{ ctrl.Manager }

// GetConfig returns the configuration of the rotator's cache.
func (m named) GetConfig() *rest.Config {
	config := rest.CopyConfig(m.Manager.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return onlyCertificate{next} })
	return config
}

// onlyCertificate selects the Secret with the certificate in each list and watch of its namespace's Secrets.
type onlyCertificate struct{ next http.RoundTripper }

// RoundTrip sends the request.
func (o onlyCertificate) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/api/v1/namespaces/"+endpoint.Namespace+"/secrets") {
		request = request.Clone(request.Context())
		query := request.URL.Query()
		query.Set("fieldSelector", fields.OneTermEqualSelector("metadata.name", endpoint.CertificateSecret.Name).String())
		request.URL.RawQuery = query.Encode()
	}
	return o.next.RoundTrip(request)
}

// onceTrue is a check that is not repeated once it has succeeded. A replica that has served stays ready, whatever happens to the certificate.
// Otherwise a CA that is being renewed, or cannot be read, would make all replicas unready at once.
func onceTrue(check healthz.Checker) healthz.Checker {
	var latched atomic.Bool
	return func(request *http.Request) error {
		if latched.Load() {
			return nil
		}
		err := check(request)
		if err == nil {
			latched.Store(true)
		}
		return err
	}
}

// newCache makes a cache for webhook configurations and the Secret with the certificate. It watches what it is asked for. The rotator does not share
// its own cache.
func newCache(mgr ctrl.Manager) (cache.Cache, error) {
	secret := cache.ByObject{
		Field:      fields.OneTermEqualSelector("metadata.name", endpoint.CertificateSecret.Name),
		Namespaces: map[string]cache.Config{endpoint.Namespace: {}},
	}
	return cache.New(mgr.GetConfig(), cache.Options{
		Scheme:           mgr.GetScheme(),
		Mapper:           mgr.GetRESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         map[client.Object]cache.ByObject{&corev1.Secret{}: secret},
	})
}

// certificates copies the certificate from the Secret into files. A mounted Secret would be updated up to two minutes late. The API server has the
// new CA at once and would trust no replica during this time.
type certificates struct {
	cache cache.Cache
	// reader is the cache.
	reader client.Reader
	// definitions tell the API server the CA for conversion. Nil in tests.
	definitions *definitions
	dir         string
}

var (
	_ manager.Runnable               = &certificates{}
	_ manager.LeaderElectionRunnable = &certificates{}
)

// NeedLeaderElection is false: every replica has its own files.
func (c *certificates) NeedLeaderElection() bool { return false }

// Start copies until the context ends.
func (c *certificates) Start(ctx context.Context) error {
	changed := newSignal()
	if err := changed.on(ctx, c.cache, &corev1.Secret{}, func(client.Object) bool { return true }); err != nil {
		return err
	}
	if c.cache.WaitForCacheSync(ctx) {
		repeat(ctx, clock.RealClock{}, changed, definitionsInterval, "Handing out the certificate of the webhooks and its authority", c.look)
	}
	return nil
}

// look copies the certificate into the files, unless they have it already, and writes its CA into the definitions. The rotator has not filled a Secret
// without a certificate yet.
func (c *certificates) look(ctx context.Context) error {
	secret := &corev1.Secret{}
	if err := c.reader.Get(ctx, endpoint.CertificateSecret, secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	if _, err := tls.X509KeyPair(secret.Data[endpoint.CertificateFile], secret.Data[endpoint.CertificateKeyFile]); err != nil {
		return nil //nolint:nilerr // the rotator sees that too, and replaces it
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	// The key comes first, so that a reader who finds the certificate finds its key.
	for _, name := range []string{endpoint.CertificateKeyFile, endpoint.CertificateFile} {
		if err := replaceFile(filepath.Join(c.dir, name), secret.Data[name]); err != nil {
			return err
		}
	}
	if c.definitions == nil || len(secret.Data[endpoint.AuthorityFile]) == 0 {
		return nil
	}
	return c.definitions.trust(ctx, secret.Data[endpoint.AuthorityFile])
}

// replaceFile never leaves half a file, and does not touch a file with the same content.
func replaceFile(path string, content []byte) error {
	if current, err := os.ReadFile(path); err == nil && bytes.Equal(current, content) {
		return nil
	}
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// trusted returns nil once the API server knows the CA of the certificate, for every webhook. If a webhook configuration does not exist, nobody calls
// its webhooks, and there is nothing to wait for.
func (c *certificates) trusted(ctx context.Context) error {
	configurations, err := read(ctx, c.reader)
	if err != nil || len(configurations) == 0 {
		return err
	}
	secret := &corev1.Secret{}
	if err := c.reader.Get(ctx, endpoint.CertificateSecret, secret); err != nil {
		return fmt.Errorf("reading the webhook's certificate: %w", err)
	}
	for _, configuration := range configurations {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			if bundle := webhook.Client.CABundle; len(bundle) == 0 || !bytes.Equal(bundle, secret.Data[endpoint.AuthorityFile]) {
				return fmt.Errorf("the API server does not know the authority of the certificate for webhook %s yet", webhook.Name)
			}
		}
	}
	return nil
}
