// Package scenarios has the scenarios of this directory in the programs that play them. docs/scenarios.md says how they are written.
package scenarios

import (
	"embed"
	"fmt"

	"github.com/berth-project/berth/internal/scenario"
)

//go:embed *.txtar
var files embed.FS

// Get returns the scenario of that name, without the extension. It returns an error if there is none.
func Get(name string) (*scenario.Scenario, error) {
	content, err := files.ReadFile(name + ".txtar")
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", name, err)
	}
	return scenario.Parse(name+".txtar", content)
}
