package subset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/podspec"
)

// None is the index of no subset.
const None = -1

// maxWeight is the greatest weight of a subset.
const maxWeight = 1_000_000

// NoLimit is the quota of a subset without maxReplicas.
const NoLimit int32 = -1

// MaxSubsets is how many subsets a spread may have. A Mask has one bit for each.
const MaxSubsets = 64

// Policy is a valid, compiled spec. It is immutable and safe for concurrent use.
type Policy struct {
	Strategy v1beta1.ScheduleStrategyType
	Scope    v1beta1.QuotaScope
	WhenFull v1beta1.WhenFull
	// CountsEnding is true if a pod that terminates holds its slot until its containers have ended.
	CountsEnding bool
	Binding      v1beta1.BindingMode
	// Kruise is true if the spread behaves as OpenKruise's; see v1beta1.CompatibleWithKruise.
	Kruise bool
	// Adaptive says when a pod of strategy Adaptive goes on from a subset that has no node for it.
	Adaptive adaptive
	// IsPart is true if the spread divides some pods of its workload, and the workload does not say how many of its
	// replicas these are. Percentages are of all replicas then.
	IsPart bool
	// Subsets in order of preference.
	Subsets []Subset
	// Constraints of a late-bound pod, which may end in any subset.
	Constraints Constraints
	// Warnings are about settings that are valid but probably not meant. Each begins with its path.
	Warnings []string

	podSelector labels.Selector
	hasPercent  bool
	// patchesSpec is true if the patch of a subset changes more than labels and annotations.
	patchesSpec bool
	// shares is true if the pods above the minimums are divided by weight. Otherwise they go to the subsets in order.
	shares bool
	// lends is true if a share that has no node goes to the other subsets, although each share has an upper bound:
	// strategy Adaptive and percentages.
	lends bool
	// ranked is true if the next pod may belong in a later subset although an earlier one has room: there are shares or
	// minimums.
	ranked bool
	// seats is nil if every quota is a count and subsets are filled in order.
	seats *seating
}

var noSubset Subset

// Subset is the subset with an index. For None it is one that has every node and tolerates nothing.
func (p *Policy) Subset(index int) *Subset {
	if index == None {
		return &noSubset
	}
	return &p.Subsets[index]
}

// adaptive says more about a pod of strategy Adaptive. It goes on from a subset when the scheduler's filters refuse
// every node.
type adaptive struct {
	// Wait is how long a pod that can use one subset only waits there, before it is replaced. 0 means that it is not
	// replaced.
	Wait time.Duration
	// Skip is for how long the subset is skipped after a pod has waited in it in vain.
	Skip time.Duration
	// PreemptsFirst is true if a pod preempts in a subset before it goes on to the next.
	PreemptsFirst bool
}

const defaultSkip = 300 * time.Second

func compileAdaptive(of *v1beta1.AdaptiveStrategy) adaptive {
	if of == nil {
		return adaptive{Skip: defaultSkip}
	}
	p := adaptive{Skip: defaultSkip, PreemptsFirst: of.Preemption == v1beta1.PreemptBeforeNextSubset}
	if s := of.RescheduleCriticalSeconds; s != nil {
		p.Wait = time.Duration(*s) * time.Second
	}
	if s := of.UnschedulableLastSeconds; s != nil {
		p.Skip = time.Duration(*s) * time.Second
	}
	return p
}

// Subset is one compiled subset.
type Subset struct {
	Name  string
	Limit Limit
	// Min is filled in all subsets before any of them gets more. Its zero value is no minimum.
	Min Limit
	// Weight is the share of the subset in the pods above the minimums. 0 if it has none.
	Weight int32
	// Metadata is the part of the patch that is written with the pod's Binding.
	Metadata Metadata
	// PatchesSpec is true if the patch changes anything else, which only admission can do.
	PatchesSpec bool
	// Constraints of an early-bound pod of this subset.
	Constraints Constraints
	// Patch is the whole patch, for admission. Nil means no patch.
	Patch *Patch

	term      *corev1.NodeSelectorTerm
	required  *nodeaffinity.NodeSelector
	nodesKey  string
	preferred *nodeaffinity.PreferredSchedulingTerms
	// preferredTerms are the same, for the pod.
	preferredTerms []corev1.PreferredSchedulingTerm
	// lasting are the tolerations of the subset without tolerationSeconds.
	lasting []corev1.Toleration
}

