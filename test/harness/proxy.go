package harness

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-project/berth/internal/sandbox"
)

// Fault is a disturbance of one request.
type Fault string

// All of these faults can affect writes. Those that happen instead of the request can also affect reads.
const (
	ResponseLost      Fault = "it is committed, and the connection breaks before the answer"
	ResponseHeld      Fault = "it is committed, and the answer comes after the client's timeout"
	ErrorAfter        Fault = "it is committed, and the answer is 500"
	ConflictAfter     Fault = "it is committed, and the answer is 409"
	TimeoutAfter      Fault = "it is committed, and the answer is 504"
	ConflictInstead   Fault = "the answer is 409, and nothing is committed"
	ErrorInstead      Fault = "the answer is 500, and nothing is committed"
	TooManyInstead    Fault = "the answer is 429, and nothing is committed"
	ConnectionRefused Fault = "the connection breaks before the request arrives"
	Late              Fault = "the request arrives after the client's timeout"
	Slow              Fault = "the request takes a while"

	// AllFaults does not contain these faults.

	UnavailableInstead   Fault = "the API server starts: the answer is 503"
	LeaderChangedInstead Fault = "the store has another leader: the answer is 500 and says so"
	ExpiredInstead       Fault = "the revision is too old: the answer is 410"
	ForbiddenInstead     Fault = "the right is missing: the answer is 403"
	UnauthorizedInstead  Fault = "the credentials are not accepted: the answer is 401"
	Silence              Fault = "the request arrives nowhere, and there is no answer until the client leaves"
	HalfAnswer           Fault = "the connection breaks in the middle of the answer"
)

// AllFaults are the faults that a write can meet.
var AllFaults = []Fault{ResponseLost, ResponseHeld, ErrorAfter, ConflictAfter, TimeoutAfter, ConflictInstead, ErrorInstead, TooManyInstead,
	ConnectionRefused, Late, Slow}

const (
	// ProxyTimeout is how long the proxy holds a late request. It is longer than the scheduler's bindTimeout of 5 s. It is shorter than twice
	// bindTimeout, after which the scheduler takes an uncertain bind as settled.
	ProxyTimeout = 6 * time.Second
	// longest is the longest time for which the proxy holds a slow request.
	longest = 2 * time.Second
	// half is how much of an answer the client gets with HalfAnswer, in bytes.
	half = 1000
)

// Proxy forwards requests to an API server and disturbs some of them.
type Proxy struct {
	// URL is the address of the proxy.
	URL string

	may      func(*http.Request) bool
	underway func(path string)

	// timeline is nil if the proxy only disturbs single requests.
	timeline *Timeline

	mu      sync.Mutex
	forward http.Handler
	// chance is the percentage of requests that the proxy disturbs.
	chance int
	faults []Fault
	random *rand.Rand
	counts map[Fault]int
	// exchanges are the requests for which may was true.
	exchanges []Exchange
}

// Exchange is a request as its client saw it: the time at which it was sent, and the time at which an answer came or the connection broke. After that, it does nothing any more.
type Exchange struct {
	Path           string
	Body           []byte
	Sent, Answered time.Time
}

// StartProxy starts a proxy that listens until the context ends. It disturbs nothing before Spoil, and only requests for which may returns true. The
// proxy calls underway with the path of a request that is about to be slow or late. underway may be nil.
func StartProxy(ctx context.Context, seed uint64, may func(*http.Request) bool, underway func(path string)) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{URL: "http://" + listener.Addr().String(), may: may, underway: underway, random: rand.New(rand.NewPCG(seed, seed)), counts: map[Fault]int{}}
	server := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // Serve returns an error when the server is closed
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return p, nil
}

// StartTimeline starts a proxy that listens until the context ends, and spoils nothing but caches, watches and writes, as the Timeline says.
func StartTimeline(ctx context.Context) (*Proxy, *Timeline, error) {
	p, err := StartProxy(ctx, 0, func(*http.Request) bool { return false }, nil)
	if err != nil {
		return nil, nil, err
	}
	p.timeline = newTimeline()
	return p, p.timeline, nil
}

// PassTo sets the API server and the credentials for it. Clients send no token to a server without TLS, such as the proxy.
func (p *Proxy) PassTo(server string, authority []byte, token string) error {
	target, err := url.Parse(server)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64},
		FlushInterval: -1, // flush at once, for watches
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forward = forward; p.timeline != nil {
		p.timeline.change(func() { p.timeline.forward = forward })
		p.forward = p.timeline
	}
	return nil
}

