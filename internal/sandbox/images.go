package sandbox

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// Images that every real node has. Their only file is the program of cmd/sandbox/container.
const (
	// ServerImage runs a web server on port 8080 that answers with its version, v1.
	ServerImage = "sandbox.berth.dev/server:v1"
	// NextServerImage is the same program, which answers v2.
	NextServerImage = "sandbox.berth.dev/server:v2"
	// PauseImage waits until it is ended, whatever its arguments.
	PauseImage = "sandbox.berth.dev/pause:1"

	// containerBinary is the program in these images.
	containerBinary = "sandbox-container"
)

// TaggedImages are three names of one image, a server of its own. A node reports any one of them.
func TaggedImages() []string {
	return []string{"sandbox.berth.dev/tagged:one", "sandbox.berth.dev/tagged:two", "sandbox.berth.dev/tagged:three"}
}

// image is what one image runs. Arguments of a container are in place of cmd.
type image struct {
	names      []string
	entrypoint []string
	cmd        []string
	version    string
}

var images = []image{
	{names: []string{ServerImage}, entrypoint: []string{"/container"}, cmd: []string{"serve"}, version: "v1"},
	{names: []string{NextServerImage}, entrypoint: []string{"/container"}, cmd: []string{"serve"}, version: "v2"},
	{names: TaggedImages(), entrypoint: []string{"/container"}, cmd: []string{"serve"}, version: "tagged"},
	{names: []string{PauseImage}, entrypoint: []string{"/container", "pause"}},
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// writeImages writes an archive of all images in the layout of the Open Container Initiative.
func writeImages(path string, program []byte) error {
	var archive bytes.Buffer
	out := tar.NewWriter(&archive)
	var err error
	file := func(name string, mode int64, content []byte, to *tar.Writer) {
		if err == nil {
			err = to.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg})
		}
		if err == nil {
			_, err = to.Write(content)
		}
	}
	written := map[string]bool{}
	blob := func(mediaType string, content []byte) descriptor {
		sum := sha256.Sum256(content)
		name := hex.EncodeToString(sum[:])
		if !written[name] {
			written[name] = true
			file("blobs/sha256/"+name, 0o644, content, out)
		}
		return descriptor{MediaType: "application/vnd.oci.image." + mediaType, Digest: "sha256:" + name, Size: len(content)}
	}
	object := func(content any) []byte {
		encoded, encodeErr := json.Marshal(content)
		if err == nil {
			err = encodeErr
		}
		return encoded
	}

	var files bytes.Buffer
	inside := tar.NewWriter(&files)
	file("container", 0o755, program, inside)
	if err == nil {
		err = inside.Close()
	}
	layer := blob("layer.v1.tar", files.Bytes())
	var index []descriptor
	for _, image := range images {
		config := blob("config.v1+json", object(map[string]any{
			"architecture": runtime.GOARCH, "os": "linux",
			"config": map[string]any{"Entrypoint": image.entrypoint, "Cmd": image.cmd, "Env": []string{"VERSION=" + image.version}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
		}))
		manifest := blob("manifest.v1+json", object(map[string]any{
			"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []descriptor{layer},
		}))
		for _, name := range image.names {
			manifest.Annotations = map[string]string{"io.containerd.image.name": name}
			index = append(index, manifest)
		}
	}
	file("index.json", 0o644, object(map[string]any{"schemaVersion": 2, "manifests": index}), out)
	file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`), out)
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return fmt.Errorf("writing images: %w", err)
	}
	return os.WriteFile(path, archive.Bytes(), 0o600)
}
