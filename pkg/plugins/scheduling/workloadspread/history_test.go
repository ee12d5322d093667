package workloadspread_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// voyage is a port among random events. It has two subsets: a, whose nodes may have the taint "spot", which a tolerates; and b, which tolerates the taint "leaving" for three seconds, as long as the pods there may
// run on. A node of zone c is in no subset.
type voyage struct {
	*port
	draw *rand.Rand
	log  []string
	// quotas of the subsets, and adaptive and holds for the strategy of the spread. generation is 0 as long as there is no spread.
	quotas          [2]int
	adaptive, holds bool
	generation      int64
	pods            map[string]*passenger
	made            int
	// disturbed is true if the spread has come in the middle of the last cycle. Until settled the bind of a deleted pod may be in doubt, so that its slot is taken.
	disturbed bool
	settled   time.Time
	// blind is true while the API server allows no watch of spreads.
	blind bool
}

// passenger is a pod of the workload.
type passenger struct {
	name, revision string
	// tolerates is true if its template tolerates "spot". besideCats is true if it runs on nodes with cats only. Of an orphan the owner's kind does not exist.
	tolerates, besideCats, orphan bool
	// admitted is true if admission has added the tolerations of the subsets.
	admitted bool
	since    time.Time
	aboard   bool
}

const (
	spot, leaving = "spot", "leaving"
	places        = 3 // of a node
	// restSeconds are more than the queue's longest backoff, and than the doubt about a bind.
	restSeconds = 15
)

var histories = flag.Uint64("histories", 60, "how many random histories TestNoHistoryOfAWholeSchedulerBreaksARule plays")

// TestNoHistoryOfAWholeSchedulerBreaksARule plays random histories of a whole scheduler. The test looks at the API server alone: at each pod that gets a node, and at the pods that wait when nothing happens any more.
func TestNoHistoryOfAWholeSchedulerBreaksARule(t *testing.T) {
	for seed := range *histories {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				t.Helper()
				v := setOut(t, rand.New(rand.NewPCG(seed, 0)))
				for range 60 {
					v.step()
				}
				v.rest()
			})
		})
	}
}

func setOut(t *testing.T, draw *rand.Rand) *voyage {
	t.Helper()
	v := &voyage{draw: draw, pods: map[string]*passenger{}, quotas: [2]int{1 + draw.IntN(2), 1 + draw.IntN(2)}, adaptive: draw.IntN(3) > 0, holds: draw.IntN(2) == 0}
	var nodes []*corev1.Node
	for _, zone := range []string{"a", "b", "c"}[:2+draw.IntN(2)] {
		node := nodeOf(zone)
		node.Status.Allocatable[corev1.ResourceCPU] = *resource.NewQuantity(places, resource.DecimalSI)
		nodes = append(nodes, node)
	}
	if draw.IntN(2) == 0 {
		nodes[0].Spec.Taints = []corev1.Taint{{Key: spot, Effect: corev1.TaintEffectNoSchedule}}
	}
	spec := ""
	if draw.IntN(3) > 0 {
		v.generation, spec = 1, v.spec()
	}
	v.port = openPort(t, spec, func(profile *schedulerconfig.KubeSchedulerProfile) {
		profile.Plugins.Permit.Enabled = append(profile.Plugins.Permit.Enabled, schedulerconfig.Plugin{Name: permitName})
	}, nodes...)
	v.say("%s, with %d nodes: %s", map[bool]string{true: "a spread", false: "no spread yet"}[spec != ""], len(nodes), v.spec())
	v.client.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{{Name: "pools", Kind: "Pool"}}}} // no Ghosts
	// client-go's object store does not know what the bind of a pod without a spread does.
	v.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		binding, is := action.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		if !is {
			return false, nil, nil
		}
		resource := corev1.SchemeGroupVersion.WithResource("pods")
		object, err := v.client.Tracker().Get(resource, binding.Namespace, binding.Name)
		if err != nil {
			return true, nil, err
		}
		pod := object.(*corev1.Pod).DeepCopy()
		if pod.DeletionTimestamp != nil {
			return true, nil, apierrors.NewConflict(resource.GroupResource(), pod.Name, errors.New("it is being deleted"))
		}
		pod.Spec.NodeName = binding.Target.Name
		return true, binding, v.client.Tracker().Update(resource, pod, pod.Namespace)
	})
	v.taken = func(pod string) {
		if v.draw.IntN(12) == 0 {
			v.deleteSlowly(pod)
		}
	}
	v.found = func(string) {
		if v.generation == 0 && v.draw.IntN(3) == 0 {
			v.disturbed = true
			v.comes()
		}
	}
	return v
}

