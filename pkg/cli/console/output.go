package console

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

// Output is the value of -o.
type Output string

// What -o takes.
const (
	AsTable Output = "table"
	AsWide  Output = "wide"
	AsJSON  Output = "json"
	AsYAML  Output = "yaml"
)

var outputs = []string{string(AsTable), string(AsWide), string(AsJSON), string(AsYAML)}

var _ pflag.Value = (*Output)(nil)

func (o *Output) String() string { return string(*o) }
func (o *Output) Type() string   { return "format" }

func (o *Output) Set(value string) error {
	if !slices.Contains(outputs, value) {
		return fmt.Errorf("must be one of %s", strings.Join(outputs, ", "))
	}
	*o = Output(value)
	return nil
}

// AddTo adds -o to the flags of a command. The default is a table.
func (o *Output) AddTo(flags *pflag.FlagSet) {
	*o = AsTable
	flags.VarP(o, "output", "o", "Output format: "+strings.Join(outputs, ", ")+".")
}

// Structured prints a report for programs. It returns false if the report should be printed for people.
func (o Output) Structured(w io.Writer, report any) (bool, error) {
	var encoded []byte
	var err error
	switch o {
	case AsJSON:
		encoded, err = json.MarshalIndent(report, "", "  ")
		encoded = append(encoded, '\n')
	case AsYAML:
		encoded, err = yaml.Marshal(report)
	default:
		return false, nil
	}
	if err == nil {
		_, err = w.Write(encoded)
	}
	return true, err
}

// Color of a text on a terminal.
type Color string

const (
	Plain  Color = ""
	Green  Color = "\x1b[32m"
	Yellow Color = "\x1b[33m"
	Red    Color = "\x1b[31m"
	reset        = "\x1b[0m"
)

// Palette colors texts, or leaves them alone.
type Palette bool

// PaletteFor is true for terminals, unless NO_COLOR is set (https://no-color.org).
func PaletteFor(w io.Writer) Palette { return Palette(os.Getenv("NO_COLOR") == "" && IsTerminal(w)) }

// IsTerminal is true for a file that is a terminal.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Paint returns the text in a color, with the codes that begin and end it.
func (p Palette) Paint(c Color, text string) string {
	if !p || c == Plain {
		return text
	}
	return string(c) + text + reset
}

// Cell of a table. The zero color leaves the text alone.
type Cell struct {
	Text  string
	Color Color
}

// PrintTable prints rows with aligned columns. Colors must not count for the width, so text/tabwriter cannot be used.
func PrintTable(w io.Writer, p Palette, rows [][]Cell) error {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(c.Text)))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(p.Paint(c.Color, c.Text))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-len([]rune(c.Text))+3))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// Count is "1 thing" or "3 things".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
