package budget

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/testkit/worlds"
)

// perZone is a budget that limits zones: "max 2", "one", or "max 2, one" for both.
func perZone(rule string) *v1beta1.PodUnavailableBudget {
	pub := budgetOf("max 100%")
	pub.Spec.MaxUnavailable, pub.Spec.PerSubset = nil, &v1beta1.PerSubset{Label: "zone"}
	for part := range strings.SplitSeq(rule, ", ") {
		if value, is := strings.CutPrefix(part, "max "); is {
			pub.Spec.PerSubset.MaxUnavailable = ptr.To(intstr.Parse(value))
		} else {
			pub.Spec.PerSubset.OneAtATime = true
		}
	}
	return pub
}

// inZones reads facts such as "a=3 +++ b=2 +-": for each zone how many pods its workload asks for, and its pods. Without a number a shared workload asks for
// the pods that exist, and for shared more. A pod is + available, h available and handed over, ? doubtful, - unavailable, . pending, x gone, e exempt. The zone "_" is none. The pods are
// a0, a1, …
func inZones(text string, unplaced int32) Facts {
	states := map[rune]State{'+': Available, 'h': Available, '?': Doubtful, '-': Unavailable, '.': Pending, 'x': Gone, 'e': Exempt}
	f := Facts{Unplaced: unplaced}
	words := strings.Fields(text)
	for i := 0; i < len(words); i += 2 {
		zone, asked, declared := strings.Cut(words[i], "=")
		replicas, _ := strconv.Atoi(asked)
		if declared {
			w := v1beta1.SubsetWorkload{Name: zone, UID: types.UID(zone)}
			f.Subsets = append(f.Subsets, SubsetWorkload{SubsetWorkload: w, Subset: zone, Replicas: int32(replicas)})
		}
		if words[i+1] != "none" {
			for n, state := range words[i+1] {
				name := fmt.Sprintf("%s%d", zone, n)
				f.Pods = append(f.Pods, Pod{Name: name, UID: types.UID(name), State: states[state], Subset: strings.Trim(zone, "_"), Declared: declared, HandedOver: state == 'h'})
			}
		}
		f.Workloads = append(f.Workloads, Workload{Name: "StatefulSet " + zone, Replicas: int32(replicas)})
	}
	return f
}

