package workloadspread

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

// shore contains what preemption sees of budgets. The test controls it.
type shore struct {
	*budgets
	clock *testingclock.FakeClock
	awake []string
}

func newShore() *shore {
	s := &shore{clock: testingclock.NewFakeClock(time.Unix(1000, 0))}
	parents := map[types.UID]*workload.Owner{"rs-uid": {Kind: schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}, Name: "web", UID: "web-uid"}, "web-uid": nil}
	s.budgets = newBudgets(s.clock,
		func(_ string, owner workload.Owner) (*workload.Owner, bool) {
			parent, seen := parents[owner.UID]
			return parent, seen
		},
		func(pods map[string]*corev1.Pod) {
			for _, pod := range pods {
				s.awake = append(s.awake, pod.Name)
			}
		})
	return s
}

func (s *shore) expectAwake(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(s.awake)
	if !slices.Equal(s.awake, want) {
		t.Errorf("awake are %v, want %v", s.awake, want)
	}
	s.awake = nil
}

// spares checks which pods a preemption for "urgent" must leave alone.
func (s *shore) spares(t *testing.T, want string, pods ...*corev1.Pod) {
	t.Helper()
	urgent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "urgent", UID: "urgent"}}
	spared := s.spare(urgent, pods)
	var got []string
	for _, pod := range pods {
		if spared.Has(pod.UID) {
			got = append(got, pod.Name)
		}
	}
	if strings.Join(got, " ") != want {
		t.Errorf("spares %v, want %q", got, want)
	}
}

// pubWith is a budget over app=web. Its status has this number of available and of desired pods.
func pubWith(available, desired int32, change ...func(*policyv1beta1.PodUnavailableBudget)) *policyv1beta1.PodUnavailableBudget {
	pub := &policyv1beta1.PodUnavailableBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "pub", Generation: 2},
		Spec: policyv1beta1.PodUnavailableBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MinAvailable: ptr.To(intstr.FromInt32(desired)),
		},
		Status: policyv1beta1.PodUnavailableBudgetStatus{ObservedGeneration: 2, TotalReplicas: available, CurrentAvailable: available, DesiredAvailable: desired},
	}
	for _, c := range change {
		c(pub)
	}
	return pub
}

// serving is a pod that counts as available.
func serving(name, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app, policyv1beta1.ProtectedLabel: policyv1beta1.ProtectedValue},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs-uid", Controller: ptr.To(true)}}},
		Spec:   corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func TestPreemptionTakesNoMoreThanBudgetsHaveRoomFor(t *testing.T) {
	s := newShore()
	a, b, c, other := serving("a", "web"), serving("b", "web"), serving("c", "web"), serving("other", "db")
	s.spares(t, "", a, b, c, other) // no budget exists
	s.changed(nil, pubWith(5, 4))
	s.spares(t, "b c", a, b, c, other)
	s.changed(pubWith(5, 4), pubWith(4, 4))
	s.spares(t, "a b c", a, b, c, other)
	s.gone(types.NamespacedName{Namespace: "ns", Name: "web"})
	s.spares(t, "", a, b, c, other)
}

func TestAPodOfTwoBudgetsNeedsRoomInBoth(t *testing.T) {
	s := newShore()
	s.changed(nil, pubWith(5, 0))
	s.changed(nil, pubWith(5, 5, func(pub *policyv1beta1.PodUnavailableBudget) {
		pub.Name = "deployment"
		pub.Spec.Selector, pub.Spec.TargetReference = nil, &policyv1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	}))
	s.spares(t, "a", serving("a", "web"))
}

func TestTheTargetOfABudgetIsFoundThroughOwners(t *testing.T) {
	s := newShore()
	s.changed(nil, pubWith(5, 5, func(pub *policyv1beta1.PodUnavailableBudget) {
		pub.Spec.Selector, pub.Spec.TargetReference = nil, &policyv1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	}))
	stranger, bare, unprotected := serving("unknown", "x"), serving("bare", "x"), serving("unprotected", "x")
	stranger.OwnerReferences[0].UID, unprotected.OwnerReferences[0].UID = "not seen", "not seen"
	bare.OwnerReferences = nil
	delete(unprotected.Labels, policyv1beta1.ProtectedLabel)
	s.spares(t, "mine unknown", serving("mine", "x"), stranger, bare, unprotected) // some budget protects the pod "unknown", and it may be this budget
}

func TestAnInvalidBudgetHoldsNobody(t *testing.T) {
	s := newShore()
	s.changed(nil, pubWith(5, 5, func(pub *policyv1beta1.PodUnavailableBudget) { pub.Spec.MinAvailable = nil }))
	s.spares(t, "", serving("a", "web"))
}

func TestAPreemptorIsWokenWhenThereIsMoreRoom(t *testing.T) {
	s := newShore()
	s.changed(nil, pubWith(4, 4))
	s.spares(t, "a", serving("a", "web"))
	s.changed(pubWith(4, 4), pubWith(3, 4))
	s.expectAwake(t) // there is less room now
	s.changed(pubWith(3, 4), pubWith(5, 4))
	s.expectAwake(t, "urgent")
	s.changed(pubWith(5, 4), pubWith(6, 4))
	s.expectAwake(t) // the pod waits for nothing any more
	s.changed(pubWith(6, 4), pubWith(4, 4))
	s.spares(t, "a", serving("a", "web"))
	s.gone(types.NamespacedName{Namespace: "ns", Name: "web"})
	s.expectAwake(t, "urgent")
	s.changed(nil, pubWith(4, 4))
	s.spares(t, "a", serving("a", "web"))
	s.forget("urgent")
	s.gone(types.NamespacedName{Namespace: "ns", Name: "web"})
	s.expectAwake(t) // the pod is deleted, or has a node
}

