package relay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/listen"
)

// errNoEndpoint means that a Port has no endpoint to connect to.
var errNoEndpoint = errors.New("there is no endpoint")

// attempt is one attempt to connect to an endpoint, with its result.
type attempt struct {
	to   netip.AddrPort
	conn *net.TCPConn
	err  error
	took time.Duration
}

// connect connects to an endpoint for a client. near is the client's connection, client its address, and asked the address that it connected to. If
// an endpoint refuses or does not accept in time, connect tries another one. If an endpoint has not accepted within the time of hedge.begin, it tries
// another one in parallel, and uses the first to accept. At most Connect.Retries further endpoints are tried, each once. Endpoints that failed or
// were slower become suspects (balancer.suspect). Those of failed count as tried. The connection counts as open until end or balancer.done is called.
func (t *tcpPort) connect(ctx context.Context, near *net.TCPConn, client, asked netip.AddrPort, failed ...netip.AddrPort) (*net.TCPConn, netip.AddrPort, error) {
	how := t.current().Connect
	if how.Timeout <= 0 {
		how.Timeout = t.shared.limits.dial
	}
	hops, counted := hopsLeft(hopsOf(near))
	if !counted {
		hops = -1
	}
	results, over := make(chan attempt), make(chan struct{})
	defer close(over)
	// Attempts that are overtaken go on: one that is accepted after all shows that its endpoint, or this box, was only slow.
	dialing, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()

	tried := failed
	var waiting, beside []netip.AddrPort // in their order; those of beside were begun beside others
	begin := func() bool {
		if len(tried) > how.Retries {
			return false
		}
		to, is := t.endpoints.pick(client, asked, tried...)
		if !is {
			return false
		}
		tried, waiting = append(tried, to), append(waiting, to)
		go func() {
			a := t.attempt(dialing, how, client, to, hops)
			select {
			case results <- a:
			case <-over:
				if a.conn != nil {
					reset(a.conn)
					t.endpoints.trust(to)
				}
				t.endpoints.done(to)
			}
		}()
		return true
	}
	why, pause := errNoEndpoint, t.hedge.begin(t.shared.limits.hedge)
	patience := time.NewTimer(pause)
	defer patience.Stop()
	for more := begin(); more; {
		select {
		case <-patience.C:
			if t.hedge.may() && begin() {
				beside = append(beside, tried[len(tried)-1])
				patience.Reset(pause)
			}
		case a := <-results:
			at := slices.Index(waiting, a.to)
			if a.err == nil {
				t.overtaken(waiting[:at])
				t.endpoints.accepted(client, a.to)
				t.hedge.took(a.took, countIn(beside, tried[slices.Index(tried, a.to)+1:]))
				return a.conn, a.to, nil
			}
			t.endpoints.done(a.to)
			waiting = slices.Delete(waiting, at, at+1)
			if why = a.err; ctx.Err() != nil {
				more = false // the client left, or the program is handed over: the endpoint is not at fault
				continue
			}
			t.overtaken([]netip.AddrPort{a.to})
			if begin() {
				patience.Reset(pause)
			}
			more = len(waiting) > 0
		}
	}
	cancel(why)
	return nil, netip.AddrPort{}, fmt.Errorf("%d endpoints tried: %w", len(tried), why)
}

// attempt connects to the endpoint to. hops is the TTL or hop limit of its packets, -1 for the default.
func (t *tcpPort) attempt(ctx context.Context, how Connect, client, to netip.AddrPort, hops int) attempt {
	var source netip.AddrPort
	transparent := how.Transparent && client.Addr() != to.Addr() && client.Addr().Is4() == to.Addr().Is4()
	if transparent {
		source = netip.AddrPortFrom(client.Addr(), 0)
	}
	prepare := func(network, address string, c syscall.RawConn) error {
		if hops >= 0 {
			if err := sendHops(network, c, hops); err != nil {
				return err
			}
		}
		if transparent {
			return asOthers(network, address, c)
		}
		return nil
	}
	began := time.Now()
	conn, err := dial(ctx, how.Timeout, prepare, source, to)
	return attempt{to, conn, err, time.Since(began)}
}

// overtaken records that endpoints did not accept a connection, or accepted it later than another endpoint.
func (t *tcpPort) overtaken(endpoints []netip.AddrPort) {
	for _, e := range endpoints {
		t.endpoints.suspect(e, t.shared.limits.last)
		t.shared.failedConnects.Add(1)
		t.failedConnects.Add(1)
	}
}

// countIn returns how many elements of list are also in other.
func countIn(list, other []netip.AddrPort) (n int) {
	for _, e := range list {
		if slices.Contains(other, e) {
			n++
		}
	}
	return n
}

