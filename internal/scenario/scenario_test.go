package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// valid is a scenario that the cases of TestParseErrors break in one place.
const valid = `Something is shown.

-- cluster.yaml --
- name: a
  count: 1
-- web.yaml --
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 1
-- spread.yaml --
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata:
  name: web-spread
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  subsets:
  - name: a
-- steps --
apply web.yaml spread.yaml # both

scale Deployment/web 2
expect layout
-- layout --
web-spread
`

func TestParseErrors(t *testing.T) {
	if _, err := Parse("s.txtar", []byte(valid)); err != nil {
		t.Fatalf("the scenario that the cases break is broken itself: %v", err)
	}
	replace := func(old, by string) string {
		if !strings.Contains(valid, old) {
			t.Fatalf("nothing to replace: %q", old)
		}
		return strings.Replace(valid, old, by, 1)
	}
	for name, tc := range map[string]struct {
		text string
		want string
	}{
		"intent missing":       {replace("Something is shown.\n\n", ""), "s.txtar:1: no intent; say above the first section what the scenario shows"},
		"cluster missing":      {replace("-- cluster.yaml --\n- name: a\n  count: 1\n", ""), `s.txtar:1: no section "cluster.yaml"; add one with the groups of nodes`},
		"section twice":        {valid + "-- layout --\n", `s.txtar:29: there are two sections "layout"; rename one`},
		"unknown group field":  {replace("count: 1", "counts: 1"), `s.txtar:4: error unmarshaling JSON: while decoding JSON: json: unknown field "counts"; write a list of groups of nodes, each with name and count and, if you like, labels, taints, allocatable`},
		"bad group name":       {replace("- name: a\n  count", "- name: A\n  count"), `s.txtar:4: group "A": nodes cannot be named so; name the group in lower-case letters, digits and '-'`},
		"group twice":          {replace("  count: 1\n", "  count: 1\n- name: a\n"), `s.txtar:4: there are two groups "a"; rename one`},
		"negative count":       {replace("count: 1", "count: -1"), `s.txtar:4: group "a": count -1; use 0 or more`},
		"unknown kind":         {replace("kind: Deployment\nmeta", "kind: DaemonSet\nmeta"), `s.txtar:7: cannot play apiVersion "apps/v1", kind "DaemonSet"; use a WorkloadSpread, Deployment, ReplicaSet, StatefulSet or Job`},
		"unknown object field": {replace("replicas: 1", "replica: 1"), `s.txtar:7: Deployment: error unmarshaling JSON: while decoding JSON: json: unknown field "replica"; correct the field`},
		"object without name":  {replace("metadata:\n  name: web\n", ""), `s.txtar:7: Deployment without metadata.name; name it`},
		"namespace":            {replace("  name: web\n", "  name: web\n  namespace: x\n"), `s.txtar:7: Deployment/web has a metadata.namespace; leave it out, it is chosen where the scenario is played`},
		"invalid spread":       {replace("  - name: a\n--", "  - name: a\n    maxReplicas: -1\n--"), `s.txtar:14: WorkloadSpread/web-spread: spec.subsets[0].maxReplicas: Invalid value: -1: must not be negative; correct the spread`},
		"steps missing":        {valid[:strings.Index(valid, "-- steps")], `s.txtar:1: no section "steps"; add one with a command on each line`},
		"no step":              {replace(valid[strings.Index(valid, "apply"):], "# nothing\n"), "s.txtar:6: section \"web.yaml\" is never applied; apply it in a step or remove it\ns.txtar:13: section \"spread.yaml\" is never applied; apply it in a step or remove it\ns.txtar:23: no step expects a table; begin with apply and end with expect"},
		"unknown command":      {replace("expect layout\n", "expect layout\nwait\n"), `s.txtar:27: unknown command "wait"; use apply, scale, delete, cordon, uncordon, kill or expect`},
		"apply of nothing":     {replace("expect layout\n", "expect layout\napply\n"), `s.txtar:27: apply names no section; write apply NAME.yaml`},
		"apply of no section":  {replace("expect layout\n", "expect layout\napply x.yaml\n"), `s.txtar:27: no section "x.yaml" of objects; add it, with a name that ends in .yaml`},
		"section not applied":  {valid + "-- x.yaml --\n" + valid[strings.Index(valid, "apiVersion: apps/v1"):strings.Index(valid, "-- spread")], `s.txtar:29: section "x.yaml" is never applied; apply it in a step or remove it`},
		"section not expected": {valid + "-- x --\n", `s.txtar:29: section "x" is never expected; name it in an expect step or remove it`},
		"expect of no section": {replace("expect layout\n", "expect layout\nexpect x\n"), `s.txtar:27: no section "x" with a table; add it, with a name that does not end in .yaml`},
		"expect of nothing":    {replace("expect layout\n", "expect layout\nexpect\n"), `s.txtar:27: expect takes one section; write expect NAME`},
		"scale without number": {replace("Deployment/web 2", "Deployment/web"), `s.txtar:25: scale takes a workload and a number; write scale KIND/NAME REPLICAS`},
		"scale to no number":   {replace("Deployment/web 2", "Deployment/web -2"), `s.txtar:25: replicas "-2"; use a number from 0 up`},
		"scale of a spread":    {replace("Deployment/web 2", "WorkloadSpread/web-spread 2"), `s.txtar:25: WorkloadSpread/web-spread has no replicas; scale its workload`},
		"no reference":         {replace("Deployment/web 2", "web 2"), `s.txtar:25: "web" does not name an object; write KIND/NAME, for instance Deployment/web`},
		"object not there":     {replace("Deployment/web 2", "Deployment/x 2"), `s.txtar:25: there is no Deployment/x at this step; apply it before`},
		"object deleted":       {replace("scale", "delete Deployment/web\nscale"), `s.txtar:26: there is no Deployment/web at this step; apply it before`},
		"delete of nothing":    {replace("expect layout\n", "expect layout\ndelete\n"), `s.txtar:27: delete takes one object; write delete KIND/NAME`},
		"cordon of nothing":    {replace("expect layout\n", "expect layout\ncordon\n"), `s.txtar:27: cordon takes one group of nodes; write cordon GROUP`},
		"cordon of no group":   {replace("expect layout\n", "expect layout\nuncordon b\n"), `s.txtar:27: no group "b" in cluster.yaml; add it, or correct the name`},
		"kill of the unknown":  {replace("expect layout\n", "expect layout\nkill kubelet\n"), `s.txtar:27: kill takes the component to kill; write kill scheduler`},
		"all errors at once": {
			replace("Deployment/web 2", "Deployment/x 2\nwait"),
			"s.txtar:25: there is no Deployment/x at this step; apply it before\ns.txtar:26: unknown command \"wait\"; use apply, scale, delete, cordon, uncordon, kill or expect",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("s.txtar", []byte(tc.text))
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseSteps(t *testing.T) {
	text := strings.Replace(valid, "scale Deployment/web 2", "kill scheduler\ncordon a\nuncordon a\nscale Deployment/web 2\ndelete WorkloadSpread/web-spread", 1)
	scenario, err := Parse("s.txtar", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	group := NodeGroup{Name: "a", Count: 1}
	want := []Step{
		{Line: 25, Text: "kill scheduler", Action: Kill{Component: "scheduler"}},
		{Line: 26, Text: "cordon a", Action: Cordon{Group: group, Unschedulable: true}},
		{Line: 27, Text: "uncordon a", Action: Cordon{Group: group}},
		{Line: 28, Text: "scale Deployment/web 2", Action: Scale{Target: Reference{Kind: "Deployment", Name: "web"}, Replicas: 2}},
		{Line: 29, Text: "delete WorkloadSpread/web-spread", Action: Delete{Target: Reference{Kind: "WorkloadSpread", Name: "web-spread"}}},
		{Line: 30, Text: "expect layout", Action: Expect{Section: "layout", Table: "web-spread\n"}},
	}
	if diff := cmp.Diff(want, scenario.Steps[1:]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var applied []string
	for _, object := range scenario.Steps[0].Action.(Apply).Objects {
		applied = append(applied, ReferenceTo(object).String())
	}
	if diff := cmp.Diff([]string{"Deployment/web", "WorkloadSpread/web-spread"}, applied); diff != "" {
		t.Errorf("applied (-want +got):\n%s", diff)
	}
	if scenario.Intent != "Something is shown." {
		t.Errorf("intent is %q", scenario.Intent)
	}
}

func TestNodes(t *testing.T) {
	text := strings.Replace(valid, "  count: 1\n", "  count: 2\n  labels: {pool: a}\n  allocatable: {pods: 3}\n", 1)
	scenario, err := Parse("s.txtar", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	nodes := scenario.Nodes()
	if len(nodes) != 2 {
		t.Fatalf("%d nodes, want 2", len(nodes))
	}
	node := nodes[1]
	if diff := cmp.Diff(map[string]string{corev1.LabelHostname: "a-1", "pool": "a"}, node.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	got := map[corev1.ResourceName]string{}
	for name, quantity := range node.Status.Allocatable {
		got[name] = quantity.String()
	}
	if diff := cmp.Diff(map[corev1.ResourceName]string{"cpu": "32", "memory": "256Gi", "pods": "3"}, got); diff != "" {
		t.Errorf("what is left out of allocatable has a default (-want +got):\n%s", diff)
	}
}