func (v *voyage) spec() string {
	strategy := map[bool]string{true: "Adaptive", false: "Fixed"}[v.adaptive]
	whenFull := map[bool]string{true: "Wait", false: "Schedule"}[v.holds]
	return fmt.Sprintf(`subsets:
- %s, maxReplicas: %d, tolerations: [{key: spot, operator: Exists}]}
- %s, maxReplicas: %d, tolerations: [{key: leaving, operator: Exists, effect: NoExecute, tolerationSeconds: 3}]}
scheduleStrategy: {type: %s, whenFull: %s}`, inA, v.quotas[0], inB, v.quotas[1], strategy, whenFull)
}

func (v *voyage) say(format string, args ...any) {
	v.log = append(v.log, fmt.Sprintf(format, args...))
}

func (v *voyage) fatalf(format string, args ...any) {
	v.t.Helper()
	v.t.Fatalf("%s\nFAULT: %s", strings.Join(v.log, "\n"), fmt.Sprintf(format, args...))
}

// comes creates the spread, or raises one of its quotas.
func (v *voyage) comes() {
	if v.generation++; v.generation > 1 {
		v.quotas[v.draw.IntN(2)]++
	}
	v.say("the spread is %s", v.spec())
	v.spread(v.generation, v.spec())
}

func (v *voyage) step() {
	switch names := v.names(); v.draw.IntN(14) {
	case 0, 1, 2, 3:
		if len(names) < 8 {
			v.embark()
		}
	case 4, 5, 6, 7:
		v.sail()
	case 8:
		if len(names) > 0 {
			name := names[v.draw.IntN(len(names))]
			v.say("%s is deleted", name)
			v.delete(name)
			delete(v.pods, name)
		}
	case 9:
		v.cats()
	case 10:
		v.taint()
	case 11:
		if v.generation == 0 || v.quotas[0]+v.quotas[1] < 6 && v.draw.IntN(3) == 0 {
			v.comes()
		}
	case 12:
		if v.draw.IntN(2) == 0 {
			v.interrupt()
		} else {
			v.wait(90)
		}
	default:
		v.rest()
	}
}

// interrupt ends the watch of spreads, until time passes: the spread may come meanwhile, and its pods wait for it for less than a minute.
func (v *voyage) interrupt() {
	if v.blind {
		return
	}
	v.say("the watch of spreads ends")
	v.blind = true
	v.server.interrupt()
	settle()
}

func (v *voyage) resume() {
	if !v.blind {
		return
	}
	v.say("spreads may be watched again")
	v.blind, v.settled = false, time.Now().Add(restSeconds*time.Second)
	v.server.resume()
}

func (v *voyage) names() (names []string) {
	for name := range v.pods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// embark creates a pod, as admission changes it if there is a spread.
func (v *voyage) embark() {
	v.made++
	p := &passenger{name: fmt.Sprintf("p%d", v.made), revision: []string{"v1", "v1", "v2"}[v.draw.IntN(3)], tolerates: v.draw.IntN(5) == 0, besideCats: v.draw.IntN(4) == 0,
		orphan: v.draw.IntN(10) == 0, since: time.Now()}
	p.admitted = v.generation > 0 && !p.orphan
	v.pods[p.name] = p
	v.say("%+v comes", *p)
	v.pod(p.name, func(pod *corev1.Pod) {
		pod.Labels["pod-template-hash"] = p.revision
		if p.tolerates {
			pod.Spec.Tolerations = []corev1.Toleration{{Key: spot, Operator: corev1.TolerationOpExists}}
		}
		if p.besideCats {
			pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cat"}}, TopologyKey: corev1.LabelHostname}}}}
		}
		if p.orphan {
			pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].UID = "example.com/v1", "Ghost", "ghost-uid"
		} else if p.admitted {
			asAdmitted(v.t, v.spec())(pod)
		}
	})
}

