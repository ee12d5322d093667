package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
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

// applyError returns the API server's error for a spread with this spec.
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
  - {name: b, maxReplicas: 120%}
  - {name: "not a label", maxReplicas: "20"}
  - {maxReplicas: 30%}
  scheduleStrategy: {type: Sometimes, binding: Never, quotaScope: Cluster, whenFull: Delete, adaptive: {rescheduleCriticalSeconds: -3, unschedulableLastSeconds: -1}}
`)
	for _, path := range []string{
		"spec.targetRef.apiVersion", "spec.targetRef.kind", "spec.targetRef.name", "spec.targetFilter.replicasPathList[0]",
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

// TestInvalidMinimumsAndWeightsAreRefusedWithAllTheirErrors has the specs and texts of TestCompileRefuses in package subset.
func TestInvalidMinimumsAndWeightsAreRefusedWithAllTheirErrors(t *testing.T) {
	const target = "\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n  subsets:\n"
	tests := map[string]struct {
		subsets string
		want    map[string]string
	}{
		"that are none": {`
  - {name: a, minReplicas: -1, weight: -1}
  - {name: b, minReplicas: half, maxReplicas: 3, weight: 1000001}
  - {name: c, minReplicas: 5, maxReplicas: 4}
  - {name: d, minReplicas: 101%}`,
			map[string]string{
				"spec.subsets[0].minReplicas": "must not be negative", "spec.subsets[0].weight": "should be greater than or equal to 0",
				"spec.subsets[1].minReplicas": "must be a count or a percentage from 0% to 100%", "spec.subsets[1].weight": "should be less than or equal to 1000000",
				"spec.subsets[2].minReplicas": "must not be greater than maxReplicas",
				"spec.subsets[3].minReplicas": "must be a count or a percentage from 0% to 100%",
			},
		},
		"that do not go with percentages": {`
  - {name: a, minReplicas: 60%, maxReplicas: 50%, weight: 1}
  - {name: b, minReplicas: 41%, maxReplicas: 50%, weight: 0}`,
			map[string]string{
				"spec.subsets[0].minReplicas": "must not be greater than maxReplicas",
				"spec.subsets[0].weight":      "weight needs a count in maxReplicas, or no maxReplicas: percentages that add up to 100% are shares already",
				"spec.subsets":                "percentages in minReplicas must not add up to more than 100%",
			},
		},
	}
	ns := namespace(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			refused, _ := review(t, ns, target+strings.TrimPrefix(tc.subsets, "\n")+"\n")
			for path, text := range tc.want {
				if !strings.Contains(refused[path], text) {
					t.Errorf("%s: got %q, want %q", path, refused[path], text)
				}
			}
			if len(refused) != len(tc.want) {
				t.Errorf("got %d errors, want %d: %v", len(refused), len(tc.want), refused)
			}
		})
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
		"a patch that is not an object":        {target + "\n  subsets: [{name: a, patch: [1]}]", `spec.subsets[name="a"].patch: expected map`},
		"a count beside a percentage":          {target + "\n  subsets: [{name: a, maxReplicas: 60%}, {name: b, maxReplicas: 5}]", "must be a count in every subset or a percentage in every subset"},
		"two subsets of a name":                {target + "\n  subsets: [{name: a, maxReplicas: 1}, {name: a}]", `duplicate entries for key [name="a"]`},
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
func expectCondition(t *testing.T, ns, name, status string, reason v1beta1.Reason, parts ...string) {
	t.Helper()
	waitFor(t, "condition Ready="+status+" "+string(reason), func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, name)
		if err != nil {
			return "", err
		}
		for _, c := range spread.Status.Conditions {
			if c.Type != v1beta1.ConditionReady {
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
	expectCondition(t, ns, "web", "False", v1beta1.ReasonTargetNotFound, `web`)
	apply(t, ns, deployment("web", 0, ""))
	expectCondition(t, ns, "web", "True", v1beta1.ReasonSpreadReady)
}

// onlyTheModelSees is a spec with errors that the schema does not find.
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
	leaveToTheModel(t, ns)
	waitFor(t, "the API server to ask the webhook no more", func(ctx context.Context) (string, error) {
		err := the.ApplyYAML(ctx, ns, spreadHeader+onlyTheModelSees)
		if apierrors.IsInvalid(err) {
			return err.Error(), nil
		}
		return "", err
	})
	apply(t, ns, deployment("web", 1, "")) // the Deployment comes later, because its pod could be bound before the spread exists
	expectCondition(t, ns, "web", "False", v1beta1.ReasonInvalidSpread,
		"spec.subsets[0].patch.spec.containers[0].resources.limit: Invalid value: unknown field", "spec.subsets[0].tolerations[0].operator")
	waitFor(t, "the pod's own message", func(ctx context.Context) (string, error) {
		return podMessage(ctx, ns, "InvalidSpread", "resources.limit")
	})
}

// leaveToTheModel stops the API server from calling the webhook for spreads of the namespace, until the test ends.
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

// podMessage returns "" once a pod of the namespace has all of the parts in its PodScheduled condition.
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
		"spec.subsets[0].tolerations[0].operator":                               "must be Exists when key is empty",
		"spec.subsets[0].patch.spec.containers[0].resources.limit":              "unknown field",
		"spec.subsets[1].requiredNodeSelectorTerm.matchExpressions[0].operator": `"Among"`,
		"spec.subsets[1].patch.metadata.labels[lane]":                           "not a label!",
	} {
		if !strings.Contains(messages[path], part) {
			t.Errorf("%s: got %q, want %q", path, messages[path], part)
		}
	}
	if len(messages) != 4 {
		t.Errorf("got %d errors, want 4: %v", len(messages), err)
	}
}

// A tool that gives a spread another name may create the new object before it deletes the old one. Until then the old one counts.
func TestASpreadGetsAnotherName(t *testing.T) {
	const target = `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets: [{name: a, maxReplicas: 2}, {name: b}]
