package served

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	programmed   = "msg=programmed" // on stderr: everything is in the kernel
	startTimeout = time.Minute      // on a busy machine
	stopTimeout  = time.Minute
)

// Address is the address of the appliance's API over TLS.
const Address = "127.0.0.1:6443"

// Flags are the settings of every appliance, beside those of its test.
var Flags = []string{
	"--node-name=gw1", "--zone=zone-a",
	"--service-cluster-ip-range=172.30.0.0/16,fd00:172:30::/112",
	"--load-balancer-pool=198.51.100.0/26", "--load-balancer-pool=2001:db8:198::/122",
	"--cluster-cidr=10.0.0.0/8,fd00:10::/32",
}

// Appliance is svcctl with directories of its own. It may be started, ended and started
// again.
type Appliance struct {
	Program    string // the path of svcctl
	Manifests  string // the watched directory
	Data       string
	Socket     string
	Kubeconfig string // for Address; there once the appliance was started

	t      testing.TB
	flags  []string
	log    lines
	cmd    *exec.Cmd
	exited chan struct{}
}

// New prepares an appliance, with flags beside Flags. It ends with the test. What it
// logged is shown when the test fails.
func New(t testing.TB, flags ...string) *Appliance {
	t.Helper()
	dir := t.TempDir()
	a := &Appliance{
		Program:    program(t),
		Manifests:  filepath.Join(dir, "manifests"),
		Data:       filepath.Join(dir, "data"),
		Socket:     filepath.Join(dir, "sock"),
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		t:          t,
		flags:      flags,
	}
	if err := os.Mkdir(a.Manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.cmd != nil {
			a.end(syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("log of svcctl:\n%s", a.log.String())
		}
	})
	return a
}

// Start starts the appliance and waits until it serves.
func (a *Appliance) Start() {
	a.t.Helper()
	args := slices.Concat([]string{
		"serve", "--manifests", a.Manifests, "--data-dir", a.Data, "--socket", a.Socket, "--listen", Address, "--log-format", "text",
	}, Flags, a.flags)
	a.cmd, a.exited = exec.Command(a.Program, args...), make(chan struct{})
	// Its output is a file: nothing then waits for a process that it may leave behind.
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := a.log.begin()
	if err := a.cmd.Start(); err != nil {
		a.t.Fatalf("start svcctl: %v", err)
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		defer close(exited)
		_ = cmd.Wait() // the exit code is in cmd.ProcessState
	}(a.cmd, a.exited)
	a.await("svcctl says that everything is programmed", func() error {
		select {
		case <-a.exited:
			a.t.Fatalf("svcctl ended at once: %v", a.cmd.ProcessState)
		default:
		}
		if !strings.Contains(a.log.since(began), programmed) {
			return fmt.Errorf("it did not")
		}
		return nil
	})
	if _, err := os.Stat(a.Kubeconfig); err != nil {
		a.writeKubeconfig()
	}
}

// writeKubeconfig keeps what `svcctl admin kubeconfig` prints.
func (a *Appliance) writeKubeconfig() {
	a.t.Helper()
	config, err := exec.Command(a.Program, "admin", "kubeconfig", "--socket", a.Socket).Output()
	if err != nil {
		a.t.Fatalf("svcctl admin kubeconfig: %v%s", err, stderrOf(err))
	}
	if err := os.WriteFile(a.Kubeconfig, config, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func stderrOf(err error) string {
	if exit, is := err.(*exec.ExitError); is {
		return ": " + string(exit.Stderr)
	}
	return ""
}

// Stop asks the appliance to end, and waits.
func (a *Appliance) Stop() { a.t.Helper(); a.end(syscall.SIGTERM) }

// Kill ends the appliance at once, without a chance to tidy up.
func (a *Appliance) Kill() { a.t.Helper(); a.end(syscall.SIGKILL) }

func (a *Appliance) end(signal syscall.Signal) {
	a.t.Helper()
	_ = a.cmd.Process.Signal(signal) // it may have ended by itself
	select {
	case <-a.exited:
	case <-time.After(stopTimeout):
		_ = a.cmd.Process.Kill()
		a.t.Errorf("svcctl did not end within %s of %v", stopTimeout, signal)
	}
}

// PID is the process that was started last.
func (a *Appliance) PID() int { return a.cmd.Process.Pid }

// Log returns all that the appliance has written.
func (a *Appliance) Log() string { return a.log.String() }

// await waits until something is so.
func (a *Appliance) await(what string, check func() error) {
	a.t.Helper()
	deadline := time.Now().Add(startTimeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("waited %s until %s: %v", startTimeout, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// lines keeps what the appliance writes.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String returns all lines.
func (l *lines) String() string { return l.since(0) }

func (l *lines) begin() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Len()
}

func (l *lines) since(at int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf.Bytes()[at:])
}
