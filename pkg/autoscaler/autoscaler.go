// Package autoscaler finds out whether the cluster has a node autoscaler. Spreads with binding Auto gate their pods
// beside one, because it cannot see quotas and reads only the pods; see docs/node-autoscalers.md.
package autoscaler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Name of a node autoscaler. Empty means that there is none.
type Name string

const (
	// karpenter is there if the API server has the group karpenter.sh.
	karpenter Name = "karpenter"
	// clusterAutoscaler is there if it has written its status, unless it runs with --write-status-configmap=false or in
	// another namespace.
	clusterAutoscaler Name = "cluster-autoscaler"
	// configured is one that the installation says it has.
	configured Name = "configured"
)

const karpenterGroup = "karpenter.sh"

// statusOfClusterAutoscaler is the default of its flags --namespace and --status-config-map-name.
var statusOfClusterAutoscaler = client.ObjectKey{Namespace: "kube-system", Name: "cluster-autoscaler-status"}

// find looks for a node autoscaler. It asks for one API group only, because the list of all of them is large. The
// reader should not be a cache. The error says that it is not known whether there is one.
func find(ctx context.Context, server rest.Interface, reader client.Reader) (Name, error) {
	switch err := server.Get().AbsPath("/apis", karpenterGroup).Do(ctx).Error(); {
	case err == nil:
		return karpenter, nil
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("reading API group %s: %w", karpenterGroup, err)
	}
	status := &metav1.PartialObjectMetadata{}
	status.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	switch err := reader.Get(ctx, statusOfClusterAutoscaler, status); {
	case err == nil:
		return clusterAutoscaler, nil
	case apierrors.IsNotFound(err):
		return "", nil
	default:
		return "", fmt.Errorf("reading ConfigMap %s: %w", statusOfClusterAutoscaler, err)
	}
}

// Setting says how an installation knows whether it has a node autoscaler: auto, present or absent.
type Setting string

const (
	// Auto looks for one, and goes on looking.
	Auto Setting = "auto"
	// present means that there is one.
	present Setting = "present"
	// absent means that there is none.
	absent Setting = "absent"
)

const (
	// lookEvery is how long an autoscaler that comes or goes may be unnoticed.
	lookEvery = 30 * time.Second
	// lookAgain is the same after a failed look.
	lookAgain = 2 * time.Second
)

var found = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "berth_node_autoscaler",
	Help: "1 for the node autoscaler that this replica knows of: karpenter, cluster-autoscaler or configured. Beside one, spreads with binding Auto gate their pods. No series if there is none.",
}, []string{"name"})

func init() { metrics.Registry.MustRegister(found) }

// Detector knows whether there is a node autoscaler. A nil Detector knows none. It is safe for concurrent use.
type Detector struct {
	find func(context.Context) (Name, error)

	mu       sync.Mutex
	name     Name
	onChange []func()
}

var _ manager.LeaderElectionRunnable = &Detector{}

// Setup makes the detector of a process. With setting Auto it looks once before Setup returns, and every 30 s while the
// manager runs, on every replica. An empty setting is Auto.
func Setup(ctx context.Context, mgr manager.Manager, setting Setting) (*Detector, error) {
	d := &Detector{}
	switch setting {
	case Auto, "":
	case present:
		d.set(ctx, configured)
		return d, nil
	case absent:
		return d, nil
	default:
		return nil, fmt.Errorf("--node-autoscaler is %q: must be %s, %s or %s", setting, Auto, present, absent)
	}
	server, err := discovery.NewDiscoveryClientForConfig(mgr.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("making the discovery client: %w", err)
	}
	d.find = func(ctx context.Context) (Name, error) { return find(ctx, server.RESTClient(), mgr.GetAPIReader()) }
	d.look(ctx)
	return d, mgr.Add(d)
}

// Name of the node autoscaler that the detector knows of. Empty if there is none.
func (d *Detector) Name() Name {
	if d == nil {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.name
}

// OnChange registers a function that is called after each change of the name. It must not block.
func (d *Detector) OnChange(do func()) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onChange = append(d.onChange, do)
}

// NeedLeaderElection is false: every replica serves the webhook.
func (d *Detector) NeedLeaderElection() bool { return false }

// Start looks until the context ends.
func (d *Detector) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(d.look(ctx)):
		}
	}
}

// look looks once, and returns when to look again. After an error the detector knows what it knew before.
func (d *Detector) look(ctx context.Context) (again time.Duration) {
	name, err := d.find(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Looking for a node autoscaler", "known", d.Name())
		return lookAgain
	}
	d.set(ctx, name)
	return lookEvery
}

func (d *Detector) set(ctx context.Context, name Name) {
	d.mu.Lock()
	before, told := d.name, d.onChange
	d.name = name
	d.mu.Unlock()
	if name == before {
		return
	}
	klog.FromContext(ctx).Info("The node autoscaler has changed", "from", before, "to", name)
	found.Reset()
	if name != "" {
		found.WithLabelValues(string(name)).Set(1)
	}
	for _, do := range told {
		do()
	}
}
