package integration

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/internal/sandbox"
)

// expectOnEachNode waits until each node of these pools runs this number of bound, active pods of the namespace.
func expectOnEachNode(t *testing.T, ns string, pools map[string][]*corev1.Node, want map[string]int) {
	t.Helper()
	waitFor(t, fmt.Sprint("pods on each node of the pools ", want), func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		on, pending := map[string]int{}, 0
		for i := range pods {
			switch {
			case pods[i].DeletionTimestamp != nil:
			case pods[i].Spec.NodeName == "":
				pending++
			default:
				on[pods[i].Spec.NodeName]++
			}
		}
		for pool, nodes := range pools {
			for _, node := range nodes {
				if on[node.Name] != want[pool] {
					return fmt.Sprintf("%d pending, %v", pending, on), nil
				}
			}
		}
		return "", nil
	})
	expectNoViolation(t)
}

// fiveEach creates five nodes in each of the pools a and b.
func fiveEach(t *testing.T) map[string][]*corev1.Node {
	t.Helper()
	pools, all := map[string][]*corev1.Node{}, []*corev1.Node(nil)
	for _, pool := range []string{"a", "b"} {
		for i := range 5 {
			pools[pool] = append(pools[pool], sandbox.NewNode(fmt.Sprintf("%s-%d", nodeIn(t, pool), i), "zone-a", map[string]string{"pool": pool}, nil, nil))
		}
		all = append(all, pools[pool]...)
	}
	nodes(t, all...)
	return pools
}

func TestTopologySpreadAppliesInsideTheSubset(t *testing.T) {
	const perNode = "      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]\n"
	pools := fiveEach(t)
	ns := namespace(t)
	apply(t, ns, spreadHeader+"  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"+fmt.Sprintf(twoPools, "15"))
	apply(t, ns, deployment("web", 20, perNode))
	expectOnEachNode(t, ns, pools, map[string]int{"a": 3, "b": 1})
}
