package united

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/members"
	model "github.com/berth-project/berth/pkg/united"
)

// member is another cluster.
type member struct {
	client.Client
	away bool
	// unheard is true while a hub that has just started has not heard of it.
	unheard bool
	// broken answers lists from the API server, and refuse answers creations, if they are not nil. hangs answers no lists.
	broken, refuse error
	hangs          bool
	// takes is for how long it makes each request to its API server wait.
	takes  time.Duration
	cordon members.Cordon
}

// wait is what a request waits for.
func (m *member) wait(ctx context.Context) error {
	select {
	case <-time.After(m.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type membership map[string]*member

func (m membership) Known(context.Context) bool {
	for _, one := range m {
		if one.unheard {
			return false
		}
	}
	return true
}

func (m membership) List() (all []members.Status) {
	for _, name := range []string{"m", "n"} {
		if one := m[name]; one != nil && !one.unheard {
			state := members.Ready
			if one.away {
				state = members.Unreachable
			}
			all = append(all, members.Status{Name: name, Namespace: members.DefaultNamespace, State: state, Since: time.Unix(1_600_000_000, 0), Cordon: one.cordon})
		}
	}
	return all
}

func (m membership) Client(name string) (client.Client, error) {
	if m[name] == nil || m[name].away {
		return nil, errors.New("away")
	}
	return interceptor.NewClient(m[name].Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if m[name].hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			if err := m[name].wait(ctx); err != nil {
				return err
			}
			if m[name].broken != nil {
				return m[name].broken
			}
			return c.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if err := m[name].wait(ctx); err != nil {
				return err
			}
			if m[name].refuse != nil {
				return m[name].refuse
			}
			object.SetUID("made-2") // as the child in the cluster of the hub
			return c.Create(ctx, object, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if err := m[name].wait(ctx); err != nil {
				return err
			}
			return c.Apply(ctx, object, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if err := m[name].wait(ctx); err != nil {
				return err
			}
			return c.Delete(ctx, object, opts...)
		},
	}), nil
}

func (m membership) Cache(name string) (client.Reader, error) {
	if m[name] == nil || m[name].away {
		return nil, errors.New("away")
	}
	return m[name].Client, nil
}

func memberWith(objects ...client.Object) *member {
	build := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithReturnManagedFields()
	for _, object := range []client.Object{&corev1.Pod{}, &appsv1.ReplicaSet{}} {
		build = build.WithIndex(object, members.OwnerIndex, func(object client.Object) []string {
			if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
				return []string{owner.Name}
			}
			return nil
		})
	}
	return &member{Client: build.Build()}
}

// overClusters is a UnitedDeployment of subset a in the hub's cluster, and b in m.
func overClusters(replicas int32) *v1beta1.UnitedDeployment {
	ud := unitedOf(replicas, "a", "b")
	ud.Spec.Topology.Subsets[1].TargetCluster = &v1beta1.TargetCluster{Name: "m"}
	return ud
}

func (w *world) in(of membership) *world {
	w.members = of
	return w
}

// expectIn checks the children in a member.
func (m *member) expectIn(t *testing.T, want string) []appsv1.Deployment {
	t.Helper()
	var list appsv1.DeploymentList
	if err := m.List(context.WithoutCancel(t.Context()), &list); err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range list.Items {
		got = append(got, fmt.Sprintf("%s=%d", list.Items[i].Labels[v1beta1.SubsetNameLabel], *list.Items[i].Spec.Replicas))
	}
	if slices.Sort(got); strings.Join(got, " ") != want {
		t.Errorf("children in the member %v, want %s", got, want)
	}
	return list.Items
}

func (w *world) expectReason(want v1beta1.Reason, message string) {
	w.t.Helper()
	ud := w.get()
	if c := model.ConditionIn(ud.Status.Conditions, v1beta1.ReadyCondition); c == nil || c.Reason != want || !strings.Contains(c.Message, message) {
		w.t.Errorf("want %s %q, have %+v", want, message, ud.Status.Conditions)
	}
}

func (w *world) delete() {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), w.get()); err != nil {
		w.t.Fatal(err)
	}
}

