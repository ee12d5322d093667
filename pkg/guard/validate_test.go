package guard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// selecting returns a budget whose selector names one label and this many values of it.
func selecting(name string, from, values int) *v1beta1.PodUnavailableBudget {
	expression := metav1.LabelSelectorRequirement{Key: "app", Operator: metav1.LabelSelectorOpIn}
	for i := range values {
		expression.Values = append(expression.Values, fmt.Sprintf("v%d", from+i))
	}
	return &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: v1beta1.PodUnavailableBudgetSpec{
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{expression}}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
	}}
}

// TestTheSizeOfABudgetIsBounded: every request about a protected pod reads all budgets of its namespace.
func TestTheSizeOfABudgetIsBounded(t *testing.T) {
	v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(cluster(t, 0, interceptor.Funcs{}), committed)}
	annotated := func(bytes int) *v1beta1.PodUnavailableBudget {
		pub := selecting("web", 0, 1)
		pub.Annotations = map[string]string{"example.com/note": strings.Repeat("x", bytes)}
		pub.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("x", maxSize)}}
		return pub
	}
	labelled := annotated(maxSize - 500)
	labelled.Labels = map[string]string{strings.Repeat("x", 500): ""}
	for name, tc := range map[string]struct {
		old, pub *v1beta1.PodUnavailableBudget
		refused  bool
	}{
		"a new one that is large enough":                          {nil, annotated(maxSize - 500), false},
		"a new one that is too large":                             {nil, annotated(maxSize), true},
		"one that grows by an annotation":                         {annotated(1), annotated(maxSize), true},
		"one that grows by a label":                               {annotated(maxSize - 500), labelled, true},
		"one that was too large before, and gets smaller":         {annotated(2 * maxSize), annotated(maxSize), false},
		"one that was too large before, and stays as large as it": {annotated(maxSize), annotated(maxSize), false},
	} {
		var err error
		if tc.old == nil {
			_, err = v.reviews().ValidateCreate(t.Context(), tc.pub)
		} else {
			_, err = v.reviews().ValidateUpdate(t.Context(), tc.old, tc.pub)
		}
		if apierrors.IsForbidden(err) != tc.refused || err != nil && !strings.Contains(err.Error(), "at most 32768 are allowed") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAHugeSelector(t *testing.T) {
	t.Run("is refused by its size", func(t *testing.T) {
		v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(cluster(t, 0, interceptor.Funcs{}), committed)}
		if _, err := v.reviews().ValidateCreate(t.Context(), selecting("huge", 0, maxSelector)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "1 requirements with 201 keys and values, and at most 20 and 200 are allowed") {
			t.Errorf("got %v", err)
		}
		many := selecting("many", 0, 1)
		many.Spec.Selector.MatchLabels = map[string]string{}
		for i := range maxRequirements {
			many.Spec.Selector.MatchLabels[fmt.Sprint("key-", i)] = ""
		}
		if _, err := v.reviews().ValidateCreate(t.Context(), many); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "21 requirements") {
			t.Errorf("got %v", err)
		}
		if _, err := v.reviews().ValidateCreate(t.Context(), selecting("large", 0, maxSelector-1)); err != nil {
			t.Errorf("got %v", err)
		}
	})
	t.Run("that exists already keeps nobody from labelling its budget", func(t *testing.T) {
		v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(cluster(t, 0, interceptor.Funcs{}), committed)}
		old, labelled := selecting("huge", 0, 2*maxSelector), selecting("huge", 0, 2*maxSelector)
		labelled.Labels = map[string]string{"team": "shop"}
		labelled.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(2))
		if _, err := v.reviews().ValidateUpdate(t.Context(), old, labelled); err != nil {
			t.Errorf("got %v", err)
		}
	})
	t.Run("is not compared for longer than somebody waits", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(cluster(t, 0, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			defer cancel()
			return c.List(ctx, list, opts...)
		}}), committed)}
		if _, err := v.reviews().ValidateCreate(ctx, selecting("large", 0, 10)); !apierrors.IsTooManyRequests(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("is answered before the API server gives up, while the budgets of the namespace are listed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			listed := make(chan struct{})
			v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(cluster(t, 0, interceptor.Funcs{List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
				defer close(listed)
				<-ctx.Done()
				return ctx.Err()
			}}), committed)}
			began := time.Now()
			_, err := v.reviews().ValidateCreate(t.Context(), selecting("large", 0, 10))
			if took := time.Since(began); took > 4*time.Second || !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), "of namespace ns could not be compared within 3s; try again") {
				t.Errorf("after %s: %v", took, err)
			}
			<-listed
		})
	})
}

