package v1beta1

const (
	// ProtectOperationsAnnotation on a budget is spec.protectOperations in v1alpha1: names separated by commas, in either case. It has no effect if the
	// field is set.
	ProtectOperationsAnnotation = "kruise.io/pub-protect-operations"

	// ProtectTotalReplicasAnnotation on a budget is spec.protectTotalReplicas in v1alpha1. It has no effect if the field is set.
	ProtectTotalReplicasAnnotation = "pub.kruise.io/protect-total-replicas"

	// IgnoredPodSelectorAnnotation on a budget is spec.ignoredPodSelector in v1alpha1: a label selector as JSON. It has no effect if the field is set.
	IgnoredPodSelectorAnnotation = "policy.berth.dev/ignored-pod-selector"

	// NoProtectAnnotation with the value "true" takes a pod out of every budget. No budget refuses an operation on the pod or counts it as available.
	// Everybody who may change the pod may set the annotation, even if no further pod may become unavailable. NoProtectNeedsRoomAnnotation on the
	// budget prevents that.
	NoProtectAnnotation = "pub.kruise.io/no-protect"

	// NoProtectNeedsRoomAnnotation with the value "true" on a budget makes the webhook judge NoProtectAnnotation on an available pod like a deletion:
	// it is refused unless one more pod may become unavailable.
	NoProtectNeedsRoomAnnotation = "policy.berth.dev/no-protect-needs-room"

	// UnavailableLabelPrefix begins the keys of labels that take a pod out of service. A pod with such a label counts as unavailable, whatever the
	// value. The webhook allows the first such label on an available pod only if one more pod of the budget may become unavailable.
	UnavailableLabelPrefix = "unavailable-pod.kruise.io/"

	// ProtectedLabel is on every pod of a budget. The API server calls the webhook only about pods that have it, and only these count as available.
	// Berth's controller sets it. A ValidatingAdmissionPolicy prevents others from changing it.
	ProtectedLabel = "policy.berth.dev/protected"

	// ProtectedValue is the value of ProtectedLabel.
	ProtectedValue = "true"

	// SelectorKeysAnnotation on a protected pod holds label keys, in order and separated by commas: those in the selectors of its budgets and of its
	// controller. The API server does not call the webhook about a change of any other label. Without the annotation, it calls the webhook about
	// every change of a label. Berth's controller sets it, and nobody else can change it on a protected pod.
	SelectorKeysAnnotation = "policy.berth.dev/selector-keys"

	// MaxSelectorKeys is how many characters SelectorKeysAnnotation may have. A longer one counts as none: whoever creates a pod chooses its annotations,
	// and the API server would go through all keys at each update of the pod. The match condition of the webhook has the same number.
	MaxSelectorKeys = 1024

	// ReplacedFirstAnnotation is on a pod that its ReplicaSet has handed to their Deployment, so that the ReplicaSet makes a new pod. It says in JSON which
	// ReplicaSet that was, and since when. Berth's controller sets it.
	ReplacedFirstAnnotation = "policy.berth.dev/replaced-first"
)

// Operation is an operation on a pod that makes the pod unavailable.
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
	// OperationUnready: a client other than the pod's kubelet takes the pod out of service while its containers run. The client writes into the status
	// that the pod is not ready, turns a readiness gate off, or adds a label that begins with UnavailableLabelPrefix. Budgets that protect from UPDATE
	// protect from it.
	OperationUnready Operation = "UNREADY"
	// OperationLeave: the pod's labels, annotations or controller change so that the budget does not cover it any more.
	OperationLeave Operation = "LEAVE"
)

// ProtectableOperations are those that spec.protectOperations may name.
var ProtectableOperations = []Operation{OperationDelete, OperationEvict, OperationUpdate, OperationResize}

// Reason is one word that says why the webhook allowed or refused an operation, or why a condition has its status. Messages, metrics, events and
// conditions use the same word.
type Reason string

