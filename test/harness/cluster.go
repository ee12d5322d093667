// Package harness puts Berth on a sandbox. Tests, the demo and the benchmarks share it.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

const (
	// Timeout bounds every wait for the cluster. It is long because the machine may be busy. A test that passes does not wait this long.
	Timeout = 90 * time.Second
	// look is the polling interval for conditions that involve several objects, which no single watch covers.
	look = 100 * time.Millisecond

	fieldManager = "berth-test"
)

// Root is the directory of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Line is an environment variable that names the line of Kubernetes that tests run, as a directory of hack/lines; see make test-line. If it is not set,
// they run the line of go.mod.
const Line = "BERTH_LINE"

// BinDir holds the binaries of the line.
func BinDir() string {
	return filepath.Join(Root(), "bin", os.Getenv(Line))
}

// Cluster is a sandbox with Berth on it, and clients with all rights.
type Cluster struct {
	Sandbox *sandbox.Sandbox
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// AuditDir is an environment variable that names a directory for the audit logs of sandboxes. Each sandbox writes its own file; see make test-rights.
const AuditDir = "BERTH_AUDIT_DIR"

// Audited returns the config with an audit log in AuditDir. If the variable is not set, it returns the config unchanged.
func Audited(config sandbox.Config) sandbox.Config {
	if dir := os.Getenv(AuditDir); dir != "" {
		config.AuditLog, config.AuditLogPath = true, filepath.Join(dir, fmt.Sprintf("%s-%d.log", config.Name, time.Now().UnixNano()))
	}
	return config
}

// Compatibility is that of the sandboxes of a test run, from the environment variable BERTH_COMPATIBILITY; see make test-compatibility. Empty means none.
func Compatibility() v1beta1.Compatibility {
	return v1beta1.Compatibility(os.Getenv("BERTH_COMPATIBILITY"))
}

// WithoutController are the components that a test of the scheduler alone leaves out. With Compatibility it leaves out none, because admission picks the
// subsets.
func WithoutController(more ...string) []string {
	if Compatibility() != "" {
		return more
	}
	return append(more, product.Controller)
}

// Start starts a sandbox with Berth on it, from the binaries in bin. The caller stops it.
func Start(ctx context.Context, config sandbox.Config, options product.Options) (*Cluster, error) {
	return StartBehind(ctx, config, options, nil)
}

// StartBehind is Start with some components behind proxies.
func StartBehind(ctx context.Context, config sandbox.Config, options product.Options, behind map[string]*Proxy) (*Cluster, error) {
	config.BinDir = BinDir()
	if slices.Contains(config.Without, product.Controller) {
		definitions, err := convert()
		if err != nil {
			return nil, err
		}
		config.Manifests = slices.Concat(definitions, config.Manifests)
	}
	if options.Compatibility == "" {
		options.Compatibility = Compatibility()
	}
	config, err := product.Compose(Audited(config), options)
	if err != nil {
		return nil, err
	}
	for i, component := range config.Components {
		if proxy := behind[component.Name]; proxy != nil {
			config.Components[i] = proxy.Behind(component)
		}
	}
	s, err := sandbox.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	c, err := Of(s)
	if err == nil {
		err = c.awaitConversion(ctx)
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return c, nil
}

// Of is the cluster of a sandbox that runs.
func Of(s *sandbox.Sandbox) (*Cluster, error) {
	c := &Cluster{Sandbox: s}
	var err error
	if c.Client, err = kubernetes.NewForConfig(s.RESTConfig()); err == nil {
		c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Client.Discovery()))
		c.Dynamic, err = dynamic.NewForConfig(s.RESTConfig())
	}
	return c, err
}

// As returns a client with this user name and these groups.
func (c *Cluster) As(user string, groups ...string) (kubernetes.Interface, error) {
	config := rest.CopyConfig(c.Sandbox.RESTConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	return kubernetes.NewForConfig(config)
}

// AsKubelet returns a client that may do everything, and that Berth takes for the kubelet of a node.
func (c *Cluster) AsKubelet(node string) (kubernetes.Interface, error) {
	return c.As("system:node:"+node, "system:nodes", "system:masters")
}

// WriteKubeconfigAs writes a kubeconfig with which a program is a service account of Berth.
func (c *Cluster) WriteKubeconfigAs(user, path string) error {
	config := c.Sandbox.RESTConfig()
	file := clientcmdapi.NewConfig()
	file.Clusters["sandbox"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile}
	file.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientCertificate: config.CertFile, ClientKeyData: config.KeyData, ClientKey: config.KeyFile, Token: config.BearerToken,
		Impersonate: user, ImpersonateGroups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"},
	}
	file.Contexts["sandbox"] = &clientcmdapi.Context{Cluster: "sandbox", AuthInfo: "user"}
	file.CurrentContext = "sandbox"
	return clientcmd.WriteToFile(*file, path)
}

// CreateNamespace creates a namespace with a generated name that begins with the prefix.
func (c *Cluster) CreateNamespace(ctx context.Context, prefix string) (string, error) {
	object, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return object.Name, nil
}

