package united

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

const (
	selector   = "selector: {matchLabels: {app: web}}, "
	pods       = "template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: i}]}}"
	deployment = selector + "template: {deploymentTemplate: {spec: {" + pods + "}}}, "
	stateful   = selector + "template: {statefulSetTemplate: {spec: {serviceName: web, " + pods + "}}}, "
	cloneSet   = selector + "template: {cloneSetTemplate: {spec: {scaleStrategy: {of: kruise}, " + pods + "}}}, "
	twoSubsets = "topology: {subsets: [{name: a}, {name: b}]}, "
)

// object is a UnitedDeployment with a spec in YAML, in one line and without its braces.
func object(tb testing.TB, spec string) *v1beta1.UnitedDeployment {
	tb.Helper()
	ud := &v1beta1.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	if err := yaml.UnmarshalStrict([]byte("{"+strings.TrimSuffix(spec, ", ")+"}"), &ud.Spec); err != nil {
		tb.Fatalf("%v in %s", err, spec)
	}
	return ud
}

// expectErrors wants one error for each of want, which are paths, a space, and a part of the message.
func expectErrors(t *testing.T, errs field.ErrorList, want []string) {
	t.Helper()
	if len(errs) != len(want) {
		t.Errorf("got %d errors, want %d", len(errs), len(want))
	}
	for _, w := range want {
		path, part, _ := strings.Cut(w, " ")
		if !slices.ContainsFunc(errs, func(err *field.Error) bool { return err.Field == path && strings.Contains(err.ErrorBody(), part) }) {
			t.Errorf("lacks: %s", w)
		}
	}
	if t.Failed() {
		for _, err := range errs {
			t.Log(err)
		}
	}
}

