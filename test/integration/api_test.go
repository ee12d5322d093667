package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/test/harness"
)

func TestTheManifestsOfTheProposalAndTheArticlesApply(t *testing.T) {
	files, err := filepath.Glob("testdata/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	ns := namespace(t)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := harness.Documents(string(content))
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			if err := the.Apply(t.Context(), ns, object); err != nil {
				t.Errorf("%s: %s: %v", file, object.GetName(), err)
			}
		}
	}
}

const spreadHeader = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: web}
spec:
`

// applyError is what the API server says to a spread with this spec.
func applyError(t *testing.T, ns, spec string) string {
	t.Helper()
	err := the.ApplyYAML(t.Context(), ns, spreadHeader+spec)
	if err == nil {
		return ""
	}
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		t.Fatalf("applying: %v", err)
	}
	return err.Error()
}

func TestAnInvalidSpreadIsRefusedWithAllItsErrors(t *testing.T) {
	ns := namespace(t)
	got := applyError(t, ns, `
  targetRef: {apiVersion: a/b/c, kind: "", name: ""}
  targetFilter: {replicasPathList: [spec..replicas]}
  subsets:
  - {name: a, maxReplicas: -1}
  - {name: a, maxReplicas: 120%}
  - {name: "not a label", maxReplicas: "20"}
  - {maxReplicas: 30%}
  scheduleStrategy: {type: Sometimes, binding: Never, quotaScope: Cluster, whenFull: Delete, adaptive: {rescheduleCriticalSeconds: -3, unschedulableLastSeconds: -1}}
`)
	for _, path := range []string{
		"spec.targetRef.apiVersion", "spec.targetRef.kind", "spec.targetRef.name", "spec.targetFilter.replicasPathList[0]",
		"spec.subsets: Invalid value: subset names must be unique",
		"spec.subsets: Invalid value: maxReplicas must be a count in every subset or a percentage in every subset, not both",
		"spec.subsets[0].maxReplicas", "spec.subsets[1].maxReplicas", "spec.subsets[2].name", "spec.subsets[2].maxReplicas", "spec.subsets[3].name",
		"spec.scheduleStrategy.type", "spec.scheduleStrategy.binding", "spec.scheduleStrategy.quotaScope", "spec.scheduleStrategy.whenFull",
		"spec.scheduleStrategy.adaptive: ", "adaptive.rescheduleCriticalSeconds", "adaptive.unschedulableLastSeconds",
	} {
		if !strings.Contains(got, path) {
			t.Errorf("no error for %s in:\n%s", path, strings.ReplaceAll(got, ", spec.", ",\nspec."))
		}
	}
}

func TestWhatTheSchemaRefuses(t *testing.T) {
	const target = "\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"
	tests := map[string]struct{ spec, want string }{
		"a misspelt field":                     {target + "\n  subsets: [{name: a, tolertions: []}]", "tolertions"},
		"percentages above 100":                {target + "\n  subsets: [{name: a, maxReplicas: 60%}, {name: b, maxReplicas: 50%}, {name: c}]", "must not add up to more than 100%"},
		"percentages below 100 without a rest": {target + "\n  subsets: [{name: a, maxReplicas: 60%}, {name: b, maxReplicas: 30%}]", "must add up to 100%"},
		"no subset":                            {target + "\n  subsets: []", "spec.subsets"},
		"a spread without a target":            {"\n  subsets: [{name: a}]", "spec.targetRef"},
		"a patch that is not an object":        {target + "\n  subsets: [{name: a, patch: [1]}]", "spec.subsets[0].patch"},
	}
	ns := namespace(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := applyError(t, ns, tc.spec); !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want it to contain %q", got, tc.want)
			}
		})
	}
	t.Run("another target for a spread that is there", func(t *testing.T) {
		if got := applyError(t, ns, target+"\n  subsets: [{name: a}]"); got != "" {
			t.Fatal(got)
		}
		got := applyError(t, ns, "\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: other}\n  subsets: [{name: a}]")
		if !strings.Contains(got, "the target cannot be changed") {
			t.Errorf("got %q", got)
		}
		if got := applyError(t, ns, "\n  targetRef: {apiVersion: apps/v1beta9, kind: Deployment, name: web}\n  subsets: [{name: a}]"); got != "" {
			t.Errorf("the version of the target may change: %s", got)
		}
	})
}

// expectCondition waits until the spread's Ready condition has the status and reason, and a message with all the parts.
func expectCondition(t *testing.T, ns, name, status string, reason v1alpha1.Reason, parts ...string) {
	t.Helper()
	waitFor(t, "condition Ready="+status+" "+string(reason), func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, name)
		if err != nil {
			return "", err
		}
		for _, c := range spread.Status.Conditions {
			if c.Type != v1alpha1.ConditionReady {
				continue
			}
			for _, part := range parts {
				if !strings.Contains(c.Message, part) {
					return "message is " + c.Message, nil
				}
			}
			if string(c.Status) == status && c.Reason == string(reason) && c.ObservedGeneration == spread.Generation {
				return "", nil
			}
			return string(c.Status) + " " + c.Reason + " " + c.Message, nil
		}
		return "no condition", nil
	})
}

func TestASpreadSaysWhatItWaitsFor(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 2}, {name: b}]
`)
	expectCondition(t, ns, "web", "False", v1alpha1.ReasonTargetNotFound, `web`)
	apply(t, ns, deployment("web", 0, ""))
	expectCondition(t, ns, "web", "True", v1alpha1.ReasonSpreadReady)
}

