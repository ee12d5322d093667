package subset

import (
	"cmp"
	"encoding/json"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

// Pod is what the model needs to know about a pod.
type Pod struct {
	Name string
	UID  types.UID
	// Revision of the workload that the pod was made for. Empty if its workload has none.
	Revision string
	// Owner is the pod's controller. Empty if it has none.
	Owner types.UID
	// Position of the pod in its StatefulSet, from 1, if the spread divides the pods by ordinal; see
	// Policy.GoByOrdinal. 0 for other pods.
	Position int32
	// Cost is the pod's deletion cost. Nil if it has none, or a value that is not a number.
	Cost *int32
	// AskedBefore is the cost that the application asked for when Berth wrote Cost. 0 if it asked for none.
	AskedBefore int32
	// CostIgnored is true if the pod's controller does not read deletion costs. Such a pod gets none.
	CostIgnored bool
	// OfJob is true if the pod's controller takes a deleted pod for one that has failed, so that nobody may delete or
	// evict the pod.
	OfJob bool
	// Record of the pod's Binding. Nil if the pod is unbound, or another scheduler bound it.
	Record *Record
	// Admitted is what admission picked for the pod. Nil if it picked nothing.
	Admitted *Admitted
	// Labels of the pod. They are shared with the object that was observed.
	Labels map[string]string
	// NodeName is empty until the pod is bound.
	NodeName string
	// Node the pod is bound to. Nil if the pod is unbound or the node is gone.
	Node *corev1.Node
	// Active is false once the pod terminates, has succeeded or has failed.
	Active bool
	// Ending is true while the pod terminates on a node; see Policy.HoldsSlot.
	Ending  bool
	Ready   bool
	Created time.Time
}

// Record is what Berth wrote into a pod's Binding or, later, onto a pod that another scheduler had bound.
type Record struct {
	Spread string
	// Subset is empty for a pod that was bound outside of all subsets because every subset was full.
	Subset string
	// Adopted is true if another scheduler bound the pod.
	Adopted bool
}

// Admitted is what was picked for a pod before its bind: by admission, or by the scheduler when it opened the gate of
// the pod.
type Admitted struct {
	Spread string
	// Subset is empty if every subset was full and the spread says whenFull: Schedule.
	Subset string
	// Pick identifies the pick, and Lent says that it is above the quota; see v1beta1.AdmittedSubset.
	Pick string
	Lent bool
	// Opened is true if the scheduler picked the subset when it opened the pod's gate. The pod then requires the nodes
	// of that subset, for good.
	Opened bool
	// Since is the time of the pick. Zero if the pick does not say it.
	Since time.Time
}

// Observe reads what the model needs from a pod and its node, which may be nil.
func Observe(pod *corev1.Pod, node *corev1.Node) Pod {
	ready, _ := podstate.IsReady(pod)
	return Pod{
		Name:        pod.Name,
		UID:         pod.UID,
		Revision:    RevisionOf(pod),
		Owner:       ownerOf(pod),
		Cost:        costIn(pod, v1beta1.PodDeletionCostAnnotation),
		AskedBefore: ptr.Deref(costIn(pod, v1beta1.AskedCostAnnotation), 0),
		Record:      RecordOf(pod),
		Admitted:    AdmittedOf(pod),
		Labels:      pod.Labels,
		NodeName:    pod.Spec.NodeName,
		Node:        node,
		Active:      IsActive(pod),
		Ending:      IsEnding(pod),
		Ready:       ready,
		Created:     pod.CreationTimestamp.Time,
	}
}

func ownerOf(pod *corev1.Pod) types.UID {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		return ref.UID
	}
	return ""
}

// costIn is nil if the annotation is missing or no number.
func costIn(pod *corev1.Pod, annotation string) *int32 {
	value, found := pod.Annotations[annotation]
	if !found {
		return nil
	}
	cost, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return nil
	}
	return ptr.To(int32(cost))
}

// revisionLabels are those with which controllers of workloads tell their revisions apart, each the label of
// ReplicaSets, of Argo Rollouts, and of StatefulSets and other kinds with ControllerRevisions. A pod has one of them,
// or none.
var revisionLabels = []string{"pod-template-hash", "rollouts-pod-template-hash", "controller-revision-hash"}

// RevisionOf is the rollout revision of a pod: the first of revisionLabels that it has. Empty for workloads without
// revisions.
func RevisionOf(pod *corev1.Pod) string {
	for _, label := range revisionLabels {
		if hash := pod.Labels[label]; hash != "" {
			return hash
		}
	}
	return ""
}

// RecordOf is the record that Berth left on a pod. It is nil for an unbound pod, and for a record with another UID than
// the pod's: anybody who may write pods can write annotations, so a copied or invented record is ignored.
func RecordOf(pod *corev1.Pod) *Record {
	if pod.Spec.NodeName == "" {
		return nil
	}
	return RecordIn(pod)
}

