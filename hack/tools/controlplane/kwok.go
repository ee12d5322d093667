package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/kwok/controllers"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/client"
	"sigs.k8s.io/kwok/pkg/utils/slices"
)

// runKWOK runs KWOK's controllers with the options and stages of a file, and says at /readyz that they run. KWOK's own command also serves logs and shells of containers. Nobody asks
// for them in a sandbox, and they do not compile with the version of Kubernetes that the control plane has.
func runKWOK(ctx context.Context, args []string) error {
	flags := pflag.NewFlagSet("kwok", pflag.ContinueOnError)
	file := flags.String("config", "", "file with a KwokConfiguration and Stages")
	kubeconfig := flags.String("kubeconfig", "", "file that says where the API server is")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx = log.NewContext(ctx, log.NewLogger(os.Stderr, log.LevelInfo))
	objects, err := config.Load(ctx, *file)
	if err != nil {
		return err
	}
	configurations := config.FilterWithType[*internalversion.KwokConfiguration](objects)
	if len(configurations) != 1 {
		return fmt.Errorf("%s has %d KwokConfigurations: want one", *file, len(configurations))
	}
	options := configurations[0].Options
	controller, err := newController(ctx, *kubeconfig, options, config.FilterWithType[*internalversion.Stage](objects))
	if err != nil {
		return err
	}
	if err := controller.Start(ctx); err != nil {
		return err
	}
	return serveHealth(ctx, options.ServerAddress)
}

func newController(ctx context.Context, kubeconfig string, options internalversion.KwokConfigurationOptions, stages []*internalversion.Stage) (*controllers.Controller, error) {
	id, err := controllers.Identity()
	if err != nil {
		return nil, err
	}
	clients, err := client.NewClientset("", kubeconfig)
	if err != nil {
		return nil, err
	}
	restConfig, err := clients.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	dynamicClient, err := clients.ToDynamicClient()
	if err != nil {
		return nil, err
	}
	mapper, err := clients.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	restClient, err := rest.RESTClientFor(restConfig)
	if err != nil {
		return nil, err
	}
	typedClient, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, err
	}
	if err := awaitRights(ctx, typedClient); err != nil {
		return nil, err
	}
	return controllers.NewController(controllers.Config{
		Clock:                           clock.RealClock{},
		DynamicClient:                   dynamicClient,
		RESTClient:                      restClient,
		RESTMapper:                      mapper,
		ImpersonatingDynamicClient:      clients.ToImpersonatingDynamicClient(),
		ImpersonatingTypedClient:        clients.ToImpersonatingTypedClient(),
		TypedClient:                     typedClient,
		ManageAllNodes:                  options.ManageAllNodes,
		ManageNodesWithLabelSelector:    options.ManageNodesWithLabelSelector,
		CIDR:                            options.CIDR,
		NodeIP:                          options.NodeIP,
		PodPlayStageParallelism:         options.PodPlayStageParallelism,
		NodePlayStageParallelism:        options.NodePlayStageParallelism,
		NodeLeaseParallelism:            options.NodeLeaseParallelism,
		NodeLeaseDurationSeconds:        options.NodeLeaseDurationSeconds,
		PodsOnNodeSyncParallelism:       options.PodsOnNodeSyncParallelism,
		EnablePodsOnNodeSyncListPager:   options.EnablePodsOnNodeSyncListPager,
		EnablePodsOnNodeSyncStreamWatch: options.EnablePodsOnNodeSyncStreamWatch,
		ID:                              id,
		LocalStages: slices.GroupBy(stages, func(stage *internalversion.Stage) internalversion.StageResourceRef {
			return stage.Spec.ResourceRef
		}),
	})
}

// awaitRights waits until the API server knows that this user may read nodes.
func awaitRights(ctx context.Context, c kubernetes.Interface) error {
	var refused error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, refused = c.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
		return refused == nil, nil
	})
	if err != nil {
		return errors.Join(err, refused)
	}
	return nil
}

// serveHealth answers until the context ends.
func serveHealth(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
