package budget

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

var web = types.NamespacedName{Namespace: "ns", Name: "web"}

// bench is a reconciler over objects, and the clock it looks at.
type bench struct {
	*reconciler
	client client.Client
	clock  *clocktesting.FakePassiveClock
}

func newBench(t *testing.T, calls interceptor.Funcs, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1beta1.PodUnavailableBudget{}).
		WithIndex(&corev1.Pod{}, frame.NodeField, frame.NodeNameOf).WithObjects(objects...).WithInterceptorFuncs(calls).Build()
	b := &bench{client: c}
	b.restart()
	return b
}

// restart forgets what a process knows, and starts another whose clock is far behind.
func (b *bench) restart() {
	b.clock = clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	b.reconciler = &reconciler{
		cached: trimmed{b.client}, live: b.client, writer: b.client, census: census.New(b.client, b.client.SubResource("scale"), b.client, b.clock),
		events: events.NewFakeRecorder(100), clock: b.clock, seen: cache.NewExpiring(), expiry: 2 * time.Minute, extent: newExtents(), notices: podstate.DefaultNotices(),
	}
}

// trimmed reads pods as the controller's cache has them, without what the controllers do not read.
type trimmed struct{ client.Reader }

func (r trimmed) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Reader.List(ctx, list, opts...)
	if pods, is := list.(*corev1.PodList); is {
		for i := range pods.Items {
			kept, _ := frame.KeepOfPod(&pods.Items[i]) // it keeps every pod
			pods.Items[i] = *kept.(*corev1.Pod)
		}
	}
	return err
}

func (b *bench) reconcile(t *testing.T) *v1beta1.PodUnavailableBudget {
	t.Helper()
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web}); err != nil {
		t.Fatal(err)
	}
	pub := &v1beta1.PodUnavailableBudget{}
	if err := b.client.Get(t.Context(), web, pub); err != nil {
		t.Fatal(err)
	}
	return pub
}

func budgetWith(ledger ...v1beta1.LedgerEntry) *v1beta1.PodUnavailableBudget {
	return &v1beta1.PodUnavailableBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "pub", Generation: 1},
		Spec: v1beta1.PodUnavailableBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
		},
		Status: v1beta1.PodUnavailableBudgetStatus{Ledger: ledger},
	}
}

func objects(pub *v1beta1.PodUnavailableBudget, pods ...*corev1.Pod) []client.Object {
	all := []client.Object{pub, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs"}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(len(pods)))}}}
	for _, pod := range pods {
		all = append(all, pod)
	}
	return all
}

func pod(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}}},
		Spec:   corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// told are the events so far.
func (b *bench) told() []string {
	var all []string
	recorder, _ := b.events.(*events.FakeRecorder) // it has no other
	for len(recorder.Events) > 0 {
		all = append(all, <-recorder.Events)
	}
	return all
}

func protected() map[string]string {
	return map[string]string{"app": "web", v1beta1.ProtectedLabel: v1beta1.ProtectedValue}
}

func entry(pod string) v1beta1.LedgerEntry {
	return v1beta1.LedgerEntry{UID: types.UID(pod), Name: pod, Operation: v1beta1.OperationDelete, Time: metav1.NewTime(time.Unix(5, 0))}
}

func TestPodsThatWereThereBeforeTheBudgetAreProtected(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, objects(budgetWith(), pod("a", map[string]string{"app": "web"}), pod("b", map[string]string{"app": "web"}))...)
	if pub := b.reconcile(t); meta.IsStatusConditionTrue(pub.Status.Conditions, v1beta1.ConditionEnforcing) || pub.Status.CurrentAvailable != 0 {
		t.Errorf("%+v: it does not enforce yet, and counts no pod that could be deleted unasked", pub.Status)
	}
	pub := b.reconcile(t)
	if !meta.IsStatusConditionTrue(pub.Status.Conditions, v1beta1.ConditionEnforcing) || pub.Status.CurrentAvailable != 2 || pub.Status.UnavailableAllowed != 1 {
		t.Errorf("%+v", pub.Status)
	}
}

