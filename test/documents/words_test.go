package documents

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// generatedTable matches a table that a program writes between markers.
var generatedTable = regexp.MustCompile(`(?s)<!-- \w+ -->.*?<!-- end of \w+ -->`)

// TestPagesAreShort checks that a page for a person takes at most ten minutes, and that all of them together stay short. Generated references and tables,
// decisions and code blocks do not count.
func TestPagesAreShort(t *testing.T) {
	const page, all = 2000, 45000
	total := 0
	for _, file := range documents(t) {
		name := filepath.ToSlash(relative(file))
		besideCode := !strings.HasPrefix(name, "docs/") && strings.Contains(name, "/")
		if besideCode || name == "CHANGELOG.md" || strings.HasPrefix(name, "docs/api/") || strings.HasPrefix(name, "docs/decisions/") {
			continue
		}
		words := 0
		for word := range strings.FieldsSeq(generatedTable.ReplaceAllString(strings.Join(prose(t, file), "\n"), "")) {
			if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				words++
			}
		}
		if words > page {
			t.Errorf("%s has %d words, want at most %d", name, words, page)
		}
		total += words
	}
	if total > all {
		t.Errorf("the documents have %d words, want at most %d", total, all)
	}
	t.Logf("%d words", total)
}
