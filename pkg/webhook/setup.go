package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-project/berth/pkg/crd/apps/v1alpha1"
	"github.com/berth-project/berth/pkg/endpoint"
	"github.com/berth-project/berth/pkg/lineage"
)

// CertificateSource says who brings the certificate.
type CertificateSource string

const (
	// ManagedCertificates are made and renewed by Berth itself, in a Secret, and their authority is made known to the API server.
	ManagedCertificates CertificateSource = "managed"
	// ProvidedCertificates are put into Options.CertDir, and made known to the API server, by somebody else, such as cert-manager.
	ProvidedCertificates CertificateSource = "provided"
)

// Options say where the webhooks are served.
type Options struct {
	// Host is the address to listen on. Empty is all addresses.
	Host string
	// Port is 9443 if zero.
	Port int
	// CertDir holds tls.crt and tls.key. Managed certificates are written there, so that it should not outlive the process's container.
	CertDir string
	// Certificates are managed if empty.
	Certificates CertificateSource
	// ClientCA is a file of certificates in PEM: authorities that sign for API servers and nobody else. Clients without a certificate of theirs are answered
	// 401 before their review is read. It is read by Setup, once. If it is empty, clients are answered who ask at the path that the webhook configuration names, and
	// others are answered 404.
	ClientCA string
}

// Setup has the manager serve the webhooks, on every replica and not on the leader alone, as soon as there is a certificate. Until then, and
// until the API server knows the authority of a managed certificate, and where to ask, the manager is not ready. The lineage is of the same manager. The
// context is used until Setup returns.
//
// Others may register handlers of their own, at paths of pkg/endpoint, which are served at the same port with the same certificate: each of more is called with
// a function that does so.
func Setup(ctx context.Context, mgr ctrl.Manager, owners *lineage.Lineage, opts Options, more ...func(register func(path string, hook http.Handler)) error) error {
	configurations, err := newCache(mgr)
	if err != nil {
		return err
	}
	switch opts.Certificates {
	case ManagedCertificates, "":
		if err := manageCertificates(mgr, configurations, opts.CertDir); err != nil {
			return fmt.Errorf("managing the webhook's certificate: %w", err)
		}
	case ProvidedCertificates:
	default:
		return fmt.Errorf("webhook certificates %q: must be %s or %s", opts.Certificates, ManagedCertificates, ProvidedCertificates)
	}
	asked := newPaths(configurations, mgr.GetAPIReader(), mgr.GetClient(), clock.RealClock{})
	if err := mgr.Add(asked); err != nil {
		return fmt.Errorf("adding the paths of the webhooks: %w", err)
	}
	if err := mgr.AddReadyzCheck("webhook-path", func(request *http.Request) error { return asked.ready(request.Context()) }); err != nil {
		return err
	}
	if err := fillCache(ctx, mgr); err != nil {
		return err
	}
	web, register, err := newServer(opts, asked.answered)
	if err != nil {
		return err
	}
	early := &earlyBinding{owners: owners, bookings: newBookings(clock.RealClock{})}
	booked, err := owners.Handle(ctx, mgr, &corev1.Pod{}, early.bookings.seen, early.bookings.gone)
	if err != nil {
		return err
	}
	pods := &podAdmission{owners: owners, early: early.review}
	register(endpoint.Pods, &podReviews{answer: pods.review, clock: clock.RealClock{}})
	register(endpoint.RequiredPods, &podReviews{answer: pods.review, clock: clock.RealClock{}, required: true})
	// A panic is answered as an error: that is the default.
	register(endpoint.Spreads, admission.WithValidator(mgr.GetScheme(), &spreadValidator{reader: mgr.GetCache(), live: mgr.GetAPIReader(), announce: owners.Announce}))
	for _, handlers := range more {
		if err := handlers(register); err != nil {
			return err
		}
	}
	if err := mgr.Add(&server{web: web, certDir: opts.CertDir, synced: func() bool { return owners.HasSynced() && booked() && asked.learned() }}); err != nil {
		return fmt.Errorf("adding the webhook server: %w", err)
	}
	return mgr.AddReadyzCheck("webhook", web.StartedChecker())
}

// fillCache has the cache watch from the start what the webhooks read.
func fillCache(ctx context.Context, mgr ctrl.Manager) error {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	objects := []client.Object{&v1alpha1.WorkloadSpread{}, node}
	for _, newObject := range workloads {
		objects = append(objects, newObject())
	}
	for _, object := range objects {
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}
	return nil
}

// server starts the webhooks later than the manager would: when the cache is full, which is when the manager starts what is no server of its
// own, when lineage and bookings have taken that in, when it is known where the API server asks, and when there is a certificate. None of it takes a lease.
type server struct {
	web     ctrlwebhook.Server
	certDir string
	synced  func() bool
}

var (
	_ manager.Runnable               = &server{}
	_ manager.LeaderElectionRunnable = &server{}
)

// NeedLeaderElection is false: every replica serves.
func (s *server) NeedLeaderElection() bool { return false }

// lookInterval is how often a certificate is looked for, and whether the lineage is ready.
const lookInterval = 50 * time.Millisecond

// Start serves until the context ends.
func (s *server) Start(ctx context.Context) error {
	klog.FromContext(ctx).Info("Serving webhooks once there is a certificate", "dir", s.certDir)
	err := wait.PollUntilContextCancel(ctx, lookInterval, true, func(context.Context) (bool, error) {
		_, err := tls.LoadX509KeyPair(filepath.Join(s.certDir, certFile), filepath.Join(s.certDir, keyFile))
		return err == nil && s.synced(), nil
	})
	if err != nil {
		return nil //nolint:nilerr // the manager stops; there was nothing to serve
	}
	return s.web.Start(ctx)
}
