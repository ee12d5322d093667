package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/endpoint"
)

// recent is how old an event may be that still says something about the present. A recorder that counts the same event
// again and again writes the count, and the time of the latest one, every 30 minutes. The API server keeps events for
// an hour.
const recent = 31 * time.Minute

// Check is one thing that the doctor has looked at.
type Check struct {
	Name string `json:"name"`
	// Result is ok, problem, or unknown if the check could not be made.
	Result string `json:"result"`
	// Says what was found, and what to do about a problem.
	Says string `json:"says"`
}

const (
	resultOK      = "ok"
	resultProblem = "problem"
	resultUnknown = "unknown"
)

// check looks at one thing. It returns what is well, or the problems. An error means that it is not known.
type check struct {
	name string
	run  func(ctx context.Context, c *console.Cluster) (well string, problems []string, err error)
}

// checks of an installation, in the order in which one looks for a fault.
var checks = []check{
	{"API server", checkServer},
	{"definitions", checkDefinitions},
	{"conversion", checkConversion},
	{"webhooks", checkWebhooks},
	{"deployments", checkDeployments},
	{"OpenKruise", checkKruise("WorkloadSpreads and PodUnavailableBudgets", "run `kubectl berth migrate --from kruise` again", "workloadspreads", "podunavailablebudgets")},
	{"one controller", checkWriters},
	{"spreads", checkSpreads},
	{"node autoscaler", checkAutoscaler},
	{"shared nodes", checkSharedNodes},
	{"budgets", checkBudgets},
}

// doctorCommand is "kubectl berth doctor".
type doctorCommand struct {
	out    io.Writer
	output console.Output
	// beforeInstall is true if Berth is not there yet. The other two say how it will be installed.
	beforeInstall bool
	migrateFrom   string
	united        bool
}

// checks are those that the flags ask for.
func (c *doctorCommand) checks() []check {
	if !c.beforeInstall {
		return checks
	}
	before := []check{{"API server", checkServer}}
	if c.migrateFrom != "kruise" {
		before = append(before, check{"OpenKruise", checkKruise("WorkloadSpreads and PodUnavailableBudgets",
			"begin with `kubectl berth migrate --from kruise`, and install with migrateFrom=kruise when it asks for Berth", "workloadspreads", "podunavailablebudgets")})
	}
	if c.united {
		before = append(before, check{"UnitedDeployments", checkKruise("UnitedDeployments",
			"two controllers would create children without end; install with unitedDeployments.enabled=false, or see docs/install.md", "uniteddeployments")})
	}
	return before
}

func newDoctor(flags *console.Flags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &doctorCommand{out: streams.Out}
	return c.command(console.OnCluster(flags, c.run))
}

func (c *doctorCommand) command(run func(*cobra.Command, []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Whether Berth works on this cluster, and what to do if it does not",
		Long: `Whether Berth works on this cluster, and what to do if it does not: one line for each check. It looks at the whole cluster and changes nothing: it has the API
server try, in a dry run, what the webhooks must refuse. With a problem the exit code is 1. A check that could not be made, for instance for lack of rights, is unknown and leaves it 0.

With --before-install it says whether Berth can be installed. --migrate-from and --united-deployments are then as in the values of the chart.`,
		Example: `  kubectl berth doctor
  kubectl berth doctor --before-install`,
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if c.migrateFrom != "" && c.migrateFrom != "kruise" {
				return fmt.Errorf("--migrate-from=%s: it must be kruise, or left out", c.migrateFrom)
			}
			return nil
		},
		RunE: run,
	}
	c.output.AddTo(cmd.Flags())
	cmd.Flags().BoolVar(&c.beforeInstall, "before-install", false, "Look whether Berth can be installed on this cluster.")
	cmd.Flags().StringVar(&c.migrateFrom, "migrate-from", "", "With --before-install: kruise, if kubectl berth migrate --from kruise asks for Berth.")
	cmd.Flags().BoolVar(&c.united, "united-deployments", true, "With --before-install: whether Berth will serve UnitedDeployments.")
	return cmd
}