func TestPerSubset(t *testing.T) {
	const other = "pods of one subset at a time may be unavailable"
	for name, tc := range map[string]struct {
		rule, pods string
		unplaced   int32
		ask        string // pods whose deletions are asked for together
		want       string // + allowed, - refused
		says       string // a part of the refusal
	}{
		"one subset at a time":                                    {rule: "one", pods: "a=2 ++ b=2 ++", ask: "a0 b0 a1 b1", want: "+-+-", says: "subset a has 1 unavailable of 2 pods, and " + other},
		"a missing pod holds other subsets":                       {rule: "one", pods: "a=3 ++ b=2 ++", ask: "a0 b0", want: "+-", says: "subset a has"},
		"a subset without pods too":                               {rule: "one", pods: "a=2 none b=2 ++", ask: "b0", want: "-", says: "subset a has 2 unavailable of 2"},
		"a doubtful pod too, and may go itself":                   {rule: "one", pods: "a=2 +? b=2 ++", ask: "b0 a1 a0", want: "-++", says: "subset a has 1"},
		"two subsets that failed hold each other":                 {rule: "one", pods: "a=2 +- b=2 +-", ask: "a0 b0", want: "--", says: other},
		"pods that do not serve go all the same":                  {rule: "one", pods: "a=2 +- b=2 .-", ask: "a1 b0 b1", want: "+++"},
		"more pods than a subset needs":                           {rule: "one", pods: "a=2 +- b=2 +++", ask: "b0 b1", want: "+-", says: "subset a has 1"},
		"a subset scaled to none":                                 {rule: "one", pods: "a=0 none b=2 ++", ask: "b0 b1", want: "++"},
		"an exempt pod counts for none":                           {rule: "one", pods: "a=3 ++e b=2 ++", ask: "b0 a0 a2", want: "+-+", says: "subset b has"},
		"of a shared workload, the pods that exist":               {rule: "one", pods: "a +++ b ++- c ++", ask: "a0 b0 b2", want: "-++", says: "subset b has 1 unavailable of 3"},
		"a missing pod of a shared workload may be of any subset": {rule: "one", pods: "a +++ b ++", unplaced: 1, ask: "a0 b0", want: "--", says: "1 missing pods may be of any subset"},
		"a pod without a subset may become one of any":            {rule: "one", pods: "a +++ _ .", ask: "a0 _0", want: "-+", says: "may be of any subset"},
		"an available pod without a subset is judged by itself":   {rule: "one", pods: "a ++ _ ++", ask: "_0 _1 a0", want: "+--"},
		"a terminating pod of a shared workload counts no more":   {rule: "one", pods: "a ++x b ++", ask: "b0", want: "+"},
		"so many of each subset":                                  {rule: "max 1", pods: "a=3 +++ b=3 +++", ask: "a0 a1 b0 b1", want: "+-+-", says: "subset a has 1 unavailable of 3 pods, and at most 1 may be unavailable"},
		"a percentage of the subset, rounded up":                  {rule: "max 50%", pods: "a=3 +++ b=1 +", ask: "a0 a1 a2 b0", want: "++-+"},
		"a missing pod of a shared workload counts in each":       {rule: "max 1", pods: "a ++ b ++", unplaced: 1, ask: "a0 b0", want: "--", says: "1 missing pods may be of any subset"},
		"both rules": {rule: "max 1, one", pods: "a=2 ++ b=2 ++", ask: "a0 a1 b0", want: "+--"},
		"of none, a pod that the subset does not need":             {rule: "max 0", pods: "a=2 +++", ask: "a0 a1", want: "+-"},
		"a pod that is handed over is more than a subset needs":    {rule: "max 0", pods: "a h++", ask: "a0 a1", want: "+-", says: "subset a has 0 unavailable of 2 pods"},
		"while nobody has made the pod in its place":               {rule: "max 0", pods: "a h++", unplaced: 1, ask: "a0", want: "-", says: "may be of any subset"},
		"while the pod in its place has not started":               {rule: "max 0", pods: "a h++.", ask: "a0", want: "-", says: "1 missing pods may be of any subset"},
		"while it has not in another subset":                       {rule: "max 0", pods: "a h++ b +?", ask: "a0", want: "-", says: "1 missing pods may be of any subset"},
		"while it has not, and one subset at a time":               {rule: "one", pods: "a h++ _ .", ask: "a0", want: "-", says: "1 missing pods may be of any subset"},
		"the pod in its place is in another subset":                {rule: "one", pods: "a h++ b +++", ask: "a0 a1 b0", want: "++-", says: "subset a has 1 unavailable of 2 pods"},
		"one without a subset is more than its workload needs":     {rule: "max 0", pods: "a ++ _ h", ask: "_0 a0", want: "+-"},
		"one of a workload in one subset":                          {rule: "max 0", pods: "a=2 h++", ask: "a0 a1", want: "+-"},
		"one who comes back for the same pod needs the same again": {rule: "one", pods: "a=2 ++ b=2 ++", ask: "a0 a0 b0", want: "++-"},
	} {
		t.Run(name, func(t *testing.T) {
			p := compile(t, perZone(tc.rule))
			var requests []Request
			for asked := range strings.FieldsSeq(tc.ask) {
				requests = append(requests, request(asked, v1beta1.OperationDelete))
			}
			f := inZones(tc.pods, tc.unplaced)
			for i := range f.Workloads { // the workloads ask for something, or nothing is known
				f.Workloads[i].Replicas = max(f.Workloads[i].Replicas, 1)
			}
			d := p.Decide(f, requests, metav1.Time{})
			got, message := "", ""
			for _, v := range d.Verdicts {
				if v.Allowed {
					got += "+"
					continue
				}
				got += "-"
				if message == "" {
					message = v.Message
				}
				if v.Reason != v1beta1.ReasonHeldBySubset {
					t.Errorf("refused with %s", v.Reason)
				}
			}
			if got != tc.want || !strings.Contains(message, tc.says) {
				t.Errorf("got %s, want %s; %q does not contain %q", got, tc.want, message, tc.says)
			}
			f.Ledger = d.Ledger
			if diff := cmp.Diff(p.Tally(f).Subsets, d.Tally.Subsets); diff != "" || p.Tally(f).Allowed != d.Tally.Allowed {
				t.Errorf("the tally is not that of the ledger: allowed %d and %d (-ledger +decision)\n%s", p.Tally(f).Allowed, d.Tally.Allowed, diff)
			}
		})
	}
}

