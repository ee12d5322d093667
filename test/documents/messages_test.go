package documents

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// internal are errors that no page explains, because users can neither cause nor see them. The key is how the error begins, the value is why.
var internal = map[string]string{
	"%s answers %s":                    "the sandbox waits until it answers",
	"%s does not run now":              "for tests, which end and halt components",
	"%s is halted already":             "for tests, which end and halt components",
	"%s: want %T, got %T":              "the framework has converted the arguments before",
	"a %T is not in the snapshot":      "a mistake in the program",
	"a descheduler evicts pods":        "a plugin of somebody else deletes pods, and the log names it",
	"%d pods do not come to rest":      "a mistake in the program",
	"a rehearsal needs the framework":  "a mistake in the program",
	"a plan is a dry run":              "a mistake in the program",
	"an object without kind or name":   "a mistake in the manifests",
	"eviction of %s without a pod":     "result Unintended",
	"evictions are sent through":       "a plugin of somebody else, and the log names it",
	"exit status 0":                    "a component of the sandbox has ended, and its log is shown",
	"has just been started":            "an intermediate state of the sandbox",
	"its template is not known":        "reason RoomUnknown",
	"the volume of claim %s is chosen": "reason RoomUnknown, and docs/kubectl-berth.md",
	"no node may be used":              "reason NoRoom",
	"node %q is not in the picture":    "a mistake in the program",
	"only the scheduler can allocate":  "reason RoomUnknown",
	"panic: %v":                        "a fault of Berth, with the log",
	"pluginConfig[%s].args: want":      "the framework has converted the arguments before",
	"pod %s/%s has no UID":             "result Unintended",
	"profile %q: plugins.%s: %s":       "the same is refused when the scheduler starts",
	"spreads are listed by %s":         "a mistake in the program",
	"the budget has changed meanwhile": "it is tried again",
	"the connection to the member was": "it is tried again",
	"the framework started the cycle":  "it is tried again",
	"told to ":                         "for tests, which tell a container what to do",
}

// TestEveryErrorIsExplained checks that the documents explain every error. An error that wraps another only says what was under way. It needs no
// explanation.
func TestEveryErrorIsExplained(t *testing.T) {
	explained, used, found := quotedMessages(t), map[string]bool{}, 0
	for _, folder := range []string{"cmd", "internal", "pkg"} {
		for _, file := range goFiles(t, folder) {
			for _, said := range errorsOf(t, file) {
				found++
				if slices.ContainsFunc(explained, func(quoted string) bool { return strings.Contains(said, quoted) }) {
					continue
				}
				isInternal := false
				for beginning := range internal {
					if strings.HasPrefix(said, beginning) {
						used[beginning], isInternal = true, true
					}
				}
				if !isInternal {
					t.Errorf("%s: %q is neither in docs/operations/messages.md nor in docs/operations/troubleshooting.md: say there what it means and what to do", relative(file), said)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d errors only", found)
	}
	for beginning := range internal {
		if !used[beginning] {
			t.Errorf("no error begins with %q any more", beginning)
		}
	}
}

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
	for _, page := range []string{"messages.md", "troubleshooting.md"} {
		inTable := false
		for _, line := range prose(t, path("docs", "operations", page)) {
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
	}
	if len(quoted) < 100 {
		t.Fatalf("found %d messages only", len(quoted))
	}
	return quoted
}

func goFiles(t *testing.T, folder string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(path(folder), func(file string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// errorsOf returns the texts of the errors in a file: of fmt, of errors, about fields, and of conditions. It skips single words, which are values.
func errorsOf(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(parsed, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok || !makesError(call.Fun) {
			return true
		}
		var texts []string
		for _, argument := range call.Args {
			ast.Inspect(argument, func(node ast.Node) bool {
				if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil && strings.Contains(strings.TrimSpace(text), " ") {
						texts = append(texts, strings.ReplaceAll(text, "%%", "%"))
					}
				}
				return true
			})
		}
		if said := strings.Join(texts, " "); said != "" && !strings.Contains(said, "%w") {
			all = append(all, said)
		}
		return true
	})
	return all
}

func makesError(function ast.Expr) bool {
	switch f := function.(type) {
	case *ast.Ident:
		return f.Name == "notReady"
	case *ast.SelectorExpr:
		of, _ := f.X.(*ast.Ident)
		return f.Sel.Name == "invalid" || of != nil && (of.Name == "field" || of.Name == "fmt" && f.Sel.Name == "Errorf" || of.Name == "errors" && f.Sel.Name == "New")
	default:
		return false
	}
}
