package report

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatPodsCost(t *testing.T) {
	unknown := math.NaN()
	for name, c := range map[string]struct {
		subsets []Subset
		prices  []float64
		want    string
	}{
		"every pod is at home":            {[]Subset{{Name: "own", Pods: 4, Target: 4}, {Name: "elastic", Pods: 2, Target: 2}}, []float64{0.1, 0.25}, "cost: 0.90 an hour"},
		"pods away from home":             {[]Subset{{Name: "own", Target: 6}, {Name: "elastic", Pods: 10, Target: 4}}, []float64{0.1, 0.25}, "cost: 2.50 an hour; 6 pods at home would save 0.90"},
		"home is dearer":                  {[]Subset{{Name: "own", Target: 1}, {Name: "elastic", Pods: 2, Target: 1}}, []float64{0.3, 0.25}, "cost: 0.50 an hour; 1 pod at home would cost 0.05 more"},
		"the last subset gives first":     {[]Subset{{Name: "own", Target: 1}, {Name: "middle", Pods: 1}, {Name: "last", Pods: 1}}, []float64{0.1, 0.5, 0.25}, "cost: 0.75 an hour; 1 pod at home would save 0.15"},
		"pods above a quota have no home": {[]Subset{{Name: "own", Pods: 4, Target: 2, Over: 2}, {Name: "elastic", Target: 2}}, []float64{0.1, 0.25}, "cost: 0.40 an hour"},
		"little money":                    {[]Subset{{Name: "own", Pods: 1, Target: 1}}, []float64{0.00123}, "cost: 0.0012 an hour"},
		"a subset without a price":        {[]Subset{{Name: "own", Pods: 1, Target: 1}, {Name: "elastic", Pods: 1, Target: 1}}, []float64{unknown, 0.2}, "cost: no node of own has a price, or the pods request no CPU and no memory"},
		"one without pods may lack it":    {[]Subset{{Name: "own", Pods: 2, Target: 2}, {Name: "elastic"}}, []float64{0.2, unknown}, "cost: 0.40 an hour"},
		"no status yet":                   {nil, []float64{0.2}, ""},
	} {
		r := Report{Subsets: c.subsets}
		r.AddCost(c.prices)
		if got := strings.Join(r.Notes, "; "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestTheNewestPodSaysWhatIsRequested(t *testing.T) {
	pod := func(cpu string, age time.Duration, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Unix(1000, 0).Add(-age))}, Status: corev1.PodStatus{Phase: phase},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	}
	requests := RequestsOf([]*corev1.Pod{pod("1", time.Hour, corev1.PodRunning), pod("2", time.Minute, corev1.PodRunning), pod("3", 0, corev1.PodFailed)})
	if requests.Cpu().String() != "2" {
		t.Errorf("got %s", requests.Cpu())
	}
	if RequestsOf(nil) != nil {
		t.Error("no pod requests something")
	}
}
