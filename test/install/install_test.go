// Package install applies the manifests to a control plane that knows nothing of Berth, as a person does who installs it.
package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-project/berth/pkg/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// cluster is a control plane without Berth, with a kubectl for it.
type cluster struct {
	*sandbox.Sandbox
	client kubernetes.Interface
}

func start(t *testing.T) *cluster {
	t.Helper()
	config := sandbox.Config{Name: "install", Dir: filepath.Join(t.TempDir(), "sandbox"), BinDir: filepath.Join(harness.Root(), "bin"), Nodes: 3}
	config.Components = []sandbox.Component{{
		Name: "kube-scheduler", Binary: "kube-scheduler", Replicas: 1, User: "system:kube-scheduler",
		Args: func(in sandbox.Instance) ([]string, error) {
			return []string{"--kubeconfig=" + in.Kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", in.Port("secure")),
				"--cert-dir=" + in.Dir, "--authentication-kubeconfig=" + in.Kubeconfig, "--authorization-kubeconfig=" + in.Kubeconfig}, nil
		},
		Ready: func(in sandbox.Instance) string { return "https://" + in.Address("secure") + "/readyz" },
	}}
	s, err := sandbox.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{s, client}
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(harness.Root(), "bin", "kubectl"), args...)
	cmd.Dir, cmd.Env = harness.Root(), append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// deployments waits until those of Berth have all of their pods, which the kubelets of the nodes only pretend to run.
func (c *cluster) deployments(t *testing.T, want ...string) {
	t.Helper()
	var missing error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, harness.Patience, true, func(ctx context.Context) (bool, error) {
		missing = nil
		for _, name := range want {
			d, err := c.client.AppsV1().Deployments("berth-system").Get(ctx, name, metav1.GetOptions{})
			switch {
			case err != nil:
				missing = errors.Join(missing, err)
			case d.Status.ReadyReplicas != *d.Spec.Replicas:
				missing = errors.Join(missing, fmt.Errorf("%s: %d of %d pods: %s", name, d.Status.ReadyReplicas, *d.Spec.Replicas, failureOf(d)))
			}
		}
		return missing == nil, nil
	})
	if err != nil {
		t.Fatal(missing)
	}
}

// failureOf is why a Deployment can make no pods, for instance because the namespace's security level forbids them.
func failureOf(d *appsv1.Deployment) string {
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure {
			return condition.Message
		}
	}
	return ""
}

// generations are counted up with every change of a Deployment.
func (c *cluster) generations(t *testing.T) string {
	t.Helper()
	deployments, err := c.client.AppsV1().Deployments("berth-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range deployments.Items {
		all = append(all, fmt.Sprintf("%s at %d", deployments.Items[i].Name, deployments.Items[i].Generation))
	}
	return strings.Join(all, ", ")
}

func TestTheManifestsInstall(t *testing.T) {
	c := start(t)
	first := c.kubectl(t, "apply", "-k", "manifests")
	for _, object := range []string{
		"customresourcedefinition.apiextensions.k8s.io/workloadspreads.apps.kruise.io", "customresourcedefinition.apiextensions.k8s.io/podunavailablebudgets.policy.kruise.io",
		"deployment.apps/berth-scheduler", "deployment.apps/berth-controller", "cronjob.batch/berth-descheduler",
		"mutatingwebhookconfiguration.admissionregistration.k8s.io/berth-webhook", "validatingwebhookconfiguration.admissionregistration.k8s.io/berth-budget",
	} {
		if !strings.Contains(first, object+" created") {
			t.Errorf("%s was not created:\n%s", object, first)
		}
	}
	c.deployments(t, "berth-scheduler", "berth-controller")

	before := c.generations(t)
	if again := c.kubectl(t, "apply", "-k", "manifests"); strings.Contains(again, " created") {
		t.Errorf("applied again, with other names:\n%s", again)
	}
	if after := c.generations(t); before != after {
		t.Errorf("applied again, the Deployments were changed: %s, and then %s", before, after)
	}
	for _, mode := range []string{"deployment", "job"} {
		c.kubectl(t, "apply", "--dry-run=server", "-k", "manifests/descheduler/"+mode)
	}
}
