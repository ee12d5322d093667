package budget

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// TestWhoExemptsAPodIsLetThrough: a user may exempt a pod even if there is no room, unless the budget requires room. The pod does not count any more.
func TestWhoExemptsAPodIsLetThrough(t *testing.T) {
	const exempted = `{"metadata":{"annotations":{"pub.kruise.io/no-protect":"true"}}}`
	namespace := web(t, 4, "maxUnavailable: 1")
	noReplacements(t)
	all := pods(t, namespace)
	annotate := func(value string) {
		t.Helper()
		b := &v1beta1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
		body := fmt.Appendf(nil, `{"metadata":{"annotations":{"policy.berth.dev/no-protect-needs-room":%q}}}`, value)
		if err := berth.client().Patch(t.Context(), b, client.RawPatch(types.MergePatchType, body)); err != nil {
			t.Fatal(err)
		}
	}
	expectAllowed(t, "the first", patch(t.Context(), &all[0], exempted))
	expectRefused(t, "a deletion of another", remove(t.Context(), &all[1]))
	expectAllowed(t, "a deletion of the first", remove(t.Context(), &all[0]))
	annotate("true")
	expectRefused(t, "the second, if it needs room", patch(t.Context(), &all[1], exempted))
	annotate("false")
	waitFor(t, "the second to be allowed without room", func(ctx context.Context) (string, error) {
		err := patch(ctx, &all[1], exempted)
		if isRefused(err) { // a webhook server may still use the previous budget
			return err.Error(), nil
		}
		return "", err
	})
	expectRefused(t, "a deletion of the third", evict(t.Context(), &all[2]))
}