func TestChildrenInOtherClustersAreMadeChangedAndDeleted(t *testing.T) {
	m := memberWith()
	w := newWorld(t, overClusters(4)).in(membership{"m": m, "n": memberWith()})
	w.mustSettle()
	w.expect("a=2")
	made := m.expectIn(t, "b=2")
	if child := made[0]; child.Labels[v1beta1.OwnerLabel] != "u" || child.Labels[v1alpha1.HubLabel] == "" || len(child.OwnerReferences) > 0 ||
		child.Spec.Template.Labels[v1alpha1.HubLabel] == "" || child.Name != model.ChildName("web", "b", "u", model.DeploymentKind) {
		t.Errorf("child %+v", child)
	}
	if ud := w.get(); len(ud.Finalizers) != 1 || len(ud.Status.Clusters) != 1 || ud.Status.SubsetStatuses[1].Cluster != "m" || ud.Status.SubsetStatuses[1].SeenReplicas != 2 {
		t.Errorf("finalizers %v, status %+v", ud.Finalizers, ud.Status)
	}
	before := made[0].ResourceVersion
	w.mustSettle()
	if again := m.expectIn(t, "b=2"); again[0].ResourceVersion != before || len(w.writes) > 0 {
		t.Errorf("nothing has changed, and these writes came: %v, %s and %s", w.writes, before, again[0].ResourceVersion)
	}
	w.change(func(ud *v1beta1.UnitedDeployment) { ud.Spec.Replicas = ptr.To[int32](6) })
	w.mustSettle()
	w.expect("a=3")
	m.expectIn(t, "b=3")

	w.change(func(ud *v1beta1.UnitedDeployment) {
		ud.Spec.Replicas, ud.Spec.Topology.Subsets = ptr.To[int32](0), ud.Spec.Topology.Subsets[:1]
	})
	for range 3 {
		w.mustSettle()
	}
	m.expectIn(t, "")
	if ud := w.get(); len(ud.Finalizers) > 0 || len(ud.Status.Clusters) > 0 {
		t.Errorf("finalizers %v, clusters %+v", ud.Finalizers, ud.Status.Clusters)
	}
}

func TestAClusterThatDoesNotAnswerDelaysNoOther(t *testing.T) {
	for name, fault := range map[string]func(*member){
		"away":             func(m *member) { m.away = true },
		"lists are broken": func(m *member) { m.broken = errors.New("no answer in time") },
		"it hangs":         func(m *member) { m.hangs = true },
	} {
		t.Run(name, func(t *testing.T) {
			m, n := memberWith(), memberWith()
			ud := overClusters(6)
			ud.Spec.Topology.Subsets = append(ud.Spec.Topology.Subsets, v1beta1.Subset{Name: "c", TargetCluster: &v1beta1.TargetCluster{Name: "n"}})
			w := newWorld(t, ud).in(membership{"m": m, "n": n})
			w.mustSettle()
			fault(m)
			w.change(func(ud *v1beta1.UnitedDeployment) { ud.Spec.Replicas = ptr.To[int32](9) })
			synctest.Test(t, func(t *testing.T) {
				w.Reading.Patience = members.DefaultPatience
				began := time.Now()
				if _, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(ud)}); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > members.DefaultPatience {
					t.Errorf("the others waited %s", took)
				}
				time.Sleep(time.Minute) // until nothing goes on any more
			})
			w.Remote = apply.Remote[*seen]{}
			w.Reading.Patience, w.Writing.Patience, w.Visiting.Patience = time.Hour, time.Hour, time.Hour
			w.expect("a=3")
			m.expectIn(t, "b=2")
			n.expectIn(t, "c=3")
			m.away, m.broken, m.hangs = false, nil, false
			w.mustSettle()
			m.expectIn(t, "b=3")
		})
	}
}

