package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// writeAssets writes what people download from a release on GitHub, which is one for all lines and has no directories: images-TAG.tar and sbom-TAG.tar.gz of each line,
// its other files, and one SHA256SUMS of them all. The same releases give the same files.
func writeAssets(to string, releases []string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, from := range releases {
		charts, err := filepath.Glob(filepath.Join(from, "charts", "berth-*.tgz"))
		if err != nil {
			return err
		}
		if len(charts) != 1 {
			return fmt.Errorf("%s has %d charts, so make release has not written it", from, len(charts))
		}
		tag := "v" + strings.TrimSuffix(strings.TrimPrefix(filepath.Base(charts[0]), "berth-"), ".tgz")
		sums, err := sumsOf(from)
		if err != nil {
			return err
		}
		var images, sbom []string
		for _, s := range sums {
			switch dir, _, _ := strings.Cut(s.path, "/"); {
			case dir == "images":
				images = append(images, s.path)
			case dir == "sbom":
				sbom = append(sbom, s.path)
			case s.path == "release-notes.md" || s.path == "SHA256SUMS": // the text of the release on GitHub, and sums of paths
			default:
				content, err := os.ReadFile(filepath.Join(from, s.path))
				if err == nil {
					err = writeNew(filepath.Join(to, filepath.Base(s.path)), content)
				}
				if err != nil {
					return err
				}
			}
		}
		if err := writeTar(filepath.Join(to, "images-"+tag+".tar"), from, images); err != nil {
			return err
		}
		var entries []entry
		for _, path := range sbom {
			e, err := fileEntry(filepath.Join(from, path), filepath.Base(path), 0o644)
			if err != nil {
				return err
			}
			entries = append(entries, e)
		}
		packed, err := tarGz(entries)
		if err == nil {
			err = writeNew(filepath.Join(to, "sbom-"+tag+".tar.gz"), packed)
		}
		if err != nil {
			return err
		}
	}
	return writeSums(to)
}

// writeNew writes a file that no other line has written.
func writeNew(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// writeTar writes files of a release, one after the other, because images are large. Their names are the paths without the first directory.
func writeTar(path, release string, paths []string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	files := tar.NewWriter(file)
	for _, path := range paths {
		_, name, _ := strings.Cut(path, "/")
		e, err := fileEntry(filepath.Join(release, path), name, 0o644)
		if err == nil {
			err = add(files, e)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(files.Close(), file.Close())
}

// unpackTar unpacks what writeTar has written.
func unpackTar(path, to string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for files := tar.NewReader(file); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("%s is outside of it", header.Name)
		}
		content, err := io.ReadAll(files)
		name := filepath.Join(to, header.Name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(name), 0o755)
		}
		if err == nil {
			err = writeNew(name, content)
		}
		if err != nil {
			return err
		}
	}
}
