package sidecar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/podstate"
	model "github.com/berth-project/berth/pkg/sidecar"
	"github.com/berth-project/berth/pkg/watches"
)

const (
	// writeTimeout bounds each write. A write that does not answer in time may still happen for doubtFor.
	writeTimeout = 10 * time.Second
	doubtFor     = time.Minute
	// heldFor is how long a pod is not tried again after its update was refused.
	heldFor = 5 * time.Second
	// invalidFor is how long a pod is not tried again with the same version after the API server has called the result invalid.
	invalidFor = time.Hour
	// unseenFor is how long the cache may lack a pod that the API server had. After that the pod is gone.
	unseenFor = 5 * time.Second
	// staleInterval is how long Berth waits for its cache.
	staleInterval = 50 * time.Millisecond
	// publishInterval is the shortest time between two writes of the status for the same generation.
	publishInterval = time.Second
	// lookInterval is how often each set is looked at again.
	lookInterval = time.Minute
	// mostWrites bounds the writes of one round, after which the spec is read again, and longestRound the time in which a write may begin: each ends before the deadline of the reconcile.
	mostWrites   = 100
	longestRound = 15 * time.Second
)

// reconciler updates the pods of SidecarSets, and writes their status.
type reconciler struct {
	// client reads sets and namespaces from the cache, and writes. pods is the cache of pods. live reads from the API server.
	client client.Client
	pods   client.Reader
	live   client.Reader
	// watched is the state of the cache's watch of sets.
	watched   *watches.State
	events    events.EventRecorder
	clock     clock.PassiveClock
	namespace string
	measures  *frame.Measures[*v1beta1.SidecarSetStatus]

	memories frame.Memories[memory]

	asking sync.Mutex
	// asked is the expression of the webhook that was written or read last, and when.
	asked   string
	askedAt time.Time
	// served are the namespaces of the webhook. Nil means all.
	served labels.Selector
}

var _ reconcile.Reconciler = &reconciler{}

// memory is what is remembered about a set from one round to the next. Nothing is lost with it but time: the first round after that reads from the API server.
type memory struct {
	primed bool
	// observed are the pods of the last round, with the version of the set that observedFor names.
	observed    map[types.UID]observed
	observedFor string
	// primedAt is when the pods were read from the API server.
	primedAt time.Time
	// seen are the resourceVersions that the cache must reach before a plan can be made from it.
	seen map[types.UID]string
	// held is until when a pod is not tried again, and doubts until when a write may still happen.
	held, doubts map[types.UID]time.Time
	// unread are pods that must be read from the API server, because a write may have happened without an answer.
	unread map[types.UID]types.NamespacedName
	// gave is what pods were given lately.
	gave map[types.UID]gift
	// invalid are pods that the API server does not let have a version.
	invalid map[types.UID]invalid
	// refusal is the last message of somebody who refused an update.
	refusal string
	// revision is the ControllerRevision of the latest version, and version the label that it has.
	revision, version string
	published         time.Time
}

// gift is what the last write has made of a pod: one with the version, or one whose hot upgrades are over, or both.
type gift struct {
	version        string
	updated, reset bool
	// until is for how long Berth does not try again if somebody undoes it. Otherwise the two would write for ever.
	until time.Time
}

// invalid says why a pod cannot have a version, and until when Berth does not try again.
type invalid struct {
	version, why string
	until        time.Time
}

// undone is true if somebody has undone the last write.
func (m *memory) undone(pod *model.Pod, policy *model.Policy) bool {
	gave, is := m.gave[pod.UID]
	return is && gave.version == policy.Hash && (gave.updated && !pod.Updated || gave.reset && pod.Migrated)
}

// observed is what was observed of a pod at a resourceVersion, without the pod.
type observed struct {
	resourceVersion string
	is              model.Pod
}

func newMemory() *memory {
	return &memory{seen: map[types.UID]string{}, held: map[types.UID]time.Time{}, doubts: map[types.UID]time.Time{}, gave: map[types.UID]gift{}, invalid: map[types.UID]invalid{}, unread: map[types.UID]types.NamespacedName{}}
}

