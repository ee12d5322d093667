package budget

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

const (
	// mostNamed is how many pods Missing names.
	mostNamed = 3
	// longestNamed is how many bytes the names and reasons may take. An event with a refusal holds 1,024, of which the longest names of pod and budget take half.
	longestNamed = 250
)

// shown is the order in which Missing names pods. Those come first that somebody may have to look after, and last those that go anyway.
var shown = []State{Doubtful, Unavailable, Pending, Exempt, Available, Gone}

// Missing names some of the pods that do not count as available, and why, as in "; missing: web-1 (is not ready) and 2 more". It is empty if there are
// none. The order of the pods does not matter.
func Missing(f Facts) string {
	all := MissingPods(f)
	if len(all) == 0 {
		return ""
	}
	var named []string
	for left := longestNamed; len(named) < min(mostNamed, len(all)); {
		pod := &all[len(named)]
		one := fmt.Sprintf("%s (%s)", pod.Name, cmp.Or(pod.Why, string(pod.State)))
		if left -= len(one); left < 0 {
			break
		}
		named = append(named, one)
	}
	text := strings.Join(named, ", ")
	switch more := len(all) - len(named); {
	case text == "":
		text = fmt.Sprintf("%d pods", more)
	case more > 0:
		text += fmt.Sprintf(" and %d more", more)
	}
	return "; missing: " + text
}

// MissingPods are the pods that do not count as available, in the order of shown. A pod with an operation under way has State Available, and Why names the
// operation.
func MissingPods(f Facts) []Pod {
	recorded := make(map[types.UID]v1beta1.Operation, len(f.Ledger))
	for i := range f.Ledger {
		recorded[f.Ledger[i].UID] = f.Ledger[i].Operation
	}
	var all []Pod
	for _, pod := range f.Pods {
		operation, isRecorded := recorded[pod.UID]
		switch {
		case pod.State == Gone && pod.Why == "": // has ended, and nobody waits for it
			continue
		case isRecorded && pod.State != Gone && pod.State != Exempt:
			pod.State, pod.Why = Available, string(operation)+" under way"
		case pod.State == Available:
			continue
		}
		all = append(all, pod)
	}
	slices.SortFunc(all, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(slices.Index(shown, a.State), slices.Index(shown, b.State)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return all
}
