package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/test/harness"
)

const berthSystem = "berth-system"

// kubelet runs the pods of berth-system. The nodes are not real, so each pod is one process. It has the arguments, the volumes and the service
// account token of the pod. onThisMachine replaces only what a process cannot have as in a container.
type kubelet struct {
	*cluster
	dir string

	mu   sync.Mutex
	pods map[types.UID]*process
	// dead is true from kill to revive: no process starts.
	dead bool
	// programOf is where the program of an image is, see use.
	programOf func(ctx context.Context, image string) (string, error)
}

// containers counts the started containers. Each has its own loopback address. So all of them can listen on the same ports as in a cluster.
var containers atomic.Int64

func newAddress() string {
	n := containers.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 64+os.Getpid()%128, 1+n/250, 1+n%250)
}

// process is the container of a pod.
type process struct {
	pod     *corev1.Pod
	address string
	// work is the working directory. In an image it is the root directory, and read-only.
	work    string
	logPath string
	stop    context.CancelFunc
	// kill sends SIGKILL.
	kill   func() error
	exited chan struct{}
	// err is the result of the process. Read it only after exited.
	err error
}

// startKubelet runs existing and new pods until the test ends.
func startKubelet(t *testing.T, c *cluster) *kubelet {
	t.Helper()
	k := &kubelet{cluster: c, dir: t.TempDir(), pods: map[types.UID]*process{}}
	ctx, cancel := context.WithCancel(context.Background())
	source := cache.NewListWatchFromClient(c.client.CoreV1().RESTClient(), "pods", berthSystem, fields.Everything())
	consider := func(object any) {
		if err := k.consider(ctx, object.(*corev1.Pod)); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    consider,
			UpdateFunc: func(_, object any) { consider(object) },
			DeleteFunc: func(object any) {
				if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = gone.Obj
				}
				k.end(object.(*corev1.Pod).UID)
			},
		},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		controller.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		k.mu.Lock()
		running := maps.Clone(k.pods)
		k.mu.Unlock()
		for uid := range running {
			k.end(uid)
		}
		for _, p := range running {
			<-p.exited
		}
		if !t.Failed() {
			return
		}
		for _, p := range running {
			t.Logf("log of %s:\n%s", p.pod.Name, tail(p.logPath))
		}
	})
	return k
}

// consider starts a pod once it has a node, and stops a pod that is being deleted.
func (k *kubelet) consider(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		k.end(pod.UID)
		return nil
	}
	k.mu.Lock()
	_, known := k.pods[pod.UID]
	dead := k.dead
	k.mu.Unlock()
	if known || dead || pod.Spec.NodeName == "" {
		return nil
	}
	p, err := k.start(ctx, pod)
	if err != nil && k.isGone(ctx, pod) {
		return nil // with what it needs
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", pod.Name, err)
	}
	k.mu.Lock()
	k.pods[pod.UID] = p
	dead = k.dead
	k.mu.Unlock()
	if dead {
		return p.kill()
	}
	return nil
}

// isGone is true if somebody has deleted the pod.
func (k *kubelet) isGone(ctx context.Context, pod *corev1.Pod) bool {
	now, err := k.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && (now.UID != pod.UID || now.DeletionTimestamp != nil)
}

// kill kills all processes at once, and starts none until revive. Their pods stay, and the cluster takes them for running.
func (k *kubelet) kill(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	k.dead = true
	all := maps.Clone(k.pods)
	k.mu.Unlock()
	for _, p := range all {
		if err := p.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
	}
	for _, p := range all {
		<-p.exited
	}
}

// revive starts processes for new pods again.
func (k *kubelet) revive() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead = false
}

// end sends SIGTERM to a container, which then takes some time to end.
func (k *kubelet) end(uid types.UID) {
	k.mu.Lock()
	p := k.pods[uid]
	k.mu.Unlock()
	if p != nil {
		p.stop()
	}
}

