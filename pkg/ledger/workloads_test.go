package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/test/testkit/worlds"
)

const changingWorkload = "a workload that changes"

func TestPodsFollowAWorkloadThatChanges(t *testing.T) {
	worlds.Check(t, changingWorkload, 6000, workloadHistory)
}

// changing is a world with one workload. It is scaled, rolled out, and made again under its name. The watch shows its numbers of replicas late, and the ledger may have them read.
type changing struct {
	*world
	kind schema.GroupKind
	// label has the revision of a pod.
	label string
	// made is how often the workload was made, and revision the number of its newest revision.
	made, revision int
	// replicas are the numbers that the workload has had. The watch has shown the one at watched, and the ledger knows that at known.
	replicas       []int32
	watched, known int
	// asked is the place of the latest replicas when each open question was asked.
	asked []int
	pods  []*changingPod
}

type changingPod struct {
	*corev1.Pod
	// of is made when the pod was made, revision that of the pod, and since its creation. asked is the place of the replicas at that time.
	of, revision, asked int
	since               time.Time
	// in is the place of a bound pod among the subsets. Negative for a pending one.
	in int
}

func (c *changing) object(made int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: types.UID(fmt.Sprintf("web-%d", made))}
}

// at is the workload with the replicas at a place.
func (c *changing) at(place int) metav1.Object {
	meta := c.object(c.made)
	if meta.Generation = int64(place); c.kind == deploymentKind {
		return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(c.replicas[place])}}
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: meta}
}

// show has the watch show the workload with the replicas at a place.
func (c *changing) show(place int) {
	c.watched, c.known = place, max(place, c.known)
	c.apply(OwnerSeen{Kind: c.kind, Object: c.at(place)})
}

// latest is the place of the replicas that the API server has.
func (c *changing) latest() int { return len(c.replicas) - 1 }

// read answers the open questions with what the API server had at that time, or later.
func (c *changing) read(h *worlds.History) {
	questions, asked := c.questions, c.asked
	c.questions, c.asked = nil, nil
	for i, q := range questions {
		place := asked[i] + h.Number("read the later one", c.latest()-asked[i]+1)
		c.known = max(c.known, place)
		c.apply(OwnerRead{Kind: c.kind, Object: c.at(place), Question: q.Number})
	}
}

// siblings are the live pods of the ReplicaSet of a pod, with the pod itself, and the latest place at which one of them was made.
func (c *changing) siblings(of *changingPod) (live int32, latest int) {
	for _, p := range c.pods {
		if p.DeletionTimestamp == nil && p.OwnerReferences[0].UID == of.OwnerReferences[0].UID {
			live, latest = live+1, max(latest, p.asked)
		}
	}
	return live, latest
}

func (c *changing) replicaSet() metav1.ObjectMeta {
	name := fmt.Sprintf("rs-%d-%d", c.made, c.revision)
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{{
		APIVersion: c.kind.Group + "/v1", Kind: c.kind.Kind, Name: "web", UID: c.object(c.made).UID, Controller: ptr.To(true)}}}
}

func (c *changing) rollOut() {
	c.revision++
	c.apply(OwnerSeen{Kind: replicaSetKind, Object: &appsv1.ReplicaSet{ObjectMeta: c.replicaSet()}})
}

// create makes a pod of the newest revision.
func (c *changing) create(name string) {
	rs := c.replicaSet()
	pod := podOf(rs.UID, name)
	pod.OwnerReferences[0].Name, pod.Labels = rs.Name, map[string]string{c.label: fmt.Sprintf("v%d", c.revision)}
	c.pods = append(c.pods, &changingPod{Pod: pod, of: c.made, revision: c.revision, asked: c.latest(), since: c.now, in: -1})
	c.see(pod)
}

