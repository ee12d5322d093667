package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
)

var (
	deploymentKind  = appsv1.SchemeGroupVersion.WithKind("Deployment")
	replicaSetKind  = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	statefulSetKind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")
	jobKind         = batchv1.SchemeGroupVersion.WithKind("Job")
)

// runControllers gives the controller of every workload one turn. These imitate the controllers of kube-controller-manager as far as it matters for
// the layout of pods.
func (c *cluster) runControllers() error {
	for _, d := range c.deployments {
		if err := c.syncDeployment(d); err != nil {
			return fmt.Errorf("%s: %w", ReferenceTo(d), err)
		}
	}
	for _, rs := range c.replicaSets {
		c.syncReplicaSet(rs)
	}
	for _, set := range c.statefulSets {
		c.syncStatefulSet(set)
	}
	for _, job := range c.jobs {
		c.syncJob(job)
	}
	return nil
}

// desiredAnnotation on a ReplicaSet keeps the replicas that its Deployment had when the ReplicaSet was last scaled. By it the Deployment's controller
// distinguishes a change of replicas, which comes first, from a step of a rollout.
const desiredAnnotation = "deployment.kubernetes.io/desired-replicas"

// syncDeployment takes one step towards the Deployment's template and replicas.
func (c *cluster) syncDeployment(d *appsv1.Deployment) error {
	replicas := ReplicasOf(d)
	var active []*appsv1.ReplicaSet
	scaled := false
	for _, rs := range c.replicaSetsOf(d.Name) {
		if ReplicasOf(rs) > 0 {
			active = append(active, rs)
			scaled = scaled || rs.Annotations[desiredAnnotation] != strconv.Itoa(int(replicas))
		}
	}
	if scaled && len(active) > 1 {
		return errors.New("scaled in the middle of a rollout, which cannot be simulated; let the rollout end before")
	}
	if scaled {
		c.resize(active[0], replicas, replicas)
		return nil
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.recreate(d, active, replicas)
		return nil
	}
	return c.rollOut(d, replicas)
}

// replicaSetsOf a Deployment, oldest first.
func (c *cluster) replicaSetsOf(deployment string) []*appsv1.ReplicaSet {
	var owned []*appsv1.ReplicaSet
	for _, rs := range c.replicaSets {
		if owner := metav1.GetControllerOf(rs); owner != nil && owner.Kind == deploymentKind.Kind && owner.Name == deployment {
			owned = append(owned, rs)
		}
	}
	return owned
}

// newest is the ReplicaSet of the Deployment's current template. It is created with 0 replicas if it does not exist.
func (c *cluster) newest(d *appsv1.Deployment) *appsv1.ReplicaSet {
	hash := hashOf(&d.Spec.Template)
	name := d.Name + "-" + hash
	rs := find(c.replicaSets, name)
	if rs == nil {
		rs = &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Name:            name,
			UID:             types.UID("replicaset-" + name),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, deploymentKind)},
		}}
		rs.Spec.Template = *d.Spec.Template.DeepCopy()
		metav1.SetMetaDataLabel(&rs.Spec.Template.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
		rs.Spec.Replicas = new(int32)
		c.replicaSets = append(c.replicaSets, rs)
		c.changes++
	}
	if rs.Spec.MinReadySeconds != d.Spec.MinReadySeconds {
		rs.Spec.MinReadySeconds = d.Spec.MinReadySeconds
		c.changes++
	}
	return rs
}

// resize sets the replicas of a ReplicaSet. Desired are those of its Deployment.
func (c *cluster) resize(rs *appsv1.ReplicaSet, replicas, desired int32) {
	if ReplicasOf(rs) == replicas && rs.Annotations[desiredAnnotation] == strconv.Itoa(int(desired)) {
		return
	}
	rs.Spec.Replicas = &replicas
	metav1.SetMetaDataAnnotation(&rs.ObjectMeta, desiredAnnotation, strconv.Itoa(int(desired)))
	c.changes++
}

func (c *cluster) recreate(d *appsv1.Deployment, active []*appsv1.ReplicaSet, replicas int32) {
	newest := c.newest(d)
	for _, rs := range active {
		if rs != newest {
			c.resize(rs, 0, replicas)
		}
	}
	for _, rs := range c.replicaSetsOf(d.Name) {
		if rs != newest && len(c.podsOf(replicaSetKind.Kind, rs.Name)) > 0 {
			return
		}
	}
	c.resize(newest, replicas, replicas)
}