func TestAnEntryIsStruckOutByProofOnly(t *testing.T) {
	terminating := pod("terminating", protected())
	terminating.DeletionTimestamp, terminating.Finalizers = ptr.To(metav1.Now()), []string{"keep"}
	relabelled := pod("relabelled", map[string]string{"app": "other"})
	another := entry("alive")
	another.UID = "one that had the name before"
	b := newBench(t, interceptor.Funcs{}, objects(
		budgetWith(entry("alive"), entry("gone"), entry("terminating"), entry("relabelled"), another), pod("alive", protected()), terminating, relabelled)...)
	expectLedger(t, b.reconcile(t), "alive", "relabelled") // which may be given its label back before it is deleted
	b.clock.SetTime(b.clock.Now().Add(2 * time.Minute))
	expectLedger(t, b.reconcile(t))
}

func expectLedger(t *testing.T, pub *v1beta1.PodUnavailableBudget, want ...string) {
	t.Helper()
	var got []string
	for i := range pub.Status.Ledger {
		got = append(got, pub.Status.Ledger[i].Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("ledger of %q, want %q", got, want)
	}
}

func TestAnEntryExpiresByTheControllersOwnClock(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, objects(budgetWith(entry("a")), pod("a", protected()), pod("b", protected()))...)
	left := func(after time.Duration) int {
		t.Helper()
		b.clock.SetTime(b.clock.Now().Add(after))
		return len(b.reconcile(t).Status.Ledger)
	}
	if left(0) != 1 || left(119*time.Second) != 1 {
		t.Fatal("the entry was gone before its time, whatever the time in it says")
	}
	b.restart()
	if left(0) != 1 || left(119*time.Second) != 1 {
		t.Fatal("a controller that has just started let an entry expire")
	}
	if left(time.Second) != 0 {
		t.Error("the entry does not expire")
	}
}

func TestWhatIsToldOfEntriesThatExpire(t *testing.T) {
	changed := func(name string, operation v1beta1.Operation) v1beta1.LedgerEntry {
		e := entry(name)
		e.Operation, e.Generation = operation, 2
		return e
	}
	digest := pod("digest", protected())
	digest.Generation, digest.Status.ObservedGeneration = 2, 2
	digest.Spec.Containers = []corev1.Container{{Name: "main", Image: "web@sha256:b"}}
	digest.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "sha256:c"}}
	as := func(name string) *corev1.Pod {
		p := pod(name, protected())
		p.Generation = 1
		return p
	}
	exempt := as("exempt")
	exempt.Annotations = map[string]string{v1beta1.NoProtectAnnotation: "true"}
	all := objects(budgetWith(entry("deleted"), changed("updated", v1beta1.OperationUpdate), changed("digest", v1beta1.OperationUpdate),
		changed("left", v1beta1.OperationLeave), changed("exempt", v1beta1.OperationLeave), changed("stayed", v1beta1.OperationLeave)),
		as("deleted"), as("updated"), digest, pod("left", map[string]string{"app": "other"}), exempt, as("stayed"))
	b := newBench(t, interceptor.Funcs{}, all...)
	b.reconcile(t)
	b.clock.SetTime(b.clock.Now().Add(2 * time.Minute))
	expectLedger(t, b.reconcile(t))
	var got []string
	for _, e := range b.told() {
		if strings.Contains(e, string(v1beta1.ReasonApprovalExpired)) {
			got = append(got, e)
		}
	}
	var want []string
	for _, what := range []string{"DELETE of pod deleted", "UPDATE of pod updated", "UPDATE of pod digest", "LEAVE of pod stayed"} {
		want = append(want, "Normal ApprovalExpired "+what+" was allowed, and after 2m0s nothing shows that it has happened and is over; the pod counts by its status again")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestARenewedEntryStartsAnew(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, objects(budgetWith(entry("a")), pod("a", protected()), pod("b", protected()))...)
	pub := b.reconcile(t)
	b.clock.SetTime(b.clock.Now().Add(119 * time.Second))
	pub.Status.Ledger[0].Renewals++
	if err := b.client.Status().Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	b.reconcile(t)
	b.clock.SetTime(b.clock.Now().Add(119 * time.Second))
	if n := len(b.reconcile(t).Status.Ledger); n != 1 {
		t.Error("the renewed entry expired with the old one")
	}
}

// beforeWriting returns calls that have the budget changed by somebody else before it is written the first time.
func beforeWriting(change func(context.Context, client.Client, *v1beta1.PodUnavailableBudget) error) interceptor.Funcs {
	changed := false
	return interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
		if !changed {
			changed = true
			pub := &v1beta1.PodUnavailableBudget{}
			if err := errors.Join(c.Get(ctx, web, pub), change(ctx, c, pub)); err != nil {
				return err
			}
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}
}

