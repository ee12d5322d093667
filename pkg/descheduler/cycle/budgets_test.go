package cycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	appsv1beta1 "github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/workload"
)

func podNamed(name string, ready bool) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web", v1beta1.ProtectedLabel: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs", Controller: ptr.To(true)}}},
		Spec:   corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

func pending(name string) *corev1.Pod {
	pod := podNamed(name, false)
	pod.Spec.NodeName, pod.Status.Phase = "", corev1.PodPending
	return pod
}

func failed(name string) *corev1.Pod {
	pod := podNamed(name, false)
	pod.Status.Phase = corev1.PodFailed
	return pod
}

func newBudgets() *budgets {
	return &budgets{inNamespace: map[string][]*allowance{}, taken: map[types.UID]bool{},
		isBelow: func(_ *corev1.Pod, target workload.Owner) bool {
			return target == workload.Owner{Kind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Name: "web"}
		}}
}

func disruptionBudget(allowed int32, change func(*policyv1.PodDisruptionBudget)) *budgets {
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Generation: 2},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, ObservedGeneration: 2}}
	if change != nil {
		change(pdb)
	}
	b := newBudgets()
	b.addDisruptionBudget(pdb)
	return b
}

func unavailableBudget(allowed int32, change func(*v1beta1.PodUnavailableBudget)) *budgets {
	pub := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Generation: 2},
		Spec:   v1beta1.PodUnavailableBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MaxUnavailable: ptr.To(intstr.FromInt(3))},
		Status: v1beta1.PodUnavailableBudgetStatus{UnavailableAllowed: allowed, ObservedGeneration: 2, DesiredAvailable: 3, CurrentAvailable: 3 + allowed}}
	if change != nil {
		change(pub)
	}
	b := newBudgets()
	b.addUnavailableBudget(pub)
	return b
}

