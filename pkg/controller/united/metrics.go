package united

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-project/berth/pkg/controller/apply"
	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	model "github.com/berth-project/berth/pkg/united"
)

// Metrics of UnitedDeployments, on the controller's endpoint, from their last status.
var (
	replicasDesc = prometheus.NewDesc("berth_uniteddeployment_replicas",
		"Replicas that the child of a subset asks for.", []string{"namespace", "uniteddeployment", "subset"}, nil)
	readyReplicasDesc = prometheus.NewDesc("berth_uniteddeployment_ready_replicas",
		"Ready pods of the child of a subset.", []string{"namespace", "uniteddeployment", "subset"}, nil)
	reservedDesc = prometheus.NewDesc("berth_uniteddeployment_reserved_pods",
		"Pods of the child of a subset that found no node and are kept as reservations.", []string{"namespace", "uniteddeployment", "subset"}, nil)
	schedulableDesc = prometheus.NewDesc("berth_uniteddeployment_subset_schedulable",
		"0 while a subset gets no new replicas because pods found no node there, and 1 otherwise.", []string{"namespace", "uniteddeployment", "subset"}, nil)
	readyDesc = prometheus.NewDesc("berth_uniteddeployment_ready",
		"1 if the spec is valid, all replicas have a subset, and every child is as wanted, and 0 if not.", []string{"namespace", "uniteddeployment"}, nil)
	allDesc = prometheus.NewDesc("berth_uniteddeployments",
		"Number of UnitedDeployments. Only the first thousand have metrics of their own.", nil, nil)
)

// What is written besides the operations of a step.
const (
	adopting  apply.Operation = "adopt"
	labelling apply.Operation = "label"
	replacing apply.Operation = "replace"
)

// mostMeasured bounds the UnitedDeployments with their own metrics, and so the number of time series.
const mostMeasured = 1000

// measures are the numbers of every UnitedDeployment.
type measures struct {
	*frame.Measures[*v1beta1.UnitedDeploymentStatus]
	writes *prometheus.CounterVec
}

func newMeasures() *measures {
	is := func(all []v1beta1.Condition, of v1beta1.ConditionType, status corev1.ConditionStatus) bool {
		c := model.ConditionIn(all, of)
		return c != nil && c.Status == status
	}
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_uniteddeployment_writes_total",
		Help: "Writes to children of UnitedDeployments and their pods, by operation (create, apply, scale, delete, adopt, label, replace) and outcome: written, stale (changed since it was read, and tried again), refused (by the API server), failed.",
	}, []string{"operation", "outcome"})
	return &measures{writes: writes, Measures: frame.NewMeasures(frame.Series[*v1beta1.UnitedDeploymentStatus]{
		Count: allDesc, Own: []*prometheus.Desc{replicasDesc, readyReplicasDesc, reservedDesc, schedulableDesc, readyDesc}, Most: mostMeasured, Others: []prometheus.Collector{writes},
		Send: func(status *v1beta1.UnitedDeploymentStatus, gauge func(*prometheus.Desc, float64, ...string)) {
			for i := range status.SubsetStatuses {
				in := &status.SubsetStatuses[i]
				gauge(replicasDesc, float64(in.Replicas), in.Name)
				gauge(readyReplicasDesc, float64(in.ReadyReplicas), in.Name)
				gauge(reservedDesc, float64(in.ReservedPods), in.Name)
				gauge(schedulableDesc, frame.OneIf(!is(in.Conditions, v1beta1.SubsetSchedulable, corev1.ConditionFalse)), in.Name)
			}
			gauge(readyDesc, frame.OneIf(is(status.Conditions, v1beta1.ReadyCondition, corev1.ConditionTrue)))
		},
	})}
}

// wrote counts a write.
func (m *measures) wrote(o apply.Operation, err error) {
	m.writes.WithLabelValues(string(o), string(apply.ResultOf(err))).Inc()
}
