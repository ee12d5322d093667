package workloadspread

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
	"github.com/berth-project/berth/pkg/subset"
)

// book runs the ledger: it applies one event at a time and carries out the effects afterwards. All profiles of a scheduler share it, because they
// share the quotas.
//
// All methods may be called from any goroutine. Effects are carried out after the mutex is released, because the scheduling queue calls the plugin's
// queueing hints under a lock of its own.
type book struct {
	clock delayingClock
	// activate makes the scheduling queue try pods soon.
	activate func(map[string]*corev1.Pod)
	// cached is true if the informer cache holds this very pod, which may still run. Then its end will be reported.
	cached func(*corev1.Pod) bool
	// owners reads owners and workloads that the ledger asks for; see ledger.Effects.
	owners ownerReader

	mu     sync.Mutex
	ledger *ledger.Ledger
	// inFlight are the pods that have begun a cycle and have not been in PreEnqueue since. The value is true if the pod was woken since; see
	// wokenInCycle.
	inFlight map[types.UID]bool
	// held are the pods that the gate holds. An overdue pod was found woken, and still held, by an audit.
	held  map[types.UID]*heldPod
	timer clock.Timer
	// timerAt is when the timer fires. Zero if it is not set.
	timerAt time.Time
}

// delayingClock is the part of clock.WithDelayedExecution that a book needs.
type delayingClock interface {
	clock.PassiveClock
	AfterFunc(time.Duration, func()) clock.Timer
}

type heldPod struct {
	pod     *corev1.Pod
	overdue bool
}

// ownerReader reads owners and workloads that the scheduler has no informer for, or whose news are late.
type ownerReader interface {
	// want starts to watch a kind of owners.
	want(schema.GroupKind)
	// follow reads the replicas of the spread's workload, now and after each change, unless the scheduler's informers have them.
	follow(*v1beta1.WorkloadSpread)
	// read reads the replicas of a workload from the API server, and tells the ledger.
	read(ledger.Question)
	// forget ends what follow began.
	forget(ledger.Workload)
}

// apply applies an event and carries out its effects.
func (b *book) apply(event ledger.Event) ledger.Effects {
	b.mu.Lock()
	fx := b.ledger.Apply(b.clock.Now(), event)
	b.setTimer(fx.At)
	b.mu.Unlock()
	b.carryOut(&fx)
	return fx
}

// mayStillRun is true if the cached pod is this one and has not ended. A deleted pod with a finalizer stays in the cache, and the ledger has heard of its end.
func mayStillRun(cached, pod *corev1.Pod) bool {
	return cached.UID == pod.UID && subset.IsActive(cached)
}

// ask applies PodAsks. It first shows the ledger a pod that it has not seen, unless the pod was deleted while it was in the queue: nothing would ever
// remove such a pod from the ledger.
func (b *book) ask(event ledger.PodAsks) ledger.Effects { return b.askFor(event, event.Pod) }

// askFor is ask for one or more pods. The ledger answers if it knows all of them.
func (b *book) askFor(event ledger.Event, pods ...*corev1.Pod) (fx ledger.Effects) {
	b.mu.Lock()
	shown, known := b.show(pods)
	if known {
		fx = b.ledger.Apply(b.clock.Now(), event)
		for _, pod := range pods {
			b.inFlight[pod.UID] = false // what woke it before led to this cycle
			if fx.Undivided() {
				delete(b.inFlight, pod.UID) // nothing wakes it
			}
		}
		b.setTimer(fx.At)
	} else {
		fx.Answer = ledger.Answer{Reason: v1beta1.ReasonWorkloadNotObserved, Message: "the pod is gone"}
	}
	b.mu.Unlock()
	for i := range shown {
		b.carryOut(&shown[i])
	}
	b.carryOut(&fx)
	return fx
}

// show shows the ledger the pods that it has not seen. It is false if one of them is gone. The caller holds the mutex, and carries out the effects.
func (b *book) show(pods []*corev1.Pod) (shown []ledger.Effects, known bool) {
	for _, pod := range pods {
		if b.ledger.Knows(pod.UID) {
			continue
		}
		if !b.cached(pod) {
			return shown, false
		}
		shown = append(shown, b.ledger.Apply(b.clock.Now(), ledger.PodSeen{Pod: pod}))
	}
	return shown, true
}

func (b *book) carryOut(fx *ledger.Effects) {
	if len(fx.Wake) > 0 {
		wokenPods.Add(float64(len(fx.Wake)))
		b.wake(fx.Wake...)
	}
	for _, kind := range fx.Want {
		b.owners.want(kind)
	}
	for _, workload := range fx.Forget { // first: the spread may have been deleted and created again
		b.owners.forget(workload)
	}
	for _, spread := range fx.Follow {
		b.owners.follow(spread)
	}
	for _, question := range fx.Read {
		b.owners.read(question)
	}
}

