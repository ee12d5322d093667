package apply

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Key names an object. Another cluster says what UIDs it likes.
type Key struct {
	Cluster string
	UID     types.UID
}

// Hash stands for what is applied.
type Hash [sha256.Size]byte

// HashOf is the same for the same content, as it is decoded from JSON.
func HashOf(content map[string]any) Hash {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	return sha256.Sum256(text)
}

// Memory is what was applied last, and the generations afterwards. If an object has another generation, somebody has changed its spec. It only saves requests: without it everything is applied once more. The
// zero value is empty. It is safe for concurrent use.
type Memory struct {
	mu      sync.RWMutex
	applied map[Key]state
}

type state struct {
	hash       Hash
	generation int64
	// made is true if the object was made, and not applied since: its fields must be upgraded first, for which its managed fields are needed.
	made bool
}

func (m *Memory) last(cluster string, object metav1.Object) (last state, known bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	last, known = m.applied[Key{cluster, object.GetUID()}]
	return last, known
}

// Remember notes that an object was written with this content.
func (m *Memory) Remember(cluster string, object metav1.Object, hash Hash, by Operation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.applied == nil {
		m.applied = map[Key]state{}
	}
	m.applied[Key{cluster, object.GetUID()}] = state{hash, object.GetGeneration(), by == Create}
}

// Has is true if the object was written with this content, and nobody has changed its spec since.
func (m *Memory) Has(cluster string, object metav1.Object, hash Hash) bool {
	last, known := m.last(cluster, object)
	return known && last.hash == hash && last.generation == object.GetGeneration()
}

// Follows is true if an object of a cache has what was applied last, so that it can be applied again as it is there. If somebody else has changed it since, the API server refuses that.
func (m *Memory) Follows(cluster string, object metav1.Object) bool {
	last, known := m.last(cluster, object)
	return known && !last.made && object.GetGeneration() >= last.generation
}

// Keep forgets all objects but some.
func (m *Memory) Keep(some func(Key) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.applied, func(key Key, _ state) bool { return !some(key) })
}
