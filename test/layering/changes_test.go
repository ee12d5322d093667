package layering

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var inCode = regexp.MustCompile("`([^`]+)`")

// TestTheTenChangesAreFound checks the table of docs/architecture.md that says where a change goes: each path exists, and one of the files of a row has
// the word to look for.
func TestTheTenChangesAreFound(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Where does a change go?\n")
	section, _, _ = strings.Cut(section, "\n## ")
	changes := 0
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		changes++
		word := inCode.FindStringSubmatch(cells[2])
		found := word == nil
		for _, path := range inCode.FindAllStringSubmatch(cells[1], -1) {
			if !strings.Contains(path[1], "/") {
				continue
			}
			file := filepath.Join(root, path[1])
			if info, err := os.Stat(file); err != nil {
				t.Errorf("%s: %v", cells[0], err)
			} else if !found && !info.IsDir() {
				text, err := os.ReadFile(file)
				found = err == nil && bytes.Contains(text, []byte(word[1]))
			}
		}
		if !found {
			t.Errorf("%s: no file of the row has %s", cells[0], word[1])
		}
	}
	if changes != 10 {
		t.Errorf("the page says of %d changes where they go, want ten", changes)
	}
}
