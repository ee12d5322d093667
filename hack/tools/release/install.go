package main

import (
	"os"
	"path/filepath"

	"sigs.k8s.io/kustomize/api/krusty"
	kustomize "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// writeInstall writes all manifests in one file. Images have the digests of this release, so that nobody can put another program behind a tag.
func (r *release) writeInstall() error {
	// A kustomization names its resources by relative paths, and must not be inside of them.
	dir, err := os.MkdirTemp("", "berth-install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	root, err := filepath.Abs(r.root)
	if err != nil {
		return err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return err
	}
	manifests, err := filepath.Rel(dir, filepath.Join(root, "manifests"))
	if err != nil {
		return err
	}
	of := kustomize.Kustomization{Resources: []string{manifests}}
	for _, component := range components {
		image := nameOf(component)
		of.Images = append(of.Images, kustomize.Image{Name: shippedRegistry + "/" + image, NewName: r.registry + "/" + image, NewTag: r.tag(), Digest: r.digestOf(image)})
	}
	content, err := yaml.Marshal(of)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600); err != nil {
		return err
	}
	// As kubectl kustomize does.
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return err
	}
	if content, err = objects.AsYaml(); err != nil {
		return err
	}
	return r.write(content, r.named("install.yaml"))
}
