package workloadspread

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// profileOf creates a real framework with a snapshot of these nodes and pods, and these plugins in this order.
func profileOf(tb testing.TB, pods []*corev1.Pod, nodes []*corev1.Node, plugins ...tf.RegisterPluginFunc) framework.Framework {
	tb.Helper()
	metrics.Register()
	client := fake.NewClientset()
	all := append([]tf.RegisterPluginFunc{
		tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New), tf.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New)}, plugins...)
	profile, err := tf.NewFramework(tb.Context(), all, "berth-scheduler",
		frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)),
		frameworkruntime.WithSnapshotSharedLister(cache.NewSnapshot(pods, nodes)))
	if err != nil {
		tb.Fatal(err)
	}
	return profile
}

// withSpread registers the plugin WorkloadSpread with the world's ledger.
func (w *world) withSpread(points ...string) tf.RegisterPluginFunc {
	return tf.RegisterPluginAsExtensions(Name, func(_ context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		return &Spread{core: w.core, handle: handle}, nil
	}, points...)
}

// withTopologySpread registers the stock plugin PodTopologySpread with these default constraints.
func withTopologySpread(defaults ...corev1.TopologySpreadConstraint) tf.RegisterPluginFunc {
	return tf.RegisterPluginAsExtensions(names.PodTopologySpread, func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		args := &schedulerconfig.PodTopologySpreadArgs{DefaultConstraints: defaults, DefaultingType: schedulerconfig.ListDefaulting}
		return podtopologyspread.New(ctx, args, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	}, "PreFilter", "Filter")
}

// poolNode is a node with its own host name.
func poolNode(name, pool, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, "pool": pool, "zone": zone}}}
}

// policyOf compiles a spec and adds it to the world.
func (w *world) policyOf(spec string) *subset.Policy {
	w.t.Helper()
	w.spread(1, spec)
	object := &v1beta1.WorkloadSpreadSpec{TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	if err := yaml.UnmarshalStrict([]byte(spec), object); err != nil {
		w.t.Fatal(err)
	}
	policy, errs := subset.Compile(&v1beta1.WorkloadSpread{Spec: *object}, field.NewPath("spec"))
	if len(errs) > 0 {
		w.t.Fatal(errs)
	}
	return policy
}

// verdicts returns the filters' answer for each node after PreFilter: "ok", or the reasons.
func verdicts(t *testing.T, profile framework.Framework, state fwk.CycleState, pod *corev1.Pod) map[string]string {
	t.Helper()
	infos, err := profile.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, info := range infos {
		all[info.Node().Name] = "ok"
		if status := profile.RunFilterPlugins(t.Context(), state, pod, info); !status.IsSuccess() {
			all[info.Node().Name] = strings.Join(append([]string{status.Code().String()}, status.Reasons()...), " ")
		}
	}
	return all
}

func preFilter(t *testing.T, profile framework.Framework, pod *corev1.Pod) fwk.CycleState {
	t.Helper()
	state := framework.NewCycleState()
	if _, status, _ := profile.RunPreFilterPlugins(t.Context(), state, pod); !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	return state
}

// chance creates random objects.
type chance struct{ *rand.Rand }

func (c chance) in(percent int) bool         { return c.IntN(100) < percent }
func (c chance) one(values ...string) string { return values[c.IntN(len(values))] }
func (c chance) policy() *corev1.NodeInclusionPolicy {
	switch c.IntN(3) {
	case 0:
		return nil
	case 1:
		return ptr.To(corev1.NodeInclusionPolicyHonor)
	default:
		return ptr.To(corev1.NodeInclusionPolicyIgnore)
	}
}

func (c chance) nodes() []*corev1.Node {
	nodes := make([]*corev1.Node, 4+c.IntN(12))
	for i := range nodes {
		nodes[i] = poolNode(fmt.Sprint("node-", i), c.one("a", "b", "c"), c.one("x", "y", "z"))
		nodes[i].Labels["disk"] = c.one("ssd", "hdd")
		if c.in(10) {
			delete(nodes[i].Labels, "zone")
		}
		for _, key := range []string{"red", "blue"} {
			if c.in(20) {
				nodes[i].Spec.Taints = append(nodes[i].Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
			}
		}
	}
	return nodes
}

func (c chance) pods(nodes []*corev1.Node) []*corev1.Pod {
	pods := make([]*corev1.Pod, c.IntN(30))
	for i := range pods {
		pods[i] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.one("ns", "ns", "ns", "other"), Name: fmt.Sprint("there-", i), UID: types.UID(fmt.Sprint("there-", i)),
			Labels: map[string]string{"app": c.one("web", "web", "db"), "pod-template-hash": c.one("v1", "v1", "v0")}}}
		pods[i].Spec.NodeName = nodes[c.IntN(len(nodes))].Name
		if c.in(10) {
			pods[i] = terminating(pods[i])
		}
	}
	return pods
}

