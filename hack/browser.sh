#!/bin/sh
# Finds a browser for the tests of the web page: the one that BERTH_BROWSER names, or one on the PATH. If there is none, it installs the package chromium on
# Debian, as root or with sudo. On other systems it says what to do.
set -eu

if [ -n "${BERTH_BROWSER:-}" ]; then
	command -v "$BERTH_BROWSER" >/dev/null || { echo "BERTH_BROWSER=$BERTH_BROWSER is not a program" >&2; exit 1; }
	exit 0
fi
for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
	if command -v "$name" >/dev/null; then
		exit 0
	fi
done

as_root=
if [ "$(id -u)" != 0 ]; then
	as_root="sudo -n"
fi
if ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! $as_root true 2>/dev/null; }; then
	echo "found no browser for the tests of the page: install Chromium (Debian: sudo apt-get install chromium), or set BERTH_BROWSER to one" >&2
	exit 1
fi
# The package lists may be missing, or name a version that no longer exists.
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends chromium >/dev/null
