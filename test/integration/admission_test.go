package integration

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/test/harness"
)

// unchanged is a Deployment, or another kind with replicas and a template, as users write it without Berth: its template names no scheduler.
func unchanged(apiVersion, kind, name string, replicas int, more string) string {
	return fmt.Sprintf(`
apiVersion: %[1]s
kind: %[2]s
metadata: {name: %[3]s}
spec:
  replicas: %[4]d
  selector: {matchLabels: {app: %[3]s}}
  template:
    metadata: {labels: {app: %[3]s}}
    spec:
      containers: [{name: main, image: registry.k8s.io/pause:3.10}]
%[5]s`, apiVersion, kind, name, replicas, more)
}

func spreadFor(name, apiVersion, kind, target, spec string) string {
	return fmt.Sprintf(`
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: %s}
spec:
  targetRef: {apiVersion: %s, kind: %s, name: %s}
%s`, name, apiVersion, kind, target, spec)
}

// expectPods waits until there are this many pods in the namespace, and returns them.
func expectPods(t *testing.T, ns string, n int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	waitFor(t, fmt.Sprintf("%d pods", n), func(ctx context.Context) (missing string, err error) {
		if pods, err = the.Pods(ctx, ns); err != nil || len(pods) == n {
			return "", err
		}
		return fmt.Sprintf("%d pods", len(pods)), nil
	})
	return pods
}

// isConstrained is true for a pod that the webhook has changed.
func isConstrained(pod *corev1.Pod) bool {
	return pod.Spec.SchedulerName == v1beta1.SchedulerName && pod.Annotations[v1beta1.ConstraintsAnnotation] != ""
}

func expectConstrained(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for i := range pods {
		if !isConstrained(&pods[i]) {
			t.Errorf("pod %s was admitted as it was: scheduler %s", pods[i].Name, pods[i].Spec.SchedulerName)
		}
	}
}

