package checker

import (
	"fmt"
	"testing"
	"time"
)

// aPod describes a pod of a forged history.
type aPod struct {
	name, node, record, owner, scheduler string
	labels                               map[string]any
	annotations                          map[string]any
	deleted                              bool
}

// see records a pod. It is one of Berth's scheduler and of the Deployment "web", if it does not say otherwise.
func (h *history) see(p aPod) {
	h.t.Helper()
	annotations := map[string]any{}
	for key, value := range p.annotations {
		annotations[key] = value
	}
	if p.record != "" {
		annotations["apps.kruise.io/matched-workloadspread"] = fmt.Sprintf(`{"name":"web",%s,"uid":%q}`, p.record, p.name)
	}
	if p.owner == "" {
		p.owner = "replicas"
	}
	if p.scheduler == "" {
		p.scheduler = "berth-scheduler"
	}
	metadata := map[string]any{"namespace": "ns", "name": p.name, "uid": p.name, "labels": p.labels, "annotations": annotations,
		"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": p.owner, "uid": p.owner, "controller": true}}}
	if p.deleted {
		metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	}
	h.show(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": map[string]any{"schedulerName": p.scheduler, "nodeName": p.node}})
}

// bound records a pod without a node, and then with one.
func (h *history) bound(p aPod) {
	h.t.Helper()
	waits := p
	waits.node, waits.record = "", ""
	h.see(waits)
	p.node = "node"
	h.see(p)
}

// deployment records the Deployment "web" and its ReplicaSet.
func (h *history) deployment() {
	h.t.Helper()
	h.show(map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "ns", "name": "web", "uid": "web"}, "spec": map[string]any{"replicas": int64(4)}})
	h.show(map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": map[string]any{"namespace": "ns", "name": "web-1", "uid": "replicas",
		"ownerReferences": []any{map[string]any{"kind": "Deployment", "name": "web", "uid": "web", "controller": true}}}})
}

// spread records the spread "web" of the Deployment. Subset a has 2 slots, and so has b.
func (h *history) spread(strategy map[string]any, changes ...func(map[string]any)) {
	h.t.Helper()
	object := map[string]any{"apiVersion": "apps.kruise.io/v1beta1", "kind": "WorkloadSpread", "metadata": map[string]any{"namespace": "ns", "name": "web", "uid": "spread"},
		"spec": map[string]any{
			"targetRef":        map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
			"scheduleStrategy": strategy,
			"subsets": []any{
				map[string]any{"name": "a", "maxReplicas": int64(2)},
				map[string]any{"name": "b", "maxReplicas": "50%"},
			},
		}}
	for _, change := range changes {
		change(object)
	}
	h.show(object)
}

func anyStrategy() map[string]any { return map[string]any{} }

func forge(t *testing.T) *history {
	t.Helper()
	h := &history{t: t}
	h.node("node", "")
	h.deployment()
	return h
}

const unrecorded = "pod ns/p is bound without a record, and spread ns/web divides its workload"

