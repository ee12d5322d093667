package webhook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/berth-project/berth/pkg/endpoint"
)

// authority signs client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) sign(t *testing.T, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// body tells whether anybody has read it.
type body struct {
	io.Reader
	read bool
}

func (b *body) Read(p []byte) (int, error) {
	b.read = true
	return b.Reader.Read(p)
}

const secretPath = "/secret" + endpoint.Pods

// served starts a server whose hook tells that it was asked. Strangers do not know the secret path.
func served(t *testing.T, clientCA string) (address string, trusted *x509.CertPool, asked *atomic.Bool) {
	t.Helper()
	return servedOnce(t, clientCA, func() bool { return true })
}

// servedOnce starts the same server, whose caches are full once synced is true.
func servedOnce(t *testing.T, clientCA string, synced func() bool, change ...func(*tls.Config)) (address string, trusted *x509.CertPool, asked *atomic.Bool) {
	t.Helper()
	dir := t.TempDir()
	serving, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, endpoint.CertificateFile), serving)
	write(t, filepath.Join(dir, endpoint.CertificateKeyFile), key)
	trusted = x509.NewCertPool()
	trusted.AppendCertsFromPEM(serving)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // finds a port
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	options := Options{Host: "127.0.0.1", Port: listener.Addr().(*net.TCPAddr).Port, CertDir: dir, ClientCA: clientCA}
	if len(change) > 0 {
		options.TLS = change[0]
	}
	web, register, err := newServer(options, synced,
		func(_ context.Context, path string) bool { return path == secretPath })
	if err != nil {
		t.Fatal(err)
	}
	asked = &atomic.Bool{}
	register(endpoint.Pods, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Store(true)
		if r.URL.Path != endpoint.Pods || r.URL.RawQuery != "timeout=2s" {
			t.Errorf("the hook is asked at %s", r.URL)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	started := make(chan error, 1)
	go func() { started <- web.Start(t.Context()) }()
	for web.StartedChecker()(nil) != nil { // which dials it
		select {
		case err := <-started:
			t.Fatal(err)
		default:
		}
	}
	return address, trusted, asked
}

func TestOnlyTheAPIServerIsAnswered(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	clientCA := write(t, filepath.Join(t.TempDir(), "clients.crt"), ours.pem())
	known := []tls.Certificate{ours.sign(t, x509.ExtKeyUsageClientAuth)}

	tests := map[string]struct {
		clientCA string
		with     []tls.Certificate
		path     string
		want     int // 0 if there is no connection
	}{
		"whoever knows the path":                       {path: secretPath, want: http.StatusOK},
		"whoever does not":                             {path: endpoint.Pods, want: http.StatusNotFound},
		"who guesses":                                  {path: "/guess" + endpoint.Pods, want: http.StatusNotFound},
		"who has half of it":                           {path: "/secret", want: http.StatusNotFound},
		"who has more than it":                         {path: "/secret" + secretPath, want: http.StatusNotFound},
		"who asks anywhere else":                       {path: "/", want: http.StatusNotFound},
		"whoever converts, but this is no review":      {path: endpoint.Conversion, want: http.StatusBadRequest},
		"who converts without a certificate":           {clientCA: clientCA, path: endpoint.Conversion, want: http.StatusBadRequest},
		"who converts below a secret":                  {path: "/secret" + endpoint.Conversion, want: http.StatusNotFound},
		"a certificate of the authority":               {clientCA: clientCA, with: known, path: secretPath, want: http.StatusOK},
		"a certificate, and no secret":                 {clientCA: clientCA, with: known, path: endpoint.Pods, want: http.StatusOK},
		"a certificate, and another secret":            {clientCA: clientCA, with: known, path: "/former" + endpoint.Pods, want: http.StatusOK},
		"a certificate, and nothing to ask":            {clientCA: clientCA, with: known, path: "/metrics", want: http.StatusNotFound},
		"the secret, where certificates are wanted":    {clientCA: clientCA, path: secretPath, want: http.StatusUnauthorized},
		"a stranger with a certificate":                {clientCA: clientCA, with: []tls.Certificate{theirs.sign(t, x509.ExtKeyUsageClientAuth)}, path: secretPath},
		"a server that is no client, of the authority": {clientCA: clientCA, with: []tls.Certificate{ours.sign(t, x509.ExtKeyUsageServerAuth)}, path: secretPath},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			address, trusted, asked := served(t, tc.clientCA)
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "localhost", Certificates: tc.with}, ForceAttemptHTTP2: true}
			defer transport.CloseIdleConnections()
			response, err := (&http.Client{Transport: transport}).Post("https://"+address+tc.path+"?timeout=2s", "application/json", strings.NewReader("{}"))
			if (err != nil) != (tc.want == 0) {
				t.Fatalf("got %v, %v", response, err)
			}
			if err == nil {
				_ = response.Body.Close()
				if response.StatusCode != tc.want {
					t.Errorf("got %s, want %d", response.Status, tc.want)
				}
			}
			if asked.Load() != (tc.want == http.StatusOK) {
				t.Errorf("the hook was asked: %t", asked.Load())
			}
		})
	}
}

