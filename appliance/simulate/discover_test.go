package simulate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/appliance/discover"
	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft/nfttest/stateful"
	"svcctl.io/svcctl/nft/sim"
)

// inProcess carries requests to the process that serves now, and refuses them while there is none.
type inProcess struct {
	life    atomic.Pointer[life]
	refused atomic.Int64
}

func (c *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	l := c.life.Load()
	if l == nil || l.dead.Load() {
		if c.refused.Add(1) > 1000 { // three clients, and pauses up to 5 s
			panic("the appliance is asked again and again without a pause")
		}
		return nil, errors.New("connection refused")
	}
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(l.ctx, cancel)
	asked := r.Clone(ctx)
	if asked.Body == nil {
		asked.Body = http.NoBody
	}
	from, to := io.Pipe()
	w := &answering{streamWriter: streamWriter{header: http.Header{}, w: to}, begun: make(chan struct{}), code: http.StatusOK}
	go func() {
		defer stop()
		defer cancel()
		l.handler.ServeHTTP(w, asked)
		w.begin()
		if l.dead.Load() {
			_ = to.CloseWithError(errors.New("connection reset"))
		}
		_ = to.Close()
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &http.Response{StatusCode: w.code, Header: w.header.Clone(), Body: leftBody{from, cancel}, Request: r}, nil
}

// answering is an answer whose status is sent first.
type answering struct {
	streamWriter
	once  sync.Once
	begun chan struct{}
	code  int
}

func (a *answering) begin() { a.once.Do(func() { close(a.begun) }) }

func (a *answering) WriteHeader(code int) {
	a.code = code
	a.begin()
}

func (a *answering) Write(p []byte) (int, error) {
	a.begin()
	return a.streamWriter.Write(p)
}

// leftBody ends the request when its reader leaves.
type leftBody struct {
	*io.PipeReader
	cancel func()
}

func (b leftBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// source is a provider that answers as the test has it.
type source struct {
	mu      sync.Mutex
	random  *rand.Rand
	changed chan struct{}
	answers []provider.Endpoint
	failing bool
	asked   int
}

func (s *source) set(failing bool, at ...netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = nil
	for _, a := range at {
		s.answers = append(s.answers, provider.Endpoint{Address: a.Addr().String(), Port: a.Port()})
	}
	s.failing = failing
	close(s.changed)
	s.changed = make(chan struct{})
}

// Follow fails at once, or after a while, as long as the source fails.
func (s *source) Follow(ctx context.Context, _ provider.Question, take func(provider.Answer)) error {
	for {
		s.mu.Lock()
		s.asked++
		failing, how, changed, all := s.failing, s.random.IntN(3), s.changed, slices.Clone(s.answers)
		s.mu.Unlock()
		var late <-chan time.Time
		switch {
		case !failing:
			take(provider.Answer{Endpoints: all})
		case how == 0:
			return errors.New("connection refused")
		default:
			late = time.After(time.Duration(how) * 20 * time.Second)
		}
		select {
		case <-changed:
		case <-late:
			return errors.New("no complete answer in time")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lines counts the lines of a log by a part of them.
type lines struct {
	mu   sync.Mutex
	all  bytes.Buffer
	also io.Writer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(p)
	return l.also.Write(p)
}

func (l *lines) with(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), part)
}

// A provider is away for an hour. Meanwhile discover is killed, the appliance is killed, the clock jumps by a day, and the box loses its
// power. Of 10,000 connections while the box is up none fails.
func Test1085_a_provider_is_away_for_an_hour(t *testing.T) {
	const connections = 10_000
	dir := quickDir(t)
	synctest.Test(t, func(t *testing.T) {
		b, err := newBox(Script{Seed: 2}, dir, logOf(t)) // 2: nothing is held back by the guard of files
		if err != nil {
			t.Fatal(err)
		}
		var service, host netip.Prefix
		for _, p := range b.world.ServiceRanges {
			if p.Addr().Is4() {
				service = p
			}
		}
		in := 0
		for i, each := range b.world.Interfaces {
			for _, p := range each.Addresses {
				if p.Addr().Is4() && !p.Addr().IsLoopback() && p.Bits() < 28 {
					host, in = p, i
				}
			}
		}
		if !service.IsValid() || !host.IsValid() {
			t.Fatalf("the box of the seed has no use: %+v", b.world)
		}
		var servers []netip.AddrPort
		at := host.Addr()
		for range 3 {
			at = at.Next()
			servers = append(servers, netip.AddrPortFrom(at, 8080))
		}
		caller := at.Next()

		to := &inProcess{}
		begin := func() {
			t.Helper()
			if err := b.restart(); err != nil {
				t.Fatal(err)
			}
			to.life.Store(b.life)
		}
		begin()
		defer func() { b.stop() }()
		now := &source{random: rand.New(rand.NewPCG(33, 1)), changed: make(chan struct{})}
		now.set(false, servers[:2]...)
		log := &lines{also: b.log()}
		var end func()
		follow := func() {
			c := client.New("/simulated")
			*hookOf[*http.Client](c, "http") = &http.Client{Transport: to}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				config := discover.Config{Client: c, Node: "gw1", Providers: []discover.Provider{{Name: "cmdb", Kind: "targets", Provider: now}}}
				if err := discover.Run(ctx, config, slog.New(slog.NewTextHandler(log, nil))); err != nil {
					t.Errorf("discover: %v", err)
				}
			}()
			end = func() { cancel(); <-done }
		}
		follow()
		defer func() { end() }()

		time.Sleep(time.Second) // the namespace is made
		const manifest = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default", "annotations": {"svcctl.io/endpoints-from": "cmdb:web"}},
			"spec": {"ports": [{"port": 80}]}}`
		code, text := b.request("POST", "/api/v1/namespaces/default/services", manifest, "")
		var made struct {
			Spec struct{ ClusterIP netip.Addr }
		}
		if err := json.Unmarshal([]byte(text), &made); err != nil || code != http.StatusCreated {
			t.Fatalf("%d %s %v", code, text, err)
		}
		// connect reports where a connection goes, by the tables that the kernel has.
		connect := func(port uint16) (went []string) {
			packet := judge.Packet(&b.world, oracle.Packet{
				Interface: b.world.Interfaces[in].Name, Protocol: oracle.TCP,
				From: netip.AddrPortFrom(caller, port), To: netip.AddrPortFrom(made.Spec.ClusterIP, 80),
			})
			for _, r := range judge.Host(&b.world, b.ruleset(), true).Outcomes(packet) {
				if r.Kind != sim.Delivered {
					went = append(went, stateful.Text(r))
					continue
				}
				went = append(went, r.Dst.String())
			}
			return went
		}
		goes := func(want ...netip.AddrPort) bool {
			var all []string
			for _, s := range want {
				all = append(all, s.String())
			}
			got := connect(40000)
			slices.Sort(got)
			return slices.Equal(slices.Compact(got), all)
		}
		soon := func(what string, want ...netip.AddrPort) {
			t.Helper()
			for range 60 {
				if time.Sleep(time.Second); goes(want...) {
					return
				}
			}
			t.Fatalf("%s: a connection goes to %v, want %v", what, connect(40000), want)
		}
		soon("at first", servers[:2]...)

		slicesOf := func() string {
			_, text := b.request("GET", "/apis/discovery.k8s.io/v1/endpointslices", "", "")
			var list struct {
				Items []struct {
					Metadata struct{ Name, ResourceVersion string }
				}
			}
			if err := json.Unmarshal([]byte(text), &list); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(list.Items)
		}
		before := slicesOf()
		now.set(true)
		began := time.Now()
		failed := 0
		for i := range connections {
			time.Sleep(time.Hour / connections)
			switch i {
			case connections / 8: // discover is killed
				end()
				time.Sleep(time.Minute)
				follow()
			case connections / 4: // the appliance is killed, and the tables stay
				b.life.kill()
			case connections/4 + 500: // three minutes later
				b.stop()
				begin()
			case connections * 3 / 8:
				b.skew += 24 * time.Hour
			case connections / 2: // the power of the box is cut
				b.life.kill()
				end()
				b.stop()
				b.tables = newTables()
				time.Sleep(time.Minute)
				begin()
				follow()
				soon("after the boot", servers[:2]...)
			}
			got := connect(uint16(1024 + i))
			for _, went := range got {
				if went != servers[0].String() && went != servers[1].String() {
					failed++
					t.Errorf("connection %d after %v goes to %s", i, time.Since(began), went)
				}
			}
			if len(got) == 0 || failed > 5 {
				t.Fatalf("connection %d after %v goes to %v", i, time.Since(began), got)
			}
		}
		if after := slicesOf(); after != before {
			t.Errorf("EndpointSlices %s, they were %s", after, before)
		}
		now.mu.Lock()
		asked := now.asked
		now.mu.Unlock()
		if asked < 100 {
			t.Errorf("the provider was asked %d times in an hour", asked)
		}
		_, status := b.request("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/discover-cmdb", "", "")
		if !strings.Contains(status, "connection refused") && !strings.Contains(status, "no complete answer") {
			t.Errorf("the report has no reason: %s", bytes.TrimSpace([]byte(status)))
		}
		// The appliance was away for three minutes once: one line of it, and not one for each attempt.
		for _, text := range []string{"the appliance is not reached", "endpoints are not written"} {
			if n := log.with(text); n != 1 {
				t.Errorf("%d lines %q, want 1", n, text)
			}
		}
		now.set(false, servers[1], servers[2])
		soon("when it is back", servers[1], servers[2])
		t.Logf("%d connections, the provider was asked %d times in %v", connections, asked, time.Since(began))
	})
}
