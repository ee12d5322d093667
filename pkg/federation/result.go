package federation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// result writes down what the round has decided.
func (r *round) result() Plan {
	plan := Plan{Again: r.Again, Clusters: make([]Wanted, 0, len(r.places))}
	for _, pl := range r.places {
		w := Wanted{Member: pl.Name, Local: pl.Local, Replicas: pl.next, Leaving: pl.leaving}
		if pl.Local == nil && pl.next == 0 || pl.Local != nil && pl.Local.Deleting || pl.Taken || pl.Late {
			continue
		}
		w.Delete = pl.leaving && pl.asked == 0 && pl.Local.Pods == 0
		plan.Clusters = append(plan.Clusters, w)
	}
	slices.SortStableFunc(plan.Clusters, func(a, b Wanted) int {
		return cmp.Compare(cmp.Compare(a.Replicas, a.Before()), cmp.Compare(b.Replicas, b.Before()))
	})
	names := make([]string, len(r.Members))
	for i, m := range r.Members {
		names[i] = m.Name
	}
	plan.Unknown = r.Unknown(names...)
	plan.Status = r.status(plan.Unknown)
	return plan
}

func (r *round) status(unknown []string) v1alpha1.FederatedReplicaSetStatus {
	s := v1alpha1.FederatedReplicaSetStatus{
		ObservedGeneration: r.Generation, LabelSelector: metav1.FormatLabelSelector(r.LabelSelector),
		Conditions: slices.Clone(r.Status.Conditions),
	}
	s.Clusters = make([]v1alpha1.ClusterStatus, 0, len(r.places)+len(r.absent))
	summary := make([]string, 0, cap(s.Clusters))
	may := int64(0)
	for _, pl := range r.places {
		c := v1alpha1.ClusterStatus{
			Name: pl.Name, Identity: cmp.Or(pl.Identity, pl.before.Identity), Share: pl.share, Wanted: pl.next, Replicas: pl.asked, ScheduledReplicas: pl.scheduled, AvailableReplicas: pl.available, Capacity: pl.figure,
		}
		if pl.Local != nil {
			s.Replicas += pl.Local.Pods
		}
		c.State, c.Message = r.stateOf(pl)
		if c.Since = metav1.NewTime(r.Now); c.State == pl.before.State {
			c.Since = pl.before.Since
		}
		s.Clusters = append(s.Clusters, c)
		s.ScheduledReplicas += c.ScheduledReplicas
		s.AvailableReplicas += c.AvailableReplicas
		may += int64(pl.share)
	}
	for _, a := range r.absent {
		c := *a.before.DeepCopy()
		c.Name, c.Share, c.Capacity = a.name, a.credit, nil
		if a.before.Name == "" {
			c.Wanted, c.Replicas = a.asked, a.asked
		}
		c.State, c.Since = v1alpha1.ClusterState(a.State()), metav1.NewTime(a.Since.Truncate(time.Second))
		c.Message = fmt.Sprintf("%s; other clusters run its replicas from %s on", a.why, a.Since.Add(r.Lost).UTC().Format(time.RFC3339))
		if a.Refuses {
			c.Message = a.why + "; its replicas stay its own"
		}
		if a.Lost {
			c.Message = fmt.Sprintf("%s; other clusters run %d of its %d replicas", a.why, a.asked-a.credit, a.asked)
		}
		s.Clusters = append(s.Clusters, c)
		may += int64(a.asked)
	}
	slices.SortFunc(s.Clusters, func(a, b v1alpha1.ClusterStatus) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range s.Clusters {
		text := fmt.Sprintf("%s %d/%d", c.Name, c.AvailableReplicas, c.Wanted)
		if c.State == v1alpha1.ClusterUnreachable || c.State == v1alpha1.ClusterRefusing || c.State == v1alpha1.ClusterLost {
			text += "?"
		}
		summary = append(summary, text)
	}
	s.Summary = strings.Join(summary, ", ")
	if len(r.absent) > 0 {
		s.MayExceedBy = int32(max(may-int64(r.Replicas), 0))
	}
	r.conditions(&s, unknown)
	return s
}

func (r *round) stateOf(pl *place) (v1alpha1.ClusterState, string) {
	switch {
	case pl.Taken:
		return v1alpha1.ClusterNameTaken, fmt.Sprintf("has another ReplicaSet %s in namespace %s; delete it, or let Berth take it over with the labels %s=true and %s=true, or those of an earlier hub with the annotation %s=true of the FederatedReplicaSet", r.Name, r.Namespace, v1alpha1.AdoptLabel, v1alpha1.HubLabel, v1alpha1.TakeOverAnnotation)
	case pl.leaving && pl.Drained:
		return v1alpha1.ClusterLeaving, "is drained; its replicas go when those of other clusters are available"
	case pl.leaving:
		return v1alpha1.ClusterLeaving, "has no entry in the preferences; its replicas go when those of other clusters are available"
	case pl.returned && pl.asked > pl.share:
		return v1alpha1.ClusterReturned, fmt.Sprintf("answers again; other clusters run %d of its %d replicas, and these go", pl.asked-pl.share, pl.asked)
	case pl.full && pl.figure.Source == v1alpha1.CapacityRefused:
		return v1alpha1.ClusterFull, pl.before.Message
	case pl.full:
		return v1alpha1.ClusterFull, fmt.Sprintf("pods found no node; it gets more than %d replicas from %s on", pl.figure.Replicas, pl.figure.RetryTime.UTC().Format(time.RFC3339))
	case pl.Cordoned:
		return v1alpha1.ClusterReady, "is cordoned; it gets no more replicas"
	default:
		return v1alpha1.ClusterReady, ""
	}
}

func (r *round) conditions(s *v1alpha1.FederatedReplicaSetStatus, unknown []string) {
	set := func(of string, holds bool, reason, message string) {
		c := metav1.Condition{Type: of, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: r.Generation, LastTransitionTime: metav1.NewTime(r.Now)}
		if holds {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&s.Conditions, c)
	}
	var away, moving []string
	for _, a := range r.absent {
		if a.asked > 0 {
			away = append(away, a.name)
		}
	}
	for _, pl := range r.places {
		if pl.asked != pl.share {
			moving = append(moving, fmt.Sprintf("%s has %d of %d", pl.Name, pl.asked, pl.share))
		}
	}
	var none string
	if len(unknown) > 0 {
		none = "no cluster has the name " + strings.Join(unknown, ", ") + "; correct or remove it"
	}
	unreachable := "no answer from " + strings.Join(away, ", ")
	if s.MayExceedBy > 0 {
		unreachable += fmt.Sprintf("; up to %d replicas above the total may run", s.MayExceedBy)
	}
	switch {
	case r.unplaced > 0:
		set(v1alpha1.PlacedCondition, false, v1alpha1.ReasonUnplaced, joined(fmt.Sprintf("the clusters do not take %d of %d replicas: raise maxReplicas or weights, or add room", r.unplaced, r.Replicas), none))
	case r.waiting > 0:
		set(v1alpha1.PlacedCondition, false, v1alpha1.ReasonWaiting, joined(fmt.Sprintf("no cluster has room for %d of %d replicas, which wait", r.waiting, r.Replicas), none))
	default:
		set(v1alpha1.PlacedCondition, true, v1alpha1.ReasonPlaced, none)
	}
	if len(away) > 0 {
		set(v1alpha1.ReachableCondition, false, v1alpha1.ReasonUnreachable, unreachable)
	} else {
		set(v1alpha1.ReachableCondition, true, v1alpha1.ReasonReachable, "")
	}
	switch {
	case len(away) > 0:
		set(v1alpha1.ReadyCondition, false, v1alpha1.ReasonUnreachable, unreachable)
	case r.unplaced > 0:
		set(v1alpha1.ReadyCondition, false, v1alpha1.ReasonUnplaced, fmt.Sprintf("the clusters do not take %d of %d replicas", r.unplaced, r.Replicas))
	case len(moving) > 0:
		set(v1alpha1.ReadyCondition, false, v1alpha1.ReasonInProgress, strings.Join(moving, ", "))
	default:
		set(v1alpha1.ReadyCondition, true, v1alpha1.ReasonReady, "")
	}
}

func joined(first, second string) string {
	if second == "" {
		return first
	}
	return first + "; " + second
}
