package scenario

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/subset"
)

// cluster is the whole state of a simulation. Lists are in order of creation.
type cluster struct {
	nodes        []*corev1.Node
	nodesByName  map[string]*corev1.Node
	spreads      []*spread
	deployments  []*appsv1.Deployment
	replicaSets  []*appsv1.ReplicaSet
	statefulSets []*appsv1.StatefulSet
	jobs         []*batchv1.Job
	pods         []*corev1.Pod
	// claims are the names of the subsets in which pending pods wait for a node.
	claims map[types.UID]string
	// created counts created objects. It is part of their names, and the clock of their creation.
	created int64
	// changes counts writes, to detect that nothing is left to do.
	changes int
}

// spread is a WorkloadSpread and its model.
type spread struct {
	*v1alpha1.WorkloadSpread
	policy *subset.Policy
}

func newCluster(nodes []*corev1.Node) *cluster {
	c := &cluster{nodes: nodes, nodesByName: map[string]*corev1.Node{}, claims: map[types.UID]string{}}
	for _, node := range nodes {
		c.nodesByName[node.Name] = node
	}
	return c
}

// apply creates a copy of the object, or replaces the spec of the existing object with its name.
func (c *cluster) apply(object Object) error {
	if _, isSpread := object.(*v1alpha1.WorkloadSpread); !isSpread {
		if err := checkTemplate(templateOf(object)); err != nil {
			return err
		}
	}
	c.changes++
	object, _ = object.DeepCopyObject().(Object) // a copy has the same type
	object.SetUID(types.UID(fmt.Sprintf("%T-%s", object, object.GetName())))
	switch o := object.(type) {
	case *v1alpha1.WorkloadSpread:
		return c.applySpread(o)
	case *appsv1.Deployment:
		if have := find(c.deployments, o.Name); have != nil {
			have.Spec = o.Spec
			return nil
		}
		c.deployments = append(c.deployments, o)
	case *appsv1.ReplicaSet:
		if have := find(c.replicaSets, o.Name); have != nil {
			have.Spec = o.Spec
			return nil
		}
		c.replicaSets = append(c.replicaSets, o)
	case *appsv1.StatefulSet:
		if have := find(c.statefulSets, o.Name); have != nil {
			if !equality.Semantic.DeepEqual(have.Spec.Template, o.Spec.Template) {
				return errors.New("the template of a StatefulSet changes, and its rollout cannot be simulated; use a Deployment")
			}
			have.Spec = o.Spec
			return nil
		}
		c.statefulSets = append(c.statefulSets, o)
	case *batchv1.Job:
		if have := find(c.jobs, o.Name); have != nil {
			have.Spec = o.Spec
			return nil
		}
		c.jobs = append(c.jobs, o)
	default:
		return fmt.Errorf("%T cannot be played", object)
	}
	return nil
}

func (c *cluster) applySpread(object *v1alpha1.WorkloadSpread) error {
	policy, errs := subset.Compile(&object.Spec, field.NewPath("spec"))
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	if policy.Binding == v1alpha1.EarlyBinding || policy.Binding == v1alpha1.AutoBinding && policy.PatchesSpec() {
		return errors.New("the spread binds early, which cannot be simulated; use binding: Late, and patches of metadata only")
	}
	if filter := object.Spec.TargetFilter; filter != nil && len(filter.ReplicasPathList) > 0 {
		return errors.New("the spread reads replicas by replicasPathList, which cannot be simulated; leave it out")
	}
	if have := find(c.spreads, object.Name); have != nil {
		have.WorkloadSpread, have.policy = object, policy
		return nil
	}
	c.spreads = append(c.spreads, &spread{object, policy})
	return nil
}

// checkTemplate refuses templates whose pods would be placed differently in a cluster.
func checkTemplate(template *corev1.PodTemplateSpec) error {
	spec := &template.Spec
	switch {
	case spec.NodeName != "":
		return errors.New("the template names a node, which cannot be simulated; select it by a label")
	case len(spec.TopologySpreadConstraints) > 0:
		return errors.New("the template has topologySpreadConstraints, which cannot be simulated; leave them out")
	case spec.Affinity != nil && (spec.Affinity.PodAffinity != nil || spec.Affinity.PodAntiAffinity != nil):
		return errors.New("the template has an affinity to pods, which cannot be simulated; leave it out")
	}
	return nil
}

