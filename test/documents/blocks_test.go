package documents

import (
	"fmt"
	"os"
	"strings"
)

// block is a fenced block of a document.
type block struct {
	// kind is the first word of the info string. note is the rest of it.
	kind, note string
	// line is the number of the first line inside the block, counted from 1.
	line int
	// lines are the lines inside the block, without the indentation of the fence (as in a list).
	lines       []string
	indentation string
}

// command is one command of a console block with the shown output.
type command struct {
	text  string
	shown []string
	// from and to are the lines of the output in the document, counted from 0. If there is no output, from is where its first line would be.
	from, to    int
	indentation string
}

const prompt = "$ "

// blocks returns the fenced blocks of a Markdown text.
func blocks(text string) ([]block, error) {
	var all []block
	var open *block
	var fence string
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case open == nil && strings.HasPrefix(trimmed, "```"):
			info := strings.TrimLeft(trimmed, "`")
			fence = strings.Repeat("`", len(trimmed)-len(info))
			kind, note, _ := strings.Cut(strings.TrimSpace(info), " ")
			indentation, _, _ := strings.Cut(line, "`")
			open = &block{kind: kind, note: strings.TrimSpace(note), line: i + 2, indentation: indentation}
		case open != nil && trimmed == fence:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, strings.TrimPrefix(line, open.indentation))
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block is not closed", open.line-1)
	}
	return all, nil
}

// commands returns the commands of a console block.
func (b *block) commands() ([]command, error) {
	var all []command
	for i := 0; i < len(b.lines); i++ {
		text, ok := strings.CutPrefix(b.lines[i], prompt)
		if !ok {
			if len(all) == 0 {
				return nil, fmt.Errorf("line %d: output without a command", b.line+i)
			}
			last := &all[len(all)-1]
			last.shown = append(last.shown, b.lines[i])
			last.to++
			continue
		}
		for strings.HasSuffix(text, `\`) && i+1 < len(b.lines) {
			i++
			text += "\n" + b.lines[i]
		}
		all = append(all, command{text: text, from: b.line + i, to: b.line + i, indentation: b.indentation})
	}
	return all, nil
}

// commandsOf returns the commands of all console blocks of a file.
func commandsOf(file string) ([]command, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	found, err := blocks(string(content))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var all []command
	for _, b := range found {
		if b.kind != "console" {
			continue
		}
		commands, err := b.commands()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, commands...)
	}
	return all, nil
}
