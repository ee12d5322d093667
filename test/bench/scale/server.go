package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
)

// apiServer has the parts of an API server that a scheduler needs. It lists and watches, streams initial lists, pages other lists, and binds pods. It
// keeps objects encoded as on the wire. So a hundred thousand pods cost the measured process little memory.
type apiServer struct {
	*httptest.Server
	types *runtime.Scheme
	// bound is called with the name of each bound pod.
	bound func(types.NamespacedName)

	mu        sync.Mutex
	version   int64
	resources map[schema.GroupVersionResource]*served
	// lists counts the requested lists of pods, page by page. The times are those of the first request and the last answer.
	lists                int
	firstList, lastLists time.Time
}

// served is one resource.
type served struct {
	kind     schema.GroupVersionKind
	example  reflect.Type
	wire     wire
	objects  []*stored
	byName   map[types.NamespacedName]*stored
	inSpace  map[string][]*stored
	watchers map[*watcher]bool
	// held makes watches wait until it is closed. Nil makes none wait.
	held chan struct{}
}

// stored is an object. A change replaces it as a whole and never writes to raw.
type stored struct {
	sequence int64
	raw      []byte // nil once the object is deleted
	hasNode  bool
}

// watcher is one watch, with the events that it has not sent yet.
type watcher struct {
	mu     sync.Mutex
	events [][]byte
	news   chan struct{}
}

func (w *watcher) send(event []byte) {
	w.mu.Lock()
	w.events = append(w.events, event)
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
}

func (w *watcher) take() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}

func newAPIServer() *apiServer {
	s := &apiServer{types: runtime.NewScheme(), resources: map[schema.GroupVersionResource]*served{}, bound: func(types.NamespacedName) {}}
	utilruntime.Must(scheme.AddToScheme(s.types))
	utilruntime.Must(v1beta1.AddToScheme(s.types))
	utilruntime.Must(policyv1beta1.AddToScheme(s.types))
	s.Server = httptest.NewServer(s)
	return s
}

// stop also ends the watches, which otherwise end with their client.
func (s *apiServer) stop() {
	s.CloseClientConnections()
	s.Close()
}

var (
	pods    = corev1.SchemeGroupVersion.WithResource("pods")
	spreads = v1beta1.Resource
)

// resource finds or creates the resource of a name. It returns nil if no type has this name.
func (s *apiServer) resource(name schema.GroupVersionResource) *served {
	if r := s.resources[name]; r != nil {
		return r
	}
	for kind, example := range s.types.KnownTypes(name.GroupVersion()) {
		gvk := name.GroupVersion().WithKind(kind)
		if plural, _ := meta.UnsafeGuessKindToResource(gvk); plural != name {
			continue
		}
		r := &served{kind: gvk, example: example, wire: protobuf{}, byName: map[types.NamespacedName]*stored{}, inSpace: map[string][]*stored{}, watchers: map[*watcher]bool{}}
		if !scheme.Scheme.Recognizes(gvk) {
			r.wire = plainJSON{}
		}
		s.resources[name] = r
		return r
	}
	return nil
}

// hold makes watches of a resource wait until release is called.
func (s *apiServer) hold(name schema.GroupVersionResource) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(chan struct{})
	s.resource(name).held = held
	return func() { close(held) }
}

// put makes or replaces an object.
func (s *apiServer) put(object runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(object)
}

func (s *apiServer) putLocked(object runtime.Object) {
	kinds, _, err := s.types.ObjectKinds(object)
	utilruntime.Must(err)
	name, _ := meta.UnsafeGuessKindToResource(kinds[0])
	r := s.resource(name)
	metadata := object.(metav1.Object)
	s.version++
	metadata.SetResourceVersion(strconv.FormatInt(s.version, 10))
	key := types.NamespacedName{Namespace: metadata.GetNamespace(), Name: metadata.GetName()}
	o, change := r.byName[key], "MODIFIED"
	if o == nil {
		o, change = &stored{sequence: s.version}, "ADDED"
		r.byName[key] = o
		r.objects = append(r.objects, o)
		r.inSpace[key.Namespace] = append(r.inSpace[key.Namespace], o)
	}
	o.raw = r.wire.encode(object)
	if p, ok := object.(*corev1.Pod); ok {
		o.hasNode = p.Spec.NodeName != ""
	}
	r.announce(change, o.raw)
}

