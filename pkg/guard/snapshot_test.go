package guard

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestWhenASnapshotServes(t *testing.T) {
	now := time.Unix(1000, 0)
	of := func(change func(*v1beta1.PodUnavailableBudget)) *v1beta1.PodUnavailableBudget {
		pub := selecting("web", 0, 1)
		pub.UID, pub.Generation, pub.Status.LedgerRevision = "pub", 2, "90"
		if change != nil {
			change(pub)
		}
		return pub
	}
	tests := map[string]struct {
		pub  func(*v1beta1.PodUnavailableBudget)
		pods []string // resourceVersions of the judged pods
		age  time.Duration
		want bool
	}{
		"its pods are as new as the ledger needs":            {want: true},
		"and as the pod that is judged":                      {pods: []string{"100", "7"}, want: true},
		"a pod that is judged has changed since":             {pods: []string{"7", "101"}},
		"the ledger was written by newer pods":               {pub: func(p *v1beta1.PodUnavailableBudget) { p.Status.LedgerRevision = "101" }},
		"the ledger was written by pods with one digit more": {pub: func(p *v1beta1.PodUnavailableBudget) { p.Status.LedgerRevision = "1000" }},
		"nobody knows how new the pods must be":              {pub: func(p *v1beta1.PodUnavailableBudget) { p.Status.LedgerRevision = "" }},
		"a revision is not a number":                         {pods: []string{"x"}},
		"the budget has another spec":                        {pub: func(p *v1beta1.PodUnavailableBudget) { p.Generation = 3 }},
		"the budget has another annotation": {pub: func(p *v1beta1.PodUnavailableBudget) {
			p.Annotations = map[string]string{v1beta1.ProtectTotalReplicasAnnotation: "9"}
		}},
		"it does not know of a subset that has lost its pods": {pub: func(p *v1beta1.PodUnavailableBudget) {
			p.Status.SubsetWorkloads = []v1beta1.SubsetWorkload{{Kind: "StatefulSet", Name: "zone-a", UID: "zone-a"}}
		}},
		"the budget is another of the name":            {pub: func(p *v1beta1.PodUnavailableBudget) { p.UID = "other" }},
		"a pod may have failed by itself long ago":     {age: oldestSnapshot},
		"a pod may have failed by itself a moment ago": {age: oldestSnapshot - 1, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			policies, pub := newPolicies(), of(tc.pub)
			s := snapshot{count: &census.Count{Revision: "100"}, policy: policies.of(of(nil)), at: now}
			if s.policy == nil {
				t.Fatal("the budget is not valid")
			}
			var requests []Request
			for _, revision := range tc.pods {
				requests = append(requests, Request{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: revision}}})
			}
			if got := s.serves(policies.of(pub), pub, requests, now.Add(tc.age)); got != tc.want {
				t.Errorf("serves: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestABudgetFromTheWatchIsProvenByTheWrite has a watch that shows an earlier version of the budget. One of three pods may go.
func TestABudgetFromTheWatchIsProvenByTheWrite(t *testing.T) {
	taken := func(pub *v1beta1.PodUnavailableBudget) {
		pub.Status.Ledger = []v1beta1.LedgerEntry{{UID: "web-2", Name: "web-2", Operation: v1beta1.OperationDelete, Time: metav1.Unix(1, 0)}}
	}
	tests := map[string]struct {
		// before changes the budget that the watch shows. Nil changes nothing.
		before func(*v1beta1.PodUnavailableBudget)
		// since changes the budget after the watch has shown it. Nil deletes the budget.
		since func(*v1beta1.PodUnavailableBudget)
		// allowed is status.unavailableAllowed as the watch shows it.
		allowed int32
		want    v1beta1.Reason
		reads   int
		// attempts is how often the guard tries to write.
		attempts int
	}{
		"it is the latest": {since: func(*v1beta1.PodUnavailableBudget) {}, allowed: 1, want: v1beta1.ReasonWithinBudget, attempts: 1},
		"it is the latest, and seems to have no room":    {since: func(*v1beta1.PodUnavailableBudget) {}, want: v1beta1.ReasonWithinBudget, reads: 1, attempts: 1},
		"somebody has taken the room since":              {since: taken, allowed: 1, want: v1beta1.ReasonBudgetExhausted, reads: 1, attempts: 1},
		"somebody has taken the room, and it shows":      {since: taken, want: v1beta1.ReasonBudgetExhausted, reads: 1},
		"it has a spec since that allows none":           {since: func(p *v1beta1.PodUnavailableBudget) { p.Generation, p.Spec.MaxUnavailable.IntVal = 2, 0 }, allowed: 1, want: v1beta1.ReasonBudgetExhausted, reads: 1, attempts: 1},
		"somebody has given room back since":             {before: taken, since: func(p *v1beta1.PodUnavailableBudget) { p.Status.Ledger = nil }, allowed: 1, want: v1beta1.ReasonWithinBudget, reads: 1, attempts: 1},
		"it was deleted, and something would be written": {allowed: 1, want: v1beta1.ReasonNotProtected, attempts: 1},
		"it was deleted, and nothing would be written":   {want: v1beta1.ReasonNotProtected, reads: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			reads, attempts := 0, 0
			c := cluster(t, 3, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if _, is := o.(*v1beta1.PodUnavailableBudget); is {
						reads++
					}
					return c.Get(ctx, key, o, opts...)
				},
				SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
					attempts++
					return c.SubResource(sub).Update(ctx, o, opts...)
				},
			})
			name := types.NamespacedName{Namespace: "ns", Name: "web"}
			pub := &v1beta1.PodUnavailableBudget{}
			if err := c.Get(t.Context(), name, pub); err != nil {
				t.Fatal(err)
			}
			if tc.before != nil {
				tc.before(pub)
			}
			pub.Status.UnavailableAllowed = tc.allowed
			if err := c.Status().Update(t.Context(), pub); err != nil {
				t.Fatal(err)
			}
			watched := pub.DeepCopy()
			if tc.since == nil {
				if err := c.Delete(t.Context(), pub); err != nil {
					t.Fatal(err)
				}
			} else if tc.since(pub); !equalBudgets(pub, watched) {
				status := pub.Status.DeepCopy()
				if err := c.Update(t.Context(), pub); err != nil {
					t.Fatal(err)
				}
				pub.Status = *status
				if err := c.Status().Update(t.Context(), pub); err != nil {
					t.Fatal(err)
				}
			}
			reads, attempts = 0, 0
			cache := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(watched, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}).Build()
			allowed, reason := decide(t, New(c, c, cache, Options{}), 0)
			if reason != tc.want || reads != tc.reads || attempts != tc.attempts {
				t.Errorf("allowed %t, reason %s after %d reads and %d writes of the budget; want %s after %d and %d", allowed, reason, reads, attempts, tc.want, tc.reads, tc.attempts)
			}
			if err := c.Get(t.Context(), name, pub); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			if held := len(pub.Status.Ledger) == 1 && pub.Status.Ledger[0].UID == "web-0"; held != (reason == v1beta1.ReasonWithinBudget) {
				t.Errorf("%s, and the ledger is %+v", reason, pub.Status.Ledger)
			}
		})
	}
}