func TestTheWholeBudgetCountsBesideItsSubsets(t *testing.T) {
	pub := perZone("one")
	pub.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(2))
	d := compile(t, pub).Decide(inZones("a=3 +++ b=3 +++", 0), []Request{request("a0", v1beta1.OperationEvict), request("a1", v1beta1.OperationEvict), request("a2", v1beta1.OperationEvict)}, metav1.Time{})
	if !d.Verdicts[0].Allowed || !d.Verdicts[1].Allowed || d.Verdicts[2].Reason != v1beta1.ReasonBudgetExhausted {
		t.Errorf("got %+v, want two of the three", d.Verdicts)
	}
}

func TestSubsetsNeedTheNumberOfReplicas(t *testing.T) {
	f := inZones("a +++", 0)
	f.Workloads, f.Unread = nil, []string{"Site.example.com"}
	v := compile(t, perZone("one")).Decide(f, []Request{request("a0", v1beta1.OperationDelete)}, metav1.Time{}).Verdicts[0]
	if v.Reason != v1beta1.ReasonReplicasUnknown || !strings.Contains(v.Message, "has perSubset, and Berth cannot read") {
		t.Errorf("got %+v", v)
	}
}

func TestPodsOfAWorkloadThatIsGoneAreHeldByNoSubset(t *testing.T) {
	f := inZones("a=2 +- b ++", 0)
	f.Pods[2].Unwanted, f.Pods[3].Unwanted = true, true
	p := compile(t, perZone("one"))
	for _, v := range p.Decide(f, []Request{request("b0", v1beta1.OperationDelete), request("b1", v1beta1.OperationDelete)}, metav1.Time{}).Verdicts {
		if !v.Allowed {
			t.Errorf("got %+v, and the garbage collector has to delete it", v)
		}
	}
}

func TestCompilePerSubset(t *testing.T) {
	for name, tc := range map[string]struct {
		spec v1beta1.PerSubset
		want string
	}{
		"nothing is limited": {v1beta1.PerSubset{Label: "zone"}, "spec.perSubset: Required value: needs maxUnavailable or oneAtATime: true"},
		"no key":             {v1beta1.PerSubset{Label: "a b", OneAtATime: true}, `spec.perSubset.label: Invalid value: "a b": must be the key of a label`},
		"no amount":          {v1beta1.PerSubset{Label: "zone", MaxUnavailable: ptr.To(intstr.FromString("two"))}, `spec.perSubset.maxUnavailable: Invalid value: "two": must be a count or a percentage from 0% to 100%`},
	} {
		t.Run(name, func(t *testing.T) {
			pub := perZone("one")
			pub.Spec.PerSubset = &tc.spec
			if _, errs := Compile(pub); len(errs) != 1 || errs[0].Error() != tc.want {
				t.Errorf("got %v, want %s", errs, tc.want)
			}
		})
	}
}

