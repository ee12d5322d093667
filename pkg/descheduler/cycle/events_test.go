package cycle

import (
	"testing"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
)

func TestTheEventOfAMoveSaysWhatIsKnown(t *testing.T) {
	const quota, waited = "pod p was evicted from subset a: it holds more pods than its quota", "pod p was evicted from subset a: no node of it has taken the pod for rescheduleCriticalSeconds"
	for name, tc := range map[string]struct {
		to   string
		move moves.Move
		want string
	}{
		"room in another subset":          {"b", moves.Move{Reason: v1beta1.ReasonOverQuota, Room: moves.HasRoom}, quota + "; a replacement fits in subset b"},
		"room on some node":               {"", moves.Move{Reason: v1beta1.ReasonOverQuota, Room: moves.HasRoom}, quota + "; a replacement fits on some node"},
		"no room, for a pod that must go": {"b", moves.Move{Reason: v1beta1.ReasonOverQuota, Room: moves.NoRoom}, quota},
		"room of which nobody can tell":   {"b", moves.Move{Reason: v1beta1.ReasonUnschedulableTooLong, Room: moves.RoomUnknown}, waited},
	} {
		if got := movedNote("p", "a", tc.to, &tc.move); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
