package lineage

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// promised is the spread that a rule makes for the last owner of a chain, and that the cache does not have yet. If admission must pick a subset, which needs the spread itself, it is missing instead. Both are
// nil if there is no such spread.
func (l *Lineage) promised(ctx context.Context, namespace string, last *workload.Owner, labels map[string]string) (found *Spread, missing *workload.Owner, _ error) {
	if l.Rules == nil || last == nil {
		return nil, nil, nil
	}
	object, err := l.Read(ctx, namespace, *last)
	if object == nil || err != nil {
		return nil, nil, err
	}
	spread, err := l.Rules.SpreadOf(ctx, last.Kind, object)
	if spread == nil || err != nil {
		return nil, nil, err
	}
	if spreads, err := l.SpreadsNaming(ctx, namespace, *last); len(spreads) > 0 || err != nil {
		return nil, nil, err // one of them divides other pods of the workload
	}
	found = Compile(subset.In(l.policies.installation, spread))
	switch found.Promised = true; {
	case found.Policy == nil || !found.Divides(labels):
		return nil, nil, nil
	case found.Policy.BindsEarly():
		return nil, &workload.Owner{Kind: spreadKind, Name: found.Name, UID: madeBy(namespace, found.Name)}, nil
	default:
		return found, nil, nil
	}
}

// madeBy stands for the UID of a spread that a rule will make.
func madeBy(namespace, name string) types.UID {
	return types.UID(fmt.Sprintf("rule/%s/%s", namespace, name))
}
