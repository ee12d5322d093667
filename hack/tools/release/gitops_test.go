package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	"sigs.k8s.io/yaml"
)

// healthScripts are the scripts of manifests/gitops/argocd-cm.yaml by group and kind, as Argo CD reads them.
func healthScripts(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "manifests", "gitops", "argocd-cm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct{ Data map[string]string }
	var kinds map[string]map[string]string
	if err := yaml.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(config.Data["resource.customizations"]), &kinds); err != nil {
		t.Fatal(err)
	}
	scripts := map[string]string{}
	for kind, of := range kinds {
		scripts[kind] = of["health.lua"]
	}
	return scripts
}

// luaValue is a value of JSON in Lua. As in Argo CD, null is nil, and lists begin with 1.
func luaValue(l *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case bool:
		return lua.LBool(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		list := l.NewTable()
		for _, one := range v {
			list.Append(luaValue(l, one))
		}
		return list
	case map[string]any:
		table := l.NewTable()
		for key, one := range v {
			table.RawSetString(key, luaValue(l, one))
		}
		return table
	}
	return lua.LNil
}

// healthOf runs a script as Argo CD does, which opens three libraries only.
func healthOf(t *testing.T, script, object string) (status, message string) {
	t.Helper()
	var content any
	if err := json.Unmarshal([]byte(object), &content); err != nil {
		t.Fatal(err)
	}
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	l.SetGlobal("obj", luaValue(l, content))
	if err := l.DoString(script); err != nil {
		t.Fatal(err)
	}
	health, is := l.Get(-1).(*lua.LTable)
	if !is {
		t.Fatalf("the script returns %v", l.Get(-1))
	}
	return lua.LVAsString(health.RawGetString("status")), lua.LVAsString(health.RawGetString("message"))
}

// TestHealthForArgoCD: a spread of a workload that does not exist yet must not stop the sync wave that comes before the workload.
func TestHealthForArgoCD(t *testing.T) {
	condition := func(text string) string {
		return `{"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": [{"type": "Admitted", "status": "False"}, {` + text + `, "message": "said"}]}}`
	}
	tests := map[string]struct{ object, status, message string }{
		"nothing has seen it":                   {`{"metadata": {"generation": 1}}`, "Progressing", "Berth has not seen it yet"},
		"it has no condition":                   {`{"metadata": {"generation": 1}, "status": {"conditions": []}}`, "Progressing", "Berth has not seen it yet"},
		"ready":                                 {condition(`"type": "Ready", "status": "True", "reason": "SpreadReady"`), "Healthy", "said"},
		"a budget is enforced":                  {condition(`"type": "Enforcing", "status": "True"`), "Healthy", "said"},
		"its workload comes in a later wave":    {condition(`"type": "Ready", "status": "False", "reason": "TargetNotFound"`), "Healthy", "said"},
		"a budget's workload comes later":       {condition(`"type": "Enforcing", "status": "False", "reason": "TargetNotFound"`), "Healthy", "said"},
		"the condition is of the spec before":   {condition(`"type": "Ready", "status": "True", "observedGeneration": 1`), "Progressing", "said"},
		"children are being written":            {condition(`"type": "Ready", "status": "False", "reason": "InProgress"`), "Progressing", "said"},
		"the update is paused":                  {condition(`"type": "Ready", "status": "False", "reason": "Paused"`), "Suspended", "said"},
		"unknown":                               {condition(`"type": "Ready", "status": "Unknown", "reason": "ReadFailed"`), "Progressing", "said"},
		"it cannot be used until it is changed": {condition(`"type": "Ready", "status": "False", "reason": "InvalidSpread"`), "Degraded", "said"},
	}
	scripts := healthScripts(t)
	for name, tc := range tests {
		for kind, script := range scripts {
			if status, message := healthOf(t, script, tc.object); status != tc.status || message != tc.message {
				t.Errorf("%s, %s: %s, %q; want %s, %q", kind, name, status, message, tc.status, tc.message)
			}
		}
	}
	definitions, err := filepath.Glob(filepath.Join("..", "..", "..", "manifests", "*", "*_*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hub, err := filepath.Glob(filepath.Join("..", "..", "..", "manifests", "federation", "hub", "*_*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(definitions, hub...) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var definition struct {
			Kind string
			Spec struct {
				Group string
				Names struct{ Kind string }
			}
		}
		if err := yaml.Unmarshal(content, &definition); err != nil || definition.Kind != "CustomResourceDefinition" {
			continue
		}
		found++
		if key := definition.Spec.Group + "/" + definition.Spec.Names.Kind; scripts[key] == "" {
			t.Errorf("%s has no script", key)
		}
	}
	if found != len(scripts) {
		t.Errorf("%d definitions and %d scripts", found, len(scripts))
	}
}

// TestGitOpsNamesTheChart: the examples are YAML, and install the chart of a release.
func TestGitOpsNamesTheChart(t *testing.T) {
	for name, want := range map[string]string{"argocd-application.yaml": "repoURL: " + shippedRegistry + "/charts, chart: berth,", "flux.yaml": "url: oci://" + shippedRegistry + "/charts/berth\n"} {
		content, err := os.ReadFile(filepath.Join("..", "..", "..", "manifests", "gitops", name))
		if err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s does not have %q: %v", name, want, err)
		}
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			var object struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind == "" {
				t.Errorf("%s: %v: %s", name, err, document)
			}
		}
	}
}
