package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/test/testkit"
)

func TestMissing(t *testing.T) {
	const placed = `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}]}`
	for name, tc := range map[string]struct{ spec, status, want string }{
		"placed":                      {twoThenAny, placed, ""},
		"an old status":               {twoThenAny, `{observedGeneration: 1}`, "berth-controller has not looked"},
		"a missing workload":          {twoThenAny, `{conditions: [{type: Ready, status: "False", reason: TargetNotFound, message: "create it"}], subsetStatuses: [{name: a}, {name: b}]}`, "create it"},
		"pods without a node":         {twoThenAny, `{observedReplicas: 3, pendingPods: 1, subsetStatuses: [{name: a, replicas: 2}, {name: b}]}`, "1 pod has no node; b has 0 of 1"},
		"pods that do not exist":      {twoThenAny, `{observedReplicas: 4, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}]}`, "1 pod does not exist yet; b has 1 of 2"},
		"more pods than asked for":    {twoThenAny, `{observedReplicas: 2, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}]}`, "1 pod is more than the workload asks for; b has 1 of 0"},
		"spilled pods":                {twoThenAny + adaptive, `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 1}, {name: b, replicas: 2}]}`, "a has 1 of 2; b has 2 of 1"},
		"a rollout":                   {twoThenAny, `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}], versionedSubsetStatuses: {x: [{name: a, replicas: 2}, {name: b}], y: [{name: a}, {name: b, replicas: 1}]}}`, "the pods are of 2 revisions"},
		"pods in no subset":           {"subsets: [{name: a, maxReplicas: 2}]", `{observedReplicas: 3, unplacedPods: 2, subsetStatuses: [{name: a, replicas: 1}]}`, "a has 1 of 2; 1 pod is in no subset"},
		"pods that may be in none":    {"subsets: [{name: a, maxReplicas: 2}]", `{observedReplicas: 3, unplacedPods: 1, subsetStatuses: [{name: a, replicas: 2}]}`, ""},
		"pods that wait for ever":     {"{subsets: [{name: a, maxReplicas: 2}], scheduleStrategy: {whenFull: Wait}}", `{observedReplicas: 3, pendingPods: 1, subsetStatuses: [{name: a, replicas: 2}]}`, "1 pod has no node"},
		"one revision, one that ends": {twoThenAny, rollingOut, "1 pod has no node; 2 pods are more than the workload asks for; the pods are of 2 revisions"},
	} {
		t.Run(name, func(t *testing.T) {
			r := report.Of(testkit.Spread(t, tc.spec, tc.status), time.Now())
			if got := strings.Join(r.Missing(), "; "); got != tc.want && (tc.want == "" || !strings.HasPrefix(got, tc.want)) {
				t.Errorf("missing %q, want %q", got, tc.want)
			}
		})
	}
}

func TestWait(t *testing.T) {
	workload := func(replicas int32) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	}
	const starting = `{observedReplicas: 3, pendingPods: 1, subsetStatuses: [{name: a, replicas: 2}, {name: b}]}`
	const placed = `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}]}`
	for name, tc := range map[string]struct {
		status   string
		replicas *int32
		timeout  time.Duration
		// then is the status after a minute. Empty for none, and "gone" to delete the spread.
		then  string
		want  string
		after time.Duration
	}{
		"placed at once":                   {status: placed, replicas: ptr.To[int32](3), timeout: 5 * time.Minute, want: "is placed."},
		"placed later":                     {status: starting, replicas: ptr.To[int32](3), timeout: 5 * time.Minute, then: placed, want: "is placed.", after: time.Minute},
		"not in time":                      {status: starting, replicas: ptr.To[int32](3), timeout: 30 * time.Second, want: "is not placed after 30s: 1 pod has no node; b has 0 of 1", after: 30 * time.Second},
		"not now":                          {status: starting, replicas: ptr.To[int32](3), want: "is not placed after 0s: 1 pod has no node"},
		"of another number of replicas":    {status: placed, replicas: ptr.To[int32](5), timeout: time.Second, want: "its status is of 3 pods, and Deployment/web asks for 5", after: time.Second},
		"the workload is gone":             {status: placed, timeout: time.Second, want: "Deployment/web does not exist", after: time.Second},
		"the spread is deleted meanwhile":  {status: starting, timeout: 5 * time.Minute, then: "gone", want: `there is no WorkloadSpread "web" in namespace "shop"`, after: time.Minute},
		"the spread is placed, then again": {status: placed, replicas: ptr.To[int32](3), then: placed, timeout: time.Hour, want: "is placed."},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := []client.Object{testkit.Spread(t, twoThenAny, tc.status)}
				if tc.replicas != nil {
					objects = append(objects, workload(*tc.replicas))
				}
				cluster, began := clusterOf(t, objects...), time.Now()
				if tc.then != "" {
					time.AfterFunc(time.Minute, func() {
						now := &v1beta1.WorkloadSpread{}
						err := cluster.Get(t.Context(), client.ObjectKeyFromObject(objects[0]), now)
						if err == nil && tc.then == "gone" {
							err = cluster.Delete(t.Context(), now)
						} else if err == nil {
							now.Status = testkit.Spread(t, twoThenAny, tc.then).Status
							err = cluster.Status().Update(t.Context(), now)
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
				var out bytes.Buffer
				err := (&waitCommand{out: &out, timeout: tc.timeout}).run(t.Context(), cluster, []string{"web"})
				if said := out.String() + fmt.Sprint(err); !strings.Contains(said, tc.want) || (err == nil) != (tc.want == "is placed.") || time.Since(began).Truncate(10*time.Second) != tc.after.Truncate(10*time.Second) {
					t.Errorf("after %s: %q, want %q after %s", time.Since(began), said, tc.want, tc.after)
				}
			})
		})
	}
	if err := (&waitCommand{}).run(t.Context(), clusterOf(t), []string{"wbe"}); err == nil || !strings.Contains(err.Error(), `no WorkloadSpread "wbe"`) {
		t.Errorf("an unknown name: %v", err)
	}
}
