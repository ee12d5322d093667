package podspec

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object decodes an object. It is nil if there is none, and with an error, which says what it must be.
func Object(extension *runtime.RawExtension, path *field.Path, must string) (map[string]any, field.ErrorList) {
	if extension == nil {
		return nil, nil
	}
	raw := bytes.TrimSpace(extension.Raw)
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return nil, field.ErrorList{field.Invalid(path, field.OmitValueType{}, fmt.Sprintf("%s: %v", must, err))}
	}
	object, is := value.(map[string]any)
	if !is {
		return nil, field.ErrorList{field.Invalid(path, field.OmitValueType{}, must)}
	}
	return object, nil
}
