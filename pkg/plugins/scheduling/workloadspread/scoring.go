package workloadspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"

	"github.com/berth-project/berth/pkg/subset"
)

// PreScore skips scoring unless the pod's subset ranks its nodes.
func (s *Spread) PreScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	d := decisionIn(state)
	if d == nil || d.Subset == subset.None {
		return fwk.NewStatus(fwk.Skip)
	}
	if status := s.rankTaints(ctx, state, pod, d, nodes); !status.IsSuccess() {
		return status
	}
	if !d.Policy.Subsets[d.Subset].HasPreferences() {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score is the weight of the subset's preferred terms that the node matches. A profile may leave out PreScore, so there may be no subset.
func (s *Spread) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, nodeInfo fwk.NodeInfo) (int64, *fwk.Status) {
	d := decisionIn(state)
	if d == nil || d.Subset == subset.None {
		return 0, nil
	}
	return d.Policy.Subsets[d.Subset].Preference(nodeInfo.Node()), nil
}

// ScoreExtensions of the score.
func (s *Spread) ScoreExtensions() fwk.ScoreExtensions { return s }

// NormalizeScore scales the best node to the highest score, as NodeAffinity does.
func (s *Spread) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	return helper.DefaultNormalizeScore(fwk.MaxNodeScore, false, scores)
}
