package workloadspread_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
	"github.com/berth-project/berth/pkg/subset"
)

// asAdmitted does to a pod what the webhook does to one that is bound late.
func asAdmitted(t *testing.T, spec string) func(*corev1.Pod) {
	t.Helper()
	s := &v1beta1.WorkloadSpread{}
	s.Spec.TargetReference = v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	if err := yaml.UnmarshalStrict([]byte(spec), &s.Spec); err != nil {
		t.Fatal(err)
	}
	policy, errs := subset.Compile(s, field.NewPath("spec"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return func(pod *corev1.Pod) { policy.Constraints.AddTo(pod) }
}

// TestAPodBeyondAllQuotasToleratesWhatItsTemplateTolerates: admission has added the tolerations of all subsets, and the quota of the tainted subset is full.
func TestAPodBeyondAllQuotasToleratesWhatItsTemplateTolerates(t *testing.T) {
	const spec = `subsets: [{name: a, maxReplicas: 1, tolerations: [{key: spot, operator: Exists}], requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}]`
	for name, tc := range map[string]struct {
		own    []corev1.Toleration
		others []*corev1.Node
		want   string
	}{
		"there is no other node":    {},
		"there is one":              {others: []*corev1.Node{nodeOf("b")}, want: "node-b"},
		"its template tolerates it": {own: []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}, want: "node-a"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				a := nodeOf("a")
				a.Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectNoSchedule}}
				p := openPort(t, spec, nil, append(tc.others, a)...)
				tolerates := func(pod *corev1.Pod) { pod.Spec.Tolerations = tc.own }
				p.pod("within", tolerates, asAdmitted(t, spec))
				p.pod("beyond", tolerates, asAdmitted(t, spec))
				p.cycles()
				p.expectNode("within", "node-a")
				p.expectNode("beyond", tc.want)
			})
		})
	}
}

// TestAPodBeyondAllQuotasGoesToANodeThatLosesItsTaint: only WorkloadSpread has refused the node, so nothing else has the pod tried again.
func TestAPodBeyondAllQuotasGoesToANodeThatLosesItsTaint(t *testing.T) {
	const spec = `subsets: [{name: a, maxReplicas: 1, tolerations: [{key: spot, operator: Exists}], requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [a]}]}}]`
	inBubble(t, func(t *testing.T) {
		a := nodeOf("a")
		a.Spec.Taints = []corev1.Taint{{Key: "spot", Effect: corev1.TaintEffectNoSchedule}}
		p := openPort(t, spec, nil, a)
		p.pod("within", asAdmitted(t, spec))
		p.pod("beyond", asAdmitted(t, spec))
		p.cycles()
		p.expectNode("beyond", "")
		free := a.DeepCopy()
		free.Spec.Taints = nil
		if _, err := p.client.CoreV1().Nodes().Update(p.ctx, free, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(restSeconds * time.Second)
		p.cycles()
		p.expectNode("beyond", "node-a")
	})
}

// TestEveryProfileThatTheCheckPassesSchedulesPods: a profile may leave out PreScore, Score and the gate, in every combination, and nothing else. Without PreScore nothing says that a pod of
// no spread needs no score.
func TestEveryProfileThatTheCheckPassesSchedulesPods(t *testing.T) {
	is := func(name string) func(schedulerconfig.Plugin) bool {
		return func(p schedulerconfig.Plugin) bool { return p.Name == name }
	}
	disable := func(at *schedulerconfig.PluginSet) {
		at.Enabled = slices.DeleteFunc(at.Enabled, is(workloadspread.Name))
		at.Disabled = append(at.Disabled, schedulerconfig.Plugin{Name: workloadspread.Name})
	}
	optional := []struct {
		name    string
		without func(*schedulerconfig.Plugins)
	}{
		{"PreScore", func(at *schedulerconfig.Plugins) { disable(&at.PreScore) }},
		{"Score", func(at *schedulerconfig.Plugins) { disable(&at.Score) }},
		{"the gate", func(at *schedulerconfig.Plugins) {
			at.MultiPoint.Enabled = append(slices.DeleteFunc(at.MultiPoint.Enabled, is(workloadspread.GateName)), schedulerconfig.Plugin{Name: names.SchedulingGates})
			at.MultiPoint.Disabled = slices.DeleteFunc(at.MultiPoint.Disabled, is(names.SchedulingGates))
		}},
	}
	for without := range 1 << len(optional) {
		name := "without"
		for i := range optional {
			if without&(1<<i) != 0 {
				name += " " + optional[i].name
			}
		}
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				p := openPort(t, "subsets: [{name: a, maxReplicas: 1}]", func(profile *schedulerconfig.KubeSchedulerProfile) {
					for i := range optional {
						if without&(1<<i) != 0 {
							optional[i].without(profile.Plugins)
						}
					}
				}, nodeOf("a"), nodeOf("b"))
				p.pod("bare", func(pod *corev1.Pod) { pod.OwnerReferences = nil })
				p.pod("within")
				p.pod("beyond")
				p.cycles()
				for _, name := range []string{"within", "beyond"} {
					if p.get(name).Spec.NodeName == "" {
						t.Errorf("%s has no node", name)
					}
				}
				if n := p.cyclesOf("bare"); n != 1 { // the client of these tests does not know its bind
					t.Errorf("bare had %d cycles", n)
				}
			})
		})
	}
}

// TestASpreadComesWhileNoneAreWatched: the definition of the kind changes when Berth is installed, and the API server ends all watches of spreads. No webhook has seen the pod.
func TestASpreadComesWhileNoneAreWatched(t *testing.T) {
	const spec = `subsets: [{name: b, requiredNodeSelector: {matchExpressions: [{key: zone, operator: In, values: [b]}]}}]`
	for name, resumes := range map[string]bool{"its pod waits for it": true, "its pod does not wait forever": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				p := openPort(t, spec, nil, nodeOf("a"))
				p.server.remove(t)
				settle()
				p.server.interrupt()
				settle()
				p.spread(2, spec)
				p.pod("early")
				p.cycle()
				if resumes {
					p.create(nodeOf("b"))
					p.server.resume()
				}
				time.Sleep(2 * time.Minute)
				p.cycles()
				if resumes {
					p.expectNode("early", "node-b")
				}
				undivided := slices.ContainsFunc(p.client.Actions(), func(action clienttesting.Action) bool { // kube-scheduler binds it by itself
					return action.Matches("create", "pods/binding")
				})
				if undivided == resumes {
					t.Errorf("bound without its spread: %t", undivided)
				}
			})
		})
	}
}
