package e2e

import (
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// An established packet passes the same rules whether hosts leave with addresses of Services or not: that which asks whether its
// connection is invalid. The first packet alone passes the chain egress.
func Test1137_established_packets_pass_no_rule_of_egress(t *testing.T) {
	b := newEgress(t)
	b.EXT.Serve("tcp", 7000)
	documents := func(annotation string) func(f family) []string {
		return func(f family) []string {
			mail := strings.Replace(f.mail("mail", 4), "svcctl.io/egress: vip", annotation, 1)
			return []string{mail, f.slice("mail", "p80: 80", b.L1)}
		}
	}
	b.write("mail.yaml", documents("svcctl.io/egress: vip"))
	b.svcctl.Start()
	dial := func(f family) (all []*netlab.Conn) {
		t.Helper()
		for _, way := range []struct {
			from *netlab.Host
			to   netip.AddrPort
		}{{b.L1, f.at(f.of(b.EXT).String(), 7000)}, {b.Near, f.at(f.of(b.EXT).String(), 7000)}, {b.EXT, f.at(f.lb(4), 80)}} {
			c, err := way.from.Dial(way.to, patiently)
			if err != nil {
				t.Fatalf("%s to %s: %v", way.from.Name, way.to, err)
			}
			t.Cleanup(func() { c.Close() })
			all = append(all, c)
		}
		return all
	}
	// passed are the chains of ours that TCP packets pass while something is done. Where the kernel joins multicast groups, hosts send IGMP
	// reports meanwhile, and each is a new connection.
	passed := func(f family, do func()) (chains []string) {
		t.Helper()
		b.GW1.LoadNft("table inet tracing { chain everything { type filter hook prerouting priority raw; meta l4proto tcp meta nftrace set 1; }; }")
		defer b.GW1.Nft("delete", "table", "inet", "tracing")
		path := filepath.Join(t.TempDir(), "trace")
		stop := b.GW1.Background("sh", "-c", "exec stdbuf -oL nft monitor trace >"+path)
		defer stop()
		eventually(t, syncTimeout, func() error { // it takes its time to begin
			do()
			out, err := os.ReadFile(path)
			if n := strings.Count(string(out), "inet tracing everything packet: "); err != nil || n < 24 {
				return fmt.Errorf("%v: nft monitor trace has %d packets: %s", err, n, out)
			}
			chains = nil
			for _, chain := range regexp.MustCompile(`(?m)^trace id \w+ `+f.table()+` (\S+)`).FindAllStringSubmatch(string(out), -1) {
				chains = append(chains, chain[1])
			}
			return nil
		})
		slices.Sort(chains)
		return slices.Compact(chains)
	}
	established, first, invalid := map[bool]string{}, map[bool]string{}, map[bool]string{}
	for _, with := range []bool{true, false} {
		for _, f := range families {
			held := dial(f)
			established[with] += fmt.Sprintln(f, passed(f, func() {
				for _, c := range held {
					if err := c.Echo("held", patiently); err != nil {
						t.Fatal(err)
					}
				}
			}))
			first[with] += fmt.Sprintln(f, passed(f, func() { dial(f) }))
			invalid[with] += b.GW1.Nft(append([]string{"list", "chain"}, append(strings.Fields(f.table()), "invalid")...)...)
		}
		if with {
			b.rewrite("mail.yaml", documents("example.com/egress: vip"))
		}
	}
	if want := fmt.Sprintln(ipv4, "[invalid]") + fmt.Sprintln(ipv6, "[invalid]"); established[true] != want || established[false] != want || invalid[true] != invalid[false] {
		t.Errorf("established packets pass\n%s%s, without egress\n%s%s, want\n%s", established[true], invalid[true], established[false], invalid[false], want)
	}
	if !strings.Contains(first[true], "egress") || strings.Contains(first[false], "egress") {
		t.Errorf("first packets pass\n%s, without egress\n%s", first[true], first[false])
	}
}

// What hosts send in unusual ways has the address of their Service too, or does not leave: fragments, ICMP errors about packets of a
// connection, other protocols, and chunks of SCTP outside of an association. ICMP errors of others come back to the host. A host that
// connects to its own Service, or to another one whose hosts leave too, is its client.
func Test1138_what_hosts_send_in_unusual_ways(t *testing.T) {
	b := newEgress(t)
	b.write("mail.yaml", func(f family) []string {
		return []string{
			f.mail("mail", 4), f.slice("mail", "p80: 80", b.L1),
			f.mail("other", 5), f.slice("other", "p80: 80", b.L2),
		}
	})
	const echo = 12345 // whose packets sendUnreachable is about, to the port after it
	b.EXT.Serve("udp", echo)
	b.EXT.Serve("tcp", 7000)
	b.svcctl.Start()
	for _, f := range families {
		to := f.at(f.of(b.EXT).String(), echo)
		capture := b.GW1.Capture("ext0")
		sent := func(what string, is func(p netlab.Packet) bool) {
			t.Helper()
			eventually(t, syncTimeout, func() error {
				if len(capture.Packets(func(p netlab.Packet) bool { return p.Outgoing && p.From.Addr().String() == f.lb(4) && is(p) })) == 0 {
					return fmt.Errorf("%s: no %s left with the address", f, what)
				}
				return nil
			})
		}
		b.leavesAs(t, "udp", b.L1, to, f.lb(4), netlab.FromPort(echo+1))
		b.leavesAs(t, "udp", b.L1, to, f.lb(4), netlab.Sized(4000))
		if f == ipv4 {
			sent("fragment", func(p netlab.Packet) bool { return p.Fragment })
		}
		icmp, protocols := uint8(unix.IPPROTO_ICMP), []int{unix.IPPROTO_ESP, 253} // for experiments
		if f == ipv6 {
			icmp = unix.IPPROTO_ICMPV6
		}
		sendUnreachable(t, b.L1, f.of(b.L1), f.of(b.EXT))
		sent("ICMP error", func(p netlab.Packet) bool { return p.Protocol == icmp })
		for _, protocol := range protocols {
			sendRaw(t, b.L1, protocol, f.of(b.EXT), make([]byte, 64))
			sent(fmt.Sprint("packet of protocol ", protocol), func(p netlab.Packet) bool { return int(p.Protocol) == protocol })
		}
		for chunk := range byte(16) { // DATA, INIT ACK, SACK, ABORT, SHUTDOWN, COOKIE ECHO and others
			packet := append([]byte{0x30, 0x3a, 0x30, chunk, 0, 0, 0, 1, 0, 0, 0, 0, chunk, 0, 0, 20}, make([]byte, 16)...)
			sum := crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli))
			packet[8], packet[9], packet[10], packet[11] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
			sendRaw(t, b.L1, unix.IPPROTO_SCTP, f.of(b.EXT), packet)
		}
		var failure *netlab.Failure
		if _, err := b.L1.Ask("udp", f.at(f.of(b.EXT).String(), 9), patiently); !errors.As(err, &failure) || !failure.PortUnreachable() {
			t.Errorf("%s: a port that nothing listens at: %v", f, err)
		}
		b.reaches(t, b.L1, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L1)...)
		b.reaches(t, b.L1, "tcp", f.at(f.lb(5), 80), masq, f.on(80, b.L2)...)
		b.leavesAs(t, "tcp", b.L1, f.at(f.of(b.EXT).String(), 7000), f.lb(4)) // after all of them
		for _, p := range capture.Packets(func(p netlab.Packet) bool { return p.Outgoing && p.From.Addr() == f.of(b.L1) }) {
			t.Errorf("%s left with its own address", p)
		}
	}
}

// sendRaw sends a packet of a protocol.
func sendRaw(t *testing.T, h *netlab.Host, protocol int, to netip.Addr, packet []byte) {
	t.Helper()
	if err := h.Do(func() error {
		domain := unix.AF_INET
		var at unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(to.AsSlice()[:4])}
		if to.Is6() {
			domain, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
		}
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, at)
	}); err != nil {
		t.Fatal(err)
	}
}
