package federation

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/cmd/sandbox/federated"
	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/members"
	"github.com/berth-project/berth/test/harness"
)

const (
	memberCount = 3
	// lots is more than any scenario needs.
	lots = 110
	// timeout bounds each wait.
	timeout = 90 * time.Second
)

var containers = []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}}

// world is a hub with three members.
type world struct {
	*federated.Federation
	hub     client.Client
	members []client.Client
	secrets []corev1.Secret // as they were made
	// lost is after how many seconds a member that does not answer counts as lost.
	lost int
}

func startWorld(t *testing.T, change ...func(name string, member sandbox.Config) sandbox.Config) *world {
	t.Helper()
	f, err := federated.Start(t.Context(), harness.Audited(sandbox.Config{Name: "federation", Dir: filepath.Join(t.TempDir(), "federation"), BinDir: harness.BinDir()}), memberCount, change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, unitedv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{Federation: f, lost: 1}
	for i, cluster := range f.Clusters {
		config := cluster.RESTConfig()
		config.QPS, config.Burst = 200, 400
		c, err := client.New(config, client.Options{Scheme: scheme})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			w.hub = c
			continue
		}
		w.members = append(w.members, c)
		var secret corev1.Secret
		if err := w.hub.Get(t.Context(), types.NamespacedName{Namespace: members.DefaultNamespace, Name: cluster.Name}, &secret); err != nil {
			t.Fatal(err)
		}
		w.secrets = append(w.secrets, secret)
	}
	return w
}

// setAway makes the hub lose a member, or find it again: the kubeconfig names another port.
func (w *world) setAway(t *testing.T, away ...bool) {
	t.Helper()
	for i := range away {
		var secret corev1.Secret
		if err := w.hub.Get(t.Context(), client.ObjectKeyFromObject(&w.secrets[i]), &secret); err != nil {
			t.Fatal(err)
		}
		secret.Data = w.secrets[i].Data
		if away[i] {
			config := string(secret.Data[members.KubeconfigKey])
			host := w.Members()[i].RESTConfig().Host
			secret.Data = map[string][]byte{members.KubeconfigKey: []byte(strings.ReplaceAll(config, host, "https://127.0.0.1:1"))}
		}
		if err := w.hub.Update(t.Context(), &secret); err != nil {
			t.Fatal(err)
		}
	}
}

// room gives each member one node for the pods of a namespace.
func (w *world) room(t *testing.T, ns string, rooms [memberCount]int) {
	t.Helper()
	for i, n := range rooms {
		node := sandbox.NewNode("node-"+ns, "zone-a", map[string]string{"of": ns}, nil, sandbox.Allocatable(resource.MustParse("32"), resource.MustParse("64Gi")))
		for _, list := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
			list[corev1.ResourcePods] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		}
		if err := w.Members()[i].CreateNodes(t.Context(), []*corev1.Node{node}); err != nil {
			t.Fatal(err)
		}
		if err := w.members[i].Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{v1alpha1.AllowedLabel: "true"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.hub.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
		t.Fatal(err)
	}
}

