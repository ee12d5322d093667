// Package linear checks histories of slots for linearizability, with Porcupine. It knows nothing of Berth: a subset, or a budget, has a quota, a bind takes a slot of it, and a slot is
// free again when its pod is gone. Each operation has taken effect at one moment of a span. The check looks for an order of these moments in which no bind exceeds a quota, and no
// pod waits while a slot is free all the time.
//
// A moment is a revision of the API server. So binds and deletions have one moment each, and the search is short. Only edits and waiting last for a while.
//
// A bind without an answer is no operation with an open return, as Porcupine has it for outcomes that nobody knows. In the end the outcome is known: the API
// server has bound the pod, at one revision, or it has not. What is not known is for how long the scheduler takes the slot for taken, and that excuses a pod
// that waits, and never a bind above the quota. So it is part of the span of waiting. An open operation could take effect at any later time, or never, and
// would excuse all waiting after it.
//
// A history is that of one spread, or of one budget, and the caller must make one for each. Each scope has all slots of the quotas for itself. Scopes of one spread are no partitions
// of Porcupine, because a pod can change its scope: then it takes a slot in the new one, which no quota can stop, and gives back its slot in the old one.
package linear

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// History is what happened to the slots of one spread, or of one budget. Create one with New.
type History struct {
	first Quotas
	// scopes begin with "", which all pods are in at first.
	subsets, scopes []string
	pods            map[string]int
	operations      []porcupine.Operation
}

// Quotas are the slots of each subset in each scope. A subset that is not there has no limit.
type Quotas map[string]int

// New returns an empty history that begins with quotas.
func New(first Quotas) *History {
	return &History{first: first, scopes: []string{""}, pods: map[string]int{}}
}

// operation is the input of Porcupine. pod, subset and scope are indices, and -1 if they do not matter.
type operation struct {
	verb               verb
	pod, subset, scope int
	name               string
	quotas             Quotas
}

type verb string

const (
	bind   verb = "bind"
	leave  verb = "leave"
	change verb = "change"
	edit   verb = "edit"
	wait   verb = "wait"
)

// Bound adds a bind.
func (h *History) Bound(pod, subset string, at int64) {
	h.add(operation{verb: bind, pod: h.podOf(pod), subset: indexIn(&h.subsets, subset), scope: -1, name: pod + " in " + subset}, at, at)
}

// Gone adds the end of a bound pod.
func (h *History) Gone(pod string, at int64) {
	h.add(operation{verb: leave, pod: h.podOf(pod), subset: -1, scope: -1, name: pod}, at, at)
}

// Changed adds that a pod has another scope from some moment of the span on. If it is bound, its slot is one of that scope from then on, also if the subset is full.
func (h *History) Changed(pod, scope string, from, to int64) {
	h.add(operation{verb: change, pod: h.podOf(pod), subset: -1, scope: indexIn(&h.scopes, scope), name: pod + " to " + scope}, from, to)
}

// Edited adds new quotas, which count from some moment of the span on.
func (h *History) Edited(quotas Quotas, from, to int64) {
	h.add(operation{verb: edit, pod: -1, subset: -1, scope: -1, quotas: quotas, name: fmt.Sprint(map[string]int(quotas))}, from, to)
}

// Waited adds that some pod of a scope waited all the time between from and to. At some moment in between all subsets must have been full in that scope. held are slots that were neither taken nor free:
// somebody has sent a bind whose outcome is not known.
func (h *History) Waited(scope string, held map[string]int, from, to int64) {
	h.add(operation{verb: wait, pod: -1, subset: -1, scope: indexIn(&h.scopes, scope), quotas: held, name: fmt.Sprintf("for a slot, %v held", held)}, from, to)
}

func (h *History) add(o operation, from, to int64) {
	h.operations = append(h.operations, porcupine.Operation{ClientId: len(h.operations), Input: o, Call: from, Return: max(from, to)})
}

func (h *History) podOf(name string) int {
	if _, known := h.pods[name]; !known {
		h.pods[name] = len(h.pods)
	}
	return h.pods[name]
}

// indexIn is the index of a name, which is added if it is new.
func indexIn(names *[]string, name string) int {
	if at := slices.Index(*names, name); at >= 0 {
		return at
	}
	*names = append(*names, name)
	return len(*names) - 1
}

// state is comparable. where has the two bytes of a place for each pod. quotas is the index of an edit, 0 for those of the beginning.
type state struct {
	where  string
	quotas int
}

