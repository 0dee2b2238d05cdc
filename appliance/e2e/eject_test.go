package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// unchecked is a Service on three servers without a health check.
func (b *box) unchecked(f family, name string, vip int, annotations ...string) []string {
	svc := f.service(name, "clusterIP: "+f.vip(vip), "ports: [{name: tcp, port: 80}]")
	return []string{withAnnotations(svc, annotations...), f.slice(name, "tcp: 80", b.L1, b.L2, b.R1)}
}

// withEject has two Services on the same three servers: web asks for eject, and plain does not.
func withEject(t *testing.T) *box {
	b := newBox(t, metered)
	b.write("web.yaml", func(f family) []string { return b.unchecked(f, "web", 41, `svcctl.io/eject: "true"`) })
	b.write("plain.yaml", func(f family) []string { return b.unchecked(f, "plain", 42) })
	b.svcctl.Start()
	return b
}

// becomesDead lets clients connect until the status has a problem of a Service with all texts, or, without texts, none.
func (b *box) becomesDead(t *testing.T, f family, service string, vip int, texts ...string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		for range 3 {
			_, _ = b.IN.Ask("tcp", f.at(f.vip(vip), 80), netlab.Within(100*time.Millisecond))
		}
		problems := b.status().Problems
		for _, p := range problems {
			line := p.String()
			if p.Object != "Service default/"+f.name(service) {
				continue
			}
			if len(texts) == 0 {
				return fmt.Errorf("there still is %s", p)
			}
			missing := false
			for _, text := range texts {
				missing = missing || !strings.Contains(line, text)
			}
			if !missing {
				return nil
			}
		}
		if len(texts) > 0 {
			return fmt.Errorf("no problem of %s with %q in:\n%s", service, texts, list(problems))
		}
		return nil
	})
}

// One of three servers is dead: it refuses, is silent, or rejects. The status names it, and with eject new connections
// get the other two alone until it accepts some again.
func Test740_dead_endpoint_without_a_check(t *testing.T) {
	b := withEject(t)
	for _, death := range []struct{ rule, reason, why string }{
		{"reject with tcp reset", "EndpointRefuses", "connection refused"},
		{"drop", "EndpointSilent", "no answer"},
		{"reject", "Endpoint", ""}, // by ICMP, of which TCP over IPv4 makes a refusal
	} {
		revive := b.L2.HoldNft("table inet dead { flags owner; chain input { type filter hook input priority 0; tcp dport 80 " + death.rule + "; }; }")
		b.each(t, func(t *testing.T, b *box, f family) {
			b.becomesDead(t, f, "web", 41, death.reason, f.on(80, b.L2)[0].String(), death.why, "1 of 3", "taken out", "warning")
			b.becomesDead(t, f, "plain", 42, death.reason, f.on(80, b.L2)[0].String(), death.why, "svcctl.io/eject", "warning")
			b.comesTo(t, f, 41, b.L1, b.R1)
			with := b.IN.AskMany(60, "tcp", f.at(f.vip(41), 80), patiently)
			// real time: some of them are silent
			without := b.IN.AskMany(60, "tcp", f.at(f.vip(42), 80), netlab.Within(300*time.Millisecond))
			t.Logf("%s, %s: with eject %s; without: %s", f, death.rule, with, without)
			if len(with.Failures) > 0 || len(without.Failures) == 0 {
				t.Errorf("%s: with eject: %s; without: %s; want failures without it alone", f, with, without)
			}
		})
		revive()
		b.each(t, func(t *testing.T, b *box, f family) {
			b.becomesDead(t, f, "web", 41)
			b.becomesDead(t, f, "plain", 42)
			b.comesTo(t, f, 41, b.L1, b.L2, b.R1)
		})
	}
}

// A client whose first SYN went to a silent server gets another one when that is taken out: its entry is deleted.
func Test741_client_of_an_ejected_endpoint_goes_on(t *testing.T) {
	b := withEject(t)
	b.L2.LoadNft("table inet dead { chain input { type filter hook input priority 0; tcp dport 80 drop; }; }")
	b.each(t, func(t *testing.T, b *box, f family) {
		tally := b.IN.AskMany(60, "tcp", f.at(f.vip(41), 80), patiently)
		t.Log(tally)
		if len(tally.Failures) > 0 || tally.Servers[b.L2.Name] > 0 {
			t.Errorf("%s: %s, want answers of the other two alone", f, tally)
		}
		b.becomesDead(t, f, "web", 41, "EndpointSilent")
	})
}

// Clients that reset their own SYN leave the trace of an endpoint that refuses. None is taken out for it.
func Test742_forged_failures_eject_nobody(t *testing.T) {
	b := withEject(t)
	for _, h := range []*netlab.Host{b.L1, b.L2, b.R1} { // no answer, so that the client's reset comes first
		h.LoadNft("table inet mute { chain input { type filter hook input priority 0; tcp sport 20000-20999 tcp dport 80 drop; }; }")
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		before := b.failures(t, f, "web")
		for i := range 300 {
			from := netip.AddrPortFrom(f.of(b.IN), uint16(20000+i))
			to := f.at(f.vip(41), 80)
			b.IN.SendTCP(netlab.TCPHeader{From: from, To: to, Seq: 7, Flags: netlab.TCPSyn}, netlab.TCPHeader{From: from, To: to, Seq: 8, Flags: netlab.TCPRst})
		}
		eventually(t, time.Minute, func() error {
			if n := b.failures(t, f, "web") - before; n < 300 {
				return fmt.Errorf("%d failures are counted, want 300", n)
			}
			return nil
		})
		b.comesTo(t, f, 41, b.L1, b.L2, b.R1)
		b.noProblem(t, "Service default/"+f.name("web"))
	})
	if log := b.svcctl.Log(); strings.Contains(log, "accepts no connections") {
		t.Errorf("an endpoint was taken out:\n%s", log)
	}
}

