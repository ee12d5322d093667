package descheduling

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/moves"
)

// Scope says for which spreads a strategy runs, or which pods the filter checks.
//
// +kubebuilder:object:generate=true
type Scope struct {
	// Namespaces of the spreads, or of the pods that SubsetEvictor checks: it accepts all others. Nil means all.
	Namespaces *Namespaces `json:"namespaces,omitempty"`
}

// Namespaces selects some namespaces. Only one of the two fields may be set.
//
// +kubebuilder:object:generate=true
type Namespaces struct {
	// Include are the namespaces that are meant, and no others.
	Include []string `json:"include,omitempty"`
	// Exclude are the namespaces that are not meant, while all others are.
	Exclude []string `json:"exclude,omitempty"`
}

// Validate returns every error with its path.
func (s *Scope) Validate() field.ErrorList {
	var errs field.ErrorList
	if n := s.Namespaces; n != nil && len(n.Include) > 0 && len(n.Exclude) > 0 {
		errs = append(errs, field.Invalid(field.NewPath("namespaces"), field.OmitValueType{}, "only one of include and exclude may be given"))
	}
	return errs
}

// Has is true for a namespace that is selected.
func (s *Scope) Has(namespace string) bool {
	n := s.Namespaces
	return n == nil || (len(n.Include) == 0 || slices.Contains(n.Include, namespace)) && !slices.Contains(n.Exclude, namespace)
}

// Backoff is how long the next move waits if the pods of the last one came back: Base after the first time, twice as
// long after every further time, and Longest at most. After twice Longest without a move it starts again at Base.
//
// +kubebuilder:object:generate=true
type Backoff struct {
	// Base is the wait after the first time; between 1s and 24h. Its default is that of the strategy.
	Base *metav1.Duration `json:"base,omitempty"`
	// Longest is the longest wait; between 1s and 24h, and not shorter than Base. Its default is that of the strategy.
	Longest *metav1.Duration `json:"longest,omitempty"`
}

// defaultBackoff sets missing fields.
func defaultBackoff(b **Backoff, base, longest time.Duration) {
	setDefault(b, Backoff{})
	setDefault(&(*b).Base, metav1.Duration{Duration: base})
	setDefault(&(*b).Longest, metav1.Duration{Duration: longest})
}

// Validate returns every error with its path. Nil is valid.
func (b *Backoff) Validate(path *field.Path) field.ErrorList {
	if b == nil {
		return nil
	}
	errs := append(between(path.Child("base"), b.Base, time.Second, moves.LongestPace), between(path.Child("longest"), b.Longest, time.Second, moves.LongestPace)...)
	if b.Base != nil && b.Longest != nil && b.Base.Duration > b.Longest.Duration {
		errs = append(errs, field.Invalid(path.Child("longest"), b.Longest.Duration.String(), "must not be shorter than base"))
	}
	return errs
}

// Pace is the backoff for package moves. It must have been defaulted.
func (b *Backoff) Pace() moves.Pace {
	return moves.Pace{Base: b.Base.Duration, Longest: b.Longest.Duration}
}

// setDefault sets a missing value.
func setDefault[T any](value **T, def T) {
	if *value == nil {
		*value = &def
	}
}

// between refuses a duration outside of the bounds. Nil is valid.
func between(path *field.Path, value *metav1.Duration, least, most time.Duration) field.ErrorList {
	if value == nil || value.Duration >= least && value.Duration <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value.Duration.String(), fmt.Sprintf("must be between %s and %s", least, most))}
}

// amount refuses values that are neither a count nor a percentage above 0. Nil is valid.
func amount(path *field.Path, value *intstr.IntOrString) field.ErrorList {
	if value == nil {
		return nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(value, 100, true)
	if err != nil || n < 1 || value.Type == intstr.String && n > 100 {
		return field.ErrorList{field.Invalid(path, value.String(), "must be a count above 0, or a percentage from 1% to 100%")}
	}
	return nil
}
