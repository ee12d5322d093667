package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// launchAttempts is how often a component is started if another program takes its port.
const launchAttempts = 4

// ErrInUse is why Start refuses a directory that another sandbox is using.
var ErrInUse = errors.New("another sandbox runs in this directory")

// Sandbox is a running control plane.
type Sandbox struct {
	config      Config
	lock        *os.File
	credentials *credentials
	adminToken  string
	tokens      map[string]string // of instances, by their directory
	server      string            // URL of the API server
	kubeconfig  []byte            // as written
	ports       *portPool
	footprint   footprint
	stopCleaner func()  // nil without real nodes
	network     network // of real nodes
	launcher    *launcher
	stopOnce    sync.Once

	mu      sync.Mutex
	running []*process // in the order of starting
	changed chan struct{}
}

// ComponentStatus is what one replica of a component is doing.
type ComponentStatus struct {
	Name    string
	Replica int
	// PID is 0 while there is no process.
	PID   int
	State State
	// Address is host and port. Empty for a component that listens on none.
	Address string
	// Restarts counts the starts after the first.
	Restarts int
	// Log is the file with everything that it wrote.
	Log string
	// LogTail is the end of the log, for a component that is crashing.
	LogTail string
}

// Start returns a sandbox with every component ready and every node usable. Otherwise its error says which component is not ready, and ends with that
// component's log. After an error nothing runs. The context bounds the start; the sandbox runs until Stop.
//
// A component that exits after it was ready is restarted, as a kubelet would do.
func Start(ctx context.Context, config Config) (*Sandbox, error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	s := &Sandbox{
		config:  config,
		tokens:  map[string]string{},
		ports:   newPortPool(),
		changed: make(chan struct{}),
	}
	s.footprint = footprint{dir: config.Dir}
	groups := s.parts()
	if err := config.checkMachine(); err != nil {
		return nil, err
	}
	if err := config.checkBinaries(slices.Concat(groups...)...); err != nil {
		return nil, err
	}
	if err := checkReplaceable(config.Kubeconfig, s.contextName()); err != nil {
		return nil, err
	}
	if err := s.takeDir(); err != nil {
		return nil, err
	}
	s.launcher = newLauncher()
	if err := s.start(ctx, groups); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// parts returns the components in groups. Each group needs the groups before it.
func (s *Sandbox) parts() [][]part {
	groups := [][]part{{s.etcd()}, {s.apiServer()}, {s.controllerManager(), s.kwok()}}
	var own []part
	for _, component := range s.config.Components {
		own = append(own, part{Component: component})
	}
	if s.config.Kubelets > 0 {
		groups[2] = append(groups[2], s.containerd())
		own = append(own, s.kubelet())
	}
	groups = append(groups, own)
	for i := range groups {
		groups[i] = slices.DeleteFunc(groups[i], func(p part) bool { return !s.config.runs(p.Name) })
	}
	return groups
}

func (s *Sandbox) start(ctx context.Context, groups [][]part) error {
	began := time.Now()
	if err := s.emptyDir(); err != nil {
		return fmt.Errorf("emptying %s: %w", s.config.Dir, err)
	}
	if err := s.prepareCredentials(groups); err != nil {
		return fmt.Errorf("preparing credentials: %w", err)
	}
	if s.config.Kubelets > 0 {
		var err error
		if s.stopCleaner, err = s.footprint.startCleaner(s.lock); err != nil {
			return fmt.Errorf("starting the cleaner: %w", err)
		}
		if s.network, err = s.footprint.establish(ctx, s.config.Kubelets); err != nil {
			return fmt.Errorf("preparing this machine for kubelets: %w", err)
		}
	}
	etcd, apiServer, nodeControl, components := groups[0], groups[1], groups[2], groups[3]
	if err := s.launchAll(ctx, etcd); err != nil {
		return err
	}
	if err := s.launchAll(ctx, apiServer); err != nil {
		return err
	}
	if err := s.writeKubeconfigs(); err != nil {
		return fmt.Errorf("writing kubeconfigs: %w", err)
	}
	s.progress("API server is ready at %s (%s)", s.server, since(began))

	applier, err := newApplier(s.RESTConfig())
	if err != nil {
		return err
	}
	if err := applier.apply(ctx, kwokRBAC); err != nil {
		return err
	}
	control, controlCtx := errgroup.WithContext(ctx)
	control.Go(func() error {
		if err := s.launchAll(controlCtx, nodeControl); err != nil {
			return err
		}
		return s.importImages(controlCtx)
	})
	control.Go(func() error { return applier.apply(controlCtx, s.config.Manifests...) })
	if err := control.Wait(); err != nil {
		return err
	}
	s.progress("control plane is ready, manifests are applied (%s)", since(began))

	use, useCtx := errgroup.WithContext(ctx)
	use.Go(func() error {
		if err := s.launchAll(useCtx, components); err != nil {
			return err
		}
		return s.awaitKubelets(useCtx)
	})
	use.Go(func() error { return s.CreateNodes(useCtx, s.config.configuredNodes()) })
	if err := use.Wait(); err != nil {
		return err
	}
	s.progress("%d nodes and all components are ready (%s)", s.config.Nodes+s.config.Kubelets, since(began))
	return nil
}

// Stop ends every component, those started last first, and returns when no process is left. It may be called more than once.
func (s *Sandbox) Stop() {
	s.stopOnce.Do(func() {
		for _, names := range s.stopOrder() {
			var stopping sync.WaitGroup
			for _, process := range s.processes() {
				if slices.Contains(names, process.name) {
					stopping.Go(process.stop)
				}
			}
			stopping.Wait()
		}
		s.launcher.close()
		s.cleanDir()
	})
}

// stopOrder returns the names of components in groups that stop together.
func (s *Sandbox) stopOrder() [][]string {
	var groups [][]string
	for _, group := range slices.Backward(s.parts()) {
		var names []string
		for _, part := range group {
			names = append(names, part.Name)
		}
		groups = append(groups, names)
	}
	return groups
}

// RESTConfig authenticates as an administrator without client-side rate limits.
func (s *Sandbox) RESTConfig() *rest.Config {
	return &rest.Config{
		Host:            s.server,
		BearerToken:     s.adminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: bytes.Clone(s.credentials.ca)},
		QPS:             2000,
		Burst:           4000,
	}
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (s *Sandbox) Kubeconfig() string { return s.config.Kubeconfig }

// AuditLog is the path of the API server's audit log, which exists if Config.AuditLog is set: one JSON event per line.
func (s *Sandbox) AuditLog() string { return s.config.AuditLogPath }

// Dir is where the sandbox keeps its files.
func (s *Sandbox) Dir() string { return s.config.Dir }

// Status returns all replicas of all components in the order of starting.
func (s *Sandbox) Status() []ComponentStatus {
	var statuses []ComponentStatus
	for _, process := range s.processes() {
		statuses = append(statuses, process.status())
	}
	return statuses
}

// Changed returns a channel that is closed when Status changes next.
func (s *Sandbox) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// WaitReady returns when every component is ready, for instance after a restart.
func (s *Sandbox) WaitReady(ctx context.Context) error {
	for {
		changed := s.Changed()
		var waiting []string
		for _, status := range s.Status() {
			if status.State != Running {
				waiting = append(waiting, strings.TrimSpace(
					fmt.Sprintf("%s-%d is %s %s", status.Name, status.Replica, status.State, status.LogTail)))
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for components: %w: %s", context.Cause(ctx), strings.Join(waiting, "; "))
		}
	}
}

// Signal sends the signal to one replica of a component. SIGKILL returns when that process is gone, so that WaitReady then
// waits for the next one.
func (s *Sandbox) Signal(component string, replica int, sig os.Signal) error {
	for _, process := range s.processes() {
		if process.name == component && process.replica == replica {
			return process.signal(sig)
		}
	}
	return fmt.Errorf("signalling %s-%d: no such component", component, replica)
}

// Halt kills a replica with SIGKILL and keeps it down until the returned function is called. That may be called more than once.
func (s *Sandbox) Halt(component string, replica int) (resume func(), err error) {
	for _, process := range s.processes() {
		if process.name == component && process.replica == replica {
			return process.halt()
		}
	}
	return nil, fmt.Errorf("halting %s-%d: no such component", component, replica)
}

// launchAll starts all replicas of the parts at the same time and returns when they are ready. Before it starts any, it applies the manifests of all: a
// component should not see another one's manifests change.
func (s *Sandbox) launchAll(ctx context.Context, parts []part) error {
	type prepared struct {
		part    part
		replica int
		process *process
	}
	var all []*prepared
	preparing, preparingCtx := errgroup.WithContext(ctx)
	for _, part := range parts {
		for replica := range max(part.Replicas, 1) {
			p := &prepared{part: part, replica: replica}
			all = append(all, p)
			preparing.Go(func() (err error) {
				p.process, err = s.prepare(preparingCtx, part, replica)
				return err
			})
		}
	}
	if err := preparing.Wait(); err != nil {
		return err
	}
	launching, launchingCtx := errgroup.WithContext(ctx)
	for _, p := range all {
		launching.Go(func() error { return s.launch(launchingCtx, p.part, p.replica, p.process) })
	}
	return launching.Wait()
}

// prepare applies the manifests of one replica and returns its process, which does not run yet.
func (s *Sandbox) prepare(ctx context.Context, part part, replica int) (*process, error) {
	in := s.newInstance(part, replica)
	process, err := s.newProcess(part, in)
	if err == nil {
		err = s.applyManifestsOf(ctx, part, in)
	}
	if err != nil {
		return nil, fmt.Errorf("preparing %s-%d: %w", part.Name, replica, err)
	}
	return process, nil
}

// launch starts one prepared replica and returns when it is ready. If another program has taken one of its ports, it is prepared again.
func (s *Sandbox) launch(ctx context.Context, part part, replica int, process *process) error {
	for attempt := 1; ; attempt++ {
		s.add(process)
		process.start()
		err := process.awaitReady(ctx)
		if err == nil {
			return nil
		}
		process.stop()
		if attempt == launchAttempts || !strings.Contains(process.logTail(), "address already in use") {
			return err
		}
		s.remove(process)
		if process, err = s.prepare(ctx, part, replica); err != nil {
			return err
		}
	}
}

func (s *Sandbox) newInstance(part part, replica int) Instance {
	dir := s.instanceDir(part.Name, replica)
	return Instance{
		Component:  part.Name,
		Replica:    replica,
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		Dir:        dir,
		ports:      newPorts(s.ports),
	}
}

func (s *Sandbox) applyManifestsOf(ctx context.Context, part part, in Instance) error {
	if part.Manifests == nil {
		return nil
	}
	manifests, err := part.Manifests(in)
	if err != nil || len(manifests) == 0 {
		return err
	}
	if err := in.ports.failure(); err != nil {
		return err
	}
	applier, err := newApplier(s.RESTConfig())
	if err != nil {
		return err
	}
	return applier.apply(ctx, manifests...)
}

func (s *Sandbox) newProcess(part part, in Instance) (*process, error) {
	args, err := part.Args(in)
	if err != nil {
		return nil, err
	}
	probe := part.ready(in)
	if err := in.ports.failure(); err != nil {
		return nil, err
	}
	if part.Name == APIServer {
		s.server = "https://" + in.Address(securePort)
	}
	return &process{
		name:     part.Name,
		replica:  in.Replica,
		binary:   s.config.binary(part.Binary),
		args:     args,
		dir:      cmp.Or(part.workDir, in.Dir),
		logPath:  filepath.Join(s.logDir(), fmt.Sprintf("%s-%d.log", part.Name, in.Replica)),
		address:  in.ports.address(),
		probe:    probe,
		grace:    graceOf(part.Name),
		launcher: s.launcher,
		changed:  s.announce,
	}, nil
}

func (s *Sandbox) processes() []*process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.running)
}

