// Package checker watches the API and checks that Berth keeps its promises. It shares no code with the model. It reads the objects as JSON and does
// its own arithmetic, so that it does not repeat a mistake of the model.
//
// The checker records every event of pods, nodes, spreads and workloads with its revision. Afterwards it replays the events in the order in which the API
// server committed them. After each bind it checks that Berth has not bound more pods in the subset than the quota, and that the node is one of the subset's.
// If a quota or the labels of a node were changed right before the bind, the previous ones still apply, because the scheduler may not have seen the change.
//
// A pod whose gate Berth has opened must require the nodes of its subset and no others, and no pod with a gate may say that it waits for a node: a node
// autoscaler reads nothing else.
//
// It judges pods that name Berth's scheduler also if their bind has no subset: a pod without a record is a violation if a spread of its workload is there,
// and a pod in no subset is one if the spread says whenFull: Wait, or if a subset had a free slot all the time.
//
// It does not judge, because the API alone does not tell what the scheduler knew when the pod got its slot:
//
//   - which of the subsets with a free slot a pod gets: the order of preference, minimums, and weights, beyond what is a quota. A claim may be much older than its bind;
//   - percentages with strategy Adaptive, as long as the scope has no more pods than replicas: shares are lent to other subsets then;
//   - a bind without a record if the topmost owner is not a built-in workload, or if the spread has a targetFilter;
//   - a free slot beside a pod in no subset, with strategy Adaptive, for StatefulSets, whose ordinals decide, and for spreads that behave as OpenKruise's;
//   - a pod in no subset if admission picked that, or if the pod is one of a group.
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

	// namespace is the only one that is watched. Empty for all.
	namespace string
	mu        sync.Mutex
	events    []event
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
	return StartIn(ctx, client, metav1.NamespaceAll)
}

// StartIn is Start for the objects of one namespace, and for all nodes.
func StartIn(ctx context.Context, client dynamic.Interface, namespace string) (*Checker, error) {
	c := &Checker{Grace: defaultGrace, NodeGrace: defaultNodeGrace, namespace: namespace}
	for _, resource := range slices.Concat([]schema.GroupVersionResource{nodes}, watched) {
		if err := c.start(ctx, client, resource); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// start records the objects of a resource and all its events. The end of a watch before the end of the context is a violation.
func (c *Checker) start(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource) error {
	events, err := c.follow(ctx, client, resource)
	if err != nil {
		return err
	}
	go func() {
		for events != nil {
			events = c.recordAll(ctx, client, resource, events)
		}
		if ctx.Err() == nil {
			c.fail("the watch of %s ended, so events are missing", resource.Resource)
		}
	}()
	return nil
}

// follow lists the objects of a resource and watches them from there on.
func (c *Checker) follow(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource) (<-chan watch.Event, error) {
	namespace := c.namespace
	if resource == nodes {
		namespace = metav1.NamespaceNone
	}
	list, err := client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", resource.Resource, err)
	}
	c.recordList(list)
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Resource(resource).Namespace(namespace).Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
	}
	return watcher.ResultChan(), nil
}

