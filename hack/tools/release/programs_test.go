package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTheEnvironmentDoesNotGetIntoPrograms, neither by variables nor by what somebody has written with "go env -w". But that says where modules come from.
func TestTheEnvironmentDoesNotGetIntoPrograms(t *testing.T) {
	written := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(written, []byte("GOFLAGS=-tags=mine\nGOEXPERIMENT=nogreenteagc\nGOFIPS140=latest\nGOPROXY=https://proxy.example.com\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOENV", written)
	t.Setenv("GOAMD64", "v3")
	for _, empty := range []string{"GOFLAGS", "GOEXPERIMENT", "GOFIPS140", "GOPROXY"} {
		t.Setenv(empty, "")
	}
	r := release{root: filepath.Join("..", "..", "..")}
	env, err := r.goEnv(t.Context(), platform{"linux", "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"GOFLAGS": "", "GOEXPERIMENT": "", "GOFIPS140": "off", "GOAMD64": "v1", "GOPROXY": "https://proxy.example.com"}
	cmd := exec.CommandContext(t.Context(), "go", "env", "-json", "GOFLAGS", "GOEXPERIMENT", "GOFIPS140", "GOAMD64", "GOPROXY")
	cmd.Env = env
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s=%s, want %s", name, got[name], value)
		}
	}
}
