package moves

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// TestALentShareComesBack has ten pods at 20/20/60 %. Subset a had no node, so its pods went to b and c.
func TestALentShareComesBack(t *testing.T) {
	spec := &v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, ScheduleStrategy: adaptive}
	for i, share := range []string{"20%", "20%", "60%"} {
		spec.Subsets = append(spec.Subsets, v1beta1.Subset{Name: letter(i), MaxReplicas: ptr.To(intstr.FromString(share))})
	}
	shares, errs := subset.Compile(&v1beta1.WorkloadSpread{Spec: *spec}, field.NewPath("spec"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	facts := func(now time.Time) *Facts {
		return &Facts{Name: "web", Policy: shares, Replicas: 10, Now: now, Pods: slices.Concat(many("b", 3, time.Hour), many("c", 7, time.Hour))}
	}
	trim := trimLimits
	trim.Settle = 0
	if d := Trim(facts(start), trim, &rooms{places: map[int]int{0: 9, 1: 9, 2: 9}}); len(d.Moves) > 0 || d.Misplaced != nil {
		t.Errorf("lent pods are above their quota: %v", names(d))
	}
	if d := Return(facts(start), returnLimits, &rooms{}); len(d.Moves) > 0 {
		t.Errorf("a has no room, and %v are moved", names(d))
	}
	limits := returnLimits
	limits.AtMost = intstr.FromInt32(10)
	d := Return(facts(start), limits, &rooms{places: map[int]int{0: 9}})
	if got, want := names(d), []string{"c0 2>0 EarlierSubsetHasRoom", "b0 1>0 EarlierSubsetHasRoom"}; !slices.Equal(got, want) {
		t.Errorf("moved %v, want %v", got, want)
	}
	over := facts(start) // another scheduler bound a pod too many
	over.Pods = append(over.Pods, bound("x", "c", time.Minute))
	if d := Trim(over, TrimLimits{MaxUnavailable: trim.MaxUnavailable, DuringRollouts: true, WithoutRoom: true, Pace: trim.Pace}, &rooms{}); len(d.Moves) != 1 {
		t.Errorf("one pod is too many, and %v are moved", names(d))
	}
}
