package install

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/harness"
)

var (
	auditLogs = flag.String("audit-logs", "", "directory with audit logs of test runs, by which the table of rights is checked")
	update    = flag.Bool("update", false, "write what the audit logs say into the table of rights")
)

// rightsTable lists every right of every component, with the tests that use it or the reason why it is granted. make test-rights writes this file.
const rightsTable = "rights.txt"

// right is an operation that a component may do.
type right struct {
	// component is the name of the service account in berth-system.
	component string
	verb      string
	// resource is group/resource, or only the resource for the core group. "*" is possible as in a rule.
	resource string
}

func (r right) String() string { return fmt.Sprintf("%-18s %-7s %s", r.component, r.verb, r.resource) }

// covers is true if the operation needs this right. Get, list and watch count as one right. A cache uses those that the API server supports, and none
// of them shows more than the others.
func (r right) covers(done right) bool {
	reading := slices.Contains([]string{"get", "list", "watch"}, r.verb) && (done.verb == "list" || done.verb == "watch")
	if r.component != done.component || r.verb != done.verb && !reading {
		return false
	}
	if subresource, everywhere := strings.CutPrefix(r.resource, "*/*/"); everywhere {
		return strings.HasSuffix(done.resource, "/"+subresource)
	}
	return r.resource == done.resource
}

// event is a line of an audit log.
type event struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ImpersonatedUser struct {
		Username string `json:"username"`
	} `json:"impersonatedUser"`
	ObjectRef struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	RequestURI  string            `json:"requestURI"`
	Annotations map[string]string `json:"annotations"`
}

// right returns what a component did. Its component is "" if another client did it.
func (e event) right() right {
	user := e.User.Username
	if e.ImpersonatedUser.Username != "" {
		user = e.ImpersonatedUser.Username
	}
	component, ok := strings.CutPrefix(user, "system:serviceaccount:"+berthSystem+":")
	if !ok {
		return right{}
	}
	return right{component, e.Verb, resourceName(e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Subresource)}
}

func resourceName(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "/")
}

// eachEvent reads an audit log.
func eachEvent(t *testing.T, path string, consider func(event)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // half a line, because the process was killed
		}
		consider(e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// expectNothingForbidden fails if a component sent a request that its roles do not allow.
func expectNothingForbidden(t *testing.T, auditLog string) {
	t.Helper()
	forbidden, asked := map[string]bool{}, 0
	eachEvent(t, auditLog, func(e event) {
		r := e.right()
		if r.component == "" {
			return
		}
		asked++
		if e.Annotations["authorization.k8s.io/decision"] == "forbid" {
			forbidden[fmt.Sprintf("%s %s", r, e.RequestURI)] = true
		}
	})
	if asked == 0 {
		t.Error("no component has asked for anything: the audit log does not show who asks")
	}
	for _, what := range slices.Sorted(maps.Keys(forbidden)) {
		t.Errorf("was forbidden: %s", what)
	}
}

// optional are the objects of components that are off by default, as sandboxes have them.
func optional(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, manifest := range slices.Concat(manifests.Sidecars(), manifests.Rules(), manifests.FederationHub()) {
		objects, err := harness.Documents(string(manifest))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, objects...)
	}
	return all
}

// grantedRights returns the rights of Berth's own roles, with those of optional components, by component. Berth does not define kube-scheduler's role and other default roles.
func grantedRights(t *testing.T) map[right]bool {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	type binding struct{ role, component string }
	var bindings []binding
	aggregated := map[string][]metav1.LabelSelector{}
	var clusterRoles []rbacv1.ClusterRole
	for _, object := range append(kustomized(t, "manifests"), optional(t)...) {
		name := object.GetKind() + "/" + object.GetName()
		switch object.GetKind() {
		case "Role", "ClusterRole":
			var role rbacv1.ClusterRole
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
				t.Fatal(err)
			}
			rules[name] = role.Rules
			if role.AggregationRule != nil {
				aggregated[name] = role.AggregationRule.ClusterRoleSelectors
			}
			clusterRoles = append(clusterRoles, role)
		case "RoleBinding", "ClusterRoleBinding":
			var bound rbacv1.ClusterRoleBinding
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &bound); err != nil {
				t.Fatal(err)
			}
			for _, subject := range bound.Subjects {
				if subject.Kind != "ServiceAccount" || subject.Namespace != berthSystem {
					t.Errorf("%s is for %+v", name, subject)
				}
				bindings = append(bindings, binding{bound.RoleRef.Kind + "/" + bound.RoleRef.Name, subject.Name})
			}
		}
	}
	for name, selectors := range aggregated {
		for i := range selectors {
			selector, err := metav1.LabelSelectorAsSelector(&selectors[i])
			if err != nil {
				t.Fatal(err)
			}
			for _, role := range clusterRoles {
				if selector.Matches(labels.Set(role.Labels)) {
					rules[name] = append(rules[name], role.Rules...)
				}
			}
		}
	}
	granted := map[right]bool{}
	for _, b := range bindings {
		for _, rule := range rules[b.role] {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						granted[right{b.component, verb, resourceName(group, resource)}] = true
					}
				}
			}
		}
	}
	return granted
}

