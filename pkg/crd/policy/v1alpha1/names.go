package v1alpha1

const (
	// ProtectOperationsAnnotation on a budget lists the operations it protects pods from, separated by commas: DELETE, EVICT, UPDATE, RESIZE.
	// Without it, all of them. Operations that are left out go through unasked and uncounted.
	ProtectOperationsAnnotation = "kruise.io/pub-protect-operations"

	// ProtectTotalReplicasAnnotation on a budget says how many pods there should be, for pods whose workload cannot tell.
	ProtectTotalReplicasAnnotation = "pub.kruise.io/protect-total-replicas"

	// NoProtectAnnotation with the value "true" takes a pod out of every budget: nothing is refused for it and it counts as available for
	// nobody. Whoever may change the pod may do that, also if there is no room for it, unless the budget has NoProtectNeedsRoomAnnotation.
	NoProtectAnnotation = "pub.kruise.io/no-protect"

	// NoProtectNeedsRoomAnnotation with the value "true" on a budget has NoProtectAnnotation on an available pod of it need room, as deleting the pod would.
	NoProtectNeedsRoomAnnotation = "policy.berth.dev/no-protect-needs-room"

	// UnavailableLabelPrefix begins the keys of labels by which somebody takes a pod out of service. A pod with such a label counts as unavailable,
	// whatever the value. Putting the first one on an available pod needs room in its budget.
	UnavailableLabelPrefix = "unavailable-pod.kruise.io/"

	// ProtectedLabel is on every pod of a budget. The API server asks the webhook about pods that have it and about no others, and only they
	// count as available. Berth's controller keeps it; a ValidatingAdmissionPolicy keeps everybody else from changing it.
	ProtectedLabel = "policy.berth.dev/protected"

	// ProtectedValue is the value of ProtectedLabel.
	ProtectedValue = "true"

	// SelectorKeysAnnotation on a protected pod holds the keys of the labels by which its budgets, and the controllers by which it is theirs, select it,
	// in order and separated by commas. The API server does not ask the webhook about a change of any other label. Without it, the API server asks about
	// every change of a label. Berth's controller keeps it, and nobody else can change it.
	SelectorKeysAnnotation = "policy.berth.dev/selector-keys"
)

// Operation is what is done to a pod that makes it unavailable.
type Operation string

const (
	// OperationDelete: the pod is deleted.
	OperationDelete Operation = "DELETE"
	// OperationEvict: the pod is evicted.
	OperationEvict Operation = "EVICT"
	// OperationUpdate: an image of the pod changes, and its container restarts.
	OperationUpdate Operation = "UPDATE"
	// OperationResize: resources of the pod change, and a container restarts for it.
	OperationResize Operation = "RESIZE"
	// OperationUnready: the pod is taken out of service while its containers run: somebody else than its kubelet writes into its status that it is not
	// ready, turns one of its readiness gates off, or gives it a label that begins with UnavailableLabelPrefix. It is protected where UPDATE is.
	OperationUnready Operation = "UNREADY"
	// OperationLeave: the pod's labels, annotations or controller change so that the budget does not cover it any more.
	OperationLeave Operation = "LEAVE"
)

// Reason says why an operation was let through or refused, and why a condition is as it is, in one word that every surface repeats.
type Reason string

