package sandbox

import (
	"io"
	"os"
	"os/exec"
	"syscall"
)

// cleanerOf is an environment variable with the directory of a sandbox. A process that has it is the cleaner of that sandbox and nothing else.
const cleanerOf = "BERTH_SANDBOX_CLEANER_OF"

// The cleaner is this program once more. It waits until the process of the sandbox has ended, by a panic or by kill -9 too, and removes the footprint. It has the lock of the
// directory as well, so no other sandbox starts there meanwhile.
func init() {
	dir, isCleaner := os.LookupEnv(cleanerOf)
	if !isCleaner {
		return
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until nobody has the other end
	for range 3 {
		if (footprint{dir}).cleanUp() == nil { // the next Start or CleanUp tries again, and says why it cannot
			break
		}
	}
	os.Exit(0)
}

// startCleaner starts the cleaner of a sandbox that has the lock of its directory. stop ends it, and returns when it has ended.
func (f footprint) startCleaner(lock *os.File) (stop func(), err error) {
	end, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer end.Close() // the cleaner has its own
	cleaner := exec.Command("/proc/self/exe")
	cleaner.Env = append(os.Environ(), cleanerOf+"="+f.dir)
	cleaner.Dir, cleaner.Stdin, cleaner.ExtraFiles = "/", end, []*os.File{lock}
	cleaner.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to all processes of a terminal does not reach it
	if err := cleaner.Start(); err != nil {
		ours.Close()
		return nil, err
	}
	return func() {
		ours.Close()
		_ = cleaner.Wait() // somebody may have killed it
	}, nil
}
