package federation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/test/harness"
)

// Kinds of bad members. Any other word is one that is well.
const (
	isDead     = "dead"
	isSlow     = "slow"
	isLying    = "lying"
	isReadOnly = "read-only"
	isOlder    = "older"
	isRenamed  = "renamed"
	isHub      = "hub" // the hub itself becomes a member
)

// slowness is how long a slow member takes for each answer but those to probes and watches.
const slowness = 4900 * time.Millisecond

// bad is what the hub reaches in place of a member's API server.
type bad struct {
	*httptest.Server
	kind atomic.Value // a string
	// victim is the UID of another cluster, which a member that lies says is its own.
	victim  string
	forward *httputil.ReverseProxy
}

// stand puts a bad member in front of the last member, which is well at first.
func (w *world) stand(t *testing.T) *bad {
	t.Helper()
	at := memberCount - 1
	config, err := clientcmd.Load(w.secrets[at].Data[members.KubeconfigKey])
	if err != nil {
		t.Fatal(err)
	}
	here := config.Contexts[config.CurrentContext]
	cluster, user := config.Clusters[here.Cluster], config.AuthInfos[here.AuthInfo]
	target, err := url.Parse(cluster.Server)
	if err != nil {
		t.Fatal(err)
	}
	token, pool := user.Token, x509.NewCertPool()
	pool.AppendCertsFromPEM(cluster.CertificateAuthorityData)
	victim := &corev1.Namespace{}
	if err := w.members[0].Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, victim); err != nil {
		t.Fatal(err)
	}
	b := &bad{victim: string(victim.UID)}
	b.kind.Store("")
	b.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("Authorization", "Bearer "+token)
			if b.kind.Load() == isLying && r.In.URL.Query().Get("watch") == "" {
				r.Out.Header.Set("Accept", "application/json")
				r.Out.Header.Del("Accept-Encoding")
			}
		},
		ModifyResponse: b.lie,
		Transport:      &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64},
		FlushInterval:  -1, // flush at once, for watches
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	b.Server = httptest.NewServer(b)
	t.Cleanup(func() {
		b.CloseClientConnections()
		b.Close()
	})
	cluster.Server, cluster.CertificateAuthorityData = b.URL, nil
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	var secret corev1.Secret
	if err := w.hub.Get(t.Context(), client.ObjectKeyFromObject(&w.secrets[at]), &secret); err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{members.KubeconfigKey: text}
	if err := w.hub.Update(t.Context(), &secret); err != nil {
		t.Fatal(err)
	}
	return b
}

// ServeHTTP implements http.Handler.
func (b *bad) ServeHTTP(answer http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	isProbe := query.Get("watch") != "" || query.Get("limit") == "1" || r.URL.Path == "/version" || strings.HasSuffix(r.URL.Path, "/kube-system") || strings.HasSuffix(r.URL.Path, "/room")
	switch kind := b.kind.Load(); {
	case kind == isDead:
		panic(http.ErrAbortHandler)
	case kind == isSlow && !isProbe:
		select {
		case <-time.After(slowness): // the fault is the time that passes
		case <-r.Context().Done():
			return
		}
	case kind == isReadOnly && r.Method != http.MethodGet:
		http.Error(answer, "etcdserver: mvcc: database space exceeded", http.StatusInternalServerError)
		return
	case kind == isOlder && r.URL.Path == "/version":
		_, _ = answer.Write([]byte(`{"major": "1", "minor": "30"}`)) // the client may be gone
		return
	}
	b.forward.ServeHTTP(answer, r)
}

