package main

import (
	"testing"
	"testing/fstest"
)

func TestAMachineWithTooLittleMemoryIsRefused(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	large := file("MemTotal:       24000000 kB\nMemAvailable:   20000000 kB\nSwapFree:              0 kB\n")
	inGroup := file("0::/user.slice/shell\n")
	tests := map[string]struct {
		machine  fstest.MapFS
		clusters int
		want     string
	}{
		"a machine of 1 GiB": {
			fstest.MapFS{"proc/meminfo": file("MemTotal:        1014000 kB\nMemAvailable:     819200 kB\nSwapFree:              0 kB\n")}, 1,
			"a sandbox needs 1024 MiB of memory, and 800 MiB are available: end other programs, or take a larger machine",
		},
		"its swap counts": {fstest.MapFS{"proc/meminfo": file("MemAvailable:     819200 kB\nSwapFree:        409600 kB\n")}, 1, ""},
		"a large machine": {fstest.MapFS{"proc/meminfo": large, "proc/self/cgroup": inGroup, "sys/fs/cgroup/user.slice/memory.max": file("max\n")}, 1, ""},
		"a federation needs more": {
			fstest.MapFS{"proc/meminfo": file("MemAvailable: 3145728 kB\n")}, 4,
			"a sandbox needs 4096 MiB of memory, and 3072 MiB are available: end other programs, or take a larger machine",
		},
		"a container of 1 GiB on a large machine": {
			fstest.MapFS{
				"proc/meminfo": large, "proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("1073741824\n"),
				"sys/fs/cgroup/memory.current": file("536870912\n"), "sys/fs/cgroup/memory.stat": file("anon 1\ninactive_file 268435456\n"),
			}, 1,
			"a sandbox needs 1024 MiB of memory, and 768 MiB are available: end other programs, or take a larger machine",
		},
		"the group of a group has a limit": {
			fstest.MapFS{"proc/meminfo": large, "proc/self/cgroup": inGroup, "sys/fs/cgroup/user.slice/memory.max": file("536870912\n")}, 1,
			"a sandbox needs 1024 MiB of memory, and 512 MiB are available: end other programs, or take a larger machine",
		},
		"nothing is known": {fstest.MapFS{}, 1, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := checkMemory(tc.machine, tc.clusters); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
