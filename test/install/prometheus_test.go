package install

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/test/harness"
)

// prometheus is a Prometheus that reads the metrics of an installation as the PodMonitor of manifests/observe says, and judges them by its rules.
type prometheus struct{ address string }

// startPrometheus runs it until the test ends.
func startPrometheus(t *testing.T, c *cluster, k *kubelet) *prometheus {
	t.Helper()
	var monitor struct {
		Spec struct {
			PodMetricsEndpoints []struct {
				Port, Scheme string
				HonorLabels  bool
				TLSConfig    struct{ InsecureSkipVerify bool }
			}
		}
	}
	var rules struct {
		Spec map[string]any
	}
	observe := filepath.Join(harness.Root(), "manifests", "observe")
	for file, into := range map[string]any{"podmonitor.yaml": &monitor, "rules.yaml": &rules} {
		text, err := os.ReadFile(filepath.Join(observe, file))
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	var targets []map[string]any
	for _, p := range slices.Concat(k.of("scheduler"), k.of("controller"), k.of("united")) {
		target, err := p.url(corev1.URIScheme(endpoint.Scheme), endpoint.Port, "")
		if err != nil {
			t.Fatal(err)
		}
		_, host, _ := strings.Cut(target, "://")
		targets = append(targets, map[string]any{"targets": []string{host}, "labels": map[string]string{"namespace": berthSystem, "pod": p.pod.Name}})
	}
	dir := t.TempDir()
	config, judged := filepath.Join(dir, "prometheus.json"), filepath.Join(dir, "rules.json")
	for file, content := range map[string]any{judged: rules.Spec, config: map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{judged},
		"scrape_configs": []any{map[string]any{
			"job_name": "berth", "scheme": endpoint.Scheme, "honor_labels": endpoint.HonorLabels, "static_configs": targets,
			"tls_config": map[string]any{"insecure_skip_verify": endpoint.TLSConfig.InsecureSkipVerify}, "authorization": map[string]any{"credentials": c.metricsToken(t)},
		}},
	}} {
		text, err := json.Marshal(content)
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{listener.Addr().String()}
	_ = listener.Close() // nothing has connected
	foreign(t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address)
	return p
}

// foreign runs a program of another project, from bin/, until the test ends.
func foreign(t *testing.T, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), program+".log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(harness.Root(), "bin", program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	ended, err := harness.StartForeign(cmd)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Log(tail(log.Name()))
		}
		_ = log.Close() // everything is written
	})
}

// get reads the data of an answer. The text says why there is none.
func (p *prometheus) get(ctx context.Context, path string, into any) (missing string, _ error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+path, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error(), nil // it starts
	}
	defer response.Body.Close()
	answer := struct {
		Status, Error   string
		Data            any
		Warnings, Infos []string
	}{Data: into}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return response.Status, nil
	}
	if answer.Status != "success" || len(answer.Warnings)+len(answer.Infos) > 0 {
		return fmt.Sprintf("%s %s %v %v", answer.Status, answer.Error, answer.Warnings, answer.Infos), nil
	}
	return "", nil
}

// alert is one that waits for its time, or fires.
type alert struct {
	Labels map[string]string
	State  string
}

