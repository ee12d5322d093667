// Package writers tells who writes the status of a WorkloadSpread or PodUnavailableBudget, by the object's managedFields. Only one product may do so. It has
// no client and no clock. Begin reading at Other.
package writers

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ours begins the names of Berth's programs. The API server records under the name of a program what the program writes.
const ours = "berth-"

// Writer is a program that writes the status of an object.
type Writer struct {
	Manager string
	// Time of its last write, in whole seconds.
	Time metav1.Time
}

// Other returns who else writes the status of an object that Berth writes: a program that wrote it after Berth did, or in the same second. It returns false
// if there is none. So nobody is named who wrote before Berth came, or whom Berth has outlasted.
//
// Berth answers each write of another program within about a second. Until the other program writes again, Other returns false. Only the controller sees
// each write.
func Other(object metav1.Object) (Writer, bool) {
	var own, other Writer
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource != "status" || entry.Time == nil {
			continue
		}
		latest := &other
		if strings.HasPrefix(entry.Manager, ours) {
			latest = &own
		}
		if latest.Time.Before(entry.Time) {
			*latest = Writer{entry.Manager, *entry.Time}
		}
	}
	return other, !own.Time.IsZero() && !other.Time.IsZero() && !other.Time.Before(&own.Time)
}

// Message says what another writer means, and what to do.
func (w Writer) Message() string {
	return fmt.Sprintf("%s writes the status too, most recently at %s: two controllers of this kind are active, and each counts without the other; switch one of them off (kubectl berth migrate)",
		w.Manager, w.Time.UTC().Format("15:04:05Z"))
}

// Keep removes from the managedFields all that Other does not read. It changes the object.
func Keep(object metav1.Object) {
	var kept []metav1.ManagedFieldsEntry
	for _, entry := range object.GetManagedFields() {
		if entry.Subresource == "status" {
			kept = append(kept, metav1.ManagedFieldsEntry{Manager: entry.Manager, Subresource: entry.Subresource, Time: entry.Time})
		}
	}
	object.SetManagedFields(kept)
}