func TestEveryRuleNamesItsField(t *testing.T) {
	subsets := func(list string) string { return deployment + "topology: {subsets: [" + list + "]}" }
	adaptiveWith := func(template, list, fields string) string {
		return template + "topology: {scheduleStrategy: {type: Adaptive, adaptive: {" + fields + "}}, subsets: [" + list + "]}"
	}
	const s = "spec.topology.subsets"
	for name, tc := range map[string]struct {
		spec string
		want []string
	}{
		"no selector":                 {strings.Replace(deployment+twoSubsets, selector, "", 1), []string{"spec.selector must select the pods"}},
		"an empty selector":           {strings.Replace(deployment+twoSubsets, selector, "selector: {}, ", 1), []string{"spec.selector must select the pods"}},
		"a selector of no operator":   {strings.Replace(deployment+twoSubsets, selector, "selector: {matchExpressions: [{key: app, operator: Is}]}, ", 1), []string{"spec.selector not a valid label selector operator"}},
		"a selector of the revision":  {strings.Replace(deployment+twoSubsets, selector, "selector: {matchExpressions: [{key: app, operator: Exists}, {key: apps.kruise.io/controller-revision-hash, operator: Exists}]}, ", 1), []string{"spec.selector Berth changes the label apps.kruise.io/controller-revision-hash"}},
		"a selector of reservations":  {strings.Replace(deployment+twoSubsets, selector, "selector: {matchLabels: {app: web, apps.kruise.io/united-deployment-reserved-pod: 'false'}}, ", 1), []string{"spec.selector Berth changes the label"}},
		"labels of other pods":        {strings.Replace(deployment+twoSubsets, selector, "selector: {matchLabels: {app: shop}}, ", 1), []string{"spec.template.deploymentTemplate.spec.template.metadata.labels must match spec.selector (app=shop)"}},
		"labels of one subset":        {strings.Replace(deployment+twoSubsets, selector, "selector: {matchLabels: {app: web, apps.kruise.io/subset-name: a}}, ", 1), []string{"spec.template.deploymentTemplate.spec.template.metadata.labels must match"}},
		"negative replicas":           {deployment + twoSubsets + "replicas: -1, revisionHistoryLimit: -2", []string{"spec.replicas must not be negative", "spec.revisionHistoryLimit must not be negative"}},
		"two kinds":                   {selector + "template: {deploymentTemplate: {}, cloneSetTemplate: {}}, " + twoSubsets, []string{"spec.template.deploymentTemplate cloneSetTemplate is given too"}},
		"a template without spec":     {selector + "template: {deploymentTemplate: {}}, " + twoSubsets, []string{"spec.template.deploymentTemplate.spec.template.spec.containers must be the containers"}},
		"a template without pods":     {selector + "template: {cloneSetTemplate: {spec: {replicas: 1}}}, " + twoSubsets, []string{"spec.template.cloneSetTemplate.spec.template.spec.containers must be the containers"}},
		"unknown fields":              {strings.Replace(deployment+twoSubsets, "image: i}", "imagee: i}], volumes: [{name: v, emptyDyr: {}}", 1), []string{"spec.template.deploymentTemplate.spec.template.spec.containers[0].imagee unknown field", "spec.template.deploymentTemplate.spec.template.spec.volumes[0].emptyDyr unknown field"}},
		"unknown field of the kind":   {strings.Replace(stateful+twoSubsets, "serviceName", "serviceNamee", 1), []string{"spec.template.statefulSetTemplate.spec.serviceNamee unknown field"}},
		"unknown field of other kind": {strings.Replace(cloneSet+twoSubsets, "image: i", "imagee: i", 1), []string{"spec.template.cloneSetTemplate.spec.template.spec.containers[0].imagee unknown field"}},
		"types":                       {strings.Replace(deployment+twoSubsets, "{spec: {", "{spec: {minReadySeconds: soon, ", 1), []string{"spec.template.deploymentTemplate.spec.minReadySeconds must be an integer"}},
		"metadata of another type":    {strings.Replace(deployment+twoSubsets, "{spec: {template", "{metadata: {labels: {a: 1}, name: [no, effect]}, spec: {template", 1), []string{"spec.template.deploymentTemplate.metadata.labels[a] must be a string"}},
		"labels that are none":        {strings.Replace(deployment+twoSubsets, "{spec: {template", "{metadata: {labels: {a: 'b c'}}, spec: {template", 1), []string{"spec.template.deploymentTemplate.metadata.labels[a] a valid label"}},
		"Berth's keys on children": {strings.Replace(deployment+twoSubsets, "{spec: {template", "{metadata: {labels: {apps.kruise.io/subset-name: a, apps.kruise.io/controller-revision-hash: r}, annotations: {apps.kruise.io/subset-patch: p, berth.dev/trial-replicas: '1'}}, spec: {template", 1), []string{
			"spec.template.deploymentTemplate.metadata.labels[apps.kruise.io/subset-name] Berth writes", "spec.template.deploymentTemplate.metadata.labels[apps.kruise.io/controller-revision-hash] Berth writes",
			"spec.template.deploymentTemplate.metadata.annotations[apps.kruise.io/subset-patch] Berth writes", "spec.template.deploymentTemplate.metadata.annotations[berth.dev/trial-replicas] Berth writes"}},
		"Berth's keys on pods": {strings.Replace(deployment+twoSubsets, "app: web}}, spec", "app: web, apps.kruise.io/subset-name: a, apps.kruise.io/united-deployment-reserved-pod: 'true'}}, spec", 1), []string{
			"spec.template.deploymentTemplate.spec.template.metadata.labels[apps.kruise.io/subset-name] Berth writes", "spec.template.deploymentTemplate.spec.template.metadata.labels[apps.kruise.io/united-deployment-reserved-pod] Berth writes"}},

		"no subsets":            {deployment, []string{s + " at least one subset"}},
		"too many subsets":      {subsets(strings.Repeat("{name: a}, ", 65)), append([]string{s + " must have at most 64"}, duplicates(65)...)},
		"names":                 {subsets("{name: A_b}, {}, {name: b}, {name: b}"), []string{s + "[0].name lowercase RFC 1123 label", s + "[1].name lowercase RFC 1123 label", s + "[3].name Duplicate"}},
		"terms and tolerations": {subsets("{name: a, nodeSelectorTerm: {matchExpressions: [{key: z, operator: Is}], matchFields: [{key: z, operator: In, values: [n]}]}, tolerations: [{key: k, operator: Exists, value: v}]}"), []string{s + "[0].nodeSelectorTerm.matchExpressions[0].operator Unsupported", s + "[0].nodeSelectorTerm.matchFields[0].key Unsupported", s + "[0].tolerations[0].value must be empty"}},
		"clusters": {strings.Replace(subsets("{name: a, targetCluster: {name: M_1, namespace: Not}}, {name: b, targetCluster: {namespace: other, name: m}}"), "topology: {", "topology: {clusterRegistry: {namespaces: [x/y, here], selector: {a: 'b c'}, clusterType: {kind: Cluster, apiVersion: clusterregistry.k8s.io/v1alpha1}}, ", 1), []string{
			s + "[0].targetCluster.name lowercase RFC 1123 subdomain", s + "[0].targetCluster.namespace lowercase RFC 1123 label", s + "[0].targetCluster.namespace clusterRegistry.namespaces does not have it",
			s + "[1].targetCluster.namespace clusterRegistry.namespaces does not have it", "spec.topology.clusterRegistry.namespaces[0] lowercase RFC 1123 label", "spec.topology.clusterRegistry.selector[a] a valid label",
			"spec.topology.clusterRegistry.clusterType.kind Unsupported", "spec.topology.clusterRegistry.clusterType.apiVersion clusters are ClusterProfiles"}},
		"OpenKruise in clusters":   {strings.Replace(subsets("{name: a}, {name: b, targetCluster: {name: m}}"), "deploymentTemplate", "cloneSetTemplate", 1), []string{s + "[1].targetCluster needs deploymentTemplate or statefulSetTemplate, and the template is cloneSetTemplate"}},
		"reservations in clusters": {adaptiveWith(deployment, "{name: a, targetCluster: {name: m}}", "reserveUnschedulablePods: true"), []string{"spec.topology.scheduleStrategy.adaptive.reserveUnschedulablePods excludes targetCluster"}},
		"counts":                   {subsets("{name: a, replicas: -1}, {name: b, replicas: 101%}, {name: c, replicas: few}"), []string{s + "[0].replicas must not be negative", s + "[1].replicas must be a count or a percentage", s + "[2].replicas must be a count or a percentage"}},
		"bounds":                   {subsets("{name: a, minReplicas: -1, maxReplicas: 1x}, {name: b, minReplicas: 3, maxReplicas: 2}, {name: c, minReplicas: 30%, maxReplicas: 20%}"), []string{s + "[0].minReplicas must not be negative", s + "[0].maxReplicas must be a count or a percentage", s + "[1].minReplicas must not be greater than maxReplicas", s + "[2].minReplicas must not be greater than maxReplicas"}},
		"replicas and bounds":      {subsets("{name: a, replicas: 1}, {name: b, maxReplicas: 1}, {name: c, replicas: 1, minReplicas: 1}"), []string{s + "[0].replicas excludes minReplicas and maxReplicas in all subsets, and subset b", s + "[2].replicas excludes"}},
		"more than all":            {subsets("{name: a, replicas: 60%}, {name: b, replicas: 50%}"), []string{s + " 110%"}},
		"unknown fields of patch":  {subsets("{name: a, patch: {metadata: {labelz: {}}, spec: {containers: [{name: main, imagee: j}]}}}"), []string{s + "[0].patch.metadata.labelz unknown field", s + "[0].patch.spec.containers[0].imagee unknown field"}},
		"types in a patch":         {subsets("{name: a, patch: {spec: {containers: [{name: main, env: [{name: A, value: 1}]}], hostNetwork: 'yes'}}}"), []string{s + "[0].patch.spec.containers[0].env[0].value must be a string", s + "[0].patch.spec.hostNetwork must be true or false"}},
		"a patch that is none":     {subsets("{name: a, patch: [1]}, {name: b, patch: {spec: {containers: [{image: j}]}}}"), []string{s + "[0].patch must be an object", s + "[1].patch.spec.containers[0].name tells which element"}},
		"a patch without pod":      {subsets("{name: a, patch: {spec: {containers: [{name: main, $patch: delete}]}}}"), []string{s + "[0].patch no container would be left"}},
		"a patch of the selector":  {subsets("{name: a, patch: {metadata: {labels: {app: shop}}}}, {name: b, patch: {metadata: {labels: {app: null}}}}"), []string{s + "[0].patch.metadata.labels spec.selector would no longer select", s + "[1].patch.metadata.labels spec.selector would no longer select"}},
		"a patch of Berth's labels": {subsets("{name: a, patch: {metadata: {labels: {apps.kruise.io/subset-name: b, apps.kruise.io/controller-revision-hash: r}}}}, {name: b, patch: {metadata: {labels: {apps.kruise.io/subset-name: b}}}}"), []string{
			s + "[0].patch.metadata.labels[apps.kruise.io/subset-name] Berth writes", s + "[0].patch.metadata.labels[apps.kruise.io/controller-revision-hash] Berth writes"}},
		"a patch with a bad label": {subsets("{name: a, patch: {metadata: {labels: {a: 'b c'}}}}"), []string{s + "[0].patch.metadata.labels[a] a valid label"}},

		"a strategy":                {deployment + "topology: {subsets: [{name: a}], scheduleStrategy: {type: Some, adaptive: {}}}", []string{"spec.topology.scheduleStrategy.type Unsupported", "spec.topology.scheduleStrategy.adaptive only used with type: Adaptive"}},
		"adaptive with Fixed":       {deployment + "topology: {subsets: [{name: a}], scheduleStrategy: {adaptive: {}}}", []string{"spec.topology.scheduleStrategy.adaptive only used with type: Adaptive"}},
		"replicas with Adaptive":    {adaptiveWith(deployment, "{name: a, replicas: 1}, {name: b}", ""), []string{s + "[0].replicas use minReplicas and maxReplicas"}},
		"negative seconds":          {adaptiveWith(deployment, "{name: a}", "rescheduleCriticalSeconds: -1, unschedulableDuration: -1"), []string{"spec.topology.scheduleStrategy.adaptive.rescheduleCriticalSeconds negative", "spec.topology.scheduleStrategy.adaptive.unschedulableDuration negative"}},
		"both names":                {adaptiveWith(deployment, "{name: a}", "unschedulableLastSeconds: 1, unschedulableDuration: 1"), []string{"spec.topology.scheduleStrategy.adaptive.unschedulableLastSeconds another name of unschedulableDuration"}},
		"reserving of StatefulSets": {adaptiveWith(stateful, "{name: a}", "reserveUnschedulablePods: true"), []string{"spec.topology.scheduleStrategy.adaptive.reserveUnschedulablePods needs deploymentTemplate or cloneSetTemplate"}},

		"update strategy": {deployment + twoSubsets + "updateStrategy: {type: Auto, order: Random, maxSurge: 0, manualUpdate: {partitions: {a: -1, c: 1}}}", []string{"spec.updateStrategy.type Unsupported", "spec.updateStrategy.order Unsupported", "spec.updateStrategy.maxSurge must be above 0", "spec.updateStrategy.manualUpdate.partitions[a] must not be negative", "spec.updateStrategy.manualUpdate.partitions[c] is not the name of a subset"}},
		"no surge":        {deployment + twoSubsets + "updateStrategy: {maxSurge: 0%}", []string{"spec.updateStrategy.maxSurge must be above 0"}},
		"surge of words":  {deployment + twoSubsets + "updateStrategy: {maxSurge: some}", []string{"spec.updateStrategy.maxSurge must be a count or a percentage"}},
		"everything at once": {"topology: {subsets: [{name: '', replicas: -1, patch: {x: 1}}], scheduleStrategy: {adaptive: {}}}, template: {deploymentTemplate: {spec: {template: 3}}}, updateStrategy: {maxSurge: -1}", []string{"spec.selector must", s + "[0].name lower", s + "[0].replicas negative", s + "[0].patch.x unknown",
			"spec.topology.scheduleStrategy.adaptive only", "spec.template.deploymentTemplate.spec.template.spec.containers must be", "spec.updateStrategy.maxSurge negative"}},
	} {
		t.Run(name, func(t *testing.T) {
			policy, errs := Compile(object(t, tc.spec), field.NewPath("spec"))
			if policy != nil {
				t.Error("there is a policy in spite of errors")
			}
			expectErrors(t, errs, tc.want)
		})
	}
}