// TestPrometheusReadsAndJudges: Prometheus reads all programs of an installation with all its parts, can evaluate each rule and each query of the dashboard, and has one alert for one spread that is not
// ready, one SidecarSet that is younger than its pods, and one member of the federation that does not answer.
func TestPrometheusReadsAndJudges(t *testing.T) {
	t.Parallel()
	c, k := start(t)
	c.installComponents(t, k, "berth/manifests/sidecar", "berth/manifests/federation/hub")
	c.kubectl(t, "apply", "-f", example)
	c.kubectl(t, "rollout", "status", "deployment/api", "--timeout=60s")
	c.kubectl(t, "wait", "--for=condition=Ready", "--timeout=60s", "workloadspread/api")
	p := startPrometheus(t, c, k)
	waitFor(t, "all targets to be up", func(ctx context.Context) (string, error) {
		var found struct {
			ActiveTargets []struct{ ScrapeURL, Health, LastError string }
		}
		missing, err := p.get(ctx, "targets", &found)
		for _, target := range found.ActiveTargets {
			if target.Health != "up" {
				missing += fmt.Sprintln(target)
			}
		}
		if want := len(k.of("scheduler")) + len(k.of("controller")) + len(k.of("united")); missing == "" && len(found.ActiveTargets) != want {
			missing = fmt.Sprintf("it has %d, want %d", len(found.ActiveTargets), want)
		}
		return missing, err
	})
	waitFor(t, "all rules to be evaluated", func(ctx context.Context) (string, error) {
		var found struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		missing, err := p.get(ctx, "rules", &found)
		count := 0
		for _, group := range found.Groups {
			for _, rule := range group.Rules {
				if count++; rule.Health != "ok" {
					missing += fmt.Sprintln(rule)
				}
			}
		}
		if missing == "" && count == 0 {
			missing = "it has none"
		}
		return missing, err
	})
	queries := dashboardQueries(t)
	for _, query := range queries {
		if missing, err := p.get(t.Context(), "query?query="+url.QueryEscape(query), nil); missing != "" || err != nil {
			t.Errorf("%s: %s %v", query, missing, err)
		}
	}
	if len(queries) == 0 {
		t.Error("the dashboard has no query")
	}
	expectAlerts(t, p, nil)

	c.apply(t, "default", `
apiVersion: apps.kruise.io/v1beta1
kind: WorkloadSpread
metadata: {name: lonely}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: lonely}, subsets: [{name: a}]}
`)
	expectAlerts(t, p, []string{"BerthSpreadNotReady default/lonely pending"})
	c.kubectl(t, "delete", "workloadspread/lonely")
	c.apply(t, "default", "{apiVersion: apps.kruise.io/v1beta1, kind: SidecarSet, metadata: {name: late}, spec: {selector: {matchLabels: {app: api}}, containers: [{name: proxy, image: proxy}]}}")
	expectAlerts(t, p, []string{"BerthPodsWithoutSidecars late pending"})
	c.kubectl(t, "delete", "sidecarset/late")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: hub, contexts: [{name: hub, context: {cluster: hub, user: hub}}],
		clusters: [{name: hub, cluster: {server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}}], users: [{name: hub, user: {token: none}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "create", "secret", "generic", "gone", "-n", "berth-members", "--from-file=kubeconfig="+kubeconfig)
	c.apply(t, "berth-members", "{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, metadata: {name: gone, annotations: {federation.berth.dev/kubeconfig-secret: gone}}, "+
		"spec: {clusterManager: {name: by-hand}}}")
	expectAlerts(t, p, []string{"BerthMemberUnreachable gone pending"})
	c.kubectl(t, "delete", "clusterprofile/gone", "-n", "berth-members")
	expectAlerts(t, p, nil)
}

// expectAlerts waits until these alerts are there and no others.
func expectAlerts(t *testing.T, p *prometheus, want []string) {
	t.Helper()
	waitFor(t, fmt.Sprintf("the alerts %v", want), func(ctx context.Context) (string, error) {
		var found struct{ Alerts []alert }
		missing, err := p.get(ctx, "alerts", &found)
		if missing != "" || err != nil {
			return missing, err
		}
		var is []string
		for _, a := range found.Alerts {
			of := cmp.Or(a.Labels["sidecarset"], a.Labels["member"], a.Labels["namespace"]+"/"+a.Labels["workloadspread"])
			is = append(is, fmt.Sprintf("%s %s %s", a.Labels["alertname"], of, a.State))
		}
		if slices.Sort(is); !slices.Equal(is, want) {
			return fmt.Sprint(is), nil
		}
		return "", nil
	})
}

// dashboardQueries are those of the panels, over all namespaces.
func dashboardQueries(t *testing.T) (queries []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "manifests", "observe", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries = append(queries, strings.ReplaceAll(target.Expr, "$namespace", ".*"))
		}
	}
	return queries
}
