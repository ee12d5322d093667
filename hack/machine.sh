#!/bin/sh
# Says in one line what this machine lacks to build Berth and its control plane, before minutes are spent. It changes nothing.
set -eu

lacks() {
	echo "this machine cannot build Berth: $1" >&2
	exit 1
}

system=$(uname -s)
[ "$system" = Linux ] || lacks "it runs $system, and the control plane of the tests needs Linux: use a Linux machine, or a virtual one"
machine=$(uname -m)
case "$machine" in
x86_64 | aarch64 | arm64) ;;
*) lacks "its processor is $machine, and Kubernetes is tested on x86_64 and aarch64 only" ;;
esac

command -v go >/dev/null || lacks "Go is not on the PATH: install Go 1.26 from https://go.dev/dl"
version=$(go env GOVERSION)
minor=${version#go1.}
minor=${minor%%[!0-9]*}
if [ -n "$minor" ] && [ "$version" != "$minor" ] && [ "$minor" -lt 26 ]; then
	lacks "it has $version, and the program that simulates nodes needs Go 1.26: install it from https://go.dev/dl"
fi
compiler=$(go env CC)
command -v "${compiler%% *}" >/dev/null || lacks "there is no C compiler $compiler: install one (Debian: apt-get install gcc libc6-dev), or set CC"

# The build cache takes 5 GiB for one line of Kubernetes and 9 for two, the modules 3, and the binaries 1.
cache=$(go env GOCACHE)
while [ ! -d "$cache" ]; do cache=$(dirname "$cache"); done
for directory in "$cache" .; do
	free=$(df -Pk "$directory" | awk 'NR == 2 {print $4}')
	[ "$free" -ge 4194304 ] || lacks "the disk of $(cd "$directory" && pwd) has $((free / 1024)) MiB left, and the build needs 4 GiB: make room, or set GOCACHE to a directory elsewhere"
done
# A link of the control plane takes 2 GiB, and one of the scheduler beside it 1.
memory=$(awk '/^MemTotal:/ {print $2}' "${MEMINFO:-/proc/meminfo}")
[ "$memory" -ge 3670016 ] || lacks "it has $((memory / 1024)) MiB of memory, and linking takes 3.5 GiB"
