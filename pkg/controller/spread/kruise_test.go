package spread

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestKruiseKinds(t *testing.T) {
	of := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{kruiseKindsKey: text}}
	}
	if _, err := readKruiseKinds(of("workloads:")); err == nil || !strings.Contains(err.Error(), kruiseKindsKey+" in ConfigMap kruise-system/kruise-configuration") {
		t.Errorf("a list that is no JSON: %v", err)
	}
	if list, err := readKruiseKinds(&corev1.ConfigMap{}); err != nil || len(list.Workloads) != 0 {
		t.Errorf("no list: %v, %v", list, err)
	}
	list, err := readKruiseKinds(of(`{"workloads":[{"Group":"example.com","Version":"v1","Kind":"Job","replicasPath":"spec.old"},
		{"Group":"example.com","Version":"v2","Kind":"Job","subResources":[{"Group":"apps","Kind":"ReplicaSet"}],"replicasPath":"spec.new"},
		{"Group":"example.com","Version":"v1","Kind":"Bare"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[schema.GroupVersionKind]string{
		{Group: "example.com", Version: "v1", Kind: "Job"}:  "spec.old",
		{Group: "example.com", Version: "v2", Kind: "Job"}:  "spec.new",
		{Group: "example.com", Version: "v3", Kind: "Job"}:  "spec.old",
		{Group: "example.com", Version: "v1", Kind: "Bare"}: "",
		{Group: "batch", Version: "v1", Kind: "Job"}:        "",
	} {
		if got := list.pathOf(kind); got != want {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
	}
}
