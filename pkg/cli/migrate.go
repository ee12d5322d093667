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
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/version"
)

const (
	kruiseNamespace  = "kruise-system"
	kruiseDeployment = "kruise-controller-manager"
	kruiseWebhooks   = "kruise-validating-webhook-configuration"
	// kruiseTemplate is an annotation of kruiseWebhooks. OpenKruise writes the webhooks again from it.
	kruiseTemplate = "template"
	// fieldOwner owns the definitions.
	fieldOwner = "kubectl-berth"
	// storageTimeout is how long berth-controller may take to have all objects stored in another version.
	storageTimeout = 5 * time.Minute
)

// kruiseGates are OpenKruise's feature gates for the two kinds, with their defaults.
var kruiseGates = map[string]string{"WorkloadSpread": "true", "PodUnavailableBudgetDeleteGate": "true", "PodUnavailableBudgetUpdateGate": "false"}

// migrateCommand is "kubectl berth migrate".
type migrateCommand struct {
	out          io.Writer
	from, backup string
	dryRun, undo bool
	cluster      *console.Cluster
}

// stage is one step of a migration. A step that is done is not done again, so that the command can be repeated at any time.
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
		Short: "Take over WorkloadSpreads and PodUnavailableBudgets from OpenKruise, or give them back",
		Long: `Take over WorkloadSpreads and PodUnavailableBudgets from OpenKruise, step by step, or give them back with --undo. Run it again after each step that it asks
you to do, and after an error: it goes on where it stopped. While you switch from one to the other, both are active for a while, and each budget and
quota holds in the stricter of the two ways. With --dry-run it changes nothing. If a step is left to do, the exit code is 1.

It never changes OpenKruise's Deployment, which belongs to its chart, and neither installs nor removes Berth. It says which commands do that.`,
		Example: `  kubectl berth migrate --from kruise --dry-run
  kubectl berth migrate --from kruise --backup $HOME/before-berth
  kubectl berth migrate --from kruise --backup $HOME/before-berth --undo`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if c.from != "kruise" {
				return fmt.Errorf("--from=%s: it must be kruise", c.from)
			}
			if !filepath.IsAbs(c.backup) && !c.dryRun {
				return fmt.Errorf("--backup=%s: it must be an absolute path, so that each run finds the copies of the first one", c.backup)
			}
			return nil
		},
		RunE: console.OnCluster(flags, c.run),
	}
	cmd.Flags().StringVar(&c.from, "from", "", "What to migrate from: kruise.")
	cmd.Flags().StringVar(&c.backup, "backup", "", "Absolute path of a directory for copies of everything that the command changes. --undo reads it. --dry-run needs none.")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "Say what is left to do, and change nothing.")
	cmd.Flags().BoolVar(&c.undo, "undo", false, "Go back to OpenKruise.")
	return cmd
}

