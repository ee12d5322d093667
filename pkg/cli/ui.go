package cli

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/ui"
)

// uiCommand is "kubectl berth ui".
type uiCommand struct {
	out, errOut   io.Writer
	address       string
	port          uint16
	allNamespaces bool
}

func newUI(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &uiCommand{out: streams.Out, errOut: streams.ErrOut}
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page that shows nodes, pods and spreads live",
		Example: `  kubectl berth ui
  kubectl berth ui -A --port 8900`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			ctrl.SetLogger(logr.Discard()) // the page shows errors
			return c.run(ctx, flags)
		},
	}
	cmd.Flags().StringVar(&c.address, "address", "127.0.0.1", "Address to listen on. Whoever has the printed address, or can read the network, sees the pods, nodes and spreads that you may see.")
	cmd.Flags().Uint16Var(&c.port, "port", 0, "Port to listen on; 0 picks a free one.")
	cmd.Flags().BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, "Pods and spreads of all namespaces.")
	return cmd
}

func (c *uiCommand) run(ctx context.Context, flags *console.Flags) error {
	config, err := flags.Config().ClientConfig()
	if err != nil {
		return err
	}
	title, err := c.title(flags, config.Host)
	if err != nil {
		return err
	}
	secret, err := secretOf(config, c.port)
	if err != nil {
		return err
	}
	page, err := ui.Open(ctx, config, ui.Options{Title: title, Secret: secret})
	if err != nil {
		if ctx.Err() != nil {
			return nil // interrupted before the page was ready
		}
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(c.address, strconv.Itoa(int(c.port))))
	if err != nil {
		return fmt.Errorf("%w; use another --address or --port", err)
	}
	if warning := ui.Warning(listener); warning != "" {
		fmt.Fprintln(c.errOut, warning)
	}
	what := "namespace " + title.Namespace
	if title.Namespace == "" {
		what = "all namespaces"
	}
	fmt.Fprintf(c.out, "%s of %s at %s\nPress Ctrl-C to end it.\n", what, title.Cluster, ui.URL(listener)+secret+"/")
	return page.Serve(ctx, listener)
}

// secretOf is a path that other users of the machine cannot guess. With a fixed port it is the same after a restart, so
// that an open page finds its server again: it comes from the key, token or password of the user. If the kubeconfig has
// none, or with any free port, it is random.
func secretOf(config *rest.Config, port uint16) (string, error) {
	config = rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return "", err
	}
	key := slices.Concat(config.KeyData, []byte(config.BearerToken), []byte(config.Password))
	if port == 0 || len(key) == 0 {
		return strings.ToLower(rand.Text()), nil
	}
	sum := hmac.New(sha256.New, key)
	fmt.Fprintf(sum, "the page of kubectl berth at port %d", port)
	return hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

// title names the cluster by its context, or by its address if there is no context.
func (c *uiCommand) title(flags *console.Flags, host string) (ui.Title, error) {
	context, err := flags.Context()
	title := ui.Title{Cluster: cmp.Or(context, host)}
	if err != nil || c.allNamespaces {
		return title, err
	}
	title.Namespace, _, err = flags.Config().Namespace()
	return title, err
}
