package manifests

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// A probe of a port that its container does not name fails for ever, and nothing says so when the manifest is applied.
func TestProbesNamePortsOfTheirContainers(t *testing.T) {
	files, err := filepath.Glob("*/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("*/*/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	probes := 0
	for _, file := range append(files, deeper...) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for {
			var object appsv1.Deployment // other kinds have no containers there
			if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, container := range object.Spec.Template.Spec.Containers {
				names := map[string]bool{}
				for _, port := range container.Ports {
					names[port.Name] = true
				}
				for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe, container.StartupProbe} {
					if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Port.Type != intstr.String {
						continue
					}
					probes++
					if !names[probe.HTTPGet.Port.StrVal] {
						t.Errorf("%s: container %s has no port %s", file, container.Name, probe.HTTPGet.Port.StrVal)
					}
				}
			}
		}
	}
	if probes < 5 {
		t.Errorf("%d probes were found", probes)
	}
}