func TestAnEntryThatIsWrittenMeanwhileStays(t *testing.T) {
	b := newBench(t, beforeWriting(func(ctx context.Context, c client.Client, pub *v1beta1.PodUnavailableBudget) error {
		pub.Status.Ledger[1].Renewals++
		pub.Status.Ledger = append(pub.Status.Ledger, entry("b"), entry("also gone"))
		return c.SubResource("status").Update(ctx, pub)
	}), objects(budgetWith(entry("gone"), entry("gone and asked for again")), pod("a", protected()), pod("b", protected()))...)
	pub := b.reconcile(t)
	expectLedger(t, pub, "gone and asked for again", "b", "also gone")
	if pub.Status.CurrentAvailable != 1 {
		t.Errorf("%d are available, want 1", pub.Status.CurrentAvailable)
	}
	expectLedger(t, b.reconcile(t), "b")
}

func TestAnEntryIsNotStruckOutByWhatWasSeenOfAnEarlierRevision(t *testing.T) {
	e := entry("a")
	e.Operation, e.Revision, e.Renewals = v1beta1.OperationUnready, "10", 1
	b := newBench(t, beforeWriting(func(ctx context.Context, c client.Client, pub *v1beta1.PodUnavailableBudget) error {
		pub.Status.Ledger[0].Revision = "999" // renewed within the same second
		return c.SubResource("status").Update(ctx, pub)
	}), objects(budgetWith(e), pod("a", protected()), pod("b", protected()))...)
	if pub := b.reconcile(t); len(pub.Status.Ledger) != 1 {
		t.Errorf("the ledger is %+v", pub.Status.Ledger)
	}
}

func TestAPodThatMayLeaveUnaskedDoesNotCount(t *testing.T) {
	loose := pod("a", protected())
	loose.Annotations = map[string]string{v1beta1.SelectorKeysAnnotation: "tier"} // another budget's
	never := interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
		return errors.New("not now")
	}}
	b := newBench(t, never, objects(budgetWith(), loose, pod("b", protected()))...)
	if pub := b.reconcile(t); pub.Status.CurrentAvailable != 1 {
		t.Errorf("%d pods are available, want 1", pub.Status.CurrentAvailable)
	}
}

// inDoubt is a pod that may restart for its new image, or whose node reports another tag of the image that it runs.
func inDoubt(name string) *corev1.Pod {
	p := pod(name, protected())
	p.Generation, p.Status.ObservedGeneration = 3, 3
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:2"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: "docker.io/library/web:1"}}
	return p
}

func TestADoubtThatNothingElseEndsEndsByTheControllersOwnClock(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, objects(budgetWith(), inDoubt("a"), inDoubt("b"), pod("c", protected()))...)
	expect := func(available int32, reason v1beta1.Reason, message string) {
		t.Helper()
		pub := b.reconcile(t)
		got := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionDisruptionAllowed)
		if pub.Status.CurrentAvailable != available || got.Reason != string(reason) || got.Message != message {
			t.Errorf("%d are available, %s: %s; want %d, %s: %s", pub.Status.CurrentAvailable, got.Reason, got.Message, available, reason, message)
		}
	}
	const named = "1 of 2 desired pods are available; missing: a (container main may restart for its new image), b (container main may restart for its new image)"
	expect(1, v1beta1.ReasonPodsDoubtful, named)
	b.clock.SetTime(b.clock.Now().Add(time.Minute))
	result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web})
	if err != nil || result.RequeueAfter != time.Hour-30*time.Second {
		t.Errorf("the controller looks again after %s, %v; want when the doubt ends", result.RequeueAfter, err)
	}
	b.restart()
	expect(1, v1beta1.ReasonPodsDoubtful, named)
	b.clock.SetTime(b.clock.Now().Add(time.Hour + 30*time.Second))
	expect(3, v1beta1.ReasonSufficientPods, "3 of 2 desired pods are available")
	result, err = b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web})
	if err != nil || result.RequeueAfter != 0 {
		t.Errorf("the controller looks again after %s, %v, and nobody is in doubt", result.RequeueAfter, err)
	}
}

