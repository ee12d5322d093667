package united

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// result writes down what the round has decided.
func (r *round) result() Plan {
	plan := Plan{Labels: r.labels(), Replaced: r.replaced()}
	if r.Template != nil {
		plan.Children = r.children()
	}
	plan.Status = r.status(plan.Children)
	plan.Again = r.Again
	return plan
}

// children are the wanted children: first those that get fewer replicas or have to go, last those that get more.
func (r *round) children() []Wanted {
	var all []Wanted
	for _, l := range r.leaving {
		if l.child.Deleting {
			continue
		}
		all = append(all, Wanted{
			Child: l.child, Subset: -1, Cluster: l.child.Cluster, Replicas: l.keeps, Partition: l.child.Partition, Revision: l.child.Revision, ReplicasOnly: true,
			Delete: l.keeps == 0 && l.child.Replicas == 0 && len(l.child.Pods) == 0, Late: l.late,
		})
	}
	earlierDone := true
	for i := range r.places {
		pl := &r.places[i]
		if pl.away {
			earlierDone = earlierDone && pl.most == 0
			continue
		}
		if pl.closed && pl.child == nil {
			continue
		}
		w := Wanted{Child: pl.child, Subset: i, Cluster: pl.as, Replicas: pl.next, Partition: pl.Partition, Revision: r.Revision, Late: pl.late}
		if pl.next == pl.wanted {
			w.Trial = pl.trial
		}
		updated := pl.child != nil && pl.child.Revision == r.Revision && pl.child.PatchText == pl.PatchText
		if pl.child != nil && !updated && (r.Paused || r.InOrder && !earlierDone || r.keepsTemplate(pl)) {
			w.Held, w.Revision, w.Partition = true, pl.child.Revision, pl.child.Partition
		}
		earlierDone = earlierDone && updated && pl.child.Rolled
		all = append(all, w)
	}
	slices.SortStableFunc(all, func(a, b Wanted) int { return cmp.Compare(a.direction(), b.direction()) })
	return all
}

// keepsTemplate is true for a child whose kind has no partitions, and whose partition is not below its replicas.
func (r *round) keepsTemplate(pl *place) bool {
	return !hasPartition(r.Template.Kind) && pl.Partition > 0 && pl.Partition >= pl.next
}

// direction is -1 for a child that gets fewer replicas or has to go, and 1 for one that gets more or is made.
func (w *Wanted) direction() int {
	if w.Child == nil {
		return 1
	}
	if w.ReplicasOnly {
		return -1
	}
	return cmp.Compare(w.Replicas, w.Child.Replicas)
}

// labels are the pods whose label says something else than they are.
func (r *round) labels() (all []Pod) {
	for i := range r.places {
		if r.places[i].child == nil {
			continue
		}
		for _, pod := range r.places[i].child.Pods {
			reserved := r.isReserved(&pod, r.isStuck(&pod))
			if ptr.Deref(pod.Reserved, false) != reserved {
				pod.Reserved = &reserved
				all = append(all, pod)
			}
		}
	}
	return all
}

// stuckAfter is for how long a pod may not be ready before it is replaced, if its StatefulSet waits for it in vain.
const stuckAfter = 30 * time.Second

// replaced are the pods of an older revision that are not ready, in children that have the latest one. A StatefulSet waits for its pods to be ready before it gives any of them another template: after a
// rollout that fails, it waits forever for the pod that the next template, or the previous one, would heal (https://github.com/kubernetes/kubernetes/issues/67250).
func (r *round) replaced() (pods []Pod) {
	for i := range r.places {
		c := r.places[i].child
		if c == nil || !c.ByOrdinal || c.Cluster != "" || !c.Observed || c.Revision != r.Revision {
			continue
		}
		for _, pod := range c.Pods {
			if pod.Revision != c.Revision && !pod.Ready && pod.Ordinal >= c.Partition && r.IsOver(pod.ReadySince, stuckAfter) {
				pods = append(pods, pod)
			}
		}
	}
	return pods
}

