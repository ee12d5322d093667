package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/test/testkit"
)

// kruiseManager is OpenKruise's Deployment with these arguments, whose rollout is over.
func kruiseManager(args ...string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: kruiseNamespace, Name: kruiseDeployment}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
		Status: appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "manager", Args: args}}
	return d
}

func TestMigrateGates(t *testing.T) {
	const off = "--feature-gates=WorkloadSpread=false,PodUnavailableBudgetDeleteGate=false"
	underWay := kruiseManager(off)
	underWay.Status.UpdatedReplicas = 1
	for name, tc := range map[string]struct {
		deployment *appsv1.Deployment
		// want is a part of what is left to do, empty if nothing is.
		want string
	}{
		"OpenKruise is not there":      {nil, ""},
		"the defaults":                 {kruiseManager(), `featureGates="PodUnavailableBudgetDeleteGate=false\,WorkloadSpread=false"`},
		"other gates stay":             {kruiseManager("--v=2", "--feature-gates=A=true,WorkloadSpread=true,B=false"), `featureGates="A=true\,WorkloadSpread=false\,B=false\,PodUnavailableBudgetDeleteGate=false"`},
		"a gate that is off elsewhere": {kruiseManager("--feature-gates=PodUnavailableBudgetUpdateGate=true"), `"PodUnavailableBudgetUpdateGate=false\,PodUnavailableBudgetDeleteGate=false\,WorkloadSpread=false"`},
		"all are off":                  {kruiseManager(off), ""},
		"old pods run":                 {underWay, "rollout status"},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.deployment != nil {
				objects = append(objects, tc.deployment)
			}
			got, err := (&migrateCommand{cluster: clusterOf(t, objects...)}).checkGates(t.Context())
			if err != nil || !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// TestMigrate goes from OpenKruise to Berth on a fake API server. test/integration does it on a real one, and goes
// back.
func TestMigrate(t *testing.T) {
	objects := installed(t)
	objects = slices.DeleteFunc(objects, func(object client.Object) bool {
		_, is := object.(*appsv1.Deployment)
		return is || object.GetName() == endpoint.UnitedDefinition
	})
	for _, object := range objects[:2] {
		definition := object.(*apiextensionsv1.CustomResourceDefinition)
		schema := definition.Spec.Versions[1].Schema.OpenAPIV3Schema.Properties
		delete(schema["spec"].Properties, "scheduleStrategy")
		delete(schema["status"].Properties, "ledger")
		definition.Spec.Versions[0].Storage, definition.Spec.Versions[1].Storage = true, false
	}
	entry := func(name, resource string) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{Name: name, Rules: []admissionregistrationv1.RuleWithOperations{{Rule: admissionregistrationv1.Rule{Resources: []string{resource}}}}}
	}
	const template = `[{"name":"vpod.kb.io","rules":[{"resources":["pods"]}]},{"name":"vworkloadspread.kb.io","rules":[{"resources":["workloadspreads"]}]}]`
	waiting := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Annotations: map[string]string{"apps.kruise.io/matched-workloadspread": "{}"}}}
	bare := waiting.DeepCopy() // nobody would make it again
	bare.Name = "web-0"
	waiting.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: ptr.To(true)}}
	gated := waiting.DeepCopy() // it waits for somebody else
	gated.Name, gated.Spec.SchedulingGates = "web-1-gated", []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
	united := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: endpoint.UnitedDefinition}} // OpenKruise's
	united.Spec.Group, united.Spec.Versions = "apps.kruise.io", []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1", Served: true, Storage: true}}
	running := waiting.DeepCopy()
	running.Name, running.Spec.NodeName = "web-2", "node-1"
	picked := waiting.DeepCopy() // by Berth, for a spread that is compatible with OpenKruise
	picked.Name, picked.Annotations[v1beta1.AdmittedAnnotation] = "web-3", `{"name":"web","subset":"a","pick":"p"}`
	objects = append(objects, bare, gated, united, waiting, running, picked, kruiseManager("--feature-gates=WorkloadSpread=false,PodUnavailableBudgetDeleteGate=false"), testkit.Spread(t, twoThenAny, "{}"),
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: kruiseWebhooks, Annotations: map[string]string{kruiseTemplate: template}},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{entry("vpod.kb.io", "pods"), entry("vworkloadspread.kb.io", "workloadspreads"), entry("vpodunavailablebudget.kb.io", "podunavailablebudgets")}})
	cluster := clusterOf(t, objects...)
	backup := t.TempDir() + "/copies"
	run := func(c migrateCommand) (string, error) {
		var out bytes.Buffer
		c.out, c.backup = &out, backup
		err := c.run(t.Context(), cluster, nil)
		return strings.Join(strings.Fields(out.String()), " "), err
	}
	state := func() string {
		t.Helper()
		var text strings.Builder
		for _, object := range objects[:2] {
			definition := &apiextensionsv1.CustomResourceDefinition{}
			if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(object), definition); err != nil {
				t.Fatal(err)
			}
			for _, version := range definition.Spec.Versions {
				fmt.Fprintf(&text, "%s %t %t, ", version.Name, version.Served, version.Storage)
			}
			fmt.Fprintf(&text, "Berth's %t; ", isBerths(definition))
		}
		configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := cluster.Get(t.Context(), client.ObjectKey{Name: kruiseWebhooks}, configuration); err != nil {
			t.Fatal(err)
		}
		for i := range configuration.Webhooks {
			text.WriteString(configuration.Webhooks[i].Name + " ")
		}
		fmt.Fprintf(&text, "template %d", strings.Count(configuration.Annotations[kruiseTemplate], `"name"`))
		return text.String()
	}
	const old, berths = "v1alpha1 true true, v1beta1 true false, Berth's false; ", "v1alpha0 false false, v1alpha1 true false, v1beta1 true true, Berth's true; "
	const before, after = old + old + "vpod.kb.io vworkloadspread.kb.io vpodunavailablebudget.kb.io template 2", berths + berths + "vpod.kb.io template 1"
	var exit *console.ExitError
	for _, dryRun := range []string{dryRunClient, dryRunServer} {
		if out, err := run(migrateCommand{dryRun: dryRun}); !errors.As(err, &exit) || !strings.Contains(out, "save needed") || !strings.Contains(out, "webhooks needed") || state() != before {
			t.Errorf("%s dry run: %v, printed %s\n%s", dryRun, err, out, state())
		}
		if _, err := os.Stat(backup); err == nil {
			t.Errorf("the %s dry run wrote copies", dryRun)
		}
	}
	for _, again := range []bool{false, true} {
		out, err := run(migrateCommand{})
		if err != nil || strings.Contains(out, "definitions done nothing to do") != again || !strings.HasSuffix(out, "All steps are done.") || state() != after {
			t.Errorf("again %t: %v, printed %s\n%s", again, err, out, state())
		}
	}
	var pods corev1.PodList
	if err := cluster.List(t.Context(), &pods); err != nil || len(pods.Items) != 4 || pods.Items[0].Name != "web-0" || pods.Items[1].Name != "web-1-gated" || pods.Items[2].Name != "web-2" || pods.Items[3].Name != "web-3" {
		t.Errorf("pods: %v, %v", pods.Items, err)
	}
	first := backup
	backup = t.TempDir()
	if _, err := run(migrateCommand{}); err == nil || !strings.Contains(err.Error(), "the migration has begun") {
		t.Errorf("with another directory: %v", err)
	}
	backup = first
	if copied, err := os.ReadFile(backup + "/deployment.yaml"); err != nil || !strings.Contains(string(copied), "feature-gates=") || strings.Contains(string(copied), "resourceVersion: ") {
		t.Errorf("the copy of the Deployment: %v\n%s", err, copied)
	}
	copied, err := os.ReadFile(backup + "/definitions.yaml")
	if err != nil || strings.Count(string(copied), "kind: CustomResourceDefinition") != len(endpoint.Definitions) || strings.Contains(string(copied), unserved) {
		t.Errorf("the copies of OpenKruise's definitions: %v\n%s", err, copied)
	}
	is := &apiextensionsv1.CustomResourceDefinition{}
	if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(united), is); err != nil || len(is.Spec.Versions) != 1 || is.Spec.Conversion != nil {
		t.Errorf("the definition of UnitedDeployments, which stays OpenKruise's: %v, %+v", err, is.Spec)
	}
}

