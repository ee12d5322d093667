package faults

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/test/checker"
	"github.com/berth-project/berth/test/harness"
)

var uniteds = flag.Int("uniteds", 6, "how many UnitedDeployments to spoil at the same time")

const (
	spoiltController = "spoilt-controller"
	// spoiltPerChange is how many requests are spoilt before the controller is killed and left in peace.
	spoiltPerChange = 12
)

var ofUnited = regexp.MustCompile(`/namespaces/spoilt-[^/]+/(deployments|statefulsets|controllerrevisions|uniteddeployments/[^/]+/status)`)

// isOfUnited is true for all writes for UnitedDeployments, and for the reads before them.
func isOfUnited(r *http.Request) bool {
	return ofUnited.MatchString(r.URL.Path) && r.URL.Query().Get("watch") == ""
}

// startSpoiltController starts a sandbox whose controller reaches the API server through the proxy. It has no webhooks: this program converts.
func startSpoiltController(t *testing.T, p *harness.Proxy) *harness.Cluster {
	t.Helper()
	config := sandbox.Config{Name: "faults-united", Dir: t.TempDir(), Without: []string{product.Scheduler, product.Controller}, Components: []sandbox.Component{{
		Name: spoiltController, Binary: "berth-controller", User: "system:serviceaccount:berth-system:berth-united",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system"},
		Args: func(in sandbox.Instance) ([]string, error) {
			kubeconfig, err := p.Kubeconfig(in)
			return []string{"--kubeconfig=" + kubeconfig, "--metrics-bind-address=0", "--health-probe-bind-address=" + in.Address("health"),
				"--leader-elect=false", "--shutdown-delay=0", "--only-workloads", "-v=2"}, err
		},
		Ready: func(in sandbox.Instance) string { return "http://" + in.Address("health") + "/readyz" },
	}}}
	cluster, err := harness.Start(t.Context(), config, product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	return cluster
}

// changes are what the user does, one after the other, and what the children ask for then. The second one moves pods
// before there has been a higher total, which the watcher would excuse for a while: so it shows whether the children ask for more than the surge.
var changes = []struct {
	replicas int
	subsets  string
	want     string
}{
	{6, "ab", "a=3 b=3"},
	{6, "bc", "b=3 c=3"},
	{12, "ab", "a=6 b=6"},
	{4, "abc", "a=2 b=1 c=1"},
	{10, "ca", "a=5 c=5"},
	{0, "ca", "a=0 c=0"},
	{5, "b", "b=5"},
}

func unitedYAML(kind string, replicas int, subsets string) string {
	var each []string
	for _, pool := range subsets {
		each = append(each, fmt.Sprintf("{name: %[1]c, nodeSelectorTerm: {matchExpressions: [{key: pool, operator: In, values: [%[1]c]}]}}", pool))
	}
	const pods = `template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}}`
	template := map[string]string{"Deployment": "deploymentTemplate: {spec: {" + pods + "}}",
		"StatefulSet": "statefulSetTemplate: {spec: {serviceName: web, podManagementPolicy: Parallel, " + pods + "}}"}[kind]
	return fmt.Sprintf("{apiVersion: apps.kruise.io/v1beta1, kind: UnitedDeployment, metadata: {name: web}, spec: {replicas: %d, selector: {matchLabels: {app: web}}, "+
		"template: {%s}, updateStrategy: {maxSurge: 1}, topology: {subsets: [%s]}}}", replicas, template, strings.Join(each, ", "))
}

// TestSpoiltWritesNeitherExceedTheTotalNorLeaveASecondChild disturbs a third of all writes of the controller of UnitedDeployments, and of its reads before them,
// with every kind of fault. It changes totals and subsets, and kills the controller in the middle. The sum of the children must hold at every revision.
func TestSpoiltWritesNeitherExceedTheTotalNorLeaveASecondChild(t *testing.T) {
	harness.Long(t)
	p, err := harness.StartProxy(t.Context(), *seed, isOfUnited, nil)
	if err != nil {
		t.Fatal(err)
	}
	cluster := startSpoiltController(t, p)
	var nodes []*corev1.Node
	for _, pool := range []string{"a", "b", "c"} {
		nodes = append(nodes, sandbox.NewNode("united-"+pool, "zone-"+pool, map[string]string{"pool": pool}, nil, nil))
	}
	if err := cluster.Sandbox.CreateNodes(t.Context(), nodes); err != nil {
		t.Fatal(err)
	}
	namespaces := map[string]*checker.Children{}
	kinds := map[string]string{}
	for i := range *uniteds {
		ns, err := cluster.CreateNamespace(t.Context(), "spoilt")
		if err != nil {
			t.Fatal(err)
		}
		children, err := checker.WatchChildren(cluster.Dynamic, ns)
		if err != nil {
			t.Fatal(err)
		}
		children.Surge, children.Grace = 1, 2*harness.ProxyTimeout
		namespaces[ns], kinds[ns] = children, []string{"Deployment", "StatefulSet"}[i%2]
	}
	start := time.Now()
	for i, change := range changes {
		p.Spoil(33, harness.AllFaults...)
		enough := spoiltIn(p) + spoiltPerChange
		for ns, kind := range kinds {
			if err := cluster.ApplyYAML(t.Context(), ns, unitedYAML(kind, change.replicas, change.subsets)); err != nil {
				t.Fatal(err)
			}
		}
		if err := cluster.WaitFor(t.Context(), fmt.Sprintf("spoilt requests after change %d", i), func(context.Context) (string, error) {
			if n := spoiltIn(p); n < enough {
				return fmt.Sprintf("%d are left", enough-n), nil
			}
			return "", nil
		}); err != nil {
			t.Fatal(err)
		}
		// In the middle of it: writes are on their way, and others wait to be tried again.
		if err := cluster.Sandbox.Signal(spoiltController, 0, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.Spoil(0)
		var waiting sync.WaitGroup
		for ns := range namespaces {
			waiting.Go(func() { expectUnitedAtRest(t, cluster, ns, change.want) })
		}
		waiting.Wait()
		t.Logf("after %.1f s: %s", time.Since(start).Seconds(), change.want)
	}
	raised := 0
	for ns, children := range namespaces {
		violations, checked := children.Violations()
		for _, violation := range violations {
			t.Errorf("%s %s: %s", kinds[ns], ns, violation)
		}
		raised += checked
	}
	counts := p.Spoilt()
	for _, f := range harness.AllFaults {
		if counts[f] == 0 {
			t.Errorf("nothing met the fault %q", f)
		}
	}
	if raised == 0 {
		t.Error("the watchers have seen no write that gave a child more")
	}
	t.Logf("seed %d: %d requests were spoilt, %d writes gave a child more", *seed, spoiltIn(p), raised)
}

// spoiltIn is how many requests the proxy has spoilt.
func spoiltIn(p *harness.Proxy) (n int) {
	for _, of := range p.Spoilt() {
		n += of
	}
	return n
}

// expectUnitedAtRest waits until the children of all subsets, and no others, ask for these replicas, and their pods are ready.
func expectUnitedAtRest(t *testing.T, cluster *harness.Cluster, ns, want string) {
	t.Helper()
	if err := cluster.WaitFor(t.Context(), "children "+want+" in "+ns, func(ctx context.Context) (string, error) {
		var got []string
		total := int64(0)
		for _, resource := range []string{"deployments", "statefulsets"} {
			list, err := cluster.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}).Namespace(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return "", err
			}
			for i := range list.Items {
				n, _, _ := unstructured.NestedInt64(list.Items[i].Object, "spec", "replicas")
				got, total = append(got, fmt.Sprintf("%s=%d", list.Items[i].GetLabels()[v1beta1.SubsetNameLabel], n)), total+n
			}
		}
		slices.Sort(got)
		ud, err := cluster.Dynamic.Resource(v1beta1.Resource).Namespace(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		observed, _, _ := unstructured.NestedInt64(ud.Object, "status", "observedGeneration")
		ready, _, _ := unstructured.NestedInt64(ud.Object, "status", "readyReplicas")
		if strings.Join(got, " ") != want || observed != ud.GetGeneration() || ready != total {
			status, err := json.Marshal(ud.Object["status"])
			return fmt.Sprintf("%s, %s", got, status), err
		}
		return "", nil
	}); err != nil {
		t.Error(err)
	}
}
