package budget

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// replacing is a budget of one pod that must be available, which replaces this many at a time.
func replacing(t *testing.T, maxPods int32) *Policy {
	t.Helper()
	pub := budgetOf("min 1")
	pub.Spec.ReplaceFirst = &v1beta1.ReplaceFirst{MaxPods: &maxPods, TimeoutSeconds: ptr.To[int32](60)}
	return compile(t, pub)
}

func ofSet(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "7", Labels: map[string]string{"pod-template-hash": "x"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "other"}, {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-x", UID: "set", Controller: ptr.To(true)}}}}
}

var webX = &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-x", UID: "set",
	OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}}}

// patched is the pod after a merge patch of its metadata.
func patched(t *testing.T, pod *corev1.Pod, patch []byte) *corev1.Pod {
	t.Helper()
	var body struct {
		Metadata struct {
			ResourceVersion string
			OwnerReferences []metav1.OwnerReference
			Annotations     map[string]*string
		}
	}
	if err := json.Unmarshal(patch, &body); err != nil || body.Metadata.ResourceVersion != pod.ResourceVersion {
		t.Fatalf("%v, %s", err, patch)
	}
	after := pod.DeepCopy()
	after.OwnerReferences, after.Annotations = body.Metadata.OwnerReferences, map[string]string{}
	for key, value := range body.Metadata.Annotations {
		if value != nil {
			after.Annotations[key] = *value
		}
	}
	return after
}

func handedOver(t *testing.T, name string, since time.Time) *corev1.Pod {
	t.Helper()
	pod := ofSet(name)
	return patched(t, pod, HandOver(pod, webX, "web", metav1.NewTime(since)))
}

func TestAPodIsHandedOverAndTakenBackWithItsOtherOwners(t *testing.T) {
	since := time.Unix(100, 0)
	over := handedOver(t, "a", since)
	owner := metav1.GetControllerOf(over)
	if len(over.OwnerReferences) != 2 || owner == nil || owner.Kind != "Deployment" || owner.UID != "web" || owner.BlockOwnerDeletion != nil || over.Labels["pod-template-hash"] != "x" {
		t.Errorf("%+v", over.ObjectMeta)
	}
	if h := HandoverOf(over); h == nil || h.ReplicaSet != "web-x" || h.Budget != "web" || h.UID != "set" || !h.Since.Time.Equal(since) {
		t.Errorf("%+v", h)
	}
	back := patched(t, over, TakeBack(over, webX))
	owner = metav1.GetControllerOf(back)
	if len(back.OwnerReferences) != 2 || owner == nil || owner.Kind != "ReplicaSet" || owner.UID != "set" || HandoverOf(back) != nil || len(back.Annotations) > 0 {
		t.Errorf("%+v", back.ObjectMeta)
	}
}

func TestTheAnnotationAloneIsNoHandover(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"on a pod of a ReplicaSet": func(p *corev1.Pod) { p.OwnerReferences = ofSet("a").OwnerReferences },
		"on a pod of nobody":       func(p *corev1.Pod) { p.OwnerReferences = nil },
		"without a ReplicaSet":     func(p *corev1.Pod) { p.Annotations[v1beta1.ReplacedFirstAnnotation] = `{}` },
		"that is no JSON":          func(p *corev1.Pod) { p.Annotations[v1beta1.ReplacedFirstAnnotation] = `{` },
	} {
		pod := handedOver(t, "a", time.Unix(100, 0))
		if change(pod); HandoverOf(pod) != nil {
			t.Errorf("%s: %+v", name, HandoverOf(pod))
		}
	}
}

func TestWhichPodsCanBeReplacedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"a pod of a Deployment":      {func(*corev1.Pod) {}, true},
		"one with other volumes":     {func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "a"}} }, true},
		"one of a bare ReplicaSet":   {func(p *corev1.Pod) { p.Labels = nil }, false},
		"one of nobody":              {func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		"one of another kind":        {func(p *corev1.Pod) { p.OwnerReferences[1].Kind = "StatefulSet" }, false},
		"one of another group":       {func(p *corev1.Pod) { p.OwnerReferences[1].APIVersion = "example.com/v1" }, false},
		"one that terminates":        {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }, false},
		"one that was handed over":   {func(p *corev1.Pod) { p.OwnerReferences[1].Kind = "Deployment" }, false},
		"one of an Argo Rollout":     {func(p *corev1.Pod) { p.Labels = map[string]string{"rollouts-pod-template-hash": "x"} }, false},
		"one whose owner is no more": {func(p *corev1.Pod) { p.OwnerReferences = p.OwnerReferences[:1] }, false},
	} {
		pod := ofSet("a")
		if tc.change(pod); IsReplaceable(pod) != tc.want {
			t.Errorf("%s: got %t", name, !tc.want)
		}
	}
}

func TestWhichClaimsForbidASecondPod(t *testing.T) {
	for modes, want := range map[string]bool{"": true, "ReadWriteOnce": true, "ReadWriteOncePod": true, "ReadWriteMany": false, "ReadOnlyMany": false, "ReadWriteOnce ReadOnlyMany": true, "ReadWriteOnce ReadWriteMany": false} {
		claim := &corev1.PersistentVolumeClaim{}
		for mode := range strings.FieldsSeq(modes) {
			claim.Spec.AccessModes = append(claim.Spec.AccessModes, corev1.PersistentVolumeAccessMode(mode))
		}
		if IsExclusive(claim) != want {
			t.Errorf("%q: got %t", modes, !want)
		}
	}
}

// TestASubsetWithoutRoomHasANewPodMade: the refusal says so as well.
func TestASubsetWithoutRoomHasANewPodMade(t *testing.T) {
	for states, want := range map[string]v1beta1.Reason{"++": v1beta1.ReasonReplacedFirst, "?+": v1beta1.ReasonReplacedFirst, "-+": v1beta1.ReasonHeldBySubset} {
		pub := perZone("max 0")
		pub.Spec.ReplaceFirst, pub.Spec.UnhealthyPodPolicy = &v1beta1.ReplaceFirst{}, v1beta1.IfHealthyBudget
		facts := inZones("a=2 "+states, 0)
		r := request("a0", v1beta1.OperationEvict)
		r.Replaceable = true
		d := compile(t, pub).Decide(facts, []Request{r}, metav1.Time{})
		if v := d.Verdicts[0]; v.Reason != want || len(d.Replacing) == 1 != (want == v1beta1.ReasonReplacedFirst) || !strings.Contains(v.Message, "subset a has ") {
			t.Errorf("%s: got %+v, %+v", states, v, d.Replacing)
		}
		r.Replaceable, r.Obstacle = false, "of its volume"
		if v := compile(t, pub).Decide(facts, []Request{r}, metav1.Time{}).Verdicts[0]; v.Reason != v1beta1.ReasonHeldBySubset || !strings.HasSuffix(v.Message, "; no new pod is made first, because of its volume") {
			t.Errorf("%s: got %+v", states, v)
		}
	}
}

