package e2e

import (
	endian "encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// segmentVIP is an address in a pool on the segment of the box and its router.
func (f family) segmentVIP(n int) string {
	return fmt.Sprintf(f.pick("192.0.2.1%02d", "2001:db8::1%02d"), n)
}

// announced has Services on the segment of RTR, on no segment, and without endpoints, and an announcer.
func announced(t *testing.T) (b *box, announcer *netlab.Appliance) {
	t.Helper()
	b = newBox(t, flags{"load-balancer-pool": {"192.0.2.100-192.0.2.131", "2001:db8::100-2001:db8::131", "198.51.100.0/28", "2001:db8:198::/124"}})
	b.write("web.yaml", b.announcedDocuments(b.L1))
	b.svcctl.Start()
	announcer = b.svcctl.Announcer()
	return b, announcer
}

func (b *box) announcedDocuments(idle ...*netlab.Host) func(f family) []string {
	return func(f family) []string {
		balanced := func(name, ip string) string {
			return f.service(name, "type: LoadBalancer", "loadBalancerIP: "+ip, "ports: [{name: p80, port: 80}]")
		}
		return []string{
			balanced("web", f.segmentVIP(1)), f.slice("web", "p80: 80", b.R1),
			balanced("idle", f.segmentVIP(2)), f.slice("idle", "p80: 80", idle...),
			balanced("routed", f.lb(4)), f.slice("routed", "p80: 80", b.R1),
		}
	}
}

// macOf is the Ethernet address that a neighbor gets as the answer for an address; "" without one.
func macOf(t testing.TB, from *netlab.Host, ifname string, f family, addr string) string {
	t.Helper()
	var out string
	if f.v6 {
		out, _, _ = from.Run("ndisc6", "-n", "-q", "-1", "-r", "2", "-w", "500", addr, ifname)
	} else {
		out, _, _ = from.Run("arping", "-c", "1", "-w", "2", "-I", ifname, addr)
	}
	return strings.ToLower(regexp.MustCompile(`(?i)([0-9a-f]{2}:){5}[0-9a-f]{2}`).FindString(out))
}

// announcements is what `svcctl announce status` shows.
type announcements struct {
	Items []struct {
		Address, Withheld string
		Services          []string
		Places            []struct{ By, State, With string }
	}
	Announcer *struct{}
}

// announcement returns the place and state of an address, "l2 ext0 announced", or why it is withheld.
func (b *box) announcement(addr string) (text string) {
	b.t.Helper()
	var all announcements
	if err := b.svcctl.Read("/svcctl/v1/announcements", &all); err != nil {
		b.t.Fatal(err)
	}
	for _, item := range all.Items {
		if item.Address == addr {
			words := []string{}
			if item.Withheld != "" {
				words = append(words, item.Withheld)
			}
			for _, p := range item.Places {
				words = append(words, strings.TrimSpace(p.By+" "+p.State+" "+p.With))
			}
			return strings.Join(words, ", ")
		}
	}
	return "nothing"
}

// becomes waits for what is told of an address.
func (b *box) becomes(t *testing.T, addr, want string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if got := b.announcement(addr); got != want {
			return fmt.Errorf("of %s is told %q, want %q", addr, got, want)
		}
		return nil
	})
}

// Addresses of Services on a segment of the box are found by their neighbors while a box serves
// them, and nothing else is.
func Test263_neighbors_find_addresses_on_their_segment(t *testing.T) {
	b, announcer := announced(t)
	b.rewrite("web.yaml", b.announcedDocuments())
	b.each(t, func(t *testing.T, b *box, f family) {
		if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); mac != "" {
			t.Fatalf("%s answers for %s before there is an announcer", mac, f.segmentVIP(1))
		}
	})
	before, _, _ := b.GW1.Run("ip", "-o", "addr")
	announcer.Launch()
	ours := macInside(t, b.GW1, "ext0")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
		b.becomes(t, f.segmentVIP(2), "no ready endpoint")
		b.becomes(t, f.lb(4), "")
		b.isAnswered(t, "when it is announced", f, f.segmentVIP(1), ours)
		for what, addr := range map[string]string{"without endpoints": f.segmentVIP(2), "that nobody has": f.segmentVIP(9), "of another segment": f.lb(4)} {
			if mac := macOf(t, b.RTR, "box", f, addr); mac != "" {
				t.Errorf("%s answers for an address %s", mac, what)
			}
		}
		b.reaches(t, b.EXT, "tcp", f.at(f.segmentVIP(1), 80), masq, f.on(80, b.R1)...)
		b.pings(t, b.RTR, f.at(f.segmentVIP(1), 0).Addr())
	})
	if after, _, _ := b.GW1.Run("ip", "-o", "addr"); after != before {
		t.Errorf("the addresses of the box changed:\n%s\n%s", before, after)
	}
	b.rewrite("web.yaml", b.announcedDocuments(b.L1))
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(2), "l2 ext0 announced")
		b.reaches(t, b.EXT, "tcp", f.at(f.segmentVIP(2), 80), masq, f.on(80, b.L1)...)
	})
	b.change(func() { b.svcctl.Manifests.Remove("web.yaml") })
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), "nothing")
		if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); mac != "" {
			t.Errorf("%s answers for %s, which has gone", mac, f.segmentVIP(1))
		}
	})
}

