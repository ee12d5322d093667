package worlds

import (
	"bufio"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// History is what happens in a world, as text that a person can read, keep and change. Each step has a line. A test asks the history for each thing that is
// left to chance. A random history draws it and writes it down; a history from a file reads it.
type History struct {
	// random is nil for a history from a file.
	random *rapid.T
	lines  []string
	// at is the number of the line, from 1, and rest what is left of it. Random histories have no rest.
	at   int
	rest string
	// faults are the messages of the test.
	faults []string
}

// Play plays a history. It reports faults to t. What is left to chance comes from the history.
type Play func(t rapid.TB, h *History)

// Line begins the next line.
func (h *History) Line() {
	if h.random != nil {
		h.lines = append(h.lines, "")
		return
	}
	if h.rest != "" {
		h.wrong("nothing more")
	}
	if h.rest = ""; h.at < len(h.lines) {
		h.rest = h.lines[h.at]
	}
	h.at++
}

// Steps begins a line for each step. A history from a file has as many as there are lines before the line "end", a random one has this number on average. Do not break
// out of the loop.
func (h *History) Steps(average int) iter.Seq[int] {
	return func(yield func(int) bool) {
		n := 0
		step := func() {
			h.Line()
			yield(n)
			n++
		}
		if h.random != nil {
			set("rapid.steps", average)
			h.random.Repeat(map[string]func(*rapid.T){"step": func(*rapid.T) { step() }})
			h.lines = append(h.lines, end)
			return
		}
		for h.more() && h.lines[h.at] != end {
			step()
		}
		if h.more() {
			h.Line()
			h.Pick(end)
		}
	}
}

const end = "end"

// more is true if there may be another line.
func (h *History) more() bool { return h.random != nil || h.at < len(h.lines) }

// Pick draws one of the options, and writes it down in the line. An option that is there twice is drawn twice as often. A fault may have ended a history in the middle of its last
// line. There, a choice that the file does not have is the first option.
func (h *History) Pick(options ...string) string {
	if h.random != nil {
		return h.write(rapid.SampledFrom(options).Draw(h.random, ""))
	}
	if h.at == 0 {
		h.Line()
	}
	if h.rest == "" && h.at >= len(h.lines) {
		return options[0]
	}
	best := ""
	for _, option := range options {
		if after, is := strings.CutPrefix(h.rest, option); is && (after == "" || after[0] == ' ') && len(option) > len(best) {
			best = option
		}
	}
	if best == "" {
		h.wrong(strings.Join(options, ", "))
	}
	h.rest = strings.TrimPrefix(h.rest[len(best):], " ")
	return best
}

func (h *History) write(word string) string {
	if len(h.lines) == 0 {
		h.Line()
	}
	line := &h.lines[len(h.lines)-1]
	*line = strings.TrimPrefix(*line+" "+word, " ")
	return word
}

// Yes draws whether something happens, once in so many times.
func (h *History) Yes(what string, onceIn int) bool {
	no := what + "=no"
	options := slices.Repeat([]string{no}, onceIn)
	options[len(options)-1] = what + "=yes"
	return h.Pick(options...) != no
}

// Number draws a number below n.
func (h *History) Number(what string, n int) int {
	if what != "" {
		what += "="
	}
	if h.random != nil {
		drawn := rapid.IntRange(0, n-1).Draw(h.random, "")
		h.write(what + strconv.Itoa(drawn))
		return drawn
	}
	options := make([]string, n)
	for i := range options {
		options[i] = what + strconv.Itoa(i)
	}
	return slices.Index(options, h.Pick(options...))
}

// IntN draws a number below n, and writes nothing but the number. It is for worlds that say by themselves what happens in them.
func (h *History) IntN(n int) int { return h.Number("", n) }

// Shuffle draws an order of n things.
func (h *History) Shuffle(n int, swap func(i, j int)) {
	for i := range n - 1 {
		swap(i, i+h.Number("next", n-i))
	}
}

// wrong ends the test: the line has something else than one of the options.
func (h *History) wrong(options string) {
	panic(wrongHistory(fmt.Sprintf("line %d has %q, want one of: %s", h.at, h.rest, options)))
}

type wrongHistory string

func (h *History) String() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(h.lines), func(line string) bool { return line == "" }), "\n")
}

// witness is the t of a random history. It keeps the messages: rapid compares them to see whether a shorter history has the same fault, and they may differ.
type witness struct {
	*rapid.T
	h *History
}

const broken = "a rule is broken, see below"

