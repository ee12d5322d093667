package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	yamlnodes "go.yaml.in/yaml/v3"
	batchv1 "k8s.io/api/batch/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/budget"
	"github.com/berth-project/berth/pkg/cli/console"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	rulesv1alpha1 "github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	sidecarv1beta1 "github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/federation"
	"github.com/berth-project/berth/pkg/lineage"
	"github.com/berth-project/berth/pkg/sidecar"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/united"
	"github.com/berth-project/berth/pkg/workload"
)

// finding is a mistake in a file, or something that is valid and probably not meant.
type finding struct {
	File string `json:"file"`
	// Line of the field, or of the nearest one above it that is there. Lines count from 1.
	Line int `json:"line"`
	// Object as "WorkloadSpread web". Empty for a document that cannot be read.
	Object string `json:"object,omitempty"`
	// Path of the field. Empty if the whole document is meant.
	Path string `json:"path,omitempty"`
	// Severity is error or warning.
	Severity string `json:"severity"`
	Message  string `json:"message"`
}

const (
	severityError   = "error"
	severityWarning = "warning"
)

// lintCommand is "kubectl berth lint".
type lintCommand struct {
	in     io.Reader
	out    io.Writer
	output console.Output
	files  []string
}

func newLint(streams genericiooptions.IOStreams) *cobra.Command {
	c := &lintCommand{in: streams.In, out: streams.Out}
	cmd := &cobra.Command{
		Use:   "lint -f FILE|DIRECTORY",
		Short: "Check WorkloadSpreads, rules, UnitedDeployments, FederatedReplicaSets, SidecarSets and PodUnavailableBudgets in files, without a cluster",
		Long: `Check every WorkloadSpread, SpreadRule, ClusterSpreadRule, UnitedDeployment, FederatedReplicaSet, SidecarSet and PodUnavailableBudget in YAML and JSON files, as the API server and the webhook would, without a cluster. All mistakes are
listed, with file and line. With mistakes the exit code is 1; warnings alone leave it 0. Of a directory, all files that end in .yaml, .yml or .json are read.

If a workload is in the files too, its replicas are compared with the quotas. What only a cluster knows is not checked: nodes, patches on the pods of the
workload, and the fields of sidecars, which the webhook tries in a pod.`,
		Example: `  kubectl berth lint -f deploy/
  kustomize build overlays/prod | kubectl berth lint -f -`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return c.run() },
	}
	c.output.AddTo(cmd.Flags())
	cmd.Flags().StringSliceVarP(&c.files, "filename", "f", nil, "File or directory to check, or - for standard input. May be given several times.")
	return cmd
}

func (c *lintCommand) run() error {
	if len(c.files) == 0 {
		return errors.New("say what to check with -f FILE or -f DIRECTORY")
	}
	l := &linter{workloads: map[string]known{}}
	for _, name := range c.files {
		if err := c.read(l, name); err != nil {
			return err
		}
	}
	l.check()
	slices.SortStableFunc(l.findings, func(a, b finding) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
	mistakes := 0
	for _, f := range l.findings {
		if f.Severity == severityError {
			mistakes++
		}
	}
	done, err := c.output.Structured(c.out, "Finding", append([]finding{}, l.findings...))
	if !done {
		err = c.print(l, mistakes)
	}
	if err == nil && mistakes > 0 {
		return &console.ExitError{Code: 1}
	}
	return err
}

func (c *lintCommand) print(l *linter, mistakes int) error {
	for _, f := range l.findings {
		where := strings.TrimSpace(f.Object + " " + f.Path)
		if where != "" {
			where += ": "
		}
		if _, err := fmt.Fprintf(c.out, "%s:%d: %s: %s%s\n", f.File, f.Line, f.Severity, where, f.Message); err != nil {
			return err
		}
	}
	counts := map[string]int{}
	for i := range l.objects {
		counts[l.objects[i].kind]++
	}
	objects := count(counts[v1beta1.Kind.Kind], v1beta1.Kind.Kind) + " and " + count(counts[policyv1beta1.Kind.Kind], policyv1beta1.Kind.Kind)
	for _, kind := range []string{unitedv1beta1.Kind.Kind, federationv1alpha1.Kind.Kind, sidecarv1beta1.Kind.Kind, rulesv1alpha1.Kind.Kind, rulesv1alpha1.ClusterKind.Kind} {
		if counts[kind] > 0 {
			objects = count(counts[kind], kind) + ", " + objects
		}
	}
	_, err := fmt.Fprintf(c.out, "%s: %s, %s\n", objects,
		count(mistakes, "mistake"), count(len(l.findings)-mistakes, "warning"))
	return err
}

// read gives the files of a name to the linter.
func (c *lintCommand) read(l *linter, name string) error {
	if name == "-" {
		content, err := io.ReadAll(c.in)
		if err != nil {
			return fmt.Errorf("reading standard input: %w", err)
		}
		l.readFile("-", content)
		return nil
	}
	return filepath.WalkDir(name, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if file != name && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) {
			return nil
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		l.readFile(file, content)
		return nil
	})
}

