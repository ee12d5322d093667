package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/autoscaler"
	"github.com/berth-project/berth/pkg/crd/apps/v1beta1"
	policyv1beta1 "github.com/berth-project/berth/pkg/crd/policy/v1beta1"
	rulesv1alpha1 "github.com/berth-project/berth/pkg/crd/rules/v1alpha1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
)

// CertificateSource says where the certificate comes from.
type CertificateSource string

const (
	// ManagedCertificates are created and renewed by Berth, in a Secret. Berth writes their CA into the webhook configurations.
	ManagedCertificates CertificateSource = "managed"
	// ProvidedCertificates are put into Options.CertDir, and their CA into the webhook configurations, by another tool, such as cert-manager.
	ProvidedCertificates CertificateSource = "provided"
)

// Options of the webhook server.
type Options struct {
	// Host is the address to listen on. Empty means all addresses.
	Host string
	// Port to listen on. 0 means 9443.
	Port int
	// CertDir holds tls.crt and tls.key. Berth writes managed certificates into it, so the directory should not outlive the container.
	CertDir string
	// Certificates says where the certificate comes from. Empty means managed.
	Certificates CertificateSource
	// TLS changes the configuration of the server's connections. Nil changes nothing.
	TLS func(*tls.Config)
	// ClientCA is a PEM file with CAs that sign client certificates for API servers only. Clients without such a certificate get 401 before their
	// review is read. Setup reads the file once. If it is empty, the client must call the path that the webhook configuration names; other paths get
	// 404.
	ClientCA string
	// IgnoreUnitedDeployments admits every UnitedDeployment, because another controller runs for them in the cluster.
	IgnoreUnitedDeployments bool
	// Budgets is true if PodUnavailableBudgets are served.
	Budgets bool
	// SpreadRules is true if SpreadRules and ClusterSpreadRules are served. The API server must have both kinds.
	SpreadRules bool
	// SidecarSets is true if the webhooks of SidecarSets are installed, and served by SetupSidecars.
	SidecarSets bool
	// NodeAutoscaler knows whether there is a node autoscaler. Nil means that there is none.
	NodeAutoscaler *autoscaler.Detector
	// Members returns the names of the clusters of a federation. Nil where this cluster is not the hub; then FederatedReplicaSets are not reviewed.
	Members func(context.Context) ([]string, error)
}

// Setup makes the manager serve the webhooks on every replica, leader or not. Conversion is served as soon as there is a certificate, and admission once the
// caches are full. The manager is not ready before that, and before the API server knows the CA of a managed certificate and the path to call. The lineage
// must be of the same manager, whose scheme must have CustomResourceDefinitions. The context is used until Setup returns.
//
// Each function of more is called with a function that registers more handlers, at paths of pkg/endpoint. They are served at the same port with the
// same certificate.
func Setup(ctx context.Context, mgr ctrl.Manager, owners *lineage.Lineage, opts Options, more ...func(register func(path string, hook http.Handler)) error) error {
	front, err := newFront(mgr)
	if err != nil {
		return err
	}
	configurations, err := newCache(front)
	if err != nil {
		return err
	}
	switch opts.Certificates {
	case ManagedCertificates, "":
		if err := manageCertificates(mgr, front, configurations, opts.CertDir, opts.SidecarSets); err != nil {
			return fmt.Errorf("managing the webhook's certificate: %w", err)
		}
	case ProvidedCertificates:
	default:
		return fmt.Errorf("webhook certificates %q: must be %s or %s", opts.Certificates, ManagedCertificates, ProvidedCertificates)
	}
	asked := newPaths(configurations, front.GetClient(), clock.RealClock{})
	if err := front.Add(asked); err != nil {
		return fmt.Errorf("adding the paths of the webhooks: %w", err)
	}
	if err := mgr.AddReadyzCheck("webhook-path", onceTrue(func(request *http.Request) error { return asked.ready(request.Context()) })); err != nil {
		return err
	}
	if err := mgr.Add(&migration{mgr.GetAPIReader(), mgr.GetClient(), map[string]int64{}}); err != nil {
		return fmt.Errorf("adding the migration of stored objects: %w", err)
	}
	var byRule *lineage.Rules
	if opts.SpreadRules {
		byRule = &lineage.Rules{Reader: mgr.GetCache()}
		owners.Rules = byRule
	}
	spreads := &uses{
		configuration: endpoint.PodConfiguration, webhook: endpoint.PodWebhook, kind: &v1beta1.WorkloadSpreadList{}, example: &v1beta1.WorkloadSpread{}, objects: mgr.GetCache(), rules: byRule,
		configurations: configurations, live: mgr.GetAPIReader(), writer: mgr.GetClient(), clock: clock.RealClock{},
	}
	if err := mgr.Add(spreads); err != nil {
		return fmt.Errorf("adding the namespaces with spreads: %w", err)
	}
	if opts.Budgets {
		budgets := *spreads
		budgets.configuration, budgets.webhook = endpoint.BudgetConfiguration, endpoint.EvictionWebhook
		budgets.rules = nil
		budgets.kind, budgets.example = &policyv1beta1.PodUnavailableBudgetList{}, &policyv1beta1.PodUnavailableBudget{}
		if err := mgr.Add(&budgets); err != nil {
			return fmt.Errorf("adding the namespaces with budgets: %w", err)
		}
	}
	if err := fillCache(ctx, mgr, opts.SpreadRules); err != nil {
		return err
	}
	if opts.SpreadRules {
		forget := func(rule metav1.Object) { byRule.Forget(rule.GetUID()) }
		for _, kind := range []client.Object{&rulesv1alpha1.SpreadRule{}, &rulesv1alpha1.ClusterSpreadRule{}} {
			if _, err := owners.Handle(ctx, mgr, kind, nil, forget); err != nil {
				return err
			}
		}
	}
	early := &earlyBinding{owners: owners, bookings: newBookings(clock.RealClock{})}
	booked, err := owners.Handle(ctx, mgr, &corev1.Pod{}, early.bookings.seen, early.bookings.gone)
	if err != nil {
		return err
	}
	synced := func() bool { return owners.HasSynced() && booked() && asked.learned.Load() }
	web, register, err := newServer(opts, synced, asked.soonKnows)
	if err != nil {
		return err
	}
	pods := &podAdmission{owners: owners, early: early.review, autoscaler: opts.NodeAutoscaler}
	register(endpoint.Pods, &podReviews{answer: pods.review, clock: clock.RealClock{}})
	register(endpoint.RequiredPods, &podReviews{answer: pods.review, clock: clock.RealClock{}, required: true})
	announce := func(ctx context.Context, spread *v1beta1.WorkloadSpread) {
		spreads.include(ctx, spread.Namespace)
		owners.Announce(spread.Namespace, spread.UID)
	}
	// A panic becomes an error by default.
	register(endpoint.Spreads, endpoint.AdmissionInHub(v1beta1.GroupVersion,
		admission.WithValidator(mgr.GetScheme(), (&spreadValidator{
			reader: mgr.GetCache(), live: mgr.GetAPIReader(), kinds: mgr.GetRESTMapper(), announce: announce, installation: owners.Compatibility(), autoscaler: opts.NodeAutoscaler,
		}).reviews())))
	register(endpoint.UnitedDeployments, unitedReviews(mgr.GetScheme(), mgr.GetRESTMapper(), opts.IgnoreUnitedDeployments))
	if opts.Members != nil {
		register(endpoint.FederatedReplicaSets, admission.WithValidator(mgr.GetScheme(), federatedReviews(opts.Members)))
	}
	if opts.SpreadRules {
		reviewed := &ruleValidator{reader: mgr.GetCache(), store: byRule, kinds: mgr.GetRESTMapper()}
		register(endpoint.SpreadRules, admission.WithValidator(mgr.GetScheme(), reviewed.reviews()))
		register(endpoint.ClusterSpreadRules, admission.WithValidator(mgr.GetScheme(), reviewed.clusterReviews()))
	}
	for _, handlers := range more {
		if err := handlers(register); err != nil {
			return err
		}
	}
	if err := front.Add(&server{web: web, certDir: opts.CertDir}); err != nil {
		return fmt.Errorf("adding the webhook server: %w", err)
	}
	if err := mgr.AddReadyzCheck("webhook-caches", onceTrue(func(*http.Request) error {
		if !synced() {
			return errors.New("the caches of the webhooks are not full yet")
		}
		return nil
	})); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("webhook", web.StartedChecker())
}

