package spread

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// costs are the deletion costs of all pods by name; "-" is none.
func (f *fixture) costs(t *testing.T) map[string]string {
	t.Helper()
	var pods corev1.PodList
	if err := f.client.List(t.Context(), &pods, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	costs := map[string]string{}
	for i := range pods.Items {
		costs[pods.Items[i].Name] = "-"
		if cost, found := pods.Items[i].Annotations[v1beta1.PodDeletionCostAnnotation]; found {
			costs[pods.Items[i].Name] = cost
		}
	}
	return costs
}

func costing(p *corev1.Pod, cost string) *corev1.Pod {
	p.Annotations[v1beta1.PodDeletionCostAnnotation] = cost
	return p
}

func TestAdoptedPodsGetTheMetadataOfTheirSubset(t *testing.T) {
	const patched = byZone + "\n" // zones a and b by node
	foreign := func(name string) *corev1.Pod {
		p := pod(name, "r1", "")
		p.Spec.NodeName = "n"
		return p
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "b"}}}
	withPatch := func() *v1beta1.WorkloadSpread {
		spread := makeSpread(t, patched)
		spread.Spec.Subsets[1].Patch = &runtime.RawExtension{Raw: []byte(`{"metadata":{"labels":{"arch":"arm"},"annotations":{"example.com/package":"p1"}}}`)}
		return spread
	}
	read := func(f *fixture, name string) *corev1.Pod {
		p := &corev1.Pod{}
		if err := f.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	t.Run("once", func(t *testing.T) {
		f := newFixture(t, withPatch(), deployment(1), replicaSet("r1"), foreign("p"), node.DeepCopy())
		f.settle(t)
		got := read(f, "p")
		want := map[string]string{"pod-template-hash": "r1", "arch": "arm", v1beta1.SubsetLabel: "b"}
		if diff := cmp.Diff(want, got.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
		if got.Annotations["example.com/package"] != "p1" || got.Annotations[v1beta1.MatchedAnnotation] != `{"name":"web","subset":"b","uid":"p","adopted":true}` {
			t.Errorf("annotations %v", got.Annotations)
		}
		f.settle(t)
		if again := read(f, "p"); again.ResourceVersion != got.ResourceVersion {
			t.Error("written twice")
		}
	})
	t.Run("unless the spread says no", func(t *testing.T) {
		spread := withPatch()
		spread.Annotations = map[string]string{v1beta1.IgnoreExistingPodsAnnotation: "true"}
		f := newFixture(t, spread, deployment(1), replicaSet("r1"), foreign("p"), node.DeepCopy())
		f.settle(t)
		got := read(f, "p")
		if got.Labels["arch"] != "" || got.Annotations[v1beta1.MatchedAnnotation] == "" {
			t.Errorf("labels %v, annotations %v", got.Labels, got.Annotations)
		}
		f.settle(t)
		if again := read(f, "p"); again.ResourceVersion != got.ResourceVersion {
			t.Error("written twice")
		}
	})
	t.Run("with a record in place of the one from its creation", func(t *testing.T) {
		spread, p := withPatch(), foreign("p")
		spread.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: "kruise"}
		p.Annotations = map[string]string{v1beta1.MatchedAnnotation: `{"name":"web","subset":"a","uid":"generated"}`} // as at its creation
		f := newFixture(t, spread, deployment(1), replicaSet("r1"), p, node.DeepCopy())
		status := f.settle(t)
		if got := read(f, "p"); got.Annotations[v1beta1.MatchedAnnotation] != `{"name":"web","subset":"b","uid":"p","adopted":true}` || status.AdoptedPods != 1 {
			t.Errorf("annotations %v, adopted %d", got.Annotations, status.AdoptedPods)
		}
	})
	t.Run("and stay in the subset of their record when the node gets other labels", func(t *testing.T) {
		f := newFixture(t, withPatch(), deployment(1), replicaSet("r1"), foreign("p"), node.DeepCopy())
		f.settle(t)
		relabelled := &corev1.Node{}
		if err := f.client.Get(t.Context(), types.NamespacedName{Name: "n"}, relabelled); err != nil {
			t.Fatal(err)
		}
		relabelled.Labels["zone"] = "a"
		f.update(t, relabelled)
		status := f.settle(t)
		if status.Summary != "a 0/2, b 1/-" || status.AdoptedPods != 1 {
			t.Errorf("summary %q, adopted %d", status.Summary, status.AdoptedPods)
		}
	})
	t.Run("only in the version that was seen to have no record", func(t *testing.T) {
		f := newFixture(t, withPatch(), deployment(1), replicaSet("r1"), foreign("p"), node.DeepCopy())
		const theirs = `{"name":"web","subset":"a","uid":"p"}`
		f.refusePod = func(name string) error { // another replica was faster
			f.refusePod = nil
			p := read(f, name)
			p.Annotations = map[string]string{v1beta1.MatchedAnnotation: theirs}
			return f.client.Update(t.Context(), p)
		}
		f.settle(t)
		if got := read(f, "p").Annotations[v1beta1.MatchedAnnotation]; got != theirs {
			t.Errorf("record %s", got)
		}
	})
	t.Run("and pods that Berth bound are left as they are", func(t *testing.T) {
		f := newFixture(t, withPatch(), deployment(1), replicaSet("r1"), pod("p", "r1", "b"), node.DeepCopy())
		f.settle(t)
		if got := read(f, "p"); got.Labels["arch"] != "" {
			t.Errorf("labels %v", got.Labels)
		}
	})
}

