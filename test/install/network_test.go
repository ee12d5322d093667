package install

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// serviceNetwork does for the API server what kube-proxy and the pod network do. It connects a request for a Service's cluster IP to a ready endpoint
// of the Service, which is a process of the kubelet. So the API server uses webhook configurations, Services and certificates as they were applied.
type serviceNetwork struct {
	socket string
	server *http.Server

	mu      sync.Mutex
	kubelet *kubelet // nil before the kubelet starts
	turn    int
}

func newServiceNetwork(t *testing.T) *serviceNetwork {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth") // the path of a socket must be short, so this does not use t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	n := &serviceNetwork{socket: filepath.Join(dir, "services")}
	listener, err := net.Listen("unix", n.socket)
	if err != nil {
		t.Fatal(err)
	}
	n.server = &http.Server{Handler: n} //nolint:gosec // asked by the API server only
	done := make(chan error)
	go func() { done <- n.server.Serve(listener) }()
	t.Cleanup(func() {
		if err := n.server.Close(); err != nil {
			t.Error(err)
		}
		<-done
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *serviceNetwork) connect(k *kubelet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kubelet = k
}

func (n *serviceNetwork) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	address, err := n.endpointOf(r.Context(), r.Host)
	var pod net.Conn
	if err == nil {
		pod, err = (&net.Dialer{}).DialContext(r.Context(), "tcp", address)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer pod.Close()
	client, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer client.Close()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// If one end closes, both close. The two ends handle errors.
	ended := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(pod, buffered); ended <- struct{}{} }()
	go func() { _, _ = io.Copy(client, pod); ended <- struct{}{} }()
	<-ended
}

// endpointOf returns the addresses of the ready endpoints of the Service in turn.
func (n *serviceNetwork) endpointOf(ctx context.Context, service string) (string, error) {
	n.mu.Lock()
	k := n.kubelet
	n.turn++
	turn := n.turn
	n.mu.Unlock()
	if k == nil {
		return "", fmt.Errorf("nothing runs yet")
	}
	ip, port, err := net.SplitHostPort(service)
	if err != nil {
		return "", err
	}
	services, err := k.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for i := range services.Items {
		s := &services.Items[i]
		for _, offered := range s.Spec.Ports {
			if s.Spec.ClusterIP != ip || strconv.Itoa(int(offered.Port)) != port {
				continue
			}
			slices, err := k.client.DiscoveryV1().EndpointSlices(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.Name})
			if err != nil {
				return "", err
			}
			if ready := k.readyAt(slices.Items, offered.Name); len(ready) > 0 {
				return ready[turn%len(ready)], nil
			}
			return "", fmt.Errorf("service %s/%s has no endpoint that is ready", s.Namespace, s.Name)
		}
	}
	return "", fmt.Errorf("no service has %s", service)
}

// readyAt returns the addresses of the processes behind the ready endpoints, for the Service port of this name.
func (k *kubelet) readyAt(slices []discoveryv1.EndpointSlice, portName string) []string {
	var ready []string
	for _, slice := range slices {
		for _, port := range slice.Ports {
			if *port.Name != portName {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready == nil || !*endpoint.Conditions.Ready || endpoint.TargetRef == nil {
					continue
				}
				if p := k.named(endpoint.TargetRef.Name); p != nil {
					ready = append(ready, net.JoinHostPort(p.address, strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	return ready
}

// serveAs serves the API server of a cluster at an address of its own, with all rights, and with another version.
func serveAs(t *testing.T, c *cluster, version string) (address string) {
	t.Helper()
	target, err := url.Parse(c.RESTConfig().Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(target)
	pass.Transport = transport
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			pass.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		major, tail, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
		minor, _, _ := strings.Cut(tail, ".")
		fmt.Fprintf(w, `{"major": %q, "minor": %q, "gitVersion": %q}`, major, minor, version)
	}))
	t.Cleanup(server.Close)
	return server.URL
}