// Addresses of all pools are announced on a segment, however many pools there are.
func Test1170_many_pools_of_IPv6(t *testing.T) {
	pools := []string{"192.0.2.100-192.0.2.131", "2001:db8::100-2001:db8::131", "198.51.100.0/28", "2001:db8:198::/124"}
	for i := range 50 {
		pools = append(pools, fmt.Sprintf("2001:db8:199::%x00/124", i+1))
	}
	b := newBox(t, flags{"load-balancer-pool": pools})
	b.write("web.yaml", b.announcedDocuments())
	b.svcctl.Start()
	b.svcctl.Announcer().Launch()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
		b.isAnswered(t, "beside 50 pools", f, f.segmentVIP(1), macInside(t, b.GW1, "ext0"))
	})
}

// macInside is the Ethernet address of an interface of a host.
func macInside(t testing.TB, h *netlab.Host, ifname string) string {
	t.Helper()
	out, _, err := h.Run("ip", "-o", "link", "show", "dev", ifname)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`link/ether (\S+)`).FindStringSubmatch(out)[1]
}

// neighborFrame is an ARP packet, or a neighbor solicitation or advertisement, that left a host.
type neighborFrame struct {
	toAll        bool // not to one neighbor
	from, target netip.Addr
	question     bool
}

// isProbe reports whether it asks whether others have an address, as a host without one does (RFC 5227, RFC 4862).
func (n neighborFrame) isProbe() bool { return n.question && n.from.IsUnspecified() }

// String is "question of :: about 2001:db8::1".
func (n neighborFrame) String() string {
	kind := "answer"
	if n.question {
		kind = "question"
	}
	return fmt.Sprintf("%s of %s about %s", kind, n.from, n.target)
}

// parseNeighborFrame reads an Ethernet frame; false when it is none of ARP and neighbor discovery.
func parseNeighborFrame(b []byte) (n neighborFrame, ok bool) {
	const ether, ndp = 14, 14 + 40
	if len(b) < ether+28 {
		return n, false
	}
	n.toAll = b[0]&1 != 0 // broadcast or multicast
	switch p := b[ether:]; endian.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_ARP:
		n.question = endian.BigEndian.Uint16(p[6:]) == 1
		n.from, n.target = netip.AddrFrom4([4]byte(p[14:])), netip.AddrFrom4([4]byte(p[24:]))
		return n, true
	case unix.ETH_P_IPV6:
		const solicitation, advertisement = 135, 136
		if len(b) < ndp+24 || p[6] != unix.IPPROTO_ICMPV6 || b[ndp] != solicitation && b[ndp] != advertisement {
			return n, false
		}
		n.question = b[ndp] == solicitation
		n.from, n.target = netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(b[ndp+8:]))
		return n, true
	}
	return n, false
}

