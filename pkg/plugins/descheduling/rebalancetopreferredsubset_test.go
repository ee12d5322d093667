package descheduling

import (
	"testing"
	"time"

	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/test/testkit"
)

func TestDefaultsByRebalanceToPreferredSubset(t *testing.T) {
	testkit.ExpectDefaults[RebalanceToPreferredSubsetArgs](t, map[string]string{
		"{}": "{stabilizationWindow: 10m, minResidence: 15m, cooldown: 5m, maxMovesPerSpread: 10%, backoff: {base: 5m, longest: 4h}}",
		"{stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, maxMovesPerSpread: 7, backoff: {base: 1s, longest: 1s}}": "{stabilizationWindow: 0s, minResidence: 0s, cooldown: 0s, maxMovesPerSpread: 7, backoff: {base: 1s, longest: 1s}}",
	})
}

func TestWhatIsRefusedByRebalanceToPreferredSubset(t *testing.T) {
	testkit.ExpectRefused[RebalanceToPreferredSubsetArgs](t, map[string][]string{
		"{}": nil,
		"{stabilizationWindow: 24h, minResidence: 24h, cooldown: 24h, maxMovesPerSpread: 1}": nil,
		"{stabilizationWindow: 25h, minResidence: -1s, cooldown: 25h}":                       {"stabilizationWindow", "minResidence", "cooldown"},
		"{maxMovesPerSpread: 0}":              {"maxMovesPerSpread"},
		"{backoff: {base: 0s, longest: 25h}}": {"backoff.base", "backoff.longest"},
		"{maxMovesPerSpread: -1}":             {"maxMovesPerSpread"},
	})
}

// Two pods of subset b could be in a, which has quota and room for them.
func TestWhatItDecidesByRebalanceToPreferredSubset(t *testing.T) {
	minutes := func(n time.Duration) time.Duration { return n * time.Minute }
	tests := map[string]struct {
		args   string
		age    time.Duration // of the pods; 0 means an hour
		stable time.Duration // how long subset a has had no waiting pod; 0 means an hour
		change func(*moves.Facts)
		want   string
	}{
		"a tenth comes home at a time":                                 {args: "{}", want: "b-0>a, b-1 LimitReached"},
		"or as many as maxMovesPerSpread says":                         {args: "{maxMovesPerSpread: 2}", want: "b-0>a, b-1>a"},
		"not before it is where it is for 15 minutes":                  {args: "{}", age: minutes(14), want: "b-0 TooYoung, b-1 TooYoung"},
		"or as long as minResidence says":                              {args: "{minResidence: 14m}", age: minutes(14), want: "b-0>a, b-1 LimitReached"},
		"not to a subset that pods waited in less than 10 minutes ago": {args: "{}", stable: minutes(9), want: "b-0 Settling, b-1 Settling"},
		"or than stabilizationWindow says":                             {args: "{stabilizationWindow: 9m}", stable: minutes(9), want: "b-0>a, b-1 LimitReached"},
		"not within 5 minutes of another move": {args: "{}",
			change: func(f *moves.Facts) { f.Moves = testkit.MovedAgo("b", "a", minutes(4)) }, want: "* CoolingDown"},
		"and after cooldown pods that came back wait as well": {args: "{cooldown: 1m}",
			change: func(f *moves.Facts) { f.Moves = testkit.MovedAgo("b", "a", minutes(4)) }, want: "b-0 BackingOff, b-1 BackingOff"},
		"as long as backoff says": {args: "{cooldown: 1m, backoff: {base: 1m}}",
			change: func(f *moves.Facts) { f.Moves = testkit.MovedAgo("b", "a", minutes(4)) }, want: "b-0>a, b-1 LimitReached"},
		"not in a cycle that moved pods away": {args: "{}", change: func(f *moves.Facts) { f.Moved = moves.Away }, want: "* OppositeMove"},
		"not while a pod is missing":          {args: "{}", change: func(f *moves.Facts) { f.Replicas++ }, want: "* NotAtRest"},
	}
	policy := testkit.Policy(t, "{scheduleStrategy: {type: Adaptive}, subsets: [{name: a, maxReplicas: 5}, {name: b}]}")
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			args := testkit.ReadArgs[RebalanceToPreferredSubsetArgs](t, tc.args)
			args.Default()
			strategy := args.Strategy()
			for _, duration := range []*time.Duration{&tc.age, &tc.stable} {
				if *duration == 0 {
					*duration = time.Hour
				}
			}
			f := testkit.FactsOf(policy, testkit.Running("b", 2, tc.age))
			f.SchedulableSince = []time.Time{testkit.Now.Add(-tc.stable)}
			if tc.change != nil {
				tc.change(f)
			}
			if got := testkit.Summary(policy, strategy.Decide(f, testkit.Rooms{0: 9})); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if strategy.Direction != moves.Home {
				t.Errorf("it moves pods %d", strategy.Direction)
			}
		})
	}
}

// A node counts as room only if it has been ready for the same time.
func TestNodesMustBeStableTooByRebalanceToPreferredSubset(t *testing.T) {
	args := testkit.ReadArgs[RebalanceToPreferredSubsetArgs](t, "{stabilizationWindow: 3m}")
	args.Default()
	if got := args.Strategy().Stable; got != 3*time.Minute {
		t.Errorf("nodes must have been ready for %s", got)
	}
}
