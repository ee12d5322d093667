package budget

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	budgetcontroller "github.com/berth-project/berth/pkg/controller/budget"
	"github.com/berth-project/berth/pkg/controller/frame"
	appsv1beta1 "github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/guard"
	"github.com/berth-project/berth/pkg/podstate"
)

// installation runs the budget part of Berth in this process, with the shipped manifests. It has one controller, and three webhook servers behind one
// address, as behind a Service. So the tests can intervene between these servers and the API server. test/integration tests the real processes.
type installation struct {
	scheme  *runtime.Scheme
	config  *rest.Config
	guards  []*http.ServeMux
	caches  []client.Reader // of the webhook servers
	address string
	caPEM   []byte
	// certificate is the one that the server uses.
	certificate tls.Certificate

	calls     calls // of the webhook servers to the API server
	turn      atomic.Int64
	mu        sync.Mutex
	latencies []time.Duration
	// after is called with every answer about a pod before the API server gets it. Nil does nothing.
	after func(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse)
	// down answers no request. slow makes all clients wait until they time out.
	down, slow bool
	// instead answers in place of the webhook servers. Nil does nothing.
	instead http.Handler
	// expired is an old certificate of the same authority. The server uses it if isExpired.
	expired   tls.Certificate
	isExpired bool
	// connections are the open connections.
	connections map[net.Conn]bool

	stopManagers   context.CancelFunc
	stopController context.CancelFunc
	done           sync.WaitGroup
	server         *http.Server
	clientOnce     sync.Once
	anyClient      client.WithWatch
}

// skews are the errors of the clocks of the three webhook servers.
var skews = []time.Duration{0, 10 * time.Minute, -10 * time.Minute}

// skewed is a clock with a constant error.
type skewed struct {
	clock.RealClock
	by time.Duration
}

func (s skewed) Now() time.Time                  { return s.RealClock.Now().Add(s.by) }
func (s skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

func install(ctx context.Context) (*installation, error) {
	i := &installation{scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, appsv1beta1.AddToScheme} {
		if err := add(i.scheme); err != nil {
			return nil, err
		}
	}
	// The servers run as the service account, so that the tests cover its roles too.
	i.config = rest.CopyConfig(the.Sandbox.RESTConfig())
	i.config.DisableCompression = true // as the controller does
	i.config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:berth-system:berth-controller",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"},
	}
	ctx, i.stopManagers = context.WithCancel(ctx)
	for replica, skew := range skews {
		mux, cache, err := i.newGuard(ctx, i.calls.counted(i.config), guard.Options{Clock: skewed{by: skew}})
		if err != nil {
			return nil, fmt.Errorf("webhook server %d: %w", replica, err)
		}
		i.guards, i.caches = append(i.guards, mux), append(i.caches, cache)
	}
	if err := i.startController(ctx, 0); err != nil {
		return nil, err
	}
	if err := i.serve(); err != nil {
		return nil, err
	}
	return i, i.configure(ctx)
}

// newGuard starts a webhook server that reaches the API server with this config. cache is what the server watches.
func (i *installation) newGuard(ctx context.Context, config *rest.Config, opts guard.Options) (mux *http.ServeMux, cache client.Reader, err error) {
	mux = http.NewServeMux()
	mgr, err := i.newManager(config)
	if err != nil {
		return nil, nil, err
	}
	register := func(path string, hook http.Handler) { mux.Handle(path, hook) }
	if err := guard.Setup(ctx, mgr, register, opts); err != nil {
		return nil, nil, err
	}
	i.start(ctx, mgr)
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return nil, nil, errors.New("its cache does not fill")
	}
	return mux, mgr.GetCache(), nil
}

// newManager makes a manager with the cache of berth-controller, which lacks what the controllers do not read.
func (i *installation) newManager(config *rest.Config) (ctrl.Manager, error) {
	return ctrl.NewManager(config, ctrl.Options{
		Scheme: i.scheme, Cache: frame.CacheOptions(false), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: controllerconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
}

func (i *installation) start(ctx context.Context, mgr ctrl.Manager) {
	i.done.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "manager:", err)
		}
	})
}