// lie changes what a member says about itself: which cluster it is, and how many pods it has.
func (b *bad) lie(response *http.Response) error {
	if b.kind.Load() != isLying || response.Request.Method != http.MethodGet || !strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") || response.Request.URL.Query().Get("watch") != "" {
		return nil
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var content map[string]any
	if json.Unmarshal(text, &content) == nil {
		if metadata, is := content["metadata"].(map[string]any); is && strings.HasSuffix(response.Request.URL.Path, "/kube-system") {
			metadata["uid"] = b.victim
		}
		if content["kind"] == "ReplicaSet" {
			content["status"] = map[string]any{"replicas": math.MaxInt32, "availableReplicas": math.MaxInt32}
		}
		if text, err = json.Marshal(content); err != nil {
			return err
		}
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	response.Header.Set("Content-Length", fmt.Sprint(len(text)))
	return nil
}

// become makes the member one of a kind.
func (b *bad) become(kind string) {
	was := b.kind.Swap(kind)
	for _, known := range []any{was, kind} {
		if known == isDead || known == isLying || known == isOlder { // the hub asks who it is when it connects
			b.CloseClientConnections()
			return
		}
	}
}

// rename gives the last member another ClusterProfile.
func (w *world) rename(t *testing.T, from, to string) {
	t.Helper()
	profile := &inventory.ClusterProfile{ObjectMeta: metav1.ObjectMeta{
		Namespace: members.DefaultNamespace, Name: to, Annotations: map[string]string{members.SecretAnnotation: w.secrets[memberCount-1].Name},
		Labels: map[string]string{inventory.LabelClusterManagerKey: "berth-sandbox"}, // by which the UnitedDeployment selects
	}, Spec: inventory.ClusterProfileSpec{ClusterManager: inventory.ClusterManager{Name: "test"}}}
	if err := w.hub.Delete(t.Context(), &inventory.ClusterProfile{ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: from}}); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.Create(t.Context(), profile); err != nil {
		t.Fatal(err)
	}
}

// hubItself is the name of the hub as a member of its own.
const hubItself = "hub-itself"

// join makes the hub a member of its own, and waits until it gets replicas.
func (w *world) join(t *testing.T, ns string) {
	t.Helper()
	config := w.Hub().RESTConfig()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[hubItself] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos[hubItself] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	kubeconfig.Contexts[hubItself] = &clientcmdapi.Context{Cluster: hubItself, AuthInfo: hubItself}
	kubeconfig.CurrentContext = hubItself
	text, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: hubItself}, Data: map[string][]byte{members.KubeconfigKey: text}},
		&inventory.ClusterProfile{
			ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: hubItself, Annotations: map[string]string{members.SecretAnnotation: hubItself}},
			Spec:       inventory.ClusterProfileSpec{ClusterManager: inventory.ClusterManager{Name: "test"}},
		},
	} {
		if err := w.hub.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	w.awaitOwn(t, ns, func(set *appsv1.ReplicaSet) bool { return set != nil && *set.Spec.Replicas > 0 })
}

// leave drains the hub as a member, and deletes it.
func (w *world) leave(t *testing.T, ns string) {
	t.Helper()
	profile := &inventory.ClusterProfile{ObjectMeta: metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: hubItself}}
	drain := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, v1alpha1.CordonAnnotation, members.Drained)
	if err := w.hub.Patch(t.Context(), profile, client.RawPatch(types.MergePatchType, drain)); err != nil {
		t.Fatal(err)
	}
	w.awaitOwn(t, ns, func(set *appsv1.ReplicaSet) bool { return set == nil })
	for _, object := range []client.Object{profile, &corev1.Secret{ObjectMeta: profile.ObjectMeta}} {
		object.SetResourceVersion("")
		if err := w.hub.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitOwn waits for what the ReplicaSet in the hub is. It is nil if there is none. No kube-controller-manager runs there, so it has no pods.
func (w *world) awaitOwn(t *testing.T, ns string, is func(*appsv1.ReplicaSet) bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		set := &appsv1.ReplicaSet{}
		err := w.hub.Get(ctx, types.NamespacedName{Namespace: ns, Name: "web"}, set)
		if apierrors.IsNotFound(err) {
			return is(nil), nil
		}
		if err == nil && set.Generation > 10 {
			err = fmt.Errorf("somebody fights for the ReplicaSet in the hub: its generation is %d", set.Generation)
		}
		return err == nil && is(set), err
	}); err != nil {
		t.Fatalf("the hub as a member: %v\n%+v", err, w.frs(t, ns).Status)
	}
}

// overMembers is a UnitedDeployment with a subset in each member.
func overMembers(ns string, replicas int32) string {
	return united(ns, int(replicas), "Fixed", in("one", "member-1", "", ""), in("two", "member-2", "", ""), in("three", "member-3", "", ""))
}