func TestBudgetsSpare(t *testing.T) {
	other := podNamed("other", true)
	other.Namespace = "elsewhere"
	unlabelled := podNamed("unlabelled", true)
	delete(unlabelled.Labels, "app")
	exempt := podNamed("exempt", true)
	exempt.Annotations = map[string]string{v1beta1.NoProtectAnnotation: "true"}
	for name, tc := range map[string]struct {
		budgets *budgets
		pod     *corev1.Pod
		want    bool
	}{
		"a pending pod of two PDBs":             {twice(disruptionBudget(1, nil)), pending("p"), true},
		"a pod of a PDB beside a PUB":           {both(disruptionBudget(1, nil), unavailableBudget(1, nil)), podNamed("p", true), true},
		"no pod if the PUB has no room":         {both(disruptionBudget(1, nil), unavailableBudget(0, nil)), podNamed("p", true), false},
		"a pod while a PDB has room":            {disruptionBudget(1, nil), podNamed("p", true), true},
		"no pod once it has none":               {disruptionBudget(0, nil), podNamed("p", true), false},
		"a pending pod always":                  {disruptionBudget(0, nil), pending("p"), true},
		"a failed pod of a PDB":                 {disruptionBudget(0, nil), failed("p"), true},
		"a failed pod of two PDBs":              {twice(disruptionBudget(0, nil)), failed("p"), true},
		"a failed pod of a PUB":                 {unavailableBudget(0, nil), failed("p"), true},
		"a pod of another namespace":            {disruptionBudget(0, nil), other, true},
		"a pod that is not selected":            {disruptionBudget(0, nil), unlabelled, true},
		"no pod by a PDB that was not observed": {disruptionBudget(5, func(b *policyv1.PodDisruptionBudget) { b.Generation++ }), podNamed("p", true), false},
		"no unready pod of an unhealthy PDB":    {disruptionBudget(0, func(b *policyv1.PodDisruptionBudget) { b.Status.DesiredHealthy = 2 }), podNamed("p", false), false},
		"an unready pod of a healthy one":       {disruptionBudget(0, func(b *policyv1.PodDisruptionBudget) { b.Status.DesiredHealthy, b.Status.CurrentHealthy = 2, 2 }), podNamed("p", false), true},
		"an unready pod where that is allowed": {disruptionBudget(0, func(b *policyv1.PodDisruptionBudget) {
			b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
		}), podNamed("p", false), true},
		"a pod while a PUB has room":  {unavailableBudget(1, nil), podNamed("p", true), true},
		"none once it has none":       {unavailableBudget(0, nil), podNamed("p", true), false},
		"an unavailable pod of a PUB": {unavailableBudget(0, nil), podNamed("p", false), true},
		"no unavailable pod of an unhealthy one, if asked": {unavailableBudget(0, func(b *v1beta1.PodUnavailableBudget) {
			b.Spec.UnhealthyPodPolicy, b.Status.CurrentAvailable = v1beta1.IfHealthyBudget, 2
		}), podNamed("p", false), false},
		"a pod that is in no PUB":               {unavailableBudget(0, nil), exempt, true},
		"no pod by a PUB that was not observed": {unavailableBudget(5, func(b *v1beta1.PodUnavailableBudget) { b.Generation++ }), podNamed("p", true), false},
		"a pod by a PUB that protects from other things": {unavailableBudget(0, func(b *v1beta1.PodUnavailableBudget) {
			b.Annotations = map[string]string{v1beta1.ProtectOperationsAnnotation: "DELETE"}
		}), podNamed("p", true), true},
		"no pod below the target of a PUB": {unavailableBudget(0, func(b *v1beta1.PodUnavailableBudget) {
			b.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
		}), unlabelled, false},
		"a pod that is not below it": {unavailableBudget(0, func(b *v1beta1.PodUnavailableBudget) {
			b.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "other"}
		}), podNamed("p", true), true},
	} {
		if got := tc.budgets.spare(tc.pod); (got == "") != tc.want {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// A budget that replaces pods first lets as many be asked for as it replaces at a time, although it has no room.
func TestPodsThatAreReplacedFirstAreAskedFor(t *testing.T) {
	replacing := func(maxPods int32, change func(*v1beta1.PodUnavailableBudget)) *budgets {
		return unavailableBudget(0, func(pub *v1beta1.PodUnavailableBudget) {
			pub.Spec.ReplaceFirst = &v1beta1.ReplaceFirst{MaxPods: ptr.To(maxPods)}
			if change != nil {
				change(pub)
			}
		})
	}
	replaceable := func(name string) *corev1.Pod {
		pod := podNamed(name, true)
		pod.Labels["pod-template-hash"] = "1"
		return pod
	}
	handedOver := replaceable("handed-over")
	handedOver.OwnerReferences[0].Kind = "Deployment"
	for name, tc := range map[string]struct {
		budgets *budgets
		pods    []*corev1.Pod
		want    []bool
	}{
		"as many as it says":          {replacing(2, nil), []*corev1.Pod{replaceable("a"), replaceable("b"), replaceable("c")}, []bool{true, true, false}},
		"a pod that cannot be":        {replacing(2, nil), []*corev1.Pod{podNamed("a", true), replaceable("b")}, []bool{false, true}},
		"a pod that is handed over":   {replacing(2, nil), []*corev1.Pod{handedOver}, []bool{false}},
		"a budget that does not":      {unavailableBudget(0, nil), []*corev1.Pod{replaceable("a")}, []bool{false}},
		"room is used first":          {unavailableBudget(1, func(p *v1beta1.PodUnavailableBudget) { p.Spec.ReplaceFirst = &v1beta1.ReplaceFirst{} }), []*corev1.Pod{replaceable("a"), replaceable("b"), replaceable("c")}, []bool{true, true, false}},
		"those that are asked for":    {replacing(2, func(p *v1beta1.PodUnavailableBudget) { p.Status.Replacing = []v1beta1.ReplacedPod{{UID: "a"}} }), []*corev1.Pod{replaceable("a"), replaceable("b"), replaceable("c")}, []bool{false, true, false}},
		"a PDB without room refuses":  {both(disruptionBudget(0, nil), replacing(2, nil)), []*corev1.Pod{replaceable("a")}, []bool{false}},
		"a status of an older budget": {replacing(2, func(p *v1beta1.PodUnavailableBudget) { p.Generation++ }), []*corev1.Pod{replaceable("a")}, []bool{false}},
	} {
		for i, pod := range tc.pods {
			got := tc.budgets.spare(pod) == ""
			if got != tc.want[i] {
				t.Errorf("%s: pod %s: got %v", name, pod.Name, got)
			}
			if got {
				tc.budgets.take(pod)
			}
		}
	}
}

// The API server fails such an eviction with 500, as if it were broken, whatever room the budgets have.
func TestAPodOfSeveralPDBsIsNotEvicted(t *testing.T) {
	for allowed, pod := range map[int32]*corev1.Pod{0: podNamed("p", true), 1: podNamed("p", true), 2: podNamed("unready", false)} {
		if got := twice(disruptionBudget(allowed, nil)).spare(pod); got != appsv1beta1.ReasonSeveralBudgets {
			t.Errorf("pod %s, with room for %d: got %q", pod.Name, allowed, got)
		}
	}
}

// both are the budgets of two.
func both(one, other *budgets) *budgets {
	one.inNamespace["ns"] = append(one.inNamespace["ns"], other.inNamespace["ns"]...)
	return one
}

func twice(one *budgets) *budgets { return both(one, one) }

func TestACycleTakesFromABudgetWhatItHas(t *testing.T) {
	b := unavailableBudget(2, nil)
	first, second, third := podNamed("1", true), podNamed("2", true), podNamed("3", true)
	b.take(first)
	b.take(first)
	if b.spare(first) != "" || b.spare(second) != "" {
		t.Error("one pod was counted twice")
	}
	b.take(second)
	if b.spare(third) == "" {
		t.Error("three pods were taken from a budget of two")
	}
	b = unavailableBudget(2, nil)
	b.close(t.Context(), first)
	if b.spare(second) == "" {
		t.Error("a budget that has refused a pod is asked again")
	}
}

// Strategies of the framework evict by themselves, and the budgets of the look count that.
func TestEvictionsOfOthersCount(t *testing.T) {
	for result, want := range map[evictionResult]bool{resultEvicted: false, resultUnanswered: false, resultRefused: false, resultChanged: true, resultFailed: true} {
		c := &Cycle{budgets: unavailableBudget(1, nil)}
		(&World{current: c}).Settle(t.Context(), podNamed("1", true), result)
		if got := c.Spares(podNamed("2", true)); got != want {
			t.Errorf("after %s: another pod may go: %t, want %t", result, got, want)
		}
	}
	(&World{}).Settle(t.Context(), podNamed("1", true), resultEvicted) // before the first look
}

// Case 22: bare pods are never evicted; that a pod is young or has local storage is no reason of ours.
func TestEvictable(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"a pod of a ReplicaSet": {func(*corev1.Pod) {}, true},
		"a pending one":         {func(p *corev1.Pod) { p.Spec.NodeName = "" }, true},
		"a bare pod":            {func(p *corev1.Pod) { p.OwnerReferences = nil }, false},
		"a pod of a DaemonSet":  {func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }, false},
		"a pod of a Job":        {func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = "batch/v1", "Job" }, false},
		"a mirror pod":          {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, false},
		"a pod that is going":   {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }, false},
		"a failed pod":          {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"a completed pod":       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"a pod without a UID":   {func(p *corev1.Pod) { p.UID = "" }, false},
		"a pod that asks not to be": {func(p *corev1.Pod) {
			p.Annotations = map[string]string{"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true"}
		}, false},
		"a pod with local storage": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, true},
		"a pod that was just created": {func(p *corev1.Pod) { p.CreationTimestamp, p.Status.StartTime = metav1.Now(), nil }, true},
	} {
		pod := podNamed("p", true)
		tc.change(pod)
		if got := Evictable(pod); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
