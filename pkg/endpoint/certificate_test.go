package endpoint

import (
	"testing"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
)

// TestTheRotatorLeavesANewCertificate asks what the rotator asks: whether both certificates are valid in 90 days.
func TestTheRotatorLeavesANewCertificate(t *testing.T) {
	now, valid := time.Now(), 24*time.Hour
	secret, err := NewCertificate(now, valid)
	if err != nil {
		t.Fatal(err)
	}
	r := CertificateRotator()
	for days, want := range map[int]bool{0: true, 2: false} {
		asked := now.AddDate(0, 0, days+90)
		authority, err := rotator.ValidCert(secret.Data[AuthorityFile], secret.Data[AuthorityFile], secret.Data[caKey], r.CAName, nil, asked)
		if authority != want {
			t.Errorf("after %d days the authority is valid: %t (%v), want %t", days, authority, err, want)
		}
		for _, name := range append(r.ExtraDNSNames, r.DNSName) {
			if served, err := rotator.ValidCert(secret.Data[AuthorityFile], secret.Data[CertificateFile], secret.Data[CertificateKeyFile], name, r.ExtKeyUsages, asked); served != want {
				t.Errorf("after %d days the certificate for %s is valid: %t (%v), want %t", days, name, served, err, want)
			}
		}
	}
}