func templateOf(workload Object) *corev1.PodTemplateSpec {
	switch w := workload.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Template
	case *appsv1.ReplicaSet:
		return &w.Spec.Template
	case *appsv1.StatefulSet:
		return &w.Spec.Template
	case *batchv1.Job:
		return &w.Spec.Template
	default:
		return &corev1.PodTemplateSpec{}
	}
}

func (c *cluster) scale(target Reference, replicas int32) error {
	workload := c.workload(target)
	if workload == nil {
		return fmt.Errorf("no %s", target)
	}
	*replicasField(workload) = &replicas
	c.changes++
	return nil
}

func (c *cluster) delete(target Reference) error {
	c.changes++
	switch target.Kind {
	case "WorkloadSpread":
		c.spreads = without(c.spreads, target.Name)
	case "Deployment":
		c.deployments = without(c.deployments, target.Name)
		for _, rs := range c.replicaSetsOf(target.Name) {
			c.replicaSets = without(c.replicaSets, rs.Name)
			c.deletePods(c.podsOf("ReplicaSet", rs.Name))
		}
	case "ReplicaSet":
		c.replicaSets = without(c.replicaSets, target.Name)
		c.deletePods(c.podsOf(target.Kind, target.Name))
	case "StatefulSet":
		c.statefulSets = without(c.statefulSets, target.Name)
		c.deletePods(c.podsOf(target.Kind, target.Name))
	case "Job":
		c.jobs = without(c.jobs, target.Name)
		c.deletePods(c.podsOf(target.Kind, target.Name))
	default:
		return fmt.Errorf("no %s", target)
	}
	return nil
}

func (c *cluster) cordon(group NodeGroup, closed bool) {
	for _, name := range group.NodeNames() {
		c.nodesByName[name].Spec.Unschedulable = closed
	}
	c.changes++
}

// layouts of all spreads, sorted by name.
func (c *cluster) layouts() ([]Layout, error) {
	spreads := slices.Clone(c.spreads)
	slices.SortFunc(spreads, func(a, b *spread) int { return cmp.Compare(a.Name, b.Name) })
	var layouts []Layout
	for _, s := range spreads {
		var pods []*corev1.Pod
		for _, pod := range c.pods {
			if c.belongsTo(pod, &s.Spec.TargetReference) {
				pods = append(pods, pod)
			}
		}
		layout, err := Observe(s.WorkloadSpread, c.replicasOf(s), pods, c.nodesByName)
		if err != nil {
			return nil, err
		}
		layouts = append(layouts, layout)
	}
	return layouts, nil
}

func (c *cluster) replicasOf(s *spread) int32 {
	target := &s.Spec.TargetReference
	return ReplicasOf(c.workload(Reference{Kind: target.Kind, Name: target.Name}))
}

// workload with this name, or nil.
func (c *cluster) workload(ref Reference) Object {
	switch ref.Kind {
	case "Deployment":
		return objectOrNil(find(c.deployments, ref.Name))
	case "ReplicaSet":
		return objectOrNil(find(c.replicaSets, ref.Name))
	case "StatefulSet":
		return objectOrNil(find(c.statefulSets, ref.Name))
	case "Job":
		return objectOrNil(find(c.jobs, ref.Name))
	default:
		return nil
	}
}

// objectOrNil returns nil, and not an interface with a nil pointer.
func objectOrNil[T any, P interface {
	*T
	Object
}](object P) Object {
	if object == nil {
		return nil
	}
	return object
}

// spreadOf is the spread that divides the pod, the oldest one if there are several, or nil.
func (c *cluster) spreadOf(pod *corev1.Pod) *spread {
	for _, s := range c.spreads {
		if c.belongsTo(pod, &s.Spec.TargetReference) && s.policy.Selects(pod.Labels) {
			return s
		}
	}
	return nil
}

