package lineage

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// Spread is a WorkloadSpread with its compiled spec. It never changes.
type Spread struct {
	Name string
	// Policy is nil if the spec is invalid. Invalid then says why.
	Policy  *subset.Policy
	Invalid field.ErrorList
	// Promised is true if the cache does not have the spread yet: a rule makes it. Only a spread that does not bind early is.
	Promised bool

	of *v1beta1.WorkloadSpread
}

// Compile compiles the spec of a spread.
func Compile(spread *v1beta1.WorkloadSpread) *Spread {
	s := &Spread{Name: spread.Name, of: spread}
	s.Policy, s.Invalid = subset.Compile(spread, field.NewPath("spec"))
	return s
}

// Divides is true if the spread divides pods with these labels. The pods must be below its workload. An invalid spread
// divides all of them: the scheduler holds them until it is corrected.
func (s *Spread) Divides(labels map[string]string) bool {
	return s.Policy == nil || s.Policy.Selects(labels)
}

// policies are compiled once for each generation of a spread. Reading an existing one takes no lock.
type policies struct {
	// installation is its compatibility. The status of a spread may not say it yet.
	installation v1beta1.Compatibility

	byUID sync.Map // of types.UID to *Spread
}

func (p *policies) of(spread *v1beta1.WorkloadSpread) *Spread {
	spread = subset.In(p.installation, spread)
	known, _ := p.byUID.Load(spread.UID)
	if s, is := known.(*Spread); is && subset.SamePolicy(s.of, spread) {
		return s
	}
	s := Compile(spread)
	p.byUID.Store(spread.UID, s)
	return s
}

func (p *policies) forget(uid types.UID) { p.byUID.Delete(uid) }

// spreadsIn knows which namespaces have spreads. Reading takes no lock.
type spreadsIn struct {
	namespaces sync.Map // a set of strings

	mu          sync.Mutex
	byNamespace map[string]sets.Set[types.UID]
}

func (s *spreadsIn) has(namespace string) bool {
	_, has := s.namespaces.Load(namespace)
	return has
}

func (s *spreadsIn) add(namespace string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byNamespace[namespace] == nil {
		s.byNamespace[namespace] = sets.New[types.UID]()
	}
	s.byNamespace[namespace].Insert(uid)
	s.namespaces.Store(namespace, nil)
}

func (s *spreadsIn) remove(namespace string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byNamespace[namespace].Delete(uid)
	if s.byNamespace[namespace].Len() == 0 {
		delete(s.byNamespace, namespace)
		s.namespaces.Delete(namespace)
	}
}
