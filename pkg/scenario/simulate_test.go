package scenario

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// Two pools, a and b, of one node each, and a spread that takes 2 pods in a and the rest in b.
const (
	pools = `Two pools.
-- cluster.yaml --
- {name: a, count: 1, labels: {pool: a}}
- {name: b, count: 1, labels: {pool: b}}
`
	twoInA = `-- spread.yaml --
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: spread}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: a
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}
    maxReplicas: 2
  - name: b
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}
`
)

// web is a section with a Deployment, or a ReplicaSet or StatefulSet if the kind in it is replaced.
func web(section string, replicas int, spec, podMetadata, podSpec string) string {
	return fmt.Sprintf(`-- %s.yaml --
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  %s
  template:
    metadata:
      labels: {app: web}
      %s
    spec:
      containers: [{name: app, image: registry.k8s.io/pause:3.10}]
      %s
`, section, replicas, spec, podMetadata, podSpec)
}

func table(section, header, rows string) string {
	return "-- " + section + " --\nspread  " + header + "\nSUBSET  KEPT  QUOTA\n" + rows
}

func TestSimulation(t *testing.T) {
	const v2 = `annotations: {version: "2"}`
	held := func(surge, unavailable int) string {
		return fmt.Sprintf("strategy: {rollingUpdate: {maxSurge: %d, maxUnavailable: %d}}", surge, unavailable)
	}
	onlyB := strings.Replace(pools, "- {name: a, count: 1, labels: {pool: a}}\n", "", 1)

	for name, text := range map[string]string{
		"a pod with a readiness gate is never ready, so its rollout stalls": pools + twoInA +
			web("v1", 4, held(2, 0), "", "") + web("v2", 4, held(2, 0), v2, "readinessGates: [{conditionType: example.com/open}]") +
			"-- steps --\napply spread.yaml v1.yaml\napply v2.yaml\nexpect stalled\n" +
			table("stalled", "Deployment/web  replicas 4  revisions 2", "a       4     2\nb       2     -\n"),

		"a rollout goes by quarters unless told otherwise: of 4 pods, 1 more and 1 not available": pools + twoInA +
			web("v1", 4, "", "", "") + web("v2", 4, "minReadySeconds: 1", v2, "") +
			// 3 old pods, for one of pool b was given up, and 2 new ones, which have the quota for themselves.
			"-- steps --\napply spread.yaml v1.yaml\napply v2.yaml\nexpect stalled\n" +
			table("stalled", "Deployment/web  replicas 4  revisions 2", "a       4     2\nb       1     -\n"),

		"a rollout gives up old pods that are not available first": onlyB + twoInA +
			// Of the 4 old pods 2 wait for pool a. They go; the 2 that run and 2 new ones that wait remain, and the surge of 1.
			web("v1", 4, held(1, 2), "", "") + web("v2", 4, held(1, 2), v2, "nodeSelector: {pool: a}") +
			"-- steps --\napply spread.yaml v1.yaml\nexpect v1\napply v2.yaml\nexpect stalled\n" +
			table("v1", "Deployment/web  replicas 4  pending 2", "a       0     2\nb       2     -\n") +
			table("stalled", "Deployment/web  replicas 4  revisions 2  pending 3", "a       0     2\nb       2     -\n"),

		"a Recreate rollout makes new pods when no old one is left": pools +
			strings.Replace(twoInA, "  subsets:", "  scheduleStrategy: {quotaScope: Workload}\n  subsets:", 1) +
			web("v1", 4, "strategy: {type: Recreate}", "", "") + web("v2", 4, "strategy: {type: Recreate}", v2, "") +
			"-- steps --\napply spread.yaml v1.yaml\nexpect layout\napply v2.yaml\nexpect layout\n" +
			table("layout", "Deployment/web  replicas 4", "a       2     2\nb       2     -\n"),

		"replicas that change together with the template are scaled in the old revision first": pools + twoInA +
			web("v1", 4, held(2, 0), "", "") + web("v2", 6, "minReadySeconds: 1\n  "+held(2, 0), v2, "") +
			"-- steps --\napply spread.yaml v1.yaml\napply v2.yaml\nexpect stalled\n" +
			table("stalled", "Deployment/web  replicas 6  revisions 2", "a       4     2\nb       4     -\n"),

		"a Deployment scaled to nothing and up again fills the first subset first": pools + twoInA + web("web", 3, "", "", "") +
			"-- steps --\napply spread.yaml web.yaml\nscale Deployment/web 0\nexpect nothing\nscale Deployment/web 3\nexpect three\n" +
			table("nothing", "Deployment/web  replicas 0", "a       0     2\nb       0     -\n") +
			table("three", "Deployment/web  replicas 3", "a       2     2\nb       1     -\n"),

		"a StatefulSet does not go on to the next pod while one waits": onlyB + statefulSet(twoInA) + statefulSet(web("web", 3, "", "", "")) +
			"-- steps --\napply spread.yaml web.yaml\nexpect layout\n" +
			table("layout", "StatefulSet/web  replicas 3  pending 1", "a       0     2\nb       0     -\n"),

		"a StatefulSet with parallel pods waits for none": onlyB + statefulSet(twoInA) + statefulSet(web("web", 3, "podManagementPolicy: Parallel", "", "")) +
			"-- steps --\napply spread.yaml web.yaml\nexpect layout\nscale StatefulSet/web 1\nexpect scaled\n" +
			table("layout", "StatefulSet/web  replicas 3  pending 2", "a       0     2\nb       1     -\n") +
			table("scaled", "StatefulSet/web  replicas 1  pending 1", "a       0     2\nb       0     -\n"),

		"with type Adaptive a pod goes on when no node of the subset takes it": pools +
			strings.Replace(twoInA, "  subsets:", "  scheduleStrategy: {type: Adaptive}\n  subsets:", 1) + web("web", 4, "", "", "") +
			"-- steps --\ncordon a\napply spread.yaml web.yaml\nexpect shut\nuncordon a\nscale Deployment/web 5\nexpect open\n" +
			table("shut", "Deployment/web  replicas 4", "a       0     2\nb       4     -\n") +
			table("open", "Deployment/web  replicas 5", "a       1     2\nb       4     -\n"),

		"tolerations of a subset open its nodes": strings.Replace(pools, "labels: {pool: a}", "labels: {pool: a}, taints: [{key: k, effect: NoSchedule}]", 1) +
			strings.Replace(twoInA, "    maxReplicas", "    tolerations: [{key: k, operator: Exists}]\n    maxReplicas", 1) + web("web", 3, "", "", "") +
			"-- steps --\napply spread.yaml web.yaml\nexpect layout\n" +
			table("layout", "Deployment/web  replicas 3", "a       2     2\nb       1     -\n"),

		"a pod keeps to its own node selector and waits in its subset": pools + twoInA + web("web", 3, "", "", "nodeSelector: {pool: b}") +
			"-- steps --\napply spread.yaml web.yaml\nexpect layout\n" +
			table("layout", "Deployment/web  replicas 3  pending 2", "a       0     2\nb       1     -\n"),

		"requests fill a node": strings.Replace(pools, "labels: {pool: b}", "labels: {pool: b}, allocatable: {cpu: 3}", 1) + twoInA +
			strings.Replace(web("web", 6, "", "", ""), "image: registry.k8s.io/pause:3.10", "image: registry.k8s.io/pause:3.10, resources: {requests: {cpu: 1}}", 1) +
			"-- steps --\napply spread.yaml web.yaml\nexpect layout\n" +
			table("layout", "Deployment/web  replicas 6  pending 1", "a       2     2\nb       3     -\n"),

		"pods go with their workload": pools + twoInA + web("web", 3, "", "", "") +
			"-- steps --\napply spread.yaml web.yaml\ndelete Deployment/web\nexpect nothing\n" +
			table("nothing", "Deployment/web  replicas 0", "a       0     2\nb       0     -\n"),

		"a pod that waits for a subset is free when its spread is gone": onlyB + twoInA + web("web", 3, "", "", "") +
			"-- steps --\napply spread.yaml web.yaml\nexpect waiting\ndelete WorkloadSpread/spread\nexpect no-spread\napply spread.yaml\nexpect again\n" +
			table("waiting", "Deployment/web  replicas 3  pending 2", "a       0     2\nb       1     -\n") + "-- no-spread --\n" +
			table("again", "Deployment/web  replicas 3", "a       0     2\nb       3     -\n"),
	} {
		t.Run(name, func(t *testing.T) {
			expectMet(t, "scenario", play(t, "scenario", text))
		})
	}
}