func TestAConditionBlamesADoubtOnlyIfItHoldsOthersUp(t *testing.T) {
	down := pod("down", protected())
	down.Status.Conditions[0].Status = corev1.ConditionFalse
	for name, tc := range map[string]struct {
		pods   []*corev1.Pod
		ledger []v1beta1.LedgerEntry
		want   v1beta1.Reason
	}{
		"it does":                          {pods: []*corev1.Pod{inDoubt("a"), pod("b", protected()), pod("c", protected())}, want: v1beta1.ReasonPodsDoubtful},
		"without it too few serve":         {pods: []*corev1.Pod{inDoubt("a"), pod("b", protected()), down}, want: v1beta1.ReasonInsufficientPods},
		"an operation on it is under way":  {pods: []*corev1.Pod{inDoubt("a"), pod("b", protected()), pod("c", protected())}, ledger: []v1beta1.LedgerEntry{entry("a")}, want: v1beta1.ReasonInsufficientPods},
		"enough others serve all the same": {pods: []*corev1.Pod{pod("a", protected()), pod("b", protected()), pod("c", protected())}, want: v1beta1.ReasonSufficientPods},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, interceptor.Funcs{}, objects(budgetWith(tc.ledger...), tc.pods...)...)
			if got := meta.FindStatusCondition(b.reconcile(t).Status.Conditions, v1beta1.ConditionDisruptionAllowed); got.Reason != string(tc.want) {
				t.Errorf("%s: %s, want %s", got.Reason, got.Message, tc.want)
			}
		})
	}
}

func TestAConditionNamesTheSubsetThatHolds(t *testing.T) {
	for name, tc := range map[string]struct {
		down   int // pods that are not ready
		reason v1beta1.Reason
		want   string
	}{
		"one has unavailable pods": {1, v1beta1.ReasonSufficientPods, "the subsets have room for 1 pods"},
		"two have":                 {2, v1beta1.ReasonHeldBySubset, "subset b has 1 unavailable of 2 pods, and pods of one subset at a time may be unavailable; missing: a-down (is not ready), b-down (is not ready)"},
	} {
		t.Run(name, func(t *testing.T) {
			pub := budgetWith()
			pub.Spec.MaxUnavailable, pub.Spec.PerSubset = nil, &v1beta1.PerSubset{Label: "zone", OneAtATime: true}
			in := func(zone, name string, ready corev1.ConditionStatus) *corev1.Pod {
				p := pod(name, protected())
				p.Labels["zone"], p.Status.Conditions[0].Status = zone, ready
				return p
			}
			pods := []*corev1.Pod{in("a", "a", corev1.ConditionTrue), in("b", "b", corev1.ConditionTrue), in("a", "a-down", corev1.ConditionFalse), in("b", "b-down", corev1.ConditionFalse)}
			got := meta.FindStatusCondition(newBench(t, interceptor.Funcs{}, objects(pub, pods[:2+tc.down]...)...).reconcile(t).Status.Conditions, v1beta1.ConditionDisruptionAllowed)
			if got.Reason != string(tc.reason) || got.Message != tc.want {
				t.Errorf("%s: %s, want %s: %s", got.Reason, got.Message, tc.reason, tc.want)
			}
		})
	}
}

func TestABudgetWhoseSpecChangesMeanwhileIsCountedAnew(t *testing.T) {
	b := newBench(t, beforeWriting(func(ctx context.Context, c client.Client, pub *v1beta1.PodUnavailableBudget) error {
		pub.Generation++
		pub.Spec.Selector.MatchLabels["app"] = "other"
		return c.Update(ctx, pub)
	}), objects(budgetWith(entry("gone")), pod("a", protected()))...)
	if pub := b.reconcile(t); len(pub.Status.Ledger) != 1 || pub.Status.ObservedGeneration != 0 {
		t.Fatalf("%+v was written for another spec than was read", pub.Status)
	}
	if pub := b.reconcile(t); len(pub.Status.Ledger) != 0 || pub.Status.ObservedGeneration != 2 || pub.Status.CurrentAvailable != 0 {
		t.Errorf("%+v", pub.Status)
	}
}

