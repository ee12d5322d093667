package ui

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// telling is a stream over a board of the test.
func telling(t *testing.T, f *fixture) *stream {
	t.Helper()
	return newStream(f.board, Title{Cluster: "test", Namespace: "shop"}, clocktesting.NewFakeClock(noon))
}

func (s *stream) tellPod(t *testing.T, p *corev1.Pod) {
	t.Helper()
	s.change(func(b *board) { b.put(p) })
	if err := s.broadcast(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// taken are the events that wait for a reader, as "event: pods".
func taken(t *testing.T, r chan frame) (events []string) {
	t.Helper()
	for len(r) > 0 {
		f := <-r
		name, data, found := strings.Cut(strings.TrimSpace(string(f)), "\ndata: ")
		if !found || !strings.HasSuffix(string(f), "\n\n") || strings.Contains(data, "\n") {
			t.Fatalf("not an event: %q", f)
		}
		var said snapshot
		if err := json.Unmarshal([]byte(data), &said); err != nil {
			t.Fatal(err)
		}
		events = append(events, strings.TrimPrefix(name, "event: ")+": "+strings.Join(words(&said.pageNews), " "))
	}
	return events
}

func join(t *testing.T, s *stream) chan frame {
	t.Helper()
	r, err := s.join()
	if err != nil {
		t.Fatal(err)
	}
	return r
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
	s.tellPod(t, pod("b", "", ""))
	r := join(t, s)
	expect(t, taken(t, r), "snapshot: a:pending b:pending")
	s.tellPod(t, pod("c", "", ""))
	s.tellPod(t, pod("a", "n1", ""))
	expect(t, taken(t, r), "news: c:pending", "news: a:ready")
	expect(t, taken(t, r))
	s.leave(r)
	s.tellPod(t, pod("d", "", ""))
	expect(t, taken(t, r))
}

func TestAReaderThatDoesNotReadIsCutOff(t *testing.T) {
	s := telling(t, newFixture(t))
	slow, quick := join(t, s), join(t, s)
	taken(t, quick)
	for i := range longestQueue {
		s.tellPod(t, pod(fmt.Sprintf("pod-%02d", i), "", ""))
		if got := taken(t, quick); len(got) != 1 || !strings.HasPrefix(got[0], "news: ") {
			t.Fatalf("the other reader is told %q", got)
		}
	}
	taken(t, slow)
	if _, open := <-slow; open {
		t.Error("it is still served")
	}
	expect(t, taken(t, join(t, s)), "snapshot: "+strings.Join(words(s.board.everything()), " "))
}