// TestASlowClusterDelaysNoOther: it takes 4.9 s for each request. The others answer at once, and have what is theirs after the first wait of members.DefaultPatience at most. In the end the slow one has too.
func TestASlowClusterDelaysNoOther(t *testing.T) {
	m, n := memberWith(), memberWith()
	ud := overClusters(6)
	ud.Spec.Topology.Subsets = append(ud.Spec.Topology.Subsets, v1beta1.Subset{Name: "c", TargetCluster: &v1beta1.TargetCluster{Name: "n"}})
	w := newWorld(t, ud).in(membership{"m": m, "n": n})
	synctest.Test(t, func(t *testing.T) {
		again := make(chan struct{}, 100)
		m.takes = 4900 * time.Millisecond
		w.Reading.Patience, w.Writing.Patience, w.Visiting.Patience = 0, 0, 0
		w.Reading.Ended = func(members.Errand) { again <- struct{}{} }
		w.Writing.Ended, w.Visiting.Ended = w.Reading.Ended, w.Reading.Ended
		reconcile := func() {
			t.Helper()
			w.passed.Step(frame.StatusInterval)
			began := time.Now()
			if _, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(ud)}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 2*members.DefaultPatience {
				t.Errorf("a worker waited for %s", took)
			}
		}
		for _, total := range []int32{6, 30, 24, 60} {
			w.change(func(ud *v1beta1.UnitedDeployment) { ud.Spec.Replicas = &total })
			began := time.Now()
			for range 2 { // the finalizer comes first
				reconcile()
			}
			w.expect(fmt.Sprint("a=", total/3))
			n.expectIn(t, fmt.Sprint("c=", total/3))
			if took := time.Since(began); took > 2*members.DefaultPatience {
				t.Errorf("%d replicas: the others waited for %s", total, took)
			}
			ready := func() bool {
				c := model.ConditionIn(w.get().Status.Conditions, v1beta1.ReadyCondition)
				return c.Reason == v1beta1.ReasonReady
			}
			for !ready() && time.Since(began) < time.Minute {
				select {
				case <-again:
				case <-time.After(5 * time.Second):
				}
				if c := w.get().Status.Clusters; c[0].State != v1beta1.ClusterReady {
					t.Errorf("clusters %+v", c)
				}
				reconcile()
			}
			m.expectIn(t, fmt.Sprint("b=", total/3))
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("%d replicas: ready after %s", total, took)
			}
		}
		w.delete()
		for began := time.Now(); time.Since(began) < time.Minute; {
			select {
			case <-again:
			case <-time.After(apply.CascadeInterval):
			}
			reconcile()
		}
		m.expectIn(t, "")
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(ud), ud); !apierrors.IsNotFound(err) {
			t.Errorf("it is still there: %v", err)
		}
	})
}

// TestAHubThatIsSetUpAgainTakesItsChildrenOver: the UnitedDeployment has another UID, and says so.
func TestAHubThatIsSetUpAgainTakesItsChildrenOver(t *testing.T) {
	for name, tc := range map[string]struct {
		annotation, objectName, want string
	}{
		"it says so":                            {"true", "web", "b=2"},
		"it does not say so":                    {"", "web", "b=2 b=2"},
		"the children are of one of other name": {"true", "shop", "b=2 b=2"},
	} {
		t.Run(name, func(t *testing.T) {
			m := memberWith()
			before := overClusters(4)
			before.Name = tc.objectName
			w := newWorld(t, before).in(membership{"m": m})
			for range 4 {
				w.passed.Step(frame.StatusInterval)
				if _, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(before)}); err != nil {
					t.Fatal(err)
				}
			}
			old := m.expectIn(t, "b=2")[0]
			again := overClusters(4)
			again.UID, again.Annotations = "again", map[string]string{v1alpha1.TakeOverAnnotation: tc.annotation}
			w = newWorld(t, again).in(membership{"m": m})
			w.mustSettle()
			m.expectIn(t, tc.want)
			live := &appsv1.Deployment{}
			err := m.Get(t.Context(), client.ObjectKeyFromObject(&old), live)
			if !equality.Semantic.DeepEqual(live.Spec.Template, old.Spec.Template) {
				t.Errorf("its pods end: %+v", live.Spec.Template.Labels)
			}
			if err != nil || (live.Labels[v1beta1.OwnerLabel] == "again") != (tc.want == "b=2") {
				t.Errorf("labels %v, %v", live.Labels, err)
			}
		})
	}
}