func TestEntriesOfAWorkloadThatIsGoneExpire(t *testing.T) {
	pub := budgetWith(entry("a"))
	pub.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "gone"}
	b := newBench(t, interceptor.Funcs{}, objects(pub, pod("a", protected()))...)
	if n := len(b.reconcile(t).Status.Ledger); n != 1 {
		t.Fatal("nobody knows which pods there are, and the entry was struck out")
	}
	b.clock.SetTime(b.clock.Now().Add(2 * time.Minute))
	if n := len(b.reconcile(t).Status.Ledger); n != 0 {
		t.Error("the entry does not expire")
	}
}

func TestALedgerThatIsCleanedSaysByWhichPods(t *testing.T) {
	for kind, there := range map[string]string{"ReplicaSet": "a target that exists", "Deployment": "a target that is gone"} {
		t.Run(there, func(t *testing.T) {
			pub := budgetWith(entry("deleted"))
			pub.Status.LedgerRevision = "5"
			pub.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: kind, Name: "web"}
			b := newBench(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				err := c.List(ctx, list, opts...)
				if _, is := list.(*corev1.PodList); is {
					list.SetResourceVersion("77")
				}
				return err
			}}, objects(pub, pod("a", protected()))...)
			got := b.reconcile(t)
			expectLedger(t, got)
			if got.Status.LedgerRevision != "77" {
				t.Errorf("ledgerRevision %q, want that of the pods", got.Status.LedgerRevision)
			}
		})
	}
}

func isLabelled(t *testing.T, b *bench, name string) bool {
	t.Helper()
	pod := &corev1.Pod{}
	if err := b.client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, pod); err != nil {
		t.Fatal(err)
	}
	return model.IsProtected(pod)
}

func TestTheLabelIsTakenOffOncePodsAreInNoBudget(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, objects(budgetWith(entry("a")), pod("a", protected()))...)
	pub := b.reconcile(t)
	if err := b.client.Delete(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web}); err != nil {
		t.Fatal(err)
	}
	if isLabelled(t, b, "a") {
		t.Error("it is still there")
	}
}

func TestTheLabelIsTakenOffOfPodsWhoseBudgetWasDeletedWhileNobodyLooked(t *testing.T) {
	left := pod("left", map[string]string{"app": "gone", v1beta1.ProtectedLabel: v1beta1.ProtectedValue})
	objects := objects(budgetWith(), pod("a", protected()), left)
	t.Run("the only one", func(t *testing.T) {
		b := newBench(t, interceptor.Funcs{}, objects[1:]...)
		names := b.ofPod(t.Context(), left)
		if !slices.Equal(names, []string{""}) {
			t.Fatalf("got %q, want the namespace to be looked through", names)
		}
		if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns"}}); err != nil {
			t.Fatal(err)
		}
		if isLabelled(t, b, "left") {
			t.Error("it is still there")
		}
	})
	t.Run("one of several", func(t *testing.T) {
		b := newBench(t, interceptor.Funcs{}, objects...)
		b.reconcile(t)
		b.restart()
		b.reconcile(t)
		if isLabelled(t, b, "left") || !isLabelled(t, b, "a") {
			t.Error("the label is to be on the pods of the budget, and on no others")
		}
	})
}

// TestTheBudgetsOfANamespaceAreReadOnlyIfAPodMayHaveNone: each new budget of a namespace looks for such pods, and a namespace may have many budgets.
func TestTheBudgetsOfANamespaceAreReadOnlyIfAPodMayHaveNone(t *testing.T) {
	left := pod("left", map[string]string{"app": "gone", v1beta1.ProtectedLabel: v1beta1.ProtectedValue})
	other := budgetWith()
	other.Name, other.UID, other.Spec.Selector = "other", "other", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "gone"}}
	before := budgetWith()
	before.Generation, before.Spec.Selector = 0, other.Spec.Selector
	for name, tc := range map[string]struct {
		pods     []*corev1.Pod
		first    *v1beta1.PodUnavailableBudget // as the cache has it
		live     []client.Object               // what the cache lacks
		reads    int
		labelled bool
	}{
		"all pods have one":                        {first: budgetWith()},
		"a pod has none":                           {first: budgetWith(), pods: []*corev1.Pod{left}, reads: 1},
		"a pod has one that the cache lacks":       {first: budgetWith(), pods: []*corev1.Pod{left}, live: []client.Object{other}, reads: 1, labelled: true},
		"a pod had one, which the cache still has": {first: before, pods: []*corev1.Pod{left}, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			pods := append(tc.pods, pod("a", protected()))
			b := newBench(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, is := list.(*v1beta1.PodUnavailableBudgetList); is {
					reads++
				}
				return c.List(ctx, list, opts...)
			}}, append(objects(budgetWith(), pods...), tc.live...)...)
			b.cached = trimmed{newBench(t, interceptor.Funcs{}, objects(tc.first, pods...)...).client}
			b.reconcile(t)
			if reads != tc.reads {
				t.Errorf("%d lists of budgets from the API server, want %d", reads, tc.reads)
			}
			if len(tc.pods) > 0 && isLabelled(t, b, "left") != tc.labelled {
				t.Errorf("the pod is labelled: %t, want %t", !tc.labelled, tc.labelled)
			}
		})
	}
}

