package cycle

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/budget"
	appsv1beta1 "github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/workload"
)

// budgets are what PodDisruptionBudgets and PodUnavailableBudgets say that they allow, less what this cycle has taken.
// They only save requests that would be refused: the API server and its webhook decide whether a pod may go.
type budgets struct {
	mu          sync.Mutex // evictions of several spreads end at the same time
	inNamespace map[string][]*allowance
	taken       map[types.UID]bool
	// isBelow is true if the pod is owned by the workload, directly or through others.
	isBelow func(pod *corev1.Pod, target workload.Owner) bool
}

// allowance is one budget.
type allowance struct {
	name     string
	selector labels.Selector
	// target takes the place of the selector. Nil if there is none.
	target *workload.Owner
	room   room
}

// room is what a budget has left.
type room interface {
	// Has is true if the pod may go.
	Has(pod *corev1.Pod) bool
	// Take counts the pod as gone.
	Take(pod *corev1.Pod)
	// Refused takes in that the pod was not let go.
	Refused(pod *corev1.Pod)
}

func (c *Cycle) gatherBudgets(ctx context.Context) (*budgets, error) {
	later := context.WithoutCancel(ctx)
	b := &budgets{inNamespace: map[string][]*allowance{}, taken: map[types.UID]bool{}, isBelow: func(pod *corev1.Pod, target workload.Owner) bool {
		below, err := c.isBelow(later, pod, target)
		return below && err == nil
	}}
	var pdbs policyv1.PodDisruptionBudgetList
	if err := c.world.live.List(ctx, &pdbs); err != nil {
		return nil, fmt.Errorf("listing PodDisruptionBudgets: %w", err)
	}
	for i := range pdbs.Items {
		b.addDisruptionBudget(&pdbs.Items[i])
	}
	var pubs v1beta1.PodUnavailableBudgetList
	if err := c.world.live.List(ctx, &pubs); err != nil {
		return nil, fmt.Errorf("listing PodUnavailableBudgets: %w", err)
	}
	for i := range pubs.Items {
		b.addUnavailableBudget(&pubs.Items[i])
	}
	return b, nil
}

func (b *budgets) add(namespace string, a *allowance) {
	b.inNamespace[namespace] = append(b.inNamespace[namespace], a)
}

// addDisruptionBudget reads what the eviction API goes by. The status of a spec that was not observed allows nothing.
func (b *budgets) addDisruptionBudget(pdb *policyv1.PodDisruptionBudget) {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return // the API server has validated it
	}
	r := &disruptions{left: pdb.Status.DisruptionsAllowed}
	if pdb.Status.ObservedGeneration < pdb.Generation {
		r.left = 0
	}
	r.unhealthyGo = pdb.Spec.UnhealthyPodEvictionPolicy != nil && *pdb.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow ||
		pdb.Status.DesiredHealthy > 0 && pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy
	b.add(pdb.Namespace, &allowance{name: "PodDisruptionBudget " + pdb.Name, selector: selector, room: r})
}

// disruptions are the room of a PodDisruptionBudget.
type disruptions struct {
	left int32
	// unhealthyGo: pods that are not ready may go whatever is left.
	unhealthyGo bool
}

func (d *disruptions) isFree(pod *corev1.Pod) bool {
	return !isAskedOfPDBs(pod) || !budget.IsReady(pod) && d.unhealthyGo
}

// isAskedOfPDBs is false for pods that the API server evicts without a look at PodDisruptionBudgets.
func isAskedOfPDBs(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodPending && !podstate.HasEnded(pod)
}

func (d *disruptions) Has(pod *corev1.Pod) bool { return d.left > 0 || d.isFree(pod) }

func (d *disruptions) Take(pod *corev1.Pod) {
	if !d.isFree(pod) {
		d.left--
	}
}

func (d *disruptions) Refused(pod *corev1.Pod) {
	if !d.isFree(pod) {
		d.left = 0
	}
}

// addUnavailableBudget has the model foresee what the budget allows, by what its controller has counted.
func (b *budgets) addUnavailableBudget(pub *v1beta1.PodUnavailableBudget) {
	policy, errs := budget.Compile(pub)
	if len(errs) > 0 {
		return // it protects nothing
	}
	a := &allowance{name: "PodUnavailableBudget " + pub.Name, selector: policy.Selector, room: policy.Forecast(pub)}
	if policy.Target != nil {
		a.target = &workload.Owner{Kind: budget.KindOf(policy.Target), Name: policy.Target.Name}
	}
	b.add(pub.Namespace, a)
}

// of are the budgets that cover a pod.
func (b *budgets) of(pod *corev1.Pod) (all []*allowance) {
	for _, a := range b.inNamespace[pod.Namespace] {
		covers := a.selector.Matches(labels.Set(pod.Labels))
		if a.target != nil {
			covers = b.isBelow(pod, *a.target)
		}
		if covers {
			all = append(all, a)
		}
	}
	return all
}

// spare is empty if all budgets of the pod have room, and otherwise why it stays. A pod that was taken before is spared
// already.
func (b *budgets) spare(pod *corev1.Pod) appsv1beta1.Reason {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken[pod.UID] {
		return ""
	}
	kept, pdbs := appsv1beta1.Reason(""), 0
	for _, a := range b.of(pod) {
		if !a.room.Has(pod) {
			kept = appsv1beta1.ReasonBudgetExhausted
		}
		if _, isPDB := a.room.(*disruptions); isPDB {
			pdbs++
		}
	}
	if pdbs > 1 && isAskedOfPDBs(pod) {
		return appsv1beta1.ReasonSeveralBudgets
	}
	return kept
}

// take counts the pod as gone.
func (b *budgets) take(pod *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken[pod.UID] {
		return
	}
	b.taken[pod.UID] = true
	for _, a := range b.of(pod) {
		a.room.Take(pod)
	}
}

// close leaves the budgets of a pod alone for the rest of the cycle, because one of them has refused it.
func (b *budgets) close(ctx context.Context, pod *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.of(pod) {
		klog.FromContext(ctx).V(2).Info("Leaving the pods of a budget alone for the rest of the cycle", "budget", a.name, "namespace", pod.Namespace)
		a.room.Refused(pod)
	}
}

// isBelow is true if the pod is owned by the workload, directly or through others. It begins to watch the kinds of
// owners on the way.
func (c *Cycle) isBelow(ctx context.Context, pod *corev1.Pod, target workload.Owner) (below bool, err error) {
	for range workload.LongestOwnerChain {
		missing, err := c.lineage.Climb(ctx, pod.Namespace, workload.ControllerOf(pod), func(owner workload.Owner) (bool, error) {
			below = owner.Kind == target.Kind && owner.Name == target.Name
			return below, nil
		})
		if err != nil || missing == nil || c.lineage.NewObject(missing.Kind) != nil {
			return below, err
		}
		if _, err := c.lineage.Watch(ctx, missing.Kind); err != nil {
			return false, err
		}
	}
	return below, nil
}
