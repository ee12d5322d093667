// Package manifests carries the files that install Berth, as they stand in this directory, for programs that install it
// themselves.
package manifests

import (
	"embed"
	"io/fs"
	"slices"
)

//go:embed base/namespace.yaml base/workload-reader.yaml base/users.yaml crd/*_*.yaml scheduler/rbac.yaml scheduler/flowschema.yaml controller/rbac.yaml controller/policy.yaml united/rbac.yaml united/united.yaml policy/pods.yaml
//go:embed webhook/rbac.yaml webhook/certificate.yaml budget/rbac.yaml budget/protection.yaml budget/eviction.yaml budget/flowschema.yaml
//go:embed sidecar/rbac.yaml rules/*_*.yaml rules/rbac.yaml
//go:embed descheduler/base/rbac.yaml federation/hub/clusterprofiles.yaml federation/hub/rbac.yaml federation/hub/policy.yaml federation/member/rbac.yaml
var files embed.FS

// SchedulerConfig is the configuration of the scheduler as it is deployed, without a client connection.
//
//go:embed scheduler/scheduler-config.yaml
var SchedulerConfig []byte

// The webhook configurations have the API server ask Berth's webhook, at its Service. They are applied when the webhook
// runs, and not by Install.
var (
	// ValidatingWebhook is about WorkloadSpreads and UnitedDeployments.
	//
	//go:embed webhook/validatingwebhookconfiguration.yaml
	ValidatingWebhook []byte
	// MutatingWebhook is about pods.
	//
	//go:embed webhook/mutatingwebhookconfiguration.yaml
	MutatingWebhook []byte
	// BudgetWebhook is about the pods of PodUnavailableBudgets, and about these.
	//
	//go:embed budget/validatingwebhookconfiguration.yaml
	BudgetWebhook []byte
	// EvictionWebhook marks evictions of pods of PodUnavailableBudgets.
	//
	//go:embed budget/mutatingwebhookconfiguration.yaml
	EvictionWebhook []byte
)

// FederationCRD is the definition of FederatedReplicaSets. Only the hub of a federation has it, so it is not part of
// Install.
//
//go:embed federation/hub/federation.berth.dev_federatedreplicasets.yaml
var FederationCRD []byte

// The parts of SidecarSets, which are not part of Install.
var (
	// SidecarCRD is the definition of SidecarSets.
	//
	//go:embed sidecar/apps.kruise.io_sidecarsets.yaml
	SidecarCRD []byte
	// SidecarMutatingWebhook injects sidecars, and SidecarValidatingWebhook is about SidecarSets.
	//
	//go:embed sidecar/mutatingwebhookconfiguration.yaml
	SidecarMutatingWebhook []byte
	//go:embed sidecar/validatingwebhookconfiguration.yaml
	SidecarValidatingWebhook []byte
)

// DeschedulerPolicy is the ConfigMap with the descheduler's policy as it is deployed.
//
//go:embed descheduler/base/policy.yaml
var DeschedulerPolicy []byte

// CRDs are the custom resource definitions.
func CRDs() [][]byte { return read("crd/*_*.yaml") }

// Install is everything that Berth needs before its components start, in the order in which to apply it: definitions,
// namespace, roles, policies, and the Secret for the webhook's certificate.
func Install() [][]byte {
	all := CRDs()
	for _, pattern := range []string{"base/namespace.yaml", "base/workload-reader.yaml", "base/users.yaml", "scheduler/rbac.yaml", "scheduler/flowschema.yaml", "controller/rbac.yaml", "controller/policy.yaml", "united/rbac.yaml", "united/united.yaml", "policy/pods.yaml",
		"webhook/rbac.yaml", "webhook/certificate.yaml", "budget/rbac.yaml", "budget/protection.yaml", "budget/eviction.yaml", "budget/flowschema.yaml",
		"descheduler/base/rbac.yaml"} {
		all = append(all, read(pattern)...)
	}
	return all
}

// FederationHub is what a hub needs for its members, in addition to Install.
func FederationHub() [][]byte {
	return slices.Concat([][]byte{FederationCRD}, read("federation/hub/clusterprofiles.yaml"), read("federation/hub/rbac.yaml"), read("federation/hub/policy.yaml"))
}

// Sidecars is what SidecarSets need before their webhooks, in addition to Install.
func Sidecars() [][]byte { return slices.Concat([][]byte{SidecarCRD}, read("sidecar/rbac.yaml")) }

// Rules is what SpreadRules and ClusterSpreadRules need, in addition to Install.
func Rules() [][]byte { return slices.Concat(read("rules/*_*.yaml"), read("rules/rbac.yaml")) }

// FederationMember is what a member of a federation needs.
func FederationMember() [][]byte { return read("federation/member/rbac.yaml") }

func read(pattern string) [][]byte {
	names, err := fs.Glob(files, pattern)
	if err != nil {
		panic(err) // the pattern is a constant
	}
	contents := make([][]byte, 0, len(names))
	for _, name := range names {
		content, err := files.ReadFile(name)
		if err != nil {
			panic(err) // embedded, so it is there
		}
		contents = append(contents, content)
	}
	return contents
}