// constrain adds random constraints, node selector terms and tolerations to a pod.
func (c chance) constrain(pod *corev1.Pod) {
	pod.Labels = map[string]string{"app": c.one("web", "web", "db"), "pod-template-hash": "v1"}
	for range 1 + c.IntN(2) {
		constraint := corev1.TopologySpreadConstraint{
			MaxSkew: int32(1 + c.IntN(2)), TopologyKey: c.one(corev1.LabelHostname, "zone", "pool"), WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, NodeAffinityPolicy: c.policy(), NodeTaintsPolicy: c.policy(),
		}
		if c.in(30) {
			constraint.MinDomains = ptr.To(int32(1 + c.IntN(4)))
		}
		if c.in(30) {
			constraint.MatchLabelKeys = []string{"pod-template-hash"}
		}
		if c.in(15) {
			constraint.WhenUnsatisfiable, constraint.MinDomains = corev1.ScheduleAnyway, nil
		}
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, constraint)
	}
	if c.in(20) {
		pod.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if c.in(40) {
		terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"x", "y"}}}}}
		if c.in(50) {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}})
		}
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
	if c.in(30) {
		pod.Spec.Tolerations = []corev1.Toleration{{Key: "red", Operator: corev1.TolerationOpExists}}
	}
}

// spec returns a spread and one of its subsets. All its pods go to this subset.
func (c chance) spec() (spec string, chosen int) {
	const (
		pool = `requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [%s]}]}, `
		all  = `tolerations: [{operator: Exists}], `
		blue = `tolerations: [{key: blue, operator: Exists}], `
		red  = `tolerations: [{key: red, operator: Exists}], `
	)
	chosen = c.IntN(3)
	spec = "subsets:\n"
	for i := range 3 {
		spec += "- {"
		if c.in(85) {
			spec += fmt.Sprintf(pool, c.one("a", "b", "c", "a, b"))
		}
		spec += c.one("", "", all, blue, red)
		if i < chosen {
			spec += "maxReplicas: 0, "
		}
		spec += fmt.Sprintf("name: s%d}\n", i)
	}
	return spec, chosen
}

