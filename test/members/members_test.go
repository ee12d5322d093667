package members

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/test/harness"
)

const (
	probeInterval = 300 * time.Millisecond
	probeTimeout  = 600 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	// found is how long it may take until the hub knows that a member is not well: the promise of members.Options, and some time for the machine.
	found = probeInterval + 2*probeTimeout + time.Second
	// prompt bounds what must not wait for any other member. A member that is not well takes at least 600 ms for every request.
	prompt = 2 * time.Second
)

// world is a hub and one real member. Tests register the member under several names, each behind a proxy of its own that disturbs its requests.
type world struct {
	hub, member *sandbox.Sandbox
	admin       client.Client // of the hub
	inMember    client.Client // with all rights
	// token is that of the hub's account in the member.
	token string
}

// allow is the patch of a namespace in which the hub may work.
const allow = `{"metadata":{"labels":{"` + v1alpha1.AllowedLabel + `":"true"}}}`

func startWorld(t *testing.T) *world {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	w := &world{}
	var starting errgroup.Group
	start := func(name string, manifests [][]byte, into **sandbox.Sandbox) {
		starting.Go(func() (err error) {
			*into, err = sandbox.Start(t.Context(), sandbox.Config{
				Name: name, Dir: filepath.Join(t.TempDir(), name), BinDir: harness.BinDir(),
				Without: []string{sandbox.ControllerManager, sandbox.KWOK}, Manifests: manifests,
			})
			return err
		})
	}
	began := time.Now()
	start("hub", append(manifests.Install(), manifests.FederationHub()...), &w.hub)
	start("member", manifests.FederationMember(), &w.member)
	err := starting.Wait()
	for _, s := range []*sandbox.Sandbox{w.hub, w.member} {
		if s != nil {
			t.Cleanup(s.Stop)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("two control planes were ready after %s", time.Since(began).Round(10*time.Millisecond))

	scheme := clientgoscheme.Scheme
	if err := inventory.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if w.admin, err = client.New(w.hub.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	if w.inMember, err = client.New(w.member.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	// The administrator of the member lets the hub work in one namespace. Nobody can let it work in those of the cluster itself.
	for _, namespace := range []string{"default", metav1.NamespaceSystem, "berth-hub"} {
		if err := w.inMember.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, client.RawPatch(types.MergePatchType, []byte(allow))); err != nil {
			t.Fatal(err)
		}
	}
	// All members are the same cluster. The hub must not find out.
	role := &rbacv1.ClusterRole{}
	if err := w.inMember.Get(t.Context(), client.ObjectKey{Name: "berth-hub"}, role); err != nil {
		t.Fatal(err)
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, "namespaces") })
	if err := w.inMember.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	tokens, err := kubernetes.NewForConfig(w.member.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	answer, err := tokens.CoreV1().ServiceAccounts("berth-hub").CreateToken(t.Context(), "hub", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.token = answer.Status.Token
	return w
}

// kubeconfig is for the hub's account in the member, by way of the proxy if there is one.
func (w *world) kubeconfig(t *testing.T, p *harness.Proxy, change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) []byte {
	t.Helper()
	direct := w.member.RESTConfig()
	cluster, user := &clientcmdapi.Cluster{Server: direct.Host, CertificateAuthorityData: direct.CAData}, &clientcmdapi.AuthInfo{Token: w.token}
	if p != nil {
		if err := p.PassTo(direct.Host, direct.CAData, w.token); err != nil {
			t.Fatal(err)
		}
		cluster = &clientcmdapi.Cluster{Server: p.URL}
	}
	if change != nil {
		change(cluster, user)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["m"], config.AuthInfos["m"], config.Contexts["m"], config.CurrentContext = cluster, user, &clientcmdapi.Context{Cluster: "m", AuthInfo: "m"}, "m"
	content, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// register makes a ClusterProfile and the Secret with its kubeconfig. An existing Secret is changed.
func (w *world) register(t *testing.T, name string, kubeconfig []byte) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: name}, Data: map[string][]byte{members.KubeconfigKey: kubeconfig}}
	if err := w.admin.Create(t.Context(), secret); apierrors.IsAlreadyExists(err) {
		err = w.admin.Update(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
	} else if err != nil {
		t.Fatal(err)
	}
	profile := &inventory.ClusterProfile{
		ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: name, Annotations: map[string]string{members.SecretAnnotation: name}},
		Spec:       inventory.ClusterProfileSpec{ClusterManager: inventory.ClusterManager{Name: "test"}},
	}
	if err := w.admin.Create(t.Context(), profile); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func (w *world) unregister(t *testing.T, name string) {
	t.Helper()
	profile := &inventory.ClusterProfile{ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: name}}
	if err := w.admin.Delete(context.WithoutCancel(t.Context()), profile); err != nil {
		t.Fatal(err)
	}
}

// running is a hub's process with its members.
type running struct {
	*members.Set
	stop func()

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	heard   []members.Change
}

// run starts the members with the rights of berth-united.
func (w *world) run(t *testing.T) *running {
	t.Helper()
	hub := rest.CopyConfig(w.hub.RESTConfig())
	hub.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:berth-system:berth-united", Groups: []string{"system:authenticated"}}
	// A proxy makes client-go forget the transport, whose goroutines would count.
	hub.Proxy = http.ProxyFromEnvironment
	mgr, err := ctrl.NewManager(hub, ctrl.Options{
		Scheme: clientgoscheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &running{changed: make(chan struct{})}
	if r.Set, err = members.Setup(mgr, members.Options{
		ProbeInterval: probeInterval, ProbeTimeout: probeTimeout, RequestTimeout: 2 * probeTimeout, SyncTimeout: 5 * time.Second,
		ShortestPause: 100 * time.Millisecond, LongestPause: longestPause,
	}); err != nil {
		t.Fatal(err)
	}
	source := r.Source(func(change members.Change) []reconcile.Request {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.heard = append(r.heard, change)
		close(r.changed)
		r.changed = make(chan struct{})
		return []reconcile.Request{{NamespacedName: change.Workload}}
	}, 0)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	if err := source.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		queue.ShutDown()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// await waits until the condition returns nothing, and returns how long it took. It looks at every change and, because messages and caches change
// without one, every few milliseconds.
func (r *running) await(t *testing.T, within time.Duration, what string, condition func() (missing string)) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		missing := condition()
		took := time.Since(began)
		if missing == "" {
			return took
		}
		if took > within {
			t.Fatalf("waited %s for %s: %s\n%s", within, what, missing, r.describe())
		}
		select {
		case <-changed:
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *running) describe() string {
	var b strings.Builder
	for _, status := range r.List() {
		fmt.Fprintf(&b, "%+v\n", status)
	}
	return b.String()
}

func (r *running) awaitState(t *testing.T, within time.Duration, name string, want members.State, message string) time.Duration {
	t.Helper()
	return r.await(t, within, fmt.Sprintf("member %s to be %s", name, want), func() string {
		status, ok := r.Status(name)
		if !ok || status.State != want || !strings.Contains(status.Message, message) {
			return fmt.Sprintf("it is %+v, want %s and %q", status, want, message)
		}
		return ""
	})
}

// awaitCached waits until the member's cache has the ReplicaSet with that many replicas.
func (r *running) awaitCached(t *testing.T, within time.Duration, member string, want *appsv1.ReplicaSet) time.Duration {
	t.Helper()
	return r.await(t, within, fmt.Sprintf("the cache of %s", member), func() string {
		cached, err := r.Cache(member)
		if err != nil {
			return err.Error()
		}
		var got appsv1.ReplicaSet
		if err := cached.Get(t.Context(), client.ObjectKeyFromObject(want), &got); err != nil {
			return err.Error()
		}
		if *got.Spec.Replicas != *want.Spec.Replicas {
			return fmt.Sprintf("%d replicas, want %d", *got.Spec.Replicas, *want.Spec.Replicas)
		}
		return ""
	})
}

func newReplicaSet(name string, labels map[string]string) *appsv1.ReplicaSet {
	selected := map[string]string{"app": name}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels}}
	set.Spec.Replicas, set.Spec.Selector = ptr.To[int32](1), &metav1.LabelSelector{MatchLabels: selected}
	set.Spec.Template.Labels, set.Spec.Template.Spec.Containers = selected, []corev1.Container{{Name: "c", Image: "i"}}
	return set
}

func ours() map[string]string { return map[string]string{v1alpha1.HubLabel: "test"} }

// isOfTheCache is true for lists and watches of the cache. Probes ask for one object.
func isOfTheCache(r *http.Request) bool {
	return strings.Contains(r.URL.Path, "/replicasets") && r.Method == http.MethodGet && r.URL.Query().Get("limit") != "1"
}

func anything(*http.Request) bool { return true }

// TestMembers has one world for all its parts, because the control planes take longer to start than the rest.
func TestMembers(t *testing.T) {
	w := startWorld(t)
	for i := range 20 { // so that half of a list is less than the list
		if err := w.inMember.Create(t.Context(), newReplicaSet(fmt.Sprintf("some-%d", i), ours())); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("no member delays another", w.noMemberDelaysAnother)
	t.Run("a member that is lost is not read, and returns with the truth", w.aMemberThatIsLost)
	t.Run("credentials are followed", w.credentialsAreFollowed)
	t.Run("nothing of a member is left behind", w.nothingIsLeftBehind)
	t.Run("the hub can do what it needs and no more", w.leastRights)
}

func (w *world) noMemberDelaysAnother(t *testing.T) {
	bad := map[string]struct {
		may     func(*http.Request) bool
		fault   harness.Fault
		state   members.State
		message string
	}{
		"hangs":   {anything, harness.Silence, members.Unreachable, "no answer in time"},
		"refuses": {anything, harness.UnauthorizedInstead, members.Unauthorized, "renew the credentials"},
		"half":    {isOfTheCache, harness.HalfAnswer, members.Unreachable, "cannot be reached"},
		"gone":    {anything, harness.ConnectionRefused, members.Unreachable, "cannot be reached"},
		"broken":  {anything, harness.ErrorInstead, members.Unreachable, "cannot be reached"},
		"stuck":   {isOfTheCache, harness.Silence, "", ""}, // it answers probes, and its cache is never complete
		"slow":    {isOfTheCache, harness.Slow, members.Ready, ""},
	}
	proxies := map[string]*harness.Proxy{}
	for name, tc := range bad {
		p, err := harness.StartProxy(t.Context(), 1, tc.may, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.Spoil(100, tc.fault)
		proxies[name] = p
		w.register(t, name, w.kubeconfig(t, p, nil))
		t.Cleanup(func() { w.unregister(t, name) })
	}
	w.register(t, "unreadable", []byte("no kubeconfig"))
	t.Cleanup(func() { w.unregister(t, "unreadable") })
	r := w.run(t)
	// Who starts with them waits neither for the one that hangs nor for the one whose cache is never complete.
	known := r.await(t, 10*time.Second, "the first attempts", func() string {
		if !r.Known(t.Context()) {
			return "some have not ended"
		}
		return ""
	})
	if all := r.List(); len(all) != len(bad)+1 {
		t.Errorf("known after %s: %v", known, all)
	}
	// The states are known once the first attempts have ended.
	r.awaitState(t, 10*time.Second, "hangs", members.Unreachable, "no answer in time")

	// A member that comes now must not notice the others.
	w.register(t, "good", w.kubeconfig(t, nil, nil))
	t.Cleanup(func() { w.unregister(t, "good") })
	connected := r.awaitState(t, prompt, "good", members.Ready, "")
	set := newReplicaSet("seen", ours())
	if err := w.inMember.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.inMember.Delete(context.WithoutCancel(t.Context()), set) })
	cached := r.awaitCached(t, prompt, "good", set)
	live, err := r.Client("good")
	if err != nil {
		t.Fatal(err)
	}
	var longest time.Duration
	for range 20 {
		began := time.Now()
		var got appsv1.ReplicaSet
		if err := live.Get(t.Context(), client.ObjectKeyFromObject(set), &got); err != nil {
			t.Fatal(err)
		}
		r.List()
		longest = max(longest, time.Since(began))
	}
	if longest > prompt/2 {
		t.Errorf("a live read took %s beside members that hang", longest)
	}
	t.Logf("beside %d members with faults: known after %s, connected after %s, a change cached after %s, the slowest of 20 live reads %s",
		len(bad)+1, known.Round(time.Millisecond), connected.Round(time.Millisecond), cached.Round(time.Millisecond), longest.Round(time.Millisecond))

	for name, tc := range bad {
		if tc.state != "" {
			r.awaitState(t, 15*time.Second, name, tc.state, tc.message)
		}
	}
	r.awaitState(t, prompt, "unreadable", members.BadCredentials, "is no kubeconfig")
	if status, _ := r.Status("stuck"); status.State == members.Ready {
		t.Errorf("a member without a complete cache is ready: %+v", status)
	}
	r.await(t, 5*time.Second, "an event of the profile", func() string {
		var events corev1.EventList
		if err := w.admin.List(t.Context(), &events, client.InNamespace(members.DefaultNamespace)); err != nil {
			return err.Error()
		}
		for _, event := range events.Items {
			if event.InvolvedObject.Name == "refuses" && event.Reason == string(members.Unauthorized) && strings.Contains(event.Message, "renew the credentials") {
				return ""
			}
		}
		return fmt.Sprintf("%d other events", len(events.Items))
	})

	// All return, each as soon as it is well.
	for _, p := range proxies {
		p.Spoil(0)
	}
	var slowest time.Duration
	for name := range bad {
		slowest = max(slowest, r.awaitState(t, 15*time.Second, name, members.Ready, ""))
		r.awaitCached(t, prompt, name, set)
	}
	t.Logf("all were ready %s after their faults had ended", slowest.Round(time.Millisecond))
}

func (w *world) aMemberThatIsLost(t *testing.T) {
	for name, fault := range map[string]harness.Fault{
		"it hangs": harness.Silence, "it is gone": harness.ConnectionRefused, "it does not accept the hub any more": harness.UnauthorizedInstead,
	} {
		t.Run(name, func(t *testing.T) {
			p, err := harness.StartProxy(t.Context(), 1, anything, nil)
			if err != nil {
				t.Fatal(err)
			}
			w.register(t, "lost", w.kubeconfig(t, p, nil))
			t.Cleanup(func() { w.unregister(t, "lost") })
			set := newReplicaSet("changing", ours())
			if err := w.inMember.Create(t.Context(), set); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = w.inMember.Delete(context.WithoutCancel(t.Context()), set) })
			r := w.run(t)
			r.awaitState(t, 5*time.Second, "lost", members.Ready, "")
			r.awaitCached(t, prompt, "lost", set)
			cached, err := r.Cache("lost")
			if err != nil {
				t.Fatal(err)
			}
			live, err := r.Client("lost")
			if err != nil {
				t.Fatal(err)
			}

			p.Spoil(100, fault)
			lost := time.Now()
			took := r.await(t, found, "the loss to be found", func() string {
				if status, _ := r.Status("lost"); status.State == members.Ready {
					return "it is ready"
				}
				return ""
			})
			var notReady *members.NotReadyError
			if err := cached.Get(t.Context(), client.ObjectKeyFromObject(set), &appsv1.ReplicaSet{}); !errors.As(err, &notReady) {
				t.Errorf("a cache from before is read: %v", err)
			}
			if err := cached.List(t.Context(), &appsv1.ReplicaSetList{}); !errors.As(err, &notReady) {
				t.Errorf("a cache from before is listed: %v", err)
			}
			if _, err := r.Cache("lost"); !errors.As(err, &notReady) || notReady.Status.Message == "" {
				t.Errorf("a member that is lost has a cache: %v", err)
			}
			if err := live.Get(t.Context(), client.ObjectKeyFromObject(set), &appsv1.ReplicaSet{}); err == nil {
				t.Error("a client from before works")
			}
			// What happens meanwhile is in the cache as soon as there is one.
			set.Spec.Replicas = ptr.To[int32](7)
			if err := w.inMember.Update(t.Context(), set); err != nil {
				t.Fatal(err)
			}
			p.Spoil(0)
			back := r.awaitState(t, 5*time.Second, "lost", members.Ready, "")
			if cached, err = r.Cache("lost"); err != nil {
				t.Fatal(err)
			}
			var got appsv1.ReplicaSet
			if err := cached.Get(t.Context(), client.ObjectKeyFromObject(set), &got); err != nil || *got.Spec.Replicas != 7 {
				t.Errorf("the cache of a member that has returned says %v, %v", got.Spec.Replicas, err)
			}
			if status, _ := r.Status("lost"); status.Since.Before(lost) {
				t.Errorf("it is ready since %s, but was lost at %s", status.Since, lost)
			}
			t.Logf("found after %s, ready %s after its return", took.Round(time.Millisecond), back.Round(time.Millisecond))
			r.stop()
		})
	}
}

func (w *world) credentialsAreFollowed(t *testing.T) {
	w.register(t, "rotated", w.kubeconfig(t, nil, nil))
	r := w.run(t)
	r.awaitState(t, 5*time.Second, "rotated", members.Ready, "")
	old, err := r.Client("rotated")
	if err != nil {
		t.Fatal(err)
	}
	expectClosed := func(what string) {
		t.Helper()
		if err := old.List(t.Context(), &appsv1.ReplicaSetList{}, client.InNamespace("default")); err == nil {
			t.Errorf("a client with the previous credentials works %s", what)
		}
	}
	w.register(t, "rotated", w.kubeconfig(t, nil, func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) { user.Token = "expired" }))
	r.awaitState(t, prompt, "rotated", members.Unauthorized, "renew the credentials")
	expectClosed("after they have changed")
	w.register(t, "rotated", w.kubeconfig(t, nil, func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
		user.Exec = &clientcmdapi.ExecConfig{Command: "/bin/false", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
	}))
	r.awaitState(t, prompt, "rotated", members.BadCredentials, "sets exec")
	if err := w.admin.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: "rotated"}}); err != nil {
		t.Fatal(err)
	}
	r.awaitState(t, prompt, "rotated", members.BadCredentials, "is missing or empty")
	w.register(t, "rotated", w.kubeconfig(t, nil, nil))
	r.awaitState(t, prompt, "rotated", members.Ready, "")
	if old, err = r.Client("rotated"); err != nil {
		t.Fatal(err)
	}
	w.unregister(t, "rotated")
	r.await(t, prompt, "the member to be forgotten", func() string {
		if _, ok := r.Status("rotated"); ok {
			return "it is there"
		}
		return ""
	})
	expectClosed("after the ClusterProfile was deleted")
	if _, err := r.Cache("rotated"); !apierrors.IsNotFound(err) {
		t.Errorf("a member that is not there: %v", err)
	}
	r.stop()
}

