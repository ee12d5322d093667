package subset

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/podspec"
)

// patchOf reads a patch as a user writes it.
func patchOf(tb testing.TB, text string) (*Patch, field.ErrorList) {
	tb.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		tb.Fatalf("parsing the patch: %v", err)
	}
	return CompilePatch(&runtime.RawExtension{Raw: raw}, field.NewPath("patch"))
}

func compilePatch(tb testing.TB, text string) *Patch {
	tb.Helper()
	patch, errs := patchOf(tb, text)
	if len(errs) > 0 {
		tb.Fatalf("compiling the patch: %v", errs.ToAggregate())
	}
	return patch
}

func podOf(tb testing.TB, text string) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		tb.Fatalf("parsing the pod: %v", err)
	}
	return pod
}

func TestAPatchIsSplitByWhoCanApplyIt(t *testing.T) {
	tests := map[string]struct {
		patch string
		want  Metadata
		early bool
	}{
		"labels and annotations travel in the Binding": {
			patch: `{metadata: {labels: {arch: x86}, annotations: {eip: id1}}}`,
			want:  Metadata{Labels: map[string]string{"arch": "x86"}, Annotations: map[string]string{"eip": "id1"}},
		},
		"a spec needs admission": {
			patch: `{metadata: {labels: {arch: x86}}, spec: {containers: [{name: main, env: [{name: A, value: b}]}]}}`,
			want:  Metadata{Labels: map[string]string{"arch": "x86"}},
			early: true,
		},
		"removing a label needs admission": {
			patch: `{metadata: {labels: {arch: null}}}`,
			want:  Metadata{Labels: map[string]string{}},
			early: true,
		},
		"tolerations alone need admission": {patch: `{spec: {tolerations: [{key: spot, operator: Exists}]}}`, early: true},
		"an empty spec does not":           {patch: `{metadata: {labels: {arch: x86}}, spec: {}}`, want: Metadata{Labels: map[string]string{"arch": "x86"}}},
		"an empty patch changes nothing":   {patch: `{}`},
		"nor does one of empty objects":    {patch: `{metadata: {labels: {}, annotations: {}}, spec: {}}`},
		"nor does null":                    {patch: `null`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			subset := compile(t, fmt.Sprintf(`subsets: [{name: a, patch: %s}]`, tc.patch)).Subsets[0]
			if diff := cmp.Diff(tc.want, subset.Metadata); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
			if subset.PatchesSpec != tc.early {
				t.Errorf("PatchesSpec = %t, want %t", subset.PatchesSpec, tc.early)
			}
			if changes := tc.early || len(tc.want.Labels) > 0; (subset.Patch != nil) != changes {
				t.Errorf("Patch is %v", subset.Patch)
			}
		})
	}
}

