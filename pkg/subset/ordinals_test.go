package subset

import (
	"slices"
	"testing"
)

func TestSubsetAt(t *testing.T) {
	for name, tc := range map[string]struct {
		spec string
		// want are the homes of the first positions, by the names of the subsets. A - is none.
		want string
	}{
		"counts":                   {`{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 0}, {name: c, maxReplicas: 1}]}`, "aac--"},
		"the rest without a limit": {`{subsets: [{name: a, maxReplicas: 1}, {name: b}]}`, "abbb"},
		"20/20/60":                 {`{subsets: [{name: a, maxReplicas: "20%"}, {name: b, maxReplicas: "20%"}, {name: c, maxReplicas: "60%"}]}`, "ccabccc"},
		"weights and maximums":     {`{subsets: [{name: a, weight: 1, maxReplicas: 1}, {name: b, weight: 1, maxReplicas: 2}]}`, "abb--"},
		"minimums":                 {`{subsets: [{name: a, minReplicas: 1}, {name: b, minReplicas: 2}]}`, "abbaa"},
	} {
		policy := compile(t, tc.spec)
		plan := policy.Plan(int32(len(tc.want)))
		var got string
		for position := range tc.want {
			home, known := policy.SubsetAt(&plan, int32(position)+1)
			switch {
			case !known:
				t.Errorf("%s: position %d is not known", name, position+1)
			case home == None:
				got += "-"
			default:
				got += policy.Subsets[home].Name
			}
		}
		if got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
		for _, position := range []int32{0, -1} {
			if home, known := policy.SubsetAt(&plan, position); known {
				t.Errorf("%s: position %d is in %d", name, position, home)
			}
		}
	}
	unbounded := compile(t, `{subsets: [{name: a, weight: 1}, {name: b, weight: 1}]}`)
	plan := unbounded.Plan(1)
	if _, known := unbounded.SubsetAt(&plan, mostSeats); !known {
		t.Error("the last seat is not known")
	}
	if home, known := unbounded.SubsetAt(&plan, 1<<31-1); known {
		t.Errorf("a position above all seats is in %d", home)
	}
}

// The homes of the first pods are the targets at every size, unless minimums in percent grow at the same size.
func TestTargetsByOrdinal(t *testing.T) {
	for _, spec := range []string{
		`{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 3}]}`,
		`{subsets: [{name: a, maxReplicas: "30%"}, {name: b}]}`,
		`{subsets: [{name: a, maxReplicas: "20%"}, {name: b, maxReplicas: "20%"}, {name: c, maxReplicas: "60%"}]}`,
		`{subsets: [{name: a, minReplicas: 2, weight: 1}, {name: b, maxReplicas: 7, weight: 3}, {name: c, minReplicas: 1}]}`,
	} {
		policy := compile(t, spec)
		for pods := range int32(150) {
			plan := policy.Plan(pods)
			want, wantLeft := policy.Targets(&plan, pods)
			got, left := policy.TargetsByOrdinal(&plan, pods)
			if !slices.Equal(got, want) || left != wantLeft {
				t.Fatalf("%s at %d: got %v and %d, want %v and %d", spec, pods, got, left, want, wantLeft)
			}
		}
	}
	policy := compile(t, `{subsets: [{name: c}, {name: a, minReplicas: "33%"}, {name: b, minReplicas: "33%"}]}`)
	plan := policy.Plan(4)
	byOrdinal, _ := policy.TargetsByOrdinal(&plan, 4)
	if targets, _ := policy.Targets(&plan, 4); !slices.Equal(byOrdinal, []int32{1, 2, 1}) || !slices.Equal(targets, []int32{0, 2, 2}) {
		t.Errorf("at 4 got %v by ordinal and %v otherwise", byOrdinal, targets)
	}
}

func TestNextFromHome(t *testing.T) {
	const wait = `, scheduleStrategy: {whenFull: Wait}}`
	const places = `{subsets: [{name: a, maxReplicas: 2}, {name: b, maxReplicas: 2}, {name: c, maxReplicas: 2}, {name: d, maxReplicas: 2}]`
	for name, tc := range map[string]struct {
		spec string
		kept Counts
		home int
		skip Mask
		want int
	}{
		"the home comes first":                                 {places + "}", Counts{0, 0, 0, 0}, 1, 0, 1},
		"then the subsets after it":                            {places + "}", Counts{0, 2, 0, 0}, 1, 0, 2},
		"then those before it, the nearest first":              {places + "}", Counts{0, 0, 2, 2}, 2, 0, 1},
		"a skipped home is passed over":                        {places + "}", Counts{0, 0, 0, 0}, 3, Mask(0).With(3), 2},
		"a pod beyond all quotas is let go":                    {places + "}", Counts{0, 0, 0, 0}, None, 0, None},
		"unless it would wait: it takes a slot of the last":    {places + wait, Counts{0, 0, 1, 2}, None, 0, 2},
		"with shares the home comes first":                     {`{subsets: [{name: a, weight: 1}, {name: b, weight: 9}]}`, Counts{9, 0}, 0, 0, 0},
		"with shares the others come as they are due":          {`{subsets: [{name: a, weight: 1}, {name: b, weight: 1, maxReplicas: 1}, {name: c, weight: 1}]}`, Counts{0, 1, 4}, 1, 0, 0},
		"minimums of others do not come before the own subset": {`{subsets: [{name: a, minReplicas: 3}, {name: b}]}`, Counts{0, 0}, 1, 0, 1},
	} {
		policy := compile(t, tc.spec)
		plan := policy.Plan(8)
		if got := policy.Next(&plan, tc.kept, Candidate{HasHome: true, Home: tc.home}, tc.skip); got != tc.want {
			t.Errorf("%s: got %d, want %d", name, got, tc.want)
		}
	}
}

func TestGoByOrdinal(t *testing.T) {
	const subsets = `{subsets: [{name: a}]`
	for spec, want := range map[string]bool{subsets + `}`: true, subsets + `, targetFilter: {selector: {matchLabels: {a: b}}}}`: false} {
		if got := compile(t, spec).GoByOrdinal(); got != want {
			t.Errorf("%s: got %t", spec, got)
		}
	}
}