// neighborFrames begins to note what leaves a host at an interface, and loses none, however busy the machine is:
// the frames wait in the socket. The returned function gives them, once.
func neighborFrames(t *testing.T, h *netlab.Host, ifname string) (end func() []neighborFrame) {
	t.Helper()
	fd := -1
	err := h.Do(func() error {
		ifi, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := endian.BigEndian.Uint16(endian.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		const load, jump, give = unix.BPF_LD | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		filters := []unix.SockFilter{ // ARP and ICMPv6: of all traffic copies would fill the socket in minutes
			{Code: load | unix.BPF_H, K: 12},
			{Code: jump, K: unix.ETH_P_ARP, Jt: 3},
			{Code: jump, K: unix.ETH_P_IPV6, Jf: 3},
			{Code: load | unix.BPF_B, K: 14 + 6},
			{Code: jump, K: unix.IPPROTO_ICMPV6, Jf: 1},
			{Code: give, K: 256},
			{Code: give},
		}
		return errors.Join(
			unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]}),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}))
	})
	if err != nil {
		t.Fatalf("listen on %s of %s: %v", ifname, h.Name, err)
	}
	return func() (frames []neighborFrame) {
		t.Helper()
		defer unix.Close(fd)
		if stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil || stats.Drops > 0 {
			t.Fatalf("frames of %s were lost: %+v, %v", ifname, stats, err)
		}
		for buf := make([]byte, 256); ; {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case err != nil: // EAGAIN: all were read
				return frames
			}
			if link, is := from.(*unix.SockaddrLinklayer); !is || link.Pkttype != unix.PACKET_OUTGOING {
				continue
			}
			if f, ok := parseNeighborFrame(buf[:n]); ok {
				frames = append(frames, f)
			}
		}
	}
}

// isAnswered waits until a neighbor's question for an address is answered with an Ethernet address. Nobody
// answers with another one.
func (b *box) isAnswered(t *testing.T, when string, f family, addr, mac string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		switch got := macOf(t, b.RTR, "box", f, addr); got {
		case mac:
			return nil
		case "":
			return fmt.Errorf("%s no box answers for %s", when, addr)
		default:
			t.Fatalf("%s %s answers for %s, want %s", when, got, addr, mac)
			return nil
		}
	})
}

// Test804_an_interface_that_comes_later: an announcer starts with the name of an interface that does not exist, warns in its log and in
// status, and announces there once it exists.
func Test804_an_interface_that_comes_later(t *testing.T) {
	b, _ := announced(t)
	announcer := b.svcctl.Announcer("--l2", "ppp7")
	announcer.Launch()
	vip := families[0].segmentVIP(1)
	const problem = "nothing is announced on ppp7: there is no such interface, or it is down (up are "
	eventually(t, time.Minute, func() error {
		out, errOut, _ := b.svcctl.Svcctl("status")
		if !strings.Contains(out, problem) || !strings.Contains(announcer.Log(), problem) {
			return fmt.Errorf("status: %s%s; log: %s", out, errOut, announcer.Log())
		}
		return nil
	})
	b.GW1.SetDown("ext0")
	if _, _, err := b.GW1.Run("ip", "link", "set", "ext0", "name", "ppp7"); err != nil {
		t.Fatal(err)
	}
	b.GW1.SetUp("ppp7")
	b.becomes(t, vip, "l2 ppp7 announced")
	eventually(t, time.Minute, func() error {
		if out, _, _ := b.svcctl.Svcctl("status"); strings.Contains(out, "nothing is announced on ppp7") {
			return fmt.Errorf("status: %s", out)
		}
		return nil
	})
	announcer.Stop()
}

// Killing serve 20 times changes nothing that is announced: no frame about an address of a
// Service leaves the box but answers.
func Test264_announcements_outlive_serve(t *testing.T) {
	b, announcer := announced(t)
	announcer.Launch()
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
	}
	box := macInside(t, b.GW1, "ext0")
	began := time.Now()
	end := neighborFrames(t, b.GW1, "ext0")
	for range 20 {
		b.svcctl.Kill()
		for _, f := range families {
			b.isAnswered(t, "while serve is dead", f, f.segmentVIP(1), box)
		}
		b.svcctl.Start()
	}
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
		b.becomes(t, f.segmentVIP(2), "l2 ext0 announced")
	}
	// Of each address: the answers to the questions, and no more announcements than those that follow
	// a gain and come once a minute. In IPv4 each is two frames.
	var answers, announcements int
	ours := []netip.Addr{netip.MustParseAddr(ipv4.segmentVIP(1)), netip.MustParseAddr(ipv6.segmentVIP(1))}
	for _, frame := range end() {
		switch {
		case !slices.Contains(ours, frame.from) && !slices.Contains(ours, frame.target):
		case frame.isProbe():
			t.Errorf("it asked whether others have it: %s", frame)
		case frame.toAll:
			announcements++
		default:
			answers++
		}
	}
	if most := 3 * (4 + int(time.Since(began)/time.Minute)); answers < 40 || announcements > most {
		t.Errorf("%d answers to 40 questions left, and %d frames of announcements, want at most %d", answers, announcements, most)
	}
}