// RecordIn is RecordOf for the metadata of a pod that is known to have a node.
func RecordIn(pod metav1.Object) *Record {
	value, found := pod.GetAnnotations()[v1beta1.MatchedAnnotation]
	if !found {
		return nil
	}
	var matched v1beta1.MatchedSubset
	if err := json.Unmarshal([]byte(value), &matched); err != nil || matched.UID != string(pod.GetUID()) {
		return nil
	}
	return &Record{Spread: matched.Name, Subset: matched.Subset, Adopted: matched.Adopted}
}

// BoundByOthers is true if the pod has a node that Berth did not choose, as far as its record says.
func (p *Pod) BoundByOthers() bool {
	return p.NodeName != "" && (p.Record == nil || p.Record.Adopted)
}

// AdmittedOf is the subset that was picked for a pod before its bind, or nil. A copy of a pod may carry the pick of the
// original. It also carries the patch of that subset, so it is held to the same quota. A pod has no pick as long as it
// has Berth's gate.
func AdmittedOf(pod *corev1.Pod) *Admitted {
	value, found := pod.Annotations[v1beta1.AdmittedAnnotation]
	if !found || IsGated(pod) {
		return nil
	}
	var admitted v1beta1.AdmittedSubset
	if err := json.Unmarshal([]byte(value), &admitted); err != nil {
		return nil
	}
	return &Admitted{Spread: admitted.Name, Subset: admitted.Subset, Pick: admitted.Pick, Lent: admitted.Lent,
		Opened: admitted.Pick == string(pod.UID), Since: admitted.Time.Time}
}

// IsActive is false for a pod that terminates, has succeeded or has failed.
func IsActive(pod *corev1.Pod) bool {
	return podstate.IsActive(pod)
}

// IsEnding is true for a pod on a node that terminates, while its containers may still run. Whether it holds its slot,
// the spread says.
func IsEnding(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.Spec.NodeName != "" && !podstate.HasEnded(pod)
}

// HoldsSlot is true for a pod on a node that counts against the quota of its subset.
func (p *Policy) HoldsSlot(pod *Pod) bool {
	return pod.NodeName != "" && (pod.Active || pod.Ending && p.CountsEnding)
}

// ScopeOf is the quota scope that a revision counts in: the revision itself, or the single scope of the workload.
func (p *Policy) ScopeOf(revision string) string {
	if p.Scope == v1beta1.WorkloadQuotaScope {
		return ""
	}
	return revision
}

// SubsetOf is the subset that a bound pod belongs to, or None. The record decides, even if the node's labels have
// changed since. A pod without a valid record for this spread, or with a record for a subset that is gone, is adopted:
// its node decides, and then the controller writes a record that says the same. The rule looks at the pod and its node
// alone and not at counts, so all processes come to the same subset.
func (p *Policy) SubsetOf(pod *Pod, spread string) (index int, adopted bool) {
	if pod.NodeName == "" {
		return None, false
	}
	if i, counts := p.RecordedIn(pod.Record, spread); counts {
		return i, false
	}
	if pod.Node == nil {
		return None, true
	}
	return p.adopt(pod, spread), true
}

// adopt is the subset of a pod that another scheduler bound. Only subsets that select its node count. That which
// admission picked for the pod comes first, then the subset that prefers the node most, by the sum of its weights. The
// first subset wins a tie. In a spread that behaves as OpenKruise's, the first whose labels the pod carries wins it.
func (p *Policy) adopt(pod *Pod, spread string) int {
	if picked, counts := p.AdmittedTo(pod.Admitted, spread); counts && picked != None && p.Subsets[picked].Holds(pod.Node) {
		return picked
	}
	best, most := None, int64(-1)
	for i := range p.Subsets {
		s := &p.Subsets[i]
		if !s.Holds(pod.Node) {
			continue
		}
		score := 2 * s.Preference(pod.Node)
		if p.Kruise && s.Metadata.isOn(pod.Labels) {
			score++
		}
		if score > most {
			best, most = i, score
		}
	}
	return best
}

// RecordedIn is the subset that a record names, or None if the record says that the pod was let go. It is false if the
// pod's node decides: the record is nil, for another spread, or for a subset that is gone.
func (p *Policy) RecordedIn(record *Record, spread string) (index int, counts bool) {
	if record == nil || record.Spread != spread {
		return None, false
	}
	if record.Subset == "" {
		return None, true
	}
	index = p.Index(record.Subset)
	return index, index != None
}

// keepBefore orders the pods of one subset by which of them is kept first: pods of a StatefulSet by their positions;
// others after them, ready before not ready, then older before younger. Name and UID break ties.
func keepBefore(a, b *Pod) int {
	if a.Position != b.Position {
		return cmp.Compare(uint32(a.Position-1), uint32(b.Position-1)) // 0 comes last
	}
	if a.Ready != b.Ready {
		if a.Ready {
			return -1
		}
		return 1
	}
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
}
