package united

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
	"github.com/berth-project/berth/pkg/sites"
)

// Observed is what the adapter has gathered.
type Observed struct {
	Now time.Time
	// Revision is the name of the ControllerRevision of the template.
	Revision string
	// Children are all objects that the UnitedDeployment controls, of every kind, in any order. Those that are being deleted count too.
	// Children in clusters that do not answer are not known. Those in clusters that are late may lack the last write.
	Children []Child
	// Clusters are the members of the federation, in any order. Nil without one.
	Clusters []sites.Cluster
	// Status is the previous one.
	Status *v1beta1.UnitedDeploymentStatus
}

// Child is an object that the UnitedDeployment controls.
type Child struct {
	Kind schema.GroupKind
	// Cluster of the child. Empty is that of the UnitedDeployment.
	Cluster string
	Name    string
	UID     types.UID
	// Subset is the value of v1beta1.SubsetNameLabel.
	Subset  string
	Created time.Time
	// Deleting is true for a child with a deletion timestamp.
	Deleting bool
	// Replicas is what its spec asks for.
	Replicas int32
	// Trial is the number in v1beta1.TrialAnnotation, 0 without it.
	Trial int32
	// Revision is the value of v1beta1.RevisionLabel.
	Revision string
	// PodOwner is the value of v1beta1.OwnerLabel in its pod template. It stays if the child is taken over: another one would replace all pods.
	PodOwner string
	// PatchText is the value of v1beta1.SubsetPatchAnnotation.
	PatchText string
	// Partition that its spec has.
	Partition int32
	// Observed is true if its controller has seen its spec. Rolled is true if it also says that all of its pods have its template and are available.
	Observed, Rolled bool
	// MinReady is for how long a pod must be ready before it is available.
	MinReady time.Duration
	// FailingSince is since when its controller cannot create pods. Zero if it can, or does not say.
	FailingSince time.Time
	// ByOrdinal is true if scaling down takes the pods with the highest ordinals.
	ByOrdinal bool
	// Pods of it that are active: neither being deleted nor ended.
	Pods []Pod
}

// Pod is an active pod of a child.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// Revision is the value of v1beta1.RevisionLabel.
	Revision string
	Bound    bool
	Ready    bool
	// ReadySince is when Ready last changed.
	ReadySince time.Time
	// UnschedulableSince is when the scheduler first said that no node fits. Zero if it has not, or if the pod is bound.
	UnschedulableSince time.Time
	// Reserved is the value of v1beta1.ReservedPodLabel; nil if the pod has no such label.
	Reserved *bool
	// Ordinal of the pod, for a child that goes by ordinal: 0 for the first one, whatever number it starts with.
	Ordinal int32
}

// Plan is what is to be done, and what is to be said.
type Plan struct {
	// Children to write: first those that get fewer replicas or go, then those that get more or are made. The order is part of the promise that the
	// children never ask for more than the total and the surge. Those in clusters that do not answer are not in it. A child that stays as it is is in it too, unless nothing may be written to it.
	Children []Wanted
	// Labels are pods that need another value of v1beta1.ReservedPodLabel: that of Reserved, which is not nil.
	Labels []Pod
	// Replaced are pods that a StatefulSet waits for in vain: they are to be deleted.
	Replaced []Pod
	// Status is the new one, without ObservedGeneration and CollisionCount, and without the conditions that tell of errors when writing.
	Status v1beta1.UnitedDeploymentStatus
	// Again is after which time the plan may change by itself. 0 if it does not.
	Again time.Duration
}

// Wanted is what a child is to be.
type Wanted struct {
	// Child that exists. Nil for one that is to be made.
	Child *Child
	// Subset is the index of its subset. -1 if it has none any more.
	Subset int
	// Cluster is the name of the one where the child is or is to be, as it is now. Empty is that of the UnitedDeployment.
	Cluster string
	// Replicas and Trial as in Child.
	Replicas, Trial int32
	// Partition that the child gets, if its kind has partitions.
	Partition int32
	// Revision whose template the child gets. If it is Held, the child keeps its own revision and patch.
	Revision string
	Held     bool
	// ReplicasOnly is true for a child that has to go: nothing but its replicas is written.
	ReplicasOnly bool
	// Late is true if the cluster of the child is late: nothing is written there.
	Late bool
	// Delete is true for a child without replicas that has to go. The adapter deletes it once it has no pods.
	Delete bool
}
