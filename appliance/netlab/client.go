package netlab

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Reply is a server's answer: who it is, on which of its addresses it was asked, and
// whom it saw asking.
type Reply struct {
	Server string
	At     netip.AddrPort
	Client netip.AddrPort
}

// String returns the line that servers send.
func (r Reply) String() string { return fmt.Sprintf("%s %s %s", r.Server, r.At, r.Client) }

func parseReply(line string) (Reply, error) {
	fields := strings.Fields(line)
	if len(fields) != 3 {
		return Reply{}, fmt.Errorf("an answer that no server of a lab gives: %q", line)
	}
	at, err := netip.ParseAddrPort(fields[1])
	if err != nil {
		return Reply{}, fmt.Errorf("answer %q: %w", line, err)
	}
	client, err := netip.ParseAddrPort(fields[2])
	if err != nil {
		return Reply{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return Reply{Server: fields[0], At: at, Client: client}, nil
}

type options struct {
	from    netip.Addr
	port    uint16
	size    int
	timeout time.Duration
}

// Option changes how a question is asked.
type Option func(*options)

// From asks from one of the Host's addresses (see also Host.Own).
func From(addr netip.Addr) Option { return func(o *options) { o.from = addr } }

// FromPort asks from a fixed source port; of a ping it is the identifier. A TCP connection is then ended by a reset,
// so that the same port can ask again at once.
func FromPort(port uint16) Option { return func(o *options) { o.port = port } }

// Sized asks over "udp" with a question of that many bytes, up to 16 KiB; the answer has
// as many.
func Sized(bytes int) Option { return func(o *options) { o.size = bytes } }

// maxDatagram is the largest question or answer, in bytes.
const maxDatagram = 16 << 10

// padded returns a text with blanks behind it, which no reader of it minds.
func padded(text string, size int) []byte {
	return append([]byte(text), strings.Repeat(" ", max(0, size-len(text)))...)
}

// Within sets how long to wait for the answer, 2 s otherwise.
func Within(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// silence is the time without an answer after which a question counts as dropped. The kernel sends
// a SYN again after 1 s (RFC 6298), so this sees two of them lost.
const silence = 2 * time.Second

func optionsOf(opts []Option) options {
	o := options{timeout: silence}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// again is how long a question over SCTP waits for its answer before it is repeated, as the kernel repeats a SYN: a busy machine
// drops packets. It is longer than silence, so a question that expects no answer is asked once.
const again = 3 * time.Second

// Ask sends one question over "tcp", "udp" or "sctp" and gives the answer. Every
// error is a *Failure.
func (h *Host) Ask(network string, to netip.AddrPort, opts ...Option) (Reply, error) {
	o := optionsOf(opts)
	switch network {
	case "tcp":
		c, err := h.Dial(to, opts...)
		if err != nil {
			return Reply{}, err
		}
		c.Close()
		return c.Reply, nil
	case "udp":
		// The kernel would give a port of a closed socket once more, in 3 of 100 series of 40: no new flow.
		if o.port == 0 {
			o.port = h.rawPort()
		}
		return h.exchange(unix.SOCK_DGRAM, unix.IPPROTO_UDP, to, o,
			func(netip.AddrPort) []byte { return padded("who?\n", o.size) },
			func(_ netip.AddrPort, answer []byte) (string, bool) { return string(answer), true })
	case "sctp":
		if o.port == 0 {
			o.port = h.rawPort()
		}
		tag := rand.Uint32() | 1
		return h.exchange(unix.SOCK_RAW, unix.IPPROTO_SCTP, to, o,
			func(netip.AddrPort) []byte { return sctpInit(o.port, to.Port(), tag) },
			func(_ netip.AddrPort, packet []byte) (string, bool) {
				return sctpInitAck(packet, o.port, to.Port(), tag)
			})
	}
	panic("netlab: no such network: " + network)
}

// Ping sends an ICMP echo request and waits for the reply. Every error is a *Failure.
func (h *Host) Ping(to netip.Addr, opts ...Option) error {
	protocol, request, reply := unix.IPPROTO_ICMP, byte(8), byte(0)
	if to.Is6() {
		protocol, request, reply = unix.IPPROTO_ICMPV6, 128, 129
	}
	o := optionsOf(opts)
	id := cmp.Or(o.port, h.rawPort())
	o.port = id
	_, err := h.exchange(unix.SOCK_RAW, protocol, netip.AddrPortFrom(to, 0), o,
		func(netip.AddrPort) []byte {
			packet := []byte{request, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}
			if to.Is4() { // the kernel sums up ICMPv6 itself
				binary.BigEndian.PutUint16(packet[2:], internetChecksum(packet))
			}
			return packet
		},
		func(local netip.AddrPort, packet []byte) (string, bool) {
			ok := len(packet) >= 8 && packet[0] == reply && binary.BigEndian.Uint16(packet[4:]) == id
			return Reply{Server: "echo", At: netip.AddrPortFrom(to, 0), Client: local}.String(), ok
		})
	return err
}

func internetChecksum(b []byte) uint16 { // RFC 1071; b has an even length
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// rawPort returns a port for a socket without one, that the Host did not use lately: 20000
// to 29999, where neither kernels nor node ports take theirs from.
func (h *Host) rawPort() uint16 { return uint16(20000 + h.rawPorts.Add(1)%10000) }

// datagrams has the buffers of exchange: tests ask thousands of times.
var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// exchange sends one packet and waits for the one that accept takes as the answer.
func (h *Host) exchange(kind, protocol int, to netip.AddrPort, o options,
	question func(local netip.AddrPort) []byte,
	accept func(local netip.AddrPort, packet []byte) (line string, ok bool),
) (Reply, error) {
	start := time.Now()
	raw := kind == unix.SOCK_RAW
	about := flow{protocol: uint8(protocol), sourcePort: o.port, to: to}
	fail := func(err error) (Reply, error) { return Reply{}, h.failure(about, false, start, err) }
	if err := h.watchICMP(about); err != nil {
		return fail(err)
	}
	target := to
	if raw { // a raw socket has no ports: its port is a protocol number
		target, o.port = netip.AddrPortFrom(to.Addr(), 0), 0
	}
	s, err := h.connect(kind, protocol, target, o)
	if err != nil {
		return fail(err)
	}
	defer s.Close()
	if !raw {
		about.sourcePort = s.local.Port()
	}
	if err := s.SetDeadline(start.Add(o.timeout)); err != nil {
		return fail(err)
	}
	repeats := protocol == unix.IPPROTO_SCTP && o.timeout > again
	ask := func() error {
		if _, err := s.Write(question(s.local)); err != nil || !repeats {
			return err
		}
		return s.SetReadDeadline(time.Now().Add(again))
	}
	if err := ask(); err != nil {
		return fail(err)
	}
	held := datagrams.Get().(*[maxDatagram]byte)
	defer datagrams.Put(held)
	buf := held[:]
	for {
		n, err := s.Read(buf)
		if repeats && errors.Is(err, os.ErrDeadlineExceeded) && time.Since(start) < o.timeout {
			if err = ask(); err == nil {
				continue
			}
		}
		if err != nil {
			return fail(err)
		}
		packet := buf[:n]
		if raw && to.Addr().Is4() {
			packet = afterIPv4Header(packet)
		}
		if line, ok := accept(s.local, packet); ok {
			reply, err := parseReply(line)
			if err != nil {
				return fail(err)
			}
			return reply, nil
		}
	}
}

// Conn is a TCP connection to a server that said who it is and now sends back every
// line it gets.
type Conn struct {
	Reply Reply
	Local netip.AddrPort

	host  *Host
	sock  *socket
	lines *bufio.Reader
	about flow
}

// Dial connects and reads the server's answer. Every error is a *Failure.
func (h *Host) Dial(to netip.AddrPort, opts ...Option) (*Conn, error) {
	o := optionsOf(opts)
	start := time.Now()
	c := &Conn{host: h, about: flow{protocol: unix.IPPROTO_TCP, sourcePort: o.port, to: to}}
	if err := h.watchICMP(c.about); err != nil {
		return nil, h.failure(c.about, false, start, err)
	}
	s, err := h.connect(unix.SOCK_STREAM, unix.IPPROTO_TCP, to, o)
	if err != nil {
		return nil, h.failure(c.about, false, start, err)
	}
	c.sock, c.Local, c.lines = s, s.local, bufio.NewReaderSize(s, 256)
	c.about.sourcePort = s.local.Port()
	if o.port != 0 {
		if err := s.resetOnClose(); err != nil {
			c.Close()
			return nil, h.failure(c.about, false, start, err)
		}
	}
	deadline := start.Add(o.timeout)
	if err := s.established(deadline); err != nil {
		c.Close()
		return nil, h.failure(c.about, false, start, fmt.Errorf("connect: %w", err))
	}
	line, err := c.readLine(deadline)
	if err == nil {
		c.Reply, err = parseReply(line)
	}
	if err != nil {
		c.Close()
		return nil, h.failure(c.about, true, start, fmt.Errorf("connected from %s, wait for the answer: %w", c.Local, err))
	}
	return c, nil
}

// Echo sends a line and waits for it to come back. Every error is a *Failure.
func (c *Conn) Echo(line string, opts ...Option) error {
	start := time.Now()
	deadline := start.Add(optionsOf(opts).timeout)
	err := c.sock.SetWriteDeadline(deadline)
	if err == nil {
		_, err = io.WriteString(c.sock, line+"\n")
	}
	var back string
	if err == nil {
		back, err = c.readLine(deadline)
	}
	if err == nil && back != line {
		err = fmt.Errorf("sent %q, got back %q", line, back)
	}
	if err != nil {
		return c.host.failure(c.about, true, start, err)
	}
	return nil
}

func (c *Conn) readLine(deadline time.Time) (string, error) {
	if err := c.sock.SetReadDeadline(deadline); err != nil {
		return "", err
	}
	line, err := c.lines.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// Close ends the connection.
func (c *Conn) Close() {
	if err := c.sock.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		c.host.t.Logf("host %s: close connection to %s: %v", c.host.Name, c.about.to, err)
	}
}
