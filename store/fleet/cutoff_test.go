package fleet_test

import (
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet"
)

// The moods of a proxy.
const (
	passing  = "passing"
	silent   = "silent"   // nothing is passed on
	refusing = "refusing" // connections are reset, and new ones refused
	slow     = "slow"     // answers take longer than a box waits for them
	late     = "late"     // answers take seconds
)

// proxy is between a box and a member of etcd.
type proxy struct {
	t    *testing.T
	to   string
	port string
	mood atomic.Value

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, to: u.Host, port: "127.0.0.1:0"}
	p.mood.Store(passing)
	p.listen()
	t.Cleanup(func() { p.be(refusing) })
	return p
}

func (p *proxy) listen() {
	l, err := net.Listen("tcp", p.port)
	if err != nil {
		p.t.Error(err)
		return
	}
	p.listener, p.port = l, l.Addr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", p.to)
			if err != nil {
				conn.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, conn, up)
			p.mu.Unlock()
			go p.pass(conn, up)
			go p.pass(up, conn)
		}
	}()
}

func (p *proxy) pass(from, to net.Conn) {
	for b := make([]byte, 64<<10); ; {
		n, err := from.Read(b)
		for p.mood.Load() == silent {
			time.Sleep(10 * time.Millisecond)
		}
		if p.mood.Load() == slow {
			time.Sleep(4 * time.Second) // real time: etcd is slow
		}
		if p.mood.Load() == late {
			time.Sleep(400 * time.Millisecond) // real time: etcd is slow
		}
		if _, writeErr := to.Write(b[:n]); err != nil || writeErr != nil {
			if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				to.Close()
			}
			return
		}
	}
}

func (p *proxy) be(mood string) {
	was := p.mood.Swap(mood)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case mood == refusing && was != refusing:
		p.listener.Close()
		for _, c := range p.conns {
			c.Close()
		}
		p.conns = nil
	case mood != refusing && was == refusing:
		p.listen()
	}
}

// Test671 cuts a box off in three ways: once it counts as cut off, reads ask nobody, and before, all of them wait for one
// question; of the writes the first waits.
func Test671_a_box_that_is_cut_off_answers_reads_at_once(t *testing.T) {
	for _, mood := range []string{silent, refusing, slow} {
		t.Run(mood, func(t *testing.T) {
			c := ownFleet(t)
			c.init()
			p := newProxy(t, c.urls[0])
			cfg := c.config("a")
			cfg.Endpoints = []string{"http://" + p.port}
			e, err := fleet.Joined(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			questions := e.CountQuestions()
			a := c.run(e, cfg, storeConfig)
			eventually(t, "the box may write", func() bool { return a.create("web") == nil })
			if err := a.Fresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.be(mood)
			// Before it is decided: a client reads several times, and others beside it.
			var beside sync.WaitGroup
			before := questions.Load()
			for range 20 {
				beside.Go(func() {
					for range 5 {
						if mood != slow && a.Fresh(t.Context()) == nil {
							t.Error("a read is as new as what nobody knows")
						}
					}
				})
			}
			beside.Wait()
			// The beat asks too, every two seconds.
			if asked := questions.Load() - before; asked > 10 {
				t.Errorf("100 reads before the box counts as cut off asked %d times", asked)
			}
			if mood != refusing { // a refusal is known to have had no effect
				began := time.Now()
				err := a.create("unsettled")
				t.Logf("the first write: %v after %v", err, time.Since(began).Round(time.Millisecond))
				if again := a.create("refused"); !errors.As(again, new(*engine.AwayError)) {
					t.Errorf("the write after it: %v", again)
				}
			}
			eventually(t, "the box counts as cut off", func() bool { return a.engine.State().Kind == fleet.CutOff })
			before = questions.Load()
			var took []time.Duration
			for range 2000 {
				began := time.Now()
				if err := a.Fresh(t.Context()); !errors.As(err, new(*engine.AwayError)) {
					t.Fatalf("a read on a box that is cut off: %v", err)
				}
				took = append(took, time.Since(began))
			}
			if asked := questions.Load() - before; asked > 20 {
				t.Errorf("2000 reads on a box that is cut off asked %d times", asked)
			}
			slices.Sort(took)
			t.Logf("reads: p50 %v, p99 %v, most %v", took[1000], took[1980], took[1999])
			p.be(passing)
			eventually(t, "the box follows again, and reads what is new", func() bool { return a.Fresh(t.Context()) == nil && a.create("later") == nil })
		})
	}
}
