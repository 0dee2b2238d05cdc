package appliance

import (
	"os"
	"slices"
	"strconv"
)

// monitorSlack is the timer slack, in nanoseconds, of the thread of the Go runtime that watches
// over all others (sysmon). That thread wakes every 20 µs while anything runs, and a change runs
// for some milliseconds: a sixth of its CPU time was spent on these wake-ups. What sysmon looks
// for, threads in system calls and goroutines that run for 10 ms, can wait that long.
const monitorSlack = 250_000

// calmMonitor lets that thread wake up less often. It is the first one that the runtime starts.
// Threads that it starts in turn inherit the slack (timerslack_ns in proc_pid(5)), so any timer
// of the process may be late by as much, which none of them minds: the shortest are of some
// milliseconds. Where the kernel does not permit it (it takes CAP_SYS_NICE), nothing changes.
func calmMonitor() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	var threads []int
	for _, task := range tasks {
		if id, err := strconv.Atoi(task.Name()); err == nil && id > os.Getpid() {
			threads = append(threads, id)
		}
	}
	if len(threads) > 0 {
		_ = os.WriteFile("/proc/"+strconv.Itoa(slices.Min(threads))+"/timerslack_ns", []byte(strconv.Itoa(monitorSlack)), 0)
	}
}
