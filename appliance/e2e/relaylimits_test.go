package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// However many clients one Service has, others are served, and TCP beside UDP.
func Test362_limits_of_relayed_ports_are_fair(t *testing.T) {
	b := newBox(t, nil)
	b.svcctl.Wrapper = []string{"prlimit", "--nofile=3000:3000"} // room for 500 clients of UDP and 625 connections
	b.write("web.yaml", relayedDocuments(b, "", l1r1(b)))
	b.svcctl.Start()
	for i, f := range families {
		tally := netlab.AskEach(700, func(i int) (netlab.Reply, error) {
			return b.EXT.Ask("udp", f.at(f.lb(4), 53), netlab.FromPort(uint16(20000+i)), patiently)
		})
		if len(tally.Failures) != 0 {
			t.Errorf("%s: clients of UDP, more than there is room for: %s", f, tally)
		}
		for _, other := range families {
			if tally := b.EXT.AskMany(20, "tcp", f.at(f.lb(4), 80), patiently); len(tally.Failures) != 0 {
				t.Errorf("%s: beside clients of UDP: %s", other, tally)
			}
		}
		var open []*netlab.Conn
		var refused error
		for len(open) < 330 && refused == nil {
			c, err := b.EXT.Dial(f.at(f.lb(4), 80), patiently)
			if refused = err; err == nil {
				open = append(open, c)
			}
		}
		if want := []int{313, 156}[i]; netlab.RefusalOf(refused) != netlab.Reset || len(open) != want {
			// 625 are the room for all: half of it for one port, and half of what is left for the next one.
			t.Errorf("%s: %d connections and then %v; want %d and then a reset", f, len(open), refused, want)
		}
		b.hasProblem(t, f.object("Service", "web"), "RelayFull", "to port p80 over TCP are reset", "room for 625 at once")
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
	}
}

// What passes through relayed ports is counted: by port and endpoint, in metrics and explain.
func Test369_relayed_connections_are_counted(t *testing.T) {
	b := relayed(t, flags{"metrics-listen": {"127.0.0.1:9155"}}, "", func(b *box) []*netlab.Host { return []*netlab.Host{b.L1, b.L2} })
	failing(b.L2, b.R2)
	open := map[family][]*netlab.Conn{}
	for _, f := range families {
		for range 3 {
			c, err := b.EXT.Dial(f.at(f.lb(4), 80), patiently)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			open[f] = append(open[f], c)
		}
		answers(t, b.EXT, "udp", f.at(f.lb(4), 53), patiently)
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		labels := fmt.Sprintf("family=%q,namespace=%q,port=%q,protocol=%q,service=%q} ", f, "default", "p80", "tcp", f.name("web"))
		wants := []string{
			fmt.Sprintf("svcctl_relay_port_open{endpoint=%q,", f.on(80, b.L1)[0].String()) + labels + "3",
			"svcctl_relay_port_accepted_total{" + labels + "3",
			`svcctl_relay_open{of="services",protocol="tcp"} 6`, `svcctl_relay_accepted_total{protocol="udp"} 2`,
		}
		eventually(t, time.Minute, func() error {
			answer, err := b.GW1.Get(netip.MustParseAddrPort("127.0.0.1:9155"), "/metrics")
			if err != nil {
				return err
			}
			text := answer.Body
			for _, want := range wants {
				if !strings.Contains(text, want+"\n") {
					return fmt.Errorf("no line %s", want)
				}
			}
			if strings.Contains(text, "svcctl_relay_port_failed_connects_total{"+labels+"0\n") {
				return fmt.Errorf("no endpoint failed: one refuses")
			}
			return nil
		})
		b.verbs(t).says(0, []string{f.String() + ": 3 connections now (" + f.on(80, b.L1)[0].String() + " 3), 3 since it is relayed", "did not accept", f.String() + ": 1 client now"}, "explain", "svc/"+f.name("web"))
		tcp, udp := f.on(80, b.L1)[0].String()+" (relayed)", " (relayed)"
		b.verbs(t).says(0, []string{tcp + "         0        3 "}, "top", "svc/"+f.name("web"), "--once")
		b.verbs(t).says(0, []string{tcp, f.at(f.lb(4), 53).String() + "   ", udp}, "top", "--connections", "svc/"+f.name("web"))
		b.verbs(t).says(0, []string{f.at(f.lb(4), 80).String(), tcp}, "top", "--connections", "svc/"+f.name("web"), "--endpoint", f.on(80, b.L1)[0].String())
	})
	for _, f := range families {
		for _, c := range open[f] {
			c.Close()
		}
	}
	eventually(t, time.Minute, func() error {
		answer, err := b.GW1.Get(netip.MustParseAddrPort("127.0.0.1:9155"), "/metrics")
		if err == nil && !strings.Contains(answer.Body, `svcctl_relay_open{of="services",protocol="tcp"} 0`+"\n") {
			err = fmt.Errorf("connections that have ended are counted as open")
		}
		return err
	})
}
