package spread

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
)

// fixture is a reconciler on a fake API server.
type fixture struct {
	*reconciler
	clock  *clocktesting.FakePassiveClock
	events *events.FakeRecorder
	// writes of status since the start; refuse makes them fail.
	writes int
	refuse error
	// refusePod, if it is not nil, may refuse a patch of the pod. patches are those that were sent.
	refusePod func(name string) error
	patches   atomic.Int32
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	f := &fixture{clock: clocktesting.NewFakePassiveClock(noon.Time), events: events.NewFakeRecorder(100)}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1beta1.WorkloadSpread{}).
		WithIndex(&v1beta1.WorkloadSpread{}, lineage.TargetField, lineage.TargetKeyOf).
		WithIndex(&corev1.Pod{}, lineage.ControllerField, frame.ControllerUIDOf).
		WithIndex(&corev1.Pod{}, frame.NodeField, frame.NodeNameOf).
		WithIndex(&appsv1.Deployment{}, lineage.ControllerField, frame.ControllerUIDOf).
		WithIndex(&appsv1.ReplicaSet{}, lineage.ControllerField, frame.ControllerUIDOf).
		WithIndex(&appsv1.StatefulSet{}, lineage.ControllerField, frame.ControllerUIDOf).
		WithIndex(&batchv1.Job{}, lineage.ControllerField, frame.ControllerUIDOf).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourceUpdate: func(ctx context.Context, c client.Client, _ string, object client.Object, options ...client.SubResourceUpdateOption) error {
				f.writes++
				if f.refuse != nil {
					return f.refuse
				}
				return c.Status().Update(ctx, object, options...)
			},
			Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
				f.patches.Add(1)
				if f.refusePod != nil {
					if err := f.refusePod(object.GetName()); err != nil {
						return err
					}
				}
				before := &corev1.Pod{}
				if err := c.Get(ctx, client.ObjectKeyFromObject(object), before); err != nil {
					return err
				}
				if err := c.Patch(ctx, object, patch, options...); err != nil {
					return err
				}
				f.tell(t, before, object)
				return nil
			},
		}).Build()
	owners := lineage.Over(c, lineage.NewKinds(c.RESTMapper(), c, f.clock), clock.RealClock{})
	f.reconciler = &reconciler{
		client: c, live: c, family: &family{owners},
		events: f.events, clock: f.clock, pace: frame.Pace{Interval: frame.StatusInterval}, changes: &changes{}, measures: newMeasures(), corrections: newCorrections(),
	}
	return f
}

// reconcileWeb reconciles spread default/web.
func (f *fixture) reconcileWeb(t *testing.T) (reconcile.Result, error) {
	t.Helper()
	return f.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}})
}

// settle reconciles spread default/web after a while and returns its status.
func (f *fixture) settle(t *testing.T) *v1beta1.WorkloadSpreadStatus {
	t.Helper()
	f.clock.SetTime(f.clock.Now().Add(frame.StatusInterval))
	if _, err := f.reconcileWeb(t); err != nil {
		t.Fatal(err)
	}
	return f.status(t)
}

func (f *fixture) status(t *testing.T) *v1beta1.WorkloadSpreadStatus {
	t.Helper()
	spread := &v1beta1.WorkloadSpread{}
	if err := f.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "web"}, spread); err != nil {
		t.Fatal(err)
	}
	return &spread.Status
}

func (f *fixture) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := f.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	f.tell(t, nil, object)
}

// update replaces an object, which must be of the latest version.
func (f *fixture) update(t *testing.T, object client.Object) {
	t.Helper()
	before, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		t.Fatalf("%T is no object", object)
	}
	if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(object), before); err != nil {
		t.Fatal(err)
	}
	object.SetGeneration(before.GetGeneration() + 1)
	if err := f.client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	f.tell(t, before, object)
}

func (f *fixture) delete(t *testing.T, object client.Object) {
	t.Helper()
	if err := f.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	f.tell(t, object, nil)
}

