// Package install installs Berth on a control plane without Berth, as a reader of docs/install.md does, and runs each component as its pod says, with
// the token of its service account. It also checks that the chart and manifests/ are the same.
package install

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/harness"
)

// look is the polling interval for conditions.
const look = 100 * time.Millisecond

// cluster is a control plane without Berth, and a client with all rights.
type cluster struct {
	*sandbox.Sandbox
	client kubernetes.Interface
	// dir is the working directory of commands: the root of the repository, unless in has changed it.
	dir string
	// kubeconfig is the one that commands use. Empty: that of the sandbox.
	kubeconfig string
}

// in returns the same cluster with another working directory.
func (c *cluster) in(dir string) *cluster { return &cluster{c.Sandbox, c.client, dir, c.kubeconfig} }

// start starts a control plane with three nodes in three zones. It also starts a kubelet for the pods of berth-system.
func start(t *testing.T) (*cluster, *kubelet) {
	t.Helper()
	network := newServiceNetwork(t)
	config := sandbox.Config{
		Name: "install", Dir: filepath.Join(t.TempDir(), "sandbox"), BinDir: harness.BinDir(), Nodes: 3, AuditLog: true,
		ServiceProxy: network.socket,
	}
	config.Components = []sandbox.Component{{
		Name: "kube-scheduler", Binary: "kube-scheduler", Replicas: 1, User: "system:kube-scheduler",
		Args: func(in sandbox.Instance) ([]string, error) {
			return []string{"--kubeconfig=" + in.Kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", in.Port("secure")),
				"--cert-dir=" + in.Dir, "--authentication-kubeconfig=" + in.Kubeconfig, "--authorization-kubeconfig=" + in.Kubeconfig}, nil
		},
		Ready: func(in sandbox.Instance) string { return "https://" + in.Address("secure") + "/readyz" },
	}}
	s, err := sandbox.Start(t.Context(), harness.Audited(config))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{s, client, harness.Root(), ""}
	k := startKubelet(t, c)
	network.connect(k)
	c.awaitNamespaces(t)
	return c, k
}

// awaitNamespaces waits until every namespace has what kube-controller-manager puts there a moment after its start. A test that compares the cluster with how it began would find it later.
func (c *cluster) awaitNamespaces(t *testing.T) {
	t.Helper()
	waitFor(t, "the objects of namespaces", func(ctx context.Context) (string, error) {
		namespaces, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range namespaces.Items {
			name := namespaces.Items[i].Name
			_, err := c.client.CoreV1().ConfigMaps(name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			if err == nil {
				_, err = c.client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
			}
			if apierrors.IsNotFound(err) {
				return fmt.Sprintf("namespace %s: %v", name, err), nil
			}
			if err != nil {
				return "", err
			}
		}
		return "", nil
	})
}

// run runs a program of the line's binaries, or Bash with these on its PATH. Helm is the same for all lines.
func (c *cluster) run(t *testing.T, stdin, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Timeout)
	defer cancel()
	dir := harness.BinDir()
	switch name {
	case "helm":
		dir = filepath.Join(harness.Root(), "bin")
	case "bash":
		dir = "/bin"
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, name), args...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), "KUBECONFIG="+cmp.Or(c.kubeconfig, c.Kubeconfig()), "PATH="+harness.BinDir()+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	return string(output), err
}