// deleteSlowly deletes a pod that has a finalizer.
func (v *voyage) deleteSlowly(name string) {
	pod, err := v.client.CoreV1().Pods("ns").Get(v.ctx, name, metav1.GetOptions{})
	if err != nil || v.pods[name] == nil {
		return
	}
	v.say("%s is deleted in the middle of its cycle, and has a finalizer", name)
	v.settled = time.Now().Add(restSeconds * time.Second)
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.Finalizers = &metav1.Time{Time: time.Now()}, []string{"example.com/kept"}
	if _, err := v.client.CoreV1().Pods("ns").Update(v.ctx, pod, metav1.UpdateOptions{}); err != nil {
		v.t.Fatal(err)
	}
	settle()
	delete(v.pods, name)
}

// cats come to a node, or leave it.
func (v *voyage) cats() {
	node := v.nodes()[v.draw.IntN(len(v.nodes()))].Name
	name := "cat-of-" + node
	if v.hasCat(node) {
		v.say("the cat of %s leaves", node)
		v.delete(name)
		return
	}
	v.say("a cat comes to %s", node)
	v.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(fmt.Sprintf("%s-%d", name, len(v.log))), Labels: map[string]string{"app": "cat"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main"}}}})
}

func (v *voyage) hasCat(node string) bool {
	_, err := v.client.CoreV1().Pods("ns").Get(v.ctx, "cat-of-"+node, metav1.GetOptions{})
	return err == nil
}

// taint announces that the node of subset b will leave, or takes that back.
func (v *voyage) taint() {
	node := v.nodes()[1].DeepCopy()
	if len(node.Spec.Taints) > 0 {
		node.Spec.Taints = nil
	} else {
		node.Spec.Taints = []corev1.Taint{{Key: leaving, Effect: corev1.TaintEffectNoExecute}}
	}
	v.say("node-b has taints %v", node.Spec.Taints)
	if _, err := v.client.CoreV1().Nodes().Update(v.ctx, node, metav1.UpdateOptions{}); err != nil {
		v.t.Fatal(err)
	}
	settle()
}

func (v *voyage) nodes() []corev1.Node {
	list, err := v.client.CoreV1().Nodes().List(v.ctx, metav1.ListOptions{})
	if err != nil {
		v.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// sail runs the next cycle.
func (v *voyage) sail() {
	if len(v.scheduler.SchedulingQueue.PodsInActiveQ()) == 0 {
		return
	}
	v.disturbed = false
	v.cycle()
	last := v.popped[len(v.popped)-1]
	pods := v.list()
	for _, name := range v.names() {
		p, pod := v.pods[name], pods[name]
		if pod.Spec.NodeName == "" || p.aboard {
			continue
		}
		p.aboard = true
		v.say("%s gets %s, %s", name, pod.Spec.NodeName, pod.Annotations[v1beta1.MatchedAnnotation])
		v.judge(p, pod, pods)
	}
	if p := v.pods[last]; p != nil && !p.aboard {
		v.say("%s finds no node", last)
	}
}

// wait lets seconds pass.
func (v *voyage) wait(seconds int) {
	v.resume()
	v.say("%d s pass", seconds)
	for range seconds {
		for len(v.scheduler.SchedulingQueue.PodsInActiveQ()) > 0 {
			v.sail()
		}
		time.Sleep(time.Second)
	}
}

func (v *voyage) list() map[string]*corev1.Pod {
	list, err := v.client.CoreV1().Pods("ns").List(v.ctx, metav1.ListOptions{})
	if err != nil {
		v.t.Fatal(err)
	}
	pods := map[string]*corev1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods
}

// divided is true if the spread divides the pod.
func (v *voyage) divided(p *passenger) bool { return v.generation > 0 && !p.orphan }

// subsetOf is the subset in which a bound pod counts: that of its record, or the one whose node it has if it ran before the spread. It is -1 for none.
func (v *voyage) subsetOf(pod *corev1.Pod) int {
	text, is := pod.Annotations[v1beta1.MatchedAnnotation]
	if !is {
		return slices.Index([]string{"node-a", "node-b"}, pod.Spec.NodeName)
	}
	var record v1beta1.MatchedSubset
	if err := json.Unmarshal([]byte(text), &record); err != nil {
		v.t.Fatal(err)
	}
	return slices.Index([]string{"a", "b"}, record.Subset)
}

// kept is how many pods of a revision count in each subset, and how many of them have no node yet.
func (v *voyage) kept(revision string, pods map[string]*corev1.Pod) (in [2]int, pending int) {
	for name, p := range v.pods {
		pod := pods[name]
		switch {
		case p.revision != revision || !v.divided(p):
		case pod.Spec.NodeName == "":
			pending++
		default:
			if i := v.subsetOf(pod); i >= 0 {
				in[i]++
			}
		}
	}
	return in, pending
}

// lets is true if a pod in a subset may run on a node by the node's zone and taints. The subset -1 is none.
func lets(p *passenger, in int, node *corev1.Node) bool {
	if in >= 0 && node.Name != []string{"node-a", "node-b"}[in] {
		return false
	}
	return !slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key != spot || !p.tolerates && (in != 0 || !p.admitted) })
}

// judge looks at a pod that has just got its node.
func (v *voyage) judge(p *passenger, pod *corev1.Pod, pods map[string]*corev1.Pod) {
	v.t.Helper()
	in := -1
	if v.divided(p) {
		if _, is := pod.Annotations[v1beta1.MatchedAnnotation]; !is {
			v.fatalf("%s is bound as if it had no spread", p.name)
		}
		in = v.subsetOf(pod)
	}
	nodes := v.nodes()
	node := &nodes[slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == pod.Spec.NodeName })]
	if !lets(p, in, node) {
		v.fatalf("%s must not run on %s, which has taints %v", p.name, node.Name, node.Spec.Taints)
	}
	if !v.divided(p) {
		return
	}
	kept, pending := v.kept(p.revision, pods)
	if in >= 0 && kept[in] > v.quotas[in] {
		v.fatalf("subset %d has %d pods of %s", in, kept[in], p.revision)
	}
	if v.disturbed || v.blind || time.Now().Before(v.settled) {
		return
	}
	if in < 0 {
		in = len(kept)
	}
	for i := range in {
		free := kept[i] < v.quotas[i]
		if v.adaptive && free && !p.besideCats && v.fits(p, i, pods) != "" {
			v.fatalf("%s goes past subset %d, which has a slot and a node", p.name, i)
		}
		if !v.adaptive && kept[i]+pending < v.quotas[i] {
			v.fatalf("%s goes past subset %d, which has slots for all", p.name, i)
		}
	}
}

