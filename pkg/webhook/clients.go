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

// protocols are those of the webhook servers. Over HTTP/2 an API server sends all reviews through one connection: if the replica at its end dies without a word, all
// of them fail until the API server finds out, 45 s later. Over HTTP/1.1 a review that fails closes its connection, and the next one may reach another replica.
var protocols = []string{"http/1.1"}

// newServer makes a server and a function that registers handlers with it. The handlers answer once synced is true, and only the API server. It is
// recognized by a client certificate, if authorities are given, and otherwise by the path that it calls.
//
// Conversion is answered from the start, because filling the caches may need it. It is answered to everybody: it reads and writes nothing, and an API server
// presents no certificate there.
//
// A client with a certificate of another authority gets no connection. A client without a certificate gets one, because readiness probes connect
// without a certificate.
func newServer(opts Options, synced func() bool, knows func(ctx context.Context, path string) bool) (web ctrlwebhook.Server, register func(path string, hook http.Handler), err error) {
	handlers := http.NewServeMux()
	known := &knownClients{handlers: handlers, synced: synced, knows: knows}
	options := ctrlwebhook.Options{Host: opts.Host, Port: opts.Port, CertDir: opts.CertDir, CertName: endpoint.CertificateFile, KeyName: endpoint.CertificateKeyFile, WebhookMux: http.NewServeMux()}
	options.WebhookMux.Handle("/", known)
	options.WebhookMux.Handle(endpoint.Conversion, endpoint.ConversionHandler())
	options.TLSOpts = append(options.TLSOpts, func(config *tls.Config) { config.NextProtos = protocols })
	if opts.TLS != nil {
		options.TLSOpts = append(options.TLSOpts, opts.TLS)
	}
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
	// The second server is never started: its Register wraps handlers with metrics.
	return ctrlwebhook.NewServer(options), ctrlwebhook.NewServer(ctrlwebhook.Options{WebhookMux: handlers}).Register, nil
}

// knownClients passes reviews of known clients to their handlers. It does not read requests of others.
type knownClients struct {
	handlers http.Handler
	// certified is true if clients are recognized by their certificates, which the connection has verified, and not by their paths.
	certified bool
	synced    func() bool
	// knows is true for the path of a webhook that the API server calls. It may wait for a moment.
	knows func(ctx context.Context, path string) bool
}

func (k *knownClients) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler, refusal := endpoint.HandlerOf(r.URL.Path), 0
	switch {
	case handler == "":
		refusal = http.StatusNotFound
	case k.certified && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0):
		refusal = http.StatusUnauthorized
	case !k.synced():
		refusal = http.StatusServiceUnavailable
	case !k.certified && !k.knows(r.Context(), r.URL.Path):
		refusal = http.StatusNotFound
	}
	if refusal != 0 {
		// A server reads the rest of a request to use the connection again. This one must not: the deadline ends the read at once, and the connection
		// ends.
		_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // if it fails, the server reads once more than it should
		w.Header().Set("Connection", "close")
		w.WriteHeader(refusal)
		return
	}
	review := *r
	review.URL = &url.URL{Path: handler, RawQuery: r.URL.RawQuery}
	k.handlers.ServeHTTP(w, &review)
}
