package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// policyFlags let an API server of 1.35 serve MutatingAdmissionPolicies.
var policyFlags = []string{"--feature-gates=MutatingAdmissionPolicy=true", "--runtime-config=admissionregistration.k8s.io/v1beta1=true"}

// admitByPolicy has the API server do what the webhook does for the pods of a Deployment web with the spread: as a policy that has the spread's constraints
// as literals, and one parameter, which names the workload. So it is the least that such a policy can cost: a policy for all spreads would read the
// constraints from its parameters, would look at one parameter for each spread of the namespace, and would have to leave some pods to the webhook.
func (d *deployments) admitByPolicy(ctx context.Context, namespace string) error {
	object, err := d.cluster.Dynamic.Resource(v1beta1.Resource).Namespace(namespace).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	var spread v1beta1.WorkloadSpread
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &spread); err != nil {
		return err
	}
	compiled, errs := subset.Compile(&spread, nil)
	if err := errs.ToAggregate(); err != nil {
		return err
	}
	var pod corev1.Pod
	compiled.Constraints.AddTo(&pod)
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&pod.Spec)
	if err != nil {
		return err
	}
	annotations, err := json.Marshal(pod.Annotations)
	if err != nil {
		return err
	}
	terms, tolerations := literal("Object.spec.affinity", spec["affinity"]), literal("Object.spec.tolerations", spec["tolerations"])
	var added []string // one by one, because 1.37.1 cannot convert a list of old and new tolerations
	for _, toleration := range spec["tolerations"].([]any) {
		added = append(added, fmt.Sprintf(`JSONPatch{op: "add", path: "/spec/tolerations/-", value: %s}`, literal("Object.spec.tolerations", toleration)))
	}
	if err := d.cluster.ApplyYAML(ctx, namespace, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: web, labels: {bench.berth.dev/spread: ""}}
data: {workload: web}
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicy
metadata: {name: bench}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  failurePolicy: Fail
  reinvocationPolicy: IfNeeded
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  matchConditions:
  - name: is-of-the-workload
    expression: >-
      has(object.metadata.ownerReferences) && has(object.metadata.labels) && object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller
      && o.kind == 'ReplicaSet' && 'pod-template-hash' in object.metadata.labels
      && o.name == params.data.workload + '-' + object.metadata.labels['pod-template-hash'])
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        [
          JSONPatch{op: "add", path: "/spec/schedulerName", value: %[1]q},
          JSONPatch{op: "add", path: "/spec/affinity", value: %[2]s},
          JSONPatch{op: "add", path: "/metadata/annotations", value: %[4]s}
        ] + (has(object.spec.tolerations) ? [%[7]s] : [JSONPatch{op: "add", path: "/spec/tolerations", value: %[3]s}])
---
apiVersion: admissionregistration.k8s.io/v1beta1
kind: MutatingAdmissionPolicyBinding
metadata: {name: bench}
spec:
  policyName: bench
  paramRef: {selector: {matchLabels: {bench.berth.dev/spread: ""}}, parameterNotFoundAction: Allow}
  matchResources: {namespaceSelector: {matchLabels: {%[5]s: %[6]s}}}
`, v1beta1.SchedulerName, terms, tolerations, annotations, corev1.LabelMetadataName, namespace, strings.Join(added, ", "))); err != nil {
		return err
	}
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-probe-", Labels: map[string]string{"pod-template-hash": "probe"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-probe", UID: "probe", Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}},
	}
	return d.cluster.WaitFor(ctx, "the policy to be in force", func(ctx context.Context) (string, error) {
		pod, err := d.cluster.Client.CoreV1().Pods(namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || pod.Spec.SchedulerName == v1beta1.SchedulerName {
			return "", err
		}
		return "a pod is created as it is", nil
	})
}

// literal is a value of JSON as an expression of CEL with the type of a field.
func literal(field string, value any) string {
	switch value := value.(type) {
	case map[string]any:
		var fields []string
		for name, of := range value {
			fields = append(fields, name+": "+literal(field+"."+name, of))
		}
		slices.Sort(fields)
		return field + "{" + strings.Join(fields, ", ") + "}"
	case []any:
		var items []string
		for _, item := range value {
			items = append(items, literal(field, item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case string:
		return strconv.Quote(value)
	}
	return fmt.Sprint(value)
}
