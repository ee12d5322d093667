package sidecar

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
)

var now = time.Unix(1_700_000_000, 0)

// compile reads the spec of a set in YAML.
func compile(t rapid.TB, name, spec string) *Policy {
	t.Helper()
	set := &v1beta1.SidecarSet{}
	set.Name = name
	if err := yaml.UnmarshalStrict([]byte(spec), &set.Spec); err != nil {
		t.Fatal(err)
	}
	p, errs := Compile(set)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return p
}

func podOf(tb testing.TB, text string) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		tb.Fatal(err)
	}
	return pod
}

func names(containers []corev1.Container) string {
	var all []string
	for _, c := range containers {
		all = append(all, c.Name)
	}
	return strings.Join(all, " ")
}

func inject(pod *corev1.Pod, policies ...*Policy) []string {
	var versions []Version
	for _, p := range policies {
		versions = append(versions, Version{Set: p.Name, Content: &p.Content, Revision: p.Name + "-1"})
	}
	return Inject(pod, versions, now)
}

const webServer = `{metadata: {namespace: ns-1, name: p, labels: {app: web-server}, annotations: {oom: '{"main": 1}'}},
spec: {imagePullSecrets: [{name: own}], volumes: [{name: data, emptyDir: {}}], containers: [
  {name: web-server, image: web, env: [{name: TZ, value: Asia/Shanghai}, {name: DIR, value: x}, {name: A, value: "1"}],
   volumeMounts: [{name: data, mountPath: /data, subPathExpr: $(DIR)/logs}, {name: data, mountPath: /var/log/web}]}]}}`

// TestTheArticlesSet is the example of the article about sidecars for logs.
func TestTheArticlesSet(t *testing.T) {
	p := compile(t, "test-sidecarset", `
selector: {matchLabels: {app: web-server}}
namespace: ns-1
containers:
- name: logtail
  image: logtail:1.0.0
  volumeMounts: [{name: web-log, mountPath: /var/log/web}]
  shareVolumePolicy: {type: disabled}
  transferEnv: [{sourceContainerName: web-server, envName: TZ}]
volumes: [{name: web-log, emptyDir: {}}, {name: unused, emptyDir: {}}]`)
	pod := podOf(t, webServer)
	if !p.Picks("ns-1", nil, pod.Labels) || p.Picks("ns-2", nil, pod.Labels) || p.Picks("ns-1", nil, labels.Set{"app": "other"}) {
		t.Error("picks other pods")
	}
	if warnings := inject(pod, p); len(warnings) > 0 {
		t.Error(warnings)
	}
	if got := names(pod.Spec.Containers); got != "logtail web-server" {
		t.Fatalf("got %s", got)
	}
	sidecar := pod.Spec.Containers[0]
	if want := []corev1.EnvVar{{Name: "IS_INJECTED", Value: "true"}, {Name: "TZ", Value: "Asia/Shanghai"}}; !slices.Equal(sidecar.Env, want) {
		t.Errorf("got %v", sidecar.Env)
	}
	if len(sidecar.VolumeMounts) != 1 || len(pod.Spec.Volumes) != 2 || pod.Spec.Volumes[1].Name != "web-log" {
		t.Errorf("got %v and %v", sidecar.VolumeMounts, pod.Spec.Volumes)
	}
	version, has := VersionOf(pod, p.Name)
	if !has || version.Hash != p.Hash || version.ControllerRevision != "test-sidecarset-1" || !slices.Equal(version.SidecarList, []string{"logtail"}) || pod.Annotations[v1beta1.InjectedListAnnotation] != p.Name {
		t.Errorf("got %+v", pod.Annotations)
	}
}