const (
	// vainShare is the maximum number of parallel attempts that turn out not to be needed, as a fraction of all connections. Without this limit, slow
	// endpoints would get every connection twice.
	vainShare = 0.2
	// vainBurst is the number of parallel attempts beyond vainShare that are permitted in a burst.
	vainBurst = 20
)

// hedge decides when to try another endpoint in parallel because one has not accepted a connection yet. The zero value is ready to use.
type hedge struct {
	mu   sync.Mutex
	mean time.Duration // moving average of the time that endpoints take to accept
	vain float64       // number of unneeded parallel attempts, minus vainShare per connection; at least 0
}

// begin counts a connection. It returns how long to wait for an endpoint before a parallel attempt: twice the mean time that endpoints take to
// accept, but not less than least.
func (h *hedge) begin(least time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vain = max(h.vain-vainShare, 0)
	return max(least, 2*h.mean)
}

// may reports whether a parallel attempt is permitted at present.
func (h *hedge) may() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.vain < vainBurst
}

// took records how long an endpoint took to accept a connection, and how many parallel attempts for that connection were not needed.
func (h *hedge) took(d time.Duration, vain int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.vain += float64(vain); h.mean == 0 {
		h.mean = d
		return
	}
	h.mean += (d - h.mean) / 8
}

// errNoAnswer means that an endpoint did not accept a connection within the timeout.
var errNoAnswer = errors.New("it did not accept in time")

// prepareSocket sets options of a socket before it connects (net.Dialer.Control).
type prepareSocket func(network, address string, c syscall.RawConn) error

// dial connects to an endpoint within timeout. prepare may be nil. A connection that the kernel has established in time is used even if this process
// notices it later. Otherwise a process that has to wait for a CPU, as after a hand-over on a busy box, would blame the endpoint for its own delay.
// (With the deadline of a net.Dialer such a connection fails.)
func dial(ctx context.Context, timeout time.Duration, prepare prepareSocket, source, to netip.AddrPort) (*net.TCPConn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var late *time.Timer
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveEvery, Interval: keepAliveEvery, Count: -1}, Control: func(network, address string, c syscall.RawConn) error {
		if late != nil {
			late.Stop() // of another socket, before net tries once more
		}
		late = time.AfterFunc(timeout, func() { giveUp(c, cancel) })
		if prepare == nil {
			return nil
		}
		return prepare(network, address, c)
	}}
	endpoint, err := dialer.DialTCP(ctx, "tcp", source, to)
	if late != nil {
		late.Stop()
	}
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		return nil, fmt.Errorf("connect to %s: %w", to, errNoAnswer)
	}
	return endpoint, err
}

// giveUp cancels a connection attempt after its timeout, unless the kernel has established the connection.
func giveUp(c syscall.RawConn, cancel context.CancelCauseFunc) {
	connected := false
	err := c.Control(func(fd uintptr) {
		_, err := unix.Getpeername(int(fd))
		connected = err == nil
	})
	if err == nil && !connected {
		cancel(errNoAnswer)
	}
}

// keepAliveEvery is the time without data after which a TCP keepalive probe is sent, and the interval between further probes.
const keepAliveEvery = 15 * time.Second

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// networkOf returns the network name for package net: the protocol with the suffix "4" or "6", such as "tcp4".
func networkOf(protocol string, addr netip.Addr) string {
	if addr.Is4() {
		return protocol + "4"
	}
	return protocol + "6"
}

