package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// State is what one replica of a component is doing.
type State string

const (
	// Starting: its process runs or is about to run, and has not passed its health check yet.
	Starting State = "starting"
	// Running: it has passed its health check since it was last started.
	Running State = "running"
	// Crashing: it exits again and again before it is ready. It is restarted every second.
	Crashing State = "crashing"
	// Halted: Sandbox.Halt killed it, and it waits to be resumed.
	Halted State = "halted"
	// Stopped: it has exited for good.
	Stopped State = "stopped"
)

const (
	// restartDelay lies between the end of a process and its next start.
	restartDelay = 100 * time.Millisecond
	// crashDelay is the delay for a process that exits again and again before it is ready.
	crashDelay = time.Second
	// shortRun is how long a process without health check must run to count as ready.
	shortRun = time.Second

	probeInterval = 50 * time.Millisecond
	probeTimeout  = 2 * time.Second

	logTailLines = 20
)

// process keeps one replica of a component running. If it exits before it was ready for the first time, that is final. After that it is restarted,
// whatever the reason.
type process struct {
	name    string
	replica int
	binary  string
	args    []string
	dir     string
	logPath string
	address string
	// probe returns nil when the process is ready. If probe is nil, the process is ready once it has run for shortRun.
	probe func(context.Context) error
	// grace is how long it may take to exit after SIGTERM.
	grace    time.Duration
	launcher *launcher
	changed  func()

	ready   chan struct{} // closed when ready for the first time
	stopped chan struct{} // closed when stop is called
	done    chan struct{} // closed when the process has ended for good

	mu        sync.Mutex
	state     State
	cmd       *exec.Cmd     // of the current or last run
	exited    chan struct{} // closed when the current or last run is over
	pid       int           // 0 when there is no process
	restarts  int
	shortRuns int           // in a row, that ended before being ready
	resumed   chan struct{} // nil unless halted; closed when it may run again
	probeErr  error
	failure   error
}

// start keeps the process running until stop.
func (p *process) start() {
	p.ready, p.stopped, p.done = make(chan struct{}), make(chan struct{}), make(chan struct{})
	p.state = Starting
	go p.keepRunning()
}

// awaitReady returns nil once the process is ready for the first time, or says why it will not be ready.
func (p *process) awaitReady(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Errorf("%s ended before it was ready: %w\n%s", p.title(), p.failure, p.logTail())
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		//nolint:errorlint // probeErr may be nil, which %w cannot print
		return fmt.Errorf("%s is not ready: %w (last health check: %v)\n%s", p.title(), context.Cause(ctx), p.probeErr, p.logTail())
	}
}

// signal sends the signal to the current run. With SIGKILL it returns when the process is gone.
func (p *process) signal(sig os.Signal) error {
	p.mu.Lock()
	cmd, exited, pid := p.cmd, p.exited, p.pid
	p.mu.Unlock()
	if pid == 0 {
		return fmt.Errorf("%s does not run now", p.title())
	}
	// A process that has ended by itself a moment ago is killed as well.
	if err := cmd.Process.Signal(sig); err != nil && (sig != syscall.SIGKILL || !errors.Is(err, os.ErrProcessDone)) {
		return fmt.Errorf("sending %s to %s: %w", sig, p.title(), err)
	}
	if sig == syscall.SIGKILL {
		<-exited
	}
	return nil
}

// stop ends the process for good and returns when it is gone.
func (p *process) stop() {
	p.mu.Lock()
	select {
	case <-p.stopped:
	default:
		close(p.stopped)
	}
	p.mu.Unlock()

	// There is nothing to do if signalling fails because there is no process.
	_ = p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(p.grace):
		_ = p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// halt kills the process and does not restart it until resume is called.
func (p *process) halt() (resume func(), err error) {
	resumed := make(chan struct{})
	p.mu.Lock()
	if p.resumed != nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("%s is halted already", p.title())
	}
	p.resumed = resumed
	running := p.pid != 0
	if !running { // it was about to be restarted
		p.state = Halted
	}
	p.mu.Unlock()
	resume = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.resumed == resumed {
			p.resumed = nil
			close(resumed)
		}
	}
	if !running {
		p.changed()
		return resume, nil
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		resume()
		return nil, err
	}
	return resume, nil
}