`
	second := strings.Replace(spreadHeader, "{name: web}", "{name: second}", 1) + target
	ns := namespace(t)
	apply(t, ns, spreadHeader+target)
	waitForReason(t, ns, "web", v1beta1.ReasonTargetNotFound)
	waitFor(t, "a second to pass", func(ctx context.Context) (string, error) { // creation times are in seconds, and in the same second the name decides
		first, err := the.Spread(ctx, ns, "web")
		if err != nil {
			return "", err
		}
		if time.Since(first.CreationTimestamp.Time) < time.Second {
			return "it has not", nil
		}
		return "", nil
	})
	apply(t, ns, second)
	waitForReason(t, ns, "second", v1beta1.ReasonSpreadConflict)
	if err := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForReason(t, ns, "second", v1beta1.ReasonTargetNotFound)
}

// waitForReason waits until the condition Ready of a spread has the reason.
func waitForReason(t *testing.T, ns, name string, want v1beta1.Reason) {
	t.Helper()
	waitFor(t, fmt.Sprintf("spread %s to be %s", name, want), func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, name)
		if err != nil {
			return "", err
		}
		if ready := meta.FindStatusCondition(spread.Status.Conditions, v1beta1.ConditionReady); ready == nil || ready.Reason != string(want) {
			return fmt.Sprintf("%+v", ready), nil
		}
		return "", nil
	})
}

// A team applies its file, and a tool applies one number of it. Neither removes what the other has written, and the order is that of the file.
func TestTwoOwnersApplyOneSpread(t *testing.T) {
	ns := namespace(t)
	spreads := the.Dynamic.Resource(v1beta1.Resource).Namespace(ns)
	applyAs := func(manager, subsets string) (string, error) {
		var object unstructured.Unstructured
		text := `{apiVersion: apps.kruise.io/v1beta1, kind: WorkloadSpread, metadata: {name: web}, spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, subsets: ` + subsets + `}}`
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		applied, err := spreads.Apply(t.Context(), "web", &object, metav1.ApplyOptions{FieldManager: manager})
		if err != nil {
			return "", err
		}
		list, _, err := unstructured.NestedSlice(applied.Object, "spec", "subsets")
		if err != nil {
			return "", err
		}
		var names []string
		for _, each := range list {
			fields := each.(map[string]any)
			if names = append(names, fmt.Sprint(fields["name"])); fields["maxReplicas"] != nil {
				names[len(names)-1] += fmt.Sprint(":", fields["maxReplicas"])
			}
		}
		return strings.Join(names, " "), nil
	}
	for _, step := range []struct{ manager, subsets, want string }{
		{"team", "[{name: own, maxReplicas: 3}, {name: spot}, {name: rest}]", "own:3 spot rest"},
		{"tool", "[{name: spot, maxReplicas: 5}]", "own:3 spot:5 rest"},
		{"team", "[{name: spot}, {name: own, maxReplicas: 3}, {name: rest}]", "spot:5 own:3 rest"},
		{"team", "[{name: new, maxReplicas: 1}, {name: spot}, {name: own, maxReplicas: 3}, {name: rest}]", "new:1 spot:5 own:3 rest"},
		{"team", "[{name: spot}, {name: rest}]", "spot:5 rest"},
	} {
		if got, err := applyAs(step.manager, step.subsets); err != nil || got != step.want {
			t.Errorf("%s applies %s: the subsets are %q, want %q (error %v)", step.manager, step.subsets, got, step.want, err)
		}
	}
}

// warnings collects the warnings of the API server.
type warnings []string

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { *w = append(*w, text) }

// review returns the API server's answer to a new spread: the refused fields by path, and the warnings. It does not keep the spread.
func review(t *testing.T, ns, spec string) (refused map[string]string, warned []string) {
	t.Helper()
	var got warnings
	config := the.Sandbox.RESTConfig()
	config.WarningHandler = &got
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	spread := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(spreadHeader+spec), &spread.Object); err != nil {
		t.Fatal(err)
	}
	_, err = client.Resource(oldSpreads).Namespace(ns).Create(t.Context(), spread, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return causes(t, err), got
}

// causes returns the messages of an error by field. It returns nothing for a nil error. Any error except a refusal ends the test.
func causes(t *testing.T, err error) map[string]string {
	t.Helper()
	messages := map[string]string{}
	var answer apierrors.APIStatus
	if err == nil {
		return messages
	}
	if !errors.As(err, &answer) || !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want an answer that something is invalid", err)
	}
	for _, cause := range answer.Status().Details.Causes {
		messages[cause.Field] = cause.Message
	}
	return messages
}

// patchedSpread is a spread over the Deployment web that patches the pods of its first subset. The patch is YAML on one line.
func patchedSpread(patch string) string {
	return `
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - {name: a, maxReplicas: 2, patch: ` + patch + `}
  - {name: b}