// TestAMemberIsCordonedAndDrained: its ClusterProfile says so.
func TestAMemberIsCordonedAndDrained(t *testing.T) {
	m := memberWith()
	w := newWorld(t, overClusters(4)).in(membership{"m": m})
	w.mustSettle()
	m.cordon = members.Cordoned
	w.change(func(ud *v1beta1.UnitedDeployment) { ud.Spec.Replicas = ptr.To[int32](10) })
	w.mustSettle()
	w.expect("a=8")
	m.expectIn(t, "b=2")
	m.cordon = members.Drained
	w.mustSettle()
	w.expect("a=10")
	m.expectIn(t, "b=0")
	m.cordon = ""
	w.mustSettle()
	w.expect("a=5")
	m.expectIn(t, "b=5")
}

// TestAHubThatStartsWaitsUntilItKnowsTheOtherClusters: what it has not heard of is neither gone nor without children.
func TestAHubThatStartsWaitsUntilItKnowsTheOtherClusters(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"nothing has changed": func(*world) {},
		"it is scaled":        func(w *world) { w.change(func(ud *v1beta1.UnitedDeployment) { ud.Spec.Replicas = ptr.To[int32](8) }) },
		"it is deleted":       func(w *world) { w.delete() },
	} {
		t.Run(name, func(t *testing.T) {
			m := memberWith()
			w := newWorld(t, overClusters(4)).in(membership{"m": m})
			w.mustSettle()
			change(w)
			before := w.get()
			w.memories = frame.Memories[memory]{}
			m.unheard = true
			if result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(before)}); err != nil || result.RequeueAfter == 0 {
				t.Errorf("%+v, %v", result, err)
			}
			if after := w.get(); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("written: %+v", after.Status.Conditions)
			}
			w.expect("a=2")
			m.expectIn(t, "b=2")
		})
	}
}

func TestWhatAClusterRefusesIsSaidAndKeepsNoOtherWaiting(t *testing.T) {
	m, n := memberWith(), memberWith()
	ud := overClusters(6)
	ud.Spec.Topology.Subsets = append(ud.Spec.Topology.Subsets, v1beta1.Subset{Name: "c", TargetCluster: &v1beta1.TargetCluster{Name: "n"}})
	w := newWorld(t, ud).in(membership{"m": m, "n": n})
	m.refuse = apierrors.NewNotFound(corev1.Resource("namespaces"), "ns")
	if err := w.settle(); err == nil {
		t.Error("want an error, so that it is tried again")
	}
	w.expect("a=2")
	n.expectIn(t, "c=2")
	w.expectReason(v1beta1.ReasonChildRefused, "b in cluster m: namespace ns does not exist there; create it")
	m.refuse = apierrors.NewForbidden(appsv1.Resource("deployments"), "web", errors.New(strings.Repeat("x", 5000)))
	_ = w.settle()
	if c := model.ConditionIn(w.get().Status.Conditions, v1beta1.ReadyCondition); len(c.Message) > 400 {
		t.Errorf("the message has %d characters", len(c.Message))
	}
}