func (c *migrateCommand) run(ctx context.Context, cluster *console.Cluster, _ []string) error {
	c.cluster = cluster
	steps := []stage{
		{"save", c.checkSaved, c.save},
		{"install", c.checkInstalled, nil},
		{"definitions", c.checkOwned, c.own},
		{"paths", c.checkPaths, c.writePaths},
		{"webhooks", c.checkEntries, c.writeEntries},
		{"gates", c.checkGates, nil},
		{"pods", c.checkPods, c.deletePods},
	}
	if c.undo {
		if _, err := os.Stat(c.file("definitions")); err != nil {
			return fmt.Errorf("--backup %s has no copies of a migration, so nothing can be given back: name the directory of the migration (%w)", c.backup, err)
		}
		steps = []stage{
			{"gates", c.checkGates, nil},
			{"webhooks", c.checkEntries, c.writeEntries},
			{"storage", c.checkStoredAsBefore, c.storeAsBefore},
			{"remove", c.checkRemoved, nil},
			{"definitions", c.checkRestored, c.restore},
			{"pods", c.checkPods, c.deletePods},
		}
	}
	left := false
	for _, s := range steps {
		needed, err := s.check(ctx)
		if err != nil {
			return fmt.Errorf("step %s: %w", s.name, err)
		}
		result := "done"
		switch {
		case needed == "":
			needed = "nothing to do"
		case c.dryRun:
			result = "needed"
		case s.do == nil:
			result = "yours"
		default:
			// OpenKruise and Berth write the same objects meanwhile.
			if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { return s.do(ctx) }); err != nil {
				return fmt.Errorf("step %s: %w", s.name, err)
			}
		}
		if _, err := fmt.Fprintf(c.out, "%-12s %-7s %s\n", s.name, result, needed); err != nil {
			return err
		}
		left = left || result != "done"
		if left && !c.dryRun {
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

func (c *migrateCommand) checkSaved(ctx context.Context) (string, error) {
	if _, err := os.Stat(c.file("definitions")); c.backup != "" && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, name := range endpoint.Definitions {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.cluster.Get(ctx, client.ObjectKey{Name: name}, definition); client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if !c.dryRun && len(definition.Spec.Versions) > 0 && definition.Spec.Versions[0].Name == unserved {
			return "", fmt.Errorf("--backup %s has no copies, and the migration has begun: name the directory that its first run has written", c.backup)
		}
	}
	return strings.TrimSuffix("copies of the spreads, the budgets and all that the next steps change, in "+c.backup, ", in "), nil
}

// save writes the definitions last: checkSaved looks for them.
func (c *migrateCommand) save(ctx context.Context) error {
	if err := os.MkdirAll(c.backup, 0o750); err != nil {
		return err
	}
	saved := map[string][]unstructured.Unstructured{}
	for _, one := range []struct {
		file string
		gvk  schema.GroupVersionKind
		ns   string
		name []string
	}{{"webhooks", webhookKind, "", []string{kruiseWebhooks}}, {"deployment", deploymentKind, kruiseNamespace, []string{kruiseDeployment}}, {"definitions", definitionKind, "", endpoint.Definitions}} {
		for _, name := range one.name {
			object, err := c.read(ctx, one.gvk, one.ns, name)
			if err != nil {
				return err
			}
			if object != nil {
				saved[one.file] = append(saved[one.file], *object)
			}
		}
	}
	for _, gvk := range versions.All() {
		file := strings.ToLower(gvk.Kind) + "s"
		kept := slices.ContainsFunc(endpoint.Definitions, func(name string) bool { return strings.HasPrefix(name, file+".") })
		if gvk.Version == v1beta1.GroupVersion.Version || !kept { // v1alpha1 is in every version of OpenKruise
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		if err := c.cluster.List(ctx, list); err != nil {
			return err
		}
		saved[file] = list.Items
	}
	for _, name := range []string{"workloadspreads", "podunavailablebudgets", "deployment", "webhooks", "definitions"} {
		for i := range saved[name] {
			for _, field := range []string{"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"} {
				unstructured.RemoveNestedField(saved[name][i].Object, "metadata", field)
			}
		}
		content, err := yaml.Marshal(&unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}, Items: saved[name]})
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// saved returns a copy by the name of its object. It is nil if there was none.
func (c *migrateCommand) saved(file, name string) (*unstructured.Unstructured, error) {
	content, err := os.ReadFile(c.file(file))
	if err != nil {
		return nil, err
	}
	list := &unstructured.UnstructuredList{}
	if err := yaml.Unmarshal(content, list); err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.file(file), err)
	}
	for i := range list.Items {
		if list.Items[i].GetName() == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
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
		err = c.ofThisVersion(ctx)
	}
	if err != nil || berths != nil {
		return "", err
	}
	return "install Berth, with migrateFrom=kruise if you use the chart, and wait until berth-controller is ready (docs/install.md)", nil
}

// ofThisVersion is an error if Berth runs in another version than this program, whose definitions the next step writes.
func (c *migrateCommand) ofThisVersion(ctx context.Context) error {
	own, _ := version.OfTag(version.Get())
	var running Versions
	running.readComponents(ctx, c.cluster)
	for _, component := range running.Components {
		if release, _ := version.OfTag(component.Version); own != "" && release != "" && release != own {
			return fmt.Errorf("%s is of version %s, and this program would write the definitions of %s: take kubectl berth of %s", component.Name, release, own, release)
		}
	}
	return nil
}

// unserved is the first version of Berth's definitions after a migration. Nobody can use it. kruise-manager writes its own conversion into every definition
// whose first version it knows, which would make OpenKruise convert, and drop the fields that only Berth has.
const unserved = "v1alpha0"

func (c *migrateCommand) checkOwned(ctx context.Context) (string, error) {
	for _, name := range endpoint.Definitions {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.cluster.Get(ctx, client.ObjectKey{Name: name}, definition); client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if !isBerths(definition) || !endpoint.Converts(definition) || definition.Spec.Versions[0].Name != unserved {
			return "the definitions become Berth's, and Berth converts their objects", nil
		}
	}
	return "", nil
}

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
		if err := c.put(ctx, wanted, func(live *unstructured.Unstructured) {
			annotations := live.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			maps.Copy(annotations, wanted.GetAnnotations())
			live.SetAnnotations(annotations)
		}); err != nil {
			return err
		}
	}
	return nil
}

