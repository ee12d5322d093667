package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	inventory "sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	federationv1alpha1 "github.com/berth-project/berth/pkg/crd/federation/v1alpha1"
	"github.com/berth-project/berth/pkg/members"
)

// hub measures a hub that starts: how long until it knows all of its members, each of which has so many ReplicaSets with a pod each. All members are one stand-in, with a path and connections for each. The
// memory is that of the hub and of the stand-in's connections.
func (f *flags) hub(ctx context.Context) error {
	ctrllog.SetLogger(klog.Background())
	own, shared := newAPIServer(), newAPIServer()
	defer own.stop()
	defer shared.stop()
	utilruntime.Must(inventory.AddToScheme(own.types))
	for i := range f.spreads {
		namespace, workload := fmt.Sprintf("team-%d", i%50), workloadName(i)
		labels := map[string]string{"app": workload, federationv1alpha1.HubLabel: "true"}
		p := pod(namespace, workload, workload+"-0")
		p.Labels, p.Spec.NodeName, p.Status.Phase = labels, nodeName(i), corev1.PodRunning
		set := &appsv1.ReplicaSet{
			ObjectMeta: metadataOf(namespace, "replicaset", workload+"-"+hash),
			Spec:       appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}},
			Status:     appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: 1, AvailableReplicas: 1},
		}
		set.Labels, set.ManagedFields = labels, managedFields(1000)
		shared.put(set)
		shared.put(p)
	}
	var connections atomic.Int64
	all := httptest.NewUnstartedServer(memberAPI{shared})
	all.EnableHTTP2, all.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	all.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connections.Add(1)
		case http.StateClosed:
			connections.Add(-1)
		}
	}
	all.StartTLS()
	defer all.Close()
	defer all.CloseClientConnections()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: all.Certificate().Raw})
	for i := range f.members {
		name := fmt.Sprintf("member-%03d", i)
		config := clientcmdapi.NewConfig()
		config.Clusters[name] = &clientcmdapi.Cluster{Server: all.URL + "/" + name, CertificateAuthorityData: authority}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "token"}
		config.Contexts[name], config.CurrentContext = &clientcmdapi.Context{Cluster: name, AuthInfo: name}, name
		content, err := clientcmd.Write(*config)
		if err != nil {
			return err
		}
		metadata := metav1.ObjectMeta{Namespace: members.DefaultNamespace, Name: name, UID: types.UID(name)}
		own.put(&corev1.Secret{ObjectMeta: metadata, Data: map[string][]byte{members.KubeconfigKey: content}})
		metadata.Annotations = map[string]string{members.SecretAnnotation: name}
		own.put(&inventory.ClusterProfile{TypeMeta: metav1.TypeMeta{APIVersion: inventory.GroupVersion.String(), Kind: "ClusterProfile"}, ObjectMeta: metadata})
	}
	empty, began, used := heap(), time.Now(), processorTime()
	manager, err := ctrl.NewManager(&rest.Config{Host: own.URL, QPS: -1}, ctrl.Options{Scheme: own.types, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	set, err := members.Setup(manager, members.Options{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	known, ready := time.Duration(0), 0
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, f.limit, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("the hub ends: %w", err)
		default:
		}
		if known == 0 && set.Known(ctx) {
			known = time.Since(began)
		}
		ready = 0
		for _, m := range set.List() {
			if m.State == members.Ready {
				ready++
			}
		}
		return ready == f.members, nil
	})
	fmt.Printf("%d members with %d ReplicaSets and %d pods each: all are tried after %.1f s, and %d are ready after %.1f s and %.1f s of CPU, %d connections, %d MiB of heap\n",
		f.members, f.spreads, f.spreads, known.Seconds(), ready, time.Since(began).Seconds(), (processorTime() - used).Seconds(), connections.Load(), (heap()-empty)>>20)
	return err
}

// memberAPI answers under a path for each member.
type memberAPI struct{ shared *apiServer }

// ServeHTTP implements http.Handler.
func (m memberAPI) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	name, path, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/"), "/")
	var answer any
	switch path {
	case "version":
		answer = version.Info{Major: "1", Minor: "35"}
	case "api/v1/namespaces/kube-system":
		answer = metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: types.UID(name)}}
	default:
		request.URL.Path = "/" + path
		m.shared.ServeHTTP(w, request)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(answer)
}
