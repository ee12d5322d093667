package v1alpha1

const (
	// PreferencesAnnotation on a FederatedReplicaSet is its preferences as JSON, for manifests that were written before spec.preferences existed. Both at once
	// are refused.
	PreferencesAnnotation = "federation.kubernetes.io/replica-set-preferences"

	// CascadeAnnotation on a FederatedReplicaSet is "true" if its deletion deletes the ReplicaSets in the clusters too. Without it they stay, with their pods.
	CascadeAnnotation = "federation.berth.dev/cascade"

	// CascadeFinalizer keeps a FederatedReplicaSet with CascadeAnnotation until its ReplicaSets are deleted.
	CascadeFinalizer = "federation.berth.dev/cascade"

	// OwnerLabel on a ReplicaSet in a cluster is the UID of its FederatedReplicaSet. Berth touches no ReplicaSet without it.
	OwnerLabel = "federation.berth.dev/federatedreplicaset-uid"

	// HubLabel is on every ReplicaSet that a hub writes in a cluster, and on the pods of its template. A hub sees no other ReplicaSets and pods by its caches.
	HubLabel = "federation.berth.dev/hub"

	// AllowedLabel on a namespace in a cluster lets a hub work there, if it is "true". manifests/federation/member has the policy.
	AllowedLabel = "federation.berth.dev/allowed"

	// AdoptLabel on a ReplicaSet in a cluster with the name and namespace of a FederatedReplicaSet lets Berth take it over, if it is "true".
	AdoptLabel = "federation.berth.dev/adopt"

	// TakeOverAnnotation on a FederatedReplicaSet is "true" if Berth takes over the ReplicaSets of its name that another FederatedReplicaSet has made, in all clusters: the hub was set up again, or the
	// FederatedReplicaSet was. Nobody else may use them any more. On a UnitedDeployment it does the same for children in other clusters whose names begin with that of the UnitedDeployment.
	TakeOverAnnotation = "federation.berth.dev/take-over"
	// CordonAnnotation on a ClusterProfile keeps replicas of FederatedReplicaSets and UnitedDeployments from its cluster: with "true" the cluster gets no more, with "drain" those that it has move to others.
	CordonAnnotation = "federation.berth.dev/cordon"
	// AnyCluster is the name in spec.preferences.clusters that stands for every cluster without an entry of its own.
	AnyCluster = "*"

	// FieldManager is the name with which Berth applies ReplicaSets.
	FieldManager = "berth-federation"
)

// Conditions of a FederatedReplicaSet.
const (
	// ReadyCondition is True if the spec is valid, all clusters answer, and every ReplicaSet asks for what it should. Whether pods are available is in the numbers.
	ReadyCondition = "Ready"
	// PlacedCondition is True if all replicas have a cluster that takes them.
	PlacedCondition = "Placed"
	// ReachableCondition is True if all clusters with replicas answer. If it is False, status.mayExceedBy says how many replicas may run above the total.
	ReachableCondition = "ClustersReachable"
)

// Reasons of conditions and events.
const (
	// ReasonReady: everything is as wanted.
	ReasonReady = "Ready"
	// ReasonInvalid: the spec or the annotation cannot be used until it is corrected. ReplicaSets stay as they are.
	ReasonInvalid = "Invalid"
	// ReasonInProgress: ReplicaSets are being written, or replicas move.
	ReasonInProgress = "InProgress"
	// ReasonPlaced: all replicas have a cluster.
	ReasonPlaced = "Placed"
	// ReasonUnplaced: the clusters do not take all replicas: their maximums, or what they have room for, are too low.
	ReasonUnplaced = "Unplaced"
	// ReasonWaiting: no cluster has room for some replicas. They wait in a cluster as pods without a node.
	ReasonWaiting = "Waiting"
	// ReasonDeletionWaits: the FederatedReplicaSet is deleted when a cluster answers that may have its ReplicaSet.
	ReasonDeletionWaits = "DeletionWaits"
	// ReasonReachable: all clusters with replicas answer.
	ReasonReachable = "Reachable"
	// ReasonUnreachable: a cluster with replicas does not answer.
	ReasonUnreachable = "Unreachable"
	// ReasonClusterScaled: event, a cluster is asked for another number of replicas.
	ReasonClusterScaled = "ClusterScaled"
	// ReasonClusterRefused: event, the API server of a cluster refused the ReplicaSet.
	ReasonClusterRefused = "ClusterRefused"
	// ReasonUnknownCluster: spec.preferences.clusters names a cluster that does not exist. Event.
	ReasonUnknownCluster = "UnknownCluster"
)

// ClusterState says how a cluster takes part.
type ClusterState string

const (
	// ClusterReady takes replicas.
	ClusterReady ClusterState = "Ready"
	// ClusterFull has no room for more than status.clusters[].capacity.
	ClusterFull ClusterState = "Full"
	// ClusterNameTaken has another ReplicaSet of the same name, which Berth does not touch. The cluster gets no replicas.
	ClusterNameTaken ClusterState = "NameTaken"
	// ClusterUnreachable does not answer. Its replicas stay its own until spec.pace.lostSeconds are over.
	ClusterUnreachable ClusterState = "Unreachable"
	// ClusterRefusing does not let the hub work with it: the credentials have ended or are wrong, its version is too old, or another ClusterProfile leads to it. Its replicas stay its own.
	ClusterRefusing ClusterState = "Refusing"
	// ClusterLost has not answered for spec.pace.lostSeconds. Other clusters run its replicas, but for its minimum.
	ClusterLost ClusterState = "Lost"
	// ClusterReturned answers again after it was lost, and still runs replicas that other clusters have taken over.
	ClusterReturned ClusterState = "Returned"
	// ClusterLeaving has no entry in spec.preferences.clusters any more. Its replicas go when others are available.
	ClusterLeaving ClusterState = "Leaving"
)

// CapacitySource says how a figure of capacity was found.
type CapacitySource string

const (
	// CapacityObserved: pods found no node there for spec.pace.unschedulableSeconds.
	CapacityObserved CapacitySource = "Observed"
	// CapacityRefused: the API server of the cluster refused the ReplicaSet.
	CapacityRefused CapacitySource = "Refused"
)
