package scenario

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// TestRandomScenarios plays small random scenarios and looks after every single scheduling attempt. It shares no counting with the model.
func TestRandomScenarios(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			text := randomScenario(rand.New(rand.NewPCG(seed, 0)))
			scenario, err := Parse("random.txtar", []byte(text))
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			c := newCluster(scenario.Nodes())
			for _, step := range scenario.Steps {
				if err := c.take(step.Action); err != nil {
					t.Fatalf("%s: %v in\n%s", step.Text, err, text)
				}
				if err := settleWatched(c); err != nil {
					t.Fatalf("%s: %v in\n%s", step.Text, err, text)
				}
				if err := atRest(c); err != nil {
					t.Fatalf("after %s: %v in\n%s", step.Text, err, text)
				}
			}
		})
	}
}

// settleWatched is settle, with a look at the quotas after every pod.
func settleWatched(c *cluster) error {
	for range maxRounds {
		before := c.changes
		if err := c.runControllers(); err != nil {
			return err
		}
		pass := c.newPass()
		for _, pod := range c.pending() {
			if pass.schedule(pod) {
				if err := withinQuota(c, pod); err != nil {
					return err
				}
			}
		}
		c.runPods()
		if c.changes == before {
			return nil
		}
	}
	return fmt.Errorf("no rest in %d rounds", maxRounds)
}

// withinQuota says whether a pod that was bound just now is one too many in its subset.
func withinQuota(c *cluster, bound *corev1.Pod) error {
	if len(c.spreads) == 0 {
		return nil
	}
	spread := c.spreads[0]
	place := recordedSubset(bound)
	if place == "" {
		return nil
	}
	var limit, kept int
	for _, s := range spread.Spec.Subsets {
		if s.Name != place {
			continue
		}
		if s.MaxReplicas == nil {
			return nil
		}
		limit = s.MaxReplicas.IntValue()
		if percent, ok := strings.CutSuffix(s.MaxReplicas.StrVal, "%"); ok {
			n, err := strconv.Atoi(percent)
			if err != nil {
				return err
			}
			replicas := int(*c.deployments[0].Spec.Replicas)
			limit = n * replicas / 100
			if n*replicas%100 != 0 {
				limit++
			}
		}
	}
	for _, pod := range c.pods {
		sameRevision := pod.Labels["pod-template-hash"] == bound.Labels["pod-template-hash"]
		if recordedSubset(pod) == place && (sameRevision || spread.Spec.ScheduleStrategy.QuotaScope == v1alpha1.WorkloadQuotaScope) {
			kept++
		}
	}
	if kept > limit {
		return fmt.Errorf("%s is pod %d in %s, whose quota is %d", bound.Name, kept, place, limit)
	}
	return nil
}

func recordedSubset(pod *corev1.Pod) string {
	var matched v1alpha1.MatchedSubset
	if json.Unmarshal([]byte(pod.Annotations[v1alpha1.MatchedAnnotation]), &matched) != nil {
		return ""
	}
	return matched.Subset
}

// atRest: every pod is in one row of the table or pending, their number is right, no node is overfull, and whoever waits for a subset
// waits because its nodes are full.
func atRest(c *cluster) error {
	layouts, err := c.layouts()
	if err != nil {
		return err
	}
	perNode := map[string]int64{}
	for _, pod := range c.pods {
		perNode[pod.Spec.NodeName]++
	}
	for _, node := range c.nodes {
		if room := node.Status.Allocatable.Pods().Value(); perNode[node.Name] > room {
			return fmt.Errorf("%d pods on %s, which takes %d", perNode[node.Name], node.Name, room)
		}
	}
	for _, layout := range layouts {
		sum := layout.NoSubset + layout.Pending
		for _, row := range layout.Rows {
			sum += row.Kept
		}
		if int(sum) != len(c.pods) {
			return fmt.Errorf("%d pods, but the table shows\n%s", len(c.pods), layout.Table())
		}
		if layout.Pending == 0 && sum != layout.Replicas {
			return fmt.Errorf("nothing is pending, and %d pods are not the replicas of\n%s", sum, layout.Table())
		}
	}
	for _, pod := range c.pods {
		claim, waits := c.claims[pod.UID]
		if !waits {
			continue
		}
		if pod.Spec.NodeName != "" {
			return fmt.Errorf("%s has a node and still claims %s", pod.Name, claim)
		}
		for _, node := range c.nodes {
			if isInSubset(node, c.spreads[0], claim) && !node.Spec.Unschedulable && perNode[node.Name] < node.Status.Allocatable.Pods().Value() {
				return fmt.Errorf("%s waits for %s although %s has room", pod.Name, claim, node.Name)
			}
		}
	}
	return nil
}

