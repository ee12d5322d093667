package console

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/subset"
)

// Costs are the flags --cost and --prices.
type Costs struct {
	asked bool
	file  string
}

// Shown is true with one of the flags.
func (c *Costs) Shown() bool { return c.asked || c.file != "" }

// AddTo adds the flags.
func (c *Costs) AddTo(flags *pflag.FlagSet) {
	flags.BoolVar(&c.asked, "cost", false, "Say what the pods of spreads cost an hour, by label "+v1beta1.HourlyPriceLabel+" of nodes.")
	flags.StringVar(&c.file, "prices", "", "YAML file with prices of nodes, which come before their labels. Implies --cost: [{nodeSelector: {capacity: spot}, hourly: 0.12}].")
}

// Prices are those of the file. They are nil without one.
func (c *Costs) Prices() (subset.Prices, error) {
	if c.file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.file)
	if err != nil {
		return nil, err
	}
	prices, err := subset.ParsePrices(text)
	if err != nil {
		return nil, fmt.Errorf("--prices: %s: %w", c.file, err)
	}
	return prices, nil
}

// NewCostReader returns a function that adds to the report of a spread what its pods cost. It reads the nodes once, and
// the pods of each namespace.
func (c *Costs) NewCostReader(cluster *Cluster) func(context.Context, *v1beta1.WorkloadSpread, *report.Report) error {
	var nodes []*corev1.Node
	pods := map[string][]*corev1.Pod{}
	return func(ctx context.Context, spread *v1beta1.WorkloadSpread, r *report.Report) error {
		if !c.Shown() {
			return nil
		}
		policy, errs := subset.Compile(spread, field.NewPath("spec"))
		if len(errs) > 0 {
			return nil // the report says so
		}
		prices, err := c.Prices()
		if err != nil {
			return err
		}
		if nodes == nil {
			list := &corev1.NodeList{}
			if err := cluster.List(ctx, list); err != nil {
				return err
			}
			nodes = pointers(list.Items)
		}
		if _, read := pods[spread.Namespace]; !read {
			list := &corev1.PodList{}
			if err := cluster.List(ctx, list, client.InNamespace(spread.Namespace)); err != nil {
				return err
			}
			pods[spread.Namespace] = pointers(list.Items)
		}
		own := slices.DeleteFunc(slices.Clone(pods[spread.Namespace]), func(pod *corev1.Pod) bool {
			record := subset.Observe(pod, nil).Record
			return record == nil || record.Spread != spread.Name
		})
		r.AddCost(policy.PodPrices(prices, nodes, report.RequestsOf(own)))
		return nil
	}
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}
