package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// whatIfTimeout is how long the answer to a question may take.
	whatIfTimeout = 30 * time.Second
	// mostReplicas bounds the question where so many replicas would be.
	mostReplicas = 5000
	// mostQuestions are answered at a time. Each may be a process that reads the cluster.
	mostQuestions = 2
	// longestAnswer and longestComplaint are in bytes.
	longestAnswer, longestComplaint = 1 << 20, 2 << 10
)

// offers tells a browser what it may ask.
type offers struct {
	Explain bool `json:"explain"`
	// Simulate is the largest number of replicas. It is 0 if the page does not offer that.
	Simulate int32 `json:"simulate"`
}

func offersOf(options *Options) offers {
	o := offers{Explain: options.Explain != nil}
	if options.Simulate != nil {
		o.Simulate = mostReplicas
	}
	return o
}

func (p *Page) serveExplain(w http.ResponseWriter, r *http.Request) {
	name := types.NamespacedName{Namespace: r.URL.Query().Get("namespace"), Name: r.URL.Query().Get("pod")}
	if p.stream.shows(func(b *board) bool { return b.pods[name] != nil }) {
		p.answer(w, r, p.explain != nil, func(ctx context.Context) ([]byte, error) { return p.explain(ctx, name.Namespace, name.Name) })
		return
	}
	http.Error(w, fmt.Sprintf("this page shows no pod %s", name), http.StatusNotFound)
}

func (p *Page) serveSimulate(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	name := types.NamespacedName{Namespace: query.Get("namespace"), Name: query.Get("spread")}
	replicas, err := strconv.ParseUint(query.Get("replicas"), 10, 31)
	switch {
	case err != nil || replicas > mostReplicas:
		http.Error(w, fmt.Sprintf("replicas: %q is not a number from 0 to %d", query.Get("replicas"), mostReplicas), http.StatusBadRequest)
	case !p.stream.shows(func(b *board) bool { return b.spreads[name] != nil }):
		http.Error(w, fmt.Sprintf("this page shows no spread %s", name), http.StatusNotFound)
	default:
		p.answer(w, r, p.simulate != nil, func(ctx context.Context) ([]byte, error) {
			return p.simulate(ctx, name.Namespace, name.Name, int32(replicas))
		})
	}
}

// answer asks on behalf of a browser and sends it the answer. A client gets one answer at a time, and all clients together mostQuestions.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, offered bool, ask func(context.Context) ([]byte, error)) {
	if !offered {
		http.Error(w, "this page answers no such question; kubectl berth ui does, with berth-whatif beside it", http.StatusNotImplemented)
		return
	}
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		client = r.RemoteAddr // it is only a key
	}
	if !p.questions.begin(client) {
		http.Error(w, "another question is being answered; ask again in a moment", http.StatusTooManyRequests)
		return
	}
	defer p.questions.end(client)
	ctx, cancel := context.WithTimeout(r.Context(), whatIfTimeout)
	defer cancel()
	content, err := ask(ctx)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		http.Error(w, fmt.Sprintf("no answer came within %s", whatIfTimeout), http.StatusGatewayTimeout)
	case err != nil:
		http.Error(w, err.Error()[:min(len(err.Error()), longestComplaint)], http.StatusBadGateway)
	case len(content) > longestAnswer || !json.Valid(content):
		http.Error(w, "the answer is too long, or is not JSON", http.StatusBadGateway)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(content) // the browser may be gone
	}
}

// questions bounds the questions that are being answered.
type questions struct {
	mu sync.Mutex
	// from are the clients that wait for an answer.
	from []string
}

// begin is false if the client must wait. Otherwise the caller must end its question.
func (q *questions) begin(client string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if slices.Contains(q.from, client) || len(q.from) == mostQuestions {
		return false
	}
	q.from = append(q.from, client)
	return true
}

func (q *questions) end(client string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.from = slices.DeleteFunc(q.from, func(other string) bool { return other == client })
}
