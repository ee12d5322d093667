package watches

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/berth-project/berth/pkg/crd/sidecar/v1beta1"
)

// TestAnEndedWatchIsInterruptedUntilTheNextHasCaughtUp: the API server ends the watch of a cache, and refuses the next
// one.
func TestAnEndedWatchIsInterruptedUntilTheNextHasCaughtUp(t *testing.T) {
	var watching, refusing atomic.Bool
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		query := request.URL.Query()
		switch {
		case query.Get("watch") == "":
			fmt.Fprintf(w, `{"apiVersion": %q, "kind": "SidecarSetList", "metadata": {"resourceVersion": "5"}, "items": []}`, v1beta1.GroupVersion)
		case query.Get("sendInitialEvents") != "" || refusing.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.(http.Flusher).Flush()
			watching.Store(true)
			<-end
		}
	}))
	defer server.Close()
	defer close(end)
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1beta1.Kind, meta.RESTScopeRoot)
	now := clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0))
	state := NewState(now)
	objects, err := cache.New(&rest.Config{Host: server.URL}, cache.Options{Scheme: scheme, Mapper: mapper, NewInformer: state.NewInformer(&v1beta1.SidecarSet{})})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.GetInformer(t.Context(), &v1beta1.SidecarSet{}, cache.BlockUntilSynced(false)); err != nil {
		t.Fatal(err)
	}
	await := func(what string, is func() bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) { return is(), nil }); err != nil {
			t.Fatalf("waiting until %s: %v", what, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := objects.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	await("the first watch begins", watching.Load)
	if state.Interrupted() {
		t.Error("it is interrupted before a watch has ended")
	}
	refusing.Store(true)
	watching.Store(false)
	end <- struct{}{}
	await("it is interrupted", state.Interrupted)
	refusing.Store(false)
	await("the next watch begins", watching.Load)
	if !state.Interrupted() {
		t.Error("the next watch has not had time to catch up")
	}
	await("the next watch has caught up", func() bool {
		now.SetTime(now.Now().Add(CatchUp))
		return !state.Interrupted()
	})
}
