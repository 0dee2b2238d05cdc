package appliance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// One thread, the first that the runtime has started, and those that it starts in turn have
// the slack; the one that runs the program has not.
func TestMonitorIsCalmed(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("this test needs root")
		}
		t.Skip("SKIPPED: needs root to change the timer slack of another thread")
	}
	calmMonitor()
	calmed := 0
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		slack, err := os.ReadFile("/proc/" + filepath.Base(task) + "/timerslack_ns")
		if err == nil && strings.TrimSpace(string(slack)) == "250000" {
			calmed++
		}
	}
	if calmed == 0 || calmed == len(tasks) {
		t.Errorf("%d of %d threads are calmed", calmed, len(tasks))
	}
}
