// Package conversion serves the versions of WorkloadSpread and PodUnavailableBudget: it answers the API server's conversion reviews, and gives admission
// webhooks that are written for the stored version objects of every version. It decides nothing; pkg/crd/versions knows what differs.
package conversion

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/versions"
)

// maxReview bounds the memory that one request takes. The API server sends one object in a review, and an object has at most 3 MiB.
const maxReview = 16 << 20

// Handler answers conversion reviews. It needs no cache and no client, so that it can answer before Berth knows anything: filling the caches may need it.
func Handler() http.Handler { return http.HandlerFunc(answer) }

func answer(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(io.LimitReader(r.Body, maxReview)).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "this is no ConversionReview with a request", http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for i := range review.Request.Objects {
		converted, err := convert(review.Request.Objects[i].Raw, review.Request.DesiredAPIVersion)
		if err != nil {
			klog.FromContext(r.Context()).Error(err, "Converting objects", "to", review.Request.DesiredAPIVersion)
			review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			review.Response.ConvertedObjects = nil
			break
		}
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Raw: converted})
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the API server may have closed the connection
}

// convert returns the object in the version apiVersion. Whole numbers stay whole.
func convert(object []byte, apiVersion string) ([]byte, error) {
	var content map[string]any
	if err := kjson.Unmarshal(object, &content); err != nil {
		return nil, fmt.Errorf("reading an object: %w", err)
	}
	if err := versions.Convert(content, apiVersion); err != nil {
		return nil, err
	}
	return json.Marshal(content)
}