// TestAMemberThatFailsWritesKeepsNoOthersFromGrowing: its storage is full. One of its replicas is to leave it and stays, and others get what is left.
func TestAMemberThatFailsWritesKeepsNoOthersFromGrowing(t *testing.T) {
	m := memberWith()
	w := newWorld(t, overClusters(10)).in(membership{"m": m})
	w.mustSettle()
	w.expect("a=5")
	m.expectIn(t, "b=5")
	full := apierrors.NewInternalError(errors.New("etcdserver: mvcc: database space exceeded"))
	m.Client = interceptor.NewClient(m.Client.(client.WithWatch), interceptor.Funcs{
		Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return full
		},
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return full
		},
	})
	w.change(func(ud *v1beta1.UnitedDeployment) {
		ud.Spec.Replicas, ud.Spec.Topology.Subsets[1].Replicas = ptr.To[int32](100), ptr.To(intstr.FromInt32(4))
	})
	if err := w.settle(); err == nil || !strings.Contains(err.Error(), "database space exceeded") {
		t.Errorf("got %v", err)
	}
	m.expectIn(t, "b=5")
	if a := *w.children()[0].Spec.Replicas; a < 95 || a > 120 {
		t.Errorf("a has %d of 95", a)
	}
}

// TestTheHubMayBeItsOwnMember: its path for children of its own does not adopt what it makes as a hub.
func TestTheHubMayBeItsOwnMember(t *testing.T) {
	w := newWorld(t, overClusters(4))
	w.in(membership{"m": {Client: w.client}})
	w.mustSettle()
	w.expect("a=2 b=2")
	w.mustSettle()
	w.expect("a=2 b=2")
	if len(w.writes) > 0 {
		t.Errorf("writes at rest: %v", w.writes)
	}
	for _, child := range w.children() {
		if own := child.Labels[v1alpha1.HubLabel] == ""; own != (len(child.OwnerReferences) == 1) {
			t.Errorf("got %+v", child.ObjectMeta)
		}
	}
}

func TestNothingOfOthersIsTouchedInOtherClusters(t *testing.T) {
	deployment := func(name string, labels, podLabels map[string]string) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: labels}}
		d.Spec.Replicas = ptr.To[int32](7)
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", v1beta1.SubsetNameLabel: "b"}}
		d.Spec.Template.Labels = podLabels
		return d
	}
	hub := map[string]string{v1alpha1.HubLabel: "true"}
	labels := func(more ...string) map[string]string {
		all := map[string]string{v1beta1.SubsetNameLabel: "b", v1alpha1.HubLabel: "true"}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	for name, tc := range map[string]struct {
		object  *appsv1.Deployment
		adopted bool
		reason  v1beta1.Reason
	}{
		"of the same name":           {deployment(model.ChildName("web", "b", "u", model.DeploymentKind), nil, nil), false, v1beta1.ReasonChildRefused},
		"of another owner":           {deployment("other", labels(v1beta1.OwnerLabel, "other"), hub), false, ""},
		"with all but the leave":     {deployment("left", labels(), hub), false, ""},
		"whose pods cannot be seen":  {deployment("bare", labels(v1alpha1.AdoptLabel, "true"), nil), false, ""},
		"with the leave to adopt it": {deployment("given", labels(v1alpha1.AdoptLabel, "true", v1beta1.OwnerLabel, "before"), hub), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := memberWith(tc.object.DeepCopy())
			w := newWorld(t, overClusters(4)).in(membership{"m": m})
			_ = w.settle() // the reason says it
			live := &appsv1.Deployment{}
			if err := m.Get(t.Context(), client.ObjectKeyFromObject(tc.object), live); err != nil {
				t.Fatal(err)
			}
			if tc.reason != "" {
				w.expectReason(tc.reason, "is no child of this UnitedDeployment")
			}
			if adopted := live.Labels[v1beta1.OwnerLabel] == "u"; adopted != tc.adopted || adopted != (*live.Spec.Replicas == 2) || adopted && live.Labels[v1alpha1.AdoptLabel] != "" {
				t.Errorf("replicas %d, labels %v", *live.Spec.Replicas, live.Labels)
			}
		})
	}
}

