//go:build !kubernetes_1_37

package workloadspread_test

import (
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

func recordNothing(string) events.EventRecorder { return &events.FakeRecorder{} }

// eachCycle calls a function with each pod that the scheduler takes from its queue.
func eachCycle(s *scheduler.Scheduler, popped func(*framework.QueuedPodInfo)) {
	s.NextPod = func(logger klog.Logger) (*framework.QueuedPodInfo, error) {
		info, err := s.SchedulingQueue.Pop(logger)
		if info != nil {
			popped(info)
		}
		return info, err
	}
}
