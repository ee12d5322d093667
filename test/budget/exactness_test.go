package budget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// storm runs clients that do operations on pods of the namespace for a while. Each picks operations and pods at random.
func storm(t *testing.T, namespace string, operations ...operation) (allowed, refused int64) {
	t.Helper()
	return stormFor(t, *duration, namespace, operations...)
}

// stormUntil repeats a storm until enough was allowed and refused, or ten times. How much a storm does depends on the machine.
func stormUntil(t *testing.T, enough func(allowed, refused int64) bool, namespace string, operations ...operation) (allowed, refused int64) {
	t.Helper()
	for range 10 {
		more, no := storm(t, namespace, operations...)
		if allowed, refused = allowed+more, refused+no; enough(allowed, refused) {
			break
		}
	}
	return allowed, refused
}

func stormFor(t *testing.T, duration time.Duration, namespace string, operations ...operation) (allowed, refused int64) {
	t.Helper()
	var done, no, failed atomic.Int64
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var mu sync.Mutex
	var current []corev1.Pod
	refresh := func() {
		list, err := the.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web", ResourceVersion: "0"})
		if err == nil {
			mu.Lock()
			current = list.Items
			mu.Unlock()
		}
	}
	refresh()
	var clients sync.WaitGroup
	clients.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
			refresh()
		}
	})
	for n := range *storms {
		clients.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				pod := current[rand.N(len(current))]
				mu.Unlock()
				err := operations[(n+rand.N(len(operations)))%len(operations)](ctx, &pod)
				switch {
				case err == nil:
					done.Add(1)
				case isRefused(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), "berth-eviction"): // its mark came too late, which is safe
					no.Add(1)
				case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err), ctx.Err() != nil, strings.Contains(err.Error(), "context deadline"):
				default:
					if failed.Add(1) < 4 {
						t.Errorf("an operation failed: %v", err)
					}
				}
				time.Sleep(jitter(20 * time.Millisecond))
			}
		})
	}
	clients.Wait()
	return done.Load(), no.Load()
}

// TestNoStormOfOperationsTakesMoreThanTheBudget: cases 1 and 9. The clocks of the webhook servers are minutes apart, in all tests.
func TestNoStormOfOperationsTakesMoreThanTheBudget(t *testing.T) {
	tests := map[string]struct {
		rule  string
		floor int
		none  bool
	}{
		"maxUnavailable 0":   {"maxUnavailable: 0", 20, true},
		"maxUnavailable 1":   {"maxUnavailable: 1", 19, false},
		"maxUnavailable 3":   {"maxUnavailable: 3", 17, false},
		"maxUnavailable 30%": {"maxUnavailable: 30%", 14, false},
		"minAvailable 18":    {"minAvailable: 18", 18, false},
		"minAvailable 81%":   {"minAvailable: 81%", 17, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			namespace := web(t, 20, tc.rule)
			w := watch(t, namespace, tc.floor)
			berth.set(func(i *installation) { i.latencies = nil })
			allowed, refused := stormUntil(t, func(allowed, refused int64) bool { return (tc.none || allowed > 0) && refused > 0 }, namespace, remove, evict, patchImage, resizeMemory)
			berth.set(func(i *installation) {
				slices.Sort(i.latencies)
				if n := len(i.latencies); n > 0 {
					t.Logf("%d allowed, %d refused, lowest %d of %d; answers p50 %v p99 %v", allowed, refused, w.seen(), tc.floor, i.latencies[n/2], i.latencies[n*99/100])
				}
			})
			if tc.none != (allowed == 0) || refused == 0 {
				t.Errorf("%d allowed, %d refused", allowed, refused)
			}
		})
	}
}

// TestAConflictStormOnTheStatusCostsTimeAndNoPods: case 6.
func TestAConflictStormOnTheStatusCostsTimeAndNoPods(t *testing.T) {
	namespace := web(t, 20, "maxUnavailable: 3")
	watch(t, namespace, 17)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer cancel()
	for range 20 {
		writers.Go(func() {
			c := berth.client()
			for ctx.Err() == nil {
				if b, err := read(ctx, namespace); err == nil {
					b.Status.Conditions = append(b.Status.Conditions[:0:0], b.Status.Conditions...)
					if len(b.Status.Conditions) > 0 {
						b.Status.Conditions[0].Message = fmt.Sprint(rand.Int())
					}
					_ = c.Status().Update(ctx, b) // the test wants conflicts
				}
				time.Sleep(jitter(20 * time.Millisecond))
			}
		})
	}
	allowed, refused := stormUntil(t, func(allowed, _ int64) bool { return allowed > 0 }, namespace, remove, evict, patchImage)
	t.Logf("%d allowed, %d refused", allowed, refused)
	if allowed == 0 {
		t.Error("nothing got through")
	}
}

