package bench

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// Flags of TCP headers.
const (
	fin, syn, psh, ack = 1, 2, 8, 16
)

// segment is a frame with a TCP segment of a flow, as an Ethernet interface without neighbors receives it.
func (f flow) segment(flags byte, sequence, acknowledged uint32, payload int) []byte {
	const ethernet, ip, tcp = 14, 20, 20
	frame := make([]byte, ethernet+ip+tcp+payload)
	copy(frame, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}) // the first one is the interface's
	p := frame[ethernet:]
	copy(p, flow{f.from, f.to}.packet()[:ip])
	p[9] = unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	binary.BigEndian.PutUint16(p[10:], 0)
	binary.BigEndian.PutUint16(p[10:], ^checksum(0, p[:ip]))
	t := p[ip:]
	binary.BigEndian.PutUint16(t, f.from.Port())
	binary.BigEndian.PutUint16(t[2:], f.to.Port())
	binary.BigEndian.PutUint32(t[4:], sequence)
	binary.BigEndian.PutUint32(t[8:], acknowledged)
	t[12], t[13] = tcp/4<<4, flags
	binary.BigEndian.PutUint16(t[14:], 65000)
	binary.BigEndian.PutUint16(t[16:], ^checksum(uint32(unix.IPPROTO_TCP+len(t))+uint32(checksum(0, p[12:ip])), t))
	return frame
}

// checksum is the sum of RFC 1071.
func checksum(sum uint32, b []byte) uint16 {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// sent is a frame that one side of a router receives.
type sent struct {
	port  port
	frame []byte
}

// fastBox is a box between a client and an endpoint of a Service.
type fastBox struct {
	*router
	port    uint16 // of the client's connections
	client  netip.Addr
	took    map[string][]time.Duration
	offload bool
}

func newFastBox(b *testing.B, lab *netlab.Lab, flags ...string) *fastBox {
	b.Helper()
	h := lab.Router("gw")
	x := &fastBox{
		router: &router{h, openTAP(b, h, clientSide, "100.64.0.1/10"), openTAP(b, h, serverSide, "10.128.0.1/9")},
		client: netip.AddrFrom4([4]byte{100, 64, 0, 2}), took: map[string][]time.Duration{}, offload: !slices.Contains(flags, "--fast-path=off"), port: 2000,
	}
	svcctl := h.Appliance(*program, slices.Concat(boxFlags, flags)...)
	svcctl.Patience = 5 * time.Minute
	writeServices(svcctl.Manifests, 1_000)
	svcctl.Manifests.Write("web.yaml", service("web", "clusterIP: "+vip.Addr().String(), "TCP")+slice("web", "TCP", []netip.Addr{endpointOfWeb.Addr()}))
	svcctl.Start()
	svcctl.Stop() // the rules stay, and it takes no CPU from what is measured
	return x
}

var endpointOfWeb = netip.MustParseAddrPort("10.128.0.2:8080")

// openTAP makes an Ethernet interface on a host, without neighbors to be asked for.
func openTAP(b *testing.B, h *netlab.Host, name, prefix string) port {
	b.Helper()
	p := openPort(b, h, name, prefix, unix.IFF_TAP)
	if err := h.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetHardwareAddr(link, []byte{2, 0, 0, 0, 0, 1})
		}
		if err == nil {
			err = netlink.LinkSetARPOff(link)
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
	return p
}

// inject gives the CPU time of the thread for all frames.
func (x *fastBox) inject(b *testing.B, frames []sent) (took time.Duration) {
	b.Helper()
	if err := x.Do(func() error {
		before, err := threadTime()
		if err != nil {
			return err
		}
		for i := range frames {
			f := frames[i].frame
			if _, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(frames[i].port.fd), uintptr(unsafe.Pointer(&f[0])), uintptr(len(f))); errno != 0 {
				return fmt.Errorf("inject a frame: %w", errno)
			}
		}
		after, err := threadTime()
		took = after - before
		return err
	}); err != nil {
		b.Fatal(err)
	}
	return took
}

