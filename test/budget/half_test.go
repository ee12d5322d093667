package budget

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/berth-project/berth/test/harness"
)

const (
	// unnoticed is how long Kubernetes sends connections to a replica that does not answer any more. The readiness probe of berth-controller takes about so long. If
	// the node is lost, too, Kubernetes takes 50 s; see -long.
	unnoticed, unnoticedNode = 8 * time.Second, 50 * time.Second
	// healed is how long some requests may still fail after that: one that the API server has sent to such a connection fails after its timeout of 10 s.
	healed = longest
	// longest is longer than any request takes: the API server waits 10 s for the webhook.
	longest = 15 * time.Second
)

// TestHalfAnOutageEndsNoDrain: one of two webhook replicas dies without a word. Its connections stay open and nobody reads them, and new ones are accepted and never answered. Meanwhile pods are
// deleted and evicted, and a node is drained in the loop of docs/operations/failure-modes.md. The drain ends, the budget holds at each revision, and after a
// while no request fails any more. The test logs how long requests failed, and how.
func TestHalfAnOutageEndsNoDrain(t *testing.T) {
	harness.Long(t)
	loop, err := harness.Commands("operations/failure-modes.md", "## When the webhook of budgets is down")
	if err != nil {
		t.Fatal(err)
	}
	namespace := web(t, 12, "maxUnavailable: 3")
	watch(t, namespace, 9)
	balance := behindBalancer(t, namespace)

	lasts := unnoticed
	if *long {
		lasts = unnoticedNode
	}
	seen := &failing{kinds: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	for what, operate := range map[string]operation{"deletion": remove, "eviction": evict} {
		working.Go(func() {
			tick := time.NewTicker(500 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				all, err := the.Pods(ctx, namespace)
				if err != nil || len(all) == 0 {
					continue // the context has ended, or all pods are replaced at this moment
				}
				pod := &all[rand.IntN(len(all))]
				working.Go(func() {
					began := time.Now()
					seen.add(what, began, operate(ctx, pod))
				})
			}
		})
	}
	waitFor(t, "operations before the outage", func(context.Context) (string, error) {
		return map[bool]string{true: "few"}[seen.allowed("deletion") < 3 || seen.allowed("eviction") < 3], nil
	})
	if seen.last() != (time.Time{}) {
		t.Fatalf("requests fail before the outage: %s", seen)
	}

	began := time.Now()
	balance.silence()
	var node string
	waitFor(t, "a pod that has a node, because pods are replaced all the time", func(context.Context) (string, error) {
		for _, pod := range pods(t, namespace) {
			if node = pod.Spec.NodeName; node != "" {
				return "", nil
			}
		}
		return "none has", nil
	})
	drained := make(chan error, 1)
	go func() { drained <- drainInALoop(t, loop, node) }()
	defer func() {
		if err := kubectl(t.Context(), "uncordon", node); err != nil {
			t.Error(err)
		}
	}()
	notice := time.AfterFunc(lasts, balance.notice)
	defer notice.Stop()
	select {
	case err := <-drained:
		if err != nil {
			t.Errorf("the loop around the drain did not end: %v", err)
		}
		t.Logf("the drain took %s", time.Since(began).Round(time.Second))
	case <-time.After(lasts + healed + harness.Timeout):
		t.Fatalf("the loop around the drain has not ended after %s: %s", time.Since(began), seen)
	}
	// Everything works again once nothing has failed for longer than any request takes.
	poll(t, lasts+healed+harness.Timeout, "requests to fail no more", func(context.Context) (string, error) {
		if time.Since(began) < lasts+longest || time.Since(seen.last()) < longest {
			return seen.String(), nil
		}
		return "", nil
	})
	stop()
	working.Wait()
	t.Logf("%d connections were to the silent replica", balance.silenced())
	failed := time.Duration(0)
	if last := seen.last(); !last.IsZero() {
		failed = last.Sub(began)
	}
	t.Logf("some requests failed for %s, of which nobody noticed the replica for %s: %s", failed.Round(time.Second), lasts, seen)
	if failed > lasts+healed {
		t.Errorf("some requests failed for %s, want at most %s", failed, lasts+healed)
	}
	if balance.silenced() == 0 {
		t.Error("no connection was to the silent replica, so the test shows nothing")
	}
}

// failing counts answers, and knows when the last request failed.
type failing struct {
	mu     sync.Mutex
	kinds  map[string]int
	failed time.Time
}

func (f *failing) add(what string, began time.Time, err error) {
	kind := "goes"
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		return
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		kind = "its pod was gone"
	case apierrors.IsTooManyRequests(err):
		kind = "429"
	default:
		kind = fmt.Sprintf("%s after %s", answerOf(err), time.Since(began).Round(time.Second))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kinds[what+": "+kind]++; strings.Contains(kind, " after ") {
		f.failed = time.Now()
	}
}

func (f *failing) last() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *failing) allowed(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kinds[what+": goes"]
}

func (f *failing) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(f.kinds)) {
		all = append(all, fmt.Sprintf("%s %d", kind, f.kinds[kind]))
	}
	return strings.Join(all, ", ")
}

