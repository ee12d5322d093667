package sandbox

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestImagesAreComplete: each name of an image leads to the program, over blobs whose digests and sizes are true. Names of one image lead to the same manifest.
func TestImagesAreComplete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "images.tar")
	program := []byte("the program")
	if err := writeImages(path, program); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive)
	blob := func(of descriptor) []byte {
		t.Helper()
		content := files["blobs/sha256/"+of.Digest[len("sha256:"):]]
		if sum := sha256.Sum256(content); "sha256:"+hex.EncodeToString(sum[:]) != of.Digest || len(content) != of.Size {
			t.Errorf("%s has %d bytes with digest %x, want %d", of.Digest, len(content), sum, of.Size)
		}
		return content
	}
	var index struct{ Manifests []descriptor }
	decode := func(content []byte, into any) {
		t.Helper()
		if err := json.Unmarshal(content, into); err != nil {
			t.Fatalf("%v: %s", err, content)
		}
	}
	decode(files["index.json"], &index)
	names := map[string]string{}
	for _, of := range index.Manifests {
		names[of.Annotations["io.containerd.image.name"]] = of.Digest
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		decode(blob(of), &manifest)
		blob(manifest.Config)
		if got := untar(t, blob(manifest.Layers[0]))["container"]; !bytes.Equal(got, program) {
			t.Errorf("the program of %v is %q", of.Annotations, got)
		}
	}
	for _, name := range slices.Concat([]string{ServerImage, NextServerImage, PauseImage}, TaggedImages()) {
		if names[name] == "" {
			t.Errorf("there is no image %s in %v", name, names)
		}
	}
	if tags := TaggedImages(); names[tags[0]] != names[tags[1]] || names[ServerImage] == names[NextServerImage] {
		t.Errorf("the wrong names share an image: %v", names)
	}
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err == nil {
			files[header.Name], err = io.ReadAll(reader)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
