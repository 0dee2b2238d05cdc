package e2e

import (
	"testing"

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
		b.hasProblem(t, f.object("Service", "web"), "RelayFull", "port p80 over TCP are reset", "room for 625 at once")
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
	}
}
