package documents

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommandsOfABlock(t *testing.T) {
	text := "text\n```console\n$ one \\\n    two\nout 1\n\nout 2\n$ three\n```\n```yaml\n$ no command\n```\n"
	found, err := blocks(text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := found[0].commands()
	if err != nil {
		t.Fatal(err)
	}
	want := []command{
		{text: "one \\\n    two", shown: []string{"out 1", "", "out 2"}, from: 4, to: 7},
		{text: "three", from: 8, to: 8},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(command{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if found[1].kind != "yaml" || found[1].line != 11 {
		t.Errorf("the second block is %+v", found[1])
	}
}

func TestBlocksThatCannotBeReadAreErrors(t *testing.T) {
	if _, err := blocks("```console\n$ one\n"); err == nil {
		t.Error("a block that is not closed is no error")
	}
	if _, err := (&block{lines: []string{"out"}}).commands(); err == nil {
		t.Error("output without a command is no error")
	}
}

func TestWhatIsComparedAndWhatIsNot(t *testing.T) {
	for name, tc := range map[string]struct {
		shown, printed string
		want           bool
	}{
		"equal":                                {"a\nb", "a\nb", true},
		"different":                            {"a\nb", "a\nc", false},
		"a line is missing":                    {"a\nb", "a", false},
		"a line is too many":                   {"a", "a\nb", false},
		"nothing is shown":                     {"", "a", true},
		"an ellipsis stands for many lines":    {"a\n…\nd", "a\nb\nc\nd", true},
		"an ellipsis stands for no line":       {"a\n…\nd", "a\nd", true},
		"what comes after an ellipsis counts":  {"a\n…\nd", "a\nb", false},
		"an ellipsis in a line":                {"a … z", "a b c z", true},
		"the rest of its line counts":          {"a … z", "a b c", false},
		"ages":                                 {"web  9s", "web   2m17s", true},
		"durations with a fraction":            {"took 0.4s", "took 12.25s", true},
		"numbers are no ages":                  {"web 9", "web 10", false},
		"quotas are no ages":                   {"zone-a 2/2", "zone-a 3/3", false},
		"CPU is no age":                        {"cpu 500m", "cpu 300m", false},
		"memory is no age":                     {"800Mi", "600Mi", false},
		"pods of a Deployment":                 {"web-7d4b9c8f5d-x2lkp", "web-5c9f7b6d8-zz7vw", true},
		"a name that looks like an age":        {"web-5565958956-28h58", "web-5565958956-x2lkp", true},
		"pods of different Deployments":        {"web-7d4b9c8f5d-x2lkp", "api-5c9f7b6d8-zz7vw", false},
		"pods of a Job":                        {"render-x2lkp 1", "render-zz7vw 1", true},
		"pods of a StatefulSet have names":     {"db-0", "db-1", false},
		"names of subsets are not generated":   {"zone-a", "zone-b", false},
		"times":                                {"at 2026-01-01T12:05:00Z", "at 2027-11-21T01:02:03.5+01:00", true},
		"addresses":                            {"http://127.0.0.1:8080/", "http://127.0.0.1:39211/", true},
		"columns may be wider":                 {"NAME  AGE", "NAME        AGE", true},
		"an empty line at the end is no line":  {"a", "a\n\n", true},
		"an empty line in the middle is a one": {"a\nb", "a\n\nb", false},
	} {
		t.Run(name, func(t *testing.T) {
			var shown []string
			if tc.shown != "" {
				shown = strings.Split(tc.shown, "\n")
			}
			if got := matches(shown, strings.Split(tc.printed, "\n")); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestOnlyCommandsThatReadAreRepeated(t *testing.T) {
	for text, want := range map[string]bool{
		"kubectl get ws":                          true,
		"kubectl -n berth-system get pods":        true,
		"kubectl berth status web":                true,
		"kubectl get pods | sort | uniq -c":       true,
		"kubectl get pods && kubectl delete pods": false,
		"kubectl delete pods --all":               false,
		"kubectl rollout status deployment/web":   false,
		"berth-descheduler --explain=table":       false,
		"berth-descheduler --x=y --dry-run":       true,
		"kubectl annotate $(kubectl get pods) a=": false,
	} {
		if got := reads(text); got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
}

func TestAShellKeepsItsStateAndTellsExitCodes(t *testing.T) {
	s := newShell(t, workspace(t))
	for _, step := range []struct {
		text, want string
		code       int
	}{
		{"export GREETING='it'\\''s me'", "", 0},
		{`echo "$GREETING"; echo again >&2`, "it's me\nagain", 0},
		{"printf 'no end of line'", "no end of line", 0},
		{"cat", "", 0}, // reads nothing
		{"ls docs/nothing.md README.md >/dev/null 2>&1", "", 2},
		{"echo $PWD/docs/x", "docs/x", 0},
	} {
		printed, code, err := s.run(step.text, timeout)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(printed, "\n"); got != step.want || code != step.code {
			t.Errorf("%s: printed %q, exit code %d; want %q, %d", step.text, got, code, step.want, step.code)
		}
	}
}

func TestACommandThatDoesNotEndIsAnError(t *testing.T) {
	s := newShell(t, workspace(t))
	printed, _, err := s.run("echo before; read line </dev/zero", again)
	if err == nil || !strings.Contains(err.Error(), "before") {
		t.Errorf("error %v, printed %q", err, printed)
	}
}
