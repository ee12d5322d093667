package scenario

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/crd/versions"
	"github.com/berth-project/berth/pkg/subset"
)

const (
	clusterFile  = "cluster.yaml"
	stepsFile    = "steps"
	objectSuffix = ".yaml"
)

// Scenario is a parsed file. Every reference in it is known to be valid.
type Scenario struct {
	// Name is the path or name that errors begin with.
	Name string
	// Intent is what the file says it shows.
	Intent string
	// Groups of nodes, in the order of the file.
	Groups []NodeGroup
	// Steps in the order in which they are taken.
	Steps []Step
}

// NodeGroup is a number of equal nodes.
type NodeGroup struct {
	// Name of the group. Its nodes are called name-0, name-1 and so on.
	Name  string `json:"name"`
	Count int    `json:"count"`
	// Labels of every node, in addition to kubernetes.io/hostname.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Allocatable of every node. Missing resources default to cpu 32, memory 256Gi, pods 110.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// Object is an object of the API as the file has it.
type Object = *unstructured.Unstructured

// Reference names an object of a scenario.
type Reference struct {
	Kind string
	Name string
}

// String is the reference as a step writes it: Deployment/web.
func (r Reference) String() string { return r.Kind + "/" + r.Name }

// ReferenceTo is the reference of an object that was parsed from a scenario.
func ReferenceTo(object Object) Reference {
	return Reference{Kind: object.GetKind(), Name: object.GetName()}
}

// kinds are the objects that a scenario may contain besides a WorkloadSpread of any version, with the types that check
// their fields.
var kinds = map[metav1.TypeMeta]func() any{
	{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"}:  func() any { return &appsv1.Deployment{} },
	{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "ReplicaSet"}:  func() any { return &appsv1.ReplicaSet{} },
	{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "StatefulSet"}: func() any { return &appsv1.StatefulSet{} },
	{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"}:        func() any { return &batchv1.Job{} },
}

const kindsInWords = "a WorkloadSpread, Deployment, ReplicaSet, StatefulSet or Job"

// Parse reads a scenario. It reports all errors at once. They begin with file:line, where file is name, and say what is
// wrong and what to do.
func Parse(name string, data []byte) (*Scenario, error) {
	archive := txtar.Parse(data)
	p := &parser{
		scenario: &Scenario{Name: name, Intent: strings.TrimSpace(string(archive.Comment))},
		objects:  map[string][]Object{},
		tables:   map[string]string{},
		unused:   map[string]int{},
		applied:  map[Reference]bool{},
	}
	if p.scenario.Intent == "" {
		p.fail(1, "no intent; say above the first section what the scenario shows")
	}
	// Steps refer to the other sections, so they are parsed last.
	var steps *txtar.File
	var stepsLine int
	seen := map[string]bool{}
	line := 1 + bytes.Count(archive.Comment, []byte("\n"))
	for i := range archive.Files {
		section := &archive.Files[i]
		switch first := line + 1; {
		case seen[section.Name]:
			p.fail(line, "there are two sections %q; rename one", section.Name)
		case section.Name == clusterFile:
			p.parseCluster(section.Data, first)
		case section.Name == stepsFile:
			steps, stepsLine = section, first
		case strings.HasSuffix(section.Name, objectSuffix):
			p.unused[section.Name] = line
			p.objects[section.Name] = p.parseObjects(section.Data, first)
		default:
			p.unused[section.Name] = line
			p.tables[section.Name] = normalize(string(section.Data))
		}
		seen[section.Name] = true
		line += 1 + bytes.Count(section.Data, []byte("\n"))
	}
	if !seen[clusterFile] {
		p.fail(1, "no section %q; add one with the groups of nodes", clusterFile)
	}
	if steps == nil {
		p.fail(1, "no section %q; add one with a command on each line", stepsFile)
	} else {
		p.parseSteps(steps.Data, stepsLine)
		p.reportUnused()
	}
	if len(p.errs) > 0 {
		slices.SortStableFunc(p.errs, func(a, b lineError) int { return a.line - b.line })
		all := make([]error, len(p.errs))
		for i := range p.errs {
			all[i] = p.errs[i]
		}
		return nil, errors.Join(all...)
	}
	return p.scenario, nil
}

// parser collects a scenario and all errors in it.
type parser struct {
	scenario *Scenario
	// objects and tables of the sections, by name.
	objects map[string][]Object
	tables  map[string]string
	// unused sections, with the line of each.
	unused map[string]int
	// applied are the objects that exist after the steps read so far.
	applied map[Reference]bool
	// undecoded is true if objects are missing because they could not be decoded. Then references to them cause no
	// further errors.
	undecoded bool
	errs      []lineError
}

type lineError struct {
	file    string
	line    int
	message string
}

func (e lineError) Error() string { return e.file + ":" + strconv.Itoa(e.line) + ": " + e.message }

func (p *parser) fail(line int, format string, args ...any) {
	p.errs = append(p.errs, lineError{p.scenario.Name, line, fmt.Sprintf(format, args...)})
}

func (p *parser) reportUnused() {
	for section, line := range p.unused {
		if strings.HasSuffix(section, objectSuffix) {
			p.fail(line, "section %q is never applied; apply it in a step or remove it", section)
		} else {
			p.fail(line, "section %q is never expected; name it in an expect step or remove it", section)
		}
	}
}

func (p *parser) parseCluster(data []byte, line int) {
	if err := yaml.UnmarshalStrict(data, &p.scenario.Groups); err != nil {
		p.fail(line, "%v; write a list of groups of nodes, each with name and count and, if you like, labels, taints, allocatable", err)
		return
	}
	names := map[string]bool{}
	for i := range p.scenario.Groups {
		group := &p.scenario.Groups[i]
		switch {
		case len(validation.IsDNS1123Label(group.Name)) > 0:
			p.fail(line, "group %q: nodes cannot be named so; name the group in lower-case letters, digits and '-'", group.Name)
		case names[group.Name]:
			p.fail(line, "there are two groups %q; rename one", group.Name)
		case group.Count < 0:
			p.fail(line, "group %q: count %d; use 0 or more", group.Name, group.Count)
		}
		names[group.Name] = true
	}
}

func (p *parser) parseObjects(data []byte, line int) []Object {
	var objects []Object
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			p.fail(line, "%v; separate objects by a line ---", err)
			break
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object, err := decode(document)
		if err != nil {
			p.fail(line, "%v", err)
			p.undecoded = true
			continue
		}
		objects = append(objects, object)
	}
	if len(objects) == 0 && len(p.errs) == 0 {
		p.fail(line, "no object; write %s, or remove the section", kindsInWords)
	}
	return objects
}

func decode(document []byte) (Object, error) {
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(document, &meta); err != nil {
		return nil, fmt.Errorf("%w; correct the YAML", err)
	}
	construct, found := kinds[meta]
	gvk := meta.GroupVersionKind()
	isSpread := gvk.GroupKind() == v1beta1.Kind.GroupKind() && versions.Served(gvk)
	if !found && !isSpread {
		return nil, fmt.Errorf("cannot play apiVersion %q, kind %q; use %s", meta.APIVersion, meta.Kind, kindsInWords)
	}
	object := &unstructured.Unstructured{}
	var typed any
	var err error
	if isSpread {
		typed, _, err = versions.Decode(document)
	} else {
		typed = construct()
		err = yaml.UnmarshalStrict(document, typed)
	}
	if err := errors.Join(err, yaml.Unmarshal(document, object)); err != nil {
		return nil, fmt.Errorf("%s: %w; correct the field", meta.Kind, err)
	}
	switch {
	case object.GetName() == "":
		return nil, fmt.Errorf("%s without metadata.name; name it", meta.Kind)
	case object.GetNamespace() != "":
		return nil, fmt.Errorf("%s has a metadata.namespace; leave it out, it is chosen where the scenario is played", ReferenceTo(object))
	}
	if spread, ok := typed.(*v1beta1.WorkloadSpread); ok {
		if _, errs := subset.Compile(spread, field.NewPath("spec")); len(errs) > 0 {
			return nil, fmt.Errorf("%s: %w; correct the spread", ReferenceTo(object), versions.ErrorInWords(gvk, errs.ToAggregate()))
		}
	}
	return object, nil
}

// normalize trims a table, so that empty lines may surround a section.
func normalize(table string) string {
	if table = strings.TrimSpace(table); table == "" {
		return ""
	}
	return table + "\n"
}

// Nodes of all groups, without pods. Every call creates new ones.
func (s *Scenario) Nodes() []*corev1.Node {
	var nodes []*corev1.Node
	for i := range s.Groups {
		nodes = append(nodes, s.Groups[i].nodes()...)
	}
	return nodes
}

// NodeNames of a group.
func (g *NodeGroup) NodeNames() []string {
	names := make([]string, g.Count)
	for i := range names {
		names[i] = g.Name + "-" + strconv.Itoa(i)
	}
	return names
}

func (g *NodeGroup) nodes() []*corev1.Node {
	var nodes []*corev1.Node
	for _, name := range g.NodeNames() {
		node := &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
			Spec:       corev1.NodeSpec{Taints: slices.Clone(g.Taints)},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{
					corev1.ResourceCPU:    resource.MustParse("32"),
					corev1.ResourceMemory: resource.MustParse("256Gi"),
					corev1.ResourcePods:   resource.MustParse("110"),
				},
			},
		}
		for key, value := range g.Labels {
			node.Labels[key] = value
		}
		for name, quantity := range g.Allocatable {
			node.Status.Allocatable[name] = quantity.DeepCopy()
		}
		node.Status.Capacity = node.Status.Allocatable.DeepCopy()
		nodes = append(nodes, node)
	}
	return nodes
}
