package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-project/berth/internal/sandbox"
)

const (
	superviseFlag = "supervise"
	// reportFD is the supervisor's end of the pipe to the command that started it.
	reportFD = 3
	// verdictMark begins the last part of a report: nothing more when the sandbox is ready, or else the error.
	verdictMark = "\x00"
)

// detach starts this program again as a supervisor in its own session, shows its progress, and returns when everything
// is ready or has failed.
func detach(ctx context.Context, out io.Writer, config sandbox.Config) error {
	if err := checkNotRunning(config.Name); err != nil {
		return err
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return unwritable(err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(config.Dir, "supervisor.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	report, reportEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()

	supervisor := exec.Command(self, append(os.Args[1:], "--"+superviseFlag)...)
	supervisor.Stdout, supervisor.Stderr = log, log
	supervisor.ExtraFiles = []*os.File{reportEnd}
	supervisor.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = supervisor.Start()
	reportEnd.Close() // the supervisor has its own
	if err != nil {
		return err
	}
	// If this command is interrupted, it stops the supervisor too. The report ends when the supervisor has stopped
	// everything that it started.
	defer context.AfterFunc(ctx, func() { _ = supervisor.Process.Signal(syscall.SIGTERM) })()

	verdict, told := relayReport(report, out)
	switch {
	case told && verdict == "":
		return supervisor.Process.Release()
	case told:
		_ = supervisor.Wait() // it has said already why it ends
		return errors.New(verdict)
	default:
		return fmt.Errorf("the supervisor ended: %w: see %s", supervisor.Wait(), log.Name())
	}
}

// relayReport copies progress up to the verdict and returns the verdict. It returns false if there is none.
func relayReport(report io.Reader, out io.Writer) (string, bool) {
	lines := bufio.NewReader(report)
	for {
		line, err := lines.ReadString('\n')
		if verdict, ok := strings.CutPrefix(line, verdictMark); ok {
			rest, _ := io.ReadAll(lines) // a verdict cut short is better than none
			return strings.TrimSpace(verdict + string(rest)), true
		}
		fmt.Fprint(out, line)
		if err != nil {
			return "", false
		}
	}
}

// supervise runs the sandbox in the background and reports to the command that started it until it is ready.
func supervise(ctx context.Context, config sandbox.Config, members int, pageAddress string) error {
	report := &reportWriter{pipe: os.NewFile(reportFD, "report")}
	if report.pipe == nil {
		return fmt.Errorf("--%s is only for --detach to use", superviseFlag)
	}
	syscall.CloseOnExec(reportFD) // or else the components would keep the report open
	err := run(ctx, report, config, members, pageAddress, func(running, string) { report.finish(nil) })
	report.finish(err)
	return err
}

// reportWriter writes to the pipe until the verdict, and to standard output, which is the supervisor's log, all the
// time.
type reportWriter struct{ pipe *os.File }

var _ io.Writer = &reportWriter{}

func (r *reportWriter) Write(text []byte) (int, error) {
	if r.pipe != nil {
		_, _ = r.pipe.Write(text) // whoever waited may be gone
	}
	return os.Stdout.Write(text)
}

// finish sends the verdict; only the first one counts.
func (r *reportWriter) finish(err error) {
	if r.pipe == nil {
		return
	}
	verdict := verdictMark + "\n"
	if err != nil {
		verdict = verdictMark + err.Error() + "\n"
	}
	_, _ = io.WriteString(r.pipe, verdict) // whoever waited may be gone
	_ = r.pipe.Close()
	r.pipe = nil
}