// tell has the watch of the object's kind hear of it.
func (f *fixture) tell(t *testing.T, before, after client.Object) {
	t.Helper()
	requests := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer requests.ShutDown()
	for _, w := range f.family.watches() {
		is := func(object client.Object) bool {
			_, node := object.(*corev1.Node)
			_, metadata := w.object.(*metav1.PartialObjectMetadata)
			return node && metadata || reflect.TypeOf(object) == reflect.TypeOf(w.object)
		}
		handler := frame.Delayed(w.affectedBy(f.changes))
		switch {
		case before == nil && is(after):
			handler.Create(t.Context(), event.CreateEvent{Object: after}, requests)
		case after == nil && is(before):
			handler.Delete(t.Context(), event.DeleteEvent{Object: before}, requests)
		case before != nil && after != nil && is(after):
			if update := (event.UpdateEvent{ObjectOld: before, ObjectNew: after}); w.matters.Update(update) {
				handler.Update(t.Context(), update, requests)
			}
		}
	}
}

// reported are the events since the last call.
func (f *fixture) reported() []string {
	var all []string
	for {
		select {
		case e := <-f.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func expectReason(t *testing.T, status *v1beta1.WorkloadSpreadStatus, want v1beta1.Reason) *metav1.Condition {
	t.Helper()
	ready := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
	if ready == nil || ready.Reason != string(want) {
		t.Fatalf("Ready is %+v, want reason %s", ready, want)
	}
	return ready
}

func deployment(replicas int32) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web-deployment"}}
	d.Spec.Replicas = ptr.To(replicas)
	return d
}

func replicaSet(name string) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	setController(rs, "apps/v1", "Deployment", "web", "web-deployment")
	return rs
}

func setController(object metav1.Object, apiVersion, kind, name string, uid types.UID) {
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}})
}

// pod of a ReplicaSet that was bound in a subset, or is pending if that is empty.
func pod(name, replicaSet, subset string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
		Labels: map[string]string{"pod-template-hash": replicaSet}}}
	setController(p, "apps/v1", "ReplicaSet", replicaSet, types.UID(replicaSet))
	if subset != "" {
		p.Spec.NodeName = "some-node"
		p.Annotations = map[string]string{v1beta1.MatchedAnnotation: `{"name":"web","subset":"` + subset + `","uid":"` + name + `"}`}
	}
	return p
}