func TestARefusalNotesThePodOnce(t *testing.T) {
	policy := replacing(t, 1)
	facts := Facts{Pods: []Pod{{Name: "a", UID: "a", State: Available}}, Workloads: []Workload{{Name: "Deployment web", Replicas: 1}}}
	ask := func(uid types.UID, replaceable bool) Decision {
		return policy.Decide(facts, []Request{{Name: string(uid), UID: uid, Operation: v1beta1.OperationEvict, Replaceable: replaceable}}, metav1.Time{})
	}
	if d := ask("a", false); d.Changed || d.Verdicts[0].Reason != v1beta1.ReasonBudgetExhausted {
		t.Errorf("a pod that cannot be replaced: %+v", d)
	}
	first := ask("a", true)
	if !first.Changed || first.Verdicts[0].Allowed || first.Verdicts[0].Reason != v1beta1.ReasonReplacedFirst || len(first.Replacing) != 1 || len(first.Ledger) > 0 {
		t.Errorf("%+v", first)
	}
	facts.Replacing = first.Replacing
	for _, replaceable := range []bool{true, false} { // once handed over, it cannot be replaced again
		if d := ask("a", replaceable); d.Changed || d.Verdicts[0].Reason != v1beta1.ReasonReplacedFirst || len(d.Replacing) != 1 {
			t.Errorf("again: %+v", d)
		}
	}
	facts.Pods = append(facts.Pods, Pod{Name: "b", UID: "b", State: Doubtful})
	facts.Pods[0].State = Unavailable
	if d := ask("b", true); d.Changed || d.Verdicts[0].Allowed || d.Verdicts[0].Reason != v1beta1.ReasonBudgetExhausted || len(d.Replacing) != 1 {
		t.Errorf("one more than there may be: %+v", d)
	}
	facts.Pods[0].State, facts.Pods[1].State = Available, Available
	if d := ask("a", false); !d.Verdicts[0].Allowed || len(d.Ledger) != 1 {
		t.Errorf("with room: %+v", d)
	}
}

func TestTheNextStepOfAReplacement(t *testing.T) {
	began, now := time.Unix(100, 0), time.Unix(130, 0)
	available, pending := Pod{State: Available}, Pod{State: Pending}
	for name, tc := range map[string]struct {
		maxPods int32
		pods    []*corev1.Pod
		states  []Pod
		ledger  []types.UID
		asked   []types.UID
		// elsewhere are handed over by another budget.
		elsewhere []types.UID
		now       time.Time
		want      string // the steps
		next      time.Duration
	}{
		"nobody asks":                       {pods: []*corev1.Pod{ofSet("a")}, states: []Pod{available}},
		"asked for":                         {pods: []*corev1.Pod{ofSet("a")}, states: []Pod{available}, asked: []types.UID{"a"}, want: "hand over a"},
		"with room by now":                  {pods: []*corev1.Pod{ofSet("a"), ofSet("b")}, states: []Pod{available, available}, asked: []types.UID{"a"}, want: "evict a"},
		"gone":                              {pods: []*corev1.Pod{ofSet("b")}, states: []Pod{available}, asked: []types.UID{"a"}, want: "forget a"},
		"handed over":                       {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, pending}, asked: []types.UID{"a"}, next: 30 * time.Second},
		"a new pod is ready":                {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, available}, asked: []types.UID{"a"}, want: "evict a"},
		"its eviction is under way":         {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, available}, asked: []types.UID{"a"}, ledger: []types.UID{"a"}},
		"too late":                          {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, pending}, asked: []types.UID{"a"}, now: time.Unix(160, 0), want: "take back a, forget a"},
		"late, and a new pod is ready":      {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, available}, asked: []types.UID{"a"}, now: time.Unix(160, 0), want: "evict a"},
		"handed over, and nobody asks":      {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, pending}, want: "take back a, forget a"},
		"handed over by a budget that ends": {maxPods: -1, pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, pending}, asked: []types.UID{"a"}, want: "take back a, forget a"},
		"handed over by another budget":     {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, available}, elsewhere: []types.UID{"a"}},
		"two are asked for":                 {pods: []*corev1.Pod{ofSet("a"), ofSet("b")}, states: []Pod{available, {State: Unavailable}}, asked: []types.UID{"a", "b"}, want: "hand over a, evict b"},
		"one is handed over already":        {pods: []*corev1.Pod{handedOver(t, "a", began), ofSet("b")}, states: []Pod{available, {State: Doubtful}}, asked: []types.UID{"a", "b"}, want: "evict b", next: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			policy := replacing(t, max(tc.maxPods, 1))
			if tc.maxPods < 0 {
				policy.ReplaceFirst = 0
			}
			facts := Facts{Workloads: []Workload{{Name: "Deployment web", Replicas: 1}}}
			for i, pod := range tc.pods {
				tc.states[i].Name, tc.states[i].UID = pod.Name, pod.UID
			}
			facts.Pods = tc.states
			for _, uid := range tc.ledger {
				facts.Ledger = append(facts.Ledger, v1beta1.LedgerEntry{UID: uid, Operation: v1beta1.OperationEvict})
			}
			for _, uid := range tc.asked {
				facts.Replacing = append(facts.Replacing, v1beta1.ReplacedPod{UID: uid})
			}
			if tc.now.IsZero() {
				tc.now = now
			}
			plan, got := policy.Replace(facts, tc.pods, sets.New(tc.elsewhere...), tc.now), ""
			add := func(step string, pods []*corev1.Pod) {
				for _, pod := range pods {
					got += ", " + step + " " + pod.Name
				}
			}
			add("hand over", plan.HandOver)
			add("evict", plan.Evict)
			add("take back", plan.TakeBack)
			for _, uid := range []types.UID{"a", "b"} {
				if plan.Over.Has(uid) {
					got += ", forget " + string(uid)
				}
			}
			if tc.want != "" {
				tc.want = ", " + tc.want
			}
			if got != tc.want || plan.Next != tc.next {
				t.Errorf("got %q and next in %s, want %q and %s", got, plan.Next, tc.want, tc.next)
			}
		})
	}
}

