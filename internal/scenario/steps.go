package scenario

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// Step is one line of a scenario's steps. A step takes effect at once, and the cluster settles before the next step.
// Kill is an exception: it strikes while the step before it is under way.
type Step struct {
	// Line of the step in the file.
	Line int
	// Text of the step as written, without its comment.
	Text   string
	Action Action
}

// Action is what a step does: an Apply, Scale, Delete, Cordon, Kill or Expect.
type Action any

type (
	// Apply creates objects, or replaces those of the same kind and name, including replicas.
	Apply struct{ Objects []Object }
	// Scale sets the replicas of a Deployment, ReplicaSet or StatefulSet, or the parallelism of a Job.
	Scale struct {
		Target   Reference
		Replicas int32
	}
	// Delete removes an object and the pods that belong to it.
	Delete struct{ Target Reference }
	// Cordon makes the nodes of a group unschedulable, or schedulable again.
	Cordon struct {
		Group         NodeGroup
		Unschedulable bool
	}
	// Kill sends SIGKILL to one of Berth's components. The sandbox starts it again.
	Kill struct{ Component string }
	// Expect waits until the tables of all spreads, sorted by name and separated by empty lines, equal a section of the
	// file.
	Expect struct {
		Section string
		Table   string
	}
)

// commands are the words that a step may begin with, with their parsers. A parser that returns nil has reported an
// error.
var commands = map[string]func(p *parser, line int, args []string) Action{
	"apply":    parseApply,
	"scale":    parseScale,
	"delete":   parseDelete,
	"cordon":   parseCordon("cordon", true),
	"uncordon": parseCordon("uncordon", false),
	"kill":     parseKill,
	"expect":   parseExpect,
}

const commandsInWords = "apply, scale, delete, cordon, uncordon, kill or expect"

func (p *parser) parseSteps(data []byte, first int) {
	for i, raw := range bytes.Split(data, []byte("\n")) {
		text, _, _ := strings.Cut(string(raw), "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		line := first + i
		parse, found := commands[words[0]]
		if !found {
			p.fail(line, "unknown command %q; use %s", words[0], commandsInWords)
			continue
		}
		if action := parse(p, line, words[1:]); action != nil {
			p.scenario.Steps = append(p.scenario.Steps, Step{Line: line, Text: strings.Join(words, " "), Action: action})
		}
	}
	expects := slices.ContainsFunc(p.scenario.Steps, func(s Step) bool { _, is := s.Action.(Expect); return is })
	if !expects && len(p.errs) == 0 {
		p.fail(first, "no step expects a table; begin with apply and end with expect")
	}
}

func parseApply(p *parser, line int, args []string) Action {
	if len(args) == 0 {
		p.fail(line, "apply names no section; write apply NAME%s", objectSuffix)
		return nil
	}
	var apply Apply
	for _, section := range args {
		objects, found := p.objects[section]
		if !found {
			p.fail(line, "no section %q of objects; add it, with a name that ends in %s", section, objectSuffix)
			return nil
		}
		delete(p.unused, section)
		for _, object := range objects {
			p.applied[ReferenceTo(object)] = true
		}
		apply.Objects = append(apply.Objects, objects...)
	}
	return apply
}

func parseScale(p *parser, line int, args []string) Action {
	if len(args) != 2 {
		p.fail(line, "scale takes a workload and a number; write scale KIND/NAME REPLICAS")
		return nil
	}
	target, ok := p.reference(line, args[0])
	if !ok {
		return nil
	}
	if target.Kind == "WorkloadSpread" {
		p.fail(line, "%s has no replicas; scale its workload", target)
		return nil
	}
	replicas, err := strconv.ParseInt(args[1], 10, 32)
	if err != nil || replicas < 0 {
		p.fail(line, "replicas %q; use a number from 0 up", args[1])
		return nil
	}
	return Scale{Target: target, Replicas: int32(replicas)}
}

func parseDelete(p *parser, line int, args []string) Action {
	if len(args) != 1 {
		p.fail(line, "delete takes one object; write delete KIND/NAME")
		return nil
	}
	target, ok := p.reference(line, args[0])
	if !ok {
		return nil
	}
	delete(p.applied, target)
	return Delete{Target: target}
}

// reference reads KIND/NAME of an object that exists at this step.
func (p *parser) reference(line int, word string) (Reference, bool) {
	kind, name, found := strings.Cut(word, "/")
	if !found {
		p.fail(line, "%q does not name an object; write KIND/NAME, for instance Deployment/web", word)
		return Reference{}, false
	}
	target := Reference{Kind: kind, Name: name}
	if !p.applied[target] && !p.undecoded {
		p.fail(line, "there is no %s at this step; apply it before", target)
		return Reference{}, false
	}
	return target, true
}

func parseCordon(command string, unschedulable bool) func(p *parser, line int, args []string) Action {
	return func(p *parser, line int, args []string) Action {
		if group, ok := p.group(line, command, args); ok {
			return Cordon{group, unschedulable}
		}
		return nil
	}
}

func (p *parser) group(line int, command string, args []string) (NodeGroup, bool) {
	if len(args) != 1 {
		p.fail(line, "%s takes one group of nodes; write %s GROUP", command, command)
		return NodeGroup{}, false
	}
	for _, group := range p.scenario.Groups {
		if group.Name == args[0] {
			return group, true
		}
	}
	p.fail(line, "no group %q in %s; add it, or correct the name", args[0], clusterFile)
	return NodeGroup{}, false
}

func parseKill(p *parser, line int, args []string) Action {
	if len(args) != 1 || args[0] != "scheduler" {
		p.fail(line, "kill takes the component to kill; write kill scheduler")
		return nil
	}
	return Kill{Component: args[0]}
}

func parseExpect(p *parser, line int, args []string) Action {
	if len(args) != 1 {
		p.fail(line, "expect takes one section; write expect NAME")
		return nil
	}
	table, found := p.tables[args[0]]
	if !found {
		p.fail(line, "no section %q with a table; add it, with a name that does not end in %s", args[0], objectSuffix)
		return nil
	}
	delete(p.unused, args[0])
	return Expect{Section: args[0], Table: table}
}
