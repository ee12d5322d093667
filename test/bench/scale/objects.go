package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	"github.com/berth-project/berth/pkg/subset"
)

// shape describes the objects of the cluster. Every spread has a budget and a Deployment with two ReplicaSets. One of these is old and has no pods.
type shape struct {
	Name                     string
	Spreads, Pods            int // Pods per spread
	Namespaces, Nodes, Extra int
	// Late means that the scheduler sees the spreads after all other objects.
	Late bool
	// Ruled means that a ClusterSpreadRule has made the spreads.
	Ruled bool
}

const (
	schedulerName = "berth-scheduler"
	poolLabel     = "pool"
	hash          = "7d9c5b6f4d"
	// pendingEvery: one pod in every 25th spread has no node.
	pendingEvery = 25
	// probeName is the spread whose pods wait until its quota is raised. Extra workloads have pods, but initially no spread.
	probeName = "probe"
	extraName = "extra"
)

var created = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// namespaceOf the i-th spread. The probe and the extra workloads are in the first.
func (s *shape) namespaceOf(i int) string { return fmt.Sprintf("team-%d", i%s.Namespaces) }

func workloadName(i int) string { return fmt.Sprintf("web-%d", i) }

// fill adds the first objects to the API server. It returns the number of pods, and how many of them have no node.
func (s *shape) fill(server *apiServer) (pods, pending int) {
	for i := range s.Nodes {
		server.put(node(i))
	}
	for i := range s.Spreads {
		namespace, name := s.namespaceOf(i), workloadName(i)
		putWorkload(server, namespace, name, int32(s.Pods))
		object := s.spread(namespace, name, 1)
		server.put(object)
		server.put(budgetFor(namespace, name))
		constraints := constraintsOf(object)
		for j := range s.Pods {
			p := pod(namespace, name, fmt.Sprintf("%s-%s-%05d", name, hash, j))
			s.admit(p, constraints)
			pods++
			if j == s.Pods-1 && i%pendingEvery == 0 {
				pending++
			} else {
				s.bind(p, i*s.Pods+j, s.subsetOf(j), name)
			}
			server.put(p)
		}
	}
	for i := range s.Extra {
		namespace, name := s.namespaceOf(0), fmt.Sprintf("%s-%d", extraName, i)
		putWorkload(server, namespace, name, int32(s.Pods))
		for j := range s.Pods {
			p := pod(namespace, name, fmt.Sprintf("%s-%s-%05d", name, hash, j))
			s.bind(p, i*s.Pods+j, s.subsetOf(j), "")
			server.put(p)
			pods++
		}
	}
	putWorkload(server, s.namespaceOf(0), probeName, 1<<20)
	server.put(s.probe(1))
	return pods, pending
}

// admit adds to a new pod what admission adds.
func (s *shape) admit(p *corev1.Pod, constraints subset.Constraints) {
	if constraints.AddTo(p); s.Ruled {
		p.Annotations[v1beta1.AwaitsAnnotation] = "ClusterSpreadRule web"
	}
}

// subsetOf the j-th pod of a workload: the first half is in a, which has that quota, and the others in b.
func (s *shape) subsetOf(j int) string {
	if j < s.Pods/2 {
		return "a"
	}
	return "b"
}

func (s *shape) spread(namespace, name string, generation int64) *v1beta1.WorkloadSpread {
	object := spreadOf(namespace, name, generation, v1beta1.WhenFullSchedule, inPool("a", s.Pods/2), inPool("b", -1))
	if s.Ruled {
		object.Labels = map[string]string{v1beta1.ClusterRuleLabel: "web"}
	}
	return object
}

// probe is a spread with one subset. Each generation raises its quota by one, starting at 0.
func (s *shape) probe(generation int64) *v1beta1.WorkloadSpread {
	return spreadOf(s.namespaceOf(0), probeName, generation, v1beta1.WhenFullWait, inPool("a", int(generation)-1))
}

// probePod is the n-th pod that waits for the probe's quota.
func (s *shape) probePod(n int64) *corev1.Pod {
	return pod(s.namespaceOf(0), probeName, fmt.Sprintf("%s-%s-%05d", probeName, hash, n))
}

