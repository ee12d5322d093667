package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/testkit"
)

// find is the object of a type and a name.
func find[T client.Object](t *testing.T, objects []client.Object, name string) (found T) {
	t.Helper()
	for _, object := range objects {
		if typed, is := object.(T); is && object.GetName() == name {
			return typed
		}
	}
	t.Fatalf("there is no %T %s", found, name)
	return found
}

// answering is a cluster whose API server has a version, and allows everything but the resources that are denied.
func answering(t *testing.T, cluster *console.Cluster, version string, denied ...string) *console.Cluster {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"gitVersion": "` + version + `"}`))
	}))
	t.Cleanup(server.Close)
	cluster.Config = &rest.Config{Host: server.URL}
	cluster.WithWatch = interceptor.NewClient(cluster.WithWatch, interceptor.Funcs{Create: func(_ context.Context, _ client.WithWatch, object client.Object, options ...client.CreateOption) error {
		called := func(webhook string) error {
			switch {
			case !slices.Contains(options, client.CreateOption(client.DryRunAll)):
				t.Errorf("the doctor creates a %T, and not in a dry run", object)
			case slices.Contains(denied, "no answer of "+webhook):
				return nil
			case slices.Contains(denied, "no way to "+webhook):
				return fmt.Errorf(`Internal error occurred: failed calling webhook %q: no endpoints available for service "berth-webhook"`, webhook)
			case slices.Contains(denied, "create "+webhook):
				return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no"))
			}
			return fmt.Errorf("admission webhook %q denied the request: it is wrong", webhook)
		}
		switch object.(type) {
		case *v1beta1.WorkloadSpread:
			return called("workloadspread.berth.dev")
		case *policyv1beta1.PodUnavailableBudget:
			return called("podunavailablebudgets.budget.berth.dev")
		default:
			t.Errorf("the doctor creates a %T", object)
		}
		return nil
	}})
	return cluster
}

// installed are the objects of a cluster on which Berth works.
func installed(t *testing.T) []client.Object {
	t.Helper()
	var all []client.Object
	read := func(content []byte, object client.Object) {
		if err := yaml.UnmarshalStrict(content, object); err != nil {
			t.Fatal(err)
		}
		for _, webhook := range endpoint.WebhooksOf(object) {
			webhook.Client.CABundle = []byte("authority")
			webhook.Fill()
		}
		all = append(all, object)
	}
	for _, content := range manifests.CRDs() {
		read(content, &apiextensionsv1.CustomResourceDefinition{})
	}
	for _, content := range [][]byte{manifests.ValidatingWebhook, manifests.BudgetWebhook} {
		read(content, &admissionregistrationv1.ValidatingWebhookConfiguration{})
	}
	for _, content := range [][]byte{manifests.MutatingWebhook, manifests.EvictionWebhook} {
		read(content, &admissionregistrationv1.MutatingWebhookConfiguration{})
	}
	for _, name := range []string{"berth-scheduler", "berth-controller"} {
		all = append(all,
			&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: name},
				Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": "berth"}},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "ghcr.io/berth-project/" + name + ":v0.2.0"}}}}}, Status: appsv1.DeploymentStatus{AvailableReplicas: 2}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: name}})
	}
	return all
}

// without leaves out the objects of a name, for which the chart has a value, and gives berth-controller the argument
// that goes with it.
func without(t *testing.T, name string, args ...string) func([]client.Object) []client.Object {
	t.Helper()
	return func(objects []client.Object) []client.Object {
		find[*appsv1.Deployment](t, objects, "berth-controller").Spec.Template.Spec.Containers[0].Args = args
		return slices.DeleteFunc(objects, func(object client.Object) bool { return object.GetName() == name })
	}
}

// kruisesWebhook has an entry for pods, and one for a kind that Berth has too.
func kruisesWebhook(served string) *admissionregistrationv1.ValidatingWebhookConfiguration {
	about := func(name, resource string) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{Name: name, Rules: []admissionregistrationv1.RuleWithOperations{{Rule: admissionregistrationv1.Rule{Resources: []string{resource}}}}}
	}
	return &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: kruiseWebhooks},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{about("vpod.kb.io", "pods"), about("v"+served+".kb.io", served)}}
}

func TestDoctorBeforeInstall(t *testing.T) {
	for name, tc := range map[string]struct {
		args    []string
		server  string
		denied  []string
		objects []client.Object
		// want is what the command says. Empty: no problem.
		want string
	}{
		"an empty cluster":                         {},
		"an API server that is too old":            {server: "v1.33.2-gke.1", want: "API server problem: the API server is Kubernetes v1.33.2-gke.1, and this version of Berth runs with"},
		"OpenKruise":                               {objects: []client.Object{kruisesWebhook("workloadspreads")}, want: "OpenKruise problem: webhook vworkloadspreads.kb.io): begin with `kubectl berth migrate --from kruise`"},
		"OpenKruise, from which somebody migrates": {args: []string{"--migrate-from=kruise"}, objects: []client.Object{kruisesWebhook("workloadspreads")}},
		"OpenKruise's UnitedDeployments": {args: []string{"--migrate-from=kruise"}, objects: []client.Object{kruisesWebhook("uniteddeployments")},
			want: "UnitedDeployments problem: webhook vuniteddeployments.kb.io): two controllers would create children without end; install with unitedDeployments.enabled=false"},
		"OpenKruise's UnitedDeployments, which it keeps": {args: []string{"--united-deployments=false"}, objects: []client.Object{kruisesWebhook("uniteddeployments")}},
		"a flag that is wrong":                           {args: []string{"--migrate-from=mine"}, want: "--migrate-from=mine: it must be kruise, or left out"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := answering(t, clusterOf(t, tc.objects...), cmp.Or(tc.server, "v1.35.4"), tc.denied...)
			var out bytes.Buffer
			c := &doctorCommand{out: &out}
			cmd := c.command(func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), cluster, args) })
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			cmd.SetArgs(append([]string{"--before-install", "-o=json"}, tc.args...))
			err := cmd.ExecuteContext(t.Context())
			said := ""
			var list struct{ Items []Check }
			if json.Unmarshal(out.Bytes(), &list) != nil && err != nil {
				said = err.Error()
			}
			for _, check := range list.Items {
				if check.Result != resultOK {
					said += check.Name + " " + check.Result + ": " + check.Says
				}
			}
			if (err == nil) != (tc.want == "") {
				t.Errorf("ended with %v", err)
			}
			head, part, _ := strings.Cut(tc.want, ": ")
			if (said == "") != (tc.want == "") || !strings.HasPrefix(said, head) || !strings.Contains(said, part) {
				t.Errorf("got %q, want %q", said, tc.want)
			}
		})
	}
}

func TestDoctor(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(objects []client.Object) []client.Object
		funcs  interceptor.Funcs
		server string
		denied []string
		// want are the checks that are not ok, as "name result: part of the text".
		want []string
	}{
		"all is well": {},
		"nothing is installed": {change: func([]client.Object) []client.Object { return nil },
			want: []string{"definitions problem: does not exist", "webhooks problem: does not exist"}},
		"the definitions of somebody else": {change: func(objects []client.Object) []client.Object {
			delete(find[*apiextensionsv1.CustomResourceDefinition](t, objects, "workloadspreads.apps.kruise.io").Spec.Versions[1].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "scheduleStrategy")
			return objects
		}, want: []string{"definitions problem: workloadspreads.apps.kruise.io is not Berth's"}},
		"objects of an old version": {change: func(objects []client.Object) []client.Object {
			find[*apiextensionsv1.CustomResourceDefinition](t, objects, "podunavailablebudgets.policy.kruise.io").Status.StoredVersions = []string{"v1alpha1", "v1beta1"}
			return objects
		}, want: []string{"definitions problem: stored as v1alpha1"}},
		"nobody converts": {funcs: interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if list.GetObjectKind().GroupVersionKind().Version == "v1alpha1" {
				return errors.New("conversion webhook failed")
			}
			return c.List(ctx, list, options...)
		}}, want: []string{"conversion problem: conversion webhook failed"}},
		"nobody converts one kind, and another is left out": {change: without(t, endpoint.UnitedDefinition, "--united-deployments=false"),
			funcs: interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				switch gvk := list.GetObjectKind().GroupVersionKind(); {
				case gvk.Version == "v1alpha1" && strings.HasPrefix(gvk.Kind, "UnitedDeployment"):
					return &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
				case gvk.Version == "v1alpha1":
					return errors.New("conversion webhook failed")
				}
				return c.List(ctx, list, options...)
			}}, want: []string{"conversion problem: conversion webhook failed"}},
		"no authority": {change: func(objects []client.Object) []client.Object {
			endpoint.WebhooksOf(find[*admissionregistrationv1.ValidatingWebhookConfiguration](t, objects, "berth-webhook"))[0].Client.CABundle = nil
			return objects
		}, want: []string{"webhooks problem: ValidatingWebhookConfiguration berth-webhook, workloadspread.berth.dev, has no CA bundle"}},
		"an API server that is too new":  {server: "v1.39.0", want: []string{"API server problem: the API server is Kubernetes v1.39.0, and this version of Berth runs with"}},
		"budgets are left out":           {change: without(t, "berth-budget", "--budgets=false")},
		"budgets are missing":            {change: without(t, "berth-budget"), want: []string{"webhooks problem: ValidatingWebhookConfiguration berth-budget does not exist"}},
		"admission is left out":          {change: without(t, "berth-webhook")},
		"the scheduler is left out":      {change: without(t, "berth-scheduler")},
		"UnitedDeployments are left out": {change: without(t, endpoint.UnitedDefinition, "--united-deployments=false")},
		"UnitedDeployments are missing":  {change: without(t, endpoint.UnitedDefinition), want: []string{"definitions problem: uniteddeployments.apps.kruise.io does not exist"}},
		"half of admission is missing": {change: func(objects []client.Object) []client.Object {
			return slices.DeleteFunc(objects, func(object client.Object) bool {
				_, is := object.(*admissionregistrationv1.MutatingWebhookConfiguration)
				return is && object.GetName() == "berth-webhook"
			})
		}, want: []string{"webhooks problem: MutatingWebhookConfiguration berth-webhook does not exist"}},
		"a webhook that does not answer": {denied: []string{"no answer of workloadspread.berth.dev"},
			want: []string{"webhooks problem: the API server does not get an answer from webhook workloadspread.berth.dev"}},
		"a webhook that cannot be called": {denied: []string{"no way to podunavailablebudgets.budget.berth.dev"},
			want: []string{`webhooks problem: no endpoints available for service "berth-webhook": see whether Service berth-webhook has endpoints`}},
		"no right to create a spread": {denied: []string{"create workloadspread.berth.dev"}, want: []string{"webhooks unknown: ask for a role"}},
		"another converter": {change: func(objects []client.Object) []client.Object {
			find[*apiextensionsv1.CustomResourceDefinition](t, objects, "workloadspreads.apps.kruise.io").Spec.Conversion.Webhook.ClientConfig.Service.Name = "kruise-webhook-service"
			find[*apiextensionsv1.CustomResourceDefinition](t, objects, endpoint.UnitedDefinition).Spec.Conversion.Webhook.ClientConfig.Service.Name = "kruise-webhook-service"
			return objects
		}, want: []string{"definitions problem: workloadspreads.apps.kruise.io names another converter than Berth"}},
		"a scheduler that does not run": {change: func(objects []client.Object) []client.Object {
			find[*appsv1.Deployment](t, objects, "berth-scheduler").Status.AvailableReplicas = 0
			return objects
		}, want: []string{"deployments problem: berth-scheduler has no available pod: kubectl -n berth-system get pods"}},
		"a budget that is not enforced": {change: func(objects []client.Object) []client.Object {
			return append(objects, &policyv1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: policyv1beta1.PodUnavailableBudgetStatus{
				Conditions: []metav1.Condition{{Type: policyv1beta1.ConditionEnforcing, Status: metav1.ConditionFalse, Reason: "Invalid", Message: "it selects nothing"}}}})
		}, want: []string{"budgets problem: PodUnavailableBudget shop/web: Invalid: it selects nothing"}},
		"a budget that doubts": {change: func(objects []client.Object) []client.Object {
			return append(objects, &policyv1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Status: policyv1beta1.PodUnavailableBudgetStatus{
				Conditions: []metav1.Condition{{Type: policyv1beta1.ConditionDisruptionAllowed, Status: metav1.ConditionFalse, Reason: "PodsDoubtful", Message: "1 of 2 desired pods are available; missing: a"}}}})
		}, want: []string{"budgets problem: PodUnavailableBudget shop/web: PodsDoubtful: 1 of 2 desired pods are available; missing: a"}},
		"the webhook of OpenKruise": {change: func(objects []client.Object) []client.Object {
			return append(objects, kruisesWebhook("workloadspreads"))
		},
			want: []string{"OpenKruise problem: webhook vworkloadspreads.kb.io): run `kubectl berth migrate --from kruise` again"}},
		"two schedulers fill a node": {change: func(objects []client.Object) []client.Object {
			refused := func(node string, age time.Duration) *corev1.Event {
				return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: node}, Reason: "OutOfcpu", Source: corev1.EventSource{Component: "kubelet", Host: node},
					LastTimestamp: metav1.NewTime(time.Now().Add(-age)), InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-1"}}
			}
			return append(objects, refused("node-1", time.Minute), refused("node-2", time.Hour))
		}, want: []string{"shared nodes problem: kubelets refused 1 pod for lack of room (node-1), so two schedulers bind to these nodes"}},
		"another controller": {change: func(objects []client.Object) []client.Object {
			event := func(name string, age time.Duration) *corev1.Event {
				return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Reason: "TwoControllers", Message: name + " writes the status too",
					EventTime: metav1.NewMicroTime(time.Now().Add(-age)), InvolvedObject: corev1.ObjectReference{Kind: "PodUnavailableBudget", Namespace: "shop", Name: "web"}}
			}
			again := event("series", time.Hour)
			again.Series = &corev1.EventSeries{LastObservedTime: metav1.NowMicro()}
			return append(objects, event("once", time.Minute), event("old", 30*time.Minute), again)
		}, want: []string{"one controller problem: PodUnavailableBudget shop/web: once writes the status too; PodUnavailableBudget shop/web: series writes"}},
		"a spread that a node autoscaler cannot read": {change: func(objects []client.Object) []client.Object {
			return append(objects, testkit.Spread(t, twoThenAny, `{binding: Late, nodeAutoscaler: karpenter}`))
		}, want: []string{"node autoscaler problem: WorkloadSpread shop/web binds late, and the node autoscaler (karpenter) knows no quotas"}},
		"a spread that one can read": {change: func(objects []client.Object) []client.Object {
			return append(objects, testkit.Spread(t, twoThenAny, `{binding: Gated, nodeAutoscaler: karpenter}`))
		}},
		"pods that are not admitted": {change: func(objects []client.Object) []client.Object {
			return append(objects, testkit.Spread(t, twoThenAny, `conditions: [{type: Admitted, status: "False", reason: PodsNotAdmitted, message: "the webhook is down"}]`))
		}, want: []string{"spreads problem: /web: PodsNotAdmitted: the webhook is down"}},
		"no rights": {funcs: interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no"))
		}}, want: []string{"definitions unknown: ask for a role", "conversion unknown: ask for a role", "webhooks unknown: ask", "deployments unknown: ask", "one controller unknown: ask", "spreads unknown: ask", "node autoscaler unknown: ask", "shared nodes unknown: ask", "budgets unknown: ask"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := installed(t)
			if tc.change != nil {
				objects = tc.change(objects)
			}
			cluster := clusterOf(t, objects...)
			cluster.WithWatch = interceptor.NewClient(answering(t, cluster, cmp.Or(tc.server, "v1.35.4"), tc.denied...).WithWatch, tc.funcs)
			var out, table bytes.Buffer
			err := (&doctorCommand{out: &out, output: console.Output{Format: "json"}}).run(t.Context(), cluster, nil)
			var list struct{ Items []Check }
			if json.Unmarshal(out.Bytes(), &list) != nil || len(list.Items) != len(checks) {
				t.Fatalf("%v, printed\n%s", err, out.String())
			}
			got := list.Items
			var exit *console.ExitError
			if problems := strings.Contains(strings.Join(tc.want, "\n"), " problem: "); problems != errors.As(err, &exit) {
				t.Errorf("ended with %v", err)
			}
			var bad []string
			for _, check := range got {
				if check.Result != resultOK {
					bad = append(bad, check.Name+" "+check.Result+" "+check.Says)
				}
			}
			if len(bad) != len(tc.want) {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(bad, "\n"), strings.Join(tc.want, "\n"))
			}
			for i, want := range tc.want {
				head, part, _ := strings.Cut(want, ": ")
				if !strings.HasPrefix(bad[i], head) || !strings.Contains(bad[i], part) {
					t.Errorf("got %q, want %q", bad[i], want)
				}
			}
			if err := (&doctorCommand{out: &table}).run(t.Context(), cluster, nil); err != nil && !errors.As(err, &exit) || !strings.HasPrefix(table.String(), "CHECK") {
				t.Errorf("%v, printed\n%s", err, table.String())
			}
		})
	}
}
