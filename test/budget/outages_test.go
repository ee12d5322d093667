package budget

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-project/berth/manifests"
	"github.com/berth-project/berth/test/harness"
)

// outages are the columns of the table in docs/operations/failure-modes.md. Calling the function begins the outage. Calling its result ends the
// outage.
var outages = map[string]func(*testing.T) (end func()){
	"webhook down":        during(func(i *installation, is bool) { i.down = is }),
	"webhook slow":        during(func(i *installation, is bool) { i.slow = is }),
	"certificate expired": during((*installation).expire),
	"leader down": func(t *testing.T) func() {
		t.Helper()
		berth.stopController()
		return func() { withController(t, 0) }
	},
}

func during(set func(*installation, bool)) func(*testing.T) func() {
	return func(*testing.T) func() {
		berth.set(func(i *installation) { set(i, true) })
		return func() { berth.set(func(i *installation) { set(i, false) }) }
	}
}

// TestWhatGoesOnDuringAnOutage tries every cell of the table in docs/operations/failure-modes.md. The table contains the expected results. The
// operations have no effect, so no cell influences the next.
func TestWhatGoesOnDuringAnOutage(t *testing.T) {
	harness.Long(t)
	guarded := web(t, 2, "maxUnavailable: 0")
	required := namespace(t)
	apply(t, guarded, "{apiVersion: v1, kind: Pod, metadata: {name: beside, labels: {app: beside}}, spec: {containers: [{name: main, image: web:1}]}}")
	label := []byte(`{"metadata":{"labels":{"berth.dev/admission":"required"}}}`)
	if _, err := the.Client.CoreV1().Namespaces().Patch(t.Context(), required, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	admitPods(t, required)

	protected, beside := &corev1.Pod{}, podNamed(t, guarded, "beside")
	for _, pod := range pods(t, guarded) {
		if pod.Name != beside.Name {
			protected = &pod
		}
	}
	evict := func(pod *corev1.Pod) func(context.Context) error {
		return func(ctx context.Context) error {
			return the.Client.CoreV1().Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, DeleteOptions: &metav1.DeleteOptions{DryRun: dryRun},
			})
		}
	}
	remove := func(pod *corev1.Pod) func(context.Context) error {
		return func(ctx context.Context) error {
			return the.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{DryRun: dryRun})
		}
	}
	relabel := func(pod *corev1.Pod, key string) func(context.Context) error {
		return func(ctx context.Context) error {
			body := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"another"}}}`, key)
			_, err := the.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, body, metav1.PatchOptions{DryRun: dryRun})
			return err
		}
	}
	operations := map[string]func(context.Context) error{
		"create a pod": func(ctx context.Context) error { return create(ctx, guarded) },
		"create a pod where admission is required":        func(ctx context.Context) error { return create(ctx, required) },
		"evict a protected pod":                           evict(protected),
		"evict another pod":                               evict(beside),
		"delete a protected pod":                          remove(protected),
		"delete another pod":                              remove(beside),
		"change a label that a budget of the pod goes by": relabel(protected, "app"),
		"change another label of a protected pod":         relabel(protected, "role"),
		"change a label of another pod":                   relabel(beside, "app"),
	}
	table := documentedOutages(t)
	if len(table) != len(outages) {
		t.Errorf("%d columns in the table, want %d", len(table), len(outages))
	}
	for outage, cells := range table {
		t.Run(outage, func(t *testing.T) {
			begin := outages[outage]
			if begin == nil || len(cells) != len(operations) {
				t.Fatalf("%d operations, want %d", len(cells), len(operations))
			}
			defer begin(t)()
			var trying sync.WaitGroup
			defer trying.Wait() // before the outage ends
			for operation, cell := range cells {
				try := operations[operation]
				if try == nil {
					t.Fatalf("there is no operation %q", operation)
				}
				trying.Go(func() {
					started := time.Now()
					got := answerOf(try(t.Context()))
					// The duration is the least that the API server waits. A busy machine may take longer.
					want, after, _ := strings.Cut(cell, ", after ")
					least, _ := time.ParseDuration(strings.ReplaceAll(after, " ", ""))
					if took := time.Since(started); got != want || took < least {
						t.Errorf("%s: %s after %s, want %s", operation, got, took, cell)
					}
				})
			}
		})
	}
}

// answerOf returns the API server's answer in the words of the table.
func answerOf(err error) string {
	switch {
	case err == nil:
		return "goes"
	case isRefused(err):
		return "429"
	case apierrors.IsForbidden(err):
		return "403"
	case apierrors.IsInternalError(err):
		return "500"
	default:
		return err.Error()
	}
}

// documentedOutages returns the cells of the table by outage and operation.
func documentedOutages(t *testing.T) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "operations", "failure-modes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## During an outage\n")
	if !found {
		t.Fatal("docs/operations/failure-modes.md has no table of outages")
	}
	var header []string
	table := map[string]map[string]string{}
	for line := range strings.SplitSeq(section, "\n") {
		if !strings.HasPrefix(line, "|") {
			if header != nil {
				break
			}
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		switch {
		case header == nil:
			header = cells
		case strings.HasPrefix(cells[0], "---"):
		default:
			for i, cell := range cells[1:] {
				outage := header[i+1]
				if table[outage] == nil {
					table[outage] = map[string]string{}
				}
				table[outage][cells[0]] = cell
			}
		}
	}
	return table
}

// create tries to create a pod that a spread may divide.
func create(ctx context.Context, namespace string) error {
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", UID: "8f0b9a0e-0000-4000-8000-000000000000", Controller: ptr.To(true)}
	_, err := the.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "made-", OwnerReferences: []metav1.OwnerReference{owner}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:1"}}},
	}, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// admitPods makes the API server call the webhook for new pods as manifests/webhook says, until the test ends. The installation admits all pods.
func admitPods(t *testing.T, required string) {
	t.Helper()
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(manifests.MutatingWebhook, &configuration); err != nil {
		t.Fatal(err)
	}
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].ClientConfig = berth.clientConfig(podsPath)
	}
	client := the.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := client.Create(t.Context(), &configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Delete(context.Background(), configuration.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	berth.set(func(i *installation) { i.down = true })
	defer berth.set(func(i *installation) { i.down = false })
	waitFor(t, "the API server to ask about new pods", func(ctx context.Context) (string, error) {
		return map[bool]string{true: "it does not"}[create(ctx, required) == nil], nil
	})
}
