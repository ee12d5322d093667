// Package checker watches the API and checks that Berth keeps its promises. It shares no code with the model. It reads the objects as JSON and does
// its own arithmetic, so that it does not repeat a mistake of the model.
//
// The checker records every event of pods, nodes, spreads and workloads with its revision. Afterwards it replays the events in the order in which the API
// server committed them. After each bind it checks that Berth has not bound more pods in the subset than the quota, and that the node is one of the subset's.
// If a quota or the labels of a node were changed right before the bind, the previous ones still apply, because the scheduler may not have seen the change.
package checker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

const (
	// defaultGrace is how long a bind may use the previous quota after the quota was lowered.
	defaultGrace = 2 * time.Second
	// defaultNodeGrace is longer, because nobody looks at the node again between the decision and the bind.
	defaultNodeGrace = 15 * time.Second
)

// watched are in the order in which they are listed. Pods come last: those that are there already are judged by the quotas that were there before.
var watched = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Group: "apps", Version: "v1", Resource: "statefulsets"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
	{Group: "apps.kruise.io", Version: "v1beta1", Resource: "workloadspreads"},
	{Version: "v1", Resource: "pods"},
}

var nodes = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// Checker records events until its context ends.
type Checker struct {
	// Grace is how long a bind may use the previous quota after the quota was lowered. The default is 2 s. Tests that delay binds set it higher.
	Grace time.Duration
	// NodeGrace is how long a bind may use a node that was deleted, or has got other labels. The default is 15 s.
	NodeGrace time.Duration

	mu     sync.Mutex
	events []event
	// labels are those of each node in its last event. Events of nodes that change none are not recorded.
	labels map[string]map[string]string
	errs   []string
}

type event struct {
	revision int64
	seen     time.Time
	// listed is true if the object was there before the watch.
	deleted, listed bool
	object          *unstructured.Unstructured
}

// Start lists all objects in the cluster and then watches them.
func Start(ctx context.Context, client dynamic.Interface) (*Checker, error) {
	c := &Checker{Grace: defaultGrace, NodeGrace: defaultNodeGrace}
	for _, resource := range slices.Concat([]schema.GroupVersionResource{nodes}, watched) {
		events, err := c.follow(ctx, client, resource)
		if err != nil {
			return nil, err
		}
		go func() {
			for events != nil {
				events = c.recordAll(ctx, client, resource, events)
			}
			if ctx.Err() == nil {
				c.fail("the watch of %s ended, so events are missing", resource.Resource)
			}
		}()
	}
	return c, nil
}

// follow lists the objects of a resource and watches them from there on.
func (c *Checker) follow(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource) (<-chan watch.Event, error) {
	list, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", resource.Resource, err)
	}
	for i := range list.Items {
		c.record(watch.Event{Type: watch.Added, Object: &list.Items[i]}, true)
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(resource).Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
	}
	return watcher.ResultChan(), nil
}

// recordAll records events until the watch ends. It returns the next watch, or nil if there is none. When a definition is changed, as the controller does with
// the authority for conversion right after its start, the API server ends all watches of the kind, and forgets the revisions before.
func (c *Checker) recordAll(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, events <-chan watch.Event) (next <-chan watch.Event) {
	for e := range events {
		if status, isStatus := e.Object.(*metav1.Status); isStatus && status.Reason == metav1.StatusReasonExpired && resource.Group == "apps.kruise.io" {
			if next, err := c.follow(ctx, client, resource); err == nil {
				return next
			}
		}
		c.record(e, false)
	}
	return nil
}

func (c *Checker) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, fmt.Sprintf(format, args...))
}