func TestAStatusRemembersTheWorkloadsOfSubsets(t *testing.T) {
	p := compile(t, perZone("one"))
	status := v1beta1.PodUnavailableBudgetStatus{SubsetWorkloads: []v1beta1.SubsetWorkload{{Name: "gone", UID: "gone"}, {Name: "unseen", UID: "unseen"}}}
	f := inZones("b=2 ++ a=3 ++", 0)
	f.Forgotten = []types.UID{"gone"}
	Publish(&status, 1, nil, p.Tally(f))
	var names []string
	for _, w := range status.SubsetWorkloads {
		names = append(names, w.Name)
	}
	if want := []string{"a", "b", "unseen"}; !reflect.DeepEqual(names, want) {
		t.Errorf("it remembers %q, want %q", names, want)
	}
	want := []v1beta1.SubsetStatus{{Name: "a", TotalReplicas: 3, CurrentAvailable: 2}, {Name: "b", TotalReplicas: 2, CurrentAvailable: 2}}
	if diff := cmp.Diff(want, status.Subsets); diff != "" || status.UnavailableAllowed != 2 {
		t.Errorf("%d are allowed (-want +got)\n%s", status.UnavailableAllowed, diff)
	}
	Publish(&status, 2, nil, compile(t, budgetOf("max 1")).Tally(f))
	if status.Subsets != nil || status.SubsetWorkloads != nil {
		t.Errorf("without perSubset it still has %+v, %+v", status.Subsets, status.SubsetWorkloads)
	}
}

// TestThreeZonesAreDrainedOneAfterTheOther drains all nodes of three zones at once. A pod that goes comes back some steps later.
func TestThreeZonesAreDrainedOneAfterTheOther(t *testing.T) {
	const replicas, back = 140, 40
	for name, declared := range map[string]bool{"a workload in each zone": true, "a workload over all zones": false} {
		t.Run(name, func(t *testing.T) {
			p := compile(t, perZone("one"))
			f := Facts{Workloads: []Workload{{Replicas: 3 * replicas}}}
			ends := map[types.UID]int{} // the step at which a pod is back
			var left []Request
			for i := range 3 * replicas {
				zone := strconv.Itoa(i % 3)
				uid := types.UID(strconv.Itoa(i))
				f.Pods = append(f.Pods, Pod{Name: string(uid), UID: uid, State: Available, Subset: zone, Declared: declared})
				left = append(left, Request{Name: string(uid), UID: uid, Operation: v1beta1.OperationEvict})
				if declared && i < 3 {
					f.Subsets = append(f.Subsets, SubsetWorkload{Subset: zone, Replicas: replicas})
				}
			}
			random := rand.New(rand.NewPCG(1, 2))
			turns, last := 0, ""
			for step := 0; len(left) > 0; step++ {
				if step > 100_000 {
					t.Fatalf("%d pods are left", len(left))
				}
				random.Shuffle(len(left), func(a, b int) { left[a], left[b] = left[b], left[a] })
				asked := left[:min(len(left), 60)]
				d := p.Decide(f, asked, metav1.Time{})
				f.Ledger = nil // the controller has seen the pods terminate
				var refused []Request
				for i, v := range d.Verdicts {
					if !v.Allowed {
						refused = append(refused, asked[i])
						continue
					}
					at, _ := strconv.Atoi(string(asked[i].UID))
					f.Pods[at].State = Unavailable
					ends[asked[i].UID] = step + back
					if zone := f.Pods[at].Subset; zone != last {
						turns, last = turns+1, zone
					}
				}
				left = append(refused, left[len(asked):]...)
				down := map[string]bool{}
				for i := range f.Pods {
					pod := &f.Pods[i]
					if pod.State != Available && ends[pod.UID] <= step {
						pod.State = Available
					}
					down[pod.Subset] = down[pod.Subset] || pod.State != Available
				}
				if down["0"] && (down["1"] || down["2"]) || down["1"] && down["2"] {
					t.Fatalf("two zones are down at step %d", step)
				}
			}
			if turns != 3 {
				t.Errorf("the zones took %d turns, want one each", turns)
			}
		})
	}
}