// newFront makes a manager for everything that must run before the caches of mgr are full: the certificate, the paths and the server. If the API server has
// objects of another version than the stored one, filling the caches needs the conversion that this server offers.
//
// The manager mgr runs it beside its caches, because it is a cluster to it, and does not wait for it any longer than for them.
func newFront(mgr ctrl.Manager) (ctrl.Manager, error) {
	front, err := ctrl.NewManager(mgr.GetConfig(), ctrl.Options{
		Scheme: mgr.GetScheme(), Logger: mgr.GetLogger(), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mgr.GetRESTMapper(), nil },
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager of the webhook server: %w", err)
	}
	if err := mgr.Add(front); err != nil {
		return nil, fmt.Errorf("adding the manager of the webhook server: %w", err)
	}
	return front, nil
}

// fillCache makes the cache watch what the webhooks read, from the start.
func fillCache(ctx context.Context, mgr ctrl.Manager, spreadRules bool) error {
	objects := []client.Object{&v1beta1.WorkloadSpread{}, &corev1.Node{}}
	for _, kind := range workloads {
		objects = append(objects, kind.NewObject())
	}
	if spreadRules {
		objects = append(objects, &rulesv1alpha1.SpreadRule{}, &rulesv1alpha1.ClusterSpreadRule{}, lineage.NewNamespace())
	}
	for _, object := range objects {
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	return nil
}

// server starts the webhooks when there is a certificate. That needs no leadership.
type server struct {
	web     ctrlwebhook.Server
	certDir string
}

var (
	_ manager.Runnable               = &server{}
	_ manager.LeaderElectionRunnable = &server{}
)

// NeedLeaderElection is false: every replica serves.
func (s *server) NeedLeaderElection() bool { return false }

// lookInterval is how often Start checks for a certificate.
const lookInterval = 50 * time.Millisecond

// Start serves until the context ends.
func (s *server) Start(ctx context.Context) error {
	klog.FromContext(ctx).Info("Serving webhooks once there is a certificate", "dir", s.certDir)
	err := wait.PollUntilContextCancel(ctx, lookInterval, true, func(context.Context) (bool, error) {
		_, err := tls.LoadX509KeyPair(filepath.Join(s.certDir, endpoint.CertificateFile), filepath.Join(s.certDir, endpoint.CertificateKeyFile))
		return err == nil, nil
	})
	if err != nil {
		return nil //nolint:nilerr // the manager stops, and there was nothing to serve
	}
	return s.web.Start(ctx)
}
