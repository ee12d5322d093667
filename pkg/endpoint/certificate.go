package endpoint

import (
	"crypto/x509"
	"fmt"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Names in manifests/webhook.
const (
	Namespace  = "berth-system"
	secretName = "berth-webhook-cert"
	// serviceName has the replicas that are ready, and conversionService all that convert.
	serviceName = "berth-webhook"
)

// Keys of the Secret, and files in the certificate directory.
const (
	CertificateFile    = "tls.crt"
	CertificateKeyFile = "tls.key"
	AuthorityFile      = "ca.crt"
	caKey              = "ca.key"
)

// CertificateSecret holds the certificate.
var CertificateSecret = types.NamespacedName{Namespace: Namespace, Name: secretName}

// CertificateRotator creates and renews the certificate of the webhooks. The controller runs it. A sandbox makes a certificate before the controller starts. The caller says which webhooks get the CA.
func CertificateRotator() *rotator.CertRotator {
	return &rotator.CertRotator{
		SecretKey:      CertificateSecret,
		CertName:       CertificateFile,
		KeyName:        CertificateKeyFile,
		CAName:         "berth-webhook-ca",
		CAOrganization: "berth",
		// The rotator replaces a certificate without the first name. Certificates of Berth before v1beta1 do not have it.
		DNSName:       fmt.Sprintf("%s.%s.svc", conversionService, Namespace),
		ExtraDNSNames: []string{fmt.Sprintf("%s.%s.svc", serviceName, Namespace), "localhost"}, // a sandbox has no Services
		ExtKeyUsages:  &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		FieldOwner:    "berth-controller",
	}
}

// NewCertificate makes a Secret with a certificate that the rotator leaves as it is for this long. It needs the rotator's 90 days more.
func NewCertificate(now time.Time, valid time.Duration) (*corev1.Secret, error) {
	r, begin, end := CertificateRotator(), now.Add(-time.Hour), now.Add(valid+90*24*time.Hour)
	authority, err := r.CreateCACert(begin, end)
	if err != nil {
		return nil, fmt.Errorf("making the authority of the webhooks: %w", err)
	}
	certificate, key, err := r.CreateCertPEM(authority, begin, end)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of the webhooks: %w", err)
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: secretName},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{AuthorityFile: authority.CertPEM, caKey: authority.KeyPEM, CertificateFile: certificate, CertificateKeyFile: key},
	}, nil
}