// start runs the pod's only container.
func (k *kubelet) start(ctx context.Context, pod *corev1.Pod) (*process, error) {
	dir := filepath.Join(k.dir, string(pod.UID))
	p := &process{
		pod: pod, logPath: filepath.Join(dir, "log"), work: filepath.Join(dir, "root"), exited: make(chan struct{}),
		address: newAddress(),
	}
	if err := os.MkdirAll(p.work, 0o700); err != nil {
		return nil, err
	}
	if len(pod.Spec.Containers) != 1 || len(pod.Spec.InitContainers) != 0 {
		return nil, fmt.Errorf("%d containers and %d init containers: want one container", len(pod.Spec.Containers), len(pod.Spec.InitContainers))
	}
	container := &pod.Spec.Containers[0]
	environment := []string{"TZ=UTC"}
	for _, variable := range container.Env {
		if from := variable.ValueFrom; from == nil || from.ResourceFieldRef == nil || from.ResourceFieldRef.Resource != "limits.memory" {
			return nil, fmt.Errorf("it has the variable %+v, which nobody here gives to it", variable)
		}
		environment = append(environment, fmt.Sprintf("%s=%d", variable.Name, container.Resources.Limits.Memory().Value()))
	}
	if len(container.Command) != 0 {
		return nil, fmt.Errorf("it has a command %v, which nobody here gives to it", container.Command)
	}
	mounts := map[string]string{} // local directories by their path in the container
	for _, mount := range container.VolumeMounts {
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].Name == mount.Name {
				mounts[mount.MountPath] = filepath.Join(dir, "volumes", mount.Name)
				if err := k.fill(ctx, pod, &pod.Spec.Volumes[i], mounts[mount.MountPath]); err != nil {
					return nil, fmt.Errorf("volume %s: %w", mount.Name, err)
				}
			}
		}
	}
	kubeconfig, err := k.kubeconfigFrom(mounts[serviceAccountMount], filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	binary := imageName(container.Image)
	args, err := onThisMachine(binary, container.Args, mounts, p.address, kubeconfig)
	if err != nil {
		return nil, err
	}
	program, err := k.programFor(ctx, container)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(p.logPath)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(context.Background())
	p.stop = stop
	cmd := exec.CommandContext(running, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = p.work, log, log, environment
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.kill = func() error { return cmd.Process.Kill() }
	started := make(chan error)
	go func() {
		// The kernel sends the parent death signal when the thread that started the process ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	return p, <-started
}

// serviceAccountMount is the path of the token in a container.
const serviceAccountMount = "/var/run/secrets/kubernetes.io/serviceaccount"

// imageName returns the last part of an image's name, without tag and digest.
func imageName(image string) string {
	name, _, _ := strings.Cut(path.Base(image), "@")
	name, _, _ = strings.Cut(name, ":")
	return name
}

// onThisMachine are the arguments of a container, with these replacements:
//   - paths of volumes are directories of the test; that is also true of the certificates' directory, which is an argument only because it is not
//     the default any more;
//   - all addresses are the pod's own on loopback, with the ports that they have in a container;
//   - the API server and the token come from a kubeconfig, because a process cannot have files under /var/run/secrets of its own. The scheduler
//     reads it where its configuration says so.
func onThisMachine(binary string, args []string, mounts map[string]string, address, kubeconfig string) ([]string, error) {
	var here []string
	for _, arg := range args {
		flag, value, hasValue := strings.Cut(arg, "=")
		if !hasValue {
			here = append(here, arg)
			continue
		}
		for mount, dir := range mounts {
			if strings.HasPrefix(value, mount+"/") {
				value = dir + strings.TrimPrefix(value, mount)
			}
		}
		if strings.HasPrefix(value, ":") {
			value = address + value
		}
		here = append(here, flag+"="+value)
	}
	switch binary {
	case "berth-scheduler":
		if err := editYAML(filepath.Join(mounts["/etc/berth"], "scheduler-config.yaml"), func(config map[string]any) {
			connection, _ := config["clientConnection"].(map[string]any)
			config["clientConnection"] = merged(connection, map[string]any{"kubeconfig": kubeconfig})
		}); err != nil {
			return nil, err
		}
		return append(here, "--bind-address="+address, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig), nil
	case "berth-controller":
		here = append(here, "--kubeconfig="+kubeconfig, "--health-probe-bind-address="+net.JoinHostPort(address, "8081"), "--webhook-host="+address)
		const certificates = "/run/berth/webhook-certs" // the default of --cert-dir
		for mount, dir := range mounts {
			if mount == certificates || strings.HasPrefix(certificates, mount+"/") {
				here = append(here, "--cert-dir="+dir+strings.TrimPrefix(certificates, mount))
			}
		}
		return here, nil
	case "berth-descheduler":
		return append(here, "--kubeconfig="+kubeconfig, "--bind-address="+address), nil
	}
	return nil, fmt.Errorf("image %s is none of Berth's", binary)
}

func merged(maps ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, one := range maps {
		for key, value := range one {
			all[key] = value
		}
	}
	return all
}

func editYAML(path string, edit func(map[string]any)) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(content, &fields); err != nil {
		return err
	}
	edit(fields)
	if content, err = yaml.Marshal(fields); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// fill creates a directory with the content of the volume.
func (k *kubelet) fill(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	write := func(name string, content []byte) error { return os.WriteFile(filepath.Join(dir, name), content, 0o600) }
	configMap := func(name string) error {
		// Kubernetes creates a namespace's kube-root-ca.crt a moment after the namespace.
		object, err := untilFound(ctx, k, pod, func(ctx context.Context) (*corev1.ConfigMap, error) {
			return k.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		})
		if err != nil {
			return fmt.Errorf("ConfigMap %s: %w", name, err)
		}
		for key, value := range object.Data {
			err = errors.Join(err, write(key, []byte(value)))
		}
		return err
	}
	switch {
	case volume.EmptyDir != nil:
		return nil
	case volume.ConfigMap != nil:
		return configMap(volume.ConfigMap.Name)
	case volume.Secret != nil:
		object, err := untilFound(ctx, k, pod, func(ctx context.Context) (*corev1.Secret, error) {
			return k.client.CoreV1().Secrets(pod.Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		})
		if err != nil {
			return fmt.Errorf("Secret %s: %w", volume.Secret.SecretName, err)
		}
		for key, value := range object.Data {
			err = errors.Join(err, write(key, value))
		}
		return err
	case volume.Projected != nil:
		for _, source := range volume.Projected.Sources {
			switch {
			case source.ServiceAccountToken != nil:
				token, err := k.token(ctx, pod, source.ServiceAccountToken)
				if err != nil {
					return err
				}
				if err := write(source.ServiceAccountToken.Path, []byte(token)); err != nil {
					return err
				}
			case source.ConfigMap != nil:
				if err := configMap(source.ConfigMap.Name); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return fmt.Errorf("of a kind that is not known here: %+v", volume.VolumeSource)
}

// remount brings the secrets of a pod up to date, as a kubelet does within two minutes.
func (k *kubelet) remount(ctx context.Context, p *process) error {
	for i := range p.pod.Spec.Volumes {
		if volume := &p.pod.Spec.Volumes[i]; volume.Secret != nil {
			if err := k.fill(ctx, p.pod, volume, filepath.Join(filepath.Dir(p.work), "volumes", volume.Name)); err != nil {
				return fmt.Errorf("volume %s: %w", volume.Name, err)
			}
		}
	}
	return nil
}

// untilFound reads an object that a pod needs, and waits until it exists or the pod is gone. Until then no other pod starts.
func untilFound[T any](ctx context.Context, k *kubelet, pod *corev1.Pod, get func(context.Context) (T, error)) (object T, err error) {
	waited := wait.PollUntilContextTimeout(ctx, look, harness.Timeout, true, func(ctx context.Context) (bool, error) {
		object, err = get(ctx)
		return !apierrors.IsNotFound(err) || k.isGone(ctx, pod), nil
	})
	return object, errors.Join(waited, err)
}

// token returns a token of the pod's service account. Like a kubelet's, it is bound to the pod.
func (k *kubelet) token(ctx context.Context, pod *corev1.Pod, of *corev1.ServiceAccountTokenProjection) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: of.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if of.Audience != "" {
		request.Spec.Audiences = []string{of.Audience}
	}
	granted, err := k.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of %s: %w", pod.Spec.ServiceAccountName, err)
	}
	return granted.Status.Token, nil
}

// kubeconfigFrom writes a kubeconfig that contains only the token and the CA in the directory.
func (k *kubelet) kubeconfigFrom(dir, path string) (string, error) {
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: k.RESTConfig().Host, CertificateAuthority: filepath.Join(dir, "ca.crt")}
	config.AuthInfos["pod"] = &clientcmdapi.AuthInfo{Token: string(token)}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "pod"}
	config.CurrentContext = "pod"
	return path, clientcmd.WriteToFile(*config, path)
}

// of returns the processes of a component that were not stopped.
func (k *kubelet) of(component string) []*process {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []*process
	for _, p := range k.pods {
		if p.pod.Labels["app.kubernetes.io/component"] == component {
			all = append(all, p)
		}
	}
	return all
}

// named returns the process of a pod, or nil.
func (k *kubelet) named(name string) *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.pod.Name == name && p.running() {
			return p
		}
	}
	return nil
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// url returns the URL of a probe of the pod, or of another path on a named port.
func (p *process) url(scheme corev1.URIScheme, port, path string) (string, error) {
	for _, declared := range p.pod.Spec.Containers[0].Ports {
		if declared.Name == port {
			if scheme == "" {
				scheme = corev1.URISchemeHTTP
			}
			return fmt.Sprintf("%s://%s:%d%s", strings.ToLower(string(scheme)), p.address, declared.ContainerPort, path), nil
		}
	}
	return "", fmt.Errorf("%s has no port named %q", p.pod.Name, port)
}

func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-6000):])
}