func duplicates(of int) (want []string) {
	for i := 1; i < of; i++ {
		want = append(want, fmt.Sprintf("spec.topology.subsets[%d].name Duplicate", i))
	}
	return want
}

func TestNamesThatPodsHaveInLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		ud, spec string
		want     []string
	}{
		"as long as possible":    {strings.Repeat("u", 54), deployment + "topology: {subsets: [{name: " + strings.Repeat("s", 63) + "}]}", nil},
		"one more":               {strings.Repeat("u", 55), deployment + twoSubsets, []string{"metadata.name has 55 characters and may have at most 54"}},
		"a StatefulSet that can": {strings.Repeat("u", 41), stateful + twoSubsets, nil},
		"a StatefulSet too long": {strings.Repeat("u", 42), stateful + twoSubsets, []string{"spec.topology.subsets[0].name has 53 characters and may have at most 52", "spec.topology.subsets[1].name has 53 characters"}},
		"a dot":                  {"shop.web", deployment + twoSubsets, nil},
		"a dot in host names":    {"shop.web", stateful + twoSubsets, []string{"metadata.name must have no dot"}},
	} {
		t.Run(name, func(t *testing.T) {
			ud := object(t, tc.spec)
			ud.Name = tc.ud
			_, errs := Compile(ud, field.NewPath("spec"))
			expectErrors(t, errs, tc.want)
		})
	}
}

