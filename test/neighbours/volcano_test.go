package neighbours

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// installVolcano installs Volcano, and starts its controllers and its scheduler. It returns what it has started, also with an error.
func installVolcano(ctx context.Context, cluster *harness.Cluster, dir string) (started []*process, _ error) {
	const namespace = "volcano-system"
	module, err := harness.ModuleDir(ctx, "volcano", "volcano.sh/volcano")
	if err != nil {
		return nil, err
	}
	objects, err := objectsIn(filepath.Join(module, "installer"), strings.NewReplacer(), "volcano-development.yaml")
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return !slices.Contains([]string{"CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}, o.GetKind())
	})
	for _, object := range objects {
		delete(object.Object, "status")
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := installed(ctx, cluster, dir, namespace, "volcano-controllers", objects)
	if err != nil {
		return nil, err
	}
	ofScheduler := filepath.Join(dir, "volcano-scheduler.kubeconfig")
	if err := cluster.WriteKubeconfigAs("system:serviceaccount:"+namespace+":volcano-scheduler", ofScheduler); err != nil {
		return nil, err
	}
	for i, program := range []struct {
		name string
		args []string
	}{
		{"vc-controller-manager", []string{"--kubeconfig=" + kubeconfig}},
		{"vc-scheduler", []string{"--kubeconfig=" + ofScheduler, "--cache-dumper=false", "--scheduler-conf=" + filepath.Join(module, "installer", "helm", "chart", "volcano", "config", "volcano-scheduler.conf"),
			fmt.Sprintf("--listen-address=127.0.0.1:%d", ports[2])}},
	} {
		p := &process{name: program.name, dir: dir}
		started = append(started, p)
		health := fmt.Sprintf("127.0.0.1:%d", ports[i])
		if err := p.start(ctx, cluster, "http://"+health+"/healthz", nil, append(program.args, "--leader-elect=false", "--enable-healthz", "--healthz-address="+health, "--kube-api-qps=1000", "--kube-api-burst=1000")); err != nil {
			return started, err
		}
	}
	return started, nil
}

// ofVolcano is the Deployment web, whose pods Volcano places.
func ofVolcano(replicas int) string {
	return fmt.Sprintf(`---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: %d, selector: {matchLabels: {app: web}}, %s}
`, replicas, strings.Replace(template(), "spec: {", "spec: {schedulerName: volcano, ", 1))
}

// TestVolcanoPlacesWhatACompatibleSpreadDivides: Berth gives each pod its subset when it is created, and Volcano a node of that subset.
func TestVolcanoPlacesWhatACompatibleSpreadDivides(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, strings.Replace(spreadOf("apps/v1", "Deployment", ""), "{name: web}", "{name: web, annotations: {"+v1beta1.CompatibilityAnnotation+": kruise}}", 1)+ofVolcano(12))
	expect(t, ns, "a=5 b=4 c=3", 0)
	expectCosts(t, ns)
	apply(t, ns, ofVolcano(6))
	expect(t, ns, "a=5 b=1 c=0", 0)
	apply(t, ns, ofVolcano(12))
	expect(t, ns, "a=5 b=4 c=3", 0)
}

// TestASpreadSaysThatVolcanoPlacesItsPods: a spread that is not compatible counts them where they are, and says why it does not divide them.
func TestASpreadSaysThatVolcanoPlacesItsPods(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, spreadOf("apps/v1", "Deployment", "")+ofVolcano(12))
	if err := the.WaitFor(t.Context(), "the spread to name Volcano", func(ctx context.Context) (string, error) {
		spread, err := the.Spread(ctx, ns, "web")
		if err != nil {
			return "", err
		}
		if !slices.ContainsFunc(spread.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1beta1.ConditionAdmitted && c.Reason == string(v1beta1.ReasonOtherScheduler) && strings.Contains(c.Message, "volcano 12;")
		}) {
			return fmt.Sprint(spread.Status.Conditions), nil
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
}
