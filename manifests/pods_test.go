package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// objects calls a function with each object of each file.
func objects(t *testing.T, each func(file string, object map[string]any)) {
	t.Helper()
	if err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".yaml") {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096); ; {
			var object map[string]any
			if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			each(file, object)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// containers calls a function with each container of each pod template.
func containers(t *testing.T, each func(file string, container *corev1.Container)) {
	t.Helper()
	objects(t, func(file string, object map[string]any) {
		for _, path := range [][]string{{"spec", "template", "spec", "containers"}, {"spec", "jobTemplate", "spec", "template", "spec", "containers"}} {
			list, _, _ := unstructured.NestedSlice(object, path...)
			for _, fields := range list {
				container := &corev1.Container{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields.(map[string]any), container); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				each(file, container)
			}
		}
	})
}

// A probe of a port that its container does not name fails for ever, and nothing says so when the manifest is applied.
func TestProbesNamePortsOfTheirContainers(t *testing.T) {
	probes := 0
	containers(t, func(file string, container *corev1.Container) {
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe, container.StartupProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Port.Type != intstr.String {
				continue
			}
			probes++
			if !slices.ContainsFunc(container.Ports, func(port corev1.ContainerPort) bool { return port.Name == probe.HTTPGet.Port.StrVal }) {
				t.Errorf("%s: container %s has no port %s", file, container.Name, probe.HTTPGet.Port.StrVal)
			}
		}
	})
	if probes < 5 {
		t.Errorf("%d probes were found", probes)
	}
}

// Without a limit, one tenant's objects could take the memory of a node, and without GOMEMLIMIT a container ends before
// it collects its garbage.
func TestContainersHaveAMemoryLimitThatGoKnows(t *testing.T) {
	found := 0
	containers(t, func(file string, container *corev1.Container) {
		if container.Image == "" {
			return // a patch of another file
		}
		found++
		if container.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: container %s has no memory limit", file, container.Name)
		}
		if !slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool {
			return e.Name == "GOMEMLIMIT" && e.ValueFrom != nil && e.ValueFrom.ResourceFieldRef != nil
		}) {
			t.Errorf("%s: container %s does not know its limit", file, container.Name)
		}
	})
	if found < 5 {
		t.Errorf("%d containers were found", found)
	}
}

// A replica that is never ready must not hold the drain of its node for ever.
func TestDrainsPassReplicasThatAreNotReady(t *testing.T) {
	found := 0
	objects(t, func(file string, object map[string]any) {
		if object["kind"] != "PodDisruptionBudget" {
			return
		}
		found++
		if policy, _, _ := unstructured.NestedString(object, "spec", "unhealthyPodEvictionPolicy"); policy != "AlwaysAllow" {
			t.Errorf("%s: unhealthyPodEvictionPolicy is %q", file, policy)
		}
	})
	if found < 2 {
		t.Errorf("%d budgets were found", found)
	}
}

// The controller counts a pod as safe from relabelling by the same number of characters by which the API server decides
// whether to ask.
func TestTheAPIServerAndTheControllerReadTheSameKeys(t *testing.T) {
	if want := fmt.Sprintf("oldObject.metadata.annotations['%s'].size() <= %d\n", v1beta1.SelectorKeysAnnotation, v1beta1.MaxSelectorKeys); !strings.Contains(string(BudgetWebhook), want) {
		t.Errorf("the match condition does not say %s", want)
	}
}
