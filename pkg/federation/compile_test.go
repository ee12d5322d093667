package federation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

const web = "selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: i}]}}, "

// object is a FederatedReplicaSet with a spec in YAML, in one line and without its braces.
func object(t testing.TB, spec, annotation string) *v1alpha1.FederatedReplicaSet {
	t.Helper()
	frs := &v1alpha1.FederatedReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	if err := yaml.UnmarshalStrict([]byte("{"+strings.TrimSuffix(spec, ", ")+"}"), &frs.Spec); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	if annotation != "" {
		frs.Annotations = map[string]string{v1alpha1.PreferencesAnnotation: annotation}
	}
	return frs
}

func TestCompile(t *testing.T) {
	even := map[string]bounds{"*": {Max: allocation.Unlimited, Weight: 1}}
	ab := map[string]bounds{"a": {Min: 1, Max: 5, Weight: 2}, "*": {Max: allocation.Unlimited}}
	for name, tc := range map[string]struct {
		spec, annotation string
		want             Policy
	}{
		"defaults": {web, "", Policy{Replicas: 1, Clusters: even, MaxMoving: 1, Unschedulable: time.Minute, Retry: 5 * time.Minute, Lost: 5 * time.Minute}},
		"preferences": {web + "replicas: 50, minReadySeconds: 3, preferences: {rebalance: true, clusters: {a: {minReplicas: 1, maxReplicas: 5, weight: 2}, '*': {}}}", "",
			Policy{Replicas: 50, MinReadySeconds: 3, Rebalance: true, Clusters: ab, MaxMoving: 13, Unschedulable: time.Minute, Retry: 5 * time.Minute, Lost: 5 * time.Minute}},
		"preferences of the annotation, as the proposal writes them": {web + "replicas: 50", `{"Rebalance": true, "Clusters": {"a": {"MinReplicas": 1, "MaxReplicas": 5, "Weight": 2}, "*": {}}}`,
			Policy{Replicas: 50, Rebalance: true, Clusters: ab, MaxMoving: 13, Unschedulable: time.Minute, Retry: 5 * time.Minute, Lost: 5 * time.Minute}},
		"a pace": {web + "replicas: 50, pace: {maxMoving: 3, unschedulableSeconds: 10, retrySeconds: 20, lostSeconds: 30}", "",
			Policy{Replicas: 50, Clusters: even, MaxMoving: 3, Unschedulable: 10 * time.Second, Retry: 20 * time.Second, Lost: 30 * time.Second}},
		"no clusters": {web + "preferences: {clusters: {}}", "", Policy{Replicas: 1, Clusters: map[string]bounds{}, MaxMoving: 1, Unschedulable: time.Minute, Retry: 5 * time.Minute, Lost: 5 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			frs := object(t, tc.spec, tc.annotation)
			p, errs := Compile(frs)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			got := *p
			if got.Namespace != "shop" || got.Name != "web" || len(got.Template) == 0 || got.LabelSelector == nil {
				t.Errorf("got %+v", got)
			}
			got.Namespace, got.Name, got.Template, got.LabelSelector = "", "", nil, nil
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if object := p.Render(7, "uid"); object["spec"].(map[string]any)["replicas"] != int64(7) {
				t.Errorf("%v", object)
			}
		})
	}
}

