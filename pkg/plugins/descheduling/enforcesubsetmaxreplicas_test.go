package descheduling

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/test/testkit"
)

func TestDefaultsByEnforceSubsetMaxReplicas(t *testing.T) {
	testkit.ExpectDefaults[EnforceSubsetMaxReplicasArgs](t, map[string]string{
		"{}": "{settleTime: 1m, maxUnavailable: 10%, backoff: {base: 1m, longest: 30m}}",
		"{settleTime: 0s, maxUnavailable: 3, duringRollouts: true, withoutRoom: true, backoff: {longest: 2h}}": "{settleTime: 0s, maxUnavailable: 3, duringRollouts: true, withoutRoom: true, backoff: {base: 1m, longest: 2h}}",
	})
}

func TestWhatIsRefusedByEnforceSubsetMaxReplicas(t *testing.T) {
	testkit.ExpectRefused[EnforceSubsetMaxReplicasArgs](t, map[string][]string{
		"{}": nil,
		"{settleTime: 24h, maxUnavailable: 100%, backoff: {base: 1s, longest: 24h}}": nil,
		"{settleTime: -1s}":      {"settleTime"},
		"{settleTime: 25h}":      {"settleTime"},
		"{maxUnavailable: 0}":    {"maxUnavailable"},
		"{maxUnavailable: 101%}": {"maxUnavailable"},
		"{backoff: {base: 2h, longest: 1h}, settleTime: 25h}": {"settleTime", "backoff.longest"},
		"{namespaces: {include: [a], exclude: [b]}}":          {"namespaces"},
	})
}

// Two of ten pods are above the quota of subset a.
func TestWhatItDecidesByEnforceSubsetMaxReplicas(t *testing.T) {
	twoRevisions := func(f *moves.Facts) { f.Pods[9].Revision = "old" }
	tests := map[string]struct {
		args      string
		since     time.Duration // how long pods have been misplaced
		change    func(*moves.Facts)
		want      string
		noRoom    bool
		firstSeen bool
	}{
		"nobody moves before a minute is over":           {args: "{}", since: 59 * time.Second, want: "* Settling"},
		"then one in ten, the youngest first":            {args: "{}", since: time.Minute, want: "a-1 LimitReached, a-2>b"},
		"settleTime moves pods as soon as they are seen": {args: "{settleTime: 0s}", firstSeen: true, want: "a-1 LimitReached, a-2>b"},
		"maxUnavailable moves more at a time":            {args: "{maxUnavailable: 2}", since: time.Hour, want: "a-1>b, a-2>b"},
		"nobody moves during a rollout":                  {args: "{}", since: time.Hour, change: twoRevisions, want: "* RollingOut"},
		"unless duringRollouts says so":                  {args: "{duringRollouts: true}", since: time.Hour, change: twoRevisions, want: "a-1 LimitReached, a-2>b"},
		"nobody moves without room":                      {args: "{maxUnavailable: 2}", since: time.Hour, noRoom: true, want: "a-1 NoRoom, a-2 NoRoom"},
		"unless withoutRoom says so":                     {args: "{maxUnavailable: 2, withoutRoom: true}", since: time.Hour, noRoom: true, want: "a-1>b, a-2>b"},
		"pods that come back wait for a minute": {args: "{maxUnavailable: 2}", since: time.Hour,
			change: func(f *moves.Facts) { f.Moves = testkit.MovedAgo("a", "b", 59*time.Second) }, want: "a-1 BackingOff, a-2 BackingOff"},
		"or as long as backoff says": {args: "{maxUnavailable: 2, backoff: {base: 10s}}", since: time.Hour,
			change: func(f *moves.Facts) { f.Moves = testkit.MovedAgo("a", "b", 59*time.Second) }, want: "a-1>b, a-2>b"},
	}
	policy := testkit.Policy(t, "{scheduleStrategy: {type: Adaptive}, subsets: [{name: a, maxReplicas: 1}, {name: b}]}")
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			args := testkit.ReadArgs[EnforceSubsetMaxReplicasArgs](t, tc.args)
			args.Default()
			strategy := args.Strategy()
			f := testkit.FactsOf(policy, testkit.Running("a", 3, time.Hour), testkit.Running("b", 7, time.Hour))
			if !tc.firstSeen {
				f.Misplaced = &v1beta1.Misplaced{Pods: 2, Since: metav1.NewTime(testkit.Now.Add(-tc.since))}
			}
			if tc.change != nil {
				tc.change(f)
			}
			rooms := testkit.Rooms{1: 9}
			if tc.noRoom {
				rooms = nil
			}
			if got := testkit.Summary(policy, strategy.Decide(f, rooms)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if strategy.Direction != moves.Away {
				t.Errorf("it moves pods %d", strategy.Direction)
			}
		})
	}
}