// taken returns how many requests listed pods, and how long that took in milliseconds.
func (s *apiServer) taken() (requests int, took float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, ms(s.lastLists.Sub(s.firstList))
}

// removeBound deletes a pod, if it has a node.
func (s *apiServer) removeBound(key types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.resource(pods)
	o := r.byName[key]
	if o == nil || !o.hasNode {
		return false
	}
	delete(r.byName, key)
	s.version++
	r.announce("DELETED", o.raw)
	o.raw = nil
	return true
}

func (r *served) announce(change string, raw []byte) {
	if len(r.watchers) == 0 {
		return
	}
	event := r.wire.event(r.kind, change, raw)
	for w := range r.watchers {
		w.send(event)
	}
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	path := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	var version schema.GroupVersion
	switch {
	case len(path) >= 2 && path[0] == "api":
		version, path = schema.GroupVersion{Version: path[1]}, path[2:]
	case len(path) >= 3 && path[0] == "apis":
		version, path = schema.GroupVersion{Group: path[1], Version: path[2]}, path[3:]
	case path[0] == "api" || path[0] == "apis":
		s.groups(w, path[0] == "apis")
		return
	default:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	namespace := ""
	if len(path) >= 3 && path[0] == "namespaces" {
		namespace, path = path[1], path[2:]
	}
	path = append(path, "", "", "")
	s.mu.Lock()
	r := s.resource(version.WithResource(path[0]))
	s.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: path[1]}
	query := request.URL.Query()
	switch {
	case path[0] == "":
		s.discover(w, version)
	case r == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case request.Method == http.MethodPost && path[2] == "binding":
		s.bind(w, request, key)
	case request.Method == http.MethodGet && key.Name != "", request.Method == http.MethodPatch:
		s.get(w, r, key)
	case request.Method == http.MethodGet && query.Get("watch") == "" && path[1] == "":
		s.list(w, r, namespace, query, strings.Contains(request.Header.Get("Accept"), "as=PartialObjectMetadataList"))
	case request.Method == http.MethodGet && query.Get("sendInitialEvents") == "true":
		s.watch(request.Context(), w, r)
	case request.Method == http.MethodGet:
		refuse(w, http.StatusGone, metav1.StatusReasonExpired) // the server keeps no history, so the client lists again
	default:
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason})
}

