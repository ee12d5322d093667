package federation

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
)

// Metrics of a hub, on the endpoint of the controller that leads. Those of FederatedReplicaSets are from their last status.
var (
	memberDesc = prometheus.NewDesc("berth_federation_member_state",
		"1 for the state that a member of the federation has, and 0 for all others: Ready, Connecting, Unreachable, Unauthorized, UnsupportedVersion, Duplicate, BadCredentials.", []string{"member", "state"}, nil)
	expiryDesc = prometheus.NewDesc("berth_federation_member_credentials_end_timestamp_seconds",
		"When the credentials of a member end, in seconds since 1970, as far as they say.", []string{"member"}, nil)
	replicasDesc = prometheus.NewDesc("berth_federatedreplicaset_replicas",
		"Replicas that a cluster is asked for.", []string{"namespace", "federatedreplicaset", "cluster"}, nil)
	availableDesc = prometheus.NewDesc("berth_federatedreplicaset_available_replicas",
		"Available pods in a cluster, as they were seen last.", []string{"namespace", "federatedreplicaset", "cluster"}, nil)
	capacityDesc = prometheus.NewDesc("berth_federatedreplicaset_capacity",
		"Replicas that a cluster has room for; -1 if nothing is known to limit it.", []string{"namespace", "federatedreplicaset", "cluster"}, nil)
	clustersDesc = prometheus.NewDesc("berth_federatedreplicaset_clusters",
		"Clusters of a FederatedReplicaSet by state: Ready, Full, NameTaken, Unreachable, Refusing, Lost, Returned, Leaving.", []string{"namespace", "federatedreplicaset", "state"}, nil)
	mayExceedDesc = prometheus.NewDesc("berth_federatedreplicaset_may_exceed_by",
		"Replicas that may run above the total, because a cluster does not answer.", []string{"namespace", "federatedreplicaset"}, nil)
	placedDesc = prometheus.NewDesc("berth_federatedreplicaset_placed",
		"0 if some replicas have no cluster that takes them, and 1 otherwise.", []string{"namespace", "federatedreplicaset"}, nil)
	readyDesc = prometheus.NewDesc("berth_federatedreplicaset_ready",
		"1 if the spec is valid, all clusters answer, and every cluster is asked for what it should have, and 0 if not.", []string{"namespace", "federatedreplicaset"}, nil)
	allDesc = prometheus.NewDesc("berth_federatedreplicasets",
		"Number of FederatedReplicaSets. They have metrics of their own as long as they have no more than 5000 clusters, all together.", nil, nil)
	writesDesc = prometheus.NewDesc("berth_federatedreplicaset_writes_total",
		"Writes to ReplicaSets in clusters, by operation (create, apply, scale, delete) and outcome: written, stale (changed since it was read, and tried again), refused (by the API server), failed.",
		[]string{"operation", "outcome"}, nil)
)

// operation is what is written.
type operation string

const (
	creating operation = "create"
	applying operation = "apply"
	scaling  operation = "scale"
	deleting operation = "delete"
)

// result is how a write ended.
type result string

const (
	isWritten result = "written"
	isStale   result = "stale"
	isRefused result = "refused"
	isFailed  result = "failed"
)

var (
	memberStates  = []members.State{members.Ready, members.Connecting, members.Unreachable, members.Unauthorized, members.UnsupportedVersion, members.Duplicate, members.BadCredentials}
	clusterStates = []v1alpha1.ClusterState{
		v1alpha1.ClusterReady, v1alpha1.ClusterFull, v1alpha1.ClusterNameTaken, v1alpha1.ClusterUnreachable, v1alpha1.ClusterRefusing, v1alpha1.ClusterLost, v1alpha1.ClusterReturned, v1alpha1.ClusterLeaving,
	}
)

// mostMeasured bounds the clusters of all FederatedReplicaSets with metrics of their own, and so the number of time series: each cluster has three, and each FederatedReplicaSet ten
// more.
const mostMeasured = 5000

// measures are the numbers of a hub. They are safe for concurrent use.
type measures struct {
	// members returns what is known of the members.
	members func() []members.Status

	mu       sync.Mutex
	measured map[types.NamespacedName]*v1alpha1.FederatedReplicaSetStatus
	// sum is the weight of all that is measured.
	sum int
	// others are the FederatedReplicaSets above the bound.
	others map[types.NamespacedName]bool
	writes map[write]int
}

type write struct {
	operation operation
	result    result
}

var _ prometheus.Collector = &measures{}

func newMeasures(all func() []members.Status) *measures {
	return &measures{members: all, measured: map[types.NamespacedName]*v1alpha1.FederatedReplicaSetStatus{}, others: map[types.NamespacedName]bool{}, writes: map[write]int{}}
}

// weightOf is what a status counts for the bound. One without clusters has metrics too.
func weightOf(status *v1alpha1.FederatedReplicaSetStatus) int { return max(len(status.Clusters), 1) }

func (m *measures) take(frs types.NamespacedName, status *v1alpha1.FederatedReplicaSetStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(frs)
	if m.sum+weightOf(status) > mostMeasured {
		m.others[frs] = true
		return
	}
	m.measured[frs] = status.DeepCopy()
	m.sum += weightOf(status)
}

func (m *measures) forget(frs types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(frs)
}

func (m *measures) drop(frs types.NamespacedName) {
	if before := m.measured[frs]; before != nil {
		m.sum -= weightOf(before)
	}
	delete(m.measured, frs)
	delete(m.others, frs)
}

// wrote counts a write.
func (m *measures) wrote(o operation, r result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes[write{o, r}]++
}

// Describe implements prometheus.Collector.
func (m *measures) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{memberDesc, expiryDesc, replicasDesc, availableDesc, capacityDesc, clustersDesc, mayExceedDesc, placedDesc, readyDesc, allDesc, writesDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *measures) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, member := range m.members() {
		if !member.Expires.IsZero() {
			gauge(expiryDesc, float64(member.Expires.Unix()), member.Name)
		}
		for _, state := range memberStates {
			gauge(memberDesc, oneIf(member.State == state), member.Name, string(state))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for frs, status := range m.measured {
		in := map[v1alpha1.ClusterState]int{}
		for i := range status.Clusters {
			c := &status.Clusters[i]
			in[c.State]++
			gauge(replicasDesc, float64(c.Wanted), frs.Namespace, frs.Name, c.Name)
			gauge(availableDesc, float64(c.AvailableReplicas), frs.Namespace, frs.Name, c.Name)
			capacity := -1.0
			if c.Capacity != nil {
				capacity = float64(c.Capacity.Replicas)
			}
			gauge(capacityDesc, capacity, frs.Namespace, frs.Name, c.Name)
		}
		for _, state := range clusterStates {
			gauge(clustersDesc, float64(in[state]), frs.Namespace, frs.Name, string(state))
		}
		gauge(mayExceedDesc, float64(status.MayExceedBy), frs.Namespace, frs.Name)
		gauge(placedDesc, oneIf(!meta.IsStatusConditionFalse(status.Conditions, v1alpha1.PlacedCondition)), frs.Namespace, frs.Name)
		gauge(readyDesc, oneIf(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReadyCondition)), frs.Namespace, frs.Name)
	}
	gauge(allDesc, float64(len(m.measured)+len(m.others)))
	for w, n := range m.writes {
		ch <- prometheus.MustNewConstMetric(writesDesc, prometheus.CounterValue, float64(n), string(w.operation), string(w.result))
	}
}

func oneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
