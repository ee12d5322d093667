package united

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
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
	writesDesc = prometheus.NewDesc("berth_uniteddeployment_writes_total",
		"Writes to children of UnitedDeployments and their pods, by operation (create, apply, scale, delete, adopt, label) and outcome: written, stale (changed since it was read, and tried again), refused (by the API server), failed.",
		[]string{"operation", "outcome"}, nil)
)

// operation is what is written.
type operation string

const (
	creating  operation = "create"
	applying  operation = "apply"
	scaling   operation = "scale"
	deleting  operation = "delete"
	adopting  operation = "adopt"
	labelling operation = "label"
)

// mostMeasured bounds the UnitedDeployments with their own metrics, and so the number of time series.
const mostMeasured = 1000

// measures are the numbers of every UnitedDeployment. They are safe for concurrent use.
type measures struct {
	mu       sync.Mutex
	measured map[types.NamespacedName]*v1beta1.UnitedDeploymentStatus
	// others are the UnitedDeployments above the bound.
	others map[types.NamespacedName]bool
	writes map[write]int
}

type write struct {
	operation operation
	outcome   string
}

var _ prometheus.Collector = &measures{}

func newMeasures() *measures {
	return &measures{measured: map[types.NamespacedName]*v1beta1.UnitedDeploymentStatus{}, others: map[types.NamespacedName]bool{}, writes: map[write]int{}}
}

func (m *measures) take(ud types.NamespacedName, status *v1beta1.UnitedDeploymentStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.measured[ud]; !known && len(m.measured) >= mostMeasured {
		m.others[ud] = true
		return
	}
	delete(m.others, ud)
	m.measured[ud] = status.DeepCopy()
}

func (m *measures) forget(ud types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.measured, ud)
	delete(m.others, ud)
}

// wrote counts a write.
func (m *measures) wrote(o operation, err error) {
	outcome := "failed"
	switch {
	case err == nil:
		outcome = "written"
	case isStale(err):
		outcome = "stale"
	case isRefused(err):
		outcome = "refused"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes[write{o, outcome}]++
}

// Describe implements prometheus.Collector.
func (m *measures) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{replicasDesc, readyReplicasDesc, reservedDesc, schedulableDesc, readyDesc, allDesc, writesDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *measures) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for ud, status := range m.measured {
		for i := range status.SubsetStatuses {
			in := &status.SubsetStatuses[i]
			gauge(replicasDesc, float64(in.Replicas), ud.Namespace, ud.Name, in.Name)
			gauge(readyReplicasDesc, float64(in.ReadyReplicas), ud.Namespace, ud.Name, in.Name)
			gauge(reservedDesc, float64(in.ReservedPods), ud.Namespace, ud.Name, in.Name)
			schedulable := 1.0
			for _, c := range in.Conditions {
				if c.Type == v1beta1.SubsetSchedulable && c.Status == corev1.ConditionFalse {
					schedulable = 0
				}
			}
			gauge(schedulableDesc, schedulable, ud.Namespace, ud.Name, in.Name)
		}
		ready := 0.0
		if c := conditionOf(status, v1beta1.ReadyCondition); c != nil && c.Status == corev1.ConditionTrue {
			ready = 1
		}
		gauge(readyDesc, ready, ud.Namespace, ud.Name)
	}
	gauge(allDesc, float64(len(m.measured)+len(m.others)))
	for w, n := range m.writes {
		ch <- prometheus.MustNewConstMetric(writesDesc, prometheus.CounterValue, float64(n), string(w.operation), w.outcome)
	}
}