// TestABudgetThatIsMadeAgainCoversItsOwnPods: its generation begins anew, and what is known is of the budget before it.
func TestABudgetThatIsMadeAgainCoversItsOwnPods(t *testing.T) {
	before := budgetWith()
	before.UID, before.Generation, before.Spec.Selector = "before", 5, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "gone"}}
	b := newBench(t, interceptor.Funcs{}, objects(before, pod("a", protected()))...)
	b.extent.begin(web)()
	b.extent.set(web, before, &census.Count{Selector: labels.SelectorFromSet(before.Spec.Selector.MatchLabels)})
	if err := errors.Join(b.client.Delete(t.Context(), before), b.client.Create(t.Context(), budgetWith())); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns"}}); err != nil {
		t.Fatal(err)
	}
	if !isLabelled(t, b, "a") {
		t.Error("the pod of the new budget has lost its label")
	}
}

func TestAPodSaysByWhichLabelsItsBudgetsGo(t *testing.T) {
	keysOf := func(b *bench, name string) (keys string, annotated bool) {
		t.Helper()
		pod := &corev1.Pod{}
		if err := b.client.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, pod); err != nil {
			t.Fatal(err)
		}
		keys, annotated = pod.Annotations[v1beta1.SelectorKeysAnnotation]
		return keys, annotated
	}
	annotated := func(name, keys string) *corev1.Pod {
		p := pod(name, protected())
		p.Annotations = map[string]string{v1beta1.SelectorKeysAnnotation: keys}
		return p
	}
	isEnforced := func(pub *v1beta1.PodUnavailableBudget) bool {
		return meta.IsStatusConditionTrue(pub.Status.Conditions, v1beta1.ConditionEnforcing)
	}
	t.Run("a selector", func(t *testing.T) {
		b := newBench(t, interceptor.Funcs{}, objects(budgetWith(), pod("new", map[string]string{"app": "web"}), pod("old", protected()), annotated("shared", "tier"))...)
		if isEnforced(b.reconcile(t)) {
			t.Error("it enforces, although a pod may be relabelled unasked")
		}
		for name, want := range map[string]string{"new": "app", "old": "app", "shared": "app,tier"} {
			if got, _ := keysOf(b, name); got != want {
				t.Errorf("pod %s has the keys %q, want %q", name, got, want)
			}
		}
		pub := b.reconcile(t)
		if !isEnforced(pub) {
			t.Errorf("%+v", pub.Status.Conditions)
		}
		pub.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "stage", Operator: metav1.LabelSelectorOpDoesNotExist}}
		pub.Generation++
		if err := b.client.Update(t.Context(), pub); err != nil {
			t.Fatal(err)
		}
		b.reconcile(t)
		if got, _ := keysOf(b, "new"); got != "app,stage" {
			t.Errorf("the keys are %q after the selector has changed", got)
		}
		if err := b.client.Delete(t.Context(), pub); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web}); err != nil {
			t.Fatal(err)
		}
		if keys, found := keysOf(b, "new"); found {
			t.Errorf("the keys are %q when no budget is left", keys)
		}
	})
	t.Run("so many that the API server asks about all labels", func(t *testing.T) {
		long := strings.Repeat("é", v1beta1.MaxSelectorKeys) + "é"
		b := newBench(t, interceptor.Funcs{}, objects(budgetWith(), annotated("a", long), annotated("b", long[2:]))...)
		b.reconcile(t)
		if got, _ := keysOf(b, "a"); got != long {
			t.Errorf("the keys of a are %.20q, although none can change unasked", got)
		}
		if got, _ := keysOf(b, "b"); !strings.HasPrefix(got, "app,") {
			t.Errorf("the keys of b are %.20q, want that app is one of them", got)
		}
	})
	t.Run("a workload, by what it and its controllers keep their pods", func(t *testing.T) {
		pub := budgetWith()
		pub.Spec.Selector, pub.Spec.TargetReference = nil, &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "deployment"},
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
		all := append(objects(pub, pod("a", map[string]string{"app": "web", "pod-template-hash": "1"})), deployment)
		for _, object := range all {
			if rs, ok := object.(*appsv1.ReplicaSet); ok {
				rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "pod-template-hash": "1"}}
				rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deployment", Controller: ptr.To(true)}}
			}
		}
		b := newBench(t, interceptor.Funcs{}, all...)
		b.reconcile(t)
		if got, _ := keysOf(b, "a"); got != "app,pod-template-hash" {
			t.Errorf("the keys are %q", got)
		}
	})
}

