package budget

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// calls counts the requests of the webhook servers to the API server. It skips watches and the discovery requests at the start. It also skips the
// events about refusals, because no answer waits for them.
type calls struct {
	reads, writes atomic.Int64
	// records, if it is not nil, gets each read.
	records atomic.Pointer[chan *http.Request]
}

// counted returns a config whose requests are counted.
func (c *calls) counted(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			switch path := r.URL.Path; {
			case r.URL.Query().Get("watch") != "", strings.Count(path, "/") < 4, strings.Contains(path, "/events"):
			case r.Method == http.MethodGet:
				c.reads.Add(1)
				if records := c.records.Load(); records != nil {
					*records <- r.Clone(context.Background())
				}
			default:
				c.writes.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// cost is the cost of one operation: the average number of reads and writes, and the latency of its answers.
type cost struct {
	reads, writes float64
	answers       int
	p50, p99      time.Duration
}

// costOf runs the operation this many times. Each operation starts when the previous one is over.
func costOf(t *testing.T, times int, operate, over func(i int)) cost {
	t.Helper()
	berth.set(func(i *installation) { i.latencies = nil })
	reads, writes := berth.calls.reads.Load(), berth.calls.writes.Load()
	for i := range times {
		operate(i)
		over(i)
	}
	c := cost{
		reads: float64(berth.calls.reads.Load()-reads) / float64(times), writes: float64(berth.calls.writes.Load()-writes) / float64(times),
	}
	berth.set(func(i *installation) {
		slices.Sort(i.latencies)
		if c.answers = len(i.latencies); c.answers > 0 {
			c.p50, c.p99 = i.latencies[c.answers/2], i.latencies[c.answers*99/100]
		}
	})
	return c
}

// TestWhatAnOperationCosts prints the reads and writes of an operation, as docs/performance.md has them, and checks them. It does not check latency, which depends on the
// machine.
func TestWhatAnOperationCosts(t *testing.T) {
	const times = 20
	check := func(what string, c cost, mostReads, writes float64) {
		t.Helper()
		t.Logf("| %s | %.1f | %.1f | %.1f | %.1f |", what, c.reads, c.writes, ms(c.p50), ms(c.p99))
		// The servers read twice a second whether a namespace terminates. All refusals share these reads.
		if c.reads >= mostReads+0.5 || c.writes != writes {
			t.Errorf("%s: %.2f reads and %.2f writes, want at most %.1f and %.1f", what, c.reads, c.writes, mostReads, writes)
		}
	}
	nothing := func(int) {}
	// A server that has not seen the controller's last write writes in vain, and then reads and writes again. That is no cost of the next operation.
	settled := func(namespace string) func(int) {
		return func(int) {
			waitFor(t, "the operation to be over", func(ctx context.Context) (string, error) {
				last, err := read(ctx, namespace)
				if err != nil || len(last.Status.Ledger) > 0 {
					return "it is in the ledger", err
				}
				for replica, cache := range berth.caches {
					seen := &v1beta1.PodUnavailableBudget{}
					if err := cache.Get(ctx, client.ObjectKeyFromObject(last), seen); err != nil || seen.ResourceVersion != last.ResourceVersion {
						return fmt.Sprintf("webhook server %d has not seen that", replica), err
					}
				}
				return "", nil
			})
		}
	}
	tried := func(ctx context.Context, pod *corev1.Pod) error {
		return the.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{DryRun: dryRun})
	}

	full := newNamespace(t)
	besides := strings.Replace(fmt.Sprintf(pub, "maxUnavailable: 0"), "{matchLabels: {app: web}}",
		"{matchLabels: {app: web}, matchExpressions: [{key: role, operator: NotIn, values: [none]}]}", 1)
	for i := range times {
		besides += fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {name: beside-%d, labels: {app: beside}}, spec: {containers: [{name: main, image: web:1}]}}\n", i)
	}
	apply(t, full, fmt.Sprintf(deployment, 2)+"---"+besides)
	inForce(t, full, 2)
	held := pods(t, full)
	held = slices.DeleteFunc(held, func(pod corev1.Pod) bool { return pod.Labels["app"] != "web" })
	check("deletion refused", costOf(t, times, func(int) { expectRefused(t, "a deletion", remove(t.Context(), &held[0])) }, nothing), 4, 0)
	check("label changed by which the pod stays in the budget", costOf(t, times, func(i int) {
		expectAllowed(t, "a label", patch(t.Context(), &held[0], fmt.Sprintf(`{"metadata":{"labels":{"role":"r%d"}}}`, i)))
	}, nothing), 5, 0)
	// Two reads, because each eviction is marked in a namespace with a budget: a policy would look at each protected pod for one without a mark.
	check("eviction of a pod without a budget", costOf(t, times, func(i int) {
		expectAllowed(t, "an eviction", evict(t.Context(), podNamed(t, full, fmt.Sprintf("beside-%d", i))))
	}, nothing), 2, 0)

	updated := gated(t, 2, "maxUnavailable: 1")
	check("made unready by its status", costOf(t, times, func(i int) {
		expectAllowed(t, "a status", changeStatus(manager(), turnOff)(t.Context(), &pods(t, updated)[i%2]))
	}, func(i int) {
		waitFor(t, "the pod to be ready again", func(ctx context.Context) (string, error) {
			pod := &pods(t, updated)[i%2]
			if !isTrue(pod, gate) {
				return "its gate is off", changeStatus(manager(), turnOn)(ctx, pod)
			}
			return "", nil
		})
		inForce(t, updated, 2)
		settled(updated)(i)
	}), 4, 1)

	roomy := web(t, 50, "maxUnavailable: 90%")
	t.Logf("one write of the budget takes %.1f ms", ms(medianWrite(t, roomy, times)))
	all := pods(t, roomy)
	each := func(from int, operate operation) func(int) {
		return func(i int) { expectAllowed(t, "an operation", operate(t.Context(), &all[from+i])) }
	}
	// A new pod has no protection label at first. While an operation is decided, the controller would write that, and then that the pod has one.
	apply(t, roomy, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: no-replacements}, spec: {hard: {pods: "0"}}}`)
	waitFor(t, "new pods to be refused", func(ctx context.Context) (string, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "beside"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}}}
		_, err := the.Client.CoreV1().Pods(roomy).Create(ctx, pod, metav1.CreateOptions{DryRun: dryRun})
		if apierrors.IsForbidden(err) {
			return "", nil
		}
		return "one would be made", err
	})
	check("image of a container changed", costOf(t, times, each(0, patchImage), settled(roomy)), 4, 1)
	check("deletion tried with dryRun", costOf(t, times, each(0, tried), nothing), 5, 0)
	check("deletion let through", costOf(t, times, each(0, remove), settled(roomy)), 4, 1)
	check("eviction let through", costOf(t, times, each(times, evict), settled(roomy)), 6, 1)
}

// TestUnderLoadAnAnswerCostsAtMostOneRead: concurrent requests share their reads. In two seconds there are 100 to 200 answers and a ratio of 0.55 to 1.38, so the storm is longer.
func TestUnderLoadAnAnswerCostsAtMostOneRead(t *testing.T) {
	namespace := web(t, 20, "maxUnavailable: 3")
	watch(t, namespace, 17)
	berth.set(func(i *installation) { i.latencies = nil })
	reads, writes := berth.calls.reads.Load(), berth.calls.writes.Load()
	allowed, refused := stormFor(t, max(*duration, 15*time.Second), namespace, remove, patchImage)
	reads, writes = berth.calls.reads.Load()-reads, berth.calls.writes.Load()-writes
	berth.set(func(i *installation) {
		n := int64(len(i.latencies))
		t.Logf("%d allowed, %d refused: %d answers, %d reads, %d writes", allowed, refused, n, reads, writes)
		if reads > n {
			t.Errorf("%d reads for %d answers", reads, n)
		}
	})
}

// TestNobodyIsAskedAboutWhatAKubeletWrites measures what the match conditions cost a kubelet's writes. It compares a protected pod with another pod,
// which the object selector excludes. It writes both in turn, and logs the medians.
func TestNobodyIsAskedAboutWhatAKubeletWrites(t *testing.T) {
	harness.Long(t)
	const writes = 200
	namespace := web(t, 1, "maxUnavailable: 0")
	apply(t, namespace, "{apiVersion: v1, kind: Pod, metadata: {name: beside, labels: {app: beside}}, spec: {containers: [{name: main, image: web:1}]}}")
	waitFor(t, "both pods to run", func(context.Context) (string, error) {
		running := 0
		for _, pod := range pods(t, namespace) {
			if pod.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return map[bool]string{false: fmt.Sprint(running)}[running == 2], nil
	})
	asked := reviews(t, namespace, anyone)
	both := pods(t, namespace)
	for who, client := range map[string]func(node string) kubernetes.Interface{
		"its kubelet":  kubelet,
		"a controller": func(string) kubernetes.Interface { return manager() },
	} {
		took := map[string][]time.Duration{}
		clients := []kubernetes.Interface{client(both[0].Spec.NodeName), client(both[1].Spec.NodeName)}
		for i := range writes {
			for j := range both {
				body := fmt.Appendf(nil, `{"status":{"message":"%s %d"}}`, who, i)
				start := time.Now()
				if _, err := clients[j].CoreV1().Pods(namespace).Patch(t.Context(), both[j].Name, types.MergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
					t.Fatal(err)
				}
				took[both[j].Labels["app"]] = append(took[both[j].Labels["app"]], time.Since(start))
			}
		}
		for app, all := range took {
			slices.Sort(all)
			t.Logf("%s writes the status of a pod of %s: p50 %.2f ms, p99 %.2f ms", who, app, ms(all[writes/2]), ms(all[writes*99/100]))
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the webhook was asked %d times", n)
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// TestAnAllowedDeletionBesideTheRequestsThatItNeeds compares, in turn, one write of the budget's status, all requests that an allowed deletion makes, by themselves and in the same order, and the
// deletion. The difference between the last two is what the webhook takes itself. It only logs them, because they depend on the machine.
func TestAnAllowedDeletionBesideTheRequestsThatItNeeds(t *testing.T) {
	harness.Long(t)
	const times = 40
	namespace := web(t, 50, "maxUnavailable: 90%")
	noReplacements(t)
	config := rest.CopyConfig(the.Sandbox.RESTConfig())
	config.DisableCompression = true // as the webhook does
	plain, err := client.New(config, client.Options{Scheme: berth.scheme})
	if err != nil {
		t.Fatal(err)
	}
	// write is one write of the status, which the controller corrects afterwards.
	write := func(pub *v1beta1.PodUnavailableBudget) error {
		pub.Status.UnavailablePods = map[string]metav1.Time{"test": metav1.Unix(int64(len(pub.Status.UnavailablePods)), 0)}
		return plain.Status().Update(t.Context(), pub)
	}
	all := pods(t, namespace)
	replicaSet := metav1.GetControllerOf(&all[0]).Name
	requests := func(pub *v1beta1.PodUnavailableBudget, revision string) error {
		reading, ctx := errgroup.WithContext(t.Context())
		reading.Go(func() error {
			options := &client.ListOptions{Namespace: namespace, Raw: &metav1.ListOptions{ResourceVersion: "0"}}
			return plain.List(ctx, &v1beta1.PodUnavailableBudgetList{}, options)
		})
		options := &client.ListOptions{Namespace: namespace, LabelSelector: labels.SelectorFromSet(labels.Set{"app": "web"}),
			Raw: &metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}}
		return errors.Join(plain.List(ctx, &corev1.PodList{}, options),
			plain.Get(ctx, types.NamespacedName{Namespace: namespace, Name: replicaSet}, &appsv1.ReplicaSet{}),
			plain.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "web"}, &appsv1.Deployment{}),
			reading.Wait(), write(pub))
	}
	took := map[string][]time.Duration{}
	settled := func() *v1beta1.PodUnavailableBudget {
		var pub *v1beta1.PodUnavailableBudget
		waitFor(t, "everything to be over", func(ctx context.Context) (_ string, err error) {
			pub, err = read(ctx, namespace)
			_, mine := pub.Status.UnavailablePods["test"]
			return map[bool]string{true: "the status is not corrected"}[mine || len(pub.Status.Ledger) > 0], err
		})
		return pub
	}
	measure := func(what string, do func() error) {
		began := time.Now()
		if err := do(); err == nil {
			took[what] = append(took[what], time.Since(began))
		} else if !apierrors.IsConflict(err) { // the controller was faster
			t.Fatal(err)
		}
	}
	reads := berth.calls.reads.Load()
	for i := range times {
		pub := settled()
		measure("one write", func() error { return write(pub) })
		pub = settled()
		measure("the requests", func() error { return requests(pub, all[i].ResourceVersion) })
		settled()
		berth.set(func(i *installation) { i.latencies = nil })
		expectAllowed(t, "a deletion", remove(t.Context(), &all[i]))
		berth.set(func(i *installation) { took["the deletion"] = append(took["the deletion"], i.latencies[0]) })
	}
	t.Logf("%.1f reads for each deletion", float64(berth.calls.reads.Load()-reads)/times)
	for _, what := range []string{"one write", "the requests", "the deletion"} {
		slices.Sort(took[what])
		if n := len(took[what]); n > 0 {
			t.Logf("%s: p50 %.1f ms, p90 %.1f ms of %d", what, ms(took[what][n/2]), ms(took[what][n*9/10]), n)
		}
	}
}