// status is the new status. The wanted children are nil if the template is empty.
func (r *round) status(children []Wanted) v1beta1.UnitedDeploymentStatus {
	status := v1beta1.UnitedDeploymentStatus{
		CurrentRevision: r.Status.CurrentRevision, UpdatedRevision: r.Revision, CollisionCount: r.Status.CollisionCount,
		SubsetReplicas: map[string]int32{}, UpdateStatus: &v1beta1.UpdateStatus{UpdatedRevision: r.Revision},
		LabelSelector: metav1.FormatLabelSelector(r.LabelSelector),
	}
	if r.Adaptive != nil && r.Adaptive.Reserve {
		status.LabelSelector += "," + v1beta1.ReservedPodLabel + "=false"
	}
	count := func(child *Child) {
		for i := range child.Pods {
			pod := &child.Pods[i]
			if r.isReserved(pod, r.isStuck(pod)) {
				continue
			}
			status.Replicas++
			updated := pod.Revision == r.Revision
			if pod.Ready {
				status.ReadyReplicas++
			}
			if updated {
				status.UpdatedReplicas++
			}
			if updated && pod.Ready {
				status.UpdatedReadyReplicas++
			}
		}
	}
	var summary []string
	for i := range r.places {
		pl := &r.places[i]
		s := v1beta1.SubsetStatus{Name: pl.Name, Cluster: pl.Cluster, Partition: pl.Partition, ReservedPods: pl.reserved, FailedTrials: pl.failedTrials}
		if pl.child != nil {
			count(pl.child)
			s.Replicas, s.ReadyReplicas = pl.child.Replicas, pl.child.ready()
			if pl.Cluster != "" {
				s.SeenReplicas = pl.child.Replicas
			}
		}
		if r.Template != nil {
			s.Replicas = pl.next
		}
		if pl.away {
			s.Replicas, s.SeenReplicas, s.ReadyReplicas = pl.before.Replicas, pl.before.SeenReplicas, pl.before.ReadyReplicas
			status.Replicas += s.Replicas
			status.ReadyReplicas += s.ReadyReplicas
		}
		if len(r.sites) > 0 {
			s.Share = pl.share
		}
		if pl.schedulable != nil {
			s.Conditions = []v1beta1.Condition{*pl.schedulable}
		}
		if pl.Partition > 0 {
			if status.UpdateStatus.CurrentPartitions == nil {
				status.UpdateStatus.CurrentPartitions = map[string]int32{}
			}
			status.UpdateStatus.CurrentPartitions[pl.Name] = pl.Partition
		}
		status.ReservedPods += pl.reserved
		status.SubsetReplicas[pl.Name] = s.Replicas
		status.SubsetStatuses = append(status.SubsetStatuses, s)
		summary = append(summary, fmt.Sprintf("%s %d/%d", pl.Name, s.ReadyReplicas, s.Replicas))
	}
	for _, l := range r.leaving {
		count(l.child)
	}
	status.Summary = strings.Join(summary, ", ")
	allUpdated := status.UpdatedReplicas == status.Replicas && !slices.ContainsFunc(children, func(w Wanted) bool { return w.Held })
	if allUpdated && r.Template != nil || status.CurrentRevision == "" {
		status.CurrentRevision = r.Revision
	}
	status.Clusters = r.clusters()
	status.Conditions = r.conditions(children, allUpdated, r.reachable(&status))
	return status
}

