package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// ModuleDir is where the module of another project is, of which a program in bin/ is built. Tool is its directory in hack/tools.
func ModuleDir(ctx context.Context, tool, module string) (string, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	list.Dir = filepath.Join(Root(), "hack", "tools", tool)
	list.Env = append(os.Environ(), "GOFLAGS=")
	dir, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("looking for module %s: %w", module, err)
	}
	return strings.TrimSpace(string(dir)), nil
}

// StartForeign starts a program of another project, which does not outlive this process, however this process ends. The channel is closed when the program has ended.
func StartForeign(cmd *exec.Cmd) (ended <-chan struct{}, _ error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		// The kernel sends the signal when the thread that started the program ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	return done, <-started
}