// TestInjectionAgainChangesNothing, whatever others have done to the sidecars since.
func TestInjectionAgainChangesNothing(t *testing.T) {
	sets := []*Policy{
		compile(t, "b", `{selector: {matchLabels: {app: web-server}}, imagePullSecrets: [{name: own}, {name: more}], initContainers: [{name: z, image: i}, {name: a, image: i, restartPolicy: Always}],
containers: [{name: after, image: i, podInjectPolicy: AfterAppContainer}, {name: before, image: i, shareVolumePolicy: {type: enabled}}],
patchPodMetadata: [{annotations: {oom: '{"log": 2}'}, patchPolicy: MergePatchJson}, {annotations: {new: x, kept: y}}]}`),
		compile(t, "a", `{selector: {matchLabels: {app: web-server}}, containers: [{name: mesh, image: 'mesh:1', upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: empty}}]}`),
	}
	pod := podOf(t, webServer)
	pod.Annotations["kept"] = "own"
	if warnings := inject(pod, sets...); len(warnings) > 0 {
		t.Error(warnings)
	}
	if got := names(pod.Spec.InitContainers) + ", " + names(pod.Spec.Containers); got != "a z, mesh-1 mesh-2 before web-server after" {
		t.Errorf("got %s", got)
	}
	if got := pod.Annotations; got["oom"] != `{"main":1,"log":2}` || got["new"] != "x" || got["kept"] != "own" || got[v1beta1.InjectedListAnnotation] != "a,b" {
		t.Errorf("got %v", got)
	}
	if got := pod.Spec.ImagePullSecrets; len(got) != 2 || got[1].Name != "more" {
		t.Errorf("got %v", got)
	}
	before := podstate.Container(pod.Spec.Containers, "before")
	if len(before.VolumeMounts) != 2 || before.VolumeMounts[0].SubPathExpr == "" || envOf(before, "DIR") == nil || envOf(before, "A") != nil {
		t.Errorf("got %+v", before)
	}
	mesh := pod.Spec.Containers[:2]
	if mesh[0].Image != "mesh:1" || mesh[1].Image != "empty" || mesh[0].Env[1].Name != "SIDECARSET_VERSION" || mesh[0].Env[2].ValueFrom.FieldRef.FieldPath != "metadata.annotations['versionalt.sidecarset.kruise.io/mesh-1']" {
		t.Errorf("got %+v", mesh)
	}
	podstate.Container(pod.Spec.Containers, "before").Image = "a subset's"
	was := pod.DeepCopy()
	if inject(pod, sets...); !equality.Semantic.DeepEqual(was, pod) {
		t.Errorf("got %+v, want %+v", pod, was)
	}
	// Another webhook has dropped one. It comes back, and the others stay.
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "after" })
	if inject(pod, sets...); !equality.Semantic.DeepEqual(was.Spec, pod.Spec) {
		t.Errorf("got %+v, want %+v", pod.Spec, was.Spec)
	}
}

// TestACopiedPodGetsTheLatestVersion: somebody creates a pod from the manifest of another one, with all that was
// injected into it.
func TestACopiedPodGetsTheLatestVersion(t *testing.T) {
	set := func(image string) *Policy {
		return compile(t, "s", `{selector: {matchLabels: {app: web-server}}, initContainers: [{name: native, image: '`+image+`', restartPolicy: Always}],
containers: [{name: mesh, image: '`+image+`', upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: empty}}]}`)
	}
	pod := podOf(t, webServer)
	inject(pod, set("i:1"))
	pod, _ = set("i:2").Update(pod, "", now)
	inject(pod, set("i:3"))
	fresh := podOf(t, webServer)
	inject(fresh, set("i:3"))
	if !equality.Semantic.DeepEqual(pod, fresh) {
		t.Errorf("got %+v, want %+v", pod, fresh)
	}
}

func TestAPodsOwnContainerOfTheNameIsLeftAlone(t *testing.T) {
	p := compile(t, "s", `{selector: {matchLabels: {app: web-server}}, containers: [{name: log, image: i}, {name: web-server, image: i}]}`)
	pod := podOf(t, webServer)
	was := pod.DeepCopy()
	warnings := inject(pod, p)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "SidecarSet s") || !strings.Contains(warnings[0], "name web-server") || !equality.Semantic.DeepEqual(was, pod) {
		t.Errorf("got %v and %+v", warnings, pod)
	}
}