func TestALateBoundPodAfterAdmission(t *testing.T) {
	const (
		notReady  = `{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}`
		unreached = `{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}`
		spot      = `{key: spot, operator: Exists, effect: NoSchedule}`
		either    = `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` +
			`{matchExpressions: [{key: pool, operator: In, values: [a]}]}, {matchExpressions: [{key: pool, operator: In, values: [b]}]}]}}}`
		pools = `
  subsets:
  - {name: a, maxReplicas: 2, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}, tolerations: [` + spot + `]}
`
	)
	tests := map[string]struct{ spread, template, want, own string }{
		"it has Berth's scheduler, the tolerations of all subsets, and their terms as alternatives": {
			spread: pools,
			want:   either + "\ntolerations: [" + notReady + ", " + unreached + ", " + spot + "]",
			own:    "[" + notReady + ", " + unreached + "]",
		},
		"what others have inserted before the webhook is asked is the pod's own": {
			spread:   pools,
			template: `      tolerations: [{key: x, operator: Exists}]`,
			want:     either + "\ntolerations: [{key: x, operator: Exists}, " + notReady + ", " + unreached + ", " + spot + "]",
			own:      "[{key: x, operator: Exists}, " + notReady + ", " + unreached + "]",
		},
		"a toleration that it has itself and a subset too is its own, and there once": {
			spread:   pools,
			template: `      tolerations: [` + spot + `]`,
			want:     either + "\ntolerations: [" + spot + ", " + notReady + ", " + unreached + "]",
			own:      "[" + spot + ", " + notReady + ", " + unreached + "]",
		},
		"its own required terms hold in every alternative": {
			spread:   pools,
			template: `      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: arch, operator: Exists}]}]}}}`,
			want: `affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` +
				`{matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [a]}]}, {matchExpressions: [{key: arch, operator: Exists}, {key: pool, operator: In, values: [b]}]}]}}}` +
				"\ntolerations: [" + notReady + ", " + unreached + ", " + spot + "]",
			own: "[" + notReady + ", " + unreached + "]",
		},
		"one that may be let go to any node has no terms": {
			spread: strings.Replace(pools, "name: b,", "name: b, maxReplicas: 1,", 1),
			want:   "tolerations: [" + notReady + ", " + unreached + ", " + spot + "]",
			own:    "[" + notReady + ", " + unreached + "]",
		},
	}
	for rule, tc := range tests {
		t.Run(rule, func(t *testing.T) {
			ns := namespace(t)
			apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", tc.spread))
			apply(t, ns, unchanged("apps/v1", "Deployment", "web", 1, tc.template))
			pod := &expectPods(t, ns, 1)[0]
			if pod.Spec.SchedulerName != v1beta1.SchedulerName {
				t.Errorf("scheduler %s", pod.Spec.SchedulerName)
			}
			var want corev1.PodSpec
			if err := yaml.UnmarshalStrict([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			got := corev1.PodSpec{Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
			var own []corev1.Toleration
			if err := yaml.UnmarshalStrict([]byte(tc.own), &own); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(own, subset.OwnTolerations(pod)); diff != "" {
				t.Errorf("own tolerations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPodUsesTheTolerationsOfItsSubsetAlone(t *testing.T) {
	pools(t, "a", "b")
	taint(t, nodeIn(t, "a"))
	taint(t, nodeIn(t, "b"))
	ns := namespace(t)
	// Pool a has a taint by mistake. Its subset has no toleration for it. The tolerations of b do not apply to a.
	apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", `
  scheduleStrategy: {type: Adaptive}
  subsets:
  - {name: a, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [a]}]}}
  - {name: b, requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [b]}]}, tolerations: [{key: spot, operator: Exists}]}
`))
	apply(t, ns, unchanged("apps/v1", "Deployment", "web", 3, ""))
	expectPlaces(t, ns, "a=0 b=3")
}

func taint(t *testing.T, node string) {
	t.Helper()
	patch := []byte(`{"spec":{"taints":[{"key":"spot","effect":"NoSchedule"}]}}`)
	if _, err := the.Client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestPodsOfNoSpreadAreAdmittedAsTheyAre(t *testing.T) {
	pools(t, "a")
	ns := namespace(t)
	apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", "\n  subsets: [{name: a, tolerations: [{key: spot, operator: Exists}]}]\n  targetFilter: {selector: {matchLabels: {role: worker}}}"))
	apply(t, ns, unchanged("apps/v1", "Deployment", "web", 1, ""))
	apply(t, ns, unchanged("apps/v1", "Deployment", "other", 1, ""))
	for _, pod := range expectPods(t, ns, 2) {
		if pod.Spec.SchedulerName != corev1.DefaultSchedulerName || len(pod.Spec.Tolerations) != 2 || pod.Spec.Affinity != nil || pod.Annotations[v1beta1.ConstraintsAnnotation] != "" {
			t.Errorf("pod %s: scheduler %s, tolerations %v, affinity %v, annotations %v", pod.Name, pod.Spec.SchedulerName, pod.Spec.Tolerations, pod.Spec.Affinity, pod.Annotations)
		}
	}
	waitFor(t, "the default scheduler to place them", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if pods[i].Spec.NodeName == "" {
				return pods[i].Name + " is pending", nil
			}
		}
		return "", nil
	})
}

var webhookCalls = regexp.MustCompile(`(?m)^apiserver_admission_webhook_request_total\{[^}]*name="pod\.berth\.dev"[^}]*\} (\S+)$`)

// calls is how often the API server has called the webhook for pods.
func calls(t *testing.T) float64 {
	t.Helper()
	text, err := the.Client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, match := range webhookCalls.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

func TestTheAPIServerDoesNotAskAboutPodsThatNoSpreadCanDivide(t *testing.T) {
	harness.Long(t)
	pools(t, "a")
	ns, excluded, unused := namespace(t), namespace(t), namespace(t)
	for _, name := range []string{ns, excluded} {
		apply(t, name, spreadFor("other", "apps/v1", "Deployment", "other", fmt.Sprintf(twoPools, "1")))
	}
	label := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:"disabled"}}}`, v1beta1.AdmissionLabel))
	if _, err := the.Client.CoreV1().Namespaces().Patch(t.Context(), excluded, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	ownedBy := func(apiVersion, kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: "owner", UID: "8f0b9a0e-0000-4000-8000-000000000000", Controller: ptr.To(true)}}
		}
	}
	replicaSet := ownedBy("apps/v1", "ReplicaSet")
	tests := map[string]struct {
		namespace string
		pod       func(*corev1.Pod)
		want      float64
	}{
		"but it asks about a pod of a ReplicaSet":                                                            {ns, replicaSet, 1},
		"but it asks about a pod of another scheduler, which a spread compatible with OpenKruise may divide": {ns, func(p *corev1.Pod) { replicaSet(p); p.Spec.SchedulerName = "volcano" }, 1},
		"of no controller":           {ns, func(p *corev1.Pod) { ownedBy("apps/v1", "ReplicaSet")(p); p.OwnerReferences[0].Controller = nil }, 0},
		"of no owner":                {ns, func(*corev1.Pod) {}, 0},
		"of a DaemonSet":             {ns, ownedBy("apps/v1", "DaemonSet"), 0},
		"of a ReplicationController": {ns, ownedBy("v1", "ReplicationController"), 0},
		"of the kubelet": {ns, func(p *corev1.Pod) {
			p.Annotations, p.Spec.NodeName = map[string]string{corev1.MirrorPodAnnotationKey: "x"}, nodeIn(t, "a")
		}, 0},
		"of a namespace without a spread": {unused, replicaSet, 0},
		"of a system namespace":           {metav1.NamespaceSystem, replicaSet, 0},
		"of Berth's own namespace":        {"berth-system", replicaSet, 0},
		"of an excluded namespace":        {excluded, replicaSet, 0},
	}
	for rule, tc := range tests {
		t.Run(rule, func(t *testing.T) {
			before := calls(t)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}, Spec: corev1.PodSpec{
				SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
				Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10", SecurityContext: &corev1.SecurityContext{ // Berth's own namespace requires it
					AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}},
			}}
			tc.pod(pod)
			made, err := the.Client.CoreV1().Pods(tc.namespace).Create(t.Context(), pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = the.Client.CoreV1().Pods(tc.namespace).Delete(context.Background(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}) // the pod may not exist
			})
			if got := calls(t) - before; got != tc.want {
				t.Errorf("the webhook was called %v times", got)
			}
		})
	}
}

// The API server calls the webhook only in namespaces with a spread. A pod that comes right after the first spread of its namespace must not come too early.
func TestTheFirstPodAfterTheFirstSpreadOfANamespaceIsAdmitted(t *testing.T) {
	pools(t, "a", "b")
	for i := range 20 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel() // they all write the webhook configuration
			ns := namespace(t)
			replicas := unchanged("apps/v1", "ReplicaSet", "web", 0, "")
			apply(t, ns, replicas)
			owner, err := the.Client.AppsV1().ReplicaSets(ns).Get(t.Context(), "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "first", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
			}
			apply(t, ns, spreadFor("web", "apps/v1", "ReplicaSet", "web", fmt.Sprintf(twoPools, "1")))
			first, err := the.Client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			expectConstrained(t, []corev1.Pod{*first})
		})
	}
}

