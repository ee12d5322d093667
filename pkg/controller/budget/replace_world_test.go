package budget

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	model "github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// mustServe is how many pods must serve at every moment of a history. The workload never asks for fewer.
const mustServe = 2

// street is a random history of one budget that replaces pods first. The controller is the real one. Around it are models of webhook replicas, whose counts
// may be old, of the controllers of Deployments and ReplicaSets, of kubelets, and of drains. No pod fails by itself, so the pods that serve are always enough.
type street struct {
	*testing.T
	*bench
	random *rand.Rand
	made   int
	// dies is how many more writes the controller makes before it dies, -1 for any number. done is true if one more is done without an answer.
	mu   sync.Mutex
	dies int
	done bool
	// held are requests that a webhook replica has counted for, and has not answered.
	held []heldRequest
	// allowed are deletions that have not happened yet.
	allowed []*corev1.Pod
	// view is what the controller of ReplicaSets sees in its next round. It may be old.
	view []corev1.Pod
	// on is the node of new pods. Empty is the first node.
	on string
	// handed and gone are how many pods were handed over, taken back, and evicted after that.
	handed, back, gone int
	log                []string
}

type heldRequest struct {
	pub   *v1beta1.PodUnavailableBudget
	count *census.Count
	pod   *corev1.Pod
	wants bool
}

var errDied = errors.New("the controller has died")

func newStreet(t *testing.T, seed uint64) *street {
	t.Helper()
	s := &street{T: t, random: rand.New(rand.NewPCG(seed, 1)), dies: -1}
	counted := func(write func() error) error {
		s.mu.Lock()
		dead, last := s.dies == 0, s.dies == 0 && s.done
		s.dies, s.done = max(s.dies-1, min(s.dies, 0)), s.done && !last
		s.mu.Unlock()
		if dead && !last {
			return errDied
		}
		err := write()
		if last {
			return errDied
		}
		return err
	}
	pub := budgetWith()
	pub.Spec = v1beta1.PodUnavailableBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MinAvailable: ptr.To(intstr.FromInt32(mustServe)),
		ReplaceFirst: &v1beta1.ReplaceFirst{MaxPods: ptr.To(1 + s.random.Int32N(2)), TimeoutSeconds: ptr.To[int32](60)},
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "deployment"}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](mustServe)}}
	s.bench = newBench(t, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return counted(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return counted(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourceCreate: func(ctx context.Context, _ client.Client, _ string, o, eviction client.Object, _ ...client.SubResourceCreateOption) error {
			if _, is := eviction.(*policyv1.Eviction); !is {
				return fmt.Errorf("%T is not expected", eviction)
			}
			return counted(func() error {
				pod := &corev1.Pod{}
				if err := s.client.Get(ctx, client.ObjectKeyFromObject(o), pod); err != nil {
					return err
				}
				if pod.UID != o.GetUID() {
					return apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errors.New("another UID"))
				}
				before := s.dies
				s.dies = -1 // the webhook's writes are not the controller's
				allowed := s.ask(pod, true)
				s.dies = before
				if !allowed {
					return apierrors.NewTooManyRequestsError("refused")
				}
				s.remove(pod, "the controller")
				return nil
			})
		},
	}, pub, deployment, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, s.set(1, mustServe))
	for range mustServe {
		s.create(s.set(1, mustServe), true)
	}
	return s
}

// set is the ReplicaSet of a revision.
func (s *street) set(revision, replicas int) *appsv1.ReplicaSet {
	name := fmt.Sprintf("web-%d", revision)
	labels := map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: name}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deployment", Controller: ptr.To(true)}}},
		Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
}

func (s *street) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%v after\n%s", err, strings.Join(s.log, "\n"))
	}
}

func (s *street) pods() []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	s.check(s.client.List(s.Context(), &list, client.InNamespace("ns")))
	return list.Items
}

func (s *street) create(set *appsv1.ReplicaSet, ready bool) {
	s.Helper()
	s.made++
	p := pod(fmt.Sprintf("p%d", s.made), map[string]string{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: set.Name})
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	p.Spec.NodeName = cmp.Or(s.on, p.Spec.NodeName)
	if ready {
		p.Labels[v1beta1.ProtectedLabel] = v1beta1.ProtectedValue
	} else {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	}
	s.check(s.client.Create(s.Context(), p))
}

