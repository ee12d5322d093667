package manifests

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the README of the chart")

const chartReadme = `# Berth

This chart installs [Berth](https://github.com/berth-project/berth): a scheduler plugin, webhook and descheduler that enforce how many pods of a workload run on which
nodes. How to install, upgrade and remove it is on the page [Install](https://github.com/berth-project/berth/blob/main/docs/install.md).

` + "`make generate` writes this table from `values.yaml`. Helm refuses a value that is not in it." + `

| value | default | meaning |
|---|---|---|
`

// TestTheReadmeOfTheChartHasItsValues, with their defaults and comments.
func TestTheReadmeOfTheChartHasItsValues(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "charts", "berth", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join("..", "charts", "berth", "README.md")
	want := chartReadme + strings.Join(rowsOf(t, "", document.Content[0]), "")
	if *update {
		if err := os.WriteFile(readme, []byte(want), 0o644); err != nil { //nolint:gosec // for everybody
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(readme); err != nil || string(got) != want {
		t.Errorf("%s is not what values.yaml says: commit the result of `make generate`: %v", readme, err)
	}
}

// rowsOf are the rows of the values below a path. A mapping that is written in one line, or has nothing in it, is one
// value.
func rowsOf(t *testing.T, path string, mapping *yaml.Node) (rows []string) {
	t.Helper()
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := strings.TrimPrefix(path+"."+key.Value, ".")
		comment := key.HeadComment
		if at := strings.LastIndex(comment, "\n\n"); at >= 0 { // what is above an empty line is about the file
			comment = comment[at:]
		}
		var words []string
		for line := range strings.Lines(comment) {
			words = append(words, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
		}
		meaning := strings.TrimSpace(strings.Join(words, " "))
		if value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle == 0 {
			if meaning != "" {
				rows = append(rows, fmt.Sprintf("| `%s` | | %s |\n", name, meaning))
			}
			rows = append(rows, rowsOf(t, name, value)...)
			continue
		}
		var decoded any
		if err := value.Decode(&decoded); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(decoded)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, fmt.Sprintf("| `%s` | `%s` | %s |\n", name, text, meaning))
	}
	return rows
}
