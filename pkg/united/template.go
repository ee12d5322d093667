package united

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/berth-project/berth/pkg/crd/united/v1beta1"
)

// TemplateOf is the template of the children. It is nil for an empty template.
func TemplateOf(t *v1beta1.SubsetTemplate) (*Template, error) {
	var found *Template
	for _, kind := range []struct {
		of schema.GroupKind
		is *v1beta1.WorkloadTemplate
	}{
		{StatefulSetKind, t.StatefulSetTemplate}, {AdvancedStatefulSetKind, t.AdvancedStatefulSetTemplate}, {CloneSetKind, t.CloneSetTemplate}, {DeploymentKind, t.DeploymentTemplate},
	} {
		if kind.is == nil {
			continue
		}
		if found != nil {
			return nil, errors.New("only one kind of template may be set")
		}
		found = &Template{Kind: kind.of}
		var err error
		if found.Metadata, err = objectIn(kind.is.Metadata); err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		if found.Spec, err = objectIn(kind.is.Spec); err != nil {
			return nil, fmt.Errorf("spec: %w", err)
		}
	}
	return found, nil
}

// objectIn is the content of an extension. It is empty for nil.
func objectIn(extension *runtime.RawExtension) (map[string]any, error) {
	content := map[string]any{}
	if extension == nil {
		return content, nil
	}
	written, err := json.Marshal(extension)
	if err != nil {
		return nil, err
	}
	if err := kjson.Unmarshal(written, &content); err != nil {
		return nil, err
	}
	return content, nil
}