func TestTransferFromAFieldOfThePod(t *testing.T) {
	p := compile(t, "s", `{selector: {matchLabels: {app: web-server}}, containers: [{name: log, image: i, env: [{name: A, value: mine}], transferEnv: [
{sourceContainerNameFrom: {fieldRef: {fieldPath: "metadata.labels['main']"}}, envNames: [A, TZ, MISSING]}, {sourceContainerName: none, envName: TZ}]}]}`)
	pod := podOf(t, webServer)
	pod.Labels["main"] = "web-server"
	inject(pod, p)
	if got := pod.Spec.Containers[0].Env; len(got) != 3 || got[0].Value != "mine" || got[2].Name != "TZ" {
		t.Errorf("got %v", got)
	}
}

func TestCompileTellsAllErrors(t *testing.T) {
	set := &v1beta1.SidecarSet{}
	text := `{namespace: a, namespaceSelector: {matchLabels: {a: b}}, initContainers: [{name: i, image: i, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}, podInjectPolicy: AfterAppContainer}],
containers: [{name: c, image: 5}, {name: d, image: i, imagee: j}, {name: i-1, image: i, podInjectPolicy: Behind, transferEnv: [{}], shareVolumePolicy: {type: "on"}, upgradeStrategy: {hotUpgradeEmptyImage: e}},
{name: h, image: e, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}}],
patchPodMetadata: [{annotations: {kruise.io/sidecarset-hash: x}}, {annotations: {a: b}, patchPolicy: MergePatchJson}, {}],
injectionStrategy: {revision: {}}, updateStrategy: {partition: 120%, maxUnavailable: 0, selector: {matchLabels: {a: b}}, scatterStrategy: [{value: x}]}}`
	if err := yaml.Unmarshal([]byte(text), &set.Spec); err != nil {
		t.Fatal(err)
	}
	_, errs := Compile(set)
	var got []string
	for _, e := range errs {
		got = append(got, e.Field)
	}
	slices.Sort(got)
	want := []string{
		"spec.containers[0]", "spec.containers[1]", "spec.containers[2].name", "spec.containers[2].podInjectPolicy", "spec.containers[2].shareVolumePolicy.type",
		"spec.containers[2].transferEnv[0].envName", "spec.containers[2].transferEnv[0].sourceContainerName", "spec.containers[2].upgradeStrategy.hotUpgradeEmptyImage",
		"spec.containers[3].upgradeStrategy.hotUpgradeEmptyImage", "spec.initContainers[0].podInjectPolicy", "spec.initContainers[0].upgradeStrategy.upgradeType",
		"spec.injectionStrategy.revision.revisionName", "spec.namespaceSelector", "spec.patchPodMetadata[0].annotations[kruise.io/sidecarset-hash]",
		"spec.patchPodMetadata[1].annotations[a]", "spec.patchPodMetadata[2].annotations", "spec.selector", "spec.updateStrategy.maxUnavailable",
		"spec.updateStrategy.partition", "spec.updateStrategy.partition", "spec.updateStrategy.scatterStrategy[0].key",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s\n%v", strings.Join(got, "\n"), strings.Join(want, "\n"), errs)
	}
}

