package subset

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRevisionOf(t *testing.T) {
	for name, tc := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"a ReplicaSet's pod":                  {map[string]string{"pod-template-hash": "r"}, "r"},
		"one of an Argo Rollout":              {map[string]string{"rollouts-pod-template-hash": "r"}, "r"},
		"one of a StatefulSet":                {map[string]string{"controller-revision-hash": "r"}, "r"},
		"a workload without revisions":        {map[string]string{"app": "r"}, ""},
		"a Deployment before its revisions":   {map[string]string{"pod-template-hash": "p", "controller-revision-hash": "c"}, "p"},
		"a label that its controller emptied": {map[string]string{"pod-template-hash": "", "controller-revision-hash": "c"}, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := RevisionOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}}); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