func compile(t *testing.T, spec string) *Policy {
	t.Helper()
	policy, errs := Compile(object(t, spec), field.NewPath("spec"))
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	return policy
}

func TestWhatIsLeftOutHasADefault(t *testing.T) {
	policy := compile(t, deployment+twoSubsets)
	if policy.Namespace != "shop" || policy.Name != "web" || policy.Replicas != 1 || policy.Surge != 1 || policy.History != 10 || policy.Adaptive != nil || policy.InOrder || policy.Paused {
		t.Errorf("%+v", policy)
	}
	if policy.Template.Kind != DeploymentKind || policy.LabelSelector.MatchLabels["app"] != "web" {
		t.Errorf("template %+v, selector %+v", policy.Template, policy.LabelSelector)
	}
	got := compile(t, deployment+"topology: {scheduleStrategy: {type: Adaptive}, subsets: [{name: a}]}").Adaptive
	if diff := cmp.Diff(&adaptive{Critical: 30 * time.Second, Unschedulable: 300 * time.Second, Lost: 300 * time.Second}, got); diff != "" {
		t.Errorf("adaptive (-want +got):\n%s", diff)
	}
	if policy := compile(t, selector+twoSubsets); policy.Template != nil {
		t.Errorf("an empty template is %+v", policy.Template)
	}
}