func (s *Sandbox) add(process *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = append(s.running, process)
}

func (s *Sandbox) remove(gone *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(p *process) bool { return p == gone })
}

// announce wakes callers that wait for a change of Status.
func (s *Sandbox) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Sandbox) progress(format string, args ...any) {
	// It is no error if the reader of the progress is gone.
	_, _ = fmt.Fprintf(s.config.Progress, format+"\n", args...)
}

func (s *Sandbox) instanceDir(component string, replica int) string {
	return filepath.Join(s.config.Dir, "instances", fmt.Sprintf("%s-%d", component, replica))
}

// contextName is the only context in the administrator's kubeconfig.
func (s *Sandbox) contextName() string { return "sandbox-" + s.config.Name }

func (s *Sandbox) logDir() string { return filepath.Join(s.config.Dir, "logs") }
func (s *Sandbox) pkiDir() string { return filepath.Join(s.config.Dir, "pki") }

// takeDir makes the directory this sandbox's own until cleanDir.
func (s *Sandbox) takeDir() error {
	var err error
	s.lock, err = lockDir(s.config.Dir)
	return err
}

// lockDir locks a directory, which its owner only can read, until the file is closed.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	// After the end of a sandbox with real nodes its cleaner may have the lock for a moment.
	limit := time.Second
	if (footprint{dir}).exists() {
		limit = cleanTimeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err = wait.PollUntilContextCancel(ctx, probeInterval, true, func(context.Context) (bool, error) {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return true, err
	})
	if err == nil {
		return lock, nil
	}
	lock.Close()
	if wait.Interrupted(err) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	return nil, fmt.Errorf("locking %s: %w", dir, err)
}