func (w witness) Errorf(format string, args ...any) { w.Error(fmt.Sprintf(format, args...)) }
func (w witness) Error(args ...any) {
	w.h.faults = append(w.h.faults, fmt.Sprint(args...))
	w.T.Error(broken)
}
func (w witness) Fatalf(format string, args ...any) { w.Fatal(fmt.Sprintf(format, args...)) }
func (w witness) Fatal(args ...any) {
	w.h.faults = append(w.h.faults, fmt.Sprint(args...))
	w.T.Fatal(broken)
}

// Check plays random histories of a world, this number of them, always the same ones. If one has a fault, it looks for a shorter one, and prints that as Replay reads
// it. The flags -rapid.checks and -rapid.seed play more and others.
func Check(t rapid.TB, world string, histories int, play Play) {
	t.Helper()
	set("rapid.checks", histories)
	set("rapid.seed", 1)
	set("rapid.nofailfile", true)
	var last *History
	defer func() {
		if t.Failed() && last != nil {
			t.Logf("FAULT: %s\n%s", strings.Join(last.faults, "\n"), kept(world, last.String()))
		}
	}()
	rapid.Check(t, func(rt *rapid.T) {
		// In a Custom generator, draws are not printed. The history prints them.
		rapid.Custom(func(drawn *rapid.T) string {
			last = &History{random: drawn}
			play(witness{drawn, last}, last)
			if drawn.Failed() {
				drawn.FailNow()
			}
			return ""
		}).Draw(rt, "history")
	})
}

// kept is a history as a file.
func kept(world, history string) string {
	return fmt.Sprintf("To keep the history, write it into a file in testdata/histories:\n\nworld: %s\n%s", world, history)
}

// Fuzz lets go test -fuzz draw the histories.
func Fuzz(play Play) func(*testing.T, []byte) {
	return rapid.MakeFuzz(func(t *rapid.T) { play(t, &History{random: t}) })
}

// set sets a flag of rapid, unless the user has.
func set[T any](name string, value T) {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name && !ours[name] })
	if given {
		return
	}
	ours[name] = true
	if err := flag.Set(name, fmt.Sprint(value)); err != nil {
		panic(err)
	}
}

// ours are the flags that set has set. Tests that draw do not run in parallel.
var ours = map[string]bool{}

// Replay plays the histories in testdata/histories. A file has the name of its world in the first line, "world: NAME". Lines that begin with # are comments.
// Each is a regression test.
func Replay(t *testing.T, all map[string]Play) {
	t.Helper()
	files, err := filepath.Glob("testdata/histories/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			world, h := parse(string(text))
			play := all[world]
			if play == nil {
				t.Fatalf("%s: there is no world %q: want the line \"world: NAME\" before the steps", file, world)
			}
			if err := h.play(t, play); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		})
	}
}

// play returns an error if the text is not that of a history of the world.
func (h *History) play(t rapid.TB, play Play) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case wrongHistory:
			err = fmt.Errorf("no history of this world: %s", string(r))
		default:
			panic(r)
		}
	}()
	if len(h.lines) == 0 {
		h.wrong("steps")
	}
	play(t, h)
	if h.rest != "" {
		h.wrong("nothing more")
	}
	if h.more() {
		return fmt.Errorf("the history ends before line %d, %q", h.at+1, h.lines[h.at])
	}
	return nil
}

func parse(text string) (world string, h *History) {
	h = &History{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		name, isWorld := strings.CutPrefix(line, "world: ")
		switch {
		case line == "" || line[0] == '#':
		case isWorld:
			world = name
		default:
			h.lines = append(h.lines, line)
		}
	}
	return world, h
}

// Walk plays one history of a world: steps in any order, and then what still may happen. In a file, the line "cannot STEP" says
// that the step must be impossible there, for example because a request was refused.
func Walk[M fmt.Stringer](start func() World[M]) Play {
	return func(t rapid.TB, h *History) {
		t.Helper()
		w := start()
		move := func() bool {
			moves := w.Moves()
			if len(moves) == 0 {
				return false
			}
			names := make([]string, len(moves))
			for i, m := range moves {
				names[i] = m.String()
			}
			if impossible, is := strings.CutPrefix(h.rest, "cannot "); is {
				if h.rest = ""; slices.Contains(names, impossible) {
					t.Fatal(impossible + ": it can happen")
				}
				return true
			}
			if err := w.Do(moves[slices.Index(names, h.Pick(names...))]); err != nil {
				t.Fatal(err)
			}
			return true
		}
		over := false
		for range h.Steps(averageWalk) {
			over = over || !move()
		}
		for drained := 0; h.more() && !over && drained < mostDrained; drained++ {
			h.Line()
			over = !move()
		}
		if _, err := w.Rest(); err != nil {
			t.Fatal(err)
		}
	}
}

// mostDrained is how many steps follow then. In some worlds something can always happen, for example a read.
const mostDrained = 100

// averageWalk is how many steps of a walk a shorter history may leave out, on average.
const averageWalk = 40
