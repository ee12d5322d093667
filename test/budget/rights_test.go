package budget

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// The controller has the right to patch and delete pods. An admission policy restricts it to the operations that it needs.
func TestTheControllerMayDoToPodsWhatItDoesAndNoMore(t *testing.T) {
	namespace := namespace(t)
	controller, err := kubernetes.NewForConfig(berth.config)
	if err != nil {
		t.Fatal(err)
	}
	bare := func(name, annotations, spec string) *corev1.Pod {
		t.Helper()
		apply(t, namespace, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: web, tier: front}, annotations: {%s}, finalizers: [test/keep]}, `+
			`spec: {%s, containers: [{name: main, image: web:1}]}}`, name, annotations, spec))
		pod, err := the.Client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = patch(context.Background(), pod, `{"metadata":{"finalizers":null}}`) }) // the pod may not exist any more
		return pod
	}
	const nobodys = "schedulerName: nobody"
	pending, admitted := bare("pending", "", nobodys), bare("admitted", "berth.dev/admitted-subset: '{}'", nobodys)
	bound := bare("bound", "berth.dev/admitted-subset: '{}'", "nodeName: "+nodeName(t))
	ctx := t.Context()
	dry := func(body string) func() error {
		return func() error {
			_, err := controller.CoreV1().Pods(namespace).Patch(ctx, pending.Name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{DryRun: dryRun})
			return err
		}
	}
	deletion := func(pod *corev1.Pod) func() error {
		return func() error {
			return controller.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{DryRun: dryRun})
		}
	}
	for name, tc := range map[string]struct {
		do      func() error
		allowed bool
	}{
		"protect a pod":                        {dry(`{"metadata":{"labels":{"policy.berth.dev/protected":"true"},"annotations":{"policy.berth.dev/selector-keys":"app"}}}`), true},
		"write its deletion cost":              {dry(`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"100"}}}`), true},
		"mark it as a reservation":             {dry(`{"metadata":{"labels":{"apps.kruise.io/united-deployment-reserved-pod":"true"}}}`), false},
		"adopt it":                             {dry(`{"metadata":{"labels":{"berth.dev/subset":"a","arch":"arm"},"annotations":{"example.com/package":"p"}}}`), true},
		"replace one that was admitted":        {deletion(admitted), true},
		"delete one that was not":              {deletion(pending), false},
		"delete one that runs":                 {deletion(bound), false},
		"take it from a Service":               {dry(`{"metadata":{"labels":{"app":null}}}`), false},
		"give it to a Service":                 {dry(`{"metadata":{"labels":{"team":"shop"}}}`), false},
		"relabel it while it loses its subset": {dry(`{"metadata":{"labels":{"berth.dev/subset":null,"tier":"back"}}}`), false},
		"exempt it from budgets":               {dry(`{"metadata":{"annotations":{"pub.kruise.io/no-protect":"true"}}}`), false},
		"change its image":                     {dry(`{"spec":{"containers":[{"name":"main","image":"evil:1"}]}}`), false},
		"set a deadline":                       {dry(`{"spec":{"activeDeadlineSeconds":1}}`), false},
		"take its finalizer":                   {dry(`{"metadata":{"finalizers":null}}`), false},
		"own it":                               {dry(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			switch err := tc.do(); {
			case tc.allowed && err != nil:
				t.Error(err)
			case !tc.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it to be forbidden", err)
			}
		})
	}
}

// accountOf is a client of a service account of Berth.
func accountOf(t *testing.T, name string) *kubernetes.Clientset {
	t.Helper()
	config := the.Sandbox.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:berth-system:" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// What creates workloads may also patch pods. An admission policy restricts it to the label of reservations.
func TestWhatCreatesWorkloadsMayMarkReservationsAndNoMore(t *testing.T) {
	namespace := namespace(t)
	apply(t, namespace, `{apiVersion: v1, kind: Pod, metadata: {name: web, labels: {app: web}, finalizers: [test/keep]}, spec: {schedulerName: nobody, containers: [{name: main, image: web:1}]}}`)
	t.Cleanup(func() {
		if pod, err := the.Client.CoreV1().Pods(namespace).Get(context.Background(), "web", metav1.GetOptions{}); err == nil {
			_ = patch(context.Background(), pod, `{"metadata":{"finalizers":null}}`) // its namespace is on its way
		}
	})
	united := accountOf(t, "berth-united")
	for name, tc := range map[string]struct {
		patch   string
		allowed bool
	}{
		"mark it as a reservation":   {`{"metadata":{"labels":{"apps.kruise.io/united-deployment-reserved-pod":"true"}}}`, true},
		"take it from a Service":     {`{"metadata":{"labels":{"app":null}}}`, false},
		"give it to a subset":        {`{"metadata":{"labels":{"berth.dev/subset":"a"}}}`, false},
		"protect it":                 {`{"metadata":{"labels":{"policy.berth.dev/protected":"true"}}}`, false},
		"write its deletion cost":    {`{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"100"}}}`, false},
		"exempt it from budgets":     {`{"metadata":{"annotations":{"pub.kruise.io/no-protect":"true"}}}`, false},
		"change its image":           {`{"spec":{"containers":[{"name":"main","image":"evil:1"}]}}`, false},
		"take its finalizer":         {`{"metadata":{"finalizers":null}}`, false},
		"own it":                     {`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`, false},
		"own it and mark it at once": {`{"metadata":{"labels":{"apps.kruise.io/united-deployment-reserved-pod":"true"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := united.CoreV1().Pods(namespace).Patch(t.Context(), "web", types.StrategicMergePatchType, []byte(tc.patch), metav1.PatchOptions{DryRun: dryRun})
			switch {
			case tc.allowed && err != nil:
				t.Error(err)
			case !tc.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it to be forbidden", err)
			}
		})
	}
}