func TestANamespaceHasSoManyBudgets(t *testing.T) {
	there := maxBudgets - 1
	v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(cluster(t, 0, interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
		for i := range there {
			list.(*v1beta1.PodUnavailableBudgetList).Items = append(list.(*v1beta1.PodUnavailableBudgetList).Items, *selecting(fmt.Sprint("b", i), i, 1))
		}
		return nil
	}}), committed)}
	if _, err := v.reviews().ValidateCreate(t.Context(), selecting("last", there, 1)); err != nil {
		t.Errorf("got %v", err)
	}
	there++
	if _, err := v.reviews().ValidateCreate(t.Context(), selecting("more", there, 1)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "has 500 PodUnavailableBudgets, and at most 500 are allowed") {
		t.Errorf("got %v", err)
	}
}

// TestABudgetThatCannotBeCompared is one whose namespace cannot be read just now, or not at all.
func TestABudgetThatCannotBeCompared(t *testing.T) {
	for name, tc := range map[string]struct {
		err        error
		wantCode   int32
		wantSecond int32
	}{
		"for a moment":                      {apierrors.NewServerTimeout(v1beta1.Resource.GroupResource(), "list", 3), http.StatusTooManyRequests, 3},
		"until the API server answers":      {context.DeadlineExceeded, http.StatusTooManyRequests, 1},
		"until somebody gives it the right": {apierrors.NewForbidden(v1beta1.Resource.GroupResource(), "", errors.New("no rule")), http.StatusInternalServerError, 0},
	} {
		t.Run(name, func(t *testing.T) {
			v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(cluster(t, 0, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return tc.err }}), committed)}
			_, err := v.reviews().ValidateCreate(t.Context(), selecting("web", 0, 1))
			var status apierrors.APIStatus
			if !errors.As(err, &status) {
				t.Fatalf("got %v", err)
			}
			if got := status.Status(); got.Code != tc.wantCode || got.Details.RetryAfterSeconds != tc.wantSecond {
				t.Errorf("got %d, again after %d s, want %d and %d", got.Code, got.Details.RetryAfterSeconds, tc.wantCode, tc.wantSecond)
			}
		})
	}
}

