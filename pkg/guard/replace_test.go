package guard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func TestWhoseRequestHasAPodReplacedFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		request Request
		want    v1beta1.Reason
	}{
		"an eviction":               {Request{Operation: v1beta1.OperationEvict}, v1beta1.ReasonReplacedFirst},
		"a deletion":                {Request{Operation: v1beta1.OperationDelete}, v1beta1.ReasonReplacedFirst},
		"a deletion by a workload":  {Request{Operation: v1beta1.OperationDelete, ByWorkload: true}, v1beta1.ReasonBudgetExhausted},
		"a dry run":                 {Request{Operation: v1beta1.OperationEvict, DryRun: true}, v1beta1.ReasonBudgetExhausted},
		"an update that restarts":   {Request{Operation: v1beta1.OperationUpdate, Restarts: true}, v1beta1.ReasonBudgetExhausted},
		"a resize that restarts":    {Request{Operation: v1beta1.OperationResize, Restarts: true}, v1beta1.ReasonBudgetExhausted},
		"an update of other fields": {Request{Operation: v1beta1.OperationUpdate}, v1beta1.ReasonNotProtected},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 2, interceptor.Funcs{})
			pub, stored := &v1beta1.PodUnavailableBudget{}, &corev1.Pod{}
			key := types.NamespacedName{Namespace: "ns", Name: "web"}
			if err := c.Get(t.Context(), key, pub); err != nil {
				t.Fatal(err)
			}
			pub.Spec.MaxUnavailable, pub.Spec.ReplaceFirst = ptr.To(intstr.FromInt32(0)), &v1beta1.ReplaceFirst{}
			if err := c.Update(t.Context(), pub); err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web-0"}, stored); err != nil {
				t.Fatal(err)
			}
			stored.Labels["pod-template-hash"] = "x"
			if err := c.Update(t.Context(), stored); err != nil {
				t.Fatal(err)
			}
			tc.request.Pod = stored
			if tc.request.Operation == v1beta1.OperationUpdate || tc.request.Operation == v1beta1.OperationResize {
				tc.request.After = stored.DeepCopy()
			}
			g := New(c, c, c, Options{})
			for range 2 {
				v, err := g.Decide(t.Context(), tc.request)
				if err != nil || v.Reason != tc.want {
					t.Errorf("got %+v, %v; want %s", v, err, tc.want)
				}
			}
			if err := c.Get(t.Context(), key, pub); err != nil {
				t.Fatal(err)
			}
			if noted := len(pub.Status.Replacing) == 1 && pub.Status.Replacing[0].Name == "web-0"; noted != (tc.want == v1beta1.ReasonReplacedFirst) || len(pub.Status.Ledger) > 0 {
				t.Errorf("%+v", pub.Status)
			}
		})
	}
}