`
}

func TestAPatchThatIsNoneOfAPodIsRefused(t *testing.T) {
	ns := namespace(t)
	tests := map[string]struct {
		patch string
		want  map[string]string // the beginnings of messages, by path below the patch
	}{
		"because it is another pod's name and namespace": {
			`{metadata: {name: x, namespace: y, generateName: z, ownerReferences: []}}`,
			map[string]string{
				".metadata.name": "Forbidden: a patch may change metadata.labels, metadata.annotations and spec", ".metadata.namespace": "Forbidden",
				".metadata.generateName": "Forbidden", ".metadata.ownerReferences": "Forbidden",
			},
		},
		"because it adds fields that no pod has": {
			`{spec: {container: [], containers: [{name: main, resources: {limit: {cpu: 1}}}]}, status: {}}`,
			map[string]string{
				".spec.container": "Invalid value: unknown field", ".spec.containers[0].resources.limit": "Invalid value: unknown field", ".status": "Forbidden: a patch may change",
			},
		},
		"because it takes the pod away from Berth": {
			`{spec: {nodeName: n, schedulerName: s, schedulingGates: [{name: example.com/g}]}}`,
			map[string]string{
				".spec.nodeName": "Forbidden: the scheduler picks the node", ".spec.schedulerName": "Forbidden: another scheduler does not keep", ".spec.schedulingGates": "Forbidden: the component that removes a gate",
			},
		},
		"because it cannot be merged": {
			`{spec: {containers: [{image: x}], tolerations: {key: k}, hostNetwork: "yes", $patch: replace}}`,
			map[string]string{
				".spec.containers[0].name": "Required value: tells which element", ".spec.tolerations": "Invalid value: must be a list",
				".spec.hostNetwork": `Invalid value: "yes": must be true or false`, ".spec.$patch": "Forbidden: it would remove every field of the spec",
			},
		},
		"because it moves pods out of their workload": {`{metadata: {labels: {pod-template-hash: x}}}`, map[string]string{".metadata.labels[pod-template-hash]": "Forbidden: the ReplicaSet controller sets this key; remove it from the patch"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			refused, _ := review(t, ns, patchedSpread(tc.patch))
			for path, message := range tc.want {
				if !strings.HasPrefix(refused["spec.subsets[0].patch"+path], message) {
					t.Errorf("%s: got %q, want %q", path, refused["spec.subsets[0].patch"+path], message)
				}
			}
			if len(refused) != len(tc.want) {
				t.Errorf("got %d errors, want %d: %v", len(refused), len(tc.want), refused)
			}
		})
	}
	t.Run("because it is to be applied late", func(t *testing.T) {
		refused, _ := review(t, ns, patchedSpread(`{metadata: {labels: {tier: front}}, spec: {hostname: h}}`)+"  scheduleStrategy: {binding: Late}\n")
		if message := refused["spec.subsets[0].patch.spec"]; !strings.HasPrefix(message, "Forbidden: must be set when the pod is created") || len(refused) != 1 {
			t.Errorf("got %v", refused)
		}
	})
}

const aTemplate = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 10
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, lane: main}}
    spec:
      nodeSelector: {no-node: has-this}
      volumes: [{name: data, emptyDir: {}}]
      containers:
      - name: main
        image: registry.k8s.io/pause:3.10
        resources: {limits: {cpu: "1", memory: 1Gi}}
        env: [{name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}]
        livenessProbe: {httpGet: {port: 80}}
        volumeMounts: [{name: data, mountPath: /data}]
`

