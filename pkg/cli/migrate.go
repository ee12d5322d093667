package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/internal/version"
	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
)

const (
	kruiseNamespace  = "kruise-system"
	kruiseDeployment = "kruise-controller-manager"
	kruiseWebhooks   = "kruise-validating-webhook-configuration"
	// kruiseTemplate is an annotation of kruiseWebhooks. OpenKruise writes the webhooks again from it.
	kruiseTemplate = "template"
	// fieldOwner owns the definitions.
	fieldOwner = "kubectl-berth"
)

// kruiseGates are OpenKruise's feature gates for the two kinds. The last one is off by default.
var kruiseGates = []string{"PodUnavailableBudgetDeleteGate", "WorkloadSpread", "PodUnavailableBudgetUpdateGate"}

// migrateCommand is "kubectl berth migrate".
type migrateCommand struct {
	out          io.Writer
	from, backup string
	// dryRun is as with kubectl: none or empty, client to send no write, or server to have the API server try each.
	dryRun  string
	cluster *console.Cluster
	writer  client.Client
}

const dryRunClient, dryRunServer = "client", "server"

func (c *migrateCommand) isDry() bool { return c.dryRun == dryRunClient || c.dryRun == dryRunServer }

// stage is one step of a migration. A step that is done is not done again, so that the command can be repeated at any
// time.
type stage struct {
	name string
	// check returns what is still to do, empty if nothing is.
	check func(context.Context) (needed string, err error)
	// do does it. Nil for a step that only the user can do; check says how.
	do func(context.Context) error
}

func newMigrate(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &migrateCommand{out: streams.Out}
	cmd := &cobra.Command{
		Use:   "migrate --from kruise",
		Short: "Take over WorkloadSpreads and PodUnavailableBudgets from OpenKruise",
		Long: `Take over WorkloadSpreads and PodUnavailableBudgets from OpenKruise, step by step. Run it again after each step that it asks you to do, and after an error: it
goes on where it stopped. Meanwhile both are active, and each budget and quota holds in the stricter of the two ways. With --dry-run=client it changes
nothing, and with --dry-run=server the API server tries the steps before the first one that is yours. If a step is left to do, the exit code is 1.

It never changes OpenKruise's Deployment, which belongs to its chart, and it does not install Berth. It says which commands do that. The way back is in docs/migration.md.`,
		Example: `  kubectl berth migrate --from kruise --dry-run=client
  kubectl berth migrate --from kruise --backup $HOME/before-berth`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if c.from != "kruise" {
				return fmt.Errorf("--from=%s: it must be kruise", c.from)
			}
			if c.dryRun != "none" && !c.isDry() {
				return fmt.Errorf("--dry-run=%s: it must be none, server or client", c.dryRun)
			}
			if !filepath.IsAbs(c.backup) && !c.isDry() {
				return fmt.Errorf("--backup=%s: it must be an absolute path, so that each run finds the copies of the first one", c.backup)
			}
			return nil
		},
		RunE: console.OnCluster(flags, c.run),
	}
	cmd.Flags().StringVar(&c.from, "from", "", "What to migrate from: kruise.")
	cmd.Flags().StringVar(&c.backup, "backup", "", "Absolute path of a directory for copies of everything that the command changes. A dry run needs none.")
	cmd.Flags().StringVar(&c.dryRun, "dry-run", "none", `Must be "none", "server" (the API server tries each write) or "client" (no write is sent).`)
	return cmd
}

func (c *migrateCommand) run(ctx context.Context, cluster *console.Cluster, _ []string) error {
	if c.cluster, c.writer = cluster, cluster; c.dryRun == dryRunServer {
		c.writer = client.NewDryRunClient(cluster)
	}
	left, yours := false, false
	for _, s := range []stage{
		{"save", c.checkSaved, c.save},
		{"install", c.checkInstalled, nil},
		{"definitions", c.checkOwned, c.own},
		{"webhooks", c.checkEntries, c.removeEntries},
		{"gates", c.checkGates, nil},
		{"pods", c.checkPods, c.deletePods},
	} {
		needed, err := s.check(ctx)
		if err != nil {
			return fmt.Errorf("step %s: %w", s.name, err)
		}
		todo := needed != ""
		yours = yours || todo && s.do == nil
		if todo && !yours && c.dryRun != dryRunClient {
			// OpenKruise and Berth write the same objects meanwhile.
			if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return s.do(ctx) }); err != nil {
				return fmt.Errorf("step %s: %w", s.name, err)
			}
		}
		result := "done"
		switch {
		case !todo:
			needed = "nothing to do"
		case c.isDry():
			result = "needed"
		case yours:
			result = "yours"
		}
		if _, err := fmt.Fprintf(c.out, "%-12s %-7s %s\n", s.name, result, needed); err != nil {
			return err
		}
		left = left || result != "done"
		if left && !c.isDry() {
			break
		}
	}
	if left {
		return &console.ExitError{Code: 1}
	}
	_, err := fmt.Fprintln(c.out, "All steps are done.")
	return err
}