// linter collects the objects of all files and what is wrong with them.
type linter struct {
	// objects are those of Berth's kinds, and not nil.
	objects  []located
	findings []finding
	// workloads that say their replicas, by namespace, kind and name.
	workloads map[string]known
}

// known is a workload, and what a budget needs to know of it: the labels are those of its pods.
type known struct {
	object    runtime.Object
	namespace string
	of        budget.Workload
	labels    labels.Set
}

// located is an object with its place.
type located struct {
	object metav1.Object
	document
}

// document is a part of a file with one object, or one object of a list.
type document struct {
	file string
	// kind and name of the object. Empty if they could not be read.
	kind, name string
	// version of the object. Its fields have the names of this version.
	version schema.GroupVersionKind
	node    *yamlnodes.Node
}

func (l *linter) add(d *document, severity, path, message string) {
	path, message = versions.InWords(d.version, path), versions.InWords(d.version, message)
	l.findings = append(l.findings, finding{File: d.file, Line: lineOf(d.node, path), Object: strings.TrimSpace(d.kind + " " + d.name), Path: path, Severity: severity, Message: message})
}

func (l *linter) addErrors(d *document, errs field.ErrorList) {
	for _, err := range errs {
		l.add(d, severityError, err.Field, err.ErrorBody())
	}
}

// addWarnings takes warnings that begin with a path.
func (l *linter) addWarnings(d *document, warnings []string) {
	for _, warning := range warnings {
		path, message, _ := strings.Cut(warning, ": ")
		l.add(d, severityWarning, path, message)
	}
}

var separator = regexp.MustCompile(`(?m)^---([ \t].*)?$`)

// readFile reads the documents of a file. Each is preceded by as many empty lines as the file has lines before it, so
// that every parser counts the lines of the file.
func (l *linter) readFile(name string, content []byte) {
	begin := 0
	for _, at := range append(separator.FindAllIndex(content, -1), []int{len(content), len(content)}) {
		text := append(bytes.Repeat([]byte("\n"), bytes.Count(content[:begin], []byte("\n"))), content[begin:at[0]]...)
		l.readDocument(name, text)
		begin = at[1]
	}
}

// mentionsOurs matches a document that could be one of ours. Documents of other programs, such as templates, need not
// be YAML.
var mentionsOurs = regexp.MustCompile(`kind["']?:\s*["']?(WorkloadSpread|PodUnavailableBudget|UnitedDeployment|FederatedReplicaSet|SidecarSet|(Cluster)?SpreadRule)`)

func (l *linter) readDocument(file string, text []byte) {
	var root yamlnodes.Node
	if err := yamlnodes.Unmarshal(text, &root); err != nil || len(root.Content) == 0 {
		if err != nil && mentionsOurs.Match(text) {
			l.findings = append(l.findings, finding{File: file, Line: lineIn(err), Severity: severityError, Message: err.Error()})
		}
		return
	}
	l.readObject(file, root.Content[0], text)
}

// lineIn is the line that a YAML parser names, or 1.
func lineIn(err error) (line int) {
	_, after, _ := strings.Cut(err.Error(), "line ")
	_, _ = fmt.Sscan(after, &line) // it stays 0 if there is none
	return max(line, 1)
}

