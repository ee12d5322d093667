package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/test/testkit"
)

const (
	twoThenAny = `subsets: [{name: a, maxReplicas: 2}, {name: b}]`
	shares     = `subsets: [{name: a, maxReplicas: 20%}, {name: b, maxReplicas: 20%}, {name: c, maxReplicas: 60%}]`
	adaptive   = "\nscheduleStrategy: {type: Adaptive}"
	early      = "\nscheduleStrategy: {type: Adaptive, binding: Early, adaptive: {rescheduleCriticalSeconds: 60}}"
	earlyStays = "\nscheduleStrategy: {type: Adaptive, binding: Early}"
	waits      = "\nscheduleStrategy: {whenFull: Wait}"
	ofJob      = "\ntargetRef: {apiVersion: batch/v1, kind: Job, name: web}"
	// rollingOut are pods of two revisions, each within its quota.
	rollingOut = `{observedReplicas: 3, pendingPods: 1, subsetStatuses: [{name: a, replicas: 3}, {name: b, replicas: 1}], versionedSubsetStatuses: {
  new: [{name: a, replicas: 1}, {name: b}], old: [{name: a, replicas: 2}, {name: b, replicas: 1}]}}`
	waiting = `, conditions: [{type: Schedulable, status: "False", message: "pods that find no node: 1"}]`
)

func TestWhatHappensNext(t *testing.T) {
	tests := map[string]struct{ spec, status, want string }{
		"nothing":       {twoThenAny, `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1, missingReplicas: -1}]}`, "nothing: every pod is where it belongs"},
		"an old status": {twoThenAny, `{observedGeneration: 1}`, "berth-controller has not looked"},
		"an invalid spread": {`subsets: [{name: a, maxReplicas: -1}]`, `conditions: [{type: Ready, status: "False", reason: InvalidSpread, message: "maxReplicas is negative"}]`,
			"no pod is placed until that is corrected: maxReplicas is negative"},
		"a missing workload": {twoThenAny, `{conditions: [{type: Ready, status: "False", reason: TargetNotFound, message: "create it"}], subsetStatuses: [{name: a}, {name: b}]}`, "create it"},
		"Fixed waits": {twoThenAny, `{observedReplicas: 3, pendingPods: 1, subsetStatuses: [{name: a, replicas: 1` + waiting + `}, {name: b, replicas: 1}]}`,
			"1 pod waits for a node of a: with strategy Fixed none goes on to another subset"},
		"Adaptive has tried all": {twoThenAny + adaptive, `{observedReplicas: 3, pendingPods: 2, subsetStatuses: [{name: a, replicas: 1` + waiting + `}, {name: b}]}`,
			"2 pods are pending: no subset from a on has a node for them"},
		"full": {"{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}", `{observedReplicas: 3, pendingPods: 2, subsetStatuses: [{name: a, replicas: 1}]}`,
			"2 pods wait until a slot is free"},
		"full for one revision": {"{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}",
			`{observedReplicas: 2, pendingPods: 1, subsetStatuses: [{name: a, replicas: 1}], versionedSubsetStatuses: {new: [{name: a}], old: [{name: a, replicas: 1}]}}`,
			"1 pod is pending: on the way to a node, or waiting for a slot of a revision"},
		"room for each revision": {twoThenAny + waits, rollingOut, "1 pod is on the way to a node"},
		"early-bound pods wait": {twoThenAny + early, `{observedReplicas: 3, pendingPods: 2, subsetStatuses: [{name: a, replicas: 1` + waiting + `}, {name: b}]}`,
			"2 pods are pending: those with the patch of a wait for a node there; after 1m0s the descheduler's EvictUnschedulableSubsetPods replaces them"},
		"early-bound pods stay": {twoThenAny + earlyStays, `{observedReplicas: 3, pendingPods: 2, subsetStatuses: [{name: a, replicas: 1` + waiting + `}, {name: b}]}`,
			"2 pods are pending: those with the patch of a wait for a node there; without rescheduleCriticalSeconds none goes on"},
		"early-bound for a full subset": {twoThenAny + early, `{observedReplicas: 3, pendingPods: 1, subsetStatuses: [{name: a, replicas: 2}, {name: b}]}`,
			"1 pod is on the way to a node; berth-controller replaces a pod that carries the patch of a full subset: a"},
		"Adaptive has tried all shares": {shares + adaptive, `{observedReplicas: 3, pendingPods: 2, subsetStatuses: [{name: a, replicas: 1` + waiting + `}, {name: b}, {name: c}]}`,
			"2 pods are pending: no subset has a node for them"},
		"shares as they should be": {shares, `{observedReplicas: 7, subsetStatuses: [{name: a, replicas: 1}, {name: b, replicas: 1}, {name: c, replicas: 5}]}`, "nothing: every pod is where it belongs"},
		"a share too many":         {shares, `{observedReplicas: 7, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}, {name: c, replicas: 4}]}`, "1 pod of other subsets could be in c"},
		"on the way":               {twoThenAny, `{observedReplicas: 1, pendingPods: 1, subsetStatuses: [{name: a}, {name: b}]}`, "1 pod is on the way to a node"},
		"surplus":                  {twoThenAny, `{observedReplicas: 3, surplusPods: 1, subsetStatuses: [{name: a, replicas: 3}, {name: b}]}`, "1 pod is above quota"},
		"unplaced":                 {twoThenAny, `{observedReplicas: 2, unplacedPods: 1, subsetStatuses: [{name: a, replicas: 1}, {name: b}]}`, "1 pod runs in no subset"},
		"spilled":                  {twoThenAny + adaptive, `{observedReplicas: 3, subsetStatuses: [{name: a}, {name: b, replicas: 3}]}`, "2 pods of later subsets could be in a: moved by"},
		"spilled pods of a Job": {twoThenAny + adaptive + ofJob, `{observedReplicas: 3, subsetStatuses: [{name: a}, {name: b, replicas: 3}]}`,
			"2 pods of later subsets could be in a, and stay: the descheduler moves no pod of a Job"},
		"a gang of a Job": {twoThenAny + waits + ofJob, `{observedReplicas: 3, pendingPods: 3, subsetStatuses: [{name: a}, {name: b}]}`,
			"3 pods are on the way to a node, or waiting as a gang for more slots than one subset has"},
		"surplus of a Job": {twoThenAny + ofJob, `{observedReplicas: 3, surplusPods: 1, subsetStatuses: [{name: a, replicas: 3}, {name: b}]}`, "1 pod is above quota: the descheduler moves no pod of a Job"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := report.Of(testkit.Spread(t, tc.spec, tc.status), time.Now())
			if !strings.HasPrefix(got.Next, tc.want) {
				t.Errorf("next: %q, want %q", got.Next, tc.want)
			}
		})
	}
}

