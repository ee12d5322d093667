package descheduler

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	budgetcontroller "github.com/berth-project/berth/pkg/controller/budget"
	policyv1alpha1 "github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/guard"
	"github.com/berth-project/berth/test/harness"
)

// guardBudgets runs the webhook and the controller of PodUnavailableBudgets in this process.
func guardBudgets(ctx context.Context) (stop func(), _ error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, policyv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	restConfig := rest.CopyConfig(the.Sandbox.RESTConfig())
	restConfig.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:berth-system:berth-controller",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"}}
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	if err := guard.Setup(ctx, mgr, func(path string, hook http.Handler) { mux.Handle(path, hook) }, guard.Options{}); err != nil {
		return nil, err
	}
	if err := budgetcontroller.Setup(ctx, mgr, budgetcontroller.Options{Name: "budget"}); err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "manager:", err)
		}
	})
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("the cache of the budgets' manager does not fill")
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	running.Go(func() { _ = server.Serve(listener) }) // it always ends with an error
	content, err := os.ReadFile(filepath.Join(harness.Root(), "manifests", "budget", "validatingwebhookconfiguration.yaml"))
	if err != nil {
		return nil, err
	}
	var hooks admissionregistrationv1.ValidatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(content, &hooks); err != nil {
		return nil, err
	}
	for i := range hooks.Webhooks {
		c := &hooks.Webhooks[i].ClientConfig
		*c = admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://" + listener.Addr().String() + *c.Service.Path), CABundle: cert}
	}
	if _, err := the.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &hooks, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return func() {
		_ = server.Close() // the tests are over
		running.Wait()
	}, nil
}

var pubResource = policyv1alpha1.GroupVersion.WithResource("podunavailablebudgets")

// withoutBudgets takes the protection from the pods of a namespace, so that they can be deleted.
func withoutBudgets(ctx context.Context, ns string) error {
	all := metav1.ListOptions{}
	if err := the.Dynamic.Resource(pubResource).Namespace(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	return the.Client.PolicyV1().PodDisruptionBudgets(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, all)
}