func TestAVictimThatWasRefusedIsNotTriedAgainWithoutNews(t *testing.T) {
	a := serving("a", "web")
	for what, news := range map[string]func(*shore){
		"its budget has news": func(s *shore) { s.changed(pubWith(5, 4), pubWith(6, 4)) },
		"a minute has passed": func(s *shore) { s.clock.Step(refusalTTL) },
	} {
		t.Run(what, func(t *testing.T) {
			s := newShore()
			s.changed(nil, pubWith(5, 4)) // this event may be outdated
			s.spares(t, "", a)
			s.refuse(a)
			s.spares(t, "a", a)
			s.clock.Step(refusalTTL - time.Second)
			s.spares(t, "a", a)
			s.expectAwake(t)
			news(s)
			s.expectAwake(t, "urgent")
			s.spares(t, "", a)
		})
	}
}

// scheduler has only the parts of a scheduler that the preemption of one victim uses.
type scheduler struct {
	fwk.Handle
	client kubernetes.Interface
}

func (s scheduler) ClientSet() kubernetes.Interface        { return s.client }
func (s scheduler) GetWaitingPod(types.UID) fwk.WaitingPod { return nil }

func TestAProtectedVictimIsAskedAboutBeforeItIsMarked(t *testing.T) {
	tests := map[string]struct {
		protected   bool
		refusal     error
		wantAsked   bool
		wantTaken   bool
		wantRefused bool
	}{
		"a victim that may go is taken":                   {protected: true, wantAsked: true, wantTaken: true},
		"one that is refused is left as it is":            {protected: true, refusal: apierrors.NewTooManyRequests("no room", 0), wantAsked: true, wantRefused: true},
		"no answer is no permission":                      {protected: true, refusal: fmt.Errorf("the webhook does not answer"), wantAsked: true, wantRefused: true},
		"one that is gone needs no permission":            {protected: true, refusal: apierrors.NewNotFound(corev1.Resource("pods"), "a"), wantAsked: true, wantTaken: true},
		"nobody is asked about a victim without a budget": {wantTaken: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, asked, taken := newShore(), false, false
			victim := serving("a", "web")
			if !tc.protected {
				delete(victim.Labels, policyv1beta1.ProtectedLabel)
			}
			client := fake.NewClientset(victim)
			client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				options := action.(clienttesting.DeleteActionImpl).DeleteOptions
				asked = len(options.DryRun) == 1 && *options.Preconditions.UID == victim.UID
				return true, nil, tc.refusal
			})
			handle := scheduler{client: client}
			p, preempt := preemptionThat(func() { taken = true })
			guardVictims(p, handle, s.budgets)
			err := preempt(t.Context(), victim)
			_, refused := s.refused[victim.UID]
			if asked != tc.wantAsked || taken != tc.wantTaken || refused != tc.wantRefused || (err == nil) != tc.wantTaken {
				t.Errorf("asked %t, taken %t, refused %t, error %v", asked, taken, refused, err)
			}
		})
	}
}

func TestTheLeastImportantOfABudgetGoFirst(t *testing.T) {
	node := framework.NewNodeInfo()
	for name, priority := range map[string]int32{"high": 30, "middle": 20, "low": 10, "above": 100} {
		pod := serving(name, "web")
		pod.Spec.Priority = &priority
		node.AddPod(pod)
	}
	var got []string
	for _, pod := range takenFrom(node, &corev1.Pod{Spec: corev1.PodSpec{Priority: ptr.To[int32](50)}}) {
		got = append(got, pod.Name)
	}
	if want := []string{"low", "middle", "high"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// discovery answers whether the API server serves PodUnavailableBudgets.
type discovery struct{ answers []error }

func (d *discovery) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	err := d.answers[0]
	d.answers = d.answers[1:]
	return &metav1.APIResourceList{}, err
}

func TestBudgetsAreWatchedOnceTheyAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		absent := apierrors.NewNotFound(schema.GroupResource{}, "")
		served := &discovery{[]error{absent, errors.New("the API server does not answer"), absent, nil}}
		var lists atomic.Int32
		informer := cache.NewSharedIndexInformer(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				lists.Add(1)
				return &policyv1beta1.PodUnavailableBudgetList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []policyv1beta1.PodUnavailableBudget{*pubWith(4, 4)}}, nil
			},
			WatchFuncWithContext: func(_ context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
				if options.SendInitialEvents != nil {
					return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil) // so that the client sends a list request
				}
				return apiwatch.NewFake(), nil
			},
		}, &policyv1beta1.PodUnavailableBudget{}, 0, cache.Indexers{})
		s := newShore()
		if _, err := informer.AddEventHandler(s.events()); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		running.Go(func() { s.run(ctx, served, informer) })
		time.Sleep(3*servedInterval - time.Second)
		synctest.Wait()
		if lists.Load() > 0 || !s.isEmpty() {
			t.Error("budgets are watched before they are served")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if lists.Load() == 0 || s.isEmpty() {
			t.Error("budgets are served and not watched")
		}
		cancel()
		running.Wait()
	})
}
