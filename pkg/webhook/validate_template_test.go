package webhook

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// template is that of a workload as a user writes it.
const template = `
metadata:
  labels: {app: web, tier: front}
spec:
  nodeSelector: {arch: x86}
  volumes:
  - {name: data, emptyDir: {}}
  containers:
  - name: main
    image: app:1
    resources: {limits: {cpu: "1", memory: 1Gi}}
    env: [{name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    livenessProbe: {httpGet: {port: 80}}
    volumeMounts: [{name: data, mountPath: /data}]
`

// brokenTemplate has errors of its own, as only custom kinds let in.
const brokenTemplate = `
metadata: {labels: {app: "not a value!"}}
spec:
  containers:
  - {name: main, image: ""}
  - {name: other, image: x, volumeMounts: [{name: gone, mountPath: /gone}]}
`

func templateOfYAML(t *testing.T, text string) *corev1.PodTemplateSpec {
	t.Helper()
	template := &corev1.PodTemplateSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), template); err != nil {
		t.Fatal(err)
	}
	return template
}

func yamlPatch(t *testing.T, text string) *runtime.RawExtension {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &runtime.RawExtension{Raw: raw}
}

func TestPatchesAreTriedOnThePodsOfTheWorkload(t *testing.T) {
	tests := map[string]struct {
		template string // the usual one if empty
		patch    string
		want     []string
	}{
		"what the articles and the proposal show is fine": {patch: `{metadata: {labels: {resource.cpu/arch: x86}, annotations: {eip: id1}}, spec: {
 containers: [{name: main, image: "app:arm", command: [run], resources: {limits: {cpu: 500m, memory: 800Mi}}, env: [{name: AZ, value: zone-a}],
   readinessProbe: {exec: {command: [check]}}, volumeMounts: [{name: config, mountPath: /etc/app}]}],
 initContainers: [{name: sidecar, image: "proxy:1", restartPolicy: Always}], volumes: [{name: config, configMap: {name: c}}],
 tolerations: [{key: arm, operator: Exists}], nodeSelector: {disk: ssd}}}`},
		"a limit below the request that the API server fills in from the limit of the template": {patch: `{spec: {containers: [{name: main, resources: {limits: {cpu: 300m}}}]}}`},
		"a limit below a request that somebody has set": {
			template: strings.Replace(template, "resources: {limits", "resources: {requests: {cpu: 600m}, limits", 1),
			patch:    `{spec: {containers: [{name: main, resources: {limits: {cpu: 300m}}}]}}`,
			want: []string{
				`spec.subsets[0].patch: Invalid value: "600m": at spec.containers[main].resources.requests of the patched pod: must be less than or equal to cpu limit of 300m`,
			},
		},
		"a new container without what a container has": {
			patch: `{spec: {containers: [{name: Sidecar}]}}`,
			want: []string{
				`spec.subsets[0].patch: Invalid value: "Sidecar": at spec.containers[Sidecar].name of the patched pod: a lowercase RFC 1123 label`,
				`spec.subsets[0].patch: Required value: at spec.containers[Sidecar].image of the patched pod`,
			},
		},
		"a value beside the source of the template": {
			patch: `{spec: {containers: [{name: main, env: [{name: SECRET, value: open}]}]}}`,
			want: []string{
				`spec.subsets[0].patch: Invalid value: "": at spec.containers[main].env[0].valueFrom of the patched pod: may not be specified when ` + "`value` is not empty",
			},
		},
		"a second handler of a probe": {
			patch: `{spec: {containers: [{name: main, livenessProbe: {exec: {command: [x]}}}]}}`,
			want: []string{
				`spec.subsets[0].patch: Forbidden: at spec.containers[main].livenessProbe.httpGet of the patched pod: may not specify more than 1 handler type`,
			},
		},
		"a volume of two types": {
			patch: `{spec: {volumes: [{name: data, hostPath: {path: /data}}]}}`,
			want: []string{
				`spec.subsets[0].patch: Forbidden: at spec.volumes[data].hostPath of the patched pod: may not specify more than 1 volume type`,
				`spec.subsets[0].patch: Not found: "data": at spec.containers[main].volumeMounts[0].name of the patched pod`,
			},
		},
		"a volume that is removed under its mount": {
			patch: `{spec: {volumes: [{name: data, $patch: delete}]}}`,
			want: []string{
				`spec.subsets[0].patch: Not found: "data": at spec.containers[main].volumeMounts[0].name of the patched pod`,
			},
		},
		"all containers are removed": {
			patch: `{spec: {containers: [{name: main, $patch: delete}]}}`,
			want:  []string{`spec.subsets[0].patch: Invalid value: on a pod of the workload: merging the patch into the pod: no container would be left; keep one`},
		},
		"values that no pod may have": {
			patch: `{spec: {restartPolicy: Sometimes, hostname: Not_A_Name, terminationGracePeriodSeconds: -1, nodeSelector: {"not a key!": x}}}`,
			want: []string{
				`spec.subsets[0].patch: Unsupported value: "Sometimes": at spec.restartPolicy of the patched pod: supported values: "Always"`,
				`spec.subsets[0].patch: Invalid value: "not a key!": at spec.nodeSelector of the patched pod: name part must consist of`,
				`spec.subsets[0].patch: Invalid value: "Not_A_Name": at spec.hostname of the patched pod: a lowercase RFC 1123 label`,
			},
		},
		"privileged containers are for the API server to judge": {patch: `{spec: {containers: [{name: main, securityContext: {privileged: true}}]}}`},
		"more annotations than a pod has room for, with those of the template": {
			template: strings.Replace(template, "metadata:", "metadata: \n  annotations: {a: "+strings.Repeat("x", 200<<10)+"}", 1),
			patch:    `{metadata: {annotations: {b: ` + strings.Repeat("x", 100<<10) + `}}}`,
			want:     []string{`spec.subsets[0].patch: Too long: at metadata.annotations of the patched pod: may not be more than 262144 bytes`},
		},
		"a label by which the workload selects its pods is set": {
			patch: `{metadata: {labels: {app: other, tier: back}}}`,
			want:  []string{`spec.subsets[0].patch.metadata.labels[app]: Forbidden: Deployment web selects its pods by this label; it would release the patched pods and create others without end; remove the label from the patch`},
		},
		"a label by which the workload selects its pods is removed": {
			patch: `{metadata: {labels: {app: null}}}`,
			want:  []string{`spec.subsets[0].patch.metadata.labels[app]: Forbidden: Deployment web selects its pods by this label`},
		},
		"errors of the template are not the patch's": {template: brokenTemplate, patch: `{spec: {containers: [{name: sidecar, image: x}]}}`},
		"errors of the patch are found among those of the template": {
			template: brokenTemplate,
			patch:    `{spec: {containers: [{name: sidecar, image: " "}]}}`,
			want:     []string{`spec.subsets[0].patch: Invalid value: " ": at spec.containers[sidecar].image of the patched pod: must not have leading or trailing whitespace`},
		},
		"an error of the template may be mended by the patch": {template: brokenTemplate, patch: `{spec: {containers: [{name: main, image: x}]}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			text := tc.template
			if text == "" {
				text = template
			}
			spread := changed(spreadOf("web", "web", 1), func(spec *v1beta1.WorkloadSpreadSpec) { spec.Subsets[0].Patch = yamlPatch(t, tc.patch) })
			known := knownFacts{Target: targetFacts{Read: true, Template: templateOfYAML(t, text), Selector: labels.SelectorFromSet(labels.Set{"app": "web"})}}
			warnings, errs := validateSpread(spread, nil, known)
			expectEachToContain(t, "errors", tc.want, texts(errs))
			expectEachToContain(t, "warnings", nil, warnings)
		})
	}
}

func texts[E error](errs []E) []string {
	var all []string
	for _, err := range errs {
		all = append(all, err.Error())
	}
	return all
}

func TestAPatchThatDoesNotFitTheWorkloadAnyMore(t *testing.T) {
	const gone, also = `{"spec":{"volumes":[{"name":"data","hostPath":{"path":"/x"}}]}}`, `{"spec":{"volumes":[{"name":"data","hostPath":{"path":"/y"}}]}}`
	old := changed(spreadOf("web", "web", 1), patchedBy(gone))
	known := knownFacts{Target: targetFacts{Read: true, Template: templateOfYAML(t, template)}}
	tests := map[string]struct {
		change               func(*v1beta1.WorkloadSpreadSpec)
		wantWarned, wantErrs string
	}{
		"is a warning while something else is changed": {func(spec *v1beta1.WorkloadSpreadSpec) { spec.Subsets[0].MaxReplicas = nil }, "spec.subsets[0].patch: Forbidden", ""},
		"also in another place": {
			func(spec *v1beta1.WorkloadSpreadSpec) {
				spec.Subsets[0], spec.Subsets[1] = spec.Subsets[1], spec.Subsets[0]
			}, "spec.subsets[1].patch: Forbidden", "",
		},
		"is an error once it is changed itself": {patchedBy(also), "", "spec.subsets[0].patch: Forbidden"},
		"is an error in another subset":         {patchedBy(`{}`, gone), "", "spec.subsets[1].patch: Forbidden"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			warnings, errs := validateSpread(changed(old, tc.change), old, known)
			if all := strings.Join(warnings, "\n"); strings.Contains(all, "hostPath") != (tc.wantWarned != "") || !strings.Contains(all, tc.wantWarned) {
				t.Errorf("warnings %s, want %q", all, tc.wantWarned)
			}
			if all := fmt.Sprint(errs.ToAggregate()); (len(errs) > 0) != (tc.wantErrs != "") || !strings.Contains(all, tc.wantErrs) {
				t.Errorf("errors %s, want %q", all, tc.wantErrs)
			}
		})
	}
}

func TestPatchesAreTriedAlsoIfTheSpreadIsInvalidElsewhere(t *testing.T) {
	spread := changed(spreadOf("web", "web", 1), func(spec *v1beta1.WorkloadSpreadSpec) {
		spec.Subsets[0].Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpEqual}}
		patchedBy(`{"spec":{"nodeName":"n"}}`, `{"spec":{"containers":[{"name":"sidecar"}]}}`)(spec)
	})
	_, errs := validateSpread(spread, nil, knownFacts{Target: targetFacts{Read: true, Template: templateOfYAML(t, template)}})
	expectEachToContain(t, "errors", []string{
		"spec.subsets[0].tolerations[0].operator", "spec.subsets[0].patch.spec.nodeName: Forbidden",
		"spec.subsets[1].patch: Required value: at spec.containers[sidecar].image of the patched pod",
	}, texts(errs))
}

func TestAPatchThatLeavesNoNodeOfTheSubset(t *testing.T) {
	const left = "spec.subsets[0].patch.spec: its nodeSelector or affinity leaves no node of the subset for the pods of Deployment web now"
	nodes := []*corev1.Node{labelled("n1", "pool"), labelled("n2", "disk")}
	nodes[0].Labels["arch"], nodes[1].Labels["arch"] = "x86", "arm"
	tests := map[string]struct {
		patch string
		want  []string
	}{
		"is a warning":                             {`{"spec":{"nodeSelector":{"arch":"arm"}}}`, []string{left}},
		"but not if it leaves one":                 {`{"spec":{"nodeSelector":{"pool":""}}}`, nil},
		"and not if it says nothing about nodes":   {`{"spec":{"hostname":"x"}}`, nil},
		"and not if the template left none before": {`{"spec":{"nodeSelector":{"disk":"ssd"}}}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			template := templateOfYAML(t, template)
			if strings.Contains(name, "before") {
				template.Spec.NodeSelector = map[string]string{"arch": "arm"}
			}
			spread := changed(changed(spreadOf("web", "web", 1), selecting("pool")), patchedBy(tc.patch))
			warnings, errs := validateSpread(spread, nil, knownFacts{Target: targetFacts{Read: true, Template: template}, Nodes: nodes})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			if diff := cmp.Diff(tc.want, warnings, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}
