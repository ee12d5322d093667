// Package endpoint defines the URL paths of Berth's webhooks: the path of each handler, and the path in the webhook configuration. The latter begins with
// a secret segment that only the API server and Berth know. Begin reading at WebhooksOf.
//
// It serves the versions of Berth's kinds as well: it answers the API server's conversion reviews (conversion.go), and gives admission webhooks that are
// written for the stored version objects of every version (hub.go). pkg/crd/versions knows what differs. The package has no client and decides nothing.
package endpoint

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// The paths of the handlers.
const (
	// Spreads validates WorkloadSpreads.
	Spreads = "/validate-workloadspread"
	// UnitedDeployments validates UnitedDeployments.
	UnitedDeployments = "/validate-uniteddeployment"
	// FederatedReplicaSets validates FederatedReplicaSets, in the hub of a federation.
	FederatedReplicaSets = "/validate-federatedreplicaset"
	// SpreadRules and ClusterSpreadRules validate rules.
	SpreadRules        = "/validate-spreadrule"
	ClusterSpreadRules = "/validate-clusterspreadrule"
	// Pods mutates pods that are being created.
	Pods = "/mutate-pod"
	// RequiredPods does the same in namespaces where no pod of a spread may be created without the webhook.
	RequiredPods = "/mutate-required-pod"
	// Sidecars injects the containers of SidecarSets into pods that are being created.
	Sidecars = "/mutate-sidecars"
	// SidecarSets validates SidecarSets.
	SidecarSets = "/validate-sidecarset"
	// BudgetPods allows or refuses operations on pods that a budget protects.
	BudgetPods = "/validate-budget-pods"
	// Evictions marks the evictions about which the API server must call BudgetPods.
	Evictions = "/mutate-eviction"
	// Budgets validates PodUnavailableBudgets.
	Budgets = "/validate-podunavailablebudget"
)

// Conversion converts objects between versions. It is the path in the definitions, without a secret segment: conversion reads and writes nothing.
const Conversion = "/convert"

// Definitions are the names of the CustomResourceDefinitions that Berth cannot do without.
var Definitions = []string{"workloadspreads.apps.kruise.io", "podunavailablebudgets.policy.kruise.io"}

// UnitedDefinition is the name of the CustomResourceDefinition of UnitedDeployments. It may be missing, or be another controller's.
const UnitedDefinition = "uniteddeployments.apps.kruise.io"

// conversionService is the name of the Service at which the API server asks for conversion. Definitions of other controllers name another one.
const conversionService = "berth-conversion"

// Converts is true if the definition has Berth convert its objects between versions. A definition with a URL in place of a service is one of a sandbox.
func Converts(definition *apiextensionsv1.CustomResourceDefinition) bool {
	conversion := definition.Spec.Conversion
	if conversion == nil || conversion.Webhook == nil || conversion.Webhook.ClientConfig == nil {
		return false
	}
	service := conversion.Webhook.ClientConfig.Service
	return service == nil || service.Name == conversionService
}

// Configurations are the names of the webhook configurations. Each name has a validating and a mutating one. SidecarConfiguration is among them, and may be missing.
var Configurations = []string{PodConfiguration, BudgetConfiguration, SidecarConfiguration}

const (
	// PodConfiguration is the name of the webhook configurations for spreads, UnitedDeployments and pods.
	PodConfiguration = "berth-webhook"
	// BudgetConfiguration is the name of those for budgets and evictions.
	BudgetConfiguration = "berth-budget"
)

// SidecarConfiguration is the name of the webhook configurations for SidecarSets. It comes before that of pods in the alphabet, so that sidecars are injected before a subset
// is picked, and a subset's patch may change them.
const SidecarConfiguration = "berth-sidecars"

// The handlers of webhooks, by the names of the webhooks in manifests/webhook and manifests/budget. A webhook must never get another handler: during an
// upgrade, replicas of both versions would overwrite each other's paths again and again.
var (
	validating = map[string]string{
		"workloadspread.berth.dev":               Spreads,
		"uniteddeployment.berth.dev":             UnitedDeployments,
		"sidecarset.berth.dev":                   SidecarSets,
		"federatedreplicaset.berth.dev":          FederatedReplicaSets,
		"spreadrule.berth.dev":                   SpreadRules,
		"clusterspreadrule.berth.dev":            ClusterSpreadRules,
		"pods.budget.berth.dev":                  BudgetPods,
		"labels.budget.berth.dev":                BudgetPods,
		"status.budget.berth.dev":                BudgetPods,
		"evictions.budget.berth.dev":             BudgetPods,
		"podunavailablebudgets.budget.berth.dev": Budgets,
	}
	mutating = map[string]string{
		SidecarWebhook:           Sidecars,
		PodWebhook:               Pods,
		"required.pod.berth.dev": RequiredPods,
		EvictionWebhook:          Evictions,
	}
)

// Webhook is one webhook of a webhook configuration.
type Webhook struct {
	Name string
	// Handler is the path of its handler, one of the constants.
	Handler string
	// Client is the one in the configuration, not a copy.
	Client *admissionregistrationv1.WebhookClientConfig
}

// WebhooksOf are the webhooks of a ValidatingWebhookConfiguration or MutatingWebhookConfiguration for which Berth has a handler. It leaves out others.
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

// HandlerOf is the handler of a path, with or without a segment before it. It is empty if the path has no handler.
func HandlerOf(path string) string {
	handler := path[max(strings.LastIndexByte(path, '/'), 0):]
	if strings.Count(path, "/") <= 2 && slices.Contains([]string{Spreads, UnitedDeployments, FederatedReplicaSets, SpreadRules, ClusterSpreadRules, Pods, RequiredPods, Sidecars, SidecarSets, BudgetPods, Evictions, Budgets}, handler) {
		return handler
	}
	return ""
}

// Path is the path in the webhook configuration. It is empty if that path is not one of the webhook's handler.
func (w Webhook) Path() string {
	if path, _ := w.path(); HandlerOf(path) == w.Handler {
		return path
	}
	return ""
}

// path is the path in the webhook configuration, empty if there is none. set changes it. It is nil if there is nothing to change.
func (w Webhook) path() (path string, set func(path string)) {
	if service := w.Client.Service; service != nil {
		return ptr.Deref(service.Path, ""), func(path string) { service.Path = &path }
	}
	address, err := url.Parse(ptr.Deref(w.Client.URL, ""))
	if err != nil || w.Client.URL == nil {
		return "", nil
	}
	return address.Path, func(path string) {
		address.Path = path
		w.Client.URL = ptr.To(address.String())
	}
}

// Fill sets a path with a random segment of 128 bits if the webhook has none. It keeps every path that there is. It returns whether it changed the webhook.
func (w Webhook) Fill() bool {
	path, set := w.path()
	if set == nil || path != "" && path != "/" {
		return false
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails
	set(fmt.Sprintf("/%x%s", random, w.Handler))
	return true
}
