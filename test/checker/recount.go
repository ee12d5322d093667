package checker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Recount counts the pods of all spreads of a namespace again, from the objects that the API server returns now. It returns the differences from the
// statuses. It skips a spread whose workload is not of a built-in kind or does not exist, and a spread with a target filter.
func Recount(ctx context.Context, client dynamic.Interface, namespace string) (differences []string, err error) {
	objects := map[string][]unstructured.Unstructured{}
	list := func(resource schema.GroupVersionResource, in string) error {
		all, err := client.Resource(resource).Namespace(in).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("listing %s: %w", resource.Resource, err)
		}
		objects[resource.Resource] = all.Items
		return nil
	}
	for _, resource := range watched {
		if err := list(resource, namespace); err != nil {
			return nil, err
		}
	}
	if err := list(nodes, ""); err != nil {
		return nil, err
	}
	r := recount{workloads: map[string]*unstructured.Unstructured{}, owners: map[string]string{}, nodes: map[string]*unstructured.Unstructured{}, pods: objects["pods"]}
	for _, kind := range []string{"deployments", "replicasets", "statefulsets", "jobs"} {
		for i := range objects[kind] {
			object := &objects[kind][i]
			r.workloads[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object
			r.owners[string(object.GetUID())] = controllerOf(object)
		}
	}
	for i := range objects["nodes"] {
		r.nodes[objects["nodes"][i].GetName()] = &objects["nodes"][i]
	}
	for i := range objects["workloadspreads"] {
		differences = append(differences, r.compare(&objects["workloadspreads"][i])...)
	}
	return differences, nil
}

type recount struct {
	workloads map[string]*unstructured.Unstructured
	// owners maps the UID of an object to the UID of its controller.
	owners map[string]string
	nodes  map[string]*unstructured.Unstructured
	pods   []unstructured.Unstructured
}

func controllerOf(object *unstructured.Unstructured) string {
	if owner := metav1.GetControllerOf(object); owner != nil {
		return string(owner.UID)
	}
	return ""
}

// isBelow is true if the workload owns the object, directly or through other owners.
func (r *recount) isBelow(object *unstructured.Unstructured, workload string) bool {
	for owner := controllerOf(object); owner != ""; owner = r.owners[owner] {
		if owner == workload {
			return true
		}
	}
	return false
}

// place is the revision and the subset in which a pod counts.
type place struct{ scope, subset string }

func (r *recount) compare(object *unstructured.Unstructured) (differences []string) {
	spread := readSpread(object)
	workload := r.workloads[spread.target]
	_, filtered, _ := unstructured.NestedMap(object.Object, "spec", "targetFilter")
	if !spread.known || filtered || workload == nil {
		return nil
	}
	quotas := state{replicas: map[string]int64{spread.target: replicasOf(workload)}}
	quotas.requote(spread, time.Time{})
	quota := spread.history[0].quotas

	kept, byPlace := map[string]int64{}, map[place]int64{}
	terminating := map[string][]string{}
	var pending, unplaced, adopted int64
	for i := range r.pods {
		p := &r.pods[i]
		if !r.isBelow(p, string(workload.GetUID())) {
			continue
		}
		read, node := readPod(p), nodeNameOf(p)
		subset, recorded := r.subsetOf(p, object, node)
		switch {
		case !read.active:
			if p.GetDeletionTimestamp() != nil && subset != "" {
				terminating[subset] = append(terminating[subset], p.GetName())
			}
			if !read.ending || node == "" || !spread.untilGone {
				continue
			}
		case node == "":
			pending++
			continue
		case subset == "":
			unplaced++
		case !recorded:
			adopted++
		}
		scope := read.scope
		if spread.whole {
			scope = ""
		}
		kept[subset]++
		byPlace[place{scope, subset}]++
	}
	over, inAll := map[string]int64{}, map[string]int64{}
	for at, n := range byPlace {
		if at.subset != "" {
			over[at.scope] += max(0, n-quota[at.subset])
			inAll[at.scope] += n
		}
	}
	var surplus int64
	for scope, n := range over {
		if spread.lends {
			n = min(n, max(0, inAll[scope]-quotas.replicas[spread.target]))
		}
		surplus += n
	}
	number := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(object.Object, append([]string{"status"}, path...)...)
		return n
	}
	differ := func(what string, is any, want any) {
		if is != want {
			differences = append(differences, fmt.Sprintf("%s/%s: status.%s is %v, and it is %v", object.GetNamespace(), object.GetName(), what, is, want))
		}
	}
	differ("observedGeneration", number("observedGeneration"), object.GetGeneration())
	differ("observedReplicas", number("observedReplicas"), quotas.replicas[spread.target])
	differ("pendingPods", number("pendingPods"), pending)
	differ("unplacedPods", number("unplacedPods"), unplaced)
	differ("adoptedPods", number("adoptedPods"), adopted)
	differ("surplusPods", number("surplusPods"), surplus)
	statuses, _, _ := unstructured.NestedSlice(object.Object, "status", "subsetStatuses")
	differ("subsetStatuses, their number,", len(statuses), len(spread.subsets))
	for i, each := range statuses {
		if i >= len(spread.subsets) {
			break
		}
		status, name := each.(map[string]any), spread.subsets[i].name
		missing := int64(-1)
		if quota[name] != noLimit {
			missing = max(0, quota[name]-kept[name])
		}
		replicas, _ := status["replicas"].(int64)
		missingReplicas, _ := status["missingReplicas"].(int64)
		deleting, _ := status["deletingPods"].(map[string]any)
		named := make([]string, 0, len(deleting))
		for pod := range deleting {
			named = append(named, pod)
		}
		slices.Sort(named)
		slices.Sort(terminating[name])
		at := fmt.Sprintf("subsetStatuses[%d].", i)
		differ(at+"name", status["name"], any(name))
		differ(at+"replicas", replicas, kept[name])
		differ(at+"missingReplicas", missingReplicas, missing)
		differ(at+"deletingPods", strings.Join(named, " "), strings.Join(terminating[name], " "))
	}
	return differences
}