// rollOut takes a step of a rolling update: it scales up if the surge allows it, and otherwise scales down as far as availability allows, unavailable
// pods first.
func (c *cluster) rollOut(d *appsv1.Deployment, replicas int32) error {
	surge, unavailable, err := rollingUpdate(d, replicas)
	if err != nil {
		return err
	}
	newest := c.newest(d)
	var old []*appsv1.ReplicaSet
	var total, available, newestAvailable int32
	for _, rs := range c.replicaSetsOf(d.Name) {
		total += ReplicasOf(rs)
		available += c.availableOf(rs)
		if rs == newest {
			newestAvailable = c.availableOf(rs)
		} else if ReplicasOf(rs) > 0 {
			old = append(old, rs)
		}
	}

	size := ReplicasOf(newest)
	switch room := replicas + surge - total; {
	case size > replicas:
		size = replicas
	case room > 0:
		size += min(room, replicas-size)
	}
	if size != ReplicasOf(newest) {
		c.resize(newest, size, replicas)
		return nil
	}

	minAvailable := replicas - unavailable
	excess := total - minAvailable - (ReplicasOf(newest) - newestAvailable)
	for _, rs := range old {
		down := min(excess, ReplicasOf(rs)-c.availableOf(rs))
		if down > 0 {
			c.resize(rs, ReplicasOf(rs)-down, replicas)
			excess -= down
		}
	}
	spare := min(excess, available-minAvailable)
	for _, rs := range old {
		down := min(spare, ReplicasOf(rs))
		if down > 0 {
			c.resize(rs, ReplicasOf(rs)-down, replicas)
			spare -= down
		}
	}
	return nil
}

// rollingUpdate resolves maxSurge, rounded up, and maxUnavailable, rounded down. They cannot both be 0.
func rollingUpdate(d *appsv1.Deployment, replicas int32) (surge, unavailable int32, err error) {
	quarter := intstr.FromString("25%")
	maxSurge, maxUnavailable := &quarter, &quarter
	if r := d.Spec.Strategy.RollingUpdate; r != nil {
		maxSurge, maxUnavailable = cmp.Or(r.MaxSurge, maxSurge), cmp.Or(r.MaxUnavailable, maxUnavailable)
	}
	up, err := intstr.GetScaledValueFromIntOrPercent(maxSurge, int(replicas), true)
	if err != nil {
		return 0, 0, fmt.Errorf("maxSurge: %w", err)
	}
	down, err := intstr.GetScaledValueFromIntOrPercent(maxUnavailable, int(replicas), false)
	if err != nil {
		return 0, 0, fmt.Errorf("maxUnavailable: %w", err)
	}
	if up == 0 && down == 0 {
		down = 1
	}
	return int32(up), min(int32(down), replicas), nil
}

func (c *cluster) availableOf(rs *appsv1.ReplicaSet) int32 {
	var count int32
	for _, pod := range activePods(c.podsOf(replicaSetKind.Kind, rs.Name)) {
		if isAvailable(pod, rs.Spec.MinReadySeconds) {
			count++
		}
	}
	return count
}

func (c *cluster) syncReplicaSet(rs *appsv1.ReplicaSet) {
	pods := activePods(c.podsOf(replicaSetKind.Kind, rs.Name))
	for range int(ReplicasOf(rs)) - len(pods) {
		c.createPod(replicaSetKind, rs, &rs.Spec.Template, "", nil)
	}
	if surplus := len(pods) - int(ReplicasOf(rs)); surplus > 0 {
		neighbours := map[string]int{}
		for _, pod := range c.related(rs) {
			neighbours[pod.Spec.NodeName]++
		}
		slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
			return cmp.Or(
				compareProgress(a, b),
				cmp.Compare(deletionCost(a), deletionCost(b)),
				cmp.Compare(neighbours[b.Spec.NodeName], neighbours[a.Spec.NodeName]),
				b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
		})
		c.deletePods(pods[:surplus])
	}
}

// related are the active pods of all ReplicaSets that share an owner with this one.
func (c *cluster) related(rs *appsv1.ReplicaSet) []*corev1.Pod {
	owner := metav1.GetControllerOf(rs)
	if owner == nil {
		return activePods(c.podsOf(replicaSetKind.Kind, rs.Name))
	}
	var pods []*corev1.Pod
	for _, sibling := range c.replicaSetsOf(owner.Name) {
		pods = append(pods, activePods(c.podsOf(replicaSetKind.Kind, sibling.Name))...)
	}
	return pods
}

