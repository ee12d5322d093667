package install

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-project/berth/test/harness"
)

// installCertManager installs cert-manager from its chart, and runs its controller and what injects authorities, until the test ends.
func (c *cluster) installCertManager(t *testing.T) {
	t.Helper()
	const name = "cert-manager"
	module, err := harness.ModuleDir(t.Context(), "certmanager", "github.com/cert-manager/cert-manager")
	if err != nil {
		t.Fatal(err)
	}
	deploy, chart := filepath.Join(module, "deploy"), t.TempDir()
	from := filepath.Join(deploy, "charts", name)
	definitions, err := filepath.Glob(filepath.Join(deploy, "crds", "*.yaml"))
	if err != nil || len(definitions) == 0 {
		t.Fatalf("no definitions: %v", err)
	}
	templates, err := filepath.Glob(filepath.Join(from, "templates", "*"))
	if err != nil || len(templates) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	// A release puts the chart together in this way.
	files := map[string]string{filepath.Join(from, "Chart.template.yaml"): "Chart.yaml", filepath.Join(from, "values.yaml"): "values.yaml"}
	for _, file := range slices.Concat(definitions, templates) {
		files[file] = filepath.Join("templates", filepath.Base(file))
	}
	if err := os.Mkdir(filepath.Join(chart, "templates"), 0o700); err != nil {
		t.Fatal(err)
	}
	for file, as := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(chart, as), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rendered, err := c.run(t, "", "helm", "template", name, chart, "--namespace="+name, "--kube-version="+kubeVersion, "--set=startupapicheck.enabled=false")
	if err != nil {
		t.Fatalf("%v: %s", err, rendered)
	}
	objects, err := harness.Documents(rendered)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := harness.Of(c.Sandbox)
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "create", "namespace", name)
	for _, object := range objects {
		if !slices.Contains([]string{"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}, object.GetKind()) {
			continue // the programs run here, and without their webhook
		}
		if err := cluster.Apply(t.Context(), object.GetNamespace(), object); err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
	for program, account := range map[string]string{"cert-manager-controller": name, "cert-manager-cainjector": name + "-cainjector"} {
		kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
		if err := cluster.WriteKubeconfigAs("system:serviceaccount:"+name+":"+account, kubeconfig); err != nil {
			t.Fatal(err)
		}
		args := []string{"--kubeconfig=" + kubeconfig, "--leader-elect=false"}
		if program == "cert-manager-controller" {
			args = append(args, "--metrics-listen-address=127.0.0.1:0", "--cluster-resource-namespace="+name)
		}
		foreign(t, program, args...)
	}
}

// TestInstallWithCertManager: cert-manager makes the certificate, and injects its authority into webhooks and definitions. Berth serves with it, converts, and reads no Secret.
func TestInstallWithCertManager(t *testing.T) {
	t.Parallel()
	c, k := start(t)
	c.installCertManager(t)
	c.installComponents(t, k, "berth/manifests/webhook/cert-manager")
	c.kubectl(t, "apply", "-f", example)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.expectZones(t, "zone-a:2 zone-b:2 zone-c:6")
	c.expectABudgetHolds(t)
	waitFor(t, "conversion", func(ctx context.Context) (string, error) {
		output, err := c.run(t, "", "kubectl", "get", "workloadspreads.v1alpha1.apps.kruise.io/api", "-o", "jsonpath={.spec.subsets[*].name}")
		if err != nil {
			return output, nil
		}
		return "", nil
	})
	c.expectARenewalInterruptsNothing(t, k)
	expectNothingForbidden(t, c.AuditLog())
}

// expectARenewalInterruptsNothing has cert-manager renew the certificate. The API server trusts what the webhooks serve before a kubelet has brought them the new one, which takes it a minute or two,
// and afterwards.
func (c *cluster) expectARenewalInterruptsNothing(t *testing.T, k *kubelet) {
	t.Helper()
	secret := func(key string) string {
		text, err := base64.StdEncoding.DecodeString(c.kubectl(t, "-n", berthSystem, "get", "secret", "berth-webhook-cert", "-o", `jsonpath={.data.`+key+`\.crt}`))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before, authority := secret("tls"), secret("ca")
	// As cmctl renew does.
	c.kubectl(t, "-n", berthSystem, "patch", "certificate", "berth-webhook", "--subresource=status", "--type=merge", "-p",
		`{"status":{"conditions":[{"type":"Issuing","status":"True","reason":"ManuallyTriggered","message":"by hand","lastTransitionTime":"`+time.Now().UTC().Format(time.RFC3339)+`"}]}}`)
	waitFor(t, "another certificate", func(context.Context) (string, error) {
		if secret("tls") == before {
			return "it is the same", nil
		}
		return "", nil
	})
	if secret("ca") != authority {
		t.Error("it has another authority")
	}
	works := func() {
		t.Helper()
		// A budget that is not reviewed is refused, and so is an object that is not converted.
		c.kubectl(t, "annotate", "workloadspreads.v1alpha1.apps.kruise.io/api", "--overwrite", "renewed="+strconv.FormatInt(time.Now().UnixNano(), 10))
		c.kubectl(t, "patch", "podunavailablebudget/api", "--type=merge", "-p", `{"spec":{"maxUnavailable":"1`+strconv.Itoa(time.Now().Nanosecond()/1000%10)+`%"}}`)
	}
	works()
	for _, p := range k.of("controller") {
		if err := k.remount(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "the webhooks to serve the new certificate", func(context.Context) (string, error) {
		for _, p := range k.of("controller") {
			connection, err := tls.Dial("tcp", net.JoinHostPort(p.address, "9443"), &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				return "", err
			}
			served := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: connection.ConnectionState().PeerCertificates[0].Raw})
			_ = connection.Close()
			if !strings.HasPrefix(secret("tls"), string(served)) {
				return p.pod.Name + " serves another", nil
			}
		}
		return "", nil
	})
	works()
}