// It also deletes pods that a StatefulSet waits for in vain, and no others.
func TestWhatCreatesWorkloadsMayDeletePodsThatAStatefulSetWaitsFor(t *testing.T) {
	united := accountOf(t, "berth-united")
	for name, tc := range map[string]struct {
		labels, kind string
		ready, may   bool
	}{
		"of a subset, not ready":      {"apps.kruise.io/subset-name: a", "StatefulSet", false, true},
		"of a subset, and ready":      {"apps.kruise.io/subset-name: a", "StatefulSet", true, false},
		"of no UnitedDeployment":      {"app: web", "StatefulSet", false, false},
		"of a Deployment of a subset": {"apps.kruise.io/subset-name: a", "ReplicaSet", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := namespace(t)
			apply(t, namespace, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: web, labels: {%s}, ownerReferences: [{apiVersion: apps/v1, kind: %s, name: x, uid: x, controller: true}]},
				spec: {schedulerName: nobody, containers: [{name: main, image: web:1}]}}`, tc.labels, tc.kind))
			if tc.ready {
				ready := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
				if _, err := the.Client.CoreV1().Pods(namespace).Patch(t.Context(), "web", types.StrategicMergePatchType, ready, metav1.PatchOptions{}, "status"); err != nil {
					t.Fatal(err)
				}
			}
			err := united.CoreV1().Pods(namespace).Delete(t.Context(), "web", metav1.DeleteOptions{DryRun: dryRun})
			if tc.may && err != nil || !tc.may && !apierrors.IsForbidden(err) {
				t.Errorf("got %v, allowed: %t", err, tc.may)
			}
		})
	}
}

// TestAUnitedDeploymentIsProtectedFromDeletion by the label of OpenKruise.
func TestAUnitedDeploymentIsProtectedFromDeletion(t *testing.T) {
	objects := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(namespace(t))
	for name, tc := range map[string]struct {
		protection any
		replicas   int64
		may        bool
	}{
		"Always":                    {"Always", 0, false},
		"Cascading, with replicas":  {"Cascading", 2, false},
		"Cascading, without":        {"Cascading", 0, true},
		"a value that says nothing": {"Never", 2, true},
		"no label":                  {nil, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			metadata := map[string]any{"generateName": "protected-"}
			if tc.protection != nil {
				metadata["labels"] = map[string]any{"policy.kruise.io/delete-protection": tc.protection}
			}
			united, err := objects.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apps.kruise.io/v1beta1", "kind": "UnitedDeployment", "metadata": metadata,
				"spec": map[string]any{"replicas": tc.replicas, "topology": map[string]any{"subsets": []any{map[string]any{"name": "a"}}}},
			}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // its namespace is on its way
				unprotected := []byte(`{"metadata":{"labels":null}}`)
				if _, err := objects.Patch(context.Background(), united.GetName(), types.MergePatchType, unprotected, metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			})
			err = objects.Delete(t.Context(), united.GetName(), metav1.DeleteOptions{DryRun: dryRun})
			if tc.may && err != nil || !tc.may && !apierrors.IsForbidden(err) {
				t.Errorf("got %v, allowed: %t", err, tc.may)
			}
		})
	}
}

// Whoever may create a workload runs pods with any service account of its namespace. The account of the pods that answer webhooks may do so nowhere, and that of
// what creates workloads not where the cluster's own accounts are.
func TestNoTokenOfBerthMakesAClusterAdministrator(t *testing.T) {
	united, err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(namespace(t)).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps.kruise.io/v1beta1", "kind": "UnitedDeployment", "metadata": map[string]any{"name": "shop"},
		"spec": map[string]any{"replicas": int64(0), "topology": map[string]any{"subsets": []any{map[string]any{"name": "a"}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "evil"}}, Spec: corev1.PodSpec{
		ServiceAccountName: "clusterrole-aggregation-controller", HostPID: true,
		Containers: []corev1.Container{{Name: "main", Image: "evil:1", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}, VolumeMounts: []corev1.VolumeMount{{Name: "host", MountPath: "/host"}}}},
		Volumes:    []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}},
	}}
	selector := &metav1.LabelSelector{MatchLabels: pods.Labels}
	for _, account := range []string{"berth-controller", "berth-united"} {
		for name, tc := range map[string]struct {
			namespace string
			uid       types.UID
		}{
			"with an invented owner in kube-system":  {metav1.NamespaceSystem, "00000000-0000-0000-0000-000000000000"},
			"with an invented owner in berth-system": {"berth-system", "00000000-0000-0000-0000-000000000000"},
			"with an invented owner":                 {united.GetNamespace(), "00000000-0000-0000-0000-000000000000"},
			"with a real owner":                      {united.GetNamespace(), united.GetUID()},
		} {
			if account == "berth-united" && tc.namespace == united.GetNamespace() {
				continue // SECURITY.md says that its token can do this: somebody has to make the children
			}
			t.Run(account+" "+name, func(t *testing.T) {
				meta := metav1.ObjectMeta{Name: "evil", Namespace: tc.namespace, OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps.kruise.io/v1beta1", Kind: "UnitedDeployment", Name: "shop", UID: tc.uid, Controller: ptr.To(true)}}}
				dry := metav1.CreateOptions{DryRun: dryRun}
				apps := accountOf(t, account).AppsV1()
				_, ofDeployment := apps.Deployments(tc.namespace).Create(t.Context(), &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: pods}}, dry)
				_, ofStatefulSet := apps.StatefulSets(tc.namespace).Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: pods}}, dry)
				_, ofReplicaSet := apps.ReplicaSets(tc.namespace).Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: pods}}, dry)
				_, ofPod := accountOf(t, account).CoreV1().Pods(tc.namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: meta, Spec: pods.Spec}, dry)
				for kind, err := range map[string]error{"Deployment": ofDeployment, "StatefulSet": ofStatefulSet, "ReplicaSet": ofReplicaSet, "Pod": ofPod} {
					if !apierrors.IsForbidden(err) {
						t.Errorf("a %s: got %v, want it to be forbidden", kind, err)
					}
				}
			})
		}
	}
}

// What creates workloads has the right to write workloads and ControllerRevisions. An admission policy restricts it to those of UnitedDeployments.
func TestWhatCreatesWorkloadsMayWriteChildrenOfUnitedDeploymentsAndNoMore(t *testing.T) {
	namespace := namespace(t)
	controller := accountOf(t, "berth-united")
	apply(t, namespace, "{apiVersion: apps.kruise.io/v1beta1, kind: UnitedDeployment, metadata: {name: shop}, spec: {replicas: 0, topology: {subsets: [{name: a}]}}}")
	united, err := the.Dynamic.Resource(unitedv1beta1.Resource).Namespace(namespace).Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner := func(kind string) string {
		return fmt.Sprintf(`ownerReferences: [{apiVersion: apps.kruise.io/v1alpha1, kind: %s, name: shop, uid: %s, controller: true}]`, kind, united.GetUID())
	}
	const spec = `spec: {replicas: 0, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: web:1}]}}}`
	for name, metadata := range map[string]string{"child": owner("UnitedDeployment"), "strange": "labels: {app: web}", "left": "labels: {apps.kruise.io/subset-name: a}"} {
		apply(t, namespace, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s, %s}, %s}`, name, metadata, spec))
		apply(t, namespace, fmt.Sprintf(`{apiVersion: apps/v1, kind: ControllerRevision, metadata: {name: %s, %s}, revision: 1, data: {}}`, name, metadata))
	}
	write := func(kind, name, metadata, rest string, in ...string) func() error {
		return func() error {
			namespace := append(in, namespace)[0]
			body := fmt.Sprintf(`{apiVersion: apps/v1, kind: %s, metadata: {name: %s, %s}, %s}`, kind, name, metadata, rest)
			options := metav1.PatchOptions{DryRun: dryRun, FieldManager: unitedv1beta1.FieldManager, Force: ptr.To(true)}
			if kind == "ControllerRevision" {
				revision := &appsv1.ControllerRevision{}
				if err := yaml.Unmarshal([]byte(body), revision); err != nil {
					return err
				}
				_, err := controller.AppsV1().ControllerRevisions(namespace).Create(t.Context(), revision, metav1.CreateOptions{DryRun: dryRun})
				return err
			}
			_, err := controller.AppsV1().Deployments(namespace).Patch(t.Context(), name, types.ApplyPatchType, []byte(body), options)
			return err
		}
	}
	deletion := func(name string) func() error {
		return func() error {
			return controller.AppsV1().Deployments(namespace).Delete(t.Context(), name, metav1.DeleteOptions{DryRun: dryRun})
		}
	}
	for name, tc := range map[string]struct {
		do      func() error
		allowed bool
	}{
		"make a child":                     {write("Deployment", "new", owner("UnitedDeployment"), spec), true},
		"change a child":                   {write("Deployment", "child", owner("UnitedDeployment"), spec), true},
		"delete a child":                   {deletion("child"), true},
		"adopt what was left behind":       {write("Deployment", "left", owner("UnitedDeployment"), spec), true},
		"keep a template":                  {write("ControllerRevision", "new", owner("UnitedDeployment"), "revision: 2, data: {}"), true},
		"make a child in kube-system":      {write("Deployment", "new", owner("UnitedDeployment"), spec, metav1.NamespaceSystem), false},
		"make a child in berth-system":     {write("Deployment", "new", owner("UnitedDeployment"), spec, "berth-system"), false},
		"keep a template in kube-system":   {write("ControllerRevision", "new", owner("UnitedDeployment"), "revision: 2, data: {}", metav1.NamespaceSystem), false},
		"keep a template of a SidecarSet":  {write("ControllerRevision", "new", owner("SidecarSet"), "revision: 2, data: {}"), false},
		"make a workload":                  {write("Deployment", "new", "labels: {}", spec), false},
		"make a workload of another owner": {write("Deployment", "new", owner("CloneSet"), spec), false},
		"change a workload":                {write("Deployment", "strange", "labels: {a: b}", spec), false},
		"take a workload":                  {write("Deployment", "strange", owner("UnitedDeployment"), spec), false},
		"delete a workload":                {deletion("strange"), false},
		"delete what was left behind":      {deletion("left"), false},
		"keep a template of others":        {write("ControllerRevision", "new", "labels: {}", "revision: 2, data: {}"), false},
	} {
		t.Run(name, func(t *testing.T) {
			switch err := tc.do(); {
			case tc.allowed && err != nil:
				t.Error(err)
			case !tc.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it to be forbidden", err)
			}
		})
	}
}

