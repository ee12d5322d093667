package members

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
)

// State says whether the hub can work with a member, and if not, what kind of thing is in the way.
type State string

const (
	// Ready: the member answers and its cache is complete.
	Ready State = "Ready"
	// Connecting: the member has just been registered, or its credentials have changed, and the first attempt is under way.
	Connecting State = "Connecting"
	// Unreachable: the member does not answer, answers too late or with errors, or its cache cannot be completed.
	Unreachable State = "Unreachable"
	// Unauthorized: the member does not accept the credentials, or they lack a right.
	Unauthorized State = "Unauthorized"
	// UnsupportedVersion: the Kubernetes of the member is older than oldestVersion.
	UnsupportedVersion State = "UnsupportedVersion"
	// Duplicate: the member is the same cluster as an older one.
	Duplicate State = "Duplicate"
	// BadCredentials: the hub has no credentials for the member, or cannot use them. It sends no request.
	BadCredentials State = "BadCredentials"
)

// Lives is true for a state in which the member is not down, as far as anybody knows: it answers and refuses the hub, or the hub cannot use what it has been given. Somebody has to mend that. Its workloads run on.
func (s State) Lives() bool {
	return s == Unauthorized || s == UnsupportedVersion || s == Duplicate || s == BadCredentials
}

// Cordon says whether a member gets replicas. It is the value of v1alpha1.CordonAnnotation on its ClusterProfile; any other value has no effect.
type Cordon string

const (
	// Cordoned: it gets no more replicas.
	Cordoned Cordon = "true"
	// Drained: it gets no more replicas, and those that it has move to others.
	Drained Cordon = "drain"
)

// oldestVersion is the oldest Kubernetes of a member. Its API has everything that the hub uses; see docs/federation-members.md.
const oldestVersion = "1.33"

// Status is what is known of a member.
type Status struct {
	// Name, Namespace and Labels are those of the member's ClusterProfile. The labels must not be changed.
	Name, Namespace string
	Labels          map[string]string
	State           State
	// Cordon says whether the member gets replicas.
	Cordon Cordon
	// Expires is when the credentials end. Zero if they do not say.
	Expires time.Time
	// Identity is the same for the same cluster: the UID of its namespace kube-system, and what it proves when the hub connects. Empty if it was never reached, or does not let the hub read the UID.
	Identity types.UID
	// Since is when the member became ready, or when it ceased to be. While a member is not ready its state may change, and Since stays: it is the time since
	// when nothing is known of the member. For one that refused the hub, see State.Lives, it is when it ceased to answer. After a restart of the hub it is the time of the restart.
	Since time.Time
	// Message says what is wrong, where, and what to do. Empty if the member is ready.
	Message string
	// Version of the member's Kubernetes, such as 1.35. Empty if it was never reached.
	Version string
}

// NotReadyError is why a member has no client and no cache now.
type NotReadyError struct{ Status Status }

// Error implements error.
func (e *NotReadyError) Error() string {
	if e.Status.Message == "" {
		return fmt.Sprintf("member %s is not ready: %s", e.Status.Name, e.Status.State)
	}
	return e.Status.Message
}

// problem is an error that says which state it leads to.
type problem struct {
	state State
	err   error
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

func badCredentials(format string, args ...any) error {
	return &problem{BadCredentials, fmt.Errorf(format, args...)}
}

// stateOf is the state to which an error of a request leads.
func stateOf(err error) State {
	var known *problem
	switch {
	case errors.As(err, &known):
		return known.state
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err), fromPlugin(err):
		return Unauthorized
	default:
		return Unreachable
	}
}

// fromPlugin is true for errors of a credential plugin, which client-go marks by this text only.
func fromPlugin(err error) bool { return strings.Contains(err.Error(), "getting credentials: ") }

// longestCause bounds what a message quotes, in bytes. A member chooses what its errors say.
const longestCause = 300

// messageOf is the message of a member that is not ready because of err.
func messageOf(member, server string, err error) string {
	cause := strings.Join(strings.Fields(err.Error()), " ")
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		cause = "no answer in time"
	}
	if len(cause) > longestCause {
		cause = strings.ToValidUTF8(cause[:longestCause], "") + "…"
	}
	switch stateOf(err) {
	case Unauthorized:
		return fmt.Sprintf("member %s at %s refuses the hub: %s: renew the credentials, or grant the rights in manifests/federation/member", member, server, cause)
	case UnsupportedVersion:
		return fmt.Sprintf("member %s at %s has Kubernetes %s: upgrade it to %s or later", member, server, cause, oldestVersion)
	case Duplicate:
		return fmt.Sprintf("member %s at %s is the same cluster as %s, which came first: delete one of the two ClusterProfiles", member, server, cause)
	case BadCredentials:
		return fmt.Sprintf("member %s has no usable credentials: %s", member, cause)
	default:
		return fmt.Sprintf("member %s at %s cannot be reached: %s: check its API server and the network between", member, server, cause)
	}
}

// checkVersion refuses a member that is too old. Major and minor have no patch level or name of a vendor in them, except for a "+" at the end.
func checkVersion(info *version.Info) error {
	got, err := utilversion.ParseGeneric(strings.TrimRight(info.Major, "+") + "." + strings.TrimRight(info.Minor, "+"))
	if err != nil {
		return &problem{UnsupportedVersion, fmt.Errorf("%q, which is no version", info.Major+"."+info.Minor)}
	}
	if got.LessThan(utilversion.MustParseGeneric(oldestVersion)) {
		return &problem{UnsupportedVersion, errors.New(got.String())}
	}
	return nil
}
