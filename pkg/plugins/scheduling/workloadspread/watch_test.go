package workloadspread

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	"github.com/berth-project/berth/pkg/ledger"
)

// TestTheCacheOfSpreadsLacksWhatNobodyReads: it contains the spec and what else decides the policy. It omits managedFields and kubectl's copy of the object.
func TestTheCacheOfSpreadsLacksWhatNobodyReads(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid", Generation: 3, ResourceVersion: "5", CreationTimestamp: metav1.NewTime(time.Unix(1, 0)),
		Labels: map[string]string{"app": "web"}}
	asStored := func(object metav1.Object) {
		object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}})
		annotations := map[string]string{corev1.LastAppliedConfigAnnotation: "long"}
		for key, value := range object.GetAnnotations() {
			annotations[key] = value
		}
		object.SetAnnotations(annotations)
	}

	spread := &v1beta1.WorkloadSpread{TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "WorkloadSpread"}, ObjectMeta: meta,
		Spec: v1beta1.WorkloadSpreadSpec{Subsets: []v1beta1.Subset{{Name: "a"}}}}
	stored := spread.DeepCopy()
	asStored(stored)
	stored.Status = v1beta1.WorkloadSpreadStatus{ObservedGeneration: 3, Summary: "a 1"}
	t.Run("spreads", func(t *testing.T) { expectCached(t, stored, spread) })

	spread = spread.DeepCopy()
	spread.Annotations, spread.Status.Compatibility = map[string]string{v1beta1.CompatibilityAnnotation: "none"}, v1beta1.CompatibleWithKruise
	spread.Status.ReplicasPathList = []string{"spec.workers"}
	stored = spread.DeepCopy()
	asStored(stored)
	stored.Status.Summary = "a 1"
	t.Run("compatible spreads", func(t *testing.T) { expectCached(t, stored, spread) })
}

// expectCached fails unless an informer that reads the first object has the second in its cache.
func expectCached(t *testing.T, stored, want *v1beta1.WorkloadSpread) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/apis/apps.kruise.io/v1beta1/workloadspreads" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		if request.URL.Query().Get("watch") != "" {
			w.WriteHeader(http.StatusBadRequest) // so that the informer lists
			return
		}
		gvk := stored.GetObjectKind().GroupVersionKind()
		if err := json.NewEncoder(w).Encode(map[string]any{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind + "List",
			"metadata": metav1.ListMeta{ResourceVersion: "5"}, "items": []any{stored}}); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	informer, err := newSpreadInformer(&restclient.Config{Host: server.URL}, func(ledger.SpreadsWatched) {})
	if err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer has not synced")
	}
	got, found, err := informer.GetStore().GetByKey("ns/web")
	if err != nil || !found {
		t.Fatalf("the cache lacks the object: %v", err)
	}
	got.(runtime.Object).GetObjectKind().SetGroupVersionKind(want.GetObjectKind().GroupVersionKind())
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("cached (-want +got):\n%s", diff)
	}
}
