package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of a chart in a registry: helm.sh/docs/topics/registries.
const (
	chartConfig = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	chartLayer  = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
)

// shippedRegistry is what the manifests and the chart name in the repository.
const shippedRegistry = "ghcr.io/berth-project"

// writeChart writes the chart as a file, and into the OCI layout. It has the version of the release, which is also the tag of the images that it installs.
func (r *release) writeChart(to layout.Path) error {
	version := strings.TrimPrefix(r.tag(), "v")
	root := filepath.Join(r.root, "charts", "berth")
	var entries []entry
	var metadata []byte
	err := filepath.WalkDir(root, func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch relative {
		case "Chart.yaml":
			content, err = r.chartMetadata(content, version)
			metadata = content
		case "values.yaml", "README.md":
			content = bytes.ReplaceAll(content, []byte(shippedRegistry), []byte(r.registry))
		}
		entries = append(entries, entry{name: "berth/" + filepath.ToSlash(relative), mode: 0o644, content: content})
		return err
	})
	if err != nil {
		return err
	}
	// Helm looks for Chart.yaml first.
	slices.SortStableFunc(entries, func(a, b entry) int {
		first := func(e entry) int {
			if e.name == "berth/Chart.yaml" {
				return 0
			}
			return 1
		}
		return first(a) - first(b)
	})
	packed, err := tarGz(entries)
	if err != nil {
		return err
	}
	if err := r.write(packed, "charts", "berth-"+version+".tgz"); err != nil {
		return err
	}
	config, err := yaml.YAMLToJSON(metadata)
	if err != nil {
		return err
	}
	artifact, err := chartArtifact(config, packed, version)
	if err != nil {
		return err
	}
	digest, err := artifact.Digest()
	if err != nil {
		return err
	}
	reference := "charts/berth:" + strings.ReplaceAll(version, "+", "_")
	r.subjects = append(r.subjects, subject{Name: r.registry + "/" + reference, Digest: map[string]string{digest.Algorithm: digest.Hex}})
	return to.AppendImage(artifact, layout.WithAnnotations(map[string]string{refName: reference}))
}

// chartMetadata is Chart.yaml with the versions of the release.
func (r *release) chartMetadata(content []byte, version string) ([]byte, error) {
	for key, value := range map[string]string{"version": version, "kubeVersion": r.line.kubernetes} {
		line := regexp.MustCompile(`(?m)^` + key + `: .*$`)
		if len(line.FindAll(content, -1)) != 1 {
			return nil, fmt.Errorf("Chart.yaml must have one line %q", key+": …")
		}
		content = line.ReplaceAllLiteral(content, []byte(key+`: "`+value+`"`))
	}
	return fmt.Appendf(content, "appVersion: %q\n", r.tag()), nil
}

// artifact is a chart as an OCI image: its own metadata in place of an image's configuration, and the packed chart as the only layer.
type artifact struct {
	config, manifest []byte
	chart            v1.Layer
}

func chartArtifact(config, packed []byte, version string) (v1.Image, error) {
	chart := static.NewLayer(packed, chartLayer)
	digest, err := chart.Digest()
	if err != nil {
		return nil, err
	}
	configDigest, _, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config:      v1.Descriptor{MediaType: chartConfig, Size: int64(len(config)), Digest: configDigest},
		Layers:      []v1.Descriptor{{MediaType: chartLayer, Size: int64(len(packed)), Digest: digest}},
		Annotations: map[string]string{"org.opencontainers.image.title": "berth", "org.opencontainers.image.version": version},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&artifact{config, manifest, chart})
}

func (a *artifact) RawConfigFile() ([]byte, error)    { return a.config, nil }
func (a *artifact) RawManifest() ([]byte, error)      { return a.manifest, nil }
func (*artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a *artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if digest, err := a.chart.Digest(); err != nil || digest == h {
		return a.chart, err
	}
	return nil, fmt.Errorf("the chart has no layer %s", h)
}
