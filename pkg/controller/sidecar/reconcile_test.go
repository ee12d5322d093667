package sidecar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	model "github.com/berth-project/berth/pkg/sidecar"
	"github.com/berth-project/berth/pkg/watches"
)

// rollout is three ready pods and a set that updates one of them at a time.
type rollout struct {
	*reconciler
	t     *testing.T
	clock *clocktesting.FakeClock
	// cache is what the controller's cache of pods shows. It changes only when the test says so.
	cache []corev1.Pod
	// unanswered lets the next patch of a pod happen without an answer.
	unanswered bool
}

// List is that of the cache of pods.
func (r *rollout) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*corev1.PodList).Items = r.cache
	return nil
}

// Get is not used by the controller.
func (r *rollout) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("the controller reads no single pod")
}

func setWith(version string) *v1beta1.SidecarSet {
	set := &v1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "log", UID: "log", Generation: 1}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	set.Spec.Containers = []runtime.RawExtension{{Raw: fmt.Appendf(nil, `{"name": "log", "image": "log:%s"}`, version)}}
	return set
}

// newRollout has pods with version 1 and a set with version 2.
func newRollout(t *testing.T) *rollout {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	r := &rollout{t: t, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))}
	old, errs := model.Compile(setWith("1"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	objects := []client.Object{setWith("2"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}}
	for i := range 3 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("p", i)), Labels: map[string]string{"app": "web"}}}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "main"}}
		model.Inject(pod, []model.Version{{Set: "log", Content: &old.Content, Revision: "log-1"}}, r.clock.Now())
		pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, c := range pod.Spec.Containers {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: c.Image, Ready: true})
		}
		objects = append(objects, pod)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1beta1.SidecarSet{}).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if r.unanswered {
				r.unanswered = false
				return errors.Join(c.Patch(ctx, object.DeepCopyObject().(client.Object), patch, opts...), context.DeadlineExceeded)
			}
			return c.Patch(ctx, object, patch, opts...)
		}}).Build()
	r.reconciler = &reconciler{client: api, live: api, watched: watches.NewState(r.clock), pods: r, events: events.NewFakeRecorder(10_000), clock: r.clock, namespace: "berth-system", measures: newMeasures()}
	r.cache = r.stored()
	return r
}

// stored are the pods as the API server has them.
func (r *rollout) stored() []corev1.Pod {
	r.t.Helper()
	var list corev1.PodList
	if err := r.live.List(r.t.Context(), &list); err != nil {
		r.t.Fatal(err)
	}
	return list.Items
}

// expectUpdated plays a round, and expects these pods to have version 2 after it.
func (r *rollout) expectUpdated(when, want string) {
	r.t.Helper()
	if _, err := r.Reconcile(r.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "log"}}); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		r.t.Fatal(err)
	}
	var updated []string
	for _, pod := range r.stored() {
		for _, c := range pod.Spec.Containers {
			if c.Image == "log:2" {
				updated = append(updated, pod.Name)
			}
		}
	}
	if got := strings.Join(updated, " "); got != want {
		r.t.Errorf("%s: updated %q, want %q", when, got, want)
	}
}