func (c *doctorCommand) run(ctx context.Context, cluster *console.Cluster, _ []string) error {
	var all []Check
	failed := false
	for _, check := range c.checks() {
		well, problems, err := check.run(ctx, cluster)
		done := Check{check.name, resultOK, well}
		switch {
		case len(problems) > 0: // also if more could not be seen
			done.Result, done.Says, failed = resultProblem, firstOf(problems), true
		case err != nil:
			done.Result, done.Says = resultUnknown, console.Advise(err)
		}
		all = append(all, done)
	}
	structured, err := c.output.Structured(c.out, "Check", all)
	if !structured {
		rows := [][]string{{"CHECK", "RESULT", "SAYS"}}
		for _, check := range all {
			rows = append(rows, []string{check.Name, check.Result, check.Says})
		}
		err = c.output.Table(c.out, rows)
	}
	if err == nil && failed {
		return &console.ExitError{Code: 1}
	}
	return err
}

// firstOf are the first of several problems on one line, and how many more there are.
func firstOf(problems []string) string {
	const most = 3
	if more := len(problems) - most; more > 0 {
		problems = append(slices.Clone(problems[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(problems, "; ")
}

// parts say what of Berth is installed in its namespace.
type parts struct {
	// scheduler is false if it has no Deployment.
	scheduler bool
	// down are the Deployments without an available pod, of all that there are. Without any, Berth runs elsewhere, or
	// not at all, and nothing tells what is left out.
	all, down []string
	// args are the arguments of berth-controller. Nil if it has no Deployment.
	args []string
}

func partsOf(ctx context.Context, c *console.Cluster) (p parts, err error) {
	var list appsv1.DeploymentList
	if err := c.List(ctx, &list, client.InNamespace(systemNamespace)); err != nil {
		return p, err
	}
	for i := range list.Items {
		d := &list.Items[i]
		if !isBerth(&d.Spec.Template) {
			continue
		}
		p.all, p.scheduler = append(p.all, d.Name), p.scheduler || d.Name == "berth-scheduler"
		if d.Status.AvailableReplicas == 0 {
			p.down = append(p.down, d.Name)
		}
		if containers := d.Spec.Template.Spec.Containers; d.Name == "berth-controller" && len(containers) > 0 {
			p.args = append([]string{}, containers[0].Args...)
		}
	}
	return p, nil
}

// off is true if berth-controller runs without a part that it has by default.
func (p parts) off(flag string) bool { return slices.Contains(p.args, flag+"=false") }

// leavesOut is true if the webhook configurations of a name may be missing. No argument says whether admission is left
// out.
func (p parts) leavesOut(name string) bool {
	switch name {
	case endpoint.SidecarConfiguration:
		return true
	case "berth-budget":
		return p.off("--budgets") || p.off("--webhooks")
	default:
		return p.args != nil
	}
}

func checkDefinitions(ctx context.Context, c *console.Cluster) (string, []string, error) {
	installed, err := partsOf(ctx, c)
	if err != nil {
		return "", nil, err
	}
	well := "all are Berth's, and store v1beta1"
	names := endpoint.Definitions
	if installed.args != nil && !installed.off("--united-deployments") {
		names = append(slices.Clone(names), endpoint.UnitedDefinition)
	} else {
		well += "; UnitedDeployments are not looked at: they are left out, or nobody can tell"
	}
	var problems []string
	for _, name := range names {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		switch err := c.Get(ctx, client.ObjectKey{Name: name}, definition); {
		case apierrors.IsNotFound(err):
			problems = append(problems, name+" does not exist: kubectl apply --server-side -k manifests/crd")
		case err != nil:
			return "", problems, err
		case name == endpoint.UnitedDefinition && !endpoint.Converts(definition):
			well += "; UnitedDeployments are left to another controller, whose converter their definition names"
		case name != endpoint.UnitedDefinition && !isBerths(definition):
			problems = append(problems, name+" is not Berth's, and drops fields that Berth needs: kubectl berth migrate, or apply manifests/crd")
		case !endpoint.Converts(definition):
			problems = append(problems, name+" names another converter than Berth, which drops fields that Berth needs: kubectl berth migrate")
		case slices.Contains(definition.Status.StoredVersions, "v1alpha1"):
			problems = append(problems, name+" may have objects that are stored as v1alpha1: berth-controller stores them again within a minute; if it does not, its log says why")
		}
	}
	return well, problems, nil
}

// isBerths tells by fields that only Berth's definitions have. Without them the API server would drop the fields.
func isBerths(definition *apiextensionsv1.CustomResourceDefinition) bool {
	for _, version := range definition.Spec.Versions {
		if version.Name != v1beta1.GroupVersion.Version || version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			continue
		}
		schema := version.Schema.OpenAPIV3Schema.Properties
		_, spreads := schema["spec"].Properties["scheduleStrategy"].Properties["quotaScope"]
		_, budgets := schema["status"].Properties["ledger"]
		return spreads || budgets
	}
	return false
}

// checkConversion reads objects in the version that is not stored. The API server then asks the controller.
func checkConversion(ctx context.Context, c *console.Cluster) (string, []string, error) {
	var problems []string
	for _, gvk := range versions.Old() {
		if gvk.Kind == sidecarv1beta1.Kind.Kind { // which nobody converts
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		err := c.List(ctx, list, client.Limit(1))
		switch {
		case meta.IsNoMatchError(err): // checkDefinitions says whether the kind may be left out
		case apierrors.IsForbidden(err) || err != nil && ctx.Err() != nil:
			return "", problems, err
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s cannot be read as %s: see whether berth-controller runs and the API server reaches it: %v", gvk.Kind, gvk.Version, err))
		}
	}
	return "objects can be read in every version", problems, nil
}

func checkWebhooks(ctx context.Context, c *console.Cluster) (string, []string, error) {
	installed, err := partsOf(ctx, c)
	if err != nil {
		return "", nil, err
	}
	var problems, leftOut []string
	for _, name := range endpoint.Configurations {
		var missing []string
		for _, object := range []client.Object{&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{}} {
			err := c.Get(ctx, client.ObjectKey{Name: name}, object)
			if apierrors.IsNotFound(err) {
				missing = append(missing, fmt.Sprintf("%s %s does not exist: install Berth", kindOf(object), name))
				continue
			}
			if err != nil {
				return "", problems, err
			}
			for _, webhook := range endpoint.WebhooksOf(object) {
				if len(webhook.Client.CABundle) == 0 || webhook.Path() == "" {
					problems = append(problems, fmt.Sprintf("%s %s, %s, has no CA bundle or path yet: see the log of berth-controller", kindOf(object), name, webhook.Name))
				}
			}
		}
		switch {
		case len(missing) < 2 || !installed.leavesOut(name):
			problems = append(problems, missing...)
		case name != endpoint.SidecarConfiguration: // SidecarSets are not there by default
			leftOut = append(leftOut, name)
		}
	}
	if len(problems) == 0 {
		problems, err = uncalled(ctx, c, leftOut)
	}
	well := "the API server calls them"
	if len(leftOut) > 0 {
		well += "; left out: " + strings.Join(leftOut, ", ")
	}
	return well, problems, err
}

// uncalled are the problems of the API server with the webhooks. It is asked to create, in a dry run, what the webhooks
// must refuse. That takes its way to them, the path, the certificate and the handler. Nothing is created, whatever the
// answer.
func uncalled(ctx context.Context, c *console.Cluster, leftOut []string) (problems []string, err error) {
	here := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "berth-doctor"}
	for _, probe := range []struct {
		configuration, webhook string
		object                 client.Object
	}{
		{"berth-webhook", "workloadspread.berth.dev", &v1beta1.WorkloadSpread{ObjectMeta: here, Spec: v1beta1.WorkloadSpreadSpec{
			TargetReference: v1beta1.TargetReference{APIVersion: "apps.kruise.io/v1alpha1", Kind: "UnitedDeployment", Name: here.Name}, Subsets: []v1beta1.Subset{{Name: "a"}}}}},
		{"berth-budget", "podunavailablebudgets.budget.berth.dev", &policyv1beta1.PodUnavailableBudget{ObjectMeta: here, Spec: policyv1beta1.PodUnavailableBudgetSpec{
			Selector:       &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "none"}}},
			MaxUnavailable: ptr.To(intstr.FromInt32(1))}}},
	} {
		if slices.Contains(leftOut, probe.configuration) {
			continue
		}
		err := c.Create(ctx, probe.object, client.DryRunAll)
		const todo = "see whether Service berth-webhook has endpoints and the API server reaches them, and the log of berth-controller"
		switch {
		case err == nil: // the failurePolicy is Ignore
			problems = append(problems, fmt.Sprintf("the API server does not get an answer from webhook %s, and accepts what that would refuse: %s", probe.webhook, todo))
		case strings.Contains(err.Error(), fmt.Sprintf("admission webhook %q denied the request", probe.webhook)):
		case strings.Contains(err.Error(), fmt.Sprintf("failed calling webhook %q", probe.webhook)):
			problems = append(problems, fmt.Sprintf("%v: %s", err, todo))
		default:
			return problems, err
		}
	}
	return problems, nil
}

