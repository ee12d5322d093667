package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// batchInterval is how long changes are collected before they are sent to browsers. People do not see faster
	// changes.
	batchInterval = 100 * time.Millisecond
	// waitCheckInterval is how often the stream looks for waits of the descheduler that are over.
	waitCheckInterval = time.Second
	// longestQueue is how many batches may wait for a slow browser. One that is further behind is disconnected,
	// reconnects by itself, and gets everything again.
	longestQueue = 16
)

// frame is an encoded event (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type frame []byte

func encode(event string, content any) (frame, error) {
	encoded, err := json.Marshal(content) // on one line
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", event, err)
	}
	var f bytes.Buffer
	fmt.Fprintf(&f, "event: %s\ndata: %s\n\n", event, encoded)
	return f.Bytes(), nil
}

// stream sends browsers what is on the board. The data that waits for a browser is bounded, and a slow browser delays
// neither others nor the board.
type stream struct {
	clock clock.WithTicker
	// title is what a snapshot says besides the news.
	title Title

	mu    sync.Mutex
	board *board
	// readers are the browsers. The stream closes the channel of one that is too far behind.
	readers sets.Set[chan frame]
	// stale is readable when there may be news.
	stale chan struct{}
}

// Title says which cluster a page shows.
type Title struct {
	// Cluster as the user knows it: the name of a context, or an address.
	Cluster string `json:"cluster"`
	// Namespace whose pods and spreads are shown. Empty for all.
	Namespace string `json:"namespace"`
}

// snapshot is everything that a page shows. It replaces what the page has.
type snapshot struct {
	Title
	pageNews
}

func newStream(board *board, title Title, clock clock.WithTicker) *stream {
	return &stream{clock: clock, title: title, board: board, readers: sets.New[chan frame](), stale: make(chan struct{}, 1)}
}

// change changes the board.
func (s *stream) change(do func(*board)) {
	s.mu.Lock()
	do(s.board)
	isStale := s.board.isStale()
	s.mu.Unlock()
	if isStale {
		signal(s.stale)
	}
}

// run sends news until the context ends.
func (s *stream) run(ctx context.Context) {
	ticker := s.clock.NewTicker(waitCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.stale:
		case <-ticker.C():
			s.change((*board).endWaits)
			continue
		case <-ctx.Done():
			return
		}
		if err := s.broadcast(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "The page is not up to date, trying again")
			signal(s.stale)
		}
		select {
		case <-s.clock.After(batchInterval):
		case <-ctx.Done():
			return
		}
	}
}

// broadcast takes the news from the board and sends it to every reader.
func (s *stream) broadcast(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	news, err := s.board.news(ctx)
	if err != nil || news == nil {
		return err
	}
	f, err := encode("news", news)
	for r := range s.readers {
		if err != nil || len(r) == cap(r) {
			s.readers.Delete(r)
			close(r)
			continue
		}
		r <- f
	}
	return err
}

// join adds a reader, which gets everything first. The caller must leave it.
func (s *stream) join() (chan frame, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	whole, err := encode("snapshot", snapshot{s.title, *s.board.everything()})
	if err != nil {
		return nil, err
	}
	r := make(chan frame, longestQueue)
	r <- whole
	s.readers.Insert(r)
	return r, nil
}

func (s *stream) leave(r chan frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers.Delete(r)
}

// signal never blocks: one signal stands for many.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