func clusterOf(t *testing.T, objects ...client.Object) *console.Cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), versions.AddStored(scheme)); err != nil {
		t.Fatal(err)
	}
	byName := func(object client.Object) []string { return []string{object.GetName()} }
	return &console.Cluster{Namespace: "shop", WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1beta1.WorkloadSpread{}).WithIndex(&v1beta1.WorkloadSpread{}, "metadata.name", byName).WithIndex(&unitedv1beta1.UnitedDeployment{}, "metadata.name", byName).
		WithIndex(&federationv1alpha1.FederatedReplicaSet{}, "metadata.name", byName).WithIndex(&sidecarv1beta1.SidecarSet{}, "metadata.name", byName).
		WithIndex(&corev1.Event{}, "reason", func(object client.Object) []string { return []string{object.(*corev1.Event).Reason} }).WithReturnManagedFields().Build()}
}

func TestStatusPrints(t *testing.T) {
	spread := testkit.Spread(t, twoThenAny+adaptive, `{observedReplicas: 4, pendingPods: 1, subsetStatuses: [{name: a, replicas: 1`+waiting+`}, {name: b, replicas: 2, missingReplicas: -1}]}`)
	print := func(c statusCommand, args ...string) (string, error) {
		var out bytes.Buffer
		c.out = &out
		err := c.run(t.Context(), clusterOf(t, spread), args)
		return out.String(), err
	}
	t.Run("a table", func(t *testing.T) {
		got, err := print(statusCommand{}, "web")
		want := `web   Deployment/web   Adaptive   4 pods asked for   Ready
  SUBSET   KEPT   QUOTA   FILL                   SCHEDULABLE
  a        1      2       ██████████··········   no
  b        2      -       ████████████████████   yes
  1 pod pending
  next: 1 pod is pending: no subset from a on has a node for them; they are bound as soon as one has
`
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("printed (-want +got):\n%s%v", diff, err)
		}
	})
	t.Run("a table with targets", func(t *testing.T) {
		for spec, want := range map[string]string{
			shares: `web   Deployment/web   Fixed   7 pods asked for   Ready
  SUBSET   KEPT   QUOTA   TARGET   FILL                   SCHEDULABLE
  a        1      2       1        ████████████████████   yes
  b        1      2       1        ████████████████████   yes
  c        5      5       5        ████████████████████   yes
  next: nothing: every pod is where it belongs
`,
			`subsets: [{name: a}, {name: b, minReplicas: 2}, {name: c, minReplicas: 2}]`: `web   Deployment/web   Fixed   7 pods asked for   Ready
  SUBSET   KEPT   QUOTA   TARGET   FILL                   SCHEDULABLE
  a        1      -       3        ██████··············   yes
  b        1      -       2        ██████████··········   yes
  c        5      -       2        ████████████████████   yes
  next: 2 pods of other subsets could be in a: moved by the descheduler's RebalanceToPreferredSubset when it has room, but not yet: pods wait for a node of a (Settling)
`,
		} {
			spread := testkit.Spread(t, spec, `{observedReplicas: 7, subsetStatuses: [{name: a, replicas: 1}, {name: b, replicas: 1}, {name: c, replicas: 5}]}`)
			var out bytes.Buffer
			if err := (&statusCommand{out: &out}).run(t.Context(), clusterOf(t, spread), []string{"web"}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		}
	})
	t.Run("wide", func(t *testing.T) {
		got, err := print(statusCommand{output: console.Output{Format: "wide"}, allNamespaces: true})
		for _, part := range []string{"shop   web ", "TARGET", "pods that find no node: 1"} {
			if err != nil || !strings.Contains(got, part) {
				t.Errorf("%v, printed\n%swithout %q", err, got, part)
			}
		}
	})
	t.Run("a rollout", func(t *testing.T) {
		rows := (&statusCommand{}).subsetRows(ptr.To(report.Of(testkit.Spread(t, twoThenAny, rollingOut), time.Now())))
		if diff := cmp.Diff("██████████·········· ████████████████████", rows[1][4]+" "+rows[2][4]); diff != "" {
			t.Errorf("bars of the revisions (-want +got):\n%s", diff)
		}
	})
	t.Run("for programs", func(t *testing.T) {
		for _, format := range []string{"json", "yaml"} {
			got, err := print(statusCommand{output: console.Output{Format: format}}, "web")
			var r report.Report
			if err := errors.Join(err, yaml.Unmarshal([]byte(got), &r)); err != nil || r.Metadata.Name != "web" || *r.Subsets[0].Quota != 2 || r.Subsets[1].Quota != nil {
				t.Errorf("%s: %v, %+v", format, err, r)
			}
		}
		for format, want := range map[string]string{"name": "workloadspread.apps.kruise.io/web\n", "jsonpath={.items[*].metadata.name}": "web"} {
			if got, err := print(statusCommand{output: console.Output{Format: format}}); err != nil || got != want {
				t.Errorf("-o %s: %v, %q", format, err, got)
			}
		}
		if got, err := print(statusCommand{output: console.Output{NoHeaders: true}}, "web"); err != nil || strings.Contains(got, "SUBSET") || !strings.Contains(got, "  a   1   2 ") {
			t.Errorf("--no-headers: %v, %q", err, got)
		}
	})
	t.Run("an unknown name", func(t *testing.T) {
		if _, err := print(statusCommand{}, "wbe"); err == nil || !strings.Contains(err.Error(), `no WorkloadSpread, UnitedDeployment or FederatedReplicaSet "wbe" in namespace "shop"`) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("by labels", func(t *testing.T) {
		labelled := spread.DeepCopy()
		labelled.Name, labelled.Labels = "labelled", map[string]string{"team": "shop"}
		var out bytes.Buffer
		c := statusCommand{out: &out, labels: "team in (shop, x)"}
		if err := c.run(t.Context(), clusterOf(t, spread, labelled), nil); err != nil || !strings.HasPrefix(out.String(), "labelled ") || strings.Contains(out.String(), "\nweb ") {
			t.Errorf("%v, printed\n%s", err, out.String())
		}
		for labels, want := range map[string]string{"team=": "", "=": "--selector"} {
			c := statusCommand{out: &bytes.Buffer{}, errOut: &bytes.Buffer{}, labels: labels}
			if err := c.run(t.Context(), clusterOf(t, spread), nil); fmt.Sprint(err) == "<nil>" != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("-l %s: %v", labels, err)
			}
		}
		if _, err := print(statusCommand{labels: "a=b"}, "web"); err == nil {
			t.Error("a name and a selector are accepted together")
		}
	})
}

// TestStatusWatch prints at once and then once for each look that shows something new. When the API server does not
// answer, it says so once and goes on.
func TestStatusWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		cluster := clusterOf(t, testkit.Spread(t, twoThenAny, `{observedReplicas: 3, subsetStatuses: [{name: a}, {name: b}]}`))
		away := false
		cluster.WithWatch = interceptor.NewClient(cluster.WithWatch, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if away {
					return &url.Error{Op: "Get", URL: "https://10.0.0.1:6443/apis", Err: errors.New("refused")}
				}
				return c.List(ctx, list, options...)
			},
		})
		var out, log bytes.Buffer
		ended := make(chan error, 1)
		go func() { ended <- (&statusCommand{watch: true, out: &out, errOut: &log}).run(ctx, cluster, nil) }()
		look := func(looks int) {
			time.Sleep(time.Duration(looks)*lookInterval - time.Millisecond)
			synctest.Wait()
		}
		look(3)
		for pods := range int32(50) {
			now := &v1beta1.WorkloadSpread{}
			if err := cluster.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, now); err != nil {
				t.Fatal(err)
			}
			now.Status.PendingPods = pods
			if err := cluster.Status().Update(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
		look(2)
		away = true
		look(3)
		away = false
		look(3)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(out.String(), "next:"); n != 2 || !strings.Contains(out.String(), "49 pods are on the way") || strings.Count(log.String(), "no API server answers") != 1 {
			t.Errorf("printed %d times\n%swith %q; want 2 times, and one line about the API server", n, out.String(), log.String())
		}
	})
}

