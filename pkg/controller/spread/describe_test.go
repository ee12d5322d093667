package spread

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// makeSpread is a spread named web for Deployment web, with a spec as a user writes it.
func makeSpread(t *testing.T, spec string) *v1beta1.WorkloadSpread {
	t.Helper()
	spread := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web-spread", Generation: 7}}
	spread.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	if err := yaml.UnmarshalStrict([]byte(spec), &spread.Spec); err != nil {
		t.Fatalf("parsing the spec: %v", err)
	}
	return spread
}

// observed reads pods from one line. Each word is "subset" for a pod that Berth bound there, "subset@revision", "-" for one it let go
// without a subset, "node:zone" for one that somebody else bound to a node of that zone, "pending" or "ended".
func observed(t *testing.T, line string) []subset.Pod {
	t.Helper()
	var pods []subset.Pod
	for i, word := range strings.Fields(line) {
		word, revision, _ := strings.Cut(word, "@")
		pod := subset.Pod{Name: fmt.Sprint(i), UID: types.UID(rune('a' + i)), Revision: revision, Active: true, NodeName: "some-node",
			Created: time.Unix(int64(i), 0)}
		zone, adopted := strings.CutPrefix(word, "node:")
		switch {
		case adopted:
			pod.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "some-node", Labels: map[string]string{"zone": zone}}}
		case word == "pending":
			pod.NodeName = ""
		case word == "ended":
			pod.Active, pod.Record = false, &subset.Record{Spread: "web", Subset: "a"}
		case word == "-":
			pod.Record = &subset.Record{Spread: "web"}
		default:
			pod.Record = &subset.Record{Spread: "web", Subset: word}
		}
		pods = append(pods, pod)
	}
	return pods
}

var noon = metav1.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// factsOf are those of a workload with some replicas and pods.
func factsOf(t *testing.T, spread *v1beta1.WorkloadSpread, replicas int32, pods string) *facts {
	t.Helper()
	f := &facts{workload: workloadFacts{replicas: replicas}, now: noon}
	f.policy, f.invalid = subset.Compile(spread, field.NewPath("spec"))
	if f.policy != nil {
		f.account = accountOf(f.policy, replicas, observed(t, pods)...)
	}
	return f
}

func accountOf(policy *subset.Policy, replicas int32, pods ...subset.Pod) *account {
	a := openAccount(basis{policy: policy, spread: "web"})
	plan := policy.Plan(replicas)
	a.roster.Replan(&plan)
	for i := range pods {
		a.put(pods[i], podFacts{})
	}
	return a
}

const (
	threeThenAny = `subsets: [{name: a, maxReplicas: 3}, {name: b}]`
	halfAndHalf  = `subsets: [{name: a, maxReplicas: "50%"}, {name: b, maxReplicas: "50%"}]`
	byZone       = `subsets:
- {name: a, maxReplicas: 2, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}
- {name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}`
	wholeWorkload = "\nscheduleStrategy: {quotaScope: Workload}"
)

// counts are the numbers of a status, in a form that fits on a line.
type counts struct {
	Summary                              string
	Pending, Unplaced, Adopted, Surplus  int32
	Missing                              []int32
	Revisions                            map[string]string
	Unschedulable, UnschedulableRevision string
}

func countsOf(status *v1beta1.WorkloadSpreadStatus) counts {
	c := counts{Summary: status.Summary, Pending: status.PendingPods, Unplaced: status.UnplacedPods, Adopted: status.AdoptedPods, Surplus: status.SurplusPods}
	for i := range status.SubsetStatuses {
		c.Missing = append(c.Missing, status.SubsetStatuses[i].MissingReplicas)
	}
	c.Unschedulable = unschedulableOf(status.SubsetStatuses)
	for revision, statuses := range status.VersionedSubsetStatuses {
		if c.Revisions == nil {
			c.Revisions = map[string]string{}
		}
		var kept []string
		for i := range statuses {
			kept = append(kept, statuses[i].Name+" "+subset.FormatQuota(statuses[i].Replicas)+" missing "+subset.FormatQuota(statuses[i].MissingReplicas))
		}
		c.Revisions[revision] = strings.Join(kept, ", ")
		if unschedulableOf(statuses) != "" {
			c.UnschedulableRevision += revision
		}
	}
	return c
}

