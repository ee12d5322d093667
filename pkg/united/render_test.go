package united

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// templateFrom reads a template as the API server returns it.
func templateFrom(t *testing.T, text string) *v1beta1.SubsetTemplate {
	t.Helper()
	read := &v1beta1.SubsetTemplate{}
	if err := yaml.UnmarshalStrict([]byte(text), read); err != nil {
		t.Fatal(err)
	}
	return read
}

const ofDeployments = `
deploymentTemplate:
  metadata:
    labels: {app: web, team: shop}
    annotations: {note: kept}
  spec:
    minReadySeconds: 5
    template:
      metadata: {labels: {app: web}}
      spec:
        tolerations: [{key: spot, operator: Exists}]
        affinity:
          nodeAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
              nodeSelectorTerms:
              - matchExpressions: [{key: disk, operator: In, values: [ssd]}]
              - matchExpressions: [{key: disk, operator: In, values: [nvme]}]
        containers:
        - {name: main, image: web:1}
`

func TestAChildIsRendered(t *testing.T) {
	template, err := TemplateOf(templateFrom(t, ofDeployments))
	if err != nil {
		t.Fatal(err)
	}
	p := policyOf(3, Subset{
		Name:        "zone-a",
		Term:        &corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}},
		Tolerations: []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}, {Key: "virtual", Operator: corev1.TolerationOpExists}},
		PatchText:   `{"metadata":{"labels":{"apps.kruise.io/subset-name":"mine"}},"spec":{"containers":[{"name":"main","env":[{"name":"ZONE","value":"a"}]}]}}`,
	})
	p.Template = template
	owner := &v1beta1.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"}}
	content, err := p.Render(Wanted{Replicas: 3, Trial: 1}, template, "web-r1", "apps/v1", owner)
	if err != nil {
		t.Fatal(err)
	}
	got, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	name := ChildName("web", "zone-a", "u1", DeploymentKind)
	if !strings.HasPrefix(name, "web-zone-a-") || name == ChildName("web", "zone-a", "u2", DeploymentKind) || name == ChildName("web", "zone-a", "u1", CloneSetKind) {
		t.Errorf("a child is named %s", name)
	}
	want := `apiVersion: apps/v1
kind: Deployment
metadata:
  annotations:
    apps.kruise.io/subset-patch: '{"metadata":{"labels":{"apps.kruise.io/subset-name":"mine"}},"spec":{"containers":[{"name":"main","env":[{"name":"ZONE","value":"a"}]}]}}'
    berth.dev/trial-replicas: "1"
    note: kept
  labels:
    app: web
    apps.kruise.io/controller-revision-hash: web-r1
    apps.kruise.io/subset-name: zone-a
    team: shop
  name: ` + name + `
  namespace: shop
  ownerReferences:
  - apiVersion: apps.kruise.io/v1beta1
    blockOwnerDeletion: true
    controller: true
    kind: UnitedDeployment
    name: web
    uid: u1
spec:
  minReadySeconds: 5
  replicas: 3
  selector:
    matchLabels:
      app: web
      apps.kruise.io/subset-name: zone-a
  template:
    metadata:
      labels:
        app: web
        apps.kruise.io/controller-revision-hash: web-r1
        apps.kruise.io/subset-name: zone-a
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions:
              - key: disk
                operator: In
                values:
                - ssd
              - key: zone
                operator: In
                values:
                - a
            - matchExpressions:
              - key: disk
                operator: In
                values:
                - nvme
              - key: zone
                operator: In
                values:
                - a
      containers:
      - env:
        - name: ZONE
          value: a
        image: web:1
        name: main
      tolerations:
      - key: spot
        operator: Exists
      - key: virtual
        operator: Exists
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	again, err := p.Render(Wanted{Replicas: 3, Trial: 1}, template, "web-r1", "apps/v1", owner)
	if diff := cmp.Diff(content, again); diff != "" || err != nil {
		t.Errorf("rendering changes the template: %v\n%s", err, diff)
	}
}

func TestPartitionsGoWhereTheKindHasThem(t *testing.T) {
	for _, tc := range []struct{ template, want, version string }{
		{`deploymentTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}}}`, `null`, "preferred"},
		{`statefulSetTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}}}`, `{"rollingUpdate":{"partition":2},"type":"RollingUpdate"}`, "preferred"},
		{`statefulSetTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}, updateStrategy: {type: OnDelete}}}`, `{"type":"OnDelete"}`, "preferred"},
		{`advancedStatefulSetTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}, updateStrategy: {rollingUpdate: {maxUnavailable: 1, partition: 7}}}}`, `{"rollingUpdate":{"maxUnavailable":1,"partition":2},"type":"RollingUpdate"}`, "preferred"},
		{`cloneSetTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}}}`, `{"partition":2}`, "apps.kruise.io/v1alpha1"},
		{`cloneSetTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}, updateStrategy: {type: InPlaceIfPossible}}}`, `{"partition":2,"type":"InPlaceIfPossible"}`, "apps.kruise.io/v1alpha1"},
		{`cloneSetTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}, updateStrategy: {rollingUpdate: {maxSurge: 1}}}}`, `{"rollingUpdate":{"maxSurge":1,"partition":2},"type":"RollingUpdate"}`, "preferred"},
		{`cloneSetTemplate: {spec: {template: {spec: {containers: [{name: main, image: web}]}}, updateStrategy: {type: OnDelete}}}`, `{"type":"OnDelete"}`, "preferred"},
	} {
		template, err := TemplateOf(templateFrom(t, tc.template))
		if err != nil {
			t.Fatal(err)
		}
		p := policyOf(3, Subset{Name: "a"})
		p.Template = template
		content, err := p.Render(Wanted{Replicas: 3, Partition: 2}, template, "r", "preferred", &v1beta1.UnitedDeployment{})
		if err != nil {
			t.Fatal(err)
		}
		if content["apiVersion"] != tc.version {
			t.Errorf("%s: written in %s, want %s", tc.template, content["apiVersion"], tc.version)
		}
		spec, _ := content["spec"].(map[string]any)
		got, err := json.Marshal(spec["updateStrategy"])
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: got %s, %v, want %s", tc.template, got, err, tc.want)
		}
	}
}

func TestAHeldChildKeepsItsPatch(t *testing.T) {
	p := policyOf(3, Subset{Name: "a", PatchText: `{"spec":{"hostNetwork":true}}`})
	p.Template.Spec = map[string]any{"template": map[string]any{}}
	child := &Child{Name: "web-a-1", PatchText: `{"spec":{"priorityClassName":"high"}}`}
	content, err := p.Render(Wanted{Child: child, Held: true}, p.Template, "old", "apps/v1", &v1beta1.UnitedDeployment{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(content)
	if err != nil || !strings.Contains(string(text), "priorityClassName") || strings.Contains(string(text), "hostNetwork") || !strings.Contains(string(text), `"name":"web-a-1"`) {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestTheSameTemplateIsTheSameRevision(t *testing.T) {
	one := templateFrom(t, ofDeployments)
	other := one.DeepCopy()
	other.DeploymentTemplate.Spec = &runtime.RawExtension{Raw: []byte(strings.ReplaceAll(string(one.DeploymentTemplate.Spec.Raw), `":`, `" : `))}
	data, hash, err := RevisionOf(one, 0)
	if err != nil {
		t.Fatal(err)
	}
	if same, sameHash, err := RevisionOf(other, 0); err != nil || string(same) != string(data) || sameHash != hash {
		t.Errorf("got %s and %s, %v", hash, sameHash, err)
	}
	if _, collided, _ := RevisionOf(one, 1); collided == hash {
		t.Error("a collision does not change the name")
	}
	other.DeploymentTemplate.Metadata = nil
	if _, changed, _ := RevisionOf(other, 0); changed == hash {
		t.Error("another template has the same name")
	}
	back, err := TemplateIn(data)
	if err != nil {
		t.Fatal(err)
	}
	want, err := TemplateOf(one)
	if diff := cmp.Diff(want, back); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// TestAChildInAnotherClusterHasLabelsInPlaceOfAnOwner: an owner reference would have the garbage collector there delete the child.
func TestAChildInAnotherClusterHasLabelsInPlaceOfAnOwner(t *testing.T) {
	template, err := TemplateOf(templateFrom(t, ofDeployments))
	if err != nil {
		t.Fatal(err)
	}
	p := policyOf(3, Subset{Name: "zone-a", Cluster: "member-1"})
	p.Template = template
	owner := &v1beta1.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"}}
	content, err := p.Render(Wanted{Replicas: 3}, template, "web-r1", "apps/v1", owner)
	if err != nil {
		t.Fatal(err)
	}
	child := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, child); err != nil {
		t.Fatal(err)
	}
	for of, labels := range map[string]map[string]string{"child": child.Labels, "pods": child.Spec.Template.Labels} {
		if labels[v1beta1.OwnerLabel] != "u1" || labels[v1alpha1.HubLabel] != "true" || labels[v1beta1.SubsetNameLabel] != "zone-a" {
			t.Errorf("labels of the %s: %v", of, labels)
		}
	}
	if len(child.OwnerReferences) > 0 || child.Spec.Selector.MatchLabels[v1beta1.OwnerLabel] != "" {
		t.Errorf("owners %v, selector %v", child.OwnerReferences, child.Spec.Selector)
	}
}
