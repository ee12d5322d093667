package subsetevictor

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/testkit"
)

// room is a budget for all pods. It allows this number of disruptions. The pods of the spread "paused" may not be moved.
type room struct{ left int }

func (r *room) IsPaused(pod *corev1.Pod) bool { return pod.Labels["app"] == "paused" }

func (r *room) Spares(*corev1.Pod) bool { return r.left > 0 }
func (r *room) Spare(pod *corev1.Pod) bool {
	if !r.Spares(pod) {
		return false
	}
	r.left--
	return true
}

func filter(t *testing.T, args string, current func() (look, error)) *Plugin {
	t.Helper()
	given := testkit.ReadArgs[Args](t, args)
	if err := Validate(given); err != nil {
		t.Fatal(err)
	}
	SetDefaults(given)
	p, err := newPlugin(given, current)
	if err != nil {
		t.Fatal(err)
	}
	return p
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
	bare := func(p *corev1.Pod) { p.OwnerReferences = nil }
	tests := map[string]struct {
		args   string
		left   int
		change func(*corev1.Pod)
		want   bool
	}{
		"a pod passes while its budget has room":       {args: "{}", left: 1, want: true},
		"it is kept when there is none":                {args: "{}"},
		"but not if budgets are to be ignored":         {args: "{ignoreBudgets: true}", want: true},
		"a pod that nothing would make anew is kept":   {args: "{ignoreBudgets: true}", change: bare},
		"unless it is in a namespace that is excluded": {args: "{namespaces: {exclude: [shop]}}", change: bare, want: true},
		"or in none of those that are included":        {args: "{namespaces: {include: [elsewhere]}}", change: bare, want: true},
		"in one that is included it is kept":           {args: "{namespaces: {include: [shop]}}", left: 1, change: bare},
		"a pod that asks to stay is kept": {args: "{}", left: 1, change: func(p *corev1.Pod) {
			p.Annotations = map[string]string{"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true"}
		}},
		"a pod of a paused spread is kept":  {args: "{}", left: 1, change: ofPaused},
		"also if budgets are to be ignored": {args: "{ignoreBudgets: true}", change: ofPaused},
		"a pod of a DaemonSet is kept":      {args: "{}", left: 1, change: func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }},
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

func TestOnlyPreEvictionFilterTakesRoom(t *testing.T) {
	budget := &room{1}
	p := filter(t, "{}", func() (look, error) { return budget, nil })
	for range 3 {
		if !p.Filter(pod(nil)) {
			t.Fatal("Filter has taken room")
		}
	}
	if !p.PreEvictionFilter(pod(nil)) {
		t.Error("the first pod is kept")
	}
	if p.PreEvictionFilter(pod(nil)) || p.Filter(pod(nil)) {
		t.Error("a second pod passes a budget for one")
	}
	elsewhere := filter(t, "{namespaces: {exclude: [shop]}}", func() (look, error) { return budget, nil })
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
	if err := Validate(&Args{}); err != nil {
		t.Errorf("nothing given: %v", err)
	}
	if err := Validate(testkit.ReadArgs[Args](t, "{namespaces: {include: [a], exclude: [b]}}")); err == nil || !strings.Contains(err.Error(), "namespaces") {
		t.Errorf("include and exclude: got %v", err)
	}
	if err := Validate(pod(nil)); err == nil {
		t.Error("the args of another plugin were taken")
	}
	if _, err := newPlugin(pod(nil), nil); err == nil {
		t.Error("a filter was made of the args of another plugin")
	}
}
