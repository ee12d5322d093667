package federation

import (
	"fmt"
	"testing"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/sites"
)

// BenchmarkPlan is one plan over 500 clusters with 10 pods in each.
func BenchmarkPlan(b *testing.B) {
	p := policyOf(5000, true, map[string]bounds{"*": weight(1)})
	in := Observed{Now: start, Status: &v1alpha1.FederatedReplicaSetStatus{}}
	for i := range 500 {
		local := &Local{Replicas: 10, Pods: 10, Bound: 10, Available: 10}
		in.Members = append(in.Members, &Member{Cluster: sites.Cluster{Name: fmt.Sprintf("c%03d", i), Reachable: true}, Local: local})
	}
	plan := p.Plan(in)
	in.Status = &plan.Status
	b.ReportAllocs()
	for b.Loop() {
		p.Plan(in)
	}
}
