package guard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1beta1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// cluster has this many available pods of a Deployment, and a budget that lets one be unavailable.
func cluster(t *testing.T, pods int, calls interceptor.Funcs) client.WithWatch {
	t.Helper()
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "rs"}, Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To(int32(pods))}},
		&v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "pub", Generation: 1}, Spec: v1beta1.PodUnavailableBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
		}},
	}
	for i := range pods {
		objects = append(objects, pod(i))
	}
	return fake.NewClientBuilder().WithScheme(scheme(t)).WithStatusSubresource(&v1beta1.PodUnavailableBudget{}).WithObjects(objects...).WithInterceptorFuncs(calls).Build()
}

func pod(i int) *corev1.Pod {
	name := fmt.Sprintf("web-%d", i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web", v1beta1.ProtectedLabel: "true"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: ptr.To(true)}}},
		Spec:   corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "web:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func decide(t *testing.T, g *Guard, i int) (allowed bool, reason v1beta1.Reason) {
	t.Helper()
	v, err := g.Decide(t.Context(), Request{Pod: pod(i), Operation: v1beta1.OperationDelete})
	if err != nil {
		t.Fatal(err)
	}
	return v.Allowed, v.Reason
}

func TestManyRequestsShareFewWrites(t *testing.T) {
	var writes, allowed atomic.Int32
	c := cluster(t, 50, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
		writes.Add(1)
		time.Sleep(20 * time.Millisecond)
		return c.SubResource(sub).Update(ctx, o, opts...)
	}})
	pub := &v1beta1.PodUnavailableBudget{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
		t.Fatal(err)
	}
	pub.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(20))
	if err := c.Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	g := New(c, c, c, Options{})
	var clients sync.WaitGroup
	for i := range 50 {
		clients.Go(func() {
			v, err := g.Decide(t.Context(), Request{Pod: pod(i), Operation: v1beta1.OperationDelete})
			if err != nil {
				t.Error(err)
			}
			if v.Allowed {
				allowed.Add(1)
			}
		})
	}
	clients.Wait()
	if allowed.Load() != 20 || writes.Load() > 10 {
		t.Errorf("%d allowed with %d writes, want 20 with a few", allowed.Load(), writes.Load())
	}
}

func TestTheSecondReviewOfARequestRenewsItsApproval(t *testing.T) {
	var writes atomic.Int32
	c := cluster(t, 3, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
		writes.Add(1)
		return c.SubResource(sub).Update(ctx, o, opts...)
	}})
	g := New(c, c, c, Options{})
	expect := func(i int, want v1beta1.Reason, wantWrites int32) {
		t.Helper()
		if _, reason := decide(t, g, i); reason != want || writes.Load() != wantWrites {
			t.Errorf("got %s with %d writes so far, want %s with %d", reason, writes.Load(), want, wantWrites)
		}
	}
	expect(0, v1beta1.ReasonWithinBudget, 1)
	expect(0, v1beta1.ReasonApproved, 2) // so that the entry does not expire before this request ends
	expect(1, v1beta1.ReasonBudgetExhausted, 2)
	other := New(c, c, c, Options{Clock: clocktesting.NewFakePassiveClock(time.Unix(1, 0))})
	if _, reason := decide(t, other, 0); reason != v1beta1.ReasonApproved || writes.Load() != 3 {
		t.Errorf("another process got %s with %d writes, want it to renew", reason, writes.Load())
	}
}

func TestABudgetThatNeverStandsStillIsAnsweredInTime(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
		other := &v1beta1.PodUnavailableBudget{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), other); err != nil {
			return err
		}
		other.Labels = map[string]string{"now": fmt.Sprint(time.Now().UnixNano())}
		if err := c.Update(ctx, other); err != nil {
			return err
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}})
	start := time.Now()
	allowed, reason := decide(t, New(c, c, c, Options{AnswerTimeout: 300 * time.Millisecond}), 0)
	if allowed || reason != v1beta1.ReasonContended || time.Since(start) > 3*time.Second {
		t.Errorf("allowed %t, reason %s after %v", allowed, reason, time.Since(start))
	}
}

