package e2e

import (
	"fmt"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// web writes and serves the Service most tests use: cluster IP 41, port 80, with
// endpoints on the hosts.
func web(t *testing.T, other flags, hosts func(b *box) []*netlab.Host) *box {
	t.Helper()
	b := newBox(t, other)
	b.write("web.yaml", b.webDocuments(hosts(b)...))
	b.svcctl.Start()
	return b
}

func (b *box) webDocuments(hosts ...*netlab.Host) func(f family) []string {
	return func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"),
			f.slice("web", "p80: 80", hosts...),
		}
	}
}

func l1(b *box) []*netlab.Host   { return []*netlab.Host{b.L1} }
func r1(b *box) []*netlab.Host   { return []*netlab.Host{b.R1} }
func l1r1(b *box) []*netlab.Host { return []*netlab.Host{b.L1, b.R1} }
func nobody(*box) []*netlab.Host { return nil }

func Test014_client_on_the_endpoints_segment_with_snat_never(t *testing.T) {
	b := web(t, flags{"snat": {"never"}}, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		seen := b.L1.Capture("eth0")
		to := f.at(f.vip(41), 80)
		// The endpoint answers the client directly, which knows no such connection.
		// real time: nobody answers
		if reply, err := b.Near.Ask("tcp", to, netlab.Within(500*time.Millisecond)); err == nil {
			t.Errorf("answered by %s, want no connection", reply)
		}
		came := seen.Packets(func(p netlab.Packet) bool {
			return !p.Outgoing && p.To == f.on(80, b.L1)[0] && p.From.Addr() == f.of(b.Near)
		})
		if len(came) == 0 {
			t.Errorf("no packet with the client's address came to the endpoint: %v",
				seen.Packets(func(p netlab.Packet) bool { return p.To == f.on(80, b.L1)[0] }))
		}
		// Nothing changes for a client that the box is the only way back to.
		b.reaches(t, b.IN, "tcp", to, plain, f.on(80, b.L1)...)
	})
}

// dualSlices are a slice of each family with L1 and R1 for a Service of both.
func dualSlices(b *box, service string) string {
	docs := ""
	for _, f := range families {
		docs += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: %s\n"+
			"  labels: {kubernetes.io/service-name: %s}\naddressType: %s\nports: [{name: p80, port: 80}]\nendpoints:\n- %s\n- %s\n",
			f.name(service), service, f, f.endpoint(b.L1), f.endpoint(b.R1))
	}
	return docs
}

func Test016_no_endpoints_then_one(t *testing.T) {
	b := web(t, nil, nobody)
	for _, f := range families {
		for _, network := range []string{"tcp", "udp"} {
			b.refuses(t, b.IN, network, f.at(f.vip(41), 80))
		}
	}
	b.write("web.yaml", b.webDocuments(b.L1))
	for _, f := range families {
		// The same source port all the time: no state of a refused try may be in the way.
		eventually(t, syncTimeout, func() error {
			_, err := b.IN.Ask("tcp", f.at(f.vip(41), 80), netlab.FromPort(40000))
			return err
		})
	}
}

func Test017_ping_never(t *testing.T) {
	b := web(t, flags{"vip-ping": {"never"}}, l1)
	b.each(t, func(t *testing.T, b *box, f family) {
		if err := b.IN.Ping(f.at(f.vip(41), 0).Addr()); netlab.RefusalOf(err) != netlab.Timeout {
			t.Errorf("got %v, want silence", err)
		}
	})
}

func Test019_kill_keeps_traffic(t *testing.T) {
	b := web(t, nil, l1r1)
	open := map[family]*netlab.Conn{}
	for _, f := range families {
		c, err := b.EXT.Dial(f.at(f.vip(41), 80))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		open[f] = c
	}
	works := func(when string) {
		t.Helper()
		for _, f := range families {
			if err := open[f].Echo(when); err != nil {
				t.Errorf("%s: connection opened before: %v", when, err)
			}
			b.reaches(t, b.EXT, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1, b.R1)...)
		}
	}
	b.svcctl.Kill()
	works("killed")
	b.svcctl.Start()
	works("started again")
	b.svcctl.Stop()
	works("stopped")
	b.svcctl.Start()
	works("started once more")
}
