package federation

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/test/harness"
)

var (
	faultsFor = flag.Duration("faults", 20*time.Second, "how long clusters are cut off, killed, filled and scaled at random")
	seed      = flag.Uint64("seed", 1, "of the faults")
)

const (
	// tallest is the highest total, and surge of it is how many replicas more may exist while replicas move (maxMoving).
	tallest, surge = 40, 0.25
	// long is the shortest run in which each kind of fault must happen.
	long = 2 * time.Minute
)

// tally watches what the ReplicaSets of one FederatedReplicaSet ask for in all members, by its own arithmetic. The watches of several clusters are not ordered among each other. So when their sum is too high, it reads
// what the members ask for until it has an answer that was true at one moment, or until the watches show less. An excess counts if such an answer has it.
type tally struct {
	// read returns what each member asks for, and the versions of these answers. It is not ok while a member does not answer, or has no ReplicaSet.
	read func() (asked []int32, versions []string, ok bool)

	mu    sync.Mutex
	asked []int32
	// most is the highest allowed sum, which may fall only after what is asked for did. Negative while nobody promises anything: a member does not answer. changes counts its changes.
	most, changes int32
	violations    []string
	// reading is true while it reads. sums counts how often the watches had too high a sum, and moments the answers that were true at one moment.
	reading       bool
	readers       sync.WaitGroup
	sums, moments int
}

// watchAll begins to watch all members.
func watchAll(ctx context.Context, w *world, ns string) (*tally, error) {
	t := &tally{asked: make([]int32, memberCount), most: -1}
	var members []kubernetes.Interface
	for i, member := range w.Members() {
		clients, err := kubernetes.NewForConfig(member.RESTConfig())
		if err != nil {
			return nil, err
		}
		if err := t.watch(ctx, i, clients, ns); err != nil {
			return nil, err
		}
		members = append(members, clients)
	}
	t.read = func() (asked []int32, versions []string, ok bool) {
		for _, member := range members {
			set, err := member.AppsV1().ReplicaSets(ns).Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				return nil, nil, false
			}
			asked, versions = append(asked, *set.Spec.Replicas), append(versions, fmt.Sprintf("%s %d", set.UID, set.Generation))
		}
		return asked, versions, true
	}
	return t, nil
}

// report fails the test for each violation.
func (t *tally) report(to *testing.T) { //nolint:thelper // t is the tally
	to.Helper()
	t.allow(-1) // ends the reader
	t.readers.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, violation := range t.violations {
		to.Error(violation)
	}
	to.Logf("%d times the sum of the watches was too high; %d reads of one moment looked at it", t.sums, t.moments)
}

func (t *tally) set(i int, n int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked[i] = n
	if t.isAbove() && !t.reading {
		t.reading = true
		t.sums++
		t.readers.Go(t.confirm)
	}
}

func (t *tally) allow(most int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.most = most
	t.changes++
}

func (t *tally) sum() (sum int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return sumOf(t.asked)
}

func sumOf(asked []int32) (sum int32) {
	for _, n := range asked {
		sum += n
	}
	return sum
}

// isAbove needs the lock.
func (t *tally) isAbove() bool { return t.most >= 0 && sumOf(t.asked) > t.most }

