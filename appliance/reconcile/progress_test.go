package reconcile

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/checkup"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
)

// A panic of the loop ends the process with a code that is not 0. The test runs itself.
func TestP07_panicEndsTheProcess(t *testing.T) {
	const role = "SVCCTL_TEST_PANIC"
	if os.Getenv(role) == "1" {
		r := newRig(t)
		r.host()
		r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
		r.kernel.Inject(func(*nft.Batch) error { panic("the kernel is a teapot") })
		findings := make(chan []checkup.Finding, 1)
		findings <- nil
		_ = task.Run(context.Background(), r.log, task.Task{Name: "reconcile", Run: func(ctx context.Context) error {
			return r.Run(ctx, Inputs{Findings: findings})
		}}, task.Task{Name: "another", Run: func(ctx context.Context) error {
			<-ctx.Done() // as all others of the appliance, which would have to end for the process to end well
			return nil
		}})
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestP07_panicEndsTheProcess$")
	cmd.Env = append(os.Environ(), role+"=1")
	done := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer done.Stop()
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() <= 0 || !strings.Contains(string(out), "the kernel is a teapot") {
		t.Errorf("after a panic: %v\n%s", err, out)
	}
}

// What changes on the host is told, as warnings, and when it is over.
func TestK21_changesOfTheHostAreTold(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("a.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.observed.findings = []checkup.Finding{checkup.Fault("forwarding", "the box does not forward", "let it")}
	r.step()
	s := r.board.Status()
	if len(s.Problems) != 1 || s.Errors() != 0 || s.Problems[0].Message != "the box does not forward: let it" || !s.Synced {
		t.Errorf("problems %v, synced %v", s.Problems, s.Synced)
	}
	r.observed.findings = nil
	r.step()
	if len(r.board.Status().Problems) != 0 || !strings.Contains(r.logged.String(), `msg="problem is over"`) {
		t.Errorf("problems %v", r.board.Status().Problems)
	}
}

// Planning many Services is not standing still: the watchdog sees each of them.
func TestProgress(t *testing.T) {
	r := newRig(t)
	r.host()
	var planned atomic.Int64 // on all CPUs
	r.planner.progress = func() { planned.Add(1) }
	for i := range 50 {
		name := fmt.Sprintf("web%d", i)
		r.write(name+".yaml", web(name, fmt.Sprintf("10.96.1.%d", i+1), "10.1.2.3"))
	}
	r.step()
	if planned := planned.Load(); planned < 50 {
		t.Errorf("planning 50 Services is %d steps", planned)
	}
}

// A certificate that clients refuse is an error, and a setting of the host a warning.
func TestHostProblems(t *testing.T) {
	problems := hostProblems([]checkup.Finding{checkup.Fault(checkup.Certificate, "it ended", "renew it"), checkup.Fault("forwarding", "off", "on")})
	if problems[0].Warning || problems[0].Reason != reasonCertificate || !problems[1].Warning {
		t.Errorf("%+v", problems)
	}
}