// startController starts a new controller, with the usual expiry for 0. It knows nothing of what the previous controller saw.
func (i *installation) startController(ctx context.Context, expiry time.Duration) error {
	mgr, err := i.newManager(i.config)
	if err != nil {
		return err
	}
	ctx, i.stopController = context.WithCancel(ctx)
	if err := errors.Join(frame.IndexByNode(ctx, mgr.GetFieldIndexer()),
		budgetcontroller.Setup(mgr, cmp.Or(expiry, budgetcontroller.DefaultExpiry), podstate.DefaultNotices())); err != nil {
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
	i.certificate = pair
	expired, err := expiredCertificate()
	if err != nil {
		return err
	}
	i.caPEM, i.expired = append(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: expired.Certificate[0]})...), expired
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			i.mu.Lock()
			defer i.mu.Unlock()
			if i.isExpired {
				return &i.expired, nil
			}
			return &pair, nil
		}})
	if err != nil {
		return err
	}
	i.address = listener.Addr().String()
	i.connections = map[net.Conn]bool{}
	i.server = &http.Server{Handler: i, ReadHeaderTimeout: time.Minute, ConnState: func(connection net.Conn, state http.ConnState) {
		i.mu.Lock()
		defer i.mu.Unlock()
		switch state {
		case http.StateNew:
			i.connections[connection] = true
		case http.StateClosed:
			delete(i.connections, connection)
		}
	}}
	i.done.Go(func() { _ = i.server.Serve(listener) }) // it always returns an error
	return nil
}

// expiredCertificate returns a certificate that clients would trust if it had not expired.
func expiredCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(cryptorand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// expire switches to the expired certificate, or back to the valid one. It closes all connections, because a connection does not ask for a
// certificate twice.
func (i *installation) expire(is bool) {
	i.isExpired = is
	for connection := range i.connections {
		_ = connection.Close() // it may be closed
	}
}

// podsPath receives reviews of new pods. It admits all pods unchanged, because test/integration tests their admission.
const podsPath = "/pods"

// ServeHTTP forwards each review to the webhook servers in turn.
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
	after, down, slow, instead := i.after, i.down, i.slow, i.instead
	i.mu.Unlock()
	var next http.Handler = i.guards[int(i.turn.Add(1))%len(i.guards)]
	if instead != nil {
		next = instead
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	switch {
	case r.URL.Path == "/other": // another webhook, which the tests control
		i.other(w, &review)
		return
	case down:
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	case slow:
		<-r.Context().Done()
		return
	case r.URL.Path == podsPath:
		allow(w, &review, true)
		return
	case r.URL.Path != endpoint.BudgetPods:
		next.ServeHTTP(w, r)
		return
	}
	start := time.Now()
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	i.mu.Lock()
	i.latencies = append(i.latencies, time.Since(start))
	i.mu.Unlock()
	if after != nil {
		var answered admissionv1.AdmissionReview
		if err := json.Unmarshal(answer.Body.Bytes(), &answered); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		after(review.Request, answered.Response)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the API server may have closed the connection
}

// otherAnswer is the behaviour of the other webhook: it waits, and may refuse.
var otherAnswer atomic.Pointer[func(*admissionv1.AdmissionRequest) bool]

func (i *installation) other(w http.ResponseWriter, review *admissionv1.AdmissionReview) {
	allowed := true
	if answer := otherAnswer.Load(); answer != nil {
		allowed = (*answer)(review.Request)
	}
	allow(w, review, allowed)
}

func allow(w http.ResponseWriter, review *admissionv1.AdmissionReview, allowed bool) {
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: allowed}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server may have closed the connection
}

// configure applies the shipped webhook configurations, with the address of this process instead of the Service.
func (i *installation) configure(ctx context.Context) error {
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	if err := errors.Join(yaml.UnmarshalStrict(manifests.BudgetWebhook, &validating), yaml.UnmarshalStrict(manifests.EvictionWebhook, &mutating)); err != nil {
		return err
	}
	for _, configuration := range []runtime.Object{&validating, &mutating} {
		for _, webhook := range endpoint.WebhooksOf(configuration) {
			*webhook.Client = i.clientConfig(webhook.Handler)
		}
	}
	client := the.Client.AdmissionregistrationV1()
	if _, err := client.ValidatingWebhookConfigurations().Create(ctx, &validating, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := client.MutatingWebhookConfigurations().Create(ctx, &mutating, metav1.CreateOptions{})
	return err
}

func (i *installation) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	url := "https://" + i.address + path
	return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: i.caPEM}
}

// set changes the fields that control answers.
func (i *installation) set(change func(*installation)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(i)
}

// client has all rights.
func (i *installation) client() client.WithWatch {
	i.clientOnce.Do(func() {
		var err error
		if i.anyClient, err = client.NewWithWatch(the.Sandbox.RESTConfig(), client.Options{Scheme: i.scheme}); err != nil {
			panic(err) // the test has reached the cluster before
		}
	})
	return i.anyClient
}

func jitter(upTo time.Duration) time.Duration { return rand.N(upTo) }