func TestTopologySpreadIsThatOfAPodWithTheTermsOfItsSubsetAlone(t *testing.T) {
	counted := map[string]int{}
	for seed := range uint64(400) {
		c := chance{rand.New(rand.NewPCG(seed, 15))}
		nodes := c.nodes()
		there := c.pods(nodes)
		w := newWorld(t, 9)
		spec, chosen := c.spec()
		policy := w.policyOf(spec)
		if !slices.ContainsFunc(nodes, policy.Subsets[chosen].Holds) {
			continue
		}

		pod := podOf("rs-uid", "new")
		c.constrain(pod)
		alone := pod.DeepCopy()
		policy.Subsets[chosen].Constraints.AddTo(alone)
		if c.in(80) {
			policy.Constraints.AddTo(pod)
		} else { // the webhook was down
			alone.Spec.Tolerations = pod.Spec.Tolerations
		}
		w.see(pod)

		stock := profileOf(t, there, nodes, withTopologySpread())
		ours := profileOf(t, there, nodes, withTopologySpread(), w.withSpread("PreFilter", "Filter"))
		compare := func(when string, wantState, gotState fwk.CycleState) {
			t.Helper()
			want, got := verdicts(t, stock, wantState, alone), verdicts(t, ours, gotState, pod)
			for _, node := range nodes {
				if in := &policy.Subsets[chosen]; in.Fits(node, subset.OwnTolerations(pod)) != v1beta1.ReasonAdmitted {
					delete(want, node.Name)
					delete(got, node.Name)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d, %s, in subset %d of\n%s(-want +got):\n%s", seed, when, chosen, spec, diff)
			}
			for _, verdict := range got {
				counted[verdict]++
			}
		}
		wantState, gotState := preFilter(t, stock, alone), preFilter(t, ours, pod)
		compare("as it is", wantState, gotState)

		// This does what preemption and nominated pods do, on nodes that the pod may use.
		for _, node := range nodes {
			info, err := ours.SnapshotSharedLister().NodeInfos().Get(node.Name)
			if err != nil {
				t.Fatal(err)
			}
			if policy.Subsets[chosen].Fits(node, subset.OwnTolerations(pod)) != v1beta1.ReasonAdmitted {
				continue
			}
			wantState, gotState := wantState.Clone(), gotState.Clone()
			for _, victim := range info.GetPods() {
				stock.RunPreFilterExtensionRemovePod(t.Context(), wantState, alone, victim, info)
				ours.RunPreFilterExtensionRemovePod(t.Context(), gotState, pod, victim, info)
			}
			compare("without the pods of "+node.Name, wantState, gotState)
			nominated, err := framework.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nominated", Labels: map[string]string{"app": "web", "pod-template-hash": "v1"}}})
			if err != nil {
				t.Fatal(err)
			}
			stock.RunPreFilterExtensionAddPod(t.Context(), wantState, alone, nominated, info)
			ours.RunPreFilterExtensionAddPod(t.Context(), gotState, pod, nominated, info)
			compare("with one pod on "+node.Name, wantState, gotState)
		}
	}
	for _, verdict := range []string{"ok", "Unschedulable " + podtopologyspread.ErrReasonConstraintsNotMatch, "UnschedulableAndUnresolvable " + podtopologyspread.ErrReasonNodeLabelNotMatch} {
		if counted[verdict] < 100 {
			t.Errorf("%d times %q, which proves little", counted[verdict], verdict)
		}
	}
}

var perHost = corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
	LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pod-template-hash": "v1"}}}

// poolsOf is a spread over the pools a and b with these values of maxReplicas.
func poolsOf(maxA, maxB int) string {
	return fmt.Sprintf(`subsets:
- {name: a, maxReplicas: %d, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
- {name: b, maxReplicas: %d, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}
scheduleStrategy: {whenFull: Schedule}`, maxA, maxB)
}

func TestTopologySpreadCountsTheNodesThatThePodMayUse(t *testing.T) {
	nodes := []*corev1.Node{poolNode("a0", "a", "x"), poolNode("a1", "a", "y"), poolNode("b0", "b", "x"), poolNode("c0", "c", "y")}
	ofAllNodes, perPool := perHost, perHost
	ofAllNodes.NodeAffinityPolicy = ptr.To(corev1.NodeInclusionPolicyIgnore)
	perPool.TopologyKey = "pool"
	tests := map[string]struct {
		spread string
		spec   corev1.PodSpec
		// defaults are the profile's constraints for pods without constraints.
		defaults []corev1.TopologySpreadConstraint
		want     string
	}{
		"in subset a, those of a":                   {spread: poolsOf(9, 9), spec: constrained(perHost), want: "a1"},
		"in subset b, those of b":                   {spread: poolsOf(0, 9), spec: constrained(perHost), want: "b0"},
		"all of them, for a pod that is let go":     {spread: poolsOf(0, 0), spec: constrained(perHost), want: "b0 c0"},
		"all of them, if the constraint wants that": {spread: poolsOf(9, 9), spec: constrained(ofAllNodes), want: ""},
		"one domain is always even":                 {spread: poolsOf(9, 9), spec: constrained(perPool), want: "a0 a1"},
		"default constraints are no different":      {spread: poolsOf(9, 9), defaults: []corev1.TopologySpreadConstraint{perHost}, want: "a1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 9)
			policy := w.policyOf(tc.spread)
			pod := podOf("rs-uid", "new")
			pod.Spec = tc.spec
			policy.Constraints.AddTo(pod)
			w.see(pod)
			for i := range tc.defaults {
				tc.defaults[i].LabelSelector = nil // the selector is that of the ReplicaSet
			}
			there := []*corev1.Pod{onNode(podOf("rs-uid", "p0"), "a0", "a"), onNode(podOf("rs-uid", "p1"), "a0", "a"), onNode(podOf("rs-uid", "p2"), "a1", "a")}
			profile := profileOf(t, there, nodes, withTopologySpread(tc.defaults...), w.withSpread("PreFilter", "Filter"))
			replicaSets := profile.SharedInformerFactory().Apps().V1().ReplicaSets().Informer().GetIndexer()
			if err := replicaSets.Add(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "rs"}, Spec: appsv1.ReplicaSetSpec{Selector: perHost.LabelSelector}}); err != nil {
				t.Fatal(err)
			}
			var fits []string
			for node, verdict := range verdicts(t, profile, preFilter(t, profile, pod), pod) {
				if verdict == "ok" {
					fits = append(fits, node)
				}
			}
			slices.Sort(fits)
			if got := strings.Join(fits, " "); got != tc.want {
				t.Errorf("fits %q, want %q", got, tc.want)
			}
		})
	}
}

func constrained(constraints ...corev1.TopologySpreadConstraint) corev1.PodSpec {
	return corev1.PodSpec{TopologySpreadConstraints: constraints}
}