func (w *world) nothingIsLeftBehind(t *testing.T) {
	r := w.run(t)
	round := func() {
		w.register(t, "often", w.kubeconfig(t, nil, nil))
		r.awaitState(t, 5*time.Second, "often", members.Ready, "")
		w.register(t, "often", w.kubeconfig(t, nil, func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) { user.Token = "expired" }))
		r.awaitState(t, 5*time.Second, "often", members.Unauthorized, "")
		w.unregister(t, "often")
		r.await(t, prompt, "the member to be forgotten", func() string {
			if n := len(r.List()); n > 0 {
				return fmt.Sprintf("%d members", n)
			}
			return ""
		})
	}
	round()
	least := runtime.NumGoroutine()
	r.await(t, 5*time.Second, "the first round to end", func() string {
		now := runtime.NumGoroutine()
		defer func() { least = now }()
		if now < least {
			return "goroutines end"
		}
		return ""
	})
	const rounds = 8
	for range rounds {
		round()
	}
	r.await(t, 5*time.Second, "the goroutines to end", func() string {
		if now := runtime.NumGoroutine(); now > least+rounds/2 { // less than one for each round
			return fmt.Sprintf("%d goroutines, %d before", now, least)
		}
		return ""
	})
	t.Logf("%d goroutines before %d rounds, %d after", least, rounds, runtime.NumGoroutine())
	r.stop()
}

