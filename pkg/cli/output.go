package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// output is the value of -o.
type output string

const (
	asTable output = "table"
	asWide  output = "wide"
	asJSON  output = "json"
	asYAML  output = "yaml"
)

var outputs = []string{string(asTable), string(asWide), string(asJSON), string(asYAML)}

var _ pflag.Value = (*output)(nil)

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "format" }

func (o *output) Set(value string) error {
	if !slices.Contains(outputs, value) {
		return fmt.Errorf("must be one of %s", strings.Join(outputs, ", "))
	}
	*o = output(value)
	return nil
}

func (o *output) addTo(flags *pflag.FlagSet) {
	*o = asTable
	flags.VarP(o, "output", "o", "Output format: "+strings.Join(outputs, ", ")+".")
}

// structured prints a report for programs. It returns false if the report should be printed for people.
func (o output) structured(w io.Writer, report any) (bool, error) {
	var encoded []byte
	var err error
	switch o {
	case asJSON:
		encoded, err = json.MarshalIndent(report, "", "  ")
		encoded = append(encoded, '\n')
	case asYAML:
		encoded, err = yaml.Marshal(report)
	default:
		return false, nil
	}
	if err == nil {
		_, err = w.Write(encoded)
	}
	return true, err
}

// color of a text on a terminal.
type color string

const (
	plain  color = ""
	green  color = "\x1b[32m"
	yellow color = "\x1b[33m"
	red    color = "\x1b[31m"
	reset        = "\x1b[0m"
)

// palette colors texts, or leaves them alone.
type palette bool

// paletteFor is true for terminals, unless NO_COLOR is set (https://no-color.org).
func paletteFor(w io.Writer) palette { return palette(os.Getenv("NO_COLOR") == "" && isTerminal(w)) }

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func (p palette) paint(c color, text string) string {
	if !p || c == plain {
		return text
	}
	return string(c) + text + reset
}

// cell of a table.
type cell struct {
	text  string
	color color
}

// printTable prints rows with aligned columns. Colors must not count for the width, so text/tabwriter cannot be used.
func printTable(w io.Writer, p palette, rows [][]cell) error {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(c.text)))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(p.paint(c.color, c.text))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-len([]rune(c.text))+3))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}
