package integration

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
	"strings"
	"syscall"
	"testing"
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
	"k8s.io/client-go/restmapper"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/sandbox"
	"github.com/berth-project/berth/test/checker"
)

const (
	// patience bounds every wait for the cluster. It is long because the machine may be busy, and nothing depends on it when all is well.
	patience = 90 * time.Second
	// look is how often a condition is looked at that needs several objects and so has no single watch.
	look = 50 * time.Millisecond

	fieldManager = "berth-test"
)

// the is the cluster that all tests share.
var the *cluster

type cluster struct {
	sandbox *sandbox.Sandbox
	client  kubernetes.Interface
	dynamic dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	checker *checker.Checker
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "berth-integration-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, keepLogsIf(code != 0, dir)) }()
	if the, err = startCluster(ctx, sandbox.Config{Name: "integration", Dir: dir, AuditLog: true, Without: []string{product.Controller}}, product.Options{}); err != nil {
		return 1, err
	}
	defer the.sandbox.Stop()
	if the.checker, err = checker.Start(ctx, the.dynamic); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// keepLogsIf leaves the components' logs for whoever has to find out why, and nothing otherwise.
func keepLogsIf(failed bool, dir string) error {
	if failed {
		fmt.Fprintf(os.Stderr, "the components' logs are in %s\n", filepath.Join(dir, "logs"))
		return nil
	}
	return os.RemoveAll(dir)
}

func startCluster(ctx context.Context, config sandbox.Config, options product.Options) (*cluster, error) {
	_, file, _, _ := runtime.Caller(0)
	config.BinDir = filepath.Join(filepath.Dir(file), "..", "..", "bin")
	config, err := product.Compose(config, options)
	if err != nil {
		return nil, err
	}
	s, err := sandbox.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	c := &cluster{sandbox: s}
	if c.client, err = kubernetes.NewForConfig(s.RESTConfig()); err == nil {
		c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
		c.dynamic, err = dynamic.NewForConfig(s.RESTConfig())
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return c, nil
}

// namespace makes a namespace for the test. Afterwards its pods are gone, so that the test's nodes can go; the rest of it follows.
func (c *cluster) namespace(t *testing.T, name string) string {
	t.Helper()
	object, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := c.empty(ctx, object.Name); err != nil {
			t.Error(err)
		}
		c.waitFor(ctx, t, "the pods of the namespace to be gone", func(ctx context.Context) (string, error) {
			pods, err := c.pods(ctx, object.Name)
			if err != nil || len(pods) == 0 {
				return "", err
			}
			return fmt.Sprintf("%d pods are left", len(pods)), nil
		})
		if err := c.client.CoreV1().Namespaces().Delete(ctx, object.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return object.Name
}

// empty deletes the workloads of a namespace and, through them, their pods. The namespace's own controller would begin after 5 seconds.
func (c *cluster) empty(ctx context.Context, namespace string) error {
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	all := metav1.ListOptions{}
	return errors.Join(
		c.client.AppsV1().Deployments(namespace).DeleteCollection(ctx, options, all),
		c.client.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, options, all),
		c.client.AppsV1().StatefulSets(namespace).DeleteCollection(ctx, options, all),
		c.client.BatchV1().Jobs(namespace).DeleteCollection(ctx, options, all),
		c.client.CoreV1().Pods(namespace).DeleteCollection(ctx, options, all))
}

// nodes makes nodes for the test.
func (c *cluster) nodes(t *testing.T, nodes ...*corev1.Node) {
	t.Helper()
	t.Cleanup(func() {
		for _, node := range nodes {
			if err := c.client.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	if err := c.sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
}

// resource is where objects of a kind are served, in the namespace if they have one.
func (c *cluster) resource(object *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
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
		return c.dynamic.Resource(mapping.Resource), nil
	}
	return c.dynamic.Resource(mapping.Resource).Namespace(namespace), nil
}

// apply applies an object as kubectl does: strictly, so that unknown fields are errors.
func (c *cluster) apply(ctx context.Context, namespace string, object *unstructured.Unstructured) error {
	client, err := c.resource(object, namespace)
	if err != nil {
		return err
	}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, object.GetName(), types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: fieldManager, Force: ptr.To(true), FieldValidation: metav1.FieldValidationStrict})
	return err
}

// applyYAML applies every document of a text.
func (c *cluster) applyYAML(t *testing.T, namespace, text string) {
	t.Helper()
	for _, object := range documents(t, text) {
		if err := c.apply(t.Context(), namespace, object); err != nil {
			t.Fatalf("applying %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

func documents(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("parsing YAML: %v", err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

func toUnstructured(object k8sruntime.Object) (*unstructured.Unstructured, error) {
	content, err := k8sruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(content, "spec", "template", "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: content}, nil
}

// waitFor waits until the condition has nothing left to say.
func (c *cluster) waitFor(ctx context.Context, t *testing.T, what string, condition func(context.Context) (missing string, err error)) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(ctx, look, patience, true, func(ctx context.Context) (bool, error) {
		missing, err := condition(ctx)
		if err != nil {
			return false, err
		}
		last = missing
		return missing == "", nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %v\n%s\n%s", what, err, last, c.events())
	}
}

// events are the last warnings of the cluster, to go with a failure.
func (c *cluster) events() string {
	list, err := c.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{FieldSelector: "type=Warning"})
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	for _, e := range list.Items[max(0, len(list.Items)-10):] {
		fmt.Fprintf(&b, "event %s/%s %s: %s\n", e.Namespace, e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return b.String()
}

func (c *cluster) pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// spread reads a WorkloadSpread.
func (c *cluster) spread(ctx context.Context, namespace, name string) (*v1alpha1.WorkloadSpread, error) {
	object, err := c.dynamic.Resource(v1alpha1.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	spread := &v1alpha1.WorkloadSpread{}
	return spread, k8sruntime.DefaultUnstructuredConverter.FromUnstructured(object.Object, spread)
}

// kill sends SIGKILL to the first replica of a component of ours.
func (c *cluster) kill(t *testing.T, component string) {
	t.Helper()
	if err := c.sandbox.Signal(component, 0, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// expectNoViolation fails the test if the checker has anything to say, also of earlier tests.
func (c *cluster) expectNoViolation(t *testing.T) {
	t.Helper()
	for _, violation := range c.checker.Violations() {
		t.Error(violation)
	}
}