func TestAPodThatCannotBeLabelledHoldsNothingElseUp(t *testing.T) {
	b := newBench(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if o.GetName() == "refused" {
			return errors.New("refused by somebody's policy")
		}
		return c.Patch(ctx, o, patch, opts...)
	}}, objects(budgetWith(entry("gone")), pod("refused", map[string]string{"app": "web"}), pod("a", map[string]string{"app": "web"}))...)
	result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web})
	if err != nil || result.RequeueAfter != labelRetry {
		t.Errorf("got %+v, %v, want it to be tried again after %s", result, err, labelRetry)
	}
	pub := &v1beta1.PodUnavailableBudget{}
	if err := b.client.Get(t.Context(), web, pub); err != nil {
		t.Fatal(err)
	}
	expectLedger(t, pub)
	if meta.IsStatusConditionTrue(pub.Status.Conditions, v1beta1.ConditionEnforcing) || !isLabelled(t, b, "a") {
		t.Errorf("%+v: the other pod is to be protected, and the status is to say that one is not", pub.Status.Conditions)
	}
}

func TestABudgetOfWhatBerthMayNotReadSaysSo(t *testing.T) {
	pub := budgetWith()
	pub.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	b := newBench(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*appsv1.Deployment); is {
			return apierrors.NewForbidden(appsv1.Resource("deployments"), key.Name, errors.New("no rule"))
		}
		return c.Get(ctx, key, o, opts...)
	}}, objects(pub, pod("a", protected()))...)
	if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want it to be tried again", err)
	}
	if err := b.client.Get(t.Context(), web, pub); err != nil {
		t.Fatal(err)
	}
	if c := meta.FindStatusCondition(pub.Status.Conditions, v1beta1.ConditionEnforcing); c == nil || c.Reason != string(v1beta1.ReasonReadFailed) {
		t.Errorf("%+v", c)
	}
}

func TestABudgetOfUnknownReplicasSaysSo(t *testing.T) {
	operated, site := pod("a", protected()), "Site.example.com"
	operated.OwnerReferences[0].APIVersion, operated.OwnerReferences[0].Kind = "example.com/v1", "Site"
	calls := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if o.GetObjectKind().GroupVersionKind().Group == "example.com" {
			return apierrors.NewForbidden(v1beta1.Resource.GroupResource(), key.Name, errors.New("no rule"))
		}
		return c.Get(ctx, key, o, opts...)
	}}
	b := newBench(t, calls, objects(budgetWith(), operated)...)
	pub := b.reconcile(t)
	for _, kind := range []string{v1beta1.ConditionDisruptionAllowed, v1beta1.ConditionReplicasKnown} {
		if c := meta.FindStatusCondition(pub.Status.Conditions, kind); c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(v1beta1.ReasonReplicasUnknown) || !strings.Contains(c.Message, site) {
			t.Errorf("%s: %+v", kind, c)
		}
	}
	if pub.Status.UnavailableAllowed != 0 || pub.Status.DesiredAvailable != 1 || !isLabelled(t, b, "a") {
		t.Errorf("%+v, want the pod to be protected and held", pub.Status)
	}
	isTold := func(e string) bool { return strings.HasPrefix(e, "Warning ReplicasUnknown") }
	if told := b.told(); !slices.ContainsFunc(told, isTold) {
		t.Errorf("the events are %q", told)
	}
	b.reconcile(t)
	if told := b.told(); slices.ContainsFunc(told, isTold) {
		t.Errorf("and again %q", told)
	}

	pub.Spec.ProtectTotalReplicas = ptr.To[int32](1)
	if err := b.client.Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	if pub = b.reconcile(t); !meta.IsStatusConditionTrue(pub.Status.Conditions, v1beta1.ConditionReplicasKnown) || !meta.IsStatusConditionTrue(pub.Status.Conditions, v1beta1.ConditionDisruptionAllowed) {
		t.Errorf("%+v, although the budget says the replicas", pub.Status.Conditions)
	}
}