// DeleteNamespace returns when the namespace has no pods, so that the caller can delete their nodes. Kubernetes deletes everything else later.
// DeleteNamespace deletes the workloads itself, because the namespace controller begins only after 5 seconds.
func (c *Cluster) DeleteNamespace(ctx context.Context, namespace string) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	all := metav1.ListOptions{}
	// First what would make its children again.
	if err := c.Dynamic.Resource(unitedv1beta1.Resource).Namespace(namespace).DeleteCollection(ctx, options, all); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err := errors.Join(
		c.Client.AppsV1().Deployments(namespace).DeleteCollection(ctx, options, all),
		c.Client.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, options, all),
		c.Client.AppsV1().StatefulSets(namespace).DeleteCollection(ctx, options, all),
		c.Client.BatchV1().Jobs(namespace).DeleteCollection(ctx, options, all),
		c.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, options, all)); err != nil {
		return err
	}
	if err := c.WaitFor(ctx, "the pods of the namespace to be gone", func(ctx context.Context) (string, error) {
		pods, err := c.Pods(ctx, namespace)
		if err != nil || len(pods) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d pods are left", len(pods)), nil
	}); err != nil {
		return err
	}
	return c.Client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
}

// DeleteNodes deletes nodes. It ignores nodes that do not exist.
func (c *Cluster) DeleteNodes(ctx context.Context, nodes []*corev1.Node) error {
	var errs []error
	for _, node := range nodes {
		if err := c.Client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Resource returns the client for the kind of an object. The client uses the namespace if the kind is namespaced.
func (c *Cluster) Resource(object *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	gvk := object.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset()
		mapping, err = c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.Dynamic.Resource(mapping.Resource), nil
	}
	return c.Dynamic.Resource(mapping.Resource).Namespace(namespace), nil
}

// Apply applies an object with server-side apply and strict validation: an unknown field is an error. It waits until pods may use a PriorityClass: the API
// server refuses them while its cache does not have the class.
func (c *Cluster) Apply(ctx context.Context, namespace string, object *unstructured.Unstructured) error {
	client, err := c.Resource(object, namespace)
	if err != nil {
		return err
	}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, object.GetName(), types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: fieldManager, Force: ptr.To(true), FieldValidation: metav1.FieldValidationStrict})
	if err != nil || object.GetKind() != "PriorityClass" {
		return err
	}
	return c.WaitFor(ctx, "pods to be allowed to have PriorityClass "+object.GetName(), func(ctx context.Context) (string, error) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "priority-"},
			Spec:       corev1.PodSpec{PriorityClassName: object.GetName(), Containers: []corev1.Container{{Name: "main", Image: "main"}}},
		}
		_, err := c.Client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) {
			return err.Error(), nil
		}
		return "", err
	})
}

// ApplyYAML applies every document of a text.
func (c *Cluster) ApplyYAML(ctx context.Context, namespace, text string) error {
	objects, err := Documents(text)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := c.Apply(ctx, namespace, object); err != nil {
			return fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Documents parses the documents of a YAML text.
func Documents(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("parsing YAML: %w", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// Unstructured returns an object as a user writes it, without the fields that the API server fills in.
func Unstructured(object k8sruntime.Object) (*unstructured.Unstructured, error) {
	content, err := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: content}, nil
}

// WaitFor polls the condition until it returns an empty string. The string says what is missing.
func (c *Cluster) WaitFor(ctx context.Context, what string, condition func(context.Context) (missing string, err error)) error {
	if err := WaitFor(ctx, what, condition); err != nil {
		return fmt.Errorf("%w\n%s", err, c.warnings())
	}
	return nil
}

// WaitFor waits until the condition misses nothing, at most Timeout. It ends with the condition's first error. The error says what was missing last.
func WaitFor(ctx context.Context, what string, condition func(context.Context) (missing string, err error)) error {
	var last string
	err := wait.PollUntilContextTimeout(ctx, look, Timeout, true, func(ctx context.Context) (bool, error) {
		missing, err := condition(ctx)
		if err != nil {
			return false, err
		}
		last = missing
		return missing == "", nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w\n%s", what, err, last)
	}
	return nil
}

// warnings returns the last 10 warning events of the cluster. Failure messages include them.
func (c *Cluster) warnings() string {
	list, err := c.Client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{FieldSelector: "type=Warning"})
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	for _, e := range list.Items[max(0, len(list.Items)-10):] {
		fmt.Fprintf(&b, "event %s/%s %s: %s\n", e.Namespace, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return b.String()
}

// Pods lists the pods of a namespace.
func (c *Cluster) Pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Spread reads a WorkloadSpread.
func (c *Cluster) Spread(ctx context.Context, namespace, name string) (*v1beta1.WorkloadSpread, error) {
	object, err := c.Dynamic.Resource(v1beta1.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	spread := &v1beta1.WorkloadSpread{}
	return spread, k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, spread)
}