// groups returns the versions of all groups with a name, or of the one without.
func (s *apiServer) groups(w http.ResponseWriter, named bool) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	if !named {
		_ = json.NewEncoder(w).Encode(metav1.APIVersions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIVersions"}, Versions: []string{"v1"}})
		return
	}
	answer := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}}
	for _, group := range s.types.PreferredVersionAllGroups() {
		if group.Group != "" {
			version := metav1.GroupVersionForDiscovery{GroupVersion: group.String(), Version: group.Version}
			answer.Groups = append(answer.Groups, metav1.APIGroup{Name: group.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
		}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// discover returns the resources of a version.
func (s *apiServer) discover(w http.ResponseWriter, version schema.GroupVersion) {
	answer := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: version.String()}
	for kind := range s.types.KnownTypes(version) {
		plural, _ := meta.UnsafeGuessKindToResource(version.WithKind(kind))
		answer.APIResources = append(answer.APIResources, metav1.APIResource{Name: plural.Resource, Kind: kind, Namespaced: true, Verbs: metav1.Verbs{"get", "list", "watch"}})
	}
	if version == corev1.SchemeGroupVersion {
		answer.APIResources = append(answer.APIResources, metav1.APIResource{Name: "pods/eviction", Kind: "Eviction", Namespaced: true, Group: "policy", Version: "v1"})
	}
	if len(answer.APIResources) == 0 {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(answer)
}

func (s *apiServer) get(w http.ResponseWriter, r *served, key types.NamespacedName) {
	s.mu.Lock()
	o := r.byName[key]
	s.mu.Unlock()
	if o == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	w.Header().Set("Content-Type", r.wire.contentType())
	_, _ = w.Write(r.wire.object(r.kind, o.raw))
}

// list returns one page of built-in objects or of their metadata. The only supported field selector selects pods with a node.
func (s *apiServer) list(w http.ResponseWriter, r *served, namespace string, query map[string][]string, metadata bool) {
	asked := time.Now()
	first := func(key string) string { return append(query[key], "")[0] }
	limit, _ := strconv.Atoi(first("limit"))
	after, _ := strconv.ParseInt(first("continue"), 10, 64)
	withNode := strings.Contains(first("fieldSelector"), "spec.nodeName!=")

	s.mu.Lock()
	from := r.objects
	if namespace != "" {
		from = r.inSpace[namespace]
	}
	at, _ := slices.BinarySearchFunc(from, after+1, func(o *stored, sequence int64) int { return int(o.sequence - sequence) })
	var items [][]byte
	next := ""
	for _, o := range from[at:] {
		if o.raw == nil || withNode && !o.hasNode {
			continue
		}
		if limit > 0 && len(items) == limit {
			next = strconv.FormatInt(after, 10)
			break
		}
		items, after = append(items, o.raw), o.sequence
	}
	version := s.version
	s.mu.Unlock()

	kind := r.kind
	if _, builtIn := r.wire.(protobuf); metadata && builtIn {
		kind = metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata")
		for i, raw := range items {
			items[i] = metadataPart(raw)
		}
	}
	w.Header().Set("Content-Type", r.wire.contentType())
	_, _ = w.Write(r.wire.list(kind, metav1.ListMeta{ResourceVersion: strconv.FormatInt(version, 10), Continue: next}, items))

	if r.kind.Kind == "Pod" {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lists++; s.lists == 1 {
			s.firstList = asked
		}
		s.lastLists = time.Now()
	}
}

// watch sends all objects, then a bookmark, and from then on changes.
func (s *apiServer) watch(ctx context.Context, w http.ResponseWriter, r *served) {
	if r.held != nil {
		select {
		case <-r.held:
		case <-ctx.Done():
			return
		}
	}
	watcher := &watcher{news: make(chan struct{}, 1)}
	s.mu.Lock()
	raws := make([][]byte, 0, len(r.objects))
	for _, o := range r.objects {
		if o.raw != nil {
			raws = append(raws, o.raw)
		}
	}
	version := s.version
	r.watchers[watcher] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(r.watchers, watcher)
	}()

	w.Header().Set("Content-Type", r.wire.streamType())
	out := bufio.NewWriter(w)
	for _, raw := range raws {
		if _, err := out.Write(r.wire.event(r.kind, "ADDED", raw)); err != nil {
			return // the client is gone
		}
	}
	end := reflect.New(r.example).Interface().(runtime.Object)
	end.GetObjectKind().SetGroupVersionKind(r.kind)
	end.(metav1.Object).SetResourceVersion(strconv.FormatInt(version, 10))
	end.(metav1.Object).SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	_, _ = out.Write(r.wire.event(r.kind, "BOOKMARK", r.wire.encode(end)))
	for {
		for _, event := range watcher.take() {
			_, _ = out.Write(event)
		}
		if out.Flush() != nil {
			return // the client is gone
		}
		w.(http.Flusher).Flush()
		select {
		case <-watcher.news:
		case <-ctx.Done():
			return
		}
	}
}

// bind does what the API server does with a Binding.
func (s *apiServer) bind(w http.ResponseWriter, request *http.Request, key types.NamespacedName) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return // the client is gone
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	binding, ok := object.(*corev1.Binding)
	if err != nil || !ok {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	o := s.resource(pods).byName[key]
	if o == nil || o.hasNode {
		s.mu.Unlock()
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	pod := &corev1.Pod{}
	utilruntime.Must(pod.Unmarshal(o.raw))
	pod.Spec.NodeName = binding.Target.Name
	pod.Labels, pod.Annotations = merged(pod.Labels, binding.Labels), merged(pod.Annotations, binding.Annotations)
	s.putLocked(pod)
	s.mu.Unlock()
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Code: http.StatusCreated})
	s.bound(key)
}

func merged(into, from map[string]string) map[string]string {
	all := maps.Clone(into)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, from)
	return all
}

