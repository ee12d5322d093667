package checker

import (
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// opened is a pod whose gate Berth's scheduler has opened in a subset.
type opened struct {
	event          event
	spread, subset string
	at             time.Time
}

// judgeGate checks what a node autoscaler reads in a pod: with a gate that it waits for no node, and without it the nodes of its subset and no others.
// The latter is judged when all events are known, because nodes may be made later.
func (s *state) judgeGate(e event) {
	uid := string(e.object.GetUID())
	if gates, _, _ := unstructured.NestedSlice(e.object.Object, "spec", "schedulingGates"); len(gates) > 0 {
		if reason := reasonOf(e.object); reason == "Unschedulable" {
			s.fail(e, "has a gate, and says that it waits for a node")
		}
		return
	}
	if before, known := s.opened[uid]; known {
		before.event.object = e.object // a pod may be relabelled
		return
	}
	if in := openedIn(e.object); in != nil && in.subset != "" && !e.listed {
		in.event, in.at = e, e.seen
		s.opened[uid] = in
	}
}

// openedIn is what the scheduler wrote when it opened the gate of a pod, or nil. Its picks have the UID of the pod, and those of admission have not.
func openedIn(pod *unstructured.Unstructured) *opened {
	var pick struct{ Name, Subset, Pick string }
	if json.Unmarshal([]byte(pod.GetAnnotations()["berth.dev/admitted-subset"]), &pick) != nil || pick.Pick != string(pod.GetUID()) {
		return nil
	}
	return &opened{spread: pod.GetNamespace() + "/" + pick.Name, subset: pick.Subset}
}

func reasonOf(pod *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	for _, each := range conditions {
		if condition := each.(map[string]any); condition["type"] == "PodScheduled" {
			reason, _ := condition["reason"].(string)
			return reason
		}
	}
	return ""
}

// judgeLegible compares the nodes that each pod requires with those of its subset when its gate was opened.
func (s *state) judgeLegible() {
	for _, o := range s.opened {
		spread := s.spreads[o.spread]
		if spread == nil {
			continue
		}
		for name, states := range s.nodes {
			if is := states[len(states)-1].is; is != nil && requires(o.event.object, is) && !s.hasNodeAt(spread, o.subset, name, o.at) {
				s.fail(o.event, "was opened in subset %s of spread %s, and by its own terms it may run on node %s, which is none of that subset", o.subset, o.spread, name)
			}
		}
	}
}

// requires is true if the labels of the node are those that the pod requires.
func requires(pod, node *unstructured.Unstructured) bool {
	labels := node.GetLabels()
	selector, _, _ := unstructured.NestedStringMap(pod.Object, "spec", "nodeSelector")
	for key, value := range selector {
		if is, there := labels[key]; !there || is != value {
			return false
		}
	}
	terms, limited, _ := unstructured.NestedSlice(pod.Object, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	for _, each := range terms {
		if term := each.(map[string]any); len(term) > 0 && selects(term, node) { // a term without requirements selects no node
			return true
		}
	}
	return !limited
}