func equalBudgets(a, b *v1beta1.PodUnavailableBudget) bool {
	return len(a.Status.Ledger) == len(b.Status.Ledger) && a.Spec.MaxUnavailable.IntVal == b.Spec.MaxUnavailable.IntVal
}

// TestRoundsOfOneLineShareACount runs three rounds with the same knowledge.
func TestRoundsOfOneLineShareACount(t *testing.T) {
	for name, tc := range map[string]struct {
		pass  time.Duration
		after int // the round after which the time passes; the first is 0
		want  int // lists of pods
		reads int // of the budget
	}{
		"while it is young": {want: 1},
		"until it is old":   {pass: oldestSnapshot, want: 2},
		"until it is old, and the budget that refuses too": {pass: oldestSnapshot, after: 1, want: 2, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			lists, reads := 0, 0
			c := cluster(t, 3, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if _, is := o.(*v1beta1.PodUnavailableBudget); is {
					reads++
				}
				return c.Get(ctx, key, o, opts...)
			}, List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				err := c.List(ctx, list, opts...)
				if pods, is := list.(*corev1.PodList); is {
					lists++
					pods.ResourceVersion = "1000"
				}
				return err
			}})
			pub := &v1beta1.PodUnavailableBudget{}
			name := types.NamespacedName{Namespace: "ns", Name: "web"}
			if err := c.Get(t.Context(), name, pub); err != nil {
				t.Fatal(err)
			}
			pub.Spec.MaxUnavailable.IntVal = 2
			if err := c.Update(t.Context(), pub); err != nil {
				t.Fatal(err)
			}
			pub.Status.LedgerRevision, pub.Status.UnavailableAllowed = "90", 2
			if err := c.Status().Update(t.Context(), pub); err != nil {
				t.Fatal(err)
			}
			cache := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(pub, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}).Build()
			s := New(c, c, cache, Options{Clock: clock}).store
			reads = 0
			var k knowledge
			for i, want := range []v1beta1.Reason{v1beta1.ReasonWithinBudget, v1beta1.ReasonWithinBudget, v1beta1.ReasonBudgetExhausted} {
				verdicts, err := s.decideOnce(t.Context(), name, []Request{{Pod: pod(i), Operation: v1beta1.OperationDelete}}, &k)
				if err != nil || verdicts[0].Reason != want {
					t.Fatalf("round %d: %+v, %v, want %s", i, verdicts, err, want)
				}
				if i == tc.after {
					clock.SetTime(clock.Now().Add(tc.pass))
				}
			}
			if lists != tc.want || reads != tc.reads {
				t.Errorf("%d lists of pods and %d reads of the budget, want %d and %d", lists, reads, tc.want, tc.reads)
			}
		})
	}
}