// Metadata are labels and annotations to set. Nil maps set nothing.
type Metadata struct {
	Labels      map[string]string
	Annotations map[string]string
}

// isOn is true if there are labels to set and a pod has all of them.
func (m *Metadata) isOn(pod map[string]string) bool {
	for key, value := range m.Labels {
		if has, found := pod[key]; !found || has != value {
			return false
		}
	}
	return len(m.Labels) > 0
}

// MetadataFor is what the subset sets on pods of a workload with this selector. It leaves out labels by which the
// workload would lose the pods; see Patch.Breaks.
func (s *Subset) MetadataFor(selector labels.Selector) Metadata {
	broken := s.Patch.Breaks(selector)
	if len(broken) == 0 {
		return s.Metadata
	}
	kept := Metadata{Labels: maps.Clone(s.Metadata.Labels), Annotations: s.Metadata.Annotations}
	for _, key := range broken {
		delete(kept.Labels, key)
	}
	return kept
}

// Limit is a subset's maxReplicas or minReplicas. The zero value is one that is not set.
type Limit struct {
	kind  limitKind
	value int32
}

type limitKind uint8

const (
	unlimited limitKind = iota
	count
	percent
)

// Quota is how many pods the limit allows at this number of replicas, or NoLimit. Percentages are rounded nowhere else:
//
//	quota = ceil(percent × replicas / 100)
func (l Limit) Quota(replicas int32) int32 {
	switch l.kind {
	case count:
		return l.value
	case percent:
		return int32((int64(l.value)*int64(max(replicas, 0)) + 99) / 100)
	default:
		return NoLimit
	}
}

// IsSet is true if there is a limit.
func (l Limit) IsSet() bool { return l.kind != unlimited }

// IsPercent is true if the quota depends on the replicas.
func (l Limit) IsPercent() bool { return l.kind == percent }

