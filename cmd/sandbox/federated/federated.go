// Package federated starts a federation on one machine: a hub where Berth runs, and members that are registered in it.
package federated

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/cmd/sandbox/product"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/members"
)

// Hub is the name of the hub among the clusters and contexts.
const Hub = "hub"

// MemberName returns the name of the member with that number, from 1.
func MemberName(number int) string { return fmt.Sprintf("member-%d", number) }

const (
	// tokenLifetime is longer than a sandbox runs.
	tokenLifetime = 365 * 24 * time.Hour
	// connectTimeout bounds how long the hub may take to connect to the members.
	connectTimeout = time.Minute
	connectLook    = 100 * time.Millisecond
)

// Cluster is the hub or a member.
type Cluster struct {
	Name string
	*sandbox.Sandbox
}

// Federation is a hub and its members.
type Federation struct {
	// Clusters are the hub and then the members, by number.
	Clusters []Cluster
}

// Hub returns the hub.
func (f *Federation) Hub() *sandbox.Sandbox { return f.Clusters[0].Sandbox }

// Members returns the members.
func (f *Federation) Members() []Cluster { return f.Clusters[1:] }

// Start returns a federation whose hub is connected to all of its members. The name, directories, progress and binaries
// of the config are those of all clusters; nodes, zones and sizes are those of each member. The hub has neither nodes
// nor kube-controller-manager. Each function of change may change the config of a cluster; it gets its name. After an
// error nothing runs.
func Start(ctx context.Context, config sandbox.Config, count int, change ...func(name string, cluster sandbox.Config) sandbox.Config) (*Federation, error) {
	began := time.Now()
	all, err := configs(config, count)
	for i := range all {
		for _, f := range change {
			all[i] = f(nameOf(i), all[i])
		}
	}
	if err != nil {
		return nil, err
	}
	f := &Federation{Clusters: make([]Cluster, len(all))}
	starting, startCtx := errgroup.WithContext(ctx)
	for i, one := range all {
		starting.Go(func() error {
			s, err := sandbox.Start(startCtx, one)
			if err != nil {
				return fmt.Errorf("starting %s: %w", nameOf(i), err)
			}
			f.Clusters[i] = Cluster{nameOf(i), s}
			return nil
		})
	}
	err = starting.Wait()
	if err == nil {
		err = f.connect(ctx)
	}
	if err != nil {
		f.Stop()
		return nil, err
	}
	fmt.Fprintf(all[0].Progress, "the hub is connected to %d members (%s)\n", count, time.Since(began).Round(100*time.Millisecond))
	return f, nil
}

func nameOf(i int) string {
	if i == 0 {
		return Hub
	}
	return MemberName(i)
}

// configs returns the config of each cluster.
func configs(config sandbox.Config, count int) ([]sandbox.Config, error) {
	if config.Progress == nil {
		config.Progress = io.Discard
	}
	progress := &lines{to: config.Progress}
	hub := sandbox.Config{
		Name: config.Name, Dir: config.Dir, BinDir: config.BinDir, Progress: progress.of(Hub), AuditLog: config.AuditLog, AuditLogPath: config.AuditLogPath,
		Without: append(slices.Clone(config.Without), sandbox.ControllerManager, sandbox.KWOK, product.Scheduler, product.DefaultScheduler),
	}
	hub, err := product.Compose(hub, product.Options{Federation: true})
	all := []sandbox.Config{hub}
	for i := range count {
		name := MemberName(i + 1)
		member := config
		member.Name, member.Dir, member.Kubeconfig, member.Progress = name, MemberDir(config.Dir, name), "", progress.of(name)
		member.Without, member.AuditLogPath = nil, "" // each writes its own
		all = append(all, product.Member(member))
	}
	return all, err
}

// MemberDir is the directory of a member in that of its federation.
func MemberDir(dir, member string) string { return filepath.Join(dir, "members", member) }

// Status is that of all components. Each name begins with that of its cluster.
func (f *Federation) Status() (all []sandbox.ComponentStatus) {
	for _, cluster := range f.Clusters {
		for _, status := range cluster.Status() {
			status.Name = cluster.Name + "/" + status.Name
			all = append(all, status)
		}
	}
	return all
}

