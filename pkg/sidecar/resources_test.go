package sidecar

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestExpressions(t *testing.T) {
	cpu, memory := ratOf(resource.MustParse("1500m")), ratOf(resource.MustParse("1Gi"))
	for text, want := range map[string]string{
		"cpu*50%": "3/4", "max(cpu*50%, 1)": "1", "min(cpu,50m)": "1/20", "1+2*3": "7", "(1+2)*3": "9", "8/2/2": "2", "10-3-2": "5", "memory": "1073741824", "200Mi": "209715200",
		" max( cpu , ( 100m + 20% ) ) ": "3/2", "1.5": "3/2",
	} {
		parsed, err := parseExpr(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := parsed(targets{cpu, memory}); err != nil || got.RatString() != want {
			t.Errorf("%s: got %v, %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "made of", "cpu+": "made of", "cpu 1": "made of", "disk": "neither a quantity", "max(1)": "made of", "max 1": "made of", "max": "made of", "cpu(1, 2)": "made of", "max(1, 2...)": "neither", "(1": "made of",
		"-1": "made of", "8//2": "made of", "8/*2*/": "made of", "cpu==1": "neither", "cpu.max": "neither", "1/0": "division", "(1)(2)": "made of", "n0": "neither",
	} {
		if _, err := parseExpr(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	parsed, err := parseExpr("1/(cpu-cpu)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parsed(targets{cpu, memory}); err == nil {
		t.Error("no error for a division by 0")
	}
	if got, err := parsed(targets{}); got != nil || err != nil {
		t.Errorf("got %v, %v of nothing", got, err)
	}
}

func TestResourcesOfOtherContainers(t *testing.T) {
	pod := podOf(t, `{metadata: {name: p, labels: {app: x}}, spec: {initContainers: [{name: init, image: i, resources: {limits: {cpu: "8"}}}, {name: native, image: i, restartPolicy: Always, resources: {requests: {cpu: 100m}}}],
containers: [{name: a, image: i, resources: {limits: {cpu: "2", memory: 1Gi}}}, {name: b, image: i, resources: {requests: {cpu: 333m, memory: 100Mi}}}]}}`)
	tests := map[string]struct{ policy, want, warning string }{
		"a share of the sum":     {"{targetContainersMode: sum, resourcesExpr: {requests: {cpu: 'cpu*50%', memory: 'memory/2'}}}", "requests cpu 1217m memory 562Mi", ""},
		"the greatest":           {"{targetContainersMode: max, resourcesExpr: {requests: {cpu: 'max(cpu*10%, 50m)'}}}", "requests cpu 200m", ""},
		"no limit without one":   {"{targetContainersMode: sum, resourcesExpr: {limits: {cpu: 'cpu', memory: 200Mi}}}", "limits memory 200Mi", ""},
		"limits of some":         {"{targetContainersMode: sum, targetContainersNameRegex: 'a|init', resourcesExpr: {limits: {cpu: 'cpu*2', memory: memory}}}", "limits cpu 4 memory 1Gi", ""},
		"the whole name matches": {"{targetContainersMode: sum, targetContainersNameRegex: 'nativ', resourcesExpr: {limits: {cpu: 'cpu'}}}", "", "no container of the pod matches"},
		"below 0":                {"{targetContainersMode: sum, resourcesExpr: {requests: {cpu: '1-cpu'}}}", "", "is below 0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := compile(t, "s", "{selector: {matchLabels: {app: x}}, containers: [{name: log, image: i, resourcesPolicy: "+tc.policy+"}]}")
			changed := pod.DeepCopy()
			warnings := inject(changed, p)
			if got := strings.Join(warnings, ""); (tc.warning == "") != (got == "") || !strings.Contains(got, tc.warning) {
				t.Errorf("got %q, want %q", got, tc.warning)
			}
			var parts []string
			for _, list := range []struct {
				name string
				of   corev1.ResourceList
			}{{"limits", changed.Spec.Containers[0].Resources.Limits}, {"requests", changed.Spec.Containers[0].Resources.Requests}} {
				if len(list.of) > 0 {
					parts = append(parts, list.name)
				}
				for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
					if amount, has := list.of[name]; has {
						parts = append(parts, string(name), amount.String())
					}
				}
			}
			if got := strings.Join(parts, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestAnUpdateLeavesAmountsOfOthers: somebody has raised the memory. The set changes the CPU, and then the memory too.
func TestAnUpdateLeavesAmountsOfOthers(t *testing.T) {
	set := func(requests string) *Policy {
		return compile(t, "s", "{selector: {matchLabels: {app: x}}, containers: [{name: log, image: i, resources: {requests: {"+requests+"}}}]}")
	}
	pod := podOf(t, "{spec: {containers: [{name: app, image: i}]}}")
	inject(pod, set("cpu: 100m, memory: 10Mi, ephemeral-storage: 1Gi"))
	container := containerOf(pod, "log")
	container.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("20Mi")
	for requests, want := range map[string]string{
		"cpu: 200m, memory: 10Mi, ephemeral-storage: 1Gi": "200m 20Mi 1Gi",
		"cpu: 200m, memory: 30Mi, ephemeral-storage: 1Gi": "200m 30Mi 1Gi",
		"cpu: 200m, memory: 10Mi":                         "200m 20Mi 0",
	} {
		has := containerOf(set(requests).Resized(pod), "log").Resources.Requests
		if got := fmt.Sprint(has.Cpu(), " ", has.Memory(), " ", has.StorageEphemeral()); got != want {
			t.Errorf("%s: got %s, want %s", requests, got, want)
		}
	}
	if set("cpu: 100m, memory: 10Mi, ephemeral-storage: 1Gi").Resized(pod) != nil {
		t.Error("resized for nothing")
	}
}
