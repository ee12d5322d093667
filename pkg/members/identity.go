package members

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
)

// isOlder orders ClusterProfiles by age.
func isOlder(a, b *inventory.ClusterProfile) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name)) < 0
}

// claims are the clusters that members are. A cluster with two ClusterProfiles would get twice its share.
type claims map[*link]claim

type claim struct {
	identity types.UID
	// end is that of the session, whose cache must not be kept for it.
	end context.CancelCauseFunc
}

// anchorOf is what a member proves when the hub connects to it: that it has a key of the authority that the hub's operator has given, or, without an authority, that it is the server. The UID of a namespace
// proves nothing, because a member says what it likes.
func anchorOf(config *rest.Config) types.UID {
	switch {
	case len(config.CAData) > 0 && !config.Insecure:
		return types.UID(fmt.Sprintf("%.8x", sha256.Sum256(config.CAData)))
	default:
		return types.UID(fmt.Sprintf("%.8x", sha256.Sum256([]byte(config.Host))))
	}
}

// claim says which cluster the member of a link is. It is an error if an older member is that cluster, even if that member is not ready now. A younger one that is connected is cut off, if both have the
// same anchor. Otherwise nobody knows which of them is right, and the one that came first stays. A link without a claim has not been connected yet, or is not a member's any more.
func (l *link) claim(session *session, identity types.UID) error {
	s := l.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[l.profile.Name] != l {
		return context.Canceled // the link is not the member's any more
	}
	own, again := s.claims[l]
	again = again && own.identity == identity
	s.claims[l] = claim{identity, session.end}
	for other, theirs := range s.claims {
		switch {
		case other == l || theirs.identity != identity:
		case anchorOf(other.config) != anchorOf(l.config):
			if !again {
				delete(s.claims, l)
				return duplicateOf(other.profile.Name)
			}
		case isOlder(other.profile, l.profile):
			return duplicateOf(other.profile.Name)
		default:
			theirs.end(duplicateOf(l.profile.Name))
		}
	}
	return nil
}

func duplicateOf(member string) error { return &problem{Duplicate, errors.New("member " + member)} }
