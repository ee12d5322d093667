package workloadspread

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOnlyPodsThatNoSpreadDividesAreSigned(t *testing.T) {
	w := newWorld(t, 9)
	signed := func(pod *corev1.Pod) bool {
		t.Helper()
		_, status := w.SignPod(t.Context(), pod)
		return status.IsSuccess()
	}
	alone, divided := podOf("rs-uid", "alone"), podOf("rs-uid", "p0")
	alone.OwnerReferences = nil
	if !signed(divided) {
		t.Error("a pod in a namespace without a spread is not signed")
	}
	w.spread(1, adaptive)
	if signed(divided) || !signed(alone) {
		t.Error("in a namespace with a spread, not the pods without an owner alone are signed")
	}
}

// This tests what docs/install.md says about batching.
func TestAProfileBatchesWithoutDefaultTopologySpreadAndExtenders(t *testing.T) {
	const profiles, pluginConfig = "profiles:\n", "  pluginConfig:\n"
	noDefaults := []string{pluginConfig, pluginConfig + "  - {name: PodTopologySpread, args: {defaultingType: List}}\n"}
	for name, tc := range map[string]struct {
		config []string
		want   bool
	}{
		"as shipped":                    {},
		"without default constraints":   {config: noDefaults, want: true},
		"without them, but an extender": {config: append(noDefaults, profiles, "extenders: [{urlPrefix: 'http://localhost:1', filterVerb: filter}]\n"+profiles)},
	} {
		t.Run(name, func(t *testing.T) {
			made, _ := newScheduler(t, configured(t, tc.config...))
			if got := signPod(t.Context(), made.Profiles[profileName], &corev1.Pod{}); (got != nil) != tc.want {
				t.Errorf("signature %s, want one: %t", got, tc.want)
			}
		})
	}
}