func inPool(name string, limit int) v1beta1.Subset {
	in := v1beta1.Subset{Name: name, RequiredNodeSelector: &corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: poolLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}}
	if limit >= 0 {
		in.MaxReplicas = ptr.To(intstr.FromInt32(int32(limit)))
	}
	return in
}

func spreadOf(namespace, name string, generation int64, full v1beta1.WhenFull, subsets ...v1beta1.Subset) *v1beta1.WorkloadSpread {
	object := &v1beta1.WorkloadSpread{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "WorkloadSpread"},
		ObjectMeta: metadataOf(namespace, "spread", name),
		Spec: v1beta1.WorkloadSpreadSpec{
			TargetReference:  v1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			Subsets:          subsets,
			ScheduleStrategy: v1beta1.ScheduleStrategy{Type: v1beta1.FixedScheduleStrategy, WhenFull: full},
		},
		Status: v1beta1.WorkloadSpreadStatus{ObservedGeneration: generation, Summary: "a 10/10, b 10"},
	}
	object.Generation = generation
	for _, in := range subsets {
		object.Status.SubsetStatuses = append(object.Status.SubsetStatuses, v1beta1.SubsetStatus{Name: in.Name, Replicas: 10, Conditions: []metav1.Condition{
			{Type: "Schedulable", Status: metav1.ConditionTrue, LastTransitionTime: created, Reason: "Schedulable", Message: "pods of this subset find nodes"}}})
	}
	asApplied(object, object)
	return object
}

func constraintsOf(object *v1beta1.WorkloadSpread) subset.Constraints {
	policy, errs := subset.Compile(object, nil)
	if len(errs) > 0 {
		panic(errs.ToAggregate()) // the spread is our own
	}
	return policy.Constraints
}

func budgetFor(namespace, name string) *policyv1beta1.PodUnavailableBudget {
	object := &policyv1beta1.PodUnavailableBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1beta1.GroupVersion.String(), Kind: "PodUnavailableBudget"},
		ObjectMeta: metadataOf(namespace, "budget", name),
		Spec: policyv1beta1.PodUnavailableBudgetSpec{
			TargetReference: &policyv1beta1.TargetReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MaxUnavailable:  ptr.To(intstr.FromString("20%")),
		},
		Status: policyv1beta1.PodUnavailableBudgetStatus{ObservedGeneration: 1, UnavailableAllowed: 4, CurrentAvailable: 20, DesiredAvailable: 16, TotalReplicas: 20},
	}
	asApplied(object, object)
	return object
}

// metadataOf returns the metadata of an object. kind distinguishes objects of the same name.
func metadataOf(namespace, kind, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%s-%s-%s-0000-0000-0000", kind, namespace, name)), Generation: 1,
		CreationTimestamp: created, Labels: map[string]string{"app": name, "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "web-1.2.3"},
	}
}

// asApplied adds what kubectl apply writes into an object: the applied manifest and the managed fields.
func asApplied(object metav1.Object, manifest any) {
	text, err := json.Marshal(manifest)
	if err != nil {
		panic(err) // the objects are our own
	}
	object.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: string(text)})
	object.SetManagedFields(managedFields(len(text)))
}

// managedFields of about the given size.
func managedFields(size int) []metav1.ManagedFieldsEntry {
	const one = `"f:terminationGracePeriodSeconds":{},"f:schedulerName":{},"f:restartPolicy":{},"f:dnsPolicy":{},`
	raw := fmt.Sprintf(`{"f:spec":{%s"f:replicas":{}}}`, strings.Repeat(one, size/len(one)+1))
	return []metav1.ManagedFieldsEntry{{Manager: "kubectl-client-side-apply", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "apps/v1",
		Time: &created, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(raw)}}}
}

