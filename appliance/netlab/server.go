package netlab

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Server answers on some ports of a Host.
type Server struct {
	host *Host
	once sync.Once
	stop []func() error
}

// Serve answers on ports of every address of the Host, in both families, over "tcp",
// "udp" or "sctp", until the Server or the lab is closed. TCP servers go on to send
// back what they get.
func (h *Host) Serve(network string, ports ...uint16) *Server {
	h.t.Helper()
	s := &Server{host: h}
	h.onClose(s.Close)
	s.open(func() error { // one task for all: changing to the Host's thread costs more than a socket
		for _, addr := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if network == "sctp" {
				if err := s.serveSCTP(addr, ports); err != nil {
					return err
				}
				continue
			}
			for _, port := range ports {
				if err := s.serve(network, netip.AddrPortFrom(addr, port)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return s
}

// ServeAt is Serve over "tcp" or "udp" on one address of the Host alone.
func (h *Host) ServeAt(network string, at netip.AddrPort) *Server {
	h.t.Helper()
	s := &Server{host: h}
	h.onClose(s.Close)
	s.open(func() error { return s.serve(network, at) })
	return s
}

// open runs on the Host's thread what opens sockets.
func (s *Server) open(listen func() error) {
	s.host.t.Helper()
	if err := s.host.Do(listen); err != nil {
		s.host.t.Fatalf("host %s: serve: %v", s.host.Name, err)
	}
}

// Close stops answering and ends the listening sockets, not the connections.
func (s *Server) Close() {
	s.once.Do(func() {
		for _, stop := range s.stop {
			if err := stop(); err != nil {
				s.host.t.Logf("host %s: stop serving: %v", s.host.Name, err)
			}
		}
	})
}

func (s *Server) serve(network string, at netip.AddrPort) error {
	family := "4"
	if at.Addr().Is6() {
		family = "6" // Go sets IPV6_V6ONLY for these networks
	}
	switch network {
	case "tcp":
		l, err := net.ListenTCP("tcp"+family, net.TCPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		s.stop = append(s.stop, l.Close)
		go s.acceptTCP(l)
	case "udp":
		c, err := net.ListenUDP("udp"+family, net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		s.stop = append(s.stop, c.Close)
		if err := reportDestination(c, at.Addr().Is6()); err != nil {
			return err
		}
		go s.answerUDP(c, at.Port())
	default:
		return errors.New("no such network: " + network)
	}
	return nil
}

func (s *Server) acceptTCP(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		go s.answerTCP(c)
	}
}

func (s *Server) answerTCP(c *net.TCPConn) {
	defer c.Close()
	reply := Reply{s.host.Name, addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())}
	if _, err := c.Write([]byte(reply.String() + "\n")); err != nil {
		return
	}
	buf := make([]byte, 2048)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// reportDestination has the kernel tell to which address each packet was sent.
func reportDestination(c syscall.Conn, v6 bool) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) {
		if v6 {
			result = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
		} else {
			result = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
		}
	})
	return errors.Join(err, result)
}

func (s *Server) answerUDP(c *net.UDPConn, port uint16) {
	buf, oob := make([]byte, maxDatagram), make([]byte, 256)
	for {
		size, n, _, client, err := c.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		at, control := destinationOf(oob[:n])
		from := netip.AddrPortFrom(client.Addr().Unmap().WithZone(""), client.Port())
		reply := Reply{s.host.Name, netip.AddrPortFrom(at, port), from}
		// A client that is gone is no fault of the server.
		_, _, _ = c.WriteMsgUDPAddrPort(padded(reply.String(), size), control, client)
	}
}

// destinationOf returns the address that a datagram was sent to, and the control message that
// has the answer sent from there.
func destinationOf(oob []byte) (netip.Addr, []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			addr := [4]byte(m.Data[8:12])
			return netip.AddrFrom4(addr), unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: addr})
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			addr := [16]byte(m.Data[:16])
			return netip.AddrFrom16(addr), unix.PktInfo6(&unix.Inet6Pktinfo{Addr: addr})
		}
	}
	return netip.Addr{}, nil
}

// serveSCTP answers INIT packets on some ports. While it does, the kernel sends no
// "protocol unreachable" for SCTP in this family.
func (s *Server) serveSCTP(addr netip.Addr, ports []uint16) error {
	network := "ip4:" + strconv.Itoa(unix.IPPROTO_SCTP)
	if addr.Is6() {
		network = "ip6:" + strconv.Itoa(unix.IPPROTO_SCTP)
	}
	c, err := net.ListenIP(network, &net.IPAddr{IP: addr.AsSlice()})
	if err != nil {
		return err
	}
	s.stop = append(s.stop, c.Close)
	if err := reportDestination(c, addr.Is6()); err != nil {
		return err
	}
	go s.answerSCTP(c, ports)
	return nil
}

func (s *Server) answerSCTP(c *net.IPConn, ports []uint16) {
	buf, oob := make([]byte, 2048), make([]byte, 256)
	for {
		n, nOOB, _, client, err := c.ReadMsgIP(buf, oob)
		if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < sctpHeader {
			continue
		}
		packet := buf[:n]
		if client.IP.To4() != nil { // raw sockets give the header with IPv4 alone
			packet = afterIPv4Header(packet)
		}
		if len(packet) < sctpHeader || !slices.Contains(ports, sctpPort(packet, 2)) {
			continue
		}
		at, control := destinationOf(oob[:nOOB])
		from, _ := netip.AddrFromSlice(client.IP)
		reply := Reply{
			s.host.Name,
			netip.AddrPortFrom(at, sctpPort(packet, 2)),
			netip.AddrPortFrom(from.Unmap(), sctpPort(packet, 0)),
		}
		if ack := sctpInitAckTo(packet, reply.String()); ack != nil {
			_, _, _ = c.WriteMsgIP(ack, control, client)
		}
	}
}