// TestABadMemberHarmsNoOther: a member is of each bad kind, in an order at random, while the total of a FederatedReplicaSet and of a UnitedDeployment is raised. The others have their shares soon, and are never asked for fewer
// replicas because of it. When it is well again, everything is as the spec says, and while all answer, no more replicas are asked for than the total and maxMoving.
func TestABadMemberHarmsNoOther(t *testing.T) {
	harness.Long(t)
	w := startWorld(t)
	w.lost = 6
	if err := inventory.AddToScheme(w.hub.Scheme()); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	random := rand.New(rand.NewPCG(*seed, 2))
	const ns, unitedNS = "bad", "bad-united"
	w.room(t, ns, [memberCount]int{lots, lots, lots})
	w.room(t, unitedNS, [memberCount]int{lots, lots, lots})
	b := w.stand(t)
	watched, err := watchAll(ctx, w, ns)
	if err != nil {
		t.Fatal(err)
	}
	// replicas of the members that are well: those of the FederatedReplicaSet, and then those of the UnitedDeployment.
	replicas := func() []int32 {
		all := make([]int32, 2*(memberCount-1))
		for i, member := range w.members[:memberCount-1] {
			set := &appsv1.ReplicaSet{}
			if err := member.Get(ctx, types.NamespacedName{Namespace: ns, Name: "web"}, set); err != nil {
				t.Fatal(err)
			}
			var children appsv1.DeploymentList
			if err := member.List(ctx, &children, client.InNamespace(unitedNS)); err != nil {
				t.Fatal(err)
			}
			all[i] = *set.Spec.Replicas
			for _, child := range children.Items {
				all[i+memberCount-1] += *child.Spec.Replicas
			}
		}
		return all
	}
	state := func() string {
		ud, err := w.readUnited(context.WithoutCancel(ctx), unitedNS)
		status, _ := yaml.Marshal([]any{w.frs(t, ns).Status, ud.Status})
		return fmt.Sprintf("%s%v", status, err)
	}
	scale := func(total int32) {
		w.apply(t, ns, int(total), evenly)
		w.applyUnited(t, overMembers(unitedNS, total))
	}
	rest := func(total int32) {
		t.Helper()
		w.expectSum(t, ns, total)
		n := total / memberCount
		w.awaitUnited(t, unitedNS, fmt.Sprintf("1/one=%d 2/two=%d 3/three=%d", n, n, n))
	}
	names := []string{w.secrets[memberCount-1].Name, "renamed"}
	kinds := []string{"well", isDead, isSlow, isLying, isReadOnly, isOlder, isRenamed, isHub}
	did, slowest := map[string]int{}, map[string]time.Duration{}
	longestHold := 1000
	if *faultsFor >= long {
		longestHold = 8000
	}
	total := int32(9)
	scale(total)
	w.awaitReachable(t, ns)
	rest(total)
	for began, i := time.Now(), 0; time.Since(began) < *faultsFor || len(did) < len(kinds); i++ {
		if i%len(kinds) == 0 {
			random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		kind, shares := kinds[i%len(kinds)], int32(memberCount)
		did[kind]++
		switch kind {
		case isRenamed:
			w.rename(t, names[0], names[1])
			names[0], names[1] = names[1], names[0]
		case isHub:
			w.join(t, ns)
			shares++
		default:
			b.become(kind)
		}
		time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond) // the fault is the time that passes
		before := replicas()
		more := total + 3*(1+random.Int32N(4))
		scaled := time.Now()
		scale(more)
		var got []int32
		if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
			got = replicas()
			for i := range got {
				if got[i] < before[i] {
					return false, fmt.Errorf("they had %v", before)
				}
			}
			return slices.Min(got) >= more/shares && slices.Min(got[memberCount-1:]) >= more/memberCount, nil
		}); err != nil {
			t.Fatalf("%s, %d replicas: the others are asked for %v: %v\n%s", kind, more, got, err, state())
		}
		slowest[kind] = max(slowest[kind], time.Since(scaled).Round(time.Millisecond))
		hold := time.Duration(random.IntN(longestHold)) * time.Millisecond
		for held := time.Now(); time.Since(held) < hold; time.Sleep(50 * time.Millisecond) { // nothing ends meanwhile
			for i, n := range replicas() {
				if n < got[i] {
					t.Fatalf("%s: the others are asked for %v, and had %v\n%s", kind, replicas(), got, state())
				}
			}
		}
		b.become("well")
		if kind == isHub {
			w.leave(t, ns)
		}
		w.awaitReachable(t, ns)
		rest(more)
		total = 6 + 3*random.Int32N(3)
		watched.allow(more + int32(math.Ceil(surge*float64(more))))
		scale(total)
		rest(total)
		watched.allow(-1)
	}
	t.Logf("seed %d: %v; the longest until the others had their shares: %v", *seed, did, slowest)
	watched.report(t)
}