// readObject keeps an object that matters. Text is its YAML.
func (l *linter) readObject(file string, node *yamlnodes.Node, text []byte) {
	var header metav1.PartialObjectMetadata
	if err := node.Decode(&map[string]any{}); err == nil {
		_ = yaml.Unmarshal(text, &header) // an object without a readable header is none of ours
	}
	if _, items := fieldOf(node, "items"); items != nil && strings.HasSuffix(header.Kind, "List") {
		for _, item := range items.Content {
			if text, err := yamlnodes.Marshal(item); err == nil {
				l.readObject(file, item, text)
			}
		}
		return
	}
	d := document{file: file, kind: header.Kind, name: header.Name, node: node}
	kind := text
	if header.Kind != "" { // others may refer to ours, as an autoscaler does
		kind = []byte("kind: " + header.Kind)
	}
	if !mentionsOurs.Match(kind) {
		l.readWorkload(&header, text)
		return
	}
	object, version, err := versions.Decode(text)
	if err != nil {
		l.addDecodingErrors(&d, err)
	}
	d.version = version
	if o, is := object.(metav1.Object); is {
		l.objects = append(l.objects, located{o, d})
	}
}

var quoted = regexp.MustCompile(`(?:unknown|duplicate) field "([^"]+)"`)

// addDecodingErrors takes unknown and duplicate fields one by one, as the API server does.
func (l *linter) addDecodingErrors(d *document, err error) {
	errs := []error{err}
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		errs = strict.Errors()
	}
	for _, err := range errs {
		path := ""
		if found := quoted.FindStringSubmatch(err.Error()); found != nil {
			path = found[1]
		}
		l.add(d, severityError, path, strings.ReplaceAll(err.Error(), "\n", " "))
	}
}

// readWorkload keeps a workload of a built-in kind that says its replicas, unless it cannot be read.
func (l *linter) readWorkload(header *metav1.PartialObjectMetadata, text []byte) {
	if _, builtIn := workload.BuiltIn(header.GroupVersionKind().GroupKind()); !builtIn {
		return
	}
	object, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	var content map[string]any
	if errors.Join(err, yaml.Unmarshal(text, &content)) != nil {
		return
	}
	_, saysReplicas, _ := unstructured.NestedFieldNoCopy(content, "spec", "replicas")
	if _, isJob := object.(*batchv1.Job); isJob || saysReplicas {
		key := keyIn(header.Namespace, workload.Owner{Kind: header.GroupVersionKind().GroupKind(), Name: header.Name})
		replicas, _ := workload.ReplicasNow(object)                                                     // every built-in kind tells
		ofPods, _, _ := unstructured.NestedStringMap(content, "spec", "template", "metadata", "labels") // it was decoded
		l.workloads[key] = known{object, header.Namespace, budget.Workload{Name: header.Kind + " " + header.Name, Replicas: replicas}, ofPods}
	}
}

func keyIn(namespace string, of workload.Owner) string {
	return namespace + "/" + of.Kind.String() + "/" + of.Name
}