// TestTheBudgetHoldsWhileItAndItsWorkloadChange: case 12, the budget itself.
func TestTheBudgetHoldsWhileItAndItsWorkloadChange(t *testing.T) {
	namespace := web(t, 20, "maxUnavailable: 5")
	w := watch(t, namespace, 15)
	ctx, cancel := context.WithTimeout(t.Context(), *duration)
	defer cancel()
	var others sync.WaitGroup
	others.Go(func() {
		time.Sleep(*duration / 3)
		apply(t, namespace, fmt.Sprintf(pub, "maxUnavailable: 1"))
		// Operations that were within the previous budget may still be under way.
		poll(t, 4*time.Minute, "the allowed operations to be over", func(ctx context.Context) (string, error) {
			b, err := read(ctx, namespace)
			if err != nil || b.Status.CurrentAvailable >= 19 && b.Status.ObservedGeneration == b.Generation && len(b.Status.Ledger) <= 1 {
				return "", err
			}
			return fmt.Sprintf("%d are available", b.Status.CurrentAvailable), nil
		})
		w.setFloor(19)
	})
	storm(t, namespace, patient(t.Context(), remove), patient(t.Context(), evict), patient(t.Context(), patchImage))
	others.Wait()
	<-ctx.Done()
}

// patient lets an operation end although the storm is over. If the test cancelled an operation, the webhook might have approved it without a
// deletion. Such an approval takes room until it expires.
func patient(ctx context.Context, operate operation) operation {
	return func(_ context.Context, pod *corev1.Pod) error { return operate(ctx, pod) }
}

// TestTwoHundredDeletionsAreDecidedWithinTwoSeconds also says how long the API server takes for as many deletions that it allows without asking, in a dry
// run, and how long for as many that the webhook tries without writing.
func TestTwoHundredDeletionsAreDecidedWithinTwoSeconds(t *testing.T) {
	const deletions = 200
	deleteAll := func(namespace string, options metav1.DeleteOptions) (took time.Duration, allowed int64) {
		t.Helper()
		var granted atomic.Int64
		var clients sync.WaitGroup
		all := pods(t, namespace)
		start := time.Now()
		for i := range all {
			clients.Go(func() {
				err := the.Client.CoreV1().Pods(namespace).Delete(t.Context(), all[i].Name, options)
				if err == nil {
					granted.Add(1)
				} else if !isRefused(err) {
					t.Error(err)
				}
			})
		}
		clients.Wait()
		return time.Since(start), granted.Load()
	}
	namespace := web(t, deletions, "maxUnavailable: 20")
	watch(t, namespace, 180)
	tried, _ := deleteAll(namespace, metav1.DeleteOptions{DryRun: dryRun})
	plain := newNamespace(t) // while it gets its pods, the webhook forgets what it has counted for the trial
	apply(t, plain, fmt.Sprintf(deployment, deletions))
	waitFor(t, "the pods of a Deployment without a budget", func(ctx context.Context) (string, error) {
		d, err := the.Client.AppsV1().Deployments(plain).Get(ctx, "web", metav1.GetOptions{})
		if err != nil || d.Status.ReadyReplicas == deletions {
			return "", err
		}
		return fmt.Sprintf("%d are ready", d.Status.ReadyReplicas), nil
	})
	unasked, _ := deleteAll(plain, metav1.DeleteOptions{DryRun: dryRun})
	recorded, writes := make(chan *http.Request, 10*deletions), berth.calls.writes.Load()
	berth.calls.records.Store(&recorded)
	took, allowed := deleteAll(namespace, metav1.DeleteOptions{})
	berth.calls.records.Store(nil)
	reads, rounds := len(recorded), int(berth.calls.writes.Load()-writes)
	t.Logf("%d of %d deletions allowed in %v, with %d reads and %d writes; tried in %v; without a budget in %v", allowed, deletions, took, reads, rounds, tried, unasked)
	if allowed < 20 || took > time.Duration(*slack)*2*time.Second {
		t.Errorf("%d of at least 20 allowed in %v, want at most 2s", allowed, took)
	}
	if testing.Short() {
		return
	}
	inForce(t, namespace, deletions)
	bare := newBareWebhook(t, namespace, deletions, min(int(allowed), 20), rounds, recorded) // pods that are replaced make room for more, which nobody counts here
	berth.set(func(i *installation) { i.instead = bare })
	defer berth.set(func(i *installation) { i.instead = nil })
	took, _ = deleteAll(namespace, metav1.DeleteOptions{})
	t.Logf("with the same reads, as many writes and no decision they take %v", took)
}

