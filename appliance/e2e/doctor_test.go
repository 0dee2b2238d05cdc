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

// Test866_doctor_of_a_stopped_appliance reports a stopped appliance: a warning before the first start, and an error while the
// kernel serves its frontends. status names them without the appliance.
func Test866_doctor_of_a_stopped_appliance(t *testing.T) {
	b := newBox(t, nil)
	instance := func() (level, message string) {
		t.Helper()
		out, errOut, _ := b.svcctl.Svcctl("doctor", "--data-dir", b.svcctl.Data, "-o", "json")
		var diagnosis struct {
			Findings []struct{ Check, Level, Message, Advice string }
		}
		if err := json.Unmarshal([]byte(out), &diagnosis); err != nil {
			t.Fatalf("%v:\n%s%s", err, out, errOut)
		}
		for _, f := range diagnosis.Findings {
			if f.Check == "instance" {
				return f.Level, f.Message + ": " + f.Advice
			}
		}
		t.Fatalf("no finding about the instance: %s", out)
		return "", ""
	}
	if level, message := instance(); level != "warning" || !strings.Contains(message, "none of its rules") || !strings.Contains(message, "svcctl") {
		t.Errorf("before the first start: %s: %s", level, message)
	}
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	b.serves(t, "started")
	if level, message := instance(); level != "ok" {
		t.Errorf("serving: %s: %s", level, message)
	}
	b.svcctl.Stop()
	if level, message := instance(); level != "error" || !strings.Contains(message, "stay in force") {
		t.Errorf("stopped: %s: %s", level, message)
	}
	if _, errOut, code := b.svcctl.Svcctl("status"); code != 3 || !strings.Contains(errOut, "the kernel serves ") || !strings.Contains(errOut, " frontends of Services") {
		t.Errorf("status of a stopped appliance: exit %d: %s", code, errOut)
	}
}
