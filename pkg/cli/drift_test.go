package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/testkit"
)

func TestDrift(t *testing.T) {
	tests := map[string]struct{ spec, status, want string }{
		"all is as planned":     {twoThenAny, `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}]}`, ""},
		"pods on their way":     {twoThenAny, `{observedReplicas: 3, pendingPods: 2, subsetStatuses: [{name: a, replicas: 1}, {name: b}]}`, ""},
		"a lowered quota":       {twoThenAny, `{observedReplicas: 3, surplusPods: 1, subsetStatuses: [{name: a, replicas: 3}, {name: b}]}`, "a 3/2 above quota EnforceSubsetMaxReplicas"},
		"two revisions":         {twoThenAny, rollingOut, ""},
		"above for one of two":  {twoThenAny, rolledOver, "a 4/2 above quota EnforceSubsetMaxReplicas"},
		"pods that went on":     {twoThenAny + adaptive, `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 1}, {name: b, replicas: 2}]}`, "a 1/2 its pods went to later subsets RebalanceToPreferredSubset"},
		"shares as they should": {shares, `{observedReplicas: 7, subsetStatuses: [{name: a, replicas: 1}, {name: b, replicas: 1}, {name: c, replicas: 5}]}`, ""},
		"shares elsewhere":      {shares, `{observedReplicas: 7, subsetStatuses: [{name: a, replicas: 2}, {name: b, replicas: 1}, {name: c, replicas: 4}]}`, "c 4/5 its pods are in other subsets RebalanceToPreferredSubset"},
		"pods without a node":   {twoThenAny, `{observedReplicas: 3, pendingPods: 1, subsetStatuses: [{name: a, replicas: 1` + waiting + `}, {name: b, replicas: 1}]}`, "a 1/2 pods wait for a node EvictUnschedulableSubsetPods"},
		"pods of no subset":     {twoThenAny, `{observedReplicas: 3, unplacedPods: 2, subsetStatuses: [{name: a, replicas: 1}, {name: b}]}`, " 2/0 in no subset EnforceSubsetMaxReplicas"},
		"a spread that is none": {`subsets: [{name: a, maxReplicas: -1}]`, `{}`, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			c := driftCommand{out: &out, output: console.AsTable}
			if err := c.run(t.Context(), clusterOf(t, testkit.Spread(t, tc.spec, tc.status)), nil); err != nil {
				t.Fatal(err)
			}
			if tc.want == "" {
				if diff := cmp.Diff("No drift in 1 WorkloadSpread.\n", out.String()); diff != "" {
					t.Errorf("printed (-want +got):\n%s", diff)
				}
				return
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			row := strings.Join(strings.Fields(lines[len(lines)-1]), " ")
			subset, rest, _ := strings.Cut(tc.want, " ")
			if subset == "" {
				subset = "-"
			}
			numbers, what, _ := strings.Cut(rest, " ")
			pods, planned, _ := strings.Cut(numbers, "/")
			what, mends := what[:strings.LastIndex(what, " ")], what[strings.LastIndex(what, " ")+1:]
			if want := strings.Join([]string{"web", subset, pods, planned, what}, " "); len(lines) != 2 || !strings.HasPrefix(row, want) || !strings.Contains(row, mends) {
				t.Errorf("printed\n%s\nwant %q and %s", out.String(), want, mends)
			}
		})
	}
}