// Kubeconfig writes the kubeconfig of an instance with the proxy's address instead of the API server's, and makes the proxy pass requests on with the credentials of the instance.
func (p *Proxy) Kubeconfig(in sandbox.Instance) (path string, err error) {
	config, err := clientcmd.LoadFromFile(in.Kubeconfig)
	if err != nil {
		return "", err
	}
	here := config.Contexts[config.CurrentContext]
	cluster, user := config.Clusters[here.Cluster], config.AuthInfos[here.AuthInfo]
	if err := p.PassTo(cluster.Server, cluster.CertificateAuthorityData, user.Token); err != nil {
		return "", err
	}
	cluster.Server, cluster.CertificateAuthorityData, user.Token = p.URL, nil, ""
	path = filepath.Join(in.Dir, "through-proxy")
	return path, clientcmd.WriteToFile(*config, path)
}

// Behind puts a component behind the proxy.
func (p *Proxy) Behind(component sandbox.Component) sandbox.Component {
	args := component.Args
	component.Args = func(in sandbox.Instance) (_ []string, err error) {
		if in.Kubeconfig, err = p.Kubeconfig(in); err != nil {
			return nil, err
		}
		return args(in)
	}
	return component
}

// Spoil sets the percentage of requests that the proxy disturbs, and the faults. All faults are equally likely.
func (p *Proxy) Spoil(chance int, faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chance, p.faults = chance, faults
}

// Reseed starts a new sequence of faults.
func (p *Proxy) Reseed(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.random = rand.New(rand.NewPCG(seed, seed))
}

// Spoilt returns how many requests each fault has disturbed.
func (p *Proxy) Spoilt() map[Fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Exchanges returns the requests that the proxy could disturb, also those that it did not, in the order of their ends.
func (p *Proxy) Exchanges() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.exchanges)
}

// ExpectAll fails the test if it has not done each of these, or a proxy has not.
func ExpectAll(t interface {
	Helper()
	Errorf(format string, args ...any)
}, did map[string]int, each ...string,
) {
	t.Helper()
	for _, what := range each {
		if did[what] == 0 {
			t.Errorf("the test shows nothing about %q, which has not happened", what)
		}
	}
}

// pick chooses a fault, or none.
func (p *Proxy) pick() (f Fault, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) == 0 || p.random.IntN(100) >= p.chance {
		return "", 0
	}
	f = p.faults[p.random.IntN(len(p.faults))]
	p.counts[f]++
	return f, time.Duration(p.random.Int64N(int64(longest)))
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	forward := p.forward
	p.mu.Unlock()
	if !p.may(r) {
		forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	sent := time.Now()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.exchanges = append(p.exchanges, Exchange{Path: r.URL.Path, Body: body, Sent: sent, Answered: time.Now()})
	}()
	// The forwarded request does not end when the client times out.
	pass := func(w http.ResponseWriter) {
		request := r.Clone(context.WithoutCancel(r.Context()))
		request.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, request)
	}
	f, wait := p.pick()
	if (f == Slow || f == Late) && p.underway != nil {
		p.underway(r.URL.Path)
	}
	switch f {
	case ResponseLost:
		pass(nowhere{})
		panic(http.ErrAbortHandler)
	case ResponseHeld:
		pass(nowhere{})
		time.Sleep(ProxyTimeout) // the fault is the time that passes
		panic(http.ErrAbortHandler)
	case ErrorAfter:
		pass(nowhere{})
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "")
	case ConflictAfter:
		pass(nowhere{})
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "")
	case TimeoutAfter:
		pass(nowhere{})
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "")
	case ConflictInstead:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "")
	case ErrorInstead:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "")
	case TooManyInstead:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "")
	case UnavailableInstead:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "")
	case LeaderChangedInstead:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonUnknown, "etcdserver: leader changed")
	case ExpiredInstead:
		refuse(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
	case ForbiddenInstead:
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, "")
	case UnauthorizedInstead:
		refuse(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "")
	case Silence:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case HalfAnswer:
		r.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(&halfway{ResponseWriter: w, left: half}, r)
	case ConnectionRefused:
		panic(http.ErrAbortHandler)
	case Late:
		time.Sleep(ProxyTimeout) // the fault is the time that passes
		pass(nowhere{})
		panic(http.ErrAbortHandler)
	case Slow:
		time.Sleep(wait) // the fault is the time that passes
		pass(w)
	default:
		pass(w)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	if message == "" {
		message = fmt.Sprintf("a fault of the test: %d", code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}
	_ = json.NewEncoder(w).Encode(status) // the client may be gone
}

// halfway breaks the connection after some bytes.
type halfway struct {
	http.ResponseWriter
	left int
}

// Write implements http.ResponseWriter.
func (h *halfway) Write(p []byte) (int, error) {
	if len(p) > h.left {
		_, _ = h.ResponseWriter.Write(p[:h.left]) // the connection breaks anyway
		_ = http.NewResponseController(h.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	h.left -= len(p)
	return h.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController flush.
func (h *halfway) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// nowhere discards a response that the client must not receive.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
