//go:build !kubernetes_1_37

package webhook

import "k8s.io/kubernetes/pkg/apis/core/validation"

// allowMore allows what later versions of Kubernetes always allow.
func allowMore(options validation.PodValidationOptions) validation.PodValidationOptions {
	options.AllowRelaxedDNSSearchValidation = true
	options.AllowPodLifecycleSleepActionZeroValue = true
	return options
}
