package budget

import (
	"context"
	"fmt"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

const keeps = "maxUnavailable: %d\n  keepPodDisruptionBudget: true"

// expectKept waits until Berth's PodDisruptionBudget has this maxUnavailable and Kubernetes has looked at it. 0 waits until there is none.
func expectKept(t *testing.T, namespace string, maxUnavailable int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("a PodDisruptionBudget with maxUnavailable %d", maxUnavailable), func(ctx context.Context) (string, error) {
		pdb, err := the.Client.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "web", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && maxUnavailable == 0:
			return "", nil
		case apierrors.IsNotFound(err):
			return "there is none", nil
		case err != nil:
			return "", err
		case maxUnavailable == 0 || *pdb.Spec.MaxUnavailable != intstr.FromInt(maxUnavailable) || pdb.Status.ObservedGeneration < pdb.Generation || pdb.Status.ExpectedPods == 0:
			return fmt.Sprintf("%+v", *pdb), nil
		}
		return "", nil
	})
}

func expectKeeping(t *testing.T, namespace string, status metav1.ConditionStatus, reason v1beta1.Reason) {
	t.Helper()
	waitFor(t, "condition "+string(reason), func(ctx context.Context) (string, error) {
		b, err := read(ctx, namespace)
		if err != nil {
			return "", err
		}
		if c := meta.FindStatusCondition(b.Status.Conditions, v1beta1.ConditionPodDisruptionBudgetKept); c == nil || c.Status != status || c.Reason != string(reason) {
			return fmt.Sprintf("%+v", b.Status.Conditions), nil
		}
		return "", nil
	})
}

func TestAPodDisruptionBudgetIsKeptBesideTheBudget(t *testing.T) {
	namespace := web(t, 4, fmt.Sprintf(keeps, 1))
	expectKept(t, namespace, 1)
	expectKeeping(t, namespace, metav1.ConditionTrue, v1beta1.ReasonPodDisruptionBudgetKept)
	watch(t, namespace, 3)

	node := pods(t, namespace)[0].Spec.NodeName
	defer func() { expectAllowed(t, "uncordon", kubectl(context.WithoutCancel(t.Context()), "uncordon", node)) }()
	expectAllowed(t, "drain", kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=web", "--timeout=80s"))
	inForce(t, namespace, 4)

	apply(t, namespace, fmt.Sprintf(pub, fmt.Sprintf(keeps, 2)))
	expectKept(t, namespace, 2)
	apply(t, namespace, fmt.Sprintf(pub, fmt.Sprintf(keeps, 1)))
	expectKept(t, namespace, 1)

	client := the.Client.PolicyV1().PodDisruptionBudgets(namespace)
	apply(t, namespace, "{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: mine}, spec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}}")
	expectKept(t, namespace, 0)
	expectKeeping(t, namespace, metav1.ConditionFalse, v1beta1.ReasonOtherPodDisruptionBudget)
	waitFor(t, "an eviction beside the user's own", func(ctx context.Context) (string, error) {
		err := evict(ctx, &pods(t, namespace)[0])
		return map[bool]string{false: fmt.Sprint(err)}[err == nil], nil
	})
	inForce(t, namespace, 4)
	if err := client.Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expectKept(t, namespace, 1)

	apply(t, namespace, fmt.Sprintf(pub, "maxUnavailable: 1\n  keepPodDisruptionBudget: false"))
	expectKept(t, namespace, 0)
	apply(t, namespace, fmt.Sprintf(pub, fmt.Sprintf(keeps, 1)))
	expectKept(t, namespace, 1)
	b, err := read(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	if err := berth.client().Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	expectKept(t, namespace, 0)
}

func TestTheControllerMayWriteDisruptionBudgetsOfBudgetsAndNoMore(t *testing.T) {
	namespace := newNamespace(t)
	controller := accountOf(t, "berth-controller").PolicyV1().PodDisruptionBudgets(namespace)
	disruptionBudgetOf := func(name, kind, owner string) *policyv1.PodDisruptionBudget {
		pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
		if kind != "" {
			pdb.OwnerReferences = []metav1.OwnerReference{{APIVersion: "policy.kruise.io/v1beta1", Kind: kind, Name: owner, UID: "x", Controller: ptr.To(true)}}
		}
		return pdb
	}
	create := func(pdb *policyv1.PodDisruptionBudget) error {
		_, err := controller.Create(t.Context(), pdb, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	expectAllowed(t, "creating one of a budget", create(disruptionBudgetOf("web", "PodUnavailableBudget", "web")))
	for what, pdb := range map[string]*policyv1.PodDisruptionBudget{
		"one of nobody": disruptionBudgetOf("web", "", ""), "one of another kind": disruptionBudgetOf("web", "Site", "web"), "one of a budget with another name": disruptionBudgetOf("web", "PodUnavailableBudget", "other"),
	} {
		if err := create(pdb); !apierrors.IsForbidden(err) {
			t.Errorf("creating %s: got %v, want it to be forbidden", what, err)
		}
	}
	if _, err := the.Client.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), disruptionBudgetOf("mine", "", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := controller.Delete(t.Context(), "mine", metav1.DeleteOptions{DryRun: dryRun}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting a user's: got %v, want it to be forbidden", err)
	}
	waitFor(t, "a refusal to take a user's", func(ctx context.Context) (string, error) { // Kubernetes writes the status meanwhile
		users, err := controller.Get(ctx, "mine", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		users.OwnerReferences = disruptionBudgetOf("mine", "PodUnavailableBudget", "mine").OwnerReferences
		_, err = controller.Update(ctx, users, metav1.UpdateOptions{DryRun: dryRun})
		return map[bool]string{false: fmt.Sprint(err)}[apierrors.IsForbidden(err)], nil
	})
}
