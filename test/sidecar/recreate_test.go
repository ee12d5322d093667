package sidecar

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// TestPodsThatCannotBeUpdatedInPlaceAreEvicted with recreate: IfNeeded, and their ReplicaSet makes new ones.
func TestPodsThatCannotBeUpdatedInPlaceAreEvicted(t *testing.T) {
	harness.Long(t)
	w := newWorld(t)
	spec := func(argument string) string {
		return "updateStrategy: {recreate: IfNeeded}, containers: [{name: log, image: 'log:1', args: [" + argument + "]}]"
	}
	w.set("log", "v1beta1", spec("old"))
	w.deploy(3)
	w.pods(func(pod *corev1.Pod) string { return runs(pod, "log", "log:1") }, 3)
	w.set("log", "v1beta1", spec("new"))
	w.pods(func(pod *corev1.Pod) string {
		if args := container(pod, "log").Args; !slices.Equal(args, []string{"new"}) {
			return "args " + slices.Concat(args, []string{""})[0]
		}
		return runs(pod, "log", "log:1")
	}, 3)
	w.expectReason("log", v1beta1.ReasonReady)
}
