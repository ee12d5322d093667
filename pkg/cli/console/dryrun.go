package console

import (
	"errors"
	"slices"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DryRun is the flag --dry-run of kubectl.
type DryRun string

const (
	DryRunNone DryRun = "none"
	// DryRunClient sends no write.
	DryRunClient DryRun = "client"
	// DryRunServer has the API server try each write.
	DryRunServer DryRun = "server"
)

// AddTo adds the flag to those of a command. Its default is none.
func (d *DryRun) AddTo(flags *pflag.FlagSet) {
	*d = DryRunNone
	flags.Var(d, "dry-run", `Must be "none", "server" (the API server tries each write) or "client" (no write is sent).`)
}

var _ pflag.Value = (*DryRun)(nil)

func (d *DryRun) String() string { return string(*d) }
func (d *DryRun) Type() string   { return "string" }

// Set implements pflag.Value.
func (d *DryRun) Set(text string) error {
	if !slices.Contains([]DryRun{DryRunNone, DryRunClient, DryRunServer}, DryRun(text)) {
		return errors.New(`must be "none", "server", or "client"`)
	}
	*d = DryRun(text)
	return nil
}

// Is is true for a dry run of either kind.
func (d *DryRun) Is() bool { return *d == DryRunClient || *d == DryRunServer }

// Writer is through what a command writes. With DryRunServer every write is a dry run. With DryRunClient the command
// must not write.
func (d *DryRun) Writer(cluster *Cluster) client.Client {
	if *d == DryRunServer {
		return client.NewDryRunClient(cluster)
	}
	return cluster
}
