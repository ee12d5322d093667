package subsetevictor

import "k8s.io/apimachinery/pkg/runtime"

// SetDefaults sets nothing: the zero values are the defaults.
func SetDefaults(runtime.Object) {}