// remove carries out a deletion of the pod, and checks that enough pods serve.
func (s *street) remove(pod *corev1.Pod, who string) {
	s.Helper()
	now := &corev1.Pod{}
	if err := s.client.Get(s.Context(), client.ObjectKeyFromObject(pod), now); err != nil || now.UID != pod.UID {
		return
	}
	s.log = append(s.log, who+" removes "+pod.Name)
	if model.HandoverOf(now) != nil {
		s.gone++
	}
	s.check(s.client.Delete(s.Context(), now))
	serving := 0
	for _, p := range s.pods() {
		if model.IsReady(&p) {
			serving++
		}
	}
	if serving < mustServe {
		s.check(fmt.Errorf("%d pods serve", serving))
	}
}

// ask is the answer of a webhook replica that counts now. replaceable is true unless a ReplicaSet asks.
func (s *street) ask(pod *corev1.Pod, replaceable bool) bool {
	s.Helper()
	held, asked := s.hold(pod, replaceable)
	return !asked || s.answer(held)
}

// hold counts for a request. asked is false if the API server does not ask about the pod.
func (s *street) hold(pod *corev1.Pod, replaceable bool) (_ heldRequest, asked bool) {
	s.Helper()
	if !model.IsProtected(pod) {
		return heldRequest{}, false
	}
	pub := &v1beta1.PodUnavailableBudget{}
	s.check(s.client.Get(s.Context(), web, pub))
	policy, errs := model.Compile(pub)
	s.check(errs.ToAggregate())
	count, err := s.census.Take(s.Context(), pub, policy, "")
	s.check(err)
	return heldRequest{pub, count, pod, replaceable}, true
}

// answer decides by an earlier count, and writes by compare-and-swap, as the guard does.
func (s *street) answer(h heldRequest) (allowed bool) {
	s.Helper()
	policy, errs := model.Compile(h.pub)
	s.check(errs.ToAggregate())
	facts := h.count.Facts
	facts.Ledger, facts.Replacing = h.pub.Status.Ledger, h.pub.Status.Replacing
	d := policy.Decide(facts, []model.Request{{
		Name: h.pod.Name, UID: h.pod.UID, Operation: v1beta1.OperationEvict, Replaceable: h.wants && model.IsReplaceable(h.pod),
	}}, s.now())
	if d.Changed {
		written := h.pub.DeepCopy()
		model.Publish(&written.Status, h.pub.Generation, d.Ledger, d.Tally)
		written.Status.Replacing = d.Replacing
		err := s.client.Status().Update(s.Context(), written)
		if apierrors.IsConflict(err) {
			return false
		}
		s.check(err)
	}
	return d.Verdicts[0].Allowed
}

// run lets the controller run, which may die in between.
func (s *street) run() {
	s.Helper()
	before := s.pods()
	_, err := s.Reconcile(s.Context(), reconcile.Request{NamespacedName: web})
	if err != nil && !errors.Is(err, errDied) && !strings.Contains(err.Error(), errDied.Error()) {
		s.check(err)
	}
	for _, p := range s.pods() {
		at := slices.IndexFunc(before, func(b corev1.Pod) bool { return b.UID == p.UID })
		if at < 0 {
			continue
		}
		switch was, is := model.HandoverOf(&before[at]) != nil, model.HandoverOf(&p) != nil; {
		case !was && is:
			s.handed++
			s.log = append(s.log, p.Name+" is handed over")
		case was && !is:
			s.back++
			s.log = append(s.log, p.Name+" is taken back")
		}
	}
	handed := 0
	for _, p := range s.pods() {
		if model.HandoverOf(&p) != nil {
			handed++
		}
	}
	if handed > 3 { // maxPods of up to 2, and one that a dead controller has left behind
		s.check(fmt.Errorf("%d pods are handed over", handed))
	}
}

// die lets the controller die before or after one of its next writes. The next one knows only what the API server has.
func (s *street) die() {
	s.Helper()
	s.dies, s.done = s.random.IntN(4), s.random.IntN(2) == 0
	s.run()
	s.dies, s.done = -1, false
	clock := s.clock
	s.restart()
	s.clock.SetTime(clock.Now())
	s.log = append(s.log, "the controller died")
}