func nodeNameOf(pod *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
	return name
}

// subsetOf returns the subset that Berth recorded on the pod, and whether it did so at the Binding. Without a record it returns the first subset whose term selects the node. It
// returns "" if there is none.
func (r *recount) subsetOf(pod, spread *unstructured.Unstructured, node string) (subset string, recorded bool) {
	if node == "" {
		return "", false
	}
	var record podRecord
	value := pod.GetAnnotations()["apps.kruise.io/matched-workloadspread"]
	valid := json.Unmarshal([]byte(value), &record) == nil && record.UID == string(pod.GetUID()) && record.Name == spread.GetName()
	if valid && record.Subset == "" {
		return "", true
	}
	subsets, _, _ := unstructured.NestedSlice(spread.Object, "spec", "subsets")
	for _, each := range subsets {
		if name, _ := each.(map[string]any)["name"].(string); valid && name == record.Subset {
			return name, !record.Adopted
		}
	}
	if r.nodes[node] == nil {
		return "", false
	}
	for _, each := range subsets {
		fields := each.(map[string]any)
		if term, _ := fields["requiredNodeSelector"].(map[string]any); selects(term, r.nodes[node]) {
			name, _ := fields["name"].(string)
			return name, false
		}
	}
	return "", false
}

// selects evaluates a node selector term. A nil term selects every node.
func selects(term map[string]any, node *unstructured.Unstructured) bool {
	holds := func(key string, of map[string]string) bool {
		requirements, _ := term[key].([]any)
		for _, each := range requirements {
			requirement := each.(map[string]any)
			name, _ := requirement["key"].(string)
			values, _, _ := unstructured.NestedStringSlice(requirement, "values")
			value, there := of[name]
			var ok bool
			switch requirement["operator"] {
			case "In":
				ok = there && slices.Contains(values, value)
			case "NotIn":
				ok = !there || !slices.Contains(values, value)
			case "Exists":
				ok = there
			case "DoesNotExist":
				ok = !there
			case "Gt", "Lt":
				bound, bad := strconv.ParseInt(values[0], 10, 64)
				n, none := strconv.ParseInt(value, 10, 64)
				ok = bad == nil && none == nil && (requirement["operator"] == "Gt") == (n > bound) && n != bound
			}
			if !ok {
				return false
			}
		}
		return true
	}
	return holds("matchExpressions", node.GetLabels()) && holds("matchFields", map[string]string{"metadata.name": node.GetName()})
}