func TestPatchesAreTriedOnThePodsOfTheWorkload(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, aTemplate)
	tests := map[string]struct{ patch, place string }{
		"what the proposal and the articles show passes, as the API server lets the pod pass": {
			patch: `{metadata: {labels: {resource.cpu/arch: x86}, annotations: {eip: id1}}, spec: {containers: [{name: main, image: "app:arm", command: [run],
    resources: {limits: {cpu: 500m, memory: 800Mi}}, env: [{name: AZ, value: zone-a}], readinessProbe: {exec: {command: [check]}}, volumeMounts: [{name: config, mountPath: /etc/app}]}],
    initContainers: [{name: sidecar, image: "proxy:1", restartPolicy: Always}], volumes: [{name: config, configMap: {name: c}}], tolerations: [{key: arm, operator: Exists}]}}`,
		},
		"a limit below the request that the API server fills in passes": {patch: `{spec: {containers: [{name: main, resources: {limits: {cpu: 300m}}}]}}`},
		"privileged containers pass":                                    {patch: `{spec: {containers: [{name: main, securityContext: {privileged: true}}]}}`},
		"pods of another priority class pass":                           {patch: `{spec: {priorityClassName: system-node-critical}}`},
		"a limit below the request that the patch sets is refused": {
			`{spec: {containers: [{name: main, resources: {limits: {cpu: 300m}, requests: {cpu: 400m}}}]}}`, "spec.containers[main].resources.requests",
		},
		"a container without an image is refused":             {`{spec: {containers: [{name: sidecar}]}}`, "spec.containers[sidecar].image"},
		"a variable with a value and a source is refused":     {`{spec: {containers: [{name: main, env: [{name: SECRET, value: open}]}]}}`, "spec.containers[main].env[0].valueFrom"},
		"a probe of two handlers is refused":                  {`{spec: {containers: [{name: main, livenessProbe: {exec: {command: [x]}}}]}}`, "spec.containers[main].livenessProbe.httpGet"},
		"a mount of a volume that is not there is refused":    {`{spec: {containers: [{name: main, volumeMounts: [{name: gone, mountPath: /gone}]}]}}`, "spec.containers[main].volumeMounts[0].name"},
		"a volume that is removed under its mount is refused": {`{spec: {volumes: [{name: data, $patch: delete}]}}`, "spec.containers[main].volumeMounts[0].name"},
		"a restart policy that there is not is refused":       {`{spec: {restartPolicy: Sometimes}}`, "spec.restartPolicy"},
		"a host name that is none is refused":                 {`{spec: {hostname: Not_A_Name}}`, "spec.hostname"},
		"a node selector that no node can match is refused":   {`{spec: {nodeSelector: {"not a key!": x}}}`, "spec.nodeSelector"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			refused, warned := review(t, ns, patchedSpread(tc.patch))
			if len(warned) > 0 {
				t.Errorf("warnings %q", warned)
			}
			// Berth's message must contain the API server's message, for the same field.
			want := map[string]string{}
			for _, message := range wordsOn(t, ns, tc.patch) {
				kind, detail, found := strings.Cut(message, ": ")
				place := "at " + tc.place + " of the patched pod"
				switch i := strings.LastIndex(detail, `": `); {
				case !found:
					message = kind + ": " + place
				case i >= 0: // the value is between the kind and the detail
					message = kind + ": " + detail[:i+1] + ": " + place + ": " + detail[i+3:]
				case strings.HasSuffix(detail, `"`):
					message = kind + ": " + detail + ": " + place
				default:
					message = kind + ": " + place + ": " + detail
				}
				want["spec.subsets[0].patch"] = message
			}
			if (tc.place != "") != (len(want) > 0) {
				t.Errorf("the API server says to the patched pod: %v", want)
			}
			if diff := cmp.Diff(want, refused); diff != "" {
				t.Errorf("refused (-in the words of the API server +got):\n%s", diff)
			}
		})
	}
}