// isInSubset reads the one selector that a random spread may have.
func isInSubset(node *corev1.Node, spread *spread, name string) bool {
	for _, s := range spread.Spec.Subsets {
		if s.Name == name {
			return s.RequiredNodeSelectorTerm == nil || s.RequiredNodeSelectorTerm.MatchExpressions[0].Values[0] == node.Labels["pool"]
		}
	}
	return false
}

// randomScenario is one Deployment and one spread, which is edited, over four pools of which some are full, empty or shut. A rollout can
// only come last, since one that pods hold up by waiting must not be scaled.
func randomScenario(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("Random.\n-- cluster.yaml --\n")
	for _, pool := range []string{"a", "b", "c"} {
		fmt.Fprintf(&b, "- {name: %s, count: %d, labels: {pool: %s}, allocatable: {pods: %d}}\n", pool, r.IntN(3), pool, 1+r.IntN(6))
	}
	// There is room for every pod that no spread keeps away.
	b.WriteString("- {name: d, count: 1, labels: {pool: d}}\n")

	replicas := r.IntN(20)
	strategy := fmt.Sprintf("{type: %s, quotaScope: %s, whenFull: %s}", pick(r, "Fixed", "Adaptive"), pick(r, "Revision", "Workload"), pick(r, "Schedule", "Wait"))
	steps := []string{"apply spread-0.yaml v1.yaml"}
	if r.IntN(4) == 0 {
		steps = []string{"apply v1.yaml", "apply spread-0.yaml"}
	}
	spreads := 1 + r.IntN(3)
	for i := range spreads {
		fmt.Fprintf(&b, "-- spread-%d.yaml --\n%s", i, randomSpread(r, strategy))
		if i > 0 {
			steps = append(steps, fmt.Sprintf("apply spread-%d.yaml", i))
		}
		steps = append(steps, fmt.Sprintf("scale Deployment/web %d", r.IntN(20)))
		if r.IntN(3) == 0 {
			pool := pick(r, "a", "b", "c")
			steps = append(steps, "cordon "+pool, fmt.Sprintf("scale Deployment/web %d", r.IntN(20)), "uncordon "+pool)
		}
	}
	b.WriteString(web("v1", replicas, "", "", ""))
	if r.IntN(2) == 0 {
		b.WriteString(web("v2", r.IntN(20), "", `annotations: {version: "2"}`, ""))
		steps = append(steps, "apply v2.yaml")
	}
	b.WriteString("-- steps --\n" + strings.Join(steps, "\n") + "\n")
	return b.String()
}

func randomSpread(r *rand.Rand, strategy string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: spread}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  scheduleStrategy: %s
  subsets:
`, strategy)
	percent := r.IntN(2) == 0
	left := 100
	subsets := 1 + r.IntN(3)
	for i := range subsets {
		fmt.Fprintf(&b, "  - name: s%d\n", i)
		if percent {
			share := r.IntN(left + 1)
			left -= share
			fmt.Fprintf(&b, "    maxReplicas: %d%%\n", share)
		} else {
			fmt.Fprintf(&b, "    maxReplicas: %d\n", r.IntN(8))
		}
		if pool := pick(r, "a", "b", "c", "nowhere", ""); pool != "" {
			fmt.Fprintf(&b, "    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%s]}]}\n", pool)
		}
	}
	if percent || r.IntN(2) == 0 {
		b.WriteString("  - name: last\n")
	}
	return b.String()
}

func pick(r *rand.Rand, choices ...string) string { return choices[r.IntN(len(choices))] }