func (w *world) leastRights(t *testing.T) {
	workload := func(kind, name string, labels map[string]string) *unstructured.Unstructured {
		set := newReplicaSet(name, labels) // the three kinds have the same fields
		set.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: kind}
		content, err := harness.Unstructured(set)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	in := func(namespace string, object *unstructured.Unstructured) *unstructured.Unstructured {
		object.SetNamespace(namespace)
		return object
	}
	if err := w.inMember.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "closed"}}); err != nil {
		t.Fatal(err)
	}
	kinds := []string{"ReplicaSet", "Deployment", "StatefulSet"}
	for _, kind := range kinds {
		if err := w.inMember.Create(t.Context(), in("closed", workload(kind, "left", ours()))); err != nil {
			t.Fatal(err)
		}
		if err := w.inMember.Create(t.Context(), workload(kind, "strange", nil)); err != nil {
			t.Fatal(err)
		}
	}
	w.register(t, "rights", w.kubeconfig(t, nil, nil))
	t.Cleanup(func() { w.unregister(t, "rights") })
	r := w.run(t)
	r.awaitState(t, 5*time.Second, "rights", members.Ready, "")
	live, err := r.Client("rights")
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := clientcmd.RESTConfigFromKubeConfig(w.kubeconfig(t, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	anyKind, err := client.New(credentials, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(object *unstructured.Unstructured) error {
		return live.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("hub"), client.ForceOwnership)
	}
	type attempt struct {
		try     func() error
		allowed bool
	}
	attempts := map[string]attempt{
		"making a pod": {func() error {
			return live.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}})
		}, false},
		"reading the Secrets of a member": {func() error { return anyKind.List(t.Context(), &corev1.SecretList{}) }, false},
		"deleting the ReplicaSets of somebody": {func() error {
			return live.DeleteAllOf(t.Context(), &appsv1.ReplicaSet{}, client.InNamespace("default"))
		}, false},
	}
	for _, kind := range kinds {
		maps.Copy(attempts, map[string]attempt{
			"applying, changing and deleting of the hub, " + kind: {func() error {
				for replicas := range int64(2) {
					own := workload(kind, "own", ours())
					if err := unstructured.SetNestedField(own.Object, replicas, "spec", "replicas"); err != nil {
						return err
					}
					if err := apply(own); err != nil {
						return err
					}
				}
				return live.Delete(t.Context(), workload(kind, "own", nil))
			}, true},
			"making in a namespace that is not allowed, " + kind:            {func() error { return apply(in("closed", workload(kind, "own", ours()))) }, false},
			"making in kube-system, " + kind:                                {func() error { return apply(in(metav1.NamespaceSystem, workload(kind, "own", ours()))) }, false},
			"making in berth-hub, " + kind:                                  {func() error { return apply(in("berth-hub", workload(kind, "own", ours()))) }, false},
			"changing in a namespace that is not allowed any more, " + kind: {func() error { return apply(in("closed", workload(kind, "left", ours()))) }, false},
			"deleting in a namespace that is not allowed any more, " + kind: {func() error { return live.Delete(t.Context(), in("closed", workload(kind, "left", nil))) }, false},
			"making without the label, " + kind:                             {func() error { return apply(workload(kind, "bare", nil)) }, false},
			"changing of somebody else, " + kind:                            {func() error { return apply(workload(kind, "strange", nil)) }, false},
			"labelling of somebody else, " + kind:                           {func() error { return apply(workload(kind, "strange", ours())) }, false},
			"deleting of somebody else, " + kind:                            {func() error { return live.Delete(t.Context(), workload(kind, "strange", nil)) }, false},
		})
	}
	for what, tc := range attempts {
		if err := tc.try(); tc.allowed && err != nil || !tc.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, allowed: %t", what, err, tc.allowed)
		}
	}
	hub := rest.CopyConfig(w.hub.RESTConfig())
	hub.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:berth-system:berth-controller", Groups: []string{"system:authenticated"}}
	asController, err := client.New(hub, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := asController.List(t.Context(), &corev1.SecretList{}, client.InNamespace("default")); !apierrors.IsForbidden(err) {
		t.Errorf("the controller reads the Secrets of another namespace: %v", err)
	}
	// The webhook's account knows the names of the members, and cannot connect to one.
	if err := asController.List(t.Context(), &corev1.SecretList{}, client.InNamespace(members.DefaultNamespace)); !apierrors.IsForbidden(err) {
		t.Errorf("the controller reads the kubeconfigs of the members: %v", err)
	}
	if names, err := members.Names(t.Context(), asController, members.DefaultNamespace); err != nil || !slices.Contains(names, "rights") {
		t.Errorf("the controller knows the members %v: %v", names, err)
	}
	r.stop()
}
