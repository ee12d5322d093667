package sidecar

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkObserve is one look at 3,000 pods with a sidecar, and which of them are next.
func BenchmarkObserve(b *testing.B) {
	p := compile(b, "log", "{selector: {matchLabels: {app: web-server}}, containers: [{name: log, image: 'log:1', resources: {requests: {cpu: 10m}}}]}")
	pods := make([]*corev1.Pod, 3000)
	for i := range pods {
		pod := podOf(b, webServer)
		pod.Name = fmt.Sprint("web-", i)
		inject(pod, p)
		pods[i] = pod
	}
	for b.Loop() {
		var all []Pod
		for _, pod := range pods {
			is, has := p.Observe(pod, now)
			if !has {
				b.Fatal("a pod has no sidecar")
			}
			all = append(all, is)
		}
		p.Next(all)
	}
}