// belongsTo follows the pod's owners up to the target.
func (c *cluster) belongsTo(pod *corev1.Pod, target *v1alpha1.TargetReference) bool {
	owner := metav1.GetControllerOf(pod)
	for owner != nil {
		if owner.Kind == target.Kind && owner.Name == target.Name && sameGroup(owner.APIVersion, target.APIVersion) {
			return true
		}
		rs := find(c.replicaSets, owner.Name)
		if owner.Kind != "ReplicaSet" || rs == nil {
			return false
		}
		owner = metav1.GetControllerOf(rs)
	}
	return false
}

func sameGroup(a, b string) bool {
	return schema.FromAPIVersionAndKind(a, "").Group == schema.FromAPIVersionAndKind(b, "").Group
}

// podsOf are the pods that the owner controls directly.
func (c *cluster) podsOf(kind, name string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range c.pods {
		if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == kind && owner.Name == name {
			pods = append(pods, pod)
		}
	}
	return pods
}

// createPod creates a pod from an owner's template. If name is empty, it is generated from the owner's.
func (c *cluster) createPod(kind schema.GroupVersionKind, owner Object, template *corev1.PodTemplateSpec, name string, labels map[string]string) {
	c.created++
	c.changes++
	serial := strconv.FormatInt(c.created, 10)
	if name == "" {
		name = owner.GetName() + "-" + serial
	}
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Name = name
	pod.UID = types.UID("pod-" + serial)
	pod.CreationTimestamp = metav1.NewTime(time.Unix(c.created, 0))
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}
	for key, value := range labels {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, key, value)
	}
	pod.Status.Phase = corev1.PodPending
	c.pods = append(c.pods, pod)
}

// deletePods removes pods at once, with their claims.
func (c *cluster) deletePods(pods []*corev1.Pod) {
	gone := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		gone[pod.UID] = true
		delete(c.claims, pod.UID)
		c.changes++
	}
	c.pods = slices.DeleteFunc(c.pods, func(pod *corev1.Pod) bool { return gone[pod.UID] })
}

// completeAnnotation on a pod of a Job makes it succeed as soon as it runs. The KWOK stages of a sandbox do the same.
const completeAnnotation = "sandbox.berth.dev/complete"

// runPods does what kubelets do: every bound pod runs at once. A pod with a readiness gate is never ready, because nothing opens the gate.
func (c *cluster) runPods() {
	for _, pod := range c.pods {
		if pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending {
			continue
		}
		c.changes++
		pod.Status.Phase = corev1.PodRunning
		if owner := metav1.GetControllerOf(pod); owner.Kind == "Job" && pod.Annotations[completeAnnotation] == "true" {
			pod.Status.Phase = corev1.PodSucceeded
			continue
		}
		if len(pod.Spec.ReadinessGates) == 0 {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		}
	}
}

// isAvailable is true if a rollout counts the pod as available. Time stands still here, so no pod has been ready for some seconds.
func isAvailable(pod *corev1.Pod, minReadySeconds int32) bool {
	return isReady(pod) && minReadySeconds == 0
}

func isReady(pod *corev1.Pod) bool { return subset.Observe(pod, nil).Ready }

func activePods(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !subset.IsActive(pod) })
}

// hashOf returns a hash of a template, as short and stable as the one in the names of ReplicaSets.
func hashOf(template *corev1.PodTemplateSpec) string {
	text, err := json.Marshal(template)
	if err != nil {
		// A typed template that was decoded from YAML always encodes.
		panic(err)
	}
	hash := fnv.New32a()
	_, _ = hash.Write(text) // a hash does not fail
	return strconv.FormatUint(uint64(hash.Sum32()), 36)
}

// find returns the object with this name, or the zero value.
func find[T metav1.Object](objects []T, name string) T {
	for _, object := range objects {
		if object.GetName() == name {
			return object
		}
	}
	var none T
	return none
}

func without[T metav1.Object](objects []T, name string) []T {
	return slices.DeleteFunc(objects, func(object T) bool { return object.GetName() == name })
}