// newBareWebhook answers as many reviews as the webhook servers, after the same reads and as many writes, and decides nothing: it allows the first ones. It
// makes the requests in rounds, as the servers do: the reads of a round at the same time, then a write, and then the answers. How much longer the servers take
// is what their decisions cost.
func newBareWebhook(t *testing.T, namespace string, reviews, allowed, rounds int, gets <-chan *http.Request) http.Handler {
	t.Helper()
	plain, err := rest.HTTPClientFor(the.Sandbox.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	get := func(r *http.Request) error {
		answer, err := plain.Do(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return errors.Join(err, answer.Body.Close())
	}
	round := func(ctx context.Context, reads int) error {
		var reading errgroup.Group
		for range reads {
			reading.Go(func() error { return get((<-gets).WithContext(ctx)) })
		}
		pub, err := read(ctx, namespace)
		if err := errors.Join(err, reading.Wait()); err != nil {
			return err
		}
		pub.Status.UnavailablePods = map[string]metav1.Time{"test": metav1.Unix(int64(reads), 0)} // the controller corrects it
		if err := berth.client().Status().Update(ctx, pub); !apierrors.IsConflict(err) {          // the controller was faster
			return err
		}
		return nil
	}
	line, total := make(chan chan<- bool, reviews), len(gets)
	go func() {
		answered := 0
		for n := range rounds {
			var group []chan<- bool
			for len(group) == 0 || len(line) > 0 || n == rounds-1 && answered+len(group) < reviews {
				select {
				case one := <-line:
					group = append(group, one)
				case <-t.Context().Done():
					return
				}
			}
			if err := round(t.Context(), total*(n+1)/rounds-total*n/rounds); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			for _, answer := range group {
				answer <- answered < allowed
				answered++
			}
		}
	}()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := make(chan bool, 1)
		line <- answer
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: <-answer, Result: &metav1.Status{
			Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "PodUnavailableBudget web",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}},
		}}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review) // the API server may have closed the connection
	})
}

// TestAnAnswerTakesMilliseconds runs one operation at a time. Machines differ, so it compares the median with the time that one write of the budget
// takes on the same machine. Every answer needs such a write. The short form shares its machine with other tests, so it finds only large deviations.
func TestAnAnswerTakesMilliseconds(t *testing.T) {
	const (
		operations  = 40
		longest     = 50 * time.Millisecond // at the 99th percentile
		mostWrites  = 5                     // at the median
		shortFactor = 10
	)
	namespace := web(t, 50, "maxUnavailable: 90%")
	noReplacements(t)
	write := medianWrite(t, namespace, operations)
	operate := func(what string, operation operation) {
		t.Helper()
		berth.set(func(i *installation) { i.latencies = nil })
		for _, pod := range pods(t, namespace)[:operations] {
			if err := operation(t.Context(), &pod); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the operation to be over", func(context.Context) (string, error) {
				return map[bool]string{false: "it is in the ledger"}[len(ledger(t, namespace)) == 0], nil
			})
		}
		berth.set(func(i *installation) {
			slices.Sort(i.latencies)
			n := len(i.latencies)
			median, p99 := i.latencies[n/2], i.latencies[n*99/100]
			t.Logf("%s: p50 %v, p90 %v, p99 %v of %d answers; one write of the budget takes %v", what, median, i.latencies[n*9/10], p99, n, write)
			limits := time.Duration(*slack)
			if !*long {
				limits *= shortFactor
			}
			if median > limits*mostWrites*write || p99 > limits*longest {
				t.Errorf("%s: p50 is %v, want at most %d times %v; p99 is %v, want at most %v", what, median, limits*mostWrites, write, p99, limits*longest)
			}
		})
	}
	operate("tried without writing", func(ctx context.Context, pod *corev1.Pod) error {
		return the.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{DryRun: dryRun})
	})
	operate("allowed", remove)
}

// medianWrite measures one write of the budget's status while no requests are under way.
func medianWrite(t *testing.T, namespace string, writes int) time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range writes {
		b, err := read(t.Context(), namespace)
		if err != nil {
			t.Fatal(err)
		}
		b.Status.UnavailablePods = map[string]metav1.Time{"test": metav1.Unix(int64(i), 0)}
		start := time.Now()
		if err := berth.client().Status().Update(t.Context(), b); apierrors.IsConflict(err) {
			continue // the controller was faster
		} else if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(start))
		waitFor(t, "the controller to correct the status", func(ctx context.Context) (string, error) {
			b, err := read(ctx, namespace)
			if err != nil || len(b.Status.UnavailablePods) == 0 {
				return "", err
			}
			return fmt.Sprint(b.Status.UnavailablePods), nil
		})
	}
	if len(took) == 0 {
		t.Fatal("the controller was faster each time")
	}
	slices.Sort(took)
	return took[len(took)/2]
}