func TestWhatIsRefused(t *testing.T) {
	const annotation = "metadata.annotations[federation.kubernetes.io/replica-set-preferences]"
	for name, tc := range map[string]struct {
		spec, annotation string
		want             []string
	}{
		"an empty spec":            {"", "", []string{"spec.selector Required", "spec.template Required"}},
		"negative numbers":         {web + "replicas: -1, minReadySeconds: -1", "", []string{"spec.replicas must not be", "spec.minReadySeconds must not be"}},
		"labels that do not match": {"selector: {matchLabels: {app: web}}, template: {spec: {containers: [{name: main}]}}", "", []string{"spec.template.metadata.labels must match spec.selector (app=web)"}},
		"no containers":            {"selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}}", "", []string{"spec.template.spec.containers must be the containers"}},
		"a field that pods do not have": {"selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {nodeName2: x, containers: [{name: main}]}}", "",
			[]string{"spec.template.spec.nodeName2 unknown field"}},
		"both preferences":                  {web + "preferences: {rebalance: true}", `{"rebalance": true}`, []string{annotation + " spec.preferences is given too; keep one"}},
		"an annotation that is no JSON":     {web, `rebalance`, []string{annotation + " must be preferences as JSON"}},
		"an annotation with another field":  {web, `{"rebalanced": true}`, []string{annotation + ` json: unknown field "rebalanced"`}},
		"an annotation with too much":       {web, `{} }`, []string{annotation + " must be preferences as JSON: text after"}},
		"an annotation with a large number": {web, `{"clusters": {"a": {"weight": 3000000000}}}`, []string{annotation + " must be preferences as JSON"}},
		"an annotation with wrong bounds":   {web, `{"clusters": {"a": {"minReplicas": 3, "maxReplicas": 2}}}`, []string{annotation + ".clusters[a].minReplicas must not be greater"}},
		"clusters": {web + "preferences: {clusters: {A_b: {minReplicas: -1}, b: {minReplicas: 3, maxReplicas: 2, weight: -1}, c: {maxReplicas: -1}}}", "",
			[]string{"spec.preferences.clusters[A_b] a lowercase", "spec.preferences.clusters[A_b].minReplicas must not be negative", "spec.preferences.clusters[b].weight must not be negative",
				"spec.preferences.clusters[b].minReplicas must not be greater", "spec.preferences.clusters[c].maxReplicas must not be negative"}},
		"a pace": {web + "pace: {maxMoving: 0, unschedulableSeconds: -1, retrySeconds: 0, lostSeconds: -1}", "",
			[]string{"spec.pace.maxMoving must be above 0", "spec.pace.unschedulableSeconds must be at least 0", "spec.pace.retrySeconds must be at least 1", "spec.pace.lostSeconds must be at least 0"}},
		"a share that is none": {web + "pace: {maxMoving: 101%}", "", []string{"spec.pace.maxMoving must be a count or a percentage"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := Compile(object(t, tc.spec, tc.annotation))
			var got []string
			for _, err := range errs {
				got = append(got, fmt.Sprintf("%s %s: %s", err.Field, err.Type, err.Detail))
			}
			if len(got) != len(tc.want) {
				t.Fatalf("got %d errors, want %d: %s", len(got), len(tc.want), strings.Join(got, "\n"))
			}
			for _, want := range tc.want {
				path, part, _ := strings.Cut(want, " ")
				if !slices.ContainsFunc(got, func(is string) bool { return strings.HasPrefix(is, path+" ") && strings.Contains(is, part) }) {
					t.Errorf("no %q in %s", want, strings.Join(got, "\n"))
				}
			}
		})
	}
}

func TestTheSelectorStays(t *testing.T) {
	old, now := object(t, web, ""), object(t, web+"replicas: 3", "")
	if errs := ValidateUpdate(now, old); len(errs) > 0 {
		t.Error(errs)
	}
	now.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}
	if errs := ValidateUpdate(now, old); len(errs) != 1 || errs[0].Field != "spec.selector" {
		t.Error(errs)
	}
}

// TestBoundsOf: an entry of its own wins over the one for all.
func TestBoundsOf(t *testing.T) {
	p := policyOf(1, false, map[string]bounds{"a": {Min: 1}, "*": {Min: 2}})
	if own, _ := p.BoundsOf("a"); own.Min != 1 {
		t.Error(own)
	}
	if all, has := p.BoundsOf("b"); all.Min != 2 || !has {
		t.Error(all)
	}
	delete(p.Clusters, "*")
	if _, has := p.BoundsOf("b"); has {
		t.Error("a cluster without an entry gets replicas")
	}
}
