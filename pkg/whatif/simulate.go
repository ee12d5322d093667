package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/report"
	"github.com/berth-project/berth/pkg/sites"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/united"
	"github.com/berth-project/berth/pkg/workload"
)

// simulation is where the pods of a spread would be at one number of replicas.
type simulation struct {
	Replicas int32            `json:"replicas"`
	Subsets  []simulatedPlace `json:"subsets"`
	// Unplaced is how many pods would run in no subset, and Waiting how many would find no node or no slot.
	Unplaced int32 `json:"unplaced"`
	Waiting  int32 `json:"waiting"`
	// Why counts the reasons of the filters for pods that find no node, in the last subset that was tried.
	Why string `json:"why,omitempty"`
	// Moves are existing pods that are misplaced, so that the descheduler would move them.
	Moves []simulatedMove `json:"moves,omitempty"`
	// Note is how the pods were made, if the API server was not asked what admission makes of them.
	Note string `json:"note,omitempty"`
}

// simulatedPlace is one subset.
type simulatedPlace struct {
	Name string `json:"name"`
	// Now is how many pods are there, and Then how many would be.
	Now  int32 `json:"now"`
	Then int32 `json:"then"`
	// Quota is nil if there is no limit.
	Quota *int32 `json:"quota,omitempty"`
	// PodPrice is what a pod there costs an hour. Nil if that is not known, or was not asked for.
	PodPrice *float64 `json:"podPrice,omitempty"`
}

// simulatedMove is one pod.
type simulatedMove struct {
	Pod string `json:"pod"`
	// From is empty for a pod in no subset.
	From   string         `json:"from,omitempty"`
	Reason v1beta1.Reason `json:"reason"`
}

// planned is what the spread alone says, as if every subset had enough nodes.
func planned(policy *subset.Policy, replicas int32) simulation {
	plan := policy.Plan(replicas)
	s := simulation{Replicas: replicas, Subsets: places(policy, &plan)}
	targets, unplaced := policy.Targets(&plan, plan.Replicas)
	for i := range s.Subsets {
		s.Subsets[i].Then = targets[i]
	}
	if s.Unplaced = unplaced; policy.WhenFull == v1beta1.WhenFullWait {
		s.Waiting, s.Unplaced = s.Unplaced, 0
	}
	return s
}

func places(policy *subset.Policy, plan *subset.Plan) []simulatedPlace {
	all := make([]simulatedPlace, len(policy.Subsets))
	for i := range all {
		all[i].Name = policy.Subsets[i].Name
		if quota := plan.Quota[i]; quota != subset.NoLimit {
			all[i].Quota = &quota
		}
	}
	return all
}

// onCluster is where the pods would be on the nodes of the cluster.
func onCluster(ctx context.Context, e *Engine, d *Divided, replicas int32) (*simulation, error) {
	placed, err := e.Simulate(ctx, d, replicas)
	if err != nil {
		return nil, err
	}
	s := &simulation{Replicas: replicas, Subsets: places(d.Policy, &placed.Plan), Waiting: placed.Waiting, Note: placed.Note}
	for _, pod := range d.Pods {
		if o := subset.Observe(pod, e.Node(pod.Spec.NodeName)); o.Active {
			if in, _ := d.Policy.SubsetOf(&o, d.Spread.Name); in != subset.None {
				s.Subsets[in].Now++
			}
		}
	}
	roster := d.Policy.NewRoster(&placed.Plan, d.Spread.Name)
	for _, pod := range slices.Concat(placed.Kept, placed.Bound) {
		o := subset.Observe(pod, e.Node(pod.Spec.NodeName))
		o.Position = e.Position(pod, d.Policy, d.Ordinals)
		if in := roster.Put(o).Subset; in == subset.None {
			s.Unplaced++
		} else {
			s.Subsets[in].Then++
		}
	}
	for _, excess := range roster.Surplus() {
		if !slices.ContainsFunc(placed.Kept, func(pod *corev1.Pod) bool { return pod.UID == excess.Pod.UID }) {
			continue // it was let go because every subset is full
		}
		s.Moves = append(s.Moves, simulatedMove{Pod: excess.Pod.Name, From: d.Policy.Subset(excess.Subset).Name, Reason: excess.Reason})
	}
	if in := placed.Subset; in != nil {
		s.Why = in.Name + ": " + fitting(tier{Fit: placed.Survey.Fit, Nodes: placed.Survey.Nodes, Refused: placed.Survey.Refused})
	}
	return s, nil
}

// simulateCommand is "kubectl berth simulate".
type simulateCommand struct {
	out         io.Writer
	output      console.Output
	file        string
	replicas    int32
	scale       []int32
	fromCluster bool
	costs       console.Costs
}