// TestReplicasThatCannotBeRead has three pods of a kind of somebody's. Its author is told when the budget is created, and each client that is refused.
func TestReplicasThatCannotBeRead(t *testing.T) {
	noScale := apierrors.NewNotFound(schema.GroupResource{Group: "example.com", Resource: "sites"}, "site")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "sites"}, "site", errors.New("no rule"))
	for name, tc := range map[string]struct {
		site, scale error
		replicas    int64
		targeted    bool
		// wantWarning and wantReasons are of the budget, and of three evictions one after the other.
		wantWarning string
		wantReasons []v1beta1.Reason
	}{
		"a kind without scale": {scale: noScale, wantWarning: "spec.maxUnavailable: no available pod may be", wantReasons: slices.Repeat([]v1beta1.Reason{v1beta1.ReasonReplicasUnknown}, 3)},
		"the same, as target":  {scale: noScale, targeted: true, wantWarning: "spec.maxUnavailable: no available pod may be", wantReasons: slices.Repeat([]v1beta1.Reason{v1beta1.ReasonReplicasUnknown}, 3)},
		"one that may not be read": {site: forbidden, wantWarning: "spec.maxUnavailable: no available pod may be",
			wantReasons: slices.Repeat([]v1beta1.Reason{v1beta1.ReasonReplicasUnknown}, 3)},
		"the same, as target, which ends without a verdict": {site: forbidden, targeted: true, wantWarning: "spec.targetRef: Berth may not read the workload"},
		"one whose scale may not be read": {scale: forbidden, wantWarning: "spec.maxUnavailable: no available pod may be",
			wantReasons: slices.Repeat([]v1beta1.Reason{v1beta1.ReasonReplicasUnknown}, 3)},
		"one that tells": {replicas: 3, wantReasons: []v1beta1.Reason{v1beta1.ReasonWithinBudget, v1beta1.ReasonBudgetExhausted, v1beta1.ReasonBudgetExhausted}},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, 3, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if o.GetObjectKind().GroupVersionKind().Group != "example.com" {
						return c.Get(ctx, key, o, opts...)
					}
					o.SetName(key.Name)
					o.SetUID("site")
					return tc.site
				},
				SubResourceGet: func(_ context.Context, _ client.Client, _ string, _, scale client.Object, _ ...client.SubResourceGetOption) error {
					if object, is := scale.(*unstructured.Unstructured); is && tc.scale == nil {
						object.Object["spec"] = map[string]any{"replicas": tc.replicas}
					}
					return tc.scale
				},
			})
			for i := range 3 {
				p := pod(i)
				p.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Site", Name: "site", UID: "site", Controller: ptr.To(true)}
				if err := c.Update(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			}
			pub := &v1beta1.PodUnavailableBudget{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "web"}, pub); err != nil {
				t.Fatal(err)
			}
			if tc.targeted {
				pub.Spec.Selector, pub.Spec.TargetReference = nil, &v1beta1.TargetReference{APIVersion: "example.com/v1", Kind: "Site", Name: "site"}
				if err := c.Update(t.Context(), pub); err != nil {
					t.Fatal(err)
				}
			}
			v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(c, committed), census: New(c, c, c, Options{}).census, looks: make(chan struct{}, mostLooks)}
			changed := pub.DeepCopy()
			changed.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(2))
			for what, validate := range map[string]func() (admission.Warnings, error){
				"created": func() (admission.Warnings, error) { return v.reviews().ValidateCreate(t.Context(), pub) },
				"changed": func() (admission.Warnings, error) { return v.reviews().ValidateUpdate(t.Context(), pub, changed) },
			} {
				warnings, err := validate()
				if got := strings.Join(warnings, "\n"); err != nil || !strings.HasPrefix(got, tc.wantWarning) || tc.wantWarning == "" && got != "" {
					t.Errorf("%s: warnings %q, %v, want %q", what, got, err, tc.wantWarning)
				}
			}
			g := New(c, c, c, Options{})
			for i, want := range tc.wantReasons {
				p := pod(i)
				v, err := g.Decide(t.Context(), Request{Pod: p, Operation: v1beta1.OperationEvict})
				if err != nil || v.Reason != want {
					t.Errorf("pod %d: %+v, %v, want %s", i, v, err, want)
				}
				if v.Allowed { // it is deleted, and nobody replaces it
					if err := c.Delete(t.Context(), p); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestABudgetIsStoredAlthoughItsPodsCannotBeCounted: nothing but warnings depends on that.
func TestABudgetIsStoredAlthoughItsPodsCannotBeCounted(t *testing.T) {
	c := cluster(t, 3, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, is := list.(*corev1.PodList); is {
			return apierrors.NewServiceUnavailable("busy")
		}
		return c.List(ctx, list, opts...)
	}})
	v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(c, committed), census: New(c, c, c, Options{}).census, looks: make(chan struct{}, mostLooks)}
	if warnings, err := v.reviews().ValidateCreate(t.Context(), selecting("new", 0, 1)); err != nil || len(warnings) > 0 {
		t.Errorf("%v, %v", warnings, err)
	}
}

// largest is a budget with the largest selector that is accepted.
func largest(i int) *v1beta1.PodUnavailableBudget {
	pub := selecting(fmt.Sprint("budget-", i), 0, 1)
	pub.UID = types.UID(pub.Name)
	pub.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", i)}}
	for key := range maxRequirements - 1 {
		expression := metav1.LabelSelectorRequirement{Key: fmt.Sprintf("example.com/%s-%d", strings.Repeat("k", 50), key), Operator: metav1.LabelSelectorOpNotIn}
		for value := range 8 {
			expression.Values = append(expression.Values, fmt.Sprintf("%s-%d", strings.Repeat("v", 60), value))
		}
		pub.Spec.Selector.MatchExpressions = append(pub.Spec.Selector.MatchExpressions, expression)
	}
	return pub
}

// BenchmarkValidate is what the comparison of one budget with 499 others costs, all with the largest selectors.
func BenchmarkValidate(b *testing.B) {
	var others v1beta1.PodUnavailableBudgetList
	for i := range maxBudgets - 1 {
		others.Items = append(others.Items, *largest(i))
	}
	v := &budgetValidator{policies: newPolicies(), budgets: newRegistry(interceptor.NewClient(nil, interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
		list.(*v1beta1.PodUnavailableBudgetList).Items = others.Items
		return nil
	}}), committed)}
	for b.Loop() {
		if _, err := v.reviews().ValidateCreate(b.Context(), largest(maxBudgets)); err != nil {
			b.Fatal(err)
		}
	}
}