func TestReconcile(t *testing.T) {
	t.Run("the pods of all revisions of a Deployment are counted", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(4), replicaSet("r1"), replicaSet("r2"),
			pod("p1", "r1", "a"), pod("p2", "r1", "b"), pod("p3", "r2", "a"), pod("p4", "r2", ""), pod("stranger", "r9", "a"))
		status := f.settle(t)
		expectReason(t, status, v1beta1.ReasonSpreadReady)
		want := counts{Summary: "a 2/3, b 1/-", Pending: 1, Missing: []int32{1, -1},
			Revisions: map[string]string{"r1": "a 1 missing 2, b 1 missing -", "r2": "a 1 missing 2, b 0 missing -"}}
		if diff := cmp.Diff(want, countsOf(status)); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
	})

	t.Run("pods that others bound are counted by the labels of their node", func(t *testing.T) {
		foreign := pod("p1", "r1", "")
		foreign.Spec.NodeName = "n"
		f := newFixture(t, makeSpread(t, byZone), deployment(1), replicaSet("r1"), foreign,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "b"}}})
		if got := f.settle(t); got.Summary != "a 0/2, b 1/-" || got.AdoptedPods != 1 {
			t.Errorf("summary %q with %d adopted", got.Summary, got.AdoptedPods)
		}
	})

	t.Run("only the pods that targetFilter selects are counted", func(t *testing.T) {
		worker := pod("p1", "r1", "a")
		worker.Labels["role"] = "worker"
		f := newFixture(t, makeSpread(t, threeThenAny+"\ntargetFilter: {selector: {matchLabels: {role: worker}}}"), deployment(2), replicaSet("r1"), worker, pod("p2", "r1", "a"))
		if got := f.settle(t); got.Summary != "a 1/3, b 0/-" {
			t.Errorf("summary %q", got.Summary)
		}
	})

	t.Run("nothing is written when nothing has changed", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(1), replicaSet("r1"), pod("p1", "r1", "a"))
		for range 3 {
			f.settle(t)
		}
		if f.writes != 1 {
			t.Errorf("%d writes, want the first alone", f.writes)
		}
	})

	t.Run("a status that somebody else has written is put right", func(t *testing.T) {
		spread := makeSpread(t, threeThenAny)
		spread.Status.Summary, spread.Status.SurplusPods = "nonsense", 99
		f := newFixture(t, spread, deployment(0))
		if got := f.settle(t); got.Summary != "a 0/3, b 0/-" || got.SurplusPods != 0 {
			t.Errorf("summary %q, surplus %d", got.Summary, got.SurplusPods)
		}
	})

	t.Run("a spread without its workload waits for it without polling and becomes ready when it appears", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny))
		result, err := f.reconcileWeb(t)
		if err != nil || !result.IsZero() {
			t.Fatalf("got %+v, %v", result, err)
		}
		ready := expectReason(t, f.status(t), v1beta1.ReasonTargetNotFound)
		if want := "Deployment default/web does not exist; create it or correct spec.targetRef"; ready.Message != want {
			t.Errorf("message %q, want %q", ready.Message, want)
		}
		f.create(t, deployment(2))
		expectReason(t, f.settle(t), v1beta1.ReasonSpreadReady)
	})

	t.Run("a kind that the API server does not have is looked for again after a while", func(t *testing.T) {
		spread := makeSpread(t, threeThenAny)
		spread.Spec.TargetReference.APIVersion, spread.Spec.TargetReference.Kind = "example.com/v1", "Widget"
		f := newFixture(t, spread)
		result, err := f.reconcileWeb(t)
		if err != nil || result.RequeueAfter != lineage.RetryInterval {
			t.Fatalf("got %+v, %v", result, err)
		}
		if ready := expectReason(t, f.status(t), v1beta1.ReasonTargetNotFound); !strings.Contains(ready.Message, `no kind Widget in group "example.com"`) {
			t.Errorf("message %q", ready.Message)
		}
	})

	t.Run("an invalid spread says all that is wrong with it, and is ready when it is corrected", func(t *testing.T) {
		valid := makeSpread(t, threeThenAny)
		f := newFixture(t, makeSpread(t, `subsets: [{name: a, maxReplicas: -1, patch: {spec: {hostNetwrk: true}}}, {name: a}]`), deployment(1))
		ready := expectReason(t, f.settle(t), v1beta1.ReasonInvalidSpread)
		for _, path := range []string{"spec.subsets[0].maxReplicas", "spec.subsets[0].patch.spec.hostNetwrk", "spec.subsets[1].name"} {
			if !strings.Contains(ready.Message, path) {
				t.Errorf("message %q, want one with %s", ready.Message, path)
			}
		}
		spread := &v1beta1.WorkloadSpread{}
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(valid), spread); err != nil {
			t.Fatal(err)
		}
		spread.Spec = valid.Spec
		f.update(t, spread)
		expectReason(t, f.settle(t), v1beta1.ReasonSpreadReady)
	})

	t.Run("the younger of two spreads of one workload gives way and counts nothing", func(t *testing.T) {
		older := makeSpread(t, threeThenAny)
		older.Name, older.UID, older.Spec.TargetReference.APIVersion = "first", "first", "apps/v1beta1"
		younger := makeSpread(t, threeThenAny)
		younger.CreationTimestamp = noon
		f := newFixture(t, older, younger, deployment(1), replicaSet("r1"), pod("p1", "r1", "a"))
		status := f.settle(t)
		if ready := expectReason(t, status, v1beta1.ReasonSpreadConflict); !strings.Contains(ready.Message, "default/first") {
			t.Errorf("message %q", ready.Message)
		}
		if status.Summary != "" || status.SubsetStatuses != nil {
			t.Errorf("summary %q, subsets %v", status.Summary, status.SubsetStatuses)
		}
		f.delete(t, older)
		expectReason(t, f.settle(t), v1beta1.ReasonSpreadReady)
	})

	t.Run("pods that the spread of a nearer owner selects are its own", func(t *testing.T) {
		nearer := makeSpread(t, threeThenAny+"\ntargetFilter: {selector: {matchLabels: {role: worker}}}")
		nearer.Name, nearer.UID, nearer.Spec.TargetReference.Kind, nearer.Spec.TargetReference.Name = "nearer", "nearer", "ReplicaSet", "r1"
		worker := pod("p1", "r1", "a")
		worker.Labels["role"] = "worker"
		f := newFixture(t, makeSpread(t, threeThenAny), nearer, deployment(3), replicaSet("r1"), replicaSet("r2"),
			worker, pod("p2", "r1", "a"), pod("p3", "r2", "a"))
		if got := f.settle(t); got.Summary != "a 2/3, b 0/-" {
			t.Errorf("summary %q", got.Summary)
		}
	})

	t.Run("pods that Berth had no part in are told, and when they are gone", func(t *testing.T) {
		made := metav1.NewTime(noon.Add(-time.Hour))
		by := func(name, scheduler string, age time.Duration) *corev1.Pod {
			p := pod(name, "r1", "")
			p.Spec.SchedulerName, p.Spec.NodeName, p.CreationTimestamp = scheduler, "n", metav1.NewTime(made.Add(-age))
			return p
		}
		spread := makeSpread(t, byZone)
		spread.CreationTimestamp = made
		divided, pending := by("divided", v1beta1.SchedulerName, -time.Minute), by("pending", corev1.DefaultSchedulerName, -time.Minute)
		divided.Annotations = map[string]string{v1beta1.MatchedAnnotation: `{"name":"web","subset":"a","uid":"divided"}`}
		pending.Spec.NodeName = ""
		late, foreign := by("late", corev1.DefaultSchedulerName, -time.Minute), by("foreign", "volcano", time.Minute)
		f := newFixture(t, spread, deployment(7), replicaSet("r1"), divided, pending, late, by("later", corev1.DefaultSchedulerName, -time.Minute), foreign,
			by("older", corev1.DefaultSchedulerName, time.Minute), by("by-hand", v1beta1.SchedulerName, -time.Minute))
		expect := func(reason v1beta1.Reason, says ...string) {
			t.Helper()
			status := f.settle(t)
			expectReason(t, status, v1beta1.ReasonSpreadReady)
			admitted := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionAdmitted)
			if admitted == nil || admitted.Reason != string(reason) || (admitted.Status == metav1.ConditionTrue) != (reason == v1beta1.ReasonPodsAdmitted) {
				t.Fatalf("%+v, want reason %s", admitted, reason)
			}
			for _, text := range says {
				if !strings.Contains(admitted.Message, text) {
					t.Errorf("message %q, want one with %q", admitted.Message, text)
				}
			}
			if all := f.reported(); !slices.ContainsFunc(all, func(event string) bool { return strings.Contains(event, string(reason)+" "+admitted.Message) }) {
				t.Errorf("events %q, want one of %s", all, reason)
			}
		}
		expect(v1beta1.ReasonPodsNotAdmitted, "the default scheduler placed: 2;", "volcano 1;")
		want := `
			# HELP berth_workloadspread_pods_in_state Pods of a spread that may need attention, by state: pending (no node yet), unplaced (in no subset), adopted (bound by others), surplus (above a quota), unadmitted (placed by the default scheduler after the spread was created), other_scheduler (placed by a scheduler that does not divide them), overfull (failed, because another scheduler had filled the node).
			# TYPE berth_workloadspread_pods_in_state gauge
			berth_workloadspread_pods_in_state{namespace="default",state="adopted",workloadspread="web"} 0
			berth_workloadspread_pods_in_state{namespace="default",state="other_scheduler",workloadspread="web"} 1
			berth_workloadspread_pods_in_state{namespace="default",state="overfull",workloadspread="web"} 0
			berth_workloadspread_pods_in_state{namespace="default",state="pending",workloadspread="web"} 1
			berth_workloadspread_pods_in_state{namespace="default",state="surplus",workloadspread="web"} 0
			berth_workloadspread_pods_in_state{namespace="default",state="unadmitted",workloadspread="web"} 2
			berth_workloadspread_pods_in_state{namespace="default",state="unplaced",workloadspread="web"} 5
		`
		if err := testutil.CollectAndCompare(f.measures, strings.NewReader(want), "berth_workloadspread_pods_in_state"); err != nil {
			t.Error(err)
		}
		f.delete(t, late)
		f.delete(t, by("later", "", 0))
		expect(v1beta1.ReasonOtherScheduler, "volcano 1;", "take schedulerName out of the template")
		f.delete(t, foreign)
		expect(v1beta1.ReasonPodsAdmitted)
	})

	t.Run("a spread that is gone is nothing to do", func(t *testing.T) {
		f := newFixture(t)
		if result, err := f.reconcileWeb(t); err != nil || !result.IsZero() {
			t.Errorf("got %+v, %v", result, err)
		}
	})
}