func TestConflictsNameTheOtherSet(t *testing.T) {
	base := `{selector: {matchLabels: {app: x}}, containers: [{name: log, image: i}, {name: mesh, image: m, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}}],
volumes: [{name: v, emptyDir: {}}], patchPodMetadata: [{annotations: {a: '{"x": 1}'}, patchPolicy: %s}]}`
	p := compile(t, "p", strings.ReplaceAll(base, "%s", "Overwrite"))
	merging := compile(t, "p", strings.ReplaceAll(base, "%s", "MergePatchJson"))
	tests := map[string]struct {
		p     *Policy
		other string
		want  []string
	}{
		"the same container":              {p, `{selector: {matchLabels: {tier: y}}, initContainers: [{name: log, image: i}]}`, []string{"spec.containers[0].name"}},
		"one of the two of a hot upgrade": {p, `{selector: {matchExpressions: [{key: app, operator: Exists}]}, containers: [{name: mesh-2, image: i}]}`, []string{"spec.containers[1].name"}},
		"another value of the label":      {p, `{selector: {matchLabels: {app: y}}, containers: [{name: log, image: i}]}`, nil},
		"no such label":                   {p, `{selector: {matchExpressions: [{key: app, operator: DoesNotExist}]}, containers: [{name: log, image: i}]}`, nil},
		"values that include it":          {p, `{selector: {matchExpressions: [{key: app, operator: NotIn, values: [y]}]}, containers: [{name: log, image: i}]}`, []string{"spec.containers[0].name"}},
		"values that exclude it":          {p, `{selector: {matchExpressions: [{key: app, operator: NotIn, values: [x]}]}, containers: [{name: log, image: i}]}`, nil},
		"another volume":                  {p, `{selector: {matchLabels: {app: x}}, containers: [{name: o, image: i}], volumes: [{name: v, hostPath: {path: /x}}]}`, []string{"spec.volumes[0].name"}},
		"the same volume":                 {p, `{selector: {matchLabels: {app: x}}, containers: [{name: o, image: i}], volumes: [{name: v, emptyDir: {}}]}`, nil},
		"another value of an annotation":  {p, `{selector: {matchLabels: {app: x}}, containers: [{name: o, image: i}], patchPodMetadata: [{annotations: {a: z}}]}`, []string{"spec.patchPodMetadata[0].annotations[a]"}},
		"both merge":                      {merging, `{selector: {matchLabels: {app: x}}, containers: [{name: o, image: i}], patchPodMetadata: [{annotations: {a: '{"y": 1}'}, patchPolicy: MergePatchJson}]}`, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, e := range Conflicts(tc.p, []*Policy{tc.p, compile(t, "other", tc.other)}) {
				got = append(got, e.Field)
				if !strings.Contains(e.Detail, "SidecarSet other") {
					t.Errorf("got %q", e.Detail)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestLocateInTheSet(t *testing.T) {
	p := compile(t, "s", `{selector: {matchLabels: {app: x}}, initContainers: [{name: z, image: i}, {name: a, image: i}], containers: [{name: log, image: i, volumeMounts: [{name: v, mountPath: /x}]},
{name: mesh, image: m, podInjectPolicy: AfterAppContainer, upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: e}}], volumes: [{name: v, emptyDir: {}}]}`)
	sample := Sample(p)
	for inPod, want := range map[string]string{
		"spec.containers[0].image":    "spec.containers[0].image",
		"spec.containers[3].ports[0]": "spec.containers[1].ports[0]",
		"spec.initContainers[0].name": "spec.initContainers[1].name",
		"spec.volumes[0]":             "spec.volumes[0]",
		"spec.containers[1]":          "spec",
		"metadata.name":               "spec",
	} {
		if got := Locate(p, sample, inPod).String(); got != want {
			t.Errorf("%s: got %s, want %s", inPod, got, want)
		}
	}
}

// The name of the namespace is written into an expression of the webhook configuration.
func TestANamespaceIsNoExpression(t *testing.T) {
	set := &v1beta1.SidecarSet{}
	if err := yaml.UnmarshalStrict([]byte(`{selector: {matchLabels: {app: x}}, namespace: "a' || true || '", containers: [{name: log, image: i}]}`), &set.Spec); err != nil {
		t.Fatal(err)
	}
	if _, errs := Compile(set); len(errs) != 1 || errs[0].Field != "spec.namespace" {
		t.Errorf("got %v", errs)
	}
}

// An ordinary container that runs on keeps a Job from ending. A native sidecar does not.
func TestAWarningForPodsThatEnd(t *testing.T) {
	for spec, want := range map[string]int{oneContainer: 1, "selector: {matchLabels: {app: x}}, initContainers: [{name: log, image: i, restartPolicy: Always}]": 0} {
		for policy, ends := range map[corev1.RestartPolicy]int{corev1.RestartPolicyAlways: 0, "": 0, corev1.RestartPolicyNever: 1, corev1.RestartPolicyOnFailure: 1} {
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{{Name: "app"}}}}
			if got := inject(pod, compile(t, "s", "{"+spec+"}")); len(got) != want*ends {
				t.Errorf("%s, %q: got %v", spec, policy, got)
			}
		}
	}
}
