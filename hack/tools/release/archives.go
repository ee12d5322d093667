package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/gzip"
	"sigs.k8s.io/yaml"
)

// fileTime is the time of each file in an archive or image: the earliest that every format can express.
var fileTime = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// entry is a file in an archive.
type entry struct {
	name    string
	mode    int64
	content []byte
	// link is the file to which a symbolic link points. Empty for a file.
	link string
}

func fileEntry(path, name string, mode int64) (entry, error) {
	content, err := os.ReadFile(path)
	return entry{name: name, mode: mode, content: content}, err
}

// tarGz are files of nobody, without directories.
func tarGz(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	files := tar.NewWriter(packed)
	for _, e := range entries {
		if err := add(files, e); err != nil {
			return nil, err
		}
	}
	err := errors.Join(files.Close(), packed.Close())
	return out.Bytes(), err
}

func add(files *tar.Writer, e entry) error {
	header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.content)), ModTime: fileTime, Format: tar.FormatUSTAR}
	if e.link != "" {
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
	}
	if err := files.WriteHeader(header); err != nil {
		return err
	}
	_, err := files.Write(e.content)
	return err
}

func zipped(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	files := zip.NewWriter(&out)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: fileTime}
		header.SetMode(os.FileMode(e.mode))
		file, err := files.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := io.Copy(file, bytes.NewReader(e.content)); err != nil {
			return nil, err
		}
	}
	err := files.Close()
	return out.Bytes(), err
}

const description = `Shows per subset of a WorkloadSpread how many pods it holds and what happens next, explains
why a pod is where it is, and simulates a spread before it is applied. It needs Berth in
the cluster.
`

// krewPlugin is the manifest by which Krew installs kubectl berth.
type krewPlugin struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       krewSpec          `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector map[string]map[string]string `json:"selector"`
	URI      string                       `json:"uri"`
	Sha256   string                       `json:"sha256"`
	Bin      string                       `json:"bin"`
	Files    []krewFile                   `json:"files"`
}

type krewFile struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// writeArchives writes an archive of kubectl berth for each platform, and Krew's manifest. An archive has both programs, the script for completion and the
// licences. A download is below the release on GitHub, which has no directories, and which all lines share.
func (r *release) writeArchives(programs []program) error {
	const project = "https://github.com/berth-project/berth"
	manifest := krewPlugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": "berth"},
		Spec: krewSpec{Version: r.tag(), Homepage: project, ShortDescription: "Where the pods of a workload run, how many, and why", Description: description},
	}
	for _, on := range r.plugins {
		var entries []entry
		var files []krewFile
		pick := func(path, name string, mode int64) error {
			e, err := fileEntry(path, name, mode)
			entries, files = append(entries, e), append(files, krewFile{name, "."})
			return err
		}
		for _, p := range programs {
			if p.platform == on && slices.Contains(plugin, p.command) {
				if err := pick(p.path, on.exe(nameOf(p.command)), 0o755); err != nil {
					return err
				}
			}
		}
		if err := pick(filepath.Join(r.root, "LICENSE"), "LICENSE", 0o644); err != nil {
			return err
		}
		entries, files = append(entries, r.notices), append(files, krewFile{noticesFile, "."})
		pack, extension := tarGz, ".tar.gz"
		if on.os == "windows" {
			pack, extension = zipped, ".zip"
		} else {
			// Krew puts only the plugin on the PATH, so the script is of use only to those who unpack the archive themselves.
			script, err := fileEntry(filepath.Join(r.root, "cmd", "kubectl-berth", "kubectl_complete-berth"), "kubectl_complete-berth", 0o755)
			if err != nil {
				return err
			}
			entries = append(entries, script)
		}
		archive, err := pack(entries)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("kubectl-berth-%s-%s%s", r.tag(), on, extension)
		if err := r.write(archive, "kubectl", name); err != nil {
			return err
		}
		manifest.Spec.Platforms = append(manifest.Spec.Platforms, krewPlatform{
			Selector: map[string]map[string]string{"matchLabels": {"os": on.os, "arch": on.arch}},
			URI:      fmt.Sprintf("%s/releases/download/%s/%s", project, r.version, name),
			Sha256:   fmt.Sprintf("%x", sha256.Sum256(archive)),
			Bin:      on.exe("kubectl-berth"),
			Files:    files,
		})
	}
	content, err := yaml.Marshal(manifest)
	if err != nil {
		return err
	}
	return r.write(content, "krew", r.named("berth.yaml"))
}
