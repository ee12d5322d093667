package webhook

import (
	"encoding/json"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
)

// patchOf turns one pod into another. Both have the same of the fields that admission does not change, so it does not matter which of those were read.
func patchOf(before, after *corev1.Pod) ([]jsonpatch.Operation, error) {
	was, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	is, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	return jsonpatch.CreatePatch(was, is)
}
