package main

import (
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
			"--only-workloads needs --united-deployments or --federation",
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