// onlyTheModelSees is a spec with errors that no schema finds.
const onlyTheModelSees = `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: a
    tolerations: [{operator: Equal}]
    patch: {spec: {containers: [{name: main, resources: {limit: {cpu: "2", memory: 800Mi}}}]}}
  - name: b
    requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: Among, values: [b]}]}
    patch: {metadata: {labels: {lane: "not a label!"}}}
`

func TestAnInvalidSpreadThatTheWebhookMissedSaysSo(t *testing.T) {
	pools(t, "a")
	ns := namespace(t)
	apply(t, ns, deployment("web", 1, ""))
	leaveToTheModel(t, ns)
	waitFor(t, "the API server to ask the webhook no more", func(ctx context.Context) (string, error) {
		err := the.ApplyYAML(ctx, ns, spreadHeader+onlyTheModelSees)
		if apierrors.IsInvalid(err) {
			return err.Error(), nil
		}
		return "", err
	})
	expectCondition(t, ns, "web", "False", v1alpha1.ReasonInvalidSpread,
		"spec.subsets[0].patch.spec.containers[0].resources.limit: Invalid value: unknown field", "spec.subsets[0].tolerations[0].operator")
	waitFor(t, "the pod's own message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "InvalidSpread", "resources.limit")
	})
}

// leaveToTheModel has the API server not ask the webhook about spreads of the namespace, until the test ends.
func leaveToTheModel(t *testing.T, ns string) {
	t.Helper()
	webhooks := the.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	selectNamespaces := func(ctx context.Context, selector string) error {
		patch := `{"webhooks": [{"name": "workloadspread.berth.dev", "namespaceSelector": ` + selector + `}]}`
		_, err := webhooks.Patch(ctx, "berth-webhook", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := selectNamespaces(context.Background(), `{"matchExpressions": null}`); err != nil {
			t.Error(err)
		}
	})
	if err := selectNamespaces(t.Context(), `{"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["`+ns+`"]}]}`); err != nil {
		t.Fatal(err)
	}
}

// podMessage is empty once some pod of the namespace says all of the parts in its PodScheduled condition.
func podMessage(ctx context.Context, ns string, parts ...string) (missing string, err error) {
	pods, err := the.Pods(ctx, ns)
	if err != nil {
		return "", err
	}
	missing = "no pod says so"
	for i := range pods {
		for _, c := range pods[i].Status.Conditions {
			all := c.Type == "PodScheduled"
			for _, part := range parts {
				all = all && strings.Contains(c.Message, part)
			}
			if all {
				return "", nil
			}
			if c.Type == "PodScheduled" {
				missing = fmt.Sprintf("%s says %q", pods[i].Name, c.Message)
			}
		}
	}
	return missing, nil
}

func get(t *testing.T, ns string, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	client, err := the.Resource(object, ns)
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Get(t.Context(), object.GetName(), getOptions)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTheWebhookRefusesWithAllErrorsWhatNoSchemaSees(t *testing.T) {
	ns := namespace(t)
	err := the.ApplyYAML(t.Context(), ns, spreadHeader+onlyTheModelSees)
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) || !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want a spread that is invalid", err)
	}
	messages := map[string]string{}
	for _, cause := range answer.Status().Details.Causes {
		messages[cause.Field] = cause.Message
	}
	for path, part := range map[string]string{
		"spec.subsets[0].tolerations[0].operator":                  "must be Exists when key is empty",
		"spec.subsets[0].patch.spec.containers[0].resources.limit": "unknown field",
		"spec.subsets[1].requiredNodeSelectorTerm":                 `"Among"`,
		"spec.subsets[1].patch.metadata.labels":                    "not a label!",
	} {
		if !strings.Contains(messages[path], part) {
			t.Errorf("%s: got %q, want %q", path, messages[path], part)
		}
	}
	if len(messages) != 4 {
		t.Errorf("got %d errors, want 4: %v", len(messages), err)
	}
}

func TestAWorkloadHasOneSpread(t *testing.T) {
	const target = `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 2}, {name: b}]
`
	second := strings.Replace(spreadHeader, "{name: web}", "{name: second}", 1) + target
	ns := namespace(t)
	apply(t, ns, spreadHeader+target)
	waitFor(t, "the second spread to be refused", func(ctx context.Context) (string, error) {
		err := the.ApplyYAML(ctx, ns, second)
		if err == nil {
			// The webhook had not seen the first one yet.
			return "it was let in", the.Dynamic.Resource(v1alpha1.Resource).Namespace(ns).Delete(ctx, "second", metav1.DeleteOptions{})
		}
		if message := err.Error(); !apierrors.IsInvalid(err) || !strings.Contains(message, `spec.targetRef: Forbidden: WorkloadSpread "web" already divides Deployment web`) {
			return "", err
		}
		return "", nil
	})
	if got := applyError(t, ns, strings.Replace(target, "maxReplicas: 2", "maxReplicas: 3", 1)); got != "" {
		t.Errorf("the first spread may change: %s", got)
	}
	if got := namespace(t); the.ApplyYAML(t.Context(), got, second) != nil {
		t.Error("a spread in another namespace was refused")
	}
}

// warnings collects what the API server warns of.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { *w = append(*w, text) }

func TestWarningsReachTheUser(t *testing.T) {
	var got warnings
	config := the.Sandbox.RESTConfig()
	config.WarningHandler = &got
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	spread := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(spreadHeader+`
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a}, {name: b, maxReplicas: 2}]
`), &spread.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(v1alpha1.Resource).Namespace(namespace(t)).Create(t.Context(), spread, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := warnings{
		"spec.subsets[0]: has no maxReplicas, so with type: Fixed no pod reaches the subsets after it",
		"spec.targetRef: there is no Deployment web yet, and the spread waits for it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}