// isKept waits until the file of an announcer says that the first addresses are announced, a moment after they are.
func isKept(t *testing.T, announcer *netlab.Appliance) {
	t.Helper()
	for _, f := range families {
		says := regexp.MustCompile(fmt.Sprintf(`"announced":\[[^]]*"%[1]s"|"address":"%[1]s".*"announced":true`, f.segmentVIP(1)))
		eventually(t, time.Minute, func() error {
			text, err := os.ReadFile(filepath.Join(announcer.Data, "announcements.json"))
			if err == nil && !says.Match(text) {
				err = fmt.Errorf("%s is not announced by %s", f.segmentVIP(1), text)
			}
			return err
		})
	}
}

// An announcer that is killed goes on where it was, without serve, and without asking first.
func Test265_announcer_goes_on_after_its_own_end(t *testing.T) {
	b, announcer := announced(t)
	announcer.Launch()
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
	}
	isKept(t, announcer)
	b.svcctl.Stop()
	box := macInside(t, b.GW1, "ext0")
	for _, how := range []string{"killed", "stopped"} {
		if how == "killed" {
			announcer.Kill()
		} else {
			announcer.Stop()
		}
		for _, f := range families {
			if mac := macOf(t, b.RTR, "box", f, f.segmentVIP(1)); mac != "" {
				t.Errorf("%s: %s answers for nobody", how, mac)
			}
		}
		end := neighborFrames(t, b.GW1, "ext0")
		announcer.Launch()
		for _, f := range families {
			b.isAnswered(t, how+":", f, f.segmentVIP(1), box)
		}
		for _, frame := range end() {
			if frame.isProbe() && (frame.target.Is4() || frame.target.String() == ipv6.segmentVIP(1)) {
				t.Errorf("%s: it asked first: %s", how, frame)
			}
		}
	}
	out, errOut, err := b.GW1.Run("stat", "-c", "%a", announcer.Data+"/announcements.json")
	if err != nil || strings.TrimSpace(out) != "600" {
		t.Errorf("the file has mode %s: %v %s", out, err, errOut)
	}
}

// An address that another host has is left to it, and taken when it is free.
func Test266_address_conflict(t *testing.T) {
	b, announcer := announced(t)
	for _, f := range families {
		b.RTR.AddAddr("box", f.segmentVIP(1)+f.pick("/24", "/64"))
	}
	announcer.Launch()
	other, ours := macInside(t, b.RTR, "box"), macInside(t, b.GW1, "ext0")
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 conflict "+other)
		b.becomes(t, f.segmentVIP(2), "l2 ext0 announced")
		b.hasProblem(t, f.object("Service", "web"), "AddressConflict", f.segmentVIP(1), other)
	})
	for _, f := range families {
		b.RTR.RemoveAddr("box", f.segmentVIP(1)+f.pick("/24", "/64"))
	}
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
		b.isAnswered(t, "when it is announced", f, f.segmentVIP(1), ours)
	})
	eventually(t, time.Minute, func() error {
		for _, p := range b.status().Problems {
			if p.Reason == "AddressConflict" {
				return fmt.Errorf("still a problem: %s", p)
			}
		}
		return nil
	})
}

// A link that comes back, and an address of a Service that the host gets itself.
func Test267_links_and_addresses_that_come_and_go(t *testing.T) {
	b, announcer := announced(t)
	announcer.Launch()
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
	}
	b.GW1.SetDown("ext0")
	b.becomes(t, ipv4.segmentVIP(1), "")
	capture := b.RTR.Capture("box")
	b.GW1.SetUp("ext0")
	b.GW1.AddAddr("ext0", netlab.BoxAddr6+"/64") // goes with the link
	for _, f := range families {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced")
	}
	const unsolicited = 136
	vip := netip.MustParseAddr(ipv6.segmentVIP(1))
	eventually(t, time.Minute, func() error {
		if len(capture.Packets(func(p netlab.Packet) bool { return p.ICMPType == unsolicited && p.From.Addr() == vip })) == 0 {
			return fmt.Errorf("%s is not announced anew", vip)
		}
		return nil
	})
	b.GW1.AddAddr("ext0", ipv4.segmentVIP(1)+"/32")
	b.becomes(t, ipv4.segmentVIP(1), "l2 ext0 host")
	b.GW1.RemoveAddr("ext0", ipv4.segmentVIP(1)+"/32")
	b.becomes(t, ipv4.segmentVIP(1), "l2 ext0 announced")
}
