package v1beta1

const (
	// CustomVersionLabel on a SidecarSet names its version. The ControllerRevision of that version has the label too. Injection can ask for it.
	CustomVersionLabel = "apps.kruise.io/sidecarset-custom-version"

	// NameLabel on a ControllerRevision is the name of its SidecarSet.
	NameLabel = "kruise.io/sidecarset-name"

	// HashAnnotation on a pod says which version of each SidecarSet it has: a JSON object from the name of the set to a PodVersion.
	HashAnnotation = "kruise.io/sidecarset-hash"

	// InjectedListAnnotation on a pod is the names of its SidecarSets, separated by commas.
	InjectedListAnnotation = "kruise.io/sidecarset-injected-list"

	// InPlaceStateAnnotation on a pod is what its sidecars were before the last update: a JSON object from the name of the set to an InPlaceState.
	InPlaceStateAnnotation = "kruise.io/sidecarset-inplace-update-state"

	// GivenAnnotation on a pod is what each SidecarSet has given to its containers: a JSON object from the name of the set to a Given. An update in place changes what
	// the set gives differently now, and nothing that others have changed. (Berth)
	GivenAnnotation = "berth.dev/sidecars"

	// WorkingContainerAnnotation on a pod is a JSON object from the name of each sidecar with hot upgrade to the one of its two containers that works.
	WorkingContainerAnnotation = "kruise.io/sidecarset-working-hotupgrade-container"

	// VersionAnnotationPrefix and the name of a container with hot upgrade is the annotation with its version: "0" while it has the empty image, and otherwise a number
	// that grows with each upgrade. VersionAltAnnotationPrefix is that of the other container of the same sidecar.
	VersionAnnotationPrefix    = "version.sidecarset.kruise.io/"
	VersionAltAnnotationPrefix = "versionalt.sidecarset.kruise.io/"

	// InjectedEnv is an environment variable that each injected container has, with the value "true".
	InjectedEnv = "IS_INJECTED"

	// VersionEnv and VersionAltEnv are the environment variables with which a container with hot upgrade reads the two annotations.
	VersionEnv    = "SIDECARSET_VERSION"
	VersionAltEnv = "SIDECARSET_VERSION_ALT"

	// FieldManager is the name with which Berth writes pods.
	FieldManager = "berth-sidecars"
)

// Conditions of a SidecarSet.
const (
	// ReadyCondition is True if the spec is valid, new pods get the sidecars, and all pods that shall have the latest version have it. (Berth)
	ReadyCondition = "Ready"
)

// Reasons of conditions and events.
const (
	// ReasonReady: everything is as wanted.
	ReasonReady = "Ready"
	// ReasonInvalid: the spec cannot be used until it is corrected. New pods get no sidecars from it, and others keep theirs.
	ReasonInvalid = "Invalid"
	// ReasonUpdating: pods are being updated.
	ReasonUpdating = "Updating"
	// ReasonPaused: the update is paused.
	ReasonPaused = "Paused"
	// ReasonNotUpdatable: some pods have an older version, and cannot get the latest one in place.
	ReasonNotUpdatable = "NotUpdatable"
	// ReasonRefused: somebody refuses to let Berth update a pod, such as its PodUnavailableBudget, or undoes the update.
	ReasonRefused = "Refused"
)