// put replaces the spec of a definition, or creates the definition.
func (c *migrateCommand) put(ctx context.Context, wanted *unstructured.Unstructured, change func(live *unstructured.Unstructured)) error {
	live, err := c.read(ctx, definitionKind, "", wanted.GetName())
	if err != nil {
		return err
	}
	if live == nil {
		return c.cluster.Create(ctx, wanted, client.FieldOwner(fieldOwner))
	}
	live.Object["spec"] = wanted.Object["spec"]
	change(live)
	return c.cluster.Update(ctx, live, client.FieldOwner(fieldOwner))
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

// entriesOf are the webhooks of OpenKruise's configuration, and of the template from which kruise-manager writes them again.
func entriesOf(configuration *unstructured.Unstructured) (webhooks, template []any, err error) {
	if configuration == nil {
		return nil, nil, nil
	}
	webhooks, _, _ = unstructured.NestedSlice(configuration.Object, "webhooks")
	if text := configuration.GetAnnotations()[kruiseTemplate]; text != "" {
		err = json.Unmarshal([]byte(text), &template)
	}
	return webhooks, template, err
}

// changeEntries makes the entries of the two kinds those of a copy, or none. It returns whether that changes something.
func (c *migrateCommand) changeEntries(ctx context.Context, write bool) (changed bool, err error) {
	live, err := c.read(ctx, webhookKind, "", kruiseWebhooks)
	if err != nil || live == nil {
		return false, err
	}
	var before *unstructured.Unstructured
	if c.undo {
		if before, err = c.saved("webhooks", kruiseWebhooks); err != nil {
			return false, err
		}
	}
	oldWebhooks, oldTemplate, err := entriesOf(before)
	if err != nil {
		return false, err
	}
	webhooks, template, err := entriesOf(live)
	if err != nil {
		return false, fmt.Errorf("reading annotation %s of %s: %w", kruiseTemplate, kruiseWebhooks, err)
	}
	replace := func(all, by []any) []any {
		var kept, wanted []any
		for _, one := range all {
			if isEntry(one) {
				wanted = append(wanted, one)
			} else {
				kept = append(kept, one)
			}
		}
		var entries []any
		for _, one := range by {
			if isEntry(one) {
				entries = append(entries, one)
			}
		}
		if changed = changed || len(wanted) != len(entries); len(wanted) == len(entries) {
			return all
		}
		return append(kept, entries...)
	}
	webhooks, template = replace(webhooks, oldWebhooks), replace(template, oldTemplate)
	if !changed || !write {
		return changed, nil
	}
	_ = unstructured.SetNestedSlice(live.Object, webhooks, "webhooks") // a configuration is a map
	if text := live.GetAnnotations()[kruiseTemplate]; text != "" {
		content, err := json.Marshal(template)
		if err != nil {
			return false, err
		}
		annotations := live.GetAnnotations()
		annotations[kruiseTemplate] = string(content)
		live.SetAnnotations(annotations)
	}
	return true, c.cluster.Update(ctx, live, client.FieldOwner(fieldOwner))
}

func (c *migrateCommand) checkEntries(ctx context.Context) (string, error) {
	changed, err := c.changeEntries(ctx, false)
	switch {
	case err != nil || !changed:
		return "", err
	case c.undo:
		return "OpenKruise checks spreads and budgets again, by " + kruiseWebhooks, nil
	default:
		return "OpenKruise does not check spreads and budgets any more: their entries leave " + kruiseWebhooks + " and its template", nil
	}
}

func (c *migrateCommand) writeEntries(ctx context.Context) error {
	_, err := c.changeEntries(ctx, true)
	return err
}

const gatesFlag = "--feature-gates="

// gatesOf are the feature gates in the arguments of OpenKruise's Deployment, in their order, and with the defaults their values.
func gatesOf(deployment *appsv1.Deployment) (set []string, values map[string]string) {
	values = maps.Clone(kruiseGates)
	for i := range deployment.Spec.Template.Spec.Containers {
		for _, argument := range deployment.Spec.Template.Spec.Containers[i].Args {
			text, found := strings.CutPrefix(argument, gatesFlag)
			for gate := range strings.SplitSeq(text, ",") {
				if name, value, is := strings.Cut(gate, "="); found && is {
					set = append(set, name)
					values[name] = value
				}
			}
		}
	}
	return set, values
}

func (c *migrateCommand) checkGates(ctx context.Context) (string, error) {
	deployment := &appsv1.Deployment{}
	if err := c.cluster.Get(ctx, client.ObjectKey{Namespace: kruiseNamespace, Name: kruiseDeployment}, deployment); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	wanted := map[string]string{}
	for gate := range kruiseGates {
		wanted[gate] = "false"
	}
	if c.undo {
		before := &appsv1.Deployment{}
		copied, err := c.saved("deployment", kruiseDeployment)
		if err != nil {
			return "", err
		}
		if copied != nil {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(copied.Object, before); err != nil {
				return "", err
			}
		}
		_, wanted = gatesOf(before)
	}
	set, values := gatesOf(deployment)
	differs := false
	for _, gate := range slices.Sorted(maps.Keys(kruiseGates)) {
		if values[gate] != wanted[gate] {
			differs, values[gate] = true, wanted[gate]
			if !slices.Contains(set, gate) {
				set = append(set, gate)
			}
		}
	}
	if differs {
		for i, gate := range set {
			set[i] = gate + "=" + values[gate]
		}
		return fmt.Sprintf(`set the feature gates of OpenKruise, with the VERSION of its chart that runs (helm list -A --filter kruise): helm upgrade kruise openkruise/kruise --version VERSION --reuse-values --set featureGates="%s"`,
			strings.Join(set, `\,`)), nil
	}
	status, replicas := deployment.Status, ptr.Deref(deployment.Spec.Replicas, 1)
	if status.ObservedGeneration < deployment.Generation || status.Replicas != status.UpdatedReplicas || status.UpdatedReplicas < replicas {
		return fmt.Sprintf("wait until all pods of OpenKruise have the new gates: kubectl -n %s rollout status deployment %s", kruiseNamespace, kruiseDeployment), nil
	}
	return "", nil
}

// waiting are the pods without a node that the other product's admission has changed so that they may wait for ever.
func (c *migrateCommand) waiting(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := c.cluster.List(ctx, &list); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool {
		// In a spread that is compatible with OpenKruise, Berth writes the record at admission too, beside its pick.
		theirs := pod.Annotations[v1beta1.MatchedAnnotation] != "" && pod.Annotations[v1beta1.AdmittedAnnotation] == ""
		if c.undo {
			theirs = pod.Spec.SchedulerName == v1beta1.SchedulerName
		}
		// Nobody would make a pod without a controller again, and a gate of somebody else keeps a pod from any node.
		own := metav1.GetControllerOf(&pod) != nil && !slices.ContainsFunc(pod.Spec.SchedulingGates, func(gate corev1.PodSchedulingGate) bool { return gate.Name != v1beta1.SubsetGate })
		return !theirs || !own || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil
	}), nil
}

