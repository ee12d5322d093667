package census

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What lists may cost is counted in bytes. A byte of JSON, as of budgets, costs the API server and Berth about as much as four of other formats, as of pods.
const (
	costOfJSON = 4
	// ownRate is how much a namespace may list in a second whatever others do, and sharedRate how much all namespaces that need more may list besides.
	ownRate, sharedRate = 2 << 20, 16 << 20
	// burst is how much may be listed at once after a rest. A list may be larger: the namespace pays afterwards.
	burst = 16 << 20
	// mostAllowances bounds the memory. A forgotten namespace has rested.
	mostAllowances = 4096
)

// TooMuch is the type of the cause of the error for a list that would have to wait too long.
const TooMuch metav1.CauseType = "NamespaceListsTooMuch"

// NewReader reads from the API server. It bounds what the lists of one namespace cost, whatever they list: a tenant decides how many pods and budgets there are,
// how large they are, and how often somebody asks. A namespace that has used up its allowance lists one thing at a time, and its next list waits. After
// longest the answer is 429 with the cause TooMuch. Lists of other namespaces go on. Each reader has a bound of its own.
func NewReader(config *rest.Config, options client.Options, longest time.Duration) (client.Reader, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return newLists(next, longest) })
	reader, err := client.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("making a client for lists: %w", err)
	}
	return reader, nil
}

// lists counts what the lists of each namespace cost, and holds them back.
type lists struct {
	next http.RoundTripper
	// longest is how long a list waits.
	longest time.Duration
	shared  *rate.Limiter

	mu sync.Mutex
	// allowances has an *allowance for each namespace.
	allowances *lru.Cache
}

// allowance is what a namespace may list.
type allowance struct {
	own *rate.Limiter
	// turn has an item while the namespace lists although it has used up its own part.
	turn chan struct{}
}

func newLists(next http.RoundTripper, longest time.Duration) *lists {
	return &lists{next: next, longest: longest, shared: rate.NewLimiter(sharedRate, burst), allowances: lru.New(mostAllowances)}
}

var listOfNamespace = regexp.MustCompile(`/namespaces/([^/]+)/[^/]+$`)

// RoundTrip sends the request, a list once its namespace may have it.
func (l *lists) RoundTrip(request *http.Request) (*http.Response, error) {
	match := listOfNamespace.FindStringSubmatch(request.URL.Path)
	if request.Method != http.MethodGet || match == nil || request.URL.Query().Get("watch") != "" {
		return l.next.RoundTrip(request)
	}
	a := l.of(match[1])
	limiter, end := a.own, func() {}
	if a.own.Tokens() < 0 {
		ctx, cancel := context.WithTimeout(request.Context(), l.longest)
		defer cancel()
		select {
		case a.turn <- struct{}{}:
		case <-ctx.Done():
			return tooMuch(request, match[1])
		}
		end = sync.OnceFunc(func() { <-a.turn })
		if limiter = sooner(ctx, a.own, l.shared); limiter == nil {
			end()
			return tooMuch(request, match[1])
		}
	}
	response, err := l.next.RoundTrip(request)
	if err != nil {
		end()
		return nil, err
	}
	cost := 1
	if strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") {
		cost = costOfJSON
	}
	response.Body = &counted{ReadCloser: response.Body, read: func(n int) { spend(limiter, n*cost) }, end: end}
	return response, nil
}

func (l *lists) of(namespace string) *allowance {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, found := l.allowances.Get(namespace); found {
		return known.(*allowance)
	}
	a := &allowance{own: rate.NewLimiter(ownRate, burst), turn: make(chan struct{}, 1)}
	l.allowances.Add(namespace, a)
	return a
}

// spend takes tokens that there may not be: the limiter then has less than none.
func spend(limiter *rate.Limiter, tokens int) {
	for now := time.Now(); tokens > 0; tokens -= burst { //nolint:forbidigo // the limiter's clock
		limiter.ReserveN(now, min(tokens, burst))
	}
}

// sooner waits until one of the limiters owes nothing, and returns that one. It is nil if the context ends earlier.
func sooner(ctx context.Context, limiters ...*rate.Limiter) *rate.Limiter {
	wait := func(limiter *rate.Limiter) float64 { return -limiter.Tokens() / float64(limiter.Limit()) }
	first := slices.MinFunc(limiters, func(a, b *rate.Limiter) int { return cmp.Compare(wait(a), wait(b)) })
	if first.WaitN(ctx, 0) != nil {
		return nil
	}
	return first
}

// tooMuch is an answer as of an API server, so that the error has no URL in it: selectors make that long.
func tooMuch(request *http.Request, namespace string) (*http.Response, error) {
	err := apierrors.NewTooManyRequests(fmt.Sprintf("Berth reads the pods and budgets of namespace %s as often as one namespace may make it read; try again", namespace), 0)
	err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: TooMuch}}
	body, failed := json.Marshal(&err.ErrStatus)
	return &http.Response{
		Status: "429 Too Many Requests", StatusCode: http.StatusTooManyRequests, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: request,
	}, failed
}

// counted is a body whose bytes are counted.
type counted struct {
	io.ReadCloser
	read func(n int)
	end  func()
}

// Read counts what it reads.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.read(n)
	return n, err
}

// Close ends the list.
func (c *counted) Close() error {
	c.end()
	return c.ReadCloser.Close()
}
