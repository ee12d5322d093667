package frame

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// ours begins the names of Berth's programs. The API server records under the name of a program what the program writes.
	ours = "berth-"
	// tracked is the name under which the API server records, at TrackWriters, what Berth has just written. It is of k8s.io/apimachinery, in
	// pkg/util/managedfields/internal/skipnonapplied.go.
	tracked = "before-first-apply"
)

// otherWriter returns who else writes the status of a WorkloadSpread or PodUnavailableBudget, by the object's managedFields: a program that wrote it after Berth did, or in
// the same second. Only one product may do so. It returns false if there is none. So nobody is named who wrote before Berth came, or whom Berth has outlasted.
//
// Berth answers each write of another program within about a second. Until the other program writes again, otherWriter returns false. Only the controller sees
// each write.
func otherWriter(object metav1.Object) (metav1.ManagedFieldsEntry, bool) {
	var own, other metav1.ManagedFieldsEntry
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource != "status" || entry.Time == nil {
			continue
		}
		latest := &other
		if strings.HasPrefix(entry.Manager, ours) || entry.Manager == tracked {
			latest = &own
		}
		if latest.Time == nil || latest.Time.Before(entry.Time) {
			*latest = entry
		}
	}
	return other, own.Time != nil && other.Time != nil && !other.Time.Before(own.Time)
}

// TellOfOtherWriter sends an event about an object whose status another program writes. The event has the reason.
//
// While the two fight, it is one event that the recorder counts. For this the event names no revision of the object, because each fight makes new ones. The
// recorder writes the time of the latest count at least every 30 minutes.
func TellOfOtherWriter(recorder events.EventRecorder, object client.Object, reason string) {
	other, active := otherWriter(object)
	if !active {
		return
	}
	named := object.DeepCopyObject().(client.Object)
	named.SetResourceVersion("")
	recorder.Eventf(named, nil, corev1.EventTypeWarning, reason, "ReportStatus",
		"%s writes the status too, most recently at %s: two controllers of this kind are active, and each counts without the other; switch one of them off (kubectl berth migrate)",
		other.Manager, other.Time.UTC().Format("15:04:05Z"))
}

// TrackWriters makes the API server record again who writes an object, if it does not. The object is as the API server returned it when Berth wrote its status.
//
// The API server forgets all writers if an object is written while its conversion fails, for example in the moment in which two products give the definition
// different converters. It records them again only after an apply. TrackWriters applies nothing, to the status.
func TrackWriters(ctx context.Context, writer client.StatusClient, object client.Object, kind schema.GroupVersionKind) error {
	if len(object.GetManagedFields()) > 0 {
		return nil
	}
	nothing := &unstructured.Unstructured{}
	nothing.SetGroupVersionKind(kind)
	nothing.SetNamespace(object.GetNamespace())
	nothing.SetName(object.GetName())
	nothing.SetUID(object.GetUID()) // not an object of the same name
	err := writer.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(nothing), client.FieldOwner(ours+"controller"))
	if err != nil {
		return fmt.Errorf("recording who writes the status: %w", err)
	}
	return nil
}

// keepWriters removes from the managedFields all that otherWriter does not read. It changes the object, and is a transform for caches.
func keepWriters(obj any) (any, error) {
	object, is := obj.(metav1.Object)
	if !is {
		return obj, nil
	}
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "status" {
			kept = append(kept, metav1.ManagedFieldsEntry{Manager: entry.Manager, Subresource: entry.Subresource, Time: entry.Time})
		}
	}
	object.SetManagedFields(kept)
	return obj, nil
}