func TestAPatchIsRefused(t *testing.T) {
	tests := map[string]struct {
		patch string
		want  []string // all errors, whole or their beginnings
	}{
		"that is no object": {`[1]`, []string{`patch: Invalid value: must be a strategic merge patch of a pod, which is an object`}},
		"that is a text":    {`"spec"`, []string{`patch: Invalid value: must be a strategic merge patch of a pod, which is an object`}},
		"for what makes the pod another pod": {
			`{metadata: {name: x, namespace: y, generateName: z-, uid: u, ownerReferences: [], finalizers: [f]}}`,
			[]string{
				`patch.metadata.finalizers: Forbidden: a patch may change metadata.labels, metadata.annotations and spec`, `patch.metadata.generateName: Forbidden`,
				`patch.metadata.name: Forbidden`, `patch.metadata.namespace: Forbidden`, `patch.metadata.ownerReferences: Forbidden`, `patch.metadata.uid: Forbidden`,
			},
		},
		"for what is no part of a pod's specification": {
			`{apiVersion: v1, kind: Pod, status: {phase: Running}, template: {}}`,
			[]string{`patch.apiVersion: Forbidden`, `patch.kind: Forbidden`, `patch.status: Forbidden`, `patch.template: Forbidden`},
		},
		"for what others decide": {
			`{spec: {nodeName: n, schedulerName: s, schedulingGates: [{name: g}], ephemeralContainers: [], priority: 1, overhead: {cpu: 1}, serviceAccount: x}}`,
			[]string{
				`patch.spec.ephemeralContainers: Forbidden: they can only be added to a running pod; use kubectl debug`,
				`patch.spec.nodeName: Forbidden: the scheduler picks the node; use requiredNodeSelector of the subset`,
				`patch.spec.overhead: Forbidden: is computed from runtimeClassName; patch that one`,
				`patch.spec.priority: Forbidden: is computed from priorityClassName; patch that one`,
				`patch.spec.schedulerName: Forbidden: another scheduler does not keep the subset's quota; leave schedulerName out`,
				`patch.spec.schedulingGates: Forbidden: the component that removes a gate sets it; set it in the workload's template`,
				`patch.spec.serviceAccount: Forbidden: is the old name of serviceAccountName, which takes precedence; patch that one`,
			},
		},
		"for their removal too": {
			`{spec: {nodeName: null, schedulerName: null, tolerations: null, containers: null}}`,
			[]string{
				`patch.spec.containers: Forbidden: a pod needs a container; to remove one, name it and add $patch: delete to it`,
				`patch.spec.nodeName: Forbidden`, `patch.spec.schedulerName: Forbidden`,
				`patch.spec.tolerations: Forbidden: a patch can add tolerations and remove none; leave this out`,
			},
		},
		"for labels and annotations by which pods are counted": {
			`{metadata: {labels: {pod-template-hash: x, controller-revision-hash: null, berth.dev/subset: b, batch.kubernetes.io/controller-uid: u},
				annotations: {controller.kubernetes.io/pod-deletion-cost: "1", apps.kruise.io/matched-workloadspread: x, berth.dev/admitted-subset: x, berth.dev/constraints: x}}}`,
			[]string{
				`patch.metadata.annotations[apps.kruise.io/matched-workloadspread]: Forbidden: is Berth's own record; remove it from the patch`,
				`patch.metadata.annotations[berth.dev/admitted-subset]: Forbidden: is Berth's own record; remove it from the patch`,
				`patch.metadata.annotations[berth.dev/constraints]: Forbidden: is Berth's own record; remove it from the patch`,
				`patch.metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Forbidden: Berth computes this annotation from the subset; remove it from the patch`,
				`patch.metadata.labels[batch.kubernetes.io/controller-uid]: Forbidden: the workload's controller sets this key; remove it from the patch`,
				`patch.metadata.labels[berth.dev/subset]: Forbidden: is Berth's own label; remove it from the patch`,
				`patch.metadata.labels[controller-revision-hash]: Forbidden: the workload's controller sets this key; remove it from the patch`,
				`patch.metadata.labels[pod-template-hash]: Forbidden: the ReplicaSet controller sets this key; remove it from the patch`,
			},
		},
		"with labels and annotations that no pod may carry": {
			`{metadata: {labels: {arch: "not a value!", "not a key!": x, count: 1, flag: true, object: {}}, annotations: {"not a key!": x, ratio: 1.5}}}`,
			[]string{
				`patch.metadata.annotations[ratio]: Invalid value: 1.5: must be a string; put it in quotes`,
				`patch.metadata.annotations: Invalid value: "not a key!": name part must consist of`,
				`patch.metadata.labels[count]: Invalid value: 1: must be a string; put it in quotes`,
				`patch.metadata.labels[flag]: Invalid value: true: must be a string; put it in quotes`,
				`patch.metadata.labels[object]: Invalid value: must be a string`,
				`patch.metadata.labels[arch]: Invalid value: "not a value!": a valid label must be`,
				`patch.metadata.labels: Invalid value: "not a key!": name part must consist of`,
			},
		},
		"with more annotations than a pod has room for": {
			`{metadata: {annotations: {a: "` + strings.Repeat("x", 257<<10) + `"}}}`,
			[]string{`patch.metadata.annotations: Too long: may not be more than 262144 bytes`},
		},
		"with fields that no pod has": {
			`{spec: {containers: [{name: main, resources: {limit: {cpu: "2"}}, Image: x}], container: [], Volumes: []}}`,
			[]string{
				`patch.spec.Volumes: Invalid value: unknown field; check its spelling`, `patch.spec.container: Invalid value: unknown field; check its spelling`,
				`patch.spec.containers[0].Image: Invalid value: unknown field; check its spelling`,
				`patch.spec.containers[0].resources.limit: Invalid value: unknown field; check its spelling`,
			},
		},
		"with objects, lists and texts in place of each other": {
			`{metadata: {labels: [a]}, spec: {containers: {name: main}, securityContext: [], hostname: {a: b}, nodeSelector: {a: [b]}, restartPolicy: [Always]}}`,
			[]string{
				`patch.metadata.labels: Invalid value: must be an object`, `patch.spec.containers: Invalid value: must be a list`,
				`patch.spec.hostname: Invalid value: must be a string`, `patch.spec.nodeSelector[a]: Invalid value: must be a string`,
				`patch.spec.restartPolicy: Invalid value: must be a string`, `patch.spec.securityContext: Invalid value: must be an object`,
			},
		},
		"without what is an object": {
			`{metadata: null, spec: null}`, []string{`patch.metadata: Invalid value: must be an object`, `patch.spec: Invalid value: must be an object`},
		},
		"with values of other types": {
			`{spec: {hostNetwork: "yes", terminationGracePeriodSeconds: "30", activeDeadlineSeconds: 1.5, containers: [{name: main, env: [{name: A, value: 5}],
				ports: [{containerPort: 8080.5}, {containerPort: 3000000000}], resources: {limits: {cpu: lots}}, livenessProbe: {httpGet: {port: {}}}, command: [sleep, 5]}]}}`,
			[]string{
				`patch.spec.activeDeadlineSeconds: Invalid value: 1.5: must be an integer of 64 bits`,
				`patch.spec.containers[0].command[1]: Invalid value: 5: must be a string; put it in quotes`,
				`patch.spec.containers[0].env[0].value: Invalid value: 5: must be a string; put it in quotes`,
				`patch.spec.containers[0].livenessProbe.httpGet.port: Invalid value: `,
				`patch.spec.containers[0].ports[0].containerPort: Invalid value: 8080.5: must be an integer of 32 bits`,
				`patch.spec.containers[0].ports[1].containerPort: Invalid value: 3000000000: must be an integer of 32 bits`,
				`patch.spec.containers[0].resources.limits[cpu]: Invalid value: "lots": quantities must match`,
				`patch.spec.hostNetwork: Invalid value: "yes": must be true or false`,
				`patch.spec.terminationGracePeriodSeconds: Invalid value: "30": must be an integer of 64 bits`,
			},
		},
		"with elements of a list that do not say which they are, or say it twice": {
			`{spec: {containers: [{image: x}, {name: main, env: [{value: v}, {name: A, value: b}, {name: A, value: c}]}, null, main]}}`,
			[]string{
				`patch.spec.containers[0].name: Required value: tells which element of the pod's list to patch`,
				`patch.spec.containers[1].env[0].name: Required value: tells which element of the pod's list to patch`,
				`patch.spec.containers[1].env[2].name: Duplicate value: "A"`,
				`patch.spec.containers[2]: Invalid value: must be an object`, `patch.spec.containers[3]: Invalid value: "main": must be an object`,
			},
		},
		"with null in a list that is replaced": {
			`{spec: {containers: [{name: main, command: [null]}]}}`,
			[]string{`patch.spec.containers[0].command[0]: Invalid value: must not be null; this list is replaced as a whole, so leave the element out`},
		},
		"that replaces or removes all that others have set": {
			`{$patch: replace, metadata: {$patch: delete, labels: {$patch: replace, a: b}, annotations: {$retainKeys: [a], a: b}}, spec: {$patch: replace, containers: [{name: main, image: x}]}}`,
			[]string{
				`patch.$patch: Forbidden: it would remove what others have set; to remove a key, name it and set it to null`, `patch.metadata.$patch: Forbidden`,
				`patch.metadata.annotations.$retainKeys: Forbidden`, `patch.metadata.labels.$patch: Forbidden`,
				`patch.spec.$patch: Forbidden: it would remove every field of the spec that the patch does not name`,
			},
		},
		"with directives that do not exist": {
			`{spec: {$pach: delete, $setElementOrder/containers: [{name: main}], $deleteFromPrimitiveList/containers: [a], volumes: [{name: v, $retainKeys: [name]}], containers: [{name: main, $patch: merge}, {name: x, resources: {$patch: remove}}]}}`,
			[]string{
				`patch.spec.$deleteFromPrimitiveList/containers: Forbidden: a patch may have no other directive than $patch; set fields that the pod is not to have to null`,
				`patch.spec.$pach: Invalid value: unknown directive; check its spelling`,
				`patch.spec.$setElementOrder/containers: Forbidden: a patch may have no other directive than $patch`,
				`patch.spec.containers[0].$patch: Unsupported value: "merge": supported values: "delete", "replace"`,
				`patch.spec.containers[1].resources.$patch: Unsupported value: "remove": supported values: "delete", "replace"`,
				`patch.spec.volumes[0].$retainKeys: Forbidden: a patch may have no other directive than $patch`,
			},
		},
		"with a replacement of a list that holds an element itself": {
			`{spec: {containers: [{name: main, $patch: replace, image: x}]}}`,
			[]string{`patch.spec.containers[0].$patch: Invalid value: "replace": must stand alone: {$patch: replace} is an element by itself, and replaces the whole list by the other elements`},
		},
		"with a directive inside of what is replaced": {
			`{spec: {tolerations: [{$patch: replace}], containers: [{name: main, resources: {$patch: replace, limits: {$patch: delete}}}]}}`,
			[]string{
				`patch.spec.containers[0].resources.limits.$patch: Forbidden: has no effect inside a value that the patch replaces as a whole; remove it`,
				`patch.spec.tolerations[0].$patch: Forbidden: has no effect inside a value that the patch replaces as a whole; remove it`,
			},
		},
		"with tolerations that the API server would refuse": {
			`{spec: {tolerations: [{operator: Equal}, {key: k, operator: Exists, value: v}]}}`,
			[]string{`patch.spec.tolerations[0].operator: Invalid value: "Equal": must be Exists when key is empty`, `patch.spec.tolerations[1].value: Invalid value: "v": must be empty`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			patch, errs := patchOf(t, tc.patch)
			if patch != nil {
				t.Error("got a patch")
			}
			var got []string
			for i, err := range errs {
				text := err.Error()
				if i < len(tc.want) && strings.HasPrefix(text, tc.want[i]) {
					text = tc.want[i]
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatTheRestOfTheSpecSaysOfAPatch(t *testing.T) {
	const early = "must be set when the pod is created, and binding: Late can only set labels and annotations when the pod is bound; set binding to Auto or Early"
	const uncounted = "targetFilter.selector would no longer select the pod, so the spread would not count it; remove the label from the patch or from the selector"
	tests := map[string]struct {
		spec string
		want []string
	}{
		"a patch of the spec cannot be applied late": {
			spec: `{subsets: [{name: a}, {name: b, patch: {spec: {hostname: x}}}], scheduleStrategy: {binding: Late}}`,
			want: []string{"spec.subsets[1].patch.spec: Forbidden: " + early},
		},
		"nor can the removal of a label": {
			spec: `{subsets: [{name: a, patch: {metadata: {labels: {x: null, y: z}}}}], scheduleStrategy: {binding: Late}}`,
			want: []string{"spec.subsets[0].patch.metadata.labels[x]: Forbidden: " + early},
		},
		"labels and annotations can":            {spec: `{subsets: [{name: a, patch: {metadata: {labels: {y: z}}}}], scheduleStrategy: {binding: Late}}`},
		"binding early needs no patch":          {spec: `{subsets: [{name: a}], scheduleStrategy: {binding: Early}}`},
		"any patch can be applied early":        {spec: `{subsets: [{name: a, patch: {spec: {hostname: x}}}], scheduleStrategy: {binding: Early}}`},
		"left to itself, it is applied in time": {spec: `{subsets: [{name: a, patch: {spec: {hostname: x}}}]}`},
		"a patch does not take pods away from their spread": {
			spec: `{subsets: [{name: a, patch: {metadata: {labels: {role: ps, tier: null}}}}], targetFilter: {selector: {matchLabels: {role: worker}, matchExpressions: [{key: tier, operator: Exists}]}}}`,
			want: []string{"spec.subsets[0].patch.metadata.labels[role]: Forbidden: " + uncounted, "spec.subsets[0].patch.metadata.labels[tier]: Forbidden: " + uncounted},
		},
		"a label that the spread still selects may be set": {
			spec: `{subsets: [{name: a, patch: {metadata: {labels: {role: worker, tier: "2", other: x}}}}], targetFilter: {selector: {matchLabels: {role: worker}, matchExpressions: [{key: tier, operator: Exists}]}}}`,
		},
		"every error of every patch is reported at once": {
			spec: `{subsets: [{name: a, patch: {spec: {nodeName: n}}}, {name: b, maxReplicas: -1, patch: {spec: {hostname: x}}}], scheduleStrategy: {binding: Late}}`,
			want: []string{"spec.subsets[0].patch.spec.nodeName: Forbidden", "spec.subsets[1].maxReplicas: Invalid value", "spec.subsets[1].patch.spec: Forbidden"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, errs := Compile(&v1beta1.WorkloadSpread{Spec: *parse(t, tc.spec)}, field.NewPath("spec"))
			var got []string
			for i, err := range errs {
				text := err.Error()
				if i < len(tc.want) && strings.HasPrefix(text, tc.want[i]) {
					text = tc.want[i]
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPatchBreaksASelector(t *testing.T) {
	patch := compilePatch(t, `{metadata: {labels: {app: other, tier: null, zone: a}}}`)
	tests := map[string]struct {
		selector string
		want     []string
	}{
		"by the value that it sets":               {"app=web", []string{"app"}},
		"by a label that it removes":              {"tier", []string{"tier"}},
		"by both":                                 {"tier=1,app in (web)", []string{"app", "tier"}},
		"not by a value that is selected":         {"app in (web, other), zone=a", nil},
		"not by removing what must not be there":  {"!tier", nil},
		"not by labels that are not selected by":  {"track=stable", nil},
		"by setting what must not be there":       {"!zone", []string{"zone"}},
		"not if everything is selected, ever":     {"", nil},
		"not by a value that is not the excluded": {"app!=web", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			selector, err := labels.Parse(tc.selector)
			if err != nil {
				t.Fatal(err)
			}
			got := patch.Breaks(selector)
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
	if got := (*Patch)(nil).Breaks(labels.Everything()); got != nil {
		t.Errorf("no patch breaks %v", got)
	}
}

// app is a pod as a ReplicaSet makes it and the API server fills it in.
const app = `
metadata:
  name: web-x
  namespace: shop
  generateName: web-
  uid: "1"
  labels: {app: web, pod-template-hash: abc, lane: main}
  annotations: {note: keep, old: x}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web, uid: "2", controller: true}]
spec:
  schedulerName: berth-scheduler
  priorityClassName: high
  priority: 1000
  preemptionPolicy: PreemptLowerPriority
  overhead: {cpu: 250m}
  runtimeClassName: sandboxed
  nodeSelector: {disk: ssd}
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: own, operator: Exists}]}]}}}
  tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  - {key: spot, value: "yes"}
  resources: {limits: {cpu: "2"}, requests: {cpu: "2"}}
  volumes:
  - {name: data, emptyDir: {}}
  - {name: cache, emptyDir: {}}
  initContainers:
  - {name: setup, image: setup:1}
  containers:
  - name: main
    image: app:1
    command: [app, --old]
    env: [{name: A, value: "1"}, {name: SECRET, valueFrom: {secretKeyRef: {name: s, key: k}}}]
    ports: [{containerPort: 80, protocol: TCP}]
    livenessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 10}
    volumeMounts: [{name: data, mountPath: /data}]
    resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: "1", memory: 512Mi}}
  - name: helper
    image: helper:1
status: {phase: Pending}
`

// main and helper are the pod's containers.
func mainOf(pod *corev1.Pod) *corev1.Container   { return &pod.Spec.Containers[0] }
func helperOf(pod *corev1.Pod) *corev1.Container { return &pod.Spec.Containers[1] }

func quantities(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if cpu != "" {
		list[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return list
}

func TestApplyAPatch(t *testing.T) {
	sidecar := corev1.Container{Name: "sidecar", Image: "proxy:1"}
	tests := map[string]struct {
		patch string
		want  func(*corev1.Pod)
	}{
		"labels and annotations are set, changed and removed": {
			`{metadata: {labels: {arch: x86, lane: fast, app: null}, annotations: {eip: id1, old: null}}}`,
			func(pod *corev1.Pod) {
				pod.Labels = map[string]string{"pod-template-hash": "abc", "lane": "fast", "arch": "x86"}
				pod.Annotations = map[string]string{"note": "keep", "eip": "id1"}
			},
		},
		"resources: a request that is equal to its limit follows it up, and no other does": {
			`{spec: {containers: [{name: main, resources: {limits: {cpu: "2", memory: 2Gi}}}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).Resources = corev1.ResourceRequirements{Limits: quantities("2", "2Gi"), Requests: quantities("2", "512Mi")}
			},
		},
		"resources: and follows it down, where it could not stay": {
			`{spec: {containers: [{name: main, resources: {limits: {cpu: 500m}}}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).Resources = corev1.ResourceRequirements{Limits: quantities("500m", "1Gi"), Requests: quantities("500m", "512Mi")}
			},
		},
		"resources: a request is what the patch says, if it does": {
			`{spec: {containers: [{name: main, resources: {limits: {cpu: 2}, requests: {cpu: 1}}}]}}`,
			func(pod *corev1.Pod) { mainOf(pod).Resources.Limits = quantities("2", "1Gi") },
		},
		"resources: a limit that is removed leaves the request": {
			`{spec: {containers: [{name: main, resources: {limits: {cpu: null}}}]}}`,
			func(pod *corev1.Pod) { mainOf(pod).Resources.Limits = quantities("", "1Gi") },
		},
		"resources: they can be replaced as a whole": {
			`{spec: {containers: [{name: main, resources: {$patch: replace, limits: {cpu: 100m}}}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).Resources = corev1.ResourceRequirements{Limits: quantities("100m", "")}
			},
		},
		"resources: those of the pod as a whole too, with the request that follows": {
			`{spec: {resources: {limits: {cpu: 3}}}}`,
			func(pod *corev1.Pod) {
				pod.Spec.Resources = &corev1.ResourceRequirements{Limits: quantities("3", ""), Requests: quantities("3", "")}
			},
		},
		"env: variables are set, changed and removed": {
			`{spec: {containers: [{name: main, env: [{name: A, value: "2"}, {name: B, value: "3"}, {name: SECRET, $patch: delete}]}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).Env = []corev1.EnvVar{{Name: "A", Value: "2"}, {Name: "B", Value: "3"}}
			},
		},
		"env: a variable takes a value in place of a source": {
			`{spec: {containers: [{name: main, env: [{name: SECRET, valueFrom: null, value: open}]}]}}`,
			func(pod *corev1.Pod) { mainOf(pod).Env[1] = corev1.EnvVar{Name: "SECRET", Value: "open"} },
		},
		"env: a variable that is removed and set again has nothing left of the old": {
			`{spec: {containers: [{name: main, env: [{name: SECRET, $patch: delete}, {name: SECRET, value: open}]}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).Env = []corev1.EnvVar{{Name: "SECRET", Value: "open"}, {Name: "A", Value: "1"}}
			},
		},
		"image": {`{spec: {containers: [{name: main, image: "app:arm"}]}}`, func(pod *corev1.Pod) { mainOf(pod).Image = "app:arm" }},
		"command and args, as a whole": {
			`{spec: {containers: [{name: main, command: [app, --new], args: [x]}]}}`,
			func(pod *corev1.Pod) { mainOf(pod).Command, mainOf(pod).Args = []string{"app", "--new"}, []string{"x"} },
		},
		"probes: field by field": {
			`{spec: {containers: [{name: main, livenessProbe: {periodSeconds: 30}}]}}`,
			func(pod *corev1.Pod) { mainOf(pod).LivenessProbe.PeriodSeconds = 30 },
		},
		"probes: another handler, if the old one is removed": {
			`{spec: {containers: [{name: main, livenessProbe: {httpGet: null, exec: {command: ["true"]}}}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).LivenessProbe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}
			},
		},
		"probes: they can be replaced": {
			`{spec: {containers: [{name: main, livenessProbe: {$patch: replace, tcpSocket: {port: http}}}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}}
			},
		},
		"probes: they can be removed": {`{spec: {containers: [{name: main, livenessProbe: {$patch: delete}}]}}`, func(pod *corev1.Pod) { mainOf(pod).LivenessProbe = nil }},
		"probes: by null too":         {`{spec: {containers: [{name: main, livenessProbe: null}]}}`, func(pod *corev1.Pod) { mainOf(pod).LivenessProbe = nil }},
		"probes: one that is new to a pod": {`{spec: {containers: [{name: helper, readinessProbe: {exec: {command: [x]}}}]}}`, func(pod *corev1.Pod) {
			helperOf(pod).ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}}
		}},
		"ports by their number": {
			`{spec: {containers: [{name: main, ports: [{containerPort: 80, name: http}, {containerPort: 81}]}]}}`,
			func(pod *corev1.Pod) {
				mainOf(pod).Ports = []corev1.ContainerPort{{ContainerPort: 80, Name: "http", Protocol: "TCP"}, {ContainerPort: 81}}
			},
		},
		"a volume and its mount": {
			`{spec: {volumes: [{name: config, configMap: {name: c}}], containers: [{name: main, volumeMounts: [{name: config, mountPath: /etc/app}]}]}}`,
			func(pod *corev1.Pod) {
				config := corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}}
				pod.Spec.Volumes = append([]corev1.Volume{config}, pod.Spec.Volumes...)
				mainOf(pod).VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app"}, {Name: "data", MountPath: "/data"}}
			},
		},
		"a volume of another type, without the old one": {
			`{spec: {volumes: [{name: cache, emptyDir: null, hostPath: {path: /cache}}]}}`,
			func(pod *corev1.Pod) {
				pod.Spec.Volumes[1].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/cache"}}
			},
		},
		"a sidecar among the containers, before them": {
			`{spec: {containers: [{name: sidecar, image: "proxy:1"}]}}`,
			func(pod *corev1.Pod) {
				pod.Spec.Containers = append([]corev1.Container{sidecar}, pod.Spec.Containers...)
			},
		},
		"a sidecar among the init containers, which starts before them": {
			`{spec: {initContainers: [{name: sidecar, image: "proxy:1", restartPolicy: Always}]}}`,
			func(pod *corev1.Pod) {
				sidecar := sidecar
				sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
				pod.Spec.InitContainers = []corev1.Container{sidecar, pod.Spec.InitContainers[0]}
			},
		},
		"a container that is removed": {
			`{spec: {containers: [{name: helper, $patch: delete}]}}`, func(pod *corev1.Pod) { pod.Spec.Containers = pod.Spec.Containers[:1] },
		},
		"containers that are replaced": {
			`{spec: {containers: [{$patch: replace}, {name: sidecar, image: "proxy:1"}], initContainers: null}}`,
			func(pod *corev1.Pod) { pod.Spec.Containers, pod.Spec.InitContainers = []corev1.Container{sidecar}, nil },
		},
		"tolerations are added to those that the pod has, and none is there twice": {
			`{spec: {tolerations: [{key: arm, operator: Exists}, {key: spot, operator: Equal, value: "yes"}]}}`,
			func(pod *corev1.Pod) {
				pod.Spec.Tolerations[1].Operator = corev1.TolerationOpEqual
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: "arm", Operator: corev1.TolerationOpExists})
			},
		},
		"tolerations: one that is there gets the seconds of the patch": {
			`{spec: {tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}]}}`,
			func(pod *corev1.Pod) { pod.Spec.Tolerations[0].TolerationSeconds = ptr.To[int64](30) },
		},
		"tolerations: one that is there becomes endless": {
			`{spec: {tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute}]}}`,
			func(pod *corev1.Pod) { pod.Spec.Tolerations[0].TolerationSeconds = nil },
		},
		"nodeSelector is merged key by key": {
			`{spec: {nodeSelector: {arch: arm}}}`, func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"disk": "ssd", "arch": "arm"} },
		},
		"the required terms of the node affinity are replaced, as they are one value": {
			`{spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: arch, operator: Exists}]}]}}}}}`,
			func(pod *corev1.Pod) {
				pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Key = "arch"
			},
		},
		"with another priority class the priority is computed again": {
			`{spec: {priorityClassName: low}}`,
			func(pod *corev1.Pod) {
				pod.Spec.PriorityClassName, pod.Spec.Priority, pod.Spec.PreemptionPolicy = "low", nil, nil
			},
		},
		"with another priority class a policy that the patch sets stays": {
			`{spec: {priorityClassName: low, preemptionPolicy: Never}}`,
			func(pod *corev1.Pod) {
				pod.Spec.PriorityClassName, pod.Spec.Priority, pod.Spec.PreemptionPolicy = "low", nil, ptr.To(corev1.PreemptNever)
			},
		},
		"the same priority class changes nothing": {`{spec: {priorityClassName: high}}`, func(*corev1.Pod) {}},
		"with another runtime class the overhead is computed again": {
			`{spec: {runtimeClassName: plain}}`, func(pod *corev1.Pod) { pod.Spec.RuntimeClassName, pod.Spec.Overhead = ptr.To("plain"), nil },
		},
		"removing does nothing where the pod has nothing": {
			`{spec: {dnsConfig: {$patch: delete}, subdomain: null, hostAliases: [{ip: 1.2.3.4, $patch: delete}],
				containers: [{name: helper, env: [{name: X, $patch: delete}]}]}}`, func(*corev1.Pod) {},
		},
		"removing does nothing in what is new to the pod": {
			`{spec: {containers: [{name: sidecar, image: "proxy:1", env: [{name: X, $patch: delete}, {name: B, value: z}], livenessProbe: null, securityContext: {$patch: delete},
				volumeMounts: [{$patch: replace}, {name: data, mountPath: /d}], resources: {limits: {cpu: 1}}}]}}`,
			func(pod *corev1.Pod) {
				sidecar := sidecar
				sidecar.Env = []corev1.EnvVar{{Name: "B", Value: "z"}}
				sidecar.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/d"}}
				sidecar.Resources.Limits = quantities("1", "")
				pod.Spec.Containers = append([]corev1.Container{sidecar}, pod.Spec.Containers...)
			},
		},
		"replacing what the pod has not sets it": {
			`{spec: {dnsConfig: {$patch: replace, nameservers: [1.1.1.1]}}}`,
			func(pod *corev1.Pod) { pod.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}} },
		},
		"no patch changes nothing": {`{}`, func(*corev1.Pod) {}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			patch, pod, want := compilePatch(t, tc.patch), podOf(t, app), podOf(t, app)
			tc.want(want)
			got, err := patch.Apply(pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("patched pod (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(podOf(t, app), pod); diff != "" {
				t.Errorf("the pod that was given has changed (-want +got):\n%s", diff)
			}
			again, err := patch.Apply(got)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, again, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("applied twice (-once +twice):\n%s", diff)
			}
		})
	}
}

func TestFieldsThatAreNotKnownSurviveAPatch(t *testing.T) {
	object := map[string]any{"spec": map[string]any{"ofTomorrow": "x", "containers": []any{map[string]any{"name": "main", "image": "app:1", "alsoNew": int64(1)}}}}
	got, err := compilePatch(t, `{spec: {containers: [{name: main, image: "app:2"}]}}`).ApplyToObject(object)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"spec": map[string]any{"ofTomorrow": "x", "containers": []any{map[string]any{"name": "main", "image": "app:2", "alsoNew": int64(1)}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("patched object (-want +got):\n%s", diff)
	}
}

func TestAPortIsPatchedByItsNumber(t *testing.T) {
	patch := compilePatch(t, `{spec: {containers: [{name: main, ports: [{containerPort: 80, name: http}]}]}}`)
	object := func() map[string]any {
		return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "ports": []any{map[string]any{"containerPort": int64(80)}}}}}}
	}
	given := object()
	got, err := patch.ApplyToObject(given)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "ports": []any{map[string]any{"containerPort": int64(80), "name": "http"}}}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("patched object (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(object(), given); diff != "" {
		t.Errorf("the object that was given has changed (-want +got):\n%s", diff)
	}
}

func TestAPatchThatLeavesNoContainerIsNotApplied(t *testing.T) {
	for name, patch := range map[string]string{
		"because it removes all":              `{spec: {containers: [{name: main, $patch: delete}, {name: helper, $patch: delete}]}}`,
		"because it replaces them by nothing": `{spec: {containers: [{$patch: replace}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := compilePatch(t, patch).Apply(podOf(t, app)); err == nil || !strings.Contains(err.Error(), "no container would be left") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// FuzzApplyPatch: whatever is accepted as a patch can be applied to any pod or says why not, changes nothing but the
// result, leaves the pod the pod that it is, and does nothing the second time.
func FuzzApplyPatch(f *testing.F) {
	pod, err := yaml.YAMLToJSON([]byte(app))
	if err != nil {
		f.Fatal(err)
	}
	for seed, patch := range []string{
		`{"metadata":{"labels":{"a":"b","lane":null},"annotations":{"c":"d"}}}`,
		`{"spec":{"containers":[{"name":"main","image":"x","env":[{"name":"A","$patch":"delete"},{"name":"B","value":"c"}],"resources":{"limits":{"cpu":"2"}}}]}}`,
		`{"spec":{"containers":[{"$patch":"replace"},{"name":"new","image":"x"}],"tolerations":[{"key":"k","operator":"Exists"}]}}`,
		`{"spec":{"volumes":[{"name":"v"}],"nodeSelector":{"$patch":"replace","a":"b"}}}`,
		`{"spec":{"initContainers":[{"name":"s","restartPolicy":"Always","ports":[{"containerPort":80}]}],"priorityClassName":"x","runtimeClassName":null}}`,
		`{"spec":{"topologySpreadConstraints":[{"topologyKey":"z","maxSkew":1}],"hostAliases":[{"ip":"1.1.1.1","hostnames":["a"]}],"imagePullSecrets":[{"name":"p"}]}}`,
	} {
		f.Add([]byte(patch), pod, uint64(seed))
	}
	f.Fuzz(func(t *testing.T, raw, podJSON []byte, seed uint64) {
		checkApply(t, raw, podJSON)
		random := chance{rand.New(rand.NewPCG(seed, 2))}
		raw, podJSON = random.patchAndPod(t)
		checkApply(t, raw, podJSON)
	})
}

// checkApply is true if the patch was applied.
func checkApply(t *testing.T, raw, podJSON []byte) bool {
	t.Helper()
	patch, errs := CompilePatch(&runtime.RawExtension{Raw: raw}, field.NewPath("patch"))
	if patch != nil && len(errs) > 0 {
		t.Fatalf("a patch with errors %v", errs)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(podJSON, pod); err != nil || len(errs) > 0 {
		return false
	}
	before := pod.DeepCopy()
	patched, err := patch.Apply(pod)
	if !reflect.DeepEqual(before, pod) {
		t.Fatalf("the pod that was given has changed:\n%s", cmp.Diff(before, pod))
	}
	if err != nil {
		if !strings.Contains(err.Error(), "no container would be left") && hasUniqueKeys(t, pod) {
			t.Fatalf("a patch without an error cannot be applied: %v", err)
		}
		return false
	}
	if diff := cmp.Diff(identity(pod), identity(patched), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("another pod (-before +after):\n%s", diff)
	}
	again, err := patch.Apply(patched)
	if err != nil {
		t.Fatalf("the second time: %v", err)
	}
	if diff := cmp.Diff(patched, again, cmpopts.EquateEmpty()); diff != "" && hasUniqueKeys(t, pod) {
		t.Fatalf("applied %s twice to %s (-once +twice):\n%s", raw, podJSON, diff)
	}
	return true
}

// TestAnyPatchCanBeApplied makes patches and pods of all fields that there are, with few names, so that they meet.
func TestAnyPatchCanBeApplied(t *testing.T) {
	applied := 0
	for seed := range uint64(400) {
		random := chance{rand.New(rand.NewPCG(seed, 1))}
		raw, pod := random.patchAndPod(t)
		if checkApply(t, raw, pod) {
			applied++
		}
		if t.Failed() {
			t.Fatalf("seed %d:\n%s\n%s", seed, raw, pod)
		}
	}
	if applied < 200 {
		t.Errorf("%d patches were applied, which is too few to say much", applied)
	}
}

// chance makes values at random.
type chance struct{ *rand.Rand }

func (c chance) patchAndPod(t *testing.T) (patch, pod []byte) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": c.object(podSpecType, true)})
	if err != nil {
		t.Fatal(err)
	}
	pod, err = json.Marshal(map[string]any{"metadata": map[string]any{"name": "p", "labels": map[string]string{"a": "b"}}, "spec": c.object(podSpecType, false)})
	if err != nil {
		t.Fatal(err)
	}
	return patch, pod
}

func (c chance) oneIn(n int) bool { return c.IntN(n) == 0 }

func (c chance) name() string { return string(rune('a' + c.IntN(3))) }

// object has some fields of the type, and directives if it is part of a patch that is merged.
func (c chance) object(t reflect.Type, patch bool) map[string]any {
	object := map[string]any{}
	if patch && t != podSpecType && c.oneIn(12) {
		object[podspec.PatchDirective] = []string{podspec.DeleteIt, podspec.ReplaceIt}[c.IntN(2)]
		patch = false
	}
	c.fields(t, patch, object)
	return object
}

func (c chance) fields(t reflect.Type, patch bool, object map[string]any) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		_, reserved := reservedFields[name]
		switch {
		case name == "" && f.Anonymous:
			c.fields(f.Type, patch, object)
		case reserved && patch, name == "volumeClaimTemplate", !c.oneIn(1 + t.NumField()/5):
		case patch && name != "containers" && name != "tolerations" && c.oneIn(8):
			object[name] = nil
		default:
			object[name] = c.value(podspec.Element(f.Type), podspec.MergeKey(f), patch)
		}
	}
}

func (c chance) value(t reflect.Type, mergeKey string, patch bool) any {
	switch {
	case t == reflect.TypeFor[resource.Quantity]():
		return []any{"1", "500m", int64(2), "1Gi"}[c.IntN(4)]
	case t == reflect.TypeFor[intstr.IntOrString]():
		return []any{int64(80), "http"}[c.IntN(2)]
	}
	switch t.Kind() {
	case reflect.Struct:
		return c.object(t, patch)
	case reflect.Map:
		object := map[string]any{}
		for range c.IntN(3) {
			object[c.name()] = c.value(podspec.Element(t.Elem()), "", false)
		}
		return object
	case reflect.Slice:
		if mergeKey != "" {
			return c.mergedList(podspec.Element(t.Elem()), mergeKey, patch)
		}
		list := []any{}
		for range c.IntN(3) {
			list = append(list, c.value(podspec.Element(t.Elem()), "", false))
		}
		return list
	case reflect.String:
		return c.name()
	case reflect.Bool:
		return c.oneIn(2)
	default:
		return int64(1 + c.IntN(3))
	}
}

func (c chance) mergedList(t reflect.Type, mergeKey string, patch bool) []any {
	key, _ := podspec.Field(t, mergeKey)
	list, replaces := []any{}, patch && c.oneIn(10)
	for i := range 3 {
		var id any = string(rune('a' + i))
		if key.Type.Kind() != reflect.String {
			id = int64(i)
		}
		switch {
		case c.oneIn(2):
		case patch && c.oneIn(4):
			list = append(list, map[string]any{mergeKey: id, podspec.PatchDirective: podspec.DeleteIt})
		default:
			var item map[string]any
			for item == nil || item[podspec.PatchDirective] != nil {
				item = c.object(t, patch && !replaces)
			}
			item[mergeKey] = id
			list = append(list, item)
		}
	}
	c.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	if replaces {
		list = append(list, map[string]any{podspec.PatchDirective: podspec.ReplaceIt})
	}
	return list
}

// identity is what no patch may change.
func identity(pod *corev1.Pod) *corev1.Pod {
	kept := pod.DeepCopy()
	kept.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, SchedulerName: pod.Spec.SchedulerName, SchedulingGates: pod.Spec.SchedulingGates, EphemeralContainers: pod.Spec.EphemeralContainers}
	reserved := func(all map[string]string) map[string]string {
		some := map[string]string{}
		for key := range reservedKeys {
			if value, found := all[key]; found {
				some[key] = value
			}
		}
		return some
	}
	kept.Labels, kept.Annotations = reserved(pod.Labels), reserved(pod.Annotations)
	return kept
}

// hasUniqueKeys is true if no two elements of a list that is merged have the same key.
func hasUniqueKeys(t *testing.T, pod *corev1.Pod) bool {
	t.Helper()
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	return uniqueKeys(object, podType)
}

func uniqueKeys(value any, t reflect.Type) bool {
	object, ok := value.(map[string]any)
	if !ok || t.Kind() != reflect.Struct {
		return true
	}
	for key, value := range object {
		f, found := podspec.Field(t, key)
		if !found {
			continue
		}
		of, seen := podspec.Element(f.Type), map[string]bool{}
		if !uniqueKeys(value, of) {
			return false
		}
		list, _ := value.([]any)
		for _, item := range list {
			if of.Kind() == reflect.Slice && !uniqueKeys(item, podspec.Element(of.Elem())) {
				return false
			}
			if mergeKey := podspec.MergeKey(f); mergeKey != "" {
				object, _ := item.(map[string]any)
				if id := fmt.Sprint(object[mergeKey]); seen[id] {
					return false
				} else {
					seen[id] = true
				}
			}
		}
	}
	return true
}
