package main

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/ui"
)

// noPage is the value of --page for no page.
const noPage = "none"

// listenForPage takes the address before anything starts, so that an address in use fails early. It returns nil if
// there is no page.
func listenForPage(ctx context.Context, address string) (net.Listener, error) {
	if address == noPage {
		return nil, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--page %s: %w", address, err)
	}
	return listener, nil
}

// servePage serves the page of a sandbox until the context ends, and returns its URL once it can be opened.
func servePage(ctx context.Context, out io.Writer, listener net.Listener, name string, s *sandbox.Sandbox) (url string, err error) {
	ctrl.SetLogger(logr.Discard()) // the page shows errors
	page, err := ui.Open(ctx, product.PageConfig(s.RESTConfig()), ui.Options{Title: ui.Title{Cluster: "sandbox " + name}})
	if err != nil {
		return "", fmt.Errorf("opening the page: %w", err)
	}
	if warning := ui.Warning(listener); warning != "" {
		fmt.Fprintln(out, warning)
	}
	go func() {
		if err := page.Serve(ctx, listener); err != nil {
			fmt.Fprintf(out, "the page of sandbox %q has ended: %v\n", name, err)
		}
	}()
	return ui.URL(listener), nil
}
