package ui

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

const (
	// heartbeatInterval is how often a browser gets a heartbeat. The page shows itself as stale after two and a half
	// intervals without one.
	heartbeatInterval = 5 * time.Second
	// writeTimeout is how long a browser may take to read a message. A slower one is disconnected, and reconnects by
	// itself.
	writeTimeout = 30 * time.Second
	// readHeaderTimeout is how long the header of a request may take to arrive.
	readHeaderTimeout = 10 * time.Second
	// idleTimeout is how long a connection without a request stays open.
	idleTimeout = 2 * time.Minute
)

//go:embed page
var files embed.FS

// securityHeaders forbid content from elsewhere, and showing the page in a frame.
var securityHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options":       "nosniff",
	"Referrer-Policy":              "no-referrer",
	"Cache-Control":                "no-store", // the next start may serve another version
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Opener-Policy":   "same-origin",
}

// heartbeat is a heartbeat for browsers.
type heartbeat struct {
	// Trouble is why the page may be out of date. Empty if it is not.
	Trouble string `json:"trouble"`
	// Now is the time of the server, to which the browser counts down.
	Now time.Time `json:"now"`
}

// Handler serves the page, which cannot be changed.
func (p *Page) Handler() http.Handler {
	content, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // it is compiled in
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(content))
	mux.HandleFunc("GET /events", p.serveEvents)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range securityHeaders {
			w.Header().Set(name, value)
		}
		mux.ServeHTTP(w, r)
	})
}

// serveEvents sends one browser what changes, until the browser or the page ends.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	reader, err := p.stream.join()
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer p.stream.leave(reader)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for a proxy in between
	if err := p.writeEvents(r.Context(), w, reader); err != nil && r.Context().Err() == nil {
		klog.FromContext(r.Context()).V(2).Info("Cut a browser off", "browser", r.RemoteAddr, "reason", err)
	}
}

func (p *Page) writeEvents(ctx context.Context, w http.ResponseWriter, reader <-chan frame) error {
	control := http.NewResponseController(w)
	ticker := p.clock.NewTicker(heartbeatInterval)
	defer ticker.Stop()
	beat, err := p.beat()
	next := append(frame("retry: 1000\n\n"), beat...) // a disconnected browser reconnects after a second
	for err == nil {
		if err := control.SetWriteDeadline(p.clock.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if _, err := w.Write(next); err != nil {
			return err
		}
		if err := control.Flush(); err != nil {
			return err
		}
		select {
		case f, keepsUp := <-reader:
			if !keepsUp {
				return errors.New("it does not keep up")
			}
			next = f
		case <-ticker.C():
			next, err = p.beat()
		case <-ctx.Done():
			return nil
		}
	}
	return err
}

func (p *Page) beat() (frame, error) {
	trouble, _ := p.trouble.Load().(string)
	return encode("beat", heartbeat{trouble, p.clock.Now()})
}

// Serve serves the page on a listener until the context ends, and then returns nil. It returns an error if the cluster
// cannot be watched any more. It closes the listener.
func (p *Page) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler := p.Handler()
	if p.secret != "" {
		handler = http.StripPrefix("/"+p.secret, handler)
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		WriteTimeout:      writeTimeout, // events have their own
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx }, // so that streams end with the context
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("serving the page: %w", err)
	case <-p.ended:
		_ = server.Close()
		<-served
		if ctx.Err() != nil {
			return nil
		}
		return p.endedBy
	}
}

// Warning is what to tell the user who serves a page on this listener. Empty if only this machine can reach it.
func Warning(listener net.Listener) string {
	if address, ok := listener.Addr().(*net.TCPAddr); !ok || address.IP.IsLoopback() {
		return ""
	}
	return fmt.Sprintf("Others who reach %s may see what this page shows: it uses plain HTTP.", listener.Addr())
}

// URL of the page on a listener. For a listener on all addresses it is the URL on this machine.
func URL(listener net.Listener) string {
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return "http://" + listener.Addr().String() + "/"
	}
	host := address.IP.String()
	if address.IP.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, fmt.Sprint(address.Port)) + "/"
}
