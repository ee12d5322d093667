package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// footprint is what the real nodes of the sandbox in a directory use of this machine outside of that directory: a bridge and cgroups, which have a hash of the
// directory in their names, and processes and mounts, which have the directory in their arguments and paths. Containers outlive a sandbox that is killed until its cleaner has ended them. The bridge is made
// first and removed last, so nothing is left where there is no bridge.
type footprint struct {
	// dir is absolute.
	dir string
}

// cleanTimeout bounds how long killed processes may take to go.
const cleanTimeout = 20 * time.Second

// CleanUp removes what real nodes of a sandbox in that directory have left on this machine because it was killed together with its cleaner. It returns ErrInUse if the sandbox runs.
func CleanUp(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if !(footprint{dir}).exists() {
		return nil
	}
	lock, err := lockDir(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	return footprint{dir}.cleanUp()
}

// id is short enough for the name of a bridge.
func (f footprint) id() string { return "berth-" + hex.EncodeToString(f.sum()[:4]) }

func (f footprint) sum() []byte {
	sum := sha256.Sum256([]byte(f.dir))
	return sum[:]
}

// cgroup is the cgroup of one node, in all hierarchies.
func (f footprint) cgroup(replica int) string {
	return fmt.Sprintf("/%s/%s", f.id(), KubeletNode(replica))
}

func (f footprint) exists() bool {
	_, err := os.Stat("/sys/class/net/" + f.id())
	return err == nil
}

// establish makes the bridge with the addresses of the nodes, and their cgroups.
func (f footprint) establish(ctx context.Context, nodes int) (network, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return 0, err
	}
	network, err := freeNetwork(f.sum()[4], addresses)
	if err != nil {
		return 0, err
	}
	if err := run(ctx, "ip", "link", "add", f.id(), "type", "bridge"); err != nil {
		return 0, err
	}
	for replica := range nodes {
		if err := run(ctx, "ip", "address", "add", network.address(0, replica+1)+"/16", "dev", f.id()); err != nil {
			return 0, err
		}
	}
	if err := run(ctx, "ip", "link", "set", f.id(), "up"); err != nil {
		return 0, err
	}
	mounts, err := cgroupMounts()
	if err != nil {
		return 0, err
	}
	for _, mount := range mounts {
		for replica := range nodes {
			path := filepath.Join(mount, f.cgroup(replica))
			if err := os.MkdirAll(path, 0o755); err != nil {
				return 0, err
			}
			if err := delegate(mount, filepath.Join(mount, f.id())); err != nil {
				return 0, err
			}
		}
	}
	return network, nil
}

// delegate lets the children of cgroups have all controllers that the first one has. In version 1 each hierarchy has its own, and there is nothing to do.
func delegate(groups ...string) error {
	controllers, err := os.ReadFile(filepath.Join(groups[0], "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, group := range groups {
		for _, controller := range strings.Fields(string(controllers)) {
			if err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+controller), 0o644); err != nil { //nolint:gosec // the kernel's file
				return fmt.Errorf("letting cgroups below %s use %s: %w", group, controller, err)
			}
		}
	}
	return nil
}

// cleanUp removes everything, and the directories of the components. It may be called again after an error.
func (f footprint) cleanUp() error {
	if !f.exists() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	if err := f.killAll(ctx); err != nil {
		return fmt.Errorf("killing what is left of containers: %w", err)
	}
	// What is mounted must be gone before anybody removes the directory with all that is in it.
	if err := f.unmountAll(); err != nil {
		return err
	}
	if err := f.removeCgroups(ctx); err != nil {
		return fmt.Errorf("removing cgroups: %w", err)
	}
	f.removeStrayFiles()
	if err := os.RemoveAll(filepath.Join(f.dir, "instances")); err != nil {
		return err
	}
	return run(ctx, "ip", "link", "delete", f.id())
}

// killAll returns when no process of a container, and none that looked after one, is left.
func (f footprint) killAll(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return false, err
		}
		none := true
		for _, entry := range entries {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil || !f.owns(pid) {
				continue
			}
			none = false
			process, err := os.FindProcess(pid)
			if err != nil {
				return false, err
			}
			// The handle is of whoever has the number now, and is used only if that is a process of the footprint.
			if f.owns(pid) {
				if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
					return false, err
				}
			}
			_ = process.Release()
		}
		return none, nil
	})
}

