package scenario

import (
	"fmt"
)

// Checkpoint is an expect step with its result.
type Checkpoint struct {
	// Line of the step in the file.
	Line    int
	Section string
	// Want is the section of the file, and Got what Tables prints for Layouts.
	Want    string
	Got     string
	Layouts []Layout
}

// Met is true if the table is the expected one.
func (c Checkpoint) Met() bool { return c.Want == c.Got }

// Run plays a scenario and returns its checkpoints in order, met or not. It returns an error for a scenario that cannot be played.
func Run(s *Scenario) ([]Checkpoint, error) {
	c := newCluster(s.Nodes())
	var checkpoints []Checkpoint
	for _, step := range s.Steps {
		if expect, ok := step.Action.(Expect); ok {
			layouts, err := c.layouts()
			if err != nil {
				return checkpoints, lineError{s.Name, step.Line, err.Error()}
			}
			checkpoints = append(checkpoints, Checkpoint{
				Line: step.Line, Section: expect.Section, Want: expect.Table, Got: Tables(layouts), Layouts: layouts,
			})
			continue
		}
		if err := c.take(step.Action); err != nil {
			return checkpoints, lineError{s.Name, step.Line, fmt.Sprintf("%s: %v", step.Text, err)}
		}
		if err := c.settle(); err != nil {
			return checkpoints, lineError{s.Name, step.Line, fmt.Sprintf("%s: %v", step.Text, err)}
		}
	}
	return checkpoints, nil
}

// take does what a step says. settle does what follows from it.
func (c *cluster) take(action Action) error {
	switch a := action.(type) {
	case Apply:
		for _, object := range a.Objects {
			if err := c.apply(object); err != nil {
				return err
			}
		}
		return nil
	case Scale:
		return c.scale(a.Target, a.Replicas)
	case Delete:
		return c.delete(a.Target)
	case Cordon:
		c.cordon(a.Group, true)
		return nil
	case Uncordon:
		c.cordon(a.Group, false)
		return nil
	case Kill:
		// The simulation has no memory that a restart could lose.
		return nil
	default:
		return fmt.Errorf("step %T cannot be played", action)
	}
}

// maxRounds is far more than the longest chain of events of a scenario: a StatefulSet takes one round for each pod.
const maxRounds = 10_000

// settle lets controllers, scheduler and kubelets work until none of them has anything left to do.
func (c *cluster) settle() error {
	for range maxRounds {
		before := c.changes
		if err := c.runControllers(); err != nil {
			return err
		}
		pass := c.newPass()
		for _, pod := range c.pending() {
			pass.schedule(pod)
		}
		c.runPods()
		c.rankPods()
		if c.changes == before {
			return nil
		}
	}
	return fmt.Errorf("the cluster does not come to rest within %d rounds", maxRounds)
}
