package endpoint

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/versions"
)

// AdmissionInHub returns a webhook that gives the handler of another webhook objects in the version hub, whatever version the client has sent. Its answer names
// the fields of the client's version.
func AdmissionInHub(hub schema.GroupVersion, webhook *admission.Webhook) *admission.Webhook {
	return &admission.Webhook{Handler: &inHub{hub.String(), webhook.Handler}, RecoverPanic: webhook.RecoverPanic}
}

type inHub struct {
	apiVersion string
	handler    admission.Handler
}

var _ admission.Handler = &inHub{}

// Handle converts the objects of the request.
func (h *inHub) Handle(ctx context.Context, request admission.Request) admission.Response {
	for _, object := range []*runtime.RawExtension{&request.Object, &request.OldObject} {
		if len(object.Raw) == 0 {
			continue
		}
		converted, err := convert(object.Raw, h.apiVersion)
		if err != nil {
			return admission.Errored(400, err)
		}
		*object = runtime.RawExtension{Raw: converted}
	}
	response := h.handler.Handle(ctx, request)
	inWordsOf(schema.GroupVersionKind{Group: request.Kind.Group, Version: request.Kind.Version, Kind: request.Kind.Kind}, &response)
	return response
}

// inWordsOf says the answer in the words of the version.
func inWordsOf(gvk schema.GroupVersionKind, response *admission.Response) {
	for i := range response.Warnings {
		response.Warnings[i] = versions.InWords(gvk, response.Warnings[i])
	}
	if response.Result == nil {
		return
	}
	response.Result.Message = versions.InWords(gvk, response.Result.Message)
	if response.Result.Details == nil {
		return
	}
	for i := range response.Result.Details.Causes {
		cause := &response.Result.Details.Causes[i]
		*cause = metav1.StatusCause{Type: cause.Type, Message: versions.InWords(gvk, cause.Message), Field: versions.InWords(gvk, cause.Field)}
	}
}