// drainInALoop runs the commands of the page.
func drainInALoop(t *testing.T, loop, node string) error {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "-euc", loop)
	command.Env = append(os.Environ(), "NODE="+node, "KUBECONFIG="+the.Sandbox.Kubeconfig(), "PATH="+harness.BinDir()+":"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	t.Logf("%s\n%d attempts of the drain have failed", output, strings.Count(string(output), "error: unable to drain"))
	return err
}

// balancer connects each new connection to one of two replicas in turn, as a Service does. Both are the webhook servers of this process, at the address server; one of them can fall silent.
type balancer struct {
	server string
	mu     sync.Mutex
	turn   int
	// dead is the replica that fell silent, if silent. If noticed, it gets no new connections.
	dead            int
	silent, noticed bool
	// open are the connections, with their replica.
	open map[net.Conn]int
	// stuck is how many connections met silence.
	stuck int
	until chan struct{}
}

// behindBalancer makes the API server reach the webhook through a balancer until the test ends.
func behindBalancer(t *testing.T, namespace string) *balancer {
	t.Helper()
	behind, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{berth.certificate}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: berth, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(behind) }() // it returns an error when the server is closed
	t.Cleanup(func() { _ = server.Close() }) // the test is over
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{server: behind.Addr().String(), open: map[net.Conn]int{}, until: make(chan struct{})}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { b.serve(connection) })
		}
	})
	address := func(to string) {
		ctx := context.Background() // also after the test
		client := the.Client.AdmissionregistrationV1()
		change := func(configuration any) {
			for _, webhook := range webhooksOf(configuration) {
				_, rest, _ := strings.Cut(*webhook.URL, "://")
				_, path, _ := strings.Cut(rest, "/")
				*webhook.URL = "https://" + to + "/" + path
			}
		}
		if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			validating, err := client.ValidatingWebhookConfigurations().Get(ctx, "berth-budget", metav1.GetOptions{})
			if err != nil {
				return err
			}
			mutating, err := client.MutatingWebhookConfigurations().Get(ctx, "berth-budget", metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(validating)
			change(mutating)
			_, one := client.ValidatingWebhookConfigurations().Update(ctx, validating, metav1.UpdateOptions{})
			_, other := client.MutatingWebhookConfigurations().Update(ctx, mutating, metav1.UpdateOptions{})
			return errors.Join(one, other)
		}); err != nil {
			t.Error(err)
		}
	}
	address(listener.Addr().String())
	t.Cleanup(func() {
		address(berth.address)
		_ = listener.Close() // the test is over
		close(b.until)
		b.mu.Lock()
		for connection := range b.open {
			_ = connection.Close()
		}
		b.mu.Unlock()
		serving.Wait()
	})
	probe := pods(t, namespace)[0]
	waitFor(t, "the API server to ask through the balancer", func(ctx context.Context) (string, error) {
		if err := the.Client.CoreV1().Pods(namespace).EvictV1(ctx, dryEviction(&probe)); err != nil && !apierrors.IsTooManyRequests(err) {
			return err.Error(), nil
		}
		return map[bool]string{true: "it does not"}[b.connections() == 0], nil
	})
	return b
}

func dryEviction(pod *corev1.Pod) *policyv1.Eviction {
	eviction := evictionOf(pod)
	eviction.DeleteOptions.DryRun = dryRun
	return eviction
}

func webhooksOf(configuration any) (all []*admissionregistrationv1.WebhookClientConfig) {
	switch configuration := configuration.(type) {
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range configuration.Webhooks {
			all = append(all, &configuration.Webhooks[i].ClientConfig)
		}
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range configuration.Webhooks {
			all = append(all, &configuration.Webhooks[i].ClientConfig)
		}
	}
	return all
}

func (b *balancer) connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open)
}

func (b *balancer) silenced() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stuck
}

// silence ends all answers of a replica to which the API server has a connection. The connection stays open. With HTTP/2 the API server sends all reviews through one connection.
func (b *balancer) silence() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, b.dead = range b.open { // any
	}
	b.silent = true
	for _, replica := range b.open {
		if replica == b.dead {
			b.stuck++
		}
	}
}

// notice makes Kubernetes send no new connections to the silent replica. The old ones stay.
func (b *balancer) notice() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noticed = true
}

func (b *balancer) isSilent(replica int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.silent && replica == b.dead
}

func (b *balancer) serve(connection net.Conn) {
	defer connection.Close()
	b.mu.Lock()
	b.turn++
	replica := b.turn % 2
	if b.noticed && replica == b.dead {
		replica = 1 - replica
	}
	if b.open[connection] = replica; b.silent && replica == b.dead {
		b.stuck++
	}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.open, connection)
	}()
	server, err := net.Dial("tcp", b.server)
	if err != nil {
		return
	}
	defer server.Close()
	ended := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		defer func() { ended <- struct{}{} }()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if !b.isSilent(replica) { // what the dead replica would read or write gets lost
				if _, failed := to.Write(buffer[:n]); failed != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	go pass(server, connection)
	go pass(connection, server)
	select {
	case <-ended:
	case <-b.until:
	}
}
