package webhook

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	unitedv1beta1 "github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/subset"
	"github.com/berth-project/berth/pkg/workload"
)

// targetTimeout bounds the request for the workload. The API server itself waits for the webhook's answer.
const targetTimeout = 2 * time.Second

// spreadValidator reviews WorkloadSpreads. It reads the cache, and the workload itself with one request: the cache holds no pod templates, and may lack a
// workload that was applied just before.
type spreadValidator struct {
	// reader is the cache.
	reader client.Reader
	// live reads from the API server.
	live client.Reader
	// kinds tells which kinds the API server has. Nil leaves that to live, which asks the API server about an unknown kind under a lock that its other reads need.
	kinds kindMapper
	// announce is called for spreads that are about to be stored. It may be nil.
	announce func(context.Context, *v1beta1.WorkloadSpread)
	// installation is its compatibility. The status of a new spread does not say it.
	installation v1beta1.Compatibility
	// autoscaler of the nodes. Nil means none.
	autoscaler *autoscaler.Detector
}

// workloads are the kinds whose objects are in the cache, so that one that is missing can be told from one that is not watched.
var workloads = workload.Watched()

func (v *spreadValidator) reviews() endpoint.Validator[*v1beta1.WorkloadSpread] {
	return endpoint.Validator[*v1beta1.WorkloadSpread]{Kind: v1beta1.Kind.GroupKind(), Validate: v.validate, Same: func(old, spread *v1beta1.WorkloadSpread) bool {
		return equality.Semantic.DeepEqual(old.Spec, spread.Spec) && old.Annotations[v1beta1.CompatibilityAnnotation] == spread.Annotations[v1beta1.CompatibilityAnnotation]
	}}
}

// announceIfStored announces the spread, unless it is known that it will not be stored.
func (v *spreadValidator) announceIfStored(ctx context.Context, spread *v1beta1.WorkloadSpread) {
	request, err := admission.RequestFromContext(ctx)
	if v.announce == nil || err != nil || ptr.Deref(request.DryRun, false) || spread.UID == "" {
		return
	}
	if err := v.reader.Get(ctx, client.ObjectKeyFromObject(spread), &v1beta1.WorkloadSpread{}); apierrors.IsNotFound(err) {
		v.announce(ctx, spread)
	}
}

func (v *spreadValidator) validate(ctx context.Context, spread, old *v1beta1.WorkloadSpread) (warnings []string, errs field.ErrorList, _ error) {
	spread = subset.In(v.installation, spread)
	known, err := v.gather(ctx, spread)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	if warnings, errs = validateSpread(spread, old, known); old == nil && len(errs) == 0 {
		v.announceIfStored(ctx, spread)
	}
	return warnings, errs, nil
}

func (v *spreadValidator) gather(ctx context.Context, spread *v1beta1.WorkloadSpread) (knownFacts, error) {
	var spreads v1beta1.WorkloadSpreadList
	// The objects are shared with the cache and are only read.
	if err := v.reader.List(ctx, &spreads, client.InNamespace(spread.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return knownFacts{}, fmt.Errorf("listing the spreads of namespace %s: %w", spread.Namespace, err)
	}
	return knownFacts{Spreads: spreads.Items, Target: v.target(ctx, spread), Nodes: v.nodes(ctx, spread), Autoscaler: v.autoscaler.Name()}, nil
}

// target reads the workload with one request. A failure is no error: most of a spread can be validated without the workload.
func (v *spreadValidator) target(ctx context.Context, spread *v1beta1.WorkloadSpread) targetFacts {
	ctx, cancel := context.WithTimeout(ctx, targetTimeout)
	defer cancel()
	object := &unstructured.Unstructured{}
	kind := targetVersion(spread)
	object.SetGroupVersionKind(kind)
	var err error
	if v.kinds != nil {
		_, err = v.kinds.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err == nil {
		err = v.live.Get(ctx, types.NamespacedName{Namespace: spread.Namespace, Name: spread.Spec.TargetReference.Name}, object)
	}
	cannot := func(why string) targetFacts {
		return targetFacts{Problem: workloadName(spread) + " cannot be read: " + why}
	}
	switch {
	case meta.IsNoMatchError(err):
		return cannot(fmt.Sprintf("the API server has no kind %s in %s; install it or correct the target", object.GetKind(), object.GetAPIVersion()))
	case apierrors.IsNotFound(err):
		return targetFacts{Problem: "there is no " + workloadName(spread) + " yet, and the spread waits for it"}
	case apierrors.IsForbidden(err):
		return cannot(fmt.Sprintf(`Berth may not get it; create a ClusterRole with get, list and watch on its resource and the label rbac.berth.dev/aggregate-to-workload-reader: "true" (%v)`, err))
	case err != nil:
		return cannot(err.Error())
	}
	return targetOf(object, spread)
}

// targetVersion is the kind to read: built-in kinds in the version that Berth knows, whatever the spread says.
func targetVersion(spread *v1beta1.WorkloadSpread) schema.GroupVersionKind {
	kind := kindOfTarget(spread)
	if _, watched := workloads[kind]; watched {
		return kind.WithVersion("v1")
	}
	ref := spread.Spec.TargetReference
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
}

// targetOf reads fields that most kinds have at the same paths. It leaves out fields that are missing or have another type.
func targetOf(object *unstructured.Unstructured, spread *v1beta1.WorkloadSpread) targetFacts {
	target := targetFacts{Read: true, United: unitedOf(object), Template: templateOf(object), Selector: workload.Selector(object), Replicas: replicasOf(object, spread)}
	if kind, watched := workloads[kindOfTarget(spread)]; watched {
		typed := kind.NewObject()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err == nil {
			target.Replicas, target.MaxUnavailable = replicasOf(typed, spread), workload.MaxUnavailable(typed)
		}
	}
	return target
}

// unitedOf is the name of the UnitedDeployment whose child the object is, or empty.
func unitedOf(object metav1.Object) string {
	if owner := workload.ControllerOf(object); owner != nil && owner.Kind == unitedv1beta1.Kind.GroupKind() {
		return owner.Name
	}
	return ""
}

// replicasOf is nil if the object does not contain the replicas.
func replicasOf(object runtime.Object, spread *v1beta1.WorkloadSpread) *int32 {
	replicas, err := workload.Replicas(object, subset.ReplicaPaths(spread))
	if err != nil {
		return nil // the spread's status says why
	}
	return &replicas
}

// templateOf is spec.template, with the volumes that the controller adds for spec.volumeClaimTemplates, or nil.
func templateOf(object *unstructured.Unstructured) *corev1.PodTemplateSpec {
	template := workload.Template(object)
	if template == nil || template.Spec.Containers == nil {
		return nil // something else is at spec.template
	}
	claims, _, _ := unstructured.NestedSlice(object.Object, "spec", "volumeClaimTemplates")
	for _, claim := range claims {
		if fields, ok := claim.(map[string]any); ok {
			template.Spec.Volumes = append(template.Spec.Volumes, claimVolume(&unstructured.Unstructured{Object: fields}))
		}
	}
	return template
}

// nodes are nil if no subset selects nodes, or if they cannot be read. They are used for warnings only.
func (v *spreadValidator) nodes(ctx context.Context, spread *v1beta1.WorkloadSpread) []*corev1.Node {
	if !slices.ContainsFunc(spread.Spec.Subsets, func(s v1beta1.Subset) bool { return s.RequiredNodeSelector != nil }) {
		return nil
	}
	list := &corev1.NodeList{}
	if err := v.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Not comparing a spread with the nodes", "workloadspread", klog.KObj(spread))
		return nil
	}
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return nodes
}