func (c *migrateCommand) checkPods(ctx context.Context) (string, error) {
	pods, err := c.waiting(ctx)
	if err != nil || len(pods) == 0 {
		return "", err
	}
	return fmt.Sprintf("%s without a node are deleted, and their workloads create them again", console.Count(len(pods), "pod")), nil
}

// deletePods deletes no pod that has got a node meanwhile.
func (c *migrateCommand) deletePods(ctx context.Context) error {
	pods, err := c.waiting(ctx)
	for i := range pods {
		pod := &pods[i]
		if gone := c.cluster.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}); !apierrors.IsConflict(gone) && client.IgnoreNotFound(gone) != nil {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// savedDefinition is the definition of OpenKruise.
func (c *migrateCommand) savedDefinition(name string) (*unstructured.Unstructured, *apiextensionsv1.CustomResourceDefinition, error) {
	copied, err := c.saved("definitions", name)
	typed := &apiextensionsv1.CustomResourceDefinition{}
	if err == nil && copied != nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(copied.Object, typed)
	}
	if err == nil && (copied == nil || isBerths(typed)) {
		err = fmt.Errorf("%s has no definition %s of OpenKruise: apply that of OpenKruise's chart, once Berth is removed", c.backup, name)
	}
	return copied, typed, err
}

// storedBefore is the version that OpenKruise's definitions store.
func (c *migrateCommand) storedBefore() (string, error) {
	_, definition, err := c.savedDefinition(endpoint.Definitions[0])
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	return definition.Spec.Versions[max(at, 0)].Name, nil
}

