package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/berth-project/berth/internal/sandbox"
)

// baseDir holds all sandboxes that are started from this working directory.
const baseDir = ".sandbox"

// state is what up leaves on disk for down and status.
type state struct {
	Supervisor processID
	// Ready is false until everything was ready once.
	Ready      bool
	Components []componentState
	// Page is the URL of the page. Empty if none is served.
	Page string
}

type componentState struct {
	sandbox.ComponentStatus
	Process processID
}

// processID identifies one process for good: a PID alone may belong to another process later.
type processID struct {
	PID int
	// Started is when the kernel started it, in ticks since boot. 0 if there is no such process.
	Started uint64
}

func processOf(pid int) processID {
	return processID{PID: pid, Started: startTicks(pid)}
}

func (p processID) runs() bool { return p.Started != 0 && startTicks(p.PID) == p.Started }

// signal reaches exactly this process or none: the handle is opened before the check and used after it.
func (p processID) signal(sig os.Signal) error {
	process, err := os.FindProcess(p.PID)
	if err != nil {
		return err
	}
	defer func() { _ = process.Release() }()
	if !p.runs() {
		return os.ErrProcessDone
	}
	return process.Signal(sig)
}

// startTicks returns 0 if no such process runs. A zombie does not run.
func startTicks(pid int) uint64 {
	if pid <= 0 {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field is the program's name in parentheses and may contain anything. The state is the third field, the
	// start time the 22nd.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 || string(fields[0]) == "Z" {
		return 0
	}
	ticks, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0
	}
	return ticks
}

func addNameFlag(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, "name", sandbox.DefaultName, "name of the sandbox, to have several at a time")
}

func sandboxDir(name string) string { return filepath.Join(baseDir, name) }

func statePath(name string) string { return filepath.Join(sandboxDir(name), "state.json") }

// readState returns nil if there is no state.
func readState(name string) (*state, error) {
	// A name must not lead out of the directory.
	if err := sandbox.CheckName(name); err != nil {
		return nil, fmt.Errorf("--%w", err)
	}
	content, err := os.ReadFile(statePath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var read state
	if err := json.Unmarshal(content, &read); err != nil {
		return nil, fmt.Errorf("reading %s: %w", statePath(name), err)
	}
	return &read, nil
}

func checkNotRunning(name string) error {
	current, err := readState(name)
	if err != nil {
		return err
	}
	if current != nil && current.Supervisor.runs() {
		return fmt.Errorf("sandbox %q runs already (pid %d): stop it with `berth-sandbox down --name %s` or use another --name",
			name, current.Supervisor.PID, name)
	}
	return nil
}

// record is the state file of a sandbox while this process runs it.
type record struct {
	name string
	lock *os.File
	// page is the URL of the page, if one is served.
	page string
}

// takeRecord makes this process the one that runs the sandbox of that name.
func takeRecord(name string) (*record, error) {
	if err := os.MkdirAll(sandboxDir(name), 0o700); err != nil {
		return nil, unwritable(err)
	}
	lock, err := os.OpenFile(filepath.Join(sandboxDir(name), "supervisor.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, unwritable(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if err := checkNotRunning(name); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("locking sandbox %q: %w", name, err)
	}
	r := &record{name: name, lock: lock}
	if err := r.save(state{Supervisor: processOf(os.Getpid())}); err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

// write records what the components are doing.
func (r *record) write(s running) error {
	current := state{Supervisor: processOf(os.Getpid()), Ready: true, Page: r.page}
	for _, status := range s.Status() {
		current.Components = append(current.Components, componentState{ComponentStatus: status, Process: processOf(status.PID)})
	}
	return r.save(current)
}

// save replaces the file as a whole, so that no reader sees half of it.
func (r *record) save(current state) error {
	content, err := json.MarshalIndent(current, "", "  ")
	if err != nil {
		return err
	}
	next := statePath(r.name) + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, statePath(r.name))
}

func (r *record) release() {
	_ = os.Remove(statePath(r.name)) // a state that stays is seen to be stale
	_ = r.lock.Close()
}
