package descheduler

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-project/berth/internal/sandbox"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/descheduler"
	"github.com/berth-project/berth/pkg/descheduler/cycle"
	"github.com/berth-project/berth/test/harness"
)

// tryToEvict asks the API server once whether a pod could be evicted.
func tryToEvict(ctx context.Context, ns, pod string) error {
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
	return the.Client.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace(ns).Resource("pods").Name(pod).SubResource("eviction").
		Timeout(5 * time.Second).MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// results counts how the evictions of a report ended.
func results(report *cycle.Report) map[string]int {
	counts := map[string]int{}
	for _, line := range report.Lines {
		if line.Result != "" {
			counts[string(line.Result)]++
		}
	}
	return counts
}

// Case 31: the PodDisruptionBudget controller has not seen a budget yet, so the API server answers 429 with Retry-After 10 seconds, again and again.
// A strategy that evicts without asking first still finishes at once. Berth's strategies do not even send such evictions.
func TestABudgetThatAsksToComeBackHoldsNobodyUp(t *testing.T) {
	harness.Long(t)
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=6 b=-")+"---"+workload("ReplicaSet", 6, "100m")+`---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}
`)
	expectLayout(t, ns, "a=6")
	setQuota(t, ns, 3)
	oldEnough(t, ns)
	pods := atRest(t, ns, 6)
	budgets := the.Client.PolicyV1().PodDisruptionBudgets(ns)
	waitFor(t, "the PodDisruptionBudget", func(ctx context.Context) (string, error) {
		pdb, err := budgets.Get(ctx, "web", metav1.GetOptions{})
		if err != nil || pdb.Status.ObservedGeneration == pdb.Generation && pdb.Status.DisruptionsAllowed == 1 {
			return "", err
		}
		return fmt.Sprint(pdb.Status), nil
	})
	signal := func(sig syscall.Signal) {
		if err := the.Sandbox.Signal(sandbox.ControllerManager, 0, sig); err != nil {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	if _, err := budgets.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":2}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if seconds, asks := apierrors.SuggestsClientDelay(tryToEvict(t.Context(), ns, pods[0].Name)); !asks || seconds < 10 {
		t.Fatalf("the budget asks to come back in %d seconds", seconds)
	}
	watch := watchDisruptions(t, ns, 6)
	began := time.Now()
	_, err := descheduleOnce(t, lifeTime(ns, ""))
	if took := time.Since(began); descheduler.ExitCode(err) != 2 || took > 30*time.Second { // with the waits it would be a minute at least
		t.Errorf("exit code %d after %s: %v", descheduler.ExitCode(err), took, err)
	}
	moved, kept := mustDeschedule(t, policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%"))
	if len(moved) != 0 || kept[v1beta1.ReasonBudgetExhausted] != 3 {
		t.Errorf("moved %+v, kept %v", moved, kept)
	}
	watch.expect(t, 0)
}

// A spread with unreadable data is reported. The cycle processes the other spreads.
func TestASpreadThatCannotBeReadStopsNoOther(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	unreadable := strings.NewReplacer("name: web}", "name: unreadable}", "subsets:", "targetFilter: {replicasPathList: [spec.nothing]}\n  subsets:")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=3 b=-")+"---"+workload("ReplicaSet", 3, "100m")+"---"+
		unreadable.Replace(spreadOf(ns, "Deployment", adaptive, "a=3 b=-"))+"---"+unreadable.Replace(workload("Deployment", 0, "100m")))
	expectLayout(t, ns, "a=3")
	setQuota(t, ns, 2)
	report, err := descheduleOnce(t, policyOf(ns, enforce, ""))
	if descheduler.ExitCode(err) != 1 || !strings.Contains(fmt.Sprint(err), ns+"/unreadable") {
		t.Errorf("exit code %d: %v", descheduler.ExitCode(err), err)
	}
	var got []string
	for _, line := range report.Lines {
		got = append(got, fmt.Sprintf("%s: %s %s", line.Spread, line.Verdict, line.Reason))
	}
	if want := "[unreadable: Keep TargetUnreadable web: Move OverQuota]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	expectLayout(t, ns, "a=2 b=1")
}

// The API server answers the eviction of a pod with two PodDisruptionBudgets with an internal error. The cycle does not try it, so it does not give
// up.
func TestAPodOfSeveralDisruptionBudgetsIsNotTried(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	text := spreadOf(ns, "ReplicaSet", adaptive, "a=5 b=-") + "---" + workload("ReplicaSet", 5, "100m")
	for _, name := range []string{"one", "two"} {
		text += "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: " + name + "}\nspec: {maxUnavailable: 5, selector: {matchLabels: {app: web}}}\n"
	}
	apply(t, ns, text)
	expectLayout(t, ns, "a=5")
	pods := atRest(t, ns, 5)
	waitFor(t, "the API server to fail", func(ctx context.Context) (string, error) {
		if err := tryToEvict(ctx, ns, pods[0].Name); !strings.Contains(fmt.Sprint(err), "more than one PodDisruptionBudget") {
			return fmt.Sprint(err), nil
		}
		return "", nil
	})
	setQuota(t, ns, 1)
	moved, kept := mustDeschedule(t, policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%"))
	if len(moved) != 0 || kept[v1beta1.ReasonSeveralBudgets] != 4 {
		t.Errorf("moved %+v, kept %v", moved, kept)
	}
}

// breakEvictions makes the API server call a webhook at the address for every eviction in the namespace. Without an answer the eviction fails. Call
// mend to stop that.
func breakEvictions(t *testing.T, ns, address, pod string) (mend func()) {
	t.Helper()
	name := "broken-" + ns
	apply(t, "", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %[1]s}
webhooks:
- name: broken.berth.dev
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 30
  clientConfig: {url: "https://%[2]s/"}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[3]s}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/eviction]}]
`, name, address, ns))
	configurations := the.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	waitFor(t, "evictions to fail", func(ctx context.Context) (string, error) {
		if err := tryToEvict(ctx, ns, pod); err == nil {
			return "they do not", nil
		}
		return "", nil
	})
	mend = func() {
		t.Helper()
		if err := configurations.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(mend)
	return mend
}