func TestAFailureIsNoRefusal(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, ok := list.(*corev1.PodList); ok {
			return errors.New("broken")
		}
		return c.List(ctx, list, opts...)
	}})
	if _, err := New(c, c, c, Options{}).Decide(t.Context(), Request{Pod: pod(0), Operation: v1beta1.OperationDelete}); err == nil {
		t.Error("got an answer")
	}
}

func TestReviews(t *testing.T) {
	raw := func(o any) runtime.RawExtension {
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: b}
	}
	with := func(change func(*corev1.Pod)) *corev1.Pod { p := pod(1); change(p); return p }
	review := func(operation admissionv1.Operation, subresource string, before, after any) admissionv1.AdmissionRequest {
		r := admissionv1.AdmissionRequest{UID: "1", Operation: operation, Namespace: "ns", SubResource: subresource, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}}
		if before != nil {
			r.OldObject = raw(before)
		}
		if after != nil {
			r.Object = raw(after)
		}
		return r
	}
	remove := review(admissionv1.Delete, "", pod(1), nil) // an item of a collection has no name
	evict := func(name string, options *metav1.DeleteOptions) admissionv1.AdmissionRequest {
		r := review(admissionv1.Create, "eviction", nil, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{v1beta1.ProtectedLabel: ""}}, DeleteOptions: options})
		r.Name = name
		return r
	}
	by := func(user string, groups ...string) admissionv1.AdmissionRequest {
		r := remove
		r.UserInfo = authenticationv1.UserInfo{Username: user, Groups: groups}
		return r
	}
	unready := func(user string, groups ...string) admissionv1.AdmissionRequest {
		r := review(admissionv1.Update, "status", pod(1), with(func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }))
		r.UserInfo = authenticationv1.UserInfo{Username: user, Groups: groups}
		return r
	}
	tests := map[string]struct {
		request admissionv1.AdmissionRequest
		code    int32 // 0 if the webhook allows it
	}{
		"a deletion":                                        {request: remove, code: 429},
		"an eviction":                                       {request: evict("web-1", metav1.NewPreconditionDeleteOptions("web-1")), code: 429},
		"an eviction of another pod's UID":                  {request: evict("web-1", metav1.NewPreconditionDeleteOptions("old"))},
		"an eviction without a UID":                         {request: evict("web-0", nil), code: 429}, // although the pod of this name could go
		"an eviction of a pod that is gone":                 {request: evict("none", metav1.NewPreconditionDeleteOptions("old"))},
		"an eviction without a UID, of a pod that is gone":  {request: evict("none", nil), code: 404},
		"a new image":                                       {request: review(admissionv1.Update, "", pod(1), with(func(p *corev1.Pod) { p.Spec.Containers[0].Image = "web:2" })), code: 429},
		"an update that restarts nothing":                   {request: review(admissionv1.Update, "", pod(1), with(func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }))},
		"a resize in place":                                 {request: review(admissionv1.Update, "resize", pod(1), pod(1))},
		"a status":                                          {request: review(admissionv1.Update, "status", pod(1), pod(1))},
		"a status that is not ready":                        {request: unready("system:serviceaccount:kruise-system:kruise-manager"), code: 429},
		"the same by a kubelet":                             {request: unready("system:node:n", "system:nodes")},
		"the same by the node controller":                   {request: unready("system:serviceaccount:kube-system:node-controller")},
		"the same by a controller manager with one account": {request: unready("system:kube-controller-manager")},
		"a label that takes it out of service":              {request: review(admissionv1.Update, "", pod(1), with(func(p *corev1.Pod) { p.Labels[v1beta1.UnavailableLabelPrefix+"x"] = "" })), code: 429},
		"a pod that terminates":                             {request: review(admissionv1.Delete, "", with(func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }), nil)},
		"a pod that has failed":                             {request: review(admissionv1.Delete, "", with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), nil)},
		"a mirror pod":                                      {request: review(admissionv1.Delete, "", with(func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }), nil)},
		"a kubelet":                                         {request: by("system:node:n", "system:nodes")},
		"the namespace controller":                          {request: by("system:serviceaccount:kube-system:namespace-controller")},
		"the pod garbage collector":                         {request: by("system:serviceaccount:kube-system:pod-garbage-collector")},
		"the ReplicaSet controller":                         {request: by("system:serviceaccount:kube-system:replicaset-controller"), code: 429},
		"a deletion by the node controller":                 {request: by("system:serviceaccount:kube-system:node-controller"), code: 429},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, interceptor.Funcs{})
			g := New(c, c, c, Options{})
			decide(t, g, 0) // takes the room of the budget
			h := &podHandler{guard: g, decoder: admission.NewDecoder(scheme(t))}
			response := h.Handle(t.Context(), admission.Request{AdmissionRequest: tc.request})
			if response.Allowed != (tc.code == 0) || !response.Allowed && response.Result.Code != tc.code {
				t.Fatalf("got %+v, want %d", response, tc.code)
			}
			if tc.code != 429 {
				return
			}
			if response.Result.Details.RetryAfterSeconds != 0 || response.Result.Details.Causes[0].Type != policyv1.DisruptionBudgetCause {
				t.Errorf("got %+v, want a 429 that kubectl drain tries again on", response.Result)
			}
		})
	}
}