func statefulSet(text string) string {
	return strings.Replace(text, "kind: Deployment", "kind: StatefulSet", 1)
}

func TestJobs(t *testing.T) {
	job := func(parallelism int, completions, annotations string) string {
		return fmt.Sprintf(`-- job.yaml --
apiVersion: batch/v1
kind: Job
metadata: {name: web}
spec:
  parallelism: %d
  %s
  template:
    metadata:
      annotations: {%s}
    spec:
      restartPolicy: Never
      containers: [{name: app, image: registry.k8s.io/pause:3.10}]
`, parallelism, completions, annotations)
	}
	spread := strings.NewReplacer("apps/v1", "batch/v1", "kind: Deployment", "kind: Job").Replace(twoInA)
	const complete = `sandbox.berth.dev/complete: "true"`
	const steps = "-- steps --\napply spread.yaml job.yaml\nexpect layout\n"

	for name, text := range map[string]string{
		"a Job makes no more pods than it has left to complete": pools + spread + job(5, "completions: 3", "") + steps +
			table("layout", "Job/web  replicas 3", "a       2     2\nb       1     -\n"),
		"a Job without completions makes no more pods once one has succeeded": pools + spread + job(3, "", complete) + steps +
			table("layout", "Job/web  replicas 3  finished 3", "a       0     2\nb       0     -\n"),
		"a suspended Job has no pods": pools + spread + job(3, "suspend: true", "") + steps +
			table("layout", "Job/web  replicas 3", "a       0     2\nb       0     -\n"),
		"a Job with less parallelism gives up its youngest pods": pools + spread + job(4, "completions: 9", "") +
			"-- steps --\napply spread.yaml job.yaml\nscale Job/web 3\nexpect layout\n" +
			table("layout", "Job/web  replicas 3", "a       2     2\nb       1     -\n"),
	} {
		t.Run(name, func(t *testing.T) {
			expectMet(t, "scenario", play(t, "scenario", text))
		})
	}
}