func (c *migrateCommand) checkStoredAsBefore(ctx context.Context) (string, error) {
	version, err := c.storedBefore()
	if err != nil {
		return "", err
	}
	for _, name := range endpoint.Definitions {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.cluster.Get(ctx, client.ObjectKey{Name: name}, definition); client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if len(definition.Status.StoredVersions) > 0 && !slices.Equal(definition.Status.StoredVersions, []string{version}) {
			return "all objects are stored again, as " + version, nil
		}
	}
	return "", nil
}

// storeAsBefore makes the version of OpenKruise the one that is stored, and waits until berth-controller has had all objects stored in it.
func (c *migrateCommand) storeAsBefore(ctx context.Context) error {
	version, err := c.storedBefore()
	if err != nil {
		return err
	}
	for _, name := range endpoint.Definitions {
		live, err := c.read(ctx, definitionKind, "", name)
		if err != nil || live == nil {
			return err
		}
		all, _, _ := unstructured.NestedSlice(live.Object, "spec", "versions")
		for i := range all {
			one := all[i].(map[string]any)
			one["storage"] = one["name"] == version
		}
		_ = unstructured.SetNestedSlice(live.Object, all, "spec", "versions") // it was read from there
		if err := c.cluster.Update(ctx, live, client.FieldOwner(fieldOwner)); err != nil {
			return err
		}
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, storageTimeout, true, func(ctx context.Context) (bool, error) {
		left, err := c.checkStoredAsBefore(ctx)
		return left == "", err
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("berth-controller has not stored all objects as %s within %s: see its log, and run the command again", version, storageTimeout)
	}
	return err
}

func (c *migrateCommand) checkRemoved(ctx context.Context) (string, error) {
	var deployments appsv1.DeploymentList
	if err := c.cluster.List(ctx, &deployments, client.InNamespace(systemNamespace), client.MatchingLabels{"app.kubernetes.io/name": "berth"}); err != nil {
		return "", err
	}
	left := len(deployments.Items) > 0
	for _, name := range endpoint.Configurations {
		for _, object := range []client.Object{&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{}} {
			err := c.cluster.Get(ctx, client.ObjectKey{Name: name}, object)
			if client.IgnoreNotFound(err) != nil {
				return "", err
			}
			left = left || err == nil
		}
	}
	if !left {
		return "", nil
	}
	return "remove Berth, but not the definitions (docs/install.md, Removal)", nil
}

func (c *migrateCommand) checkRestored(ctx context.Context) (string, error) {
	for _, name := range endpoint.Definitions {
		if _, _, err := c.savedDefinition(name); err != nil {
			return "", err
		}
		live := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.cluster.Get(ctx, client.ObjectKey{Name: name}, live); client.IgnoreNotFound(err) != nil {
			return "", err
		}
		if isBerths(live) || len(live.Spec.Versions) == 0 || live.Spec.Versions[0].Name == unserved {
			return "the definitions become OpenKruise's again, and fields that only Berth has are dropped", nil
		}
	}
	return "", nil
}

func (c *migrateCommand) restore(ctx context.Context) error {
	for _, name := range endpoint.Definitions {
		wanted, _, err := c.savedDefinition(name)
		if err != nil {
			return err
		}
		delete(wanted.Object, "status")
		if err := c.put(ctx, wanted, func(live *unstructured.Unstructured) {
			live.SetAnnotations(wanted.GetAnnotations())
			live.SetLabels(wanted.GetLabels())
		}); err != nil {
			return err
		}
	}
	return nil
}
