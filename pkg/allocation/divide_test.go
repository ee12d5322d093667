package allocation

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-project/berth/test/testkit/worlds"
)

// federated are the claims of clusters A, B and C as a federated ReplicaSet makes them: minimums go by weight and name,
// ties by name descending, and a cluster without a weight gets its minimum only.
func federated(a, b, c Claim) []Claim {
	claims := []Claim{a, b, c}
	for i := range claims {
		claim := &claims[i]
		claim.Name, claim.Tie = string(rune('A'+i)), -i
		if claim.Order = i - int(claim.Weight)*len(claims); claim.Weight == 0 {
			claim.Max = min(claim.Max, claim.Min)
		}
	}
	return claims
}

// TestDivideFederated has the layouts of the proposal for federated ReplicaSets, scenarios 1 to 7, for 50 replicas.
func TestDivideFederated(t *testing.T) {
	weighted := func(weight int32) Claim { return Claim{Weight: weight, Max: Unlimited, Capacity: Unlimited} }
	equal := weighted(1)
	offline := Claim{Weight: 1, Max: Unlimited}
	of := func(claim Claim, change func(*Claim)) Claim { change(&claim); return claim }
	six := of(equal, func(c *Claim) { c.Capacity = 6 })
	atMost20 := of(equal, func(c *Claim) { c.Max = 20 })
	has := func(n int32) Claim { return of(equal, func(c *Claim) { c.Current = n }) }
	minimum := func(n int32) Claim { return Claim{Min: n, Max: Unlimited, Capacity: Unlimited} }
	tests := map[string]struct {
		claims []Claim
		keep   bool
		want   []int32
	}{
		"1: evenly":                               {claims: federated(equal, equal, equal), want: []int32{16, 17, 17}},
		"1: C has capacity for 6":                 {claims: federated(equal, equal, six), want: []int32{22, 22, 6}},
		"1: B and C are offline":                  {claims: federated(equal, offline, offline), want: []int32{50, 0, 0}},
		"2: at most 2, with a weight":             {claims: federated(of(equal, maximum(2)), of(equal, maximum(2)), of(equal, maximum(2))), want: []int32{2, 2, 2}},
		"2: at least 2, without a weight":         {claims: federated(minimum(2), minimum(2), minimum(2)), want: []int32{2, 2, 2}},
		"2: at least and at most 2":               {claims: federated(of(minimum(2), maximum(2)), of(minimum(2), maximum(2)), of(minimum(2), maximum(2))), want: []int32{2, 2, 2}},
		"3: at least 20":                          {claims: federated(minimum(20), minimum(20), minimum(20)), want: []int32{20, 20, 10}},
		"4: at most 20 in C":                      {claims: federated(equal, equal, atMost20), want: []int32{16, 17, 17}},
		"4: B is offline":                         {claims: federated(equal, offline, atMost20), want: []int32{30, 0, 20}},
		"4: A and B are offline":                  {claims: federated(offline, offline, atMost20), want: []int32{0, 0, 20}},
		"5: A first":                              {claims: federated(weighted(1000000), equal, equal), want: []int32{50, 0, 0}},
		"5: A has capacity for 40":                {claims: federated(of(weighted(1000000), func(c *Claim) { c.Capacity = 40 }), equal, equal), want: []int32{40, 5, 5}},
		"6: A gets twice as many":                 {claims: federated(weighted(2), equal, equal), want: []int32{25, 12, 13}},
		"7: A keeps 20":                           {claims: federated(has(20), equal, equal), keep: true, want: []int32{20, 15, 15}},
		"7: A keeps 20, C has capacity for 6":     {claims: federated(has(20), equal, six), keep: true, want: []int32{22, 22, 6}},
		"7: A keeps 30, C has capacity for 6":     {claims: federated(has(30), equal, six), keep: true, want: []int32{30, 14, 6}},
		"7: with rebalance A gives replicas away": {claims: federated(has(30), equal, six), want: []int32{22, 22, 6}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Divide(50, tc.claims, !tc.keep)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func maximum(n int32) func(*Claim) { return func(c *Claim) { c.Max = n } }

// ordered gives claims the order of the slice, as the subsets of a spread have it.
func ordered(claims ...Claim) []Claim {
	for i := range claims {
		claims[i].Name, claims[i].Order, claims[i].Tie = fmt.Sprint(i), i, i
	}
	return claims
}

func TestDivideInOrder(t *testing.T) {
	open := func(c Claim) Claim {
		if c.Max == 0 {
			c.Max = Unlimited
		}
		if c.Capacity == 0 {
			c.Capacity = Unlimited
		}
		return c
	}
	tests := map[string]struct {
		total     int32
		claims    []Claim
		rebalance bool
		want      []int32
	}{
		"no claims":                                              {total: 3, want: []int32{}},
		"a negative total":                                       {total: -3, claims: []Claim{open(Claim{})}, want: []int32{0}},
		"a claim without maximum is closed":                      {total: 3, claims: []Claim{{Capacity: Unlimited}, open(Claim{})}, want: []int32{0, 3}},
		"negative bounds":                                        {total: 3, claims: []Claim{{Min: -1, Max: -1, Capacity: -1, Current: -1, Weight: -1}, open(Claim{})}, want: []int32{0, 3}},
		"the first comes first":                                  {total: 7, claims: []Claim{open(Claim{Max: 4}), open(Claim{})}, want: []int32{4, 3}},
		"minimums come before the rest":                          {total: 7, claims: []Claim{open(Claim{}), open(Claim{Min: 3})}, want: []int32{4, 3}},
		"earlier minimums win":                                   {total: 4, claims: []Claim{open(Claim{Min: 3}), open(Claim{Min: 3})}, want: []int32{3, 1}},
		"a minimum is cut to the maximum":                        {total: 7, claims: []Claim{open(Claim{}), open(Claim{Min: 3, Max: 2})}, want: []int32{5, 2}},
		"a minimum without capacity blocks nobody":               {total: 4, claims: []Claim{{Min: 3, Max: Unlimited}, open(Claim{Min: 3})}, want: []int32{0, 4}},
		"running replicas stay":                                  {total: 6, claims: []Claim{open(Claim{Max: 4}), open(Claim{Current: 5})}, want: []int32{1, 5}},
		"running replicas move to be balanced":                   {total: 6, claims: []Claim{open(Claim{Max: 4}), open(Claim{Current: 5})}, rebalance: true, want: []int32{4, 2}},
		"running replicas above the maximum":                     {total: 6, claims: []Claim{open(Claim{}), open(Claim{Current: 5, Max: 2})}, want: []int32{4, 2}},
		"scaled down, the last go first":                         {total: 6, claims: []Claim{open(Claim{Current: 4}), open(Claim{Current: 4})}, want: []int32{4, 2}},
		"scaled down, minimums stay":                             {total: 6, claims: []Claim{open(Claim{Current: 4}), open(Claim{Current: 4, Min: 3})}, want: []int32{3, 3}},
		"7 by 20, 20 and 60":                                     {total: 7, claims: []Claim{open(Claim{Weight: 20}), open(Claim{Weight: 20}), open(Claim{Weight: 60})}, want: []int32{1, 1, 5}},
		"a claim without weight gets its minimum":                {total: 9, claims: []Claim{open(Claim{Weight: 1}), open(Claim{Min: 2})}, want: []int32{7, 2}},
		"equal weights go in order of ties":                      {total: 4, claims: []Claim{open(Claim{Weight: 1}), open(Claim{Weight: 1}), open(Claim{Weight: 1})}, want: []int32{2, 1, 1}},
		"the heavier claim wins a tie":                           {total: 1, claims: []Claim{open(Claim{Weight: 1}), open(Claim{Weight: 3, Min: 0, Current: 1})}, want: []int32{0, 1}},
		"the total fills every bound":                            {total: 9, claims: []Claim{open(Claim{Weight: 1, Max: 2}), open(Claim{Weight: 5, Max: 3})}, want: []int32{2, 3}},
		"a million":                                              {total: 1000000, claims: []Claim{open(Claim{Weight: 1}), open(Claim{Weight: 1}), open(Claim{Weight: 3})}, want: []int32{200000, 200000, 600000}},
		"as many as there are":                                   {total: Unlimited, claims: []Claim{open(Claim{Weight: 1}), open(Claim{Weight: Unlimited})}, want: []int32{1, Unlimited - 1}},
		"scaled down, a claim without weight keeps what is left": {total: 4, claims: []Claim{open(Claim{Current: 2, Weight: 1}), open(Claim{Current: 3})}, want: []int32{2, 2}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Divide(tc.total, ordered(tc.claims...), tc.rebalance)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// random claims, with small numbers so that bounds and ties are frequent.
func random(r *worlds.History) []Claim {
	claims := make([]Claim, r.IntN(6))
	weighted := r.IntN(3) > 0
	for i := range claims {
		c := &claims[i]
		*c = Claim{Name: fmt.Sprint(i), Order: r.IntN(3), Tie: r.IntN(3), Max: Unlimited, Capacity: Unlimited, Current: int32(r.IntN(12))}
		if r.IntN(2) == 0 {
			c.Min = int32(r.IntN(6))
		}
		if r.IntN(2) == 0 {
			c.Max = int32(r.IntN(12))
		}
		if r.IntN(3) == 0 {
			c.Capacity = int32(r.IntN(12))
		}
		if weighted {
			c.Weight = int32(r.IntN(5))
		}
	}
	return claims
}

func sum(numbers []int32) (total int32) {
	for _, n := range numbers {
		total += n
	}
	return total
}

func TestProperties(t *testing.T) { worlds.Check(t, "claims", 5000, divide) }

func divide(t rapid.TB, h *worlds.History) {
	t.Helper()
	claims, total, rebalance := random(h), int32(h.Number("total", 60)), h.Yes("rebalance", 2)
	check(t, claims, total, rebalance)
	if t.Failed() {
		t.Fatalf("%d over %+v, rebalance %v: %v", total, claims, rebalance, Divide(total, claims, rebalance))
	}
}

// TestHistories plays what found a fault.
func TestHistories(t *testing.T) {
	worlds.Replay(t, map[string]worlds.Play{"claims": divide, "places": approach})
}

// Quotients of large numbers may differ by less than a float64 can tell. Here two claims are due for their last replica
// at nearly the same time, and only one replica is left. No claim may have a replica that another one is due for
// earlier.
func TestSharesOfLargeNumbersAreExact(t *testing.T) {
	for seed := range uint64(2_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		x, y := 2*r.Int64N(1<<29)+3, 2*r.Int64N(1<<29)+3
		inverse := new(big.Int).ModInverse(big.NewInt(y), big.NewInt(x))
		if inverse == nil {
			continue // they have a common factor
		}
		weight := inverse.Int64()
		other := (weight*y - 1) / x // so that weight·y and other·x differ by 1
		if weight == 0 || other == 0 || weight > math.MaxInt32 || other > math.MaxInt32 {
			continue
		}
		claims := []Claim{{Name: "0", Max: Unlimited, Capacity: Unlimited, Weight: int32(weight)}, {Name: "1", Max: Unlimited, Capacity: Unlimited, Weight: int32(other), Tie: 1}}
		total := int32((x-1)/2 + (y-1)/2 + 1)
		got := Divide(total, claims, true)
		for i := range claims {
			if j := 1 - i; got[j] > 0 && CompareShares(claims[i].Weight, got[i], claims[j].Weight, got[j]-1) < 0 {
				t.Fatalf("seed %d: %d over weights %d and %d: claim %d has a replica of claim %d: %v", seed, total, weight, other, j, i, got)
			}
		}
	}
}

func check(t rapid.TB, claims []Claim, total int32, rebalance bool) {
	t.Helper()
	got := Divide(total, claims, rebalance)
	if diff := cmp.Diff(oneByOne(total, claims, rebalance), got); diff != "" {
		t.Errorf("one by one: %s", diff)
	}
	weighted := slices.ContainsFunc(claims, func(c Claim) bool { return c.Weight > 0 })
	room, minimums, current := int64(0), int64(0), int64(0)
	for i := range claims {
		c := &claims[i]
		if got[i] < 0 || got[i] > c.room() {
			t.Errorf("claim %d has %d of %d", i, got[i], c.room())
		}
		minimums += int64(min(max(c.Min, 0), c.room()))
		current += int64(max(min(max(c.Min, 0), c.room()), min(c.Current, c.room())))
		if !weighted || c.Weight > 0 {
			room += int64(c.room() - got[i])
		}
	}
	left := max(total, 0) - sum(got)
	if left < 0 || left > 0 && room > 0 {
		t.Errorf("%d are left, and there is room for %d", left, room)
	}
	if !rebalance && left > 0 && current > int64(total) {
		t.Errorf("%d are left, and %d could stay", left, current)
	}
	for i := range claims {
		c := &claims[i]
		if minimums <= int64(total) && got[i] < min(c.Min, c.room()) {
			t.Errorf("claim %d has %d and not its minimum", i, got[i])
		}
		if !rebalance && current <= int64(total) && got[i] < min(c.Current, c.room()) {
			t.Errorf("claim %d gives away running replicas: it has %d", i, got[i])
		}
		if !rebalance && current > int64(total) && got[i] > max(c.Current, c.Min, 0) {
			t.Errorf("claim %d gets %d although running replicas are to go", i, got[i])
		}
	}
	if rebalance {
		for i, more := range Divide(total+1, claims, true) {
			if more < got[i] {
				t.Errorf("one replica more takes one from claim %d", i)
			}
		}
	}
	turned := slices.Clone(claims)
	slices.Reverse(turned)
	back := Divide(total, turned, rebalance)
	slices.Reverse(back)
	if diff := cmp.Diff(got, back); diff != "" {
		t.Errorf("in another order: %s", diff)
	}
}

// oneByOne divides as the text of Divide says, without regard to time.
func oneByOne(total int32, claims []Claim, rebalance bool) []int32 {
	got, bound := make([]int32, len(claims)), make([]int32, len(claims))
	left := max(total, 0)
	order := make([]int, len(claims))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if claims[a].Order != claims[b].Order {
			return claims[a].Order - claims[b].Order
		}
		return a - b // names are indexes here
	})
	fill := func(upTo func(i int) int32) {
		for _, i := range order {
			for got[i] < upTo(i) && left > 0 {
				got[i]++
				left--
			}
		}
	}
	for i := range claims {
		bound[i] = max(0, min(claims[i].Max, claims[i].Capacity))
	}
	fill(func(i int) int32 { return min(claims[i].Min, bound[i]) })
	scaledDown := false
	if !rebalance {
		kept := make([]int32, len(claims))
		for i := range claims {
			kept[i] = max(got[i], min(claims[i].Current, bound[i]))
		}
		if sum(kept)-sum(got) > left {
			bound, scaledDown = kept, true
		} else {
			fill(func(i int) int32 { return kept[i] })
		}
	}
	if !slices.ContainsFunc(claims, func(c Claim) bool { return c.Weight > 0 }) {
		fill(func(i int) int32 { return bound[i] })
		return got
	}
	for ; left > 0; left-- {
		best := -1
		for i := range claims {
			if claims[i].Weight > 0 && got[i] < bound[i] && (best < 0 || first(claims, got, i, best)) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		got[best]++
	}
	if scaledDown {
		fill(func(i int) int32 { return bound[i] })
	}
	return got
}

// first is true if claim a gets a replica before claim b.
func first(claims []Claim, got []int32, a, b int) bool {
	x, y := claims[a], claims[b]
	left, right := int64(x.Weight)*int64(2*got[b]+1), int64(y.Weight)*int64(2*got[a]+1)
	switch {
	case left != right:
		return left > right
	case x.Weight != y.Weight:
		return x.Weight > y.Weight
	case x.Tie != y.Tie:
		return x.Tie < y.Tie
	default:
		return a < b
	}
}

func FuzzDivide(f *testing.F) {
	f.Add(int32(50), int32(0), int32(20), int32(Unlimited), int32(1), int32(7), int32(3), int32(1), int32(Unlimited), int32(9), int32(0), int32(2), true)
	f.Fuzz(func(t *testing.T, total, min1, max1, capacity1, weight1, current1, order1, min2, max2, weight2, current2, tie2 int32, rebalance bool) {
		claims := []Claim{
			{Name: "0", Min: min1, Max: max1, Capacity: capacity1, Weight: weight1, Current: current1, Order: int(order1)},
			{Name: "1", Min: min2, Max: max2, Capacity: Unlimited, Weight: weight2, Current: current2, Tie: int(tie2)},
			{Name: "2", Max: 10, Capacity: Unlimited, Weight: 1},
		}
		const most = 3000 // oneByOne takes time
		check(t, claims, total%most, rebalance)
	})
}

func BenchmarkDivide(b *testing.B) {
	for _, size := range []struct {
		claims int
		total  int32
	}{{3, 3_000}, {64, 100_000}, {64, 1_000_000}} {
		b.Run(fmt.Sprintf("%d claims of %d replicas", size.claims, size.total), func(b *testing.B) {
			claims := make([]Claim, size.claims)
			for i := range claims {
				claims[i] = Claim{Name: fmt.Sprint(i), Weight: int32(i + 1), Max: Unlimited, Capacity: Unlimited}
			}
			b.ReportAllocs()
			for b.Loop() {
				Divide(size.total, claims, true)
			}
		})
	}
}
