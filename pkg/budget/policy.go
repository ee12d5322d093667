package budget

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// Policy is a compiled, valid budget.
type Policy struct {
	// Name of the budget, for messages.
	Name string
	// Target is the workload whose pods the budget covers. It is nil if Selector selects them.
	Target *v1beta1.TargetReference
	// Selector of the pods. It selects nothing if Target is set.
	Selector labels.Selector
	// Ignored selects the pods that the budget ignores. It selects nothing by default.
	Ignored labels.Selector
	// Replicas replaces the number of pods that workloads ask for, unless all of them are gone. If it is nil, the workloads' numbers count.
	Replicas *int32
	// Warnings are about valid settings that the author probably did not mean.
	Warnings []string

	// ReplaceFirst is how many pods are replaced at a time, 0 for none, and ReplaceTimeout how long a new pod may take.
	ReplaceFirst   int
	ReplaceTimeout time.Duration

	maxUnavailable subset.Limit // if it is not set, minAvailable counts
	minAvailable   subset.Limit // if it is not set either, only the subsets are limited
	ifHealthy      bool
	perSubset      *perSubset // nil: limits no subset
	// exemptingNeedsRoom: NoProtectAnnotation on an available pod is judged like a deletion.
	exemptingNeedsRoom bool
	protected          []v1beta1.Operation // empty: all
}

const maxReplicas = int32(1<<31 - 1)

