package members

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

func TestEachStateHasOneMessage(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		err       error
		wantState State
		want      string
	}{
		"a refused connection": {errors.New("dial tcp: connection refused"), Unreachable,
			"member m at https://m cannot be reached: dial tcp: connection refused: check its API server and the network between"},
		"a deadline": {fmt.Errorf("Get \"https://m/version\": %w", context.DeadlineExceeded), Unreachable,
			"member m at https://m cannot be reached: no answer in time: check its API server and the network between"},
		"401": {apierrors.NewUnauthorized("Unauthorized"), Unauthorized,
			"member m at https://m refuses the hub: Unauthorized: renew the credentials, or grant the rights in manifests/federation/member"},
		"403": {apierrors.NewForbidden(pods, "", errors.New("no")), Unauthorized,
			"member m at https://m refuses the hub: pods is forbidden: no: renew the credentials, or grant the rights in manifests/federation/member"},
		"a plugin that fails": {errors.New(`Get "https://m": getting credentials: exec: "get-token": not found`), Unauthorized,
			`member m at https://m refuses the hub: Get "https://m": getting credentials: exec: "get-token": not found: renew the credentials, or grant the rights in manifests/federation/member`},
		"an old version": {checkVersion(&version.Info{Major: "1", Minor: "32+"}), UnsupportedVersion,
			"member m at https://m has Kubernetes 1.32: upgrade it to 1.33 or later"},
		"no version": {checkVersion(&version.Info{}), UnsupportedVersion,
			`member m at https://m has Kubernetes ".", which is no version: upgrade it to 1.33 or later`},
		"the same cluster again": {duplicateOf("a"), Duplicate,
			"member m at https://m is the same cluster as member a, which came first: delete one of the two ClusterProfiles"},
		"no credentials": {badCredentials("there are none"), BadCredentials, "member m has no usable credentials: there are none"},
		"a long and broken text": {errors.New("a\nb " + strings.Repeat("ä", 1000)), Unreachable,
			"member m at https://m cannot be reached: a b " + strings.Repeat("ä", 148) + "…: check its API server and the network between"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := stateOf(tc.err); got != tc.wantState {
				t.Errorf("state %s, want %s", got, tc.wantState)
			}
			if diff := cmp.Diff(tc.want, messageOf("m", "https://m", tc.err)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
		})
	}
	for _, good := range []version.Info{{Major: "1", Minor: "33"}, {Major: "1", Minor: "35+"}, {Major: "1", Minor: "100"}, {Major: "2", Minor: "0"}} {
		if err := checkVersion(&good); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
}

