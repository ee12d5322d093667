package united

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// warnings are about a valid spec.
func warnings(policy *Policy, path *field.Path) []string {
	subsets := path.Child("topology", "subsets")
	all := append(warnOfReplicas(policy, subsets), warnOfBounds(policy, subsets)...)
	if policy.Template != nil && !hasPartition(policy.Template.Kind) {
		all = append(all, warnOfPartitions(policy, path.Child("updateStrategy", "manualUpdate", "partitions"))...)
	}
	return all
}

// warnOfReplicas is about specified replicas that are not the total. Percentages of all subsets that add up to 100 are shares, which always are.
func warnOfReplicas(policy *Policy, path *field.Path) []string {
	list, sum, whole := policy.sumOf(func(s Subset) replicaCount { return s.Replicas })
	switch {
	case policy.areShares() || sum == int64(policy.Replicas):
		return nil
	case sum > int64(policy.Replicas):
		return []string{fmt.Sprintf("%s: the subsets specify %d replicas (%s), and spec.replicas is %d, so the last subsets get fewer", path, sum, list, policy.Replicas)}
	case whole:
		return []string{fmt.Sprintf("%s: the subsets specify %d replicas (%s), and spec.replicas is %d, so %d of them get no subset; leave replicas of one subset out, and it gets the rest",
			path, sum, list, policy.Replicas, int64(policy.Replicas)-sum)}
	default:
		return nil
	}
}

func warnOfBounds(policy *Policy, path *field.Path) []string {
	var all []string
	if list, sum, _ := policy.sumOf(func(s Subset) replicaCount { return s.Min }); sum > int64(policy.Replicas) {
		all = append(all, fmt.Sprintf("%s: the minimums are %d replicas (%s), and spec.replicas is %d, so the last subsets get less than their minimum", path, sum, list, policy.Replicas))
	}
	if list, sum, whole := policy.sumOf(func(s Subset) replicaCount { return s.Max }); whole && sum < int64(policy.Replicas) {
		all = append(all, fmt.Sprintf("%s: the subsets take at most %d replicas (%s), and spec.replicas is %d, so %d of them get no subset; leave maxReplicas of one subset out, and it gets the rest",
			path, sum, list, policy.Replicas, int64(policy.Replicas)-sum))
	}
	return all
}

// areShares is true if all subsets have percentages, which add up to 100.
func (p *Policy) areShares() bool {
	sum := int32(0)
	for i := range p.Subsets {
		if !p.Subsets[i].Replicas.IsPercent {
			return false
		}
		sum += p.Subsets[i].Replicas.Value
	}
	return sum == 100
}

// sumOf adds up what subsets have, at the total, and lists it. whole is true if every subset has a number.
func (p *Policy) sumOf(count func(Subset) replicaCount) (list string, sum int64, whole bool) {
	var parts []string
	for i := range p.Subsets {
		of := count(p.Subsets[i])
		if !of.IsSet {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %d", p.Subsets[i].Name, of.Of(p.Replicas)))
		sum += int64(of.Of(p.Replicas))
	}
	whole = !slices.ContainsFunc(p.Subsets, func(s Subset) bool { return !count(s).IsSet })
	return strings.Join(parts, ", "), sum, whole
}

// warnOfPartitions is about Deployments, which cannot keep some replicas.
func warnOfPartitions(policy *Policy, path *field.Path) []string {
	var all []string
	for i := range policy.Subsets {
		s := &policy.Subsets[i]
		most := policy.Replicas
		switch {
		case s.Replicas.IsSet:
			most = min(most, s.Replicas.Of(policy.Replicas))
		case s.Max.IsSet:
			most = min(most, s.Max.Of(policy.Replicas))
		}
		if s.Partition > 0 && s.Partition < most {
			all = append(all, fmt.Sprintf("%s: a Deployment cannot keep some of its replicas, so the partition has no effect if the subset has more than %d; set it to %d or more to keep all of them",
				path.Key(s.Name), s.Partition, most))
		}
	}
	return all
}
