package federation

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/test/harness"
)

// heard are the warnings of an API server.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) HandleWarningHeader(_ int, _, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, text)
}

// TestEachBadInputHasOneMessage gives the hub what it cannot use, and looks where the user looks.
func TestEachBadInputHasOneMessage(t *testing.T) {
	harness.Long(t)
	w := startWorld(t)
	ctx := t.Context()
	const ns = "input"
	w.room(t, ns, [memberCount]int{lots, lots, lots})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, inventory.AddToScheme, corev1.AddToScheme, autoscalingv2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	warnings := &heard{}
	config := w.Hub().RESTConfig()
	config.WarningHandler = warnings
	hub, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}

	// Members that cannot be used.
	old := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		_, _ = answer.Write([]byte(`{"major": "1", "minor": "30"}`))
	})) // the client may be gone
	t.Cleanup(old.Close)
	kubeconfig := func(server string) []byte {
		return fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: c}}], clusters: [{name: c, cluster: {server: %q}}], users: [{name: c, user: {token: t}}]}`, server)
	}
	// Of two that were created in the same second, the one whose name is first counts as the older one.
	for name, content := range map[string][]byte{"the-same": w.secrets[0].Data[members.KubeconfigKey], "broken": []byte("{"), "old": kubeconfig(old.URL)} {
		meta := metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: name, Annotations: map[string]string{members.SecretAnnotation: name}}
		if err := hub.Create(ctx, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{members.KubeconfigKey: content}}); err != nil {
			t.Fatal(err)
		}
		if err := hub.Create(ctx, &inventory.ClusterProfile{ObjectMeta: meta, Spec: inventory.ClusterProfileSpec{ClusterManager: inventory.ClusterManager{Name: "test"}}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"the-same": "Duplicate: member the-same at " + w.Members()[0].RESTConfig().Host + " is the same cluster as member member-1, which came first: delete one of the two ClusterProfiles",
		"broken":   "BadCredentials: member broken has no usable credentials: key kubeconfig of Secret broken is no kubeconfig: correct it:",
		"old":      "UnsupportedVersion: member old at " + old.URL + " has Kubernetes 1.30: upgrade it to 1.33 or later",
	} {
		var got []string
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
			var events corev1.EventList
			if err := hub.List(ctx, &events, client.InNamespace(members.DefaultNamespace)); err != nil {
				return false, err
			}
			got = nil
			for _, event := range events.Items {
				if event.InvolvedObject.Name == name {
					got = append(got, event.Reason+": "+event.Message)
				}
			}
			return len(got) > 0, nil
		}); err != nil || len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("events of %s: %q, want one: %s; %v", name, got, want, err)
		}
	}

	// A FederatedReplicaSet with errors is refused, with all of them.
	of := func(spec string) *v1alpha1.FederatedReplicaSet {
		frs := &v1alpha1.FederatedReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
		if err := yaml.UnmarshalStrict([]byte("{"+spec+"}"), &frs.Spec); err != nil {
			t.Fatal(err)
		}
		return frs
	}
	const pods = `selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: %s}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"%s}]}}`
	err = hub.Create(ctx, of(fmt.Sprintf(pods, "shop", ", imge: other")+`, pace: {maxMoving: "0%"}`))
	fields := map[string]bool{}
	if status, is := err.(apierrors.APIStatus); is && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			fields[cause.Field] = true
		}
	}
	for _, field := range []string{"spec.pace.maxMoving", "spec.template.spec.containers[0].imge"} {
		if !apierrors.IsInvalid(err) || !fields[field] {
			t.Errorf("got %v of %v, want %s", err, slices.Sorted(maps.Keys(fields)), field)
		}
	}

	// A cluster that does not exist is a warning.
	stranger := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
	stranger.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	stranger.Spec.Template.Labels, stranger.Spec.Template.Spec.Containers = stranger.Spec.Selector.MatchLabels, containers
	if err := w.members[0].Create(ctx, stranger); err != nil {
		t.Fatal(err)
	}
	if err := hub.Create(ctx, of(fmt.Sprintf(pods, "web", "")+", replicas: 4, preferences: {clusters: {north: {weight: 1}, '*': {weight: 1}}}")); err != nil {
		t.Fatal(err)
	}
	warnings.mu.Lock()
	if want := "preferences: no cluster has the name north; correct or remove it, or register the cluster"; !slices.Equal(warnings.all, []string{want}) {
		t.Errorf("warnings %q, want %q", warnings.all, want)
	}
	warnings.mu.Unlock()

	// Its status says what is wrong with each cluster. The first one has a replica of the other ReplicaSet.
	w.expect(t, ns, "1 2 2", false)
	for name, want := range map[string]string{
		"member-1": "has another ReplicaSet web in namespace input; delete it, or let Berth take it over with the labels federation.berth.dev/adopt=true and federation.berth.dev/hub=true, or those of an earlier hub with the annotation federation.berth.dev/take-over=true of the FederatedReplicaSet",
		"old":      "member old at " + old.URL + " has Kubernetes 1.30: upgrade it to 1.33 or later",
		"broken":   "member broken has no usable credentials",
		"the-same": "is the same cluster as member member-1",
	} {
		var got v1alpha1.ClusterStatus
		for _, c := range w.frs(t, ns).Status.Clusters {
			if c.Name == name {
				got = c
			}
		}
		if !strings.Contains(got.Message, want) {
			t.Errorf("%s: %+v, want %s", name, got, want)
		}
	}

	// An autoscaler that would see no pods is refused.
	for metric, refused := range map[autoscalingv2.MetricSourceType]bool{autoscalingv2.ResourceMetricSourceType: true, autoscalingv2.ExternalMetricSourceType: false, "": true} {
		target := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("1"))}
		scaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MaxReplicas: 9, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "FederatedReplicaSet", Name: "web"},
		}}
		switch metric {
		case autoscalingv2.ResourceMetricSourceType:
			scaler.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: metric, Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu", Target: target}}}
		case autoscalingv2.ExternalMetricSourceType:
			scaler.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: metric, External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: target}}}
		}
		err := hub.Create(ctx, scaler)
		if got := err != nil && strings.Contains(err.Error(), "use metrics of type External or Object"); got != refused || !refused && err != nil {
			t.Errorf("an autoscaler with %q: %v", metric, err)
		}
	}

	// What is protected is not deleted.
	protect := func(value string) *v1alpha1.FederatedReplicaSet {
		frs := w.frs(t, ns)
		if err := hub.Patch(ctx, frs, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata": {"labels": {"policy.kruise.io/delete-protection": %s}}}`, value))); err != nil {
			t.Fatal(err)
		}
		return frs
	}
	for _, value := range []string{`"Always"`, `"Cascading"`} {
		if err := hub.Delete(ctx, protect(value)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "remove the label") {
			t.Errorf("with %s: %v", value, err)
		}
	}
	if err := hub.Delete(ctx, protect("null")); err != nil {
		t.Error(err)
	}
}