// Reconcile updates the pods that are next, and writes the status.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if err := r.askFor(ctx); err != nil {
		return reconcile.Result{}, err
	}
	set := &v1beta1.SidecarSet{}
	err := r.client.Get(ctx, request.NamespacedName, set)
	if apierrors.IsNotFound(err) || err == nil && !set.DeletionTimestamp.IsZero() {
		r.memories.Forget(request.NamespacedName)
		r.measures.Forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the SidecarSet: %w", err)
	}
	m, set := r.memories.Of(set, newMemory()), set.DeepCopy()
	policy, errs := model.Compile(set)
	if len(errs) > 0 {
		return r.publish(ctx, m, set, nil, frame.False(v1beta1.ReadyCondition, v1beta1.ReasonInvalid, "%s", errs.ToAggregate()))
	}
	if err := r.ensureRevision(ctx, set, policy, m); err != nil {
		return reconcile.Result{}, err
	}
	found, err := r.gather(ctx, policy, m)
	if err != nil {
		return reconcile.Result{}, err
	}
	if found == nil {
		return reconcile.Result{RequeueAfter: staleInterval}, nil
	}
	more, err := r.act(ctx, set, policy, m, found)
	result, publishErr := r.publish(ctx, m, set, found, found.condition(policy, m))
	if more {
		result.RequeueAfter = time.Millisecond
	}
	return result, errors.Join(err, publishErr, r.pruneRevisions(ctx, set, policy, m.revision, found))
}

// found are the pods of a set.
type found struct {
	pods        []model.Pod
	notInjected int32
	// undone are the names of pods whose updates somebody undoes.
	undone []string
}

// look takes what a pod is. It is held if somebody has undone its update.
func (f *found) look(at int, is model.Pod, policy *model.Policy, m *memory) {
	if m.undone(&is, policy) {
		is.Held = true
		f.undone = append(f.undone, is.Namespace+"/"+is.Name)
	}
	f.pods[at] = is
}

// gather observes the pods of a set: those of the cache, and in the first round of a process those of the API server. It is nil if the cache is older than what was written.
func (r *reconciler) gather(ctx context.Context, policy *model.Policy, m *memory) (*found, error) {
	reader := r.pods
	if !m.primed {
		reader = r.live
	}
	var list corev1.PodList
	options := []client.ListOption{client.MatchingLabelsSelector{Selector: policy.Selector}, client.InNamespace(policy.Namespace), client.UnsafeDisableDeepCopy}
	for uid, name := range m.unread {
		pod := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}
		if err := r.live.Get(ctx, name, pod); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading pod %s, of which a write had no answer: %w", name, err)
		}
		if pod.UID == uid {
			m.seen[uid] = pod.ResourceVersion
		}
		delete(m.unread, uid)
	}
	if err := reader.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	namespaces := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}}
	if err := r.client.List(ctx, &namespaces, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	picked, served, injecting := map[string]bool{}, map[string]bool{}, r.servedNamespaces()
	for i := range namespaces.Items {
		name, has := namespaces.Items[i].Name, labels.Set(namespaces.Items[i].Labels)
		picked[name], served[name] = policy.Namespaces.Matches(has), injecting.Matches(has)
	}
	now := r.clock.Now()
	expire(m.held, now)
	expire(m.doubts, now)
	maps.DeleteFunc(m.gave, func(_ types.UID, gave gift) bool { return now.After(gave.until) })
	maps.DeleteFunc(m.invalid, func(_ types.UID, is invalid) bool { return now.After(is.until) || is.version != policy.Hash })
	all, listed := &found{}, map[types.UID]bool{}
	for i := range list.Items {
		pod := &list.Items[i]
		if !picked[pod.Namespace] {
			continue
		}
		listed[pod.UID] = true
		if !m.primed {
			m.seen[pod.UID] = pod.ResourceVersion
		} else if seen, is := m.seen[pod.UID]; is {
			order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, seen)
			if err != nil {
				return nil, fmt.Errorf("comparing versions of pod %s: %w", klog.KObj(pod), err)
			}
			if order < 0 {
				return nil, nil
			}
			if order > 0 {
				delete(m.seen, pod.UID)
				delete(m.doubts, pod.UID)
			}
		}
		is, has := m.observe(policy, pod, now)
		_, is.Held = m.held[pod.UID]
		if refused, never := m.invalid[pod.UID]; never && is.Why == "" {
			is.Why = refused.why
		}
		if _, doubtful := m.doubts[pod.UID]; doubtful {
			is.Settled = false
		}
		switch {
		case has:
			all.pods = append(all.pods, is)
			all.look(len(all.pods)-1, is, policy, m)
		case served[pod.Namespace] && podstate.IsActive(pod):
			all.notInjected++
		}
	}
	maps.DeleteFunc(m.observed, func(uid types.UID, _ observed) bool { return !listed[uid] })
	if !m.primed {
		m.primed, m.primedAt = true, now
		return all, nil
	}
	for uid := range m.seen {
		if listed[uid] {
			continue
		}
		if now.Sub(m.primedAt) < unseenFor {
			return nil, nil
		}
		delete(m.seen, uid)
	}
	return all, nil
}

