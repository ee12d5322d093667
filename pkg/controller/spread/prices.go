package spread

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
)

// priceInterval is how often the nodes are looked at for prices.
const priceInterval = 30 * time.Second

// pricedNodes are the nodes with a price.
type pricedNodes struct {
	mu    sync.Mutex
	nodes []*corev1.Node
	until time.Time
}

func (p *pricedNodes) list(ctx context.Context, reader client.Reader, now time.Time) ([]*corev1.Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Before(p.until) {
		return p.nodes, nil
	}
	list := &corev1.NodeList{}
	if err := reader.List(ctx, list, client.HasLabels{v1beta1.HourlyPriceLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the nodes with a price: %w", err)
	}
	p.nodes, p.until = nil, now.Add(priceInterval)
	for i := range list.Items {
		p.nodes = append(p.nodes, &list.Items[i])
	}
	return p.nodes, nil
}
