package cycle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/pkg/testkit"
)

// What was decided on a spread is not done if the spread is not what it was.
func TestWhatBecomesOfADecisionOnASpreadThatHasChanged(t *testing.T) {
	broken := errors.New("etcd is away")
	for name, tc := range map[string]struct {
		// change is what somebody does after the cycle has looked.
		change func(client.Client, *v1alpha1.WorkloadSpread) error
		writes error
		want   []v1alpha1.Reason
		err    error
	}{
		"another descheduler has moved pods": {change: func(c client.Client, s *v1alpha1.WorkloadSpread) error {
			s.Status.Moves = []v1alpha1.Move{{From: "a", To: "b", Time: metav1.NewTime(noon)}}
			return c.Status().Update(t.Context(), s)
		}, want: []v1alpha1.Reason{v1alpha1.ReasonMovedByOther}},
		"another has seen that pods are misplaced": {change: func(c client.Client, s *v1alpha1.WorkloadSpread) error {
			s.Status.Misplaced = &v1alpha1.Misplaced{Pods: 1, Since: metav1.NewTime(noon)}
			return c.Status().Update(t.Context(), s)
		}, want: []v1alpha1.Reason{v1alpha1.ReasonMovedByOther}},
		"it was paused": {change: func(c client.Client, s *v1alpha1.WorkloadSpread) error {
			s.Annotations = map[string]string{v1alpha1.PausedAnnotation: "true"}
			return c.Update(t.Context(), s)
		}, want: []v1alpha1.Reason{v1alpha1.ReasonPaused}},
		"its spec has changed": {change: func(c client.Client, s *v1alpha1.WorkloadSpread) error {
			s.Generation++ // the fake API server does not count
			return c.Update(t.Context(), s)
		}, want: []v1alpha1.Reason{v1alpha1.ReasonSpreadChanged}},
		"it is gone": {change: func(c client.Client, s *v1alpha1.WorkloadSpread) error {
			return c.Delete(t.Context(), s)
		}, want: []v1alpha1.Reason{v1alpha1.ReasonSpreadChanged}},
		"it cannot be written": {change: func(client.Client, *v1alpha1.WorkloadSpread) error { return nil }, writes: broken, err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			stored := spreadNamed("ns", "web", "apps/v1", "Deployment")
			live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).WithStatusSubresource(stored).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if tc.writes != nil {
						return tc.writes
					}
					return c.SubResource(sub).Patch(ctx, object, patch, opts...)
				}}).Build()
			looked := &v1alpha1.WorkloadSpread{}
			if err := live.Get(t.Context(), client.ObjectKeyFromObject(stored), looked); err != nil {
				t.Fatal(err)
			}
			if err := tc.change(live, looked.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			policy := testkit.Policy(t, pools)
			s := &spread{object: looked, facts: *testkit.FactsOf(policy, testkit.Running("a", 1, time.Hour))}
			c := &Cycle{world: &World{live: live, options: Options{CallTimeout: time.Minute}}}
			decision := &moves.Decision{Moves: []moves.Move{{Pod: &s.facts.Pods[0], From: 0, To: 1, Reason: v1alpha1.ReasonOverQuota}}}
			if err := c.act(t.Context(), &Strategy{Name: "Some"}, s, decision); !errors.Is(err, tc.err) {
				t.Errorf("got %v, want %v", err, tc.err)
			}
			var got []v1alpha1.Reason
			for _, line := range s.lines {
				if line.Pod != "a-0" || line.Node != "node-a" || line.From != "a" || line.Verdict != Kept {
					t.Errorf("line %+v", line)
				}
				got = append(got, line.Reason)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}