// observe is policy.Observe for a pod that has changed since the last round. Decoding the annotations of all pods would be most of the work of a round. What was observed stays true
// while neither the pod nor the set's content changes; only an update that is under way also depends on the time.
func (m *memory) observe(policy *model.Policy, pod *corev1.Pod, now time.Time) (model.Pod, bool) {
	if m.observed == nil || m.observedFor != m.revision {
		m.observed, m.observedFor = map[types.UID]observed{}, m.revision
	}
	if before, has := m.observed[pod.UID]; has && before.is.Settled && before.resourceVersion == pod.ResourceVersion {
		is := before.is
		is.Pod = pod
		return is, true
	}
	is, has := policy.Observe(pod, now)
	if !has {
		delete(m.observed, pod.UID)
		return is, false
	}
	kept := is
	kept.Pod = nil // it is in the list of this round, all of which would stay in memory
	m.observed[pod.UID] = observed{resourceVersion: pod.ResourceVersion, is: kept}
	return is, true
}

func expire(times map[types.UID]time.Time, now time.Time) {
	maps.DeleteFunc(times, func(_ types.UID, until time.Time) bool { return now.After(until) })
}

// act carries out what is next. It is true if there is more to do at once.
func (r *reconciler) act(ctx context.Context, set *v1beta1.SidecarSet, policy *model.Policy, m *memory, all *found) (more bool, _ error) {
	writes, begun := 0, r.clock.Now()
	do := func(pods []model.Pod, reset bool, write func(context.Context, *model.Pod) (*corev1.Pod, error)) (done bool, _ error) {
		for _, pod := range pods {
			if writes == mostWrites || r.clock.Since(begun) > longestRound {
				return false, nil
			}
			writes++
			at := slices.IndexFunc(all.pods, func(p model.Pod) bool { return p.UID == pod.UID })
			ctx, cancel := context.WithTimeout(ctx, writeTimeout)
			after, err := write(ctx, &pod)
			cancel()
			now := r.clock.Now()
			if err != nil && after != nil && after.ResourceVersion != "" { // only its resources were written
				m.seen[pod.UID] = after.ResourceVersion
			}
			switch {
			case err == nil:
				podWrites.WithLabelValues(written).Inc()
				m.seen[pod.UID] = after.ResourceVersion
				m.gave[pod.UID] = gift{version: policy.Hash, updated: !reset || pod.Updated, reset: reset, until: now.Add(lookInterval)}
				is, _ := policy.Observe(after, now)
				all.look(at, is, policy, m)
				klog.FromContext(ctx).V(2).Info("Updated a pod", "sidecarset", set.Name, "pod", klog.KObj(after), "revision", m.revision)
			case apierrors.IsConflict(err), apierrors.IsNotFound(err):
				podWrites.WithLabelValues(stale).Inc()
				all.pods[at].Held = true // the cache will show what has changed
				m.held[pod.UID] = now.Add(staleInterval)
			case apierrors.IsInvalid(err):
				podWrites.WithLabelValues(refused).Inc()
				all.pods[at].Why = err.Error()
				m.invalid[pod.UID] = invalid{version: policy.Hash, why: err.Error(), until: now.Add(invalidFor)}
			case frame.IsRefused(err), apierrors.IsTooManyRequests(err):
				podWrites.WithLabelValues(refused).Inc()
				all.pods[at].Held = true
				m.held[pod.UID], m.refusal = now.Add(heldFor), fmt.Sprintf("pod %s/%s: %v", pod.Namespace, pod.Name, err)
				frame.Warning(v1beta1.ReasonRefused, "UpdatePod", "%s", m.refusal).Send(r.events, set, pod.Pod)
			default: // nobody knows whether it happens
				podWrites.WithLabelValues(failed).Inc()
				all.pods[at].Settled, m.doubts[pod.UID], m.unread[pod.UID] = false, now.Add(doubtFor), client.ObjectKeyFromObject(pod.Pod)
				return false, fmt.Errorf("updating pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
		}
		return true, nil
	}
	done, err := do(policy.Resets(all.pods), true, func(ctx context.Context, pod *model.Pod) (*corev1.Pod, error) {
		return r.patch(ctx, pod.Pod, policy.Reset(pod.Pod, r.clock.Now()), "")
	})
	for done && err == nil {
		next := policy.Next(all.pods)
		if len(next) == 0 {
			if len(m.held) == 0 {
				m.refusal = ""
			}
			return false, nil
		}
		done, err = do(next, false, func(ctx context.Context, pod *model.Pod) (*corev1.Pod, error) {
			return r.update(ctx, policy, pod, m.revision)
		})
	}
	return !done, err
}

// publish writes the status if it has changed, but not too often.
func (r *reconciler) publish(ctx context.Context, m *memory, set *v1beta1.SidecarSet, all *found, ready frame.Condition[string]) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: lookInterval}
	if len(m.held) > 0 {
		result.RequeueAfter = heldFor
	}
	status := set.Status.DeepCopy()
	status.ObservedGeneration = set.Generation
	if all != nil {
		all.count(status)
		status.LatestRevision = m.revision
	}
	ready.Set(&status.Conditions, set.Generation, metav1.NewTime(r.clock.Now()))
	r.measures.Take(client.ObjectKeyFromObject(set), status.DeepCopy())
	if equality.Semantic.DeepEqual(status, &set.Status) {
		return result, nil
	}
	if wait := publishInterval - r.clock.Since(m.published); wait > 0 && set.Status.ObservedGeneration == set.Generation {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	set.Status = *status
	m.published = r.clock.Now()
	if done, err := frame.WriteStatus(ctx, r.client, set, client.FieldOwner(v1beta1.FieldManager)); !done {
		return reconcile.Result{RequeueAfter: staleInterval}, err
	}
	return result, nil
}

func (f *found) count(status *v1beta1.SidecarSetStatus) {
	status.MatchedPods, status.UpdatedPods, status.ReadyPods, status.UpdatedReadyPods, status.NotUpdatablePods = 0, 0, 0, 0, 0
	status.NotInjectedPods = f.notInjected
	for i := range f.pods {
		pod := &f.pods[i]
		if !pod.DeletionTimestamp.IsZero() {
			continue
		}
		status.MatchedPods++
		if pod.Ready {
			status.ReadyPods++
		}
		switch {
		case pod.Updated:
			status.UpdatedPods++
			if pod.Available() {
				status.UpdatedReadyPods++
			}
		case pod.Why != "" && !pod.Over:
			status.NotUpdatablePods++
		}
	}
}

// condition says what the set waits for.
func (f *found) condition(policy *model.Policy, m *memory) frame.Condition[string] {
	var total, updated, old, picked int
	var out, stuck, changed []string
	for i := range f.pods {
		pod := &f.pods[i]
		if !pod.DeletionTimestamp.IsZero() {
			continue
		}
		total++
		due := !pod.Updated && !pod.Over && policy.UpdateSelector.Matches(labels.Set(pod.Labels))
		switch name := pod.Namespace + "/" + pod.Name; {
		case pod.Updated && pod.Available():
			updated++
		case pod.Out():
			out = append(out, name)
		case due && pod.Why != "":
			stuck = append(stuck, fmt.Sprintf("%s: %s", name, pod.Why))
		}
		if !pod.Updated && !pod.Over {
			old++
		}
		if due {
			picked++
		}
		if pod.Changed {
			changed = append(changed, pod.Namespace+"/"+pod.Name)
		}
	}
	left := min(picked, old-policy.Keep(total))
	progress := fmt.Sprintf("%d of %d pods have the latest version and are available", updated, total)
	if old > picked {
		progress += fmt.Sprintf("; updateStrategy.selector does not pick %d older ones", old-picked)
	}
	if len(changed) > 0 {
		progress += fmt.Sprintf("; others have changed the image of a sidecar in %d pods: %s", len(changed), first(changed))
	}
	switch {
	case left <= 0 && len(out) == 0:
		return frame.True(v1beta1.ReadyCondition, v1beta1.ReasonReady, "%s", progress)
	case !policy.Rolling, policy.Paused:
		return frame.False(v1beta1.ReadyCondition, v1beta1.ReasonPaused, "%s; the update strategy updates no more", progress)
	case len(f.undone) > 0:
		return frame.False(v1beta1.ReadyCondition, v1beta1.ReasonRefused, "%s; somebody undoes the update, Berth tries again once a minute: %s", progress, first(f.undone))
	case m.refusal != "":
		return frame.False(v1beta1.ReadyCondition, v1beta1.ReasonRefused, "%s; %s", progress, m.refusal)
	case len(out) > 0:
		return frame.False(v1beta1.ReadyCondition, v1beta1.ReasonUpdating, "%s; %d were updated and are not available: %s", progress, len(out), first(out))
	case len(stuck) > 0 && left <= len(stuck):
		return frame.False(v1beta1.ReadyCondition, v1beta1.ReasonNotUpdatable, "%s; %d cannot be updated in place, delete them to let their workloads make new ones: %s", progress, len(stuck), first(stuck))
	default:
		return frame.False(v1beta1.ReadyCondition, v1beta1.ReasonUpdating, "%s", progress)
	}
}

// first are a few of many.
func first(all []string) string {
	const few = 5
	slices.Sort(all)
	if len(all) > few {
		return strings.Join(all[:few], ", ") + " and more"
	}
	return strings.Join(all, ", ")
}