func unschedulableOf(statuses []v1beta1.SubsetStatus) string {
	var names []string
	for i := range statuses {
		if meta.IsStatusConditionFalse(statuses[i].Conditions, v1beta1.ConditionSchedulable) {
			names = append(names, statuses[i].Name)
		}
	}
	return strings.Join(names, " ")
}

func TestDescribeCounts(t *testing.T) {
	tests := map[string]struct {
		spec          string
		replicas      int32
		pods          string
		unschedulable map[waiter]int32
		want          counts
	}{
		"the summary is kept/max of each subset in order": {
			spec: threeThenAny, replicas: 5, pods: "a a a b b",
			want: counts{Summary: "a 3/3, b 2/-", Missing: []int32{0, -1}},
		},
		"a workload without pods misses all of the quota": {
			spec: threeThenAny, replicas: 0, pods: "",
			want: counts{Summary: "a 0/3, b 0/-", Missing: []int32{3, -1}},
		},
		"percentages are of the workload's replicas, rounded up": {
			spec: halfAndHalf, replicas: 5, pods: "a a b",
			want: counts{Summary: "a 2/3, b 1/3", Missing: []int32{1, 2}},
		},
		"pods without a node are pending": {
			spec: threeThenAny, replicas: 3, pods: "a pending pending",
			want: counts{Summary: "a 1/3, b 0/-", Pending: 2, Missing: []int32{2, -1}},
		},
		"pods that have ended are not counted": {
			spec: threeThenAny, replicas: 2, pods: "a ended ended",
			want: counts{Summary: "a 1/3, b 0/-", Missing: []int32{2, -1}},
		},
		"pods that were let go are unplaced": {
			spec: `subsets: [{name: a, maxReplicas: 1}]`, replicas: 3, pods: "a - -",
			want: counts{Summary: "a 1/1", Unplaced: 2, Missing: []int32{0}},
		},
		"pods that others bound are adopted by their node, or unplaced if it is in no subset": {
			spec: byZone, replicas: 3, pods: "node:a node:b node:c a",
			want: counts{Summary: "a 2/2, b 1/-", Unplaced: 1, Adopted: 2, Missing: []int32{0, -1}},
		},
		"pods above a lowered quota are surplus, and nothing is missing": {
			spec: `subsets: [{name: a, maxReplicas: 1}, {name: b}]`, replicas: 4, pods: "a a a b",
			want: counts{Summary: "a 3/1, b 1/-", Surplus: 2, Missing: []int32{0, -1}},
		},
		"unplaced pods are not surplus": {
			spec: `subsets: [{name: a, maxReplicas: 1}]`, replicas: 2, pods: "a -",
			want: counts{Summary: "a 1/1", Unplaced: 1, Missing: []int32{0}},
		},
		"each revision has the quota for itself, and the subsets count all of them": {
			spec: threeThenAny, replicas: 4, pods: "a@old a@old a@old b@old a@new",
			want: counts{Summary: "a 4/3, b 1/-", Missing: []int32{0, -1},
				Revisions: map[string]string{"old": "a 3 missing 0, b 1 missing -", "new": "a 1 missing 2, b 0 missing -"}},
		},
		"a revision whose pods are all pending is listed": {
			spec: threeThenAny, replicas: 1, pods: "pending@new",
			want: counts{Summary: "a 0/3, b 0/-", Pending: 1, Missing: []int32{3, -1}, Revisions: map[string]string{"new": "a 0 missing 3, b 0 missing -"}},
		},
		"a quota of the whole workload is not divided by revision": {
			spec: threeThenAny + wholeWorkload, replicas: 4, pods: "a@old a@old a@new a@new",
			want: counts{Summary: "a 4/3, b 0/-", Surplus: 1, Missing: []int32{0, -1}},
		},
		"a pod that finds no node makes the first subset with quota unschedulable": {
			spec: threeThenAny, replicas: 4, pods: "a a pending pending", unschedulable: map[waiter]int32{{}: 2},
			want: counts{Summary: "a 2/3, b 0/-", Pending: 2, Missing: []int32{1, -1}, Unschedulable: "a"},
		},
		"a full subset is not unschedulable": {
			spec: threeThenAny, replicas: 4, pods: "a a a pending", unschedulable: map[waiter]int32{{}: 1},
			want: counts{Summary: "a 3/3, b 0/-", Pending: 1, Missing: []int32{0, -1}, Unschedulable: "b"},
		},
		"with every subset full no subset is unschedulable": {
			spec: `{subsets: [{name: a, maxReplicas: 1}], scheduleStrategy: {whenFull: Wait}}`, replicas: 2, pods: "a pending", unschedulable: map[waiter]int32{{}: 1},
			want: counts{Summary: "a 1/1", Pending: 1, Missing: []int32{0}},
		},
		"a pod of one revision that finds no node makes the subset unschedulable in that revision only": {
			spec: threeThenAny, replicas: 3, pods: "a@old a@old a@old pending@new", unschedulable: map[waiter]int32{{revision: "new"}: 1},
			want: counts{Summary: "a 3/3, b 0/-", Pending: 1, Missing: []int32{0, -1}, Unschedulable: "a", UnschedulableRevision: "new",
				Revisions: map[string]string{"old": "a 3 missing 0, b 0 missing -", "new": "a 0 missing 3, b 0 missing -"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spread := makeSpread(t, tc.spec)
			f := factsOf(t, spread, tc.replicas, tc.pods)
			f.unschedulable = tc.unschedulable
			status := describe(spread, f)
			if diff := cmp.Diff(tc.want, countsOf(&status)); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if status.ObservedReplicas != tc.replicas || status.ObservedGeneration != spread.Generation {
				t.Errorf("observed replicas %d, generation %d; want %d, %d", status.ObservedReplicas, status.ObservedGeneration, tc.replicas, spread.Generation)
			}
		})
	}
}

func TestDescribeWhereEarlyBoundPodsWait(t *testing.T) {
	const early = `{scheduleStrategy: {type: Adaptive, binding: %s}, subsets: [{name: a, maxReplicas: 3}, {name: b, maxReplicas: 2}, {name: c}]}`
	tests := map[string]struct {
		binding v1beta1.BindingMode
		bound   string
		// picked are the subsets that admission picked for pods that find no node, "-" if it let the pod go, "?" if it did not answer.
		picked string
		want   map[string]int32
	}{
		"a pod waits in the subset that admission picked for it": {picked: "b b", want: map[string]int32{"b": 2}},
		"pods wait in several": {picked: "a b b c", want: map[string]int32{"a": 1, "b": 2, "c": 1}},
		"a pod whose subset is full waits for a slot and not for a node":     {bound: "b b", picked: "b"},
		"a pod that admission let go waits in none":                          {picked: "-"},
		"a pod for which admission picked none waits in the first":           {picked: "?", want: map[string]int32{"a": 1}},
		"so does one that was picked for before the spread was to bind late": {binding: "Late", picked: "b", want: map[string]int32{"a": 1}},
		"so does one whose subset is gone from the spread":                   {picked: "gone", want: map[string]int32{"a": 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.binding == "" {
				tc.binding = v1beta1.EarlyBinding
			}
			spread := makeSpread(t, fmt.Sprintf(early, tc.binding))
			f := factsOf(t, spread, 9, tc.bound)
			for i, in := range strings.Fields(tc.picked) {
				pod := subset.Pod{Name: fmt.Sprint("waits-", i), UID: types.UID(fmt.Sprint("waits-", i)), Active: true, Created: time.Unix(int64(i), 0)}
				if in != "?" {
					pod.Admitted = &subset.Admitted{Spread: "web", Subset: strings.Trim(in, "-"), Pick: pod.Name}
				}
				f.put(pod, podFacts{unschedulable: true})
			}
			status := describe(spread, f)
			got := map[string]int32{}
			for _, in := range status.SubsetStatuses {
				c, pods := meta.FindStatusCondition(in.Conditions, v1beta1.ConditionSchedulable), int32(0)
				if c.Status == metav1.ConditionTrue {
					continue
				}
				if _, err := fmt.Sscanf(c.Message, "pods that find no node: %d;", &pods); err != nil {
					t.Errorf("message %q: %v", c.Message, err)
				}
				got[in.Name] = pods
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("pods that wait for a node (-want +got):\n%s", diff)
			}
			for name := range f.pods {
				f.drop(name)
			}
			if len(f.unschedulable) > 0 {
				t.Errorf("without pods there are left %v", f.unschedulable)
			}
		})
	}
}

func TestDescribeReady(t *testing.T) {
	const patched = `subsets: [{name: a, maxReplicas: 1}, {name: b, patch: {metadata: {labels: {x: z}}, spec: {priorityClassName: low}}}]`
	tests := map[string]struct {
		spec        string
		facts       func(*facts)
		wantStatus  metav1.ConditionStatus
		wantReason  v1beta1.Reason
		wantMessage []string
		wantSummary string
	}{
		"a valid spread whose workload exists is ready": {
			spec: threeThenAny, facts: func(*facts) {},
			wantStatus: metav1.ConditionTrue, wantReason: v1beta1.ReasonSpreadReady, wantMessage: []string{"Deployment default/web"}, wantSummary: "a 1/3, b 0/-",
		},
		"an invalid spread lists every error with its path and counts nothing": {
			spec:       `{subsets: [{name: a, maxReplicas: -1}, {name: b, maxReplicas: "120%"}, {name: c, tolerations: [{operator: Sometimes}]}]}`,
			facts:      func(*facts) {},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonInvalidSpread,
			wantMessage: []string{"spec.subsets[0].maxReplicas", "spec.subsets[1].maxReplicas", "spec.subsets[2].tolerations[0].operator"},
		},
		"a spread with an older one for its workload counts nothing": {
			spec: threeThenAny, facts: func(f *facts) { f.older = "first" },
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonSpreadConflict, wantMessage: []string{"WorkloadSpread default/first", "older"},
		},
		"a spread without its workload waits for it": {
			spec: threeThenAny, facts: func(f *facts) {
				f.account, f.workload.problem = accountOf(f.policy, 0), &problem{condition: targetNotFound(&v1beta1.WorkloadSpread{})}
			},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonTargetNotFound, wantMessage: []string{"does not exist; create it or correct spec.targetRef"}, wantSummary: "a 0/3, b 0/-",
		},
		"a percentage of replicas that cannot be read is not known": {
			spec: `subsets: [{name: a, maxReplicas: "50%"}, {name: b}]`, facts: func(f *facts) {
				f.workload = workloadFacts{problem: &problem{condition: noScale(&v1beta1.WorkloadSpread{})}}
				f.unschedulable = map[waiter]int32{{}: 1}
			},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonTargetUnreadable, wantMessage: []string{"no scale subresource", "replicasPathList"}, wantSummary: "a 1/?, b 0/-",
		},
		"a list of custom kinds that cannot be read counts as empty": {
			spec: threeThenAny, facts: func(f *facts) { f.kindList = errors.New("reading the list: broken") },
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonKindListUnreadable, wantMessage: []string{"reading the list: broken; correct the list"}, wantSummary: "a 1/3, b 0/-",
		},
		"a list of custom kinds that cannot be read, and may have the path": {
			spec: threeThenAny, facts: func(f *facts) {
				f.kindList = errors.New("reading the list: broken")
				f.workload = workloadFacts{problem: &problem{condition: noScale(&v1beta1.WorkloadSpread{})}}
			},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonKindListUnreadable, wantMessage: []string{"broken", "counts as empty", "no scale subresource"}, wantSummary: "a 1/3, b 0/-",
		},
		"a workload that may not be read leaves its pods unknown": {
			spec: threeThenAny, facts: func(f *facts) {
				f.workload = workloadFacts{problem: &problem{condition: frame.False(v1beta1.ConditionReady, v1beta1.ReasonTargetUnreadable, "forbidden")}}
				f.podsUnknown = true
			},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonTargetUnreadable, wantMessage: []string{"forbidden"},
		},
		"a rolling update that can never go on": {
			spec: `{subsets: [{name: a, maxReplicas: 2}], scheduleStrategy: {quotaScope: Workload, whenFull: Wait}}`, facts: func(f *facts) {
				f.workload.replicas, f.workload.maxUnavailable = 2, new(int32)
			},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonRolloutBlocked,
			wantMessage: []string{"2 of 2 replicas must stay available", "2 slots", "maxUnavailable of the workload to 1 or more", "use quotaScope: Revision"}, wantSummary: "a 1/2",
		},
		"a label by which the workload would lose its pods is not set": {
			spec: `subsets: [{name: a, patch: {metadata: {labels: {app: other}}}}]`, facts: func(f *facts) {
				f.workload.selector = labels.SelectorFromSet(labels.Set{"app": "web"})
			},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonLabelsNotApplied,
			wantMessage: []string{"spec.subsets[0].patch.metadata.labels[app]", "selects its pods by them"}, wantSummary: "a 1/-",
		},
		"a pod without the patch of its subset is counted": {
			spec: patched, facts: func(f *facts) {
				f.account = accountOf(f.policy, 1, subset.Pod{Name: "p", Active: true, NodeName: "n", Record: &subset.Record{Spread: "web", Subset: "b"}})
			},
			wantStatus: metav1.ConditionFalse, wantReason: v1beta1.ReasonSpecPatchNotApplied, wantMessage: []string{"without the patch", ": 1;"}, wantSummary: "a 0/1, b 1/-",
		},
		"a pod that carries the patch of its subset is as it should be": {
			spec: patched, facts: func(f *facts) {
				f.account = accountOf(f.policy, 1, subset.Pod{Name: "p", Active: true, NodeName: "n", Record: &subset.Record{Spread: "web", Subset: "b"},
					Admitted: &subset.Admitted{Spread: "web", Subset: "b", Pick: "p"}})
			},
			wantStatus: metav1.ConditionTrue, wantReason: v1beta1.ReasonSpreadReady, wantSummary: "a 0/1, b 1/-",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			spread := makeSpread(t, tc.spec)
			f := factsOf(t, spread, 1, "a")
			tc.facts(f)
			status := describe(spread, f)
			ready := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
			if ready == nil || ready.Status != tc.wantStatus || ready.Reason != string(tc.wantReason) || ready.ObservedGeneration != spread.Generation {
				t.Fatalf("Ready is %+v, want %s, %s", ready, tc.wantStatus, tc.wantReason)
			}
			for _, part := range tc.wantMessage {
				if !strings.Contains(ready.Message, part) {
					t.Errorf("message %q, want one with %q", ready.Message, part)
				}
			}
			if status.Summary != tc.wantSummary || (status.SubsetStatuses == nil) != (tc.wantSummary == "") {
				t.Errorf("summary %q with subsets %v, want %q", status.Summary, status.SubsetStatuses, tc.wantSummary)
			}
			if status.SurplusPods != 0 {
				t.Errorf("surplus of %d, want none", status.SurplusPods)
			}
		})
	}
}

