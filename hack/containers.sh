#!/bin/sh
# Finds what the real nodes of a sandbox need beside the kubelet: containerd, runc, plugins of the container network, and ip. What is missing it installs from
# Debian's packages, as root or with sudo. On other systems it says what to do. It starts nothing.
#
# With the argument "run" it first says in one line why this user cannot run nodes on this machine, and installs nothing then.
set -eu

lacks() {
	echo "this machine cannot run kubelets, it lacks $1" >&2
	exit 1
}

if [ "${1:-}" = run ]; then
	[ "$(id -u)" = 0 ] || lacks "the rights of root"
	unshare --mount --net true 2>/dev/null || lacks "the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN"
	[ -e /dev/kmsg ] || lacks "/dev/kmsg"
	awk '$3 ~ /^cgroup2?$/ {print $2}' /proc/mounts | while read -r path; do [ -w "$path" ] || exit 1; done || lacks "cgroups that may be written"
fi

packages=
for pair in containerd:containerd runc:runc ip:iproute2; do
	command -v "${pair%:*}" >/dev/null || packages="$packages ${pair#*:}"
done
[ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] || packages="$packages containernetworking-plugins"
if [ -z "$packages" ]; then
	exit 0
fi

as_root=
if [ "$(id -u)" != 0 ]; then
	as_root="sudo -n"
fi
if ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! $as_root true 2>/dev/null; }; then
	lacks "these packages, by Debian's names:$packages"
fi
# The package lists may be missing, or name a version that no longer exists.
$as_root apt-get update -qq
# Debian would start a containerd for the whole machine, if systemd runs. A sandbox has its own.
# shellcheck disable=SC2086 # a list of packages
DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $as_root apt-get install -y -qq --no-install-recommends $packages >/dev/null