// emptyDir removes what an earlier sandbox left, and nothing else.
func (s *Sandbox) emptyDir() error {
	if err := s.footprint.cleanUp(); err != nil {
		return err
	}
	for _, old := range []string{filepath.Join(s.config.Dir, "instances"), s.pkiDir(), s.logDir(), s.AuditLog()} {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	for _, dir := range []string{s.pkiDir(), s.logDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// cleanDir removes data and credentials and keeps the logs. The next Start removes what cannot be removed now.
func (s *Sandbox) cleanDir() {
	if err := s.footprint.cleanUp(); err != nil {
		s.progress("containers are left: %v", err)
	} else {
		_ = os.RemoveAll(filepath.Join(s.config.Dir, "instances"))
	}
	_ = os.RemoveAll(s.pkiDir())
	if current, err := os.ReadFile(s.config.Kubeconfig); err == nil && bytes.Equal(current, s.kubeconfig) {
		_ = os.Remove(s.config.Kubeconfig)
	}
	if s.stopCleaner != nil {
		s.stopCleaner()
	}
	_ = s.lock.Close()
}

// prepareCredentials makes a directory and a user for every instance. The API server reads its users only once, so all must
// be known before it starts.
func (s *Sandbox) prepareCredentials(groups [][]part) error {
	var err error
	if s.credentials, err = newCredentials(s.pkiDir()); err != nil {
		return err
	}
	s.adminToken = s.credentials.addUser("sandbox-admin", "system:masters")
	for _, part := range slices.Concat(groups...) {
		for replica := range max(part.Replicas, 1) {
			dir := s.instanceDir(part.Name, replica)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			if part.User != "" {
				user := part.User
				if part.eachUser {
					user = fmt.Sprintf("%s-%d", user, replica)
				}
				s.tokens[dir] = s.credentials.addUser(user, part.Groups...)
			}
		}
	}
	return s.credentials.writeTokens()
}

// writeKubeconfigs is called once the API server's port is known.
func (s *Sandbox) writeKubeconfigs() error {
	for dir, token := range s.tokens {
		path := filepath.Join(dir, "kubeconfig")
		if err := s.credentials.writeKubeconfig(path, "sandbox", s.server, token); err != nil {
			return err
		}
	}
	if err := s.credentials.writeKubeconfig(s.config.Kubeconfig, s.contextName(), s.server, s.adminToken); err != nil {
		return err
	}
	var err error
	s.kubeconfig, err = os.ReadFile(s.config.Kubeconfig)
	return err
}

func since(began time.Time) string { return time.Since(began).Round(100 * time.Millisecond).String() }