func TestDescribeAgain(t *testing.T) {
	const later = 90 * time.Second
	spread := makeSpread(t, threeThenAny)
	spread.Status = describe(spread, factsOf(t, spread, 4, "a a@r pending@r"))
	again := func(t *testing.T, change func(*v1beta1.WorkloadSpread, *facts)) v1beta1.WorkloadSpreadStatus {
		t.Helper()
		f := factsOf(t, spread, 4, "a a@r pending@r")
		f.now = metav1.NewTime(noon.Add(later))
		changed := spread.DeepCopy()
		change(changed, f)
		return describe(changed, f)
	}
	t.Run("the same facts make the same status at any time", func(t *testing.T) {
		got := again(t, func(*v1beta1.WorkloadSpread, *facts) {})
		if diff := cmp.Diff(spread.Status, got); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
	t.Run("the status that the spread has is not changed in place", func(t *testing.T) {
		before := spread.Status.DeepCopy()
		again(t, func(s *v1beta1.WorkloadSpread, f *facts) {
			s.Generation++
			f.unschedulable = map[waiter]int32{{revision: "r"}: 1}
		})
		if diff := cmp.Diff(before, &spread.Status); diff != "" {
			t.Errorf("status (-before +after):\n%s", diff)
		}
	})
	t.Run("a condition that turns says when", func(t *testing.T) {
		got := again(t, func(_ *v1beta1.WorkloadSpread, f *facts) { f.unschedulable = map[waiter]int32{{revision: "r"}: 1} })
		a := meta.FindStatusCondition(got.SubsetStatuses[0].Conditions, v1beta1.ConditionSchedulable)
		b := meta.FindStatusCondition(got.SubsetStatuses[1].Conditions, v1beta1.ConditionSchedulable)
		if want := noon.Add(later); a.Status != metav1.ConditionFalse || !a.LastTransitionTime.Time.Equal(want) {
			t.Errorf("a is schedulable %s since %s, want False since %s", a.Status, a.LastTransitionTime, want)
		}
		if b.Status != metav1.ConditionTrue || !b.LastTransitionTime.Time.Equal(noon.Time) {
			t.Errorf("b is schedulable %s since %s, want True since %s", b.Status, b.LastTransitionTime, noon)
		}
	})
	t.Run("a subset that is gone from the spec is gone from the status", func(t *testing.T) {
		got := again(t, func(s *v1beta1.WorkloadSpread, f *facts) {
			s.Spec.Subsets = s.Spec.Subsets[1:]
			*f = *factsOf(t, s, 4, "a a@r pending@r")
		})
		if len(got.SubsetStatuses) != 1 || got.SubsetStatuses[0].Name != "b" || len(got.VersionedSubsetStatuses["r"]) != 1 {
			t.Errorf("got %+v, %+v", got.SubsetStatuses, got.VersionedSubsetStatuses)
		}
	})
	t.Run("a condition of somebody else's is kept", func(t *testing.T) {
		got := again(t, func(s *v1beta1.WorkloadSpread, _ *facts) {
			s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: "Theirs", Status: metav1.ConditionTrue})
		})
		if meta.FindStatusCondition(got.Conditions, "Theirs") == nil {
			t.Errorf("got %+v", got.Conditions)
		}
	})
}

