package main

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	budgetcontroller "github.com/berth-project/berth/pkg/controller/budget"
)

func TestFlagsThatCannotBeKeptTogetherAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		flags flags
		want  string
	}{
		"budgets without the webhooks that hold them": {
			flags{webhooks: false, budgets: true, budgetExpiry: budgetcontroller.DefaultExpiry},
			"--webhooks=false needs --budgets=false",
		},
		"an end before the signal": {
			flags{webhooks: true, budgets: true, budgetExpiry: budgetcontroller.DefaultExpiry, shutdownDelay: -1},
			"--shutdown-delay is -1ns: must not be negative",
		},
		"no part that creates workloads": {
			flags{onlyWorkloads: true, webhooks: true, budgets: true, budgetExpiry: budgetcontroller.DefaultExpiry},
			"--only-workloads needs --united-deployments, --federation or --spread-rules",
		},
		"a version of TLS that does not exist": {
			flags{tlsMinVersion: "1.3", budgetExpiry: budgetcontroller.DefaultExpiry},
			"--tls-min-version: unknown tls version \"1.3\"",
		},
		"a cipher suite that does not exist": {
			flags{tlsCipherSuites: "ROT13", budgetExpiry: budgetcontroller.DefaultExpiry},
			"--tls-cipher-suites: ",
		},
		"approvals that end before their requests": {
			flags{webhooks: true, budgets: true, budgetExpiry: requestTimeout},
			"--budget-expiry is 1m0s: must be at least",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t.Context(), tc.flags); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestConnectionsKeepToTheVersionAndTheCipherSuites(t *testing.T) {
	f := flags{metricsAddress: ":8443", tlsMinVersion: "VersionTLS13", tlsCipherSuites: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}
	change, err := f.tls()
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, change := range f.metrics(change).TLSOpts {
		change(config)
	}
	if config.MinVersion != tls.VersionTLS13 || !slices.Equal(config.CipherSuites, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}) {
		t.Errorf("version %x, cipher suites %x", config.MinVersion, config.CipherSuites)
	}
}
