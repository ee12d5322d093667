package frame

import "testing"

func TestAtMost(t *testing.T) {
	tests := map[string]struct {
		bytes      int
		text, want string
	}{
		"a text that fits is left alone":       {5, "short", "short"},
		"a longer one ends in dots":            {8, "rather long", "rathe..."},
		"it is not cut in half of a character": {8, "abcdéfgh", "abcd..."},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := AtMost(tc.bytes, tc.text); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
