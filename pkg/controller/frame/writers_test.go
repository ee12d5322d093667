package frame

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOther(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	entry := func(manager, subresource string, second int) metav1.ManagedFieldsEntry {
		at := metav1.NewTime(noon.Add(time.Duration(second) * time.Second))
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: &at, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{}}`)}}
	}
	for name, tc := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    string
	}{
		"nobody writes":                                   {nil, ""},
		"Berth alone":                                     {[]metav1.ManagedFieldsEntry{entry("berth-controller", "status", 1), entry("berth-descheduler", "status", 2)}, ""},
		"the other wrote before Berth came":               {[]metav1.ManagedFieldsEntry{entry("kruise-manager", "status", 1), entry("berth-controller", "status", 2)}, ""},
		"Berth is not there":                              {[]metav1.ManagedFieldsEntry{entry("kruise-manager", "status", 3)}, ""},
		"the other writes on":                             {[]metav1.ManagedFieldsEntry{entry("berth-controller", "status", 2), entry("kruise-manager", "status", 3)}, "kruise-manager"},
		"Berth wrote before the API server kept records":  {[]metav1.ManagedFieldsEntry{entry("before-first-apply", "status", 2), entry("kruise-manager", "status", 3)}, "kruise-manager"},
		"nobody wrote since the API server keeps records": {[]metav1.ManagedFieldsEntry{entry("before-first-apply", "status", 2), entry("berth-controller", "status", 1)}, ""},
		"both in one second":                              {[]metav1.ManagedFieldsEntry{entry("berth-controller", "status", 2), entry("kruise-manager", "status", 2)}, "kruise-manager"},
		"the latest of several":                           {[]metav1.ManagedFieldsEntry{entry("b", "status", 3), entry("a", "status", 4), entry("berth-controller", "status", 2)}, "a"},
		"the descheduler is the last of Berth":            {[]metav1.ManagedFieldsEntry{entry("kruise-manager", "status", 2), entry("berth-controller", "status", 1), entry("berth-descheduler", "status", 3)}, ""},
		"who writes the spec is no other controller":      {[]metav1.ManagedFieldsEntry{entry("berth-controller", "status", 2), entry("kubectl", "", 3)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ManagedFields: tc.entries}}
			for _, when := range []string{"as read", "as kept"} {
				if got, found := otherWriter(object); found != (tc.want != "") || found && got.Manager != tc.want {
					t.Errorf("%s: got %v %t, want %q", when, got, found, tc.want)
				}
				if _, err := keepWriters(object); err != nil {
					t.Fatal(err)
				}
			}
			for _, kept := range object.ManagedFields {
				if kept.FieldsV1 != nil || kept.Subresource != "status" {
					t.Errorf("kept %+v", kept)
				}
			}
		})
	}
}