func TestADryRunTakesNoRoom(t *testing.T) {
	raw := func(o any) (r runtime.RawExtension) {
		var err error
		if r.Raw, err = json.Marshal(o); err != nil {
			t.Fatal(err)
		}
		return r
	}
	options := metav1.NewPreconditionDeleteOptions("web-1")
	options.DryRun = []string{metav1.DryRunAll}
	image := pod(1)
	image.Spec.Containers[0].Image = "web:2"
	pods := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	for name, request := range map[string]admissionv1.AdmissionRequest{
		"of a deletion":                      {Operation: admissionv1.Delete, DryRun: ptr.To(true), OldObject: raw(pod(1))},
		"of an eviction, asked for in it":    {Operation: admissionv1.Create, SubResource: "eviction", Object: raw(&policyv1.Eviction{DeleteOptions: options})},
		"of an eviction, asked for with it":  {Operation: admissionv1.Create, SubResource: "eviction", DryRun: ptr.To(true), Object: raw(&policyv1.Eviction{DeleteOptions: metav1.NewPreconditionDeleteOptions("web-1")})},
		"of an update that restarts the pod": {Operation: admissionv1.Update, DryRun: ptr.To(true), OldObject: raw(pod(1)), Object: raw(image)},
	} {
		t.Run(name, func(t *testing.T) {
			request.UID, request.Namespace, request.Name, request.Resource = "1", "ns", "web-1", pods
			c := cluster(t, 3, interceptor.Funcs{SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
				return errors.New("a dry run writes")
			}})
			g := New(c, c, c, Options{})
			h := &podHandler{guard: g, decoder: admission.NewDecoder(scheme(t))}
			if response := h.Handle(t.Context(), admission.Request{AdmissionRequest: request}); !response.Allowed {
				t.Errorf("got %+v", response.Result)
			}
		})
	}
}

func TestNamespacesThatTerminateAreNotHeldUp(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{})
	g := New(c, c, c, Options{})
	decide(t, g, 0)
	if allowed, _ := decide(t, g, 1); allowed {
		t.Fatal("the budget does not hold")
	}
	if err := c.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}); err != nil {
		t.Fatal(err)
	}
	if allowed, reason := decide(t, g, 1); !allowed || reason != v1beta1.ReasonNamespaceTerminating {
		t.Errorf("allowed %t, reason %s", allowed, reason)
	}
}

