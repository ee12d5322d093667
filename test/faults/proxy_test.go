package faults

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fault is what may happen to a bind.
type fault string

const (
	responseLost      fault = "the bind is committed, and the connection breaks before the answer"
	responseHeld      fault = "the bind is committed, and the answer comes after the client's patience"
	errorAfter        fault = "the bind is committed, and the answer is 500"
	conflictAfter     fault = "the bind is committed, and the answer is 409"
	timeoutAfter      fault = "the bind is committed, and the answer is 504"
	conflictInstead   fault = "the answer is 409, and nothing is committed"
	errorInstead      fault = "the answer is 500, and nothing is committed"
	tooManyInstead    fault = "the answer is 429, and nothing is committed"
	connectionRefused fault = "the connection breaks before the request arrives"
	late              fault = "the request arrives after the client's patience"
	slow              fault = "the request takes a while"
)

var allFaults = []fault{responseLost, responseHeld, errorAfter, conflictAfter, timeoutAfter, conflictInstead, errorInstead, tooManyInstead,
	connectionRefused, late, slow}

const (
	// patience is more than the scheduler's bindTimeout of 5 s, and less than twice that, after which it takes an uncertain bind as settled.
	patience = 6 * time.Second
	// longest is for how long a slow request is held.
	longest = 2 * time.Second
)

var binding = regexp.MustCompile(`/pods/[^/]+/binding$`)

// proxy passes requests on to an API server and spoils binds.
type proxy struct {
	// URL is where it listens.
	URL string
	// underway is called with the path of a bind that is about to be slow or late.
	underway func(path string)

	mu      sync.Mutex
	forward *httputil.ReverseProxy
	// chance of each bind to be spoilt, in percent.
	chance int
	random *rand.Rand
	counts map[fault]int
}

// startProxy listens until the context ends. It spoils nothing yet.
func startProxy(ctx context.Context, seed uint64, underway func(path string)) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{URL: "http://" + listener.Addr().String(), underway: underway, random: rand.New(rand.NewPCG(seed, seed)), counts: map[fault]int{}}
	server := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // ends with the error that it was closed
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return p, nil
}

// passTo says which API server requests go to, and as whom: clients send no token to a server without TLS, as the proxy is one.
func (p *proxy) passTo(server string, authority []byte, token string) error {
	target, err := url.Parse(server)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("Authorization", "Bearer "+token)
		},
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64},
		FlushInterval: -1, // watches
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	return nil
}

// spoil sets the chance of a bind to be spoilt, in percent.
func (p *proxy) spoil(chance int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chance = chance
}

// reseed begins a new sequence of faults.
func (p *proxy) reseed(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.random = rand.New(rand.NewPCG(seed, seed))
}

// spoilt is how many binds each fault has met.
func (p *proxy) spoilt() map[fault]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := map[fault]int{}
	for f, n := range p.counts {
		counts[f] = n
	}
	return counts
}

// pick deals a fault, or none.
func (p *proxy) pick() (f fault, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.random.IntN(100) >= p.chance {
		return "", 0
	}
	f = allFaults[p.random.IntN(len(allFaults))]
	p.counts[f]++
	return f, time.Duration(p.random.Int64N(int64(longest)))
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	forward := p.forward
	p.mu.Unlock()
	if r.Method != http.MethodPost || !binding.MatchString(r.URL.Path) {
		forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	// What is forwarded does not end when the client loses patience.
	pass := func(w http.ResponseWriter) {
		request := r.Clone(context.WithoutCancel(r.Context()))
		request.Body = io.NopCloser(bytes.NewReader(body))
		forward.ServeHTTP(w, request)
	}
	f, wait := p.pick()
	if f == slow || f == late {
		p.underway(r.URL.Path)
	}
	switch f {
	case responseLost:
		pass(nowhere{})
		panic(http.ErrAbortHandler)
	case responseHeld:
		pass(nowhere{})
		time.Sleep(patience) // the fault is the time that passes
		panic(http.ErrAbortHandler)
	case errorAfter:
		pass(nowhere{})
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case conflictAfter:
		pass(nowhere{})
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	case timeoutAfter:
		pass(nowhere{})
		refuse(w, http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
	case conflictInstead:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
	case errorInstead:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError)
	case tooManyInstead:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
	case connectionRefused:
		panic(http.ErrAbortHandler)
	case late:
		time.Sleep(patience) // the fault is the time that passes
		pass(nowhere{})
		panic(http.ErrAbortHandler)
	case slow:
		time.Sleep(wait) // the fault is the time that passes
		pass(w)
	default:
		pass(w)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
		Message: fmt.Sprintf("a fault of the test: %d", code)}
	_ = json.NewEncoder(w).Encode(status) // the client may be gone
}

// nowhere takes an answer that the client is not to have.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