func kindOf(object client.Object) string {
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", object), ".")
	return kind
}

func checkDeployments(ctx context.Context, c *console.Cluster) (well string, problems []string, _ error) {
	installed, err := partsOf(ctx, c)
	for _, name := range installed.down {
		problems = append(problems, fmt.Sprintf("%s has no available pod: kubectl -n %s get pods", name, systemNamespace))
	}
	switch {
	case len(installed.all) == 0:
		well = "none in namespace " + systemNamespace + ": Berth runs elsewhere, or not at all"
	case !installed.scheduler:
		well = "pods are available; the scheduler is left out: Berth's plugins must run in a scheduler of yours"
	default:
		well = strings.Join(installed.all, ", ") + " have available pods"
	}
	return well, problems, err
}

// checkWriters looks for other controllers of the kinds, by what the controller has said lately.
func checkWriters(ctx context.Context, c *console.Cluster) (_ string, found []string, _ error) {
	told, err := recentEvents(ctx, c, string(v1beta1.ReasonTwoControllers))
	if err != nil {
		return "", nil, err
	}
	for i := range told {
		event := &told[i]
		found = append(found, fmt.Sprintf("%s %s/%s: %s", event.InvolvedObject.Kind, event.InvolvedObject.Namespace, event.InvolvedObject.Name, event.Message))
	}
	return "nobody else writes the status of spreads and budgets", found, nil
}

