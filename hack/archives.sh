#!/bin/sh
# Writes archives of kubectl berth and the manifest by which Krew installs it: archives.sh VERSION DIRECTORY OS/ARCH...
#
# An archive has both programs, the script for completion and the license. The same source and the same Go version give the same archive. GOFLAGS and
# CGO_ENABLED apply to the programs. It needs GNU tar, gzip and sha256sum.
set -eu

version=$1 out=$2
shift 2
case $version in
v[0-9]*.[0-9]*.[0-9]*) ;;
*) echo "VERSION=$version is no version: give one like v1.2.3, because Krew takes no other" >&2; exit 1 ;;
esac
cd "$(dirname "$0")/.."
mkdir -p "$out"
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

manifest=$out/berth.yaml
cat >"$manifest" <<EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: berth
spec:
  version: $version
  homepage: https://github.com/berth-project/berth
  shortDescription: Where the pods of a workload run, how many, and why
  description: |
    Shows per subset of a WorkloadSpread how many pods it holds and what happens next, explains
    why a pod is where it is, and simulates a spread before it is applied. It needs Berth in
    the cluster.
  platforms:
EOF

for platform; do
	os=${platform%/*} arch=${platform#*/}
	name=kubectl-berth-$version-$os-$arch.tar.gz
	dir=$built/$os-$arch
	mkdir "$dir"
	GOOS=$os GOARCH=$arch "${GO:-go}" build -ldflags='-s -w' -o "$dir/" ./cmd/kubectl-berth ./cmd/whatif
	mv "$dir/whatif" "$dir/berth-whatif"
	cp cmd/kubectl-berth/kubectl_complete-berth LICENSE "$dir/"
	chmod 755 "$dir"/*berth* && chmod 644 "$dir/LICENSE"
	tar -C "$dir" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -n >"$out/$name"
	cat >>"$manifest" <<EOF
  - selector:
      matchLabels:
        os: $os
        arch: $arch
    uri: https://github.com/berth-project/berth/releases/download/$version/$name
    sha256: $(sha256sum "$out/$name" | cut -d' ' -f1)
    bin: kubectl-berth
    files:
    - {from: kubectl-berth, to: .}
    - {from: berth-whatif, to: .}
    - {from: LICENSE, to: .}
EOF
done