func TestWhatCannotBePlayedIsRefused(t *testing.T) {
	const steps = "-- steps --\napply spread.yaml v1.yaml\n"
	for name, tc := range map[string]struct {
		text string
		want string
	}{
		"a scale in the middle of a rollout": {
			pools + twoInA + web("v1", 4, "", "", "") + web("v2", 4, "minReadySeconds: 1", `annotations: {version: "2"}`, "") +
				steps + "apply v2.yaml\nscale Deployment/web 5\n",
			"scale Deployment/web 5: Deployment/web: scaled in the middle of a rollout, which cannot be simulated; let the rollout end before",
		},
		"a rollout of a StatefulSet": {
			pools + twoInA + statefulSet(web("v1", 4, "", "", "")) + statefulSet(web("v2", 4, "", `annotations: {version: "2"}`, "")) +
				steps + "apply v2.yaml\n",
			"apply v2.yaml: the template of a StatefulSet changes, and its rollout cannot be simulated; use a Deployment",
		},
		"a spread that binds early": {
			pools + strings.Replace(twoInA, "    maxReplicas", "    patch: {spec: {priorityClassName: low}}\n    maxReplicas", 1) + web("v1", 4, "", "", "") + steps,
			"apply spread.yaml v1.yaml: the spread binds early, which cannot be simulated; use binding: Late, and patches of metadata only",
		},
		"replicas at a path": {
			pools + strings.Replace(twoInA, "  subsets:", "  targetFilter: {replicasPathList: [spec.replicas]}\n  subsets:", 1) + web("v1", 4, "", "", "") + steps,
			"apply spread.yaml v1.yaml: the spread reads replicas by replicasPathList, which cannot be simulated; leave it out",
		},
		"topology spread constraints": {
			pools + twoInA + web("v1", 4, "", "", "topologySpreadConstraints: [{maxSkew: 1, topologyKey: pool, whenUnsatisfiable: DoNotSchedule}]") + steps,
			"apply spread.yaml v1.yaml: the template has topologySpreadConstraints, which cannot be simulated; leave them out",
		},
		"affinity to pods": {
			pools + twoInA + web("v1", 4, "", "", "affinity: {podAffinity: {}}") + steps,
			"apply spread.yaml v1.yaml: the template has an affinity to pods, which cannot be simulated; leave it out",
		},
		"a template that names a node": {
			pools + twoInA + web("v1", 4, "", "", "nodeName: a-0") + steps,
			"apply spread.yaml v1.yaml: the template names a node, which cannot be simulated; select it by a label",
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario, err := Parse("s.txtar", []byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Run(scenario)
			if err == nil {
				t.Fatal("no error")
			}
			_, got, _ := strings.Cut(err.Error(), ": ") // the line is that of the step
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestABindingRecordsThePlace(t *testing.T) {
	text := pools + strings.Replace(twoInA, "    maxReplicas: 2\n  - name: b", `    maxReplicas: 1
    patch: {metadata: {labels: {arch: x86}, annotations: {example.com/package: p1}}}
  - name: b
    maxReplicas: 0`, 1) + web("web", 2, "", "", "") + "-- steps --\napply spread.yaml web.yaml\n"
	scenario, err := Parse("scenario", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(scenario.Nodes())
	if err := c.take(scenario.Steps[0].Action); err != nil {
		t.Fatal(err)
	}
	if err := c.settle(); err != nil {
		t.Fatal(err)
	}
	got := map[string]map[string]string{}
	for _, pod := range c.pods {
		delete(pod.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
		got[string(pod.UID)] = pod.Annotations
		for key, value := range pod.Labels {
			got[string(pod.UID)]["label "+key] = value
		}
	}
	want := map[string]map[string]string{
		"pod-1": {
			v1alpha1.MatchedAnnotation:         `{"name":"spread","subset":"a","uid":"pod-1"}`,
			v1alpha1.PodDeletionCostAnnotation: "200",
			"example.com/package":              "p1",
			"label app":                        "web",
			"label arch":                       "x86",
			"label berth.dev/subset":           "a",
		},
		"pod-2": {
			v1alpha1.MatchedAnnotation:         `{"name":"spread","subset":"","uid":"pod-2"}`,
			v1alpha1.PodDeletionCostAnnotation: "-300",
			"label app":                        "web",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestTheYoungestClaimsGiveWayToALoweredQuota(t *testing.T) {
	withQuota := func(section, quota string) string {
		return strings.NewReplacer("spread.yaml", section, "maxReplicas: 2", "maxReplicas: "+quota).Replace(twoInA)
	}
	scenario, err := Parse("scenario", []byte(strings.Replace(pools, "- {name: a, count: 1", "- {name: a, count: 0", 1)+
		withQuota("four.yaml", "4")+withQuota("two.yaml", "2")+web("web", 4, "", "", "")+"-- steps --\napply four.yaml web.yaml\napply two.yaml\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(scenario.Nodes())
	for _, step := range scenario.Steps {
		if err := c.take(step.Action); err != nil {
			t.Fatal(err)
		}
		if err := c.settle(); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	for _, pod := range c.pods {
		got[string(pod.UID)] = c.claims[pod.UID] + pod.Spec.NodeName
	}
	if diff := cmp.Diff(map[string]string{"pod-1": "a", "pod-2": "a", "pod-3": "b-0", "pod-4": "b-0"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The order is that of kube-controller-manager, except that it takes pods of about the same age as equal.
func TestReplicaSetGivesUpItsLeastPodFirst(t *testing.T) {
	c := newCluster(nil)
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	c.replicaSets = append(c.replicaSets, rs)
	add := func(name, node string, phase corev1.PodPhase, ready bool, cost string) {
		c.createPod(replicaSetKind, rs, &rs.Spec.Template, name, nil)
		pod := find(c.pods, name)
		pod.Spec.NodeName, pod.Status.Phase = node, phase
		if ready {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if cost != "" {
			pod.Annotations = map[string]string{v1alpha1.PodDeletionCostAnnotation: cost}
		}
	}
	add("old", "n1", corev1.PodRunning, true, "")
	add("young", "n2", corev1.PodRunning, true, "no number")
	add("crowded", "n3", corev1.PodRunning, true, "")
	add("cheap", "n3", corev1.PodRunning, true, "-100")
	add("dear", "n3", corev1.PodRunning, true, "100")
	add("not-ready", "n4", corev1.PodRunning, false, "200")
	add("not-running", "n4", corev1.PodPending, false, "200")
	add("no-node", "", corev1.PodPending, false, "200")

	var order []string
	for replicas := int32(len(c.pods) - 1); replicas >= 0; replicas-- {
		before := activePods(c.pods)
		rs.Spec.Replicas = &replicas
		c.syncReplicaSet(rs)
		for _, pod := range before {
			if find(c.pods, pod.Name) == nil {
				order = append(order, pod.Name)
			}
		}
	}
	want := []string{"no-node", "not-running", "not-ready", "cheap", "crowded", "young", "old", "dear"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