// Case 34: another webhook fails every eviction, or does not answer. After three failures the cycle gives up, and no pod is evicted. The next cycle
// does the work when the webhook has been removed.
func TestACycleGivesUpWhenEvictionsFail(t *testing.T) {
	harness.Long(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for name, tc := range map[string]struct {
		address string
		// want are the results of the first three evictions.
		want map[string]bool
	}{
		"a webhook that is not there": {"127.0.0.1:1", map[string]bool{"Failed": true}},
		// Either the API server or the descheduler ends the request first.
		"a webhook that does not answer": {silent.Addr().String(), map[string]bool{"Failed": true, "Unanswered": true}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNamespace(t)
			pool(t, ns, "a", "32")
			pool(t, ns, "b", "32")
			apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=6 b=-")+"---"+workload("ReplicaSet", 6, "100m"))
			expectLayout(t, ns, "a=6")
			setQuota(t, ns, 1)
			pods := atRest(t, ns, 6)
			mend := breakEvictions(t, ns, tc.address, pods[0].Name)
			watch := watchDisruptions(t, ns, 6)
			policy := policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 100%")
			began := time.Now()
			report, err := descheduleOnce(t, policy, func(o *descheduler.Options) { o.EvictionTimeout = time.Second })
			if took := time.Since(began); descheduler.ExitCode(err) != 2 || took > 30*time.Second { // one call may take as long as the webhook's timeout
				t.Errorf("exit code %d after %s: %v", descheduler.ExitCode(err), took, err)
			}
			got := results(report)
			broken := 0
			for result := range tc.want {
				broken += got[result]
			}
			if broken != 3 || got["Tripped"] != 2 {
				t.Errorf("evictions ended as %v", got)
			}
			watch.expect(t, 0)
			if moves := spreadStatus(t, ns).Moves; got["Unanswered"] == 0 && len(moves) != 0 {
				t.Errorf("the status remembers %+v", moves)
			}

			mend()
			waitFor(t, "evictions to work again", func(ctx context.Context) (string, error) {
				if err := tryToEvict(ctx, ns, pods[0].Name); err != nil {
					return err.Error(), nil
				}
				return "", nil
			})
			// A pod whose eviction has an unknown result counts as gone for two minutes.
			for range 3 {
				if _, err := descheduleOnce(t, policy, at(time.Now().Add(3*time.Minute))); err != nil {
					t.Fatal(err)
				}
				atRest(t, ns, 6)
			}
			expectLayout(t, ns, "a=1 b=5")
			if n := watch.count(); n != 5 {
				t.Errorf("%d pods were disrupted, want 5", n)
			}
		})
	}
}