// kubelet restarts the containers of a pod that have changed.
func (r *rollout) kubelet(name string) {
	r.t.Helper()
	for _, pod := range r.stored() {
		if pod.Name != name {
			continue
		}
		for i, c := range pod.Spec.Containers {
			pod.Status.ContainerStatuses[i] = corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: c.Image, Ready: true}
		}
		if err := r.client.Status().Update(r.t.Context(), &pod); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestACacheThatIsOlderThanAnUpdateIsNotPlannedWith(t *testing.T) {
	r := newRollout(t)
	r.expectUpdated("first", "p0")
	r.expectUpdated("the cache is as it was", "p0")
	r.cache[0].ResourceVersion = "1" // the cache shows a version that is older still, as a watch does that began anew
	r.expectUpdated("an old event arrives", "p0")
	r.expectUpdated("and nothing more", "p0")
	r.cache = r.stored()
	r.expectUpdated("the cache shows the update, and the container has not restarted", "p0")
	r.kubelet("p0")
	r.cache = r.stored()
	r.expectUpdated("it has restarted", "p0 p1")
}

// TestAnUpdatedPodCountsAsReadyOnceItsKubeletSaysSo: until then its condition Ready is that of the old container.
func TestAnUpdatedPodCountsAsReadyOnceItsKubeletSaysSo(t *testing.T) {
	r := newRollout(t)
	r.expectUpdated("first", "p0")
	r.cache = r.stored()
	r.clock.Step(time.Minute) // the status is written a few times a minute at most
	r.expectUpdated("the container has not restarted", "p0")
	set := &v1beta1.SidecarSet{}
	if err := r.live.Get(t.Context(), types.NamespacedName{Name: "log"}, set); err != nil {
		t.Fatal(err)
	}
	if s := &set.Status; s.ReadyPods != 3 || s.UpdatedPods != 1 || s.UpdatedReadyPods != 0 {
		t.Errorf("%d ready, %d updated, %d updated and ready; want 3, 1, 0", s.ReadyPods, s.UpdatedPods, s.UpdatedReadyPods)
	}
}

func TestAPodThatIsGoneAfterItsUpdateIsNotWaitedFor(t *testing.T) {
	r := newRollout(t)
	r.expectUpdated("first", "p0")
	if err := r.client.Delete(t.Context(), &r.stored()[0]); err != nil {
		t.Fatal(err)
	}
	r.cache = r.stored()
	r.expectUpdated("the cache may lack the pod because it is old", "")
	r.clock.Step(unseenFor)
	r.expectUpdated("the pod is gone", "p1")
}

func TestAnUpdateWithoutAnAnswerMayHaveHappened(t *testing.T) {
	r := newRollout(t)
	r.unanswered = true
	r.expectUpdated("nobody answers", "p0")
	r.expectUpdated("the cache is as it was, and the API server tells", "p0")
	r.clock.Step(doubtFor + time.Second)
	r.expectUpdated("the update has happened", "p0")
	r.kubelet("p0")
	r.cache = r.stored()
	r.expectUpdated("it has restarted", "p0 p1")
}

// A resize that the API server calls invalid is tried once for each pod, and the status counts these pods. Another version, or an hour, gives them another try.
func TestAnInvalidUpdateIsNotTriedOnAndOn(t *testing.T) {
	r := newRollout(t)
	tries := 0
	r.client = interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return nil
		}, // the dry run
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, pod client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
			tries++
			return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Pod").GroupKind(), pod.GetName(), nil)
		},
	})
	play := func(when string, want int) {
		t.Helper()
		for range 20 {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "log"}}); err != nil {
				t.Fatal(err)
			}
			r.clock.Step(heldFor + time.Second)
		}
		if tries != want {
			t.Errorf("%s: %d tries, want %d", when, tries, want)
		}
	}
	publish := func(cpu string) {
		t.Helper()
		set := &v1beta1.SidecarSet{}
		if err := r.live.Get(t.Context(), types.NamespacedName{Name: "log"}, set); err != nil {
			t.Fatal(err)
		}
		set.Generation++
		set.Spec.Containers = []runtime.RawExtension{{Raw: fmt.Appendf(nil, `{"name": "log", "image": "log:2", "resources": {"requests": {"cpu": %q}}}`, cpu)}}
		if err := r.live.(client.Client).Update(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	publish("1")
	play("two minutes", 3)
	set := &v1beta1.SidecarSet{}
	if err := r.live.Get(t.Context(), types.NamespacedName{Name: "log"}, set); err != nil {
		t.Fatal(err)
	}
	if is := set.Status; is.NotUpdatablePods != 3 || is.Conditions[0].Reason != v1beta1.ReasonNotUpdatable {
		t.Errorf("got %+v", is)
	}
	publish("2")
	play("another version", 6)
	r.clock.Step(invalidFor)
	play("an hour later", 9)
}

// A write that fails with 500, as while another webhook is down, makes the controller read that pod. It does not list all pods again.
func TestAFailedWriteListsNoPods(t *testing.T) {
	r := newRollout(t)
	r.expectUpdated("first, with a list", "p0")
	r.kubelet("p0")
	r.cache = r.stored()
	lists, reads := 0, 0
	api := interceptor.NewClient(r.client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, is := list.(*corev1.PodList); is {
				lists++
			}
			return c.List(ctx, list, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if strings.HasPrefix(key.Name, "p") {
				reads++
			}
			return c.Get(ctx, key, object, opts...)
		},
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return apierrors.NewInternalError(errors.New("failed calling webhook"))
		},
	})
	r.client, r.live = api, api
	for range 10 {
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "log"}})
		if err != nil && !strings.Contains(err.Error(), "failed calling webhook") {
			t.Fatal(err)
		}
		r.clock.Step(doubtFor + time.Second)
	}
	if lists > 0 || reads == 0 {
		t.Errorf("%d lists and %d reads", lists, reads)
	}
}

// oldSets is a cache without sets.
type oldSets struct{ client.Client }

func (o oldSets) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if _, is := into.(*v1beta1.SidecarSetList); is {
		return nil
	}
	return o.Client.List(ctx, into, opts...)
}

// TestTheWebhookIsCalledForASetThatNoWatchShows: the API server calls no webhook for its pods before.
func TestTheWebhookIsCalledForASetThatNoWatchShows(t *testing.T) {
	r := newRollout(t)
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: endpoint.SidecarConfiguration},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: endpoint.SidecarWebhook}}}
	if err := r.client.Create(t.Context(), configuration); err != nil {
		t.Fatal(err)
	}
	r.client = oldSets{r.client}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	r.watched.Tell(true)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	r.watched.Tell(false)
	if err := r.lookWhileInterrupted(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	request, _ := queue.Get()
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := r.live.Get(t.Context(), client.ObjectKeyFromObject(configuration), configuration); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(configuration.Webhooks[0].MatchConditions); !strings.Contains(got, "'web'") {
		t.Errorf("the API server calls the webhook for %s", got)
	}
}
