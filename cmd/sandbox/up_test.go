package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGangsNeedTheProgramsOfALine(t *testing.T) {
	for said, want := range map[string]string{
		"Kubernetes v1.35.4":   "are of Kubernetes 1.35.4; run make LINE=1.37 tools build",
		"Kubernetes v1.37.1":   "",
		"Kubernetes v1.38.0-a": "",
		"nothing":              "reading the version",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "kube-apiserver"), []byte("#!/bin/sh\necho "+said+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		err := checkGangs(dir)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", said, err, want)
		}
	}
}