// recentEvents are those with a reason that still say something about the present.
func recentEvents(ctx context.Context, c *console.Cluster, reason string) ([]corev1.Event, error) {
	var list corev1.EventList
	if err := c.List(ctx, &list, client.MatchingFields{"reason": reason}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(event corev1.Event) bool {
		last := event.LastTimestamp.Time // of recorders of the old kind, as the kubelet has
		switch {
		case event.Series != nil:
			last = event.Series.LastObservedTime.Time
		case !event.EventTime.IsZero():
			last = event.EventTime.Time
		}
		return now().Sub(last) >= recent
	}), nil
}

// checkSharedNodes says where a kubelet refused a pod because its node had been given away already: two schedulers bind
// to it.
func checkSharedNodes(ctx context.Context, c *console.Cluster) (string, []string, error) {
	nodes, refused := sets.New[string](), 0
	for _, reason := range []string{"OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods"} {
		events, err := recentEvents(ctx, c, reason)
		if err != nil {
			return "", nil, err
		}
		for i := range events {
			nodes.Insert(events[i].Source.Host)
		}
		refused += len(events)
	}
	if refused == 0 {
		return "no kubelet refused a pod for lack of room", nil, nil
	}
	return "", []string{fmt.Sprintf("kubelets refused %s for lack of room (%s), so two schedulers bind to these nodes: give the pods of spreads nodes of their own, or name Berth's scheduler in the templates "+
		"of all workloads that use these nodes", count(refused, "pod"), firstOf(sets.List(nodes)))}, nil
}

