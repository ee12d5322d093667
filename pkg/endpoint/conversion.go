package endpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/klog/v2"

	"github.com/berth-project/berth/pkg/crd/versions"
)

// Anybody who can connect may send a review, so these bound what all reviews take together. Reading is slow if the client is, and takes little memory;
// converting takes up to 60 bytes for each byte of a review, and is quick.
const (
	// maxReview is how many bytes a review may have. The API server sends one object in a review, and an object has at most 3 MiB.
	maxReview = 4 << 20
	// readers and converters are how many reviews are read and converted at a time. The others wait.
	readers, converters = 64, 2
	// patience is how long a review may take to arrive, and how long it may wait for each turn.
	patience = 5 * time.Second
)

// handler answers conversion reviews. Its channels have as many elements as reviews are being read and converted.
type handler struct {
	reads, conversions chan struct{}
	patience           time.Duration
}

// ConversionHandler answers conversion reviews. It needs no cache and no client, so that it can answer before Berth knows anything: filling the caches may need it.
func ConversionHandler() http.Handler {
	return &handler{make(chan struct{}, readers), make(chan struct{}, converters), patience}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.take(h.reads, r) {
		http.Error(w, "too many reviews at a time", http.StatusServiceUnavailable)
		return
	}
	defer func() { <-h.reads }()
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(h.patience)) //nolint:forbidigo // the network's clock; tests have connections without deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err != nil {
		http.Error(w, fmt.Sprintf("reading the review: %v", err), http.StatusBadRequest)
		return
	}
	if !h.take(h.conversions, r) {
		http.Error(w, "too many reviews at a time", http.StatusServiceUnavailable)
		return
	}
	defer func() { <-h.conversions }()
	answer(w, r, body)
}

// take waits for a turn.
func (h *handler) take(turns chan<- struct{}, r *http.Request) bool {
	select {
	case turns <- struct{}{}:
		return true
	case <-time.After(h.patience):
	case <-r.Context().Done():
	}
	return false
}

func answer(w http.ResponseWriter, r *http.Request, body []byte) {
	var review struct {
		metav1.TypeMeta
		Request *struct {
			UID               types.UID
			DesiredAPIVersion string
			Objects           json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
		http.Error(w, "this is no ConversionReview with a request", http.StatusBadRequest)
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	objects, err := convertAll(review.Request.Objects, review.Request.DesiredAPIVersion)
	if response.ConvertedObjects = objects; err != nil {
		klog.FromContext(r.Context()).Error(err, "Converting objects", "to", review.Request.DesiredAPIVersion)
		response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(apiextensionsv1.ConversionReview{TypeMeta: review.TypeMeta, Response: response}) // the API server may have closed the connection
}

// convertAll reads and converts one object after the other, up to the first that nobody knows.
func convertAll(objects json.RawMessage, apiVersion string) (all []runtime.RawExtension, err error) {
	list := json.NewDecoder(bytes.NewReader(objects))
	if opening, err := list.Token(); err != nil || opening != json.Delim('[') {
		return nil, errors.New("request.objects: must be a list")
	}
	for list.More() {
		var object json.RawMessage
		if err := list.Decode(&object); err != nil {
			return nil, fmt.Errorf("reading an object: %w", err)
		}
		converted, err := convert(object, apiVersion)
		if err != nil {
			return nil, err
		}
		all = append(all, runtime.RawExtension{Raw: converted})
	}
	return all, nil
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
