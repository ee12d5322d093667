package workloadspread

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// Rehearsal is the plugin in a what-if. It decides as it does in a scheduler. But its caller feeds the ledger and sets the time, it reads nothing from an
// API server, and it writes nothing. It does not preempt. It is not safe for concurrent use.
type Rehearsal struct {
	core *core
	// Activate is called with pods that the scheduling queue should try at once. It must not call the Rehearsal.
	Activate func(*corev1.Pod)

	now   time.Time
	timer *rehearsedTimer
}

// NewRehearsal is an empty one. The time is now.
func NewRehearsal(now time.Time) *Rehearsal {
	r := &Rehearsal{Activate: func(*corev1.Pod) {}}
	r.core = &core{
		settings:     defaultSettings(),
		finder:       newFinder(defaultSettings().notices),
		takeover:     &takeover{done: true},
		gated:        func(*corev1.Pod) bool { return false },
		groupVersion: func(*corev1.Pod) string { return "" },
		announce:     func(announcement) {},
	}
	r.Begin(now)
	return r
}

// Begin forgets everything that the ledger was told. The time is now.
func (r *Rehearsal) Begin(now time.Time) {
	r.now, r.timer = now, nil
	predicates := r.core.finder.predicates
	r.core.finder = newFinder(r.core.settings.notices)
	r.core.finder.predicates = predicates
	r.core.book = &book{
		clock: r,
		activate: func(pods map[string]*corev1.Pod) {
			for _, pod := range pods {
				r.Activate(pod)
			}
		},
		cached: func(*corev1.Pod) bool { return true },
		owners: noOwnerReader{},
		ledger: ledger.New(0), inFlight: map[types.UID]bool{}, held: map[types.UID]*heldPod{},
	}
}

// Plugin makes the plugin of a framework.
func (r *Rehearsal) Plugin(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	profile, ok := handle.(framework.Framework)
	if !ok {
		return nil, errors.New("a rehearsal needs the framework as its handle")
	}
	r.core.finder.predicates.add(ctx, profile)
	return &Spread{core: r.core, handle: handle}, nil
}

// Apply tells the ledger what happened.
func (r *Rehearsal) Apply(event ledger.Event) { r.core.book.apply(event) }

// Bind is the pod as its Binding makes it, in the cycle of this state, which has reserved the node.
func (r *Rehearsal) Bind(state fwk.CycleState, pod *corev1.Pod, node string) (*corev1.Pod, error) {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	if d := decisionIn(state); d != nil {
		binding, err := bindingOf(pod, node, d)
		if err != nil {
			return nil, err
		}
		if bound.Annotations == nil {
			bound.Annotations = map[string]string{}
		}
		if bound.Labels == nil {
			bound.Labels = map[string]string{}
		}
		maps.Copy(bound.Annotations, binding.Annotations)
		maps.Copy(bound.Labels, binding.Labels)
		r.Apply(ledger.BindSent{UID: pod.UID, Decision: d.Decision})
	}
	r.core.book.leftQueue(pod.UID)
	r.Apply(ledger.PodSeen{Pod: bound})
	return bound, nil
}

// ClaimOf is the subset in which an unbound pod waits for a node. Nil if it waits in none.
func (r *Rehearsal) ClaimOf(pod *corev1.Pod) *subset.Subset {
	return query(r.core.book, func(l *ledger.Ledger) *subset.Subset { return l.ClaimOf(pod.UID) })
}

// ReasonOf a status with which the plugin refused a pod. Empty for a status that is not the plugin's.
func (r *Rehearsal) ReasonOf(status *fwk.Status) v1beta1.Reason {
	var refused *refusal
	switch {
	case status.Plugin() != Name:
	case errors.As(status.AsError(), &refused):
		return refused.reason
	case strings.HasPrefix(status.Message(), string(v1beta1.ReasonNoNodeFits)):
		return v1beta1.ReasonNoNodeFits
	}
	return ""
}

// Next is when something is due that only waits for time to pass. Zero if nothing is.
func (r *Rehearsal) Next() time.Time {
	if r.timer == nil {
		return time.Time{}
	}
	return r.timer.at
}

// Advance lets time pass until something is due.
func (r *Rehearsal) Advance() {
	if due := r.timer; due != nil {
		r.timer, r.now = nil, due.at
		due.do()
	}
}

// Now implements clock.PassiveClock.
func (r *Rehearsal) Now() time.Time { return r.now }

// Since implements clock.PassiveClock.
func (r *Rehearsal) Since(t time.Time) time.Duration { return r.now.Sub(t) }

// AfterFunc keeps the last call, which is the only one that counts for a book.
func (r *Rehearsal) AfterFunc(after time.Duration, do func()) clock.Timer {
	r.timer = &rehearsedTimer{at: r.now.Add(after), do: do}
	return r.timer
}

// rehearsedTimer is due when the Rehearsal says so.
type rehearsedTimer struct {
	clock.Timer
	at time.Time
	do func()
}

// Stop implements clock.Timer. The book sets another one.
func (t *rehearsedTimer) Stop() bool { return true }

// noOwnerReader reads nothing: the caller of a Rehearsal tells the ledger about owners.
type noOwnerReader struct{}

func (noOwnerReader) want(schema.GroupKind)          {}
func (noOwnerReader) follow(*v1beta1.WorkloadSpread) {}
func (noOwnerReader) read(ledger.Question)           {}
func (noOwnerReader) forget(ledger.Workload)         {}
