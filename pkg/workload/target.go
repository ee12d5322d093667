package workload

import (
	"cmp"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Wins is true if a, and not b, divides the workload when both spreads name it. The older one does. Of two created in
// the same second, the one whose name sorts first does. A spread does not win against itself.
func Wins(a, b *v1beta1.WorkloadSpread) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}