func TestReconcileWrites(t *testing.T) {
	resource := v1beta1.Resource.GroupResource()
	t.Run("a conflict is no error and brings the spread back", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(1))
		f.refuse = apierrors.NewConflict(resource, "web", errors.New("changed"))
		result, err := f.reconcileWeb(t)
		if err != nil || result.RequeueAfter != frame.BatchWindow {
			t.Errorf("got %+v, %v", result, err)
		}
		if all := f.reported(); len(all) > 0 {
			t.Errorf("events about what was not written: %q", all)
		}
	})
	t.Run("a status is written over no other spread than the one that was read", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(1))
		stale := makeSpread(t, threeThenAny)
		stale.ResourceVersion = "1"
		facts, err := f.gather(t.Context(), stale)
		if err != nil {
			t.Fatal(err)
		}
		result, err := f.publish(t.Context(), stale, describe(stale, facts), facts)
		if err != nil || result.RequeueAfter != frame.BatchWindow || f.status(t).Summary != "" {
			t.Errorf("got %+v, %v and wrote %q", result, err, f.status(t).Summary)
		}
	})
	t.Run("a spread that was deleted meanwhile is no error", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(1))
		f.refuse = apierrors.NewNotFound(resource, "web")
		if result, err := f.reconcileWeb(t); err != nil || result.RequeueAfter != frame.BatchWindow {
			t.Errorf("got %+v, %v", result, err)
		}
	})
	t.Run("a failure is an error", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(1))
		f.refuse = apierrors.NewInternalError(errors.New("down"))
		if _, err := f.reconcileWeb(t); err == nil {
			t.Error("got no error")
		}
	})
	t.Run("a second change waits until the interval between writes is over", func(t *testing.T) {
		f := newFixture(t, makeSpread(t, threeThenAny), deployment(1), replicaSet("r1"))
		f.settle(t)
		f.create(t, pod("p1", "r1", "a"))
		f.clock.SetTime(f.clock.Now().Add(300 * time.Millisecond))
		result, err := f.reconcileWeb(t)
		if err != nil || result.RequeueAfter != frame.StatusInterval-300*time.Millisecond || f.writes != 1 {
			t.Fatalf("got %+v, %v after %d writes", result, err, f.writes)
		}
		f.clock.SetTime(f.clock.Now().Add(result.RequeueAfter))
		if _, err := f.reconcileWeb(t); err != nil || f.writes != 2 {
			t.Errorf("%d writes, %v", f.writes, err)
		}
	})
}