func TestPodTopologySpreadMustCountBeforeWorkloadSpread(t *testing.T) {
	w := newWorld(t, 9)
	w.policyOf(poolsOf(9, 9))
	pod := podOf("rs-uid", "new")
	pod.Spec = constrained(perHost)
	w.see(pod)
	nodes := []*corev1.Node{poolNode("a0", "a", "x")}

	wrong := profileOf(t, nil, nodes, w.withSpread("PreFilter", "Filter"), withTopologySpread())
	_, status, _ := wrong.RunPreFilterPlugins(t.Context(), framework.NewCycleState(), pod)
	const want = `profile "berth-scheduler": plugins.preFilter: ` + countsTooLate
	if status.Code() != fwk.Error || !strings.HasSuffix(status.Message(), want) {
		t.Errorf("got %v, want an error that ends in %q", status, want)
	}
	// A profile may omit PodTopologySpread.
	without := profileOf(t, nil, nodes, w.withSpread("PreFilter", "Filter"))
	if got := verdicts(t, without, preFilter(t, without, pod), pod); got["a0"] != "ok" {
		t.Errorf("got %v", got)
	}
}

func TestANodeThatIsBetterAvoidedIsAvoidedWhateverOtherSubsetsTolerate(t *testing.T) {
	soft := poolNode("soft", "b", "x")
	soft.Spec.Taints = []corev1.Taint{{Key: "leaving", Effect: corev1.TaintEffectPreferNoSchedule}}
	nodes := []*corev1.Node{soft, poolNode("firm", "b", "x")}
	const spread = `subsets:
- {name: virtual, maxReplicas: %d, tolerations: [{operator: Exists}]}
- {name: real, requiredNodeSelector: {matchExpressions: [{key: pool, operator: In, values: [b]}]}}`
	taints := tf.RegisterPluginAsExtensions(tainttoleration.Name, func(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		return tainttoleration.New(ctx, nil, handle, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	}, "PreScore", "Score")
	tests := map[string]struct {
		virtual int
		own     []corev1.Toleration
		want    map[string]int64
	}{
		"the pod's subset tolerates it": {virtual: 9, want: map[string]int64{"soft": 100, "firm": 100}},
		"another subset does":           {virtual: 0, want: map[string]int64{"soft": 0, "firm": 100}},
		"so does the pod, by a toleration of its own": {virtual: 0, own: []corev1.Toleration{{Key: "leaving", Operator: corev1.TolerationOpExists}},
			want: map[string]int64{"soft": 100, "firm": 100}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 9)
			policy := w.policyOf(fmt.Sprintf(spread, tc.virtual))
			pod := podOf("rs-uid", "new")
			pod.Spec.Tolerations = tc.own
			policy.Constraints.AddTo(pod)
			w.see(pod)
			profile := profileOf(t, nil, nodes, taints, w.withSpread("PreFilter", "Filter", "PreScore", "Score"))
			state := preFilter(t, profile, pod)
			infos, err := profile.SnapshotSharedLister().NodeInfos().List()
			if err != nil {
				t.Fatal(err)
			}
			if status := profile.RunPreScorePlugins(t.Context(), state, pod, infos); !status.IsSuccess() {
				t.Fatal(status.AsError())
			}
			scores, status := profile.RunScorePlugins(t.Context(), state, pod, infos)
			if !status.IsSuccess() {
				t.Fatal(status.AsError())
			}
			got := map[string]int64{}
			for _, score := range scores {
				got[score.Name] = score.TotalScore
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

// BenchmarkPreFilter measures PreFilter of PodTopologySpread and WorkloadSpread on 5,000 nodes in two pools, with three pods each. "stock" measures
// PodTopologySpread alone.
func BenchmarkPreFilter(b *testing.B) {
	var nodes []*corev1.Node
	var there []*corev1.Pod
	w := newWorld(b, 9)
	for i := range 5000 {
		nodes = append(nodes, poolNode(fmt.Sprint("node-", i), []string{"a", "b"}[i%2], []string{"x", "y", "z"}[i%3]))
		for j := range 3 {
			pod := podOf("rs-uid", fmt.Sprint("there-", i, "-", j))
			pod.Spec.NodeName = nodes[i].Name
			there = append(there, pod)
		}
	}
	perZone := perHost
	perZone.TopologyKey = "zone"
	policy := w.policyOf(strings.Replace(poolsOf(1_000_000, 9), "whenFull: Schedule", "whenFull: Wait", 1)) // so that admission adds the terms of both
	for _, tc := range []struct {
		name string
		spec corev1.PodSpec
	}{
		{"none", corev1.PodSpec{}}, {"hostname", constrained(perHost)}, {"zone", constrained(perZone)},
	} {
		pod := podOf("rs-uid", tc.name)
		pod.Spec = tc.spec
		policy.Constraints.AddTo(pod)
		w.see(pod)
		for name, plugins := range map[string][]tf.RegisterPluginFunc{
			"stock": {withTopologySpread()}, "ours": {withTopologySpread(), w.withSpread("PreFilter", "Filter")},
		} {
			profile := profileOf(b, there, nodes, plugins...)
			b.Run(tc.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, status, _ := profile.RunPreFilterPlugins(b.Context(), framework.NewCycleState(), pod); !status.IsSuccess() {
						b.Fatal(status.AsError())
					}
				}
			})
		}
	}
}
