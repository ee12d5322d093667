package layering

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAMachineThatCannotBuildSaysWhyInOneLine runs hack/machine.sh with programs in front of the PATH that stand for those of another machine.
func TestAMachineThatCannotBuildSaysWhyInOneLine(t *testing.T) {
	script, err := filepath.Abs("../../hack/machine.sh")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		programs map[string]string
		meminfo  string
		want     string
	}{
		"this machine":          {},
		"another system":        {programs: map[string]string{"uname": "echo Darwin"}, want: "it runs Darwin"},
		"another processor":     {programs: map[string]string{"uname": `[ "$1" = -s ] && echo Linux || echo riscv64`}, want: "its processor is riscv64"},
		"Go is too old":         {programs: map[string]string{"go": "echo go1.24.3"}, want: "it has go1.24.3"},
		"Go is newer":           {programs: map[string]string{"go": `case "$2" in GOVERSION) echo go1.30.1;; CC) echo cc;; *) echo /;; esac`, "cc": ""}},
		"Go is built by hand":   {programs: map[string]string{"go": `case "$2" in GOVERSION) echo devel;; CC) echo cc;; *) echo /;; esac`, "cc": ""}},
		"there is no C":         {programs: map[string]string{"go": `case "$2" in GOVERSION) echo go1.26.1;; CC) echo missing-cc;; esac`}, want: "there is no C compiler missing-cc"},
		"the disk is full":      {programs: map[string]string{"df": `printf 'head\n/dev/disk 9 9 2097152 9 /\n'`}, want: "has 2048 MiB left"},
		"memory is not enough":  {meminfo: "MemTotal: 2097152 kB\n", want: "it has 2048 MiB of memory"},
		"memory is just enough": {meminfo: "MemTotal: 4194304 kB\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for program, body := range tc.programs {
				if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), script)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			if tc.meminfo != "" {
				path := filepath.Join(dir, "meminfo")
				if err := os.WriteFile(path, []byte(tc.meminfo), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd.Env = append(cmd.Env, "MEMINFO="+path)
			}
			out, err := cmd.CombinedOutput()
			said := strings.TrimSpace(string(out))
			if tc.want == "" && (err != nil || said != "") {
				t.Errorf("%v, said %q", err, said)
			}
			if tc.want != "" && (err == nil || !strings.Contains(said, tc.want) || strings.Contains(said, "\n")) {
				t.Errorf("%v, said %q, want one line with %q", err, said, tc.want)
			}
		})
	}
}
