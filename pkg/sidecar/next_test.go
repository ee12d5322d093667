package sidecar

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const oneContainer = "selector: {matchLabels: {app: x}}, containers: [{name: log, image: i}]"

// podsOf makes pods named 0, 1, 2 and so on, the oldest first: "r" is ready, "n" is not, "R" and "N" are the same with
// the latest version, "u" is ready and about to restart, "U" the same with the latest version, "S" is new, has the
// latest version and is not ready for reasons of its own, "O" was updated and its sidecar has ended, "o" the same with
// an older version, "x" cannot be updated, and "E" is about to end with the latest version.
func podsOf(states string) (pods []Pod) {
	for i, state := range states {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), CreationTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Second)), Labels: map[string]string{}}}
		pod.Spec.NodeName, pod.Status.Phase = "node", corev1.PodRunning
		p := Pod{Pod: pod, Ready: !strings.ContainsRune("nNSOo", state), Settled: !strings.ContainsRune("uU", state), Updated: strings.ContainsRune("RNUESO", state)}
		p.Failing, p.Touched, p.Over = state == 'N', state == 'O', state == 'O' || state == 'o'
		if state == 'x' {
			p.Why = "something"
		}
		if state == 'E' {
			pod.DeletionTimestamp = &metav1.Time{Time: now}
		}
		pods = append(pods, p)
	}
	return pods
}

func namesOf(pods []Pod) string {
	var all []string
	for i := range pods {
		all = append(all, pods[i].Name)
	}
	return strings.Join(all, " ")
}

func TestNext(t *testing.T) {
	tests := map[string]struct{ strategy, pods, want string }{
		"one at a time, the newest first":               {"{}", "rrr", "2"},
		"as many as allowed, rounded up":                {"{maxUnavailable: 34%}", "rrrr", "3 2"},
		"none while the last one is not ready":          {"{}", "rrN", ""},
		"also while a new one starts":                   {"{}", "rrS", "1"},
		"also while a pod of a Job comes to its end":    {"{}", "rrO", "1"},
		"none of which a sidecar has ended":             {"{maxUnavailable: 10}", "ror", "2 0"},
		"none while the last one is about to restart":   {"{}", "rrU", ""},
		"none while an earlier update is about to act":  {"{}", "rru", "2"},
		"all that are not ready, in addition":           {"{}", "nrn", "2 0 1"},
		"those that are not ready while others are out": {"{}", "nrNr", "0"},
		"the partition stays":                           {"{partition: 2, maxUnavailable: 10}", "rrrr", "3 2"},
		"the partition stays, rounded up":               {"{partition: 30%, maxUnavailable: 10}", "rrrr", "3 2"},
		"nearly all stay, and one goes":                 {"{partition: 99%, maxUnavailable: 10}", "rrr", "2"},
		"all stay":                                      {"{partition: 100%, maxUnavailable: 10}", "nnn", ""},
		"updated ones do not count as old":              {"{partition: 2, maxUnavailable: 10}", "rrRr", "3"},
		"those that cannot be updated count as old":     {"{partition: 1, maxUnavailable: 10}", "rxr", "2 0"},
		"those that cannot be updated are left":         {"{maxUnavailable: 10}", "rxr", "2 0"},
		"none is evicted, whatever an older spec says":  {"{maxUnavailable: 10, recreate: IfNeeded}", "rxr", "2 0"},
		"pods that end do not count":                    {"{}", "rrE", "1"},
		"paused":                                        {"{paused: true}", "rrn", ""},
		"not updated":                                   {"{type: NotUpdate}", "rrn", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := compile(t, "s", "{"+oneContainer+", updateStrategy: "+tc.strategy+"}")
			if got := namesOf(p.Next(podsOf(tc.pods))); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestTheArticlesNumbers: 100 pods with a partition and a limit.
func TestTheArticlesNumbers(t *testing.T) {
	for spec, want := range map[string]int{
		"{partition: 50, maxUnavailable: 10}": 10, "{partition: 80, maxUnavailable: 30}": 20, "{partition: 98, maxUnavailable: 10%}": 2, "{maxUnavailable: 10%}": 10,
	} {
		p := compile(t, "s", "{"+oneContainer+", updateStrategy: "+spec+"}")
		if got := len(p.Next(podsOf(strings.Repeat("r", 100)))); got != want {
			t.Errorf("%s: got %d, want %d", spec, got, want)
		}
	}
}

func TestOrder(t *testing.T) {
	labelled := func(labels ...string) []Pod {
		pods := podsOf(strings.Repeat("r", len(labels)))
		for i, text := range labels {
			for _, pair := range strings.Fields(text) {
				key, value, _ := strings.Cut(pair, "=")
				pods[i].Labels[key] = value
			}
		}
		return pods
	}
	tests := map[string]struct {
		strategy string
		pods     []Pod
		want     string
	}{
		"weights":         {"{priorityStrategy: {weightPriority: [{weight: 20, matchSelector: {matchLabels: {a: x}}}, {weight: 15, matchSelector: {matchLabels: {b: x}}}, {weight: 10, matchSelector: {matchLabels: {c: x}}}]}}", labelled("a=x", "", "b=x c=x", "c=x"), "2 0 3 1"},
		"orders":          {"{priorityStrategy: {orderPriority: [{orderedKey: a}, {orderedKey: b}]}}", labelled("b=sts-3", "a=1", "", "a=x-10", "b=30"), "3 1 4 0 2"},
		"scattered":       {"{scatterStrategy: [{key: app, value: nginx}]}", labelled("app=nginx", "app=nginx", "", "", "", ""), "5 1 4 3 0 2"},
		"scattered, each": {"{scatterStrategy: [{key: app, value: '*'}]}", labelled("app=a", "app=a", "app=b", "app=b"), "3 1 2 0"},
		"selected":        {"{selector: {matchLabels: {canary.release: 'true'}}}", labelled("", "canary.release=true", "", "canary.release=true"), "3 1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := compile(t, "s", "{"+oneContainer+", updateStrategy: "+strings.TrimSuffix(tc.strategy, "}")+", maxUnavailable: 100%}}")
			if got := namesOf(p.Next(tc.pods)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	for _, limit := range []string{"1", "2", "100%"} { // in one round or in many
		p := compile(t, "s", "{"+oneContainer+", updateStrategy: {scatterStrategy: [{key: app, value: nginx}], maxUnavailable: "+limit+"}}")
		scattered := labelled("app=nginx", "app=nginx", "app=nginx", "", "", "")
		var order string
		for range scattered {
			for _, next := range p.Next(scattered) {
				at := slices.IndexFunc(scattered, func(pod Pod) bool { return pod.Name == next.Name })
				scattered[at].Updated = true
				order += next.Name + " "
			}
		}
		if order != "5 2 4 1 3 0 " {
			t.Errorf("with maxUnavailable %s: got %q", limit, order)
		}
	}
	pods := podsOf("rrrrrr")
	pods[0].Spec.NodeName = ""
	pods[1].Status.Phase = corev1.PodPending
	pods[2].Ready = false
	pods[3].Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
	for i, since := range []time.Duration{4: 20, 5: 10} {
		pods[i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(since * time.Second))}}
	}
	p := compile(t, "s", "{"+oneContainer+", updateStrategy: {maxUnavailable: 100%}}")
	if got := namesOf(p.Next(pods)); got != "0 1 2 4 5 3" {
		t.Errorf("got %q", got)
	}
}
