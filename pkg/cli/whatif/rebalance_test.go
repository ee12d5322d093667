package whatif

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
)

func TestRebalanceMovesNothing(t *testing.T) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	command := NewCommand(streams, nil)
	command.SetArgs([]string{"rebalance"})
	err := command.Execute()
	if err == nil || !strings.Contains(console.Advise(err), "--dry-run") || !strings.Contains(console.Advise(err), "create job --from=cronjob/berth-descheduler") || strings.Contains(console.Advise(err), "\n") {
		t.Errorf("without --dry-run: %v", err)
	}
	if out.Len() > 0 {
		t.Errorf("it printed %q", out)
	}
}

func TestRebalancePrints(t *testing.T) {
	until := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	lines := []cycle.Line{{Strategy: "EnforceSubsetMaxReplicas", Namespace: "shop", Spread: "web", Pod: "web-1", Node: "n7", From: "a",
		Verdict: cycle.Kept, Reason: v1beta1.ReasonSettling, Until: &until}}
	for name, tc := range map[string]struct {
		format console.Output
		lines  []cycle.Line
		want   string
	}{
		"a table": {console.Output{}, lines, `STRATEGY                  NAMESPACE  SPREAD  POD    FROM  TO  VERDICT  REASON    UNTIL                 RESULT
EnforceSubsetMaxReplicas  shop       web     web-1  a     -   Keep     Settling  2026-01-01T12:00:00Z  -
`},
		"wide, with the node": {console.Output{Format: "wide"}, lines, `STRATEGY                  NAMESPACE  SPREAD  POD    FROM  TO  VERDICT  REASON    UNTIL                 RESULT  NODE
EnforceSubsetMaxReplicas  shop       web     web-1  a     -   Keep     Settling  2026-01-01T12:00:00Z  -       n7
`},
		"YAML": {console.Output{Format: "yaml"}, lines, `apiVersion: cli.berth.dev/v1
kind: Plan
plan:
- from: a
  namespace: shop
  node: n7
  pod: web-1
  reason: Settling
  spread: web
  strategy: EnforceSubsetMaxReplicas
  until: "2026-01-01T12:00:00Z"
  verdict: Keep
`},
		"nothing, for people":   {console.Output{}, nil, "Nothing to move: every pod is where the descheduler would have it.\n"},
		"nothing, for programs": {console.Output{Format: "json"}, nil, "{\n  \"apiVersion\": \"cli.berth.dev/v1\",\n  \"kind\": \"Plan\",\n  \"plan\": []\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			c := rebalanceCommand{streams: genericiooptions.IOStreams{Out: &out}, output: tc.format}
			if err := c.print(&cycle.Report{Lines: tc.lines}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSeveralErrorsAreOneLine(t *testing.T) {
	one := errors.New("one")
	for _, tc := range []struct {
		err  error
		want string
	}{
		{one, "one"},
		{errors.Join(one), "one"},
		{errors.Join(one, errors.New("two")), "one (and 1 more error)"},
		{fmt.Errorf("reading: %w", errors.Join(one, errors.New("two"), errors.New("three"))), "one (and 2 more errors)"},
	} {
		if got := firstOf(tc.err); got.Error() != tc.want || !errors.Is(got, one) {
			t.Errorf("%q: got %q, want %q", tc.err, got, tc.want)
		}
	}
}