// TestLinesShareACountForAMoment sends requests one after the other.
func TestLinesShareACountForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := 0
		c := cluster(t, 3, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if pods, is := list.(*corev1.PodList); is {
				lists++
				pods.ResourceVersion = "1000"
			}
			return err
		}})
		g := New(c, c, c, Options{})
		ask := func(i, wantLists int, want v1beta1.Reason) {
			t.Helper()
			judged := pod(i)
			judged.ResourceVersion = "90"
			v, err := g.Decide(t.Context(), Request{Pod: judged, Operation: v1beta1.OperationDelete})
			if err != nil || v.Reason != want || lists != wantLists {
				t.Errorf("%+v, %v after %d lists of pods, want %s after %d", v, err, lists, want, wantLists)
			}
		}
		ask(0, 1, v1beta1.ReasonWithinBudget)
		ask(1, 1, v1beta1.ReasonBudgetExhausted)
		time.Sleep(oldestSnapshot) // by the bubble's clock
		synctest.Wait()
		ask(1, 2, v1beta1.ReasonBudgetExhausted)
	})
}

// TestRequestsJoinARoundThatStillCounts has one request begin a count that takes long, and others arrive meanwhile.
func TestRequestsJoinARoundThatStillCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests, room = 8, 3
		counted, lists, writes := make(chan struct{}), 0, 0
		c := cluster(t, requests, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				err := c.List(ctx, list, opts...)
				if pods, is := list.(*corev1.PodList); is {
					lists++
					pods.ResourceVersion = "1000"
					<-counted
				}
				return err
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				writes++
				return c.SubResource(sub).Update(ctx, o, opts...)
			},
		})
		pub := &v1beta1.PodUnavailableBudget{}
		if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
			t.Fatal(err)
		}
		pub.Spec.MaxUnavailable.IntVal = room
		if err := c.Update(t.Context(), pub); err != nil {
			t.Fatal(err)
		}
		pub.Status.LedgerRevision, pub.Status.UnavailableAllowed = "90", room
		if err := c.Status().Update(t.Context(), pub); err != nil {
			t.Fatal(err)
		}
		g := New(c, c, c, Options{})
		writes = 0
		var allowed atomic.Int32
		var clients sync.WaitGroup
		for i := range requests {
			clients.Go(func() {
				if ok, _ := decide(t, g, i); ok {
					allowed.Add(1)
				}
			})
			synctest.Wait()
		}
		close(counted)
		clients.Wait()
		if lists != 1 || writes != 1 || allowed.Load() != room {
			t.Errorf("%d of %d requests allowed, want %d, with %d lists of pods and %d writes of the ledger, want one of each", allowed.Load(), requests, room, lists, writes)
		}
	})
}

// TestAReplicaCountsAgainAfterADecisionByNewerPods has two replicas. The first still has a young count when the second decides by a later list.
func TestAReplicaCountsAgainAfterADecisionByNewerPods(t *testing.T) {
	for name, tc := range map[string]struct {
		changes bool // a pod has changed between the lists
		again   []string
	}{
		"the pods are the same": {},
		"a pod is newer":        {changes: true, again: []string{"1000"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				revision, asked := "999", []string(nil) // that of the fake client's new pods
				c := cluster(t, 4, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if pods, is := list.(*corev1.PodList); is {
						all := (&client.ListOptions{}).ApplyOptions(opts)
						asked = append(asked, all.AsListOptions().ResourceVersion)
						defer func() { pods.ResourceVersion = revision }()
					}
					return c.List(ctx, list, opts...)
				}})
				first, second := New(c, c, c, Options{}), New(c, c, c, Options{})
				ask := func(g *Guard, i int, want v1beta1.Reason, wantAsked ...string) {
					t.Helper()
					judged := pod(i)
					judged.ResourceVersion = "90"
					v, err := g.Decide(t.Context(), Request{Pod: judged, Operation: v1beta1.OperationDelete})
					if err != nil || v.Reason != want || !slices.Equal(asked, wantAsked) {
						t.Errorf("%+v, %v after lists of pods not older than %q, want %s after %q", v, err, asked, want, wantAsked)
					}
					asked = nil
				}
				ask(first, 0, v1beta1.ReasonWithinBudget, "90")
				if tc.changes {
					changed := pod(3)
					changed.Annotations = map[string]string{"example.com/changed": "true"}
					if err := c.Update(t.Context(), changed); err != nil {
						t.Fatal(err)
					}
				}
				revision = "1010"
				ask(second, 0, v1beta1.ReasonApproved, "999")
				ask(first, 1, v1beta1.ReasonBudgetExhausted, tc.again...)
				ask(second, 1, v1beta1.ReasonBudgetExhausted)
			})
		})
	}
}
