package sandbox

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Names of the control plane's own components, for Status, Signal and Config.Without.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	KWOK              = "kwok"
)

const (
	// CompleteAnnotation set to "true" lets a running pod that is not restarted (a Job's) succeed. Without it the pod runs until it is deleted.
	CompleteAnnotation = "sandbox.berth.dev/complete"
	// NotReadyAnnotation set to "true" on a node makes that node NotReady until the annotation is removed.
	NotReadyAnnotation = "sandbox.berth.dev/not-ready"
)

// Defaults of the fields of Config that have one.
const (
	DefaultName       = "default"
	DefaultBinDir     = "bin"
	DefaultNodeCPU    = "32"
	DefaultNodeMemory = "256Gi"
)

// mostKubelets is more than a machine can run.
const mostKubelets = 50

// DefaultZones are the zones over which Config.Nodes are spread when Config.Zones is empty.
func DefaultZones() []string { return []string{"zone-a", "zone-b", "zone-c"} }

// Config describes a sandbox. Its zero value is a control plane without nodes.
type Config struct {
	// Name distinguishes sandboxes that run at the same time. Defaults to DefaultName.
	Name string
	// Dir holds data, logs and credentials, readable by its owner only. One sandbox at a time may use it. Start empties it of
	// an earlier sandbox's files; Stop leaves the logs. Defaults to .sandbox/<Name>.
	Dir string
	// BinDir holds the binaries of the control plane and of those components that name no path. Defaults to DefaultBinDir.
	BinDir string
	// Kubeconfig is where the administrator's kubeconfig is while the sandbox runs. A file that is not from a sandbox of this name is not
	// overwritten. Defaults to Dir/kubeconfig.
	Kubeconfig string

	// Nodes is how many nodes Start creates, distributed over Zones. Zero means none; see CreateNodes.
	Nodes int
	// Zones defaults to DefaultZones.
	Zones []string
	// NodeCPU and NodeMemory are what each of Nodes can hold, by default DefaultNodeCPU and DefaultNodeMemory.
	NodeCPU, NodeMemory resource.Quantity
	// Kubelets is how many real nodes Start makes beside Nodes, distributed over Zones as well: each has a kubelet and a containerd of its own, and the images of images.go. They
	// have the size of this machine. They need root; Start says what else a machine lacks. The API server reaches their kubelets, for logs and exec. Their pods' addresses can be
	// reached from this machine. Not together with ServiceProxy.
	Kubelets int
	// KubeletBinary is the path of their kubelet, for instance one of an earlier version. Defaults to kubelet in BinDir.
	KubeletBinary string

	// Manifests are YAML, one or more documents each, applied in order once the API server is ready and before Components
	// start. An object is applied after all CustomResourceDefinitions before it are established.
	Manifests [][]byte
	// Components start after Manifests are applied, all at the same time.
	Components []Component
	// Controllers are those of kube-controller-manager that run, by name. Empty means all.
	Controllers []string
	// Without names components, also of the control plane, that are not started.
	Without []string

	// APIServerFlags are given to kube-apiserver besides the sandbox's own, for instance feature gates.
	APIServerFlags []string
	// ControllerManagerFlags are the same for kube-controller-manager.
	ControllerManagerFlags []string
	// ServiceProxy is the Unix socket of an HTTP proxy through which the API server reaches Services, for instance those of webhooks: it asks the
	// proxy to connect to a Service's cluster IP and port. If empty, no Service can be reached.
	ServiceProxy string
	// AuditLog has the API server record every request (metadata only) in the file that Sandbox.AuditLog names.
	AuditLog bool
	// AuditLogPath is that file. Defaults to Dir/audit.log.
	AuditLogPath string
	// Progress receives one line per step. It may be nil.
	Progress io.Writer
}

// Component is a program that runs against the sandbox's API server, each replica as the same user.
type Component struct {
	// Name is what Status, Signal and Config.Without call it.
	Name string
	// Binary is a path, or a file name in Config.BinDir.
	Binary string
	// Replicas is how many run. Zero means one.
	Replicas int
	// User and Groups are the identity of the component for the API server. RBAC decides what it may do.
	User   string
	Groups []string
	// Args returns the command line of one replica. It may write files into the instance's Dir.
	Args func(Instance) ([]string, error)
	// Manifests returns manifests that depend on the ports of a replica, as in Config.Manifests. They are applied before the replica starts. It may
	// be nil.
	Manifests func(Instance) ([][]byte, error)
	// Ready returns the URL that answers 200 once the replica is ready. If it is nil, the replica is ready as soon as it runs. Certificates are not
	// verified, because the address is on loopback.
	Ready func(Instance) string
}

// Instance is what one replica of a component needs to know to start.
type Instance struct {
	Component string
	Replica   int
	// Kubeconfig authenticates as the component's user.
	Kubeconfig string
	// Dir is the replica's own, empty and readable by its owner only.
	Dir string

	ports *ports
}

