// Package reference generates the pages of docs/api that list the flags of each command, from the flags themselves. A test of each command compares
// the page with the command. With -update it writes the page. Only tests import this package.
package reference

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the pages of docs/api in place of comparing them")

// Section is a part of a page: a title and flags. The section without a title begins the page. A section without flags has no table.
type Section struct {
	Title, About string
	Flags        *pflag.FlagSet
}

// Commands returns the sections of a command and of its subcommands. Flags that all of them have come first.
func Commands(root *cobra.Command) []Section {
	sections := []Section{{Flags: root.Flags()}}
	if root.HasPersistentFlags() {
		sections = append(sections, Section{Title: "Flags of every command", Flags: root.PersistentFlags()})
	}
	for _, command := range root.Commands() {
		if command.IsAvailableCommand() {
			sections = append(sections, Section{
				Title: strings.TrimSpace(root.DisplayName() + " " + command.Name()),
				About: fmt.Sprintf("`%s`\n\n%s.", strings.TrimSuffix(command.UseLine(), " [flags]"), strings.TrimSuffix(command.Short, ".")),
				Flags: command.LocalNonPersistentFlags(),
			})
		}
	}
	return sections
}

// Expect fails unless docs/api/NAME.md has exactly these sections. Tests run in the directory of their package, cmd/NAME.
func Expect(t *testing.T, name, about string, sections ...Section) {
	t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "# Flags of %s\n\nGenerated from the code by `make generate`. %s\n", name, about)
	for _, section := range sections {
		if section.Title != "" {
			fmt.Fprintf(&text, "\n## %s\n", section.Title)
		}
		if section.About != "" {
			fmt.Fprintf(&text, "\n%s\n", section.About)
		}
		text.WriteString(table(section.Flags))
	}
	file := filepath.Join("..", "..", "docs", "api", name+".md")
	if *update {
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(text.String(), string(page)); diff != "" {
		t.Errorf("docs/api/%s.md is not up to date, write it with 'make generate' (-flags +page):\n%s", name, diff)
	}
}

// table has a row for each flag that a user can set.
func table(flags *pflag.FlagSet) string {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + "`, `" + name
		}
		byDefault := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			byDefault = "`" + f.DefValue + "`"
		}
		usage, rest, _ := strings.Cut(usage, "\n")
		if rest != "" {
			usage = strings.TrimSuffix(usage, ":") + " (`--help` has the rest)"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, byDefault, strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(usage)))
	})
	if len(rows) == 0 {
		return ""
	}
	slices.Sort(rows)
	return "\n| flag | value | default | |\n|---|---|---|---|\n" + strings.Join(rows, "")
}