// record keeps an event. listed is true for what was there before the watch: nobody knows when it was written.
func (c *Checker) record(e watch.Event, listed bool) {
	object, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		c.fail("unexpected event %s: %v", e.Type, e.Object)
		return
	}
	if e.Type == watch.Bookmark {
		return
	}
	revision, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	if err != nil {
		c.fail("%s %s: resourceVersion %q: %v", object.GetKind(), object.GetName(), object.GetResourceVersion(), err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if object.GetKind() == "Node" {
		if object = c.relabelled(object, e.Type == watch.Deleted); object == nil {
			return
		}
	}
	c.events = append(c.events, event{revision: revision, seen: time.Now(), deleted: e.Type == watch.Deleted, listed: listed, object: object})
}

// relabelled is what the checker keeps of a node. It is nil for an event that changes no label: a node has many of these.
func (c *Checker) relabelled(node *unstructured.Unstructured, deleted bool) *unstructured.Unstructured {
	if c.labels == nil {
		c.labels = map[string]map[string]string{}
	}
	name, is := node.GetName(), node.GetLabels()
	before, known := c.labels[name]
	if c.labels[name] = is; deleted {
		delete(c.labels, name)
	} else if known && maps.Equal(before, is) {
		return nil
	}
	kept := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node"}}
	kept.SetName(name)
	kept.SetLabels(is)
	return kept
}

// Binds returns how many pods Berth has bound.
func (c *Checker) Binds() int {
	_, binds := c.replay()
	return binds
}

// Created returns how many pods with the label app were created in a namespace since Start.
func (c *Checker) Created(namespace, app string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[string]bool{}
	for _, e := range c.events {
		if e.object.GetKind() == "Pod" && e.object.GetNamespace() == namespace && e.object.GetLabels()["app"] == app {
			seen[string(e.object.GetUID())] = true
		}
	}
	return len(seen)
}

// Violations replays the recorded events. It returns each violation with its revision.
func (c *Checker) Violations() []string {
	violations, _ := c.replay()
	return violations
}

func (c *Checker) replay() (violations []string, binds int) {
	c.mu.Lock()
	events := append([]event(nil), c.events...)
	violations = append(violations, c.errs...)
	c.mu.Unlock()
	sort.SliceStable(events, func(i, j int) bool { return events[i].revision < events[j].revision })
	s := state{spreads: map[string]*spread{}, owners: map[string]string{}, replicas: map[string]int64{}, pods: map[string]*pod{}, nodes: map[string][]node{}, grace: c.Grace, nodeGrace: c.NodeGrace}
	for _, e := range events {
		s.apply(e)
	}
	return append(violations, s.violations...), s.binds
}

type state struct {
	spreads map[string]*spread
	// owners maps the UID of a workload to the UID of its controller. Those that are gone stay: their pods may live on.
	owners   map[string]string
	replicas map[string]int64
	pods     map[string]*pod
	// nodes are what each name stood for, oldest first. A name may stand for several nodes, one after the other.
	nodes            map[string][]node
	violations       []string
	binds            int
	grace, nodeGrace time.Duration
}

// node is what a name stood for from some time on. Nil is no node.
type node struct {
	from time.Time
	is   *unstructured.Unstructured
}

type spread struct {
	target string
	// known is false for a workload whose replicas the checker does not read. The checker does not judge percentages of such a workload.
	known bool
	whole bool
	// lends is true if a share without a node goes to the other subsets: strategy Adaptive and a percentage in every subset.
	lends   bool
	subsets []limit
	// history contains the quotas, oldest first.
	history []quotas
}

type limit struct {
	name     string
	max, min any // nil, a number or a percentage
	weight   int64
	term     map[string]any
}

type quotas struct {
	from   time.Time
	quotas map[string]int64
	// terms select the nodes of each subset. A nil term selects all.
	terms map[string]map[string]any
	// replicas of the workload.
	replicas int64
}

type pod struct {
	// spread includes the namespace. It is empty for a pod without a record.
	spread, subset, scope string
	// owner is the UID of its controller. Empty for an orphan.
	owner string
	// adopted is true if the record says that others bound the pod. Not every record of such a pod says so.
	active, bound, adopted bool
}

const noLimit = math.MaxInt64

func (s *state) apply(e event) {
	key := e.object.GetNamespace() + "/" + e.object.GetName()
	switch e.object.GetKind() {
	case "Pod":
		s.applyPod(e)
	case "Node":
		now := node{from: e.seen, is: e.object}
		if e.deleted {
			now.is = nil
		}
		s.nodes[e.object.GetName()] = append(s.nodes[e.object.GetName()], now)
	case "WorkloadSpread":
		if e.deleted {
			delete(s.spreads, key)
			return
		}
		before := s.spreads[key]
		s.spreads[key] = readSpread(e.object)
		if before != nil {
			s.spreads[key].history = before.history
		}
		s.requote(s.spreads[key], e.seen)
	default:
		s.owners[string(e.object.GetUID())] = controllerOf(e.object)
		target := e.object.GetKind() + " " + key
		if e.deleted {
			delete(s.replicas, target)
			return
		}
		s.replicas[target] = replicasOf(e.object)
		for _, spread := range s.spreads {
			if spread.target == target {
				s.requote(spread, e.seen)
			}
		}
	}
}

func replicasOf(object *unstructured.Unstructured) int64 {
	number := func(path ...string) (int64, bool) {
		n, found, err := unstructured.NestedInt64(object.Object, path...)
		return n, found && err == nil
	}
	if object.GetKind() == "Job" {
		replicas, found := number("spec", "parallelism")
		if !found {
			replicas = 1
		}
		if completions, found := number("spec", "completions"); found {
			replicas = min(replicas, completions)
		}
		return replicas
	}
	if replicas, found := number("spec", "replicas"); found {
		return replicas
	}
	return 1
}

func readSpread(object *unstructured.Unstructured) *spread {
	text := func(path ...string) string {
		value, _, _ := unstructured.NestedString(object.Object, path...)
		return value
	}
	_, filtered, _ := unstructured.NestedSlice(object.Object, "spec", "targetFilter", "replicasPathList")
	group, _, _ := strings.Cut(text("spec", "targetRef", "apiVersion"), "/")
	s := &spread{
		known:  !filtered && (group == "apps" || group == "batch") && slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet", "Job"}, text("spec", "targetRef", "kind")),
		target: text("spec", "targetRef", "kind") + " " + object.GetNamespace() + "/" + text("spec", "targetRef", "name"),
		whole:  text("spec", "scheduleStrategy", "quotaScope") == "Workload",
	}
	subsets, _, _ := unstructured.NestedSlice(object.Object, "spec", "subsets")
	s.lends = text("spec", "scheduleStrategy", "type") == "Adaptive"
	for _, each := range subsets {
		fields := each.(map[string]any)
		name, _ := fields["name"].(string)
		weight, _ := fields["weight"].(int64)
		term, _ := fields["requiredNodeSelector"].(map[string]any)
		s.subsets = append(s.subsets, limit{name: name, max: fields["maxReplicas"], min: fields["minReplicas"], weight: weight, term: term})
		_, isPercent := fields["maxReplicas"].(string)
		s.lends = s.lends && isPercent
	}
	return s
}

func (s *state) requote(spread *spread, at time.Time) {
	now := quotas{from: at, quotas: map[string]int64{}, terms: map[string]map[string]any{}, replicas: s.replicas[spread.target]}
	weighted := slices.ContainsFunc(spread.subsets, func(l limit) bool { return l.weight > 0 })
	for _, subset := range spread.subsets {
		now.terms[subset.name] = subset.term
		now.quotas[subset.name] = s.amount(spread, subset.max, noLimit)
		if weighted && subset.weight == 0 {
			now.quotas[subset.name] = min(now.quotas[subset.name], s.amount(spread, subset.min, 0))
		}
	}
	spread.history = append(spread.history, now)
}

// amount is a count, or a percentage of the replicas.
func (s *state) amount(spread *spread, value any, unset int64) int64 {
	switch value := value.(type) {
	case int64:
		return value
	case string:
		share, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		if err != nil {
			s.violations = append(s.violations, fmt.Sprintf("spread of %s: percentage %q", spread.target, value))
		}
		if !spread.known {
			return noLimit
		}
		return int64(math.Ceil(share*float64(s.replicas[spread.target])/100 - 1e-9))
	default:
		return unset
	}
}

// lendsAt is true if this many pods of a scope may be divided in any way at the given time, or could be within the grace before it.
func (sp *spread) lendsAt(pods int64, at time.Time, grace time.Duration) bool {
	for i, q := range sp.history {
		ended := i+1 < len(sp.history) && sp.history[i+1].from.Before(at.Add(-grace))
		if sp.lends && pods <= q.replicas && !ended && !q.from.After(at) {
			return true
		}
	}
	return false
}

// quotaAt returns the highest quota that was in force at the given time or within the grace before it.
func (sp *spread) quotaAt(subset string, at time.Time, grace time.Duration) int64 {
	highest := int64(0)
	for i, q := range sp.history {
		ended := i+1 < len(sp.history) && sp.history[i+1].from.Before(at.Add(-grace))
		if quota, there := q.quotas[subset]; there && !ended && !q.from.After(at) {
			highest = max(highest, quota)
		}
	}
	return highest
}

// hasNodeAt is true if a subset selected what the name of a node stood for at the given time, or could within the graces before it.
func (s *state) hasNodeAt(sp *spread, subset, name string, at time.Time) bool {
	states := s.nodes[name]
	for i, n := range states {
		if n.is == nil || i+1 < len(states) && states[i+1].from.Before(at.Add(-s.nodeGrace)) {
			continue
		}
		for j, q := range sp.history {
			ended := j+1 < len(sp.history) && sp.history[j+1].from.Before(at.Add(-s.grace))
			if term, there := q.terms[subset]; there && !ended && selects(term, n.is) {
				return true
			}
		}
	}
	return false
}

func (s *state) applyPod(e event) {
	uid := string(e.object.GetUID())
	if e.deleted {
		delete(s.pods, uid)
		return
	}
	before := s.pods[uid]
	now := readPod(e.object)
	if before != nil && before.spread != "" {
		// An update in place changes the revision. From this event on the pod counts in its new revision. Only a bind can break the quota there.
		before.active, before.scope, before.owner = now.active, now.scope, now.owner
		if now.spread != before.spread || now.subset != before.subset {
			s.violations = append(s.violations, fmt.Sprintf("revision %d: pod %s/%s was recorded in %s/%s and is now in %s/%s",
				e.revision, e.object.GetNamespace(), e.object.GetName(), before.spread, before.subset, now.spread, now.subset))
		}
		return
	}
	s.pods[uid] = now
	if now.spread == "" {
		return
	}
	if now.adopted || before != nil && before.bound {
		return // the controller wrote the record of a pod that others had bound, whatever the quota
	}
	s.binds++
	spread := s.spreads[now.spread]
	if spread == nil || now.subset == "" || !now.active {
		return
	}
	if name := nodeNameOf(e.object); !e.listed && !s.hasNodeAt(spread, now.subset, name, e.seen) {
		s.violations = append(s.violations, fmt.Sprintf("revision %d: pod %s/%s is bound in subset %s of spread %s, and node %s is none of that subset",
			e.revision, e.object.GetNamespace(), e.object.GetName(), now.subset, now.spread, name))
	}
	kept, inAll := int64(0), int64(0)
	for _, other := range s.pods {
		if other.active && other.spread == now.spread && s.workloadOf(other) == s.workloadOf(now) && other.subset != "" && (spread.whole || other.scope == now.scope) {
			inAll++
			if other.subset == now.subset {
				kept++
			}
		}
	}
	if quota := spread.quotaAt(now.subset, e.seen, s.grace); kept > quota && !spread.lendsAt(inAll, e.seen, s.grace) {
		s.violations = append(s.violations, fmt.Sprintf("revision %d: pod %s/%s is number %d in subset %s of spread %s, whose quota is %d",
			e.revision, e.object.GetNamespace(), e.object.GetName(), kept, now.subset, now.spread, quota))
	}
}

// workloadOf is the UID of the topmost owner. A workload that is deleted and created again has another UID, so pods of the previous one are not its pods.
func (s *state) workloadOf(p *pod) string {
	uid := p.owner
	for above := s.owners[uid]; above != ""; above = s.owners[uid] {
		uid = above
	}
	return uid
}

// readPod reads the record that Berth left. Spread stays empty for pods without one.
func readPod(object *unstructured.Unstructured) *pod {
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	labels := object.GetLabels()
	p := &pod{scope: labels["pod-template-hash"] + labels["controller-revision-hash"], owner: controllerOf(object),
		active: object.GetDeletionTimestamp() == nil && phase != "Succeeded" && phase != "Failed"}
	nodeName, _, _ := unstructured.NestedString(object.Object, "spec", "nodeName")
	p.bound = nodeName != ""
	var record podRecord
	value := object.GetAnnotations()["apps.kruise.io/matched-workloadspread"]
	if nodeName == "" || value == "" || json.Unmarshal([]byte(value), &record) != nil || record.UID != string(object.GetUID()) {
		return p
	}
	p.spread, p.subset, p.adopted = object.GetNamespace()+"/"+record.Name, record.Subset, record.Adopted
	return p
}

// podRecord is the record of a pod.
type podRecord struct {
	Name, Subset, UID string
	Adopted           bool
}
