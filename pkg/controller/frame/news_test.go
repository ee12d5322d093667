package frame

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

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

// TestNewsAndConditionsAreCut to what the API server stores. It refuses a status with a longer message, every time.
func TestNewsAndConditionsAreCut(t *testing.T) {
	long, recorder := strings.Repeat("x", 100_000), events.NewFakeRecorder(1)
	Warning("Why", "Do", "%s", long).Send(recorder, nil, nil)
	if note := <-recorder.Events; len(note) > longestNote+len("Warning Why ") {
		t.Errorf("a note of %d bytes", len(note))
	}
	var conditions []metav1.Condition
	False("Ready", "Why", "%s", long).Set(&conditions, 1, metav1.Now())
	if n := len(conditions[0].Message); n != longestMessage {
		t.Errorf("a message of %d bytes", n)
	}
}
