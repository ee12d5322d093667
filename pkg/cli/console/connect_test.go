package console

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
)

// apiServer answers some paths as an API server does, and all others as one without the kind. With answers it knows
// spreads.
func apiServer(t *testing.T, answers map[string]string) *Cluster {
	t.Helper()
	if answers == nil {
		answers = map[string]string{"/apis": `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "apps", "versions": [{"groupVersion": "apps/v1", "version": "v1"}]}]}`}
	} else {
		answers["/apis"] = `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "apps.kruise.io", "versions": [{"groupVersion": "apps.kruise.io/v1beta1", "version": "v1beta1"}]}]}`
		answers["/apis/apps.kruise.io/v1beta1"] = `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps.kruise.io/v1beta1", "resources": [{"name": "workloadspreads", "namespaced": true, "kind": "WorkloadSpread"}]}`
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, found := answers[r.URL.Path]
		if !found {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.Contains(answer, "NotFound") {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	root, flags := NewRoot("test", "", genericiooptions.NewTestIOStreamsDiscard())
	if err := root.ParseFlags([]string{"--server", server.URL, "-n", "shop"}); err != nil {
		t.Fatal(err)
	}
	cluster, err := Connect(flags)
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

const spreads = "/apis/apps.kruise.io/v1beta1/namespaces/shop/workloadspreads"

func TestAClusterWithoutTheKindIsNoClusterWithoutTheObject(t *testing.T) {
	const advice = "install Berth's CRDs"
	key := client.ObjectKey{Namespace: "shop", Name: "web"}
	without := apiServer(t, nil)
	if err := without.List(t.Context(), &v1beta1.WorkloadSpreadList{}, client.InNamespace("shop")); err == nil || !strings.Contains(Advise(err), advice) {
		t.Errorf("list: %v", err)
	}
	if err := without.Get(t.Context(), key, &v1beta1.WorkloadSpread{}); err == nil || apierrors.IsNotFound(err) || !strings.Contains(Advise(err), advice) {
		t.Errorf("get: %v", err)
	}
	if err := without.List(t.Context(), &federationv1alpha1.FederatedReplicaSetList{}, client.InNamespace("shop")); err == nil || !strings.Contains(Advise(err), "does not know FederatedReplicaSets") {
		t.Errorf("another kind: %v, %s", err, Advise(err))
	}
	with := apiServer(t, map[string]string{
		spreads + "/web": `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound", "message": "it does not exist"}`})
	if err := with.Get(t.Context(), key, &v1beta1.WorkloadSpread{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v", err)
	}
}

func TestPodsAreNamedAsWithKubectl(t *testing.T) {
	for args, want := range map[string]string{"web-1": "web-1", "pod/web-1": "web-1", "pod web-1": "web-1", "po/web-1": "web-1", "pods web-1 web-2": "web-1 web-2", "a pod/b": "a b", "": "", "pod": "",
		"node/web-1": "", "pod/": "", "pod a/b": ""} {
		if got, err := Names(strings.Fields(args), Pods); err == nil && strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", args, got, err)
		}
	}
}

// Names are completed at every place of the command line, after a type too, and none twice.
func TestNamesAreCompleted(t *testing.T) {
	cluster := apiServer(t, map[string]string{
		spreads: `{"kind": "WorkloadSpreadList", "apiVersion": "apps.kruise.io/v1beta1", "metadata": {}, "items": [{"metadata": {"name": "api"}}, {"metadata": {"name": "web"}}]}`})
	root, flags := NewRoot("test", "", genericiooptions.NewTestIOStreamsDiscard())
	if err := root.ParseFlags([]string{"--server", cluster.Config.Host, "-n", "shop"}); err != nil {
		t.Fatal(err)
	}
	root.SetContext(t.Context())
	complete := CompleteNames(flags, 2, Spreads, United, SidecarSets)
	for line, want := range map[string]string{"": "api web", "api ": "web", "ws ": "api web", "ws web ": "api", "ws/": "ws/api ws/web", "ws/api ws/": "ws/web", "sidecarset ": "", "node/": ""} {
		args := strings.Split(line, " ")
		if got, _ := complete(root, args[:len(args)-1], args[len(args)-1]); strings.Join(got, " ") != want {
			t.Errorf("%q is completed with %q, want %q", line, got, want)
		}
	}
}

// What programs read is versioned: an object, or a list of them.
func TestWhatProgramsRead(t *testing.T) {
	type thing struct {
		Name string `json:"name"`
	}
	for format, want := range map[string]string{
		"json": "{\n  \"apiVersion\": \"cli.berth.dev/v1\",\n  \"items\": [\n    {\n      \"apiVersion\": \"cli.berth.dev/v1\",\n      \"kind\": \"Thing\",\n      \"name\": \"a\"\n    }\n  ],\n  \"kind\": \"ThingList\"\n}\n",
		"yaml": "apiVersion: cli.berth.dev/v1\nitems:\n- apiVersion: cli.berth.dev/v1\n  kind: Thing\n  name: a\nkind: ThingList\n",
		"name": "things/a\n", "jsonpath={.items[*].name}": "a", "wide": "",
	} {
		var o Output
		var out strings.Builder
		if err := o.Set(format); err != nil {
			t.Fatal(err)
		}
		if done, err := o.Structured(&out, "Thing", []thing{{"a"}}, "things/a"); done != (format != "wide") || err != nil || out.String() != want {
			t.Errorf("%s: %v, printed %q, want %q", format, err, out.String(), want)
		}
	}
	one := Output{Format: "yaml"}
	var out strings.Builder
	if _, err := one.Structured(&out, "Thing", thing{"a"}); err != nil || out.String() != "apiVersion: cli.berth.dev/v1\nkind: Thing\nname: a\n" {
		t.Errorf("one: %v, %q", err, out.String())
	}
	for _, format := range []string{"xml", "jsonpath={", "jsonpath"} {
		if err := new(Output).Set(format); err == nil {
			t.Errorf("-o %s is accepted", format)
		}
	}
}
