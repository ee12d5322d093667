package soak

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var (
	length = flag.Duration("soak", 15*time.Second, "how long to disturb the cluster, in rounds of at most five minutes")
	seed   = flag.Uint64("seed", 1, "seed of the disturbances")
)

const (
	longestRound = 5 * time.Minute
	// calm is how long nothing is killed or halted after a kill. A leader's lease is 15 s.
	calm     = 20 * time.Second
	replicas = 2 // of scheduler and controller
	// steady has this many pods, and its budget keeps so many.
	steady, floor = 10, 8
	// surge is that of the UnitedDeployment.
	surge = 1
	// revised is how many pods the StatefulSet has whose spread counts each revision apart. These are its quotas in pools a and b.
	revised, revisedA, revisedB = 20, 8, 6
	// everyKind is the shortest run in which each kind of disturbance must happen, and everyKill the shortest in which each kind of kill must.
	everyKind, everyKill = time.Minute, 3 * time.Minute
)

// world is a namespace with a workload of each kind.
type world struct {
	*testing.T
	*harness.Cluster
	// ns is the namespace of all workloads but the UnitedDeployment, which is alone in its own.
	ns, split string
	random    *rand.Rand
	// nodes stay, and brief ones come and go. No pod of the budget is on a brief one, because a node that goes asks no budget.
	nodes, brief []*corev1.Node
	// policy and kubeconfig are those of the descheduler.
	policy, kubeconfig string
	// did counts the disturbances by name, and version is that of the last rollout or image.
	did     map[string]int
	version int
	// binds is how many pods Berth has bound, and raised how many writes gave a child of the UnitedDeployment more.
	binds, raised int
}

// TestEverythingAtOnce holds all promises, and comes to rest after each round. The second half of the rounds kills nothing: the memory of the processes must not grow there.
func TestEverythingAtOnce(t *testing.T) {
	t.Logf("seed %d", *seed)
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "soak", Dir: t.TempDir()}, product.Options{
		SidecarSets: true, Replicas: map[string]int{product.Scheduler: replicas, product.Controller: replicas, product.United: replicas},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	w := &world{T: t, Cluster: cluster, random: rand.New(rand.NewPCG(*seed, 0)), did: map[string]int{}}
	w.setUp()
	rounds := max(1, int((*length+longestRound-1)/longestRound))
	var used []usage
	for round := range rounds {
		kills := round < (rounds+1)/2
		w.round(*length/time.Duration(rounds), kills)
		now := w.usage()
		t.Logf("round %d of %d: %v; %s", round+1, rounds, w.did, now)
		if t.Failed() {
			return
		}
		if !kills {
			used = append(used, now)
		}
	}
	expectFlat(t, used)
	w.expectDisturbed()
}

// expectDisturbed fails a run that has not tested what it should. Short runs need not do everything.
func (w *world) expectDisturbed() {
	w.Helper()
	if w.binds == 0 || w.raised == 0 && *length >= everyKind {
		w.Errorf("%d binds and %d writes that gave a child more show nothing", w.binds, w.raised)
	}
	for _, one := range w.disturbances(true) {
		if w.did[one.name] == 0 && (*length >= everyKill || *length >= everyKind && !one.kills) {
			w.Errorf("the test has not done %q", one.name)
		}
	}
	if *length >= everyKind {
		harness.ExpectAll(w, w.did, relabelled)
	}
}