func TestWhatKeepsAPodFromBeingReplacedFirst(t *testing.T) {
	claim := func(mode corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{mode}}}
	}
	// beside is another budget of the same pods.
	beside := func(available int32, first *v1beta1.ReplaceFirst) *v1beta1.PodUnavailableBudget {
		return &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-beside", UID: "beside", Generation: 1}, Spec: v1beta1.PodUnavailableBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MinAvailable: ptr.To(intstr.FromInt32(available)), ReplaceFirst: first}}
	}
	for name, tc := range map[string]struct {
		extra   client.Object
		volumes int
		want    v1beta1.Reason
		by      string
		says    string
	}{
		"nothing":                                {nil, 0, v1beta1.ReasonReplacedFirst, "web", "a new pod is made first"},
		"a volume that many pods may write":      {claim(corev1.ReadWriteMany), 1, v1beta1.ReasonReplacedFirst, "web", "a new pod is made first"},
		"a volume that one node may write":       {claim(corev1.ReadWriteOnce), 1, v1beta1.ReasonBudgetExhausted, "web", "may write volume claim data"},
		"a volume claim that is gone":            {nil, 1, v1beta1.ReasonBudgetExhausted, "web", "volume claim data cannot be read"},
		"more volumes than are looked at":        {claim(corev1.ReadWriteMany), mostVolumes + 1, v1beta1.ReasonBudgetExhausted, "web", "more than 32 volumes"},
		"another budget with room":               {beside(1, nil), 0, v1beta1.ReasonReplacedFirst, "web", "a new pod is made first"},
		"another budget that replaces first too": {beside(2, &v1beta1.ReplaceFirst{}), 0, v1beta1.ReasonReplacedFirst, "web", "a new pod is made first"},
		"another budget that does not":           {beside(2, nil), 0, v1beta1.ReasonBudgetExhausted, "web-beside", "lower minAvailable"},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 2, interceptor.Funcs{})
			evicted, pubs := &corev1.Pod{}, &v1beta1.PodUnavailableBudgetList{}
			do := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			if do(c.List(t.Context(), pubs)); tc.extra != nil {
				do(c.Create(t.Context(), tc.extra))
			}
			pub := &pubs.Items[0]
			pub.Spec.MaxUnavailable, pub.Spec.ReplaceFirst = ptr.To(intstr.FromInt32(0)), &v1beta1.ReplaceFirst{}
			do(c.Update(t.Context(), pub))
			do(c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web-0"}, evicted))
			if evicted.Labels["pod-template-hash"] = "x"; tc.volumes > 0 {
				evicted.Spec.Volumes = slices.Repeat([]corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}, tc.volumes)
			}
			do(c.Update(t.Context(), evicted))
			v, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: evicted, Operation: v1beta1.OperationEvict})
			if err != nil || v.Reason != tc.want || !strings.Contains(v.Message, "PodUnavailableBudget "+tc.by+" ") || !strings.Contains(v.Message, tc.says) {
				t.Errorf("got %+v, %v; want %s of %s", v, err, tc.want, tc.by)
			}
			do(c.List(t.Context(), pubs))
			for i := range pubs.Items {
				pub := &pubs.Items[i]
				if noted := tc.want == v1beta1.ReasonReplacedFirst && tc.by == pub.Name; noted != (len(pub.Status.Replacing) == 1) || len(pub.Status.Ledger) > 0 {
					t.Errorf("%s: %+v", pub.Name, pub.Status)
				}
			}
		})
	}
}

func TestWhoIsAWorkloadsController(t *testing.T) {
	for name, want := range map[string]bool{
		"system:serviceaccount:kube-system:replicaset-controller": true,
		"system:serviceaccount:kube-system:node-controller":       false,
		"system:kube-controller-manager":                          true,
		"system:kube-scheduler":                                   false,
		"system:serviceaccount:default:replicaset-controller":     false,
		"jane": false,
	} {
		if got := isWorkloadController(name); got != want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// TestNoClaimIsReadWhileThereIsRoom: only a refusal asks whether a new pod can be made first.
func TestNoClaimIsReadWhileThereIsRoom(t *testing.T) {
	reads := 0
	c := cluster(t, 2, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
		if _, is := into.(*corev1.PersistentVolumeClaim); is {
			reads++
		}
		return c.Get(ctx, key, into, opts...)
	}})
	pod, pubs := &corev1.Pod{}, &v1beta1.PodUnavailableBudgetList{}
	if err := c.List(t.Context(), pubs); err != nil {
		t.Fatal(err)
	}
	pub := &pubs.Items[0]
	pub.Spec.MaxUnavailable, pub.Spec.ReplaceFirst = ptr.To(intstr.FromInt32(1)), &v1beta1.ReplaceFirst{}
	if err := errors.Join(c.Update(t.Context(), pub), c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web-0"}, pod)); err != nil {
		t.Fatal(err)
	}
	pod.Labels["pod-template-hash"] = "x"
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	if err := c.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	v, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: pod, Operation: v1beta1.OperationEvict})
	if err != nil || !v.Allowed || reads != 0 {
		t.Errorf("got %+v, %v, with %d reads of claims; want it allowed without one", v, err, reads)
	}
}
