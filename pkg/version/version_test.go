package version

import "testing"

func TestSupports(t *testing.T) {
	oldest, newest := supported()
	for server, want := range map[string]bool{
		"v" + oldest.String() + ".0":                           true,
		"v" + oldest.String() + ".4-gke.100":                   true,
		"v" + newest.String() + ".0-rc.1+abc":                  true,
		"v" + newest.AddMinor(1).String() + ".0":               false,
		"v" + oldest.SubtractMinor(1).String() + ".17-eks-123": false,
		"v2." + oldest.String()[2:] + ".0":                     false,
	} {
		if got, err := Supports(server); err != nil || got != want {
			t.Errorf("%s: %t, %v, want %t", server, got, err, want)
		}
	}
	if _, err := Supports("unknown"); err == nil {
		t.Error("a server without a version is taken")
	}
}
