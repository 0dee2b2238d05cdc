package prober

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/netlab"
)

// errandVar makes this test program a Prober with the errand that it holds. Tests run it so where
// a process of its own is needed: in a namespace, with few descriptors, or to be stopped.
const errandVar = "SVCCTL_PROBER_ERRAND"

// errand lists the probes that a child process makes.
type errand struct {
	// Addrs are asked by each of the Checks, and were in the state Start before.
	Addrs  []netip.AddrPort
	Checks []health.Check
	Start  health.State
	// Files limits the descriptors, if it is not 0.
	Files uint64
	// NoRaw takes CAP_NET_RAW away.
	NoRaw bool
}

// report is one line of a child, which writes several a second.
type report struct {
	Stats
}

func TestMain(m *testing.M) {
	if text := os.Getenv(errandVar); text != "" {
		if err := doErrand(text); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// doErrand does an errand until the standard input ends.
func doErrand(text string) error {
	var e errand
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return err
	}
	if e.Files > 0 {
		limit := syscall.Rlimit{Cur: e.Files, Max: e.Files}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			return err
		}
	}
	p := New(Options{SourcePorts: DefaultPorts})
	for _, addr := range e.Addrs {
		var all []Request
		for _, check := range e.Checks {
			all = append(all, Request{Target: health.Target{Addr: addr, Check: check}, Start: e.Start})
		}
		p.Set("default/"+addr.String(), all)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	go func() {
		for ctx.Err() == nil {
			_ = json.NewEncoder(os.Stdout).Encode(report{p.Stats()})
			time.Sleep(50 * time.Millisecond)
		}
	}()
	p.Run(ctx, func() {})
	return nil
}

// child is a process that does an errand.
type child struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	now report
}

// do starts an errand on a host, or beside the test.
func do(t *testing.T, host *netlab.Host, e errand) *child {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(self)}
	if e.NoRaw {
		c.cmd = exec.Command("setpriv", "--bounding-set=-net_raw", "--", self)
	}
	c.cmd.Env = append(os.Environ(), errandVar+"="+string(text))
	c.cmd.Stderr = os.Stderr
	input, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	start := c.cmd.Start
	if host != nil {
		start = func() error { return host.Do(c.cmd.Start) }
	}
	if err := start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			c.mu.Lock()
			c.now = report{}
			err := json.Unmarshal(lines.Bytes(), &c.now)
			c.mu.Unlock()
			if err != nil {
				t.Errorf("a report: %v", err)
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = input.Close() // it ends by itself
		select {
		case <-read:
		case <-time.After(patience):
			t.Error("the child does not end")
			_ = c.cmd.Process.Kill()
			<-read
		}
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("the child: %v", err)
		}
	})
	return c
}

// report is the latest one.
func (c *child) report() report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// count adds up what came of all checks.
func (r report) count(of health.Outcome) (n int) {
	for _, outcomes := range r.Checks {
		n += int(outcomes[of])
	}
	return n
}
