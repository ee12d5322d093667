package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// noticesFile is the name of the file with the licences of others.
const noticesFile = "THIRD_PARTY_NOTICES.txt"

var (
	// asksToGoAlong matches the names of files that a licence asks to pass on.
	asksToGoAlong = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents)([-._].*)?$`)
	// notCompiled are directories of a module whose files get into no program, or are in modules of their own.
	notCompiled = []string{"LICENSES", "vendor", "testdata"}
)

// writeNotices writes the licences of Go and of all modules in the programs. Archives and images have this file. It reads from the programs which modules that are.
func (r *release) writeNotices(ctx context.Context, programs []program) error {
	goRoot, cache, err := r.goDirs(ctx)
	if err != nil {
		return err
	}
	dirs := map[string]string{"Go": goRoot}
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p.path)
		if err != nil {
			return err
		}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			if strings.HasPrefix(m.Path, ".") || filepath.IsAbs(m.Path) { // a module of this repository
				continue
			}
			path, err := module.EscapePath(m.Path)
			if err != nil {
				return err
			}
			version, err := module.EscapeVersion(m.Version)
			if err != nil {
				return err
			}
			dirs[m.Path+" "+m.Version] = filepath.Join(cache, filepath.FromSlash(path)+"@"+version)
		}
	}
	content, err := noticesOf(dirs)
	if err != nil {
		return err
	}
	r.notices = entry{name: noticesFile, mode: 0o644, content: content}
	return r.write(content, r.named(noticesFile))
}

// noticesOf joins the licences in directories. Each text is there once, below the names of all that have it. A directory without a licence is an error, because
// nobody may pass on what is in it.
func noticesOf(dirs map[string]string) ([]byte, error) {
	having := map[string][]string{}
	for name, dir := range dirs {
		found := false
		err := filepath.WalkDir(dir, func(path string, file fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case file.IsDir() && (slices.Contains(notCompiled, file.Name()) || name == "Go" && path != dir): // the licence of Go is at its root
				return fs.SkipDir
			case file.IsDir() || !asksToGoAlong.MatchString(file.Name()) || strings.HasSuffix(file.Name(), ".go"):
				return nil
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			where, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			text := strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n"))
			having[text] = append(having[text], name+": "+filepath.ToSlash(where))
			found = true
			return nil
		})
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, fmt.Errorf("%s has no licence in %s, so no release may contain it", name, dir)
		}
	}
	var out strings.Builder
	out.WriteString("Berth is licensed under Apache 2.0 (LICENSE). Its programs contain Go and the following modules, under these licences.\n")
	for _, names := range having {
		slices.Sort(names)
	}
	for _, text := range slices.SortedFunc(maps.Keys(having), func(a, b string) int { return strings.Compare(having[a][0], having[b][0]) }) {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(having[text], "\n"), text)
	}
	return []byte(out.String()), nil
}

// goDirs are the root of the Go that builds releases, and its cache of modules, which has all that it has built.
func (r *release) goDirs(ctx context.Context) (root, cache string, err error) {
	env, err := r.goEnv(ctx, r.nodes[0])
	if err != nil {
		return "", "", err
	}
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOMODCACHE")
	cmd.Dir, cmd.Env = r.root, env
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("go env GOROOT GOMODCACHE: %w", err)
	}
	root, cache, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return root, cache, nil
}