// owns is true if the process is in one of the cgroups, or is a program of a node with the directory in its arguments. A zombie has no arguments, and is out of its cgroup.
func (f footprint) owns(pid int) bool {
	proc := fmt.Sprintf("/proc/%d/", pid)
	cgroups, _ := os.ReadFile(proc + "cgroup") // it may be gone
	if bytes.Contains(cgroups, []byte(":/"+f.id()+"/")) {
		stat, _ := os.ReadFile(proc + "stat")
		_, state, _ := bytes.Cut(stat, []byte(") "))
		return !bytes.HasPrefix(state, []byte("Z"))
	}
	line, _ := os.ReadFile(proc + "cmdline")
	program, args, _ := bytes.Cut(line, []byte{0})
	name := filepath.Base(string(program))
	return (name == "runc" || name == Kubelet || strings.HasPrefix(name, Containerd)) && bytes.Contains(args, []byte(f.dir+"/instances/"))
}

// unmountAll unmounts what is mounted below the directory, the innermost first.
func (f footprint) unmountAll() error {
	mounts, err := readMounts()
	if err != nil {
		return err
	}
	dir := f.dir
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	for _, mount := range slices.Backward(mounts) {
		if !strings.HasPrefix(mount.path, dir+"/instances/") {
			continue
		}
		if err := syscall.Unmount(mount.path, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmounting %s: %w", mount.path, err)
		}
	}
	return nil
}

// removeCgroups returns when the cgroups are gone. The kernel keeps a cgroup until all of its processes have ended.
func (f footprint) removeCgroups(ctx context.Context) error {
	mounts, err := cgroupMounts()
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		last = nil
		for _, mount := range mounts {
			last = errors.Join(last, removeDirs(filepath.Join(mount, f.id())))
		}
		return last == nil, nil
	})
	return errors.Join(err, last)
}

// removeDirs removes a directory and those below it, in which the kernel has files that cannot be removed.
func removeDirs(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeDirs(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return syscall.Rmdir(dir)
}

// removeStrayFiles removes files that containerd, kubelets and the network's plugins write at fixed places. They harm nobody, so it is no error if one stays.
func (f footprint) removeStrayFiles() {
	remove := func(pattern string, owns func(path string) (string, bool)) {
		paths, _ := filepath.Glob(pattern) // the patterns are right
		for _, path := range paths {
			if stray, ok := owns(path); ok {
				_ = os.Remove(stray)
			}
		}
	}
	// The sockets of shims.
	remove(filepath.Join(f.dir, "instances", Containerd+"-*", "state/io.containerd.runtime.v2.task/k8s.io/*/address"), func(path string) (string, bool) {
		address, err := os.ReadFile(path)
		socket, isSocket := strings.CutPrefix(string(address), "unix://")
		return socket, err == nil && isSocket
	})
	// Links to logs.
	remove("/var/log/containers/*", func(path string) (string, bool) {
		target, err := os.Readlink(path)
		return path, err == nil && strings.HasPrefix(target, f.dir+"/")
	})
	// What the network's plugins remember, of the pods' network and of their loopback.
	remove("/var/lib/cni/results/"+f.id()+"-*", func(path string) (string, bool) { return path, true })
	remove(filepath.Join(f.dir, "instances", Containerd+"-*", "root/io.containerd.grpc.v1.cri/sandboxes/*"), func(path string) (string, bool) {
		return fmt.Sprintf("/var/lib/cni/results/cni-loopback-%s-lo", filepath.Base(path)), true
	})
}

type mount struct{ path, kind string }

// readMounts returns the mounts that this process sees, in the order of mounting.
func readMounts() ([]mount, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var mounts []mount
	for line := range strings.Lines(string(content)) {
		before, after, _ := strings.Cut(line, " - ")
		fields, of := strings.Fields(before), strings.Fields(after)
		if len(fields) > 4 && len(of) > 0 {
			mounts = append(mounts, mount{path: strings.ReplaceAll(fields[4], `\040`, " "), kind: of[0]})
		}
	}
	return mounts, nil
}

// cgroupMounts are the roots of all hierarchies of cgroups.
func cgroupMounts() ([]string, error) {
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var roots []string
	for _, mount := range mounts {
		if mount.kind == "cgroup" || mount.kind == "cgroup2" {
			roots = append(roots, mount.path)
		}
	}
	return roots, nil
}