// wake makes the scheduling queue try pods at once. A pod in the middle of a cycle is tried as soon as the cycle has ended.
func (b *book) wake(pods ...*corev1.Pod) {
	woken := make(map[string]*corev1.Pod, len(pods))
	b.mu.Lock()
	for _, pod := range pods {
		woken[string(pod.UID)] = pod
		if _, found := b.inFlight[pod.UID]; found {
			b.inFlight[pod.UID] = true
		}
	}
	b.mu.Unlock()
	b.activate(woken)
}

// wokenInCycle is called by PreEnqueue for a pod that enters the queue. It is true if the pod was woken during its cycle. Then the pod must not enter
// by itself.
//
// The queue remembers that such a pod was activated, and puts it into the backoff queue when its cycle has failed. While other pods are active it
// would stay there for up to 10 s. A pod that is activated after it came back goes straight to the active queue.
func (b *book) wokenInCycle(pod *corev1.Pod) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	woken := b.inFlight[pod.UID]
	delete(b.inFlight, pod.UID)
	if b.ledger.WaitsForSlot(pod.UID) {
		return false // it was activated so that the queue asks the gate, and later wake-ups find it in the queue
	}
	if woken {
		go b.activate(map[string]*corev1.Pod{string(pod.UID): pod}) // the queue holds its lock during this call
	}
	return woken
}

// leftQueue records that a pod is bound or gone, and does not come back to the queue.
func (b *book) leftQueue(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.inFlight, uid)
	delete(b.held, uid)
}

// setTimer applies TimePassed when the ledger asks for it. One timer serves all pods.
func (b *book) setTimer(at time.Time) {
	if at.IsZero() || !b.timerAt.IsZero() && !at.Before(b.timerAt) {
		return
	}
	b.timerAt = at
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = b.clock.AfterFunc(at.Sub(b.clock.Now()), func() {
		b.mu.Lock()
		b.timerAt = time.Time{}
		b.mu.Unlock()
		b.apply(ledger.TimePassed{})
	})
}

// audit looks for wake-ups that were missed: free slots for which pods wait, and pods that the ledger has woken and the gate still holds since the
// last audit.
func (b *book) audit() {
	missed := b.apply(ledger.Audit{}).Missed
	var stuck []*corev1.Pod
	b.mu.Lock()
	for uid, h := range b.held {
		switch {
		case b.ledger.WaitsForSlot(uid):
			h.overdue = false
		case h.overdue:
			stuck = append(stuck, h.pod)
		default:
			h.overdue = true
		}
	}
	b.mu.Unlock()
	missedWakeUps.Add(float64(missed + len(stuck)))
	if len(stuck) > 0 {
		b.wake(stuck...)
	}
}

// holds is true if the gate must hold the pod, whose group has this version. It records the answer.
func (b *book) holds(pod *corev1.Pod, group string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	waits := b.ledger.WaitsForSlot(pod.UID) && b.ledger.GroupVersion(pod.UID) == group
	if waits {
		b.held[pod.UID] = &heldPod{pod: pod}
		delete(b.inFlight, pod.UID) // it is back, and this plugin's other PreEnqueue may not be asked
	} else {
		delete(b.held, pod.UID)
	}
	return waits
}

// query asks the ledger. The question must neither change the ledger nor use the book.
func query[T any](b *book, question func(*ledger.Ledger) T) T {
	b.mu.Lock()
	defer b.mu.Unlock()
	return question(b.ledger)
}

func (b *book) waitsForNode(uid types.UID) (*ledger.Decision, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ledger.WaitsForNode(uid)
}

// gateChanged is true if a pod may be tried now because the gates of others are gone, or must be tried because Berth's gate is gone: only then does its
// condition say that it waits for a node. It is false if the ledger has woken the pod.
func (b *book) gateChanged(before, after *corev1.Pod) bool {
	switch {
	case !subset.IsGated(before) || len(subset.OtherGates(after)) > 0:
		return false
	case subset.IsGated(after):
		return len(subset.OtherGates(before)) > 0
	}
	d, divided := b.waitsForNode(after.UID)
	return d != nil || !divided
}

// hasSpreads is true if there is a spread in the namespace.
func (b *book) hasSpreads(namespace string) bool {
	return query(b, func(l *ledger.Ledger) bool { return l.HasSpreads(namespace) })
}
