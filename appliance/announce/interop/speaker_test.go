package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/announce/bfd"
	"svcctl.io/svcctl/appliance/announce/bgp"
	"svcctl.io/svcctl/appliance/netlab"
)

// asSpeaker is the environment variable that makes this test binary a speaker, with a spec.
const asSpeaker = "SVCCTL_TEST_SPEAKER"

// patience bounds the time to wait for an expected event.
const patience = time.Minute

// spec configures a speaker process at its start.
type spec struct {
	Peer       bgp.Peer
	Attributes *bgp.Attributes
	Routes     []netip.Prefix
	BFD        *bfd.Config
}

// order is a line that it is sent later.
type order struct {
	Announce, Withdraw []netip.Prefix
	Leave              bool
}

// report is a line that it prints whenever something changed.
type report struct {
	BGP bgp.State
	BFD *bfd.State
}

func TestMain(m *testing.M) {
	if text := os.Getenv(asSpeaker); text != "" {
		if err := speak(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	netlab.Parallel(12)
	os.Exit(m.Run())
}

// speak is the speaker process.
func speak(text string) error {
	var s spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	speaker, err := bgp.New(s.Peer, log, notify)
	if err != nil {
		return err
	}
	if err := speaker.Set(withAttributes(s.Routes, s.Attributes)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var watch *bfd.Session
	if s.BFD != nil {
		if watch, err = bfd.NewHub(log).Session(*s.BFD, notify); err != nil {
			return err
		}
		go watch.Run(ctx)
	}
	go func() {
		out := json.NewEncoder(os.Stdout)
		failures := uint64(0)
		for range changed {
			r := report{BGP: speaker.State()}
			if watch != nil {
				st := watch.State()
				if r.BFD = &st; st.Failures > failures && st.Diagnostic == bfd.Expired {
					speaker.Reset("BFD lost the peer")
				}
				failures = st.Failures
			}
			_ = out.Encode(r) // the test is gone when this fails
		}
	}()
	go func() {
		lines := json.NewDecoder(os.Stdin)
		for {
			var o order
			if lines.Decode(&o) != nil {
				cancel()
				return
			}
			if o.Leave {
				_ = speaker.Leave(ctx)
				os.Exit(0)
			}
			_ = speaker.Update(withAttributes(o.Announce, s.Attributes), o.Withdraw)
		}
	}()
	speaker.Run(ctx)
	return nil
}

func withAttributes(prefixes []netip.Prefix, a *bgp.Attributes) map[netip.Prefix]*bgp.Attributes {
	routes := map[netip.Prefix]*bgp.Attributes{}
	for _, p := range prefixes {
		routes[p] = a
	}
	return routes
}

// program is a program that runs on a Host until the test ends.
type program struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}
	stdin io.WriteCloser
	vtysh func(command string) string // of FRR

	mu      sync.Mutex
	log     bytes.Buffer
	reports []report
	news    chan struct{}
}

// start starts a program; env is added to the environment. What it wrote is shown when the test
// fails.
func start(t testing.TB, h *netlab.Host, env []string, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(name, args...), ended: make(chan struct{}), news: make(chan struct{}, 1)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = writer(p.write)
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = h.Do(p.cmd.Start)
	}
	if err != nil {
		t.Fatalf("start %s on %s: %v", name, h.Name, err)
	}
	go func() {
		defer close(p.ended)
		p.read(out)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			text := p.log.String()
			t.Logf("%s on %s:\n%s", name, h.Name, text[max(0, len(text)-6000):])
		}
	})
	return p
}

type writer func([]byte) (int, error)

// Write implements io.Writer.
func (w writer) Write(b []byte) (int, error) { return w(b) }

func (p *program) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

// read takes reports, and all else as log.
func (p *program) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.BGP.Phase == "" {
			_, _ = p.write(append(lines.Bytes(), '\n'))
			continue
		}
		p.mu.Lock()
		p.reports = append(p.reports, r)
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
}

// kill ends the program at once.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// tell gives a speaker an order.
func (p *program) tell(o order) {
	p.t.Helper()
	if err := json.NewEncoder(p.stdin).Encode(o); err != nil {
		p.t.Fatalf("tell the speaker: %v", err)
	}
}

// until waits for a report that is as wanted, from now on or the last one.
func (p *program) until(what string, wanted func(report) bool) report {
	p.t.Helper()
	deadline := time.After(patience)
	for seen := -1; ; {
		p.mu.Lock()
		news := p.reports[max(seen, min(len(p.reports), max(0, len(p.reports)-1))):]
		seen = len(p.reports)
		p.mu.Unlock()
		for _, r := range news {
			if wanted(r) {
				return r
			}
		}
		select {
		case <-p.news:
		case <-deadline:
			p.mu.Lock()
			defer p.mu.Unlock()
			last, _ := json.Marshal(p.reports[max(0, len(p.reports)-1):])
			p.t.Fatalf("the speaker did not come to: %s; it last said %s", what, last)
		}
	}
}

// speaker starts a speaker process on a Host.
func speaker(t testing.TB, h *netlab.Host, s spec) *program {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, h, []string{asSpeaker + "=" + string(text)}, self)
}

// established waits until a peer has so many routes.
func (p *program) established(routes int) report {
	p.t.Helper()
	return p.until(fmt.Sprintf("an established session with %d routes", routes), func(r report) bool {
		return r.BGP.Phase == bgp.Established && r.BGP.Routes == routes && !r.BGP.Pending
	})
}

// downBecause waits for a reason that a session is down.
func (p *program) downBecause(words string) {
	p.t.Helper()
	p.until("down because "+words, func(r report) bool {
		return r.BGP.Phase != bgp.Established && strings.Contains(r.BGP.LastDown, words)
	})
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	netlab.Eventually(t, patience, check)
}
