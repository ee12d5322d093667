package united

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/members"
	model "github.com/berth-project/berth/pkg/united"
	"github.com/berth-project/berth/pkg/workload"
)

// world is a reconciler on an API server that answers at once. Its cache is always up to date.
type world struct {
	*reconciler
	t      *testing.T
	client client.Client
	mapper *meta.DefaultRESTMapper
	passed *clocktesting.FakeClock
	// writes are the requests that changed something, in their order: "Create web-a".
	writes []string
	// refuse answers a write instead of the API server, if it returns an error.
	refuse func(verb, name string) error
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1beta1.GroupVersion, appsv1.SchemeGroupVersion, corev1.SchemeGroupVersion})
	mapper.Add(v1beta1.Kind, meta.RESTScopeNamespace)
	for _, kind := range []string{"Deployment", "StatefulSet", "ReplicaSet", "ControllerRevision"} {
		mapper.Add(appsv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	w := &world{t: t, mapper: mapper, refuse: func(string, string) error { return nil }}
	var noting sync.Mutex // requests to several clusters come at the same time
	note := func(verb, name string) error {
		if err := w.refuse(verb, name); err != nil {
			return err
		}
		noting.Lock()
		defer noting.Unlock()
		w.writes = append(w.writes, verb+" "+name)
		return nil
	}
	build := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).WithStatusSubresource(&v1beta1.UnitedDeployment{}).WithReturnManagedFields()
	indexed := []client.Object{&corev1.Pod{}, &appsv1.ReplicaSet{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}}
	for _, kind := range []schema.GroupKind{model.CloneSetKind, model.AdvancedStatefulSetKind} {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind.WithVersion(v1beta1.GroupVersion.Version))
		indexed = append(indexed, object)
	}
	for _, object := range indexed {
		build = build.WithIndex(object, lineage.ControllerField, func(object client.Object) []string { return []string{string(workload.ControllerUID(object))} })
	}
	for _, object := range indexed[:2] { // for a hub that is its own member
		build = build.WithIndex(object, members.OwnerIndex, func(object client.Object) []string {
			if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
				return []string{owner.Name}
			}
			return nil
		})
	}
	var made atomic.Int32
	build = build.WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if err := note("Create", object.GetName()); err != nil {
				return err
			}
			object.SetUID(types.UID(fmt.Sprint("made-", made.Add(1))))
			return c.Create(ctx, object, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := note("Patch", object.GetName()); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if err := note("Apply", object.(interface{ GetName() string }).GetName()); err != nil {
				return err
			}
			return c.Apply(ctx, object, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if err := note("Delete", object.GetName()); err != nil {
				return err
			}
			return c.Delete(ctx, object, opts...)
		},
	})
	w.client = build.Build()
	clock := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	w.passed = clock
	owners := lineage.Over(w.client, lineage.NewKinds(mapper, w.client, clock), clock)
	if unwatchable, err := owners.Watch(t.Context(), unitedDeployment); unwatchable != nil || err != nil {
		t.Fatal(unwatchable, err)
	}
	w.reconciler = &reconciler{owners: owners, client: w.client, live: w.client, events: events.NewFakeRecorder(1000), clock: clock, measures: newMeasures(), told: frame.Pace{Interval: frame.StatusInterval},
		ownership: &ownership{clock: clock, ours: true, until: clock.Now().Add(1000 * time.Hour)}}
	w.Reading.Patience, w.Writing.Patience, w.Visiting.Patience = time.Hour, time.Hour, time.Hour // on a machine with much to do
	return w
}

func unitedOf(replicas int32, subsets ...string) *v1beta1.UnitedDeployment {
	ud := &v1beta1.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u", Generation: 1}}
	ud.Spec.Replicas = ptr.To(replicas)
	ud.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	ud.Spec.Template.DeploymentTemplate = &v1beta1.WorkloadTemplate{Spec: &runtime.RawExtension{Raw: []byte(
		`{"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"main"}]}}}`)}}
	for _, name := range subsets {
		ud.Spec.Topology.Subsets = append(ud.Spec.Topology.Subsets, v1beta1.Subset{Name: name})
	}
	return ud
}