func TestABudgetUnderWhichNothingMayEverGoSaysSo(t *testing.T) {
	pub := budgetWith()
	pub.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(0))
	b := newBench(t, interceptor.Funcs{}, objects(pub, pod("a", protected()))...)
	condition := meta.FindStatusCondition(b.reconcile(t).Status.Conditions, v1beta1.ConditionDisruptionAllowed)
	if condition == nil || condition.Reason != string(v1beta1.ReasonNoneMayGo) {
		t.Errorf("%+v", condition)
	}
}

// TestAnEntryOfAnImpossiblePodIsStruckOut: the API server says something else of such a name than that nothing has it.
func TestAnEntryOfAnImpossiblePodIsStruckOut(t *testing.T) {
	entries := []v1beta1.LedgerEntry{entry("a"), entry("a/b"), entry("A"), entry("..")}
	nameless := entry("")
	nameless.UID = "nameless"
	b := newBench(t, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, is := o.(*corev1.Pod); is && len(validation.IsDNS1123Subdomain(key.Name)) > 0 {
			return apierrors.NewBadRequest("invalid name " + key.Name)
		}
		return c.Get(ctx, key, o, opts...)
	}}, objects(budgetWith(append(entries, nameless)...), pod("a", protected()), pod("b", map[string]string{"app": "web"}))...)
	expectLedger(t, b.reconcile(t), "a")
	if !isLabelled(t, b, "b") {
		t.Error("a pod of the budget is not protected")
	}
}

// TestAPodThatWasTakenFromItsWorkloadHasLeft: the selector picks it still.
func TestAPodThatWasTakenFromItsWorkloadHasLeft(t *testing.T) {
	leave := func(name string) v1beta1.LedgerEntry {
		e := entry(name)
		e.Operation, e.Generation = v1beta1.OperationLeave, 2
		return e
	}
	pub := budgetWith(leave("taken"), leave("stayed"))
	pub.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
	taken := pod("taken", protected())
	taken.OwnerReferences = nil
	b := newBench(t, interceptor.Funcs{}, objects(pub, taken, pod("stayed", protected()))...)
	expectLedger(t, b.reconcile(t), "taken", "stayed")
	b.clock.SetTime(b.clock.Now().Add(2 * time.Minute))
	expectLedger(t, b.reconcile(t))
	var got []string
	for _, e := range b.told() {
		if strings.Contains(e, string(v1beta1.ReasonApprovalExpired)) {
			got = append(got, e)
		}
	}
	want := []string{"Normal ApprovalExpired LEAVE of pod stayed was allowed, and after 2m0s nothing shows that it has happened and is over; the pod counts by its status again"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAPodIsTakenBackAfterItsBudget: the ReplicaSet has handed it over, and the budget is gone before a new pod was ready.
func TestAPodIsTakenBackAfterItsBudget(t *testing.T) {
	deployment := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deployment", Controller: ptr.To(true)}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs", OwnerReferences: []metav1.OwnerReference{deployment}}}
	handed := pod("a", protected())
	handed.OwnerReferences = []metav1.OwnerReference{deployment}
	handed.Annotations = map[string]string{v1beta1.ReplacedFirstAnnotation: `{"budget":"web","replicaSet":"web","uid":"rs","since":"2026-01-01T00:00:00Z"}`}
	b := newBench(t, interceptor.Funcs{}, set, handed)
	for range 2 { // an event follows the first
		if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: web}); err != nil {
			t.Fatal(err)
		}
	}
	var now corev1.Pod
	if err := b.client.Get(t.Context(), client.ObjectKeyFromObject(handed), &now); err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(&now); owner == nil || owner.UID != set.UID || len(now.Annotations) > 0 || now.Labels[v1beta1.ProtectedLabel] != "" {
		t.Errorf("got owner %v, annotations %v, labels %v", owner, now.Annotations, now.Labels)
	}
}
