package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// source is the owner of the client address that an endpoint sees.
type source uint8

const (
	plain source = iota // the client's own
	masq                // the box's, of the interface towards the endpoint
)

func (s source) String() string { return [...]string{"plain", "masq"}[s] }

// reaches asserts that new connections are answered by exactly the endpoints at, each
// with a fair share, and that they see the client as source says.
func (b *box) reaches(t *testing.T, from *netlab.Host, network string, to netip.AddrPort, want source, at ...netip.AddrPort) {
	t.Helper()
	if err := b.tryReaches(from, network, to, want, at...); err != nil {
		t.Error(err)
	}
}

func (b *box) tryReaches(from *netlab.Host, network string, to netip.AddrPort, want source, at ...netip.AddrPort) error {
	return b.tryShares(from, network, to, want, 0.25, at...)
}

// tryShares is tryReaches with shares that may be off by a part of them; 1: each endpoint answers at all.
// A quarter of the questions to several endpoints is enough if the shares are off by half of that at most.
func (b *box) tryShares(from *netlab.Host, network string, to netip.AddrPort, want source, off float64, at ...netip.AddrPort) error {
	what := fmt.Sprintf("%s %s to %s", from.Name, network, to)
	if _, err := from.Ask(network, to, patiently); err != nil { // hundreds of time-outs would say no more
		return fmt.Errorf("%s: want answers by %v: %w", what, at, err)
	}
	first, rest := sample(len(at)), 0
	if len(at) > 1 {
		first, rest = first/4, first-first/4
	}
	tally := from.AskMany(first, network, to, patiently)
	if rest > 0 && len(tally.Failures) == 0 && shared(tally, off/2, at) != nil {
		tally.Add(from.AskMany(rest, network, to, patiently))
	}
	if len(tally.Failures) != 0 {
		return fmt.Errorf("%s: want answers by %v: %s", what, at, tally)
	}
	if err := shared(tally, off, at); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for _, r := range tally.Replies {
		if saw, expected := r.Client.Addr(), b.seenAs(from, r.At.Addr(), want); saw != expected {
			return fmt.Errorf("%s: endpoint %s saw %s, want %s (%s)", what, r.At, saw, expected, want)
		}
	}
	return nil
}

// shared compares answers to equal shares of the endpoints at, which may be off by a part of them.
func shared(tally *netlab.Tally, off float64, at []netip.AddrPort) error {
	share := float64(tally.Asked) / float64(len(at))
	for _, endpoint := range at {
		if n := float64(tally.At[endpoint]); n < max(1, share*(1-off)) || n > share*(1+off) {
			return fmt.Errorf("%s answered %.0f of %d, want its share of %.0f ± %.0f%%: %v", endpoint, n, tally.Asked, share, 100*off, tally.At)
		}
	}
	if len(tally.At) != len(at) {
		return fmt.Errorf("answers by %v, want only %v", tally.At, at)
	}
	return nil
}

// patiently waits for an answer that must come: a busy machine may stand still for a
// second or two.
var patiently = netlab.Within(time.Minute)

// sample is how many questions show that n endpoints have equal shares ± 25 %, with a
// chance of less than 1 in 10⁵ to miss by bad luck.
func sample(n int) int {
	if n == 1 {
		return 50
	}
	return 400 * (n - 1)
}

// seenAs is the address that an endpoint sees of a client.
func (b *box) seenAs(client *netlab.Host, endpoint netip.Addr, s source) netip.Addr {
	f := family{endpoint.Is6()}
	switch {
	case s == masq && onSegment(f, endpoint, 0):
		return netip.MustParseAddr(f.pick("10.180.255.254", "fd00:10:180::ffff"))
	case s == masq:
		return netip.MustParseAddr(f.pick("10.181.255.254", "fd00:10:181::ffff"))
	case client.Name == b.GW1.Name:
		return netip.MustParseAddr(f.boxAddr())
	default:
		return f.of(client)
	}
}

func onSegment(f family, addr netip.Addr, n int) bool {
	p := f.pick("10.18%d.0.0/16", "fd00:10:18%d::/64")
	return netip.MustParsePrefix(fmt.Sprintf(p, n)).Contains(addr)
}

// promptly is how fast a refusal must come: before a client repeats its question, which TCP does after a second.
const promptly = 900 * time.Millisecond

// refuses asserts that a question is refused at once: TCP by a reset, other protocols by
// "port unreachable"; and that nothing of it stays in the connection table.
func (b *box) refuses(t *testing.T, from *netlab.Host, network string, to netip.AddrPort) {
	t.Helper()
	if err := b.tryRefuses(from, network, to); err != nil {
		t.Error(err)
	}
}

func (b *box) tryRefuses(from *netlab.Host, network string, to netip.AddrPort) error {
	reply, err := from.Ask(network, to)
	what := fmt.Sprintf("%s %s to %s", from.Name, network, to)
	var f *netlab.Failure
	// Many tests share the machine: one refusal in time shows that it can be.
	for try := 1; try < 20 && errors.As(err, &f) && f.After > promptly; try++ {
		reply, err = from.Ask(network, to)
	}
	switch {
	case !errors.As(err, &f):
		return fmt.Errorf("%s: answered by %s, want a refusal", what, reply)
	case network == "tcp" && f.Refusal != netlab.Refused:
		return fmt.Errorf("%s: %w, want a reset", what, f)
	case network != "tcp" && !f.PortUnreachable():
		return fmt.Errorf("%s: %w, want port unreachable", what, f)
	case f.After > promptly:
		return fmt.Errorf("%s: refused after %s", what, f.After)
	}
	return b.noEntry(from, network, to)
}

// drops asserts that nothing at all comes back.
func (b *box) drops(t *testing.T, from *netlab.Host, network string, to netip.AddrPort) {
	t.Helper()
	reply, err := from.Ask(network, to)
	what := fmt.Sprintf("%s %s to %s", from.Name, network, to)
	switch {
	case err == nil:
		t.Errorf("%s: answered by %s, want silence", what, reply)
	case netlab.RefusalOf(err) != netlab.Timeout:
		t.Errorf("%s: %v, want silence", what, err)
	}
	if err := b.noEntry(from, network, to); err != nil {
		t.Error(err)
	}
}

// noEntry returns an error if the box has conntrack entries for a client's requests to an address and
// port.
func (b *box) noEntry(from *netlab.Host, network string, to netip.AddrPort) error {
	f := family{to.Addr().Is6()}
	if protocol, is := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[network]; is {
		if entries := b.GW1.Entries(protocol, f.of(from), to); len(entries) > 0 {
			return fmt.Errorf("%s to %s left entries in the connection table:\n%s", network, to, strings.Join(entries, "\n"))
		}
		return nil
	}
	entries := b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-p", network,
		"--orig-src", f.of(from).String(), "--orig-dst", to.Addr().String(), "--orig-port-dst", fmt.Sprint(to.Port()))
	if strings.TrimSpace(entries) != "" {
		return fmt.Errorf("%s to %s left entries in the connection table:\n%s", network, to, entries)
	}
	return nil
}

// answers asserts that one question is answered by an endpoint.
func answers(t *testing.T, from *netlab.Host, network string, to netip.AddrPort, opts ...netlab.Option) netlab.Reply {
	t.Helper()
	reply, err := from.Ask(network, to, append([]netlab.Option{patiently}, opts...)...)
	if err != nil {
		t.Fatalf("%s %s to %s: %v", from.Name, network, to, err)
	}
	return reply
}