func TestWithoutFederationNothingChanges(t *testing.T) {
	m := memberWith()
	w := newWorld(t, overClusters(4)).in(membership{"m": m})
	w.mustSettle()
	w.members = nil
	w.change(func(ud *v1beta1.UnitedDeployment) { ud.Spec.Replicas = ptr.To[int32](8) })
	w.mustSettle()
	w.expect("a=2")
	m.expectIn(t, "b=2")
	w.expectReason(v1beta1.ReasonInvalid, "spec.topology.subsets[1].targetCluster: Forbidden: berth-united is not the hub of a federation")
	w.delete()
	w.mustSettle()
	w.expectReason(v1beta1.ReasonDeletionWaits, "start it with --federation; or annotate it with federation.berth.dev/cascade=false")
}

func TestADeletionReachesOtherClusters(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1beta1.UnitedDeployment)
		away   bool
		left   string
		waits  bool
	}{
		"all answer":  {nil, false, "", false},
		"one is away": {nil, true, "b=2", true},
		"one is away, and is given up": {func(ud *v1beta1.UnitedDeployment) {
			ud.Annotations = map[string]string{v1alpha1.CascadeAnnotation: "false"}
		}, true, "b=2", false},
		"the children are to stay": {func(ud *v1beta1.UnitedDeployment) {
			ud.Annotations = map[string]string{v1alpha1.CascadeAnnotation: "false"}
		}, false, "b=2", false},
		"the children are to be orphans": {func(ud *v1beta1.UnitedDeployment) {
			ud.Finalizers = append(ud.Finalizers, metav1.FinalizerOrphanDependents)
		}, false, "b=2", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := memberWith()
			w := newWorld(t, overClusters(4)).in(membership{"m": m})
			w.mustSettle()
			if tc.change != nil {
				w.change(tc.change)
			}
			m.away = tc.away
			w.delete()
			ud := w.get()
			w.itself(t.Context(), ud) // as the watch does, before the garbage collector
			if i := slices.Index(ud.Finalizers, metav1.FinalizerOrphanDependents); i >= 0 {
				ud.Finalizers = slices.Delete(ud.Finalizers, i, i+1)
				if err := w.client.Update(t.Context(), ud); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				if _, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(ud)}); err != nil {
					t.Fatal(err)
				}
			}
			m.expectIn(t, tc.left)
			err := w.client.Get(t.Context(), client.ObjectKeyFromObject(ud), ud)
			if tc.waits {
				w.expectReason(v1beta1.ReasonDeletionWaits, "its children: m;")
			} else if !apierrors.IsNotFound(err) {
				t.Errorf("it is still there: %v, %v", ud.Finalizers, err)
			}
		})
	}
}

func TestChangesInOtherClustersConcernTheirUnitedDeployment(t *testing.T) {
	w := newWorld(t, overClusters(4)).in(membership{"m": memberWith()})
	key := types.NamespacedName{Namespace: "ns", Name: "web-b-1"}
	for name, tc := range map[string]struct {
		change members.Change
		want   int
	}{
		"a child":             {members.Change{Member: "m", Workload: key, Labels: map[string]string{v1beta1.OwnerLabel: "u"}}, 1},
		"of another":          {members.Change{Member: "m", Workload: key, Labels: map[string]string{v1beta1.OwnerLabel: "other"}}, 1}, // it may be taken over
		"of no UnitedDeploym": {members.Change{Member: "m", Workload: key}, 0},
		"one to adopt":        {members.Change{Member: "m", Workload: key, Labels: map[string]string{v1alpha1.AdoptLabel: "true"}}, 1},
		"the cluster":         {members.Change{Member: "m"}, 1},
	} {
		if got := w.concerned(tc.change); len(got) != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
