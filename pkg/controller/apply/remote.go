package apply

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-project/berth/pkg/controller/frame"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/pkg/sites"
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

// complaint is an error of another cluster, as far as it is quoted.
func complaint(err error) error {
	if err == nil || len(err.Error()) <= longestComplaint {
		return err
	}
	return errors.New(frame.AtMost(longestComplaint, err.Error()))
}

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

// ClusterOf is what the models are told about a member, without what runs there.
func ClusterOf(s *members.Status) sites.Cluster {
	return sites.Cluster{
		Name: s.Name, Namespace: s.Namespace, Labels: s.Labels, Identity: string(s.Identity), Reachable: s.State == members.Ready, Lives: s.State.Lives(), Since: s.Since,
		Cordoned: s.Cordon == members.Cordoned, Drained: s.Cordon == members.Drained,
	}
}

// Remote is what goes on in the members of a federation for the objects of a controller. Nobody waits for a slow member. R is what a read finds. The zero value is ready.
type Remote[R any] struct {
	Reading  members.Errands[R]
	Writing  members.Errands[*Outcome]
	Visiting members.Errands[visit]
	// failing is since when requests fail, of type failure to time.Time.
	failing sync.Map
}

// visit is what VisitAll has found in a member.
type visit struct {
	left bool
	err  error
}

type failure struct {
	members.Errand
	reads bool
}

// Source queues an object when something ends in a member for which nobody waits any more.
func (m *Remote[R]) Source() source.Source {
	return source.Func(func(_ context.Context, queue frame.Queue) error {
		again := func(of members.Errand) { queue.Add(reconcile.Request{NamespacedName: of.Object}) }
		m.Reading.Ended, m.Writing.Ended, m.Visiting.Ended = again, again, again
		return nil
	})
}

// Runs is true if something goes on for which nobody waits any more.
func (m *Remote[R]) Runs(of members.Errand) bool { return m.Reading.Runs(of) || m.Writing.Runs(of) }

// Patient is how a request has ended, or a refusal if requests of its kind have failed for too long: the member answers and cannot store anything, for instance. Then others get what is due there.
func (m *Remote[R]) Patient(of members.Errand, reads bool, is Result, now time.Time) Result {
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
func (m *Remote[R]) Answered(of members.Errand, err error, now time.Time) Result {
	if err == nil {
		return m.Patient(of, true, Written, now)
	}
	return m.Patient(of, true, Failed, now)
}

// Wrote notes in an outcome how a write ended. A member that has failed for too long counts as one that refuses. It is false if the write failed. The member of the errand is empty for the controller's own cluster.
func (m *Remote[R]) Wrote(o *Outcome, of members.Errand, what string, err error, now time.Time) bool {
	is := ResultOf(err)
	if of.Member != "" {
		is, err = m.Patient(of, false, is, now), complaint(err)
	}
	return o.Add(what, is, err)
}

// Placed is something that is written in a cluster.
type Placed interface {
	// In is the name of the cluster. Empty is the controller's own.
	In() string
	// Raise is how many replicas more are asked for by the write. Below 0 are those that stay if nothing is written.
	Raise() int32
}

// Steps carries out steps for an object: first those that lower, then the others, as far as those that failed leave room. If a read is out of date, the others wait for the next look. less makes a step raise
// less, and is false if nothing is left of it.
func Steps[T Placed, R any](ctx context.Context, m *Remote[R], object types.NamespacedName, lower, rest []T, less func(by int32, step *T) (bool, error), do func(context.Context, []T, *Outcome)) *Outcome {
	o := &Outcome{}
	Everywhere(ctx, m, object, lower, o, do)
	if o.Stale {
		return o
	}
	rest, err := afford(rest, o.Kept, less)
	if err != nil {
		o.Err = errors.Join(o.Err, err)
		return o
	}
	Everywhere(ctx, m, object, rest, o, do)
	return o
}

// Everywhere does something for an object in all clusters at the same time. It does not wait for a slow one; see LateWrites.
func Everywhere[T Placed, R any](ctx context.Context, m *Remote[R], object types.NamespacedName, all []T, o *Outcome, do func(context.Context, []T, *Outcome)) {
	byCluster, errands := map[string][]T{}, []members.Errand(nil)
	for _, one := range all {
		if in := one.In(); in != "" && byCluster[in] == nil {
			errands = append(errands, members.Errand{Object: object, Member: in})
		}
		byCluster[one.In()] = append(byCluster[one.In()], one)
	}
	var here sync.WaitGroup
	here.Go(func() { do(ctx, byCluster[""], o) })
	for i, end := range m.Writing.Each(ctx, errands, func(**Outcome) bool { return true }, func(ctx context.Context, i int) *Outcome {
		o := &Outcome{}
		do(ctx, byCluster[errands[i].Member], o)
		return o
	}) {
		if end != nil {
			o.Join(*end)
			continue
		}
		for _, one := range byCluster[errands[i].Member] {
			o.Keep(one)
		}
	}
	here.Wait()
}

// LateWrites is how writes ended for which an earlier pass did not wait. Nil if there are none.
func (m *Remote[R]) LateWrites(object types.NamespacedName, all []members.Status) (o *Outcome) {
	for i := range all {
		if end := m.Writing.Late(members.Errand{Object: object, Member: all[i].Name}); end != nil {
			if o == nil {
				o = &Outcome{}
			}
			o.Join(*end)
		}
	}
	return o
}

// VisitAll visits what an object has in members, in all at the same time, such as to delete it. It says whether there was anything, and which members have not answered, or not as they should. A member where a
// write still goes on is not visited: the write may make something afterwards.
func (m *Remote[R]) VisitAll(ctx context.Context, object types.NamespacedName, all []members.Status, one func(context.Context, *members.Status) (left bool, err error)) (left bool, silent []string) {
	var asked []*members.Status
	var errands []members.Errand
	for i := range all {
		of := members.Errand{Object: object, Member: all[i].Name}
		if m.Writing.Runs(of) {
			silent = append(silent, of.Member)
			continue
		}
		asked, errands = append(asked, &all[i]), append(errands, of)
	}
	for i, answer := range m.Visiting.Each(ctx, errands, nil, func(ctx context.Context, i int) visit {
		found, err := one(ctx, asked[i])
		return visit{found, err}
	}) {
		switch {
		case answer == nil:
			silent = append(silent, asked[i].Name)
		case answer.err != nil:
			klog.FromContext(ctx).V(2).Info("A cluster does not answer as it should", "object", object, "cluster", asked[i].Name, "err", complaint(answer.err))
			silent = append(silent, asked[i].Name)
		default:
			left = left || answer.left
		}
	}
	return left, silent
}

// Forget drops what is known about requests for an object that does not exist any more.
func (m *Remote[R]) Forget(object types.NamespacedName) {
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