func (c *migrateCommand) file(name string) string { return filepath.Join(c.backup, name+".yaml") }

// read returns an object of the cluster. It is nil if there is none.
func (c *migrateCommand) read(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	err := c.cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return object, err
}

var (
	definitionKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	webhookKind    = admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration")
	deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment")
)

// definitions are those of the two kinds, as far as they exist.
func (c *migrateCommand) definitions(ctx context.Context) (all []*apiextensionsv1.CustomResourceDefinition, _ error) {
	for _, name := range endpoint.Definitions {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		err := c.cluster.Get(ctx, client.ObjectKey{Name: name}, definition)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if err == nil && len(definition.Spec.Versions) > 0 {
			all = append(all, definition)
		}
	}
	return all, nil
}

func (c *migrateCommand) checkSaved(ctx context.Context) (string, error) {
	if _, err := os.Stat(c.file("definitions")); c.backup != "" && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	definitions, err := c.definitions(ctx)
	for _, definition := range definitions {
		if !c.isDry() && definition.Spec.Versions[0].Name == unserved {
			return "", fmt.Errorf("--backup %s has no copies, and the migration has begun: name the directory that its first run has written", c.backup)
		}
	}
	return strings.TrimSuffix("copies of the spreads, the budgets and all that the next steps change, in "+c.backup, ", in "), err
}