// TestASecretThatTheCacheHasNotSeenIsNotMissing: the watch of the ClusterProfiles may be ahead of that of the Secrets.
func TestASecretThatTheCacheHasNotSeenIsNotMissing(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{inventory.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	meta := metav1.ObjectMeta{Namespace: DefaultNamespace, Name: "m", Annotations: map[string]string{SecretAnnotation: "m"}}
	profile := &inventory.ClusterProfile{ObjectMeta: meta}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{KubeconfigKey: []byte("{")}}
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(profile).Build()
	for name, tc := range map[string]struct {
		live client.Reader
		want string
	}{
		"not seen yet": {fake.NewClientBuilder().WithScheme(scheme).WithObjects(profile, secret).Build(), "is no kubeconfig"},
		"missing":      {cached, "is missing or empty"},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := events.NewFakeRecorder(1)
			s := &Set{hub: cached, live: tc.live, events: recorder, started: make(chan struct{}), ctx: t.Context(), connecting: make(chan struct{}, 1), links: map[string]*link{}, claims: claims{}}
			s.options.complete(scheme)
			close(s.started)
			if _, err := s.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(profile)}); err != nil {
				t.Fatal(err)
			}
			if got := <-recorder.Events; !strings.Contains(got, tc.want) {
				t.Errorf("event %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSinceIsWhenAMemberCeasedToBeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := events.NewFakeRecorder(10)
		l := &link{set: &Set{events: recorder}, status: Status{Name: "m", State: Connecting, Since: time.Now()}}
		registered := time.Now()
		time.Sleep(time.Minute)
		l.fail(errors.New("refused"))
		l.fail(apierrors.NewUnauthorized(""))
		l.fail(apierrors.NewUnauthorized(""))
		if status, _ := l.get(); status.State != Unauthorized || !status.Since.Equal(registered) {
			t.Errorf("a member that was never ready: %+v, registered %s", status, registered)
		}
		l.arrive(&session{link: l, lists: []list{{seen: time.Now()}}}, "1.35")
		if status, now := l.get(); now == nil || !status.Since.Equal(time.Now()) || status.Message != "" {
			t.Errorf("a ready member: %+v", status)
		}
		time.Sleep(time.Hour)
		lost := time.Now()
		l.fail(errors.New("refused"))
		time.Sleep(time.Hour)
		l.fail(errors.New("refused again"))
		if status, now := l.get(); now != nil || !status.Since.Equal(lost) || status.Version != "1.35" {
			t.Errorf("a lost member: %+v, lost %s", status, lost)
		}
		l.fail(apierrors.NewUnauthorized(""))
		time.Sleep(time.Hour)
		lost = time.Now()
		l.fail(errors.New("refused"))
		if status, _ := l.get(); !status.Since.Equal(lost) {
			t.Errorf("a member that refused the hub, and does not answer now: %+v, lost %s", status, lost)
		}
		var told []State
		for len(recorder.Events) > 0 {
			told = append(told, State(strings.Fields(<-recorder.Events)[1]))
		}
		if diff := cmp.Diff([]State{Unreachable, Unauthorized, Ready, Unreachable, Unauthorized, Unreachable}, told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}

// TestALinkGoesByTheMonotonicClock: a member must not count as lost, nor its cache as fresh, because the wall clock jumps.
func TestALinkGoesByTheMonotonicClock(t *testing.T) {
	l := &link{set: &Set{options: Options{StaleAfter: time.Minute}, events: &events.FakeRecorder{}}}
	s := &session{link: l, lists: []list{{informer: &informerAt{"10"}, seen: time.Now()}}}
	expect := func(what string, at time.Time) {
		t.Helper()
		if !strings.Contains(at.String(), " m=") {
			t.Errorf("%s %s, without a reading of the monotonic clock", what, at)
		}
	}
	l.arrive(s, "1.35")
	expect("a member is ready since", l.status.Since)
	s.lists[0].heard("10", time.Now())
	s.lists[0].heard("10", time.Now())
	if err := s.checkAge(); err != nil {
		t.Fatal(err)
	}
	expect("its cache was seen complete at", s.seen())
	l.fail(errors.New("refused"))
	expect("it does not answer since", l.status.Since)
}

type informerAt struct{ version string }

func (i *informerAt) LastSyncResourceVersion() string { return i.version }

func TestACacheThatAWatchDoesNotFollowIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		informer := &informerAt{"10"}
		l := &link{set: &Set{options: Options{StaleAfter: 3 * time.Minute}}}
		s := &session{link: l, lists: []list{{informer: informer, seen: time.Now()}}}
		one := &s.lists[0]
		// ask is what a probe does with an answer.
		ask := func(version string) error {
			one.heard(version, time.Now())
			return s.checkAge()
		}
		for minute := range 10 { // a quiet member: its revision grows, and bookmarks come late
			if err := ask(fmt.Sprint(20 + minute)); err != nil {
				t.Fatalf("minute %d: %v", minute, err)
			}
			time.Sleep(time.Minute)
			informer.version = fmt.Sprint(20 + minute)
		}
		// From here on the watch brings nothing.
		began, last := time.Now(), s.seen()
		for time.Since(began) < time.Hour {
			if err := ask("99"); err != nil {
				if age := time.Since(last); age < 3*time.Minute || age > 5*time.Minute {
					t.Errorf("found after %s: %v", age, err)
				}
				return
			}
			time.Sleep(10 * time.Second)
		}
		t.Error("the cache is never found to be old")
	})
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func TestARequestEndsEvenIfItsTransportDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		open, closeIt := context.WithCancel(t.Context())
		var passed atomic.Int32
		g := &gate{open: open, inner: transport(func(*http.Request) (*http.Response, error) {
			passed.Add(1)
			<-held
			return nil, errors.New("too late")
		})}
		client := &http.Client{Transport: g, Timeout: 5 * time.Second}
		request := func() error {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://m", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(r)
			if err == nil {
				response.Body.Close()
			}
			return err
		}
		began := time.Now()
		if err := request(); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.AfterFunc(time.Second, closeIt)
		began = time.Now()
		if err := request(); !errors.Is(err, errClosed) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if err := request(); !errors.Is(err, errClosed) || passed.Load() != 2 {
			t.Errorf("%d requests have passed, the last: %v", passed.Load(), err)
		}
		close(held) // the bubble ends only if no goroutine is left
	})
}