func TestWhatIsSaidIsInThePolicy(t *testing.T) {
	policy := compile(t, cloneSet+"replicas: 10, revisionHistoryLimit: 0, topology: {scheduleStrategy: {type: Adaptive, adaptive: {rescheduleCriticalSeconds: 10, unschedulableLastSeconds: 3600, lostSeconds: 90, reserveUnschedulablePods: true}}, "+
		"subsets: [{name: a, minReplicas: 1, maxReplicas: 30%, nodeSelectorTerm: {}, patch: null}, {name: b, nodeSelectorTerm: {matchExpressions: [{key: zone, operator: Exists}]}, tolerations: [{operator: Exists}], patch: {spec: {priorityClassName: low}}}]}, "+
		"updateStrategy: {paused: true, order: InOrder, maxSurge: 12%, manualUpdate: {partitions: {b: 4}}}")
	a, b := policy.Subsets[0], policy.Subsets[1]
	if a.Term != nil {
		t.Error("an empty term, which clients write that know the field as a struct, must select every node")
	}
	if diff := cmp.Diff([]any{replicaCount{}, replicaCount{true, false, 1}, replicaCount{true, true, 30}, "", int32(0)}, []any{a.Replicas, a.Min, a.Max, a.PatchText, a.Partition}); diff != "" {
		t.Errorf("a (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{"zone", 1, replicaCount{}, `{"spec":{"priorityClassName":"low"}}`, int32(4)}, []any{b.Term.MatchExpressions[0].Key, len(b.Tolerations), b.Max, b.PatchText, b.Partition}); diff != "" {
		t.Errorf("b (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]any{int32(10), int32(2), int32(0), true, true, CloneSetKind, &adaptive{Critical: 10 * time.Second, Unschedulable: time.Hour, Lost: 90 * time.Second, Reserve: true}},
		[]any{policy.Replicas, policy.Surge, policy.History, policy.Paused, policy.InOrder, policy.Template.Kind, policy.Adaptive}); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}

func TestThePolicySharesNothingWithTheObject(t *testing.T) {
	ud := object(t, deployment+"topology: {subsets: [{name: a, nodeSelectorTerm: {matchExpressions: [{key: zone, operator: Exists}]}, tolerations: [{operator: Exists}]}]}")
	policy, _ := Compile(ud, field.NewPath("spec"))
	ud.Spec.Selector.MatchLabels["app"] = "other"
	ud.Spec.Topology.Subsets[0].NodeSelectorTerm.MatchExpressions[0].Key = "other"
	ud.Spec.Topology.Subsets[0].Tolerations[0].Key = "other"
	if policy.LabelSelector.MatchLabels["app"] != "web" || policy.Subsets[0].Term.MatchExpressions[0].Key != "zone" || policy.Subsets[0].Tolerations[0].Key != "" {
		t.Error("a change of the object is a change of the policy")
	}
}

// TestValidSpecs has what is unusual and allowed.
func TestValidSpecs(t *testing.T) {
	for name, spec := range map[string]string{
		"replicas in the template, which have no effect":      strings.Replace(deployment, "{spec: {", "{spec: {replicas: 7, selector: {matchLabels: {x: z}}, ", 1) + twoSubsets,
		"metadata as clients write it":                        strings.Replace(deployment, "{spec: {template", "{metadata: {creationTimestamp: null, name: x}, spec: {template", 1) + twoSubsets,
		"clusters":                                            deployment + "topology: {clusterRegistry: {selector: {tier: gold}, clusterType: {apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile}}, subsets: [{name: a}, {name: b, targetCluster: {name: m}}, {name: c, targetCluster: {name: m, namespace: berth-members}}]}",
		"counts and percentages":                              deployment + "replicas: 4, topology: {subsets: [{name: a, replicas: 1}, {name: b, replicas: 50%}, {name: c}]}",
		"a selector by the subset":                            strings.Replace(deployment, selector, "selector: {matchExpressions: [{key: apps.kruise.io/subset-name, operator: In, values: [a, b]}]}, ", 1) + twoSubsets,
		"labels that patches add":                             strings.Replace(deployment, selector, "selector: {matchExpressions: [{key: zone, operator: Exists}]}, ", 1) + "topology: {subsets: [{name: a, patch: {metadata: {labels: {zone: a}}}}]}",
		"a hard limit on an adaptive one":                     deployment + "replicas: 4, topology: {scheduleStrategy: {type: Adaptive}, subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 2}]}",
		"reservations before the kind is known":               selector + "topology: {scheduleStrategy: {type: Adaptive, adaptive: {reserveUnschedulablePods: true}}, subsets: [{name: a}]}",
		"a patch with a key of another list":                  deployment + "topology: {subsets: [{name: a, patch: {spec: {initContainers: [{name: i, image: j}], tolerations: null}}}]}",
		"fields of a kind that Berth does not know":           cloneSet + twoSubsets,
		"an advanced StatefulSet":                             strings.Replace(stateful, "statefulSetTemplate", "advancedStatefulSetTemplate", 1) + twoSubsets,
		"numbers in the template, as the merge compares them": deployment + "topology: {subsets: [{name: a, patch: {spec: {containers: [{name: main, ports: [{containerPort: 80}]}]}}}]}",
	} {
		t.Run(name, func(t *testing.T) {
			if policy := compile(t, spec); len(policy.Warnings) > 0 {
				t.Error(policy.Warnings)
			}
		})
	}
}

func TestSpecsThatAreProbablyNotMeant(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want string }{
		"too few specified":              {deployment + "replicas: 6, topology: {subsets: [{name: a, replicas: 2}, {name: b, replicas: 3}]}", "spec.topology.subsets: the subsets specify 5 replicas (a 2, b 3), and spec.replicas is 6, so 1 of them get no subset"},
		"too many specified":             {deployment + "replicas: 4, topology: {subsets: [{name: a, replicas: 2}, {name: b, replicas: 3}]}", "spec.topology.subsets: the subsets specify 5 replicas (a 2, b 3), and spec.replicas is 4, so the last subsets get fewer"},
		"too many, with a rest":          {deployment + "replicas: 4, topology: {subsets: [{name: a, replicas: 5}, {name: b}]}", "the subsets specify 5 replicas (a 5)"},
		"too few percent":                {deployment + "replicas: 4, topology: {subsets: [{name: a, replicas: 50%}, {name: b, replicas: 25%}]}", "so 1 of them get no subset"},
		"shares":                         {deployment + "replicas: 5, topology: {subsets: [{name: a, replicas: 50%}, {name: b, replicas: 50%}]}", ""},
		"exactly":                        {deployment + "replicas: 5, topology: {subsets: [{name: a, replicas: 2}, {name: b, replicas: 3}]}", ""},
		"with a rest":                    {deployment + "replicas: 5, topology: {subsets: [{name: a, replicas: 2}, {name: b}]}", ""},
		"maximums":                       {deployment + "replicas: 6, topology: {subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 50%}]}", "spec.topology.subsets: the subsets take at most 5 replicas (a 2, b 3), and spec.replicas is 6"},
		"a subset without maximum":       {deployment + "replicas: 6, topology: {subsets: [{name: a, maxReplicas: 2}, {name: b}]}", ""},
		"minimums":                       {deployment + "replicas: 3, topology: {subsets: [{name: a, minReplicas: 2}, {name: b, minReplicas: 2}]}", "spec.topology.subsets: the minimums are 4 replicas (a 2, b 2), and spec.replicas is 3"},
		"a partition of a Deployment":    {deployment + "replicas: 6, topology: {subsets: [{name: a, replicas: 3}, {name: b}]}, updateStrategy: {manualUpdate: {partitions: {a: 2}}}", "spec.updateStrategy.manualUpdate.partitions[a]: a Deployment cannot keep some of its replicas, so the partition has no effect if the subset has more than 2; set it to 3 or more"},
		"a partition that keeps all":     {deployment + "replicas: 6, topology: {subsets: [{name: a, replicas: 3}, {name: b}]}, updateStrategy: {manualUpdate: {partitions: {a: 3, b: 6}}}", ""},
		"a partition of a maximum":       {deployment + "replicas: 6, topology: {subsets: [{name: a, maxReplicas: 3}, {name: b}]}, updateStrategy: {manualUpdate: {partitions: {a: 3}}}", ""},
		"a partition of another kind":    {stateful + "replicas: 6, topology: {subsets: [{name: a}]}, updateStrategy: {manualUpdate: {partitions: {a: 2}}}", ""},
		"a partition of nothing at all":  {deployment + "replicas: 6, topology: {subsets: [{name: a}]}, updateStrategy: {manualUpdate: {partitions: {a: 0}}}", ""},
		"a partition without a template": {selector + "replicas: 6, topology: {subsets: [{name: a}]}, updateStrategy: {manualUpdate: {partitions: {a: 2}}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			warned := strings.Join(compile(t, tc.spec).Warnings, "\n")
			if (tc.want == "") != (warned == "") || !strings.Contains(warned, tc.want) {
				t.Errorf("got %q\nwant %q", warned, tc.want)
			}
		})
	}
}