// The moves of the descheduler are in the wide table, the oldest first, and in -o json.
func TestStatusShowsMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spread := testkit.Spread(t, twoThenAny+adaptive, `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 1}, {name: b, replicas: 2}]}`)
		spread.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		at := func(ago time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-ago)) }
		spread.Status.Moves = []v1beta1.Move{
			{From: "b", To: "a", Reason: "EarlierSubsetHasRoom", Round: 2, Remaining: 1, Time: at(2 * time.Minute), InFlight: []v1beta1.PodInFlight{{UID: "1", Name: "web-1"}, {UID: "2", Name: "web-2"}}},
			{From: "", To: "a", Reason: "EarlierSubsetHasRoom", Round: 1, Time: at(30 * time.Minute)},
		}
		for format, want := range map[string]string{
			"wide": "  MOVED     FROM   TO   REASON                 ROUND   IN FLIGHT\n  30m ago   -      a    EarlierSubsetHasRoom   1       -\n  2m ago    b      a    EarlierSubsetHasRoom   2       web-1 web-2\n  next: 1 pod of later subsets could be in a",
			"json": `"inFlight": [`,
		} {
			var out bytes.Buffer
			if err := (&statusCommand{out: &out, output: console.Output{Format: format}}).run(t.Context(), clusterOf(t, spread), []string{"web"}); err != nil || !strings.Contains(out.String(), want) {
				t.Errorf("%s: %v, printed\n%swithout %q", format, err, out.String(), want)
			}
		}
	})
}