// confirm reads until the watches show a sum that is allowed. If two reads in a row have the same versions, the first one was true when the second began.
func (t *tally) confirm() {
	for {
		t.mu.Lock()
		most, changes := t.most, t.changes
		if t.reading = t.isAbove(); !t.reading {
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		asked, versions, ok := t.read()
		_, again, okAgain := t.read()
		t.mu.Lock()
		if ok && okAgain && slices.Equal(versions, again) && changes == t.changes {
			t.moments++
			if sum := sumOf(asked); sum > most {
				t.violations = append(t.violations, fmt.Sprintf("%v is %d, and at most %d may be asked for", asked, sum, most))
				t.most = -1 // once is enough
			}
		}
		t.mu.Unlock()
	}
}

func (t *tally) watch(ctx context.Context, i int, member kubernetes.Interface, ns string) error {
	watcher, err := member.AppsV1().ReplicaSets(ns).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	go func() {
		for {
			for event := range watcher.ResultChan() {
				if set, is := event.Object.(*appsv1.ReplicaSet); is {
					n := *set.Spec.Replicas
					if event.Type == "DELETED" {
						n = 0
					}
					t.set(i, n)
				}
			}
			// The API server was killed. The list of a new watch says what has changed.
			err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
				watcher, err = member.AppsV1().ReplicaSets(ns).Watch(ctx, metav1.ListOptions{})
				return err == nil, nil
			})
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// TestFaultsAtRandom cuts members off, kills them and the hub, and scales, at random. While all members answer, they are asked for no more than the total and maxMoving. No ReplicaSet of
// others is touched. When the faults end, everything is as the spec says.
func TestFaultsAtRandom(t *testing.T) {
	harness.Long(t)
	w := startWorld(t)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	random := rand.New(rand.NewPCG(*seed, 0))
	const ns = "faults"
	w.room(t, ns, [memberCount]int{lots, lots, 12})
	stranger := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "other"}}
	stranger.Spec.Replicas, stranger.Spec.Selector = new(int32), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
	stranger.Spec.Template.Labels = stranger.Spec.Selector.MatchLabels
	stranger.Spec.Template.Spec.Containers = containers
	for _, member := range w.members {
		if err := member.Create(ctx, stranger.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	watched, err := watchAll(ctx, w, ns)
	if err != nil {
		t.Fatal(err)
	}
	away := make([]bool, memberCount)
	total := int32(tallest)
	w.apply(t, ns, int(total), evenly)
	events := map[string]int{}
	// promise scales while all members answer, and holds the hub to the sum.
	promise := func() {
		clear(away)
		w.setAway(t, away...)
		w.awaitReachable(t, ns)
		w.expectSum(t, ns, total)
		before := total
		total = 5 + random.Int32N(tallest-4)
		most := max(before, total)
		watched.allow(most + int32(math.Ceil(surge*float64(most))))
		w.apply(t, ns, int(total), evenly)
		w.expectSum(t, ns, total)
		watched.allow(-1)
	}
	promise()
	for began := time.Now(); time.Since(began) < *faultsFor; {
		switch random.IntN(5) {
		case 0:
			at := random.IntN(memberCount)
			away[at] = !away[at]
			w.setAway(t, away...)
			events["cut"]++
		case 1:
			at := random.IntN(memberCount)
			if err := w.Members()[at].Signal(sandbox.APIServer, 0, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := w.Members()[at].WaitReady(ctx); err != nil {
				t.Fatal(err)
			}
			events["member killed"]++
		case 2:
			if err := w.Hub().WaitReady(ctx); err != nil { // it may still start again
				t.Fatal(err)
			}
			if err := w.Hub().Signal(product.United, 0, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			events["hub killed"]++
		case 3:
			total = 5 + random.Int32N(tallest-4)
			w.apply(t, ns, int(total), evenly)
			events["scaled"]++
		case 4:
			promise()
			events["all well"]++
		}
	}
	promise()
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(context.Context) (bool, error) { return watched.sum() == total, nil }); err != nil {
		t.Errorf("the watches end with %d replicas, and the members have %d", watched.sum(), total)
	}
	for i, member := range w.members {
		live := &appsv1.ReplicaSet{}
		if err := member.Get(ctx, client.ObjectKeyFromObject(stranger), live); err != nil {
			t.Errorf("the ReplicaSet of others in member %d: %v", i+1, err)
		} else if live.Generation != 1 || len(live.Labels) > 0 {
			t.Errorf("the ReplicaSet of others in member %d was changed: %+v", i+1, live.ObjectMeta)
		}
	}
	t.Logf("seed %d: %v", *seed, events)
	watched.report(t)
	if *faultsFor >= long {
		harness.ExpectAll(t, events, "cut", "member killed", "hub killed", "scaled", "all well")
	}
}

// awaitReachable waits until the status says that all members answer.
func (w *world) awaitReachable(t *testing.T, ns string) {
	t.Helper()
	if err := w.Hub().WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	var frs *v1alpha1.FederatedReplicaSet
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(context.Context) (bool, error) {
		frs = w.frs(t, ns)
		return frs.Status.ObservedGeneration == frs.Generation && len(frs.Status.Clusters) == memberCount && frs.Status.MayExceedBy == 0 &&
			!slices.ContainsFunc(frs.Status.Clusters, func(c v1alpha1.ClusterStatus) bool {
				return c.State == v1alpha1.ClusterUnreachable || c.State == v1alpha1.ClusterLost
			}), nil
	})
	if err != nil {
		t.Fatalf("not all members answer: %v\n%+v", err, frs.Status)
	}
}

// expectSum waits until the members ask for the total, and all of it is available.
func (w *world) expectSum(t *testing.T, ns string, total int32) {
	t.Helper()
	var got []int32
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		got = nil
		var asked, available int32
		for _, member := range w.members {
			set := &appsv1.ReplicaSet{}
			if err := member.Get(ctx, types.NamespacedName{Namespace: ns, Name: "web"}, set); client.IgnoreNotFound(err) != nil {
				return false, err
			} else if err == nil {
				asked, available = asked+*set.Spec.Replicas, available+set.Status.AvailableReplicas
				got = append(got, *set.Spec.Replicas, set.Status.AvailableReplicas)
			}
		}
		return asked == total && available == total, nil
	})
	if err != nil {
		t.Fatalf("asked for and available are %v, want %d: %v\n%+v", got, total, err, w.frs(t, ns).Status)
	}
}
