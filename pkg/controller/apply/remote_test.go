package apply

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/members"
)

var shopWeb = types.NamespacedName{Namespace: "shop", Name: "web"}

type placedIn struct {
	cluster string
	keeps   int32
}

func (p placedIn) In() string   { return p.cluster }
func (p placedIn) Raise() int32 { return -p.keeps }

// TestNobodyWaitsForASlowWrite: until it ends, its replicas count as kept. Then its outcome is there, once.
func TestNobodyWaitsForASlowWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Remote[int]
		o := &Outcome{}
		Everywhere(t.Context(), &m, shopWeb, []placedIn{{"slow", 3}, {"quick", 4}, {"", 5}}, o, func(_ context.Context, all []placedIn, o *Outcome) {
			if len(all) > 0 && all[0].cluster == "slow" {
				time.Sleep(time.Second)
				m.Wrote(o, members.Errand{Object: shopWeb, Member: "slow"}, "slow", &Obstacle{strings.Repeat("x", 1000)}, time.Now())
			}
		})
		all := []members.Status{{Name: "slow"}, {Name: "quick"}}
		if late := m.LateWrites(shopWeb, all); o.Kept != 3 || late != nil {
			t.Errorf("%d are kept, and late is %v", o.Kept, late)
		}
		time.Sleep(2 * time.Second)
		if late := m.LateWrites(shopWeb, all); late == nil || len(late.Refused["slow"]) != longestComplaint {
			t.Errorf("late is %v", late)
		}
		if late := m.LateWrites(shopWeb, all); late != nil {
			t.Errorf("late again: %v", late)
		}
	})
}

// TestNothingIsDeletedWhereAWriteGoesOn: it may make an object after the visit, which nobody would delete then.
func TestNothingIsDeletedWhereAWriteGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Remote[int]
		visit := func() (left bool, silent []string) {
			return m.VisitAll(t.Context(), shopWeb, []members.Status{{Name: "a"}, {Name: "b"}, {Name: "c"}}, func(_ context.Context, of *members.Status) (bool, error) {
				if of.Name == "c" {
					return true, errors.New("no space")
				}
				return of.Name == "a", nil
			})
		}
		Everywhere(t.Context(), &m, shopWeb, []placedIn{{"a", 0}}, &Outcome{}, func(_ context.Context, all []placedIn, _ *Outcome) { time.Sleep(time.Duration(len(all)) * time.Second) })
		left, silent := visit()
		if diff := cmp.Diff([]string{"a", "c"}, silent); left || diff != "" {
			t.Errorf("left %v (-want +got)\n%s", left, diff)
		}
		time.Sleep(2 * time.Second)
		left, silent = visit()
		if diff := cmp.Diff([]string{"c"}, silent); !left || diff != "" {
			t.Errorf("left %v (-want +got)\n%s", left, diff)
		}
	})
}
