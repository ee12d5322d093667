package webhook

import (
	"crypto/tls"
	"fmt"
	"net/http"

	certutil "k8s.io/client-go/util/cert"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

// newServer makes a server, and the function by which handlers are registered with it, so that they answer known clients only.
//
// A client that shows a certificate of another authority gets no connection. One without a certificate gets one: readiness probes dial the server, and
// must find it without any.
func newServer(opts Options) (web ctrlwebhook.Server, register func(path string, hook http.Handler), err error) {
	options := ctrlwebhook.Options{Host: opts.Host, Port: opts.Port, CertDir: opts.CertDir, CertName: certFile, KeyName: keyFile}
	if opts.ClientCA == "" {
		web = ctrlwebhook.NewServer(options)
		return web, web.Register, nil
	}
	authorities, err := certutil.NewPool(opts.ClientCA)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the authorities of the webhooks' clients: %w", err)
	}
	options.TLSOpts = append(options.TLSOpts, func(config *tls.Config) {
		config.ClientCAs, config.ClientAuth = authorities, tls.VerifyClientCertIfGiven
	})
	web = ctrlwebhook.NewServer(options)
	return web, func(path string, hook http.Handler) { web.Register(path, knownClients(hook)) }, nil
}

// knownClients answers those who have shown a certificate, which the connection has verified. It reads nothing of what others send.
func knownClients(hook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		hook.ServeHTTP(w, r)
	})
}
