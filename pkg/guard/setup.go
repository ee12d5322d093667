package guard

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/budget/census"
	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
)

// Options are what tests replace. The zero value has the defaults.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// AnswerTimeout is how long a request waits for an answer, defaultAnswerTimeout if 0. It must be below the timeoutSeconds of the webhook.
	AnswerTimeout time.Duration
}

// longestList is how long a list waits. A decision may need three, one after the other, within defaultAnswerTimeout.
const longestList = 2 * time.Second

// ShortestExpiry is the minimum time after which a ledger entry may expire, if the API server ends requests after requestTimeout. The last request that
// relies on an entry may use up the webhook's timeout and its own. The entry must still exist then. So the minimum is the sum of the webhook's timeout of
// 10 seconds, requestTimeout and one second. The second allows for a controller that sees an entry a little before its webhook knows that it was written.
func ShortestExpiry(requestTimeout time.Duration) time.Duration {
	const webhookTimeout = 10 * time.Second
	return webhookTimeout + requestTimeout + time.Second
}

// Setup registers the handlers and makes the manager's cache watch the objects that they look up. The manager's scheme must have the types of
// pkg/crd/policy/v1beta1. Setup uses the context only until it returns.
func Setup(ctx context.Context, mgr ctrl.Manager, register func(path string, hook http.Handler), opts Options) error {
	for what, object := range map[string]client.Object{
		"PodUnavailableBudgets": &v1beta1.PodUnavailableBudget{}, "PodDisruptionBudgets": &policyv1.PodDisruptionBudget{}, "nodes": &corev1.Node{},
	} {
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return fmt.Errorf("watching %s: %w", what, err)
		}
	}
	live, err := census.NewReader(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()}, longestList)
	if err != nil {
		return err
	}
	g := New(mgr.GetClient(), live, mgr.GetCache(), opts)
	g.teller = newTeller(mgr.GetEventRecorder("berth-controller"), g.clock)
	register(endpoint.BudgetPods, &admission.Webhook{Handler: &podHandler{guard: g, decoder: admission.NewDecoder(mgr.GetScheme())}})
	register(endpoint.Evictions, &admission.Webhook{Handler: &evictionMarker{guard: g}})
	register(endpoint.Budgets, endpoint.AdmissionInHub(v1beta1.GroupVersion, admission.WithValidator(mgr.GetScheme(), (&budgetValidator{
		budgets: g.committed, policies: g.policies, census: g.census, looks: make(chan struct{}, mostLooks),
	}).reviews())))
	return nil
}

// New returns a Guard that writes with the client, reads live, and looks up budgets and nodes in the cache.
func New(writer client.Client, live, cached client.Reader, opts Options) *Guard {
	opts.Clock = cmp.Or[clock.PassiveClock](opts.Clock, clock.RealClock{})
	opts.AnswerTimeout = cmp.Or(opts.AnswerTimeout, defaultAnswerTimeout)
	s := &store{
		live: live, cached: cached, writer: writer.Status(), census: census.New(live, writer.SubResource("scale"), cached, opts.Clock), policies: newPolicies(), clock: opts.Clock,
	}
	return &Guard{
		store: s, remembered: newRegistry(live, fromMemory), committed: newRegistry(live, committed), above: newObjects(live), lines: newLines(s, opts.AnswerTimeout),
	}
}