// place is where a pod counts: the index of its scope, and 0 if it has no slot, else 1 and the index of its subset.
type place struct{ scope, subset byte }

func (s state) of(pod int) place { return place{s.where[2*pod], s.where[2*pod+1]} }

func (s state) with(pod int, at place) state {
	s.where = s.where[:2*pod] + string([]byte{at.scope, at.subset}) + s.where[2*pod+2:]
	return s
}

// ErrUndecided is the error of a history of which the search could not tell within its limit whether it has an order.
var ErrUndecided = errors.New("no order was found in time, and there may be one")

// Check returns an error if there is no order in which the operations obey the rules, or ErrUndecided if none was found within the limit. The error names a
// temporary file with a drawing of the history.
func (h *History) Check(limit time.Duration) error {
	all := []Quotas{h.first}
	history := slices.Clone(h.operations)
	for i := range history {
		o := history[i].Input.(operation)
		if o.verb == edit {
			all, o.subset = append(all, o.quotas), len(all)
			history[i].Input = o
		}
	}
	model := porcupine.Model{
		Init: func() any { return state{where: strings.Repeat("\x00\x00", len(h.pods))} },
		Step: func(before, input, _ any) (bool, any) { return h.step(all, before.(state), input.(operation)) },
		DescribeOperation: func(input, _ any) string {
			o := input.(operation)
			return string(o.verb) + " " + o.name
		},
		DescribeState: func(s any) string { return h.describe(s.(state), all) },
	}
	result, info := porcupine.CheckOperationsVerbose(model, history, limit)
	if result == porcupine.Ok {
		return nil
	}
	drawing, err := os.CreateTemp("", "berth-history-*.html")
	if err != nil {
		return err
	}
	if err := errors.Join(porcupine.Visualize(model, info, drawing), drawing.Close()); err != nil {
		return err
	}
	page := drawing.Name()
	if result == porcupine.Unknown {
		return fmt.Errorf("%d operations, %v: %w; see %s", len(history), limit, ErrUndecided, page)
	}
	return fmt.Errorf("%d operations have no order that obeys the quotas. The longest ends before %s; see %s", len(history), h.stuck(history, info), page)
}

// step is false if an operation cannot take effect in a state.
func (h *History) step(all []Quotas, s state, o operation) (bool, state) {
	switch o.verb {
	case bind:
		quota, limited := all[s.quotas][h.subsets[o.subset]]
		was := s.of(o.pod)
		if was.subset != 0 || limited && h.taken(s, was.scope)[h.subsets[o.subset]] >= quota {
			return false, s
		}
		return true, s.with(o.pod, place{was.scope, byte(o.subset + 1)})
	case leave:
		was := s.of(o.pod)
		return was.subset != 0, s.with(o.pod, place{was.scope, 0})
	case change:
		return true, s.with(o.pod, place{byte(o.scope), s.of(o.pod).subset})
	case edit:
		s.quotas = o.subset
	case wait:
		taken := h.taken(s, byte(o.scope))
		for subset, quota := range all[s.quotas] {
			if taken[subset]+o.quotas[subset] < quota {
				return false, s
			}
		}
	}
	return true, s
}

// taken are the slots that are taken in a scope.
func (h *History) taken(s state, scope byte) map[string]int {
	taken := map[string]int{}
	for pod := range len(h.pods) {
		if at := s.of(pod); at.subset > 0 && at.scope == scope {
			taken[h.subsets[at.subset-1]]++
		}
	}
	return taken
}

func (h *History) describe(s state, all []Quotas) string {
	var parts []string
	for i, scope := range h.scopes {
		if taken := h.taken(s, byte(i)); len(taken) > 0 {
			parts = append(parts, strings.TrimSpace(fmt.Sprint(scope, " ", taken)))
		}
	}
	return fmt.Sprint(strings.Join(parts, ", "), " of ", all[s.quotas])
}

// stuck describes the first operations that are not part of the longest order.
func (h *History) stuck(history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := slices.MaxFunc(slices.Concat(info.PartialLinearizations()...), func(a, b []int) int { return cmp.Compare(len(a), len(b)) })
	var left []porcupine.Operation
	for i, o := range history {
		if !slices.Contains(longest, i) {
			left = append(left, o)
		}
	}
	slices.SortFunc(left, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
	var names []string
	for _, o := range left[:min(len(left), 3)] {
		in := o.Input.(operation)
		names = append(names, fmt.Sprintf("%s %s (revision %d to %d)", in.verb, in.name, o.Call, o.Return))
	}
	return strings.Join(names, ", ")
}