// asOthers permits a socket to use a source address that this host does not have (ip(7), IP_TRANSPARENT). The kernel chooses the source port when the
// socket connects (IP_BIND_ADDRESS_NO_PORT).
func asOthers(network, _ string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if network == "tcp6" {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	return errors.Join(setInt(c, level, option, 1), setInt(c, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
}

// Origin returns the original destination of a UDP client that the kernel redirected to the given listener.
type Origin func(listener, client netip.AddrPort) (netip.AddrPort, error)

// originalDestination returns the address that a client connected to before the kernel redirected the connection (SO_ORIGINAL_DST of
// linux/netfilter_ipv4.h, IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h).
func originalDestination(client *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := client.SyscallConn()
	if err != nil {
		return to, err
	}
	v6 := client.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().Is6()
	var failed error
	err = raw.Control(func(fd uintptr) {
		if v6 {
			// The struct begins with a sockaddr_in6, and is no smaller.
			info, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
			if failed = err; err == nil {
				to = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port)))
			}
			return
		}
		// A struct of 20 bytes, which a sockaddr_in of 16 fits into: family, port, address.
		raw, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if failed = err; err == nil {
			b := raw.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	if failed != nil {
		err = os.NewSyscallError("getsockopt", failed)
	}
	return to, err
}

// A relay makes connections of its own, so nothing that the kernel forwards ends a loop of relays that point to each
// other. Therefore it counts as a router: what it sends to an endpoint has one hop less than what came from the client (RFC 791, TTL;
// RFC 8200, hop limit).

// maxHops is the maximum number of relays that a connection or datagram may pass in a row, even if the client started with a higher TTL.
const maxHops = 64

// hopsLeft returns the TTL to use towards the next relay or endpoint. came is the TTL with which the connection or datagram arrived, 0 if it could
// not be determined; known is then false. If left is 0, the connection must not be passed on.
func hopsLeft(came int) (left int, known bool) { return min(came, maxHops+1) - 1, came > 0 }

// countHops makes the kernel record the TTL of packets that a socket, or a connection accepted from it, receives (ip(7), IP_RECVTTL; ipv6(7),
// IPV6_RECVHOPLIMIT).
func countHops(network string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_RECVTTL
	if isIPv6(network) {
		level, option = unix.SOL_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	return setInt(c, level, option, 1)
}

// sendHops sets the TTL (IPv4) or hop limit (IPv6) of the packets that a socket sends.
func sendHops(network string, c syscall.RawConn, hops int) error {
	level, option := unix.SOL_IP, unix.IP_TTL
	if isIPv6(network) {
		level, option = unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS
	}
	return setInt(c, level, option, hops)
}

// isIPv6 reports whether a network name of package net, such as "tcp6", is for IPv6 only.
func isIPv6(network string) bool { return network[len(network)-1] == '6' }

func setInt(c syscall.RawConn, level, option, value int) error {
	return listen.Control(c, func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, option, value))
	})
}

// hopsOf returns the TTL of a client's SYN, or for IPv6 the hop limit of its newest packet. It returns 0 if it cannot be determined. The kernel
// stores it with the connection (tcp_v4_syn_recv_sock, tcp_v6_do_rcv) and returns it as a control message: a struct cmsghdr and an int.
func hopsOf(client *net.TCPConn) (hops int) {
	at, is := client.LocalAddr().(*net.TCPAddr)
	raw, err := client.SyscallConn()
	if !is || err != nil {
		return 0
	}
	level, option, kind := unix.SOL_IP, unix.IP_PKTOPTIONS, unix.IP_TTL
	if at.IP.To4() == nil {
		level, option, kind = unix.SOL_IPV6, unix.IPV6_2292PKTOPTIONS, unix.IPV6_HOPLIMIT
	}
	_ = raw.Control(func(fd uintptr) { // of a closed connection nothing is known
		// The struct has room for one message: its Addr begins with level and type, before the value.
		info, err := unix.GetsockoptIPv6MTUInfo(int(fd), level, option)
		if err != nil {
			return
		}
		b := binary.NativeEndian.AppendUint16(nil, info.Addr.Family)
		b = binary.BigEndian.AppendUint16(b, info.Addr.Port)
		b = binary.NativeEndian.AppendUint32(b, info.Addr.Flowinfo)
		hops = hopsIn(append(b, info.Addr.Addr[:]...), level, kind)
	})
	return hops
}

// hopsIn returns the TTL or hop limit from a control message, 0 if it contains none.
func hopsIn(control []byte, level, kind int) int {
	value := unix.CmsgLen(0)
	if len(control) < value+4 {
		return 0
	}
	if header := control[value-8 : value]; int(binary.NativeEndian.Uint32(header)) != level || int(binary.NativeEndian.Uint32(header[4:])) != kind {
		return 0
	}
	return int(binary.NativeEndian.Uint32(control[value:]))
}

// introduce sends an endpoint a PROXY protocol header (haproxy.org, proxy-protocol.txt), if the port is configured for it. The header has the address
// of the client, and asked, the address to which the client connected. It is the first data on the connection, so it fits into the send buffer.
func (t *tcpPort) introduce(endpoint *net.TCPConn, client, asked netip.AddrPort) error {
	version := t.current().Connect.ProxyProtocol
	if version == 0 {
		return nil
	}
	header, err := headerOf(version, client, asked)
	if err != nil {
		return err
	}
	_, err = endpoint.Write(header)
	return err
}

// headerOf returns a PROXY protocol header of version 1 or 2.
func headerOf(version int, from, to netip.AddrPort) ([]byte, error) {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	header, err := proxyproto.HeaderProxyFromAddrs(byte(version), net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)).Format()
	if err != nil {
		return nil, fmt.Errorf("header from %s to %s: %w", from, to, err)
	}
	return header, nil
}

