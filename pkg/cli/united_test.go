package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// unitedOf is a UnitedDeployment with two zones.
func unitedOf(t *testing.T) []client.Object {
	t.Helper()
	ud := &v1beta1.UnitedDeployment{}
	if err := yaml.UnmarshalStrict([]byte(`
metadata: {name: shop, namespace: shop, uid: u, generation: 3}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template: {deploymentTemplate: {spec: {template: {metadata: {labels: {app: shop}}, spec: {containers: [{name: main, image: shop}]}}}}}
  topology:
    scheduleStrategy: {type: Adaptive}
    subsets: [{name: zone-a}, {name: zone-b}]
status:
  observedGeneration: 3
  replicas: 3
  readyReplicas: 1
  updatedReplicas: 3
  conditions: [{type: Ready, status: "True", reason: Ready}]
  subsetStatuses:
  - {name: zone-a, replicas: 2, readyReplicas: 1, conditions: [{type: Schedulable, status: "False", reason: Reschedule, message: 1 pod found no node}]}
  - {name: zone-b, replicas: 1}
`), ud); err != nil {
		t.Fatal(err)
	}
	since := metav1.NewTime(now())
	ud.CreationTimestamp, ud.Status.SubsetStatuses[0].Conditions[0].LastTransitionTime = since, since
	return []client.Object{ud}
}

func squeezed(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

func TestStatusShowsTheClustersOfSubsets(t *testing.T) {
	objects := unitedOf(t)
	objects[0].(*v1beta1.UnitedDeployment).Status.SubsetStatuses[1].Cluster = "member-1"
	var out bytes.Buffer
	if err := (&statusCommand{out: &out}).run(t.Context(), clusterOf(t, objects...), []string{"shop"}); err != nil {
		t.Fatal(err)
	}
	want := `SUBSET KEPT QUOTA FILL SCHEDULABLE CLUSTER
zone-a 1 2 ██████████·········· no -
zone-b 0 1 ···················· yes member-1`
	if got := squeezed(out.String()); !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestStatusKnowsUnitedDeployments(t *testing.T) {
	objects := unitedOf(t)
	ud := objects[0].(*v1beta1.UnitedDeployment)
	ud.Status.SubsetStatuses[0].ReservedPods, ud.Status.SubsetStatuses[1].Partition = 1, 2
	cluster := clusterOf(t, objects...)
	var out bytes.Buffer
	if err := (&statusCommand{out: &out}).run(t.Context(), cluster, []string{"shop"}); err != nil {
		t.Fatal(err)
	}
	want := `uniteddeployment/shop Deployment in each subset Adaptive 3 pods asked for Ready
SUBSET KEPT QUOTA FILL SCHEDULABLE
zone-a 1 2 ██████████·········· no
zone-b 0 1 ···················· yes
1 pod waits in zone-a for a node, while another subset runs a pod in their place
2 pods keep the previous template in zone-b (partition)
next: zone-a gets replicas again at TIME: 1 pod found no node`
	if diff := cmp.Diff(want, regexp.MustCompile(`[-0-9]+T[0-9:]+Z`).ReplaceAllString(squeezed(out.String()), "TIME")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
