package cli

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// federatedOf is a FederatedReplicaSet with a cluster that is well, one that is full, and one that is lost.
func federatedOf(t *testing.T) *v1alpha1.FederatedReplicaSet {
	t.Helper()
	frs := &v1alpha1.FederatedReplicaSet{}
	if err := yaml.UnmarshalStrict([]byte(`
metadata: {name: shop, namespace: shop, uid: u, generation: 3}
spec: {replicas: 50}
status:
  observedGeneration: 3
  replicas: 50
  availableReplicas: 46
  mayExceedBy: 16
  conditions:
  - {type: Ready, status: "False", reason: Unreachable, message: no answer from west; up to 16 replicas above the total may run}
  - {type: Placed, status: "False", reason: Waiting, message: "no cluster has room for 4 of 50 replicas, which wait"}
  clusters:
  - {name: east, wanted: 40, share: 40, availableReplicas: 40, state: Ready}
  - {name: north, wanted: 10, share: 10, availableReplicas: 6, state: Full, message: pods found no node, capacity: {replicas: 6}}
  - {name: west, wanted: 16, share: 0, availableReplicas: 16, state: Lost, message: does not answer}
`), frs); err != nil {
		t.Fatal(err)
	}
	frs.CreationTimestamp = metav1.NewTime(now())
	until := metav1.NewTime(now().Add(5 * time.Minute))
	frs.Status.Clusters[1].Capacity.RetryTime = &until
	return frs
}

func TestStatusKnowsFederatedReplicaSets(t *testing.T) {
	frs := federatedOf(t)
	for name, tc := range map[string]struct {
		change func(*v1alpha1.FederatedReplicaSet)
		want   string
	}{
		"a lost cluster": {func(*v1alpha1.FederatedReplicaSet) {}, `federatedreplicaset/shop ReplicaSet in each cluster 50 pods asked for Unreachable
SUBSET KEPT QUOTA TARGET FILL SCHEDULABLE MESSAGE
east 40 40 40 ████████████████████ yes -
north 6 10 10 ████████████········ no Full: pods found no node
west 16 16 0 ████████████████████ no Lost: does not answer
no cluster has room for 4 of 50 replicas, which wait
next: no answer from west; up to 16 replicas above the total may run`},
		"a full cluster": {func(frs *v1alpha1.FederatedReplicaSet) {
			frs.Status.MayExceedBy, frs.Status.Clusters = 0, frs.Status.Clusters[:2]
			frs.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready"}}
		}, `federatedreplicaset/shop ReplicaSet in each cluster 50 pods asked for Ready
SUBSET KEPT QUOTA TARGET FILL SCHEDULABLE MESSAGE
east 40 40 40 ████████████████████ yes -
north 6 10 10 ████████████········ no Full: pods found no node
next: north gets more than 6 replicas at TIME`},
		"a new version": {func(frs *v1alpha1.FederatedReplicaSet) { frs.Status = v1alpha1.FederatedReplicaSetStatus{} }, `federatedreplicaset/shop ReplicaSet in each cluster 50 pods asked for Unknown
next: berth-united has not looked at this version of it; see that it runs with --federation: kubectl get pods -n berth-system`},
	} {
		t.Run(name, func(t *testing.T) {
			changed := frs.DeepCopy()
			tc.change(changed)
			var out bytes.Buffer
			if err := (&statusCommand{out: &out, output: console.Output{Format: "wide"}}).run(t.Context(), clusterOf(t, changed), []string{"frs/shop"}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, regexp.MustCompile(`[-0-9]+T[0-9:]+Z`).ReplaceAllString(squeezed(out.String()), "TIME")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestStatusWithoutARightForAKind checks that a role that does not know the newer kinds still sees spreads, and a line
// says what is left out.
func TestStatusWithoutARightForAKind(t *testing.T) {
	cluster := clusterOf(t, federatedOf(t))
	cluster.WithWatch = interceptor.NewClient(cluster.WithWatch, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, is := list.(*v1alpha1.FederatedReplicaSetList); is {
			return apierrors.NewForbidden(v1alpha1.Resource.GroupResource(), "", nil)
		}
		return c.List(ctx, list, options...)
	}})
	var out, log bytes.Buffer
	if err := (&statusCommand{out: &out, errOut: &log}).run(t.Context(), cluster, nil); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(log.String(), "kubectl berth: without FederatedReplicaSets: ") || !strings.HasSuffix(log.String(), "No resources found in shop namespace.\n") || out.String() != "" {
		t.Errorf("printed %q and %q", out.String(), log.String())
	}
}