const (
	// ReasonWithinBudget: enough pods stay available.
	ReasonWithinBudget Reason = "WithinBudget"
	// ReasonApproved: the pod counts as unavailable already, because an operation on it was let through before.
	ReasonApproved Reason = "AlreadyApproved"
	// ReasonPodUnavailable: the pod is not available, so nothing is lost.
	ReasonPodUnavailable Reason = "PodUnavailable"
	// ReasonNothingDesired: the budget needs no pod to be available; its workload is gone or asks for none.
	ReasonNothingDesired Reason = "NothingDesired"
	// ReasonNotProtected: the budget does not protect the pod, or not from this operation.
	ReasonNotProtected Reason = "NotProtected"
	// ReasonExempted: the pod is taken out of every budget by its annotation, for which this budget asks for no room.
	ReasonExempted Reason = "Exempted"
	// ReasonBudgetExhausted: fewer pods would be available than the budget needs.
	ReasonBudgetExhausted Reason = "BudgetExhausted"
	// ReasonBudgetUnhealthy: fewer pods are available than the budget needs, and it holds pods that are not available as well.
	ReasonBudgetUnhealthy Reason = "BudgetUnhealthy"
	// ReasonContended: the budget changed too often to get a word in. Nothing is known against the operation; try again.
	ReasonContended Reason = "Contended"
	// ReasonLedgerFull: as many operations of the budget are under way as its status can hold. Nothing is known against the operation; try again.
	ReasonLedgerFull Reason = "LedgerFull"
	// ReasonApprovalUnused: the operation was let through again and again, and has not happened. Something else refuses it. Its approval is left to expire.
	ReasonApprovalUnused Reason = "ApprovalUnused"
	// ReasonPodDisruptionBudget: a PodDisruptionBudget lets no pod go, so that the API server would refuse the eviction after the budgets of the pod have
	// let it through. It takes no room in them.
	ReasonPodDisruptionBudget Reason = "PodDisruptionBudget"
	// ReasonPodUnknown: it could not be made sure which pod an eviction would take. Nothing is known against it; try again.
	ReasonPodUnknown Reason = "PodUnknown"
	// ReasonServerUnavailable: the API server did not answer the webhook, for a reason that will pass. Nothing is known against the operation; try again.
	ReasonServerUnavailable Reason = "ServerUnavailable"
	// ReasonNamespaceTerminating: the pod's namespace is being deleted.
	ReasonNamespaceTerminating Reason = "NamespaceTerminating"

	// ReasonSufficientPods: at least one more pod may become unavailable.
	ReasonSufficientPods Reason = "SufficientPods"
	// ReasonInsufficientPods: no further pod may become unavailable now.
	ReasonInsufficientPods Reason = "InsufficientPods"
	// ReasonNoneMayGo: no pod may ever become unavailable while the budget is as it is, so that drains never finish.
	ReasonNoneMayGo Reason = "NoPodMayEverGo"
	// ReasonAllPodsProtected: every pod of the budget carries the protection label.
	ReasonAllPodsProtected Reason = "AllPodsProtected"
	// ReasonPodsUnprotected: some pods of the budget do not carry the protection label yet.
	ReasonPodsUnprotected Reason = "PodsUnprotected"
	// ReasonInvalidBudget: the budget cannot be used until it is corrected.
	ReasonInvalidBudget Reason = "InvalidBudget"
	// ReasonTargetNotFound: the workload that the budget names does not exist or is being deleted.
	ReasonTargetNotFound Reason = "TargetNotFound"
	// ReasonReplicasUnknown: some pods have no workload that says how many there should be; only those that exist are counted.
	ReasonReplicasUnknown Reason = "ReplicasUnknown"
	// ReasonReplicasKnown: every pod's workload says how many there should be.
	ReasonReplicasKnown Reason = "ReplicasKnown"
	// ReasonBudgetWarning: the budget is legal and probably not what was meant.
	ReasonBudgetWarning Reason = "BudgetWarning"
	// ReasonApprovalExpired: an operation was let through and did not happen, or it could not be proven that it is over.
	ReasonApprovalExpired Reason = "ApprovalExpired"
	// ReasonReadFailed: the pods or workloads of the budget cannot be read.
	ReasonReadFailed Reason = "ReadFailed"
)

const (
	// ConditionDisruptionAllowed: at least one more pod may become unavailable.
	ConditionDisruptionAllowed = "DisruptionAllowed"
	// ConditionEnforcing: every pod of the budget is guarded.
	ConditionEnforcing = "Enforcing"
	// ConditionReplicasKnown: the number of pods that there should be is known.
	ConditionReplicasKnown = "ReplicasKnown"
)
