package united

import (
	"context"
	"fmt"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
)

// ownership knows whether the definition of UnitedDeployments is Berth's. If it is OpenKruise's, kruise-manager serves them, and two controllers would make
// children for each other's without end.
type ownership struct {
	live  client.Reader
	clock clock.PassiveClock

	mu   sync.Mutex
	ours bool
	// until is when it looks again. Zero before it has looked.
	until time.Time
}

// isOurs is true if the definition has Berth convert. It looks again after a while, because somebody may replace the definition.
func (o *ownership) isOurs(ctx context.Context) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.clock.Now().Before(o.until) {
		return o.ours, nil
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := o.live.Get(ctx, client.ObjectKey{Name: endpoint.UnitedDefinition}, definition); err != nil {
		return false, fmt.Errorf("reading whose definition of UnitedDeployments this is: %w", err)
	}
	ours := endpoint.Converts(definition)
	if !ours && (o.until.IsZero() || o.ours) {
		klog.FromContext(ctx).Info("Leaving UnitedDeployments alone: the definition is another controller's. Apply Berth's if Berth is to serve them, or start with --united-deployments=false",
			"definition", endpoint.UnitedDefinition)
	}
	o.ours, o.until = ours, o.clock.Now().Add(lineage.RetryInterval)
	return ours, nil
}