func TestMigrateTakesDryRunAsKubectlDoes(t *testing.T) {
	for args, want := range map[string]string{"": "--backup=", "--dry-run=none": "--backup=", "--dry-run=client": "", "--dry-run server": "", "--dry-run": "needs an argument", "--dry-run=true": "--dry-run=true: it must be"} {
		cmd := newMigrate(nil, genericiooptions.NewTestIOStreamsDiscard())
		err := cmd.ParseFlags(append([]string{"--from=kruise"}, strings.Fields(args)...))
		if err == nil {
			err = cmd.PreRunE(cmd, nil)
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// The program writes the definitions of its own version, so it must be that of Berth.
func TestMigrateWithAnotherVersion(t *testing.T) {
	for own, want := range map[string]string{"v0.2.0": "", "": "", "v0.3.0": "take kubectl berth of v0.2.0", "v0.1.0": "would write the definitions of v0.1.0"} {
		err := (&migrateCommand{cluster: clusterOf(t, installed(t)...)}).ofVersion(t.Context(), own)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", own, err)
		}
	}
}

func TestMigrateFromNothing(t *testing.T) {
	root := NewCommand(genericiooptions.NewTestIOStreamsDiscard())
	root.SetArgs([]string{"migrate"})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "it must be kruise") {
		t.Errorf("got %v", err)
	}
	for _, args := range [][]string{{"--backup=copies"}, {}, {"--dry-run=none"}} {
		root := NewCommand(genericiooptions.NewTestIOStreamsDiscard())
		root.SetArgs(append([]string{"migrate", "--from=kruise"}, args...))
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "it must be an absolute path") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
