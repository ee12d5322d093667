package main

import (
	"strings"
	"testing"
)

func TestNotesAreThePartOfTheVersion(t *testing.T) {
	const changelog = "# Changelog\n\nAbout.\n\n## Unreleased\n\n### Added\n\n- new\n\n## [v0.2.0] 2026-12-01\n\n- two\n\n## v0.2.0-rc.1\n\n- candidate\n"
	for version, want := range map[string]string{"Unreleased": "### Added\n\n- new", "v0.2.0": "- two", "v0.2.0-rc.1": "- candidate", "v0.3.0": "", "v0.2": ""} {
		if got := sectionOf(changelog, version); got != want {
			t.Errorf("%s: %q, want %q", version, got, want)
		}
	}
}

func TestTheChartOfARelease(t *testing.T) {
	const metadata = "name: berth\nversion: 0.0.0\nkubeVersion: \">= 1.0.0-0\"\n"
	r := release{version: "v0.2.0", line: line{kubernetes: ">= 1.37.0-0 < 1.39.0-0", suffix: "-k8s1.37"}}
	got, err := r.chartMetadata([]byte(metadata), strings.TrimPrefix(r.tag(), "v"))
	want := "name: berth\nversion: \"0.2.0-k8s1.37\"\nkubeVersion: \">= 1.37.0-0 < 1.39.0-0\"\nappVersion: \"v0.2.0-k8s1.37\"\n"
	if err != nil || string(got) != want {
		t.Errorf("%v, %s\nwant %s", err, got, want)
	}
	if _, err := r.chartMetadata([]byte("name: berth\n"), "0.2.0"); err == nil || !strings.Contains(err.Error(), "must have one line") {
		t.Errorf("a chart without versions: %v", err)
	}
}
