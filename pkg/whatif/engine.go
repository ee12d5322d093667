package whatif

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/fit"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/plugins/scheduling/workloadspread"
	"github.com/berth-project/berth/pkg/podstate"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// Engine answers questions about one snapshot. It is not safe for concurrent use.
type Engine struct {
	*lineage.Snapshot
	// Filters of kube-scheduler alone. Nil for an engine that divides pods and cannot answer whether a node takes one.
	Filters *fit.Filters

	clock clock.PassiveClock
	// live is asked what admission makes of a pod.
	live client.Client
	// scheduler is the filters with the plugin.
	scheduler *fit.Filters
	plugin    *workloadspread.Rehearsal
}

// Now is the time of the engine's clock.
func (e *Engine) Now() time.Time { return e.clock.Now() }

// NewEngine makes an engine. Its filters register their informers with the factory, which the caller starts; they must
// have synced before a question is asked. The context bounds the life of the engine.
func NewEngine(ctx context.Context, taken *lineage.Snapshot, live client.Client, typed kubernetes.Interface, factory informers.SharedInformerFactory, clock clock.PassiveClock) (*Engine, error) {
	e := &Engine{Snapshot: taken, clock: clock, live: live, plugin: workloadspread.NewRehearsal(clock.Now())}
	var err error
	notices := podstate.DefaultNotices()
	if e.Filters, err = fit.NewFilters(ctx, typed, factory, notices); err != nil {
		return nil, err
	}
	e.scheduler, err = fit.NewFilters(ctx, typed, factory, notices, fit.Plugin{Profile: v1beta1.SchedulerName, Name: workloadspread.Name, Weight: 2, New: e.plugin.Plugin})
	return e, err
}

// Divided is a spread with the pods that it divides.
type Divided struct {
	Spread *v1beta1.WorkloadSpread
	// Policy is nil if the spread is invalid. Invalid then says why.
	Policy   *subset.Policy
	Invalid  field.ErrorList
	Replicas int32
	// Ordinals of the workload. Nil if it gives none.
	Ordinals *workload.Ordinals
	// Pods that it divides.
	Pods  []*corev1.Pod
	Tally *subset.Tally
}

// DividedBy is the spread that divides a pod, with all of its pods counted. It is nil if none does.
func (e *Engine) DividedBy(ctx context.Context, pod *corev1.Pod) (*Divided, error) {
	found, err := e.SpreadOf(ctx, pod)
	if err != nil || found == nil {
		return nil, err
	}
	for i := range e.Spreads {
		if spread := &e.Spreads[i]; spread.Namespace == pod.Namespace && spread.Name == found.Name {
			return e.Divide(ctx, spread, found)
		}
	}
	return nil, fmt.Errorf("WorkloadSpread %s/%s is gone", pod.Namespace, found.Name)
}

// Divide counts the pods of a spread. It is an error if the workload does not exist.
func (e *Engine) Divide(ctx context.Context, spread *v1beta1.WorkloadSpread, compiled *lineage.Spread) (*Divided, error) {
	d := &Divided{Spread: spread, Policy: compiled.Policy, Invalid: compiled.Invalid}
	if d.Policy == nil {
		return d, nil
	}
	target, err := e.Lineage.Read(ctx, spread.Namespace, workload.TargetOf(spread))
	if err != nil {
		return nil, err
	}
	if target == nil {
		return nil, fmt.Errorf("%s/%s, the workload of WorkloadSpread %s, does not exist", spread.Spec.TargetReference.Kind, spread.Spec.TargetReference.Name, spread.Name)
	}
	if d.Replicas, err = e.Replicas(ctx, spread, target); err != nil {
		return nil, err
	}
	owner := workload.TargetOf(spread)
	read, err := e.Lineage.Ordinals(ctx, spread.Namespace, owner)
	if err != nil {
		return nil, err
	}
	owner.UID = target.GetUID()
	d.Ordinals = workload.OrdinalsOf(owner, target, read)
	var pods []subset.Pod
	for _, pod := range e.Pods {
		if pod.Namespace != spread.Namespace {
			continue
		}
		of, err := e.SpreadOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		if of != nil && of.Name == spread.Name {
			d.Pods = append(d.Pods, pod)
			pods = append(pods, subset.Observe(pod, e.Node(pod.Spec.NodeName)))
		}
	}
	d.Tally = d.Policy.Count(pods, spread.Name)
	return d, nil
}
