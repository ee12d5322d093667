package budget

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// perSubset is v1beta1.PerSubset.
type perSubset struct {
	label          string
	maxUnavailable subset.Limit
	oneAtATime     bool
}

// SubsetWorkload is a workload whose pods are all in one subset.
type SubsetWorkload struct {
	v1beta1.SubsetWorkload
	// Subset that the selector of the workload names.
	Subset string
	// Replicas is 0 for a workload that is gone or being deleted.
	Replicas int32
}

// subsetTally is the count of one subset.
type subsetTally struct {
	Name string
	// Total is how many pods the subset should have. A sum that exceeds an int32 becomes the greatest int32.
	Total int32
	// Available is how many are available, without those in the ledger.
	Available int32
}

func (s *subsetTally) missing() int32 { return max(s.Total-s.Available, 0) }

func (p *Policy) compilePerSubset(spec *v1beta1.PerSubset, path *field.Path) (errs field.ErrorList) {
	if spec == nil {
		return nil
	}
	p.perSubset = &perSubset{label: spec.Label, oneAtATime: spec.OneAtATime}
	if problems := validation.IsQualifiedName(spec.Label); len(problems) > 0 {
		errs = append(errs, field.Invalid(path.Child("label"), spec.Label, "must be the key of a label"))
	}
	switch {
	case spec.MaxUnavailable != nil:
		limit, more := subset.CompileLimit(spec.MaxUnavailable, path.Child("maxUnavailable"))
		p.perSubset.maxUnavailable, errs = limit, append(errs, more...)
		if limit.Quota(maxReplicas) == 0 && p.ReplaceFirst == 0 {
			p.warn("%s: with 0 no available pod may ever be deleted, evicted or restarted, so that node drains and rollouts never finish", path.Child("maxUnavailable"))
		}
	case !spec.OneAtATime:
		errs = append(errs, field.Required(path, "needs maxUnavailable or oneAtATime: true"))
	}
	return errs
}

// SubsetLabel is the label whose value names the subset of a pod. It is empty without perSubset.
func (p *Policy) SubsetLabel() string {
	if p.perSubset == nil {
		return ""
	}
	return p.perSubset.label
}

// SubsetOf is the subset of a pod, empty if it has none. The label of a WorkloadSpread's subset is for people, and may come late. The pod's record is exact.
func (p *Policy) SubsetOf(pod *corev1.Pod) string {
	if p.SubsetLabel() != appsv1beta1.SubsetLabel {
		return pod.Labels[p.SubsetLabel()]
	}
	if record := subset.RecordOf(pod); record != nil {
		return record.Subset
	}
	return ""
}

// tallySubsets counts the pods of each subset.
//
//	Total = replicas of the workloads that are in the subset only + other pods of the subset that exist and are not handed over
//	Unplaced = unavailable pods without a subset + missing pods of workloads that are in several subsets
//
// A pod that is handed over is available while it serves, and not missing afterwards: the pod that is made in its place is, until it is available. That may be any
// of the unavailable pods of shared workloads, in any subset. So all of these are Unplaced meanwhile.
// Exempt pods, and those of a workload that is gone, count neither as available nor as missing.
func (p *Policy) tallySubsets(f *Facts, recorded sets.Set[types.UID], t *Tally) {
	if p.perSubset == nil {
		return
	}
	counts := map[string]*subsetTally{}
	of := func(name string) *subsetTally {
		if counts[name] == nil {
			counts[name] = &subsetTally{Name: name}
		}
		return counts[name]
	}
	for i := range f.Subsets {
		w := &f.Subsets[i]
		in := of(w.Subset)
		in.Total = sum(in.Total, max(w.Replicas, 0))
		t.Declared = append(t.Declared, w.SubsetWorkload)
	}
	existing := int32(0)
	replacing := slices.ContainsFunc(f.Pods, func(pod Pod) bool { return pod.HandedOver && !pod.Declared && pod.State != Gone })
	for i := range f.Pods {
		pod := &f.Pods[i]
		if pod.State == Gone {
			continue
		}
		if !pod.HandedOver {
			existing++
		}
		if pod.Unwanted || pod.State == Exempt && !pod.Declared {
			continue
		}
		in := of(pod.Subset)
		isAvailable := pod.State == Available && !recorded.Has(pod.UID)
		if isAvailable {
			in.Available++
		}
		switch {
		case pod.State == Exempt:
			in.Total-- // of the replicas, this one is not missing
		case pod.Declared || pod.HandedOver: // it is one of the replicas, or nobody waits for it
		case !isAvailable && (pod.Subset == "" || replacing && pod.State != Available):
			t.Unplaced++
		default:
			in.Total = sum(in.Total, 1)
		}
	}
	t.Unplaced = sum(t.Unplaced, f.Unplaced)
	if p.Replicas != nil {
		t.Unplaced = sum(t.Unplaced, max(t.Total-existing, 0))
	}
	t.Subsets = make([]subsetTally, 0, len(counts))
	for _, in := range counts {
		t.Subsets = append(t.Subsets, *in)
	}
	slices.SortFunc(t.Subsets, func(a, b subsetTally) int { return cmp.Compare(a.Name, b.Name) })
	t.Forgotten = f.Forgotten
}

// sum does not exceed an int32.
func sum(a, b int32) int32 { return int32(min(int64(a)+int64(b), int64(maxReplicas))) }