// sessionWith is a session with a member that answers as the handler does.
func sessionWith(t *testing.T, handler http.HandlerFunc) *session {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	set := &Set{}
	set.options.complete(clientgoscheme.Scheme)
	s, err := open(t.Context(), func(error) {}, &link{set: set, config: &rest.Config{Host: server.URL, BearerToken: "token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestARedirectIsNotFollowed(t *testing.T) {
	called := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	defer other.Close()
	s := sessionWith(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	if version, err := s.version(); err == nil || called {
		t.Errorf("version %q, %v; the other server was called: %v", version, err, called)
	}
}

// TestAnAnswerThatDoesNotEndIsCutOff before it fills the memory of the hub.
func TestAnAnswerThatDoesNotEndIsCutOff(t *testing.T) {
	chunk, sent := bytes.Repeat([]byte(" "), 1<<20), atomic.Int32{}
	s := sessionWith(t, func(w http.ResponseWriter, _ *http.Request) {
		for sent.Load() < 200 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
			sent.Add(1)
		}
	})
	if version, err := s.version(); err == nil || sent.Load() > 100 {
		t.Errorf("version %q, %v, after %d MiB", version, err, sent.Load())
	}
}

// TestListsThatDoNotEndAreCutOff, whatever their number is. What a watch brings later is no list.
func TestListsThatDoNotEndAreCutOff(t *testing.T) {
	open, end := context.WithCancelCause(t.Context())
	s := &session{end: end}
	body := func() io.Reader { return &meteredBody{io.NopCloser(zeroes{}), s} }
	for range 2 {
		if _, err := io.CopyN(io.Discard, body(), longestLists/2); err != nil || open.Err() != nil {
			t.Fatalf("half of it: %v", err)
		}
	}
	if _, err := io.CopyN(io.Discard, body(), 1<<20); err == nil || open.Err() == nil {
		t.Error("the lists do not end")
	}
	s.complete.Store(true)
	if _, err := io.CopyN(io.Discard, body(), 1<<20); err != nil {
		t.Errorf("a watch ends: %v", err)
	}
}

type zeroes struct{}

func (zeroes) Read(into []byte) (int, error) { return len(into), nil }

func TestTheCacheKeepsWhatIsNeeded(t *testing.T) {
	owner := metav1.OwnerReference{Kind: "ReplicaSet", Name: "web", Controller: ptr.To(true)}
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "web-1", UID: "u", Labels: map[string]string{"a": "b", v1alpha1.HubLabel: "true", v1alpha1.OwnerLabel: "f"}, OwnerReferences: []metav1.OwnerReference{owner}}
	big := meta
	big.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	big.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "x"}
	kept, brief := meta, meta
	kept.Annotations = map[string]string{}
	brief.Labels = map[string]string{v1alpha1.HubLabel: "true", v1alpha1.OwnerLabel: "f"}
	got, err := Trim(&corev1.Pod{
		ObjectMeta: *big.DeepCopy(),
		Spec:       corev1.PodSpec{NodeName: "n", SchedulerName: "s", Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{}}, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Message: "no node"}, {Type: corev1.PodReady, Message: "m"}, {Type: corev1.PodInitialized},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{ObjectMeta: brief, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{
		Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled}, {Type: corev1.PodReady}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"x": "y"}}}
	full := template
	full.Spec.Containers = []corev1.Container{{}}
	volumes := []corev1.PersistentVolumeClaim{{}}
	for _, tc := range [][2]any{
		{&appsv1.ReplicaSet{ObjectMeta: *big.DeepCopy(), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3), Template: full}},
			&appsv1.ReplicaSet{ObjectMeta: brief, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](3)}}},
		{&appsv1.Deployment{ObjectMeta: *big.DeepCopy(), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Template: full}},
			&appsv1.Deployment{ObjectMeta: kept, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3), Template: template}}},
		{&appsv1.StatefulSet{ObjectMeta: *big.DeepCopy(), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Template: full, VolumeClaimTemplates: volumes}},
			&appsv1.StatefulSet{ObjectMeta: kept, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Template: template}}},
	} {
		if got, err := Trim(tc[0]); err != nil || cmp.Diff(tc[1], got) != "" {
			t.Errorf("%T, %v (-want +got):\n%s", got, err, cmp.Diff(tc[1], got))
		}
	}

	web := types.NamespacedName{Namespace: "ns", Name: "web"}
	for name, object := range map[string]any{
		"a pod": want, "a deleted pod": toolscache.DeletedFinalStateUnknown{Obj: want},
		"a ReplicaSet": &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: brief.Labels}},
	} {
		if got, ok := about(object); !ok || got.Workload != web || got.Labels[v1alpha1.OwnerLabel] != "f" {
			t.Errorf("%s is about %v", name, got)
		}
	}
	if got, ok := about(&corev1.Pod{}); ok {
		t.Errorf("a pod without owner is about %v", got)
	}
}