func newSimulate(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &simulateCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   console.Simulate.Use,
		Short: console.Simulate.Short,
		Long: `Where pods would be with a spread, before it is applied. Nothing is written to the cluster.

With --from-cluster the pods are placed on the cluster's nodes, beside the pods that run there, by the scheduler's own
filters. Without, the spread alone is asked, as if every subset had all the nodes that it needs. A spread that is applied
already is named without a file, and its pods are placed on the cluster's nodes.

For a file with a UnitedDeployment it says how its replicas are divided, as if every subset had all the nodes that it needs.`,
		Example: `  kubectl berth simulate -f spread.yaml --scale 5,10,100
  kubectl berth simulate web --replicas 200
  kubectl berth simulate -f spread.yaml --from-cluster --replicas 200`,
		ValidArgsFunction: console.CompleteNames(flags, 1, console.Spreads),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd.Context(), func() (*console.Cluster, error) { return console.Connect(flags) }, args)
		},
	}
	c.output.AddTo(cmd.Flags())
	cmd.Flags().StringVarP(&c.file, "filename", "f", "", "File with a WorkloadSpread or a UnitedDeployment.")
	cmd.Flags().Int32Var(&c.replicas, "replicas", -1, "Replicas to simulate (default those of the workload in the cluster).")
	cmd.Flags().Int32SliceVar(&c.scale, "scale", nil, "Several numbers of replicas. Each is simulated from the present state.")
	cmd.Flags().BoolVar(&c.fromCluster, "from-cluster", false, "Place the pods on the nodes of the cluster.")
	c.costs.AddTo(cmd.Flags())
	cmd.MarkFlagsMutuallyExclusive("replicas", "scale")
	return cmd
}

func (c *simulateCommand) run(ctx context.Context, connect func() (*console.Cluster, error), args []string) error {
	names, err := console.Names(args, console.Spreads)
	if (c.file == "") != (err == nil && len(names) == 1) {
		return errors.New("say what to simulate: either a file with -f FILE, or the name of a spread in the cluster")
	}
	sizes := c.scale
	if c.replicas >= 0 {
		sizes = []int32{c.replicas}
	}
	if c.file == "" {
		return c.simulateApplied(ctx, connect, names[0], sizes)
	}
	content, err := os.ReadFile(c.file)
	if err != nil {
		return err
	}
	object, gvk, err := versions.Decode(content)
	if err != nil {
		return fmt.Errorf("%s: %w; the file must contain a WorkloadSpread or a UnitedDeployment", c.file, err)
	}
	if ud, is := object.(*unitedv1beta1.UnitedDeployment); is {
		return c.simulateUnited(ud, sizes)
	}
	spread, isSpread := object.(*v1beta1.WorkloadSpread)
	if !isSpread {
		return fmt.Errorf("%s: it contains a %s; it must contain a WorkloadSpread or a UnitedDeployment", c.file, gvk.Kind)
	}
	policy, errs := subset.Compile(spread, field.NewPath("spec"))
	if len(errs) > 0 {
		return fmt.Errorf("%s: %w", c.file, versions.ErrorInWords(gvk, errs.ToAggregate()))
	}
	if !c.fromCluster {
		if c.costs.Shown() {
			return errors.New("--cost goes by the nodes of the cluster: add --from-cluster")
		}
		if len(sizes) == 0 {
			return errors.New("say for how many pods with --replicas or --scale, or read the cluster with --from-cluster")
		}
		simulations := make([]simulation, len(sizes))
		for i, size := range sizes {
			simulations[i] = planned(policy, size)
		}
		return c.print(simulations)
	}
	cluster, err := connect()
	if err != nil {
		return err
	}
	simulations, err := c.lookAndSimulate(ctx, cluster, spread, sizes)
	if err != nil {
		return err
	}
	return c.print(simulations)
}

// simulateUnited says how a UnitedDeployment divides its replicas, as if every subset had all the nodes that it needs.
func (c *simulateCommand) simulateUnited(ud *unitedv1beta1.UnitedDeployment, sizes []int32) error {
	if c.fromCluster {
		return errors.New("--from-cluster knows WorkloadSpreads only; leave it out to see how the replicas of a UnitedDeployment are divided")
	}
	if len(sizes) == 0 {
		sizes = []int32{ptr.Deref(ud.Spec.Replicas, 1)}
	}
	var simulations []simulation
	for _, size := range sizes {
		ud.Spec.Replicas = &size
		policy, errs := united.Compile(ud, field.NewPath("spec"))
		if len(errs) > 0 {
			return fmt.Errorf("%s: %w", c.file, errs.ToAggregate())
		}
		simulations = append(simulations, plannedUnited(policy))
	}
	return c.print(simulations)
}

func plannedUnited(policy *united.Policy) simulation {
	var observed united.Observed
	for _, subset := range policy.Subsets { // all clusters answer
		namespace := cmp.Or(subset.ClusterNamespace, strings.Join(policy.ClusterNamespaces[:min(1, len(policy.ClusterNamespaces))], ""))
		observed.Clusters = append(observed.Clusters, sites.Cluster{Name: subset.Cluster, Namespace: namespace, Labels: policy.ClusterSelector, Reachable: true})
	}
	plan := policy.Plan(observed)
	s := simulation{Replicas: policy.Replicas, Unplaced: policy.Replicas}
	for i := range plan.Status.SubsetStatuses {
		is := &plan.Status.SubsetStatuses[i]
		place := simulatedPlace{Name: is.Name, Then: is.Replicas}
		if most := policy.Subsets[i].Max; most.IsSet {
			quota := most.Of(policy.Replicas)
			place.Quota = &quota
		}
		s.Subsets = append(s.Subsets, place)
		s.Unplaced -= is.Replicas
	}
	return s
}

