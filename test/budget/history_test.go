package budget

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/berth-project/berth/test/linear"
)

const (
	// lag is how long a budget may refuse after a pod has become available: until the controller has counted it, and the webhooks have seen that.
	lag = 8 * time.Second
	// seenLate is how long after an event the recorder may see it.
	seenLate = 2 * time.Second
	// often is how far apart the refusals are that the search looks at. Each of them doubles what it may have to try while a budget changes.
	often = time.Second
	// searching is how long the search may take. It takes less than a second if few refusals fall into the time of a change.
	searching = 30 * time.Second
	// missing is the only subset of the history. Its quota is how many pods may be unavailable.
	missing = "missing"
)

// recorder turns what a watch shows into a history of slots: a pod that becomes unavailable takes one, and a pod that becomes available gives one back.
type recorder struct {
	mu        sync.Mutex
	available map[types.UID]bool
	current   map[types.UID]*corev1.Pod
	// asked are pods about which a request is under way. There is one for each pod, so that nearly all outcomes are known.
	asked map[types.UID]bool
	// operations are what the watch shows, each as one that adds itself to a history.
	operations []func(*linear.History)
	// taken are the slots in the order in which they were taken; all are the same to a budget.
	taken []string
	taker int
	seen  []moment
}

type moment struct {
	at       time.Time
	revision int64
}

func (r *recorder) saw(pod *corev1.Pod, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	revision, err := strconv.ParseInt(pod.ResourceVersion, 10, 64)
	if err != nil {
		panic(err) // API servers count revisions
	}
	r.seen = append(r.seen, moment{time.Now(), revision})
	r.current[pod.UID] = pod
	if gone {
		delete(r.current, pod.UID)
	}
	is := isAvailable(pod) && !gone
	switch was := r.available[pod.UID]; {
	case was && !is:
		r.taker++
		name := fmt.Sprintf("%d, %s", r.taker, pod.Name)
		r.taken = append(r.taken, name)
		r.operations = append(r.operations, func(h *linear.History) { h.Bound(name, missing, revision) })
	case is && !was && len(r.taken) > 0:
		name := r.taken[0]
		r.operations = append(r.operations, func(h *linear.History) { h.Gone(name, revision) })
		r.taken = r.taken[1:]
	}
	r.available[pod.UID] = is
}

// revisionAt is the newest revision that was seen at a time.
func (r *recorder) revisionAt(at time.Time) int64 {
	later := slices.IndexFunc(r.seen, func(m moment) bool { return m.at.After(at) })
	if later < 0 {
		later = len(r.seen)
	}
	return r.seen[max(later-1, 0)].revision
}

// choose returns an available pod, or nil. It is the caller's until over.
func (r *recorder) choose() *corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*corev1.Pod
	for uid, pod := range r.current {
		if r.available[uid] && !r.asked[uid] {
			all = append(all, pod)
		}
	}
	if len(all) == 0 {
		return nil
	}
	pod := all[rand.N(len(all))]
	r.asked[pod.UID] = true
	return pod
}

func (r *recorder) over(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, pod.UID)
}

// change is an edit of the budget.
type change struct {
	sent, done time.Time
	rule       int
}

// request is one that took no slot.
type request struct {
	sent, answered time.Time
	refused        bool // and else its outcome is not known: another request was first, or the pod was gone
}