// Whoever applies the manifests again neither loses what Berth has added to the webhook configurations, nor sees a difference.
func TestTheManifestsOfWebhooksMayBeAppliedAgain(t *testing.T) {
	configurations := the.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	apply(t, namespace(t), spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf(twoPools, "1")))
	for name, content := range map[string][]byte{"berth-webhook": manifests.MutatingWebhook, "berth-budget": manifests.EvictionWebhook} {
		applied, err := yaml.YAMLToJSON(content)
		if err != nil {
			t.Fatal(err)
		}
		// The sandbox has a URL in place of the Service.
		var object map[string]any
		if err := json.Unmarshal(applied, &object); err != nil {
			t.Fatal(err)
		}
		for _, w := range object["webhooks"].([]any) {
			delete(w.(map[string]any), "clientConfig")
		}
		if applied, err = json.Marshal(object); err != nil {
			t.Fatal(err)
		}
		var before, after *admissionregistrationv1.MutatingWebhookConfiguration
		waitFor(t, "an apply between two writes of Berth", func(ctx context.Context) (string, error) { // other tests add namespaces
			if before, err = configurations.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return "", err
			}
			if after, err = configurations.Patch(ctx, name, types.ApplyPatchType, applied, metav1.PatchOptions{FieldManager: "gitops", DryRun: []string{metav1.DryRunAll}}); err != nil {
				return "", err
			}
			if before.ResourceVersion != after.ResourceVersion {
				return "it has changed", nil
			}
			for i := range before.Webhooks { // a leader that has just started has not narrowed it yet
				if w := &before.Webhooks[i]; w.Name != "required.pod.berth.dev" && !slices.ContainsFunc(w.MatchConditions, isNarrowing) {
					return w.Name + " is called for all namespaces", nil
				}
			}
			return "", nil
		})
		if diff := cmp.Diff(before.Webhooks, after.Webhooks); diff != "" {
			t.Errorf("%s, -before +after:\n%s", name, diff)
		}
	}
}

func isNarrowing(c admissionregistrationv1.MatchCondition) bool {
	return c.Name == "namespace-uses-berth"
}

// The controller has the right to write webhook configurations. An admission policy lets it narrow the webhooks that do nothing for other objects.
func TestTheControllerMayNarrowThreeWebhooksAndNoOthers(t *testing.T) {
	client := as(t, "system:serviceaccount:berth-system:berth-controller").AdmissionregistrationV1().MutatingWebhookConfigurations()
	type webhook = admissionregistrationv1.MutatingWebhook
	condition := func(name string) func(*webhook) {
		return func(w *webhook) {
			w.MatchConditions = append([]admissionregistrationv1.MatchCondition{{Name: name, Expression: "request.namespace in ['a']"}},
				slices.DeleteFunc(w.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool { return c.Name == name })...)
		}
	}
	for name, tc := range map[string]struct {
		configuration, webhook string
		change                 func(*webhook)
		allowed                bool
	}{
		"pods":                           {"berth-webhook", endpoint.PodWebhook, condition("namespace-uses-berth"), true},
		"evictions":                      {"berth-budget", endpoint.EvictionWebhook, condition("namespace-uses-berth"), true},
		"pods that require it":           {"berth-webhook", "required.pod.berth.dev", condition("namespace-uses-berth"), false},
		"by another condition":           {"berth-webhook", endpoint.PodWebhook, condition("other"), false},
		"without the shipped conditions": {"berth-webhook", endpoint.PodWebhook, func(w *webhook) { w.MatchConditions = nil }, false},
		"to nothing": {"berth-webhook", endpoint.PodWebhook, func(w *webhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "berth.dev/none", Operator: metav1.LabelSelectorOpExists}}}
		}, true},
		"to labels": {"berth-webhook", endpoint.PodWebhook, func(w *webhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"to nothing where it is required": {"berth-webhook", "required.pod.berth.dev", func(w *webhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "berth.dev/none", Operator: metav1.LabelSelectorOpExists}}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // the controller writes it too
				configuration, err := client.Get(t.Context(), tc.configuration, metav1.GetOptions{})
				if err != nil {
					return err
				}
				at := slices.IndexFunc(configuration.Webhooks, func(w webhook) bool { return w.Name == tc.webhook })
				tc.change(&configuration.Webhooks[at])
				_, err = client.Update(t.Context(), configuration, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			})
			switch {
			case tc.allowed && err != nil:
				t.Error(err)
			case !tc.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it to be forbidden", err)
			}
		})
	}
}

func TestAnExcludedNamespaceKeepsItsQuotas(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	label := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:"disabled"}}}`, v1beta1.AdmissionLabel))
	if _, err := the.Client.CoreV1().Namespaces().Patch(t.Context(), ns, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf(twoPools, "2")))
	apply(t, ns, deployment("web", 3, ""))
	expectPlaces(t, ns, "a=2 b=1")
	for _, pod := range expectPods(t, ns, 3) {
		if pod.Annotations[v1beta1.ConstraintsAnnotation] != "" {
			t.Errorf("pod %s was seen by the webhook", pod.Name)
		}
	}
}

func TestWorkloadsOfEveryBuiltInKindNeedNoChange(t *testing.T) {
	pools(t, "a", "b")
	job := `
apiVersion: batch/v1
kind: Job
metadata: {name: web}
spec:
  parallelism: 3
  template:
    metadata: {labels: {app: web}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: registry.k8s.io/pause:3.10}]