func TestNoTwoSubsetsAreTakenFrom(t *testing.T) {
	worlds.Check(t, "subsets", 1000, checkSubsets)
}

// checkSubsets makes up zones with pods, and checks every approval with arithmetic of its own.
func checkSubsets(t rapid.TB, h *worlds.History) {
	t.Helper()
	var text []string
	for _, zone := range []string{"a", "b", "c", "_"}[:2+h.Number("zones", 3)] {
		pods := ""
		for range 1 + h.Number("pods", 5) {
			pods += h.Pick("+", "+", "+", "+", "?", "-", ".", "x", "e")
		}
		if zone != "_" && h.Number("declared", 2) > 0 {
			zone += "=" + strconv.Itoa(h.Number("replicas", 6))
		}
		text = append(text, zone, pods)
		h.Line()
	}
	f := inZones(strings.Join(text, " "), int32(h.Number("unplaced", 4)/3))
	f.Workloads = append(f.Workloads, Workload{Replicas: 1})
	p := compile(t, perZone(h.Pick("one", "max 1", "max 2, one", "max 50%")))
	var requests []Request
	for range h.Number("requests", 12) {
		requests = append(requests, request(f.Pods[h.Number("pod", len(f.Pods))].Name, v1beta1.Operation(h.Pick(allOperations...))))
	}
	d := p.Decide(f, requests, metav1.Time{})
	lost := map[types.UID]bool{}
	for i, v := range d.Verdicts {
		if !v.Allowed || v.Reason == v1beta1.ReasonNotProtected {
			continue
		}
		of := f.Pods[0]
		for _, pod := range f.Pods {
			if pod.UID == requests[i].UID {
				of = pod
			}
		}
		if of.State != Available || lost[of.UID] {
			lost[of.UID] = true
			continue
		}
		lost[of.UID] = true
		total, missing, anywhere := map[string]int{}, map[string]int{}, int(f.Unplaced)
		for _, w := range f.Subsets {
			total[w.Subset] += int(w.Replicas)
			missing[w.Subset] += int(w.Replicas)
		}
		for _, pod := range f.Pods {
			serves := pod.State == Available && !lost[pod.UID]
			switch {
			case pod.State == Gone:
			case pod.State == Exempt && pod.Declared:
				total[pod.Subset]--
				missing[pod.Subset]--
			case pod.State == Exempt:
			case pod.Declared && serves:
				missing[pod.Subset]--
			case pod.Declared:
			case serves:
				total[pod.Subset]++
			case pod.Subset == "":
				anywhere++
			default:
				total[pod.Subset]++
				missing[pod.Subset]++
			}
		}
		if of.Subset == "" && !of.Declared { // it is one of those anywhere by now
			anywhere--
			missing[""]++
			total[""]++
		}
		if limit := p.perSubset.maxUnavailable; limit.IsSet() && max(missing[of.Subset], 0)+anywhere > int(limit.Quota(int32(max(total[of.Subset], 0)))) {
			t.Fatalf("%v: request %d of %+v leaves %v missing of %v, and %d anywhere", text, i, requests, missing, total, anywhere)
		}
		for zone, many := range missing {
			if p.perSubset.oneAtATime && missing[of.Subset] > 0 && (zone != of.Subset && many > 0 || anywhere > 0) {
				t.Fatalf("%v: request %d of %+v leaves %v missing, and %d anywhere", text, i, requests, missing, anywhere)
			}
		}
	}
	f.Ledger = d.Ledger
	if diff := cmp.Diff(p.Tally(f).Subsets, d.Tally.Subsets); diff != "" || p.Tally(f).Unplaced != d.Tally.Unplaced || p.Tally(f).Allowed != d.Tally.Allowed {
		t.Fatalf("the tally is not that of the ledger (-ledger +decision)\n%s", diff)
	}
}