// check checks all objects.
func (l *linter) check() {
	spec := field.NewPath("spec")
	dividing, sets := map[string]*document{}, []*sidecar.Policy{}
	for i := range l.objects {
		d := &l.objects[i].document
		o := l.objects[i].object
		name := cmp.Or(o.GetName(), strings.TrimSuffix(o.GetGenerateName(), "-"))
		meta := &metav1.ObjectMeta{Name: name, Labels: o.GetLabels(), Annotations: o.GetAnnotations()} // the namespace may be chosen later
		l.addErrors(d, apivalidation.ValidateObjectMeta(meta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata")))
		switch o := o.(type) {
		case *v1beta1.WorkloadSpread:
			l.checkSpread(d, o, dividing)
		case *unitedv1beta1.UnitedDeployment:
			policy, errs := united.Compile(o, spec)
			l.addErrors(d, slices.Concat(errs, united.ValidateCreate(o, spec)))
			if policy != nil {
				l.addWarnings(d, policy.Warnings)
			}
		case *federationv1alpha1.FederatedReplicaSet:
			_, errs := federation.Compile(o)
			l.addErrors(d, errs)
		case *rulesv1alpha1.SpreadRule:
			_, errs := lineage.CompileRule(o)
			l.addErrors(d, errs)
		case *rulesv1alpha1.ClusterSpreadRule:
			_, errs := lineage.CompileClusterRule(o)
			l.addErrors(d, errs)
		case *sidecarv1beta1.SidecarSet:
			policy, errs := sidecar.Compile(o)
			l.addErrors(d, errs)
			if policy != nil {
				l.addErrors(d, sidecar.Conflicts(policy, sets))
				sets = append(sets, policy)
			}
		case *policyv1beta1.PodUnavailableBudget:
			l.checkBudget(d, o, l.objects[:i])
		}
	}
}

// checkSpread checks a spread. dividing has the spread of each workload.
func (l *linter) checkSpread(d *document, spread *v1beta1.WorkloadSpread, dividing map[string]*document) {
	spec := field.NewPath("spec")
	policy, errs := subset.Compile(spread, spec)
	l.addErrors(d, errs)
	target := keyIn(spread.Namespace, workload.TargetOf(spread))
	if other := dividing[target]; other != nil && other.name != d.name { // one name in several files is one spread in several variants
		l.add(d, severityError, "spec.targetRef", fmt.Sprintf("WorkloadSpread %s in %s:%d divides the same workload, and a workload can have only one", other.name, other.file, other.node.Line))
	} else {
		dividing[target] = d
	}
	if policy == nil {
		return
	}
	l.addWarnings(d, policy.Warnings)
	of, found := l.workloads[target]
	if !found {
		return
	}
	if replicas, err := workload.Replicas(of.object, subset.ReplicaPaths(spread)); err == nil {
		l.addWarnings(d, policy.WarningsAt(replicas, workload.MaxUnavailable(of.object), spec))
		plan := policy.Plan(replicas)
		if _, unplaced := policy.Targets(&plan, replicas); unplaced > 0 && policy.WhenFull == v1beta1.WhenFullWait {
			l.add(d, severityWarning, "spec.subsets", fmt.Sprintf("the quotas hold %d of the %d replicas of %s %s; with whenFull: Wait the other pods wait until others end",
				replicas-unplaced, replicas, spread.Spec.TargetReference.Kind, spread.Spec.TargetReference.Name))
		}
	}
}

// checkBudget checks a budget beside those before it.
func (l *linter) checkBudget(d *document, pub *policyv1beta1.PodUnavailableBudget, before []located) {
	policy, errs := budget.Compile(pub)
	l.addErrors(d, slices.Concat(errs, budget.Refuse(pub)))
	if policy == nil {
		return
	}
	l.addWarnings(d, policy.Warnings)
	l.addWarnings(d, policy.WarningsAt(budget.Facts{Workloads: l.under(pub.Namespace, policy)}))
	for i := range before {
		other, is := before[i].object.(*policyv1beta1.PodUnavailableBudget)
		if !is || other.Namespace != pub.Namespace {
			continue
		}
		theirs, _ := budget.Compile(other)
		if theirs == nil {
			continue // it has been reported
		}
		if path, clash := policy.Clashes(theirs); clash {
			l.add(d, severityError, path.String(), fmt.Sprintf("overlaps with PodUnavailableBudget %s in %s:%d, and no pod may have two such budgets", before[i].name, before[i].file, before[i].node.Line))
		}
	}
}

// under are the workloads of the files whose pods a budget selects, in the order of their names.
func (l *linter) under(namespace string, policy *budget.Policy) (under []budget.Workload) {
	for _, key := range slices.Sorted(maps.Keys(l.workloads)) {
		if t := l.workloads[key]; t.namespace == namespace && policy.Selector.Matches(t.labels) {
			under = append(under, t.of)
		}
	}
	return under
}

// step is one part of the path of a field: a name, an index, or a key.
var step = regexp.MustCompile(`\[([^\]]*)\]|([^.\[\]]+)`)

// lineOf is the line of a field, or of the nearest one above it that is there.
func lineOf(node *yamlnodes.Node, path string) int {
	line := node.Line
	for _, part := range step.FindAllStringSubmatch(path, -1) {
		name := cmp.Or(part[1], part[2])
		at, value := fieldOf(node, name)
		if index, err := strconv.Atoi(name); err == nil && node.Kind == yamlnodes.SequenceNode && index < len(node.Content) {
			at, value = node.Content[index], node.Content[index]
		}
		if value == nil {
			break
		}
		line, node = at.Line, value
	}
	return line
}

// fieldOf is a field of a mapping, whose content are keys and values in turn. It is nil if there is none.
func fieldOf(node *yamlnodes.Node, name string) (key, value *yamlnodes.Node) {
	if node.Kind == yamlnodes.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				return node.Content[i], node.Content[i+1]
			}
		}
	}
	return nil, nil
}

// count is "1 thing" or "3 things".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
