package budget

import "testing"

// TestWhoExemptsAPodIsLetThrough also where there is no room, unless the budget asks for room; and nobody counts on the pod from then on.
func TestWhoExemptsAPodIsLetThrough(t *testing.T) {
	const exempted = `{"metadata":{"annotations":{"pub.kruise.io/no-protect":"true"}}}`
	namespace := web(t, 4, "maxUnavailable: 1")
	noReplacements(t)
	all := pods(t, namespace)
	annotate := func(value string) {
		t.Helper()
		b, err := read(t.Context(), namespace)
		if err != nil {
			t.Fatal(err)
		}
		if b.Annotations == nil {
			b.Annotations = map[string]string{}
		}
		b.Annotations["policy.berth.dev/no-protect-needs-room"] = value
		if err := berth.client().Update(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	expectAllowed(t, "the first", patch(t.Context(), &all[0], exempted))
	expectRefused(t, "a deletion of another", remove(t.Context(), &all[1]))
	expectAllowed(t, "a deletion of the first", remove(t.Context(), &all[0]))
	annotate("true")
	expectRefused(t, "the second, if it needs room", patch(t.Context(), &all[1], exempted))
	annotate("false")
	expectAllowed(t, "the second, if it does not", patch(t.Context(), &all[1], exempted))
	expectRefused(t, "a deletion of the third", evict(t.Context(), &all[2]))
}