func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// kustomizationOf writes the kustomization that docs/install.md shows, with a version of the images, into a directory beside a checkout of Berth.
func kustomizationOf(t *testing.T, dir, version string) {
	t.Helper()
	_, text, _ := strings.Cut(guide(t), "```yaml\napiVersion: kustomize.config.k8s.io")
	text, _, shown := strings.Cut(text, "```")
	if !shown || strings.Count(text, "newTag: v1}") != 3 {
		t.Fatalf("docs/install.md shows no kustomization with versions: %s", text)
	}
	text = "apiVersion: kustomize.config.k8s.io" + strings.ReplaceAll(text, "newTag: v1}", "newTag: "+version+"}")
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// expectVersion fails unless every component has its image with this version.
func (c *cluster) expectVersion(t *testing.T, version string) {
	t.Helper()
	images := strings.Fields(c.kubectl(t, "-n", berthSystem, "get", "deployments,cronjobs", "-o", "jsonpath={..containers[*].image}"))
	var want []string
	for _, component := range []string{"controller", "controller", "descheduler", "scheduler"} { // berth-united runs the second one
		want = append(want, "registry.example.com/berth-"+component+":"+version)
	}
	slices.Sort(images)
	if !slices.Equal(images, want) {
		t.Errorf("images %v, want %v", images, want)
	}
}

// documented runs a command that docs/install.md shows, with additional arguments.
func (c *cluster) documented(t *testing.T, line string, more ...string) string {
	t.Helper()
	if !strings.Contains(guide(t), line) {
		t.Errorf("docs/install.md does not say %q", line)
	}
	words := append(strings.Fields(line), more...)
	output, err := c.run(t, "", words[0], words[1:]...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, output)
	}
	return output
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	output, err := c.run(t, "", "kubectl", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return output
}

func (c *cluster) apply(t *testing.T, namespace, manifest string) {
	t.Helper()
	if output, err := c.run(t, manifest, "kubectl", "apply", "-n", namespace, "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

// waitFor waits until the condition returns an empty string.
func waitFor(t *testing.T, what string, condition func(context.Context) (missing string, err error)) {
	t.Helper()
	if err := harness.WaitFor(t.Context(), what, condition); err != nil {
		t.Fatal(err)
	}
}

// expectRunning waits until Deployments of berth-system have all of their pods, and the processes of the pods answer their probes.
func expectRunning(t *testing.T, k *kubelet, components ...string) {
	t.Helper()
	waitFor(t, "pods of "+strings.Join(components, " and "), func(ctx context.Context) (string, error) {
		var missing []string
		for _, component := range components {
			d, err := k.client.AppsV1().Deployments(berthSystem).Get(ctx, "berth-"+component, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			running := slices.DeleteFunc(k.of(component), func(p *process) bool { return !p.running() })
			if d.Status.ReadyReplicas != *d.Spec.Replicas || len(running) != int(*d.Spec.Replicas) {
				missing = append(missing, fmt.Sprintf("%s: %d of %d pods, %d processes: %s", d.Name, d.Status.ReadyReplicas, *d.Spec.Replicas, len(running), failureOf(d)))
			}
			for _, p := range running {
				if err := p.answersProbes(ctx); err != nil {
					missing = append(missing, err.Error())
				}
			}
		}
		return strings.Join(missing, "\n"), nil
	})
}

// failureOf returns why a Deployment cannot create pods. For instance, the security level of the namespace may forbid them.
func failureOf(d *appsv1.Deployment) string {
	for _, condition := range d.Status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure {
			return condition.Message
		}
	}
	return ""
}

// answersProbes sends the requests that a kubelet would send.
func (p *process) answersProbes(ctx context.Context) error {
	container := &p.pod.Spec.Containers[0]
	var errs []error
	for _, probe := range []*corev1.Probe{container.ReadinessProbe, container.LivenessProbe} {
		if probe == nil {
			continue
		}
		url, err := p.url(probe.HTTPGet.Scheme, probe.HTTPGet.Port.StrVal, probe.HTTPGet.Path)
		if err == nil {
			_, err = get(ctx, url, "")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// anyCertificate is a client that accepts any certificate. Kubelets and Prometheus do not know the CA of the pods' certificates either.
var anyCertificate = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
	DisableKeepAlives: true,
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // on loopback
}}

// get returns the body of an answer 200, and an error for any other.
func get(ctx context.Context, url, token string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := anyCertificate.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s: %s", url, response.Status, bytes.TrimSpace(body))
	}
	return string(body), nil
}

// expectZones waits until the pods of the example are in these zones, as its spread requires.
func (c *cluster) expectZones(t *testing.T, want string) {
	t.Helper()
	waitFor(t, "pods in "+want, func(ctx context.Context) (string, error) {
		pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=api"})
		if err != nil {
			return "", err
		}
		count := map[string]int{}
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == "" {
				count["-"]++
				continue
			}
			node, err := c.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			count[node.Labels[corev1.LabelTopologyZone]]++
		}
		if got := fmt.Sprintf("%v", count); got != "map["+want+"]" {
			return got, nil
		}
		return "", nil
	})
}

const example = "docs/examples/one-one-three.yaml"

const budget = `
apiVersion: policy.kruise.io/v1alpha1
kind: PodUnavailableBudget
metadata: {name: api}
spec: {selector: {matchLabels: {app: api}}, maxUnavailable: 1}`

// expectABudgetHolds tries to delete one pod more than the budget allows.
func (c *cluster) expectABudgetHolds(t *testing.T) {
	t.Helper()
	c.apply(t, "default", budget)
	c.kubectl(t, "wait", "--for=condition=Enforcing", "--timeout=60s", "podunavailablebudget/api")
	// The Deployment replaces deleted pods at once. Without a node the new pods do not become available.
	c.kubectl(t, "cordon", "-l", "topology.kubernetes.io/zone")
	defer c.kubectl(t, "uncordon", "-l", "topology.kubernetes.io/zone")
	pods := strings.Fields(c.kubectl(t, "get", "pods", "-l", "app=api", "-o", "name"))
	c.kubectl(t, "delete", "--wait=false", pods[0])
	output, err := c.run(t, "", "kubectl", "delete", "--wait=false", pods[1])
	if err == nil || !strings.Contains(output, "PodUnavailableBudget api needs 9 available pods of 10") {
		t.Errorf("the second pod's deletion: %v, %s", err, output)
	}
	node := c.kubectl(t, "get", pods[1], "-o", "jsonpath={.spec.nodeName}")
	output, err = c.run(t, "", "kubectl", "drain", node, "--ignore-daemonsets", "--timeout=1s", "--pod-selector=app=api")
	if err == nil || !strings.Contains(output, "PodUnavailableBudget api needs 9 available pods of 10") {
		t.Errorf("a drain: %v, %s", err, output)
	}
}

// runDescheduler runs the CronJob's pod now.
func runDescheduler(t *testing.T, k *kubelet) {
	t.Helper()
	k.kubectl(t, "-n", berthSystem, "create", "job", "--from=cronjob/berth-descheduler", "by-hand")
	var ran *process
	waitFor(t, "the descheduler to have run", func(context.Context) (string, error) {
		for _, p := range k.of("descheduler") {
			if p.pod.Labels["job-name"] == "by-hand" {
				ran = p
			}
		}
		switch {
		case ran == nil:
			return "there is no pod", nil
		case ran.running():
			return tail(ran.logPath), nil
		}
		return "", nil
	})
	if ran.err != nil {
		t.Errorf("the descheduler: %v\n%s", ran.err, tail(ran.logPath))
	}
}

// expectMetrics reads a metric from components in the way that the PodMonitor of manifests/observe configures.
func expectMetrics(t *testing.T, k *kubelet, component, port string, scheme corev1.URIScheme, token, metric string) {
	t.Helper()
	waitFor(t, metric, func(ctx context.Context) (string, error) {
		var missing []string
		for _, p := range k.of(component) {
			url, err := p.url(scheme, port, "/metrics")
			if err != nil {
				return "", err
			}
			text, err := get(ctx, url, token)
			if err != nil {
				missing = append(missing, err.Error())
			} else if !strings.Contains(text, "\n# TYPE "+metric+" ") {
				missing = append(missing, p.pod.Name+" does not have it")
			}
		}
		if len(missing) < len(k.of(component)) { // the leader has all metrics
			return "", nil
		}
		return strings.Join(missing, "\n"), nil
	})
}

// metricsToken returns the token of Prometheus from manifests/observe.
func (c *cluster) metricsToken(t *testing.T) string {
	t.Helper()
	c.kubectl(t, "apply", "-f", "manifests/observe/token.yaml")
	var token string
	waitFor(t, "the token for metrics", func(ctx context.Context) (string, error) {
		secret, err := c.client.CoreV1().Secrets(berthSystem).Get(ctx, "berth-metrics-reader", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if token = string(secret.Data["token"]); token == "" {
			return "it is empty", nil
		}
		return "", nil
	})
	return token
}

// versions returns the resourceVersions of the objects of a kustomization. Of a CronJob it returns the generation, because its status changes every few
// minutes.
func (c *cluster) versions(t *testing.T) map[string]string {
	t.Helper()
	rendered := c.kubectl(t, "kustomize", "manifests")
	output, err := c.run(t, rendered, "kubectl", "get", "-f", "-", "-o",
		`jsonpath={range .items[*]}{.kind}/{.metadata.name}{"\t"}{.metadata.resourceVersion}{"\t"}{.metadata.generation}{"\n"}{end}`)
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	all := map[string]string{}
	for line := range strings.Lines(output) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		all[fields[0]] = fields[1]
		if strings.HasPrefix(fields[0], "CronJob/") {
			all[fields[0]] = fields[2]
		}
	}
	return all
}

// expectNoLitter fails if a process has written into its working directory, which is read-only in a container.
func expectNoLitter(t *testing.T, k *kubelet) {
	t.Helper()
	for _, component := range []string{"scheduler", "controller", "united", "descheduler"} {
		for _, p := range k.of(component) {
			entries, err := os.ReadDir(p.work)
			if err != nil {
				t.Error(err)
			}
			for _, entry := range entries {
				t.Errorf("%s has written %s, which it cannot with a root that is read-only", p.pod.Name, entry.Name())
			}
		}
	}
}

// leavePending removes Berth's scheduler from the example's template, as the documents tell users to do before they remove Berth. It leaves one pod
// pending for which admission has set the scheduler. It returns the other pods.
func (c *cluster) leavePending(t *testing.T) (others []string) {
	t.Helper()
	c.kubectl(t, "patch", "deployment/api", "--type=json", "-p", `[{"op": "remove", "path": "/spec/template/spec/schedulerName"}]`)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.kubectl(t, "cordon", "-l", "topology.kubernetes.io/zone")
	c.kubectl(t, "scale", "deployment/api", "--replicas=11")
	waitFor(t, "a pod without a node", func(context.Context) (string, error) {
		if pending := c.kubectl(t, "get", "pods", "-o", "name", "--field-selector=spec.schedulerName=berth-scheduler,spec.nodeName="); len(strings.Fields(pending)) != 1 {
			return pending, nil
		}
		return "", nil
	})
	return c.examplePods(t)
}

// expectGone waits until nothing of Berth remains except its CRDs. It checks that the pods still exist and can be deleted. No pod may wait for the
// removed scheduler.
func (c *cluster) expectGone(t *testing.T, before []string) {
	t.Helper()
	waitFor(t, "namespace berth-system to be gone", func(ctx context.Context) (string, error) {
		ns, err := c.client.CoreV1().Namespaces().Get(ctx, berthSystem, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("%+v", ns.Status), err
	})
	left := c.kubectl(t, "get", "-o", "name",
		"mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations")
	for line := range strings.Lines(left) {
		if strings.Contains(line, "berth") && !strings.Contains(line, "berth-metrics-reader") {
			t.Errorf("%s is left", strings.TrimSpace(line))
		}
	}
	after := c.examplePods(t)
	if !slices.Equal(before, after) {
		t.Errorf("pods before: %v, after: %v", before, after)
	}
	c.documented(t, "kubectl delete pods -A --field-selector spec.schedulerName=berth-scheduler,spec.nodeName=", "--timeout=60s")
	c.kubectl(t, "uncordon", "-l", "topology.kubernetes.io/zone")
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.kubectl(t, "delete", "--timeout=60s", "pod", after[0])
}

// examplePods returns the pods of the example that have a node.
func (c *cluster) examplePods(t *testing.T) []string {
	t.Helper()
	pods, err := c.client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=api"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, pod := range pods.Items {
		if pod.Spec.NodeName != "" {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

// installWithKustomize installs Berth as docs/install.md says. dir holds the kustomization.
func installWithKustomize(t *testing.T) (c *cluster, k *kubelet, dir string) {
	t.Helper()
	c, k = start(t)
	return c, k, c.installComponents(t, k)
}

// installComponents installs Berth with components of its manifests, by a kustomization in the directory that it returns.
func (c *cluster) installComponents(t *testing.T, k *kubelet, components ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Symlink(harness.Root(), filepath.Join(dir, "berth")); err != nil {
		t.Fatal(err)
	}
	kustomizationOf(t, dir, "v1")
	file, err := os.OpenFile(filepath.Join(dir, "kustomization.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintf(file, "\ncomponents: [%s]\n", strings.Join(components, ", "))
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.in(dir).documented(t, "kubectl apply -k .")
	expectRunning(t, k, "scheduler", "controller", "united")
	c.awaitWatches(t)
	return dir
}

// awaitWatches waits until the controller sees new spreads. In the first installation it writes its authority into the definitions, and the API server then
// ends the watches of spreads, which begin again about a second later.
func (c *cluster) awaitWatches(t *testing.T) {
	t.Helper()
	c.apply(t, "default", `
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: probe}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: probe}, subsets: [{name: a}]}
`)
	c.kubectl(t, "wait", "--for=condition=Ready=false", "--timeout=60s", "workloadspread/probe")
	c.kubectl(t, "delete", "workloadspread/probe")
}

func TestInstallWithKustomize(t *testing.T) {
	t.Parallel()
	c, k, dir := installWithKustomize(t)
	c.expectVersion(t, "v1")
	for _, mode := range []string{"deployment", "job"} { // TestInstallWithHelm runs the first, and the second runs as the CronJob does
		c.kubectl(t, "apply", "--dry-run=server", "-k", "manifests/descheduler/"+mode)
	}

	c.kubectl(t, "apply", "-f", example)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.expectZones(t, "zone-a:2 zone-b:2 zone-c:6")
	c.kubectl(t, "wait", "--for=condition=Ready", "--timeout=60s", "workloadspread/api")
	c.expectABudgetHolds(t)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.expectZones(t, "zone-a:2 zone-b:2 zone-c:6")
	runDescheduler(t, k)

	token := c.metricsToken(t)
	expectMetrics(t, k, "scheduler", "secure", corev1.URISchemeHTTPS, token, "scheduler_workloadspread_slots")
	expectMetrics(t, k, "controller", "secure", corev1.URISchemeHTTPS, token, "berth_budget_decisions_total")
	expectMetrics(t, k, "united", "secure", corev1.URISchemeHTTPS, token, "leader_election_master_status")
	for _, p := range slices.Concat(k.of("scheduler"), k.of("controller"), k.of("united")) {
		if url, err := p.url(corev1.URISchemeHTTPS, "secure", "/metrics"); err != nil {
			t.Error(err)
		} else if _, err := get(t.Context(), url, ""); err == nil {
			t.Errorf("%s shows its metrics to a client without a token", p.pod.Name)
		}
	}
	expectNoLitter(t, k)

	before := c.versions(t)
	again := c.in(dir).documented(t, "kubectl apply -k .")
	for name, version := range c.versions(t) {
		if version != before[name] {
			t.Errorf("applied again, %s has changed", name)
		}
	}
	if t.Failed() {
		t.Log(again)
	}
	kustomizationOf(t, dir, "v2")
	c.in(dir).documented(t, "kubectl apply -k .")
	expectRunning(t, k, "scheduler", "controller", "united")
	c.expectVersion(t, "v2")
	expectNothingForbidden(t, c.AuditLog())

	pods := c.leavePending(t)
	c.kubectl(t, "-n", berthSystem, "scale", "deployment", "--all", "--replicas=0") // it is dead when it is removed
	waitFor(t, "no pod of Berth", func(context.Context) (string, error) {
		return c.kubectl(t, "-n", berthSystem, "get", "pods", "-l", "app.kubernetes.io/component in (scheduler, controller, united)", "-o", "name"), nil
	})
	c.in(dir).documented(t, "kubectl delete -k .", "--timeout=80s")
	c.expectGone(t, pods)
	for _, component := range []string{"scheduler", "controller", "united"} {
		for _, p := range k.of(component) {
			if p.running() {
				t.Errorf("%s still runs", p.pod.Name)
			}
		}
	}
	if output, err := c.run(t, "", "kubectl", "get", "workloadspreads", "-A"); err == nil {
		t.Errorf("there are still WorkloadSpreads: %s", output)
	}
}

// TestInstallWithHelm uses values other than the defaults. TestTheChartIsTheManifests compares the defaults.
func TestInstallWithHelm(t *testing.T) {
	t.Parallel()
	c, k := start(t)
	c.documented(t, "helm install berth charts/berth --namespace kube-system --set image.registry=registry.example.com,image.tag=v1", "--wait", "--timeout", "80s",
		"--set", "descheduler.mode=deployment,descheduler.interval=2s,budgets.enabled=false", "--set", "admission.excludedNamespaces={kube-system,left-alone}")
	expectRunning(t, k, "scheduler", "controller", "united", "descheduler")
	c.awaitWatches(t)
	c.kubectl(t, "apply", "-f", example)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.expectZones(t, "zone-a:2 zone-b:2 zone-c:6")
	expectMetrics(t, k, "descheduler", "secure", corev1.URISchemeHTTPS, "", "berth_descheduler_last_success_timestamp_seconds")
	c.expectAdmissionOnlyWhereItIsAsked(t)
	expectNoLitter(t, k)

	bundles := func() string {
		return c.kubectl(t, "get", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "-o", "jsonpath={.items[*].webhooks[*].clientConfig.caBundle}")
	}
	generations := func() string {
		return c.kubectl(t, "-n", berthSystem, "get", "deployments", "-o", "jsonpath={.items[*].metadata.generation}")
	}
	bundlesBefore, generationsBefore := bundles(), generations()
	if bundlesBefore == "" {
		t.Error("no webhook has an authority")
	}
	c.documented(t, "kubectl apply --server-side --force-conflicts -f charts/berth/crds")
	c.documented(t, "helm upgrade berth charts/berth --namespace kube-system --reset-then-reuse-values", "--wait", "--timeout", "80s")
	c.documented(t, "helm rollback berth --namespace kube-system", "--wait", "--timeout", "80s")
	if bundles() != bundlesBefore {
		t.Error("an upgrade or its rollback has changed the webhooks' authority")
	}
	if after := generations(); after != generationsBefore {
		t.Errorf("an upgrade to the same, or its rollback, has changed Deployments: %s, then %s", generationsBefore, after)
	}
	c.expectVersion(t, "v1")
	c.documented(t, "helm upgrade berth charts/berth --namespace kube-system --reset-then-reuse-values --set image.tag=v2", "--wait", "--timeout", "80s")
	c.expectVersion(t, "v2")
	c.documented(t, "helm rollback berth --namespace kube-system", "--wait", "--timeout", "80s")
	c.expectVersion(t, "v1")
	expectNothingForbidden(t, c.AuditLog())

	pods := c.leavePending(t)
	k.kill(t) // TestUpgradeFromThePreviousVersion removes Berth while it runs
	c.documented(t, "helm uninstall berth --namespace kube-system", "--wait", "--timeout", "80s")
	c.expectGone(t, pods)
	if got := c.kubectl(t, "get", "workloadspreads", "-o", "name"); !strings.Contains(got, "/api") {
		t.Errorf("Helm leaves definitions alone, but the spread is gone: %q", got)
	}
	commands, err := harness.Commands("install.md", "## Removal")
	if err != nil {
		t.Fatal(err)
	}
	if output, err := c.run(t, "", "bash", "-euo", "pipefail", "-c", commands); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	definitions := append([]string{endpoint.UnitedDefinition}, endpoint.Definitions...)
	if output, err := c.run(t, "", "kubectl", append([]string{"delete", "--timeout=60s", "customresourcedefinitions"}, definitions...)...); err != nil {
		left, _ := c.run(t, "", "kubectl", "get", "customresourcedefinitions", "-o", "jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp} {.metadata.finalizers} {.status}{'\\n'}{end}")
		t.Logf("%v: %s\n%s", err, output, left)
		// The finalizer of the API server may give up if its watch is behind its own write of the status. It looks again every five minutes.
		c.kubectl(t, append([]string{"delete", "--ignore-not-found", "--timeout=330s", "customresourcedefinitions"}, definitions...)...)
	}
}

// expectAdmissionOnlyWhereItIsAsked creates a ReplicaSet with a spread in an excluded namespace and in another one.
func (c *cluster) expectAdmissionOnlyWhereItIsAsked(t *testing.T) {
	t.Helper()
	const workload = `
apiVersion: apps.kruise.io/v1alpha1
kind: WorkloadSpread
metadata: {name: asked}
spec:
  targetRef: {apiVersion: apps/v1, kind: Deployment, name: asked}
  subsets: [{name: all}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: asked}
spec:
  selector: {matchLabels: {app: asked}}
  template:
    metadata: {labels: {app: asked}}
    spec: {containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}`
	for namespace, want := range map[string]string{"left-alone": "default-scheduler", "asked": "berth-scheduler"} {
		c.kubectl(t, "create", "namespace", namespace)
		c.apply(t, namespace, workload)
		c.kubectl(t, "-n", namespace, "rollout", "status", "deployment/asked", "--timeout=60s")
		if got := c.kubectl(t, "-n", namespace, "get", "pods", "-o", "jsonpath={.items[*].spec.schedulerName}"); got != want {
			t.Errorf("namespace %s: scheduler %q, want %q", namespace, got, want)
		}
	}
}
