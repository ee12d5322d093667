package descheduling

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	podutil "sigs.k8s.io/descheduler/pkg/descheduler/pod"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/podlifetime"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"

	"github.com/berth-project/berth/test/testkit"
)

// room is a budget for all pods. It allows this number of disruptions. The pods of the spread "paused" may not be
// moved.
type room struct{ left int }

func (r *room) IsPaused(pod *corev1.Pod) bool { return pod.Labels["app"] == "paused" }

// ComesBack is true for a pod of the spread "alone".
func (r *room) ComesBack(pod *corev1.Pod) bool { return pod.Labels["app"] == "alone" }

func (r *room) Spares(*corev1.Pod) bool { return r.left > 0 }
func (r *room) Spare(pod *corev1.Pod) bool {
	if !r.Spares(pod) {
		return false
	}
	r.left--
	return true
}

func filter(t *testing.T, args string, current func() (look, error)) *evictor {
	t.Helper()
	given := testkit.ReadArgs[SubsetEvictorArgs](t, args)
	if err := validator(subsetEvictor)(given); err != nil {
		t.Fatal(err)
	}
	return &evictor{given, current}
}

func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "1",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if change != nil {
		change(p)
	}
	return p
}

func TestWhatItKeeps(t *testing.T) {
	ofPaused := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "paused"} }
	alone := func(p *corev1.Pod) { p.Labels = map[string]string{"app": "alone"} }
	bare := func(p *corev1.Pod) { p.OwnerReferences = nil }
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	asksToStay := func(p *corev1.Pod) {
		p.Annotations = map[string]string{"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true"}
	}
	tests := map[string]struct {
		args   string
		left   int
		change func(*corev1.Pod)
		want   bool
	}{
		"a pod passes while its budget has room":              {args: "{}", left: 1, want: true},
		"it is kept when there is none":                       {args: "{}"},
		"but not if budgets are to be ignored":                {args: "{ignoreBudgets: true}", want: true},
		"a pod that nothing would make anew is kept":          {args: "{ignoreBudgets: true}", change: bare},
		"unless it is in a namespace that is excluded":        {args: "{namespaces: {exclude: [shop]}}", change: bare, want: true},
		"or in none of those that are included":               {args: "{namespaces: {include: [elsewhere]}}", change: bare, want: true},
		"in one that is included it is kept":                  {args: "{namespaces: {include: [shop]}}", left: 1, change: bare},
		"a pod that asks to stay is kept":                     {args: "{}", left: 1, change: asksToStay},
		"a pod of a paused spread is kept":                    {args: "{}", left: 1, change: ofPaused},
		"also if budgets are to be ignored":                   {args: "{ignoreBudgets: true}", change: ofPaused},
		"a pod whose next one comes back to its node is kept": {args: "{}", left: 1, change: alone},
		"unless returns are to be ignored":                    {args: "{ignoreReturn: true}", left: 1, change: alone, want: true},
		"a failed one goes":                                   {args: "{}", left: 1, change: func(p *corev1.Pod) { failed(p); alone(p) }, want: true},
		"a failed pod is not":                                 {args: "{}", left: 1, change: failed, want: true},
		"not even a bare one":                                 {args: "{}", left: 1, change: func(p *corev1.Pod) { failed(p); bare(p) }, want: true},
		"but one of a paused spread is":                       {args: "{}", left: 1, change: func(p *corev1.Pod) { failed(p); ofPaused(p) }},
		"and one that asks to stay":                           {args: "{}", left: 1, change: func(p *corev1.Pod) { failed(p); asksToStay(p) }},
		"a completed pod is kept":                             {args: "{}", left: 1, change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"a pod of a DaemonSet is kept":                        {args: "{}", left: 1, change: func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := filter(t, tc.args, func() (look, error) { return &room{tc.left}, nil })
			if got := p.Filter(pod(tc.change)); got != tc.want {
				t.Errorf("Filter: got %t", got)
			}
		})
	}
}

// host is a handle of the framework with this filter, on a node with these pods. It records the evictions, and the
// budget counts them.
type host struct {
	frameworktypes.Handle
	*evictor
	budget  *room
	pods    []*corev1.Pod
	evicted []string
}

func (h *host) Evictor() frameworktypes.Evictor { return h }
func (h *host) Evict(_ context.Context, pod *corev1.Pod, _ evictions.EvictOptions) error {
	h.evicted = append(h.evicted, pod.Name)
	h.budget.left--
	return nil
}

func (h *host) GetPodsAssignedToNodeFunc() podutil.GetPodsAssignedToNodeFunc {
	return func(_ string, filter podutil.FilterFunc) (pods []*corev1.Pod, _ error) {
		for _, p := range h.pods {
			if filter(p) {
				pods = append(pods, p)
			}
		}
		return pods, nil
	}
}

// PodLifeTime calls both filters for all pods of a node, and then looks which of them are old.
func TestAYoungPodUsesNoRoomOfTheOldOne(t *testing.T) {
	named := func(name string, age time.Duration) *corev1.Pod {
		return pod(func(p *corev1.Pod) {
			p.Name, p.UID, p.CreationTimestamp = name, types.UID(name), metav1.NewTime(time.Now().Add(-age))
		})
	}
	h := &host{budget: &room{1}, pods: []*corev1.Pod{named("young", time.Minute), named("old", time.Hour)}}
	h.evictor = filter(t, "{}", func() (look, error) { return h.budget, nil })
	strategy, err := podlifetime.New(t.Context(), &podlifetime.PodLifeTimeArgs{MaxPodLifeTimeSeconds: ptr.To[uint](1800)}, h)
	if err != nil {
		t.Fatal(err)
	}
	deschedule := func() {
		if status := strategy.(frameworktypes.DeschedulePlugin).Deschedule(t.Context(), []*corev1.Node{{}}); status != nil && status.Err != nil {
			t.Error(status.Err)
		}
	}
	if deschedule(); !slices.Equal(h.evicted, []string{"old"}) {
		t.Errorf("it evicted %v, want the old pod", h.evicted)
	}
	h.pods = []*corev1.Pod{named("older", 2*time.Hour)}
	if deschedule(); len(h.evicted) != 1 {
		t.Errorf("it evicted %v under a budget for one", h.evicted)
	}
	elsewhere := filter(t, "{namespaces: {exclude: [shop]}}", func() (look, error) { return h.budget, nil })
	if !elsewhere.PreEvictionFilter(pod(nil)) {
		t.Error("a pod of a namespace that is excluded is kept")
	}
}

func TestPodsStayWhileBudgetsAreNotKnown(t *testing.T) {
	p := filter(t, "{}", func() (look, error) { return nil, errors.New("no answer") })
	if p.Filter(pod(nil)) || p.PreEvictionFilter(pod(nil)) {
		t.Error("a pod passes")
	}
}

func TestWhatIsRefused(t *testing.T) {
	if err := validator(subsetEvictor)(&SubsetEvictorArgs{}); err != nil {
		t.Errorf("nothing given: %v", err)
	}
	if err := validator(subsetEvictor)(testkit.ReadArgs[SubsetEvictorArgs](t, "{namespaces: {include: [a], exclude: [b]}}")); err == nil || !strings.Contains(err.Error(), "namespaces") {
		t.Errorf("include and exclude: got %v", err)
	}
}