// TestSandboxesHaveTheRolesThatAreInstalled, and no others. All tests on a sandbox run as the users and groups of service accounts. So the roles
// decide what they may do. cmd/sandbox/product tests that components run as these users.
func TestSandboxesHaveTheRolesThatAreInstalled(t *testing.T) {
	roles := func(objects []*unstructured.Unstructured) []*unstructured.Unstructured {
		return slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
			return object.GroupVersionKind().Group != rbacv1.GroupName
		})
	}
	var ofSandbox []*unstructured.Unstructured
	for _, manifest := range manifests.Install() {
		objects, err := harness.Documents(string(manifest))
		if err != nil {
			t.Fatal(err)
		}
		ofSandbox = append(ofSandbox, objects...)
	}
	expectSame(t, roles(kustomized(t, "manifests")), roles(ofSandbox))
}

// entry is a line of the table.
type entry struct {
	right
	// why is "used by" and the suites, or "not used:" and a reason.
	why string
}

var entryLine = regexp.MustCompile(`^(\S+)\s+(\S+)\s+(\S+)\s*(.*)$`)

func readRightsTable(t *testing.T) (header []string, entries []entry) {
	t.Helper()
	content, err := os.ReadFile(rightsTable)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			header = append(header, line)
			continue
		}
		fields := entryLine.FindStringSubmatch(line)
		if fields == nil {
			t.Fatalf("%s: %q is not: component verb resource reason", rightsTable, line)
		}
		entries = append(entries, entry{right{fields[1], fields[2], fields[3]}, fields[4]})
	}
	return header, entries
}

const usedBy, notUsed = "used by ", "not used: "

// TestEveryRightHasAUse: each right of a role needs a line in the table, and each line needs a right. With -audit-logs the test also checks which
// suites use the right. With -update it writes them.
func TestEveryRightHasAUse(t *testing.T) {
	granted := grantedRights(t)
	header, entries := readRightsTable(t)
	if *auditLogs != "" {
		entries = evidence(t, granted, entries)
		if *update {
			writeRightsTable(t, header, entries)
		}
	}
	listed := map[right]bool{}
	for _, e := range entries {
		listed[e.right] = true
		if !granted[e.right] {
			t.Errorf("%s is in %s and is not granted", e.right, rightsTable)
		}
		if len(e.why) <= len(usedBy) || !strings.HasPrefix(e.why, usedBy) && !strings.HasPrefix(e.why, notUsed) {
			t.Errorf("%s: no test uses it; take it away, or say in %s why it is granted: %q", e.right, rightsTable, notUsed+"…")
		}
	}
	for r := range granted {
		if !listed[r] {
			t.Errorf("%s is granted and is not in %s: run make test-rights", r, rightsTable)
		}
	}
}

// evidence returns the rights with the suites whose audit logs show their use. If no log shows a use, it keeps the previous reason.
func evidence(t *testing.T, granted map[right]bool, before []entry) []entry {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(*auditLogs, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no audit logs in %s: %v", *auditLogs, err)
	}
	suites := map[right]map[string]bool{}
	for _, log := range logs {
		suite, _, _ := strings.Cut(filepath.Base(log), "-")
		done := map[right]bool{}
		eachEvent(t, log, func(e event) {
			if e.Annotations["authorization.k8s.io/decision"] == "allow" {
				done[e.right()] = true
			}
		})
		for r := range granted {
			for d := range done {
				if r.covers(d) {
					if suites[r] == nil {
						suites[r] = map[string]bool{}
					}
					suites[r][suite] = true
				}
			}
		}
	}
	reasons := map[right]string{}
	for _, e := range before {
		if strings.HasPrefix(e.why, notUsed) {
			reasons[e.right] = e.why
		}
	}
	var entries []entry
	for r := range granted {
		why := reasons[r]
		if len(suites[r]) > 0 {
			why = usedBy + strings.Join(slices.Sorted(maps.Keys(suites[r])), ", ")
		}
		entries = append(entries, entry{r, why})
	}
	return entries
}

func writeRightsTable(t *testing.T, header []string, entries []entry) {
	t.Helper()
	var lines []string
	for _, e := range entries {
		lines = append(lines, fmt.Sprintf("%-75s %s", e.right, e.why))
	}
	slices.Sort(lines)
	if err := os.WriteFile(rightsTable, []byte(strings.Join(append(header, lines...), "\n")+"\n"), 0o644); err != nil { //nolint:gosec // a file of the repository
		t.Fatal(err)
	}
}