// Compile reads a budget. The policy is nil if there is an error.
func Compile(pub *v1beta1.PodUnavailableBudget) (*Policy, field.ErrorList) {
	spec := field.NewPath("spec")
	p := &Policy{Name: pub.Name, Selector: labels.Nothing(), Ignored: labels.Nothing(), ifHealthy: pub.Spec.UnhealthyPodPolicy == v1beta1.IfHealthyBudget}
	errs := p.compileSubject(&pub.Spec, spec)
	p.compileReplaceFirst(&pub.Spec, spec)
	errs = append(errs, p.compileAmounts(&pub.Spec, spec)...)
	errs = append(errs, p.compilePerSubset(pub.Spec.PerSubset, spec.Child("perSubset"))...)
	known := []v1beta1.UnhealthyPodPolicy{v1beta1.AlwaysAllowUnhealthy, v1beta1.IfHealthyBudget}
	if is := pub.Spec.UnhealthyPodPolicy; is != "" && !slices.Contains(known, is) {
		errs = append(errs, field.NotSupported(spec.Child("unhealthyPodPolicy"), is, known))
	}
	if ignored := pub.Spec.IgnoredPodSelector; ignored != nil {
		if err := p.ignore(ignored); err != nil {
			errs = append(errs, field.Invalid(spec.Child("ignoredPodSelector"), ignored, err.Error()))
		}
	}
	p.Replicas, p.protected = pub.Spec.ProtectTotalReplicas, pub.Spec.ProtectOperations
	for i, operation := range p.protected {
		if !slices.Contains(v1beta1.ProtectableOperations, operation) {
			errs = append(errs, field.NotSupported(spec.Child("protectOperations").Index(i), operation, v1beta1.ProtectableOperations))
		}
	}
	if replicas := p.Replicas; replicas != nil && *replicas < 0 {
		errs = append(errs, field.Invalid(spec.Child("protectTotalReplicas"), *replicas, "must be a number of pods"))
	}
	p.exemptingNeedsRoom = pub.Annotations[v1beta1.NoProtectNeedsRoomAnnotation] == "true"
	for _, err := range p.compileAnnotations(pub) {
		if err.Type == field.ErrorTypeInvalid { // a typing error in an existing budget must not remove the protection
			p.warn("%v; Berth ignores what it cannot read", err)
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return p, nil
}

func (p *Policy) compileSubject(spec *v1beta1.PodUnavailableBudgetSpec, path *field.Path) field.ErrorList {
	if ref := spec.TargetReference; ref != nil {
		var errs field.ErrorList
		target := path.Child("targetRef")
		if _, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || ref.APIVersion == "" {
			errs = append(errs, field.Invalid(target.Child("apiVersion"), ref.APIVersion, "must be the group and version of the workload, for instance apps/v1"))
		}
		if ref.Kind == "" {
			errs = append(errs, field.Required(target.Child("kind"), "must be the kind of the workload, for instance Deployment"))
		}
		if ref.Name == "" {
			errs = append(errs, field.Required(target.Child("name"), "must be the name of the workload"))
		}
		if spec.Selector != nil {
			p.warn("%s: not used, because targetRef takes precedence", path.Child("selector"))
		}
		p.Target = ref
		return errs
	}
	if spec.Selector == nil {
		return field.ErrorList{field.Required(path, "needs selector or targetRef to know which pods to protect")}
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return field.ErrorList{field.Invalid(path.Child("selector"), spec.Selector, err.Error())}
	}
	p.Selector = selector
	return nil
}

// compileReplaceFirst leaves ReplaceFirst 0 for a budget that names a ReplicaSet: it would not cover the pod once its Deployment has it.
func (p *Policy) compileReplaceFirst(spec *v1beta1.PodUnavailableBudgetSpec, path *field.Path) {
	switch first := spec.ReplaceFirst; {
	case first == nil:
	case p.Target != nil && KindOf(p.Target) == replicaSet:
		p.warn("%s: not used, because the budget names a ReplicaSet; name its Deployment", path.Child("replaceFirst"))
	default:
		p.ReplaceFirst, p.ReplaceTimeout = int(max(ptr.Deref(first.MaxPods, 1), 1)), time.Duration(ptr.Deref(first.TimeoutSeconds, 600))*time.Second
	}
}

func (p *Policy) compileAmounts(spec *v1beta1.PodUnavailableBudgetSpec, path *field.Path) field.ErrorList {
	var errs, more field.ErrorList
	p.maxUnavailable, errs = subset.CompileLimit(spec.MaxUnavailable, path.Child("maxUnavailable"))
	p.minAvailable, more = subset.CompileLimit(spec.MinAvailable, path.Child("minAvailable"))
	errs = append(errs, more...)
	switch {
	case spec.MaxUnavailable == nil && spec.MinAvailable == nil && spec.PerSubset == nil:
		errs = append(errs, field.Required(path, "needs maxUnavailable, minAvailable or perSubset"))
	case spec.MaxUnavailable != nil && spec.MinAvailable != nil:
		p.warn("%s: not used, because maxUnavailable takes precedence", path.Child("minAvailable"))
		p.minAvailable = subset.Limit{}
	}
	switch {
	case p.ReplaceFirst > 0: // drains finish
	case p.maxUnavailable.Quota(maxReplicas) == 0:
		p.warn("%s: with 0 no available pod may ever be deleted, evicted or restarted, so that node drains and rollouts never finish", path.Child("maxUnavailable"))
	case p.minAvailable.IsPercent() && p.minAvailable.Quota(100) == 100:
		p.warn("%s: with 100%% no available pod may ever be deleted, evicted or restarted unless there are more pods than replicas, so that node drains never finish", path.Child("minAvailable"))
	}
	return errs
}

// ignore refuses an empty selector: the budget would protect no pod.
func (p *Policy) ignore(selector *metav1.LabelSelector) error {
	if len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0 {
		return errors.New("must not be empty, which would mean every pod; select by a label, or leave it out")
	}
	ignored, err := metav1.LabelSelectorAsSelector(selector)
	if err == nil {
		p.Ignored = ignored
	}
	return err
}

// Source is the part of a budget from which its policy is compiled, apart from the namespace. It shares the budget's memory.
//
// The generation alone does not tell that a budget has changed. In v1alpha1 three fields of the spec are annotations, and the API server counts the
// changes of the spec in the version that the client writes.
type Source struct {
	budget      types.UID
	generation  int64
	annotations [4]string
	operations  []v1beta1.Operation
	total       *int32
	ignored     *metav1.LabelSelector
}

// SourceOf is the source of the budget's policy.
func SourceOf(pub *v1beta1.PodUnavailableBudget) Source {
	return Source{pub.UID, pub.Generation, [...]string{
		pub.Annotations[v1beta1.ProtectOperationsAnnotation], pub.Annotations[v1beta1.ProtectTotalReplicasAnnotation],
		pub.Annotations[v1beta1.IgnoredPodSelectorAnnotation], pub.Annotations[v1beta1.NoProtectNeedsRoomAnnotation],
	}, pub.Spec.ProtectOperations, pub.Spec.ProtectTotalReplicas, pub.Spec.IgnoredPodSelector}
}

// Equal is true if both have the same policy.
func (s *Source) Equal(other *Source) bool {
	return s.budget == other.budget && s.generation == other.generation && s.annotations == other.annotations && slices.Equal(s.operations, other.operations) &&
		ptr.Equal(s.total, other.total) && equality.Semantic.DeepEqual(s.ignored, other.ignored)
}

// compileAnnotations reads the annotations that a v1alpha1 budget has in place of fields. Conversion makes fields of them unless the field would not
// become the same annotation again. A field that is set takes precedence. The errors are about annotations that it does not use, in full or in part.
func (p *Policy) compileAnnotations(pub *v1beta1.PodUnavailableBudget) (errs field.ErrorList) {
	read := func(annotation, name string, given bool, use func(value string) error) {
		path := field.NewPath("metadata", "annotations").Key(annotation)
		value, found := pub.Annotations[annotation]
		if !found {
			return
		}
		if given {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("has no effect beside spec.%s; remove it", name)))
		} else if err := use(value); err != nil {
			errs = append(errs, field.Invalid(path, value, err.Error()))
		}
	}
	read(v1beta1.ProtectTotalReplicasAnnotation, "protectTotalReplicas", pub.Spec.ProtectTotalReplicas != nil, func(value string) error {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return errors.New("must be a number of pods")
		}
		p.Replicas = ptr.To(int32(n))
		return nil
	})
	read(v1beta1.ProtectOperationsAnnotation, "protectOperations", len(pub.Spec.ProtectOperations) > 0, func(value string) (err error) {
		for name := range strings.SplitSeq(value, ",") {
			name = strings.TrimSpace(name)
			if operation := v1beta1.Operation(strings.ToUpper(name)); slices.Contains(v1beta1.ProtectableOperations, operation) {
				p.protected = append(p.protected, operation)
			} else if strings.TrimSpace(value) != "" { // which protects from all
				err = fmt.Errorf("%q is not an operation; must be some of DELETE, EVICT, UPDATE, RESIZE, separated by commas", name)
			}
		}
		return err
	})
	read(v1beta1.IgnoredPodSelectorAnnotation, "ignoredPodSelector", pub.Spec.IgnoredPodSelector != nil, func(value string) error {
		selector := &metav1.LabelSelector{}
		strict := json.NewDecoder(strings.NewReader(value))
		strict.DisallowUnknownFields()
		err := strict.Decode(selector)
		if err == nil {
			err = p.ignore(selector)
		}
		if err != nil {
			err = fmt.Errorf(`must be a label selector in JSON, for instance {"matchLabels":{"app":"web"}}: %w`, err)
		}
		return err
	})
	return errs
}