`
	for kind, tc := range map[string]struct{ apiVersion, manifest string }{
		"Deployment":  {"apps/v1", unchanged("apps/v1", "Deployment", "web", 3, "")},
		"ReplicaSet":  {"apps/v1", unchanged("apps/v1", "ReplicaSet", "web", 3, "")},
		"StatefulSet": {"apps/v1", unchanged("apps/v1", "StatefulSet", "web", 3, "")},
		"Job":         {"batch/v1", job},
	} {
		t.Run(kind, func(t *testing.T) {
			ns := namespace(t)
			apply(t, ns, spreadFor("web", tc.apiVersion, kind, "web", fmt.Sprintf(twoPools, "2")))
			apply(t, ns, tc.manifest)
			expectPlaces(t, ns, "a=2 b=1")
			expectConstrained(t, expectPods(t, ns, 3))
		})
	}
}

// These are custom kinds like those that users have. The test acts as their controller.
const customKinds = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[3]s, plural: %[2]s, singular: %[4]s}
  versions:
  - name: %[5]s
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {status: {}%[6]s}
`

// newerCloneSets is the version that newer OpenKruise prefers. It has the partition elsewhere.
const newerCloneSets = `
  - name: v1beta1
    served: true
    storage: false
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
        properties:
          spec:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            properties:
              updateStrategy:
                type: object
                x-kubernetes-preserve-unknown-fields: true
                properties: {partition: {x-kubernetes-int-or-string: true}}
                x-kubernetes-validations: [{rule: "!has(self.partition)", message: no such field}]
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
`

const scaleSubresource = `, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}`

// customKind is a kind and the way in which its controller creates pods.
type customKind struct {
	group, plural, kind, version string
	scale                        string
	// newer is another version in the definition, which the API server prefers.
	newer string
	// throughReplicaSets means that the object owns ReplicaSets, and these own the pods.
	throughReplicaSets bool
	// spec returns the spec of an object with this number of replicas.
	spec func(replicas int64) map[string]any
	// spread contains the fields of the spread besides its subsets.
	spread string
}

func (k *customKind) definition() string {
	return fmt.Sprintf(customKinds, k.group, k.plural, k.kind, strings.ToLower(k.kind), k.version, k.scale) + k.newer
}

// reader is the role that allows Berth to read the kind.
func (k *customKind) reader() string {
	return fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[2]s-reader, labels: {rbac.berth.dev/aggregate-to-workload-reader: "true"}}