const (
	// ReasonWithinBudget: enough pods stay available.
	ReasonWithinBudget Reason = "WithinBudget"
	// ReasonApproved: the pod counts as unavailable already, because the webhook has allowed an operation on it earlier.
	ReasonApproved Reason = "AlreadyApproved"
	// ReasonPodUnavailable: the pod is unavailable already.
	ReasonPodUnavailable Reason = "PodUnavailable"
	// ReasonNothingDesired: the budget needs no available pod, for instance because its workload is gone or scaled to 0.
	ReasonNothingDesired Reason = "NothingDesired"
	// ReasonNotProtected: the budget does not protect the pod, or not from this operation.
	ReasonNotProtected Reason = "NotProtected"
	// ReasonExempted: NoProtectAnnotation takes the pod out of every budget, and this budget has no NoProtectNeedsRoomAnnotation.
	ReasonExempted Reason = "Exempted"
	// ReasonBudgetExhausted: fewer pods would be available than the budget needs.
	ReasonBudgetExhausted Reason = "BudgetExhausted"
	// ReasonReplacedFirst: fewer pods would be available than the budget needs, and spec.replaceFirst has a new pod made. The pod goes once that is ready.
	ReasonReplacedFirst Reason = "ReplacedFirst"
	// ReasonNodeEnds: the pod's node announces its end, so the pod is to be replaced first.
	ReasonNodeEnds Reason = "NodeEnds"
	// ReasonNotReplaced: no new pod became ready in time, or the pod cannot be replaced.
	ReasonNotReplaced Reason = "NotReplaced"
	// ReasonBudgetUnhealthy: fewer pods are available than the budget needs, and IfHealthyBudget protects unavailable pods from evictions and updates as well.
	ReasonBudgetUnhealthy Reason = "BudgetUnhealthy"
	// ReasonHeldBySubset: perSubset holds the pod. Another subset has unavailable pods, or no further pod of this subset may become unavailable.
	ReasonHeldBySubset Reason = "HeldBySubset"
	// ReasonContended: others changed the budget so often that the webhook could not write its status. The operation itself may be fine; try again.
	ReasonContended Reason = "Contended"
	// ReasonLedgerFull: the ledger of the budget is full, because too many operations are in progress. The operation itself may be fine; try again.
	ReasonLedgerFull Reason = "LedgerFull"
	// ReasonApprovalUnused: the webhook has allowed the operation many times and it never happened, so something else refuses it. The webhook renews the
	// approval no more, and the approval expires.
	ReasonApprovalUnused Reason = "ApprovalUnused"
	// ReasonPodDisruptionBudget: a PodDisruptionBudget allows no disruption, so the API server would refuse the eviction even if the pod's budgets
	// allowed it. The budgets do not record the eviction.
	ReasonPodDisruptionBudget Reason = "PodDisruptionBudget"
	// ReasonPodUnknown: the webhook could not determine which pod the eviction would delete. The eviction itself may be fine; try again.
	ReasonPodUnknown Reason = "PodUnknown"
	// ReasonServerUnavailable: the API server did not answer the webhook, for a temporary reason. The operation itself may be fine; try again.
	ReasonServerUnavailable Reason = "ServerUnavailable"
	// ReasonNamespaceTerminating: the pod's namespace is being deleted.
	ReasonNamespaceTerminating Reason = "NamespaceTerminating"

	// ReasonSufficientPods: at least one more pod may become unavailable.
	ReasonSufficientPods Reason = "SufficientPods"
	// ReasonInsufficientPods: no further pod may become unavailable now.
	ReasonInsufficientPods Reason = "InsufficientPods"
	// ReasonPodsDoubtful: no further pod may become unavailable now, and one might if all pods counted that may serve. The message names them.
	ReasonPodsDoubtful Reason = "PodsDoubtful"
	// ReasonNoneMayGo: the budget needs every pod to be available. No pod may ever become unavailable, and node drains never finish.
	ReasonNoneMayGo Reason = "NoPodMayEverGo"
	// ReasonAllPodsProtected: every pod of the budget has ProtectedLabel.
	ReasonAllPodsProtected Reason = "AllPodsProtected"
	// ReasonPodsUnprotected: some pods of the budget do not have ProtectedLabel yet, or lack keys in SelectorKeysAnnotation.
	ReasonPodsUnprotected Reason = "PodsUnprotected"
	// ReasonInvalidBudget: the budget cannot be used until it is corrected.
	ReasonInvalidBudget Reason = "InvalidBudget"
	// ReasonTargetNotFound: the workload that the budget names does not exist or is being deleted.
	ReasonTargetNotFound Reason = "TargetNotFound"
	// ReasonReplicasUnknown: some pods have no workload with a readable number of replicas. Such pods count only while they exist. A budget with maxUnavailable
	// or a percentage then lets no available pod go.
	ReasonReplicasUnknown Reason = "ReplicasUnknown"
	// ReasonReplicasKnown: every pod has a workload with a readable number of replicas, or ProtectTotalReplicasAnnotation sets the number.
	ReasonReplicasKnown Reason = "ReplicasKnown"
	// ReasonTwoControllers: another program writes the status of the budget too.
	ReasonTwoControllers Reason = "TwoControllers"
	// ReasonBudgetWarning: the budget is valid but probably not what its author meant.
	ReasonBudgetWarning Reason = "BudgetWarning"
	// ReasonApprovalExpired: an allowed operation did not happen in time, or Berth could not prove that it is over.
	ReasonApprovalExpired Reason = "ApprovalExpired"
	// ReasonReadFailed: the pods or workloads of the budget cannot be read.
	ReasonReadFailed Reason = "ReadFailed"
	// ReasonPodDisruptionBudgetKept: Berth keeps a PodDisruptionBudget that says the same as the budget.
	ReasonPodDisruptionBudgetKept Reason = "Kept"
	// ReasonOtherPodDisruptionBudget: another PodDisruptionBudget has the budget's name or selects the same pods, so Berth keeps none.
	ReasonOtherPodDisruptionBudget Reason = "OtherPodDisruptionBudget"
	// ReasonNotExpressible: a PodDisruptionBudget cannot say what the budget says, so Berth keeps none.
	ReasonNotExpressible Reason = "NotExpressible"
)

const (
	// ConditionDisruptionAllowed: at least one more pod may become unavailable.
	ConditionDisruptionAllowed = "DisruptionAllowed"
	// ConditionEnforcing: the budget is usable, and the webhook sees every operation on its pods.
	ConditionEnforcing = "Enforcing"
	// ConditionReplicasKnown: Berth knows the number of replicas, from the workloads of all pods or from ProtectTotalReplicasAnnotation.
	ConditionReplicasKnown = "ReplicasKnown"
	// ConditionPodDisruptionBudgetKept: an equal PodDisruptionBudget is beside the budget. Budgets that do not ask for one do not have this condition.
	ConditionPodDisruptionBudgetKept = "PodDisruptionBudgetKept"
)
