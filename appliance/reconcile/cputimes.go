package reconcile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuTimes are the times of the threads of this process by their ids, as the scheduler counts
// them.
type cpuTimes map[int]threadTime

// threadTime has the CPU time of a thread since it began, and the time that it waited for a CPU.
type threadTime struct {
	used    time.Duration // on a CPU
	waited  time.Duration // runnable, and not on one
	wanting bool          // it is runnable, so there may be more that waited does not have yet
	blocked bool          // it waits for a disk or a lock of the kernel (state D)
}

// fair returns the part of a tick that the process could use: the tick less the time that its
// threads waited for a CPU, and at least the CPU time that they used. The progress of the loop is
// measured against it:
//
//   - While the loop is runnable, a thread of ours runs or waits for a CPU all the time, so used and
//     waited are a tick at least, and what is left is not more than used. Starved to a
//     hundredth, it has a hundred times the patience. An endless loop uses it up.
//   - While all wait for something else, a lock or a message that does not come, both are next to
//     nothing, and it is the whole tick.
//
// The kernel adds a wait to waited only when it ends. While one is under way, in any other
// thread than the caller's, nothing but used counts.
func (now cpuTimes) fair(before cpuTimes, tick time.Duration) time.Duration {
	var used, waited time.Duration
	wanting := false
	for id, t := range now {
		used += t.used - before[id].used
		waited += t.waited - before[id].waited
		wanting = wanting || t.wanting
	}
	if wanting {
		return min(tick, used)
	}
	return min(tick, max(tick-waited, used))
}

// blocked reports whether the kernel holds a thread up.
func (now cpuTimes) blocked() bool {
	for _, t := range now {
		if t.blocked {
			return true
		}
	}
	return false
}

// readCPUTimes reads those of this process from its schedstat and stat files (proc(5); the kernel
// needs CONFIG_SCHED_INFO, which every distribution has).
func readCPUTimes() (cpuTimes, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const tasks = "/proc/self/task"
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return nil, err
	}
	times := cpuTimes{}
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		schedstat, err := os.ReadFile(filepath.Join(tasks, entry.Name(), "schedstat"))
		if err != nil {
			continue // the thread ended, or the kernel has no such file
		}
		stat, err := os.ReadFile(filepath.Join(tasks, entry.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(schedstat)) // time on a CPU, time waiting, slices
		if len(fields) < 2 {
			continue
		}
		used, _ := strconv.ParseInt(fields[0], 10, 64)
		waited, _ := strconv.ParseInt(fields[1], 10, 64)
		_, state, _ := bytes.Cut(stat, []byte(") ")) // behind the name, which may have anything in it
		times[id] = threadTime{
			used: time.Duration(used), waited: time.Duration(waited),
			wanting: id != syscall.Gettid() && bytes.HasPrefix(state, []byte("R")),
			blocked: bytes.HasPrefix(state, []byte("D")),
		}
	}
	if self := times[syscall.Gettid()]; self.used == 0 {
		return nil, fmt.Errorf("%s/*/schedstat is empty", tasks)
	}
	return times, nil
}
