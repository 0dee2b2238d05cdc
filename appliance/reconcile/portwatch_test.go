package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/sockets"
)

// watchBench is a portWatch in a bubble, with the host and the kernel played by the test.
type watchBench struct {
	*portWatch
	host     sync.Mutex // for programs
	programs programs
	told     chan struct{}
	events   string // what happened to the watch for sockets that are closed
	refuse   error
	got      [][]listener // what the loop was sent
	logged   strings.Builder
}

func watchPorts(t *testing.T, play func(b *watchBench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &watchBench{told: make(chan struct{}, 1)}
		b.portWatch = newPortWatch(func(ports *sockets.Ports) ([]sockets.Socket, error) {
			b.host.Lock()
			defer b.host.Unlock()
			b.programs.reads++
			b.events += "look "
			return slices.DeleteFunc(slices.Clone(b.programs.list), func(s sockets.Socket) bool { return !ports.Has(s.Protocol, s.Local.Port()) }), b.programs.err
		}, func(sockets.Socket) string { return "nginx (pid 812)" }, slog.New(slog.NewTextHandler(&b.logged, nil)))
		b.portWatch.closed = func(*sockets.Ports) (<-chan struct{}, func() error, error) {
			b.events += "watch "
			return b.told, func() error { b.events += "stop "; return nil }, b.refuse
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = b.run(ctx) }()
		go func() {
			for {
				select {
				case list := <-b.found:
					b.got = append(b.got, list)
				case <-ctx.Done():
					return
				}
			}
		}()
		play(b)
		cancel()
		synctest.Wait()
	})
}

func (b *watchBench) listen(protocol, local string) {
	b.host.Lock()
	defer b.host.Unlock()
	b.programs.listen(protocol, local)
}

// end ends all programs, or has looking for them fail.
func (b *watchBench) end(err error) {
	b.host.Lock()
	defer b.host.Unlock()
	b.programs.list, b.programs.err = nil, err
}

// tell is the kernel telling that a socket was closed.
func (b *watchBench) tell() {
	select {
	case b.told <- struct{}{}:
	default:
	}
}

func (b *watchBench) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func portsOf(ports ...uint16) (p sockets.Ports) {
	for _, port := range ports {
		p.Add("tcp", port)
	}
	return p
}

func TestPortWatchIsIdleWithoutPorts(t *testing.T) {
	watchPorts(t, func(b *watchBench) {
		b.listen("tcp", "0.0.0.0:30080")
		b.sleep(time.Hour)
		b.want(sockets.Ports{}, nil)
		b.sleep(time.Hour)
		if b.programs.reads != 0 || len(b.got) != 0 || b.events != "" {
			t.Errorf("%d looks, %d sent, %q", b.programs.reads, len(b.got), b.events)
		}
		b.want(portsOf(30080), nil) // there was one already: told at once
		b.sleep(time.Second)
		if len(b.got) != 1 || len(b.got[0]) != 1 || b.got[0][0].String() != "nginx (pid 812) listens on tcp 0.0.0.0:30080" {
			t.Errorf("sent %v", b.got)
		}
		b.want(sockets.Ports{}, nil)
		b.sleep(time.Second)
		reads := b.programs.reads
		b.sleep(time.Hour)
		if b.programs.reads != reads || len(b.got) != 2 || len(b.got[1]) != 0 {
			t.Errorf("%d looks when the ports are gone, sent %v", b.programs.reads-reads, b.got)
		}
	})
}

// Looking costs little, and the loop hears of nothing while nothing changes.
func TestPortWatchLooksNowAndThen(t *testing.T) {
	watchPorts(t, func(b *watchBench) {
		b.want(portsOf(30080), nil)
		b.sleep(10 * time.Minute)
		if most := int(10*time.Minute/portWatchEvery) + 1; b.programs.reads > most || b.programs.reads < most/2 || len(b.got) != 0 || strings.Contains(b.events, "watch") {
			t.Errorf("%d looks in 10 minutes, %d sent, %q", b.programs.reads, len(b.got), b.events)
		}
		b.listen("tcp", "0.0.0.0:30081") // nobody's
		b.sleep(2 * portWatchEvery)
		if len(b.got) != 0 {
			t.Errorf("sent %v", b.got)
		}
		b.listen("tcp", "0.0.0.0:30080")
		b.sleep(2 * portWatchEvery)
		if len(b.got) != 1 || len(b.got[0]) != 1 {
			t.Errorf("sent %v", b.got)
		}
		b.end(errors.New("no permission"))
		b.sleep(10 * portWatchEvery)
		if len(b.got) != 1 || strings.Count(b.logged.String(), "no permission") != 1 {
			t.Errorf("sent %v, logged %s", b.got, b.logged.String())
		}
	})
}