// compareProgress puts the pod in front that is less far: without a node, not running, not ready.
func compareProgress(a, b *corev1.Pod) int {
	return cmp.Or(
		compareBool(a.Spec.NodeName != "", b.Spec.NodeName != ""),
		compareBool(a.Status.Phase == corev1.PodRunning, b.Status.Phase == corev1.PodRunning),
		compareBool(isReady(a), isReady(b)))
}

// compareBool puts false in front.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// deletionCost is 0 if it is missing or not a number, as for the real controller.
func deletionCost(pod *corev1.Pod) int {
	cost, err := strconv.Atoi(pod.Annotations[v1alpha1.PodDeletionCostAnnotation])
	if err != nil {
		return 0
	}
	return cost
}

// rankPods gives the pods of every spread the deletion cost that they should have.
func (c *cluster) rankPods() {
	byUID := map[types.UID]*corev1.Pod{}
	for _, pod := range c.pods {
		byUID[pod.UID] = pod
	}
	observed := c.observe()
	for _, s := range c.spreads {
		plan := s.policy.Plan(c.replicasOf(s))
		for _, rank := range s.policy.Costs(&plan, observed[s], s.Name) {
			if rank.Pod.Cost == nil || *rank.Pod.Cost != rank.Cost {
				metav1.SetMetaDataAnnotation(&byUID[rank.Pod.UID].ObjectMeta, v1alpha1.PodDeletionCostAnnotation, strconv.Itoa(int(rank.Cost)))
			}
		}
	}
}

// syncStatefulSet creates the first missing pod once all pods before it are available, or deletes the last surplus pod. With parallel pod management
// it does not wait.
func (c *cluster) syncStatefulSet(set *appsv1.StatefulSet) {
	pods := map[string]*corev1.Pod{}
	for _, pod := range c.podsOf(statefulSetKind.Kind, set.Name) {
		pods[pod.Name] = pod
	}
	parallel := set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement
	for ordinal := range int(ReplicasOf(set)) {
		name := ordinalName(set, ordinal)
		pod, exists := pods[name]
		if !exists {
			c.createPod(statefulSetKind, set, &set.Spec.Template, name, map[string]string{
				appsv1.ControllerRevisionHashLabelKey: set.Name + "-" + hashOf(&set.Spec.Template),
				appsv1.StatefulSetPodNameLabel:        name,
				appsv1.PodIndexLabel:                  strconv.Itoa(ordinal),
			})
		}
		if !parallel && (!exists || !isAvailable(pod, set.Spec.MinReadySeconds)) {
			return
		}
		delete(pods, name)
	}
	for ordinal := int(ReplicasOf(set)) + len(pods) - 1; ordinal >= int(ReplicasOf(set)); ordinal-- {
		c.deletePods([]*corev1.Pod{pods[ordinalName(set, ordinal)]})
		if !parallel {
			return
		}
	}
}

func ordinalName(set *appsv1.StatefulSet, ordinal int) string {
	return set.Name + "-" + strconv.Itoa(ordinal)
}

// syncJob keeps parallelism pods active until completions have succeeded.
func (c *cluster) syncJob(job *batchv1.Job) {
	all := c.podsOf(jobKind.Kind, job.Name)
	active := activePods(all)
	var succeeded int32
	for _, pod := range all {
		if pod.Status.Phase == corev1.PodSucceeded {
			succeeded++
		}
	}
	want := ReplicasOf(job)
	switch {
	case job.Spec.Suspend != nil && *job.Spec.Suspend:
		want = 0
	case job.Spec.Completions != nil:
		want = max(min(want, *job.Spec.Completions-succeeded), 0)
	case succeeded > 0:
		want = int32(len(active))
	}
	for range int(want) - len(active) {
		c.createPod(jobKind, job, &job.Spec.Template, "", map[string]string{batchv1.JobNameLabel: job.Name})
	}
	if surplus := len(active) - int(want); surplus > 0 {
		slices.SortStableFunc(active, func(a, b *corev1.Pod) int {
			return cmp.Or(compareProgress(a, b), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
		})
		c.deletePods(active[:surplus])
	}
}