// Compile turns a spread into a Policy, or returns every error in it. Path is that of the spec. It accepts what the API
// server's schema accepts, with these exceptions: selectors that do not parse, tolerations that can never match, and
// patches that are no patches of a pod, that the binding mode cannot apply, or that make the spread lose the pod.
func Compile(spread *v1beta1.WorkloadSpread, path *field.Path) (*Policy, field.ErrorList) {
	spec, errs := &spread.Spec, validateCompatibility(spread)
	policy := &Policy{
		Kruise:   CompatibilityOf(spread) == v1beta1.CompatibleWithKruise,
		Strategy: cmp.Or(spec.ScheduleStrategy.Type, v1beta1.FixedScheduleStrategy),
		Scope:    cmp.Or(spec.ScheduleStrategy.QuotaScope, defaultScope(&spec.TargetReference)),
		WhenFull: cmp.Or(spec.ScheduleStrategy.WhenFull, v1beta1.WhenFullSchedule),
		Binding:  cmp.Or(spec.ScheduleStrategy.Binding, v1beta1.AutoBinding),
		Adaptive: compileAdaptive(spec.ScheduleStrategy.Adaptive),
	}
	policy.CountsEnding = spec.ScheduleStrategy.PodReplacementPolicy == v1beta1.TerminationComplete ||
		spec.ScheduleStrategy.PodReplacementPolicy == "" && spec.ScheduleStrategy.QuotaScope == v1beta1.WorkloadQuotaScope && policy.WhenFull == v1beta1.WhenFullWait
	errs = append(errs, validateTarget(&spec.TargetReference, path.Child("targetRef"))...)
	errs = append(errs, validateStrategy(policy, &spec.ScheduleStrategy, path.Child("scheduleStrategy"))...)

	selector, selectorErrs := compileFilter(spec.TargetFilter, path.Child("targetFilter"))
	policy.podSelector = selector
	policy.IsPart = selector != nil && !selector.Empty() && len(ReplicaPaths(spread)) == 0
	errs = append(errs, selectorErrs...)

	subsetsPath := path.Child("subsets")
	if len(spec.Subsets) == 0 {
		errs = append(errs, field.Required(subsetsPath, "at least one subset"))
	}
	if len(spec.Subsets) > MaxSubsets {
		errs = append(errs, field.TooMany(subsetsPath, len(spec.Subsets), MaxSubsets))
	}
	names := map[string]bool{}
	for i := range spec.Subsets {
		subset, subsetErrs := compileSubset(&spec.Subsets[i], subsetsPath.Index(i))
		errs = append(errs, subsetErrs...)
		if names[subset.Name] {
			errs = append(errs, field.Duplicate(subsetsPath.Index(i).Child("name"), subset.Name))
		}
		names[subset.Name] = true
		policy.hasPercent = policy.hasPercent || subset.Limit.IsPercent() || subset.Min.IsPercent()
		policy.ranked = policy.ranked || subset.Min.kind != unlimited
		policy.shares = policy.shares || subset.Weight > 0
		policy.patchesSpec = policy.patchesSpec || subset.PatchesSpec
		policy.Subsets = append(policy.Subsets, subset)
	}
	errs = append(errs, validateLimitsTogether(policy.Subsets, subsetsPath)...)
	errs = append(errs, validatePatchesTogether(policy)...)
	if len(errs) > 0 {
		return nil, errs
	}
	policy.shareByPercent()
	policy.ranked = policy.ranked || policy.shares
	if policy.hasPercent || policy.ranked {
		policy.seats = newSeating(policy)
	}
	policy.Constraints = compileConstraints(spec, policy)
	policy.Warnings = warnings(policy, spec, path)
	return policy, nil
}

// shareByPercent makes percentages of all subsets, which add up to 100, weights.
func (p *Policy) shareByPercent() {
	if p.shares || slices.ContainsFunc(p.Subsets, func(s Subset) bool { return !s.Limit.IsPercent() }) {
		return
	}
	p.shares, p.lends = true, p.Strategy == v1beta1.AdaptiveScheduleStrategy
	for i := range p.Subsets {
		p.Subsets[i].Weight = p.Subsets[i].Limit.value
	}
}

// defaultScope is Revision for workloads that give each revision pods of its own: those of Kubernetes and Rollouts of
// Argo. Others may update pods in place. Their pods change the revision without a bind, so only a quota over all
// revisions holds.
func defaultScope(target *v1beta1.TargetReference) v1beta1.QuotaScope {
	kind := schema.FromAPIVersionAndKind(target.APIVersion, target.Kind).GroupKind()
	switch {
	case kind.Group == appsv1.GroupName, kind.Group == batchv1.GroupName, kind.Group == corev1.GroupName, kind == rollout:
		return v1beta1.RevisionQuotaScope
	default:
		return v1beta1.WorkloadQuotaScope
	}
}

var rollout = schema.GroupKind{Group: "argoproj.io", Kind: "Rollout"}

func validateTarget(target *v1beta1.TargetReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	group, version, found := strings.Cut(target.APIVersion, "/")
	if !found {
		group, version = "", group
	}
	if version == "" || strings.Contains(version, "/") || found && group == "" {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), target.APIVersion, "must be the group and version of the workload, for instance apps/v1"))
	}
	if target.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), "must be the kind of the workload, for instance Deployment"))
	}
	if target.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "must be the name of the workload"))
	}
	return errs
}

