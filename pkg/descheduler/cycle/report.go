package cycle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// verdict on a pod.
type verdict string

const (
	// verdictMoved pods were evicted, or would have been.
	verdictMoved verdict = "Move"
	// verdictKept pods should be elsewhere and stay.
	verdictKept verdict = "Keep"
)

// Line is one decision of a cycle.
type Line struct {
	Strategy  string `json:"strategy"`
	Namespace string `json:"namespace"`
	Spread    string `json:"spread"`
	// Pod is empty if the line is about all pods of the spread.
	Pod string `json:"pod,omitempty"`
	// Node that the pod is on. Empty if it has none.
	Node string `json:"node,omitempty"`
	// From and To are subsets. Empty for none.
	From    string         `json:"from,omitempty"`
	To      string         `json:"to,omitempty"`
	Verdict verdict        `json:"verdict"`
	Reason  v1beta1.Reason `json:"reason"`
	// Until is when to look again. Nil if that is not known.
	Until *time.Time `json:"until,omitempty"`
	// Result of the eviction; WouldEvict for a dry run's that nothing spoke against. Empty if none was tried.
	Result evictionResult `json:"result,omitempty"`
}

// Report is what a cycle decided and did.
type Report struct {
	Lines []Line `json:"plan"`
	// Unread joins what could not be read of spreads that strategies are about, so that nothing was decided on them,
	// which lines say as well, and of owners of pods.
	Unread error `json:"-"`
}

func newReport() *Report { return &Report{Lines: []Line{}} }

// WriteTable writes the report for the eye.
func (r *Report) WriteTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	row := func(columns ...string) { fmt.Fprintln(w, strings.Join(columns, "\t")) }
	row("STRATEGY", "NAMESPACE", "SPREAD", "POD", "FROM", "TO", "VERDICT", "REASON", "UNTIL", "RESULT")
	for i := range r.Lines {
		l := &r.Lines[i]
		until := "-"
		if l.Until != nil {
			until = l.Until.UTC().Format(time.RFC3339)
		}
		row(l.Strategy, l.Namespace, l.Spread, cmp.Or(l.Pod, "-"), cmp.Or(l.From, "-"), cmp.Or(l.To, "-"), string(l.Verdict), string(l.Reason), until, cmp.Or(string(l.Result), "-"))
	}
	return w.Flush()
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