// in is how many pods count for a pod in a subset.
func (c *changing) in(i int, of *changingPod) (n int32) {
	for _, p := range c.pods {
		if p.in == i && p.revision == of.revision && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

// workloadHistory has two subsets, each with half of the pods or with two of them. What is above goes to no subset. Each revision has the quotas for itself. All nodes have room, so the pods fill the first
// subset before the second, and wait for nothing but news.
func workloadHistory(t rapid.TB, h *worlds.History) {
	c := &changing{world: emptyWorld(t), kind: deploymentKind, label: "pod-template-hash", replicas: []int32{4}}
	if h.Yes("of Argo", 3) {
		c.kind, c.label = schema.GroupKind{Group: "argoproj.io", Kind: "Rollout"}, "rollouts-pod-template-hash"
	}
	halves := c.kind == deploymentKind && h.Yes("halves", 2)
	quota := map[bool]string{true: `"50%"`, false: "2"}[halves]
	spread := spreadObject(t, "web", 1, c.kind.Kind, "web", fmt.Sprintf("subsets: [{name: a, maxReplicas: %s}, {name: b, maxReplicas: %s}]", quota, quota))
	spread.Spec.TargetReference.APIVersion = c.kind.Group + "/v1"
	c.made = 1
	c.show(0)
	c.rollOut()
	c.apply(SpreadSeen{Spread: spread})
	cycle := func(p *changingPod) bool {
		d := c.ask(p.Pod).Decision
		if len(c.questions) > len(c.asked) {
			c.asked = append(c.asked, c.latest())
		}
		if d == nil {
			return false
		}
		if p.in = d.Subset; p.in == subset.None {
			p.in = len(d.Policy.Subsets)
		}
		if halves && !slices.ContainsFunc(c.pods, func(left *changingPod) bool { return left.of != p.of }) {
			live, latest := c.siblings(p)
			switch replicas := c.replicas[c.known]; {
			case live > replicas && c.known < latest:
				t.Fatalf("%s goes by %d replicas, and they were changed before a pod of its ReplicaSet was made, which has %d", p.Name, replicas, live)
			case d.Subset == subset.None && live <= replicas:
				t.Fatalf("%s has no subset, and the subsets have all pods together", p.Name)
			case d.Subset != subset.None && c.in(p.in, p) > (replicas+1)/2: // with the pod itself
				t.Fatalf("%s is number %d in subset %d, which has half of %d", p.Name, c.in(p.in, p), p.in, replicas)
			}
		}
		for i := range p.in {
			if n := c.in(i, p); !halves && n < 2 {
				t.Fatalf("%s goes past subset %d, which has %d pods of its revision", p.Name, i, n)
			}
			if young := c.now.Before(p.since.Add(2 * time.Second)); young && slices.ContainsFunc(c.pods, func(left *changingPod) bool {
				return left.of < p.of && left.in == i && left.revision == p.revision && left.DeletionTimestamp == nil
			}) {
				t.Fatalf("%s goes past subset %d, and a pod of the workload that was deleted before is there", p.Name, i)
			}
		}
		if !c.reserve(p.Pod, d) || !c.startBind(p.Pod, d) {
			t.Fatalf("%s cannot be bound in %q", p.Name, d.Name())
		}
		p.Pod = onNode(p.Pod, "node-a", d.Name())
		c.see(p.Pod)
		return true
	}
	for step := range h.Steps(60) {
		kind := h.Pick(
			"create", "create", "create", "ask", "ask", "ask", "a second passes", "two seconds pass", "scale", "scale", "show", "read", "roll out", "replace", "delete", "evict")
		switch kind {
		case "create":
			if len(c.pods) < 12 {
				c.create(fmt.Sprintf("p%d", step))
			}
			continue
		case "a second passes":
			c.step(time.Second)
			continue
		case "two seconds pass":
			c.step(2 * time.Second)
			continue
		case "scale":
			c.replicas = append(c.replicas, int32(h.Number("to", 9)))
			continue
		case "show":
			c.show(c.watched + h.Number("of the later ones", c.latest()-c.watched+1))
			continue
		case "read":
			c.read(h)
			continue
		case "roll out":
			c.rollOut()
			continue
		case "replace": // its ReplicaSets are deleted, and its pods terminate, later
			c.apply(OwnerGone{Kind: c.kind, Object: &metav1.PartialObjectMetadata{ObjectMeta: c.object(c.made)}})
			c.made++
			c.show(c.latest())
			c.revision-- // the template is the same
			c.rollOut()
			continue
		}
		if len(c.pods) == 0 {
			continue
		}
		names := make([]string, len(c.pods))
		for i, p := range c.pods {
			names[i] = p.Name
		}
		i := slices.Index(names, h.Pick(names...))
		switch p := c.pods[i]; {
		case kind == "ask" && p.in < 0:
			cycle(p)
		case kind == "delete" && p.in >= 0 && p.DeletionTimestamp == nil && h.Yes("slowly", 2):
			p.Pod = terminating(p.Pod)
			c.see(p.Pod)
		case kind == "delete":
			c.delete(p.Pod)
			c.pods = slices.Delete(c.pods, i, i+1)
		case kind == "evict": // its ReplicaSet makes another
			c.delete(p.Pod)
			c.pods = slices.Delete(c.pods, i, i+1)
			c.create(fmt.Sprintf("p%d", step))
		}
	}
	for _, p := range c.pods {
		if p.in < 0 && !cycle(p) {
			c.step(3 * time.Second)
			for waits := !cycle(p); waits; waits = !cycle(p) {
				if len(c.questions) == 0 {
					t.Fatalf("%s still waits", p.Name)
				}
				c.read(h)
			}
		}
	}
}
