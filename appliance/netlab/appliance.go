package netlab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readyLine    = "msg=programmed" // on stderr: everything is in the kernel
	readyTimeout = 2 * time.Minute  // on a busy machine; and verbs are told to wait for a minute
	endTimeout   = 2 * time.Minute  // for the kernel to let go of it too, which takes seconds on a busy machine
)

// Binary is the environment variable with the absolute path of the program to test. Without it, tests build it.
const Binary = "SVCCTL_BINARY"

// Build returns the path of the program to test. It compiles that of this module into a directory unless Binary is set.
func Build(dir string) (string, error) {
	if path := os.Getenv(Binary); path != "" {
		if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
			return "", fmt.Errorf("%s=%s is not the absolute path of a program", Binary, path)
		}
		return path, nil
	}
	path := filepath.Join(dir, "svcctl")
	out, err := exec.Command("go", "build", "-o", path, "svcctl.io/svcctl/cmd/svcctl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build svcctl: %w\n%s", err, out)
	}
	return path, nil
}

// Appliance is svcctl on a Host, with directories of its own. It may be started,
// stopped and started again.
type Appliance struct {
	Manifests Dir
	Data      string
	Socket    string
	// Wrapper is a command that svcctl is started by, as strace or prlimit; empty: none.
	Wrapper []string
	// Patience bounds the wait of Start; 0: 30 s.
	Patience time.Duration
	// Env is added to the environment, and Files are the descriptors from 3 on.
	Env   []string
	Files []*os.File

	t      testing.TB
	host   *Host
	binary string
	flags  []string
	// verb is announce or discover for a process beside serve, which has no manifests; Data is the state of an announcer.
	verb string
	*process
}

// process has the log of svcctl and, once it was started, the process.
type process struct {
	log    applianceLog
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd ended
}

// For returns the same Appliance for a subtest, which fails in its place.
func (a *Appliance) For(t testing.TB) *Appliance {
	view := *a
	view.t, view.host, view.Manifests.t = t, a.host.For(t), t
	return &view
}

// Appliance prepares svcctl on the Host, with flags beside those for its directories.
// What it logged is shown when the test fails.
func (h *Host) Appliance(binary string, flags ...string) *Appliance {
	h.t.Helper()
	dir := h.t.TempDir()
	a := &Appliance{
		Manifests: Dir{t: h.t, Path: filepath.Join(dir, "manifests")},
		Data:      filepath.Join(dir, "data"),
		Socket:    filepath.Join(dir, "sock"),
		t:         h.t,
		host:      h,
		binary:    binary,
		flags:     flags,
		process:   &process{log: applianceLog{changed: make(chan struct{}, 1)}},
	}
	if err := os.Mkdir(a.Manifests.Path, 0o755); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if a.Running() {
			a.Kill()
		}
		if h.t.Failed() {
			h.t.Logf("log of svcctl on %s:\n%s", h.Name, a.log.text())
		}
	})
	return a
}

// Announcer prepares `svcctl announce` for an appliance, on the same Host. It is started by Launch: it
// says nothing when it is ready.
func (a *Appliance) Announcer(flags ...string) *Appliance { return a.beside("announce", flags) }

// Discoverer prepares `svcctl discover` in the same way.
func (a *Appliance) Discoverer(flags ...string) *Appliance { return a.beside("discover", flags) }

func (a *Appliance) beside(verb string, flags []string) *Appliance {
	a.t.Helper()
	n := &Appliance{
		Data: filepath.Join(a.t.TempDir(), verb), Socket: a.Socket,
		t: a.t, host: a.host, binary: a.binary, flags: flags, verb: verb,
		process: &process{log: applianceLog{changed: make(chan struct{}, 1)}},
	}
	a.t.Cleanup(func() {
		if n.Running() {
			n.Kill()
		}
		if a.t.Failed() {
			a.t.Logf("log of svcctl %s on %s:\n%s", verb, n.host.Name, n.log.text())
		}
	})
	return n
}

// Launch starts svcctl and does not wait for it.
func (a *Appliance) Launch() {
	a.t.Helper()
	args := []string{"serve"}
	if a.Manifests.Path != "" { // a test may want none
		args = append(args, "--manifests", a.Manifests.Path)
	}
	args = append(args, "--data-dir", a.Data, "--socket", a.Socket, "--log-format", "text")
	switch a.verb {
	case "announce":
		args = []string{"announce", "--state-dir", a.Data, "--socket", a.Socket, "--log-format", "text"}
	case "discover":
		args = []string{"discover", "--log-format", "text"}
		if !slices.Contains(a.flags, "--server") {
			args = append(args, "--socket", a.Socket)
		}
	}
	args = append(args, a.flags...)
	command := slices.Concat(a.Wrapper, []string{a.binary}, args)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &a.log, &a.log
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), a.Env...), a.Files
	a.log.begin(strings.Join(cmd.Args, " "))
	if err := a.host.start(cmd); err != nil {
		a.t.Fatalf("start svcctl on %s: %v", a.host.Name, err)
	}
	a.cmd, a.exited = cmd, make(chan struct{})
	go func() {
		defer close(a.exited)
		_ = cmd.Wait() // the exit code is in cmd.ProcessState
	}()
}

