package sim_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	. "svcctl.io/svcctl/nft/sim"
)

// The box has two interfaces, and nothing but the test is behind them. They have no
// ARP, so whatever is sent there leaves at once, to whatever address.
const (
	loopback = 1
	in0      = 10
	out0     = 20
)

const topology = `
link set lo up
link add in0 index 10 address 02:00:00:00:00:10 type veth peer name in1 netns OUTSIDE
link add out0 index 20 address 02:00:00:00:00:20 type veth peer name out1 netns OUTSIDE
link set in0 arp off addrgenmode none
link set in0 up
link set out0 arp off addrgenmode none
link set out0 up
addr add 192.0.2.1/24 dev in0
addr add 198.51.100.1/24 dev out0
addr add 2001:db8:1::1/64 dev in0 nodad
addr add 2001:db8:2::1/64 dev out0 nodad
route add 10.1.0.0/16 via 198.51.100.9 dev out0
route add default via 192.0.2.9 dev in0
route add fd00:1::/64 via 2001:db8:2::9 dev out0
route add default via 2001:db8:1::9 dev in0
`

// The box forwards, checks no sources, and tells of every refusal.
var sysctls = map[string]string{
	"ipv4/ip_forward":               "1",
	"ipv4/conf/all/rp_filter":       "0",
	"ipv4/conf/in0/rp_filter":       "0",
	"ipv4/conf/out0/rp_filter":      "0",
	"ipv4/conf/all/send_redirects":  "0",
	"ipv4/conf/in0/send_redirects":  "0",
	"ipv4/conf/out0/send_redirects": "0",
	"ipv4/icmp_ratemask":            "0",
	"ipv6/conf/all/forwarding":      "1",
	"ipv6/icmp/ratelimit":           "0",
	"ipv6/icmp/ratemask":            "",
}

// box is a network namespace with the real kernel in it, and sockets to send packets
// to it and as it, and to see what it makes of them.
type box struct {
	t        *testing.T
	inject   map[uint32]int // by the box's interface: what comes in there
	transmit map[int]int    // by address family: what the box sends
	local    map[int]int    // sockets that get what is delivered to the box, with their family

	protocolOf map[int]byte // those of local: what they listen to
}

// needRoot skips a test that makes network namespaces, loudly; with
// SVCCTL_REQUIRE_PRIVILEGED=1 it fails it.
func needRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: tests with -short make no networks")
	}
	_, noNFT := exec.LookPath("nft")
	_, noIP := exec.LookPath("ip")
	if os.Geteuid() == 0 && noNFT == nil && noIP == nil {
		return
	}
	const why = "NOT TESTED: needs root and the programs nft and ip"
	if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// newBox makes the namespaces. The goroutine stays in that of the box, on a thread that
// ends with it, and on one CPU: so packets are handled in the order they are sent.
func newBox(t *testing.T) *box {
	runtime.LockOSThread() // and never unlocked: the thread is of no use to others
	var cpus, one unix.CPUSet
	b := &box{t: t, inject: map[uint32]int{}, transmit: map[int]int{}, local: map[int]int{}, protocolOf: map[int]byte{}}
	b.check(unix.SchedGetaffinity(0, &cpus))
	for cpu := 0; one.Count() == 0; cpu++ {
		if cpus.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	b.check(unix.SchedSetaffinity(0, &one))

	b.check(unix.Unshare(unix.CLONE_NEWNET))
	outside, err := os.Open("/proc/thread-self/ns/net")
	b.check(err)
	defer outside.Close()
	b.check(unix.Unshare(unix.CLONE_NEWNET))
	home, err := os.Open("/proc/thread-self/ns/net")
	b.check(err)
	defer home.Close()
	b.run("ip", strings.ReplaceAll(topology, "OUTSIDE", "/dev/fd/3"), outside, "-batch", "-")
	for name, value := range sysctls {
		b.check(os.WriteFile("/proc/sys/net/"+name, []byte(value+"\n"), 0))
	}

	b.check(unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET))
	b.run("ip", "link set in1 addrgenmode none\nlink set in1 up\nlink set out1 addrgenmode none\nlink set out1 up\n", nil, "-batch", "-")
	b.inject[in0], b.inject[out0] = b.packetSocket("in1"), b.packetSocket("out1")
	b.check(unix.Setns(int(home.Fd()), unix.CLONE_NEWNET))
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		b.transmit[family] = b.socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
		icmp := map[int]int{unix.AF_INET: unix.IPPROTO_ICMP, unix.AF_INET6: unix.IPPROTO_ICMPV6}[family]
		for _, proto := range []int{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, icmp} {
			fd := b.socket(family, unix.SOCK_RAW, proto)
			if family == unix.AF_INET6 {
				b.check(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
			}
			b.local[fd], b.protocolOf[fd] = family, byte(proto)
		}
	}
	return b
}

func (b *box) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) run(program, input string, file *os.File, args ...string) {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), program, args...)
	cmd.Stdin = strings.NewReader(input)
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%s: %v\n%s\n%s", program, err, out, input)
	}
}

func (b *box) socket(family, kind, proto int) int {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	b.check(err)
	b.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// packetSocket sends and sees the frames of an interface.
func (b *box) packetSocket(device string) int {
	dev, err := net.InterfaceByName(device)
	b.check(err)
	fd := b.socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	b.check(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: dev.Index}))
	return fd
}

