package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-project/berth/pkg/cli/console"
)

func TestLint(t *testing.T) {
	const header = "apiVersion: apps.kruise.io/v1alpha1\nkind: WorkloadSpread\nmetadata: {name: web}\n"
	const target = "spec:\n  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n"
	const valid = header + target + "  subsets:\n  - {name: a, maxReplicas: 2}\n  - name: b\n"
	const waiting = header + target + "  scheduleStrategy: {whenFull: Wait}\n  subsets:\n  - {name: a, maxReplicas: 2}\n"
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"
	const replicas = "spec: {replicas: 3, template: {metadata: {labels: {app: web}}}}\n"
	const budgetOf = "apiVersion: policy.kruise.io/v1alpha1\nkind: PodUnavailableBudget\nmetadata: {name: NAME}\nspec:\n  maxUnavailable: 1\n  selector: {matchLabels: {app: web}}\n"
	const sidecars = "apiVersion: apps.kruise.io/v1beta1\nkind: SidecarSet\nmetadata: {name: log}\nspec:\n"
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing wrong": {map[string]string{"a.yaml": valid}, "1 WorkloadSpread and 0 PodUnavailableBudgets: 0 mistakes, 0 warnings"},
		"all mistakes of a spread, with the lines of the file": {
			map[string]string{"a.yaml": "# first\n---\n" + header + target + "  subsets:\n  - name: a\n    maxReplicas: -1\n    typo: 1\n  - name: a\n  - maxReplicas: 10%\n"}, `
a.yaml:10: error: WorkloadSpread web spec.subsets[0].maxReplicas: Invalid value: -1: must not be negative
a.yaml:11: error: WorkloadSpread web spec.subsets[0].typo: unknown field "spec.subsets[0].typo"
a.yaml:12: error: WorkloadSpread web spec.subsets[1].name: Duplicate value: "a"
a.yaml:13: error: WorkloadSpread web spec.subsets[2].name: Required value: must be a valid label value that is not empty
1 WorkloadSpread and 0 PodUnavailableBudgets: 4 mistakes, 0 warnings`},
		"a value of the wrong type": {map[string]string{"a.yaml": header + target + "  subsets: 3\n"}, `
a.yaml:1: error: WorkloadSpread web: json: cannot unmarshal number into Go struct field WorkloadSpreadSpec.spec.subsets of type []v1alpha1.Subset
0 WorkloadSpreads and 0 PodUnavailableBudgets: 1 mistake, 0 warnings`},
		"no YAML, if it could be one of ours": {map[string]string{"a.yaml": "kind: WorkloadSpread\nspec: {{- if x }\n", "b.yaml": "kind: Service\nspec: {{- if x }\n"}, `
a.yaml:1: error: yaml: line 1: 
0 WorkloadSpreads and 0 PodUnavailableBudgets: 1 mistake, 0 warnings`},
		"a version that does not exist": {map[string]string{"a.yaml": strings.Replace(valid, "v1alpha1", "v1", 1)}, `
a.yaml:1: error: WorkloadSpread web: no kind "WorkloadSpread" is registered for version "apps.kruise.io/v1" in scheme
0 WorkloadSpreads and 0 PodUnavailableBudgets: 1 mistake, 0 warnings`},
		"a name that no object can have": {map[string]string{"a.yaml": strings.Replace(valid, "name: web}", "name: Web}", 1)}, `
a.yaml:3: error: WorkloadSpread Web metadata.name: Invalid value: "Web": a lowercase RFC 1123 subdomain
1 WorkloadSpread and 0 PodUnavailableBudgets: 1 mistake, 0 warnings`},
		"a name that is generated": {map[string]string{"a.yaml": strings.Replace(valid, "name: web}", "generateName: web-}", 1)}, "1 WorkloadSpread and 0 PodUnavailableBudgets: 0 mistakes, 0 warnings"},
		"a label that no object can have": {map[string]string{"a.yaml": strings.Replace(valid, "name: web}", "name: web, labels: {app: \"-\"}}", 1)}, `
a.yaml:3: error: WorkloadSpread web metadata.labels: Invalid value: "-": a valid label must be
1 WorkloadSpread and 0 PodUnavailableBudgets: 1 mistake, 0 warnings`},
		"a warning is no failure": {map[string]string{"a.yaml": header + target + "  subsets:\n  - name: a\n  - name: b\n"}, `
a.yaml:7: warning: WorkloadSpread web spec.subsets[0]: has no maxReplicas, so with type: Fixed no pod reaches the subsets after it
1 WorkloadSpread and 0 PodUnavailableBudgets: 0 mistakes, 1 warning`},
		"too little quota for a workload of another file": {map[string]string{"a.yaml": waiting, "b/c.yml": deployment + "spec: {replicas: 5}\n"}, `
a.yaml:7: warning: WorkloadSpread web spec.subsets: the quotas hold 2 of the 5 replicas of Deployment web; with whenFull: Wait the other pods wait until others end
1 WorkloadSpread and 0 PodUnavailableBudgets: 0 mistakes, 1 warning`},
		"a workload that does not say its replicas": {map[string]string{"a.yaml": waiting, "b.yaml": deployment + "spec: {}\n"}, "1 WorkloadSpread and 0 PodUnavailableBudgets: 0 mistakes, 0 warnings"},
		"two spreads of a workload": {map[string]string{"a.yaml": valid + "---\n" + strings.Replace(valid, "name: web}", "name: also}", 1)}, `
a.yaml:14: error: WorkloadSpread also spec.targetRef: WorkloadSpread web in a.yaml:1 divides the same workload, and a workload can have only one
2 WorkloadSpreads and 0 PodUnavailableBudgets: 1 mistake, 0 warnings`},
		"SidecarSets": {map[string]string{"a.yaml": sidecars + "  selector: {}\n  typo: 1\n  containers:\n  - {name: log, image: i, imagee: x}\n", "b.yaml": strings.Replace(sidecars, "v1beta1", "v1alpha1", 1) + "  selector: {matchLabels: {app: web}}\n  containers:\n  - {name: log, image: i}\n"}, `
a.yaml:5: error: SidecarSet log spec.selector: Required value: an empty selector would pick every pod; select by a label
a.yaml:6: error: SidecarSet log spec.typo: unknown field "spec.typo"
a.yaml:8: error: SidecarSet log spec.containers[0]: Invalid value: unknown field "imagee"
2 SidecarSets, 0 WorkloadSpreads and 0 PodUnavailableBudgets: 3 mistakes, 0 warnings`},
		"budgets": {map[string]string{"a.yaml": strings.Replace(budgetOf, "NAME", "one", 1) + "---\n" + strings.Replace(budgetOf, "NAME", "two", 1) + "---\n" +
			strings.NewReplacer("NAME", "three", "maxUnavailable: 1", "maxUnavailable: 101%", "app: web", "").Replace(budgetOf)}, `
a.yaml:13: error: PodUnavailableBudget two spec.selector: overlaps with PodUnavailableBudget one in a.yaml:1, and no pod may have two such budgets
a.yaml:19: error: PodUnavailableBudget three spec.maxUnavailable: Invalid value: "101%": must be a count or a percentage from 0% to 100%
a.yaml:20: error: PodUnavailableBudget three spec.selector: Required value: must not be empty, which would mean every pod of the namespace; select by a label
0 WorkloadSpreads and 3 PodUnavailableBudgets: 3 mistakes, 0 warnings`},
		"a budget over several workloads that may lose all pods of one": {map[string]string{
			"a.yaml": strings.NewReplacer("NAME", "web", "maxUnavailable: 1", "maxUnavailable: 3").Replace(budgetOf),
			"b.yaml": strings.ReplaceAll(deployment, "web", "one") + replicas + "---\n" + strings.ReplaceAll(deployment, "web", "two") + replicas +
				"---\n" + deployment + strings.Replace(replicas, "app: web", "app: other", 1)}, `
a.yaml:6: warning: PodUnavailableBudget web spec.selector: the budget counts the pods of 2 workloads together, so all 3 pods of Deployment one may be unavailable at once
0 WorkloadSpreads and 1 PodUnavailableBudget: 0 mistakes, 1 warning`},
		"a UnitedDeployment": {map[string]string{"a.yaml": "apiVersion: apps.kruise.io/v1alpha1\nkind: UnitedDeployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n" +
			"  template:\n    deploymentTemplate:\n      spec:\n        template:\n          metadata: {labels: {app: web}}\n          spec: {containers: [{name: main, image: web}]}\n" +
			"  topology:\n    subsets:\n    - name: a\n      replicas: 60%\n      maxReplicas: 3\n    - name: b\n      replica: 2\n"}, `
a.yaml:15: error: UnitedDeployment web spec.topology.subsets[0].replicas: Forbidden: 
a.yaml:18: error: UnitedDeployment web spec.topology.subsets[1].replica: unknown field "spec.topology.subsets[1].replica"
1 UnitedDeployment, 0 WorkloadSpreads and 0 PodUnavailableBudgets: 2 mistakes, 0 warnings`},
		"rules": {map[string]string{"a.yaml": "apiVersion: rules.berth.dev/v1alpha1\nkind: SpreadRule\nmetadata: {name: web}\nspec:\n  target: {apiVersion: apps/v1, kind: DaemonSet, selector: {}}\n" +
			"  spread:\n    subsets:\n    - {name: a, maxReplica: 3}\n---\napiVersion: rules.berth.dev/v1alpha1\nkind: ClusterSpreadRule\nmetadata: {name: all}\nspec:\n" +
			"  namespaceSelector: {}\n  target: {apiVersion: apps/v1, kind: Deployment, selector: {}}\n  spread: {subsets: [{name: a}]}\n"}, `
a.yaml:5: error: SpreadRule web spec.target.kind: Forbidden: no spread divides a DaemonSet
a.yaml:8: error: SpreadRule web spec.spread.subsets[0].maxReplica: unknown field "spec.spread.subsets[0].maxReplica"
1 ClusterSpreadRule, 1 SpreadRule, 0 WorkloadSpreads and 0 PodUnavailableBudgets: 2 mistakes, 0 warnings`},
		"a FederatedReplicaSet": {map[string]string{"a.yaml": "apiVersion: federation.berth.dev/v1alpha1\nkind: FederatedReplicaSet\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: web}}\n" +
			"  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n      - {name: main, image: web}\n" +
			"  preferences:\n    clusters:\n      east:\n        minReplica: 3\n      west:\n        weight: -1\n"}, `
a.yaml:14: error: FederatedReplicaSet web spec.preferences.clusters.east.minReplica: unknown field "spec.preferences.clusters.east.minReplica"
a.yaml:16: error: FederatedReplicaSet web spec.preferences.clusters[west].weight: Invalid value: -1: must not be negative
1 FederatedReplicaSet, 0 WorkloadSpreads and 0 PodUnavailableBudgets: 2 mistakes, 0 warnings`},
		"JSON and lists": {map[string]string{"a.json": `{"kind": "List", "apiVersion": "v1", "items": [
{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "WorkloadSpread", "metadata": {"name": "web"},
 "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
  "subsets": [{"name": "a",
   "maxReplicas": -1}]}}]}`}, `
a.json:5: error: WorkloadSpread web spec.subsets[0].maxReplicas: Invalid value: -1: must not be negative
1 WorkloadSpread and 0 PodUnavailableBudgets: 1 mistake, 0 warnings`},
		"an object that refers to one of ours": {map[string]string{"a.yaml": "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\n" +
			"spec: {scaleTargetRef: {apiVersion: apps.kruise.io/v1alpha1, kind: UnitedDeployment, name: web}}\n"}, "0 WorkloadSpreads and 0 PodUnavailableBudgets: 0 mistakes, 0 warnings"},
		"other objects": {map[string]string{"a.yaml": "kind: Service\n---\n\n---\n# nothing\n---\n[1, 2]\n", "notes.txt": "kind: WorkloadSpread {"}, "0 WorkloadSpreads and 0 PodUnavailableBudgets: 0 mistakes, 0 warnings"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tc.files {
				if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755), os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			err := (&lintCommand{out: &out, files: []string{dir}}).run()
			want, got := strings.Split(strings.TrimSpace(tc.want), "\n"), strings.Split(strings.TrimSpace(strings.ReplaceAll(out.String(), dir+"/", "")), "\n")
			for i := range min(len(want), len(got)) {
				if got[i] = got[i][:min(len(got[i]), max(len(want[i]), 1))]; i == len(want)-1 {
					break
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("printed, with lines cut to what is wanted (-want +got):\n%s", diff)
			}
			var exit *console.ExitError
			if mistakes := strings.Contains(tc.want, ": error: "); mistakes != errors.As(err, &exit) {
				t.Errorf("ended with %v", err)
			}
		})
	}
	t.Run("for programs, from standard input", func(t *testing.T) {
		var out bytes.Buffer
		err := (&lintCommand{in: strings.NewReader(strings.Replace(valid, "maxReplicas: 2", "maxReplicas: x", 1)), out: &out, output: console.Output{Format: "json"}, files: []string{"-"}}).run()
		var list struct{ Items []finding }
		unread := json.Unmarshal(out.Bytes(), &list)
		if got := list.Items; unread != nil || err == nil || len(got) != 1 || got[0].Line != 7 || got[0].Severity != "error" || got[0].Path != "spec.subsets[0].maxReplicas" {
			t.Errorf("%v, printed\n%s", err, out.String())
		}
		out.Reset()
		if err := (&lintCommand{in: strings.NewReader(valid), out: &out, output: console.Output{Format: "json"}, files: []string{"-"}}).run(); err != nil || !strings.Contains(out.String(), `"items": []`) {
			t.Errorf("%v, printed %q", err, out.String())
		}
	})
	t.Run("no file", func(t *testing.T) {
		for want, files := range map[string][]string{"say what to check": nil, "no such file": {"/nowhere"}} {
			if err := (&lintCommand{out: &bytes.Buffer{}, files: files}).run(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v", files, err)
			}
		}
	})
}

// TestTheExamplesAreClean checks the examples of the documents.
func TestTheExamplesAreClean(t *testing.T) {
	var out bytes.Buffer
	if err := (&lintCommand{out: &out, files: []string{"../../docs/examples"}}).run(); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	t.Log(out.String())
}
