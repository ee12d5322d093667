// Command columns checks that comments of Go files have at most 120 columns. A tab has four. It needs no list of files:
// it takes those of git. With -w it wraps comments that are wider, in the directories that follow.
//
//	go run ./hack/columns              # names each comment that is too wide
//	go run ./hack/columns -w pkg/fit   # wraps those below pkg/fit
//
// Markers, directives, code and words that are longer than a line stay as they are. So do comments behind code.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"unicode/utf8"
)

const columns = 120

// left are the directories and files that nobody has wrapped yet. In pkg/crd the line ends of comments become those of
// the definitions.
var left = []string{
	"internal/sandbox/", "pkg/budget/", "pkg/controller/", "pkg/crd/", "pkg/endpoint/", "pkg/federation/", "pkg/guard/", "pkg/ledger/", "pkg/members/",
	"pkg/plugins/scheduling/", "pkg/united/", "pkg/webhook/", "hack/tools/", "test/",
}

var (
	// comment is a line that is a comment alone: what is before the text, with the mark of an item, and the text.
	comment = regexp.MustCompile(`^(\s*// )( *(?:- |\d+\. )?)(\S.*)$`)
	// fixed are the markers and directives.
	fixed = regexp.MustCompile(`^\s*//($|\S|\s*\+|\s*#|\t)`)
)

func main() {
	write := flag.Bool("w", false, "wrap comments in the directories of the arguments")
	flag.Parse()
	if err := run(*write, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(write bool, dirs []string) error {
	list, err := exec.Command("git", "ls-files", "-z", "--", "*.go").Output()
	if err != nil {
		return fmt.Errorf("listing the files: %w", err)
	}
	wide := 0
	for path := range strings.SplitSeq(strings.Trim(string(list), "\x00"), "\x00") {
		if strings.Contains(path, "zz_generated") || len(dirs) > 0 && !below(path, dirs) || !write && below(path, left) {
			continue
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		wrapped := wrap(strings.Split(string(text), "\n"))
		result := []byte(strings.Join(wrapped, "\n"))
		switch {
		case bytes.Equal(text, result):
		case write:
			if err := os.WriteFile(path, result, 0o644); err != nil {
				return err
			}
		default:
			fmt.Printf("%s: comments have more than %d columns: go run ./hack/columns -w %s\n", path, columns, path)
			wide++
		}
	}
	if wide > 0 {
		return fmt.Errorf("%d files have comments that are too wide", wide)
	}
	return nil
}

func below(path string, dirs []string) bool {
	for _, dir := range dirs {
		if strings.HasPrefix(path, dir) {
			return true
		}
	}
	return false
}

// wrap returns the lines of a file. A paragraph of a comment that has a line that is too wide is filled anew; other
// paragraphs stay.
func wrap(lines []string) []string {
	var wrapped []string
	raw := false // inside of a text between back quotes
	for i := 0; i < len(lines); {
		before := raw
		if strings.Count(lines[i], "`")%2 == 1 && !strings.HasPrefix(strings.TrimSpace(lines[i]), "//") {
			raw = !raw
		}
		first := comment.FindStringSubmatch(lines[i])
		if before || first == nil || fixed.MatchString(lines[i]) || code(first) {
			wrapped, i = append(wrapped, lines[i]), i+1
			continue
		}
		rest := first[1] + strings.Repeat(" ", utf8.RuneCountInString(first[2]))
		end, wide, words := i+1, width(lines[i]) > columns, strings.Fields(first[3])
		for ; end < len(lines); end++ {
			next := comment.FindStringSubmatch(lines[end])
			if next == nil || fixed.MatchString(lines[end]) || next[1]+next[2] != rest {
				break
			}
			wide, words = wide || width(lines[end]) > columns, append(words, strings.Fields(next[3])...)
		}
		if wide {
			wrapped = append(wrapped, fill(first[1]+first[2], rest, words)...)
		} else {
			wrapped = append(wrapped, lines[i:end]...)
		}
		i = end
	}
	return wrapped
}

// code is true for a line that gofmt takes for code: it is indented, and is no item.
func code(line []string) bool {
	return strings.HasPrefix(line[2], " ") && strings.TrimSpace(line[2]) == ""
}

// fill puts words into lines. The first line begins with first, and the others with rest.
func fill(first, rest string, words []string) (lines []string) {
	line := first + words[0]
	for _, word := range words[1:] {
		if width(line)+1+utf8.RuneCountInString(word) > columns {
			lines, line = append(lines, line), rest+word
			continue
		}
		line += " " + word
	}
	return append(lines, line)
}

func width(line string) int { return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) }
