package united

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-project/berth/pkg/allocation"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/sites"
)

// site is a cluster in which subsets are, or children may be. That of the UnitedDeployment has no name and no state, and answers: without it nothing is planned.
type site struct {
	name   string
	status v1beta1.ClusterStatus
	// exists is false if no member has the name, and none of another name is the cluster.
	exists bool
	// as is the name that the member has now.
	as string
	// away is true if it does not answer, or does not exist. late is true if it has not answered yet in this round. closed is true if it answers and gets no more replicas.
	away, late, closed bool
	// Silence is empty unless it is away.
	sites.Silence
	// leaving is how many replicas children there ask for that have to go, and mostLeaving how many they may ask for.
	leaving, mostLeaving int32
	// matters is true if it has replicas, or is to have some.
	matters bool
}

// gather sorts clusters into those that answer and those that do not.
func (r *round) gather() {
	names, exist, now, before := r.Policy.Clusters(), map[string]*sites.Cluster{}, sites.Names{}, map[string]v1beta1.ClusterStatus{}
	for _, b := range r.Status.Clusters {
		names, before[b.Name] = append(names, b.Name), b
	}
	for i := range r.Children {
		if name := r.Children[i].Cluster; name != "" {
			names = append(names, name)
		}
	}
	for i := range r.Observed.Clusters {
		if c := &r.Observed.Clusters[i]; r.isRegistered(c) {
			if exist[c.Name] = c; c.Reachable {
				now.Add(c.Name, c.Identity)
			}
		}
	}
	slices.Sort(names)
	r.sites = map[string]*site{}
	for _, name := range slices.Compact(names) {
		r.sites[name] = r.siteOf(name, exist[now.Now(name, before[name].Identity)], before[name])
	}
}

// is is true for a place in the cluster of a child.
func (pl *place) is(in string) bool { return pl.Cluster == in || pl.as == in }

// isRegistered is true for a cluster in the namespace that the spec says.
func (r *round) isRegistered(c *sites.Cluster) bool {
	if len(r.ClusterNamespaces) > 0 && !slices.Contains(r.ClusterNamespaces, c.Namespace) {
		return false
	}
	return !slices.ContainsFunc(r.Subsets, func(s Subset) bool {
		return s.Cluster == c.Name && s.ClusterNamespace != "" && s.ClusterNamespace != c.Namespace
	})
}

// siteOf is what is known of a cluster. The previous status is right about since when it is away, even if this process has just started.
func (r *round) siteOf(name string, c *sites.Cluster, before v1beta1.ClusterStatus) *site {
	s := &site{name: name, as: name, exists: c != nil, away: c == nil || !c.Reachable}
	s.status = v1beta1.ClusterStatus{Name: name, State: v1beta1.ClusterReady, Since: metav1.NewTime(r.Now), Identity: before.Identity}
	if c != nil {
		s.as, s.status.Identity = c.Name, cmp.Or(c.Identity, before.Identity)
	}
	if !s.away {
		if slices.Contains([]v1beta1.ClusterState{v1beta1.ClusterReady, v1beta1.ClusterNotSelected, v1beta1.ClusterCordoned, v1beta1.ClusterDrained}, before.State) {
			s.status.Since = before.Since
		}
		switch {
		case c.Drained:
			s.status.State = v1beta1.ClusterDrained
		case !labels.SelectorFromSet(r.ClusterSelector).Matches(labels.Set(c.Labels)):
			s.status.State = v1beta1.ClusterNotSelected
		case c.Cordoned:
			s.status.State = v1beta1.ClusterCordoned
		}
		if s.late, s.closed = c.Late, s.status.State != v1beta1.ClusterReady; s.late {
			r.recallLeaving(s, before)
		}
		return s
	}
	lost := sites.LostAfter
	if r.Adaptive != nil {
		lost = r.Adaptive.Lost
	}
	s.Silence = r.Silent(string(before.State), before.Since.Time, c, lost)
	s.status.Since = metav1.NewTime(s.Since)
	if s.status.State = v1beta1.ClusterState(s.State()); !s.exists {
		s.status.State = v1beta1.ClusterUnknown
	}
	if r.recallLeaving(s, before); s.Lost && !s.exists {
		s.leaving, s.mostLeaving = 0, 0 // nothing is known of it, and it does not come back
	}
	s.matters = s.mostLeaving > 0
	return s
}

// recallLeaving says how many replicas have to go, of a cluster that does not answer, or is late.
func (r *round) recallLeaving(s *site, before v1beta1.ClusterStatus) {
	s.leaving, s.mostLeaving = before.LeavingReplicas, max(before.LeavingReplicas, before.SeenLeavingReplicas)
	for i := range r.Status.SubsetStatuses {
		is := &r.Status.SubsetStatuses[i]
		if is.Cluster == s.name && !slices.ContainsFunc(r.Subsets, func(of Subset) bool { return of.Name == is.Name && of.Cluster == s.name }) {
			s.leaving, s.mostLeaving = plus(s.leaving, min(is.Replicas, is.SeenReplicas)), plus(s.mostLeaving, max(is.Replicas, is.SeenReplicas))
		}
	}
}