// wire is the encoding of a resource. raw is an object as encode returns it.
type wire interface {
	contentType() string
	streamType() string
	encode(runtime.Object) []byte
	object(kind schema.GroupVersionKind, raw []byte) []byte
	event(kind schema.GroupVersionKind, change string, raw []byte) []byte
	list(kind schema.GroupVersionKind, meta metav1.ListMeta, items [][]byte) []byte
}

// protobuf is for the built-in types.
type protobuf struct{}

func (protobuf) contentType() string { return runtime.ContentTypeProtobuf }
func (protobuf) streamType() string  { return runtime.ContentTypeProtobuf + ";stream=watch" }

func (protobuf) encode(object runtime.Object) []byte {
	raw, err := object.(interface{ Marshal() ([]byte, error) }).Marshal()
	utilruntime.Must(err)
	return raw
}

func (protobuf) object(kind schema.GroupVersionKind, raw []byte) []byte {
	version, name := kind.ToAPIVersionAndKind()
	const magic = "k8s\x00"
	unknown := &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: name}, Raw: raw}
	message := make([]byte, len(magic)+unknown.Size())
	copy(message, magic)
	_, err := unknown.MarshalTo(message[len(magic):])
	utilruntime.Must(err)
	return message
}

func (p protobuf) event(kind schema.GroupVersionKind, change string, raw []byte) []byte {
	message, err := (&metav1.WatchEvent{Type: change, Object: runtime.RawExtension{Raw: p.object(kind, raw)}}).Marshal()
	utilruntime.Must(err)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(message))), message...)
}

// list encodes a list. Every list type has its metadata as field 1 and its items as field 2.
func (p protobuf) list(kind schema.GroupVersionKind, listMeta metav1.ListMeta, items [][]byte) []byte {
	metadata, err := listMeta.Marshal()
	utilruntime.Must(err)
	size := 1 + binary.MaxVarintLen64 + len(metadata)
	for _, item := range items {
		size += 1 + binary.MaxVarintLen64 + len(item)
	}
	message := append(binary.AppendUvarint(append(make([]byte, 0, size), 1<<3|2), uint64(len(metadata))), metadata...)
	for _, item := range items {
		message = append(binary.AppendUvarint(append(message, 2<<3|2), uint64(len(item))), item...)
	}
	return p.object(kind.GroupVersion().WithKind(kind.Kind+"List"), message)
}

// metadataPart returns field 1 of an encoded object. It is also field 1 of PartialObjectMetadata.
func metadataPart(raw []byte) []byte {
	size, digits := binary.Uvarint(raw[1:])
	return raw[:1+digits+int(size)]
}

// plainJSON is for custom resources, whose objects carry their kind.
type plainJSON struct{}

func (plainJSON) contentType() string { return runtime.ContentTypeJSON }
func (plainJSON) streamType() string  { return runtime.ContentTypeJSON }

func (plainJSON) encode(object runtime.Object) []byte {
	raw, err := json.Marshal(object)
	utilruntime.Must(err)
	return raw
}

func (plainJSON) object(_ schema.GroupVersionKind, raw []byte) []byte { return raw }

func (plainJSON) event(_ schema.GroupVersionKind, change string, raw []byte) []byte {
	return fmt.Appendf(nil, "{\"type\":%q,\"object\":%s}\n", change, raw)
}

func (plainJSON) list(kind schema.GroupVersionKind, listMeta metav1.ListMeta, items [][]byte) []byte {
	raws := make([]json.RawMessage, len(items))
	for i := range items {
		raws[i] = items[i]
	}
	text, err := json.Marshal(map[string]any{"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind + "List", "metadata": listMeta, "items": raws})
	utilruntime.Must(err)
	return text
}
