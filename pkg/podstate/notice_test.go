package podstate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhatAnnouncesTheEndOfANode(t *testing.T) {
	defaults := DefaultNotices()
	own, err := ParseNotices([]string{"condition:Retiring", "label:fleet/state=going", "label:fleet/gone"})
	if err != nil {
		t.Fatal(err)
	}
	condition := func(of string, status corev1.ConditionStatus) corev1.NodeStatus {
		return corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeConditionType(of), Status: status}}}
	}
	labels := func(key, value string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Labels: map[string]string{key: value}}
	}
	for name, c := range map[string]struct {
		notices Notices
		node    corev1.Node
		want    string
	}{
		"an ordinary node":                     {defaults, corev1.Node{Status: condition("MemoryPressure", corev1.ConditionTrue)}, ""},
		"Karpenter":                            {defaults, corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "x"}, {Key: "karpenter.sh/disrupted"}}}}, "taint karpenter.sh/disrupted"},
		"preemption":                           {defaults, corev1.Node{Status: condition("PreemptScheduled", corev1.ConditionTrue)}, "condition PreemptScheduled"},
		"no preemption":                        {defaults, corev1.Node{Status: condition("PreemptScheduled", corev1.ConditionFalse)}, ""},
		"a drain":                              {defaults, corev1.Node{Status: condition("DrainInProgress", corev1.ConditionTrue)}, "condition DrainInProgress"},
		"planned, nobody knows for when":       {defaults, corev1.Node{Status: condition("MaintenancePlanned", corev1.ConditionTrue)}, ""},
		"by hand, a label":                     {defaults, corev1.Node{ObjectMeta: labels(nodeEnds, "")}, "label berth.dev/node-ends"},
		"maintenance has begun":                {defaults, corev1.Node{ObjectMeta: labels("cloud.google.com/active-node-maintenance", "ONGOING")}, "label cloud.google.com/active-node-maintenance"},
		"maintenance is over":                  {defaults, corev1.Node{ObjectMeta: labels("cloud.google.com/active-node-maintenance", "PENDING")}, ""},
		"one's own condition":                  {own, corev1.Node{Status: condition("Retiring", corev1.ConditionTrue)}, "condition Retiring"},
		"one's own label, its value":           {own, corev1.Node{ObjectMeta: labels("fleet/state", "going")}, "label fleet/state"},
		"one's own label, another value":       {own, corev1.Node{ObjectMeta: labels("fleet/state", "here")}, ""},
		"one's own label, any value":           {own, corev1.Node{ObjectMeta: labels("fleet/gone", "x")}, "label fleet/gone"},
		"the defaults are not among one's own": {own, corev1.Node{ObjectMeta: labels(nodeEnds, "")}, ""},
		"none":                                 {nil, corev1.Node{ObjectMeta: labels(nodeEnds, "")}, ""},
	} {
		if got := c.notices.Of(&c.node); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAWrongNoticeIsNamed(t *testing.T) {
	_, err := ParseNotices([]string{"defaults", "karpenter.sh/disrupted", "taint:", "taint:a=b", "label:a=", "node:x"})
	if err == nil || strings.Count(err.Error(), "want taint:KEY") != 5 || !strings.Contains(err.Error(), `"taint:a=b"`) {
		t.Errorf("%v", err)
	}
}

func TestNoticesAreTheValueOfAFlag(t *testing.T) {
	notices := DefaultNotices()
	for _, text := range []string{"defaults", "", "condition:Retiring", "label:a/b=c,taint:x"} {
		if err := notices.Set(text); err != nil || notices.String() != text {
			t.Errorf("%q is %q after it was set: %v", text, notices.String(), err)
		}
	}
}
