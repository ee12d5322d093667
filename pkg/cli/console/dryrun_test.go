package console

import (
	"testing"

	"github.com/spf13/pflag"
)

// The flag is that of kubectl, without what kubectl deprecates.
func TestDryRun(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want DryRun
		is   bool
	}{
		"nothing": {nil, DryRunNone, false},
		"none":    {[]string{"--dry-run=none"}, DryRunNone, false},
		"client":  {[]string{"--dry-run=client"}, DryRunClient, true},
		"server":  {[]string{"--dry-run=server"}, DryRunServer, true},
		"apart":   {[]string{"--dry-run", "server"}, DryRunServer, true},
		"plain":   {[]string{"--dry-run"}, "", false},
		"true":    {[]string{"--dry-run=true"}, "", false},
	} {
		var d DryRun
		flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
		d.AddTo(flags)
		if err := flags.Parse(tc.args); (err != nil) != (tc.want == "") || err == nil && (d != tc.want || d.Is() != tc.is) {
			t.Errorf("%s: %q, a dry run %t, %v", name, d, d.Is(), err)
		}
	}
}
