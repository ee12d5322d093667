//go:build !kubernetes_1_37

package workloadspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-project/berth/pkg/ledger"
)

// groups are nothing here: this version of Kubernetes schedules each pod by itself.
type groups struct{}

func newGroups(context.Context, fwk.Handle) (groups, error) { return groups{}, nil }

func watchGroups(*book, informers.SharedInformerFactory) (func(*corev1.Pod) string, error) {
	return func(*corev1.Pod) string { return "" }, nil
}

func isTrial(fwk.CycleState) bool { return false }

func (*Spread) questionIn(_ fwk.CycleState, pod *corev1.Pod) (ledger.PodAsks, *fwk.Status) {
	return ledger.PodAsks{Pod: pod}, nil
}

func (*Spread) countTried(fwk.CycleState, int) {}
