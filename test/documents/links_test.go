package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/berth-project/berth/test/harness"
)

var (
	link    = regexp.MustCompile(`!?\[[^\]]*\]\(([^)\s]+)\)`)
	code    = regexp.MustCompile("`([^`]+)`")
	heading = regexp.MustCompile(`^#{1,6} +(.*)$`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	// inRepository are words that look like a path of the repository.
	inRepository = regexp.MustCompile(`^(?:\.ci|build|charts|cmd|docs|hack|manifests|pkg|test)/[A-Za-z0-9_./*{},-]+$`)
)

// symbol is what follows a package in the name of something in it.
var symbol = regexp.MustCompile(`\.[A-Z]\w*(\.\w+)?$`)

// documents are all Markdown files of the repository.
func documents(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(harness.Root(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != harness.Root() && name != ".github" && (strings.HasPrefix(name, ".") || name == "bin" || name == "node_modules") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found %d documents only", len(files))
	}
	return files
}

// prose is a text without its fenced blocks, line by line.
func prose(t *testing.T, file string) []string {
	t.Helper()
	lines := strings.Split(read(t, file), "\n")
	fenced, err := blocks(strings.Join(lines, "\n"))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for _, b := range fenced {
		for i := range b.lines {
			lines[b.line-1+i] = ""
		}
	}
	return lines
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestLinksLeadSomewhere(t *testing.T) {
	for _, file := range documents(t) {
		for i, line := range prose(t, file) {
			for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(line, ""), -1) {
				if why := broken(t, file, found[1]); why != "" {
					t.Errorf("%s:%d: link %s: %s", relative(file), i+1, found[1], why)
				}
			}
		}
	}
}

// broken says why a link leads nowhere. Links to the world outside are not followed.
func broken(t *testing.T, file, target string) string {
	t.Helper()
	if strings.HasPrefix(target, "https://") {
		return ""
	}
	if strings.Contains(target, "://") {
		return "want https"
	}
	to, fragment, _ := strings.Cut(target, "#")
	if to == "" {
		to = file
	} else {
		to = filepath.Join(filepath.Dir(file), to)
	}
	if _, err := os.Stat(to); err != nil {
		return "there is no such file"
	}
	if fragment == "" || !strings.HasSuffix(to, ".md") {
		return ""
	}
	if !slices.Contains(anchors(t, to), fragment) {
		return "there is no such heading"
	}
	return ""
}

// anchors are the names by which headings of a document can be linked to, as GitHub makes them.
func anchors(t *testing.T, file string) []string {
	t.Helper()
	var all []string
	for _, line := range prose(t, file) {
		if found := heading.FindStringSubmatch(line); found != nil {
			all = append(all, slug(found[1]))
		}
		for _, found := range anchor.FindAllStringSubmatch(line, -1) {
			all = append(all, found[1])
		}
	}
	return all
}

func slug(title string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.TrimSpace(title)) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteRune('-')
		}
	}
	return b.String()
}

func TestPathsExist(t *testing.T) {
	for _, file := range documents(t) {
		for i, line := range prose(t, file) {
			for _, found := range code.FindAllStringSubmatch(line, -1) {
				for _, word := range strings.Fields(found[1]) {
					word = strings.TrimSuffix(strings.TrimPrefix(word, "./"), "/...")
					if inRepository.MatchString(word) && !exists(word) {
						t.Errorf("%s:%d: %s does not exist", relative(file), i+1, word)
					}
				}
			}
		}
	}
}

// exists says whether a path of the repository is there, or for a pattern such as cmd/{scheduler,controller} or pkg/crd/* any.
func exists(pattern string) bool {
	open, rest, found := strings.Cut(pattern, "{")
	if alternatives, tail, closed := strings.Cut(rest, "}"); found && closed {
		return !slices.ContainsFunc(strings.Split(alternatives, ","), func(one string) bool { return !exists(open + one + tail) })
	}
	matches, err := filepath.Glob(path(symbol.ReplaceAllString(strings.TrimRight(pattern, "/.,"), "")))
	return err == nil && len(matches) > 0
}

func relative(file string) string {
	short, err := filepath.Rel(harness.Root(), file)
	if err != nil {
		return file
	}
	return short
}
