package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berth-project/berth/cmd/sandbox/federated"
	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
)

// upFlags are the flags of up as they were given.
type upFlags struct {
	name            string
	nodes           int
	kubelets        int
	zones           []string
	nodeCPU         string
	nodeMemory      string
	kubeconfig      string
	binDir          string
	detach          bool
	supervise       bool
	without         []string
	replicas        map[string]int
	members         int
	sidecarSets     bool
	spreadRules     bool
	gangs           bool
	schedulerConfig string
	page            string
	open            bool
}

func upCommand() *cobra.Command {
	var flags upFlags
	command := &cobra.Command{
		Use:   "up",
		Short: "Start a sandbox and run it until interrupted, or in the background with --detach",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			config, err := flags.config()
			if err == nil {
				err = checkMemory(thisMachine(), 1+flags.members)
			}
			if err != nil {
				return err
			}
			out := command.OutOrStdout()
			switch {
			case flags.open:
				return open(command.Context(), out, config, flags.page)
			case flags.supervise:
				return supervise(command.Context(), config, flags.members, flags.page)
			case flags.detach:
				return detach(command.Context(), out, config)
			default:
				return run(command.Context(), out, config, flags.members, flags.page, func(running, string) {
					fmt.Fprintf(out, "press Ctrl-C to stop it\n")
				})
			}
		},
	}
	set := command.Flags()
	addNameFlag(set, &flags.name)
	set.IntVar(&flags.nodes, "nodes", 30, "how many nodes")
	set.IntVar(&flags.kubelets, "kubelets", 0, "how many real nodes besides, whose containers run on this machine; they need root, and what 'make kubelet' makes")
	set.StringSliceVar(&flags.zones, "zones", sandbox.DefaultZones(), "zones to distribute the nodes over")
	set.StringVar(&flags.nodeCPU, "node-cpu", sandbox.DefaultNodeCPU, "CPUs of a node")
	set.StringVar(&flags.nodeMemory, "node-memory", sandbox.DefaultNodeMemory, "memory of a node")
	set.StringVar(&flags.kubeconfig, "kubeconfig", "",
		"where to write the kubeconfig (default .sandbox/kubeconfig, or .sandbox/NAME.kubeconfig for another name)")
	set.StringVar(&flags.binDir, "bin-dir", "", binDirUsage)
	set.BoolVar(&flags.detach, "detach", false, "run in the background and return when everything is ready")
	set.StringSliceVar(&flags.without, "without", nil, "components not to start, for instance scheduler,controller")
	set.StringToIntVar(&flags.replicas, "replicas", nil, "replicas of components, for instance scheduler=2")
	set.IntVar(&flags.members, "members", 0,
		"start a federation instead: a hub, and so many members with nodes of their own; the kubeconfig has the contexts hub, member-1 and so on")
	set.BoolVar(&flags.sidecarSets, "sidecar-sets", false, "serve SidecarSets")
	set.BoolVar(&flags.spreadRules, "spread-rules", false, "serve SpreadRules and ClusterSpreadRules")
	set.BoolVar(&flags.gangs, "gangs", false, "schedule pod groups, which needs the programs of Kubernetes 1.37: make LINE=1.37 tools build")
	set.StringVar(&flags.schedulerConfig, "scheduler-config", "",
		"KubeSchedulerConfiguration for the scheduler (default the one in manifests/scheduler)")
	set.StringVar(&flags.page, "page", "127.0.0.1:0", "address of the page that shows the sandbox live; port 0 picks a free one; or "+noPage)
	set.BoolVar(&flags.open, "open", false, "play a first case on the sandbox, and open the page in a browser if there is one")
	set.BoolVar(&flags.supervise, superviseFlag, false, "be the process that --detach leaves in the background")
	if err := set.MarkHidden(superviseFlag); err != nil {
		panic(err) // the flag is defined one line above
	}
	return command
}

