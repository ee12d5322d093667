package federation

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkPlan is one plan over 500 clusters with 10 pods in each.
func BenchmarkPlan(b *testing.B) {
	p := policyOf(5000, true, map[string]Bounds{"*": weight(1)})
	in := Observed{Now: start, Seats: &Seats{}}
	for i := range 500 {
		local := &Local{Replicas: 10}
		for range 10 {
			local.Pods = append(local.Pods, Pod{Bound: true, Available: true})
		}
		m := Member{Name: fmt.Sprintf("c%03d", i), Reachable: true, Local: local, Room: &Room{At: start.Add(-time.Second), Seats: map[string]int32{"s": 20}, Bound: map[string]int32{p.Key(): 10}}}
		in.Members = append(in.Members, m)
		in.Seats.Set(m.Name, p.Key(), p.Shape, 10)
	}
	plan := p.Plan(in)
	in.Status = &plan.Status
	b.ReportAllocs()
	for b.Loop() {
		p.Plan(in)
	}
}
