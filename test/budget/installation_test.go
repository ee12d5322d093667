package budget

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	budgetcontroller "github.com/berth-project/berth/pkg/controller/budget"
	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
	"github.com/berth-project/berth/pkg/guard"
	"github.com/berth-project/berth/test/harness"
)

// installation is the budget part of Berth in this process: three webhook servers behind one address, as behind a Service, and one controller.
type installation struct {
	scheme  *runtime.Scheme
	config  *rest.Config
	guards  []*http.ServeMux
	webhook admissionregistrationv1.ValidatingWebhookConfiguration
	address string
	caPEM   []byte

	turn     atomic.Int64
	requests atomic.Int64
	// pods are the names of the pods that the webhook was asked about.
	mu        sync.Mutex
	asked     map[string]int
	latencies []time.Duration
	// before and after are called around an answer; nil does nothing.
	before, after func(*admissionv1.AdmissionRequest)
	down          bool

	stopManagers   context.CancelFunc
	stopController context.CancelFunc
	controllers    int
	done           sync.WaitGroup
	server         *http.Server
	clientOnce     sync.Once
	anyClient      client.Client
}

// skews are how wrong the clocks of the three webhook servers are.
var skews = []time.Duration{0, 10 * time.Minute, -10 * time.Minute}

// skewed is a clock that is wrong and runs on evenly.
type skewed struct {
	clock.RealClock
	by time.Duration
}

func (s skewed) Now() time.Time                  { return s.RealClock.Now().Add(s.by) }
func (s skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

func install(ctx context.Context, dir string) (*installation, error) {
	i := &installation{scheme: runtime.NewScheme(), asked: map[string]int{}}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(i.scheme); err != nil {
			return nil, err
		}
	}
	// As the service account, so that its roles are tested too.
	i.config = rest.CopyConfig(the.Sandbox.RESTConfig())
	i.config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:berth-system:berth-controller",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"},
	}
	ctx, i.stopManagers = context.WithCancel(ctx)
	for replica, skew := range skews {
		mux := http.NewServeMux()
		mgr, err := i.newManager()
		if err != nil {
			return nil, err
		}
		register := func(path string, hook http.Handler) { mux.Handle(path, hook) }
		if err := guard.Setup(ctx, mgr, register, guard.Options{Clock: skewed{by: skew}}); err != nil {
			return nil, fmt.Errorf("webhook server %d: %w", replica, err)
		}
		i.start(ctx, mgr)
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return nil, fmt.Errorf("webhook server %d: its cache does not fill", replica)
		}
		i.guards = append(i.guards, mux)
	}
	if err := i.startController(ctx, 0); err != nil {
		return nil, err
	}
	if err := i.serve(); err != nil {
		return nil, err
	}
	return i, i.configure(ctx, dir)
}

func (i *installation) newManager() (ctrl.Manager, error) {
	return ctrl.NewManager(i.config, ctrl.Options{
		Scheme: i.scheme, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
}

func (i *installation) start(ctx context.Context, mgr ctrl.Manager) {
	i.done.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "manager:", err)
		}
	})
}

// startController starts a new controller; it has seen nothing of what the one before has.
func (i *installation) startController(ctx context.Context, expiry time.Duration) error {
	mgr, err := i.newManager()
	if err != nil {
		return err
	}
	ctx, i.stopController = context.WithCancel(ctx)
	i.controllers++
	if err := budgetcontroller.Setup(ctx, mgr, budgetcontroller.Options{Expiry: expiry, Name: fmt.Sprintf("budget-%d", i.controllers)}); err != nil {
		return err
	}
	i.start(ctx, mgr)
	return nil
}

func (i *installation) stop() {
	i.stopController()
	i.stopManagers()
	_ = i.server.Close() // the test is over
	i.done.Wait()
}

func (i *installation) serve() error {
	cert, key, err := certutil.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	i.caPEM = cert
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return err
	}
	i.address = listener.Addr().String()
	i.server = &http.Server{Handler: i, ReadHeaderTimeout: time.Minute}
	i.done.Go(func() { _ = i.server.Serve(listener) }) // it always ends with an error
	return nil
}

// ServeHTTP passes a review on to one of the webhook servers, each in turn.
func (i *installation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	i.mu.Lock()
	before, after, down := i.before, i.after, i.down
	i.asked[review.Request.Namespace+"/"+review.Request.Name]++
	i.mu.Unlock()
	switch {
	case r.URL.Path == "/other": // a webhook of somebody else, that the tests command
		i.other(w, &review)
		return
	case down:
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	i.requests.Add(1)
	if before != nil {
		before(review.Request)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	start := time.Now()
	i.guards[int(i.turn.Add(1))%len(i.guards)].ServeHTTP(w, r)
	i.mu.Lock()
	i.latencies = append(i.latencies, time.Since(start))
	i.mu.Unlock()
	if after != nil {
		after(review.Request)
	}
}

// otherAnswer is what the webhook of somebody else does: it waits, and may refuse.
var otherAnswer atomic.Pointer[func(*admissionv1.AdmissionRequest) bool]

func (i *installation) other(w http.ResponseWriter, review *admissionv1.AdmissionReview) {
	allowed := true
	if answer := otherAnswer.Load(); answer != nil {
		allowed = (*answer)(review.Request)
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: allowed}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server may have gone
}

// configure applies the webhook configuration that is shipped, with the address of this process in place of the Service.
func (i *installation) configure(ctx context.Context, _ string) error {
	content, err := os.ReadFile(filepath.Join(harness.Root(), "manifests", "budget", "validatingwebhookconfiguration.yaml"))
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(content, &i.webhook); err != nil {
		return err
	}
	for n := range i.webhook.Webhooks {
		c := &i.webhook.Webhooks[n].ClientConfig
		*c = i.clientConfig(*c.Service.Path)
	}
	_, err = the.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &i.webhook, metav1.CreateOptions{})
	return err
}

func (i *installation) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	url := "https://" + i.address + path
	return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: i.caPEM}
}

// set replaces what happens around an answer, and whether there is one.
func (i *installation) set(change func(*installation)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(i)
}

// client has all rights.
func (i *installation) client() client.Client {
	i.clientOnce.Do(func() {
		var err error
		if i.anyClient, err = client.New(the.Sandbox.RESTConfig(), client.Options{Scheme: i.scheme}); err != nil {
			panic(err) // the cluster was reached before
		}
	})
	return i.anyClient
}

func jitter(upTo time.Duration) time.Duration { return rand.N(upTo) }
