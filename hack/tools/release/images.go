package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// refName is the annotation with the name and the tag of an image in an OCI layout.
const refName = "org.opencontainers.image.ref.name"

// user is "nonroot" in distroless images.
const user = "65532:65532"

// writeImages writes an image of each component for all platforms, and the chart, into one OCI layout. It remembers the digests of the images.
func (r *release) writeImages(programs []program) error {
	path, err := layout.Write(filepath.Join(r.out, "images"), empty.Index)
	if err != nil {
		return err
	}
	license, err := fileEntry(filepath.Join(r.root, "LICENSE"), "LICENSE", 0o644)
	if err != nil {
		return err
	}
	base, err := layerOf([]entry{{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities()}, license, r.notices})
	if err != nil {
		return err
	}
	for _, component := range components {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, p := range programs {
			if p.command != component {
				continue
			}
			image, err := r.image(p, base)
			if err != nil {
				return fmt.Errorf("%s for %s: %w", component, p.platform, err)
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}})
		}
		digest, err := index.Digest()
		if err != nil {
			return err
		}
		image := nameOf(component)
		if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: image + ":" + r.tag()})); err != nil {
			return err
		}
		r.subjects = append(r.subjects, subject{Name: r.registry + "/" + image + ":" + r.tag(), Digest: map[string]string{digest.Algorithm: digest.Hex}})
	}
	return r.writeChart(path)
}

// digestOf is the digest of an image, after writeImages.
func (r *release) digestOf(image string) string {
	for _, s := range r.subjects {
		if s.Name == r.registry+"/"+image+":"+r.tag() {
			return "sha256:" + s.Digest["sha256"]
		}
	}
	return ""
}

// image has a program, authorities, licences and nothing else.
func (r *release) image(p program, base v1.Layer) (v1.Image, error) {
	name := nameOf(p.command)
	file, err := fileEntry(p.path, name, 0o755)
	if err != nil {
		return nil, err
	}
	layer, err := layerOf([]entry{file})
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: r.source.at}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: base, History: v1.History{Created: created, CreatedBy: "authorities of x509roots/fallback, licences"}},
		mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "go build ./cmd/" + p.command}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, created
	config.Config = v1.Config{User: user, Entrypoint: []string{"/" + name}, Labels: map[string]string{
		"org.opencontainers.image.title":    name,
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.revision": r.source.commit,
		"org.opencontainers.image.source":   "https://github.com/berth-project/berth",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}}
	return mutate.ConfigFile(image, config)
}

func layerOf(entries []entry) (v1.Layer, error) {
	packed, err := tarGz(entries)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil }, tarball.WithMediaType(types.OCILayer))
}

// authorities are those that browsers trust, as PEM. The hub of a federation connects to clusters whose API servers have certificates of them.
func authorities() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if _, err := x509.ParseCertificate(root.Certificate); err == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return all.Bytes()
}

// push pushes everything that is in the OCI layout of a release. Credentials are those of docker login.
func push(ctx context.Context, from, to string) error {
	if to == "" {
		return errors.New("-to is empty: name a registry and a path, such as ghcr.io/someone")
	}
	dir := filepath.Join(from, "images")
	if info, err := os.Stat(from); err == nil && info.Mode().IsRegular() {
		if dir, err = os.MkdirTemp("", "berth-images-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := unpackTar(from, dir); err != nil {
			return fmt.Errorf("unpacking %s: %w", from, err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return fmt.Errorf("reading %s, which make release writes: %w", from, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, one := range manifest.Manifests {
		tag, err := name.NewTag(strings.TrimSuffix(to, "/") + "/" + one.Annotations[refName])
		if err != nil {
			return err
		}
		if one.MediaType.IsIndex() {
			var images v1.ImageIndex
			if images, err = index.ImageIndex(one.Digest); err == nil {
				err = remote.WriteIndex(tag, images, options...)
			}
		} else {
			var image v1.Image
			if image, err = index.Image(one.Digest); err == nil {
				err = remote.Write(tag, image, options...)
			}
		}
		if err != nil {
			return fmt.Errorf("pushing %s: %w", tag, err)
		}
		fmt.Fprintf(os.Stdout, "%s@%s\n", tag, one.Digest)
	}
	return nil
}
