// Package worlds searches all histories of a small world. A world is a state machine of the product together with a model of what surrounds it: an API
// server, a watch, a process that crashes. The search is breadth first, so the first fault that it finds has the shortest history.
//
// A world of the test's own values can copy itself. If a state machine of the product is part of the world, the search plays a history from the start
// again in place of a copy, which is slower and needs no code in the product. The search compares states by a
// hash of 64 bits: among ten million states, two different ones have the same hash with a probability of about 3 in a million.
package worlds

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// World is a small world at one moment. M is a move: one thing that may happen.
type World[M fmt.Stringer] interface {
	// Moves are all that may happen next. Equal states have the same moves.
	Moves() []M
	// Do lets one of the moves happen. It returns an error if that breaks a rule.
	Do(M) error
	// Key describes the state: two worlds with the same key have the same future. Times and orders in it are relative.
	Key() string
	// Rest checks what must hold if nothing happens any more. It is false if something is under way, so that there is nothing to check. The search does
	// not use the world afterwards.
	Rest() (atRest bool, err error)
	// Spent is true if all trouble that the world may have has happened.
	Spent() bool
}

// Copier is a World that can copy itself. The copy and the original must not change each other.
type Copier[M fmt.Stringer] interface {
	Copy() World[M]
}

// Result of a search.
type Result struct {
	// States that differ, and Steps between them. A step to a known state counts too.
	States, Steps int
	// AtRest are the states in which the rules of the rest were checked, and Spent those of them in which all trouble had happened.
	AtRest, Spent int
	// Longest is the number of moves after which no new state was found.
	Longest int
	// Complete is false if the search ended because of its limit.
	Complete bool
	Took     time.Duration
	// Fault is nil if every history is right. History then is empty.
	Fault error
	// History has a line for each move.
	History string
}

func (r Result) String() string {
	extent := "every history"
	if !r.Complete {
		extent = "histories up to a limit"
	}
	return fmt.Sprintf("%d states, %d at rest, %d steps, %s of up to %d moves, %s", r.States, r.AtRest, r.Steps, extent, r.Longest, r.Took.Round(10*time.Millisecond))
}

// node is a state: the last move on the shortest way to it.
type node[M fmt.Stringer] struct {
	before *node[M]
	move   M
}

func (n *node[M]) history() (moves []M) {
	for ; n.before != nil; n = n.before {
		moves = append(moves, n.move)
	}
	slices.Reverse(moves)
	return moves
}

// Search visits every state that can be reached from the start, up to a number of states. 0 means no limit.
func Search[M fmt.Stringer](start func() World[M], limit int) Result {
	began := time.Now()
	// A search makes much garbage and keeps little, so the collector would run most of the time.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	s := &search[M]{start: start, seed: maphash.MakeSeed()}
	for i := range s.seen {
		s.seen[i].states = map[uint64]struct{}{}
	}
	s.isNew(start().Key())
	level := []*node[M]{{}}
	longest := 0
	for ; len(level) > 0 && s.fault.Load() == nil && (limit == 0 || int(s.states.Load()) < limit); longest++ {
		level = s.expand(level)
	}
	result := Result{States: int(s.states.Load()), Steps: int(s.steps.Load()), AtRest: int(s.atRest.Load()), Spent: int(s.spent.Load()), Longest: longest - 1, Complete: len(level) == 0, Took: time.Since(began)}
	if found := s.fault.Load(); found != nil {
		result.Fault, result.History = found.err, text(found.history)
	}
	return result
}

type search[M fmt.Stringer] struct {
	start func() World[M]
	seed  maphash.Seed
	// seen is divided so that workers seldom wait for each other.
	seen [64]struct {
		sync.Mutex
		states map[uint64]struct{}
	}
	states, steps, atRest, spent atomic.Int64
	fault                        atomic.Pointer[fault[M]]
}

type fault[M fmt.Stringer] struct {
	err     error
	history []M
}

func (s *search[M]) isNew(key string) bool {
	hash := maphash.String(s.seed, key)
	part := &s.seen[hash%uint64(len(s.seen))]
	part.Lock()
	defer part.Unlock()
	if _, known := part.states[hash]; known {
		return false
	}
	part.states[hash] = struct{}{}
	s.states.Add(1)
	return true
}

// expand returns the new states that follow those of a level.
func (s *search[M]) expand(level []*node[M]) []*node[M] {
	var next atomic.Int64
	workers := make([][]*node[M], runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for s.fault.Load() == nil {
				at := int(next.Add(1)) - 1
				if at >= len(level) {
					return
				}
				workers[i] = append(workers[i], s.follow(level[at])...)
			}
		})
	}
	all.Wait()
	return slices.Concat(workers...)
}

func (s *search[M]) follow(from *node[M]) (found []*node[M]) {
	history := from.history()
	here := s.play(history)
	again, resting := func() World[M] { return s.play(history) }, here
	if copier, can := here.(Copier[M]); can {
		again, resting = copier.Copy, copier.Copy()
	}
	moves, isSpent := here.Moves(), here.Spent()
	atRest, err := resting.Rest()
	if err != nil {
		s.fault.CompareAndSwap(nil, &fault[M]{err, history})
		return nil
	}
	if atRest {
		s.atRest.Add(1)
		if isSpent {
			s.spent.Add(1)
		}
	}
	history = slices.Clip(history)
	for _, move := range moves {
		w := again()
		s.steps.Add(1)
		if err := w.Do(move); err != nil {
			s.fault.CompareAndSwap(nil, &fault[M]{err, append(history, move)})
			return nil
		}
		if s.isNew(w.Key()) {
			found = append(found, &node[M]{from, move})
		}
	}
	return found
}

func (s *search[M]) play(history []M) World[M] {
	w := s.start()
	for _, move := range history {
		if err := w.Do(move); err != nil {
			panic(fmt.Sprintf("%s had no fault before: %v", text(history), err))
		}
	}
	return w
}

func text[M fmt.Stringer](history []M) string {
	parts := make([]string, len(history))
	for i, move := range history {
		parts[i] = move.String()
	}
	return strings.Join(parts, "\n")
}

// Test searches a world, and reports the fault with its history. It logs how many states there are. 0 means no limit. A world that never comes to rest after all of
// its trouble fails: its rules of the rest would be checked before the trouble only.
func Test[M fmt.Stringer](t *testing.T, world string, start func() World[M], limit int) {
	t.Helper()
	result := Search(start, limit)
	if result.Fault != nil {
		t.Fatalf("FAULT: %v\nof %s\n%s", result.Fault, result, kept(world, result.History))
	}
	if limit == 0 && !result.Complete {
		t.Error("the search ended early")
	}
	if result.Complete && result.Spent == 0 {
		t.Errorf("no state is at rest after all trouble: %s", result)
	}
	t.Log(result)
}