// plus adds numbers that another cluster has said, and that may be as great as it likes.
func plus(a, b int32) int32 { return a + min(b, allocation.Unlimited-a) }

// isInDoubt is true while a cluster does not answer for a moment only, and nobody knows whether the last write there has arrived. Then nothing is raised.
func (r *round) isInDoubt() bool {
	for _, s := range r.sites {
		if s.InDoubt && s.mostLeaving > s.leaving {
			return true
		}
	}
	for i := range r.places {
		if pl := &r.places[i]; pl.away && pl.InDoubt && pl.before.Replicas != pl.before.SeenReplicas {
			return true
		}
	}
	return false
}

// recall takes what is known of a place whose cluster does not answer from the previous status. Nobody knows whether the last write has arrived.
func (r *round) recall(pl *place) {
	pl.schedulable, pl.failedTrials = ConditionIn(pl.before.Conditions, v1beta1.SubsetSchedulable), pl.before.FailedTrials
	pl.most = max(pl.before.Replicas, pl.before.SeenReplicas)
	pl.base = sites.Credit(min(pl.before.Replicas, pl.before.SeenReplicas), pl.Min.Of(r.Replicas), pl.Lost && r.Adaptive != nil)
	pl.firm, pl.available = pl.base, min(pl.before.ReadyReplicas, pl.base)
}

// weigh says which clusters matter, after the division.
func (r *round) weigh() {
	for i := range r.places {
		pl := &r.places[i]
		pl.matters = pl.matters || pl.most > 0 || pl.share > 0 || !pl.exists
	}
}

// clusters is the status of the clusters. One that no subset names is forgotten when nothing is left there.
func (r *round) clusters() []v1beta1.ClusterStatus {
	var all []v1beta1.ClusterStatus
	named := r.Policy.Clusters()
	for _, s := range r.sitesInOrder() {
		left, may := false, int32(0)
		if s.late {
			may, s.leaving, s.mostLeaving = s.mostLeaving, 0, 0
		}
		for _, l := range r.leaving {
			if l.child.Cluster == s.name {
				left = true
				s.leaving, s.mostLeaving = plus(s.leaving, l.keeps), plus(s.mostLeaving, l.child.Replicas)
			}
		}
		if s.leaving = max(s.leaving, may); max(s.leaving, s.mostLeaving) > 0 || left || slices.Contains(named, s.name) {
			s.status.LeavingReplicas, s.status.SeenLeavingReplicas = s.leaving, s.mostLeaving
			all = append(all, s.status)
		}
	}
	return all
}

func (r *round) sitesInOrder() []*site {
	return slices.SortedFunc(maps.Values(r.sites), func(a, b *site) int { return strings.Compare(a.name, b.name) })
}

// reachable says which clusters do not answer, and what follows from that.
func (r *round) reachable(status *v1beta1.UnitedDeploymentStatus) v1beta1.Condition {
	var messages []string
	for _, s := range r.sitesInOrder() {
		switch {
		case !s.away || !s.matters:
		case !s.exists:
			messages = append(messages, fmt.Sprintf("no cluster %s is registered that spec.topology.clusterRegistry allows; register it, or correct targetCluster", s.name))
		default:
			message := fmt.Sprintf("cluster %s has not answered since %s", s.name, s.status.Since.UTC().Format(time.RFC3339))
			if s.status.State == v1beta1.ClusterRefusing {
				message = fmt.Sprintf("cluster %s refuses the hub since %s: events of its ClusterProfile say what to do", s.name, s.status.Since.UTC().Format(time.RFC3339))
			}
			if s.Lost && r.Adaptive != nil {
				message += ", and other subsets run its replicas"
			}
			messages = append(messages, message)
		}
	}
	if len(messages) == 0 {
		return yes()
	}
	if above := r.mayExceedBy(status); above > 0 {
		messages = append(messages, fmt.Sprintf("up to %d replicas more than spec.replicas may run", above))
	}
	return no(v1beta1.ReasonUnreachable, strings.Join(messages, "; "))
}

// mayExceedBy is how many replicas there may be above the total.
func (r *round) mayExceedBy(status *v1beta1.UnitedDeploymentStatus) int64 {
	sum := -int64(r.Replicas)
	for i := range r.places {
		sum += int64(max(r.places[i].most, status.SubsetStatuses[i].Replicas))
	}
	for _, s := range r.sites {
		if s.away {
			sum += int64(s.mostLeaving)
		}
	}
	for _, l := range r.leaving {
		sum += int64(l.child.Replicas)
	}
	return sum
}

// notSelected are the subsets whose cluster the registry does not select.
func (r *round) notSelected() []string {
	var names []string
	for i := range r.places {
		if pl := &r.places[i]; pl.status.State == v1beta1.ClusterNotSelected {
			names = append(names, pl.Name+" in "+pl.Cluster)
		}
	}
	return names
}