func (w *world) setUp() {
	w.Helper()
	ctx := w.Context()
	for i := range 15 {
		pool, all, lives := string("abc"[i%3]), &w.nodes, "long"
		if i >= 12 {
			all, lives = &w.brief, "short"
		}
		*all = append(*all, sandbox.NewNode(fmt.Sprintf("soak-%s-%d", pool, i), "zone-"+pool, map[string]string{"pool": pool, "lives": lives}, nil, nil))
	}
	if err := w.Sandbox.CreateNodes(ctx, slices.Concat(w.nodes, w.brief)); err != nil {
		w.Fatal(err)
	}
	var err error
	for _, ns := range []*string{&w.ns, &w.split} {
		if *ns, err = w.CreateNamespace(ctx, "soak"); err != nil {
			w.Fatal(err)
		}
	}
	w.policy, w.kubeconfig = filepath.Join(w.TempDir(), "policy.yaml"), filepath.Join(w.TempDir(), "kubeconfig")
	if err := os.WriteFile(w.policy, []byte(policy), 0o600); err != nil {
		w.Fatal(err)
	}
	if err := w.WriteKubeconfigAs("system:serviceaccount:berth-system:berth-descheduler", w.kubeconfig); err != nil {
		w.Fatal(err)
	}
	w.apply(spread("counts", "scheduleStrategy: {quotaScope: Workload}", in("a", "maxReplicas: 25"), in("b", "maxReplicas: 20"), in("c", "")))
	w.apply(spread("shares", "scheduleStrategy: {type: Adaptive}", in("a", "maxReplicas: 25%"), in("b", "maxReplicas: 25%"), in("c", "maxReplicas: 50%")))
	w.apply(spreadFor("StatefulSet", "revised", "scheduleStrategy: {quotaScope: Revision}", in("a", fmt.Sprint("maxReplicas: ", revisedA)), in("b", fmt.Sprint("maxReplicas: ", revisedB)), in("c", "")))
	w.apply("{apiVersion: policy.kruise.io/v1beta1, kind: PodUnavailableBudget, metadata: {name: steady}, spec: {selector: {matchLabels: {app: steady}}, minAvailable: " + fmt.Sprint(floor) + "}}")
	w.applyIn(w.split, united(12))
	w.rest()
}

// rest ends all disturbances, and waits until everything is as it should be.
func (w *world) rest() {
	w.Helper()
	ctx := w.Context()
	for i, node := range w.nodes {
		w.patch("nodes", "", node.Name, fmt.Sprintf(`{"metadata":{"labels":{"pool":%q}},"spec":{"unschedulable":null}}`, string("abc"[i%3])))
	}
	for i, node := range w.brief {
		w.comes(node)
		w.patch("nodes", "", node.Name, fmt.Sprintf(`{"metadata":{"labels":{"pool":%q}}}`, string("abc"[i%3])))
	}
	w.apply(deployment("counts", 60, w.version))
	w.apply(deployment("shares", 30, w.version))
	w.apply(deployment("steady", steady, 0))
	w.apply(statefulSet(w.version))
	w.apply(spread("counts", "scheduleStrategy: {quotaScope: Workload}", in("a", "maxReplicas: 25"), in("b", "maxReplicas: 20"), in("c", "")))
	w.applyIn(w.split, united(12))
	w.apply(sidecars(w.version))
	w.allRun()
	if err := w.WaitFor(ctx, "everything to be at rest", func(ctx context.Context) (string, error) {
		list, err := w.Client.AppsV1().Deployments(w.ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			d := &list.Items[i]
			if s := d.Status; s.ObservedGeneration != d.Generation || s.ReadyReplicas != *d.Spec.Replicas || s.UpdatedReplicas != s.ReadyReplicas || s.Replicas != s.ReadyReplicas {
				return fmt.Sprintf("Deployment %s: %+v", d.Name, s), nil
			}
		}
		set, err := w.Client.AppsV1().StatefulSets(w.ns).Get(ctx, "revised", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || s.ReadyReplicas != revised || s.Replicas != revised {
			return fmt.Sprintf("StatefulSet %s: %+v", set.Name, s), nil
		}
		for name, client := range map[string]dynamic.ResourceInterface{
			"split": w.Dynamic.Resource(unitedv1beta1.Resource).Namespace(w.split), "soak": w.Dynamic.Resource(sidecarv1beta1.Resource),
		} {
			object, err := client.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			seen, _, _ := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
			conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
			ready := slices.ContainsFunc(conditions, func(c any) bool {
				condition := c.(map[string]any)
				return condition["type"] == "Ready" && condition["status"] == "True"
			})
			if seen != object.GetGeneration() || !ready {
				return fmt.Sprintf("%s %s: %v", object.GetKind(), name, object.Object["status"]), nil
			}
		}
		differences, err := checker.Recount(ctx, w.Dynamic, w.ns)
		return strings.Join(differences, "\n"), err
	}); err != nil {
		w.Fatal(err)
	}
}

// round disturbs the cluster for a while, under the eyes of all watchers, and lets it come to rest.
func (w *world) round(length time.Duration, kills bool) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	quotas, err := checker.Start(ctx, w.Dynamic)
	if err != nil {
		w.Fatal(err)
	}
	quotas.Grace = 5 * time.Second // the machine is busy
	children, err := checker.WatchChildren(w.Dynamic, w.split)
	if err != nil {
		w.Fatal(err)
	}
	children.Surge = surge
	kept, err := checker.WatchReady(ctx, w.Dynamic, w.ns, "app=steady", floor)
	if err != nil {
		w.Fatal(err)
	}
	disturbances, killed := w.disturbances(kills), time.Now().Add(-calm)
	for end := time.Now().Add(length); time.Now().Before(end) && !w.Failed(); {
		one := disturbances[w.random.IntN(len(disturbances))]
		if w.random.IntN(2) == 0 { // half of the time one of those that were done least, so that none is left out
			w.random.Shuffle(len(disturbances), func(i, j int) { disturbances[i], disturbances[j] = disturbances[j], disturbances[i] })
			one = slices.MinFunc(disturbances, func(a, b disturbance) int { return cmp.Compare(w.did[a.name], w.did[b.name]) })
		}
		if one.kills && time.Since(killed) < calm {
			continue
		}
		w.did[one.name]++
		one.do()
		if one.kills {
			killed = time.Now()
		}
	}
	w.rest()
	binds, judged := quotas.Binds(), quotas.Judged()
	violations, raised := children.Violations()
	unready, fewest := kept.End()
	for _, violation := range slices.Concat(quotas.Violations(), violations, unready) {
		w.Error(violation)
	}
	w.Logf("the budget never had less than %d of %d pods", fewest, steady)
	w.Logf("%d binds, %d of them judged; %d writes gave a child of the UnitedDeployment more", binds, judged, raised)
	w.binds, w.raised = w.binds+binds, w.raised+raised
}

