package subset

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

func pricedNode(capacity, price string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"capacity": capacity}}, Status: corev1.NodeStatus{Allocatable: resources("8", "32Gi")}}
	if price != "" {
		node.Labels[v1beta1.HourlyPriceLabel] = price
	}
	return node
}

func TestWhatAPodCostsInEachSubset(t *testing.T) {
	spread := &v1beta1.WorkloadSpread{Spec: v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}}
	for _, name := range []string{"on-demand", "spot"} {
		spread.Spec.Subsets = append(spread.Spec.Subsets, v1beta1.Subset{Name: name, RequiredNodeSelector: &corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "capacity", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}})
	}
	policy, errs := Compile(spread, field.NewPath("spec"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	file, err := ParsePrices([]byte("[{nodeSelector: {capacity: spot}, hourly: 0.16}]"))
	if err != nil {
		t.Fatal(err)
	}
	labelled := []*corev1.Node{pricedNode("on-demand", "0.40"), pricedNode("on-demand", "0.80"), pricedNode("on-demand", ""), pricedNode("spot", "0.20"), pricedNode("other", "9")}
	for name, c := range map[string]struct {
		prices   Prices
		nodes    []*corev1.Node
		requests corev1.ResourceList
		want     string
	}{
		"CPU decides":                        {nil, labelled, resources("2", "1Gi"), "0.150 0.050"},
		"memory decides":                     {nil, labelled, resources("1", "16Gi"), "0.300 0.100"},
		"a pod that requests more than that": {nil, labelled, resources("80", "1Gi"), "0.600 0.200"},
		"a pod that requests nothing":        {nil, labelled, nil, "NaN NaN"},
		"a file comes before labels":         {file, labelled, resources("2", "1Gi"), "0.150 0.040"},
		"no price":                           {nil, []*corev1.Node{pricedNode("on-demand", ""), pricedNode("spot", "0.2")}, resources("2", "1Gi"), "NaN 0.050"},
		"labels that are no prices":          {nil, []*corev1.Node{pricedNode("on-demand", "-1"), pricedNode("on-demand", "cheap"), pricedNode("spot", "NaN"), pricedNode("spot", "Inf")}, resources("2", "1Gi"), "NaN NaN"},
	} {
		got := policy.PodPrices(c.prices, c.nodes, c.requests)
		if text := fmt.Sprintf("%.3f %.3f", got[0], got[1]); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

func TestAFileOfPricesThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"[{nodeSelector: {capacity: spot}, hourly: -0.1}]": "hourly is -0.1 for the nodes with labels map[capacity:spot]: must be 0 or more",
		"{spot: 0.1}": "want a list such as",
		"[{nodeSelector: {capacity: spot}, price: 1}]": `unknown field "price"`,
	} {
		if _, err := ParsePrices([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