func validateStrategy(policy *Policy, strategy *v1beta1.ScheduleStrategy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, OneOf(path.Child("type"), policy.Strategy, v1beta1.FixedScheduleStrategy, v1beta1.AdaptiveScheduleStrategy)...)
	errs = append(errs, OneOf(path.Child("quotaScope"), policy.Scope, v1beta1.RevisionQuotaScope, v1beta1.WorkloadQuotaScope)...)
	errs = append(errs, OneOf(path.Child("whenFull"), policy.WhenFull, v1beta1.WhenFullSchedule, v1beta1.WhenFullWait)...)
	errs = append(errs, OneOf(path.Child("podReplacementPolicy"), cmp.Or(strategy.PodReplacementPolicy, v1beta1.TerminationStarted), v1beta1.TerminationStarted, v1beta1.TerminationComplete)...)
	errs = append(errs, OneOf(path.Child("binding"), policy.Binding, v1beta1.AutoBinding, v1beta1.LateBinding, v1beta1.EarlyBinding, v1beta1.GatedBinding)...)
	if adaptive := strategy.Adaptive; adaptive != nil {
		adaptivePath := path.Child("adaptive")
		if policy.Strategy != v1beta1.AdaptiveScheduleStrategy {
			errs = append(errs, field.Forbidden(adaptivePath, "adaptive is only used with type: Adaptive; set the type or remove adaptive"))
		}
		errs = append(errs, OneOf(adaptivePath.Child("preemption"), cmp.Or(adaptive.Preemption, v1beta1.PreemptAfterLastSubset), v1beta1.PreemptAfterLastSubset, v1beta1.PreemptBeforeNextSubset)...)
		errs = append(errs, NotNegative(adaptivePath.Child("rescheduleCriticalSeconds"), adaptive.RescheduleCriticalSeconds)...)
		errs = append(errs, NotNegative(adaptivePath.Child("unschedulableLastSeconds"), adaptive.UnschedulableLastSeconds)...)
	}
	return errs
}

// OneOf refuses a value that is none of the allowed ones.
func OneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// NotNegative refuses a number below 0. Nil is none.
func NotNegative(path *field.Path, value *int32) field.ErrorList {
	if value == nil || *value >= 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *value, "must not be negative")}
}

// CompileSelector returns the selector of pods in a template, or an error: missing if it selects everything.
func CompileSelector(spec *metav1.LabelSelector, path *field.Path, missing string) (labels.Selector, field.ErrorList) {
	if spec == nil || len(spec.MatchLabels) == 0 && len(spec.MatchExpressions) == 0 {
		return nil, field.ErrorList{field.Required(path, missing)}
	}
	selector, err := metav1.LabelSelectorAsSelector(spec)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(path, metav1.FormatLabelSelector(spec), err.Error())}
	}
	return selector, nil
}

func compileFilter(filter *v1beta1.TargetFilter, path *field.Path) (labels.Selector, field.ErrorList) {
	if filter == nil {
		return labels.Everything(), nil
	}
	var errs field.ErrorList
	for i, p := range filter.ReplicasPathList {
		if slices.Contains(strings.Split(p, "."), "") {
			errs = append(errs, field.Invalid(path.Child("replicasPathList").Index(i), p, "must be a dotted path, for instance spec.replicas"))
		}
	}
	if filter.Selector == nil {
		return labels.Everything(), errs
	}
	selector, err := metav1.LabelSelectorAsSelector(filter.Selector)
	if err != nil {
		return nil, append(errs, field.Invalid(path.Child("selector"), metav1.FormatLabelSelector(filter.Selector), err.Error()))
	}
	return selector, errs
}