type disturbance struct {
	name  string
	do    func()
	kills bool
}

func (w *world) disturbances(kills bool) []disturbance {
	all := []disturbance{
		{name: "scale", do: func() {
			switch w.random.IntN(3) {
			case 0:
				w.patch("deployments", "apps", "counts", fmt.Sprintf(`{"spec":{"replicas":%d}}`, 40+w.random.IntN(21)))
			case 1:
				w.patch("deployments", "apps", "shares", fmt.Sprintf(`{"spec":{"replicas":%d}}`, 20+w.random.IntN(11)))
			default:
				w.applyIn(w.split, united(6+w.random.IntN(6))) // fewer than at rest
			}
		}},
		{name: "roll out", do: func() {
			w.version++
			name := []string{"counts", "shares", "revised"}[w.random.IntN(3)]
			resource := map[bool]string{true: "statefulsets", false: "deployments"}[name == "revised"]
			w.patch(resource, "apps", name, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"version":"%d"}}}}}`, w.version))
		}},
		{name: "change a revision in place", do: w.relabel},
		{name: "update in place", do: func() {
			w.version++
			if pod := w.pod("counts", "shares", "steady", "revised"); pod != nil {
				w.try(w.tryPatch("pods", "", pod.Name, fmt.Sprintf(`{"spec":{"containers":[{"name":"main","image":"registry.example.com/main:%d"}]}}`, w.version)))
			}
		}},
		{name: "new sidecar", do: func() { w.version++; w.apply(sidecars(w.version)) }},
		{name: "delete", do: func() {
			if pod := w.pod("counts", "shares", "steady", "split", "revised"); pod != nil {
				w.try(w.Client.CoreV1().Pods(pod.Namespace).Delete(w.Context(), pod.Name, metav1.DeleteOptions{}))
			}
		}},
		{name: "evict", do: func() {
			if pod := w.pod("counts", "shares", "steady", "split", "revised"); pod != nil {
				w.evict(pod)
			}
		}},
		{name: "edit quotas", do: func() {
			w.apply(spread("counts", "scheduleStrategy: {quotaScope: Workload}", in("a", fmt.Sprint("maxReplicas: ", 15+w.random.IntN(11))), in("b", fmt.Sprint("maxReplicas: ", 10+w.random.IntN(11))), in("c", "")))
		}},
		{name: "cordon", do: func() {
			w.patch("nodes", "", w.nodes[w.random.IntN(len(w.nodes))].Name, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, w.random.IntN(3) == 0))
		}},
		{name: "move a node", do: func() { // the first three stay, so that each pool has a node
			w.patch("nodes", "", w.nodes[3+w.random.IntN(len(w.nodes)-3)].Name, fmt.Sprintf(`{"metadata":{"labels":{"pool":%q}}}`, string("abc"[w.random.IntN(3)])))
		}},
		{name: "replace a node", do: func() { // it comes back at once or later under its name, in any pool
			node := w.brief[w.random.IntN(len(w.brief))]
			err := w.Client.CoreV1().Nodes().Delete(w.Context(), node.Name, metav1.DeleteOptions{})
			w.try(err)
			if err != nil || w.random.IntN(2) == 0 {
				node = node.DeepCopy()
				node.Labels["pool"] = string("abc"[w.random.IntN(3)])
				w.comes(node)
			}
		}},
		{name: "drain", do: w.drain},
		{name: "deschedule", do: w.deschedule},
	}
	if kills {
		all = append(all, disturbance{name: "kill", kills: true, do: func() {
			w.allRun()
			name := []string{product.Scheduler, product.Controller, product.United}[w.random.IntN(3)]
			if err := w.Sandbox.Signal(name, w.random.IntN(replicas), syscall.SIGKILL); err != nil {
				w.Fatal(err)
			}
		}}, disturbance{name: "no webhook", kills: true, do: func() {
			w.allRun()
			var resume []func()
			for i := range replicas {
				back, err := w.Sandbox.Halt(product.Controller, i)
				if err != nil {
					w.Fatal(err)
				}
				resume = append(resume, back)
			}
			w.try(w.ApplyYAML(w.Context(), w.ns, deployment("counts", 40+w.random.IntN(21), w.version)))
			for _, back := range resume {
				back()
			}
		}})
	}
	return all
}

// relabelled is what did counts revisions by that were changed in place.
const relabelled = "pods with another revision"

// relabel does what updaters do that change pods in place: it gives a pod of the StatefulSet another revision, a newer or an older one. The pod has a slot of that revision from then on, whatever the quota. So
// that a quota is exceeded by nobody but a scheduler that counts wrong, each subset must have room for all pods that may be on their way there.
func (w *world) relabel() {
	set, err := w.Client.AppsV1().StatefulSets(w.ns).Get(w.Context(), "revised", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	list, err := w.Client.CoreV1().Pods(w.ns).List(w.Context(), metav1.ListOptions{LabelSelector: "app=revised"})
	if err != nil {
		w.Fatal(err)
	}
	type place struct{ revision, subset string }
	placeOf := func(pod *corev1.Pod) (is place, bound bool) {
		return place{pod.Labels[appsv1.ControllerRevisionHashLabelKey], pod.Labels[v1beta1.SubsetLabel]}, pod.Spec.NodeName != ""
	}
	revisions, taken, unbound := sets.New(set.Status.UpdateRevision), map[place]int{}, revised
	for i := range list.Items {
		at, bound := placeOf(&list.Items[i])
		revisions.Insert(at.revision)
		if bound {
			taken[at]++
			unbound--
		}
	}
	w.random.Shuffle(len(list.Items), func(i, j int) { list.Items[i], list.Items[j] = list.Items[j], list.Items[i] })
	others := sets.List(revisions)
	w.random.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	for i := range list.Items {
		pod := &list.Items[i]
		at, bound := placeOf(pod)
		for _, revision := range others {
			room := func(subset string, quota int) bool {
				if bound && at.subset == subset {
					quota--
				}
				return taken[place{revision, subset}]+unbound <= quota
			}
			if revision == at.revision || bound && at.subset == "" || !room("a", revisedA) || !room("b", revisedB) {
				continue
			}
			err := w.tryPatch("pods", "", pod.Name, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, appsv1.ControllerRevisionHashLabelKey, revision))
			w.try(err)
			if err == nil {
				w.did[relabelled]++
			}
			return
		}
	}
}

// comes creates a brief node, unless it is there.
func (w *world) comes(node *corev1.Node) {
	w.Helper()
	if err := w.Sandbox.CreateNodes(w.Context(), []*corev1.Node{node}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
}

// allRun waits until all components run again.
func (w *world) allRun() {
	w.Helper()
	if err := w.Sandbox.WaitReady(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// drain evicts all pods of a cordoned node.
func (w *world) drain() {
	node := w.nodes[w.random.IntN(len(w.nodes))].Name
	w.patch("nodes", "", node, `{"spec":{"unschedulable":true}}`)
	for _, ns := range []string{w.ns, w.split} {
		pods, err := w.Pods(w.Context(), ns)
		if err != nil {
			w.Fatal(err)
		}
		for i := range pods {
			if pods[i].Spec.NodeName == node {
				w.evict(&pods[i])
			}
		}
	}
	w.patch("nodes", "", node, `{"spec":{"unschedulable":null}}`)
}

func (w *world) evict(pod *corev1.Pod) {
	w.Helper()
	w.try(w.Client.CoreV1().Pods(pod.Namespace).EvictV1(w.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}))
}

func (w *world) deschedule() {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), filepath.Join(harness.BinDir(), "berth-descheduler"), "--kubeconfig="+w.kubeconfig, "--policy-config-file="+w.policy, "--secure-port=0", "--cert-dir="+filepath.Dir(w.policy))
	if output, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("the descheduler: %v\n%s", err, output)
	}
}

// try is for a request that somebody may refuse, or whose pod may be gone or change meanwhile, or whose webhook may be away.
func (w *world) try(err error) {
	w.Helper()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsForbidden(err) && !isAway(err) {
		w.Fatal(err)
	}
}

// pod is any pod of these workloads. Nil if there is none.
func (w *world) pod(apps ...string) *corev1.Pod {
	w.Helper()
	ns, app := w.ns, apps[w.random.IntN(len(apps))]
	if app == "split" {
		ns = w.split
	}
	list, err := w.Client.CoreV1().Pods(ns).List(w.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		w.Fatal(err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[w.random.IntN(len(list.Items))]
}

func (w *world) apply(text string) {
	w.Helper()
	w.applyIn(w.ns, text)
}

func (w *world) applyIn(ns, text string) {
	w.Helper()
	// While a component starts again, its webhooks may not answer.
	if err := w.WaitFor(w.Context(), "an object to be applied", func(ctx context.Context) (string, error) {
		err := w.ApplyYAML(ctx, ns, text)
		if isAway(err) {
			return err.Error(), nil
		}
		return "", err
	}); err != nil {
		w.Fatal(err)
	}
}

// tryPatch merges a strategic merge patch.
func (w *world) tryPatch(resource, group, name, patch string) error {
	client := w.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource})
	if resource == "nodes" {
		_, err := client.Patch(w.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	_, err := client.Namespace(w.ns).Patch(w.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// patch is tryPatch for what only an absent webhook refuses.
func (w *world) patch(resource, group, name, patch string) {
	w.Helper()
	if err := w.WaitFor(w.Context(), name+" to be patched", func(context.Context) (string, error) {
		err := w.tryPatch(resource, group, name, patch)
		if isAway(err) {
			return err.Error(), nil
		}
		return "", err
	}); err != nil {
		w.Fatal(err)
	}
}

// isAway is true if a webhook did not answer, or if somebody else wrote at the same time.
func isAway(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err)
}

// podSpec is that of all workloads.
const podSpec = `terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.example.com/main:0"}]`

