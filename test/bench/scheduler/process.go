package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/test/harness"
)

// side is one of the two schedulers.
type side struct {
	name, binary string
	config       map[string]any
}

// sides are the schedulers, without leader election. They have the same client limits, far above what either reaches. Both serve the same scheduler
// name, so both get the same pods.
func sides(kubeconfig string) (stock, berth side, err error) {
	common := func(config map[string]any) map[string]any {
		config["clientConnection"] = map[string]any{"kubeconfig": kubeconfig, "qps": 10000, "burst": 10000}
		config["leaderElection"] = map[string]any{"leaderElect": false}
		config["enableProfiling"] = true
		return config
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(manifests.SchedulerConfig, &config); err != nil {
		return stock, berth, fmt.Errorf("reading the scheduler's configuration: %w", err)
	}
	berth = side{"berth", "berth-scheduler", common(config)}
	stock = side{"stock", "kube-scheduler-alone", common(map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"profiles": []any{map[string]any{"schedulerName": v1beta1.SchedulerName}},
	})}
	return stock, berth, nil
}

// process is a scheduler that runs.
type process struct {
	cmd    *exec.Cmd
	log    *os.File
	url    string
	client *http.Client
	token  string
}

func (s side) start(ctx context.Context, dir, kubeconfig, token string) (*process, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, err
	}
	text, err := yaml.Marshal(s.config)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, s.name+".yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, s.name+".log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(harness.BinDir(), s.binary), "--config="+path, "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port), "--cert-dir="+filepath.Join(dir, s.name+"-certs"),
		"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig, "--v=1")
	cmd.Stdout, cmd.Stderr = log, log

	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return &process{cmd: cmd, log: log, url: fmt.Sprintf("https://127.0.0.1:%d", port), token: token,
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}, nil // its certificate is self-signed
}

// stop ends the process and waits for it.
func (p *process) stop() error {
	p.client.CloseIdleConnections()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil // after the signal it ends with an error
	}
	return errors.Join(err, p.log.Close())
}

// get reads a path of the scheduler's own endpoint.
func (p *process) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+p.token)
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of the scheduler: %s", path, response.Status)
	}
	return body, err
}

// metric sums the samples of a metric whose labels match.
func (p *process) metric(ctx context.Context, name string, labels *regexp.Regexp) (float64, error) {
	body, err := p.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, line := range strings.Split(string(body), "\n") {
		if !strings.HasPrefix(line, name) || !labels.MatchString(line) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += value
	}
	return sum, nil
}