// A cluster without SidecarSets, and one that does not know them, is told apart from one without spreads.
func TestStatusOfNoSidecarSets(t *testing.T) {
	cluster := clusterOf(t)
	var out, log bytes.Buffer
	if err := (&statusCommand{out: &out, errOut: &log}).run(t.Context(), cluster, []string{"sidecarsets"}); err != nil || out.String() != "" || log.String() != "No resources found\n" {
		t.Errorf("%v, printed %q and %q", err, out.String(), log.String())
	}
	err := (&statusCommand{out: &out, errOut: &log}).run(t.Context(), cluster, []string{"sidecarset/log"})
	if err == nil || err.Error() != `there is no SidecarSet "log"; list them with kubectl berth status sidecarsets` {
		t.Errorf("a name: %v", err)
	}
	got := console.Advise(&meta.NoKindMatchError{GroupKind: sidecarv1beta1.Kind.GroupKind(), SearchedVersions: []string{"v1beta1"}})
	if got != "the cluster does not know SidecarSets; install Berth's CRDs with kubectl apply -k manifests/sidecar" {
		t.Errorf("got %q", got)
	}
}

// Objects are named as with kubectl get.
func TestWhatTheCommandLineNames(t *testing.T) {
	for args, want := range map[string]string{
		"": "any", "web": "any web", "web api": "any web, any api", "ws": "WorkloadSpread", "ws web api": "WorkloadSpread web, WorkloadSpread api",
		"ud/web sidecarset/log": "UnitedDeployment web, SidecarSet log", "sidecarsets": "SidecarSet", "FederatedReplicaSet/ws": "FederatedReplicaSet ws",
		"workloadspread.apps.kruise.io/web": "WorkloadSpread web", "deployment/web": "", "ws/": "", "ws ud/web": "",
	} {
		named, err := console.ParseNames(strings.Fields(args), 3, reported...)
		var got []string
		for _, n := range named {
			kind := "any"
			if len(n.Kinds) == 1 {
				kind = n.Kinds[0].Kind
			}
			got = append(got, strings.TrimSpace(kind+" "+n.Name))
		}
		if (err != nil) != (want == "") || err == nil && strings.Join(got, ", ") != want {
			t.Errorf("%q: %q, %v, want %q", args, got, err, want)
		}
	}
	web, api := testkit.Spread(t, twoThenAny, `{}`), testkit.Spread(t, twoThenAny, `{}`)
	api.Name = "api"
	var out bytes.Buffer
	if err := (&statusCommand{out: &out}).run(t.Context(), clusterOf(t, web, api), []string{"ws", "api", "web"}); err != nil || !strings.HasPrefix(out.String(), "api ") || !strings.Contains(out.String(), "\nweb ") {
		t.Errorf("%v, printed\n%s", err, out.String())
	}
}
