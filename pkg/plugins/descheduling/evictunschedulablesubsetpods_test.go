package descheduling

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-project/berth/pkg/moves"
	"github.com/berth-project/berth/test/testkit"
)

func TestDefaultsByEvictUnschedulableSubsetPods(t *testing.T) {
	testkit.ExpectDefaults[EvictUnschedulableSubsetPodsArgs](t, map[string]string{
		"{}": "{schedulerNames: [berth-scheduler], skewTolerance: 5s, maxPerSubset: 100%, backoff: {base: 1m, longest: 30m}}",
		"{schedulerNames: [other], skewTolerance: 0s, maxPerSubset: 2, backoff: {base: 2m}}": "{schedulerNames: [other], skewTolerance: 0s, maxPerSubset: 2, backoff: {base: 2m, longest: 30m}}",
	})
}

func TestWhatIsRefusedByEvictUnschedulableSubsetPods(t *testing.T) {
	testkit.ExpectRefused[EvictUnschedulableSubsetPodsArgs](t, map[string][]string{
		"{}": nil,
		"{schedulerNames: [a, b], skewTolerance: 10m, maxPerSubset: 1%}": nil,
		`{schedulerNames: [a, ""]}`:                                      {"schedulerNames[1]"},
		"{skewTolerance: 11m}":                                           {"skewTolerance"},
		"{skewTolerance: -1s}":                                           {"skewTolerance"},
		"{maxPerSubset: some}":                                           {"maxPerSubset"},
		"{maxPerSubset: 0, backoff: {base: 1ms}}":                        {"maxPerSubset", "backoff.base"},
		"{namespaces: {include: [a], exclude: [b]}}":                     {"namespaces"},
	})
}

// Three pods wait in subset a. The spread allows that for 30 seconds.
func TestWhatItDecidesByEvictUnschedulableSubsetPods(t *testing.T) {
	tests := map[string]struct {
		args  string
		since time.Duration
		late  bool // the spread binds late
		moved time.Duration
		rooms testkit.Rooms
		want  string
	}{
		"a pod may wait 5 seconds longer than allowed": {args: "{}", since: 35 * time.Second, rooms: testkit.Rooms{1: 9}},
		"then it leaves": {args: "{}", since: 35*time.Second + 1, rooms: testkit.Rooms{1: 9}, want: "a-0>b, a-1>b, a-2>b"},
		"or as much longer as skewTolerance says": {args: "{skewTolerance: 0s}", since: 31 * time.Second, rooms: testkit.Rooms{1: 9}, want: "a-0>b, a-1>b, a-2>b"},
		"maxPerSubset has fewer leave at a time":  {args: "{maxPerSubset: 34%}", since: time.Minute, rooms: testkit.Rooms{1: 9}, want: "a-0>b, a-1>b, a-2 LimitReached"},
		"as many leave as there is room for":      {args: "{}", since: time.Minute, rooms: testkit.Rooms{1: 1}, want: "a-0>b, a-1 NoRoom, a-2 NoRoom"},
		"pods that came back wait for a minute":   {args: "{}", since: time.Minute, moved: 59 * time.Second, rooms: testkit.Rooms{1: 9}, want: "a-0 BackingOff, a-1 BackingOff, a-2 BackingOff"},
		"or as long as backoff says":              {args: "{backoff: {base: 10s}}", since: time.Minute, moved: 59 * time.Second, rooms: testkit.Rooms{1: 9}, want: "a-0>b, a-1>b, a-2>b"},
		"late-bound pods go on by themselves":     {args: "{}", since: time.Hour, late: true, rooms: testkit.Rooms{1: 9}},
	}
	early := testkit.Policy(t, "{scheduleStrategy: {type: Adaptive, binding: Early, adaptive: {rescheduleCriticalSeconds: 30}}, subsets: [{name: a, maxReplicas: 3}, {name: b}]}")
	late := testkit.Policy(t, "{scheduleStrategy: {type: Adaptive, binding: Late, adaptive: {rescheduleCriticalSeconds: 30}}, subsets: [{name: a, maxReplicas: 3}, {name: b}]}")
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			args := testkit.ReadArgs[EvictUnschedulableSubsetPodsArgs](t, tc.args)
			args.Default()
			strategy, policy := args.Strategy(), early
			if tc.late {
				policy = late
			}
			f := testkit.FactsOf(policy, testkit.Waiting("a", 3, tc.since))
			if tc.moved > 0 {
				f.Moves = testkit.MovedAgo("a", "b", tc.moved)
			}
			if got := testkit.Summary(policy, strategy.Decide(f, tc.rooms)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if strategy.Direction != moves.Away {
				t.Errorf("it moves pods %d", strategy.Direction)
			}
		})
	}
}

func TestWhosePodsItMovesByEvictUnschedulableSubsetPods(t *testing.T) {
	args := testkit.ReadArgs[EvictUnschedulableSubsetPodsArgs](t, "{schedulerNames: [mine, yours]}")
	args.Default()
	if diff := cmp.Diff([]string{"mine", "yours"}, args.Strategy().Schedulers); diff != "" {
		t.Errorf("schedulers (-want +got):\n%s", diff)
	}
}