func htons(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// send injects a packet, or sends it as the box.
func (b *box) send(p Packet, id uint16) {
	b.t.Helper()
	datagram := encode(p, id)
	if p.Iif != 0 {
		b.frame(p.Iif, p.Daddr.Is6(), datagram)
		return
	}
	var to unix.Sockaddr
	family := unix.AF_INET6
	if p.Daddr.Is6() {
		to = &unix.SockaddrInet6{Addr: p.Daddr.As16()}
	} else {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: p.Daddr.As4()}
	}
	if err := unix.Sendto(b.transmit[family], datagram, 0, to); err != unix.EPERM { // what a drop gives
		b.check(err)
	}
}

func (b *box) frame(iface uint32, six bool, datagram []byte) {
	b.t.Helper()
	frame := append(make([]byte, 0, 128), 0x02, 0, 0, 0, 0, map[uint32]byte{in0: 0x10, out0: 0x20}[iface], 0x02, 0, 0, 0, 0, 0x99)
	if six {
		frame = append(frame, 0x86, 0xdd)
	} else {
		frame = append(frame, 0x08, 0x00)
	}
	_, err := unix.Write(b.inject[iface], append(frame, datagram...))
	b.check(err)
}

// fenceFlow is a connection that was there before the rules, so they do not concern
// it. What was sent before a packet of it has been dealt with when that packet arrives.
var fenceFlow = Packet{Saddr: netip.MustParseAddr("192.0.2.200"), Daddr: netip.MustParseAddr("10.1.255.254"), Proto: nft.UDP, Dport: 1, Iif: in0}

const fenceID = 1

// openFence waits until packets pass the box both ways, which a new interface takes its
// time for, and so makes the connection of the fence. The chains make the kernel
// decide about its NAT, and the rule makes it track connections in the first place.
func (b *box) openFence() {
	b.t.Helper()
	b.load(nft.Ruleset{nft.IPv4: &nft.Table{Chains: map[string]*nft.Chain{
		"prerouting":  {Name: "prerouting", Hook: nft.HookPrerouting, Priority: nft.PriorityDstNAT},
		"postrouting": {Name: "postrouting", Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT, Rules: []nft.Rule{{nft.MatchNotDNAT{}}}},
	}}})
	back := Packet{Saddr: fenceFlow.Daddr, Daddr: fenceFlow.Saddr, Proto: nft.UDP, Dport: 2, Iif: out0}
	var seen []sighting
	for range 500 {
		b.send(fenceFlow, fenceID)
		b.send(back, fenceID+1)
		for b.poll(out0, 10) || b.poll(in0, 10) {
			seen = b.drain(b.drain(seen, b.inject[in0], unix.AF_PACKET), b.inject[out0], unix.AF_PACKET)
		}
		if saw(seen, fenceID) && saw(seen, fenceID+1) {
			return
		}
	}
	b.t.Fatal("the box forwards nothing")
}

func saw(seen []sighting, id uint16) bool {
	return slices.ContainsFunc(seen, func(s sighting) bool { return s.id == id })
}

// poll reports whether something leaves by an interface within some milliseconds.
func (b *box) poll(iface uint32, timeout int) bool {
	b.t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(b.inject[iface]), Events: unix.POLLIN}}, timeout)
	if err != unix.EINTR {
		b.check(err)
	}
	return n > 0
}

// settle waits until the kernel is through with all that was sent, and returns what was
// seen of it.
func (b *box) settle() []sighting {
	b.t.Helper()
	b.send(fenceFlow, fenceID)
	var seen []sighting
	for deadline := time.Now().Add(time.Minute); !saw(seen, fenceID); {
		b.poll(out0, 100)
		seen = b.drain(seen, b.inject[out0], unix.AF_PACKET)
		if time.Now().After(deadline) {
			b.t.Fatal("the packet that shows that all others were handled did not arrive")
		}
	}
	seen = b.drain(seen, b.inject[in0], unix.AF_PACKET)
	for fd, family := range b.local {
		seen = b.drain(seen, fd, family)
	}
	return seen
}

// drain reads what a socket has got.
func (b *box) drain(seen []sighting, fd, family int) []sighting {
	b.t.Helper()
	var data [2048]byte
	var oob [256]byte
	for {
		n, noob, _, from, err := unix.Recvmsg(fd, data[:], oob[:], unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			return seen
		}
		b.check(err)
		datagram := data[:n]
		switch from := from.(type) {
		case *unix.SockaddrLinklayer:
			if from.Pkttype == unix.PACKET_OUTGOING {
				continue // our own
			}
			datagram = datagram[14:]
		case *unix.SockaddrInet6: // a raw socket of IPv6 gives no IP header
			datagram = prependIPv6(b.protocolOf[fd], netip.AddrFrom16(from.Addr), destination(oob[:noob]), datagram)
		}
		if s, ok := decode(datagram); ok {
			s.local = family != unix.AF_PACKET
			seen = append(seen, s)
		}
	}
}

// destination is the address in the control message of IPV6_RECVPKTINFO.
func destination(oob []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 || len(messages[0].Data) < 16 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(messages[0].Data[:16]))
}

// load makes a ruleset the only one of the box.
func (b *box) load(rs nft.Ruleset) {
	b.t.Helper()
	var script strings.Builder
	script.WriteString("flush ruleset\n")
	b.check(rs.WriteText(&script))
	b.run("nft", script.String(), nil, "-f", "-")
}
