package console

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// apiVersion of what commands print with -o json, yaml and jsonpath.
const apiVersion = "cli.berth.dev/v1"

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

// Structured prints a report of a kind for programs: an object, or a list for a slice. names are what -o name prints.
// It returns false if the report should be printed for people.
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
			fields["apiVersion"], fields["kind"] = apiVersion, kind
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
func (o *Output) Table(w io.Writer, rows [][]string) error {
	if o.NoHeaders {
		rows = rows[1:]
	}
	return PrintTable(w, rows)
}

// PrintTable prints rows with aligned columns. The last cell of a row should not be empty: spaces would end the line.
func PrintTable(w io.Writer, rows [][]string) error {
	aligned := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(aligned, strings.Join(row, "\t"))
	}
	return aligned.Flush()
}