// wordsOn returns the API server's messages about a pod of the template, with the patch applied as a webhook applies it.
func wordsOn(t *testing.T, ns, patch string) []string {
	t.Helper()
	var deployment appsv1.Deployment
	if err := yaml.Unmarshal([]byte(aTemplate), &deployment); err != nil {
		t.Fatal(err)
	}
	raw, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	compiled, errs := subset.CompilePatch(&runtime.RawExtension{Raw: raw}, nil)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	pods, trial := the.Client.CoreV1().Pods(ns), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.Name = "trial"
	if pod, err = pods.Create(t.Context(), pod, trial); err != nil {
		t.Fatal(err)
	}
	patched, err := compiled.Apply(pod)
	if err != nil {
		t.Fatal(err)
	}
	patched.ResourceVersion, patched.UID = "", ""
	_, err = pods.Create(t.Context(), patched, trial)
	var messages []string
	for _, message := range causes(t, err) {
		messages = append(messages, message)
	}
	return messages
}

func TestAPatchThatTakesPodsAwayFromTheirWorkloadIsRefused(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, aTemplate)
	const want = "Forbidden: Deployment web selects its pods by this label; it would release the patched pods and create others without end; remove the label from the patch"
	for name, patch := range map[string]string{
		"when they are admitted": `{metadata: {labels: {app: null}}}`,
		"when they are bound":    `{metadata: {labels: {app: other}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			refused, _ := review(t, ns, patchedSpread(patch))
			if diff := cmp.Diff(map[string]string{"spec.subsets[0].patch.metadata.labels[app]": want}, refused); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPatchThatDoesNotFitAnyMoreIsAWarning(t *testing.T) {
	const mounts = `{spec: {containers: [{name: main, volumeMounts: [{name: data, mountPath: /more}]}]}}`
	ns := namespace(t)
	apply(t, ns, aTemplate)
	apply(t, ns, spreadHeader+patchedSpread(mounts))
	apply(t, ns, deployment("web", 0, ""))
	if got := applyError(t, ns, strings.Replace(patchedSpread(mounts), "maxReplicas: 2", "maxReplicas: 3", 1)); got != "" {
		t.Errorf("the quota cannot be changed: %s", got)
	}
	const path = "spec.containers[main].volumeMounts"
	if got := applyError(t, ns, patchedSpread(strings.Replace(mounts, "/more", "/other", 1))); !strings.Contains(got, path) {
		t.Errorf("another patch that does not fit either: got %q", got)
	}
}

func TestAPatchWhoseTargetIsPendingWaitsUntried(t *testing.T) {
	const patch = `{spec: {containers: [{name: sidecar}]}}`
	const untried = ", so the patches were not tried on its pods"
	ns := namespace(t)
	fleets := &customKind{group: "fleets.example.com", plural: "fleets", kind: "Fleet", version: "v1", scale: scaleSubresource}
	targeting := func(target string) string {
		return strings.Replace(patchedSpread(patch), "{apiVersion: apps/v1, kind: Deployment, name: web}", target, 1)
	}
	const fleet, other = "{apiVersion: fleets.example.com/v1, kind: Fleet, name: web}", "{apiVersion: nobody.example.com/v1, kind: Convoy, name: web}"
	expect := func(t *testing.T, spec, want string) {
		t.Helper()
		waitFor(t, "the warning: "+want, func(context.Context) (string, error) {
			refused, warned := review(t, ns, spec)
			if len(refused) == 0 && len(warned) == 1 && strings.Contains(warned[0], want) {
				return "", nil
			}
			return fmt.Sprintf("refused %v, warned %q", refused, warned), nil
		})
	}
	t.Run("for a workload that is not there", func(t *testing.T) {
		expect(t, targeting("{apiVersion: apps/v1, kind: Deployment, name: later}"), "spec.targetRef: there is no Deployment later yet, and the spread waits for it"+untried)
	})
	t.Run("for a kind that is not there", func(t *testing.T) {
		expect(t, targeting(other), "spec.targetRef: Convoy web cannot be read: the API server has no kind Convoy in nobody.example.com/v1; install it or correct the target"+untried)
	})
	apply(t, ns, fleets.definition())
	t.Run("for a kind that Berth may not read", func(t *testing.T) {
		expect(t, targeting(fleet), "spec.targetRef: Fleet web cannot be read: Berth may not get it; create a ClusterRole with get, list and watch")
	})
	apply(t, ns, fleets.reader())
	t.Run("for one of a custom kind that is not there", func(t *testing.T) {
		expect(t, targeting(fleet), "spec.targetRef: there is no Fleet web yet, and the spread waits for it"+untried)
	})
	apply(t, ns, `{apiVersion: fleets.example.com/v1, kind: Fleet, metadata: {name: web}, spec: {replicas: 1}}`)
	t.Run("for one without a pod template", func(t *testing.T) {
		expect(t, targeting(fleet), "spec.targetRef: Fleet web has no pod template at spec.template"+untried)
	})
	apply(t, ns, `{apiVersion: fleets.example.com/v1, kind: Fleet, metadata: {name: web}, spec: {replicas: 1, template: {spec: {containers: [{name: main, image: x}]}}}}`)
	t.Run("until it is there, with a template", func(t *testing.T) {
		refused, _ := review(t, ns, targeting(fleet))
		if message := refused["spec.subsets[0].patch"]; message != "Required value: at spec.containers[sidecar].image of the patched pod" {
			t.Errorf("refused %v", refused)
		}
	})
}

func TestWarningsOfWhatTheClusterShows(t *testing.T) {
	pools(t, "a", "b")
	ns := namespace(t)
	apply(t, ns, aTemplate)
	const target = "\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n  subsets:\n"
	nodes := func(pool string) string {
		return "requiredNodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [" + pool + "]}]}"
	}
	tests := map[string]struct {
		spec string
		want []string
	}{
		"subsets with nodes of their own": {
			target + "  - {name: a, maxReplicas: 2, " + nodes("a") + "}\n  - {name: b, " + nodes("b") + "}\n", nil,
		},
		"a subset that no node matches": {
			target + "  - {name: a, maxReplicas: 2, " + nodes("a") + "}\n  - {name: b, " + nodes("c") + "}\n",
			[]string{"spec.subsets[1].requiredNodeSelectorTerm: no node matches now"},
		},
		"subsets with the same nodes": {
			target + "  - {name: a, maxReplicas: 2, " + nodes("a") + "}\n  - {name: b, " + nodes("a") + "}\n",
			[]string{"spec.subsets[1].requiredNodeSelectorTerm: selects the same nodes as spec.subsets[0]; pods there that Berth did not bind count in the first of the two"},
		},
		"percentages above the replicas that there are": {
			target + "  - {name: a, maxReplicas: 33%}\n  - {name: b, maxReplicas: 33%}\n  - {name: c, maxReplicas: 33%}\n  - {name: d}\n",
			[]string{"spec.subsets: of 10 replicas the percentages, each rounded up, are 12 pods (a 4, b 4, c 4, d -), so the last subsets hold fewer"},
		},
		"minimums above the replicas that there are": {
			target + "  - {name: a, minReplicas: 8}\n  - {name: b, minReplicas: 8}\n",
			[]string{"spec.subsets: the minimums are 16 pods (a 8, b 8), and the workload has 10 replicas, so the last subsets get less than their minimum"},
		},
		"a subset without a weight": {
			target + "  - {name: a, weight: 1}\n  - {name: b}\n",
			[]string{"spec.subsets[1]: has neither weight nor minReplicas, and other subsets have a weight, so no pod goes there"},
		},
		"a field without an effect": {
			target + "  - {name: a}\n  - {name: b}\n  scheduleStrategy: {type: Adaptive, adaptive: {disableSimulationSchedule: true}}\n",
			[]string{"spec.scheduleStrategy.adaptive.disableSimulationSchedule: has no effect, as in OpenKruise: a pod goes on when no node of a subset fits"},
		},
		"binding early without a patch is nothing to warn of": {target + "  - {name: a, maxReplicas: 2}\n  - {name: b}\n  scheduleStrategy: {binding: Early}\n", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			// The webhook's cache may not be up to date yet.
			waitFor(t, "the warnings", func(context.Context) (string, error) {
				refused, warned := review(t, ns, tc.spec)
				if len(refused) > 0 {
					return "", fmt.Errorf("refused: %v", refused)
				}
				return cmp.Diff(tc.want, warned, cmpopts.EquateEmpty()), nil
			})
		})
	}
}

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
	if _, err := client.Resource(oldSpreads).Namespace(namespace(t)).Create(t.Context(), spread, metav1.CreateOptions{}); err != nil {
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