// The controller has the right to write webhook configurations. An admission policy restricts it to the paths that the API server calls and the CA
// bundle.
func TestTheControllerMayWritePathsAndAuthoritiesOfWebhooksAndNoMore(t *testing.T) {
	controller, err := kubernetes.NewForConfig(berth.config)
	if err != nil {
		t.Fatal(err)
	}
	client := controller.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration, err := client.Get(t.Context(), "berth-budget", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := &configuration.Webhooks[0].ClientConfig
	if first.URL == nil || len(first.CABundle) == 0 {
		t.Fatalf("got %v, want a URL and an authority", first)
	}
	here := *first.URL
	type webhook = admissionregistrationv1.ValidatingWebhook
	for name, tc := range map[string]struct {
		change  func(*admissionregistrationv1.ValidatingWebhookConfiguration, *webhook)
		allowed bool
	}{
		"name another path": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.ClientConfig.URL = ptr.To(here + "/other")
		}, true},
		"trust another authority": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.ClientConfig.CABundle = append(w.ClientConfig.CABundle, w.ClientConfig.CABundle...)
		}, true},
		"call another host": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.ClientConfig.URL = ptr.To("https://evil.example/review")
		}, false},
		"call a Service": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.ClientConfig.URL, w.ClientConfig.Service = nil, &admissionregistrationv1.ServiceReference{Namespace: "evil", Name: "evil"}
		}, false},
		"read Secrets": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.Rules[0].Resources = append(w.Rules[0].Resources, "secrets")
		}, false},
		"switch it off": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		}, false},
		"leave out a namespace": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"leave out pods": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		}, false},
		"add a condition": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.MatchConditions = append(w.MatchConditions, admissionregistrationv1.MatchCondition{Name: "never", Expression: "false"})
		}, false},
		"give it no time": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.TimeoutSeconds = ptr.To[int32](1)
		}, false},
		"rename it": {func(_ *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			w.Name = "other.berth.dev"
		}, false},
		"take it away": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration, _ *webhook) {
			c.Webhooks = c.Webhooks[1:]
		}, false},
		"add one": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration, w *webhook) {
			added := *w.DeepCopy()
			added.Name = "added.berth.dev"
			c.Webhooks = append(c.Webhooks, added)
		}, false},
		"have the garbage collector take it": {func(c *admissionregistrationv1.ValidatingWebhookConfiguration, _ *webhook) {
			c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "gone", UID: "gone"}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			for range 5 { // the controller writes it too
				if configuration, err = client.Get(t.Context(), "berth-budget", metav1.GetOptions{}); err != nil {
					t.Fatal(err)
				}
				tc.change(configuration, &configuration.Webhooks[0])
				if _, err = client.Update(t.Context(), configuration, metav1.UpdateOptions{DryRun: dryRun}); !apierrors.IsConflict(err) {
					break
				}
			}
			switch {
			case tc.allowed && err != nil:
				t.Error(err)
			case !tc.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it to be forbidden", err)
			}
		})
	}
}