// Changed returns a channel that is closed when the status of any cluster changes.
func (f *Federation) Changed() <-chan struct{} {
	changed := make(chan struct{})
	var once sync.Once
	for _, cluster := range f.Clusters {
		one := cluster.Changed()
		go func() {
			select {
			case <-one:
				once.Do(func() { close(changed) })
			case <-changed:
			}
		}()
	}
	return changed
}

// Stop ends everything, and returns when no process is left.
func (f *Federation) Stop() {
	var stopping sync.WaitGroup
	for _, cluster := range f.Clusters {
		if cluster.Sandbox != nil {
			stopping.Go(cluster.Stop)
		}
	}
	stopping.Wait()
}

// Kubeconfig has the administrators of all clusters, each with a context of the cluster's name. The current context is
// the hub.
func (f *Federation) Kubeconfig() ([]byte, error) {
	merged := clientcmdapi.NewConfig()
	for _, cluster := range f.Clusters {
		config := cluster.RESTConfig()
		addTo(merged, cluster.Name, config.Host, config.CAData, config.BearerToken)
	}
	merged.CurrentContext = Hub
	return clientcmd.Write(*merged)
}

func addTo(config *clientcmdapi.Config, name, server string, authority []byte, token string) {
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
}

// connect registers the members in the hub, as docs/federation-members.md says, and returns when the hub is connected
// to all.
func (f *Federation) connect(ctx context.Context) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, inventory.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	hub, err := client.New(f.Hub().RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	for _, member := range f.Members() {
		if err := register(ctx, hub, member); err != nil {
			return fmt.Errorf("registering %s: %w", member.Name, err)
		}
	}
	var last string
	err = wait.PollUntilContextTimeout(ctx, connectLook, connectTimeout, true, func(ctx context.Context) (bool, error) {
		var events corev1.EventList
		if err := hub.List(ctx, &events, client.InNamespace(members.DefaultNamespace)); err != nil {
			return false, err
		}
		ready := map[string]bool{}
		for _, event := range events.Items {
			ready[event.InvolvedObject.Name] = ready[event.InvolvedObject.Name] || event.Reason == string(members.Ready)
			last = event.Message
		}
		return !slices.ContainsFunc(f.Members(), func(member Cluster) bool { return !ready[member.Name] }), nil
	})
	if err != nil {
		return fmt.Errorf("connecting the hub to its members: %w: %s", err, last)
	}
	return nil
}

// register gives the hub a token of its account in the member.
func register(ctx context.Context, hub client.Client, member Cluster) error {
	config := member.RESTConfig()
	accounts, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	lifetime := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))}}
	token, err := accounts.CoreV1().ServiceAccounts("berth-hub").CreateToken(ctx, "hub", lifetime, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	kubeconfig := clientcmdapi.NewConfig()
	addTo(kubeconfig, member.Name, config.Host, config.CAData, token.Status.Token)
	kubeconfig.CurrentContext = member.Name
	content, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: member.Name},
		Data:       map[string][]byte{members.KubeconfigKey: content},
	}
	if err := hub.Create(ctx, secret); err != nil {
		return err
	}
	return hub.Create(ctx, &inventory.ClusterProfile{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: members.DefaultNamespace, Name: member.Name, Annotations: map[string]string{members.SecretAnnotation: member.Name},
			Labels: map[string]string{inventory.LabelClusterManagerKey: "berth-sandbox"},
		},
		Spec: inventory.ClusterProfileSpec{DisplayName: member.Name, ClusterManager: inventory.ClusterManager{Name: "berth-sandbox"}},
	})
}

// lines lets several clusters write their progress to one writer, each line with the name of its cluster.
type lines struct {
	mu sync.Mutex
	to io.Writer
}

func (l *lines) of(cluster string) io.Writer { return &prefixed{l, cluster} }

type prefixed struct {
	*lines
	cluster string
}

// Write implements io.Writer. A sandbox writes whole lines.
func (p *prefixed) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// It is no error if the reader of the progress is gone.
	_, _ = fmt.Fprintf(p.to, "%s: %s", p.cluster, line)
	return len(line), nil
}
