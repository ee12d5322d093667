package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/test/harness"
)

// TestAReplicaThatIsToldToEndAnswersOn: the API server is still sent to a pod for a while after it was told to end.
func TestAReplicaThatIsToldToEndAnswersOn(t *testing.T) {
	harness.Long(t)
	const delay = 3 * time.Second
	cluster, err := harness.Start(t.Context(), sandbox.Config{Name: "leaving", Dir: t.TempDir(), Without: []string{product.Scheduler, product.Controller, product.DefaultScheduler}},
		product.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Sandbox.Stop)
	ports := freePorts(t, 2)
	var log bytes.Buffer
	replica := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir(), "berth-controller"),
		"--kubeconfig="+cluster.Sandbox.Kubeconfig(), "--metrics-bind-address=0", fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", ports[0]),
		"--webhook-host=127.0.0.1", fmt.Sprintf("--webhook-port=%d", ports[1]), "--cert-dir="+filepath.Join(t.TempDir(), "certs"), "--shutdown-delay="+delay.String())
	replica.Stdout, replica.Stderr = &log, &log
	if err := replica.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- replica.Wait() }()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // on loopback
	statusOf := func(ctx context.Context, url string) int {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return 0
		}
		_ = response.Body.Close() // nothing is read of it
		return response.StatusCode
	}
	ready, webhook := fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[0]), fmt.Sprintf("https://127.0.0.1:%d/", ports[1])
	holder := func(ctx context.Context) (string, error) {
		lease, err := cluster.Client.CoordinationV1().Leases("berth-system").Get(ctx, "berth-controller", getOptions)
		if err != nil {
			return "", err
		}
		return ptr.Deref(lease.Spec.HolderIdentity, ""), nil
	}
	if err := cluster.WaitFor(t.Context(), "the replica to be ready and to lead", func(ctx context.Context) (string, error) {
		if status := statusOf(ctx, ready); status != http.StatusOK {
			return fmt.Sprint("ready: ", status), nil
		}
		if leads, err := holder(ctx); err != nil || leads == "" {
			return "it does not lead", nil //nolint:nilerr // the lease is made a moment later
		}
		return "", nil
	}); err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	if statusOf(t.Context(), webhook) == 0 {
		t.Fatal("the webhook does not answer")
	}

	told := time.Now()
	if err := replica.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var unready, answered time.Duration
	for running := true; running; {
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("it ended with %v\n%s", err, &log)
			}
			running = false
		default:
			asked := time.Since(told)
			if status := statusOf(t.Context(), ready); status == http.StatusInternalServerError && unready == 0 {
				unready = time.Since(told)
			}
			if statusOf(t.Context(), webhook) != 0 {
				answered = asked
			}
			if asked > harness.Timeout {
				t.Fatalf("it does not end\n%s", &log)
			}
		}
	}
	t.Logf("not ready after %s, answered the last time after %s, ended after %s", unready, answered, time.Since(told))
	if unready == 0 || unready >= delay {
		t.Errorf("it was not ready after %s, want at once", unready)
	}
	if answered <= unready || answered < delay/2 {
		t.Errorf("it was asked the last time after %s, want about %s", answered, delay)
	}
	if leads, err := holder(t.Context()); err != nil || leads != "" {
		t.Errorf("the lease is held by %q, want it to be given back: %v", leads, err)
	}
}

func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() // all are held until the last is known
		address, _ := listener.Addr().(*net.TCPAddr)
		ports = append(ports, address.Port)
	}
	return ports
}
