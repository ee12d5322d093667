package guard

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-project/berth/pkg/crd/policy/v1alpha1"
)

func TestNothingIsKeptOfBudgetsThatAreDeleted(t *testing.T) {
	kept := func(g *Guard) (n int) {
		g.lines.store.last.Range(func(any, any) bool { n++; return true })
		return n
	}
	name := types.NamespacedName{Namespace: "ns", Name: "web"}
	t.Run("when the event comes", func(t *testing.T) {
		c := cluster(t, 3, interceptor.Funcs{})
		g := New(c, c, c, Options{})
		decide(t, g, 0)
		if kept(g) != 1 {
			t.Fatal("nothing is kept to count the next round faster")
		}
		g.budgetGone(&v1alpha1.PodUnavailableBudget{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}})
		if kept(g) != 0 {
			t.Error("it is kept")
		}
	})
	t.Run("when the event has come while the budget was judged", func(t *testing.T) {
		c := cluster(t, 3, interceptor.Funcs{})
		cached := cluster(t, 3, interceptor.Funcs{Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewNotFound(v1alpha1.Resource.GroupResource(), key.Name)
		}})
		g := New(c, c, cached, Options{})
		decide(t, g, 0)
		if kept(g) != 0 {
			t.Error("it is kept")
		}
	})
}
