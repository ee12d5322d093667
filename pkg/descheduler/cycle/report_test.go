package cycle

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

func TestReports(t *testing.T) {
	until := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	r := &Report{Lines: []Line{
		{Strategy: "RebalanceToPreferredSubset", Namespace: "ns", Spread: "web", Pod: "web-1", Node: "node-7", From: "b", To: "a", Verdict: verdictMoved, Reason: v1beta1.ReasonEarlierSubsetHasRoom, Result: resultEvicted},
		{Strategy: "RebalanceToPreferredSubset", Namespace: "ns", Spread: "web", Verdict: verdictKept, Reason: v1beta1.ReasonCoolingDown, Until: &until},
	}}
	var table, object, nothing strings.Builder
	for _, err := range []error{r.WriteTable(&table), r.WriteJSON(&object), newReport().WriteJSON(&nothing)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	wantTable := `STRATEGY                    NAMESPACE  SPREAD  POD    FROM  TO  VERDICT  REASON                UNTIL                 RESULT
RebalanceToPreferredSubset  ns         web     web-1  b     a   Move     EarlierSubsetHasRoom  -                     Evicted
RebalanceToPreferredSubset  ns         web     -      -     -   Keep     CoolingDown           2026-01-01T12:00:00Z  -
`
	if diff := cmp.Diff(wantTable, table.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	for _, want := range []string{`"plan": [`, `"pod": "web-1"`, `"node": "node-7"`, `"result": "Evicted"`, `"until": "2026-01-01T12:00:00Z"`} {
		if !strings.Contains(object.String(), want) {
			t.Errorf("JSON without %s:\n%s", want, object.String())
		}
	}
	if diff := cmp.Diff("{\n  \"plan\": []\n}\n", nothing.String()); diff != "" {
		t.Errorf("JSON of nothing (-want +got):\n%s", diff)
	}
}
