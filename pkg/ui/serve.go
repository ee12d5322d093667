package ui

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

const (
	// heartbeatInterval is how often a browser gets a heartbeat. The page shows itself as stale after two and a half intervals without one.
	heartbeatInterval = 5 * time.Second
	// writeTimeout is how long a browser may take to read a message. A slower one is disconnected, and reconnects by itself.
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

// Handler serves the page to requests for an IP address, for localhost, or for one of the names. This stops DNS rebinding: the page of an attacker
// whose name points here sends requests for that name, and gets nothing.
func (p *Page) Handler(names ...string) http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":      {"index.html", "text/html; charset=utf-8"},
		"/page.js":  {"page.js", "text/javascript; charset=utf-8"},
		"/page.css": {"page.css", "text/css; charset=utf-8"},
	} {
		content, err := files.ReadFile("page/" + file.name)
		if err != nil {
			panic(err) // it is compiled in
		}
		mux.HandleFunc("GET "+path, serveFile(content, file.kind))
	}
	mux.HandleFunc("GET /events", fromPage(p.serveEvents))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range securityHeaders {
			w.Header().Set(name, value)
		}
		switch {
		case !mayAsk(r.Host, names):
			http.Error(w, fmt.Sprintf("this page is not served as %q; use the address that the command printed", r.Host), http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "this page is read-only; use GET", http.StatusMethodNotAllowed)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// mayAsk is true for a host that no name server can have pointed here.
func mayAsk(host string, names []string) bool {
	name := host
	if split, _, err := net.SplitHostPort(host); err == nil {
		name = split
	}
	name = strings.TrimSuffix(strings.ToLower(strings.Trim(name, "[]")), ".")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	for _, known := range names {
		if name == strings.ToLower(known) {
			return true
		}
	}
	return false
}

func serveFile(content []byte, kind string) http.HandlerFunc {
	hash := sha256.Sum256(content)
	tag := `"` + hex.EncodeToString(hash[:8]) + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache") // the next start may serve another version
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(content) // the browser may be gone
	}
}

// fromPage refuses requests that a browser sends for another page, and answers a request for a head without work.
func fromPage(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			http.Error(w, "only the page itself may read this; open the page", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodHead {
			serve(w, r)
		}
	}
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
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // for a proxy in between
	if err := p.writeEvents(r.Context(), w, reader); err != nil && r.Context().Err() == nil {
		klog.FromContext(r.Context()).V(2).Info("Cut a browser off", "browser", r.RemoteAddr, "reason", err)
	}
}

func (p *Page) writeEvents(ctx context.Context, w http.ResponseWriter, reader *reader) error {
	control := http.NewResponseController(w)
	write := func(frames ...frame) error {
		for _, f := range frames {
			if err := control.SetWriteDeadline(p.clock.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return err
			}
			if _, err := w.Write(f); err != nil {
				return err
			}
		}
		return control.Flush()
	}
	if err := write(frame("retry: 1000\n\n")); err != nil { // a disconnected browser reconnects after a second
		return err
	}
	if err := p.writeHeartbeat(write); err != nil {
		return err
	}
	ticker := p.clock.NewTicker(heartbeatInterval)
	defer ticker.Stop()
	for {
		select {
		case <-reader.wake:
			frames, err := p.stream.take(reader)
			if err != nil {
				return err
			}
			if err := write(frames...); err != nil {
				return err
			}
		case <-ticker.C():
			if err := p.writeHeartbeat(write); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Page) writeHeartbeat(write func(...frame) error) error {
	f, err := encode("beat", heartbeat{p.following.problem(), p.clock.Now()})
	if err != nil {
		return err
	}
	return write(f)
}

// Serve serves the page on a listener until the context ends, and then returns nil. It returns an error if the cluster cannot be watched any more.
// Names are those of Handler. It closes the listener.
func (p *Page) Serve(ctx context.Context, listener net.Listener, names ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler := p.Handler(names...)
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
