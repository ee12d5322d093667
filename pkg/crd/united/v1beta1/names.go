package v1beta1

const (
	// SubsetNameLabel on a child and on its pods is the name of their subset.
	SubsetNameLabel = "apps.kruise.io/subset-name"

	// RevisionLabel on a child and on its pods is the name of the ControllerRevision with their template.
	RevisionLabel = "apps.kruise.io/controller-revision-hash"

	// SubsetPatchAnnotation on a child is the patch of its subset, as JSON. A subset without patch has no such annotation.
	SubsetPatchAnnotation = "apps.kruise.io/subset-patch"

	// ReservedPodLabel on a pod of a UnitedDeployment with reserveUnschedulablePods is "true" while the pod is a reservation: it found no node, and
	// another subset runs a pod in its place. It is "false" on all other pods.
	ReservedPodLabel = "apps.kruise.io/united-deployment-reserved-pod"

	// TrialAnnotation on a child is how many of its replicas are above the division. They are tried because the subset may have room again. Berth
	// writes it together with the replicas.
	TrialAnnotation = "berth.dev/trial-replicas"

	// OwnerLabel on a child in another cluster, and on its pods, is the UID of its UnitedDeployment. An owner reference does not reach across clusters.
	OwnerLabel = "federation.berth.dev/uniteddeployment-uid"

	// MembersFinalizer keeps a UnitedDeployment that has, or had, subsets in other clusters until its children there are deleted.
	MembersFinalizer = "federation.berth.dev/uniteddeployment"

	// FieldManager is the name with which Berth applies children.
	FieldManager = "berth-united"
)

// ConditionType is the type of a condition of a UnitedDeployment or of one of its subsets.
type ConditionType string

// Conditions of a UnitedDeployment.
const (
	// ReadyCondition is True if the spec is valid, all replicas have a subset, and every child is as wanted. Whether pods are ready is in the numbers. (Berth)
	ReadyCondition ConditionType = "Ready"
	// SubsetProvisioned is True if every subset has its child, and no other children are left.
	SubsetProvisioned ConditionType = "SubsetProvisioned"
	// SubsetUpdated is True if every child has its new template and replicas.
	SubsetUpdated ConditionType = "SubsetUpdated"
	// SubsetFailure is True if a child could not be written. The message says which, and why.
	SubsetFailure ConditionType = "SubsetFailure"
	// UnitedDeploymentUpdated is True if all pods have the template of updatedRevision.
	UnitedDeploymentUpdated ConditionType = "UnitedDeploymentUpdated"
	// ClustersReachable is True if all clusters answer where children are or are to be. If it is False, the message says how many replicas may run above the
	// total. Only with subsets in other clusters. (Berth)
	ClustersReachable ConditionType = "ClustersReachable"
)

// SubsetSchedulable is the condition of a subset that says whether new pods find a node there. It is False for a while after a pod did not.
const SubsetSchedulable ConditionType = "Schedulable"

// Reason of a condition or event.
type Reason string

const (
	// ReasonReady: everything is as wanted.
	ReasonReady Reason = "Ready"
	// ReasonInvalid: the spec cannot be used until it is corrected. Children stay as they are.
	ReasonInvalid Reason = "Invalid"
	// ReasonNoTemplate: the template is empty. Children stay as they are.
	ReasonNoTemplate Reason = "NoTemplate"
	// ReasonKindNotServed: the API server does not serve the kind of the template.
	ReasonKindNotServed Reason = "KindNotServed"
	// ReasonUnplaced: not all replicas have a subset, because the subsets do not take more.
	ReasonUnplaced Reason = "Unplaced"
	// ReasonChildRefused: the API server refused to write a child.
	ReasonChildRefused Reason = "ChildRefused"
	// ReasonUnreachable: a cluster of a subset does not answer, or there is no such cluster.
	ReasonUnreachable Reason = "Unreachable"
	// ReasonNotSelected: spec.topology.clusterRegistry does not select the cluster of a subset, which gets no more replicas.
	ReasonNotSelected Reason = "NotSelected"
	// ReasonDeletionWaits: the UnitedDeployment is deleted when a cluster answers where it may have children.
	ReasonDeletionWaits Reason = "DeletionWaits"
	// ReasonInProgress: children are being created, updated or deleted.
	ReasonInProgress Reason = "InProgress"
	// ReasonPaused: the rollout is paused.
	ReasonPaused Reason = "Paused"
	// ReasonReschedule: pods of the subset found no node for rescheduleCriticalSeconds, and other subsets run them.
	ReasonReschedule Reason = "Reschedule"
	// ReasonSchedulable: nothing keeps pods from the subset.
	ReasonSchedulable Reason = "Schedulable"
	// ReasonRecovered: unschedulableDuration is over, and the subset gets pods again.
	ReasonRecovered Reason = "Recovered"
	// ReasonChildCreated: event, a child was created.
	ReasonChildCreated Reason = "ChildCreated"
	// ReasonChildScaled: event, a child got other replicas.
	ReasonChildScaled Reason = "ChildScaled"
	// ReasonChildUpdated: event, a child got another template.
	ReasonChildUpdated Reason = "ChildUpdated"
	// ReasonPodReplaced: event, a pod was deleted that is not ready and has an older template, because its StatefulSet would wait for it forever.
	ReasonPodReplaced Reason = "PodReplaced"
	// ReasonChildDeleted: event, a child was deleted, because its subset was removed or another child took its place.
	ReasonChildDeleted Reason = "ChildDeleted"
	// ReasonUnitedDeploymentWarning: event, the spec is valid, but probably not what was meant.
	ReasonUnitedDeploymentWarning Reason = "UnitedDeploymentWarning"
)

// ClusterState says how a cluster takes part.
type ClusterState string

const (
	// ClusterReady answers.
	ClusterReady ClusterState = "Ready"
	// ClusterNotSelected answers, and spec.topology.clusterRegistry does not select it. Subsets there keep their replicas and get no more.
	ClusterNotSelected ClusterState = "NotSelected"
	// ClusterCordoned answers, and its ClusterProfile keeps new replicas from it. ClusterDrained is the same, and its replicas move to other subsets, as far as these take them.
	ClusterCordoned ClusterState = "Cordoned"
	ClusterDrained  ClusterState = "Drained"
	// ClusterUnreachable does not answer. Its replicas stay its own.
	ClusterUnreachable ClusterState = "Unreachable"
	// ClusterRefusing does not let the hub work with it: the credentials have ended or are wrong, its version is too old, or another ClusterProfile leads to it. Its replicas stay its own.
	ClusterRefusing ClusterState = "Refusing"
	// ClusterUnknown does not exist. It counts as one that does not answer.
	ClusterUnknown ClusterState = "Unknown"
	// ClusterLost has not answered for long, or does not exist for as long; see lostSeconds. With strategy Adaptive other subsets run its replicas, but for the minimums.
	ClusterLost ClusterState = "Lost"
)