func (r *round) conditions(children []Wanted, allUpdated bool, reachable v1beta1.Condition) []v1beta1.Condition {
	var missing, behind, held []string
	for _, w := range children {
		switch {
		case w.Subset < 0:
		case w.Child == nil:
			missing = append(missing, r.Subsets[w.Subset].Name)
		case w.Held:
			held = append(held, r.Subsets[w.Subset].Name)
		case w.Child.Revision != w.Revision || w.Child.Replicas != w.Replicas || w.Child.PatchText != r.Subsets[w.Subset].PatchText, w.Late && w.Replicas != r.places[w.Subset].wanted:
			behind = append(behind, r.Subsets[w.Subset].Name)
		}
	}
	provisioned, updated, ready := yes(), yes(), yes()
	switch {
	case r.Template == nil:
		provisioned = no(v1beta1.ReasonNoTemplate, "spec.template is empty, so the children stay as they are; set exactly one template")
	case len(missing) > 0:
		provisioned = no(v1beta1.ReasonInProgress, "no child yet: "+strings.Join(missing, ", "))
	case len(r.leaving) > 0:
		provisioned = no(v1beta1.ReasonInProgress, fmt.Sprintf("%d children are left that have to go", len(r.leaving)))
	}
	switch {
	case r.Template == nil:
		updated = provisioned
	case len(behind)+len(missing) > 0:
		updated = no(v1beta1.ReasonInProgress, "being written: "+strings.Join(slices.Concat(missing, behind), ", "))
	case len(held) > 0 && r.Paused:
		updated = no(v1beta1.ReasonPaused, "spec.updateStrategy.paused keeps the previous template: "+strings.Join(held, ", "))
	case len(held) > 0:
		updated = no(v1beta1.ReasonInProgress, "previous template for now: "+strings.Join(held, ", "))
	}
	switch {
	case r.Template == nil:
		ready = provisioned
	case reachable.Status != corev1.ConditionTrue:
		ready = reachable
	case len(r.notSelected()) > 0:
		ready = no(v1beta1.ReasonNotSelected, "spec.topology.clusterRegistry does not select the clusters of these subsets, which get no more replicas: "+strings.Join(r.notSelected(), ", "))
	case r.unplaced > 0:
		ready = no(v1beta1.ReasonUnplaced, fmt.Sprintf("no subset takes %d of %d replicas: raise replicas or maxReplicas of a subset, or leave one out", r.unplaced, r.Policy.Replicas))
	case provisioned.Status != corev1.ConditionTrue:
		ready = provisioned
	case updated.Status != corev1.ConditionTrue && updated.Reason == v1beta1.ReasonInProgress && len(held) == 0:
		ready = updated
	}
	rolled := yes()
	if !allUpdated {
		rolled = no(v1beta1.ReasonInProgress, "not all pods have the template of "+r.Revision)
	}
	var all []v1beta1.Condition
	add := func(of v1beta1.ConditionType, is v1beta1.Condition) {
		is.Type = of
		all = append(all, Timed(is, r.Status.Conditions, r.Now))
	}
	add(v1beta1.ReadyCondition, ready)
	add(v1beta1.SubsetProvisioned, provisioned)
	add(v1beta1.SubsetUpdated, updated)
	add(v1beta1.UnitedDeploymentUpdated, rolled)
	if len(r.sites) > 0 {
		add(v1beta1.ClustersReachable, reachable)
	}
	return all
}

func yes() v1beta1.Condition {
	return v1beta1.Condition{Status: corev1.ConditionTrue, Reason: v1beta1.ReasonReady}
}

func no(reason v1beta1.Reason, message string) v1beta1.Condition {
	return v1beta1.Condition{Status: corev1.ConditionFalse, Reason: reason, Message: message}
}

// Timed is a condition with its time: that of the previous one, if that had the same status.
func Timed(c v1beta1.Condition, previous []v1beta1.Condition, now time.Time) v1beta1.Condition {
	c.LastTransitionTime = metav1.NewTime(now)
	if before := ConditionIn(previous, c.Type); before != nil && before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return c
}

// ConditionIn is the condition of a type, or nil.
func ConditionIn(all []v1beta1.Condition, of v1beta1.ConditionType) *v1beta1.Condition {
	for i := range all {
		if all[i].Type == of {
			return &all[i]
		}
	}
	return nil
}