// config returns the sandbox that the flags ask for.
func (f upFlags) config() (sandbox.Config, error) {
	if err := sandbox.CheckName(f.name); err != nil {
		return sandbox.Config{}, fmt.Errorf("--%w", err)
	}
	if f.nodes < 0 {
		return sandbox.Config{}, fmt.Errorf("--nodes %d: must not be negative", f.nodes)
	}
	if err := errors.Join(f.checkMembers(), f.checkOpen()); err != nil {
		return sandbox.Config{}, err
	}
	cpu, err := positiveQuantity("--node-cpu", f.nodeCPU)
	if err != nil {
		return sandbox.Config{}, err
	}
	memory, err := positiveQuantity("--node-memory", f.nodeMemory)
	if err != nil {
		return sandbox.Config{}, err
	}
	options := product.Options{Replicas: f.replicas, SidecarSets: f.sidecarSets, SpreadRules: f.spreadRules, Gangs: f.gangs}
	if f.schedulerConfig != "" {
		if options.SchedulerConfig, err = os.ReadFile(f.schedulerConfig); err != nil {
			return sandbox.Config{}, fmt.Errorf("--scheduler-config: %w", err)
		}
	}
	config := sandbox.Config{
		Name:       f.name,
		Dir:        sandboxDir(f.name),
		BinDir:     f.binDir,
		Kubeconfig: f.kubeconfig,
		Nodes:      f.nodes,
		Kubelets:   f.kubelets,
		Zones:      f.zones,
		NodeCPU:    cpu,
		NodeMemory: memory,
		Without:    f.without,
	}
	if config.Kubeconfig == "" {
		config.Kubeconfig = defaultKubeconfig(f.name)
	}
	if config.BinDir == "" {
		config.BinDir = defaultBinDir()
	}
	if f.members > 0 {
		return config, nil // composed for each cluster
	}
	if f.gangs {
		if err := checkGangs(config.BinDir); err != nil {
			return sandbox.Config{}, err
		}
	}
	return product.Compose(config, options)
}

// checkMembers refuses what a federation does not go by.
func (f upFlags) checkMembers() error {
	switch {
	case f.members < 0:
		return fmt.Errorf("--members %d: must not be negative", f.members)
	case f.members > 0 && (len(f.without) > 0 || len(f.replicas) > 0 || f.schedulerConfig != "" || f.sidecarSets || f.spreadRules || f.gangs || f.kubelets != 0):
		return errors.New("--members: a federation has fixed components; leave out --without, --replicas, --scheduler-config, --sidecar-sets, --spread-rules, --gangs and --kubelets")
	}
	return nil
}

// checkGangs refuses programs of a Kubernetes without gangs.
func checkGangs(binDir string) error {
	said, err := exec.Command(filepath.Join(binDir, "kube-apiserver"), "--version").Output()
	if err != nil {
		return fmt.Errorf("--gangs: asking kube-apiserver for its version: %w", err)
	}
	is, err := version.ParseGeneric(strings.TrimPrefix(strings.TrimSpace(string(said)), "Kubernetes "))
	if err != nil {
		return fmt.Errorf("--gangs: reading the version of kube-apiserver: %w", err)
	}
	if is.LessThan(version.MajorMinor(1, 37)) {
		return fmt.Errorf("--gangs: the programs in %s are of Kubernetes %s; run make LINE=1.37 tools build, and then bin/1.37/berth-sandbox", shortPath(binDir), is)
	}
	return nil
}

// checkOpen refuses what nobody could look at.
func (f upFlags) checkOpen() error {
	if f.open && (f.detach || f.supervise || f.members > 0 || f.page == noPage || len(f.without) > 0) {
		return errors.New("--open: leave out --detach, --members, --without and --page none")
	}
	return nil
}

const binDirUsage = "where the binaries are (default beside this one, or else bin)"

func positiveQuantity(flag, value string) (resource.Quantity, error) {
	quantity, err := resource.ParseQuantity(value)
	if err != nil || quantity.Sign() <= 0 {
		return quantity, fmt.Errorf("%s %q: must be a positive quantity such as 32 or 256Gi", flag, value)
	}
	return quantity, nil
}

