package members

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
)

// looksIn counts how often the hub looks at an object within a time in which its member changes a hundred times a second.
func looksIn(n *noise, of Errand, d time.Duration) (looks int) {
	var due time.Time
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if next := time.Now().Add(n.after(of, 200*time.Millisecond)); !next.Equal(due) {
			due = next
			looks++
		}
	}
	return looks
}

func TestAMemberThatChangesAllTheTimeIsLookedAtNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := noise{heard: cache.NewExpiring()}
		noisy := Errand{types.NamespacedName{Namespace: "shop", Name: "web"}, "a"}
		if got := looksIn(&n, noisy, 2*time.Second); got != 10 {
			t.Errorf("%d looks in the first 2 s, want one each 200 ms", got)
		}
		if got := looksIn(&n, noisy, 10*time.Minute); got > 310 {
			t.Errorf("%d looks in 10 min, want one each 2 s", got)
		}
		other := noisy
		other.Member = "b"
		if got := n.after(other, 200*time.Millisecond); got != 200*time.Millisecond {
			t.Errorf("another member waits %s", got)
		}
		time.Sleep(time.Minute)
		if got := n.after(noisy, 200*time.Millisecond); got != 200*time.Millisecond {
			t.Errorf("after a quiet minute it waits %s", got)
		}
		for i := range 10_000 {
			time.Sleep(time.Second)
			n.after(Errand{types.NamespacedName{Name: fmt.Sprint(i)}, "a"}, 0)
		}
		if n.heard.Len() > 2000 {
			t.Errorf("%d objects are remembered", n.heard.Len())
		}
	})
}