func (p *Policy) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// WarningsAt are about the pods that the budget covers now, like Warnings.
func (p *Policy) WarningsAt(f Facts) []string {
	var warnings []string
	t := p.Tally(f)
	if t.Unknown != "" {
		field := "spec.maxUnavailable"
		if !p.maxUnavailable.IsSet() {
			field = "spec.minAvailable"
		}
		warnings = append(warnings, field+": no available pod may be deleted, evicted or restarted: "+t.Unknown)
	}
	if worst := slices.IndexFunc(f.Workloads, func(w Workload) bool { return w.Replicas > 1 && w.Replicas <= t.Total-t.Desired }); len(f.Workloads) > 1 && t.Desired > 0 && worst >= 0 {
		warnings = append(warnings, fmt.Sprintf("spec.selector: the budget counts the pods of %d workloads together, so all %d pods of %s may be unavailable at once; write a budget for each workload to keep pods of each",
			len(f.Workloads), f.Workloads[worst].Replicas, f.Workloads[worst].Name))
	}
	return warnings
}

// Protects is true if the budget protects its pods from the operation. A budget that protects from DELETE or UPDATE also protects from LEAVE, which
// would bypass it. A budget that protects from UPDATE also protects from UNREADY, which is a part of an update.
func (p *Policy) Protects(operation v1beta1.Operation) bool {
	protects := func(operation v1beta1.Operation) bool {
		return len(p.protected) == 0 || slices.Contains(p.protected, operation)
	}
	switch operation {
	case v1beta1.OperationLeave:
		return protects(v1beta1.OperationDelete) || protects(v1beta1.OperationUpdate)
	case v1beta1.OperationUnready:
		return protects(v1beta1.OperationUpdate)
	default:
		return protects(operation)
	}
}

// Desired is how many of total pods must be available. It is never more than total. So minAvailable does not keep pods of a workload that was scaled
// below it, or is gone.
//
//	maxUnavailable:  total − ceil(maxUnavailable of total), not below 0
//	minAvailable:    ceil(minAvailable of total), not above total
func (p *Policy) Desired(total int32) int32 {
	if p.maxUnavailable.IsSet() {
		return max(total-p.maxUnavailable.Quota(total), 0)
	}
	return max(min(p.minAvailable.Quota(total), total), 0)
}

// needsReplicas is true if the budget can be kept only where the number of replicas is known. With maxUnavailable, a percentage or perSubset, each pod that
// goes would lower the number that must stay. A count in minAvailable holds without it, and a budget that needs no pod at all holds nothing.
func (p *Policy) needsReplicas() bool {
	return p.Replicas == nil && (p.perSubset != nil || (p.maxUnavailable.IsSet() || p.minAvailable.IsPercent()) && p.Desired(maxReplicas) > 0)
}

// allowed is how many more pods may become unavailable, as the status reports it. It does not exceed maxUnavailable, even while a surge would allow
// more: readers may rely on the number.
func (p *Policy) allowed(t *Tally) int32 {
	n := max(t.Available-t.Desired, 0)
	if p.maxUnavailable.IsSet() {
		n = min(n, p.maxUnavailable.Quota(t.Total))
	}
	return min(n, p.allowedBySubsets(t))
}