func TestWhatDeschedulersWroteStays(t *testing.T) {
	spread := makeSpread(t, "subsets: [{name: a, maxReplicas: 2}, {name: b}]")
	spread.Status.Moves = []v1beta1.Move{{From: "a", To: "b", Round: 2, Time: noon}}
	spread.Status.Misplaced = &v1beta1.Misplaced{Pods: 3, Since: noon}
	policy, _ := subset.Compile(spread, field.NewPath("spec"))
	for name, f := range map[string]*facts{
		"of a valid spread":    {policy: policy, now: noon, account: accountOf(policy, 2, observed(t, "a b")...)},
		"of one with conflict": {policy: policy, now: noon, older: "other"},
		"of an invalid one":    {now: noon},
	} {
		status := describe(spread, f)
		if diff := cmp.Diff(spread.Status.Moves, status.Moves) + cmp.Diff(spread.Status.Misplaced, status.Misplaced); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestStatusSaysHowPodsAreBoundNow also where the spread has no effect yet.
func TestStatusSaysHowPodsAreBoundNow(t *testing.T) {
	const patched = `, patch: {spec: {hostname: x}}`
	for name, tc := range map[string]struct {
		binding, patch string
		autoscaler     autoscaler.Name
		want           v1beta1.BindingMode
	}{
		"Auto":                               {"Auto", "", "", v1beta1.LateBinding},
		"Auto beside a node autoscaler":      {"Auto", "", "karpenter", v1beta1.GatedBinding},
		"Auto with a patch beside one":       {"Auto", patched, "karpenter", v1beta1.EarlyBinding},
		"Late beside one":                    {"Late", "", "cluster-autoscaler", v1beta1.LateBinding},
		"Early beside one":                   {"Early", "", "configured", v1beta1.EarlyBinding},
		"Gated":                              {"Gated", "", "", v1beta1.GatedBinding},
		"a spread that is invalid, anything": {"Late", patched, "karpenter", ""},
	} {
		t.Run(name, func(t *testing.T) {
			spread := makeSpread(t, fmt.Sprintf(`{scheduleStrategy: {binding: %s}, subsets: [{name: a%s}]}`, tc.binding, tc.patch))
			f := &facts{autoscaler: tc.autoscaler, podsUnknown: true, account: &account{}}
			f.policy, f.invalid = subset.Compile(spread, field.NewPath("spec"))
			if len(f.invalid) > 0 {
				f.policy = nil
			}
			status := describe(spread, f)
			if status.Binding != tc.want || status.NodeAutoscaler != string(tc.autoscaler) {
				t.Errorf("binding %q beside %q, want %q beside %q", status.Binding, status.NodeAutoscaler, tc.want, tc.autoscaler)
			}
		})
	}
}

func TestStatusAsOpenKruises(t *testing.T) {
	const spec = `{scheduleStrategy: {type: Adaptive, adaptive: {rescheduleCriticalSeconds: 30}}, subsets: [{name: a, maxReplicas: 3}, {name: b}]}`
	spread := makeSpread(t, spec)
	spread.Annotations = map[string]string{v1beta1.CompatibilityAnnotation: "kruise"}
	f := factsOf(t, spread, 4, "a a@r")
	put := func(name, picked, revision string) {
		pod := subset.Pod{Name: name, UID: types.UID(name), Active: true, Created: f.now.Time, Revision: revision}
		if picked != "" {
			pod.Admitted = &subset.Admitted{Spread: "web", Subset: picked, Pick: name}
		}
		f.put(pod, podFacts{unschedulable: true})
	}
	put("waits-a", "a", "r")
	put("waits-b", "b", "r")
	put("waits", "", "r")
	// at describes the facts at a time after noon, and returns the condition of a and when it asks to be called again.
	at := func(after time.Duration) (condition metav1.Condition, turns time.Duration, recovered bool) {
		t.Helper()
		f.now = metav1.NewTime(noon.Add(after))
		before := spread.Status
		spread.Status = describe(spread, f)
		if turn := turnsAt(&spread.Status, f); !turn.IsZero() {
			turns = turn.Sub(noon.Time)
		}
		return *meta.FindStatusCondition(spread.Status.SubsetStatuses[0].Conditions, v1beta1.ConditionSchedulable), turns, len(recoveries(spread, &before)) > 0
	}
	expect := func(after time.Duration, status metav1.ConditionStatus, reason v1beta1.Reason, turn time.Duration, recovers bool) {
		t.Helper()
		c, turns, recovered := at(after)
		if c.Status != status || c.Reason != string(reason) || turns != turn || recovered != recovers {
			t.Errorf("after %s: %s %s, turns after %s, recovered %t; want %s %s, %s, %t", after, c.Status, c.Reason, turns, recovered, status, reason, turn, recovers)
		}
		if b := meta.FindStatusCondition(spread.Status.SubsetStatuses[1].Conditions, v1beta1.ConditionSchedulable); b.Status != metav1.ConditionTrue {
			t.Errorf("after %s: the last subset is not schedulable", after)
		}
	}
	expect(10*time.Second, metav1.ConditionTrue, v1beta1.ReasonSufficient, 30*time.Second, false)
	if a, b := spread.Status.SubsetStatuses[0], spread.Status.SubsetStatuses[1]; a.Replicas != 3 || a.MissingReplicas != 0 || b.Replicas != 1 || b.MissingReplicas != -1 {
		t.Errorf("a has %d, misses %d; b has %d, misses %d", a.Replicas, a.MissingReplicas, b.Replicas, b.MissingReplicas)
	}
	if r := spread.Status.VersionedSubsetStatuses["r"]; r[0].Replicas != 2 || r[0].MissingReplicas != 1 {
		t.Errorf("revision r has %d in a, misses %d", r[0].Replicas, r[0].MissingReplicas)
	}
	if spread.Status.PendingPods != 1 || spread.Status.Pods() != 5 || spread.Status.SubsetStatuses[0].CreatingPods != nil {
		t.Errorf("%d pending of %d pods", spread.Status.PendingPods, spread.Status.Pods())
	}
	expect(30*time.Second, metav1.ConditionFalse, v1beta1.ReasonPodUnschedulable, 330*time.Second, false)
	f.drop("waits-a")
	expect(60*time.Second, metav1.ConditionFalse, v1beta1.ReasonPodUnschedulable, 330*time.Second, false)
	expect(330*time.Second, metav1.ConditionTrue, v1beta1.ReasonSufficient, 0, true)

	spread.Spec.ScheduleStrategy.Adaptive.RescheduleCriticalSeconds = nil
	spread.Generation++
	f.policy, _ = subset.Compile(spread, field.NewPath("spec"))
	if got := describe(spread, f); len(got.SubsetStatuses[0].Conditions) > 0 {
		t.Errorf("pods are never overdue, and there is %v", got.SubsetStatuses[0].Conditions)
	}

	bound := subset.Pod{Name: "by-others", UID: "by-others", Active: true, NodeName: "n", Created: f.now.Time, Admitted: &subset.Admitted{Spread: "web", Subset: "b"}}
	f.put(bound, podFacts{scheduler: "other"})
	if len(f.foreign) > 0 {
		t.Errorf("a pod that admission gave to another scheduler counts as not divided: %v", f.foreign)
	}
	bound.Admitted = nil
	if f.put(bound, podFacts{scheduler: "other"}); f.foreign["other"] != 1 {
		t.Errorf("a pod that admission did not see is not told: %v", f.foreign)
	}
}
