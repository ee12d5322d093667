package scenario

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

func TestLayoutTable(t *testing.T) {
	web := Reference{Kind: "Deployment", Name: "web"}
	for name, tc := range map[string]struct {
		layout Layout
		want   string
	}{
		"only what is there is mentioned": {
			layout: Layout{Spread: "web-spread", Workload: web, Replicas: 120, Revisions: 1, Rows: []Row{{"normal", 100, 100}, {"elastic", 20, subset.NoLimit}}},
			want: `web-spread  Deployment/web  replicas 120
SUBSET   KEPT  QUOTA
normal   100   100
elastic  20    -
`,
		},
		"what is unusual stands in the first line and the last row": {
			layout: Layout{Spread: "web-spread", Workload: web, Replicas: 8, Revisions: 2, Pending: 3, Finished: 1, NoSubset: 2, Rows: []Row{{"a", 1, 0}}},
			want: `web-spread  Deployment/web  replicas 8  revisions 2  pending 3  finished 1
SUBSET  KEPT  QUOTA
a       1     0
(none)  2     -
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.layout.Table()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestTablesAreSetApartByAnEmptyLine(t *testing.T) {
	api := Layout{Spread: "api-spread", Workload: Reference{"Deployment", "api"}, Rows: []Row{{"a", 0, 1}}}
	web := Layout{Spread: "web-spread", Workload: Reference{"Deployment", "web"}, Rows: []Row{{"a", 1, 1}}}
	want := `api-spread  Deployment/api  replicas 0
SUBSET  KEPT  QUOTA
a       0     1

web-spread  Deployment/web  replicas 0
SUBSET  KEPT  QUOTA
a       1     1
`
	if diff := cmp.Diff(want, Tables([]Layout{api, web})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := Tables(nil); got != "" {
		t.Errorf("no layout prints %q", got)
	}
}

func TestObserve(t *testing.T) {
	two := intstr.FromInt32(2)
	spread := func(change func(spec *v1beta1.WorkloadSpreadSpec)) *v1beta1.WorkloadSpread {
		s := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Name: "web-spread"}, Spec: v1beta1.WorkloadSpreadSpec{
			TargetReference: v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			Subsets: []v1beta1.Subset{{
				Name: "a", MaxReplicas: &two,
				RequiredNodeSelector: &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
				}},
			}},
		}}
		change(&s.Spec)
		return s
	}
	asIs := func(*v1beta1.WorkloadSpreadSpec) {}
	nodes := map[string]*corev1.Node{
		"a-0": {ObjectMeta: metav1.ObjectMeta{Name: "a-0", Labels: map[string]string{"pool": "a"}}},
		"b-0": {ObjectMeta: metav1.ObjectMeta{Name: "b-0"}},
	}
	pod := func(change func(pod *corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid", Labels: map[string]string{"app": "web"}}}
		change(p)
		return p
	}
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	recorded := func(uid types.UID) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.Spec.NodeName = "b-0"
			p.Annotations = map[string]string{v1beta1.MatchedAnnotation: `{"name":"web-spread","subset":"a","uid":"` + string(uid) + `"}`}
		})
	}
	revision := func(hash string) *corev1.Pod {
		return pod(func(p *corev1.Pod) { p.Labels["pod-template-hash"] = hash })
	}
	now := metav1.Now()

	for name, tc := range map[string]struct {
		spread *v1beta1.WorkloadSpread
		pods   []*corev1.Pod
		want   Layout
	}{
		"a pod is in the subset that its binding recorded":    {spread(asIs), []*corev1.Pod{recorded("uid")}, Layout{Rows: []Row{{"a", 1, 2}}, Revisions: 1}},
		"a record of another pod counts for nothing":          {spread(asIs), []*corev1.Pod{recorded("other")}, Layout{Rows: []Row{{"a", 0, 2}}, NoSubset: 1, Revisions: 1}},
		"a pod without a record is in the subset of its node": {spread(asIs), []*corev1.Pod{pod(on("a-0"))}, Layout{Rows: []Row{{"a", 1, 2}}, Revisions: 1}},
		"a pod whose node is gone is in no subset":            {spread(asIs), []*corev1.Pod{pod(on("gone"))}, Layout{Rows: []Row{{"a", 0, 2}}, NoSubset: 1, Revisions: 1}},
		"a pod without a node is pending":                     {spread(asIs), []*corev1.Pod{pod(func(*corev1.Pod) {})}, Layout{Rows: []Row{{"a", 0, 2}}, Pending: 1, Revisions: 1}},
		"a pod that has ended is finished and holds no slot":  {spread(asIs), []*corev1.Pod{pod(func(p *corev1.Pod) { p.Spec.NodeName = "a-0"; p.Status.Phase = corev1.PodFailed })}, Layout{Rows: []Row{{"a", 0, 2}}, Finished: 1, Revisions: 1}},
		"a pod that terminates is not counted":                {spread(asIs), []*corev1.Pod{pod(func(p *corev1.Pod) { p.Spec.NodeName = "a-0"; p.DeletionTimestamp = &now })}, Layout{Rows: []Row{{"a", 0, 2}}, Revisions: 1}},
		"revisions with a quota of their own are counted":     {spread(asIs), []*corev1.Pod{revision("x"), revision("y"), revision("y")}, Layout{Rows: []Row{{"a", 0, 2}}, Pending: 3, Revisions: 2}},
		"revisions that share the quota are not worth mentioning": {
			spread(func(s *v1beta1.WorkloadSpreadSpec) { s.ScheduleStrategy.QuotaScope = v1beta1.WorkloadQuotaScope }),
			[]*corev1.Pod{revision("x"), revision("y")}, Layout{Rows: []Row{{"a", 0, 2}}, Pending: 2, Revisions: 1},
		},
		"a pod that the filter does not select is left out": {
			spread(func(s *v1beta1.WorkloadSpreadSpec) {
				s.TargetFilter = &v1beta1.TargetFilter{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}}
			}),
			[]*corev1.Pod{pod(on("a-0"))}, Layout{Rows: []Row{{"a", 0, 2}}, Revisions: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Spread, tc.want.Workload, tc.want.Replicas = "web-spread", Reference{"Deployment", "web"}, 4
			got, err := Observe(tc.spread, 4, tc.pods, func(name string) *corev1.Node { return nodes[name] })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}

	t.Run("a spread that is no use is an error", func(t *testing.T) {
		broken := spread(func(s *v1beta1.WorkloadSpreadSpec) { s.Subsets = nil })
		if _, err := Observe(broken, 1, nil, nil); err == nil {
			t.Error("no error")
		}
	})
}