// fits is a node for the pod in a subset. Empty if there is none.
func (v *voyage) fits(p *passenger, in int, pods map[string]*corev1.Pod) string {
	for _, node := range v.nodes() {
		taken := 0
		for _, pod := range pods {
			if pod.Spec.NodeName == node.Name && pod.Labels["app"] != "cat" {
				taken++
			}
		}
		if lets(p, in, &node) && taken < places && (!p.besideCats || v.hasCat(node.Name)) {
			return node.Name
		}
	}
	return ""
}

// rest lets some time pass. Then no pod waits that could go.
func (v *voyage) rest() {
	v.t.Helper()
	v.wait(restSeconds)
	pods := v.list()
	for _, name := range v.names() {
		p := v.pods[name]
		if p.aboard || p.orphan && time.Since(p.since) < 80*time.Second {
			continue
		}
		if node := v.couldGoTo(p, pods); node != "" {
			v.fatalf("%s waits, and could go to %s: %v", name, node, pods[name].Status.Conditions)
		}
	}
}

func (v *voyage) couldGoTo(p *passenger, pods map[string]*corev1.Pod) string {
	if !v.divided(p) {
		return v.fits(p, -1, pods)
	}
	kept, _ := v.kept(p.revision, pods)
	full := true
	for i, quota := range v.quotas {
		if kept[i] >= quota {
			continue
		}
		full = false
		if v.adaptive {
			if node := v.fits(p, i, pods); node != "" {
				return node
			}
			continue
		}
		// One of the pods that wait has the slot, and nobody knows which.
		for _, name := range v.names() {
			if other := v.pods[name]; !other.aboard && v.divided(other) && other.revision == p.revision && v.fits(other, i, pods) == "" {
				return ""
			}
		}
		return v.fits(p, i, pods)
	}
	if full && !v.holds {
		return v.fits(p, -1, pods)
	}
	return ""
}