func compileSubset(spec *v1beta1.Subset, path *field.Path) (Subset, field.ErrorList) {
	var errs field.ErrorList
	subset := Subset{Name: spec.Name, Constraints: Constraints{tolerations: spec.Tolerations}}
	subset.lasting = slices.DeleteFunc(slices.Clone(spec.Tolerations), func(t corev1.Toleration) bool { return t.TolerationSeconds != nil })
	if spec.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "must be a valid label value that is not empty"))
	}
	errs = append(errs, podspec.Invalid(path.Child("name"), spec.Name, content.IsLabelValue(spec.Name))...)
	limit, limitErrs := CompileLimit(spec.MaxReplicas, path.Child("maxReplicas"))
	subset.Limit = limit
	errs = append(errs, limitErrs...)
	minimum, minimumErrs := CompileLimit(spec.MinReplicas, path.Child("minReplicas"))
	subset.Min = minimum
	errs = append(errs, minimumErrs...)
	if minimum.kind != unlimited && minimum.kind == limit.kind && minimum.value > limit.value {
		errs = append(errs, field.Invalid(path.Child("minReplicas"), spec.MinReplicas.String(), "must not be greater than maxReplicas"))
	}
	if spec.Weight != nil {
		subset.Weight = *spec.Weight
		errs = append(errs, validateWeight(&subset, path.Child("weight"))...)
	}

	if term := spec.RequiredNodeSelector; term != nil {
		termPath := path.Child("requiredNodeSelector")
		if isEmpty(term) {
			errs = append(errs, field.Required(termPath, "an empty term selects no node; leave it out to select every node"))
		}
		required, termErrs := podspec.CompileTerm(term, termPath)
		errs = append(errs, termErrs...)
		subset.term, subset.required, subset.nodesKey = term, required, term.String()
		subset.Constraints.terms = []corev1.NodeSelectorTerm{*term}
	}
	for i := range spec.PreferredNodeSelector {
		preferred, at := &spec.PreferredNodeSelector[i], path.Child("preferredNodeSelector").Index(i)
		if w := preferred.Weight; w < 1 || w > 100 {
			errs = append(errs, field.Invalid(at.Child("weight"), w, "must be in the range 1-100"))
		}
		_, termErrs := podspec.CompileTerm(&preferred.Preference, at.Child("preference"))
		errs = append(errs, termErrs...)
	}
	if len(spec.PreferredNodeSelector) > 0 {
		subset.preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(spec.PreferredNodeSelector) // its errors are among those of the terms
		subset.preferredTerms = spec.PreferredNodeSelector
	}
	errs = append(errs, podspec.ValidateTolerations(spec.Tolerations, path.Child("tolerations"))...)

	patch, patchErrs := CompilePatch(spec.Patch, path.Child("patch"))
	if patch != nil {
		subset.Patch, subset.Metadata, subset.PatchesSpec = patch, patch.Metadata, len(patch.early) > 0
	}
	return subset, append(errs, patchErrs...)
}

func validateWeight(subset *Subset, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if subset.Weight < 0 || subset.Weight > maxWeight {
		errs = append(errs, field.Invalid(path, subset.Weight, "must be in the range 0-1000000"))
	}
	if subset.Weight > 0 && subset.Limit.IsPercent() {
		errs = append(errs, field.Invalid(path, subset.Weight, "weight needs a count in maxReplicas, or no maxReplicas: percentages that add up to 100% are shares already"))
	}
	return errs
}

// CompileLimit reads a count, or a percentage from 0% to 100%. Nil is no limit.
func CompileLimit(value *intstr.IntOrString, path *field.Path) (Limit, field.ErrorList) {
	if value == nil {
		return Limit{}, nil
	}
	number, isPercent, errs := ParseLimit(value, path)
	switch {
	case len(errs) > 0:
		return Limit{}, errs
	case isPercent:
		return Limit{kind: percent, value: number}, nil
	default:
		return Limit{kind: count, value: number}, nil
	}
}

// ParseLimit reads a count, or a percentage from 0% to 100%.
func ParseLimit(value *intstr.IntOrString, path *field.Path) (number int32, isPercent bool, errs field.ErrorList) {
	if value.Type == intstr.Int {
		if value.IntVal < 0 {
			return 0, false, field.ErrorList{field.Invalid(path, value.IntVal, "must not be negative")}
		}
		return value.IntVal, false, nil
	}
	digits, isPercent := strings.CutSuffix(value.StrVal, "%")
	parsed, err := strconv.ParseUint(digits, 10, 8)
	if !isPercent || err != nil || parsed > 100 {
		return 0, false, field.ErrorList{field.Invalid(path, value.StrVal, "must be a count or a percentage from 0% to 100%")}
	}
	return int32(parsed), true, nil
}

