package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPU is processor time, in user and system mode, by the name of what used it.
type CPU map[string]time.Duration

// What CPU counts besides the components of the sandbox.
const (
	// ThisProcess is the calling process.
	ThisProcess = "this process"
	// OtherProcesses is everything else on the machine.
	OtherProcesses = "other processes"
)

// tick is the unit of the files in /proc: USER_HZ is 100 on every Linux.
const tick = time.Second / 100

// Since is what was used since an earlier measurement. Processes that did not exist then count from their start.
func (c CPU) Since(before CPU) CPU {
	used := CPU{}
	for name, cpu := range c {
		used[name] = cpu - before[name]
	}
	return used
}

// CPU is the processor time that each component of the sandbox has used since it was started, that this process has used,
// and that everything else on the machine has since it was booted. Of a component with several replicas it is the sum.
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
	// user, nice and system; idle and iowait are left out; irq, softirq and steal.
	all, err := sumTicks(append(fields[1:4:4], fields[6:9]...))
	used[OtherProcesses] = all - ours
	return used, err
}

// ProcessCPU is the processor time that a process has used, in user and system mode.
func ProcessCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in brackets, may hold spaces. User and system time are the 14th and 15th field of proc(5), and the 12th and 13th after it.
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