func TestPodsThatLeaveNodesThatEnd(t *testing.T) {
	on := func(name, node string) *corev1.Pod {
		pod := ofSet(name)
		pod.Spec.NodeName = node
		return pod
	}
	bare, terminates := on("bare", "ends"), on("terminates", "ends")
	bare.OwnerReferences, terminates.DeletionTimestamp = nil, &metav1.Time{Time: time.Unix(1, 0)}
	all := []*corev1.Pod{on("a", "ends"), on("stays", "there"), on("b", "ends"), on("c", "ends"), bare, terminates, on("pending", "")}
	facts := Facts{Pods: make([]Pod, len(all))}
	for i, pod := range all {
		facts.Pods[i] = Pod{State: Available, UID: pod.UID}
	}
	ends := func(node string) bool { return node == "ends" }
	ask := func(maxPods int32, at time.Time) (names string, left bool) {
		pods, left := replacing(t, maxPods).LeaveFirst(facts, all, ends, at)
		for _, pod := range pods {
			names += pod.Name
		}
		return names, left
	}
	if names, left := ask(5, time.Unix(0, 0)); names != "abc" || !left {
		t.Errorf("all at a time: %s, %t", names, left)
	}
	turns := map[string]bool{} // something may hold the first of them for ever
	for i := range int64(3) {
		names, left := ask(1, time.Unix(5*i, 0))
		if turns[names] = true; !left {
			t.Error("two are left, and nobody asks for them")
		}
	}
	if len(turns) != 3 {
		t.Errorf("one at a time: %v", turns)
	}
	facts.Replacing = []v1beta1.ReplacedPod{{UID: "a"}}
	facts.Ledger = []v1beta1.LedgerEntry{{UID: "b", Operation: v1beta1.OperationEvict}}
	if names, left := ask(1, time.Unix(0, 0)); names != "" || !left {
		t.Errorf("one is replaced, one is about to go: %s, %t", names, left)
	}
	if names, _ := ask(2, time.Unix(0, 0)); names != "c" {
		t.Errorf("with room for another: %s", names)
	}
	if pods, left := compile(t, budgetOf("min 1")).LeaveFirst(facts, all, ends, time.Unix(0, 0)); pods != nil || left {
		t.Errorf("a budget that replaces nothing first: %v", pods)
	}
	facts.Ledger[0].UID, facts.Replacing[0].UID = "c", "a"
	facts.Pods[2].State = Exempt
	if _, left := ask(1, time.Unix(0, 0)); left {
		t.Error("nobody is left")
	}
}
