package cycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/moves"
)

// begun is a cycle over a cluster with these objects, in which the API server also serves the kinds of example.com and
// answers what lists of one of them end with.
func begun(t *testing.T, lists func(kind string) error, objects ...client.Object) *Cycle {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, policyv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	examples := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "example.com", Version: "v1"}})
	for _, kind := range []string{"Broken", "Secret"} {
		examples.Add(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: kind}, meta.RESTScopeNamespace)
	}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithRESTMapper(examples).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if kind := list.GetObjectKind().GroupVersionKind(); kind.Group == "example.com" {
				return lists(strings.TrimSuffix(kind.Kind, "List"))
			}
			return c.List(ctx, list, opts...)
		}}).Build()
	return &Cycle{Now: noon, ctx: t.Context(), world: &World{live: live, options: Options{Clock: clocktesting.NewFakeClock(noon), DryRun: true}}, report: &Report{}}
}

// spreadNamed is a spread for a workload of the same name.
func spreadNamed(namespace, name, apiVersion, kind string, paths ...string) *v1beta1.WorkloadSpread {
	object := &v1beta1.WorkloadSpread{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
	object.Spec.TargetReference = v1beta1.TargetReference{APIVersion: apiVersion, Kind: kind, Name: name}
	object.Spec.Subsets = []v1beta1.Subset{{Name: "a"}}
	if len(paths) > 0 {
		object.Spec.TargetFilter = &v1beta1.TargetFilter{ReplicasPathList: paths}
	}
	return object
}

func TestASpreadThatCannotBeReadIsReported(t *testing.T) {
	invalid := spreadNamed("ns", "invalid", "apps/v1", "Deployment")
	invalid.Spec.Subsets = nil
	broken := errors.New("etcd is away")
	c := begun(t, func(kind string) error {
		if kind == "Secret" {
			return apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "secrets"}, "", nil)
		}
		return broken
	},
		spreadNamed("ns", "good", "apps/v1", "Deployment"),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "good"}},
		spreadNamed("ns", "paths", "apps/v1", "Deployment", "spec.nothing"),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "paths"}},
		spreadNamed("ns", "broken", "example.com/v1", "Broken"),
		spreadNamed("ns", "secret", "example.com/v1", "Secret"),
		spreadNamed("elsewhere", "broken", "example.com/v1", "Broken"),
		// Of these the status says all there is to say.
		spreadNamed("ns", "nowhere", "apps/v1", "Deployment"),
		spreadNamed("ns", "unserved", "example.com/v1", "Unserved"),
		invalid,
	)
	if err := c.gather(t.Context()); err != nil {
		t.Fatal(err)
	}
	var decided []string
	run := func(name string) {
		t.Helper()
		err := c.Run(t.Context(), Strategy{Name: name, Covers: func(namespace string) bool { return namespace == "ns" }, Decide: func(f *moves.Facts, _ moves.Cluster) moves.Decision {
			decided = append(decided, f.Name)
			return moves.Decision{}
		}})
		if err != nil {
			t.Error(err)
		}
	}
	run("First")
	run("Second")
	if diff := cmp.Diff([]string{"good", "good"}, decided); diff != "" {
		t.Errorf("decided on (-want +got):\n%s", diff)
	}
	var lines []string
	for _, line := range c.report.Lines {
		lines = append(lines, fmt.Sprint(line.Strategy, " ", line.Namespace, "/", line.Spread, " ", line.Pod, line.Verdict, " ", line.Reason))
	}
	if diff := cmp.Diff([]string{
		"First ns/broken Keep TargetUnreadable", "First ns/paths Keep TargetUnreadable", "First ns/secret Keep TargetUnreadable",
		"Second ns/broken Keep TargetUnreadable", "Second ns/paths Keep TargetUnreadable", "Second ns/secret Keep TargetUnreadable",
	}, lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	// Each counts once, and a kind that Berth may not read is no failure: the status says so.
	text := fmt.Sprint(c.report.Unread)
	if !errors.Is(c.report.Unread, broken) || strings.Count(text, "spread ns/broken") != 1 || strings.Count(text, "spread ns/paths") != 1 ||
		strings.Contains(text, "secret") || strings.Contains(text, "elsewhere") {
		t.Errorf("not read: %s", text)
	}
}

