package lineage

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// unpicked are the namespaces whose pods admission does not see. No ClusterSpreadRule picks them.
var unpicked = sets.New("kube-system", "kube-public", "kube-node-lease", "berth-system")

// Rule is a valid SpreadRule, or a valid ClusterSpreadRule, which has no namespace.
type Rule struct {
	types.NamespacedName
	// Kind of the workloads.
	Kind schema.GroupKind
	// UsesPercent is true if a number of the spreads is a percentage of the replicas.
	UsesPercent bool

	created               metav1.Time
	target                v1alpha1.Target
	spread                v1alpha1.Spread
	workloads, namespaces labels.Selector
}

// CompileRule returns the rule, or what is wrong with it.
func CompileRule(rule *v1alpha1.SpreadRule) (*Rule, field.ErrorList) {
	return compileRule(rule, &rule.Spec, labels.Everything(), nil)
}

// CompileClusterRule is CompileRule for a ClusterSpreadRule.
func CompileClusterRule(rule *v1alpha1.ClusterSpreadRule) (*Rule, field.ErrorList) {
	namespaces, errs := compileSelector(&rule.Spec.NamespaceSelector, field.NewPath("spec", "namespaceSelector"))
	return compileRule(rule, &rule.Spec.SpreadRuleSpec, namespaces, errs)
}

func compileRule(of metav1.Object, spec *v1alpha1.SpreadRuleSpec, namespaces labels.Selector, errs field.ErrorList) (*Rule, field.ErrorList) {
	target := field.NewPath("spec", "target")
	if name := of.GetName(); len(name) > validation.LabelValueMaxLength {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), name, validation.LabelValueMaxLength))
	}
	workloads, selectorErrs := compileSelector(&spec.Target.Selector, target.Child("selector"))
	errs = append(errs, selectorErrs...)
	r := &Rule{
		NamespacedName: types.NamespacedName{Namespace: of.GetNamespace(), Name: of.GetName()},
		Kind:           schema.FromAPIVersionAndKind(spec.Target.APIVersion, spec.Target.Kind).GroupKind(),
		created:        of.GetCreationTimestamp(), target: spec.Target, spread: spec.Spread, workloads: workloads, namespaces: namespaces,
	}
	if r.Kind == unitedv1beta1.Kind.GroupKind() {
		errs = append(errs, field.Forbidden(target.Child("kind"), "a UnitedDeployment divides its pods itself; put the numbers into spec.topology.subsets"))
	} else if workload.EndsChain(r.Kind) {
		errs = append(errs, field.Forbidden(target.Child("kind"), "no spread divides a "+r.Kind.Kind))
	}
	policy, spreadErrs := subset.Compile(r.SpreadFor(&metav1.ObjectMeta{Name: "any"}), field.NewPath("spec", "spread"))
	for _, err := range spreadErrs {
		if err.Field == "spec.spread.targetRef.apiVersion" || err.Field == "spec.spread.targetRef.kind" {
			err.Field = target.Child(err.Field[len("spec.spread.targetRef."):]).String()
		}
	}
	if errs = append(errs, spreadErrs...); len(errs) > 0 {
		return nil, errs
	}
	r.UsesPercent = policy.UsesPercent()
	return r, nil
}

// maxSelector is how many keys and values a selector of a rule may have. Each new pod of a namespace may be compared with all of its rules.
const maxSelector = 100

func compileSelector(of *metav1.LabelSelector, path *field.Path) (labels.Selector, field.ErrorList) {
	size := 2 * len(of.MatchLabels)
	for i := range of.MatchExpressions {
		size += 1 + len(of.MatchExpressions[i].Values)
	}
	if size > maxSelector {
		return nil, field.ErrorList{field.TooMany(path, size, maxSelector)}
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return nil, field.ErrorList{field.Invalid(path, metav1.FormatLabelSelector(of), err.Error())}
	}
	return selector, nil
}

// String is the kind and the name of the rule, for messages.
func (r *Rule) String() string { return workload.RuleName(r.NamespacedName) }

// AppliesIn is true if the rule may pick workloads of the namespace, which has these labels.
func (r *Rule) AppliesIn(namespace string, has labels.Set) bool {
	if r.Namespace != "" {
		return r.Namespace == namespace
	}
	return !unpicked.Has(namespace) && r.namespaces.Matches(has)
}

// Picks is true if the rule picks a workload in a namespace in which it applies. Another rule may win.
func (r *Rule) Picks(kind schema.GroupKind, object metav1.Object) bool {
	return r.Kind == kind && metav1.GetControllerOfNoCopy(object) == nil && r.workloads.Matches(labels.Set(object.GetLabels()))
}

// Verdict says which rule counts for a workload.
type Verdict struct {
	// Rule is nil if no rule picks the workload.
	Rule *Rule
	// Equals are the other rules of the same scope that pick it. That is a conflict, in which the older rule counts.
	Equals []*Rule
}

// PickRule says which rule counts for a workload, of those that apply in its namespace. A SpreadRule wins against a ClusterSpreadRule.
func PickRule(rules []*Rule, kind schema.GroupKind, object metav1.Object) Verdict {
	var picking []*Rule
	for _, r := range rules {
		if r.Picks(kind, object) {
			picking = append(picking, r)
		}
	}
	if len(picking) == 0 {
		return Verdict{}
	}
	slices.SortFunc(picking, func(a, b *Rule) int {
		return cmp.Or(cmp.Compare(a.scope(), b.scope()), a.created.Compare(b.created.Time), cmp.Compare(a.Name, b.Name))
	})
	v := Verdict{Rule: picking[0]}
	for _, r := range picking[1:] {
		if r.scope() == v.Rule.scope() {
			v.Equals = append(v.Equals, r)
		}
	}
	return v
}

// scope is lower for the rule that wins.
func (r *Rule) scope() int {
	if r.Namespace != "" {
		return 0
	}
	return 1
}

// SpreadFor is the spread that the rule makes for a workload. It goes with the workload.
func (r *Rule) SpreadFor(object metav1.Object) *v1beta1.WorkloadSpread {
	label := v1beta1.ClusterRuleLabel
	if r.Namespace != "" {
		label = v1beta1.RuleLabel
	}
	return &v1beta1.WorkloadSpread{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: object.GetNamespace(), Name: SpreadName(r.Kind, object.GetName()), Labels: map[string]string{label: r.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: r.target.APIVersion, Kind: r.target.Kind, Name: object.GetName(), UID: object.GetUID()}},
		},
		Spec: v1beta1.WorkloadSpreadSpec{
			TargetReference: v1beta1.TargetReference{APIVersion: r.target.APIVersion, Kind: r.target.Kind, Name: object.GetName()},
			TargetFilter:    r.spread.TargetFilter, Subsets: r.spread.Subsets, ScheduleStrategy: r.spread.ScheduleStrategy,
		},
	}
}

// SpreadName is the name of the spread that any rule makes for a workload. So another rule changes the spread, and does not make a second one.
func SpreadName(kind schema.GroupKind, name string) string {
	hash := fnv.New32a()
	fmt.Fprint(hash, kind, "/", name)
	suffix := "-" + rand.SafeEncodeString(strconv.FormatUint(uint64(hash.Sum32()), 10))
	return name[:min(len(name), validation.DNS1123SubdomainMaxLength-len(suffix))] + suffix
}
