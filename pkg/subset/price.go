package subset

import (
	"fmt"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// Prices are what nodes cost an hour, in any currency. The first that selects a node counts, before the node's label
// v1beta1.HourlyPriceLabel. No price decides anything.
type Prices []nodePrice

// nodePrice is that of the nodes with these labels.
type nodePrice struct {
	NodeSelector map[string]string `json:"nodeSelector"`
	Hourly       float64           `json:"hourly"`
}

// ParsePrices reads a list of nodePrice in YAML. Prices must be 0 or more.
func ParsePrices(text []byte) (prices Prices, err error) {
	if err := yaml.UnmarshalStrict(text, &prices); err != nil {
		return nil, fmt.Errorf("want a list such as [{nodeSelector: {capacity: spot}, hourly: 0.12}]: %w", err)
	}
	for _, price := range prices {
		if !isPrice(price.Hourly) {
			return nil, fmt.Errorf("hourly is %v for the nodes with labels %v: must be 0 or more", price.Hourly, price.NodeSelector)
		}
	}
	return prices, nil
}

func isPrice(hourly float64) bool { return hourly >= 0 && !math.IsInf(hourly, 1) }

// of is the price of a node. It is false if there is none, or its label is no number of 0 or more.
func (p Prices) of(node *corev1.Node) (hourly float64, known bool) {
	for _, price := range p {
		if labels.SelectorFromSet(price.NodeSelector).Matches(labels.Set(node.Labels)) {
			return price.Hourly, true
		}
	}
	hourly, err := strconv.ParseFloat(node.Labels[v1beta1.HourlyPriceLabel], 64)
	return hourly, err == nil && isPrice(hourly)
}

// PodPrices estimate what one pod with these requests costs an hour in each subset: the mean, over the nodes of the
// subset that have a price, of that price times the pod's share of the node. The share is the larger of those of CPU
// and memory, as in Dominant Resource Fairness. It is NaN if no node of the subset has a price, or the pod requests
// neither.
func (p *Policy) PodPrices(prices Prices, nodes []*corev1.Node, requests corev1.ResourceList) []float64 {
	sums, counts := make([]float64, len(p.Subsets)), make([]float64, len(p.Subsets))
	for _, node := range nodes {
		hourly, known := prices.of(node)
		share := dominantShare(requests, node.Status.Allocatable)
		if !known || share == 0 {
			continue
		}
		for i := range p.Subsets {
			if p.Subsets[i].Holds(node) {
				sums[i] += hourly * share
				counts[i]++
			}
		}
	}
	for i := range sums {
		sums[i] /= counts[i] // NaN without a node
	}
	return sums
}

// dominantShare is at most 1, and 0 if nothing is known.
func dominantShare(requests, of corev1.ResourceList) (share float64) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if request, whole := requests[name], of[name]; !whole.IsZero() {
			share = max(share, request.AsApproximateFloat64()/whole.AsApproximateFloat64())
		}
	}
	return min(share, 1)
}
