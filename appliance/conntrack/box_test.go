package conntrack

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// box is the standard network with a ruleset on GW1 and a Cleaner that follows it.
type box struct {
	*netlab.Standard
	t        *testing.T
	kernel   *kernel.Conn
	nft      nft.Box
	state    map[string][]nft.ServicePort
	services map[string][]Port
	loaded   nft.Ruleset
	tracker  *ChangeTracker
	cleaner  *Cleaner
	stop     func()
}

func newBox(t *testing.T) *box {
	t.Helper()
	t.Parallel()
	own := addrs(netlab.BoxAddr4, netlab.BoxAltAddr4, netlab.BoxAddr6, netlab.BoxAltAddr6)
	b := &box{
		Standard: netlab.NewStandard(t), t: t,
		tracker: NewChangeTracker(), state: map[string][]nft.ServicePort{}, services: map[string][]Port{},
		nft: nft.Box{
			NodePortAddresses: own,
			LocalAddresses:    own,
			ServiceRanges:     []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fd00:172:30::/112")},
			InternalSources:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/32")},
		},
	}
	// The box is not to forget a flow by itself while a busy machine takes its time.
	for _, state := range []string{"udp_timeout", "sctp_timeout_cookie_wait", "sctp_timeout_cookie_echoed"} {
		b.GW1.Sysctl("net.netfilter.nf_conntrack_"+state, "300")
	}
	var err error
	if b.kernel, err = kernel.Open(kernel.Options{NetNS: b.GW1.Namespace()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.kernel.Close() })
	if err := b.kernel.HoldSentinel(); err != nil {
		t.Fatal(err)
	}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// start starts a Cleaner.
func (b *box) start() {
	b.t.Helper()
	cleaner, err := New(Options{NetNS: b.GW1.Namespace(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- cleaner.Run(ctx) }()
	b.cleaner = cleaner
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run: %v", err)
		}
		if err := cleaner.Err(); err != nil {
			b.t.Errorf("the Cleaner failed: %v", err)
		}
	}
}

// restart ends the Cleaner and starts another one, which knows what the ruleset tells
// and then the Services as they are by then.
func (b *box) restart(change func()) {
	b.t.Helper()
	b.stop()
	have := b.loaded
	change()
	b.start()
	b.tracker = NewChangeTracker()
	b.tracker.Adopt(have)
	b.tracker.Update(&b.nft, b.services)
	b.reconcile()
}

// reconcile has the Cleaner do what there is to do, and waits until it looked at all of it
// once.
func (b *box) reconcile() {
	b.t.Helper()
	b.cleaner.Reconcile(b.tracker.Take())
	handed := time.Now()
	eventually(b.t, withinSync, func() error {
		b.cleaner.mu.Lock()
		defer b.cleaner.mu.Unlock()
		if due, _ := b.cleaner.schedule.due(handed); len(due) > 0 {
			return fmt.Errorf("%d frontends were not looked at", len(due))
		}
		return nil
	})
}

// service is a Service of one port with its frontends.
type service struct {
	protocol  nft.Protocol
	family    nft.Family
	frontends []nft.Frontend
	serving   []netip.AddrPort // besides the endpoints
	drain     Drain
}

// load puts the ruleset for a Service with these endpoints into the kernel, without a
// word to the Cleaner.
func (b *box) load(name string, svc *service, endpoints ...netip.AddrPort) {
	b.t.Helper()
	delete(b.state, name)
	delete(b.services, name)
	if svc != nil {
		p := nft.ServicePort{ID: name, Family: svc.family, Protocol: svc.protocol, Frontends: svc.frontends}
		p.Pools[nft.PoolCluster] = endpoints
		b.state[name] = []nft.ServicePort{p}
		b.services[name] = []Port{PortOf(&p, svc.serving, svc.drain)}
	}
	compiler := nft.NewCompiler()
	compiler.Load(nft.State{Box: b.nft, Services: b.state})
	tr := compiler.From(b.loaded)
	b.loaded = compiler.Ruleset()
	for _, batch := range []*nft.Batch{&tr.Apply, &tr.Cleanup} {
		if _, err := b.kernel.Commit(batch, 0); err != nil {
			b.t.Fatal(err)
		}
	}
}

// apply is load, and then has the Cleaner see to connections.
func (b *box) apply(name string, svc *service, endpoints ...netip.AddrPort) {
	b.t.Helper()
	b.load(name, svc, endpoints...)
	b.tracker.Update(&b.nft, map[string][]Port{name: b.services[name]})
	b.reconcile()
}

// tracked are the entries of GW1 in both families, each with its id.
func (b *box) tracked() map[string]string {
	b.t.Helper()
	s, err := dial(b.GW1.Namespace())
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	all := map[string]string{}
	for _, family := range nft.Families {
		for _, protocol := range []nft.Protocol{nft.TCP, nft.UDP, nft.SCTP} {
			err := s.dump(query{family: family, protocol: protocol}, func(messages iter.Seq[nfnetlink.Message]) error {
				for m := range messages {
					var e entry
					if m.Kind == messageNew && e.decode(m.Body) {
						all[fmt.Sprintf("%s %s>%s, %s answers %s", e.protocol, e.from, e.to, e.replyFrom, e.replyTo)] = fmt.Sprintf("%x", e.id)
					}
				}
				return nil
			})
			if err != nil {
				b.t.Fatal(err)
			}
		}
	}
	return all
}

// hasEntry reports whether an entry is of a client's connection to a frontend.
func (b *box) hasEntry(protocol nft.Protocol, to netip.AddrPort, clientPort uint16) (string, bool) {
	b.t.Helper()
	for e := range b.tracked() {
		if strings.HasPrefix(e, protocol.String()+" ") && strings.Contains(e, fmt.Sprintf(":%d>%s, ", clientPort, to)) {
			return e, true
		}
	}
	return "", false
}

var eventually = netlab.Eventually

// The kernel tells how many entries there are in the namespace, before one would be read.
func TestCount(t *testing.T) {
	h := netlab.New(t).Host("count")
	s, err := dial(h.Namespace())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range []uint32{0, 3} {
		if want > 0 {
			insert(t, h, int(want), func(n int, e *entry) {
				e.protocol, e.timeout = nft.UDP, 600
				e.from, e.to = netip.AddrPortFrom(addrOf(0x0a000001+n), 40000), netip.MustParseAddrPort("198.51.100.1:53")
				e.replyFrom, e.replyTo = e.to, e.from
			})
		}
		if got, err := s.count(); err != nil || got != want {
			t.Errorf("%d entries, %v; want %d", got, err, want)
		}
	}
}
