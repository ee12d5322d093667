//go:build kubernetes_1_37

package webhook

import "k8s.io/kubernetes/pkg/apis/core/validation"

// allowMore allows nothing more: the options that 1.37 has and 1.35 has not are about updates of pods.
func allowMore(options validation.PodValidationOptions) validation.PodValidationOptions {
	return options
}
