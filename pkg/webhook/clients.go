package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"time"

	certutil "k8s.io/client-go/util/cert"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/berth-project/berth/pkg/endpoint"
)

// newServer makes a server, and the function by which handlers are registered with it, so that they answer the API server only: whoever asks at a path that
// is answered or, with authorities of client certificates, whoever shows one.
//
// A client that shows a certificate of another authority gets no connection. One without a certificate gets one: readiness probes dial the server, and
// must find it without any.
func newServer(opts Options, answered func(ctx context.Context, path string) bool) (web ctrlwebhook.Server, register func(path string, hook http.Handler), err error) {
	handlers := http.NewServeMux()
	known := &knownClients{handlers: handlers, answered: answered}
	options := ctrlwebhook.Options{Host: opts.Host, Port: opts.Port, CertDir: opts.CertDir, CertName: certFile, KeyName: keyFile, WebhookMux: http.NewServeMux()}
	options.WebhookMux.Handle("/", known)
	if opts.ClientCA != "" {
		authorities, err := certutil.NewPool(opts.ClientCA)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the authorities of the webhooks' clients: %w", err)
		}
		options.TLSOpts = append(options.TLSOpts, func(config *tls.Config) {
			config.ClientCAs, config.ClientAuth = authorities, tls.VerifyClientCertIfGiven
		})
		known.certified = true
	}
	// A server that is never started, because Register is what measures handlers.
	return ctrlwebhook.NewServer(options), ctrlwebhook.NewServer(ctrlwebhook.Options{WebhookMux: handlers}).Register, nil
}

// knownClients hands reviews of known clients on to their handlers. It reads nothing of what others send.
type knownClients struct {
	handlers http.Handler
	// certified means that clients are known by their certificates, which the connection has verified, and not by where they ask.
	certified bool
	answered  func(ctx context.Context, path string) bool
}

func (k *knownClients) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler, refusal := endpoint.HandlerOf(r.URL.Path), 0
	switch {
	case handler == "":
		refusal = http.StatusNotFound
	case k.certified && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0):
		refusal = http.StatusUnauthorized
	case !k.certified && !k.answered(r.Context(), r.URL.Path):
		refusal = http.StatusNotFound
	}
	if refusal != 0 {
		// A server reads what is left of a request, to use the connection again. Not here: no read waits, and the connection ends.
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // if it cannot, no more is lost than a read
		w.Header().Set("Connection", "close")
		w.WriteHeader(refusal)
		return
	}
	review := *r
	review.URL = &url.URL{Path: handler, RawQuery: r.URL.RawQuery}
	k.handlers.ServeHTTP(w, &review)
}
