package members

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// profileAge orders ClusterProfiles by age.
type profileAge struct {
	created time.Time
	name    string
}

func (a profileAge) isOlderThan(b profileAge) bool {
	return cmp.Or(a.created.Compare(b.created), strings.Compare(a.name, b.name)) < 0
}

// claims are the clusters that members are. A cluster with two ClusterProfiles would get twice its share.
type claims map[*link]claim

type claim struct {
	identity types.UID
	by       profileAge
	session  *session
}

// claim says which cluster the member of a link is. It is an error if an older member is that cluster, even if that member is not ready now. A younger one that is connected is cut off.
// A link without a claim has not been connected yet, or is not a member's any more.
func (s *Set) claim(l *link, by profileAge) func(*session, types.UID) error {
	return func(session *session, identity types.UID) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.links[by.name] != l {
			return context.Canceled // the link is not the member's any more
		}
		s.claims[l] = claim{identity, by, session}
		for other, theirs := range s.claims {
			switch {
			case other == l || theirs.identity != identity:
			case theirs.by.isOlderThan(by):
				return duplicateOf(theirs.by.name)
			default:
				theirs.session.isBroken(duplicateOf(by.name))
			}
		}
		return nil
	}
}

func duplicateOf(member string) error { return &problem{Duplicate, errors.New("member " + member)} }
