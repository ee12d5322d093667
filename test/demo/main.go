// Command demo plays the two best-known cases of WorkloadSpread on a sandbox, or with -federation a FederatedReplicaSet on a hub with three members, step
// by step. It compares every layout with the expected layout. A page shows the cluster meanwhile. The command ends with "demo: ok". If a layout differs, it prints the difference and the directory of the logs, and
// exits with 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/internal/scenario"
	"github.com/berth-project/berth/pkg/ui"
	"github.com/berth-project/berth/test/harness"
	"github.com/berth-project/berth/test/scenarios"
)

// cases of the demo.
var cases = []string{"normal-then-elastic", "one-one-three"}

// flags give users time to look at the page.
type flags struct {
	// pause is the time to wait after each step. The default is 0.
	pause time.Duration
	// stay keeps the last case running until an interrupt.
	stay bool
	// federation plays a FederatedReplicaSet.
	federation bool
}

func main() {
	var f flags
	flag.DurationVar(&f.pause, "pause", 0, "how long to wait after each step, to look at the page")
	flag.BoolVar(&f.stay, "stay", false, "leave the last case in place until interrupted")
	flag.BoolVar(&f.federation, "federation", false, "play a FederatedReplicaSet on a hub with three members")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, f)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: failed: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("demo: ok")
}

func run(ctx context.Context, f flags) (err error) {
	dir, err := os.MkdirTemp("", "berth-demo-")
	if err != nil {
		return err
	}
	logs, err := logTo(filepath.Join(dir, "demo.log"))
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() {
		err = errors.Join(err, logs.Close())
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\nlogs are in %s", err, dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if f.federation {
		return runFederation(ctx, dir, f)
	}
	cluster, err := harness.Start(ctx, sandbox.Config{Name: "demo", Dir: dir, Progress: os.Stdout}, product.Options{})
	if err != nil {
		return err
	}
	defer cluster.Sandbox.Stop()
	servePage(ctx, cluster.Sandbox)
	for i, name := range cases {
		if err := play(ctx, cluster, name, f, f.stay && i == len(cases)-1); err != nil {
			return err
		}
	}
	return nil
}

// logTo sends the logs of libraries and the warnings of the API server to a file, so that the output of the demo stays readable.
func logTo(path string) (*os.File, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(file))))
	ctrl.SetLogger(klog.Background())
	log.SetOutput(file)
	return file, nil
}

// servePage serves the page until the context ends. If it cannot, it prints the reason, and the demo continues without the page.
func servePage(ctx context.Context, s *sandbox.Sandbox) {
	page, err := ui.Open(ctx, product.PageConfig(s.RESTConfig()), ui.Options{Title: ui.Title{Cluster: "the demo"}})
	if err != nil {
		fmt.Printf("there is no page to see it on: %v\n", err)
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Printf("there is no page to see it on: %v\n", err)
		return
	}
	fmt.Printf("see it at %s\n", ui.URL(listener))
	go func() {
		if err := page.Serve(ctx, listener); err != nil {
			fmt.Printf("the page has ended: %v\n", err)
		}
	}()
}

func play(ctx context.Context, cluster *harness.Cluster, name string, f flags, stay bool) error {
	parsed, err := scenarios.Get(name)
	if err != nil {
		return err
	}
	fmt.Printf("\n=== %s\n%s\n\n", name, parsed.Intent)
	p, err := (&scenario.Shown{Out: os.Stdout, Pause: f.pause}).Play(ctx, cluster.Sandbox, parsed)
	if p == nil {
		return err
	}
	if err == nil && stay {
		fmt.Println("press Ctrl-C to end it")
		pause(ctx, nil)
	}
	return errors.Join(err, p.End(context.WithoutCancel(ctx)))
}

// pause returns when the channel sends or the context ends. A nil channel never sends.
func pause(ctx context.Context, then <-chan time.Time) {
	select {
	case <-then:
	case <-ctx.Done():
	}
}
