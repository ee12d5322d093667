package federation

import (
	"fmt"
	"testing"
)

// TestForgedSums: an excess that reads confirm is a violation, however short it was. One that only the watches show is none.
func TestForgedSums(t *testing.T) {
	for name, tc := range map[string]struct {
		// reads are what the members ask for at one read after the other. The last one repeats.
		reads [][]int32
		want  int
	}{
		"an excess":                           {[][]int32{{6, 5}}, 1},
		"a watch that is late":                {[][]int32{{5, 5}}, 0},
		"a move between the reads":            {[][]int32{{6, 5}, {5, 5}}, 0},
		"an excess after a move":              {[][]int32{{4, 5}, {6, 5}}, 1},
		"a member that does not answer first": {[][]int32{nil, {6, 5}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			watched := &tally{asked: make([]int32, 2), most: 10}
			watched.read = func() ([]int32, []string, bool) {
				asked := tc.reads[0]
				if len(tc.reads) > 1 {
					tc.reads = tc.reads[1:]
				} else if asked[0]+asked[1] <= 10 {
					go watched.set(0, 5) // the watch comes later
				}
				return asked, []string{fmt.Sprint(asked)}, asked != nil
			}
			watched.set(1, 5)
			watched.set(0, 6)
			watched.readers.Wait()
			if watched.sums != 1 || len(watched.violations) != tc.want {
				t.Errorf("%d sums, violations %q", watched.sums, watched.violations)
			}
		})
	}
}