// awaitResumption returns when the process is not halted, or is stopped for good.
func (p *process) awaitResumption() {
	p.mu.Lock()
	resumed := p.resumed
	p.mu.Unlock()
	if resumed == nil {
		return
	}
	select {
	case <-p.stopped:
	case <-resumed:
		p.mu.Lock()
		p.state = Starting
		p.mu.Unlock()
		p.changed()
	}
}

func (p *process) keepRunning() {
	defer close(p.done)
	for {
		p.awaitResumption()
		err := p.run()

		p.mu.Lock()
		p.pid = 0
		delay, again := p.nextRun(err)
		// This comes last, so that callers that waited for the end find the new state.
		if p.exited != nil && !isClosed(p.exited) {
			close(p.exited)
		}
		p.mu.Unlock()
		p.changed()
		if !again {
			return
		}
		select {
		case <-p.stopped:
		case <-time.After(delay):
		}
	}
}

// nextRun decides after a run whether there will be another one, and when. The caller holds the lock.
func (p *process) nextRun(err error) (time.Duration, bool) {
	wasReady := p.state == Running
	if isClosed(p.stopped) || !isClosed(p.ready) {
		p.state, p.failure = Stopped, err
		return 0, false
	}
	p.restarts++
	if p.resumed != nil {
		p.state, p.shortRuns = Halted, 0
		return 0, true
	}
	if wasReady {
		p.state, p.shortRuns = Starting, 0
		return restartDelay, true
	}
	p.shortRuns++
	if p.shortRuns < 2 {
		return restartDelay, true
	}
	p.state = Crashing
	return crashDelay, true
}

var errStopped = errors.New("stopped")

// run starts the process and returns the reason why it ended, never nil.
func (p *process) run() error {
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening its log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(p.binary, p.args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, environment(), log, log

	p.mu.Lock()
	if isClosed(p.stopped) {
		p.mu.Unlock()
		return errStopped
	}
	if err := p.launcher.start(cmd); err != nil {
		p.mu.Unlock()
		return fmt.Errorf("starting %s: %w", p.binary, err)
	}
	p.cmd, p.exited, p.pid = cmd, make(chan struct{}), cmd.Process.Pid
	p.mu.Unlock()
	p.changed()

	ctx, cancel := context.WithCancel(context.Background())
	var probing sync.WaitGroup
	probing.Go(func() { p.probeUntilReady(ctx) })
	err = cmd.Wait()
	cancel()
	probing.Wait()
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// probeUntilReady marks the process as running once its health check succeeds. It returns then, or when the context ends.
func (p *process) probeUntilReady(ctx context.Context) {
	began := time.Now()
	probe := p.probe
	if probe == nil {
		probe = func(context.Context) error {
			if time.Since(began) < shortRun {
				return errors.New("has just been started")
			}
			return nil
		}
	}
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		probeCtx, cancel := context.WithTimeout(ctx, probeTimeout)
		err := probe(probeCtx)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		p.probeErr = err
		if err == nil {
			p.state = Running
			if !isClosed(p.ready) {
				close(p.ready)
			}
			p.mu.Unlock()
			p.changed()
			return
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *process) status() ComponentStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	status := ComponentStatus{
		Name: p.name, Replica: p.replica, PID: p.pid, State: p.state, Address: p.address, Restarts: p.restarts, Log: p.logPath,
	}
	if p.state == Crashing {
		status.LogTail = p.logTail()
	}
	return status
}

// environment is the environment of this process without the variables that etcd would take for flags.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "ETCD_") })
}

func (p *process) title() string { return fmt.Sprintf("%s-%d", p.name, p.replica) }

// logTail returns the last lines that the process wrote.
func (p *process) logTail() string {
	tail, err := tailOf(p.logPath, logTailLines)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return strings.TrimRight(tail, "\n")
}

// tailOf returns the last lines of a file, if they are within its last 64 KiB.
func tailOf(path string, lines int) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	if _, err := file.Seek(max(0, info.Size()-64<<10), io.SeekStart); err != nil {
		return "", err
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return "", err
	}
	all := bytes.SplitAfter(bytes.TrimRight(content, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], nil)), nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