// memberOf adds a member that nothing runs for.
func memberOf(s *Set, name string, created time.Time, host string) *link {
	profile := &inventory.ClusterProfile{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)}}
	s.links[name] = &link{set: s, profile: profile, config: &rest.Config{Host: host}}
	return s.links[name]
}

func TestTheOlderOfTwoMembersIsTheCluster(t *testing.T) {
	s := &Set{links: map[string]*link{}, claims: claims{}}
	start := time.Unix(1000, 0)
	connect := func(name string, created time.Time, identity types.UID) (*session, error) {
		l := s.links[name]
		if l == nil {
			l = memberOf(s, name, created, "https://east")
		}
		open, end := context.WithCancelCause(t.Context())
		now := &session{link: l, open: open, end: end}
		return now, l.claim(now, identity)
	}
	expect := func(err error, want string) {
		t.Helper()
		if got := fmt.Sprint(err); got != want || err != nil && stateOf(err) != Duplicate {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	broken := func(of *session) error { return context.Cause(of.open) }
	young, err := connect("young", start.Add(time.Second), "east")
	expect(err, "<nil>")
	other, err := connect("other", start, "west")
	expect(err, "<nil>")
	old, err := connect("old", start, "east")
	expect(err, "<nil>")
	expect(broken(young), "member old")
	expect(broken(other), "<nil>")
	_, err = connect("young", start.Add(time.Second), "east") // it tries again
	expect(err, "member old")
	_, err = connect("sibling", start, "east") // as old; then names count
	expect(err, "member old")
	expect(broken(old), "<nil>")
	_, err = connect("old", start, "east") // connects again
	expect(err, "<nil>")
	gone(s, "old")
	_, err = connect("young", start.Add(time.Second), "east")
	expect(err, "member sibling")
	gone(s, "sibling")
	young, err = connect("young", start.Add(time.Second), "east")
	expect(err, "<nil>")
	// An older one that lies about its UID has another authority. It cannot cut the other one off, whoever connects again.
	memberOf(s, "liar", start, "https://liar")
	_, err = connect("liar", start, "east")
	expect(err, "member young")
	expect(broken(young), "<nil>")
	_, err = connect("young", start.Add(time.Second), "east")
	expect(err, "<nil>")
}

// TestAClusterIsKnownByWhatItProves: a member that tells the UID of another one has not its authority, or without one not its address.
func TestAClusterIsKnownByWhatItProves(t *testing.T) {
	with := func(host, authority string, insecure bool) types.UID {
		return anchorOf(&rest.Config{Host: host, TLSClientConfig: rest.TLSClientConfig{CAData: []byte(authority), Insecure: insecure}})
	}
	own := with("https://east", "east's authority", false)
	for of, same := range map[types.UID]bool{
		with("https://east-2", "east's authority", false): true, with("https://east", "another authority", false): false, with("https://east", "", false): false,
		with("https://east", "east's authority", true): false,
	} {
		if (of == own) != same {
			t.Errorf("%s is the cluster %s: %v, want %v", of, own, of == own, same)
		}
	}
	if with("https://east", "", false) == with("https://west", "", false) {
		t.Error("two servers are one cluster")
	}
}

func TestMembersAreKnownWhenEachWasTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		scheme := runtime.NewScheme()
		if err := inventory.AddToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		profile := func(name string) *inventory.ClusterProfile {
			return &inventory.ClusterProfile{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: name}}
		}
		s := &Set{hub: fake.NewClientBuilder().WithScheme(scheme).WithObjects(profile("a"), profile("b")).Build(), links: map[string]*link{}, events: &events.FakeRecorder{}}
		s.options.complete(scheme)
		expect := func(when string, want bool) {
			t.Helper()
			if got := s.Known(t.Context()); got != want {
				t.Errorf("%s: known is %v", when, got)
			}
		}
		connect := func(name string, began time.Time) *link {
			l := &link{set: s, status: Status{Name: name, State: Connecting, Since: time.Now()}, began: began}
			s.links[name] = l
			return l
		}
		expect("no profile was read", false)
		a := connect("a", time.Now())
		expect("b was not read", false)
		b := connect("b", time.Time{})
		expect("none has answered", false)
		a.arrive(&session{link: a, lists: []list{{}}}, "1.35")
		time.Sleep(time.Hour)
		expect("b waits for its turn", false)
		b.began = time.Now()
		time.Sleep(19 * time.Second)
		expect("b is connecting", false)
		time.Sleep(time.Second)
		expect("b takes too long", true)
		connect("a", time.Now())
		expect("the credentials of a have changed", true)

		s.known.Store(false)
		s.links["a"].fail(errors.New("refused"))
		s.links["b"].fail(errors.New("refused"))
		expect("both were tried", true)
	})
}