func TestPortThatIsWaitedFor(t *testing.T) {
	watchPorts(t, func(b *watchBench) {
		b.listen("tcp", "0.0.0.0:30080")
		b.want(sockets.Ports{}, []hostPort{{"tcp", 30080}})
		b.sleep(time.Second)
		if len(b.got) != 1 || b.events != "watch look " {
			t.Fatalf("sent %v, %q", b.got, b.events)
		}
		// Connections of the program end all the time.
		reads := b.programs.reads
		for range 1000 {
			b.tell()
			b.sleep(time.Millisecond)
		}
		if b.programs.reads-reads > 6 || len(b.got) != 1 {
			t.Errorf("%d looks in a second, %d sent", b.programs.reads-reads, len(b.got))
		}
		b.sleep(time.Second)
		b.end(nil)
		b.tell()
		synctest.Wait() // at once: the bubble's clock stands still
		if len(b.got) != 2 || len(b.got[1]) != 0 {
			t.Errorf("sent %v", b.got)
		}
		b.want(portsOf(30080), nil)
		b.sleep(time.Second)
		if !strings.Contains(b.events, "stop") {
			t.Errorf("sockets that are closed are watched on: %q", b.events)
		}
	})
}

// The program may be gone before the first look, and the kernel may not tell.
func TestPortThatIsFreeAlready(t *testing.T) {
	watchPorts(t, func(b *watchBench) {
		b.want(portsOf(30081), nil)
		b.sleep(time.Second)
		b.refuse = errors.New("operation not permitted")
		b.want(portsOf(30081), []hostPort{{"tcp", 30080}})
		b.sleep(time.Second)
		if len(b.got) != 1 || len(b.got[0]) != 0 {
			t.Errorf("sent %v", b.got)
		}
		b.listen("tcp", "0.0.0.0:30080")
		b.sleep(2 * portWatchEvery)
		b.end(nil)
		b.sleep(2 * portWatchEvery)
		if n := len(b.got); n < 3 || len(b.got[n-1]) != 0 || !slices.ContainsFunc(b.got, func(l []listener) bool { return len(l) == 1 }) {
			t.Errorf("sent %v", b.got)
		}
	})
}

// What portWatch looks at is what Services have and wait for.
func TestPortsThatMatter(t *testing.T) {
	r := newRig(t)
	p := &programs{}
	p.listen("tcp", "0.0.0.0:30080")
	r.occupy(p)
	r.host()
	watch := r.planner.occupied.watch
	expect := func(when string, served []uint16, waited ...hostPort) {
		t.Helper()
		ports, waits := watch.wanted()
		want := portsOf(served...)
		for _, w := range waited {
			want.Add(w.protocol, w.port)
		}
		if ports != want || !slices.Equal(waits, waited) {
			t.Errorf("%s: waited for %v, want %v; the ports are as wanted: %t", when, waits, waited, ports == want)
		}
	}
	expect("at first", nil)
	r.write("a.yaml", web("a", "10.96.0.10", "10.1.0.1"))
	r.step()
	expect("without node ports", nil)
	r.write("b.yaml", onPort("b", "10.96.0.11", "30080")+"---\n"+onPort("c", "10.96.0.12", "30081"))
	r.step()
	expect("one has its port", []uint16{30081}, hostPort{"tcp", 30080})
	r.write("b.yaml", onPort("b", "10.96.0.11", "30082")+"---\n"+onPort("c", "10.96.0.12", "30081"))
	r.step()
	expect("another port", []uint16{30081, 30082})
	r.host()
	r.step()
	expect("planned anew", []uint16{30081, 30082})
	r.write("b.yaml", "")
	r.step()
	expect("at last", nil)
	if o, n := r.planner.occupied, &r.planner.needs; len(o.served)+len(n.of)+len(n.by[resolve.NeedHostPort]) != 0 {
		t.Errorf("left behind: %v, %v, %v", o.served, n.of, n.by)
	}
}