// maxHeader is the maximum size of a received PROXY protocol header in bytes. It suffices for version 2 with the TLVs that load balancers add.
const maxHeader = 4096

// The first bytes of a PROXY protocol header of version 1 and 2.
var (
	signature1 = []byte("PROXY ")
	signature2 = []byte("\r\n\r\n\x00\r\nQUIT\n")
)

var (
	errNoHeader   = errors.New("it does not begin with a header of the PROXY protocol")
	errLongHeader = errors.New("its header of the PROXY protocol is too long")
)

// clientOf returns the address of a client, and the address that it connected to. They are taken from the PROXY protocol header if the peer is in
// Port.ProxyFrom, and otherwise from the kernel. clientOf reads nothing after the header. If ctx is done before the whole header has arrived,
// clientOf leaves it in the socket for the next process.
func (t *tcpPort) clientOf(ctx context.Context, client *net.TCPConn, asked netip.AddrPort) (from, to netip.AddrPort, err error) {
	from = client.RemoteAddr().(*net.TCPAddr).AddrPort()
	from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
	if !slices.ContainsFunc(t.current().ProxyFrom, func(p netip.Prefix) bool { return p.Contains(from.Addr()) }) {
		return from, asked, nil
	}
	if err := client.SetReadDeadline(time.Now().Add(t.shared.limits.header)); err != nil {
		return from, asked, err
	}
	stop := context.AfterFunc(ctx, func() { interrupt(client) })
	defer stop()
	raw, err := client.SyscallConn()
	if err != nil {
		return from, asked, err
	}
	header, err := takeHeader(raw, &t.shared.pump.buffers)
	if err != nil {
		return from, asked, err
	}
	source, destination, err := readHeader(header)
	if err != nil {
		return from, asked, err
	}
	if source.IsValid() { // else a connection of the balancer itself, as a health check
		from, asked = source, destination
	}
	return from, asked, client.SetReadDeadline(time.Time{})
}

// takeHeader waits for a PROXY protocol header and reads it from a connection, but nothing after it. buffers are the buffers of a pump.
func takeHeader(raw syscall.RawConn, buffers *sync.Pool) (header []byte, err error) {
	var failed error
	err = raw.Read(func(fd uintptr) (done bool) {
		buf := buffers.Get().(*[chunk]byte)
		defer buffers.Put(buf)
		b := buf[:maxHeader]
		n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			return false
		case err != nil || n == 0:
			failed = errors.Join(err, errNoHeader)
			return true
		}
		size, err := headerSize(b[:n])
		switch {
		case err != nil:
			failed = err
		case size == 0 || size > n:
			return false // more is to come
		default:
			header = bytes.Clone(b[:size])
			if n, failed = unix.Read(int(fd), b[:size]); failed == nil && n < size {
				failed = errNoHeader
			}
		}
		return true
	})
	return header, errors.Join(err, failed)
}

// headerSize returns the size of the PROXY protocol header at the start of b. The size may exceed len(b). It is 0 while too little of the header has
// arrived to determine it.
func headerSize(b []byte) (int, error) {
	begins := func(signature []byte) bool {
		n := min(len(b), len(signature))
		return bytes.Equal(b[:n], signature[:n])
	}
	switch {
	case begins(signature2):
		if len(b) < 16 {
			return 0, nil
		}
		size := 16 + int(b[14])<<8 + int(b[15])
		if size > maxHeader {
			return 0, errLongHeader
		}
		return size, nil
	case begins(signature1):
		const longest = 107 // with its end
		if i := bytes.Index(b[:min(len(b), longest)], []byte("\r\n")); i >= 0 {
			return i + 2, nil
		}
		if len(b) >= longest {
			return 0, errLongHeader
		}
		return 0, nil
	}
	return 0, errNoHeader
}

// readHeader returns the source and destination in a PROXY protocol header. They are zero if the header contains no TCP addresses (LOCAL, UNKNOWN, or
// another address family).
func readHeader(b []byte) (from, to netip.AddrPort, err error) {
	header, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return from, to, fmt.Errorf("header of the PROXY protocol: %w", err)
	}
	source, destination, is := header.TCPAddrs()
	if header.Command.IsLocal() || !is {
		return from, to, nil
	}
	from, to = source.AddrPort(), destination.AddrPort()
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if from.Addr().Is4() != to.Addr().Is4() {
		return netip.AddrPort{}, netip.AddrPort{}, fmt.Errorf("header of the PROXY protocol: %s and %s are of two families", from, to)
	}
	return from, to, nil
}