// syncSets is one round of the controller of ReplicaSets, by what it sees. It asks the webhook before it deletes a pod.
func (s *street) syncSets() {
	s.Helper()
	if s.view == nil {
		s.view = s.pods()
		return
	}
	seen := s.view
	s.view = nil
	var sets appsv1.ReplicaSetList
	s.check(s.client.List(s.Context(), &sets, client.InNamespace("ns")))
	for i := range sets.Items {
		set := &sets.Items[i]
		var owned []corev1.Pod
		for _, p := range seen {
			if metav1.IsControlledBy(&p, set) {
				owned = append(owned, p)
			}
		}
		slices.SortStableFunc(owned, func(a, b corev1.Pod) int { return rank(&a) - rank(&b) })
		for n := len(owned); n < int(*set.Spec.Replicas); n++ {
			s.create(set, false)
		}
		for n := 0; n < len(owned)-int(*set.Spec.Replicas); n++ {
			now := &corev1.Pod{}
			if err := s.client.Get(s.Context(), client.ObjectKeyFromObject(&owned[n]), now); err != nil || now.UID != owned[n].UID {
				continue
			}
			if s.ask(now, false) {
				s.remove(now, set.Name)
			}
		}
	}
}

func rank(pod *corev1.Pod) int {
	if model.IsReady(pod) {
		return 1
	}
	return 0
}

// roll is one round of the controller of Deployments: the newest ReplicaSet has all replicas, and older ones what it lacks.
func (s *street) roll() {
	s.Helper()
	deployment := &appsv1.Deployment{}
	s.check(s.client.Get(s.Context(), web, deployment))
	var sets appsv1.ReplicaSetList
	s.check(s.client.List(s.Context(), &sets, client.InNamespace("ns")))
	slices.SortFunc(sets.Items, func(a, b appsv1.ReplicaSet) int { return strings.Compare(a.Name, b.Name) })
	lacks := *deployment.Spec.Replicas
	for _, p := range s.pods() {
		if metav1.IsControlledBy(&p, &sets.Items[len(sets.Items)-1]) && model.IsReady(&p) && lacks > 0 {
			lacks--
		}
	}
	for i := range sets.Items {
		want := min(lacks, *sets.Items[i].Spec.Replicas)
		if i == len(sets.Items)-1 {
			want = *deployment.Spec.Replicas
		}
		if *sets.Items[i].Spec.Replicas != want {
			sets.Items[i].Spec.Replicas = ptr.To(want)
			s.check(s.client.Update(s.Context(), &sets.Items[i]))
		}
	}
}

// start makes the first of the pods that have not started ready.
func (s *street) start() {
	s.Helper()
	for _, p := range s.pods() {
		if !model.IsReady(&p) {
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			s.check(s.client.Status().Update(s.Context(), &p))
			s.log = append(s.log, p.Name+" serves")
			return
		}
	}
}

func (s *street) step(rollouts *int) {
	s.Helper()
	switch pods := s.pods(); s.random.IntN(17) {
	case 0, 1: // two drains, each with an answer of its own
		pod := pods[s.random.IntN(len(pods))].DeepCopy()
		if held, asked := s.hold(pod, true); asked {
			s.held = append(s.held, held)
		}
	case 2, 3:
		if len(s.held) > 0 {
			held := s.held[0]
			s.held = s.held[1:]
			if s.answer(held) {
				s.log = append(s.log, held.pod.Name+" may go")
				s.allowed = append(s.allowed, held.pod)
			}
		}
	case 4:
		if len(s.allowed) > 0 {
			s.remove(s.allowed[0], "a drain")
			s.allowed = s.allowed[1:]
		}
	case 5, 6, 7:
		s.run()
	case 8:
		s.die()
	case 9, 10:
		s.syncSets()
	case 11, 12:
		s.start()
	case 13:
		s.clock.SetTime(s.clock.Now().Add(time.Duration(s.random.IntN(40)) * time.Second))
	case 14: // an autoscaler
		deployment := &appsv1.Deployment{}
		s.check(s.client.Get(s.Context(), web, deployment))
		deployment.Spec.Replicas = ptr.To(mustServe + s.random.Int32N(3))
		s.check(s.client.Update(s.Context(), deployment))
		s.log = append(s.log, fmt.Sprintf("%d replicas", *deployment.Spec.Replicas))
		s.roll()
	case 15:
		if *rollouts++; *rollouts%20 == 0 && *rollouts < 100 {
			s.check(s.client.Create(s.Context(), s.set(1+*rollouts/20, 0)))
			s.log = append(s.log, "a rollout")
		}
		s.roll()
	case 16:
		s.announce(s.random.IntN(3) == 0)
	}
}

