package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// memoryOfCluster is what a control plane with Berth and its first nodes may take, in bytes.
const memoryOfCluster = 1 << 30

// unwritable says what to do about an error with the directory of a sandbox.
func unwritable(err error) error {
	return fmt.Errorf("%w: a sandbox keeps its files in %s of the working directory: go to a directory that you may write to", err, baseDir)
}

// checkMemory refuses a machine on which the kernel would soon kill a component of so many clusters. If the machine
// does not say how much it has, that is enough.
func checkMemory(root fs.FS, clusters int) error {
	available, known := availableMemory(root)
	if need := clusters * memoryOfCluster; known && available < need {
		return fmt.Errorf("a sandbox needs %d MiB of memory, and %d MiB are available: end other programs, or take a larger machine", need>>20, max(available, 0)>>20)
	}
	return nil
}

// availableMemory is what programs may still take, in bytes: of the machine, and of each control group that this
// process is in.
func availableMemory(root fs.FS) (int, bool) {
	machine := numbers(root, "proc/meminfo")
	available, known := machine["MemAvailable:"]
	available = (available + machine["SwapFree:"]) << 10
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return available, known
	}
	for line := range strings.Lines(string(groups)) {
		group, unified := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for unified {
			dir := path.Join("sys/fs/cgroup", group)
			if limit, limited := number(root, path.Join(dir, "memory.max")); limited {
				used, _ := number(root, path.Join(dir, "memory.current"))
				left := limit - used + numbers(root, path.Join(dir, "memory.stat"))["inactive_file"]
				if !known || left < available {
					available, known = left, true
				}
			}
			unified = group != "/" && group != "."
			group = path.Dir(group)
		}
	}
	return available, known
}

// numbers reads a file with a name and a number in each line. Without the file there are none.
func numbers(root fs.FS, file string) map[string]int {
	content, _ := fs.ReadFile(root, file)
	all := map[string]int{}
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			if n, err := strconv.Atoi(fields[1]); err == nil {
				all[fields[0]] = n
			}
		}
	}
	return all
}

// number reads a file with a number. It returns false without the file, and for the limit "max".
func number(root fs.FS, file string) (int, bool) {
	content, err := fs.ReadFile(root, file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	return n, err == nil
}

// thisMachine is where checkMemory reads.
func thisMachine() fs.FS { return os.DirFS("/") }