// CompileSurge is how many replicas there may be above a total while replicas move: a count, or a percentage
// of the total that is rounded up. Nil means 25%. It is at least 1. place is where they start, for a message.
func CompileSurge(value *intstr.IntOrString, total int32, place string, path *field.Path) (int32, field.ErrorList) {
	limit := intstr.ValueOrDefault(value, intstr.FromString("25%"))
	number, _, errs := ParseLimit(limit, path)
	if len(errs) == 0 && number == 0 {
		errs = append(errs, field.Invalid(path, limit.String(), "must be above 0: replicas move only by starting in "+place+" before they end in the old one"))
	}
	surge, _ := intstr.GetScaledValueFromIntOrPercent(limit, int(total), true) // ParseLimit has said what is wrong
	return max(int32(surge), 1), errs
}

// validateLimitsTogether refuses maximums in counts and percentages, and percentages that do not add up.
func validateLimitsTogether(subsets []Subset, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var counts, percents, sum, minimums int32
	for i := range subsets {
		if subsets[i].Min.IsPercent() {
			minimums += subsets[i].Min.value
		}
		switch subsets[i].Limit.kind {
		case count:
			counts++
		case percent:
			percents++
			sum += subsets[i].Limit.value
		}
	}
	if counts > 0 && percents > 0 {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "maxReplicas must be a count in every subset or a percentage in every subset, not both"))
	}
	if minimums > 100 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%d%%", minimums), "percentages in minReplicas must not add up to more than 100%"))
	}
	if sum > 100 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%d%%", sum), "percentages of the subsets must not add up to more than 100%"))
	}
	if percents > 0 && int(percents) == len(subsets) && sum < 100 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("%d%%", sum), "percentages of all subsets must add up to 100%, or leave maxReplicas of the last subset out"))
	}
	return errs
}

// validatePatchesTogether refuses patches that the binding mode cannot apply, and patches that make the spread lose the
// pod.
func validatePatchesTogether(policy *Policy) field.ErrorList {
	var errs field.ErrorList
	for i := range policy.Subsets {
		patch := policy.Subsets[i].Patch
		if patch == nil {
			continue
		}
		if policy.Binding == v1beta1.LateBinding || policy.Binding == v1beta1.GatedBinding {
			for _, path := range patch.early {
				errs = append(errs, field.Forbidden(path, fmt.Sprintf("must be set when the pod is created, and binding: %s can only set labels and annotations when the pod is bound; set binding to Auto or Early", policy.Binding)))
			}
		}
		if policy.podSelector == nil {
			continue
		}
		for _, key := range patch.Breaks(policy.podSelector) {
			errs = append(errs, field.Forbidden(patch.path.Child("metadata", "labels").Key(key), "targetFilter.selector would no longer select the pod, so the spread would not count it; remove the label from the patch or from the selector"))
		}
	}
	return errs
}

// UsesPercent is true if the quota or the minimum of any subset depends on the workload's replicas.
func (p *Policy) UsesPercent() bool { return p.hasPercent }

// IsRanked is true if the next pod may belong in a later subset although an earlier one has room: there are shares or
// minimums.
func (p *Policy) IsRanked() bool { return p.ranked }

// HasShares is true if the pods above the minimums are divided by weight, or by percentages of all subsets.
func (p *Policy) HasShares() bool { return p.shares }

// Selects is true if the spread divides pods with these labels, provided that they belong to its workload.
func (p *Policy) Selects(podLabels map[string]string) bool {
	return p.podSelector.Empty() || p.podSelector.Matches(labels.Set(podLabels))
}

// Index of the subset with this name, or None.
func (p *Policy) Index(name string) int {
	for i := range p.Subsets {
		if p.Subsets[i].Name == name {
			return i
		}
	}
	return None
}
