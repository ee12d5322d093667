package documents

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMessagesAreQuotedAsTheyAre checks that the documents quote messages exactly as users see them.
func TestMessagesAreQuotedAsTheyAre(t *testing.T) {
	var sources strings.Builder
	for _, folder := range []string{"cmd", "internal", "pkg", "manifests"} {
		err := filepath.WalkDir(path(folder), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || strings.HasSuffix(file, "_test.go") || filepath.Ext(file) != ".go" && filepath.Ext(file) != ".yaml" {
				return err
			}
			sources.WriteString(strings.ReplaceAll(read(t, file), "%%", "%"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, quoted := range quotedMessages(t) {
		if !strings.Contains(sources.String(), quoted) {
			t.Errorf("no message of Berth has what a document explains: %s", quoted)
		}
		if verb.MatchString(quoted) {
			t.Errorf("users see no %s: quote what is before or after it", quoted)
		}
	}
}

// verb matches a verb of a format string.
var verb = regexp.MustCompile(`%[sdqvT]`)

// quotedMessages returns the parts of messages in the first column of the tables that explain them.
func quotedMessages(t *testing.T) []string {
	t.Helper()
	var quoted []string
	inTable := false
	for _, line := range prose(t, path("docs", "operations", "messages.md")) {
		if strings.HasPrefix(line, "| the message has |") {
			inTable = true
		}
		inTable = inTable && strings.HasPrefix(line, "|")
		if !inTable {
			continue
		}
		first, _, _ := strings.Cut(line, " | ")
		for _, part := range code.FindAllStringSubmatch(first, -1) {
			quoted = append(quoted, part[1])
		}
	}
	if len(quoted) < 60 {
		t.Fatalf("found %d messages only", len(quoted))
	}
	return quoted
}
