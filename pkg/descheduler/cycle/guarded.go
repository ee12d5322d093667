package cycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/klog/v2"
)

// GuardOptions of a Client.
type GuardOptions struct {
	// Timeout of one eviction, on this side and on the API server's. Required.
	Timeout time.Duration
	// DryRun asks the API server, its budgets and its webhooks, and has nothing evicted.
	DryRun bool
	// Silent is for a DryRun that sends nothing: every eviction counts as evicted.
	Silent bool
	// TripAfter is how many evictions in a row may fail or be left unanswered before no more are sent in the cycle. 0
	// is any number.
	TripAfter int
	// Settled is called when an eviction has ended, by several goroutines at a time. Nil calls nothing.
	Settled func(ctx context.Context, pod *corev1.Pod, result evictionResult)
}

// tally of the evictions of a cycle.
type tally struct {
	// Attempted are those that ended as Evicted, Refused, Forbidden, Failed or Unanswered.
	Attempted int
	// Succeeded are those that ended as Evicted.
	Succeeded int
}

// Client is a clientset whose pods can be evicted through policy/v1, and not deleted: API servers have no other
// evictions since 1.25. An eviction is sent only for a pod that Intend has named.
type Client struct {
	kubernetes.Interface
	options GuardOptions

	mu      sync.Mutex
	intents map[types.NamespacedName]*intent
	tally   tally
	failing int
	// ahead is true if evictions are sent before the framework is told of them, with this grace period in seconds.
	ahead       bool
	gracePeriod *int64
}

var _ kubernetes.Interface = &Client{}

// intent is the pod that is meant, and what became of its eviction.
type intent struct {
	preconditions metav1.Preconditions
	err           error
	done          bool
}

// NewClient guards a clientset.
func NewClient(client kubernetes.Interface, options GuardOptions) *Client {
	return &Client{Interface: client, options: options, intents: map[types.NamespacedName]*intent{}}
}

// BeginCycle forgets the tally and the failures of the cycle before.
func (c *Client) BeginCycle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally, c.failing = tally{}, 0
	clear(c.intents)
}

// Tally of the cycle so far.
func (c *Client) Tally() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tally
}

// intend names the pod that the next eviction under its name means. A pod without a node is meant as it is now: once it
// is bound, or changed otherwise, it is not evicted.
func (c *Client) intend(pod *corev1.Pod) *intent {
	i := &intent{preconditions: metav1.Preconditions{UID: &pod.UID}}
	if pod.Spec.NodeName == "" {
		i.preconditions.ResourceVersion = &pod.ResourceVersion
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.intents[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = i
	return i
}

// evict carries an eviction out, unless it was sent ahead, and returns the result.
func (c *Client) evict(ctx context.Context, eviction *policyv1.Eviction) error {
	key := types.NamespacedName{Namespace: eviction.Namespace, Name: eviction.Name}
	c.mu.Lock()
	meant, intended := c.intents[key]
	delete(c.intents, key)
	c.mu.Unlock()
	switch {
	case !intended:
		return &evictionError{resultUnintended, fmt.Errorf("eviction of %s without a pod that is meant", key)}
	case meant.done:
		return meant.err
	}
	return c.carryOut(ctx, eviction, meant)
}

// carryOut sends an eviction with the preconditions of its intent, unless too many have failed, and notes the result in
// the intent.
func (c *Client) carryOut(ctx context.Context, eviction *policyv1.Eviction, meant *intent) error {
	c.mu.Lock()
	tripped := c.options.TripAfter > 0 && c.failing >= c.options.TripAfter
	c.mu.Unlock()
	if tripped {
		meant.err, meant.done = &evictionError{resultTripped, fmt.Errorf("%d evictions in a row have failed", c.options.TripAfter)}, true
		return meant.err
	}
	err := c.send(ctx, eviction, meant)
	result := classify(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if result.attempted() {
		c.tally.Attempted++
	}
	switch {
	case result == resultEvicted:
		c.tally.Succeeded++
		c.failing = 0
	case result.broken():
		c.failing++
	default:
		c.failing = 0
	}
	meant.done = true
	if err != nil {
		meant.err = &evictionError{result, err}
		return meant.err
	}
	return nil
}

// send asks once. The client library would ask again for as long as an answer has a Retry-After, which for a budget
// that is being processed is 10 times 10 seconds.
func (c *Client) send(ctx context.Context, eviction *policyv1.Eviction, meant *intent) error {
	eviction = eviction.DeepCopy()
	if eviction.DeleteOptions == nil {
		eviction.DeleteOptions = &metav1.DeleteOptions{}
	}
	eviction.DeleteOptions.Preconditions = &meant.preconditions
	if c.options.DryRun {
		eviction.DeleteOptions.DryRun = []string{metav1.DryRunAll}
		if c.options.Silent {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	return c.Interface.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace(eviction.Namespace).Resource("pods").Name(eviction.Name).
		SubResource("eviction").Timeout(c.options.Timeout).MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// PolicyV1 implements kubernetes.Interface with guarded evictions.
func (c *Client) PolicyV1() typedpolicyv1.PolicyV1Interface {
	return policy{c.Interface.PolicyV1(), c}
}

type policy struct {
	typedpolicyv1.PolicyV1Interface
	client *Client
}

// Evictions implements PolicyV1Interface.
func (p policy) Evictions(string) typedpolicyv1.EvictionInterface { return oneByOne{p.client} }

type oneByOne struct{ client *Client }

// Evict implements EvictionInterface.
func (e oneByOne) Evict(ctx context.Context, eviction *policyv1.Eviction) error {
	return e.client.evict(ctx, eviction)
}

// EventsV1 implements kubernetes.Interface: a dry run tells of nothing that has not happened.
func (c *Client) EventsV1() typedeventsv1.EventsV1Interface {
	if c.options.DryRun {
		return fake.NewClientset().EventsV1()
	}
	return c.Interface.EventsV1()
}

// errNeverDeletes is the answer to whoever deletes a pod through the client.
var errNeverDeletes = errors.New("a descheduler evicts pods and never deletes them")

// CoreV1 implements kubernetes.Interface with pods that cannot be deleted.
func (c *Client) CoreV1() typedcorev1.CoreV1Interface { return core{c.Interface.CoreV1(), c} }

type core struct {
	typedcorev1.CoreV1Interface
	client *Client
}

// Pods implements CoreV1Interface.
func (c core) Pods(namespace string) typedcorev1.PodInterface {
	return pods{c.CoreV1Interface.Pods(namespace), c.client}
}

type pods struct {
	typedcorev1.PodInterface
	client *Client
}

// Delete implements PodInterface: it never does.
func (pods) Delete(ctx context.Context, name string, _ metav1.DeleteOptions) error {
	klog.FromContext(ctx).Error(errNeverDeletes, "Refused to delete a pod", "name", name)
	return errNeverDeletes
}

// DeleteCollection implements PodInterface: it never does.
func (pods) DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error {
	return errNeverDeletes
}

// EvictV1 implements PodInterface.
func (p pods) EvictV1(ctx context.Context, eviction *policyv1.Eviction) error {
	return p.client.evict(ctx, eviction)
}