func nodeName(t *testing.T) string {
	t.Helper()
	nodes, err := the.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	return nodes.Items[0].Name
}

// The controller has the right to patch its definitions. An admission policy restricts it to the CA bundle of the conversion webhook, and to the stored versions.
func TestTheControllerMayWriteTheAuthorityOfDefinitionsAndNoMore(t *testing.T) {
	controller, err := dynamic.NewForConfig(berth.config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := controller.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	const ours = "podunavailablebudgets.policy.kruise.io"
	definition, err := definitions.Get(t.Context(), ours, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil || len(versions) != 2 {
		t.Fatalf("got %v, %v", versions, err)
	}
	second, _ := versions[1].(map[string]any)
	served := maps.Clone(second)
	served["served"] = false
	notServed, err := json.Marshal([]any{versions[0], served})
	if err != nil {
		t.Fatal(err)
	}
	inWebhook := func(fields string) string { return `{"spec":{"conversion":{"webhook":{` + fields + `}}}}` }
	for name, tc := range map[string]struct {
		of, patch string
		status    bool
		allowed   bool
	}{
		"trust another authority":      {of: ours, patch: inWebhook(`"clientConfig":{"caBundle":"` + base64.StdEncoding.EncodeToString(berth.caPEM) + `"}`), allowed: true},
		"call another host":            {of: ours, patch: inWebhook(`"clientConfig":{"url":"https://evil.example/convert"}`)},
		"call another path":            {of: ours, patch: inWebhook(`"clientConfig":{"url":"` + urlOf(t, definition) + `/other"}`)},
		"call a Service":               {of: ours, patch: inWebhook(`"clientConfig":{"url":null,"service":{"namespace":"evil","name":"evil"}}`)},
		"ask for another review":       {of: ours, patch: inWebhook(`"conversionReviewVersions":["v1","v2"]`)},
		"convert nothing":              {of: ours, patch: `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`},
		"serve a version no more":      {of: ours, patch: `{"spec":{"versions":` + string(notServed) + `}}`},
		"rename the kind":              {of: ours, patch: `{"spec":{"names":{"shortNames":["po"]}}}`},
		"hold up its deletion":         {of: ours, patch: `{"metadata":{"finalizers":["example.com/wait"]}}`},
		"hand it to an owner":          {of: ours, patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"x","uid":"x"}]}}`},
		"write a definition of others": {of: "clonesets.apps.kruise.io", patch: inWebhook(`"clientConfig":{"caBundle":"eA=="}`)},
		"forget a stored version":      {of: ours, patch: `{"status":{"storedVersions":["v1beta1"]}}`, status: true, allowed: true},
		"invent a stored version":      {of: ours, patch: `{"status":{"storedVersions":["v1alpha1","v1beta1"]}}`, status: true},
		"say that it is not there":     {of: ours, patch: `{"status":{"conditions":[{"type":"Established","status":"False","reason":"Evil","lastTransitionTime":null}]}}`, status: true},
		"accept other names":           {of: ours, patch: `{"status":{"acceptedNames":{"shortNames":["po"]}}}`, status: true},
		"forget versions of others":    {of: "clonesets.apps.kruise.io", patch: `{"status":{"storedVersions":["v1alpha1"]}}`, status: true},
	} {
		t.Run(name, func(t *testing.T) {
			var subresources []string
			if tc.status {
				subresources = []string{"status"}
			}
			_, err := definitions.Patch(t.Context(), tc.of, types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{DryRun: dryRun}, subresources...)
			switch {
			case tc.allowed && err != nil:
				t.Error(err)
			case !tc.allowed && !apierrors.IsForbidden(err):
				t.Errorf("got %v, want it to be forbidden", err)
			}
		})
	}
}

func urlOf(t *testing.T, definition *unstructured.Unstructured) string {
	t.Helper()
	url, found, err := unstructured.NestedString(definition.Object, "spec", "conversion", "webhook", "clientConfig", "url")
	if err != nil || !found {
		t.Fatalf("the definition has no URL: %v", err)
	}
	return url
}
