package report

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-project/berth/pkg/podstate"
)

// AddCost adds to the report of a spread what its pods cost an hour, as subset.PodPrices estimate it. Prices that are
// not known are NaN.
func (r *Report) AddCost(podPrices []float64) {
	if len(podPrices) != len(r.Subsets) {
		return
	}
	total, saved, moving := 0.0, 0.0, int32(0)
	var unknown []string
	missing := make([]int32, len(r.Subsets))
	for i := range r.Subsets {
		in := &r.Subsets[i]
		missing[i] = max(in.Target-in.Pods, 0)
		switch price := podPrices[i]; {
		case !math.IsNaN(price):
			in.PodPrice = &price
			total += float64(in.Pods) * price
		case in.Pods > 0:
			unknown = append(unknown, in.Name)
		}
	}
	for i := len(r.Subsets) - 1; i >= 0; i-- { // the last subset gives first, and the first takes first
		in := &r.Subsets[i]
		above := max(in.Pods-in.Target-in.Over, 0)
		for home := range r.Subsets {
			to, n := &r.Subsets[home], min(above, missing[home])
			if n == 0 || in.PodPrice == nil || to.PodPrice == nil {
				continue
			}
			above, missing[home], moving = above-n, missing[home]-n, moving+n
			saved += float64(n) * (*in.PodPrice - *to.PodPrice)
		}
	}
	if len(unknown) > 0 {
		r.Notes = append(r.Notes, "cost: no node of "+strings.Join(unknown, ", ")+" has a price, or the pods request no CPU and no memory")
		return
	}
	note := "cost: " + Price(total) + " an hour"
	switch {
	case moving > 0 && saved >= 0:
		note += fmt.Sprintf("; %s at home would save %s", Pods(moving, "", ""), Price(saved))
	case moving > 0:
		note += fmt.Sprintf("; %s at home would cost %s more", Pods(moving, "", ""), Price(-saved))
	}
	r.Notes = append(r.Notes, note)
}

// Price is a price as text: with two decimals, or two digits if it is below 0.1.
func Price(hourly float64) string {
	if hourly != 0 && math.Abs(hourly) < 0.1 {
		return fmt.Sprintf("%.2g", hourly)
	}
	return fmt.Sprintf("%.2f", hourly)
}

// RequestsOf are what the newest of these pods requests. Nil if none is active.
func RequestsOf(pods []*corev1.Pod) corev1.ResourceList {
	var newest *corev1.Pod
	for _, pod := range pods {
		if podstate.IsActive(pod) && (newest == nil || newest.CreationTimestamp.Before(&pod.CreationTimestamp)) {
			newest = pod
		}
	}
	if newest == nil {
		return nil
	}
	return resourcehelper.PodRequests(newest, resourcehelper.PodResourcesOptions{})
}