// announce makes the node of all pods announce its end, or withdraws that.
func (s *street) announce(ends bool) {
	s.Helper()
	node := &corev1.Node{}
	s.check(s.client.Get(s.Context(), types.NamespacedName{Name: "node"}, node))
	if node.Spec.Taints = nil; ends {
		node.Spec.Taints = []corev1.Taint{{Key: "berth.dev/node-ends"}}
	}
	s.check(s.client.Update(s.Context(), node))
	s.log = append(s.log, fmt.Sprintf("the node ends: %t", ends))
}

// rest lets everything that is under way end.
func (s *street) rest() {
	s.Helper()
	s.held, s.view = nil, nil
	s.announce(false)
	for _, pod := range s.allowed {
		s.remove(pod, "a drain")
	}
	for range 60 {
		s.clock.SetTime(s.clock.Now().Add(20 * time.Second))
		s.run()
		s.start()
		s.roll()
		s.syncSets()
		s.syncSets()
	}
	deployment, pub := &appsv1.Deployment{}, &v1beta1.PodUnavailableBudget{}
	s.check(s.client.Get(s.Context(), web, deployment))
	s.check(s.client.Get(s.Context(), web, pub))
	pods := s.pods()
	for i := range pods {
		if owner := metav1.GetControllerOf(&pods[i]); owner == nil || owner.Kind != "ReplicaSet" || pods[i].Annotations[v1beta1.ReplacedFirstAnnotation] != "" {
			s.check(fmt.Errorf("pod %s is left with %+v", pods[i].Name, pods[i].ObjectMeta))
		}
	}
	if len(pods) != int(*deployment.Spec.Replicas) || len(pub.Status.Replacing) > 0 || len(pub.Status.Ledger) > 0 {
		s.check(fmt.Errorf("%d pods of %d, %+v", len(pods), *deployment.Spec.Replicas, pub.Status))
	}
}

// TestPodsLeaveANodeThatEndsOneAfterTheOther: nobody drains it. Enough pods serve all the time; see remove.
func TestPodsLeaveANodeThatEndsOneAfterTheOther(t *testing.T) {
	s := newStreet(t, 1)
	s.run()
	if request := s.ofNode(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, nil); !request.Has(reconcile.Request{NamespacedName: web}) {
		t.Errorf("a notice concerns %v", request)
	}
	s.announce(true)
	s.on = "other"
	for range 20 {
		s.run()
		s.start()
		s.syncSets()
		s.clock.SetTime(s.clock.Now().Add(5 * time.Second))
	}
	if pods := s.pods(); slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == "p1" || p.Name == "p2" }) {
		t.Errorf("the first pods are there after\n%s", strings.Join(s.log, "\n"))
	}
	s.rest()
}

// TestPodsThatAreReplacedFirstAreNeitherLostNorLeft plays random histories: drains, a node that announces its end, crashes of the controller at each of its writes, autoscaling, rollouts, and
// webhook replicas that answer by old counts.
func TestPodsThatAreReplacedFirstAreNeitherLostNorLeft(t *testing.T) {
	handed, back, gone := 0, 0, 0
	for seed := range uint64(25) {
		s := newStreet(t, seed)
		rollouts := 0
		for range 250 {
			s.step(&rollouts)
		}
		s.rest()
		handed, back, gone = handed+s.handed, back+s.back, gone+s.gone
	}
	t.Logf("%d pods were handed over, %d taken back, and %d went", handed, back, gone)
	if handed == 0 || back == 0 || gone == 0 {
		t.Error("the histories did not try everything")
	}
}
