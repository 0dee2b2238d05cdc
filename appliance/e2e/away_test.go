package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// TestK16_begunWhileTheRulesWereAway: another program flushes the ruleset, and clients begin
// connections before it is back. What they send once more arrives, although the kernel has
// decided about their connections when there was nothing to translate them.
func TestK16_begunWhileTheRulesWereAway(t *testing.T) {
	b := serveEverywhere(t)
	by := b.bystand(t)
	// What is sent to a VIP without rules gets lost, and nothing comes back.
	for _, f := range families {
		for _, vip := range []string{f.vip(41), f.lb(4), f.external(99), f.external(98)} {
			b.GW1.Route(f.host(vip), f.of(b.R2).String())
		}
	}
	// Datagrams to an address that no Service has are never answered either.
	var foreign []flow
	for i, f := range families {
		foreign = append(foreign, flow{f, "udp", b.EXT, f.at(f.external(98), 53), uint16(11900 + i)})
	}
	foreignEntries := b.unanswered(t, foreign)

	b.freeze(t) // so that it takes its time
	b.GW1.Nft("flush", "ruleset")
	if !strings.Contains(b.GW1.Nft("list", "tables"), "svcctl-sentinel") {
		t.Skip("SKIPPED: this kernel has no table flag owner (5.12): with the last NAT chain the flush ended connection tracking")
	}
	// Where the box has SCTP itself it ends associations with its node ports, and that is that.
	sctp := slices.DeleteFunc(b.flows("sctp", 11100), func(fl flow) bool { return fl.to.Addr().String() == fl.boxAddr() })
	flows := slices.Concat(b.flows("udp", 11000), sctp)
	for e := range b.unanswered(t, flows) {
		if e.answer != e.to {
			t.Errorf("translated while the rules are away: %s", e)
		}
	}
	dialed := b.dialWhileAway(t)
	b.svcctl.Signal(syscall.SIGCONT)
	back := time.Now()
	for range cap(dialed) {
		if err := <-dialed; err != nil {
			t.Errorf("a connection begun while the rules were away: %v", err)
		}
	}
	t.Logf("all connections were there %s after the flush could be healed", time.Since(back).Round(time.Millisecond))
	lead(t, flows, b.L1, 53)
	b.spared(t, by)
	b.untouched(t, foreignEntries)
}

// freeze stops the appliance where it is, until SIGCONT.
func (b *box) freeze(t *testing.T) {
	t.Helper()
	b.svcctl.Signal(syscall.SIGSTOP)
	eventually(t, syncTimeout, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", b.svcctl.PID()))
		for _, path := range threads {
			stat, readErr := os.ReadFile(path)
			if err = errors.Join(err, readErr); !strings.Contains(string(stat), ") T ") {
				err = errors.Join(err, fmt.Errorf("a thread goes on: %s", stat))
			}
		}
		return err
	})
}

// dialWhileAway begins TCP connections of hosts around the box, and of the box itself, to
// all VIPs, and gives what becomes of each. When it returns the first SYN of each was sent.
func (b *box) dialWhileAway(t *testing.T) <-chan error {
	t.Helper()
	type client struct {
		family
		*netlab.Host
		vip string
	}
	var clients []client
	for _, f := range families {
		for _, h := range []*netlab.Host{b.EXT, b.IN, b.GW1} {
			for _, vip := range []string{f.vip(41), f.lb(4), f.external(99)} {
				clients = append(clients, client{f, h, vip})
			}
		}
	}
	done := make(chan error, len(clients))
	for _, c := range clients {
		go func() {
			_, err := c.Ask("tcp", c.at(c.vip, 80), netlab.Within(syncTimeout))
			done <- err
		}()
	}
	eventually(t, syncTimeout, func() error {
		begun := 0
		for _, f := range families {
			list := b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-p", "tcp", "--dport", "80", "--state", "SYN_SENT")
			begun += strings.Count(list, "[UNREPLIED]")
		}
		if begun != len(clients) {
			return fmt.Errorf("%d connections are begun, want %d", begun, len(clients))
		}
		return nil
	})
	return done
}

// Test1161_connections_that_began_before_their_Service: clients connect to an external IP that no Service has yet, and get no answer. When
// the Service comes, the next SYN arrives, although the kernel decided about the connection by the first one.
func Test1161_connections_that_began_before_their_Service(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Start()
	vip := func(f family) string { return f.external(99) }
	answers := make(chan error, len(families))
	for _, f := range families {
		b.GW1.Route(f.host(vip(f)), f.of(b.R2).String()) // where what is sent to it gets lost
		go func() {
			_, err := b.EXT.Ask("tcp", f.at(vip(f), 80), patiently)
			answers <- err
		}()
	}
	eventually(t, syncTimeout, func() error {
		for _, f := range families {
			list := b.GW1.Conntrack("-L", "-f", f.pick("ipv4", "ipv6"), "-p", "tcp", "-d", vip(f), "--state", "SYN_SENT")
			if !strings.Contains(list, "[UNREPLIED]") {
				return fmt.Errorf("no connection to %s is begun: %s", vip(f), list)
			}
		}
		return nil
	})
	b.write("late.yaml", func(f family) []string {
		return []string{f.service("late", "externalIPs: ["+vip(f)+"]", "ports: [{name: p80, port: 80}]"), f.slice("late", "p80: 80", b.L1)}
	})
	for range families {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// host is an address as a prefix.
func (f family) host(addr string) string { return addr + f.pick("/32", "/128") }
