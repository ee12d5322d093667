package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/rs/zerolog"
)

// writeSBOMs writes for each program which modules are in it, as CycloneDX. It reads that from the program itself.
func (r *release) writeSBOMs(programs []program) error {
	for _, p := range programs {
		generator, err := bin.NewGenerator(p.path, bin.WithIncludeStdlib(true), bin.WithVersionOverride(r.version), bin.WithLogger(zerolog.Nop()))
		if err != nil {
			return err
		}
		bom, err := generator.Generate()
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		var out bytes.Buffer
		if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(bom); err != nil {
			return err
		}
		if err := r.write(out.Bytes(), "sbom", sbomOf(p)); err != nil {
			return err
		}
	}
	return nil
}

func sbomOf(p program) string { return fmt.Sprintf("%s-%s.cdx.json", nameOf(p.command), p.platform) }

// writeNotes writes the part of the changelog about this version. Before the changelog has one, that is the part "Unreleased".
func (r *release) writeNotes() error {
	changelog, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	notes := sectionOf(string(changelog), r.version)
	if notes == "" {
		fmt.Fprintf(os.Stderr, "release: CHANGELOG.md has no part \"## %s\": the release notes are the part \"## Unreleased\"\n", r.version)
		notes = sectionOf(string(changelog), "Unreleased")
	}
	if notes == "" {
		return fmt.Errorf("CHANGELOG.md has neither a part %q nor a part \"## Unreleased\": write what is new", "## "+r.version)
	}
	// Links of the changelog are relative to the repository.
	links := regexp.MustCompile(`\]\((docs/|test/|manifests/|charts/|[A-Z]+\.md)`)
	notes = links.ReplaceAllString(notes, "](https://github.com/berth-project/berth/blob/"+r.version+"/$1")
	return r.write([]byte("# Berth "+r.version+"\n\n"+notes+"\n"), "release-notes.md")
}

// sectionOf is the text below a heading of the second level that begins with the words, with or without brackets. A date may follow.
func sectionOf(changelog, words string) string {
	for part := range strings.SplitSeq("\n"+changelog, "\n## ") {
		heading, text, _ := strings.Cut(part, "\n")
		heading = strings.NewReplacer("[", "", "]", "").Replace(heading)
		if heading == words || strings.HasPrefix(heading, words+" ") {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// subject is something that was made, as in an in-toto statement.
type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// statement says what this release was made of and how: SLSA provenance v1 in an in-toto statement v1. Nobody has signed it. It has no time and no name of a
// machine, so that those who make the release again get the same.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []subject  `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type provenance struct {
	BuildDefinition struct {
		BuildType            string           `json:"buildType"`
		ExternalParameters   map[string]any   `json:"externalParameters"`
		InternalParameters   map[string]any   `json:"internalParameters"`
		ResolvedDependencies []map[string]any `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder map[string]string `json:"builder"`
	} `json:"runDetails"`
}

func (r *release) writeProvenance(programs []program) error {
	const project = "https://github.com/berth-project/berth"
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1", Subject: r.subjects}
	sums, err := sumsOf(r.out)
	if err != nil {
		return err
	}
	for _, sum := range sums {
		if !strings.HasPrefix(sum.path, "images/") { // they are in it by their names
			s.Subject = append(s.Subject, subject{Name: sum.path, Digest: map[string]string{"sha256": sum.sha256}})
		}
	}
	var builtWith []string
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p.path)
		if err != nil {
			return err
		}
		if !slices.Contains(builtWith, info.GoVersion) {
			builtWith = append(builtWith, info.GoVersion)
		}
	}
	definition := &s.Predicate.BuildDefinition
	definition.BuildType = project + "/tree/main/hack/tools/release"
	definition.ExternalParameters = map[string]any{"version": r.version, "registry": r.registry, "kubernetes": r.line.kubernetes, "images": names(r.nodes), "archives": names(r.plugins)}
	definition.InternalParameters = map[string]any{"go": strings.Join(builtWith, ", ")}
	definition.ResolvedDependencies = []map[string]any{{"uri": "git+" + project, "digest": map[string]string{"gitCommit": r.source.commit}}}
	if r.source.modified {
		definition.InternalParameters["changedAfterTheCommit"] = true
	}
	s.Predicate.RunDetails.Builder = map[string]string{"id": definition.BuildType}
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return r.write(append(content, '\n'), r.named("provenance.json"))
}

func names(platforms []platform) []string {
	var all []string
	for _, p := range platforms {
		all = append(all, p.os+"/"+p.arch)
	}
	return all
}

type sum struct{ path, sha256 string }

// sumsOf are the checksums of all files of a directory, sorted by path.
func sumsOf(dir string) ([]sum, error) {
	var all []sum
	err := filepath.WalkDir(dir, func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		all = append(all, sum{filepath.ToSlash(relative), fmt.Sprintf("%x", sha256.Sum256(content))})
		return err
	})
	slices.SortFunc(all, func(a, b sum) int { return strings.Compare(a.path, b.path) })
	return all, err
}

// writeSums writes what sha256sum --check reads.
func writeSums(dir string) error {
	sums, err := sumsOf(dir)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, s := range sums {
		fmt.Fprintf(&out, "%s  %s\n", s.sha256, s.path)
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(out.String()), 0o644)
}
