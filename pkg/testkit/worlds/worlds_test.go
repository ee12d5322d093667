package worlds

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// jugs are two jugs of 3 and 5 litres. The fault is that one holds 4 litres.
type jugs struct {
	litres [2]int
	faulty bool
}

type pour string

func (p pour) String() string { return string(p) }

func (j *jugs) Moves() []pour {
	return []pour{"fill 3", "fill 5", "empty 3", "empty 5", "3 to 5", "5 to 3"}
}

func (j *jugs) Do(p pour) error {
	a, b := &j.litres[0], &j.litres[1]
	switch p {
	case "fill 3":
		*a = 3
	case "fill 5":
		*b = 5
	case "empty 3":
		*a = 0
	case "empty 5":
		*b = 0
	case "3 to 5":
		n := min(*a, 5-*b)
		*a, *b = *a-n, *b+n
	case "5 to 3":
		n := min(*b, 3-*a)
		*a, *b = *a+n, *b-n
	}
	if j.faulty && *b == 4 {
		return errors.New("there are 4 litres")
	}
	return nil
}

func (j *jugs) Key() string { return fmt.Sprint(j.litres) }
func (j *jugs) Rest() error { return nil }

func TestASearchVisitsEveryStateOnce(t *testing.T) {
	result := Search(func() World[pour] { return &jugs{} }, 0)
	if result.Fault != nil || !result.Complete || result.States != 16 || result.Steps != 96 {
		t.Errorf("%+v", result)
	}
}

func TestASearchFindsTheShortestHistoryOfAFault(t *testing.T) {
	start := func() World[pour] { return &jugs{faulty: true} }
	result := Search(start, 0)
	if result.Fault == nil || len(strings.Split(result.History, "; ")) != 6 {
		t.Fatalf("%+v", result)
	}
	if err := Replay(start, result.History); err == nil || err.Error() != result.Fault.Error() {
		t.Errorf("the history has another fault when it is played again: %v", err)
	}
	if err := Replay(start, "fly"); !errors.Is(err, errNoSuchMove) {
		t.Errorf("a move that cannot happen: %v", err)
	}
}
