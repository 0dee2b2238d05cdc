package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Test580_doctor_names_what_the_kernel_lacks on whichever kernel this is: what later ones brought, by the version that
// brought it, and what follows from that.
func Test580_doctor_names_what_the_kernel_lacks(t *testing.T) {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor); err != nil {
		t.Fatalf("%s: %v", release, err)
	}
	b := newBox(t, nil)
	b.svcctl.Start()
	out, errOut, _ := b.svcctl.Svcctl("doctor", "--data-dir", b.svcctl.Data, "-o", "json")
	var diagnosis struct {
		Findings []struct{ Check, Level, Message, Advice string }
	}
	if err := json.Unmarshal([]byte(out), &diagnosis); err != nil {
		t.Fatalf("%v:\n%s%s", err, out, errOut)
	}
	kernel := diagnosis.Findings[0]
	if kernel.Check != "kernel" || !strings.HasPrefix(kernel.Message, "Linux "+strings.TrimSpace(string(release))+" has all that is needed") {
		t.Fatalf("%+v", kernel)
	}
	level := "ok"
	for _, came := range []struct {
		feature      string
		major, minor int
		matters      bool
	}{
		{"table flag owner (Linux 5.12)", 5, 12, true},
		{"destroy element (Linux 6.3)", 6, 3, false},
		{"table flag persist (Linux 6.9)", 6, 9, false},
	} {
		lacks := major < came.major || major == came.major && minor < came.minor
		if got := strings.Contains(kernel.Message, came.feature); got != lacks {
			t.Errorf("%s is named: %t, want %t: %s", came.feature, got, lacks, kernel.Message)
		}
		if lacks && came.matters {
			level = "warning"
		}
	}
	if kernel.Level != level || (kernel.Advice != "") != (level == "warning") {
		t.Errorf("the level is %s, want %s: %+v", kernel.Level, level, kernel)
	}
	t.Logf("%s %s %s", kernel.Level, kernel.Message, kernel.Advice)
}