// Port returns a free port on loopback. It is the same for the same purpose, and differs from those of all other instances. Status shows the first
// one.
func (i Instance) Port(purpose string) int { return i.ports.port(purpose) }

// Address returns 127.0.0.1 with the port for the purpose.
func (i Instance) Address(purpose string) string { return loopback(i.Port(purpose)) }

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$`)

// CheckName says what is wrong with the name of a sandbox. The name is also that of a directory.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("name %q: use lower-case letters, digits and dashes, at most 42", name)
	}
	return nil
}

// complete returns the config with defaults filled in and paths absolute, or every reason why it cannot be used.
func (c Config) complete() (Config, error) {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	c.Name = cmp.Or(c.Name, DefaultName)
	if err := CheckName(c.Name); err != nil {
		problems = append(problems, err)
	}
	if c.Kubelets < 0 || c.Kubelets > mostKubelets {
		problem("kubelets %d: must be from 0 to %d", c.Kubelets, mostKubelets)
	}
	if c.Nodes < 0 {
		problem("nodes %d: must not be negative", c.Nodes)
	}
	if len(c.Zones) == 0 {
		c.Zones = DefaultZones()
	}
	if c.NodeCPU.IsZero() {
		c.NodeCPU = resource.MustParse(DefaultNodeCPU)
	}
	if c.NodeMemory.IsZero() {
		c.NodeMemory = resource.MustParse(DefaultNodeMemory)
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}

	names := []string{Etcd, APIServer, ControllerManager, KWOK}
	if c.Kubelets > 0 {
		names = append(names, Containerd, Kubelet)
	}
	c.Components = slices.Clone(c.Components)
	for i := range c.Components {
		component := &c.Components[i]
		if !validName.MatchString(component.Name) || slices.Contains(names, component.Name) {
			problem("component %q: needs a name of its own of lower-case letters, digits and dashes", component.Name)
		}
		if component.Binary == "" || component.User == "" || component.Args == nil {
			problem("component %q: needs binary, user and args", component.Name)
		}
		if component.Replicas < 0 {
			problem("component %q: replicas %d must not be negative", component.Name, component.Replicas)
		}
		component.Replicas = max(component.Replicas, 1)
		names = append(names, component.Name)
	}
	for _, without := range c.Without {
		if !slices.Contains(names, without) {
			problem("without %q: no such component, there are %s", without, strings.Join(names, ", "))
		}
	}
	if !c.runs(Etcd) || !c.runs(APIServer) {
		problem("without: a sandbox needs %s and %s", Etcd, APIServer)
	}

	var err error
	if c.Dir, err = filepath.Abs(cmp.Or(c.Dir, filepath.Join(".sandbox", c.Name))); err != nil {
		problem("dir: %w", err)
	}
	if c.AuditLogPath, err = filepath.Abs(cmp.Or(c.AuditLogPath, filepath.Join(c.Dir, "audit.log"))); err != nil {
		problem("audit log: %w", err)
	}
	if c.BinDir, err = filepath.Abs(cmp.Or(c.BinDir, DefaultBinDir)); err != nil {
		problem("bin dir: %w", err)
	}
	if c.Kubeconfig, err = filepath.Abs(cmp.Or(c.Kubeconfig, filepath.Join(c.Dir, "kubeconfig"))); err != nil {
		problem("kubeconfig: %w", err)
	}
	return c, errors.Join(problems...)
}

func (c Config) runs(component string) bool { return !slices.Contains(c.Without, component) }

// binary returns where the program of that name is.
func (c Config) binary(name string) string {
	if strings.ContainsRune(name, filepath.Separator) {
		return name
	}
	return filepath.Join(c.BinDir, name)
}

// checkBinaries names all programs that are missing or may not be run.
func (c Config) checkBinaries(parts ...part) error {
	if c.Kubelets > 0 {
		parts = append(parts, part{Component: Component{Binary: containerBinary}})
	}
	var missing []string
	for _, part := range parts {
		path := c.binary(part.Binary)
		if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			missing = append(missing, part.Binary)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s has no %s that may be run: unpack the whole archive of the sandbox again, or in a clone of the repository run `make tools build`",
			c.BinDir, strings.Join(missing, ", "))
	}
	for _, part := range parts {
		path := c.binary(part.Binary)
		if of, own := processorOf(path), processorOf("/proc/self/exe"); of != elf.EM_NONE && own != elf.EM_NONE && of != own {
			return fmt.Errorf("%s is for another processor: unpack berth-sandbox-%s-%s.tar.gz, the archive for this machine", path, runtime.GOOS, runtime.GOARCH)
		}
	}
	return nil
}

// processorOf is the processor for which a program is, and EM_NONE for a script.
func processorOf(path string) elf.Machine {
	file, err := elf.Open(path)
	if err != nil {
		return elf.EM_NONE
	}
	defer file.Close()
	return file.Machine
}