// All servers are dead: all are used, the problem is an error. After a restart of the program an endpoint that was out
// stays out while it is dead.
func Test743_eject_fails_open_and_survives_a_restart(t *testing.T) {
	b := withEject(t)
	const refuse = "table inet dead { flags owner; chain input { type filter hook input priority 0; tcp dport 80 reject with tcp reset; }; }"
	b.L2.LoadNft(strings.Replace(refuse, "flags owner;", "", 1))
	b.each(t, func(t *testing.T, b *box, f family) { b.becomesDead(t, f, "web", 41, "EndpointRefuses", "1 of 3") })
	b.svcctl.Stop()
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		if tally := b.IN.AskMany(60, "tcp", f.at(f.vip(41), 80), patiently); len(tally.Failures) > 0 || tally.Servers[b.L2.Name] > 0 {
			t.Errorf("%s: after a restart: %s", f, tally)
		}
	})
	revive := []func(){b.L1.HoldNft(refuse), b.R1.HoldNft(refuse)}
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomesDead(t, f, "web", 41, "EndpointRefuses", "3 of 3", "error")
		if _, err := b.IN.Ask("tcp", f.at(f.vip(41), 80)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: a client of dead endpoints: %v, want a refusal of an endpoint", f, err)
		}
	})
	for _, again := range revive {
		again()
	}
	b.each(t, func(t *testing.T, b *box, f family) { b.comesTo(t, f, 41, b.L1, b.R1) })
}

// failures are the failed connections of a Service, as `svcctl top` has them: the sum of its endpoints.
func (b *box) failures(t *testing.T, f family, service string) (n int) {
	t.Helper()
	out, errOut, code := b.svcctl.Svcctl("top", "svc/"+f.name(service), "--once", "-o", "json")
	var seen struct {
		Ports []struct {
			Failed    int
			Endpoints []struct{ Failed int }
		}
	}
	if err := json.Unmarshal([]byte(out), &seen); err != nil || len(seen.Ports) != 1 {
		t.Fatalf("svcctl top: exit code %d, %v\n%s%s", code, err, out, errOut)
	}
	for _, e := range seen.Ports[0].Endpoints {
		n += e.Failed
	}
	if n != seen.Ports[0].Failed {
		t.Errorf("%d connections to endpoints failed, %d to their port", n, seen.Ports[0].Failed)
	}
	return n
}

// A server is gone from the network: it answers not even ARP or neighbor discovery. With eject clients get the others
// alone until it is back; without it some fail. Status, health, explain and top name it, and a connection to
// it on request ends in bounded time.
func Test858_a_host_that_is_gone(t *testing.T) {
	b := withEject(t)
	b.each(t, func(t *testing.T, b *box, f family) { b.comesTo(t, f, 41, b.L1, b.L2, b.R1) })
	back := b.L2.HoldNft("table netdev gone { flags owner; chain in { type filter hook ingress device \"eth0\" priority 0; drop; }; }")
	for _, f := range families {
		if _, errOut, err := b.GW1.Run("ip", f.pick("-4", "-6"), "neigh", "flush", "to", f.of(b.L2).String()); err != nil {
			t.Fatal(err, errOut)
		}
		b.GW1.Sysctl("net."+f.pick("ipv4", "ipv6")+".neigh.int0.mcast_solicit", "3") // as Linux has it: the box answers for the host soon
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		at := f.on(80, b.L2)[0].String()
		b.becomesDead(t, f, "web", 41, "EndpointSilent", at, "1 of 3", "taken out", "warning")
		b.becomesDead(t, f, "plain", 42, "EndpointSilent", at, "svcctl.io/eject", "warning")
		b.comesTo(t, f, 41, b.L1, b.R1)
		with := b.IN.AskMany(60, "tcp", f.at(f.vip(41), 80), patiently)
		without := b.IN.AskMany(60, "tcp", f.at(f.vip(42), 80), netlab.Within(300*time.Millisecond)) // real time: clients that are silent here never get an answer
		t.Logf("%s: with eject %s; without: %s", f, with, without)
		if len(with.Failures) > 0 || len(without.Failures) == 0 {
			t.Errorf("%s: with eject: %s; without: %s; want failures without it alone", f, with, without)
		}
		for _, verb := range [][]string{{"health", "svc/" + f.name("web")}, {"explain", "svc/" + f.name("web")}, {"top", "svc/" + f.name("web"), "--once"}} {
			if out, errOut, _ := b.svcctl.Svcctl(verb[0], verb[1:]...); !strings.Contains(out, at) || !strings.Contains(out, "down") && !strings.Contains(out, "not accept") {
				t.Errorf("svcctl %s does not name %s:\n%s%s", strings.Join(verb, " "), at, out, errOut)
			}
		}
	})
	for _, f := range families { // one request at a time
		at := f.on(80, b.L2)[0].String()
		if out, errOut, _ := b.svcctl.Svcctl("explain", "--probe", "svc/"+f.name("plain")); !strings.Contains(out, "just now") || !strings.Contains(out, at) {
			t.Errorf("explain --probe does not name %s:\n%s%s", at, out, errOut)
		}
	}
	back()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomesDead(t, f, "web", 41)
		b.becomesDead(t, f, "plain", 42)
		b.comesTo(t, f, 41, b.L1, b.L2, b.R1)
	})
}
