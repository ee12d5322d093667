#!/bin/bash
# Builds something that takes minutes: hack/build.sh NAME SECONDS COMMAND... It begins with what it builds, and how long that took the last time on this machine, or else
# that two cores take about SECONDS. COMMAND is `go build -v ...`, which names each package that it compiles. They are counted; what else it prints is shown.
set -euo pipefail

what=$1 seconds=$2
shift 2
times=${XDG_CACHE_HOME:-$HOME/.cache}/berth
record=$times/${what//[^a-zA-Z0-9.]/-}
time="it takes about $(((seconds + 30) / 60)) min on two cores"
if [ -r "$record" ]; then
	read -r seconds <"$record"
	time="it took $((seconds / 60)) min $((seconds % 60)) s the last time"
fi
echo "building $what: $time, and less if parts of it are there"
began=$SECONDS
packages=0
while IFS= read -r line; do
	case $line in
	"failed: "*) exit "${line#failed: }" ;;
	*[!a-zA-Z0-9./_~-]*) printf '%s\n' "$line" ;;
	*)
		packages=$((packages + 1))
		[ $((packages % 200)) -ne 0 ] || echo "  $packages packages are compiled, after $((SECONDS - began)) s"
		;;
	esac
done < <("$@" 2>&1 || echo "failed: $?")
# Where most was there already, it says nothing about the next time.
if [ "$packages" -ge 400 ]; then
	mkdir -p "$times" && echo $((SECONDS - began)) >"$record"
fi