// TestAHubThatStartsConnectsToSomeMembersAtATime because hundreds at once would all take too long.
func TestAHubThatStartsConnectsToSomeMembersAtATime(t *testing.T) {
	asked, answer := make(chan struct{}, 3), make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-answer
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	s := &Set{events: &events.FakeRecorder{}, connecting: make(chan struct{}, 1), links: map[string]*link{}}
	s.options.complete(clientgoscheme.Scheme)
	var trying sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		l := memberOf(s, name, time.Time{}, server.URL)
		l.config.Insecure, l.status = true, Status{Name: name, State: Connecting}
		trying.Go(func() { l.attempt(t.Context()) })
	}
	<-asked
	if a, b := s.links["a"].isTried(0), s.links["b"].isTried(0); a == b {
		t.Errorf("a has had its turn: %v, and b: %v", a, b)
	}
	close(answer)
	trying.Wait()
	if a, b := s.links["a"].isTried(0), s.links["b"].isTried(0); !a || !b || len(s.connecting) > 0 {
		t.Errorf("in the end, a was tried: %v, b: %v, and %d have a turn", a, b, len(s.connecting))
	}
}

// gone removes a member that nothing runs for.
func gone(s *Set, name string) {
	s.links[name].cancel = func() {}
	s.remove(name)
}