func deployment(name string, replicas, version int) string {
	scheduler := "schedulerName: berth-scheduler, "
	if name == "steady" {
		scheduler = "nodeSelector: {lives: long}, "
	}
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {replicas: %[2]d, selector: {matchLabels: {app: %[1]s}},
template: {metadata: {labels: {app: %[1]s}, annotations: {version: "%[3]d"}}, spec: {%[4]s%[5]s}}}}`, name, replicas, version, scheduler, podSpec)
}

// statefulSet has pods of the revisions with which they were made or which they were given since.
func statefulSet(version int) string {
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: revised}, spec: {replicas: %d, serviceName: revised, podManagementPolicy: Parallel, updateStrategy: {type: OnDelete},
selector: {matchLabels: {app: revised}}, template: {metadata: {labels: {app: revised}, annotations: {version: "%d"}}, spec: {schedulerName: berth-scheduler, %s}}}}`, revised, version, podSpec)
}

func in(pool, limit string) string {
	if limit != "" {
		limit = ", " + limit
	}
	return fmt.Sprintf("{name: %[1]s%[2]s, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%[1]s]}]}}", pool, limit)
}

func spread(name, strategy string, subsets ...string) string {
	return spreadFor("Deployment", name, strategy, subsets...)
}

func spreadFor(kind, name, strategy string, subsets ...string) string {
	return fmt.Sprintf("{apiVersion: apps.kruise.io/v1alpha1, kind: WorkloadSpread, metadata: {name: %[1]s}, spec: {targetRef: {apiVersion: apps/v1, kind: %[4]s, name: %[1]s}, %[2]s, subsets: [%[3]s]}}",
		name, strategy, strings.Join(subsets, ", "), kind)
}