// connection is the frames of a TCP connection to an address: those that open it, what is asked and answered then, and those
// that close it.
func (x *fastBox) connection(to netip.AddrPort) (opens, asks, closes []sent) {
	x.port++
	request, answer := flow{netip.AddrPortFrom(x.client, x.port), to}, flow{endpointOfWeb, netip.AddrPortFrom(x.client, x.port)}
	client := func(flags byte, sequence, acknowledged uint32, payload int) sent {
		return sent{x.in, request.segment(flags, sequence, acknowledged, payload)}
	}
	server := func(flags byte, sequence, acknowledged uint32, payload int) sent {
		return sent{x.out, answer.segment(flags, sequence, acknowledged, payload)}
	}
	opens = []sent{client(syn, 100, 0, 0), server(syn|ack, 500, 101, 0), client(ack, 101, 501, 0)}
	asks = []sent{client(psh|ack, 101, 501, 1), server(psh|ack, 501, 102, 1), client(ack, 102, 502, 0)}
	closes = []sent{client(fin|ack, 102, 502, 0), server(fin|ack, 502, 103, 0), client(ack, 103, 503, 0)}
	return opens, asks, closes
}

// rounds of one kind each, and what one is.
const (
	establishedPacket = "a packet of an established connection, both directions in turns"
	shortConnection   = "connect, request, answer, close: 9 packets"
	foreignPacket     = "a packet of a connection that is not to a Service"
)

// turn measures everything once.
func (x *fastBox) turn(b *testing.B) {
	b.Helper()
	const packets, short = 2000, 200
	for what, to := range map[string]netip.AddrPort{establishedPacket: vip, foreignPacket: endpointOfWeb} {
		opens, asks, _ := x.connection(to)
		x.inject(b, opens)
		x.inject(b, slices.Repeat(asks[:2], 300)) // becomes fast meanwhile, if it can
		if listed, _, err := x.Run("conntrack", "-L", "-p", "tcp", "--orig-port-src", fmt.Sprint(x.port)); err != nil || strings.Contains(listed, "[OFFLOAD]") != (x.offload && what == establishedPacket) {
			b.Fatalf("%s, offloaded %v: %v %s", what, x.offload, err, listed)
		}
		x.took[what] = append(x.took[what], x.inject(b, slices.Repeat(asks[:2], packets/2))/packets)
	}
	var frames []sent
	for range short {
		opens, asks, closes := x.connection(vip)
		frames = slices.Concat(frames, opens, asks, closes)
	}
	before := x.sent(b)
	x.took[shortConnection] = append(x.took[shortConnection], x.inject(b, frames)/short)
	if forwarded := x.sent(b) - before; forwarded != short*6 {
		b.Fatalf("%d of %d packets of clients were forwarded", forwarded, short*6)
	}
	x.forgetFlows(b)
}

// BenchmarkFastPath is what the fast path saves and costs: with it, and without, in turns.
func BenchmarkFastPath(b *testing.B) {
	const section = "Fast path: CPU"
	lab := netlab.New(b)
	host := lab.Router("try")
	if _, _, err := host.RunInput("table ip try {\n flowtable f { hook ingress priority 0; }\n chain c { flow add @f; }\n}\n", "nft", "-f", "-"); err != nil {
		results.add(section, "not measured: this kernel has no flowtables", "", "BENCH=FastPath appliance/e2e/kernels/run.sh")
		b.Skip("SKIPPED: this kernel has no flowtables")
	}
	without, again, with := newFastBox(b, lab, "--fast-path=off"), newFastBox(b, lab, "--fast-path=off"), newFastBox(b, lab, "--fast-path=all")
	for range *rounds {
		for _, x := range []*fastBox{without, again, with} {
			x.turn(b)
		}
	}
	for _, what := range []string{establishedPacket, shortConnection, foreignPacket} {
		results.add(section, what+", --fast-path off", ms(median(without.took[what])), fmt.Sprintf("%.3fx another box of the same", median(ratios(again.took[what], without.took[what]))))
		results.add(section, what+", --fast-path all", ms(median(with.took[what])), fmt.Sprintf("%.3fx off", median(ratios(with.took[what], without.took[what]))))
	}
}