// proxy makes the descheduler use a proxy that changes the API server's answers. It keeps the descheduler's service account.
func proxy(t *testing.T, change func(*http.Response) error) func(*descheduler.Options) {
	t.Helper()
	config := rest.CopyConfig(the.Sandbox.RESTConfig())
	config.Impersonate = rest.ImpersonationConfig{UserName: serviceAccount, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"}}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		ModifyResponse: change,
		FlushInterval:  -1, // flush at once, for watches
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return func(o *descheduler.Options) { o.Server.ClientConnection.Kubeconfig = kubeconfigOf(t, server.URL) }
}

// The API server carries out evictions, but the answers are lost. From then on the pods count as gone, so no other pod goes in their place.
func TestAnEvictionWhoseAnswerIsLostCounts(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "a", "32")
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", adaptive, "a=6 b=-")+"---"+workload("ReplicaSet", 6, "100m"))
	expectLayout(t, ns, "a=6")
	setQuota(t, ns, 1)
	watch := watchDisruptions(t, ns, 0)
	policy := policyOf(ns, enforce, "settleTime: 0s, maxUnavailable: 2")
	lost := proxy(t, func(answer *http.Response) error {
		if strings.HasSuffix(answer.Request.URL.Path, "/eviction") {
			<-answer.Request.Context().Done()
		}
		return nil
	})
	report, err := descheduleOnce(t, policy, lost, func(o *descheduler.Options) { o.EvictionTimeout = time.Second })
	if got := results(report); descheduler.ExitCode(err) != 2 || got["Unanswered"] != 2 || len(got) != 1 {
		t.Fatalf("exit code %d, %v: %v", descheduler.ExitCode(err), got, err)
	}
	if n := watch.count(); n != 2 {
		t.Fatalf("%d pods were evicted without an answer", n)
	}
	if moves := spreadStatus(t, ns).Moves; len(moves) != 1 || len(moves[0].InFlight) != 2 {
		t.Errorf("the status remembers %+v", moves)
	}
	for range 2 {
		atRest(t, ns, 6)
		mustDeschedule(t, policy)
	}
	expectLayout(t, ns, "a=1 b=5")
	watch.expect(t, 5)
}

// The API server's clock decides. A descheduler on a machine with a slow clock does not wait longer. One with a fast clock does not act sooner.
func TestTheAPIServersClockCounts(t *testing.T) {
	ns := newNamespace(t)
	pool(t, ns, "b", "32")
	apply(t, ns, spreadOf(ns, "ReplicaSet", "{type: Adaptive, adaptive: {rescheduleCriticalSeconds: 600}}", "a!patched=- b!patched=-")+"---"+workload("ReplicaSet", 1, "100m"))
	waitFor(t, "an unschedulable pod", func(ctx context.Context) (string, error) {
		_, missing, err := unschedulablePod(ctx, ns)
		return missing, err
	})
	shifted := func(by time.Duration) func(*descheduler.Options) {
		return proxy(t, func(answer *http.Response) error {
			date, err := http.ParseTime(answer.Header.Get("Date"))
			if err != nil {
				return err
			}
			answer.Header.Set("Date", date.Add(by).UTC().Format(http.TimeFormat))
			return nil
		})
	}
	if moved, kept := mustDeschedule(t, policyOf(ns, unschedulable, ""), shifted(0)); len(moved)+len(kept) != 0 {
		t.Errorf("by the time that it is: moved %+v, kept %v", moved, kept)
	}
	moved, _ := mustDeschedule(t, policyOf(ns, unschedulable, ""), shifted(time.Hour))
	if len(moved) != 1 || moved[0].Reason != v1beta1.ReasonUnschedulableTooLong {
		t.Errorf("an hour later for the API server: moved %+v", moved)
	}
	expectLayout(t, ns, "b=1")
	if moves := spreadStatus(t, ns).Moves; len(moves) != 1 || time.Until(moves[0].Time.Time).Round(10*time.Minute) != time.Hour {
		t.Errorf("the status remembers %+v", moves)
	}
}
