package whatif

import (
	"context"
	"fmt"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// maker makes the pods of a workload that do not exist yet.
type maker struct {
	policy *subset.Policy
	spread string
	plan   *subset.Plan
	// selector of the workload's pods, which no patch may break. Nil if it is not known.
	selector labels.Selector
	// kept are the slots of the pods' revision that admission counts, and closed the subsets that it passes over.
	kept   subset.Counts
	closed subset.Mask
	// base is a pod as it is before Berth's webhook sees it, without a name.
	base *corev1.Pod
	// note is why base is not what admission would make. Empty if it is.
	note string
	made int
	// set is nil for other kinds. inOrder is true for a StatefulSet that makes a pod when the previous one is ready.
	set     *appsv1.StatefulSet
	inOrder bool
	// ordinals of the workload with this name. The next pod has the first one from ordinal on that is not in names.
	ordinals *workload.Ordinals
	workload string
	names    sets.Set[string]
	ordinal  int32
}

// newMaker makes pods besides those that remain.
func (e *Engine) newMaker(ctx context.Context, d *Divided, plan *subset.Plan, remaining []*corev1.Pod) (*maker, error) {
	m := &maker{policy: d.Policy, spread: d.Spread.Name, plan: plan, kept: make(subset.Counts, len(d.Policy.Subsets)), names: sets.New[string](),
		ordinals: d.Ordinals, workload: workload.TargetOf(d.Spread).Name}
	m.closed = moves.ClosedBy(d.Spread.Status.Moves, d.Spread.Status.SubsetStatuses, d.Policy, e.clock.Now())
	var err error
	if m.base, err = e.NewPod(ctx, d.Spread); err != nil {
		return nil, err
	}
	if subset.RevisionOf(m.base) == "" && len(remaining) > 0 {
		youngest := slices.MaxFunc(remaining, byAge)
		for _, key := range []string{appsv1.DefaultDeploymentUniqueLabelKey, appsv1.ControllerRevisionHashLabelKey} {
			if value, found := youngest.Labels[key]; found {
				metav1.SetMetaDataLabel(&m.base.ObjectMeta, key, value)
			}
		}
	}
	scope := d.Policy.ScopeOf(subset.RevisionOf(m.base))
	for _, pod := range remaining {
		m.names.Insert(pod.Name)
		o := subset.Observe(pod, e.Node(pod.Spec.NodeName))
		in, _ := d.Policy.SubsetOf(&o, d.Spread.Name)
		if o.NodeName == "" {
			in, _ = d.Policy.AdmittedTo(o.Admitted, d.Spread.Name)
		}
		if in != subset.None && d.Policy.ScopeOf(o.Revision) == scope {
			m.kept[in]++
		}
	}
	target, _ := e.Owner(d.Spread.Namespace, workload.TargetOf(d.Spread))
	if target != nil {
		m.selector = workload.Selector(target)
	}
	if set, ok := target.(*appsv1.StatefulSet); ok {
		m.set, m.inOrder = set, set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
	}
	if err := e.admit(ctx, m.base); err != nil {
		m.note = fmt.Sprintf("pods are made from the workload's template with what Berth adds, because the API server did not say what else is added: %v", err)
	}
	return m, nil
}

// admit lets the API server make of a pod what it makes of a new one, in a dry run. Berth's webhook leaves a pod
// without an owner as it is, so the pod has none meanwhile.
func (e *Engine) admit(ctx context.Context, pod *corev1.Pod) error {
	asked := pod.DeepCopy()
	asked.OwnerReferences, asked.GenerateName = nil, "simulated-"
	if err := e.live.Create(ctx, asked, client.DryRunAll); err != nil {
		return err
	}
	pod.Labels, pod.Annotations, pod.Spec = asked.Labels, asked.Annotations, asked.Spec
	pod.Spec.NodeName = ""
	return nil
}

// next makes a pod, with the claims that its controller makes for it.
func (m *maker) next() (*corev1.Pod, []*corev1.PersistentVolumeClaim, error) {
	pod := m.base.DeepCopy()
	pod.Name = fmt.Sprintf("simulated-%d", m.made)
	pod.UID = types.UID(pod.Name)
	m.made++
	var claims []*corev1.PersistentVolumeClaim
	var position int32
	if m.ordinals.Known() {
		for {
			ordinal := m.ordinals.Next(m.ordinal)
			m.ordinal = ordinal + 1
			if pod.Name = fmt.Sprintf("%s-%d", m.workload, ordinal); !m.names.Has(pod.Name) || ordinal == math.MaxInt32 {
				break
			}
		}
		if m.policy.GoByOrdinal() {
			position = m.ordinals.Position(pod.Name, m.workload)
		}
	}
	if m.set != nil {
		claims = claimsFor(pod, m.set)
	}
	if !m.policy.BindsEarly() {
		pod.Spec.SchedulerName = v1beta1.SchedulerName
		m.policy.Constraints.AddTo(pod)
		return pod, claims, nil
	}
	verdict, note := m.policy.PickEarly(m.plan, m.kept, m.policy.At(m.plan, position, subset.Candidate{Closed: m.closed})), v1beta1.AdmittedSubset{Name: m.spread}
	note.Lent = verdict.Lent
	if note.Subset = m.policy.Subset(verdict.Subset).Name; verdict.Subset != subset.None {
		m.kept[verdict.Subset]++
	}
	bound, err := m.policy.BindEarly(pod, verdict.Subset, note, m.selector)
	return bound, claims, err
}

// claimsFor gives a pod the volumes of a StatefulSet's claims, and returns the claims.
func claimsFor(pod *corev1.Pod, set *appsv1.StatefulSet) (claims []*corev1.PersistentVolumeClaim) {
	for i := range set.Spec.VolumeClaimTemplates {
		claim := set.Spec.VolumeClaimTemplates[i].DeepCopy()
		volume := claim.Name
		claim.Name = volume + "-" + pod.Name
		pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}})
		claims = append(claims, claim)
	}
	return claims
}
