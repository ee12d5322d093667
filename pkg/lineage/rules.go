package lineage

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
)

// Rules reads rules from a cache. It is safe for concurrent use.
type Rules struct {
	// Reader is the cache, with rules, and with the metadata of namespaces.
	Reader client.Reader

	// compiled is of types.UID to compiledRule.
	compiled sync.Map
}

type compiledRule struct {
	generation int64
	rule       *Rule
	errs       field.ErrorList
}

// NewNamespace is an empty object for reading a namespace from the cache.
func NewNamespace() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
}

// Compiled is the compiled rule, a *v1alpha1.SpreadRule or a *v1alpha1.ClusterSpreadRule. It is compiled once for each generation. The rule is nil if it has errors.
func (s *Rules) Compiled(object client.Object) (*Rule, field.ErrorList) {
	if known, _ := s.compiled.Load(object.GetUID()); known != nil && known.(compiledRule).generation == object.GetGeneration() {
		return known.(compiledRule).rule, known.(compiledRule).errs
	}
	now := compiledRule{generation: object.GetGeneration()}
	switch rule := object.(type) {
	case *v1alpha1.SpreadRule:
		now.rule, now.errs = CompileRule(rule.DeepCopy()) // it shares its spec with the spreads that it makes
	case *v1alpha1.ClusterSpreadRule:
		now.rule, now.errs = CompileClusterRule(rule.DeepCopy())
	}
	s.compiled.Store(object.GetUID(), now)
	return now.rule, now.errs
}

// Forget drops a rule that is gone.
func (s *Rules) Forget(uid types.UID) { s.compiled.Delete(uid) }

// All are the valid rules of the cluster, and those of the namespace. Empty means all namespaces.
func (s *Rules) All(ctx context.Context, namespace string) (all []*Rule, _ error) {
	var cluster v1alpha1.ClusterSpreadRuleList
	if err := s.Reader.List(ctx, &cluster, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ClusterSpreadRules: %w", err)
	}
	var own v1alpha1.SpreadRuleList
	if err := s.Reader.List(ctx, &own, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing SpreadRules: %w", err)
	}
	for i := range cluster.Items {
		if rule, _ := s.Compiled(&cluster.Items[i]); rule != nil {
			all = append(all, rule)
		}
	}
	for i := range own.Items {
		if rule, _ := s.Compiled(&own.Items[i]); rule != nil {
			all = append(all, rule)
		}
	}
	return all, nil
}

// In are the valid rules that apply in a namespace. There are none in one that is being deleted, or is not known yet.
func (s *Rules) In(ctx context.Context, namespace string) (in []*Rule, _ error) {
	all, err := s.All(ctx, namespace)
	if len(all) == 0 || err != nil {
		return nil, err
	}
	object := NewNamespace()
	if err := s.Reader.Get(ctx, types.NamespacedName{Name: namespace}, object, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	for _, rule := range all {
		if object.DeletionTimestamp == nil && rule.AppliesIn(namespace, labels.Set(object.Labels)) {
			in = append(in, rule)
		}
	}
	return in, nil
}

// Beside says whether a rule, which need not be stored, applies in a namespace, and which other rules do.
func (s *Rules) Beside(ctx context.Context, rule *Rule, namespace string) (applies bool, others []*Rule, _ error) {
	object := NewNamespace()
	if err := s.Reader.Get(ctx, types.NamespacedName{Name: namespace}, object, client.UnsafeDisableDeepCopy); err != nil {
		return false, nil, client.IgnoreNotFound(err)
	}
	in, err := s.In(ctx, namespace)
	for _, other := range in {
		if other.NamespacedName != rule.NamespacedName {
			others = append(others, other)
		}
	}
	return rule.AppliesIn(namespace, labels.Set(object.Labels)), others, err
}

// Namespaces are those in which a rule applies.
func (s *Rules) Namespaces(ctx context.Context) (names []string, _ error) {
	all, err := s.All(ctx, "")
	if len(all) == 0 || err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}}
	if err := s.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	for i := range list.Items {
		for _, rule := range all {
			if rule.AppliesIn(list.Items[i].Name, labels.Set(list.Items[i].Labels)) {
				names = append(names, list.Items[i].Name)
				break
			}
		}
	}
	return names, nil
}

// Apply is true if a rule applies in the namespace.
func (s *Rules) Apply(ctx context.Context, namespace string) (bool, error) {
	in, err := s.In(ctx, namespace)
	return len(in) > 0, err
}

// SpreadOf is the spread that a rule makes for a workload. It is nil if none does.
func (s *Rules) SpreadOf(ctx context.Context, kind schema.GroupKind, object metav1.Object) (*v1beta1.WorkloadSpread, error) {
	in, err := s.In(ctx, object.GetNamespace())
	if err != nil {
		return nil, err
	}
	rule := PickRule(in, kind, object).Rule
	if rule == nil {
		return nil, nil
	}
	return rule.SpreadFor(object), nil
}
