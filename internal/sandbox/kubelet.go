package sandbox

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
)

// Names of the components of real nodes, for Status, Signal and Halt. Each node is a replica of both, and has the name of the kubelet's replica: KubeletNode.
const (
	Kubelet    = "kubelet"
	Containerd = "containerd"
)

// KubeletLabel is the label of nodes that says who runs their pods: kubelet or kwok.
const KubeletLabel = "type"

// KubeletNode is the name of the real node of that number, from 0.
func KubeletNode(replica int) string { return fmt.Sprintf("%s-%d", Kubelet, replica) }

//go:embed containerd.toml
var containerdConfig string

//go:embed kubelet.yaml
var kubeletConfig string

//go:embed network.conf
var networkConfig string

// pluginDirs are where distributions have plugins of the container network.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

func pluginDir() string {
	for _, dir := range pluginDirs {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return ""
}

// longestDir is how long the path of a sandbox with kubelets may be: a kubelet's sockets lie in it, and their paths are limited to 107 bytes.
const longestDir = 107 - len("/instances/kubelet-00/device-plugins/kubelet.sock")

// checkMachine says in one line all that this machine lacks to run kubelets.
func (c Config) checkMachine() error {
	if c.Kubelets == 0 {
		return nil
	}
	var lacks []string
	if os.Geteuid() != 0 {
		lacks = append(lacks, "the rights of root")
	} else if !mayMount() {
		lacks = append(lacks, "the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN")
	}
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, program)
		}
	}
	if pluginDir() == "" {
		lacks = append(lacks, "bridge in "+strings.Join(pluginDirs, " or "))
	}
	if _, err := os.Stat("/dev/kmsg"); err != nil {
		lacks = append(lacks, "/dev/kmsg")
	}
	if mounts, err := cgroupMounts(); err != nil || len(mounts) == 0 {
		lacks = append(lacks, "mounted cgroups")
	}
	if len(c.Dir) > longestDir {
		lacks = append(lacks, fmt.Sprintf("a directory of at most %d characters for the sandbox", longestDir))
	}
	if len(lacks) > 0 {
		return fmt.Errorf("this machine cannot run kubelets, it lacks %s: `make kubelet` installs Debian's packages", strings.Join(lacks, ", "))
	}
	return nil
}

// mayMount is true if this process has the capabilities for mounts and networks.
func mayMount() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	_, effective, _ := strings.Cut(string(status), "CapEff:")
	var bits uint64
	if _, err := fmt.Sscanf(effective, "%x", &bits); err != nil {
		return false
	}
	const sysAdmin, netAdmin = 1 << 21, 1 << 12
	return bits&sysAdmin != 0 && bits&netAdmin != 0
}

// KubeletDir has config.yaml, which the kubelet of that real node reads when it starts, and static-pods, a directory for files of pods that it runs by itself.
func (s *Sandbox) KubeletDir(replica int) string { return s.instanceDir(Kubelet, replica) }

func (s *Sandbox) containerdSocket(replica int) string {
	return filepath.Join(s.instanceDir(Containerd, replica), "containerd.sock")
}

func (s *Sandbox) containerd() part {
	return part{
		Component: Component{
			Name: Containerd, Replicas: s.config.Kubelets, Binary: "/usr/bin/env",
			Args: func(in Instance) ([]string, error) {
				network := filepath.Join(in.Dir, "network")
				if err := os.Mkdir(network, 0o700); err != nil && !os.IsExist(err) {
					return nil, err
				}
				// A pod has an address of the bridge's network, which all nodes share. Each node has 256 addresses of its own.
				pods := fmt.Sprintf(networkConfig, s.footprint.id()+"-"+KubeletNode(in.Replica), s.footprint.id(), filepath.Join(in.Dir, "addresses"),
					s.network.String(), s.network.address(in.Replica+1, 1), s.network.address(in.Replica+1, 254))
				if err := os.WriteFile(filepath.Join(network, "10-bridge.conf"), []byte(pods), 0o600); err != nil {
					return nil, err
				}
				config := filepath.Join(in.Dir, "config.toml")
				content := fmt.Sprintf(containerdConfig, in.Dir, PauseImage, pluginDir(), network)
				return []string{"containerd", "--config=" + config}, os.WriteFile(config, []byte(content), 0o600)
			},
		},
		probe: func(in Instance) func(context.Context) error {
			return func(ctx context.Context) error {
				return exec.CommandContext(ctx, "ctr", "--address="+s.containerdSocket(in.Replica), "version").Run()
			}
		},
	}
}

