package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// pouring asks all the time, by new connections, until stop is called, which tells how often. Each one must
// be answered.
func (b *box) pouring(t *testing.T) (stop func() int64) {
	t.Helper()
	t.Log("asked under load: a failure counts at once")
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var asked atomic.Int64
	for _, f := range families {
		for range 8 {
			asking.Go(func() {
				for ctx.Err() == nil {
					if _, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80), patiently); err != nil {
						t.Errorf("%s: connection %d: %v", f, asked.Load(), err)
						return
					}
					asked.Add(1)
				}
			})
		}
	}
	t.Cleanup(cancel)
	return func() int64 { cancel(); asking.Wait(); return asked.Load() }
}

// A program that is executed anew in place of the process loses nothing that it relays.
func Test363_relayed_connections_over_an_upgrade(t *testing.T) {
	b := relayed(t, flags{"metrics-listen": {"127.0.0.1:9155"}}, ", svcctl.io/proxy-protocol: none", l1r1)
	const flow = 4712
	open := map[family]*netlab.Conn{}
	servers := map[family]string{}
	for _, f := range families {
		c, err := b.EXT.Dial(f.at(f.lb(4), 80), patiently)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open[f] = c
		servers[f] = answers(t, b.EXT, "udp", f.at(f.lb(4), 53), netlab.FromPort(flow), patiently).Server
	}
	stop := b.pouring(t)
	bulk := sumServer(t, b.L1, ipv4)
	defer bulk()
	b.svcctl.Manifests.Write("sum.yaml", ipv4.userspace("sum", "", "clusterIP: "+ipv4.vip(43), "ports: [{name: sum, port: 7}]")+"---\n"+ipv4.slice("sum", "sum: 7007", b.L1))
	eventually(t, syncTimeout, func() error { return exchange(b.IN, ipv4.at(ipv4.vip(43), 7), 1) })
	exchanged := make(chan error, 1)
	go func() { exchanged <- exchange(b.IN, ipv4.at(ipv4.vip(43), 7), 256<<20) }()
	pid := b.svcctl.PID()
	for range 5 {
		b.svcctl.HandOver()
		b.each(t, func(t *testing.T, b *box, f family) {
			if err := open[f].Echo("still here", patiently); err != nil {
				t.Errorf("a connection that was handed over: %v", err)
			}
			if got := answers(t, b.EXT, "udp", f.at(f.lb(4), 53), netlab.FromPort(flow), patiently).Server; got != servers[f] {
				t.Errorf("a flow goes to %s, want %s as before", got, servers[f])
			}
		})
	}
	if err := <-exchanged; err != nil {
		t.Errorf("a transfer: %v", err)
	}
	t.Logf("%d connections", stop())
	if now := b.svcctl.PID(); now != pid || !b.svcctl.Running() {
		t.Errorf("process %d is %d now", pid, now)
	}
	// What goes on is under the Service as before: it ends with its endpoint, where it is to.
	b.rewrite("web.yaml", relayedDocuments(b, ", svcctl.io/drain-timeout: 1s", nil))
	b.each(t, func(t *testing.T, b *box, f family) {
		eventually(t, time.Minute, func() error {
			if err := open[f].Echo("still here", patiently); netlab.RefusalOf(err) != netlab.Reset {
				return fmt.Errorf("a connection whose endpoint is gone: %v, want a reset", err)
			}
			return nil
		})
	})
}

// A program that takes nothing over is not executed, and nothing ends.
func Test364_a_program_that_takes_nothing_over(t *testing.T) {
	b := newBox(t, nil)
	program := filepath.Join(t.TempDir(), "svcctl")
	link := func(to string) {
		t.Helper()
		if err := os.Symlink(to, program+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
	}
	link(binary)
	b.svcctl = b.GW1.Appliance(program, b.flags.args()...)
	b.write("web.yaml", relayedDocuments(b, "", l1(b)))
	b.svcctl.Start()
	open, err := b.EXT.Dial(ipv4.at(ipv4.lb(4), 80), patiently)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for name, other := range map[string]string{"another program": "/bin/echo", "none": "/nonexistent"} {
		link(other)
		b.svcctl.Signal(unix.SIGUSR2)
		eventually(t, time.Minute, func() error {
			if log := b.svcctl.Log(); !strings.Contains(log, "nothing is handed over") {
				return fmt.Errorf("%s: no word of it in the log", name)
			}
			return nil
		})
		if err := open.Echo("still here", patiently); err != nil || !b.svcctl.Running() {
			t.Errorf("%s: %v, running: %t", name, err, b.svcctl.Running())
		}
	}
	link(binary)
	b.svcctl.HandOver()
	if err := open.Echo("still here", patiently); err != nil {
		t.Error(err)
	}
}

// systemd stands in for the one of a unit that stores descriptors.
type systemd struct {
	socket *net.UnixConn
	mu     sync.Mutex
	kept   map[string]*os.File
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s := &systemd{socket: c, kept: map[string]*os.File{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			message, rights := make([]byte, 4096), make([]byte, 4096)
			n, m, _, _, err := c.ReadMsgUnix(message, rights)
			if err != nil {
				return
			}
			s.hear(string(message[:n]), rights[:m])
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
		for _, f := range s.kept {
			f.Close()
		}
	})
	return s
}

func (s *systemd) hear(message string, rights []byte) {
	_, name, _ := strings.Cut(message, "FDNAME=")
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case strings.Contains(message, "FDSTOREREMOVE=1"):
		if f := s.kept[name]; f != nil {
			f.Close()
		}
		delete(s.kept, name)
	case strings.Contains(message, "FDSTORE=1"):
		messages, err := unix.ParseSocketControlMessage(rights)
		if err != nil || len(messages) == 0 {
			return
		}
		fds, _ := unix.ParseUnixRights(&messages[0])
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if s.kept[name] != nil { // the same one once more
				unix.Close(fd)
				continue
			}
			s.kept[name] = os.NewFile(uintptr(fd), name)
		}
	}
}