// settle reconciles a few times, and returns the last error. The writes are those of these reconciles.
func (w *world) settle() (last error) {
	w.t.Helper()
	w.writes = nil
	for range 4 {
		w.passed.Step(frame.StatusInterval)
		_, last = w.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "web"}})
	}
	return last
}

func (w *world) mustSettle() {
	w.t.Helper()
	if err := w.settle(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get() *v1beta1.UnitedDeployment {
	w.t.Helper()
	ud := &v1beta1.UnitedDeployment{}
	if err := w.client.Get(w.t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, ud); err != nil {
		w.t.Fatal(err)
	}
	return ud
}

// change changes the spec, as users do.
func (w *world) change(change func(*v1beta1.UnitedDeployment)) {
	w.t.Helper()
	ud := w.get()
	change(ud)
	ud.Generation++
	if err := w.client.Update(w.t.Context(), ud); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) expect(want string) {
	w.t.Helper()
	var list appsv1.DeploymentList
	if err := w.client.List(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	var got []string
	for i := range list.Items {
		got = append(got, fmt.Sprintf("%s=%d", list.Items[i].Labels[v1beta1.SubsetNameLabel], *list.Items[i].Spec.Replicas))
	}
	slices.Sort(got)
	if strings.Join(got, " ") != want {
		w.t.Errorf("children %v, want %s", got, want)
	}
}

func (w *world) wrote(prefix string) (n int) {
	for _, write := range w.writes {
		if strings.HasPrefix(write, prefix) {
			n++
		}
	}
	return n
}

func TestChildrenAreMadeAndNothingIsWrittenTwice(t *testing.T) {
	w := newWorld(t, unitedOf(5, "a", "b"))
	w.mustSettle()
	w.expect("a=3 b=2")
	if ud := w.get(); ud.Status.ObservedGeneration != 1 || ud.Status.UpdatedRevision == "" || ud.Status.SubsetReplicas["a"] != 3 {
		t.Errorf("status %+v", ud.Status)
	}
	w.mustSettle()
	if len(w.writes) > 0 {
		t.Errorf("nothing has changed, and these writes came: %v", w.writes)
	}
	// A process that starts remembers nothing. It applies every child once.
	w.memories = frame.Memories[memory]{}
	w.mustSettle()
	if w.wrote("Apply") != 2 || w.wrote("Create") != 1 { // the ControllerRevision exists
		t.Errorf("after a restart: %v", w.writes)
	}
	w.expect("a=3 b=2")
}

// TestTheSubsetLabelOfAChildIsSetAgain: its selector says which subset it is of.
func TestTheSubsetLabelOfAChildIsSetAgain(t *testing.T) {
	w := newWorld(t, unitedOf(5, "a", "b"))
	w.mustSettle()
	for _, child := range w.children() {
		if child.Labels[v1beta1.SubsetNameLabel] == "a" {
			child.Labels[v1beta1.SubsetNameLabel] = "b"
			if err := w.client.Update(t.Context(), &child); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.mustSettle()
	w.expect("a=3 b=2")
	if w.wrote("Create")+w.wrote("Delete") > 0 {
		t.Errorf("got %v", w.writes)
	}
}

// TestAChildThatTakesLongToGoIsNoLoop: its name is taken until it is gone, and an event tells of that.
func TestAChildThatTakesLongToGoIsNoLoop(t *testing.T) {
	w := newWorld(t, unitedOf(5, "a", "b"))
	w.mustSettle()
	child := w.children()[0]
	child.Finalizers = []string{"example.com/slow"}
	if err := errors.Join(w.client.Update(t.Context(), &child), w.client.Delete(t.Context(), &child)); err != nil {
		t.Fatal(err)
	}
	w.mustSettle()
	w.mustSettle()
	if len(w.writes) > 0 {
		t.Errorf("got %v", w.writes)
	}
	gone := w.children()[0]
	gone.Finalizers = nil
	if err := w.client.Update(t.Context(), &gone); err != nil {
		t.Fatal(err)
	}
	w.mustSettle()
	w.expect("a=2 b=3") // the remainder goes to the one that had most
}

// TestTheRevisionThatOpenKruiseMadeStays: its name is in the pods, so another one would restart them all.
func TestTheRevisionThatOpenKruiseMadeStays(t *testing.T) {
	const name = "web-7d9c5b6f8"
	ud := unitedOf(2, "a")
	ud.Status.UpdatedRevision, ud.Status.CurrentRevision = name, name
	owner := []metav1.OwnerReference{*metav1.NewControllerRef(ud, v1beta1.Kind)}
	child := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web-a-x7k2p", UID: "kruise", Generation: 1, OwnerReferences: owner,
		Labels: map[string]string{"app": "web", v1beta1.SubsetNameLabel: "a", v1beta1.RevisionLabel: name},
	}}
	child.Spec.Replicas = ptr.To[int32](2)
	child.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", v1beta1.SubsetNameLabel: "a"}}
	child.Spec.Template.Labels = map[string]string{"app": "web", v1beta1.SubsetNameLabel: "a", v1beta1.RevisionLabel: name}
	child.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "main"}}
	template := string(ud.Spec.Template.DeploymentTemplate.Spec.Raw)
	old := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "r", Labels: map[string]string{v1beta1.RevisionLabel: name}, OwnerReferences: owner}, Revision: 1,
		Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{"$patch":"replace","deploymentTemplate":{"metadata":{"creationTimestamp":null},"spec":` + template + `}}}}`)},
	}
	ud.Spec.Template.DeploymentTemplate.Metadata = &runtime.RawExtension{Raw: []byte(`{}`)}
	w := newWorld(t, ud, child, old)
	w.mustSettle()
	if got := w.children()[0].Spec.Template; !equality.Semantic.DeepEqual(got, child.Spec.Template) {
		t.Errorf("the pods are replaced: %+v; %v", got, w.writes)
	}
	w.change(func(ud *v1beta1.UnitedDeployment) {
		ud.Spec.Template.DeploymentTemplate.Spec.Raw = []byte(strings.Replace(template, `"image":"main"`, `"image":"two"`, 1))
	})
	w.mustSettle()
	if got := w.children()[0].Spec.Template; got.Labels[v1beta1.RevisionLabel] == name || got.Spec.Containers[0].Image != "two" {
		t.Errorf("got %+v", got)
	}
}

func TestNothingIsRaisedBeforeTheOthersAreLowered(t *testing.T) {
	w := newWorld(t, unitedOf(4, "a", "b"))
	w.mustSettle()
	w.expect("a=2 b=2")
	lowered := func(ud *v1beta1.UnitedDeployment) { ud.Spec.Topology.Subsets[0].Replicas = ptr.To(intstrOf(0)) }
	for name, err := range map[string]error{
		"conflict": apierrors.NewConflict(appsv1.Resource("deployments"), "web-a", errors.New("changed")),
		"broken":   errors.New("connection refused"),
	} {
		t.Run(name, func(t *testing.T) {
			w.refuse = func(verb, name string) error {
				if strings.HasPrefix(name, "web-a-") {
					return err
				}
				return nil
			}
			w.change(lowered)
			_ = w.settle() // the error is the one above
			w.expect("a=2 b=2")
		})
	}
	w.refuse = func(string, string) error { return nil }
	w.mustSettle()
	w.expect("a=0 b=4")
}

func TestANameThatIsTakenIsSaid(t *testing.T) {
	w := newWorld(t, unitedOf(2, "a"))
	w.mustSettle()
	var list appsv1.DeploymentList
	if err := w.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	stranger := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: list.Items[0].Name, UID: "stranger"}}
	w = newWorld(t, unitedOf(2, "a"), stranger)
	if err := w.settle(); err == nil {
		t.Error("want an error, so that it is tried again")
	}
	ud := w.get()
	c := model.ConditionIn(ud.Status.Conditions, v1beta1.SubsetFailure)
	if c == nil || c.Reason != v1beta1.ReasonChildRefused || !strings.Contains(c.Message, "is no child of this UnitedDeployment") {
		t.Errorf("condition %+v", c)
	}
	if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(stranger), stranger); err != nil || len(stranger.Labels) > 0 {
		t.Errorf("the stranger's Deployment became %+v, %v", stranger, err)
	}
	if err := w.client.Delete(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	w.mustSettle()
	w.expect("a=2")
	if ud := w.get(); model.ConditionIn(ud.Status.Conditions, v1beta1.SubsetFailure) != nil {
		t.Errorf("the failure is over: %+v", ud.Status.Conditions)
	}
}

func TestADeletedUnitedDeploymentIsLeftAlone(t *testing.T) {
	ud := unitedOf(2, "a")
	ud.DeletionTimestamp, ud.Finalizers = ptr.To(metav1.Now()), []string{"orphan"}
	w := newWorld(t, ud)
	w.mustSettle()
	w.expect("")
	if len(w.writes) > 0 {
		t.Errorf("written: %v", w.writes)
	}
}

func TestASpecThatIsNotValidLeavesTheChildrenAlone(t *testing.T) {
	w := newWorld(t, unitedOf(2, "a"))
	w.mustSettle()
	for reason, change := range map[v1beta1.Reason]func(*v1beta1.UnitedDeployment){
		v1beta1.ReasonInvalid: func(ud *v1beta1.UnitedDeployment) { ud.Spec.Selector = nil },
		v1beta1.ReasonNoTemplate: func(ud *v1beta1.UnitedDeployment) {
			ud.Spec = unitedOf(9, "a").Spec
			ud.Spec.Template = v1beta1.SubsetTemplate{}
		},
		v1beta1.ReasonKindNotServed: func(ud *v1beta1.UnitedDeployment) {
			ud.Spec = unitedOf(9, "a").Spec
			ud.Spec.Template = v1beta1.SubsetTemplate{CloneSetTemplate: ud.Spec.Template.DeploymentTemplate}
		},
	} {
		w.change(change)
		w.mustSettle()
		w.expect("a=2")
		ud := w.get()
		if c := model.ConditionIn(ud.Status.Conditions, v1beta1.ReadyCondition); c == nil || c.Reason != reason || ud.Status.ObservedGeneration != ud.Generation {
			t.Errorf("want reason %s, status %+v", reason, ud.Status)
		}
	}
}

func intstrOf(n int32) intstr.IntOrString { return intstr.FromInt32(n) }

func (w *world) children() []appsv1.Deployment {
	w.t.Helper()
	var list appsv1.DeploymentList
	if err := w.client.List(w.t.Context(), &list); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

func TestOrphansWithTheSelectorOfAChildAreAdoptedAndOthersAreNot(t *testing.T) {
	orphan := func(name, app string, labels map[string]string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: labels}}
		d.Spec.Replicas = ptr.To[int32](1)
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app, v1beta1.SubsetNameLabel: "a"}}
		return d
	}
	inA := map[string]string{v1beta1.SubsetNameLabel: "a"}
	owned := orphan("owned", "web", inA)
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps.kruise.io/v1beta1", Kind: "UnitedDeployment", Name: "other", UID: "other", Controller: ptr.To(true)}}
	w := newWorld(t, unitedOf(2, "a"), orphan("left", "web", inA), orphan("foreign", "shop", inA), orphan("plain", "web", nil), owned)
	w.mustSettle()
	for _, d := range w.children() {
		adopted := metav1.IsControlledBy(&d, w.get())
		if adopted != (d.Name == "left") || adopted && *d.Spec.Replicas != 2 || !adopted && *d.Spec.Replicas != 1 {
			t.Errorf("%s: adopted %t, replicas %d", d.Name, adopted, *d.Spec.Replicas)
		}
	}
}

func TestATemplateThatComesBackHasItsRevisionAgain(t *testing.T) {
	w := newWorld(t, unitedOf(2, "a"))
	image := func(name string) func(*v1beta1.UnitedDeployment) {
		return func(ud *v1beta1.UnitedDeployment) {
			raw := unitedOf(2, "a").Spec.Template.DeploymentTemplate.Spec.Raw
			ud.Spec.Template.DeploymentTemplate.Spec.Raw = []byte(strings.Replace(string(raw), `"image":"main"`, `"image":"`+name+`"`, 1))
			ud.Spec.RevisionHistoryLimit = ptr.To[int32](1)
		}
	}
	w.mustSettle()
	first := w.get().Status.UpdatedRevision
	w.change(image("two"))
	w.mustSettle()
	second := w.get().Status.UpdatedRevision
	w.change(image("main"))
	w.mustSettle()
	if again := w.get().Status.UpdatedRevision; first == second || again != first {
		t.Errorf("revisions %s, %s, %s", first, second, again)
	}
	for _, name := range []string{"three", "four"} {
		w.change(image(name))
		w.mustSettle()
	}
	var list appsv1.ControllerRevisionList
	if err := w.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	numbers := map[string]int64{}
	for _, revision := range list.Items {
		numbers[revision.Name] = revision.Revision
	}
	if len(numbers) != 2 || numbers[w.get().Status.UpdatedRevision] != 5 || numbers[second] != 0 {
		t.Errorf("ControllerRevisions %v, want the latest with number 5, and one older", numbers)
	}
}

func TestAChildWithoutSubsetIsLoweredAndThenDeleted(t *testing.T) {
	w := newWorld(t, unitedOf(2, "a", "b"))
	w.mustSettle()
	w.expect("a=1 b=1")
	w.change(func(ud *v1beta1.UnitedDeployment) {
		ud.Spec.Replicas, ud.Spec.Topology.Subsets = ptr.To[int32](0), ud.Spec.Topology.Subsets[:1]
	})
	w.mustSettle()
	w.expect("a=0")
	if w.wrote("Delete web-b-") != 1 {
		t.Errorf("writes %v", w.writes)
	}
}

func TestWhatSomebodyElseWritesToAChildIsPutBackOnlyWhereBerthSetsIt(t *testing.T) {
	w := newWorld(t, unitedOf(2, "a"))
	w.mustSettle()
	child := w.children()[0]
	child.Spec.Replicas, child.Spec.RevisionHistoryLimit = ptr.To[int32](7), ptr.To[int32](3)
	child.Generation++
	metav1.SetMetaDataLabel(&child.ObjectMeta, "mine", "yes")
	metav1.SetMetaDataLabel(&child.ObjectMeta, v1beta1.RevisionLabel, "wrong")
	if err := w.client.Update(t.Context(), &child); err != nil {
		t.Fatal(err)
	}
	w.mustSettle()
	child = w.children()[0]
	if *child.Spec.Replicas != 2 || *child.Spec.RevisionHistoryLimit != 3 || child.Labels["mine"] != "yes" || child.Labels[v1beta1.RevisionLabel] != w.get().Status.UpdatedRevision {
		t.Errorf("replicas %d, labels %v", *child.Spec.Replicas, child.Labels)
	}
	w.mustSettle()
	if len(w.writes) > 0 {
		t.Errorf("written again: %v", w.writes)
	}
}

// TestAKindThatIsNotServedAnyMoreHindersNobodyElse: its definition was deleted, and lineage still takes it for watched.
func TestAKindThatIsNotServedAnyMoreHindersNobodyElse(t *testing.T) {
	w := newWorld(t, unitedOf(2, "a"))
	gone := map[schema.GroupKind]bool{}
	w.live = goneKinds{w.live, gone}
	for _, kind := range []schema.GroupKind{model.CloneSetKind, model.AdvancedStatefulSetKind} {
		w.mapper.Add(kind.WithVersion(v1beta1.GroupVersion.Version), meta.RESTScopeNamespace)
		if unwatchable, err := w.owners.Watch(t.Context(), kind); unwatchable != nil || err != nil {
			t.Fatal(unwatchable, err)
		}
		gone[kind] = true
	}
	w.mustSettle()
	w.expect("a=2")
	w.change(func(ud *v1beta1.UnitedDeployment) {
		ud.Spec.Template = v1beta1.SubsetTemplate{CloneSetTemplate: ud.Spec.Template.DeploymentTemplate}
	})
	w.mustSettle()
	w.expect("a=2") // the Deployment stays as long as no CloneSet can replace it
	ud := w.get()
	if c := model.ConditionIn(ud.Status.Conditions, v1beta1.ReadyCondition); c == nil || c.Reason != v1beta1.ReasonKindNotServed {
		t.Errorf("conditions %+v", ud.Status.Conditions)
	}
	result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(ud)})
	if err != nil || result.RequeueAfter != kindInterval {
		t.Errorf("again after %v, %v", result.RequeueAfter, err)
	}
}

// TestAKindThatMayNotBeListedLeavesTheChildrenAlone: some may be of that kind, and their replicas would not count.
func TestAKindThatMayNotBeListedLeavesTheChildrenAlone(t *testing.T) {
	w := newWorld(t, unitedOf(2, "a"))
	w.mapper.Add(model.CloneSetKind.WithVersion(v1beta1.GroupVersion.Version), meta.RESTScopeNamespace)
	forbids := interceptor.NewClient(w.client.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if kind := list.GetObjectKind().GroupVersionKind(); kind.Kind == "CloneSetList" || kind.Kind == "CloneSet" {
			return apierrors.NewForbidden(schema.GroupResource{Group: kind.Group, Resource: "clonesets"}, "", errors.New("no right"))
		}
		return c.List(ctx, list, opts...)
	}})
	w.owners = lineage.Over(w.client, lineage.NewKinds(w.mapper, forbids, w.passed), w.passed)
	if unwatchable, err := w.owners.Watch(t.Context(), unitedDeployment); unwatchable != nil || err != nil {
		t.Fatal(unwatchable, err)
	}
	w.mustSettle()
	w.expect("")
	if c := model.ConditionIn(w.get().Status.Conditions, v1beta1.ReadyCondition); c == nil || !strings.Contains(c.Message, "Berth may not list") {
		t.Errorf("conditions %+v", w.get().Status.Conditions)
	}
}

// goneKinds answers lists of kinds as an API server does that does not serve them.
type goneKinds struct {
	client.Reader
	gone map[schema.GroupKind]bool
}

func (g goneKinds) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	kind := list.GetObjectKind().GroupVersionKind().GroupKind()
	if kind.Kind = strings.TrimSuffix(kind.Kind, "List"); g.gone[kind] {
		return apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, "", "404 page not found", 0, true)
	}
	return g.Reader.List(ctx, list, opts...)
}

// TestAPodThatItsStatefulSetWaitsForInVainIsDeleted: its template is an older one, and it is not ready.
func TestAPodThatItsStatefulSetWaitsForInVainIsDeleted(t *testing.T) {
	ud := unitedOf(2, "a")
	ud.Spec.Template = v1beta1.SubsetTemplate{StatefulSetTemplate: ud.Spec.Template.DeploymentTemplate}
	w := newWorld(t, ud)
	w.mustSettle()
	var sets appsv1.StatefulSetList
	if err := w.client.List(t.Context(), &sets); err != nil || len(sets.Items) != 1 {
		t.Fatal(sets.Items, err)
	}
	set := &sets.Items[0]
	set.Status.ObservedGeneration, set.Status.Replicas = set.Generation, 2
	if err := w.client.Status().Update(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	for i, revision := range []string{set.Labels[v1beta1.RevisionLabel], "broken"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("%s-%d", set.Name, i), UID: types.UID(fmt.Sprint("p", i)), CreationTimestamp: metav1.NewTime(w.passed.Now()),
			Labels:          map[string]string{"app": "web", v1beta1.SubsetNameLabel: "a", v1beta1.RevisionLabel: revision},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}}}
		if err := w.client.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	left := func() (names []string) {
		var pods corev1.PodList
		if err := w.client.List(t.Context(), &pods); err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods.Items {
			names = append(names, strings.TrimPrefix(pod.Name, set.Name))
		}
		return names
	}
	w.mustSettle()
	if got := left(); len(got) != 2 {
		t.Errorf("pods %v: one that has just started may become ready", got)
	}
	w.passed.Step(time.Minute)
	w.mustSettle()
	if diff := cmp.Diff([]string{"-0"}, left()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
