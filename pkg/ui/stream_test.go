package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

// telling is a stream over a board of the test.
func telling(t *testing.T, f *fixture) *stream {
	t.Helper()
	return newStream(f.board, Title{Cluster: "test", Namespace: "shop"}, clocktesting.NewFakeClock(noon))
}

func (s *stream) tellPod(t *testing.T, p *corev1.Pod) {
	t.Helper()
	s.change(func(b *board) { b.putPod(p) })
	if err := s.broadcast(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// taken are the events that a reader takes, as "event: pods".
func taken(t *testing.T, s *stream, r *reader) (events []string) {
	t.Helper()
	frames, err := s.take(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		name, data, found := strings.Cut(strings.TrimSpace(string(f)), "\ndata: ")
		if !found || !strings.HasSuffix(string(f), "\n\n") || strings.Contains(data, "\n") {
			t.Fatalf("not an event: %q", f)
		}
		var said snapshot
		if err := json.Unmarshal([]byte(data), &said); err != nil {
			t.Fatal(err)
		}
		events = append(events, strings.TrimPrefix(name, "event: ")+": "+strings.Join(words(said.News), " "))
	}
	return events
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAReaderIsToldEverythingAndThenWhatIsNew(t *testing.T) {
	s := telling(t, newFixture(t))
	s.tellPod(t, pod("a", "", ""))
	r, err := s.join()
	if err != nil {
		t.Fatal(err)
	}
	s.tellPod(t, pod("b", "", "")) // before it has taken anything
	expect(t, taken(t, s, r), "snapshot: a:pending b:pending")
	s.tellPod(t, pod("c", "", ""))
	s.tellPod(t, pod("a", "n1", ""))
	expect(t, taken(t, s, r), "news: c:pending", "news: a:ready")
	expect(t, taken(t, s, r))
}

func TestAReaderThatDoesNotReadCostsNoMoreThanItsQueue(t *testing.T) {
	s := telling(t, newFixture(t))
	slow, err := s.join()
	if err != nil {
		t.Fatal(err)
	}
	quick, err := s.join()
	if err != nil {
		t.Fatal(err)
	}
	taken(t, s, slow)
	taken(t, s, quick)
	for i := range 3 * longestQueue {
		s.tellPod(t, pod(fmt.Sprintf("pod-%02d", i%10), "", ""))
		s.change(func(b *board) {
			b.dropPod(types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("pod-%02d", (i+5)%10)})
		})
		if len(slow.queue) > longestQueue {
			t.Fatalf("%d batches wait", len(slow.queue))
		}
		if got := taken(t, s, quick); len(got) != 1 || !strings.HasPrefix(got[0], "news: ") {
			t.Fatalf("the other reader is told %q", got)
		}
	}
	if err := s.broadcast(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := "snapshot: " + strings.Join(words(s.board.everything()), " ")
	expect(t, taken(t, s, slow), want)
	expect(t, taken(t, s, slow))
}

func TestNoMoreThanSoManyBrowsersAreServed(t *testing.T) {
	s := telling(t, newFixture(t))
	var first *reader
	for range mostReaders {
		r, err := s.join()
		if err != nil {
			t.Fatal(err)
		}
		first = r
	}
	if _, err := s.join(); !errors.Is(err, errTooManyReaders) {
		t.Fatalf("one more: %v", err)
	}
	s.leave(first)
	if _, err := s.join(); err != nil {
		t.Fatalf("after one has left: %v", err)
	}
}
