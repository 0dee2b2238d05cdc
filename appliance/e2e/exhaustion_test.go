package e2e

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// Source ports of the box begin here for clients whose own port is not a low one
// (nf_nat_l4proto_unique_tuple of the kernel).
const firstSourcePort = 1024

// begin sends the first packets of n connections, from one address of the client.
func begin(client *netlab.Host, from netip.Addr, to netip.AddrPort, n int) {
	var segments []netlab.TCPHeader
	for port := firstSourcePort; port < firstSourcePort+n; port++ {
		segments = append(segments, netlab.TCPHeader{From: netip.AddrPortFrom(from, uint16(port)), To: to, Seq: 1, Flags: netlab.TCPSyn})
	}
	client.SendTCP(segments...)
}

// insertFailed is how often a host's kernel has found no port for a connection.
func insertFailed(h *netlab.Host) (n int) {
	for _, found := range regexp.MustCompile(`insert_failed=(\d+)`).FindAllStringSubmatch(h.Conntrack("-S"), -1) {
		of, _ := strconv.Atoi(found[1]) // of one processor
		n += of
	}
	return n
}

// The box has 64,512 source ports for the masqueraded connections to an endpoint. When all
// are taken, a new one gets nothing, in particular not a packet with its client's own
// address; those that are there, and other endpoints, do not notice; the number of those
// that found no port is shown; and when ports are free again, new ones are served.
func TestK19_source_ports_run_out(t *testing.T) {
	b := newBox(t, metered)
	b.GW1.Sysctl("net.netfilter.nf_conntrack_tcp_timeout_syn_sent", "600") // to the end of the test
	b.write("web.yaml", policyDocuments(l1(b)))
	b.write("other.yaml", func(f family) []string {
		return []string{f.service("other", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"), f.slice("other", "p80: 80", b.L2)}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		to, endpoint := f.cluster(), f.on(80, b.L1)[0]
		before := b.metric(t, "svcctl_conntrack_insert_failed")
		old, err := b.EXT.Dial(to, patiently)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(old.Close)
		if saw := old.Reply.Client.Addr(); saw != b.seenAs(b.EXT, endpoint.Addr(), masq) {
			t.Fatalf("%s saw %s, want the box's address", endpoint, saw)
		}

		// What is begun is not answered, so its port stays taken.
		b.L1.LoadNft("table " + f.pick("ip", "ip6") + " quiet { chain input { type filter hook input priority 0; tcp dport 80 tcp flags syn / syn,ack drop; }; }")
		client := f.of(b.EXT)
		another := client.Next() // of its network
		begin(b.EXT, client, to, 65536-firstSourcePort)
		eventually(t, syncTimeout, func() error { // some may have been lost on their way
			// A lost packet leaves one port free, and the kernel tries some 240 ports for a connection (nf_nat_l4proto_unique_tuple).
			const more = 5000
			another = another.Next()
			failed := insertFailed(b.GW1)
			begin(b.EXT, another, to, more)
			if found := more - (insertFailed(b.GW1) - failed); found > 0 {
				return fmt.Errorf("%d connections found a port", found)
			}
			return nil
		})

		came := b.L1.Capture("eth0")
		const late = 500
		begin(b.EXT, another.Next(), to, late)
		if err := old.Echo("still here", patiently); err != nil {
			t.Errorf("the connection that was there: %v", err)
		}
		if syns := came.Packets(func(p netlab.Packet) bool {
			return !p.Outgoing && p.To == endpoint && p.TCPFlags == netlab.TCPSyn
		}); len(syns) != 0 {
			t.Errorf("%d of %d late connections came to the endpoint, want none, as there is no port: %v", len(syns), late, syns[0])
		}
		eventually(t, syncTimeout, func() error { // the counters are read every 10 s
			if failed := b.metric(t, "svcctl_conntrack_insert_failed") - before; failed < late {
				return fmt.Errorf("svcctl_conntrack_insert_failed grew by %d, want at least %d", failed, late)
			}
			return nil
		})
		answers(t, b.EXT, "tcp", f.at(f.vip(42), 80))

		b.L1.Nft("delete", "table", f.pick("ip", "ip6"), "quiet")
		b.GW1.Conntrack("-D", "-f", f.pick("ipv4", "ipv6"), "-p", "tcp", "--dport", "80", "--state", "SYN_SENT")
		if _, err := b.EXT.Ask("tcp", to, patiently); err != nil {
			t.Errorf("when ports are free again: %v", err)
		}
		if err := old.Echo("still here", patiently); err != nil {
			t.Errorf("the connection that was there: %v", err)
		}
	})
}