// save writes the definitions last: checkSaved looks for them.
func (c *migrateCommand) save(ctx context.Context) error {
	if c.isDry() { // the copies are files
		return nil
	}
	if err := os.MkdirAll(c.backup, 0o750); err != nil {
		return err
	}
	for _, of := range []struct {
		file      string
		kind      schema.GroupVersionKind
		namespace string
		// names of the objects. Nil means all.
		names []string
	}{
		{"workloadspreads", v1beta1.Kind.GroupKind().WithVersion("v1alpha1"), "", nil}, // which is in every version of OpenKruise
		{"podunavailablebudgets", policyv1beta1.Kind.GroupKind().WithVersion("v1alpha1"), "", nil},
		{"deployment", deploymentKind, kruiseNamespace, []string{kruiseDeployment}},
		{"webhooks", webhookKind, "", []string{kruiseWebhooks}},
		{"definitions", definitionKind, "", endpoint.Definitions},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(of.kind)
		if of.names == nil {
			if err := c.cluster.List(ctx, list); err != nil {
				return err
			}
		}
		for _, name := range of.names {
			object, err := c.read(ctx, of.kind, of.namespace, name)
			if err != nil {
				return err
			}
			if object != nil {
				list.Items = append(list.Items, *object)
			}
		}
		for i := range list.Items {
			for _, field := range []string{"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"} {
				unstructured.RemoveNestedField(list.Items[i].Object, "metadata", field)
			}
		}
		list.Object = map[string]any{"apiVersion": "v1", "kind": "List"}
		content, err := yaml.Marshal(list)
		if err == nil {
			err = os.WriteFile(c.file(of.file), content, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// berthsClient is how the API server reaches the webhook of Berth. It is nil if Berth does not run.
func (c *migrateCommand) berthsClient(ctx context.Context) (*admissionregistrationv1.WebhookClientConfig, error) {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := c.cluster.Get(ctx, client.ObjectKey{Name: endpoint.Configurations[0]}, configuration); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	for _, webhook := range endpoint.WebhooksOf(configuration) {
		if len(webhook.Client.CABundle) > 0 && webhook.Path() != "" {
			return webhook.Client, nil
		}
	}
	return nil, nil
}

func (c *migrateCommand) checkInstalled(ctx context.Context) (string, error) {
	berths, err := c.berthsClient(ctx)
	if err == nil && berths != nil {
		own, _ := version.OfTag(version.Get())
		err = c.ofVersion(ctx, own)
	}
	if err != nil || berths != nil {
		return "", err
	}
	return "install Berth, with migrateFrom=kruise if you use the chart, and wait until berth-controller is ready (docs/install.md)", nil
}

// ofVersion is an error if Berth runs in another version than this program, whose definitions the next step writes. An
// empty version is that of a build from a checkout.
func (c *migrateCommand) ofVersion(ctx context.Context, own string) error {
	var running installedVersions
	running.readComponents(ctx, c.cluster)
	for _, component := range running.Components {
		if release, _ := version.OfTag(component.Version); own != "" && release != "" && release != own {
			return fmt.Errorf("%s is of version %s, and this program would write the definitions of %s: take kubectl berth of %s", component.Name, release, own, release)
		}
	}
	return nil
}

// unserved is the first version of Berth's definitions after a migration. Nobody can use it. kruise-manager writes its
// own conversion into every definition whose first version it knows, which would make OpenKruise convert, and drop the
// fields that only Berth has.
const unserved = "v1alpha0"

func (c *migrateCommand) checkOwned(ctx context.Context) (string, error) {
	definitions, err := c.definitions(ctx)
	if err != nil || len(definitions) == len(endpoint.Definitions) && !slices.ContainsFunc(definitions, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		return !isBerths(d) || !endpoint.Converts(d) || d.Spec.Versions[0].Name != unserved
	}) {
		return "", err
	}
	return "the definitions become Berth's, and Berth converts their objects", nil
}

// own replaces the spec of the definitions, or creates them.
func (c *migrateCommand) own(ctx context.Context) error {
	berths, err := c.berthsClient(ctx)
	if err != nil || berths == nil {
		return errors.Join(err, errors.New("berth-webhook has no CA bundle any more: see whether berth-controller runs"))
	}
	for _, content := range manifests.CRDs() {
		wanted := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, wanted); err != nil {
			return err
		}
		if !slices.Contains(endpoint.Definitions, wanted.GetName()) { // UnitedDeployments may stay with OpenKruise
			continue
		}
		path := []string{"spec", "conversion", "webhook", "clientConfig"}
		if berths.URL != nil {
			server, err := url.Parse(*berths.URL)
			if err != nil {
				return err
			}
			server.Path = endpoint.Conversion
			unstructured.RemoveNestedField(wanted.Object, append(path, "service")...)
			_ = unstructured.SetNestedField(wanted.Object, server.String(), append(path, "url")...) // the manifest has the maps above it
		}
		_ = unstructured.SetNestedField(wanted.Object, base64.StdEncoding.EncodeToString(berths.CABundle), append(path, "caBundle")...)
		all, _, _ := unstructured.NestedSlice(wanted.Object, "spec", "versions")
		first := map[string]any{"name": unserved, "served": false, "storage": false, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}
		_ = unstructured.SetNestedSlice(wanted.Object, append([]any{first}, all...), "spec", "versions")
		live, err := c.read(ctx, definitionKind, "", wanted.GetName())
		switch {
		case err != nil:
		case live == nil:
			err = c.writer.Create(ctx, wanted, client.FieldOwner(fieldOwner))
		default:
			live.Object["spec"] = wanted.Object["spec"]
			annotations := map[string]string{}
			maps.Copy(annotations, live.GetAnnotations())
			maps.Copy(annotations, wanted.GetAnnotations())
			live.SetAnnotations(annotations)
			err = c.writer.Update(ctx, live, client.FieldOwner(fieldOwner))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isEntry is true for a webhook that is called about the two kinds and no other.
func isEntry(webhook any) bool {
	rules, _, _ := unstructured.NestedSlice(webhook.(map[string]any), "rules")
	for _, rule := range rules {
		resources, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resources")
		for _, resource := range resources {
			name, _, _ := strings.Cut(resource, "/")
			if name != "workloadspreads" && name != "podunavailablebudgets" {
				return false
			}
		}
	}
	return len(rules) > 0
}

// entries are the webhooks of OpenKruise's configuration, which is nil if there is none, and of the template from which
// kruise-manager writes them again.
func (c *migrateCommand) entries(ctx context.Context) (live *unstructured.Unstructured, webhooks, template []any, err error) {
	if live, err = c.read(ctx, webhookKind, "", kruiseWebhooks); err != nil || live == nil {
		return nil, nil, nil, err
	}
	webhooks, _, _ = unstructured.NestedSlice(live.Object, "webhooks")
	if text := live.GetAnnotations()[kruiseTemplate]; text != "" {
		if err = json.Unmarshal([]byte(text), &template); err != nil {
			err = fmt.Errorf("reading annotation %s of %s: %w", kruiseTemplate, kruiseWebhooks, err)
		}
	}
	return live, webhooks, template, err
}

func (c *migrateCommand) checkEntries(ctx context.Context) (string, error) {
	_, webhooks, template, err := c.entries(ctx)
	if err != nil || !slices.ContainsFunc(append(webhooks, template...), isEntry) {
		return "", err
	}
	return "OpenKruise does not check spreads and budgets any more: their entries leave " + kruiseWebhooks + " and its template", nil
}

// removeEntries removes the entries of the two kinds. A copy of them was saved.
func (c *migrateCommand) removeEntries(ctx context.Context) error {
	live, webhooks, template, err := c.entries(ctx)
	if err != nil || live == nil {
		return err
	}
	_ = unstructured.SetNestedSlice(live.Object, slices.DeleteFunc(webhooks, isEntry), "webhooks") // a configuration is a map
	if annotations := live.GetAnnotations(); annotations[kruiseTemplate] != "" {
		content, err := json.Marshal(slices.DeleteFunc(template, isEntry))
		if err != nil {
			return err
		}
		annotations[kruiseTemplate] = string(content)
		live.SetAnnotations(annotations)
	}
	return c.writer.Update(ctx, live, client.FieldOwner(fieldOwner))
}

const gatesFlag = "--feature-gates="

func (c *migrateCommand) checkGates(ctx context.Context) (string, error) {
	deployment := &appsv1.Deployment{}
	if err := c.cluster.Get(ctx, client.ObjectKey{Namespace: kruiseNamespace, Name: kruiseDeployment}, deployment); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	var gates []string
	for i := range deployment.Spec.Template.Spec.Containers {
		for _, argument := range deployment.Spec.Template.Spec.Containers[i].Args {
			if text, is := strings.CutPrefix(argument, gatesFlag); is && text != "" {
				gates = append(gates, strings.Split(text, ",")...)
			}
		}
	}
	on := false
	for i, gate := range kruiseGates {
		at := slices.IndexFunc(gates, func(set string) bool { return strings.HasPrefix(set, gate+"=") })
		switch off := gate + "=false"; {
		case at < 0 && i < len(kruiseGates)-1:
			on, gates = true, append(gates, off)
		case at >= 0 && gates[at] != off:
			on, gates[at] = true, off
		}
	}
	if on {
		return fmt.Sprintf(`set the feature gates of OpenKruise, with the VERSION of its chart that runs (helm list -A --filter kruise): helm upgrade kruise openkruise/kruise --version VERSION --reuse-values --set featureGates="%s"`,
			strings.Join(gates, `\,`)), nil
	}
	status, replicas := deployment.Status, ptr.Deref(deployment.Spec.Replicas, 1)
	if status.ObservedGeneration < deployment.Generation || status.Replicas != status.UpdatedReplicas || status.UpdatedReplicas < replicas {
		return fmt.Sprintf("wait until all pods of OpenKruise have the new gates: kubectl -n %s rollout status deployment %s", kruiseNamespace, kruiseDeployment), nil
	}
	return "", nil
}

// waiting are the pods without a node that OpenKruise's admission has changed so that they may wait forever.
func (c *migrateCommand) waiting(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.cluster.List(ctx, &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		// In a spread that is compatible with OpenKruise, Berth writes the record at admission too, beside its pick.
		theirs := pod.Annotations[v1beta1.MatchedAnnotation] != "" && pod.Annotations[v1beta1.AdmittedAnnotation] == ""
		// Nobody would make a pod without a controller again, and a gate of somebody else keeps a pod from any node.
		again := metav1.GetControllerOf(&pod) != nil && !slices.ContainsFunc(pod.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name != v1beta1.SubsetGate })
		return !theirs || !again || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil
	}), nil
}

func (c *migrateCommand) checkPods(ctx context.Context) (string, error) {
	pods, err := c.waiting(ctx)
	if err != nil || len(pods) == 0 {
		return "", err
	}
	return fmt.Sprintf("%s without a node are deleted, and their workloads create them again", count(len(pods), "pod")), nil
}

// deletePods deletes no pod that has got a node meanwhile.
func (c *migrateCommand) deletePods(ctx context.Context) error {
	pods, err := c.waiting(ctx)
	for i := range pods {
		pod := &pods[i]
		if gone := c.writer.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}); !apierrors.IsConflict(gone) && client.IgnoreNotFound(gone) != nil {
			err = errors.Join(err, gone)
		}
	}
	return err
}
