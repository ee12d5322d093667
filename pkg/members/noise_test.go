package members

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// looksIn counts how often the hub looks at an object within a time in which its member changes a hundred times a second.
func looksIn(n *noise, of Errand, d time.Duration, now *time.Time) (looks int) {
	var due time.Time
	for end := now.Add(d); now.Before(end); *now = now.Add(10 * time.Millisecond) {
		if next := now.Add(n.after(of, 200*time.Millisecond, *now)); !next.Equal(due) {
			due = next
			looks++
		}
	}
	return looks
}

func TestAMemberThatChangesAllTheTimeIsLookedAtNowAndThen(t *testing.T) {
	var n noise
	now := time.Unix(1_700_000_000, 0)
	noisy := Errand{types.NamespacedName{Namespace: "shop", Name: "web"}, "a"}
	if got := looksIn(&n, noisy, 2*time.Second, &now); got != 10 {
		t.Errorf("%d looks in the first 2 s, want one each 200 ms", got)
	}
	if got := looksIn(&n, noisy, 10*time.Minute, &now); got > 310 {
		t.Errorf("%d looks in 10 min, want one each 2 s", got)
	}
	other := noisy
	other.Member = "b"
	if got := n.after(other, 200*time.Millisecond, now); got != 200*time.Millisecond {
		t.Errorf("another member waits %s", got)
	}
	now = now.Add(time.Minute)
	if got := n.after(noisy, 200*time.Millisecond, now); got != 200*time.Millisecond {
		t.Errorf("after a quiet minute it waits %s", got)
	}
	for i := range 10_000 {
		now = now.Add(time.Second)
		n.after(Errand{types.NamespacedName{Name: fmt.Sprint(i)}, "a"}, 0, now)
	}
	if len(n.heard) > 2000 {
		t.Errorf("%d objects are remembered", len(n.heard))
	}
}
