//go:build kubernetes_1_37

package autoscaler

import (
	"fmt"
	"testing"
	"time"
)

// TestNodesAreMadeForAWholeGang is about a gang of eight that finds five slots on nodes of its owner. Karpenter makes nodes of the second subset for all of it.
func TestNodesAreMadeForAWholeGang(t *testing.T) {
	s := newShop(t)
	s.ownNodes(2, "16")
	s.nodePool("elastic", "")
	s.apply(s.namespace, fmt.Sprintf(`
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: train}
spec:
  targetRef: {apiVersion: batch/v1, kind: Job, name: train}
  scheduleStrategy: {type: Adaptive, whenFull: Wait, binding: %[3]s}
  subsets:
  - {name: normal, maxReplicas: 5, requiredNodeSelector: {matchExpressions: [{key: %[2]s, operator: In, values: [%[1]s-normal]}]}}
  - {name: elastic, maxReplicas: 8, requiredNodeSelector: {matchExpressions: [{key: %[2]s, operator: In, values: [%[1]s-elastic]}]}}
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: train}
spec: {schedulingPolicy: {gang: {minCount: 8}}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 8
  completions: 8
  template:
    spec:
      schedulerName: berth-scheduler
      schedulingGroup: {podGroupName: train}
      restartPolicy: Never
      containers: [{name: main, image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: "1", memory: 128Mi}}}]
`, s.namespace, poolLabel, *binding))
	s.expect(map[string]int{"elastic": 8})
	s.expectToStay(map[string]int{"elastic": 8}, 15*time.Second)
}
