package prober

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/health"
)

// conn is the connected socket of a probe. Closing a TCP socket sends a reset.
type conn struct {
	*os.File
	remote netip.AddrPort
}

func (c *conn) LocalAddr() net.Addr  { return &net.TCPAddr{} }
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// adopt wraps the connected socket of a probe in a conn with a deadline. network.close makes the deadline expire at once.
func (n *network) adopt(p probe, fd int, deadline time.Time) *conn {
	c := &conn{File: os.NewFile(uintptr(fd), "probe"), remote: p.target.addr}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		deadline = time.Unix(1, 0)
	}
	_ = c.SetDeadline(deadline)
	n.talking[p.serial] = c
	return c
}

func (n *network) release(serial uint64, c *conn) {
	n.mu.Lock()
	delete(n.talking, serial)
	n.mu.Unlock()
	_ = c.Close()
}

// socket creates a socket for a probe, and connects it. The error EINPROGRESS means that the TCP handshake is under way. The source port is the fixed
// port of the target. It is an ephemeral one if the probe asks for that, or if the fixed port is in use.
func (n *network) socket(p probe, kind int) (int, error) {
	if n.ports.First > 0 && !p.ephemeral {
		if fd, err := connect(p.target, kind, n.ports.of(p.target.hash)); !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EADDRINUSE) {
			return fd, err
		}
	}
	return connect(p.target, kind, 0)
}

// of returns the fixed source port of the target with the given hash.
func (p Ports) of(hash uint32) uint16 {
	return p.First + uint16(mix(hash)%(uint32(p.Last)-uint32(p.First)+1))
}

func connect(t *target, kind int, port uint16) (fd int, err error) {
	to, family := sockaddr(t.addr)
	fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil && !errors.Is(err, unix.EINPROGRESS) {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	if kind == unix.SOCK_STREAM {
		if err := halfOpen(fd); err != nil {
			return fd, err
		}
	}
	if port > 0 {
		// Many sockets have the same port, and each another server.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fd, err
		}
		var from unix.Sockaddr = &unix.SockaddrInet4{Port: int(port)}
		if family == unix.AF_INET6 {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
				return fd, err
			}
			from = &unix.SockaddrInet6{Port: int(port)}
		}
		if err := unix.Bind(fd, from); err != nil {
			return fd, err
		}
	}
	return fd, unix.Connect(fd, to)
}

// halfOpen sets options of a TCP socket so that closing it right after the SYN-ACK sends a reset and no ACK. Without quick ACK mode the kernel delays
// the ACK for up to 200 ms, waiting for data; with a linger time of 0, closing discards it.
func halfOpen(fd int) error {
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
}

func sockaddr(a netip.AddrPort) (unix.Sockaddr, int) {
	if addr := a.Addr().Unmap(); addr.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, unix.AF_INET6
}

// own lists the errors that are caused by this host, not by the server.
var own = []error{
	unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EPERM, unix.EACCES,
	unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.EAFNOSUPPORT, unix.ENOSPC, unix.EINVAL,
}

// refusal returns the Result of a system call error that occurred before the server sent any data.
func refusal(err error) health.Result {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return failed(health.Void, "not asked: this host had no time for it before the timeout")
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return failed(health.Refused, "no connection")
	}
	for _, of := range own {
		if errors.Is(errno, of) {
			return failed(health.Void, "not asked: "+errno.Error())
		}
	}
	if errno == unix.ETIMEDOUT {
		return failed(health.Silent, "no answer")
	}
	return failed(health.Refused, errno.Error())
}

// broken returns the Result of an error on an open connection. missing describes what the server should have sent. The reason in the Result states
// only the kind of the error, since the text of the error may contain bytes received from the server.
func broken(err error, c *check, missing string) health.Result {
	var errno unix.Errno
	var alert *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return silence(c, "connected, ")
	case errors.As(err, &alert) && alert.Op == "remote error": // with TLS 1.3 also after the handshake; in words of crypto/tls
		return failed(health.Refused, "TLS alert of the server: "+strings.TrimPrefix(alert.Err.Error(), "tls: "))
	case errors.As(err, &errno):
		return refusal(errno)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return failed(health.Refused, "connection closed before "+missing)
	}
	return failed(health.Refused, "the answer is not "+missing)
}

func silence(c *check, before string) health.Result {
	return failed(health.Silent, fmt.Sprintf("%sno answer in %s", before, c.Timeout))
}

func failed(o health.Outcome, why string) health.Result { return health.Result{Outcome: o, Why: why} }

// pings sends ICMP echo requests. It uses one socket for each family, so that there is only one conntrack entry for each address. The socket is a
// ping socket (icmp(7), ping_group_range), or, where these are not permitted, a raw socket, which needs CAP_NET_RAW. The zero value is ready to use.
type pings struct {
	mu     sync.Mutex
	closed bool
	family [2]*pinger // IPv4, IPv6
	wg     sync.WaitGroup
}

// pinger is the ICMP socket of one IP family, with the probes that wait for a reply.
type pinger struct {
	socket *icmp.PacketConn
	raw    bool
	id     uint16 // ICMP identifier for a raw socket; for a ping socket the kernel sets it
	proto  int    // protocol number of ICMP or ICMPv6, for icmp.ParseMessage
	echo   icmp.Type
	reply  icmp.Type
	secret [8]byte // start of each payload, to ignore replies to requests of other programs

	mu      sync.Mutex
	counter uint64
	waiting map[uint64]waiting
}

type waiting struct {
	addr netip.Addr
	done chan struct{}
}