rules: [{apiGroups: [%[1]s], resources: [%[2]s], verbs: [get, list, watch]}]
`, k.group, k.plural)
}

// set applies the object with this number of replicas. Then it acts as the controller: it creates pods or a ReplicaSet.
func (k *customKind) set(t *testing.T, ns string, replicas int64) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.group + "/" + k.version, "kind": k.kind, "metadata": map[string]any{"name": "web"}, "spec": k.spec(replicas)}}
	waitFor(t, "the new kind", func(ctx context.Context) (string, error) {
		if err := the.Apply(ctx, ns, object); err != nil {
			return err.Error(), nil // the API server serves the kind a moment after the definition is applied
		}
		return "", nil
	})
	object = get(t, ns, object)
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "role": "worker"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
	}
	if k.throughReplicaSets {
		replicaSet := &appsv1.ReplicaSet{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"},
			ObjectMeta: metav1.ObjectMeta{Name: "web-1", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(object, object.GroupVersionKind())}},
			Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
		}
		content, err := harness.Unstructured(replicaSet)
		if err != nil {
			t.Fatal(err)
		}
		if err := the.Apply(t.Context(), ns, content); err != nil {
			t.Fatal(err)
		}
		return
	}
	pods, err := the.Pods(t.Context(), ns)
	if err != nil {
		t.Fatal(err)
	}
	for range int(replicas) - len(pods) {
		if err := createPod(t.Context(), object, "web-", &template); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWorkloadsOfCustomKindsNeedNoChange(t *testing.T) {
	harness.Long(t)
	pools(t, "a", "b")
	plain := func(replicas int64) map[string]any { return map[string]any{"replicas": replicas} }
	for rule, kind := range map[string]*customKind{
		"an Argo Rollout, which owns ReplicaSets": {group: "argoproj.io", plural: "rollouts", kind: "Rollout", version: "v1alpha1",
			scale: scaleSubresource, throughReplicaSets: true, spec: plain},
		"a CloneSet, which owns pods": {group: "apps.kruise.io", plural: "clonesets", kind: "CloneSet", version: "v1alpha1", scale: scaleSubresource, newer: newerCloneSets, spec: plain},
		"an Advanced StatefulSet":     {group: "apps.kruise.io", plural: "statefulsets", kind: "StatefulSet", version: "v1beta1", scale: scaleSubresource, spec: plain},
		"a kind without a scale subresource, by replicasPathList": {group: "training.example.com", plural: "trainings", kind: "Training", version: "v1",
			spec: func(replicas int64) map[string]any {
				return map[string]any{"replicaSpecs": map[string]any{"worker": map[string]any{"replicas": replicas}, "launcher": map[string]any{"replicas": int64(1)}}}
			},
			spread: "  targetFilter: {selector: {matchLabels: {role: worker}}, replicasPathList: [spec.replicaSpecs.worker.replicas]}\n"},
	} {
		t.Run(rule, func(t *testing.T) {
			ns := namespace(t)
			apply(t, ns, kind.definition())
			apply(t, ns, kind.reader())
			apply(t, ns, spreadFor("web", kind.group+"/"+kind.version, kind.kind, "web", kind.spread+fmt.Sprintf(twoPools, "40%")))
			kind.set(t, ns, 5)
			expectPlaces(t, ns, "a=2 b=3")
			kind.set(t, ns, 10)
			expectPlaces(t, ns, "a=4 b=6")
			expectConstrained(t, expectPods(t, ns, 10))
		})
	}
}

// TestNoPodOfANewDeploymentIsMissed creates many Deployments at once. Their first pods are created within milliseconds after the ReplicaSets. The
// webhook's cache may see a ReplicaSet later than the ReplicaSet controller does.
func TestNoPodOfANewDeploymentIsMissed(t *testing.T) {
	pools(t, "a", "b")
	const deployments, replicas = 25, 4
	ns := namespace(t)
	for i := range deployments {
		apply(t, ns, spreadFor(fmt.Sprintf("web-%d", i), "apps/v1", "Deployment", fmt.Sprintf("web-%d", i), fmt.Sprintf(twoPools, "1")))
	}
	expectKnown(t, ns)
	unknown := reviewed(t, "owner_unknown")
	var making sync.WaitGroup
	for i := range deployments {
		making.Go(func() {
			if err := the.ApplyYAML(t.Context(), ns, unchanged("apps/v1", "Deployment", fmt.Sprintf("web-%d", i), replicas, "")); err != nil {
				t.Error(err)
			}
		})
	}
	making.Wait()
	expectConstrained(t, expectPods(t, ns, deployments*replicas))
	if got := reviewed(t, "owner_unknown") - unknown; got != 0 {
		t.Errorf("the owners of %v pods were not known in time", got)
	}
}

// expectKnown waits until the controller has written the status of every spread. Then its cache contains them. The webhook shares this cache.
func expectKnown(t *testing.T, ns string) {
	t.Helper()
	waitFor(t, "the spreads to be known", func(ctx context.Context) (string, error) {
		list, err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			if observed, _, _ := unstructured.NestedInt64(list.Items[i].Object, "status", "observedGeneration"); observed == 0 {
				return list.Items[i].GetName() + " has no status", nil
			}
		}
		return "", nil
	})
}

// reviewed is how many pods the webhook has reviewed with this outcome.
func reviewed(t *testing.T, outcome string) float64 {
	t.Helper()
	for _, status := range the.Sandbox.Status() {
		if status.Name != product.Controller {
			continue
		}
		response, err := http.Get("http://" + status.Address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		match := regexp.MustCompile(`(?m)^berth_webhook_pods_total\{outcome="` + outcome + `"\} (\S+)$`).FindStringSubmatch(string(text))
		if match == nil {
			t.Fatalf("no count of pods %s in\n%s", outcome, text)
		}
		n, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatal("there is no controller")
	return 0
}

// TestAdmissionAsksAndWritesNothing counts all requests of the controller for a namespace. It skips the status of the spread, which is not part of
// admission.
func TestAdmissionAsksAndWritesNothing(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf(twoPools, "10")))
	apply(t, ns, unchanged("apps/v1", "Deployment", "web", 50, ""))
	expectPlaces(t, ns, "a=10 b=40")
	expectConstrained(t, expectPods(t, ns, 50))
	waitFor(t, "the status", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil || spread.Status.Summary == "a 10/10, b 40/-" {
			return "", err
		}
		return spread.Status.Summary, nil
	})
	requests := audited(t, "system:serviceaccount:berth-system:berth-controller", ns)
	maps.DeleteFunc(requests, func(request string, _ int) bool { return strings.Contains(request, " workloadspreads/status") })
	want := map[string]int{"get deployments/ 404": 1} // to warn whoever makes the spread, whatever the cache knows
	if diff := cmp.Diff(want, requests); diff != "" {
		t.Errorf("requests of the controller (-want +got):\n%s", diff)
	}
}

// TestWhileTheWebhookIsDown kills the controller, which serves the webhook, and keeps it down.
func TestWhileTheWebhookIsDown(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	for _, name := range []string{"named", "plain"} {
		apply(t, ns, spreadFor(name, "apps/v1", "Deployment", name, fmt.Sprintf(twoPools, "2")))
	}
	// In this namespace no pod may be created without the webhook.
	required := namespace(t)
	label := []byte(fmt.Sprintf(`{"metadata":{"labels":{%q:"required"}}}`, v1beta1.AdmissionLabel))
	if _, err := the.Client.CoreV1().Namespaces().Patch(t.Context(), required, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	apply(t, required, spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf(twoPools, "2")))
	expectKnown(t, ns)
	expectKnown(t, required)
	// Creation times have a resolution of one second. Pods created in the same second as the spread may be older than the spread.
	spread, err := the.Spread(t.Context(), ns, "plain")
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the next second", func(context.Context) (string, error) {
		return map[bool]string{false: "it is the same"}[time.Now().Unix() > spread.CreationTimestamp.Unix()], nil
	})
	resume, err := the.Sandbox.Halt(product.Controller, 0)
	if err != nil {
		t.Fatal(err)
	}
	back := func(ctx context.Context) error {
		resume()
		ctx, cancel := context.WithTimeout(ctx, harness.Timeout)
		defer cancel()
		return the.Sandbox.WaitReady(ctx)
	}
	t.Cleanup(func() {
		if err := back(context.Background()); err != nil {
			t.Error(err)
		}
	})

	apply(t, ns, deployment("named", 5, ""))
	apply(t, ns, unchanged("apps/v1", "Deployment", "plain", 4, ""))
	apply(t, required, unchanged("apps/v1", "Deployment", "web", 3, ""))
	byApp := func(ctx context.Context) (map[string][]corev1.Pod, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return nil, err
		}
		all := map[string][]corev1.Pod{}
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				all[pods[i].Labels["app"]] = append(all[pods[i].Labels["app"]], pods[i])
			}
		}
		return all, nil
	}
	var bound map[string][]corev1.Pod
	waitFor(t, "creations to go on, and all pods to be bound", func(ctx context.Context) (missing string, err error) {
		if bound, err = byApp(ctx); err != nil || len(bound["named"]) == 5 && len(bound["plain"]) == 4 {
			return "", err
		}
		return fmt.Sprintf("%d named, %d plain", len(bound["named"]), len(bound["plain"])), nil
	})
	t.Run("pods whose template names Berth's scheduler keep their quotas", func(t *testing.T) {
		kept := map[string]int{}
		for i := range bound["named"] {
			kept[record(t, &bound["named"][i]).Subset]++
		}
		if diff := cmp.Diff(map[string]int{"a": 2, "b": 3}, kept); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
		expectNoViolation(t)
	})
	t.Run("the others are placed by the default scheduler", func(t *testing.T) {
		for _, pod := range bound["plain"] {
			if pod.Spec.SchedulerName != corev1.DefaultSchedulerName || pod.Annotations[v1beta1.MatchedAnnotation] != "" {
				t.Errorf("pod %s: scheduler %s, annotations %v", pod.Name, pod.Spec.SchedulerName, pod.Annotations)
			}
		}
	})
	t.Run("where admission is required none is created, and the workload says why", func(t *testing.T) {
		waitFor(t, "the Deployment to say so", func(ctx context.Context) (string, error) {
			web, err := the.Client.AppsV1().Deployments(required).Get(ctx, "web", getOptions)
			if err != nil {
				return "", err
			}
			for _, c := range web.Status.Conditions {
				if c.Type == appsv1.DeploymentReplicaFailure && strings.Contains(c.Message, "required.pod.berth.dev") {
					return "", nil
				}
			}
			return fmt.Sprintf("%+v", web.Status.Conditions), nil
		})
		expectPods(t, required, 0)
	})
	if err := back(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Run("their controllers try again, and the pods are as they should be", func(t *testing.T) {
		expectPlaces(t, required, "a=2 b=1")
		expectConstrained(t, expectPods(t, required, 3))
	})
	t.Run("and are counted as adopted, which the status says", func(t *testing.T) {
		inA := 0
		for _, pod := range bound["plain"] {
			if strings.HasSuffix(pod.Spec.NodeName, "-a") {
				inA++
			}
		}
		want := fmt.Sprintf("a %d/2, b %d/-", inA, 4-inA)
		waitFor(t, "the status", func(ctx context.Context) (string, error) {
			spread, err := the.Spread(ctx, ns, "plain")
			if err != nil || spread.Status.AdoptedPods == 4 && spread.Status.Summary == want {
				return "", err
			}
			return fmt.Sprintf("%d adopted, %s; want %s", spread.Status.AdoptedPods, spread.Status.Summary, want), nil
		})
		waitFor(t, "the condition", func(ctx context.Context) (string, error) {
			spread, err := the.Spread(ctx, ns, "plain")
			if err != nil {
				return "", err
			}
			admitted := meta.FindStatusCondition(spread.Status.Conditions, v1beta1.ConditionAdmitted)
			if admitted == nil || admitted.Reason != string(v1beta1.ReasonPodsNotAdmitted) || !strings.Contains(admitted.Message, "placed: 4;") {
				return fmt.Sprintf("%+v", spread.Status.Conditions), nil
			}
			return "", nil
		})
	})
	t.Run("new pods are admitted again as they should be", func(t *testing.T) {
		scale(t, ns, "plain", 6)
		expectConstrained(t, newPods(t, ns, "plain", 6, bound["plain"]))
	})
}

// newPods waits until an app has this number of pods, and returns those that are not in old.
func newPods(t *testing.T, ns, app string, n int, old []corev1.Pod) []corev1.Pod {
	t.Helper()
	known := map[types.UID]bool{}
	for i := range old {
		known[old[i].UID] = true
	}
	var fresh []corev1.Pod
	waitFor(t, fmt.Sprintf("%d pods of %s", n, app), func(ctx context.Context) (string, error) {
		list, err := the.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil || len(list.Items) != n {
			return fmt.Sprint(len(list.Items)), err
		}
		fresh = nil
		for _, pod := range list.Items {
			if !known[pod.UID] {
				fresh = append(fresh, pod)
			}
		}
		return "", nil
	})
	return fresh
}

// otherWebhook registers another webhook for the pods of a namespace until the test ends. The API server calls a server of the test. The
// configuration has this name. Everything else is as in Berth's configuration.
func otherWebhook(t *testing.T, name, ns string, answer http.HandlerFunc) {
	t.Helper()
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(manifests.MutatingWebhook, &configuration); err != nil {
		t.Fatal(err)
	}
	configuration.Name, configuration.Webhooks = name, configuration.Webhooks[:1]
	w := &configuration.Webhooks[0]
	w.Name = name + ".berth.dev"
	w.ClientConfig = admissionregistrationv1.WebhookClientConfig{
		URL:      ptr.To(server.URL),
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}
	w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
	configurations := the.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), &configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := configurations.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestASlowWebhookHoldsNoCreationLongerThanItsTimeout(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", fmt.Sprintf(twoPools, "1")))
	asked := make(chan struct{}, 100)
	otherWebhook(t, "slow", ns, func(_ http.ResponseWriter, request *http.Request) {
		select {
		case asked <- struct{}{}:
		default: // the channel has enough entries
		}
		_, _ = io.Copy(io.Discard, request.Body) // so that the server sees that the connection is closed
		select {                                 // the API server gives up long before
		case <-request.Context().Done():
		case <-time.After(10 * time.Second):
		}
	})
	owner, err := the.Client.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "rs"}, Spec: appsv1.ReplicaSetSpec{
		Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "none"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "none"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var took time.Duration
	waitFor(t, "the API server to know the webhook", func(ctx context.Context) (string, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "held-", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}}}
		started := time.Now()
		if _, err := the.Client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return "", err
		}
		took = time.Since(started)
		if len(asked) == 0 {
			return "it was not asked", nil
		}
		return "", nil
	})
	if took < 1900*time.Millisecond || took > 3500*time.Millisecond {
		t.Errorf("the creation took %s, want the timeout of 2s", took)
	}
	t.Logf("held for %s", took)
}

// TestOthersMayChangeAPodAfterUs has a webhook that runs after Berth's. It replaces the pod's affinity and adds a toleration, as webhooks for
// multi-tenancy do. The API server calls Berth's webhook again. It adds what is missing, and nothing twice.
func TestOthersMayChangeAPodAfterUs(t *testing.T) {
	ns := namespace(t)
	otherWebhook(t, "zz-other", ns, func(w http.ResponseWriter, request *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		var pod corev1.Pod
		if err := json.Unmarshal(review.Request.Object.Raw, &pod); err == nil && pod.Labels["changed"] == "" {
			review.Response.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
			review.Response.Patch = []byte(`[{"op":"add","path":"/metadata/labels/changed","value":"yes"},
				{"op":"add","path":"/spec/tolerations/0","value":{"key":"tenant","operator":"Exists"}},
				{"op":"add","path":"/spec/affinity","value":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"tenant","operator":"Exists"}]}]}}}}]`)
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the API server reports an invalid answer
	})
	apply(t, ns, spreadFor("web", "apps/v1", "Deployment", "web", strings.Replace(fmt.Sprintf(twoPools, "1"), "{name: b,", "{name: b, tolerations: [{key: spot, operator: Exists}],", 1)))
	apply(t, ns, unchanged("apps/v1", "Deployment", "web", 1, ""))
	var pod corev1.Pod
	waitFor(t, "a pod that the other webhook has changed", func(ctx context.Context) (string, error) {
		pods, err := the.Pods(ctx, ns)
		if err != nil {
			return "", err
		}
		for i := range pods {
			if pod = pods[i]; pod.Labels["changed"] != "" {
				return "", nil
			}
			// The pod was created before the API server knew the webhook.
			if err := the.Client.CoreV1().Pods(ns).Delete(ctx, pods[i].Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
				return "", nil //nolint:nilerr // the pod does not exist any more, and a new one follows
			}
		}
		return fmt.Sprintf("%d pods that it did not change", len(pods)), nil
	})
	var keys []string
	for _, toleration := range pod.Spec.Tolerations {
		keys = append(keys, toleration.Key)
	}
	if diff := cmp.Diff([]string{"tenant", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "spot"}, keys); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	var terms [][]string
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		var requirements []string
		for _, r := range term.MatchExpressions {
			requirements = append(requirements, strings.TrimSpace(r.Key+" "+strings.Join(r.Values, " ")))
		}
		terms = append(terms, requirements)
	}
	if diff := cmp.Diff([][]string{{"tenant", "pool a"}, {"tenant", "pool b"}}, terms); diff != "" {
		t.Errorf("required terms (-want +got):\n%s", diff)
	}
	if own := subset.OwnTolerations(&pod); len(own) != 3 {
		t.Errorf("own tolerations %v", own)
	}
}

// TestAReplicaThatDoesNotLeadKnowsCustomKinds: every replica serves the webhook. So a replica must watch a custom kind before it is the leader.
func TestAReplicaThatDoesNotLeadKnowsCustomKinds(t *testing.T) {
	harness.Long(t)
	t.Parallel() // it has a cluster of its own
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "standby", Dir: t.TempDir(), Without: []string{product.Scheduler, product.DefaultScheduler}},
		product.Options{Replicas: map[string]int{product.Controller: 2}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	// The API server of a sandbox calls only replica 0. So the test makes the other replica the leader.
	leader := func(ctx context.Context) (string, error) {
		lease, err := cluster.Client.CoordinationV1().Leases("berth-system").Get(ctx, "berth-controller", getOptions)
		if err != nil {
			return "", err
		}
		return ptr.Deref(lease.Spec.HolderIdentity, ""), nil
	}
	var first string
	if err := cluster.WaitFor(t.Context(), "a leader", func(ctx context.Context) (missing string, err error) {
		if first, err = leader(ctx); err != nil || first == "" {
			return "nobody leads", nil //nolint:nilerr // the lease is created a moment later
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	if leadsController(t, cluster, 0) {
		if err := cluster.Sandbox.Signal(product.Controller, 0, syscall.SIGTERM); err != nil { // the leader releases the lease
			t.Fatal(err)
		}
		until := func(what string, isSo func(holder string) bool) {
			t.Helper()
			if err := cluster.WaitFor(t.Context(), what, func(ctx context.Context) (string, error) {
				holder, err := leader(ctx)
				if err != nil || isSo(holder) {
					return "", err
				}
				return "the lease is held by " + holder, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		until("the lease to be given back", func(holder string) bool { return holder != first })
		resume, err := cluster.Sandbox.Halt(product.Controller, 0) // before it acquires the lease again
		if err != nil {
			t.Fatal(err)
		}
		until("the other replica to lead", func(holder string) bool { return holder != "" && holder != first })
		resume()
		ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout)
		defer cancel()
		if err := cluster.Sandbox.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		if leadsController(t, cluster, 0) {
			t.Fatal("replica 0 leads again")
		}
	}

	ns, err := cluster.CreateNamespace(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	kind := &customKind{group: "argoproj.io", plural: "rollouts", kind: "Rollout", version: "v1alpha1", scale: scaleSubresource}
	fleet := &customKind{group: "argoproj.io", plural: "fleets", kind: "Fleet", version: "v1alpha1", scale: scaleSubresource}
	if err := cluster.ApplyYAML(t.Context(), ns, kind.definition()+"---"+fleet.definition()+"---"+fleet.reader()); err != nil {
		t.Fatal(err)
	}
	// The spread names a Fleet. The Fleet owns a Rollout, which no spread names. The Rollout owns a ReplicaSet, which owns the pods.
	if err := cluster.ApplyYAML(t.Context(), ns, spreadFor("web", "argoproj.io/v1alpha1", "Fleet", "web", fmt.Sprintf(twoPools, "1"))); err != nil {
		t.Fatal(err)
	}
	make := func(kind string, owner *unstructured.Unstructured) *unstructured.Unstructured {
		t.Helper()
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "metadata": map[string]any{"name": "web"}, "spec": map[string]any{"replicas": int64(3)}}}
		if owner != nil {
			object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())})
		}
		return applyOfNewKind(t, cluster, ns, object)
	}
	rollout := make("Rollout", make("Fleet", nil))
	labels := map[string]string{"app": "web"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}}}
	set, err := cluster.Client.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(rollout, rollout.GroupVersionKind())}},
		Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The webhook waits half a second for a kind that it begins to watch, which a busy machine may not keep to.
	if err := cluster.WaitFor(t.Context(), "the kind to be known", func(ctx context.Context) (string, error) {
		pod := &corev1.Pod{Spec: template.Spec, ObjectMeta: metav1.ObjectMeta{Name: "tried", Labels: labels, OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}}}
		tried, err := cluster.Client.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || isConstrained(tried) {
			return "", err
		}
		return "a pod was admitted as it was", nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.Client.AppsV1().ReplicaSets(ns).Patch(t.Context(), set.Name, types.MergePatchType, []byte(`{"spec": {"replicas": 3}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	if err := cluster.WaitFor(t.Context(), "three pods", func(ctx context.Context) (missing string, err error) {
		if pods, err = cluster.Pods(ctx, ns); err != nil || len(pods) == 3 {
			return "", err
		}
		return fmt.Sprint(len(pods)), nil
	}); err != nil {
		t.Fatal(err)
	}
	expectConstrained(t, pods)
}