func checkSpreads(ctx context.Context, c *console.Cluster) (string, []string, error) {
	var list v1beta1.WorkloadSpreadList
	if err := c.List(ctx, &list); err != nil {
		return "", nil, err
	}
	var problems []string
	for i := range list.Items {
		s := &list.Items[i]
		problems = append(problems, problemsOf("WorkloadSpread", s, s.Status.ObservedGeneration, s.Status.Conditions, v1beta1.ConditionReady, v1beta1.ConditionAdmitted)...)
	}
	return fmt.Sprintf("%s ready, and their pods are admitted", count(len(list.Items), "spread")), problems, nil
}

// checkAutoscaler says which node autoscaler the controller knows of, and which spreads mislead it.
func checkAutoscaler(ctx context.Context, c *console.Cluster) (string, []string, error) {
	var list v1beta1.WorkloadSpreadList
	if err := c.List(ctx, &list); err != nil {
		return "", nil, err
	}
	known := sets.New[string]()
	var problems []string
	for i := range list.Items {
		s := &list.Items[i]
		if s.Status.NodeAutoscaler == "" {
			continue
		}
		known.Insert(s.Status.NodeAutoscaler)
		if s.Status.Binding == v1beta1.LateBinding {
			problems = append(problems, fmt.Sprintf("WorkloadSpread %s/%s binds late, and the node autoscaler (%s) knows no quotas, so pods can wait forever, and running pods can be evicted: "+
				"leave binding out of spec.scheduleStrategy, or set Gated", s.Namespace, s.Name, s.Status.NodeAutoscaler))
		}
	}
	if known.Len() == 0 {
		return "no spread says that there is one", problems, nil
	}
	return fmt.Sprintf("%s, and no spread misleads it", strings.Join(sets.List(known), ", ")), problems, nil
}

func checkBudgets(ctx context.Context, c *console.Cluster) (string, []string, error) {
	var list policyv1beta1.PodUnavailableBudgetList
	if err := c.List(ctx, &list); err != nil {
		return "", nil, err
	}
	var problems []string
	for i := range list.Items {
		b := &list.Items[i]
		problems = append(problems, problemsOf("PodUnavailableBudget", b, b.Status.ObservedGeneration, b.Status.Conditions, policyv1beta1.ConditionEnforcing)...)
		if is := meta.FindStatusCondition(b.Status.Conditions, policyv1beta1.ConditionDisruptionAllowed); is != nil && is.Reason == string(policyv1beta1.ReasonPodsDoubtful) {
			problems = append(problems, fmt.Sprintf("PodUnavailableBudget %s/%s: %s: %s", b.Namespace, b.Name, is.Reason, is.Message))
		}
	}
	return fmt.Sprintf("%s enforced", count(len(list.Items), "budget")), problems, nil
}

func problemsOf(kind string, object client.Object, observed int64, conditions []metav1.Condition, wanted ...string) (problems []string) {
	name := fmt.Sprintf("%s %s/%s", kind, object.GetNamespace(), object.GetName())
	if observed < object.GetGeneration() {
		return []string{name + ": berth-controller has not looked at its spec yet"}
	}
	for _, kind := range wanted {
		if is := meta.FindStatusCondition(conditions, kind); is != nil && is.Status == metav1.ConditionFalse {
			problems = append(problems, fmt.Sprintf("%s: %s: %s", name, is.Reason, is.Message))
		}
	}
	return problems
}
