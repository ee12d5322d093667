package turns

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func of(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func TestNamespacesAreServedInTurn(t *testing.T) {
	q := NewQueue("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute))
	defer q.ShutDown()
	for i := range 2000 {
		q.Add(of("large", fmt.Sprint(i)))
	}
	q.Add(of("small", "a"))
	q.Add(of("small", "b"))
	q.Add(of("other", "a"))
	q.Add(of("small", "a")) // again, and it keeps its place
	expect := func(want ...reconcile.Request) {
		t.Helper()
		for _, want := range want {
			got, _ := q.Get()
			if got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
			q.Done(got)
		}
	}
	expect(of("large", "0"), of("small", "a"), of("other", "a"), of("large", "1"), of("small", "b"), of("large", "2"), of("large", "3"))
	q.Add(of("late", "a"))
	expect(of("large", "4"), of("late", "a"), of("large", "5"))
	if q.Len() != 1994 {
		t.Errorf("%d wait, want 1994", q.Len())
	}
}

// A request that is served can be asked for again meanwhile, and comes after the others of its namespace then.
func TestARequestThatIsServedComesAgainAfterTheOthers(t *testing.T) {
	q := NewQueue("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute))
	defer q.ShutDown()
	q.Add(of("shop", "a"))
	q.Add(of("shop", "b"))
	served, _ := q.Get()
	q.Add(served)
	if q.Len() != 1 {
		t.Errorf("%d wait, want the other one alone", q.Len())
	}
	q.Done(served)
	for _, want := range []string{"b", "a"} {
		if got, _ := q.Get(); got.Name != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
