package federation

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
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

// measures are the numbers of a hub.
type measures struct {
	*frame.Measures[*v1alpha1.FederatedReplicaSetStatus]
	writes *prometheus.CounterVec
}

// newMeasures takes what is known of the members.
func newMeasures(all membership) *measures {
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_federatedreplicaset_writes_total",
		Help: "Writes to ReplicaSets in clusters, by operation (create, apply, scale, delete) and outcome: written, stale (changed since it was read, and tried again), refused (by the API server), failed.",
	}, []string{"operation", "outcome"})
	return &measures{writes: writes, Measures: frame.NewMeasures(frame.Series[*v1alpha1.FederatedReplicaSetStatus]{
		Count: allDesc, Own: []*prometheus.Desc{replicasDesc, availableDesc, capacityDesc, clustersDesc, mayExceedDesc, placedDesc, readyDesc}, Others: []prometheus.Collector{all, writes},
		Most: mostMeasured, Weight: func(status *v1alpha1.FederatedReplicaSetStatus) int { return max(len(status.Clusters), 1) }, // one without clusters has metrics too
		Send: func(status *v1alpha1.FederatedReplicaSetStatus, gauge func(*prometheus.Desc, float64, ...string)) {
			in := map[v1alpha1.ClusterState]int{}
			for i := range status.Clusters {
				c := &status.Clusters[i]
				in[c.State]++
				gauge(replicasDesc, float64(c.Wanted), c.Name)
				gauge(availableDesc, float64(c.AvailableReplicas), c.Name)
				capacity := -1.0
				if c.Capacity != nil {
					capacity = float64(c.Capacity.Replicas)
				}
				gauge(capacityDesc, capacity, c.Name)
			}
			for _, state := range clusterStates {
				gauge(clustersDesc, float64(in[state]), string(state))
			}
			gauge(mayExceedDesc, float64(status.MayExceedBy))
			gauge(placedDesc, frame.OneIf(!meta.IsStatusConditionFalse(status.Conditions, v1alpha1.PlacedCondition)))
			gauge(readyDesc, frame.OneIf(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReadyCondition)))
		},
	})}
}

// wrote counts a write.
func (m *measures) wrote(o apply.Operation, is apply.Result) {
	m.writes.WithLabelValues(string(o), string(is)).Inc()
}

// membership is what is known of the members.
type membership func() []members.Status

// Describe implements prometheus.Collector.
func (all membership) Describe(ch chan<- *prometheus.Desc) {
	ch <- memberDesc
	ch <- expiryDesc
}

// Collect implements prometheus.Collector.
func (all membership) Collect(ch chan<- prometheus.Metric) {
	for _, member := range all() {
		if !member.Expires.IsZero() {
			ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(member.Expires.Unix()), member.Name)
		}
		for _, state := range memberStates {
			ch <- prometheus.MustNewConstMetric(memberDesc, prometheus.GaugeValue, frame.OneIf(member.State == state), member.Name, string(state))
		}
	}
}
