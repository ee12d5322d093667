package sandbox

import (
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

// part is a component as the sandbox runs it, with fields that only the control plane's own components need.
type part struct {
	Component
	// workDir defaults to the instance's Dir.
	workDir string
	// eachUser makes each replica a user of its own: User with a dash and the number of the replica.
	eachUser bool
	// probe overrides Component.Ready.
	probe func(Instance) func(context.Context) error
}

const (
	// etcdSocket looks like a host and port, as etcd's flags require. It is in fact the name of a socket in etcd's directory, which only its owner
	// may enter. It is relative because the length of a socket's path is limited.
	etcdSocket = "etcd:0"
	peerSocket = "peer:0"

	securePort = "secure"
	healthPort = "health"

	kwokUser = "kwok"
)

func (s *Sandbox) etcd() part {
	dir := s.instanceDir(Etcd, 0)
	return part{
		Component: Component{Name: Etcd, Binary: "etcd", Args: func(Instance) ([]string, error) {
			return []string{
				"--name=sandbox",
				"--data-dir=data",
				"--listen-client-urls=unix://" + etcdSocket,
				"--advertise-client-urls=unix://" + etcdSocket,
				"--listen-peer-urls=unix://" + peerSocket,
				"--initial-advertise-peer-urls=unix://" + peerSocket,
				"--initial-cluster=sandbox=unix://" + peerSocket,
				// The data must survive the process, but not the machine.
				"--unsafe-no-fsync",
				"--snapshot-count=10000",
				"--quota-backend-bytes=4294967296",
				"--auto-compaction-mode=periodic",
				"--auto-compaction-retention=5m",
				"--log-level=warn",
			}, nil
		}},
		probe: func(Instance) func(context.Context) error {
			client := &http.Client{Transport: &http.Transport{
				DisableKeepAlives: true,
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return dialUnixIn(ctx, dir, etcdSocket)
				},
			}}
			return func(ctx context.Context) error { return expectOK(ctx, client, "http://etcd/health") }
		},
	}
}

// dialUnixIn connects to a socket whose full path may be longer than a socket address allows.
func dialUnixIn(ctx context.Context, dir, name string) (net.Conn, error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), name))
}

//go:embed audit-policy.yaml
var auditPolicy []byte

// auditLogLimit is the size of an audit log in MiB: 1 TiB, more than any sandbox writes.
const auditLogLimit = 1 << 20