func putWorkload(server *apiServer, namespace, name string, replicas int32) {
	labels := map[string]string{"app": name}
	deployment := &appsv1.Deployment{
		ObjectMeta: metadataOf(namespace, "deployment", name),
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: replicas, UpdatedReplicas: replicas, ReadyReplicas: replicas, Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, LastUpdateTime: created, LastTransitionTime: created, Reason: "MinimumReplicasAvailable",
				Message: "Deployment has minimum availability."}}},
	}
	asApplied(deployment, deployment.Spec)
	server.put(deployment)
	for _, revision := range []string{hash, "5f6d8c7b9a"} {
		replicaSet := &appsv1.ReplicaSet{
			ObjectMeta: metadataOf(namespace, "replicaset", name+"-"+revision),
			Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name, appsv1.DefaultDeploymentUniqueLabelKey: revision}},
				Template: *deployment.Spec.Template.DeepCopy()},
			Status: appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: replicas, ReadyReplicas: replicas},
		}
		replicaSet.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
		asApplied(replicaSet, deployment.Spec)
		if revision != hash {
			replicaSet.Spec.Replicas, replicaSet.Status = ptr.To[int32](0), appsv1.ReplicaSetStatus{ObservedGeneration: 1}
		}
		server.put(replicaSet)
	}
}

// pod of a workload's current ReplicaSet, without a node.
func pod(namespace, workload, name string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metadataOf(namespace, "pod", name), Spec: podSpec(), Status: corev1.PodStatus{Phase: corev1.PodPending}}
	p.Labels = map[string]string{"app": workload, appsv1.DefaultDeploymentUniqueLabelKey: hash}
	p.Annotations = map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "9090"}
	replicaSet := &metav1.ObjectMeta{Name: workload + "-" + hash, UID: metadataOf(namespace, "replicaset", workload+"-"+hash).UID}
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(replicaSet, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	p.ManagedFields = managedFields(1000)
	p.Spec.SchedulerName = schedulerName
	return p
}

// bind puts a pod on the n-th node of a pool, in the subset of that name. If spread is not empty, it adds the record.
func (s *shape) bind(p *corev1.Pod, n int, pool, spread string) {
	nodes := s.Nodes / 2
	at := 2 * (n % nodes) // even nodes are in pool a
	if pool == "b" {
		at++
	}
	p.Spec.NodeName = nodeName(at)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3", HostIP: "10.0.0.1", StartTime: &created}
	for _, condition := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: created})
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "web", Ready: true, Image: p.Spec.Containers[0].Image, ImageID: p.Spec.Containers[0].Image + "@sha256:" + strings.Repeat("0", 64),
		ContainerID: "containerd://" + strings.Repeat("0", 64), Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: created}}}}
	if spread == "" {
		return
	}
	record, err := json.Marshal(v1beta1.MatchedSubset{Name: spread, Subset: pool, UID: string(p.UID)})
	if err != nil {
		panic(err) // the record is our own
	}
	p.Annotations[v1beta1.MatchedAnnotation] = string(record)
	p.Annotations[v1beta1.PodDeletionCostAnnotation] = "100"
	p.Labels[v1beta1.SubsetLabel] = pool
}

func podSpec() corev1.PodSpec {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080), Scheme: corev1.URISchemeHTTP}},
			TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}
	}
	container := corev1.Container{
		Name: "web", Image: "registry.example.com/team/web:1.2.3", ImagePullPolicy: corev1.PullIfNotPresent,
		Ports:          []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		Resources:      corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")}},
		LivenessProbe:  probe("/live"),
		ReadinessProbe: probe("/ready"),
		VolumeMounts:   []corev1.VolumeMount{{Name: "config", MountPath: "/etc/web"}, {Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
	}
	for _, name := range []string{"DATABASE_URL", "CACHE_URL", "LOG_LEVEL", "FEATURES", "REGION", "TRACING_ENDPOINT"} {
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: strings.ToLower(name) + ".example.com:8080/path"})
	}
	return corev1.PodSpec{
		Containers: []corev1.Container{container}, RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To[int64](30),
		DNSPolicy: corev1.DNSClusterFirst, ServiceAccountName: "web", SecurityContext: &corev1.PodSecurityContext{}, Priority: ptr.To[int32](0),
		Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}},
			{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](3607)}}}}}}},
		Tolerations: []corev1.Toleration{
			{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)},
			{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)}},
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func node(i int) *corev1.Node {
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("250")}
	n := &corev1.Node{ObjectMeta: metadataOf("", "node", nodeName(i)),
		Status: corev1.NodeStatus{Allocatable: room, Capacity: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}}}
	n.Labels = map[string]string{corev1.LabelHostname: n.Name, poolLabel: string("ab"[i%2]), corev1.LabelTopologyZone: string("xyz"[i%3])}
	n.ManagedFields = managedFields(1000)
	return n
}
