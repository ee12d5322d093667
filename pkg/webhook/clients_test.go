package webhook

import (
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
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
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

func TestOnlyClientsOfTheAuthorityAreAnswered(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	serving, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, certFile), serving)
	write(t, filepath.Join(dir, keyFile), key)
	clientCA := write(t, filepath.Join(dir, "clients.crt"), ours.pem())
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(serving)

	tests := map[string]struct {
		clientCA string
		with     []tls.Certificate
		want     int // 0 if there is no connection
	}{
		"without an authority everybody is answered": {want: http.StatusOK},
		"the API server":                {clientCA: clientCA, with: []tls.Certificate{ours.sign(t, x509.ExtKeyUsageClientAuth)}, want: http.StatusOK},
		"a stranger":                    {clientCA: clientCA, want: http.StatusUnauthorized},
		"a stranger with a certificate": {clientCA: clientCA, with: []tls.Certificate{theirs.sign(t, x509.ExtKeyUsageClientAuth)}},
		"a server that is no client, of the authority's": {clientCA: clientCA, with: []tls.Certificate{ours.sign(t, x509.ExtKeyUsageServerAuth)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0") // finds a port
			if err != nil {
				t.Fatal(err)
			}
			_, port, _ := net.SplitHostPort(listener.Addr().String())
			number, _ := net.LookupPort("tcp", port)
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
			web, register, err := newServer(Options{Host: "127.0.0.1", Port: number, CertDir: dir, ClientCA: tc.clientCA})
			if err != nil {
				t.Fatal(err)
			}
			asked := false
			register("/hook", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				asked = true
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
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, ServerName: "localhost", Certificates: tc.with}, ForceAttemptHTTP2: true}
			defer transport.CloseIdleConnections()
			response, err := (&http.Client{Transport: transport}).Post(fmt.Sprintf("https://127.0.0.1:%d/hook", number), "application/json", strings.NewReader("{}"))
			if (err != nil) != (tc.want == 0) {
				t.Fatalf("got %v, %v", response, err)
			}
			if err == nil {
				_ = response.Body.Close()
				if response.StatusCode != tc.want {
					t.Errorf("got %s, want %d", response.Status, tc.want)
				}
			}
			if asked != (tc.want == http.StatusOK) {
				t.Errorf("the hook was asked: %t", asked)
			}
		})
	}
}

func TestAStrangersReviewIsNotRead(t *testing.T) {
	review := &body{Reader: strings.NewReader("{}")}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/hook", review)
	if err != nil {
		t.Fatal(err)
	}
	request.TLS = &tls.ConnectionState{}
	knownClients(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })).ServeHTTP(discard{}, request)
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
			if _, _, err := newServer(Options{CertDir: dir, ClientCA: file}); err == nil {
				t.Error("everybody would be answered")
			}
		})
	}
}