// egressSelector sends the API server's requests to Services through a proxy.
const egressSelector = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
`

func (s *Sandbox) apiServer() part {
	return part{
		workDir: s.instanceDir(Etcd, 0), // where etcd's socket is
		Component: Component{Name: APIServer, Binary: "kube-apiserver", Args: func(in Instance) ([]string, error) {
			c := s.credentials
			args := []string{
				"--etcd-servers=unix://" + etcdSocket,
				"--bind-address=127.0.0.1",
				"--advertise-address=127.0.0.1",
				fmt.Sprintf("--secure-port=%d", in.Port(securePort)),
				// No client reaches the API server through its Service, and a loopback address is not a valid endpoint.
				"--endpoint-reconciler-type=none",
				"--service-cluster-ip-range=10.96.0.0/16",
				"--cert-dir=" + in.Dir,
				"--tls-cert-file=" + c.serverCertFile(),
				"--tls-private-key-file=" + c.serverKeyFile(),
				"--client-ca-file=" + c.caFile(),
				"--token-auth-file=" + c.tokenFile(),
				"--anonymous-auth=false",
				"--authorization-mode=Node,RBAC",
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file=" + c.serviceAccountKeyFile(),
				"--service-account-signing-key-file=" + c.serviceAccountKeyFile(),
				"--allow-privileged=true",
				"--kubelet-client-certificate=" + c.clientCertFile(),
				"--kubelet-client-key=" + c.clientKeyFile(),
				"--proxy-client-cert-file=" + c.clientCertFile(),
				"--proxy-client-key-file=" + c.clientKeyFile(),
				"--requestheader-client-ca-file=" + c.caFile(),
				"--requestheader-allowed-names=" + clientName,
				"--requestheader-username-headers=X-Remote-User",
				"--requestheader-group-headers=X-Remote-Group",
				"--requestheader-extra-headers-prefix=X-Remote-Extra-",
				"--kubelet-preferred-address-types=InternalIP",
				"--max-requests-inflight=3000",
				"--max-mutating-requests-inflight=1500",
			}
			if s.config.ServiceProxy != "" {
				egress := filepath.Join(in.Dir, "egress.yaml")
				if err := os.WriteFile(egress, fmt.Appendf(nil, egressSelector, s.config.ServiceProxy), 0o600); err != nil {
					return nil, err
				}
				args = append(args, "--egress-selector-config-file="+egress)
			}
			if s.config.AuditLog {
				policy := filepath.Join(in.Dir, "audit-policy.yaml")
				if err := os.WriteFile(policy, auditPolicy, 0o600); err != nil {
					return nil, err
				}
				args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+s.AuditLog(), "--audit-log-mode=blocking",
					// The API server would begin a new file at 100 MiB, and a reader who counts requests would miss those in the old one.
					fmt.Sprintf("--audit-log-maxsize=%d", auditLogLimit))
			}
			return append(args, s.config.APIServerFlags...), nil
		}},
		probe: func(in Instance) func(context.Context) error {
			return func(ctx context.Context) error {
				client, err := rest.HTTPClientFor(s.RESTConfig())
				if err != nil {
					return err
				}
				return expectOK(ctx, client, "https://"+in.Address(securePort)+"/readyz")
			}
		},
	}
}

func (s *Sandbox) controllerManager() part {
	return part{Component: Component{
		Name: ControllerManager, Binary: "kube-controller-manager", User: "system:kube-controller-manager",
		Args: func(in Instance) ([]string, error) {
			return append([]string{
				"--kubeconfig=" + in.Kubeconfig,
				// Its endpoint is for authenticated clients, except for the health check.
				"--authentication-kubeconfig=" + in.Kubeconfig,
				"--authorization-kubeconfig=" + in.Kubeconfig,
				"--bind-address=127.0.0.1",
				fmt.Sprintf("--secure-port=%d", in.Port(securePort)),
				"--cert-dir=" + in.Dir,
				"--leader-elect=false",
				"--controllers=" + cmp.Or(strings.Join(s.config.Controllers, ","), "*"),
				// Each controller runs as its own user, with the permissions of a real cluster.
				"--use-service-account-credentials=true",
				"--service-account-private-key-file=" + s.credentials.serviceAccountKeyFile(),
				"--root-ca-file=" + s.credentials.caFile(),
				"--kube-api-qps=2000",
				"--kube-api-burst=4000",
				"--concurrent-deployment-syncs=20",
				"--concurrent-replicaset-syncs=20",
				"--concurrent-statefulset-syncs=20",
				"--concurrent-job-syncs=20",
				"--concurrent-endpoint-syncs=10",
				"--concurrent-service-endpoint-syncs=10",
				"--concurrent-namespace-syncs=20",
			}, s.config.ControllerManagerFlags...), nil
		},
		Ready: func(in Instance) string { return "https://" + in.Address(securePort) + "/healthz" },
	}}
}

func (s *Sandbox) kwok() part {
	return part{Component: Component{
		Name: KWOK, Binary: "kwok", User: kwokUser,
		Args: func(in Instance) ([]string, error) {
			config := filepath.Join(in.Dir, "config.yaml")
			if err := os.WriteFile(config, kwokConfig(in.Address(healthPort), s.config.Kubelets == 0), 0o600); err != nil {
				return nil, err
			}
			return []string{"--config=" + config, "--kubeconfig=" + in.Kubeconfig}, nil
		},
		Ready: func(in Instance) string { return "http://" + in.Address(healthPort) + "/readyz" },
	}}
}

// ready returns the health check of one replica, nil when there is none.
func (p part) ready(in Instance) func(context.Context) error {
	switch {
	case p.probe != nil:
		return p.probe(in)
	case p.Ready != nil:
		url := p.Ready(in)
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its own certificate, on loopback
		}}
		return func(ctx context.Context) error { return expectOK(ctx, client, url) }
	default:
		return nil
	}
}

func expectOK(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		if err != nil {
			return err
		}
		return fmt.Errorf("%s answers %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// graceOf bounds how long a component may take to exit. The API server would wait for open watches, and etcd for data that nobody needs any more.
func graceOf(component string) time.Duration {
	switch component {
	case Etcd, APIServer, ControllerManager, KWOK:
		return 2 * time.Second
	default:
		return 5 * time.Second
	}
}
