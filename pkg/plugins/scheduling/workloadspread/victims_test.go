package workloadspread

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	fwk "k8s.io/kube-scheduler/framework"
	testingclock "k8s.io/utils/clock/testing"

	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// protected is a pod that a budget protects.
func protected(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{policyv1beta1.ProtectedLabel: policyv1beta1.ProtectedValue}}}
}

func TestAVictimThatWasRefusedIsNotTriedAgainForAWhile(t *testing.T) {
	var awake []string
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	refused := newRefusals(clock, func(pods map[string]*corev1.Pod) {
		for _, pod := range pods {
			awake = append(awake, pod.Name)
		}
		slices.Sort(awake)
	})
	victim, urgent, other := protected("a"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "urgent", UID: "urgent"}}, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "other"}}
	if refused.spare(victim, urgent) || refused.hold(urgent) {
		t.Error("a victim is left alone that nobody has refused")
	}
	refused.add(victim.UID)
	clock.Step(refusalPeriod / 2)
	refused.add(victim.UID) // by the preemption of another pod, which began before
	if !refused.spare(victim, urgent) || !refused.spare(victim, other) || !refused.hold(urgent) || refused.spare(protected("b"), urgent) {
		t.Error("not the refused victim alone is left alone")
	}
	clock.Step(refusalPeriod/2 - time.Second)
	if len(awake) > 0 {
		t.Errorf("%v are awake too early", awake)
	}
	clock.Step(time.Second)
	if want := []string{"other", "urgent"}; !slices.Equal(awake, want) {
		t.Errorf("awake are %v, want %v", awake, want)
	}
	if refused.spare(victim, urgent) || refused.hold(urgent) {
		t.Error("the victim is left alone forever")
	}
}

// scheduler has only the parts of a scheduler that the preemption of one victim uses.
type scheduler struct {
	fwk.Handle
	client kubernetes.Interface
}

func (s scheduler) ClientSet() kubernetes.Interface        { return s.client }
func (s scheduler) GetWaitingPod(types.UID) fwk.WaitingPod { return nil }

func TestAProtectedVictimIsAskedAboutBeforeItIsMarked(t *testing.T) {
	tests := map[string]struct {
		protected   bool
		refusal     error
		wantAsked   bool
		wantTaken   bool
		wantRefused bool
	}{
		"a victim that may go is taken":                   {protected: true, wantAsked: true, wantTaken: true},
		"one that is refused is left as it is":            {protected: true, refusal: apierrors.NewTooManyRequests("no room", 0), wantAsked: true, wantRefused: true},
		"no answer is no permission":                      {protected: true, refusal: fmt.Errorf("the webhook does not answer"), wantAsked: true, wantRefused: true},
		"one that is gone needs no permission":            {protected: true, refusal: apierrors.NewNotFound(corev1.Resource("pods"), "a"), wantAsked: true, wantTaken: true},
		"nobody is asked about a victim without a budget": {wantTaken: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			asked, taken := false, false
			refused := newRefusals(testingclock.NewFakeClock(time.Unix(1000, 0)), nil)
			victim := protected("a")
			if !tc.protected {
				delete(victim.Labels, policyv1beta1.ProtectedLabel)
			}
			client := fake.NewClientset(victim)
			client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				options := action.(clienttesting.DeleteActionImpl).DeleteOptions
				asked = len(options.DryRun) == 1 && *options.Preconditions.UID == victim.UID
				return true, nil, tc.refusal
			})
			handle := scheduler{client: client}
			p, preempt := preemptionThat(func() { taken = true })
			guardVictims(p, handle, refused)
			err := preempt(t.Context(), victim)
			is := refused.waiting[victim.UID] != nil
			if asked != tc.wantAsked || taken != tc.wantTaken || is != tc.wantRefused || (err == nil) != tc.wantTaken {
				t.Errorf("asked %t, taken %t, refused %t, error %v", asked, taken, is, err)
			}
		})
	}
}