func TestADefaultExpiryOutlivesEveryRequest(t *testing.T) {
	if shortest := ShortestExpiry(time.Minute); shortest >= 2*time.Minute {
		t.Errorf("the shortest expiry is %v, which the default of 2m does not exceed", shortest)
	}
}

// TestABudgetThatTheCacheDoesNotKnowIsAsked has a cache with one budget of the namespace. It lacks the budget that has no room.
func TestABudgetThatTheCacheDoesNotKnowIsAsked(t *testing.T) {
	other := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "other", Generation: 1}}
	for name, change := range map[string]func(*v1beta1.PodUnavailableBudgetSpec){
		"of other pods": func(s *v1beta1.PodUnavailableBudgetSpec) {
			s.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"}
		},
		"of the same pods": func(s *v1beta1.PodUnavailableBudgetSpec) {
			s.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
		},
		"of no pods": func(s *v1beta1.PodUnavailableBudgetSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "none"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, interceptor.Funcs{})
			known := other.DeepCopy()
			known.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(3))
			change(&known.Spec)
			if err := c.Create(t.Context(), known); err != nil {
				t.Fatal(err)
			}
			g := New(c, c, fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(known, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}).Build(), Options{})
			if allowed, reason := decide(t, g, 0); !allowed || reason != v1beta1.ReasonWithinBudget {
				t.Fatalf("the first: allowed %t, reason %s", allowed, reason)
			}
			if allowed, reason := decide(t, g, 1); allowed || reason != v1beta1.ReasonBudgetExhausted {
				t.Errorf("the second: allowed %t, reason %s", allowed, reason)
			}
		})
	}
}

// behind is an API server whose memory has only the given budgets. It counts the lists that it answers from its store.
func behind(committed *atomic.Int32, remembered ...v1beta1.PodUnavailableBudget) interceptor.Funcs {
	return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if budgets, is := list.(*v1beta1.PodUnavailableBudgetList); is {
			var options client.ListOptions
			options.ApplyOptions(opts)
			if options.Raw != nil && options.Raw.ResourceVersion == fromMemory {
				budgets.Items = remembered
				return nil
			}
			committed.Add(1)
		}
		return c.List(ctx, list, opts...)
	}}
}

// TestABudgetThatTheAPIServerDoesNotRememberIsAsked has an API server that is cut off from its store, and a cache that watches this API server.
func TestABudgetThatTheAPIServerDoesNotRememberIsAsked(t *testing.T) {
	of := func(name string, change func(*v1beta1.PodUnavailableBudgetSpec)) v1beta1.PodUnavailableBudget {
		pub := v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Generation: 1}}
		pub.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(3))
		change(&pub.Spec)
		return pub
	}
	targeting := func(s *v1beta1.PodUnavailableBudgetSpec) {
		s.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"}
	}
	selecting := func(app string) func(*v1beta1.PodUnavailableBudgetSpec) {
		return func(s *v1beta1.PodUnavailableBudgetSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
		}
	}
	for name, remembered := range map[string][]v1beta1.PodUnavailableBudget{
		"because it remembers none":                        nil,
		"and it remembers one of other pods":               {of("other", targeting)},
		"as it is":                                         {of("web", selecting("none"))},
		"and it remembers one that has been deleted since": {of("deleted", selecting("web"))},
	} {
		t.Run(name, func(t *testing.T) {
			var committed atomic.Int32
			c := cluster(t, 3, behind(&committed, remembered...))
			cache := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
			for i := range remembered {
				cache = cache.WithObjects(&remembered[i])
			}
			g := New(c, c, cache.Build(), Options{})
			if allowed, reason := decide(t, g, 0); !allowed || reason != v1beta1.ReasonWithinBudget {
				t.Fatalf("the first: allowed %t, reason %s", allowed, reason)
			}
			if allowed, reason := decide(t, g, 1); allowed || reason != v1beta1.ReasonBudgetExhausted {
				t.Errorf("the second: allowed %t, reason %s", allowed, reason)
			}
		})
	}
}