// ask sends one echo request to a target, waits for its reply, and returns the result.
func (p *pings) ask(t *target, deadline time.Time) health.Result {
	to := t.addr.Addr().Unmap()
	pinger, err := p.of(to)
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return failed(health.Void, "not asked: pings need CAP_NET_RAW, or the group of this process in net.ipv4.ping_group_range, which is for both families: `sysctl -w net.ipv4.ping_group_range='0 2147483647'`")
	case err != nil:
		return refusal(err)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	replied, forget, err := pinger.send(to)
	if err != nil {
		return refusal(err)
	}
	defer forget()
	var open bool
	select {
	case _, open = <-replied:
	case <-timer.C:
		select {
		case _, open = <-replied: // both were there when this goroutine woke
		default:
			return silence(t.check, "")
		}
	}
	if !open {
		return failed(health.Void, "not asked: the prober ends")
	}
	return health.Result{}
}

// of returns the pinger for the family of an address. The first call for a family creates it.
func (p *pings) of(addr netip.Addr) (*pinger, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, unix.ENOBUFS
	}
	i, network, raw, all := 0, "udp4", "ip4:1", "0.0.0.0"
	if addr.Is6() {
		i, network, raw, all = 1, "udp6", "ip6:58", "::"
	}
	if p.family[i] != nil {
		return p.family[i], nil
	}
	socket, err := icmp.ListenPacket(network, all)
	isRaw := errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
	if isRaw {
		if socket, err = icmp.ListenPacket(raw, all); err == nil {
			err = onlyReplies(socket)
		}
	}
	if err != nil {
		return nil, err
	}
	pinger := &pinger{socket: socket, raw: isRaw, proto: 1, echo: ipv4.ICMPTypeEcho, reply: ipv4.ICMPTypeEchoReply, waiting: map[uint64]waiting{}}
	if addr.Is6() {
		pinger.proto, pinger.echo, pinger.reply = 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	_, _ = rand.Read(pinger.secret[:]) // never fails
	pinger.id = binary.BigEndian.Uint16(pinger.secret[:])
	p.family[i] = pinger
	p.wg.Go(pinger.listen)
	return pinger, nil
}

// onlyReplies sets a filter on a raw socket so that it receives only echo replies. On an error it closes the socket.
func onlyReplies(socket *icmp.PacketConn) (err error) {
	if c := socket.IPv4PacketConn(); c != nil {
		var filter ipv4.ICMPFilter
		filter.SetAll(true)
		filter.Accept(ipv4.ICMPTypeEchoReply)
		err = c.SetICMPFilter(&filter)
	} else if c := socket.IPv6PacketConn(); c != nil {
		var filter ipv6.ICMPFilter
		filter.SetAll(true)
		filter.Accept(ipv6.ICMPTypeEchoReply)
		err = c.SetICMPFilter(&filter)
	}
	if err != nil {
		_ = socket.Close()
	}
	return err
}

// send sends an echo request. replied receives a value when the reply arrives, and is closed when the pinger's socket is closed. The caller must call
// forget when it no longer waits.
func (p *pinger) send(to netip.Addr) (replied <-chan struct{}, forget func(), err error) {
	done := make(chan struct{}, 1)
	p.mu.Lock()
	if p.waiting == nil {
		p.mu.Unlock()
		return nil, nil, unix.ENOBUFS
	}
	p.counter++
	number := p.counter
	p.waiting[number] = waiting{to, done}
	p.mu.Unlock()
	forget = func() {
		p.mu.Lock()
		delete(p.waiting, number)
		p.mu.Unlock()
	}
	message := icmp.Message{Type: p.echo, Body: &icmp.Echo{ID: int(p.id), Seq: int(uint16(number)), Data: binary.BigEndian.AppendUint64(p.secret[:], number)}}
	packet, err := message.Marshal(nil)
	if err == nil {
		var dest net.Addr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 0))
		if p.raw {
			dest = &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()}
		}
		_, err = p.socket.WriteTo(packet, dest)
	}
	if err != nil {
		forget()
		return nil, nil, err
	}
	return done, forget, nil
}

// listen reads replies until the socket is closed.
func (p *pinger) listen() {
	buffer := make([]byte, 1500)
	for {
		n, from, err := p.socket.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err == nil {
			p.take(buffer[:n], from)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.waiting {
		close(w.done)
	}
	p.waiting = nil
}

// take parses a packet. If it is a reply to a request of this pinger, take signals the probe that waits for it.
func (p *pinger) take(packet []byte, from net.Addr) {
	message, err := icmp.ParseMessage(p.proto, packet)
	if err != nil || message.Type != p.reply {
		return
	}
	echo, is := message.Body.(*icmp.Echo)
	if !is || len(echo.Data) != 16 || [8]byte(echo.Data[:8]) != p.secret {
		return
	}
	var addr netip.Addr
	switch from := from.(type) {
	case *net.UDPAddr:
		addr = from.AddrPort().Addr()
	case *net.IPAddr:
		addr, _ = netip.AddrFromSlice(from.IP)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	number := binary.BigEndian.Uint64(echo.Data[8:])
	if w, there := p.waiting[number]; there && w.addr.WithZone("") == addr.Unmap().WithZone("") {
		delete(p.waiting, number)
		w.done <- struct{}{}
	}
}

// close closes the sockets of both families, which ends all probes.
func (p *pings) close() {
	p.mu.Lock()
	p.closed = true
	for _, of := range p.family {
		if of != nil {
			_ = of.socket.Close()
		}
	}
	p.mu.Unlock()
	p.wg.Wait()
}