// apply writes the FederatedReplicaSet of a namespace.
func (w *world) apply(t *testing.T, ns string, replicas int, preferences string) {
	t.Helper()
	frs := &v1alpha1.FederatedReplicaSet{}
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, `
metadata: {name: web, namespace: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: web}}
  preferences: %[3]s
  pace: {unschedulableSeconds: 1, lostSeconds: %[4]d}
  template:
    metadata: {labels: {app: web}}
    spec: {nodeSelector: {of: %[1]s}, terminationGracePeriodSeconds: 0, containers: [{name: main, image: "registry.k8s.io/pause:3.10"}]}
`, ns, replicas, preferences, w.lost), frs); err != nil {
		t.Fatal(err)
	}
	live := &v1alpha1.FederatedReplicaSet{}
	err := w.hub.Get(t.Context(), client.ObjectKeyFromObject(frs), live)
	if apierrors.IsNotFound(err) {
		err = w.hub.Create(t.Context(), frs)
	} else if err == nil {
		patch := client.MergeFrom(live.DeepCopy())
		live.Spec = frs.Spec
		err = w.hub.Patch(t.Context(), live, patch)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// layout is what the ReplicaSet in each member asks for, and how many of its pods are available if that is another number.
func (w *world) layout(ctx context.Context, ns string) ([]string, error) {
	var all []string
	for _, member := range w.members {
		set := &appsv1.ReplicaSet{}
		err := member.Get(ctx, types.NamespacedName{Namespace: ns, Name: "web"}, set)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		n := fmt.Sprint(0)
		if err == nil {
			n = fmt.Sprint(*set.Spec.Replicas)
			if set.Status.AvailableReplicas != *set.Spec.Replicas {
				n += fmt.Sprintf("(%d)", set.Status.AvailableReplicas)
			}
		}
		all = append(all, n)
	}
	return all, nil
}

func (w *world) frs(t *testing.T, ns string) *v1alpha1.FederatedReplicaSet {
	t.Helper()
	frs := &v1alpha1.FederatedReplicaSet{}
	if err := w.hub.Get(context.WithoutCancel(t.Context()), types.NamespacedName{Namespace: ns, Name: "web"}, frs); err != nil {
		t.Fatal(err)
	}
	return frs
}

// expect waits for a layout. Where clusters are equal, which of them has which number is not said.
func (w *world) expect(t *testing.T, ns, want string, equal bool) {
	t.Helper()
	if got, err := w.await(t, ns, want, equal); err != nil {
		status, _ := yaml.Marshal(w.frs(t, ns).Status)
		t.Errorf("%s: got %v, want %s: %v\n%s", ns, got, want, err, status)
	}
}

// await waits for a layout. It returns the last one, and an error if that is another.
func (w *world) await(t *testing.T, ns, want string, equal bool) (got []string, err error) {
	t.Helper()
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, timeout, true, func(ctx context.Context) (_ bool, err error) {
		now, err := w.layout(ctx, ns)
		if ctx.Err() != nil {
			return false, ctx.Err() // the client would name its limiter
		}
		if err != nil {
			return false, err
		}
		if got = now; equal {
			slices.Sort(got)
		}
		return strings.Join(got, " ") == want, nil
	})
	return got, err
}

// Preferences of the scenarios, in their order.
const (
	evenly       = `{rebalance: true, clusters: {"*": {weight: 1}}}`
	mostTwo      = `{rebalance: true, clusters: {"*": {maxReplicas: 2, weight: 1}}}`
	leastTwo     = `{rebalance: true, clusters: {"*": {minReplicas: 2, weight: 0}}}`
	exactlyTwo   = `{rebalance: true, clusters: {"*": {minReplicas: 2, maxReplicas: 2}}}`
	leastTwenty  = `{rebalance: true, clusters: {"*": {minReplicas: 20, weight: 0}}}`
	mostTwenty   = `{rebalance: true, clusters: {"*": {weight: 1}, member-3: {maxReplicas: 20, weight: 1}}}`
	firstMember  = `{clusters: {member-1: {weight: 1000000}, member-2: {weight: 1}, member-3: {weight: 1}}}`
	twiceAsMany  = `{clusters: {member-1: {weight: 2}, member-2: {weight: 1}, member-3: {weight: 1}}}`
	whereTheyRun = `{rebalance: false, clusters: {"*": {weight: 1}}}`
)

// scenario is one of the proposal, for 50 replicas.
type scenario struct {
	name        string
	preferences string
	rooms       [memberCount]int
	// has is how many replicas the first member has before.
	has int
	// away are the members that do not answer.
	away  [memberCount]bool
	want  string
	equal bool
}