func TestEvents(t *testing.T) {
	const unreachable = `subsets: [{name: a}, {name: b}]`
	f := newFixture(t, makeSpread(t, unreachable))
	steps := []struct {
		name string
		do   func()
		want []string
	}{
		{"the first status and the warnings about the spec are told", func() {}, []string{
			"Warning TargetNotFound Deployment default/web does not exist; create it or correct spec.targetRef",
			"Warning SpreadWarning spec.subsets[0]: has no maxReplicas, so with type: Fixed no pod reaches the subsets after it",
		}},
		{"a change of readiness is told, warnings only once per generation", func() { f.create(t, deployment(1)) }, []string{
			"Normal SpreadReady the pods of Deployment default/web are divided over the subsets",
		}},
		{"a pod for which its node had no room is told once", func() {
			refused := pod("refused", "r1", "a")
			refused.Status.Phase, refused.Status.Reason = corev1.PodFailed, "OutOfcpu"
			f.create(t, replicaSet("r1"))
			f.create(t, refused)
		}, []string{"Warning NodesOverfull kubelets refused 1 pods for lack of room, because another scheduler had filled their nodes; see `kubectl berth doctor`"}},
		{"a change of the counts is not told", func() { f.create(t, pod("p1", "r1", "a")) }, nil},
		{"the warnings about a new generation are told", func() {
			spread := &v1beta1.WorkloadSpread{}
			if err := f.client.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "web"}, spread); err != nil {
				t.Fatal(err)
			}
			spread.Spec.Subsets[1].Name = "c"
			f.update(t, spread)
		}, []string{"Warning SpreadWarning spec.subsets[0]: has no maxReplicas, so with type: Fixed no pod reaches the subsets after it"}},
	}
	for _, step := range steps {
		step.do()
		f.settle(t)
		if diff := cmp.Diff(step.want, f.reported()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
}