func TestAnOlderVersionOfTLSThanTheLowestGetsNoConnection(t *testing.T) {
	address, trusted, _ := servedOnce(t, "", func() bool { return true }, func(config *tls.Config) { config.MinVersion = tls.VersionTLS13 })
	for version, answered := range map[uint16]bool{tls.VersionTLS12: false, tls.VersionTLS13: true} {
		connection, err := tls.Dial("tcp", address, &tls.Config{RootCAs: trusted, ServerName: "localhost", MaxVersion: version})
		if (err == nil) != answered {
			t.Errorf("%s: got %v", tls.VersionName(version), err)
		}
		if err == nil {
			_ = connection.Close()
		}
	}
}

// A connection that dies silently must take one review with it, and not all.
func TestReviewsShareNoConnection(t *testing.T) {
	address, trusted, _ := served(t, "")
	connection, err := tls.Dial("tcp", address, &tls.Config{RootCAs: trusted, ServerName: "localhost", NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if got := connection.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("the server speaks %q, want http/1.1", got)
	}
}

// TestAStrangersReviewIsNotRead: the answer comes, and the connection ends, without a byte of the review. A server may read what is left of a request to use
// the connection again.
func TestAStrangersReviewIsNotRead(t *testing.T) {
	address, trusted, _ := served(t, "")
	connection, err := tls.Dial("tcp", address, &tls.Config{RootCAs: trusted, ServerName: "localhost", NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if err := connection.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n", endpoint.Pods); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(connection)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 404 ") {
		t.Errorf("got %q, %v", answer, err)
	}
}

func TestAReviewWithoutACertificateIsNotRead(t *testing.T) {
	review := &body{Reader: strings.NewReader("{}")}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint.Pods, review)
	if err != nil {
		t.Fatal(err)
	}
	request.TLS = &tls.ConnectionState{}
	hook := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	(&knownClients{handlers: hook, certified: true}).ServeHTTP(discard{}, request)
	if review.read {
		t.Error("it was read")
	}
}

// discard is an answer that nobody sees.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

func TestAClientAuthorityThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	for name, file := range map[string]string{
		"no file":            filepath.Join(dir, "none"),
		"with nothing in it": write(t, filepath.Join(dir, "empty"), nil),
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := newServer(Options{CertDir: dir, ClientCA: file}, nil, nil); err == nil {
				t.Error("everybody would be answered")
			}
		})
	}
}

// TestConversionIsServedBeforeTheCachesAreFull: filling the caches may need it.
func TestConversionIsServedBeforeTheCachesAreFull(t *testing.T) {
	var synced atomic.Bool
	address, trusted, asked := servedOnce(t, "", synced.Load)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "localhost"}}
	defer transport.CloseIdleConnections()
	post := func(path, body string) int {
		t.Helper()
		response, err := (&http.Client{Transport: transport}).Post("https://"+address+path+"?timeout=2s", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close() // nothing is read of it
		return response.StatusCode
	}
	const review = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"1","desiredAPIVersion":"apps.kruise.io/v1beta1","objects":[]}}`
	if got := post(endpoint.Conversion, review); got != http.StatusOK {
		t.Errorf("conversion: got %d", got)
	}
	if got := post(secretPath, "{}"); got != http.StatusServiceUnavailable || asked.Load() {
		t.Errorf("admission: got %d, want %d until the caches are full", got, http.StatusServiceUnavailable)
	}
	synced.Store(true)
	if got := post(secretPath, "{}"); got != http.StatusOK || !asked.Load() {
		t.Errorf("admission: got %d once the caches are full", got)
	}
}
