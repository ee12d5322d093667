package webhook

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
)

// ruleValidator reviews SpreadRules and ClusterSpreadRules. It reads the cache.
type ruleValidator struct {
	reader client.Reader
	store  *lineage.Rules
	// kinds tells which kinds the API server has.
	kinds kindMapper
}

func (v *ruleValidator) reviews() endpoint.Validator[*v1alpha1.SpreadRule] {
	return endpoint.Validator[*v1alpha1.SpreadRule]{
		Kind: v1alpha1.Kind.GroupKind(),
		Same: func(old, rule *v1alpha1.SpreadRule) bool { return equality.Semantic.DeepEqual(old.Spec, rule.Spec) },
		Validate: func(ctx context.Context, object, _ *v1alpha1.SpreadRule) ([]string, field.ErrorList, error) {
			rule, errs := lineage.CompileRule(object)
			return v.validate(ctx, rule, errs)
		},
	}
}

func (v *ruleValidator) clusterReviews() endpoint.Validator[*v1alpha1.ClusterSpreadRule] {
	return endpoint.Validator[*v1alpha1.ClusterSpreadRule]{
		Kind: v1alpha1.ClusterKind.GroupKind(),
		Same: func(old, rule *v1alpha1.ClusterSpreadRule) bool {
			return equality.Semantic.DeepEqual(old.Spec, rule.Spec)
		},
		Validate: func(ctx context.Context, object, _ *v1alpha1.ClusterSpreadRule) ([]string, field.ErrorList, error) {
			rule, errs := lineage.CompileClusterRule(object)
			return v.validate(ctx, rule, errs)
		},
	}
}

// maxRules is how many SpreadRules a namespace may have. A new pod may be compared with all of them.
const maxRules = 50

// validate refuses a rule that picks a workload which another rule of the same scope picks already. Only workloads of built-in kinds are in the cache; for others the status of both says it.
func (v *ruleValidator) validate(ctx context.Context, rule *lineage.Rule, errs field.ErrorList) (warnings []string, _ field.ErrorList, _ error) {
	if rule == nil {
		return nil, errs, nil
	}
	path := field.NewPath("spec", "target")
	if rule.Namespace != "" {
		var others v1alpha1.SpreadRuleList
		if err := v.reader.List(ctx, &others, client.InNamespace(rule.Namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, nil, fmt.Errorf("listing SpreadRules: %w", err)
		}
		if len(others.Items) >= maxRules && !slices.ContainsFunc(others.Items, func(o v1alpha1.SpreadRule) bool { return o.Name == rule.Name }) {
			return nil, field.ErrorList{field.Forbidden(field.NewPath("metadata", "namespace"), fmt.Sprintf("namespace %s has %d SpreadRules, and at most %d are allowed: let a rule pick more workloads", rule.Namespace, len(others.Items), maxRules))}, nil
		}
	}
	typed, watched := workloads[rule.Kind]
	if !watched {
		if _, err := v.kinds.RESTMapping(rule.Kind); meta.IsNoMatchError(err) {
			warnings = append(warnings, fmt.Sprintf("%s: the API server has no kind %s in %s; the rule picks nothing until it is installed", path, rule.Kind.Kind, rule.Kind.Group))
		}
		return warnings, nil, nil
	}
	list := typed.NewList().(client.ObjectList)
	if err := v.reader.List(ctx, list, client.InNamespace(rule.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("listing workloads: %w", err)
	}
	in := map[string][]*lineage.Rule{} // by namespace
	picks := 0
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object := item.(client.Object)
		if !rule.Picks(rule.Kind, object) || len(errs) > 0 {
			return nil
		}
		others, known := in[object.GetNamespace()]
		if !known {
			applies, applying, err := v.store.Beside(ctx, rule, object.GetNamespace())
			if err != nil {
				return err
			}
			if others = nil; applies {
				others = append([]*lineage.Rule{rule}, applying...)
			}
			in[object.GetNamespace()] = others
		}
		verdict := lineage.PickRule(others, rule.Kind, object)
		if verdict.Rule == nil {
			return nil
		}
		picks++
		if equal := equalsOf(rule, verdict); len(equal) > 0 {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("%s %s/%s is picked by %s already, and by this %s: a workload can have only one rule of a scope; change one of the selectors",
				rule.Kind.Kind, object.GetNamespace(), object.GetName(), strings.Join(equal, ", "), rule)))
		}
		return nil
	})
	if err == nil && picks == 0 && len(errs) == 0 {
		warnings = append(warnings, fmt.Sprintf("%s: the rule picks no workload now", path))
	}
	return warnings, errs, err
}

// equalsOf are the names of the rules with which the rule is in conflict.
func equalsOf(rule *lineage.Rule, verdict lineage.Verdict) (names []string) {
	all := append([]*lineage.Rule{verdict.Rule}, verdict.Equals...)
	for _, other := range all {
		if other != rule && (other.Namespace == "") == (rule.Namespace == "") {
			names = append(names, other.String())
		}
	}
	return names
}