func TestAPodThatBerthBindsHasARecord(t *testing.T) {
	for name, tc := range map[string]struct {
		forge func(*history)
		want  []string
	}{
		"a pod without one is a violation": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p"})
		}, []string{unrecorded}},
		"also if the controller writes one later": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p"})
			h.see(aPod{name: "p", node: "node", record: `"subset":"a","adopted":true`})
		}, []string{unrecorded}},
		"a record with another UID is none": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p", annotations: map[string]any{"apps.kruise.io/matched-workloadspread": `{"name":"web","subset":"a","uid":"other"}`}})
		}, []string{unrecorded}},
		"a bind that says that others bound the pod is a violation": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p", record: `"subset":"a","adopted":true`})
		}, []string{"pod ns/p is bound by Berth's scheduler, and its record says that others bound it"}},
		"a pod that was bound before the spread may get one later": {func(h *history) {
			h.bound(aPod{name: "p"})
			h.spread(anyStrategy())
			h.see(aPod{name: "p", node: "node", record: `"subset":"a","adopted":true`})
		}, nil},
		"a pod of another scheduler too": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p", scheduler: "other"})
			h.see(aPod{name: "p", node: "node", scheduler: "other", record: `"subset":"a","adopted":true`})
			h.bound(aPod{name: "q", scheduler: "other", record: `"subset":"a","adopted":true`})
		}, nil},
		"the scheduler may not have seen a new spread": {func(h *history) {
			h.NodeGrace = time.Minute
			h.spread(anyStrategy())
			h.bound(aPod{name: "p"})
		}, nil},
		"a spread that is gone divides nothing": {func(h *history) {
			h.spread(anyStrategy())
			h.remove()
			h.bound(aPod{name: "p"})
		}, nil},
		"nor does one of another workload": {func(h *history) {
			h.spread(anyStrategy(), func(object map[string]any) {
				object["spec"].(map[string]any)["targetRef"] = map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "other"}
			})
			h.bound(aPod{name: "p"})
		}, nil},
		"a filter may leave a pod out": {func(h *history) {
			h.spread(anyStrategy(), func(object map[string]any) {
				object["spec"].(map[string]any)["targetFilter"] = map[string]any{"selector": map[string]any{}}
			})
			h.bound(aPod{name: "p"})
		}, nil},
		"a pod of the previous workload of that name is not its pod": {func(h *history) {
			h.spread(anyStrategy())
			h.show(map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"namespace": "ns", "name": "web", "uid": "second"}})
			h.bound(aPod{name: "p"})
		}, nil},
		"a pod that has got its owner may have been bound before the scheduler saw that": {func(h *history) {
			h.spread(anyStrategy())
			h.see(aPod{name: "p", owner: "unknown"})
			h.bound(aPod{name: "p"})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := forge(t)
			tc.forge(h)
			h.expectViolations(tc.want...)
		})
	}
}

