package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the commands print into testdata")

func TestConvert(t *testing.T) {
	for _, name := range []string{"resourcepolicy", "placementpolicy"} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			c := &convertCommand{out: &out, file: filepath.Join("testdata", name+".yaml"), target: "Deployment/web"}
			if err := c.run(); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".want.yaml")
			if *update {
				if err := os.WriteFile(golden, out.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("converted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConvertSaysWhatIsWrong(t *testing.T) {
	tests := map[string]struct{ in, target, want string }{
		"no target":         {"", "", "--target KIND/NAME"},
		"half a target":     {"", "Rollout.v1/web", "Rollout.v1alpha1.argoproj.io/web"},
		"another kind":      {"{apiVersion: v1, kind: Pod}", "Deployment/web", "document 1: Pod of v1 is neither a ResourcePolicy"},
		"no units":          {"{apiVersion: scheduling.alibabacloud.com/v1alpha1, kind: ResourcePolicy}", "Deployment/web", "spec.units: it is empty"},
		"an unknown action": {"{apiVersion: placement-policy.scheduling.x-k8s.io/v1alpha1, kind: PlacementPolicy, spec: {nodeSelector: {matchLabels: {a: b}}, policy: {action: May, targetSize: 1}}}", "Deployment/web", `"May" is unknown; use Must or MustNot`},
		"a quota that is none": {"{apiVersion: placement-policy.scheduling.x-k8s.io/v1alpha1, kind: PlacementPolicy, spec: {nodeSelector: {matchLabels: {a: b}}, policy: {action: Must, targetSize: -1}}}", "Deployment/web",
			"spec.subsets[0].maxReplicas"},
		"no YAML": {"{", "Deployment/web", "document 1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := &convertCommand{in: strings.NewReader(tc.in), out: &bytes.Buffer{}, file: "-", target: tc.target}
			if err := c.run(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"Deployment/web": "apps/v1 Deployment web", "Job/sum": "batch/v1 Job sum", "Rollout.v1alpha1.argoproj.io/web": "argoproj.io/v1alpha1 Rollout web",
	} {
		got, err := parseTarget(text)
		if err != nil || got.APIVersion+" "+got.Kind+" "+got.Name != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
}