// wasAway is true if the scenario ended in another layout because a member did not answer for a moment, as happens on a machine with much to do. Without
// rebalance, replicas stay where they went meanwhile, so the scenario was another one.
func (w *world) wasAway(t *testing.T, s scenario, since metav1.Time) bool {
	t.Helper()
	if strings.Contains(s.preferences, "rebalance: true") {
		return false
	}
	_, err := w.await(t, s.name, s.want, s.equal)
	c := meta.FindStatusCondition(w.frs(t, s.name).Status.Conditions, v1alpha1.ReachableCondition)
	if err == nil || c == nil || c.LastTransitionTime.Before(&since) {
		return false
	}
	t.Logf("%s is not judged: a member did not answer meanwhile: %s", s.name, c.Message)
	return true
}

// TestScenariosOfTheProposal has the scenarios 1 to 7 of the proposal for federated ReplicaSets, with its numbers.
func TestScenariosOfTheProposal(t *testing.T) {
	harness.Long(t)
	w := startWorld(t)
	none, all := [memberCount]bool{}, [memberCount]int{lots, lots, lots}
	scenarios := []scenario{
		{"s1", evenly, all, 0, none, "16 17 17", true},
		{"s1-full", evenly, [memberCount]int{lots, lots, 6}, 0, none, "22 22 6", false},
		{"s2-most", mostTwo, all, 0, none, "2 2 2", false},
		{"s2-least", leastTwo, all, 0, none, "2 2 2", false},
		{"s2-both", exactlyTwo, all, 0, none, "2 2 2", false},
		{"s3", leastTwenty, all, 0, none, "10 20 20", true},
		{"s4", mostTwenty, all, 0, none, "16 17 17", true},
		{"s4-full", mostTwenty, [memberCount]int{lots, 0, lots}, 0, none, "30 0 20", false},
		{"s5", firstMember, all, 0, none, "50 0 0", false},
		{"s5-full", firstMember, [memberCount]int{40, lots, lots}, 0, none, "40 5 5", false},
		{"s6", twiceAsMany, all, 0, none, "12 13 25", true},
		{"s7", whereTheyRun, all, 20, none, "20 15 15", false},
		{"s7-full", whereTheyRun, [memberCount]int{lots, lots, 6}, 20, none, "22 22 6", false},
		{"s7-more", whereTheyRun, [memberCount]int{lots, lots, 6}, 30, none, "30 14 6", false},
		{"s4-lost", mostTwenty, all, 0, [memberCount]bool{false, true, false}, "30 0 20", false},
		{"s4-both", mostTwenty, all, 0, [memberCount]bool{true, true, false}, "0 0 20", false},
		{"s1-lost", evenly, all, 0, [memberCount]bool{false, true, true}, "50 0 0", false},
	}
	for _, s := range scenarios {
		w.room(t, s.name, s.rooms)
	}
	w.lost = 600
	for _, s := range scenarios {
		if s.has > 0 {
			w.apply(t, s.name, s.has, `{clusters: {member-1: {weight: 1}}}`)
		}
	}
	for _, s := range scenarios {
		if s.has > 0 {
			w.expect(t, s.name, fmt.Sprint(s.has, " 0 0"), false)
		}
	}
	began := metav1.Now()
	for _, s := range scenarios {
		if s.away == none {
			w.apply(t, s.name, 50, s.preferences)
		}
	}
	for _, s := range scenarios {
		if s.away == none && !w.wasAway(t, s, began) {
			w.expect(t, s.name, s.want, s.equal)
		}
	}
	for _, s := range scenarios {
		if s.away == none {
			continue
		}
		w.lost = 1
		w.setAway(t, s.away[:]...)
		w.apply(t, s.name, 50, s.preferences)
		w.expect(t, s.name, s.want, s.equal)
		if frs := w.frs(t, s.name); frs.Status.MayExceedBy != 0 {
			t.Errorf("%s: nothing was asked of the members that do not answer, and the total may be exceeded by %d", s.name, frs.Status.MayExceedBy)
		}
	}
	// They return, and get their shares.
	w.setAway(t, none[:]...)
	w.expect(t, "s1-lost", "16 17 17", true)
	w.expect(t, "s4-lost", "16 17 17", true)
	w.expectQueriedMetrics(t)
}
