//go:build kubernetes_1_37

package workloadspread_test

import (
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

func recordNothing(string) events.EventRecorderLogger { return &events.FakeRecorder{} }

// eachCycle calls a function with each pod that the scheduler takes from its queue.
func eachCycle(s *scheduler.Scheduler, popped func(*framework.QueuedPodInfo)) {
	s.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		entity, err := s.SchedulingQueue.Pop(logger)
		if info, isPod := entity.(*framework.QueuedPodInfo); isPod && info != nil {
			popped(info)
		}
		return entity, err
	}
}