func united(replicas int) string {
	return fmt.Sprintf("{apiVersion: apps.kruise.io/v1beta1, kind: UnitedDeployment, metadata: {name: split}, spec: {replicas: %d, selector: {matchLabels: {app: split}}, "+
		"template: {deploymentTemplate: {spec: {template: {metadata: {labels: {app: split}}, spec: {%s}}}}}, updateStrategy: {maxSurge: %d}, topology: {subsets: [{name: one}, {name: two}]}}}", replicas, podSpec, surge)
}

func sidecars(version int) string {
	return fmt.Sprintf("{apiVersion: apps.kruise.io/v1beta1, kind: SidecarSet, metadata: {name: soak}, spec: {selector: {matchLabels: {app: steady}}, containers: [{name: log, image: 'registry.example.com/log:%d'}], updateStrategy: {maxUnavailable: 50%%}}}", version)
}

// policy lets the descheduler act at once.
const policy = `
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: berth
  pluginConfig:
  - {name: DefaultEvictor, args: {}}
  - {name: SubsetEvictor, args: {}}
  - {name: EvictUnschedulableSubsetPods, args: {skewTolerance: 1s, maxPerSubset: 100%, backoff: {base: 5s, longest: 1m}}}
  - {name: EnforceSubsetMaxReplicas, args: {settleTime: 1s, maxUnavailable: 10%, backoff: {base: 5s, longest: 1m}}}
  - {name: RebalanceToPreferredSubset, args: {stabilizationWindow: 5s, minResidence: 5s, cooldown: 1s, maxMovesPerSpread: 3, backoff: {base: 5s, longest: 1m}}}
  plugins:
    filter: {enabled: [SubsetEvictor]}
    preEvictionFilter: {enabled: [SubsetEvictor]}
    deschedule: {enabled: [EvictUnschedulableSubsetPods, EnforceSubsetMaxReplicas]}
    balance: {enabled: [RebalanceToPreferredSubset]}
`