// TestAHistoryOfABudgetHasAnOrder asks Porcupine whether what the API server shows has an order in which the budget holds, and in which each refusal was right: all that may be missing was missing, or
// held by requests whose outcome is not known, at one moment of the seconds before. So a slot that is given out twice is found, and one that is forgotten. The same operations must have no order with a
// budget that is one pod smaller or larger: otherwise they would not show which budget was in force.
func TestAHistoryOfABudgetHasAnOrder(t *testing.T) {
	rules := []int{2, 1, 3}
	namespace := web(t, 10, fmt.Sprintf("maxUnavailable: %d", rules[0]))
	options := metav1.ListOptions{LabelSelector: "app=web"}
	list, err := the.Client.CoreV1().Pods(namespace).List(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{available: map[types.UID]bool{}, current: map[types.UID]*corev1.Pod{}, asked: map[types.UID]bool{}}
	for i := range list.Items {
		r.saw(&list.Items[i], false)
	}
	if n := len(r.current); n != 10 {
		t.Fatalf("%d pods at the start", n)
	}
	options.ResourceVersion = list.ResourceVersion
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	events, err := the.Client.CoreV1().Pods(namespace).Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	var watching, clients sync.WaitGroup
	watching.Go(func() {
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				r.saw(pod, e.Type == apiwatch.Deleted)
			}
		}
	})

	stormy, calm := context.WithTimeout(ctx, time.Duration(len(rules))*lag)
	defer calm()
	var mu sync.Mutex
	var others []request
	allowed := 0
	for n := range 8 {
		operate := []operation{remove, evict, patchImage}[n%3]
		clients.Go(func() {
			for stormy.Err() == nil {
				if pod := r.choose(); pod != nil {
					sent := time.Now()
					err := operate(ctx, pod) // to its end, also when the storm is over
					r.over(pod)
					mu.Lock()
					switch {
					case err == nil:
						allowed++
					case isRefused(err):
						others = append(others, request{sent, time.Now(), true})
					case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err), apierrors.IsForbidden(err):
						others = append(others, request{sent, time.Now(), false})
					default:
						t.Errorf("an operation failed: %v", err)
					}
					mu.Unlock()
				}
				time.Sleep(50*time.Millisecond + jitter(200*time.Millisecond))
			}
		})
	}
	var changes []change
	for _, rule := range rules[1:] {
		select {
		case <-time.After(lag):
		case <-stormy.Done():
		}
		sent := time.Now()
		apply(t, namespace, fmt.Sprintf(pub, fmt.Sprintf("maxUnavailable: %d", rule)))
		changes = append(changes, change{sent, time.Now(), rule})
	}
	clients.Wait()
	inForce(t, namespace, 10)
	stop()
	watching.Wait()

	refused, checked, sharp := 0, 0, 0
	slices.SortFunc(others, func(a, b request) int { return a.sent.Compare(b.sent) })
	// historyOf is the history with budgets of so many more pods, and with refusals that are at least so far apart.
	historyOf := func(more int, apart time.Duration) *linear.History {
		h := linear.New(linear.Quotas{missing: rules[0] + more})
		for _, add := range r.operations {
			add(h)
		}
		for _, c := range changes {
			h.Edited(linear.Quotas{missing: c.rule + more}, r.revisionAt(c.sent), r.revisionAt(c.done.Add(lag)))
		}
		var last time.Time
		refused, checked, sharp = 0, 0, 0
		for _, o := range others {
			if !o.refused {
				continue
			}
			refused++
			if o.sent.Sub(last) < apart {
				continue
			}
			last = o.sent
			checked++
			held := 0
			for _, unknown := range others {
				if !unknown.refused && unknown.sent.Before(o.answered) && unknown.answered.Add(lag).After(o.sent.Add(-lag)) {
					held++
				}
			}
			if held == 0 {
				sharp++
			}
			h.Waited("", map[string]int{missing: held}, r.revisionAt(o.sent.Add(-lag)), r.revisionAt(o.answered.Add(seenLate)))
		}
		return h
	}
	// What the search cannot tell in time is no fault of the budget. It can tell with fewer refusals.
	verdict := func(more int) error {
		for apart := often; ; apart *= 2 {
			err := historyOf(more, apart).Check(searching)
			t.Logf("%d allowed, %d refused; %d refusals checked, %d of them without a request whose outcome is not known; with %+d pods: %v", allowed, refused, checked, sharp, more, err)
			if allowed == 0 || sharp == 0 {
				t.Fatal("the storm shows nothing")
			}
			if !errors.Is(err, linear.ErrUndecided) {
				return err
			}
			if checked == 1 {
				t.Fatal(err) // there are no fewer
			}
		}
	}
	if err := verdict(0); err != nil {
		t.Error(err)
	}
	t.Setenv("TMPDIR", t.TempDir()) // nobody has to see these pages
	for _, more := range []int{-1, 1} {
		if verdict(more) == nil {
			t.Errorf("with budgets of %+d pods the history has an order as well, so it does not show that the budget holds", more)
		}
	}
}
