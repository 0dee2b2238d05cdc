package e2e

import (
	"fmt"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// delivers has the box deliver what endpoints answer to clients that it speaks for, as an administrator does.
func (b *box) delivers(t *testing.T) {
	t.Helper()
	b.GW1.LoadNft(`table inet transparent {
		chain c { type filter hook prerouting priority mangle; meta l4proto tcp socket transparent 1 meta mark set 0x1; }
	}`)
	for _, ip := range []string{"-4", "-6"} {
		for _, args := range [][]string{
			{ip, "rule", "add", "fwmark", "0x1", "lookup", "100"},
			{ip, "route", "add", "local", "default", "dev", "lo", "table", "100"},
		} {
			if _, errOut, err := b.GW1.Run("ip", args...); err != nil {
				t.Fatalf("ip %v: %v: %s", args, err, errOut)
			}
		}
	}
}

// Endpoints of a relayed port see the client's own address, where the box delivers their answers; elsewhere
// clients are refused, and what is missing is said.
func Test421_endpoints_of_relayed_ports_see_clients(t *testing.T) {
	b := relayed(t, nil, `, svcctl.io/transparent-source: "true"`, l1r1)
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web"), "NoRelay", "svcctl.io/transparent-source", "socket transparent 1", f.pick("`ip rule add", "`ip -6 rule add"), "table 100")
		b.refuses(t, b.EXT, "tcp", f.at(f.lb(4), 80))
		b.reaches(t, b.EXT, "udp", f.at(f.lb(4), 53), masq, f.on(53, b.L1, b.R1)...)
	})
	b.delivers(t)
	b.each(t, func(t *testing.T, b *box, f family) {
		eventually(t, time.Minute, func() error {
			return b.tryReaches(b.EXT, "tcp", f.at(f.lb(4), 80), plain, f.on(80, b.L1, b.R1)...)
		})
		b.reaches(t, b.EXT, "tcp", f.nodePort(), plain, f.on(80, b.L1, b.R1)...)
		answers(t, b.GW1, "tcp", f.at(f.vip(41), 80), patiently) // the box itself, from an address of its own
		b.reaches(t, b.EXT, "udp", f.at(f.lb(4), 53), masq, f.on(53, b.L1, b.R1)...)
		b.reaches(t, b.IN, "tcp", f.at(f.vip(42), 80), plain, f.on(80, b.L1)...) // in the kernel as before
		b.noProblem(t, f.object("Service", "web"))
		b.verbs(t).says(0, []string{"endpoints see the client's address"}, "explain", "svc/"+f.name("web"))
	})
	// Two endpoints, of which one refuses: no connection fails.
	failing(b.L1, b.L2)
	b.each(t, func(t *testing.T, b *box, f family) {
		tally := b.EXT.AskMany(200, "tcp", f.at(f.lb(4), 80), patiently)
		if len(tally.Failures) != 0 || tally.Clients[f.of(b.EXT)] != tally.Asked {
			t.Errorf("with one endpoint that refuses: %s, seen as %v, want all from %s", tally, tally.Clients, f.of(b.EXT))
		}
	})
	// An endpoint that is its own client sees the box: it would answer itself otherwise.
	b.rewrite("web.yaml", relayedDocuments(b, `, svcctl.io/transparent-source: "true"`, []*netlab.Host{b.R1}))
	b.each(t, func(t *testing.T, b *box, f family) {
		reply, err := b.R1.Ask("tcp", f.at(f.vip(41), 80), patiently)
		if err != nil || reply.Client.Addr() == f.of(b.R1) {
			t.Error(fmt.Errorf("an endpoint that asks itself: %v, %w", reply, err))
		}
	})
}