// usage is what each process of Berth uses: its resident memory in bytes and its goroutines, by component and replica.
type usage map[string]float64

func (u usage) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(u)) {
		unit, by := "", 1.
		if strings.HasSuffix(name, "memory") {
			unit, by = " MiB", 1<<20
		}
		all = append(all, fmt.Sprintf("%s %.0f%s", name, u[name]/by, unit))
	}
	return strings.Join(all, ", ")
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

func (w *world) usage() usage {
	w.Helper()
	u := usage{}
	for _, status := range w.Sandbox.Status() {
		if status.Name != product.Scheduler && status.Name != product.Controller && status.Name != product.United {
			continue
		}
		memory, err := harness.ResidentMemory(status.PID)
		if err != nil {
			w.Fatal(err)
		}
		u[fmt.Sprintf("%s-%d memory", status.Name, status.Replica)] = memory
		text, err := harness.Metrics(w.Context(), w.Sandbox, status)
		if err != nil {
			w.Fatal(err)
		}
		found := goroutines.FindStringSubmatch(text)
		if found == nil {
			w.Fatalf("%s-%d exposes no number of goroutines", status.Name, status.Replica)
		}
		n, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			w.Fatal(err)
		}
		u[fmt.Sprintf("%s-%d goroutines", status.Name, status.Replica)] = n
	}
	return u
}

// expectFlat compares the last rounds with the first ones. What a process uses may grow by a third, and by a little: caches fill.
func expectFlat(t *testing.T, rounds []usage) {
	t.Helper()
	third := len(rounds) / 3
	if third == 0 {
		t.Logf("%d rounds without a kill are too few to tell whether memory grows", len(rounds))
		return
	}
	for name := range rounds[0] {
		mean := func(rounds []usage) (sum float64) {
			for _, u := range rounds {
				sum += u[name] / float64(len(rounds))
			}
			return sum
		}
		little := 50.
		if strings.HasSuffix(name, "memory") {
			little = 16 << 20
		}
		first, last := mean(rounds[:third]), mean(rounds[len(rounds)-third:])
		if last > first*4/3+little {
			t.Errorf("%s grows: %.0f in the first rounds, %.0f in the last ones", name, first, last)
		}
	}
}