// find is the count of a subset. It is zero for a subset without available pods of which no workload is known.
func (t *Tally) find(name string) subsetTally {
	if at, found := slices.BinarySearchFunc(t.Subsets, name, func(s subsetTally, name string) int { return cmp.Compare(s.Name, name) }); found {
		return t.Subsets[at]
	}
	return subsetTally{Name: name}
}

// take counts an operation on an available pod.
func (t *Tally) take(pod *Pod) {
	t.Available--
	at := slices.IndexFunc(t.Subsets, func(s subsetTally) bool { return s.Name == pod.Subset })
	if at < 0 || pod.Unwanted {
		return
	}
	t.Subsets[at].Available--
	if pod.Subset == "" && !pod.Declared && !pod.HandedOver { // from now on it may be one of any subset
		t.Subsets[at].Total--
		t.Unplaced++
	}
}

// heldBySubset says which subset holds an operation on a pod, and why. It is empty if none does. takes is true if the operation takes an available pod.
//
//	maxUnavailable:  what is missing afterwards + Unplaced ≤ maxUnavailable of the subset's Total
//	oneAtATime:      Unplaced = 0, and nothing is missing in another subset, unless nothing is missing afterwards
//
// A Tally without subsets, as of a Forecast, holds nothing.
func (p *Policy) heldBySubset(name string, takes bool, t *Tally) string {
	if p.perSubset == nil || t.Subsets == nil {
		return ""
	}
	own := t.find(name)
	after := own
	if takes {
		after.Available--
	}
	if most := p.perSubset.maxUnavailable.Quota(own.Total); most != subset.NoLimit && sum(after.missing(), t.Unplaced) > most {
		text := fmt.Sprintf("%s has %d unavailable of %d pods, and at most %d may be unavailable (perSubset.maxUnavailable)", inWords(name), own.missing(), own.Total, most)
		if t.Unplaced > 0 {
			text += fmt.Sprintf(", and %d missing pods may be of any subset", t.Unplaced)
		}
		return text
	}
	if !p.perSubset.oneAtATime || after.missing() == 0 && t.Unplaced == 0 {
		return ""
	}
	for i := range t.Subsets {
		if other := &t.Subsets[i]; other.Name != name && other.missing() > 0 && after.missing() > 0 {
			return fmt.Sprintf("%s has %d unavailable of %d pods, and pods of one subset at a time may be unavailable", inWords(other.Name), other.missing(), other.Total)
		}
	}
	if t.Unplaced > 0 {
		return fmt.Sprintf("%d missing pods may be of any subset, and pods of one subset at a time may be unavailable", t.Unplaced)
	}
	return ""
}

func inWords(subset string) string {
	if subset == "" {
		return "the subset of pods without the label"
	}
	return "subset " + subset
}

// allowedBySubsets is how many more pods may become unavailable as far as the subsets go: in all of them, or with oneAtATime in the one with most room.
func (p *Policy) allowedBySubsets(t *Tally) int32 {
	if p.perSubset == nil {
		return math.MaxInt32
	}
	var all, most int32
	for i := range t.Subsets {
		in := &t.Subsets[i]
		if in.Available <= 0 || p.heldBySubset(in.Name, true, t) != "" {
			continue
		}
		room := in.Available
		if limit := p.perSubset.maxUnavailable.Quota(in.Total); limit != subset.NoLimit {
			room = min(room, in.Available-in.Total+limit-t.Unplaced)
		}
		all, most = sum(all, room), max(most, room)
	}
	if p.perSubset.oneAtATime {
		return most
	}
	return all
}

// Holder says which subset holds the pods of all others, or of its own. It is empty if some available pod may go as far as the subsets go.
func (p *Policy) Holder(t *Tally) string {
	if p.perSubset == nil || p.allowedBySubsets(t) > 0 {
		return ""
	}
	for i := range t.Subsets {
		if t.Subsets[i].Available > 0 {
			return p.heldBySubset(t.Subsets[i].Name, true, t)
		}
	}
	return ""
}

const (
	// mostSubsets is how many subsets a status shows.
	mostSubsets = 50
	// mostRemembered is how many workloads of subsets a status holds.
	mostRemembered = 100
)

// publishSubsets writes the counts of the subsets into a status. It keeps workloads that this count did not know: another one has found them.
func publishSubsets(status *v1beta1.PodUnavailableBudgetStatus, t *Tally) {
	remembered := slices.Clone(t.Declared)
	for _, known := range status.SubsetWorkloads {
		isKnown := func(w v1beta1.SubsetWorkload) bool { return w.UID == known.UID }
		if t.Subsets != nil && !slices.Contains(t.Forgotten, known.UID) && !slices.ContainsFunc(t.Declared, isKnown) {
			remembered = append(remembered, known)
		}
	}
	slices.SortFunc(remembered, func(a, b v1beta1.SubsetWorkload) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	status.SubsetWorkloads = remembered[:min(len(remembered), mostRemembered)]
	status.Subsets = nil
	for i := range min(len(t.Subsets), mostSubsets) {
		in := &t.Subsets[i]
		if in.Name == "" && in.Total == 0 {
			continue // each pod has a subset
		}
		status.Subsets = append(status.Subsets, v1beta1.SubsetStatus{Name: in.Name, TotalReplicas: in.Total, CurrentAvailable: in.Available})
	}
}
