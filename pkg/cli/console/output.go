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
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// APIVersion of what commands print with -o json, yaml and jsonpath.
const APIVersion = "cli.berth.dev/v1"

// Output is how a command prints. Its flags are those of kubectl get.
type Output struct {
	// Format is empty for a table, or wide, name, json, yaml or jsonpath=TEMPLATE.
	Format    string
	NoHeaders bool
}

// AddTo adds -o and --no-headers to the flags of a command.
func (o *Output) AddTo(flags *pflag.FlagSet) {
	flags.VarP(o, "output", "o", "Output format. One of: (json, yaml, name, wide, jsonpath=TEMPLATE). The default is a table.")
	flags.BoolVar(&o.NoHeaders, "no-headers", false, "Print tables without their headers.")
}

var _ pflag.Value = (*Output)(nil)

func (o *Output) String() string { return o.Format }
func (o *Output) Type() string   { return "format" }

// Set implements pflag.Value.
func (o *Output) Set(format string) error {
	if template, is := strings.CutPrefix(format, "jsonpath="); is {
		if err := jsonpath.New("output").Parse(template); err != nil {
			return err
		}
	} else if !slices.Contains([]string{"json", "yaml", "name", "wide"}, format) {
		return fmt.Errorf("allowed formats are: json, jsonpath, name, wide, yaml")
	}
	o.Format = format
	return nil
}

// IsWide is true for -o wide.
func (o *Output) IsWide() bool { return o.Format == "wide" }

// Structured prints a report of a kind for programs: an object, or a list for a slice. names are what -o name prints. It returns false if the report should be printed for people.
func (o *Output) Structured(w io.Writer, kind string, report any, names ...string) (bool, error) {
	template, isPath := strings.CutPrefix(o.Format, "jsonpath=")
	switch {
	case o.Format == "" || o.IsWide():
		return false, nil
	case o.Format == "name":
		for _, name := range names {
			if _, err := fmt.Fprintln(w, name); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	encoded, err := json.Marshal(report)
	var content any
	if err == nil {
		err = json.Unmarshal(encoded, &content)
	}
	if err != nil {
		return true, err
	}
	tell := func(object any, kind string) {
		if fields, is := object.(map[string]any); is {
			fields["apiVersion"], fields["kind"] = APIVersion, kind
		}
	}
	if items, isList := content.([]any); isList {
		for _, item := range items {
			tell(item, kind)
		}
		kind += "List"
		content = map[string]any{"items": items}
	}
	tell(content, kind)
	switch {
	case isPath:
		path := jsonpath.New("output")
		if err := path.Parse(template); err != nil {
			return true, err
		}
		return true, path.Execute(w, content)
	case o.Format == "yaml":
		encoded, err = yaml.Marshal(content)
	default:
		encoded, err = json.MarshalIndent(content, "", "  ")
		encoded = append(encoded, '\n')
	}
	if err == nil {
		_, err = w.Write(encoded)
	}
	return true, err
}

// Table prints rows with aligned columns, of which the first one is the header.
func (o *Output) Table(w io.Writer, p Palette, rows [][]Cell) error {
	if o.NoHeaders {
		rows = rows[1:]
	}
	return PrintTable(w, p, rows)
}

// Cells are cells without a color.
func Cells(texts ...string) []Cell {
	cells := make([]Cell, len(texts))
	for i := range texts {
		cells[i].Text = texts[i]
	}
	return cells
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