func TestChangesThatNobodyMayMake(t *testing.T) {
	const term, other = "nodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [a]}]}", "nodeSelectorTerm: {matchExpressions: [{key: zone, operator: In, values: [b]}]}"
	one := func(fields string) string {
		return deployment + "topology: {subsets: [{name: a, " + fields + "}, {name: b}]}"
	}
	for name, tc := range map[string]struct {
		old, now string
		want     []string
	}{
		"nothing":                     {one(term), one(term), nil},
		"the selector":                {deployment + twoSubsets, strings.Replace(deployment+twoSubsets, "matchLabels: {app: web}", "matchLabels: {app: shop}", 1), []string{"spec.selector cannot be changed"}},
		"no selector before":          {strings.Replace(deployment+twoSubsets, selector, "", 1), deployment + twoSubsets, nil},
		"a selector that was invalid": {strings.Replace(deployment+twoSubsets, selector, "selector: {matchExpressions: [{key: a, operator: Is}]}, ", 1), deployment + twoSubsets, nil},
		"a term":                      {one(term), one(other), []string{"spec.topology.subsets[0].nodeSelectorTerm add a subset with another name, and remove this one"}},
		"another cluster":             {one("targetCluster: {name: m}"), one("targetCluster: {name: n}"), []string{"spec.topology.subsets[0].targetCluster cannot be changed"}},
		"a cluster":                   {one("replicas: 1"), one("targetCluster: {name: n}"), []string{"spec.topology.subsets[0].targetCluster cannot be changed"}},
		"no term any more":            {one(term), one("replicas: 1"), []string{"spec.topology.subsets[0].nodeSelectorTerm cannot be changed"}},
		"an empty term is none":       {one("nodeSelectorTerm: {}"), one("replicas: 1"), nil},
		"tolerations":                 {one("tolerations: [{operator: Exists}]"), one("tolerations: [{key: k, operator: Exists}]"), []string{"spec.topology.subsets[0].tolerations add a subset with another name"}},
		"empty tolerations are none":  {one("tolerations: []"), one("replicas: 1"), nil},
		"another subset":              {one(term), deployment + "topology: {subsets: [{name: b}, {name: c, " + other + "}]}", nil},
		"the order of subsets":        {one(term), deployment + "topology: {subsets: [{name: b}, {name: a, " + term + "}]}", nil},
		"the kind":                    {deployment + twoSubsets, cloneSet + twoSubsets, []string{"spec.template cannot be changed from deploymentTemplate to cloneSetTemplate in one step; first apply an empty template"}},
		"to no kind":                  {deployment + twoSubsets, selector + twoSubsets, nil},
		"from no kind":                {selector + twoSubsets, cloneSet + twoSubsets, nil},
		"another image":               {deployment + twoSubsets, strings.Replace(deployment+twoSubsets, "image: i", "image: j", 1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			expectErrors(t, ValidateUpdate(object(t, tc.now), object(t, tc.old), field.NewPath("spec")), tc.want)
		})
	}
}

