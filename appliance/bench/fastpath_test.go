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
	serveWeb(h, flags)
	return x
}

// serveWeb has a box serve the Service that is measured, among 1,000.
func serveWeb(h *netlab.Host, flags []string) {
	svcctl := h.Appliance(*program, slices.Concat(boxFlags, flags)...)
	svcctl.Patience = 5 * time.Minute
	writeServices(svcctl.Manifests, 1_000)
	svcctl.Manifests.Write("web.yaml", service("web", "clusterIP: "+vip.Addr().String(), "TCP")+slice("web", "TCP", []netip.Addr{endpointOfWeb.Addr()}))
	svcctl.Start()
	svcctl.Stop() // the rules stay, and it takes no CPU from what is measured
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

// What is measured, of the box alone.
const (
	establishedPacket = "CPU of a packet of an established connection"
	shortConnection   = "CPU of the 9 packets of connect, request, answer, close"
	foreignPacket     = "CPU of a packet of a connection not to a Service"
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

// ends is a box between a client and a server with sockets.
type ends struct {
	client *netlab.Host
	took   map[string][]time.Duration
}

const (
	shortWithEnds   = "connect, answer, close, with both ends"
	fastWithEnds    = "request and answer, with both ends"
	foreignWithEnds = "request and answer not to a Service, with both ends"
)

func newEnds(b *testing.B, flags ...string) *ends {
	b.Helper()
	lab := netlab.New(b)
	gw, client, server := lab.Router("gw"), lab.Host("client"), lab.Host("server")
	lab.Segment("c").Attach(gw, clientSide, "100.64.0.1/10").Attach(client, "eth0", "100.64.0.2/10")
	lab.Segment("s").Attach(gw, serverSide, "10.128.0.1/9").Attach(server, "eth0", endpointOfWeb.Addr().String()+"/9")
	client.Route("default", "100.64.0.1")
	server.Route("default", "10.128.0.1")
	server.Serve("tcp", endpointOfWeb.Port())
	serveWeb(gw, flags)
	return &ends{client, map[string][]time.Duration{}}
}

// turn measures the time of everything once: of a machine with one processor that is its work.
func (x *ends) turn(b *testing.B) {
	b.Helper()
	const times = 200
	measure := func(what string, exchange func() error) {
		began := time.Now()
		for range times {
			if err := exchange(); err != nil {
				b.Fatalf("%s: %v", what, err)
			}
		}
		x.took[what] = append(x.took[what], time.Since(began)/times)
	}
	measure(shortWithEnds, func() error {
		_, err := x.client.Ask("tcp", vip, netlab.Within(patience))
		return err
	})
	for what, to := range map[string]netip.AddrPort{fastWithEnds: vip, foreignWithEnds: endpointOfWeb} {
		c, err := x.client.Dial(to, netlab.Within(patience))
		if err != nil {
			b.Fatal(err)
		}
		echo := func() error { return c.Echo("x", netlab.Within(patience)) }
		for range times { // becomes fast meanwhile, if it can
			if err := echo(); err != nil {
				b.Fatal(err)
			}
		}
		measure(what, echo)
		c.Close()
	}
}

// BenchmarkFastPath is what the fast path saves and costs: with it, and without, in turns.
func BenchmarkFastPath(b *testing.B) {
	const section = "Fast path"
	lab := netlab.New(b)
	if _, _, err := lab.Router("try").RunInput("table ip try {\n flowtable f { hook ingress priority 0; }\n chain c { flow add @f; }\n}\n", "nft", "-f", "-"); err != nil {
		results.add(section, "not measured: this kernel has no flowtables", "", "BENCH=FastPath appliance/e2e/kernels/run.sh")
		b.Skip("SKIPPED: this kernel has no flowtables")
	}
	off, all := "--fast-path=off", "--fast-path=all"
	without, again, with := newFastBox(b, lab, off), newFastBox(b, lab, off), newFastBox(b, lab, all)
	endsWithout, endsWith := newEnds(b, off), newEnds(b, all)
	for range *rounds {
		for _, x := range []*fastBox{without, again, with} {
			x.turn(b)
		}
		endsWithout.turn(b)
		endsWith.turn(b)
	}
	compare := func(what string, without, with []time.Duration, more string) {
		results.add(section, what, ms(median(with)), fmt.Sprintf("%.3fx of %s without%s", median(ratios(with, without)), ms(median(without)), more))
	}
	for _, what := range []string{establishedPacket, shortConnection, foreignPacket} {
		compare(what, without.took[what], with.took[what], fmt.Sprintf("; another box without %.3fx", median(ratios(again.took[what], without.took[what]))))
	}
	for _, what := range []string{fastWithEnds, shortWithEnds, foreignWithEnds} {
		compare(what, endsWithout.took[what], endsWith.took[what], "")
	}
}
