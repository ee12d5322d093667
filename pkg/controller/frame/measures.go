package frame

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Series are the metrics of a kind of objects.
type Series[T any] struct {
	// Count is the number of objects.
	Count *prometheus.Desc
	// Own are those of each object. Their first labels are its namespace, if it has one, and its name.
	Own []*prometheus.Desc
	// Send sends those of an object.
	Send func(of T, gauge func(of *prometheus.Desc, value float64, labels ...string))
	// Most bounds the weights of all objects with metrics of their own, and so the number of time series. Weight is 1 for each object if it is nil.
	Most   int
	Weight func(T) int
	// Others are counters, and what is not of one object.
	Others []prometheus.Collector
}

// Measures are the numbers of all objects of a kind. They are safe for concurrent use.
type Measures[T any] struct {
	Series[T]

	mu       sync.Mutex
	measured map[types.NamespacedName]T
	// sum is the weight of all that is measured, and others are the objects above the bound.
	sum    int
	others map[types.NamespacedName]bool
}

var _ prometheus.Collector = &Measures[int]{}

// NewMeasures has no object yet.
func NewMeasures[T any](of Series[T]) *Measures[T] {
	if of.Weight == nil {
		of.Weight = func(T) int { return 1 }
	}
	return &Measures[T]{Series: of, measured: map[types.NamespacedName]T{}, others: map[types.NamespacedName]bool{}}
}

// Take measures an object, and returns what it was before. It is false if the object is above the bound. The numbers belong to the measures.
func (m *Measures[T]) Take(object types.NamespacedName, now T) (before T, taken bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before = m.drop(object)
	if m.sum+m.Weight(now) > m.Most {
		m.others[object] = true
		return before, false
	}
	m.measured[object] = now
	m.sum += m.Weight(now)
	return before, true
}

// Forget drops the metrics of an object that is gone.
func (m *Measures[T]) Forget(object types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(object)
}

func (m *Measures[T]) drop(object types.NamespacedName) T {
	before, known := m.measured[object]
	if known {
		m.sum -= m.Weight(before)
	}
	delete(m.measured, object)
	delete(m.others, object)
	return before
}

// Describe implements prometheus.Collector.
func (m *Measures[T]) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range append(m.Own[:len(m.Own):len(m.Own)], m.Count) {
		ch <- desc
	}
	for _, other := range m.Others {
		other.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Measures[T]) Collect(ch chan<- prometheus.Metric) {
	for _, other := range m.Others {
		other.Collect(ch)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for object, now := range m.measured {
		name := []string{object.Namespace, object.Name}
		if object.Namespace == "" {
			name = name[1:]
		}
		m.Send(now, func(of *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, value, append(name[:len(name):len(name)], labels...)...)
		})
	}
	ch <- prometheus.MustNewConstMetric(m.Count, prometheus.GaugeValue, float64(len(m.measured)+len(m.others)))
}

// OneIf is the value of a metric that says whether something holds.
func OneIf(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