func TestANewOneNeedsATemplate(t *testing.T) {
	expectErrors(t, ValidateCreate(object(t, selector+twoSubsets), field.NewPath("spec")),
		[]string{"spec.template needs one of statefulSetTemplate, advancedStatefulSetTemplate, cloneSetTemplate, deploymentTemplate"})
	expectErrors(t, ValidateCreate(object(t, deployment+twoSubsets), field.NewPath("spec")), nil)
}

// TestAnOldTemplateIsRead: one that a ControllerRevision holds may have fields that are unknown by now.
func TestAnOldTemplateIsRead(t *testing.T) {
	template, err := TemplateOf(&object(t, strings.Replace(deployment, "image: i", "image: i, gone: 1", 1)+twoSubsets).Spec.Template)
	if err != nil || template.Kind != DeploymentKind || template.Spec["template"] == nil {
		t.Errorf("%+v, %v", template, err)
	}
	if template, err := TemplateOf(&v1beta1.SubsetTemplate{}); template != nil || err != nil {
		t.Errorf("an empty one: %+v, %v", template, err)
	}
	if _, err := TemplateOf(&v1beta1.SubsetTemplate{DeploymentTemplate: &v1beta1.WorkloadTemplate{}}); err == nil || !strings.Contains(err.Error(), "template.deploymentTemplate.spec.template.spec.containers") {
		t.Errorf("one without pods: %v", err)
	}
}