// Start starts svcctl and waits until everything is programmed.
func (a *Appliance) Start() {
	a.t.Helper()
	a.Launch()
	a.awaitReady()
}

// HandOver has svcctl execute its program anew, and waits until that has programmed everything.
func (a *Appliance) HandOver() {
	a.t.Helper()
	a.log.begin("SIGUSR2")
	a.Signal(unix.SIGUSR2)
	a.awaitReady()
}

func (a *Appliance) awaitReady() {
	a.t.Helper()
	patience := cmp.Or(a.Patience, readyTimeout)
	timeout := time.After(patience)
	for !a.log.has(readyLine) {
		select {
		case <-a.log.changed:
		case <-a.exited:
			a.t.Fatalf("svcctl ended before it had programmed anything: %v", a.cmd.ProcessState)
		case <-timeout:
			a.t.Fatalf("svcctl did not say %s within %s", readyLine, patience)
		}
	}
}

// Running reports whether svcctl was started and has not ended.
func (a *Appliance) Running() bool {
	if a.cmd == nil {
		return false
	}
	select {
	case <-a.exited:
		return false
	default:
		return true
	}
}

// Stop asks svcctl to end and waits for it; it must end in good order.
func (a *Appliance) Stop() {
	a.t.Helper()
	if state := a.signal(unix.SIGTERM); !state.Success() {
		a.t.Fatalf("svcctl asked to stop: %v, want exit code 0", state)
	}
}

// Kill ends svcctl at once, without a chance to tidy up.
func (a *Appliance) Kill() {
	a.t.Helper()
	a.signal(unix.SIGKILL)
}

func (a *Appliance) signal(s os.Signal) *os.ProcessState {
	a.t.Helper()
	a.Signal(s)
	return a.Wait()
}

// Signal sends a signal to svcctl and does not wait for what it does.
func (a *Appliance) Signal(s os.Signal) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		a.t.Fatalf("signal svcctl: %v", err)
	}
}

// PID returns the process that was started last.
func (a *Appliance) PID() int { return a.cmd.Process.Pid }

// Ready reports whether svcctl said, since it was started last, that everything is
// programmed.
func (a *Appliance) Ready() bool { return a.log.has(readyLine) }

// Wait waits until svcctl ended and tells how.
func (a *Appliance) Wait() *os.ProcessState {
	a.t.Helper()
	select {
	case <-a.exited:
	case <-time.After(endTimeout):
		_ = a.cmd.Process.Signal(unix.SIGQUIT) // it logs what each goroutine waits for
		select {
		case <-a.exited:
		case <-time.After(10 * time.Second):
			_ = a.cmd.Process.Kill()
		}
		a.t.Fatalf("svcctl did not end within %s", endTimeout)
	}
	return a.cmd.ProcessState
}

// Log returns what svcctl wrote since it was started last.
func (a *Appliance) Log() string { return a.log.current() }

// Svcctl runs a verb of svcctl on the Host against this appliance and gives its
// output and exit code.
func (a *Appliance) Svcctl(verb string, args ...string) (stdout, stderr string, code int) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, a.binary, slices.Concat([]string{verb, "--socket", a.Socket}, args)...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := a.host.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		a.t.Fatalf("run %v: %v", cmd.Args, err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// Get returns the answer of the API to a GET, over the socket: for what tests ask again and again, as each start of a program costs.
func (a *Appliance) Get(path string) ([]byte, error) {
	a.t.Helper()
	client := http.Client{Timeout: readyTimeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", a.Socket)
	}}}
	answer, err := client.Get("http://svcctl" + path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, answer.Status, body)
	}
	return body, err
}

// Read has the answer of Get in JSON.
func (a *Appliance) Read(path string, into any) error {
	a.t.Helper()
	body, err := a.Get(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// applianceLog keeps what svcctl writes, over all its starts.
type applianceLog struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	started int // where the log of the last start begins
	changed chan struct{}
}

func (l *applianceLog) begin(command string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.buf, "$ %s\n", command)
	l.started = l.buf.Len()
}

// Write implements io.Writer.
func (l *applianceLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
	return l.buf.Write(p)
}

func (l *applianceLog) has(text string) bool { return strings.Contains(l.current(), text) }

func (l *applianceLog) current() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf.Bytes()[l.started:])
}

func (l *applianceLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