func TestAPodInNoSubset(t *testing.T) {
	const none = `"subset":""`
	whenFull := func(value string) map[string]any { return map[string]any{"whenFull": value} }
	fill := func(h *history, n int) {
		for i := range n {
			h.bound(aPod{name: fmt.Sprint("in", i), record: fmt.Sprintf(`"subset":%q`, []string{"a", "b"}[i/2])})
		}
	}
	free := func(taken int, subset string) string {
		return fmt.Sprintf("pod ns/p is bound in no subset of spread ns/web, and at most %d of the slots of subset %s were taken", taken, subset)
	}
	for name, tc := range map[string]struct {
		forge func(*history)
		want  []string
	}{
		"is a violation if the spread says that it waits": {func(h *history) {
			h.spread(whenFull("Wait"))
			fill(h, 4)
			h.bound(aPod{name: "p", record: none})
		}, []string{"pod ns/p is bound in no subset of spread ns/web, which says whenFull: Wait"}},
		"the strategy does not matter for that": {func(h *history) {
			h.spread(map[string]any{"type": "Adaptive", "whenFull": "Wait"})
			h.bound(aPod{name: "p", record: none})
		}, []string{"which says whenFull: Wait"}},
		"is right if all are full": {func(h *history) {
			h.spread(whenFull("Schedule"))
			fill(h, 4)
			h.bound(aPod{name: "p", record: none})
		}, nil},
		"is a violation if a slot is free": {func(h *history) {
			h.spread(anyStrategy())
			fill(h, 3)
			h.bound(aPod{name: "p", record: none})
		}, []string{free(1, "b")}},
		"is a violation if a subset has no limit": {func(h *history) {
			h.spread(anyStrategy(), func(object map[string]any) {
				object["spec"].(map[string]any)["subsets"].([]any)[1] = map[string]any{"name": "b"}
			})
			fill(h, 4)
			h.bound(aPod{name: "p", record: none})
		}, []string{free(2, "b")}},
		"a pod that waits may hold the slot": {func(h *history) {
			h.spread(anyStrategy())
			fill(h, 3)
			h.see(aPod{name: "waits"})
			h.bound(aPod{name: "p", record: none})
		}, nil},
		"a pod that has just ended may hold it": {func(h *history) {
			h.spread(anyStrategy())
			fill(h, 4)
			h.age()
			h.NodeGrace = time.Minute
			h.see(aPod{name: "in3", node: "node", record: `"subset":"b"`, deleted: true})
			h.bound(aPod{name: "p", record: none})
		}, nil},
		"one that ended long ago does not": {func(h *history) {
			h.spread(anyStrategy())
			fill(h, 4)
			h.see(aPod{name: "in3", node: "node", record: `"subset":"b"`, deleted: true})
			h.age()
			h.NodeGrace = time.Minute
			h.bound(aPod{name: "p", record: none})
		}, []string{free(1, "b")}},
		"a pod that was just bound elsewhere may have held it": {func(h *history) {
			h.spread(anyStrategy())
			fill(h, 2)
			h.bound(aPod{name: "third", record: `"subset":"b"`})
			h.age()
			h.NodeGrace = time.Minute
			h.bound(aPod{name: "other", record: none})
			h.bound(aPod{name: "p", record: none})
		}, []string{"pod ns/other is bound in no subset"}}, // and that may hold the slot which p did not get
		"the quota may have been raised just now": {func(h *history) {
			h.spread(anyStrategy(), func(object map[string]any) {
				object["spec"].(map[string]any)["subsets"].([]any)[0] = map[string]any{"name": "a", "maxReplicas": int64(1)}
			})
			h.bound(aPod{name: "in0", record: `"subset":"a"`})
			h.bound(aPod{name: "in1", record: `"subset":"b"`})
			h.bound(aPod{name: "in2", record: `"subset":"b"`})
			h.age()
			h.NodeGrace = time.Minute
			h.spread(anyStrategy())
			h.bound(aPod{name: "p", record: none})
		}, nil},
		"the spread may have said until now that pods run anywhere": {func(h *history) {
			h.spread(whenFull("Schedule"))
			fill(h, 4)
			h.age()
			h.NodeGrace = time.Minute
			h.spread(whenFull("Wait"))
			h.bound(aPod{name: "p", record: none})
		}, nil},
		"admission may have picked that": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p", record: none, annotations: map[string]any{"berth.dev/admitted-subset": "{}"}})
		}, nil},
		"the scheduler picked that itself": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p", record: none, annotations: map[string]any{"berth.dev/admitted-subset": `{"name":"web","subset":"","pick":"p"}`}})
		}, []string{"pod ns/p is bound in no subset of spread ns/web, and at most 0 of the slots of subset a were taken"}},
		"a group may need more slots than are free": {func(h *history) {
			h.spread(anyStrategy())
			h.bound(aPod{name: "p", record: none, labels: map[string]any{"scheduling.x-k8s.io/pod-group": "group"}})
		}, nil},
		"another revision may be on its way": {func(h *history) {
			h.spread(anyStrategy())
			fill(h, 3)
			h.see(aPod{name: "old", labels: map[string]any{"pod-template-hash": "old"}})
			h.bound(aPod{name: "p", record: none})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := forge(t)
			tc.forge(h)
			h.expectViolations(tc.want...)
		})
	}
}

func TestOnlyJudgedBindsCountAsJudged(t *testing.T) {
	h := forge(t)
	h.spread(anyStrategy())
	h.bound(aPod{name: "p", record: `"subset":"a"`})
	h.bound(aPod{name: "q", record: `"subset":"a"`, deleted: true})
	h.remove()
	h.bound(aPod{name: "r", record: `"subset":"a"`})
	if binds, judged := h.Binds(), h.Judged(); binds != 3 || judged != 1 {
		t.Errorf("%d binds, %d judged", binds, judged)
	}
}

// age makes all events two hours older.
func (h *history) age() {
	for i := range h.events {
		h.events[i].seen = h.events[i].seen.Add(-2 * time.Hour)
	}
}

// remove records that the spread is gone.
func (h *history) remove() {
	h.t.Helper()
	h.spread(anyStrategy())
	h.events[len(h.events)-1].deleted = true
}