// applyOfNewKind applies an object of a kind that was just defined. It returns the stored object.
func applyOfNewKind(t *testing.T, cluster *harness.Cluster, ns string, object *unstructured.Unstructured) (stored *unstructured.Unstructured) {
	t.Helper()
	if err := cluster.WaitFor(t.Context(), "the new kind", func(ctx context.Context) (string, error) {
		if err := cluster.Apply(ctx, ns, object); err != nil {
			return err.Error(), nil // the API server serves the kind a moment after the definition is applied
		}
		client, err := cluster.Resource(object, ns)
		if err != nil {
			return "", err
		}
		stored, err = client.Get(ctx, object.GetName(), getOptions)
		return "", err
	}); err != nil {
		t.Fatal(err)
	}
	return stored
}

// leadsController is true if the replica of the controller holds the lease.
func leadsController(t *testing.T, cluster *harness.Cluster, replica int) bool {
	t.Helper()
	for _, status := range cluster.Sandbox.Status() {
		if status.Name != product.Controller || status.Replica != replica {
			continue
		}
		response, err := http.Get("http://" + status.Address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return leads.Match(text)
	}
	t.Fatalf("no replica %d of the controller", replica)
	return false
}

// TestCertificatesFromCertManager renders the manifests as a user of cert-manager does.
func TestCertificatesFromCertManager(t *testing.T) {
	harness.Long(t)
	dir := t.TempDir()
	root, err := filepath.Rel(dir, filepath.Join(harness.Root(), "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	kustomization := fmt.Sprintf("resources: [%[1]s/controller, %[1]s/webhook, %[1]s/budget]\ncomponents: [%[1]s/webhook/cert-manager]\n", root)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	rendered, err := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), "kubectl"), "kustomize", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, rendered)
	}
	objects, err := harness.Documents(string(rendered))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, object := range objects {
		kinds[object.GetKind()]++
		switch object.GetKind() {
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			if got := object.GetAnnotations()["cert-manager.io/inject-ca-from"]; got != "berth-system/berth-webhook" {
				t.Errorf("%s: its authority is injected from %q", object.GetKind(), got)
			}
		case "Deployment":
			var d appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"--webhook-certs=provided", "--metrics-bind-address=:8443"}, d.Spec.Template.Spec.Containers[0].Args); diff != "" {
				t.Errorf("args (-want +got):\n%s", diff)
			}
			if volume := d.Spec.Template.Spec.Volumes[0]; volume.Secret == nil || volume.Secret.SecretName != "berth-webhook-cert" {
				t.Errorf("volume %+v", volume)
			}
		case "ClusterRole", "Role":
			rules, _, _ := unstructured.NestedSlice(object.Object, "rules")
			if text := fmt.Sprint(rules); strings.Contains(text, "secrets") {
				t.Errorf("%s %s: %s", object.GetKind(), object.GetName(), text)
			}
		}
	}
	want := map[string]int{"MutatingWebhookConfiguration": 2, "ValidatingWebhookConfiguration": 2, "Deployment": 1, "Issuer": 2, "Certificate": 2, "Service": 2,
		"ValidatingAdmissionPolicy": 5, "ValidatingAdmissionPolicyBinding": 5, "FlowSchema": 1, "PriorityLevelConfiguration": 1, "PodDisruptionBudget": 1}
	if diff := cmp.Diff(want, kinds, cmpopts.IgnoreMapEntries(func(kind string, _ int) bool {
		return strings.Contains(kind, "Role") || kind == "ServiceAccount"
	})); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}