func (s *Sandbox) kubelet() part {
	return part{
		eachUser: true,
		Component: Component{
			Name: Kubelet, Replicas: s.config.Kubelets, Binary: cmp.Or(s.config.KubeletBinary, Kubelet), User: "system:node:" + Kubelet, Groups: []string{"system:nodes"},
			Args: func(in Instance) ([]string, error) {
				health, secure := in.Port(healthPort), in.Port(securePort)
				address := s.network.address(0, in.Replica+1)
				if err := os.MkdirAll(filepath.Join(in.Dir, "static-pods"), 0o700); err != nil {
					return nil, err
				}
				config := filepath.Join(in.Dir, "config.yaml")
				content := fmt.Sprintf(kubeletConfig, address, secure, health, s.credentials.caFile(),
					s.footprint.cgroup(in.Replica), s.containerdSocket(in.Replica), in.Dir)
				return []string{
					"--config=" + config,
					"--kubeconfig=" + in.Kubeconfig,
					"--root-dir=" + in.Dir,
					"--cert-dir=" + filepath.Join(in.Dir, "pki"),
					"--hostname-override=" + KubeletNode(in.Replica),
					"--node-ip=" + address,
					fmt.Sprintf("--node-labels=%s=%s,topology.kubernetes.io/region=local,topology.kubernetes.io/zone=%s",
						KubeletLabel, Kubelet, s.config.Zones[in.Replica%len(s.config.Zones)]),
				}, os.WriteFile(config, []byte(content), 0o600)
			},
			Ready: func(in Instance) string { return "http://" + in.Address(healthPort) + "/healthz" },
		},
	}
}

// importImages gives every real node the images of the sandbox, so that nothing is pulled.
func (s *Sandbox) importImages(ctx context.Context) error {
	if s.config.Kubelets == 0 {
		return nil
	}
	program, err := os.ReadFile(s.config.binary(containerBinary))
	if err != nil {
		return err
	}
	archive := filepath.Join(s.config.Dir, "instances", "images.tar")
	if err := writeImages(archive, program); err != nil {
		return err
	}
	importing, importCtx := errgroup.WithContext(ctx)
	for replica := range s.config.Kubelets {
		importing.Go(func() error {
			return run(importCtx, "ctr", "--address="+s.containerdSocket(replica), "--namespace=k8s.io", "images", "import", "--snapshotter=native", archive)
		})
	}
	return importing.Wait()
}

// awaitKubelets returns when pods can run on the real nodes.
func (s *Sandbox) awaitKubelets(ctx context.Context) error {
	if s.config.Kubelets == 0 || !s.config.runs(Kubelet) {
		return nil
	}
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		return err
	}
	var names []string
	for replica := range s.config.Kubelets {
		names = append(names, KubeletNode(replica))
	}
	return s.awaitUsable(ctx, client, names...)
}

// run runs a program, whose output is part of the error.
func run(ctx context.Context, program string, args ...string) error {
	if output, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// network is the network of the nodes and pods of a sandbox: 10.N.0.0/16, where no other network of this machine is. 10.N.0.R+1 is the node of replica R,
// and 10.N.R+1.0/24 are its pods.
type network byte

func (n network) String() string { return fmt.Sprintf("10.%d.0.0/16", n) }

func (n network) address(third, fourth int) string {
	return fmt.Sprintf("10.%d.%d.%d", n, third, fourth)
}

// errNoNetwork is why a machine with very many networks runs no kubelets.
var errNoNetwork = errors.New("no network between 10.128.0.0/16 and 10.227.0.0/16 is free")

// freeNetwork returns a network that has nothing in common with those of the addresses. It begins to look at the one that the seed gives.
func freeNetwork(seed byte, addresses []net.Addr) (network, error) {
	for i := range 100 {
		candidate := network(128 + (int(seed)+i)%100)
		_, subnet, err := net.ParseCIDR(candidate.String())
		if err != nil {
			return 0, err
		}
		taken := false
		for _, address := range addresses {
			if used, ok := address.(*net.IPNet); ok {
				taken = taken || subnet.Contains(used.IP) || used.Contains(subnet.IP)
			}
		}
		if !taken {
			return candidate, nil
		}
	}
	return 0, errNoNetwork
}