// starts has the next process get what is kept.
func (s *systemd) starts(a *netlab.Appliance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.Files = nil
	var names []string
	for name, f := range s.kept {
		a.Files, names = append(a.Files, f), append(names, name)
	}
	a.Env = []string{"NOTIFY_SOCKET=" + s.socket.LocalAddr().String(), fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES=" + strings.Join(names, ":")}
	a.Wrapper = []string{"sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh"}
}

func (s *systemd) names() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.kept) }

// relayedBySystemd is a box with a relayed Service that is served, whose program systemd starts.
func relayedBySystemd(t *testing.T) (b *box, manager *systemd) {
	t.Helper()
	b, manager = newBox(t, nil), newSystemd(t)
	manager.starts(b.svcctl)
	b.write("web.yaml", relayedDocuments(b, "", l1r1(b)))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1, b.R1)...)
	})
	return b, manager
}

// With systemd clients of relayed ports wait while the program is away, however it ended.
func Test367_clients_wait_while_systemd_restarts_the_program(t *testing.T) {
	b, manager := relayedBySystemd(t)
	stop := b.pouringOver(t)
	for _, end := range []func(){b.svcctl.Stop, b.svcctl.Kill, b.svcctl.Stop} {
		end()
		waiting := map[family]net.Conn{}
		for _, f := range families {
			waiting[f] = dial(t, b.EXT, f.at(f.lb(4), 80)) // is accepted at once
		}
		manager.starts(b.svcctl)
		b.svcctl.Start()
		for _, f := range families {
			greeting := make([]byte, 2)
			if _, err := io.ReadFull(waiting[f], greeting); err != nil {
				t.Errorf("%s: who waited: %q, %v, want the greeting of an endpoint", f, greeting, err)
			}
			waiting[f].Close()
		}
	}
	t.Logf("%d connections", stop())
	eventually(t, syncTimeout, func() error { // those of the other pool, which no frontend leads to, go a moment later
		if n := manager.names(); n != 4 { // two protocols, two families
			return fmt.Errorf("%d sockets are kept, want 4", n)
		}
		return nil
	})
	b.rewrite("web.yaml", func(f family) []string { return []string{f.service("other", "clusterIP: "+f.vip(42))} })
	eventually(t, syncTimeout, func() error {
		if n := manager.names(); n != 0 {
			return fmt.Errorf("%d sockets are kept for nobody", n)
		}
		return nil
	})
}

// A stop waits for short connections, so a restart ends none of them; those that last longer are reset.
func Test1084_a_restart_by_systemd_loses_no_short_connection(t *testing.T) {
	b, manager := relayedBySystemd(t)
	stop := b.pouring(t)
	for i := range 8 {
		var lasting net.Conn
		if i == 0 {
			lasting = dial(t, b.EXT, families[0].at(families[0].lb(4), 80))
			if _, err := io.ReadFull(lasting, make([]byte, 2)); err != nil {
				t.Fatal(err)
			}
		}
		b.svcctl.Stop()
		manager.starts(b.svcctl)
		b.svcctl.Start()
		if lasting != nil {
			if n, err := io.Copy(io.Discard, lasting); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("a connection that lasts ends after %d bytes with %v, want a reset", n, err)
			}
		}
	}
	t.Logf("%d connections", stop())
}

// pouringOver asks all the time, by new connections: none may be refused, though one whose answer is under way
// ends with a program that is killed.
func (b *box) pouringOver(t *testing.T) (stop func() int64) {
	t.Helper()
	t.Log("asked under load: a failure counts at once")
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	var asked atomic.Int64
	for _, f := range families {
		asking.Go(func() {
			for ctx.Err() == nil {
				_, err := b.EXT.Ask("tcp", f.at(f.lb(4), 80), patiently)
				if refusal := netlab.RefusalOf(err); refusal == netlab.Refused || refusal == netlab.Timeout {
					t.Errorf("%s: connection %d: %v", f, asked.Load(), err)
					return
				}
				asked.Add(1)
			}
		})
	}
	t.Cleanup(cancel)
	return func() int64 { cancel(); asking.Wait(); return asked.Load() }
}
