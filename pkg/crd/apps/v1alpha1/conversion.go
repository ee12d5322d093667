package v1alpha1

import "regexp"

// renamed are the fields of a subset that have another name in v1beta1: the name in v1alpha1, then that in v1beta1.
var renamed = map[string]string{
	"requiredNodeSelectorTerm":   "requiredNodeSelector",
	"preferredNodeSelectorTerms": "preferredNodeSelector",
}

// ToHub changes the content of a WorkloadSpread, as decoded from JSON, from v1alpha1 to v1beta1. Fields that it does not know stay as they are, so that it
// cuts nothing that a newer definition has. The caller sets apiVersion.
func ToHub(content map[string]any) {
	for from, to := range renamed {
		rename(content, from, to)
	}
}

// FromHub is the opposite of ToHub.
func FromHub(content map[string]any) {
	for to, from := range renamed {
		rename(content, from, to)
	}
}

// rename gives the field of every subset another name.
func rename(content map[string]any, from, to string) {
	spec, _ := content["spec"].(map[string]any)
	subsets, _ := spec["subsets"].([]any)
	for _, subset := range subsets {
		fields, _ := subset.(map[string]any)
		value, found := fields[from]
		if _, taken := fields[to]; found && !taken {
			fields[to] = value
			delete(fields, from)
		}
	}
}

var renamedInHub = regexp.MustCompile(`\b(requiredNodeSelector|preferredNodeSelector)\b`)

// InWords returns a message about a WorkloadSpread of v1beta1 with the names that the fields have in v1alpha1.
func InWords(message string) string {
	return renamedInHub.ReplaceAllStringFunc(message, func(name string) string {
		for from, to := range renamed {
			if to == name {
				return from
			}
		}
		return name
	})
}
