package worlds

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// jugs are two jugs of 3 and 5 litres. The fault is that one holds so much.
type jugs struct {
	litres [2]int
	// wrong is how much the jug of 5 litres must not hold. 0 means that all is right.
	wrong int
	// dry is true if no water is left after some steps.
	dry   bool
	steps int
}

type pour string

func (p pour) String() string { return string(p) }

func (j *jugs) Moves() []pour {
	if j.dry && j.steps >= 100 {
		return nil
	}
	return []pour{"fill 3", "fill 5", "empty 3", "empty 5", "3 to 5", "5 to 3"}
}

func (j *jugs) Do(p pour) error {
	j.steps++
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
	if j.wrong > 0 && *b == j.wrong {
		return fmt.Errorf("there are %d litres", *b)
	}
	return nil
}

func (j *jugs) Key() string         { return fmt.Sprint(j.litres) }
func (j *jugs) Rest() (bool, error) { return j.litres[0] == 0, nil }
func (j *jugs) Spent() bool         { return j.litres[1] == 5 }

func TestASearchVisitsEveryStateOnce(t *testing.T) {
	result := Search(func() World[pour] { return &jugs{} }, 0)
	if result.Fault != nil || !result.Complete || result.States != 16 || result.Steps != 96 || result.AtRest != 6 || result.Spent != 1 {
		t.Errorf("%+v", result)
	}
}

func TestASearchFindsTheShortestHistoryOfAFault(t *testing.T) {
	start := func() World[pour] { return &jugs{wrong: 4} }
	result := Search(start, 0)
	if result.Fault == nil || strings.Count(result.History, "\n") != 5 {
		t.Fatalf("%+v", result)
	}
	if faults, err := replay(Walk(start), result.History); err != nil || !slices.Equal(faults, []string{result.Fault.Error()}) {
		t.Errorf("the history has other faults when it is played again: %q, %v", faults, err)
	}
	if _, err := replay(Walk(start), "fly"); err == nil || !strings.Contains(err.Error(), `line 1 has "fly", want one of: fill 3, fill 5`) {
		t.Errorf("a move that cannot happen: %v", err)
	}
}

// listener is a t that keeps the messages.
type listener struct {
	rapid.TB
	faults []string
}

type ended struct{}

func (l *listener) Helper() {}
func (l *listener) Fatal(args ...any) {
	l.faults = append(l.faults, fmt.Sprint(args...))
	panic(ended{})
}

// replay plays a history without its first line, and returns its faults.
func replay(play Play, lines string) (faults []string, err error) {
	l := &listener{}
	defer func() {
		if _, is := recover().(ended); is {
			faults = l.faults
		}
	}()
	_, h := parse(lines)
	return nil, h.play(l, play)
}

// failing is a t of a test that is to fail.
type failing struct {
	rapid.TB
	failed bool
	log    strings.Builder
}

func (f *failing) Helper()                      {}
func (f *failing) Name() string                 { return "failing" }
func (f *failing) Failed() bool                 { return f.failed }
func (f *failing) Log(args ...any)              { fmt.Fprintln(&f.log, args...) }
func (f *failing) Logf(format string, a ...any) { fmt.Fprintf(&f.log, format+"\n", a...) }
func (f *failing) Errorf(format string, a ...any) {
	f.failed = true
	f.Logf(format, a...)
}
func (f *failing) FailNow() { panic(ended{}) }

// checked returns what Check prints.
func checked(t *testing.T, play Play) string {
	t.Helper()
	f := &failing{}
	func() {
		defer func() {
			if r := recover(); r != nil && r != (any)(ended{}) {
				t.Error(r)
			}
		}()
		Check(f, "jugs", 200, play)
	}()
	if !f.failed {
		t.Fatalf("no history has a fault: %s", f.log.String())
	}
	return f.log.String()
}

func TestARandomHistoryIsMadeShort(t *testing.T) {
	walk := Walk(func() World[pour] { return &jugs{wrong: 2, dry: true} })
	_, printed, _ := strings.Cut(checked(t, walk), "world: jugs\n")
	faults, err := replay(walk, printed)
	if lines := strings.Count(strings.TrimSpace(printed), "\n") + 1; err != nil || len(faults) != 1 || lines > 4 {
		t.Errorf("%d lines, which have faults %q, %v:\n%s", lines, faults, err, printed)
	}
}

func TestAHistoryHasWhatItsTestDraws(t *testing.T) {
	play := func(tb rapid.TB, h *History) {
		h.Line()
		most := h.Number("most", 10)
		sum := 0
		for range h.Steps(20) {
			switch h.Pick("add", "add twice", "rest") {
			case "add":
				sum++
			case "add twice":
				sum += 2
			default:
				if h.Yes("forget", 3) {
					sum = 0
				}
			}
		}
		if sum > most+3 {
			tb.Errorf("%d", sum)
		}
	}
	_, printed, _ := strings.Cut(checked(t, play), "world: jugs\n")
	if !strings.HasPrefix(printed, "most=0\nadd") || strings.Count(printed, "\n") > 6 {
		t.Errorf("got %q, want the least number, and four lines", printed)
	}
	for text, want := range map[string]string{
		"most=3\n# a comment\n\nadd":   "",
		"most=10\nadd":                 `line 1 has "most=10"`,
		"most=1\nadd thrice":           "line 2",
		"most=1\nadd add":              `line 2 has "add", want one of: nothing more`,
		"most=1\nrest forget=maybe":    "forget=no, forget=no, forget=yes",
		"most=1\nend\nadd":             `ends before line 3, "add"`,
		"most=1 add":                   "nothing more",
		"most=1\nrest forget=yes\nadd": "",
		"most=1\nrest":                 "", // it does not forget
		"most=1\nrest\nadd":            "forget=no, forget=no, forget=yes",
		"# a comment":                  "want one of: steps",
	} {
		_, h := parse(text)
		if err := h.play(&listener{}, play); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