func defaultKubeconfig(name string) string {
	if name == sandbox.DefaultName {
		return filepath.Join(baseDir, "kubeconfig")
	}
	return filepath.Join(baseDir, name+".kubeconfig")
}

// defaultBinDir is the directory of this binary, if the control plane is there too.
func defaultBinDir() string {
	if self, err := os.Executable(); err == nil {
		if dir := filepath.Dir(self); fileExists(filepath.Join(dir, "kube-apiserver")) {
			return dir
		}
	}
	return sandbox.DefaultBinDir
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// running is a sandbox or a federation.
type running interface {
	Status() []sandbox.ComponentStatus
	Changed() <-chan struct{}
	Stop()
}

// shownBy is the sandbox that the page shows.
func shownBy(s running) *sandbox.Sandbox {
	if f, is := s.(*federated.Federation); is {
		return f.Hub()
	}
	return s.(*sandbox.Sandbox)
}

// run starts the sandbox, or a federation with that many members, serves its page, keeps its state file current, and
// stops it when the context ends. It calls ready once, with the URL of the page, which is empty if there is none.
func run(ctx context.Context, out io.Writer, config sandbox.Config, members int, pageAddress string, ready func(s running, page string)) error {
	record, err := takeRecord(config.Name)
	if err != nil {
		return err
	}
	defer record.release()
	listener, err := listenForPage(ctx, pageAddress)
	if err != nil {
		return err
	}
	if listener != nil {
		defer listener.Close()
	}

	config.Progress = out
	var s running
	if members > 0 {
		s, err = startFederation(ctx, config, members)
	} else {
		s, err = start(ctx, config)
	}
	if err != nil {
		return err
	}
	defer s.Stop()
	if err := record.write(s); err != nil {
		return fmt.Errorf("writing the state file: %w", err)
	}
	if listener != nil {
		if record.page, err = servePage(ctx, out, listener, config.Name, shownBy(s)); err != nil {
			return err
		}
		fmt.Fprintf(out, "see it at %s\n", record.page)
	}
	use := "get nodes"
	if members > 0 {
		use = "get clusterprofiles -A"
	}
	fmt.Fprintf(out, "sandbox %q is up, use it with:\n  %s --kubeconfig %s %s\n",
		config.Name, shortPath(filepath.Join(config.BinDir, "kubectl")), shortPath(config.Kubeconfig), use)
	ready(s, record.page)

	for {
		changed := s.Changed()
		if err := record.write(s); err != nil {
			return fmt.Errorf("writing the state file: %w", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			fmt.Fprintf(out, "stopping sandbox %q\n", config.Name)
			return nil
		}
	}
}

func start(ctx context.Context, config sandbox.Config) (*sandbox.Sandbox, error) {
	s, err := sandbox.Start(ctx, config)
	return s, orInterrupted(ctx, err)
}

func orInterrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && err != nil {
		return errors.New("interrupted while starting: nothing is left running")
	}
	return err
}

// startFederation writes the kubeconfig of all clusters, too.
func startFederation(ctx context.Context, config sandbox.Config, members int) (*federated.Federation, error) {
	f, err := federated.Start(ctx, config, members)
	if err != nil {
		return nil, orInterrupted(ctx, err)
	}
	content, err := f.Kubeconfig()
	if err == nil {
		err = os.WriteFile(config.Kubeconfig, content, 0o600)
	}
	if err != nil {
		f.Stop()
		return nil, fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return f, nil
}

// shortPath returns the path relative to the working directory if it is below it.
func shortPath(path string) string {
	workDir, err := os.Getwd()
	if err != nil {
		return path
	}
	if !filepath.IsAbs(path) {
		return path
	}
	relative, err := filepath.Rel(workDir, path)
	if err != nil || strings.HasPrefix(relative, "..") {
		return path
	}
	return relative
}
