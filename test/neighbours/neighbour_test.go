package neighbours

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/test/harness"
)

// process is a program of another project, which runs beside Berth. It does not outlive the test program, however that ends.
type process struct {
	name, dir string
	command   *exec.Cmd
	ended     <-chan struct{}
}

// start starts the program from bin/ in place of the one that runs, and returns when it is ready.
func (p *process) start(ctx context.Context, cluster *harness.Cluster, ready string, environment, args []string) error {
	if err := p.launch(ctx, environment, args); err != nil {
		return err
	}
	return p.ready(ctx, cluster, ready)
}

// ready waits until an address answers with 200.
func (p *process) ready(ctx context.Context, cluster *harness.Cluster, address string) error {
	return cluster.WaitFor(ctx, p.name, func(ctx context.Context) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return fmt.Sprintf("%v; its log is %s", err, p.log()), nil
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return response.Status, nil
		}
		return "", nil
	})
}

// launch is start without waiting.
func (p *process) launch(ctx context.Context, environment, args []string) error {
	p.stop()
	file, err := os.Create(p.log())
	if err != nil {
		return err
	}
	defer file.Close() // the process has its own
	p.command = exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(harness.Root(), "bin", p.name), args...)
	p.command.Env = append(os.Environ(), environment...)
	p.command.Stdout, p.command.Stderr = file, file
	p.ended, err = harness.StartForeign(p.command)
	return err
}

// stop ends the program, if it runs.
func (p *process) stop() {
	if p.command != nil && p.command.Process != nil {
		_ = p.command.Process.Kill() // it may have ended
		<-p.ended
	}
}

func (p *process) log() string { return filepath.Join(p.dir, p.name+".log") }

// objectsIn are the objects in the files of a directory. The texts are edited before they are read.
func objectsIn(dir string, edit *strings.Replacer, patterns ...string) (all []*unstructured.Unstructured, _ error) {
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no files %s: %w", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			objects, err := harness.Documents(edit.Replace(string(text)))
			if err != nil {
				return nil, err
			}
			all = append(all, objects...)
		}
	}
	return all, nil
}

// installed applies the objects of another project, and returns a kubeconfig for one of its service accounts.
func installed(ctx context.Context, cluster *harness.Cluster, dir, namespace, account string, objects []*unstructured.Unstructured) (string, error) {
	if _, err := cluster.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	for _, object := range objects {
		in := object.GetNamespace()
		if in == "" {
			in = namespace
		}
		if err := cluster.Apply(ctx, in, object); err != nil {
			return "", fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	kubeconfig := filepath.Join(dir, account+".kubeconfig")
	return kubeconfig, cluster.WriteKubeconfigAs("system:serviceaccount:"+namespace+":"+account, kubeconfig)
}

// served waits until the API server serves a kind.
func served(ctx context.Context, cluster *harness.Cluster, kind schema.GroupVersionKind) error {
	return cluster.WaitFor(ctx, "the kind "+kind.Kind, func(context.Context) (string, error) {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		_, err := cluster.Resource(object, metav1.NamespaceDefault)
		if meta.IsNoMatchError(err) {
			return err.Error(), nil
		}
		return "", err
	})
}

// mount does what a kubelet does with a secret: it waits until the secret has content, and writes that into a directory.
func mount(ctx context.Context, cluster *harness.Cluster, namespace, name, dir string) error {
	return cluster.WaitFor(ctx, "secret "+name, func(ctx context.Context) (string, error) {
		secret, err := cluster.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && len(secret.Data) == 0 {
			return "it has no content", nil
		}
		if err != nil {
			return "", err
		}
		for file, content := range secret.Data {
			if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
				return "", err
			}
		}
		return "", nil
	})
}

// freePorts are ports that are free on loopback.
func freePorts(n int) (ports []int, _ error) {
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // all are held until the last is known
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