func TestDeletionCosts(t *testing.T) {
	t.Run("wrong costs are put right, and nothing else is written", func(t *testing.T) {
		right := costing(pod("right", "r1", "a"), "200")
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(4), replicaSet("r1"),
			right, costing(pod("wrong", "r1", "b"), "200"), pod("none", "r1", "b"), pod("pending", "r1", ""))
		version := func() string {
			if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(right), right); err != nil {
				t.Fatal(err)
			}
			return right.ResourceVersion
		}
		before := version()
		f.settle(t)
		if diff := cmp.Diff(map[string]string{"right": "200", "wrong": "100", "none": "100", "pending": "-"}, f.costs(t)); diff != "" {
			t.Errorf("costs (-want +got):\n%s", diff)
		}
		if version() != before {
			t.Error("a pod whose cost was right has been written")
		}
	})

	t.Run("a lowered quota makes the pods above it the cheapest", func(t *testing.T) {
		spread := makeSpread(t, threeThenAny)
		f := newFixture(t, spread, deployment(3), replicaSet("r1"), pod("p1", "r1", "a"), pod("p2", "r1", "a"), pod("p3", "r1", "a"))
		f.settle(t)
		if diff := cmp.Diff(map[string]string{"p1": "200", "p2": "200", "p3": "200"}, f.costs(t)); diff != "" {
			t.Errorf("at a quota of 3 (-want +got):\n%s", diff)
		}
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(spread), spread); err != nil {
			t.Fatal(err)
		}
		spread.Spec.Subsets[0].MaxReplicas.IntVal = 1
		f.update(t, spread)
		f.settle(t)
		if diff := cmp.Diff(map[string]string{"p1": "200", "p2": "-100", "p3": "-100"}, f.costs(t)); diff != "" {
			t.Errorf("at a quota of 1 (-want +got):\n%s", diff)
		}
	})

	t.Run("percentages of replicas that are not known change no cost", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), replicaSet("r1"), pod("p1", "r1", "a"))
		f.settle(t)
		if got := f.costs(t)["p1"]; got != "-" {
			t.Errorf("cost %s without a workload", got)
		}
	})

	t.Run("a spread as OpenKruise's has the costs of each revision, and follows the Deployment", func(t *testing.T) {
		numbered := func(name, revision string) *appsv1.ReplicaSet {
			set := replicaSet(name)
			set.Labels = map[string]string{"pod-template-hash": name}
			set.Annotations = map[string]string{workload.RevisionAnnotation: revision}
			return set
		}
		spread, old := makeSpread(t, threeThenAny), numbered("r1", "1")
		spread.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: "kruise"}
		f := newFixture(t, spread, deployment(4), old, numbered("r2", "2"), pod("old-a", "r1", "a"), pod("old-b", "r1", "b"), pod("new-a", "r2", "a"), pod("new-b", "r2", "b"))
		f.settle(t)
		if diff := cmp.Diff(map[string]string{"old-a": "100", "old-b": "200", "new-a": "200", "new-b": "100"}, f.costs(t)); diff != "" {
			t.Errorf("in a rollout (-want +got):\n%s", diff)
		}
		old.Annotations[workload.RevisionAnnotation] = "3" // a rollback
		f.update(t, old)
		f.settle(t)
		if diff := cmp.Diff(map[string]string{"old-a": "200", "old-b": "100", "new-a": "100", "new-b": "200"}, f.costs(t)); diff != "" {
			t.Errorf("in a rollback (-want +got):\n%s", diff)
		}
	})

	t.Run("pods of a controller that does not read costs are left alone", func(t *testing.T) {
		ordinal := pod("web-0", "r1", "a")
		setController(ordinal, "apps/v1", "StatefulSet", "web", "web-deployment")
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(1), ordinal)
		f.settle(t)
		if got := f.costs(t)["web-0"]; got != "-" {
			t.Errorf("cost %s", got)
		}
	})
}