// recordList keeps what a list shows, at the revision of the list: the objects' own revisions only tell when they were written. A pod may be older than the last
// write of its workload, and is judged by the quotas that were there at the time of the list.
func (c *Checker) recordList(list *unstructured.UnstructuredList) {
	for i := range list.Items {
		list.Items[i].SetResourceVersion(list.GetResourceVersion())
		c.record(watch.Event{Type: watch.Added, Object: &list.Items[i]}, true)
	}
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

// Binds returns how many pods Berth has bound with a record of a spread, in a subset or in none.
func (c *Checker) Binds() int { return c.replay().binds }

// Judged returns how many of the Binds were judged: not those of a pod that is about to end, or whose spread is gone.
func (c *Checker) Judged() int { return c.replay().judged }

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
func (c *Checker) Violations() []string { return c.replay().violations }

// recorded are the events so far, in the order in which the API server committed them, and what went wrong with the watches.
func (c *Checker) recorded() (events []event, errs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	events, errs = slices.Clone(c.events), slices.Clone(c.errs)
	sort.SliceStable(events, func(i, j int) bool { return events[i].revision < events[j].revision })
	return events, errs
}

func (c *Checker) replay() *state {
	events, errs := c.recorded()
	s := &state{spreads: map[string]*spread{}, owners: map[string]string{}, targets: map[string]string{}, current: map[string]string{}, replicas: map[string]int64{},
		pods: map[string]*pod{}, opened: map[string]*opened{}, ended: map[string][]*pod{}, nodes: map[string][]node{}, violations: errs, grace: c.Grace, nodeGrace: c.NodeGrace}
	for _, e := range events {
		s.apply(e)
	}
	s.judgeLegible()
	return s
}

type state struct {
	spreads map[string]*spread
	// owners maps the UID of a workload to the UID of its controller. Those that are gone stay: their pods may live on.
	owners map[string]string
	// targets maps the UID of a workload to its kind and name, and current a kind and name to the UID of the workload that is there.
	targets, current map[string]string
	replicas         map[string]int64
	pods             map[string]*pod
	// opened are the pods that are there and whose gate the scheduler has opened.
	opened map[string]*opened
	// ended are the pods that took a slot once, by the UID of their workload.
	ended map[string][]*pod
	// nodes are what each name stood for, oldest first. A name may stand for several nodes, one after the other.
	nodes            map[string][]node
	violations       []string
	binds, judged    int
	grace, nodeGrace time.Duration
}

// node is what a name stood for from some time on. Nil is no node.
type node struct {
	from time.Time
	is   *unstructured.Unstructured
}

type spread struct {
	uid, target string
	// since is when the spread began to have this target.
	since time.Time
	// builtIn is true if the target is of a built-in kind, and no filter says which of its pods count.
	builtIn bool
	// ordered is true if a pod in no subset proves that all were full: strategy Fixed, and neither ordinals nor OpenKruise's rules decide.
	ordered, waits bool
	// known is false for a workload whose replicas the checker does not read. The checker does not judge percentages of such a workload.
	known bool
	whole bool
	// untilGone is true if a pod counts until it is gone.
	untilGone bool
	// lends is true if a share without a node goes to the other subsets: strategy Adaptive and a percentage in every subset.
	lends   bool
	subsets []limit
	// history contains the quotas, oldest first. All are older than the event that is judged, also if the watch showed them later: each kind has its own watch.
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
	// ordered and waits as the spread had them.
	ordered, waits bool
}

type pod struct {
	// spread includes the namespace. It is empty for a pod without a record.
	spread, subset, scope string
	// owner is the UID of its controller. Empty for an orphan.
	owner string
	// adopted is true if the record says that others bound the pod. Not every record of such a pod says so.
	active, bound, adopted bool
	// ending is true while the pod terminates. It counts where the spread says untilGone.
	ending bool
	// ours is true for a pod that names Berth's scheduler, picked if admission picked its subset, grouped for one of a group.
	ours, picked, grouped bool
	// handed is true if the pod has had another owner.
	handed bool
	// boundAt and endedAt are when the checker saw that.
	boundAt, endedAt time.Time
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
		s.spreads[key].since = e.seen
		if before != nil {
			s.spreads[key].history = before.history
			if before.uid == s.spreads[key].uid && before.target == s.spreads[key].target && before.builtIn {
				s.spreads[key].since = before.since
			}
		}
		s.requote(s.spreads[key], e.seen)
	default:
		uid, target := string(e.object.GetUID()), e.object.GetKind()+" "+key
		s.owners[uid], s.targets[uid], s.current[target] = controllerOf(e.object), target, uid
		if e.deleted {
			delete(s.replicas, target)
			delete(s.current, target)
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
	_, filtered, _ := unstructured.NestedMap(object.Object, "spec", "targetFilter")
	_, paths, _ := unstructured.NestedSlice(object.Object, "spec", "targetFilter", "replicasPathList")
	group, _, _ := strings.Cut(text("spec", "targetRef", "apiVersion"), "/")
	builtIn := (group == "apps" || group == "batch") && slices.Contains([]string{"Deployment", "ReplicaSet", "StatefulSet", "Job"}, text("spec", "targetRef", "kind"))
	kruise := object.GetAnnotations()["berth.dev/compatibility"] == "kruise" || text("status", "compatibility") == "kruise"
	s := &spread{
		uid:     string(object.GetUID()),
		known:   builtIn && !paths,
		builtIn: builtIn && !filtered,
		waits:   text("spec", "scheduleStrategy", "whenFull") == "Wait",
		ordered: builtIn && !filtered && !kruise && text("spec", "scheduleStrategy", "type") != "Adaptive" && text("spec", "targetRef", "kind") != "StatefulSet",
		target:  text("spec", "targetRef", "kind") + " " + object.GetNamespace() + "/" + text("spec", "targetRef", "name"),
		whole:   text("spec", "scheduleStrategy", "quotaScope") == "Workload",
	}
	replacement := text("spec", "scheduleStrategy", "podReplacementPolicy")
	s.untilGone = replacement == "TerminationComplete" || replacement == "" && s.whole && s.waits
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
	now := quotas{from: at, quotas: map[string]int64{}, terms: map[string]map[string]any{}, replicas: s.replicas[spread.target],
		ordered: spread.ordered, waits: spread.waits}
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
		if sp.lends && pods <= q.replicas && !ended {
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
		if quota, there := q.quotas[subset]; there && !ended {
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
	before := s.pods[uid]
	if e.deleted {
		if before != nil {
			s.end(before, e.seen)
		}
		delete(s.pods, uid)
		delete(s.opened, uid)
		return
	}
	s.judgeGate(e)
	now := readPod(e.object)
	if before != nil {
		now.boundAt, now.handed = before.boundAt, before.handed || before.owner != now.owner
	}
	if now.bound && now.boundAt.IsZero() {
		now.boundAt = e.seen
	}
	if before != nil && before.active && (!now.active || before.owner != now.owner) {
		s.end(before, e.seen)
	}
	if before != nil && before.spread != "" {
		// An update in place changes the revision. From this event on the pod counts in its new revision. Only a bind can break the quota there.
		before.active, before.ending, before.scope, before.owner = now.active, now.ending, now.scope, now.owner
		if now.spread != before.spread || now.subset != before.subset {
			s.fail(e, "was recorded in %s/%s and is now in %s/%s", before.spread, before.subset, now.spread, now.subset)
		}
		return
	}
	s.pods[uid] = now
	isBind := now.bound && before != nil && !before.bound && !e.listed
	if isBind && now.ours && now.adopted {
		s.fail(e, "is bound by Berth's scheduler, and its record says that others bound it")
	}
	if isBind && now.ours && now.active && now.spread == "" {
		if name := s.spreadOf(now, e.seen); name != "" {
			s.fail(e, "is bound without a record, and spread %s divides its workload", name)
		}
	}
	if now.spread == "" || before != nil && before.bound || now.adopted {
		return // the controller wrote the record of a pod that others had bound, whatever the quota
	}
	s.binds++
	spread := s.spreads[now.spread]
	if spread == nil || !now.active {
		return
	}
	if now.subset == "" {
		if isBind && !now.picked && !now.grouped {
			s.judged++
			s.judgeUnplaced(e, now, spread)
		}
		return
	}
	s.judged++
	if name := nodeNameOf(e.object); !e.listed && !s.hasNodeAt(spread, now.subset, name, e.seen) {
		s.fail(e, "is bound in subset %s of spread %s, and node %s is none of that subset", now.subset, now.spread, name)
	}
	kept, inAll := int64(0), int64(0)
	for _, other := range s.pods {
		if (other.active || other.ending && spread.untilGone) && other.spread == now.spread && s.workloadOf(other) == s.workloadOf(now) && other.subset != "" && (spread.whole || other.scope == now.scope) {
			inAll++
			if other.subset == now.subset {
				kept++
			}
		}
	}
	if quota := spread.quotaAt(now.subset, e.seen, s.grace); kept > quota && !spread.lendsAt(inAll, e.seen, s.grace) {
		s.fail(e, "is number %d in subset %s of spread %s, whose quota is %d", kept, now.subset, now.spread, quota)
	}
}

func (s *state) fail(e event, format string, args ...any) {
	s.violations = append(s.violations, fmt.Sprintf("revision %d: pod %s/%s ", e.revision, e.object.GetNamespace(), e.object.GetName())+fmt.Sprintf(format, args...))
}

// end keeps a pod that has ended: the scheduler may not have seen that, or may not know the outcome of a bind of the pod.
func (s *state) end(p *pod, at time.Time) {
	if kept := *p; kept.active {
		kept.endedAt = at
		s.ended[s.workloadOf(p)] = append(s.ended[s.workloadOf(p)], &kept)
	}
}

// patience is how long the scheduler may go by something that is over: it may not have seen the news, and then the bind takes a while.
func (s *state) patience() time.Duration { return max(s.grace, s.nodeGrace) }

// spreadOf is the spread that divides the workload of a pod, and has done so for long enough that the scheduler must know. Empty if there is none.
func (s *state) spreadOf(p *pod, at time.Time) string {
	workload := s.workloadOf(p)
	target := s.targets[workload]
	if target == "" || p.handed || s.current[target] != workload {
		return ""
	}
	for name, spread := range s.spreads {
		if spread.builtIn && spread.target == target && !spread.since.After(at.Add(-s.patience())) {
			return name
		}
	}
	return ""
}

// judgeUnplaced checks a bind in no subset: the spread must let such pods run, and each subset must have been full at some moment of the patience before.
func (s *state) judgeUnplaced(e event, now *pod, spread *spread) {
	from, waits, ordered := e.seen.Add(-s.patience()), true, spread.known && !now.handed
	if spread.since.After(from) {
		return // the bind may go by another spread of that name
	}
	lowest := map[string]int64{}
	for _, subset := range spread.subsets {
		lowest[subset.name] = noLimit
	}
	for i, q := range spread.history {
		if i+1 < len(spread.history) && spread.history[i+1].from.Before(from) {
			continue
		}
		waits, ordered = waits && q.waits, ordered && q.ordered
		for name := range lowest {
			lowest[name] = min(lowest[name], q.quotas[name])
		}
	}
	if waits {
		s.fail(e, "is bound in no subset of spread %s, which says whenFull: Wait", now.spread)
	}
	if waits || !ordered {
		return
	}
	workload := s.workloadOf(now)
	others := slices.Clone(s.ended[workload])
	for _, other := range s.pods {
		if other.active && other != now && s.workloadOf(other) == workload {
			others = append(others, other)
		}
	}
	for _, subset := range spread.subsets {
		// A pod that waits may hold any slot, and so may one that has ended, or was bound elsewhere, just now.
		taken := int64(0)
		for _, other := range others {
			elsewhere := other.spread == now.spread && other.subset != subset.name && other.boundAt.Before(from)
			if !elsewhere && (other.endedAt.IsZero() || !other.endedAt.Before(from)) {
				taken++
			}
		}
		if quota := lowest[subset.name]; taken < quota {
			s.fail(e, "is bound in no subset of spread %s, and at most %d of the slots of subset %s were taken", now.spread, taken, subset.name)
			return
		}
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
	p := &pod{scope: labels["pod-template-hash"] + labels["rollouts-pod-template-hash"] + labels["controller-revision-hash"], owner: controllerOf(object),
		active: object.GetDeletionTimestamp() == nil && phase != "Succeeded" && phase != "Failed"}
	p.ending = object.GetDeletionTimestamp() != nil && phase != "Succeeded" && phase != "Failed"
	nodeName, _, _ := unstructured.NestedString(object.Object, "spec", "nodeName")
	p.bound = nodeName != ""
	scheduler, _, _ := unstructured.NestedString(object.Object, "spec", "schedulerName")
	pick := object.GetAnnotations()["berth.dev/admitted-subset"]
	p.ours, p.picked = scheduler == "berth-scheduler", pick != "" && openedIn(object) == nil
	_, inGroup, _ := unstructured.NestedMap(object.Object, "spec", "schedulingGroup")
	_, inWorkload, _ := unstructured.NestedMap(object.Object, "spec", "workloadRef")
	p.grouped = inGroup || inWorkload || labels["scheduling.x-k8s.io/pod-group"] != ""
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