func TestAPodThatHasABudgetNeedsNoCommittedOnes(t *testing.T) {
	tests := map[string]struct {
		spec    func(*v1beta1.PodUnavailableBudget)
		request Request
		want    v1beta1.Reason
	}{
		"for its deletion": {want: v1beta1.ReasonWithinBudget},
		"for an operation that is not guarded": {spec: func(b *v1beta1.PodUnavailableBudget) {
			b.Annotations = map[string]string{v1beta1.ProtectOperationsAnnotation: "EVICT"}
		}, want: v1beta1.ReasonNotProtected},
		"for an update that is nothing to it": {request: Request{After: pod(0), Operation: v1beta1.OperationUpdate}, want: v1beta1.ReasonNotProtected},
		"that names its workload": {spec: func(b *v1beta1.PodUnavailableBudget) {
			b.Spec.TargetReference = &v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web"}
		}, request: Request{After: pod(0), Operation: v1beta1.OperationUpdate}, want: v1beta1.ReasonNotProtected},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var committed atomic.Int32
			c := cluster(t, 3, behind(&committed))
			pub := &v1beta1.PodUnavailableBudget{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
				t.Fatal(err)
			}
			if tc.spec != nil {
				tc.spec(pub)
				if err := c.Update(t.Context(), pub); err != nil {
					t.Fatal(err)
				}
			}
			g := New(c, c, fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(pub.DeepCopy(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}).Build(), Options{})
			tc.request.Pod = pod(0)
			if tc.request.Operation == "" {
				tc.request.Operation = v1beta1.OperationDelete
			}
			if v, err := g.Decide(t.Context(), tc.request); err != nil || !v.Allowed || v.Reason != tc.want || committed.Load() != 0 {
				t.Errorf("%+v, %v after %d lists of what is committed, want %s after none", v, err, committed.Load(), tc.want)
			}
		})
	}
}

func TestManyRequestsShareReadingsThatBeginAfterThem(t *testing.T) {
	var began atomic.Int32
	proceed := make(chan struct{})
	c := cluster(t, 1, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, is := list.(*v1beta1.PodUnavailableBudgetList); is {
			began.Add(1)
			<-proceed
		}
		return c.List(ctx, list, opts...)
	}})
	r := newRegistry(c, fromMemory)
	first := r.ask(t.Context(), "ns")
	var later []*reading[*v1beta1.PodUnavailableBudgetList]
	for range 100 {
		later = append(later, r.ask(t.Context(), "ns"))
	}
	elsewhere := r.ask(t.Context(), "elsewhere")
	close(proceed)
	<-elsewhere.done
	for _, reading := range append(later, first) {
		if pubs, err := reading.wait(t.Context()); err != nil || len(pubs.Items) != 1 {
			t.Fatalf("got %v, %v", pubs, err)
		}
	}
	if n := began.Load(); elsewhere == first || later[0] == first || later[0] != later[99] || n != 3 {
		t.Errorf("%d reads, want one that was under way, one for all later requests, and one of another namespace", n)
	}
	<-r.ask(t.Context(), "ns").done // a later request causes another read
	if n := began.Load(); n != 4 {
		t.Errorf("%d reads, want 4", n)
	}
}

func TestAFullLedgerRefuses(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{})
	pub := &v1beta1.PodUnavailableBudget{}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		pub.Status.Ledger = append(pub.Status.Ledger, v1beta1.LedgerEntry{UID: types.UID(fmt.Sprint(i)), Time: metav1.Now()})
	}
	if err := c.Status().Update(t.Context(), pub); err != nil {
		t.Fatal(err)
	}
	if allowed, reason := decide(t, New(c, c, c, Options{}), 0); allowed || reason != v1beta1.ReasonLedgerFull {
		t.Errorf("allowed %t, reason %s", allowed, reason)
	}
}
