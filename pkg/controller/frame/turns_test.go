package frame

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func of(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func queueOf(t *testing.T, most int) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	t.Helper()
	q := newQueue(most)("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute))
	t.Cleanup(q.ShutDown)
	return q
}

func TestNamespacesAreServedInTurn(t *testing.T) {
	q := queueOf(t, 1)
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
	q := queueOf(t, 2)
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

// TestANamespaceWhoseRequestsHangLeavesWorkersForOthers has 4 workers, and a namespace whose requests end when the test says so.
func TestANamespaceWhoseRequestsHangLeavesWorkersForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queueOf(t, 2)
		hang := make(chan struct{})
		var hanging, served atomic.Int32
		for range 4 {
			go func() {
				for {
					request, shutdown := q.Get()
					if shutdown {
						return
					}
					if request.Namespace == "hanging" {
						hanging.Add(1)
						<-hang
						hanging.Add(-1)
					}
					served.Add(1)
					q.Done(request)
				}
			}()
		}
		expect := func(what string, wantHanging, wantServed int32) {
			t.Helper()
			synctest.Wait()
			if h, s := hanging.Load(), served.Load(); h != wantHanging || s != wantServed {
				t.Errorf("%s: %d hang and %d are served, want %d and %d", what, h, s, wantHanging, wantServed)
			}
		}
		for i := range 10 {
			q.Add(of("hanging", fmt.Sprint(i)))
		}
		expect("a namespace hangs", 2, 0)
		for i := range 100 {
			q.Add(of("quiet", fmt.Sprint(i)))
		}
		expect("another has requests", 2, 100)
		q.Add(of("hanging", "0")) // again, while it is served
		hang <- struct{}{}
		expect("one ends", 2, 101)
		close(hang)
		expect("all end", 0, 111)
		for i := range 10 {
			q.Add(of("hanging", fmt.Sprint(i)))
		}
		expect("they come again", 0, 121)
		q.ShutDown()
	})
}

// TestEveryRequestIsServedAndNoNamespaceHasTooMany adds random requests while 8 workers serve them.
func TestEveryRequestIsServedAndNoNamespaceHasTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		q := queueOf(t, most)
		var mu sync.Mutex
		serving, wanted := map[string]int{}, map[reconcile.Request]bool{}
		for range 8 {
			go func() {
				for {
					request, shutdown := q.Get()
					if shutdown {
						return
					}
					mu.Lock()
					delete(wanted, request)
					if serving[request.Namespace]++; serving[request.Namespace] > most {
						t.Errorf("%d requests of %s are served", serving[request.Namespace], request.Namespace)
					}
					mu.Unlock()
					time.Sleep(rand.N(5 * time.Millisecond)) // in the bubble
					mu.Lock()
					serving[request.Namespace]--
					mu.Unlock()
					q.Done(request)
				}
			}()
		}
		for range 5000 {
			request := of(fmt.Sprint(rand.N(4)), fmt.Sprint(rand.N(20)))
			mu.Lock()
			wanted[request] = true
			mu.Unlock()
			q.Add(request)
			time.Sleep(rand.N(time.Millisecond))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(wanted) > 0 || q.Len() > 0 {
			t.Errorf("%v were not served, and %d wait", wanted, q.Len())
		}
		q.ShutDown()
	})
}