func TestAPodWhoseOwnersCannotBeReadIsReported(t *testing.T) {
	broken := errors.New("etcd is away")
	var pods []client.Object
	for i := range 3 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", i)}}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Broken", Name: "b", UID: "b", Controller: ptr.To(true)}}
		pods = append(pods, pod)
	}
	c := begun(t, func(string) error { return broken }, slices.Concat(pods, []client.Object{
		spreadNamed("ns", "good", "apps/v1", "Deployment"), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "good"}}})...)
	if err := c.gather(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(c.report.Unread); !errors.Is(c.report.Unread, broken) || strings.Count(text, "pod ns/p") != 1 {
		t.Errorf("not read: %s", text)
	}
}

// podOf is a pod whose controller is an object of this kind.
func podOf(namespace, name, apiVersion, kind, owner string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}}}}
}

// Somebody who pauses a spread wants its pods to stay. They stay even if nothing else of the spread can be read.
func TestAPausedSpreadIsPausedWhateverIsWrongWithIt(t *testing.T) {
	paused := func(s *v1beta1.WorkloadSpread) *v1beta1.WorkloadSpread {
		s.Annotations = map[string]string{v1beta1.PausedAnnotation: "true"}
		return s
	}
	selecting := func(s *v1beta1.WorkloadSpread) *v1beta1.WorkloadSpread {
		s.Spec.TargetFilter = &v1beta1.TargetFilter{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "worker"}}}
		return s
	}
	set := func(namespace, name string) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)}}
	}
	invalid, loser, winner := spreadNamed("ns", "invalid", "apps/v1", "StatefulSet"), spreadNamed("ns", "loser", "apps/v1", "StatefulSet"), spreadNamed("ns", "winner", "apps/v1", "StatefulSet")
	invalid.Spec.Subsets = nil
	loser.Spec.TargetReference.Name, winner.Spec.TargetReference.Name = "shared", "shared"
	loser.CreationTimestamp = metav1.NewTime(noon)
	c := begun(t, func(string) error { return errors.New("etcd is away") },
		paused(spreadNamed("ns", "good", "apps/v1", "StatefulSet")), set("ns", "good"),
		paused(selecting(spreadNamed("ns", "part", "apps/v1", "StatefulSet"))), set("ns", "part"),
		paused(invalid), set("ns", "invalid"),
		paused(spreadNamed("ns", "paths", "apps/v1", "StatefulSet", "spec.nothing")), set("ns", "paths"),
		paused(spreadNamed("ns", "broken", "example.com/v1", "Broken")),
		paused(spreadNamed("ns", "later", "apps/v1", "StatefulSet")),
		paused(loser), winner, set("ns", "shared"),
		spreadNamed("ns", "running", "apps/v1", "StatefulSet"), set("ns", "running"), set("ns", "other"), set("elsewhere", "good"),
	)
	if err := c.gather(t.Context()); err != nil {
		t.Fatal(err)
	}
	worker := map[string]string{"role": "worker"}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"a paused spread":                                        {podOf("ns", "p", "apps/v1", "StatefulSet", "good", nil), true},
		"a pod that the spread selects":                          {podOf("ns", "p", "apps/v1", "StatefulSet", "part", worker), true},
		"a pod that it leaves out":                               {podOf("ns", "p", "apps/v1", "StatefulSet", "part", nil), false},
		"a spread that is invalid":                               {podOf("ns", "p", "apps/v1", "StatefulSet", "invalid", nil), true},
		"a spread whose replicas cannot be read":                 {podOf("ns", "p", "apps/v1", "StatefulSet", "paths", nil), true},
		"a spread whose target cannot be read":                   {podOf("ns", "p", "example.com/v1", "Broken", "broken", nil), true},
		"a spread whose target does not exist":                   {podOf("ns", "p", "apps/v1", "StatefulSet", "later", nil), true},
		"a spread beside an older one":                           {podOf("ns", "p", "apps/v1", "StatefulSet", "shared", nil), true},
		"a pod whose owners cannot be read may be one of these":  {podOf("ns", "p", "example.com/v1", "Broken", "any", nil), true},
		"a spread that is not paused":                            {podOf("ns", "p", "apps/v1", "StatefulSet", "running", nil), false},
		"a workload without a spread":                            {podOf("ns", "p", "apps/v1", "StatefulSet", "other", nil), false},
		"another namespace":                                      {podOf("elsewhere", "p", "apps/v1", "StatefulSet", "good", nil), false},
		"owners that cannot be read, where no spread was paused": {podOf("elsewhere", "p", "example.com/v1", "Broken", "any", nil), false},
	} {
		if got := c.IsPaused(tc.pod); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	for _, s := range c.spreads {
		if want := s.object.Name != "running"; s.facts.Paused != want {
			t.Errorf("Berth's strategies take spread %s for paused: %t", s.object.Name, s.facts.Paused)
		}
	}
}