func FuzzCompile(f *testing.F) {
	f.Add("{" + deployment + twoSubsets + "replicas: 3}")
	f.Add("{" + stateful + "topology: {subsets: [{name: a, replicas: 20%, patch: {spec: {containers: [{name: main, $patch: delete}, null]}}}, {name: b, replicas: 80%}]}}")
	f.Add("{" + cloneSet + "topology: {scheduleStrategy: {type: Adaptive, adaptive: {reserveUnschedulablePods: true}}, subsets: [{name: a, minReplicas: 1, maxReplicas: 100%}]}, updateStrategy: {maxSurge: 1, manualUpdate: {partitions: {a: 1}}}}")
	f.Add("{" + deployment + "topology: {subsets: [{name: a, patch: {$patch: replace, metadata: {labels: {$patch: replace, app: web}}, spec: {$retainKeys: [containers], $setElementOrder/containers: [{name: main}], volumes: [{name: v, $patch: delete}], containers: [{name: main, ports: [{containerPort: 80.5}]}]}}}]}}")
	f.Fuzz(func(t *testing.T, text string) {
		ud := &v1beta1.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		if err := yaml.Unmarshal([]byte(text), &ud.Spec); err != nil {
			return
		}
		before := ud.DeepCopy()
		policy, errs := Compile(ud, field.NewPath("spec"))
		if (policy == nil) == (len(errs) == 0) {
			t.Fatalf("policy %v with errors %v", policy, errs)
		}
		if diff := cmp.Diff(before, ud); diff != "" {
			t.Fatalf("the object was changed:\n%s", diff)
		}
		if changes := ValidateUpdate(ud, before, field.NewPath("spec")); len(changes) > 0 {
			t.Fatalf("no change is refused: %v", changes)
		}
		if policy == nil {
			return
		}
		if policy.Surge < 1 {
			t.Fatalf("surge %d", policy.Surge)
		}
		if template, err := TemplateOf(&ud.Spec.Template); err != nil || !cmp.Equal(template, policy.Template) {
			t.Fatalf("the template is read as %v, %v", template, err)
		}
	})
}
