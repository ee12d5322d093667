package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/testkit"
)

func TestMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spread := testkit.Spread(t, twoThenAny+adaptive, `{observedReplicas: 3, subsetStatuses: [{name: a, replicas: 1}, {name: b, replicas: 2}]}`)
		spread.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		at := func(ago time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-ago)) }
		print := func(output console.Output) string {
			t.Helper()
			var out bytes.Buffer
			if err := (&movesCommand{out: &out, output: output}).run(t.Context(), clusterOf(t, spread), []string{"web"}); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		if got := print(console.AsTable); !strings.HasPrefix(got, "No moves of WorkloadSpread web are recorded.\n  next: 1 pod of later subsets could be in a") {
			t.Errorf("without moves: %q", got)
		}
		spread.Status.Moves = []v1beta1.Move{
			{From: "b", To: "a", Reason: "EarlierSubsetHasRoom", Round: 2, Remaining: 1, Time: at(2 * time.Minute), InFlight: []v1beta1.PodInFlight{{UID: "1", Name: "web-1"}, {UID: "2", Name: "web-2"}}},
			{From: "", To: "a", Reason: "EarlierSubsetHasRoom", Round: 1, Time: at(30 * time.Minute)},
		}
		got := print(console.AsTable)
		for _, line := range []string{
			"AGE   FROM   TO   REASON                 ROUND   IN FLIGHT\n",
			"30m   -      a    EarlierSubsetHasRoom   1       -\n",
			"2m    b      a    EarlierSubsetHasRoom   2       web-1 web-2\n",
			"  held for 8m: BackingOff\n",
			"  next: 1 pod of later subsets could be in a",
		} {
			if !strings.Contains(got, line) {
				t.Errorf("printed\n%swithout %q", got, line)
			}
		}
		if strings.Index(got, "30m") > strings.Index(got, "2m ") {
			t.Errorf("not the oldest first:\n%s", got)
		}
		var r MovesReport
		if err := yaml.UnmarshalStrict([]byte(print(console.AsYAML)), &r); err != nil || len(r.Moves) != 2 || r.Moves[0].From != "" || r.Wait == nil || r.Wait.Reason != "BackingOff" {
			t.Errorf("%v: %+v", err, r)
		}
	})
}
