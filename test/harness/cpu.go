package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU is processor time in user and system mode. The key is the name of the process or component that used it.
type CPU map[string]time.Duration

// CPU has these entries besides the components of the sandbox.
const (
	// ThisProcess is the calling process.
	ThisProcess = "this process"
	// OtherProcesses are all other processes on the machine.
	OtherProcesses = "other processes"
)

// tick is the unit of the files in /proc: USER_HZ is 100 on every Linux.
const tick = time.Second / 100

// Since returns the time used since an earlier measurement. A process that did not exist at that time counts from its start.
func (c CPU) Since(before CPU) CPU {
	used := CPU{}
	for name, cpu := range c {
		used[name] = cpu - before[name]
	}
	return used
}

// CPU returns the processor time of each component of the sandbox and of this process since their start. A component with several replicas has the
// sum. All other processes count since the machine was booted.
func (c *Cluster) CPU() (CPU, error) {
	used := CPU{}
	var ours time.Duration
	add := func(name string, pid int) error {
		cpu, err := ProcessCPU(pid)
		used[name] += cpu
		ours += cpu
		return err
	}
	if err := add(ThisProcess, os.Getpid()); err != nil {
		return nil, err
	}
	for _, status := range c.Sandbox.Status() {
		if err := add(status.Name, status.PID); err != nil {
			return nil, fmt.Errorf("%s: %w", status.Name, err)
		}
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return nil, fmt.Errorf("/proc/stat begins with %q", line)
	}
	// This sums user, nice, system, irq, softirq and steal. It skips idle and iowait.
	all, err := sumTicks(append(fields[1:4:4], fields[6:9]...))
	used[OtherProcesses] = all - ours
	return used, err
}

// ProcessCPU returns the processor time of a process in user and system mode.
func ProcessCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The process name is in parentheses and may contain spaces. User and system time are the fields 14 and 15 of proc(5). They are the fields 12 and
	// 13 after the name.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat is %q", pid, text)
	}
	return sumTicks(fields[11:13])
}

func sumTicks(fields []string) (sum time.Duration, err error) {
	for _, field := range fields {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * tick
	}
	return sum, nil
}

// ResidentMemory is the memory of a process in bytes, without mapped files.
func ResidentMemory(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if rest, found := strings.CutPrefix(line, "RssAnon:"); found {
			kibi, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kibi * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no memory", pid)
}
