package sandbox

import (
	"os/exec"
	"runtime"
	"syscall"
)

// launcher starts all children from one OS thread. The kernel sends a child its death signal when the thread that forked it ends, not when the
// process does. A child started from an ordinary goroutine would be killed whenever the Go runtime ends that goroutine's thread.
type launcher struct {
	requests chan launchRequest
}

type launchRequest struct {
	cmd    *exec.Cmd
	result chan<- error
}

func newLauncher() *launcher {
	l := &launcher{requests: make(chan launchRequest)}
	go l.serve()
	return l
}

// start starts the command so that it does not outlive this process, however this process ends, and so that a terminal's interrupt does not reach it:
// this process decides when it stops.
func (l *launcher) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	result := make(chan error)
	l.requests <- launchRequest{cmd: cmd, result: result}
	return <-result
}

// close releases the thread. All children must have been waited for.
func (l *launcher) close() { close(l.requests) }

func (l *launcher) serve() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread() // the thread goes back to the runtime instead of ending
	for request := range l.requests {
		request.result <- request.cmd.Start()
	}
}