func TestAPodThatCannotBeWrittenHoldsUpNothingElse(t *testing.T) {
	f := newFixture(t, makeSpread(t, threeThenAny), deployment(2), replicaSet("r1"), pod("p1", "r1", "a"), pod("p2", "r1", "a"))
	refuse := errors.New("a policy says no")
	f.refusePod = func(name string) error {
		if name == "p1" {
			return refuse
		}
		return nil
	}
	patches := func(step string, want int32, do func()) {
		t.Helper()
		before := f.patches.Load()
		do()
		if got := f.patches.Load() - before; got != want {
			t.Errorf("%s: %d patches, want %d", step, got, want)
		}
	}
	var result reconcile.Result
	once := func() {
		t.Helper()
		f.clock.SetTime(f.clock.Now().Add(frame.StatusInterval))
		var err error
		if result, err = f.reconcileWeb(t); err != nil {
			t.Fatal(err)
		}
	}
	patches("at first", 2, once)
	if status := f.status(t); status.ObservedReplicas != 2 || status.SubsetStatuses[0].Replicas != 2 {
		t.Errorf("status %+v", status)
	}
	if diff := cmp.Diff(map[string]string{"p1": "-", "p2": "200"}, f.costs(t)); diff != "" {
		t.Errorf("costs (-want +got):\n%s", diff)
	}
	if result.RequeueAfter != initialBackoff {
		t.Errorf("tried again after %s, want %s", result.RequeueAfter, initialBackoff)
	}
	key := types.NamespacedName{Namespace: "default", Name: "web"}
	account, _ := f.accounts.Load(key)
	if account == nil {
		t.Fatal("the account is given up, and all pods are counted again and again")
	}

	patches("with news of another pod", 1, func() {
		f.create(t, pod("p3", "r1", "a"))
		f.changes.ofPod(key, "p3")
		once()
	})
	if now, _ := f.accounts.Load(key); f.status(t).SubsetStatuses[0].Replicas != 3 || now != account {
		t.Errorf("status %+v", f.status(t))
	}
	patches("after a while", 1, func() {
		f.clock.SetTime(f.clock.Now().Add(initialBackoff))
		once()
	})
	if result.RequeueAfter != 2*initialBackoff {
		t.Errorf("tried again after %s, want %s", result.RequeueAfter, 2*initialBackoff)
	}
	refuse = nil
	patches("once it is let through", 1, func() {
		f.clock.SetTime(f.clock.Now().Add(2 * initialBackoff))
		once()
	})
	if got := f.costs(t)["p1"]; got != "200" || result.RequeueAfter == 2*initialBackoff {
		t.Errorf("cost %s, tried again after %s", got, result.RequeueAfter)
	}
	told := 0
	for len(f.events.Events) > 0 {
		if text := <-f.events.Events; strings.Contains(text, string(v1beta1.ReasonPodsNotWritten)) && strings.Contains(text, "a policy says no") {
			told++
		}
	}
	if told == 0 {
		t.Error("nobody is told")
	}
}

func TestAPatchOfAnotherPodIsNoFailure(t *testing.T) {
	pods := corev1.Resource("pods")
	invalid := func(at *field.Path) error {
		return fmt.Errorf("patching: %w", apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "web-0", field.ErrorList{field.Invalid(at, "x", "it is immutable")}))
	}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"none":            {nil, false},
		"it is gone":      {apierrors.NewNotFound(pods, "web-0"), true},
		"it has changed":  {apierrors.NewConflict(pods, "web-0", errors.New("changed")), true},
		"another UID":     {invalid(field.NewPath("metadata", "uid")), true},
		"another mistake": {invalid(field.NewPath("metadata", "labels")), false},
		"no permission":   {apierrors.NewForbidden(pods, "web-0", errors.New("no")), false},
		"no API server":   {errors.New("connection refused"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isOfAnotherPod(tc.err); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
