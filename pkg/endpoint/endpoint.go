// Package endpoint says where each of Berth's webhooks is served, and where the API server is told to ask: behind a segment that strangers do not know. It has
// no client and no clock. Begin reading at WebhooksOf.
package endpoint

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Where handlers are served.
const (
	// Spreads is asked about WorkloadSpreads.
	Spreads = "/validate-workloadspread"
	// Pods is asked about pods that are being created.
	Pods = "/mutate-pod"
	// RequiredPods is asked about those in namespaces where no pod of a spread may be created unseen.
	RequiredPods = "/mutate-required-pod"
	// BudgetPods is asked before operations on pods that a budget protects.
	BudgetPods = "/validate-budget-pods"
	// Evictions marks the evictions about which BudgetPods is to be asked.
	Evictions = "/mutate-eviction"
	// Budgets is asked about PodUnavailableBudgets.
	Budgets = "/validate-podunavailablebudget"
)

// Lifetime is how long the API server asks behind one segment. A segment does not stay secret for ever: API servers show the whole address to whoever had an
// operation fail because the webhook did not answer.
const Lifetime = time.Hour

// Configurations are the names of the webhook configurations: there is a validating and a mutating one of each.
var Configurations = []string{"berth-webhook", "berth-budget"}

// The handlers of webhooks, by the names that these have in manifests/webhook and manifests/budget. A webhook keeps its handler for good: replicas of two versions
// would each name their own, again and again.
var (
	validating = map[string]string{
		"workloadspread.berth.dev":               Spreads,
		"pods.budget.berth.dev":                  BudgetPods,
		"labels.budget.berth.dev":                BudgetPods,
		"status.budget.berth.dev":                BudgetPods,
		"evictions.budget.berth.dev":             BudgetPods,
		"podunavailablebudgets.budget.berth.dev": Budgets,
	}
	mutating = map[string]string{
		"pod.berth.dev":              Pods,
		"required.pod.berth.dev":     RequiredPods,
		"evictions.budget.berth.dev": Evictions,
	}
)

// Webhook is one of a configuration.
type Webhook struct {
	Name string
	// Handler is where it is served, one of the constants.
	Handler string
	// Client is the configuration's own, not a copy.
	Client *admissionregistrationv1.WebhookClientConfig
}

// WebhooksOf are the webhooks of a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration that are served. Others in it are left out.
func WebhooksOf(configuration runtime.Object) []Webhook {
	var webhooks []Webhook
	add := func(handlers map[string]string, name string, client *admissionregistrationv1.WebhookClientConfig) {
		if handler, served := handlers[name]; served {
			webhooks = append(webhooks, Webhook{name, handler, client})
		}
	}
	switch c := configuration.(type) {
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range c.Webhooks {
			add(validating, c.Webhooks[i].Name, &c.Webhooks[i].ClientConfig)
		}
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range c.Webhooks {
			add(mutating, c.Webhooks[i].Name, &c.Webhooks[i].ClientConfig)
		}
	}
	return webhooks
}

// HandlerOf is the handler that a path leads to, with or without a segment before it. It is empty if the path leads to none.
func HandlerOf(path string) string {
	handler := path[max(strings.LastIndexByte(path, '/'), 0):]
	if strings.Count(path, "/") <= 2 && slices.Contains([]string{Spreads, Pods, RequiredPods, BudgetPods, Evictions, Budgets}, handler) {
		return handler
	}
	return ""
}

// Path is where the API server is told to ask, if that leads to the handler, and empty otherwise.
func (w Webhook) Path() string {
	if path := w.path(); HandlerOf(path) == w.Handler {
		return path
	}
	return ""
}

// path is empty if none is named.
func (w Webhook) path() string {
	var path string
	switch {
	case w.Client.Service != nil && w.Client.Service.Path != nil:
		path = *w.Client.Service.Path
	case w.Client.Service == nil && w.Client.URL != nil:
		if address, err := url.Parse(*w.Client.URL); err == nil {
			path = address.Path
		}
	}
	if path == "/" {
		return ""
	}
	return path
}

// segment leads to a handler. It is 128 random bits, what the hash of the authority beside it begins with, and when it was made, in seconds
// since 1970. A version that means something else by these must change the form: then each leaves what the other has named.
var segment = regexp.MustCompile(`^/[0-9a-f]{32}-([0-9a-f]{16})-([0-9a-f]{1,12})(/.*)$`)

// Fill names a path with a new segment, if none is named, or if the one that Fill has named is over its Lifetime, of another authority than the API server is told
// beside it, or of another handler. A path that somebody else has named stays. It tells whether it changed the webhook.
func (w Webhook) Fill(now time.Time) bool {
	authority := sha256.Sum256(w.Client.CABundle)
	current := w.path()
	if current != "" {
		parts := segment.FindStringSubmatch(current)
		if parts == nil {
			return false
		}
		of, _ := hex.DecodeString(parts[1]) // the expression takes only what can be decoded
		made, _ := strconv.ParseInt(parts[2], 16, 64)
		if bytes.Equal(of, authority[:8]) && parts[3] == w.Handler && now.Before(time.Unix(made, 0).Add(Lifetime)) {
			return false
		}
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails
	path := fmt.Sprintf("/%x-%x-%x%s", random, authority[:8], now.Unix(), w.Handler)
	if w.Client.Service != nil {
		w.Client.Service.Path = &path
		return true
	}
	if w.Client.URL == nil {
		return false
	}
	address, err := url.Parse(*w.Client.URL)
	if err != nil {
		return false
	}
	address.Path = path
	text := address.String()
	w.Client.URL = &text
	return true
}