// simulateApplied simulates a spread of the cluster.
func (c *simulateCommand) simulateApplied(ctx context.Context, connect func() (*console.Cluster, error), name string, sizes []int32) error {
	cluster, err := connect()
	if err != nil {
		return err
	}
	spread, err := cluster.GetSpread(ctx, name)
	if err != nil {
		return err
	}
	if _, errs := subset.Compile(spread, field.NewPath("spec")); len(errs) > 0 {
		return fmt.Errorf("WorkloadSpread %s: %w", name, errs.ToAggregate())
	}
	simulations, err := c.lookAndSimulate(ctx, cluster, spread, sizes)
	if err != nil {
		return err
	}
	return c.print(simulations)
}

// lookAndSimulate simulates each size, or the present one if there are none.
func (c *simulateCommand) lookAndSimulate(ctx context.Context, cluster *console.Cluster, spread *v1beta1.WorkloadSpread, sizes []int32) ([]simulation, error) {
	prices, err := c.costs.Prices()
	if err != nil {
		return nil, err
	}
	spread.Namespace = cmp.Or(spread.Namespace, cluster.Namespace)
	spread.UID, spread.Generation = "simulated", 1
	e, err := look(ctx, cluster)
	if err != nil {
		return nil, err
	}
	simulations, d, err := simulateOn(ctx, e, spread, sizes)
	if err != nil || !c.costs.Shown() {
		return simulations, err
	}
	podPrices := d.Policy.PodPrices(prices, e.Nodes, report.RequestsOf(d.Pods))
	for i := range simulations {
		for j := range simulations[i].Subsets {
			if !math.IsNaN(podPrices[j]) {
				simulations[i].Subsets[j].PodPrice = &podPrices[j]
			}
		}
	}
	return simulations, nil
}

func simulateOn(ctx context.Context, e *Engine, spread *v1beta1.WorkloadSpread, sizes []int32) ([]simulation, *Divided, error) {
	e.Suppose(spread)
	winner, err := e.Lineage.Winner(ctx, spread.Namespace, workload.TargetOf(spread))
	if err != nil {
		return nil, nil, err
	}
	if winner != nil && winner.Name != spread.Name {
		return nil, nil, fmt.Errorf("WorkloadSpread %s divides %s/%s already; simulate a change of that one", winner.Name, spread.Spec.TargetReference.Kind, spread.Spec.TargetReference.Name)
	}
	d, err := e.Divide(ctx, spread, e.Lineage.Compiled(spread))
	if err != nil {
		return nil, nil, err
	}
	if len(sizes) == 0 {
		sizes = []int32{d.Replicas}
	}
	var simulations []simulation
	for _, size := range sizes {
		s, err := onCluster(ctx, e, d, size)
		if err != nil {
			return nil, nil, err
		}
		simulations = append(simulations, *s)
	}
	return simulations, d, nil
}

func (c *simulateCommand) print(simulations []simulation) error {
	if done, err := c.output.Structured(c.out, "Simulation", simulations); done {
		return err
	}
	for i := range simulations {
		s := &simulations[i]
		rows := [][]string{{fmt.Sprintf("%d replicas", s.Replicas), "KEPT", "THEN", "QUOTA"}}
		if c.costs.Shown() {
			rows[0] = append(rows[0], "COST KEPT", "COST THEN")
		}
		for _, in := range s.Subsets {
			row := []string{"  " + in.Name, strconv.Itoa(int(in.Now)), strconv.Itoa(int(in.Then)), subset.FormatQuota(ptr.Deref(in.Quota, subset.NoLimit))}
			switch {
			case !c.costs.Shown():
			case in.PodPrice == nil:
				row = append(row, "-", "-")
			default:
				row = append(row, report.Price(float64(in.Now)**in.PodPrice), report.Price(float64(in.Then)**in.PodPrice))
			}
			rows = append(rows, row)
		}
		if err := c.output.Table(c.out, rows); err != nil {
			return err
		}
		var text strings.Builder
		if s.Unplaced > 0 {
			fmt.Fprintf(&text, "  %s in no subset\n", report.Pods(s.Unplaced, "runs", "run"))
		}
		if s.Waiting > 0 {
			fmt.Fprintf(&text, "  %s\n", report.Pods(s.Waiting, "waits", "wait"))
		}
		if s.Why != "" {
			fmt.Fprintf(&text, "  no node: %s\n", s.Why)
		}
		if s.Note != "" {
			fmt.Fprintf(&text, "  note: %s\n", s.Note)
		}
		for _, move := range s.Moves {
			fmt.Fprintf(&text, "  would be moved: %s, %s\n", move.Pod, cmp.Or(move.From, "in no subset"))
		}
		if _, err := io.WriteString(c.out, text.String()); err != nil {
			return err
		}
	}
	return nil
}
