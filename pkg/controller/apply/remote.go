package apply

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/members"
)

const (
	// UnknownInterval is how often a hub that has just started looks whether it knows its clusters.
	UnknownInterval = time.Second
	// CascadeInterval is how often a cluster is asked again in which something is to be deleted.
	CascadeInterval = 10 * time.Second
	// lateInterval is how often a cluster is asked again that answers late, or with errors.
	lateInterval = 5 * time.Second
	// failsFor is for how long requests to a cluster may fail before they count as refused.
	failsFor = time.Minute
	// longestComplaint bounds what is quoted of a cluster, in bytes. It chooses what its errors say.
	longestComplaint = 300
)

// Complaint is what an error of another cluster says, as far as it is quoted.
func Complaint(err error) string { return frame.AtMost(longestComplaint, err.Error()) }

// Members are the members of a federation. No method waits for one.
type Members interface {
	// Known is true once all members have been tried. Until then, one that is not ready or not in List may well answer.
	Known(ctx context.Context) bool
	// List is what is known of all members.
	List() []members.Status
	// Client writes to a member, and reads from its API server.
	Client(name string) (client.Client, error)
	// Cache reads workloads and pods with the label of the hub. Workloads may lack the spec of their pods.
	Cache(name string) (client.Reader, error)
}

// Remote is what goes on in the members of a federation for the objects of a controller. Nobody waits for a slow member. R is what a read finds, and W how writes end. The zero value is ready.
type Remote[R, W any] struct {
	Reading members.Errands[R]
	Writing members.Errands[W]
	// failing is since when requests fail, of type failure to time.Time.
	failing sync.Map
}

type failure struct {
	members.Errand
	reads bool
}

// Source queues an object when something ends in a member for which nobody waits any more.
func (m *Remote[R, W]) Source() source.Source {
	return source.Func(func(_ context.Context, queue frame.Queue) error {
		again := func(of members.Errand) { queue.Add(reconcile.Request{NamespacedName: of.Object}) }
		m.Reading.Ended, m.Writing.Ended = again, again
		return nil
	})
}

// Runs is true if something goes on for which nobody waits any more.
func (m *Remote[R, W]) Runs(of members.Errand) bool { return m.Reading.Runs(of) || m.Writing.Runs(of) }

// Patient is how a request has ended, or a refusal if requests of its kind have failed for too long: the member answers and cannot store anything, for instance. Then others get what is due there.
func (m *Remote[R, W]) Patient(of members.Errand, reads bool, is Result, now time.Time) Result {
	key := failure{of, reads}
	if is != Failed {
		m.failing.Delete(key)
		return is
	}
	if since, known := m.failing.LoadOrStore(key, now); known && now.Sub(since.(time.Time)) >= failsFor {
		return Refused
	}
	return is
}

// Answered is Patient for a read: Written if the member has answered.
func (m *Remote[R, W]) Answered(of members.Errand, err error, now time.Time) Result {
	if err == nil {
		return m.Patient(of, true, Written, now)
	}
	return m.Patient(of, true, Failed, now)
}

// Forget drops what is known about requests for an object that does not exist any more.
func (m *Remote[R, W]) Forget(object types.NamespacedName) {
	m.failing.Range(func(of, _ any) bool {
		if of.(failure).Object == object {
			m.failing.Delete(of)
		}
		return true
	})
}

// Soon is after which time to look again if a member is late. 0 means that nothing else asks for it.
func Soon(after time.Duration) time.Duration {
	if after == 0 || after > lateInterval {
		return lateInterval
	}
	return after
}
