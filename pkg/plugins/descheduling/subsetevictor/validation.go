package subsetevictor

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-project/berth/pkg/plugins/descheduling/settings"
)

// Validate returns every error in Args. It is called before SetDefaults.
func Validate(obj runtime.Object) error {
	args, ok := obj.(*Args)
	if !ok {
		return fmt.Errorf("%s: want %T, got %T", Name, args, obj)
	}
	if err := (&settings.Scope{Namespaces: args.Namespaces}).Validate().ToAggregate(); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	return nil
}
