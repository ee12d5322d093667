package webhook

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

// spreadValidator answers for WorkloadSpreads. It reads nothing but the cache.
type spreadValidator struct {
	reader client.Reader
}

var _ admission.Validator[*v1alpha1.WorkloadSpread] = &spreadValidator{}

// workloads are the kinds whose objects are in the cache, so that one that is missing can be told from one that is not watched.
var workloads = map[schema.GroupKind]func() client.Object{
	{Group: appsv1.GroupName, Kind: "Deployment"}:  func() client.Object { return &appsv1.Deployment{} },
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}:  func() client.Object { return &appsv1.ReplicaSet{} },
	{Group: appsv1.GroupName, Kind: "StatefulSet"}: func() client.Object { return &appsv1.StatefulSet{} },
	{Group: batchv1.GroupName, Kind: "Job"}:        func() client.Object { return &batchv1.Job{} },
}

// ValidateCreate judges a new spread.
func (v *spreadValidator) ValidateCreate(ctx context.Context, spread *v1alpha1.WorkloadSpread) (admission.Warnings, error) {
	return v.validate(ctx, spread, nil)
}

// ValidateUpdate judges a changed spread. One that is as it was, or is being deleted, passes whatever it says and whatever can be read:
// rules that are newer than the spread must not keep anybody from labelling it or from removing its last finalizer.
func (v *spreadValidator) ValidateUpdate(ctx context.Context, old, spread *v1alpha1.WorkloadSpread) (admission.Warnings, error) {
	if spread.DeletionTimestamp != nil || equality.Semantic.DeepEqual(old.Spec, spread.Spec) {
		return nil, nil
	}
	return v.validate(ctx, spread, old)
}

// ValidateDelete lets every spread go. The API server is not told to ask.
func (v *spreadValidator) ValidateDelete(context.Context, *v1alpha1.WorkloadSpread) (admission.Warnings, error) {
	return nil, nil
}

func (v *spreadValidator) validate(ctx context.Context, spread, old *v1alpha1.WorkloadSpread) (admission.Warnings, error) {
	known, err := v.gather(ctx, spread)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	warnings, errs := ValidateSpread(spread, old, known)
	if len(errs) > 0 {
		return warnings, apierrors.NewInvalid(v1alpha1.Kind.GroupKind(), spread.Name, errs)
	}
	return warnings, nil
}

func (v *spreadValidator) gather(ctx context.Context, spread *v1alpha1.WorkloadSpread) (Known, error) {
	var spreads v1alpha1.WorkloadSpreadList
	// The objects are shared with the cache and are only read.
	if err := v.reader.List(ctx, &spreads, client.InNamespace(spread.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return Known{}, fmt.Errorf("listing the spreads of namespace %s: %w", spread.Namespace, err)
	}
	missing, err := v.targetMissing(ctx, spread)
	return Known{Spreads: spreads.Items, TargetMissing: missing}, err
}

func (v *spreadValidator) targetMissing(ctx context.Context, spread *v1alpha1.WorkloadSpread) (bool, error) {
	newObject, watched := workloads[kindOfTarget(spread)]
	if !watched {
		return false, nil
	}
	key := types.NamespacedName{Namespace: spread.Namespace, Name: spread.Spec.TargetReference.Name}
	err := v.reader.Get(ctx, key, newObject(), client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", workloadName(spread), err)
	}
	return false, nil
}
