package sandbox

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/csv"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// certificateLifetime is longer than any sandbox runs.
const certificateLifetime = 10 * 365 * 24 * time.Hour

// credentials are the secrets of one sandbox: files that the control plane reads, and the users that its API server knows.
type credentials struct {
	dir string
	// ca is the certificate against which the API server is verified.
	ca    []byte
	users []user
}

type user struct {
	name   string
	groups []string
	token  string
}

func (c *credentials) caFile() string         { return filepath.Join(c.dir, "ca.crt") }
func (c *credentials) serverCertFile() string { return filepath.Join(c.dir, "apiserver.crt") }
func (c *credentials) serverKeyFile() string  { return filepath.Join(c.dir, "apiserver.key") }
func (c *credentials) serviceAccountKeyFile() string {
	return filepath.Join(c.dir, "service-account.key")
}
func (c *credentials) clientCertFile() string { return filepath.Join(c.dir, "client.crt") }
func (c *credentials) clientKeyFile() string  { return filepath.Join(c.dir, "client.key") }
func (c *credentials) tokenFile() string      { return filepath.Join(c.dir, "tokens.csv") }

// clientName is the API server, where it is a client itself.
const clientName = "kube-apiserver-kubelet-client"

// newCredentials writes a new CA, the API server's certificates and the key of service accounts into dir.
func newCredentials(dir string) (*credentials, error) {
	c := &credentials{dir: dir}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "sandbox-ca"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(certificateLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	caCert, err := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	if err != nil {
		return nil, err
	}
	c.ca = pemBlock("CERTIFICATE", caCert)

	files := map[string][]byte{c.caFile(): c.ca}
	issue := func(certFile, keyFile string, template *x509.Certificate) error {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		template.NotBefore, template.NotAfter, template.KeyUsage = authority.NotBefore, authority.NotAfter, x509.KeyUsageDigitalSignature
		certificate, err := x509.CreateCertificate(rand.Reader, template, authority, key.Public(), caKey)
		if err != nil {
			return err
		}
		files[certFile] = pemBlock("CERTIFICATE", certificate)
		files[keyFile], err = pemKey(key)
		return err
	}
	if err := issue(c.serverCertFile(), c.serverKeyFile(), &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{"localhost", "kubernetes.default.svc"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}); err != nil {
		return nil, err
	}
	// With it the API server asks kubelets for logs and exec, and the APIs behind its aggregator.
	if err := issue(c.clientCertFile(), c.clientKeyFile(), &x509.Certificate{
		SerialNumber: big.NewInt(3),
		Subject:      pkix.Name{CommonName: clientName},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nil, err
	}

	serviceAccountKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if files[c.serviceAccountKeyFile()], err = pemKey(serviceAccountKey); err != nil {
		return nil, err
	}
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// addUser returns the token of a new user. Users must be added before writeTokens.
func (c *credentials) addUser(name string, groups ...string) string {
	token := rand.Text()
	c.users = append(c.users, user{name: name, groups: groups, token: token})
	return token
}

func (c *credentials) writeTokens() error {
	var content bytes.Buffer
	table := csv.NewWriter(&content)
	for _, user := range c.users {
		record := []string{user.token, user.name, user.name}
		if len(user.groups) > 0 {
			record = append(record, strings.Join(user.groups, ","))
		}
		if err := table.Write(record); err != nil {
			return err
		}
	}
	table.Flush()
	if err := table.Error(); err != nil {
		return err
	}
	return os.WriteFile(c.tokenFile(), content.Bytes(), 0o600)
}

// writeKubeconfig writes a kubeconfig for the server with the token.
func (c *credentials) writeKubeconfig(path, name, server, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// An existing file would keep its mode.
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("replacing kubeconfig: %w", err)
	}
	return os.WriteFile(path, content, 0o600)
}

// checkReplaceable refuses a file that is not a kubeconfig with only that context.
func checkReplaceable(kubeconfig, context string) error {
	if _, err := os.Stat(kubeconfig); os.IsNotExist(err) {
		return nil
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || len(config.Contexts) != 1 || config.Contexts[context] == nil {
		return fmt.Errorf("kubeconfig %s is there already and is not from a sandbox of this name: "+
			"remove it or choose another path", kubeconfig)
	}
	return nil
}

func pemKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pemBlock("EC PRIVATE KEY", der), nil
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
