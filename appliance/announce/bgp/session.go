package bgp

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const (
	// openPatience is the longest wait for the peer's OPEN, and for the KEEPALIVE after it. RFC 4271 suggests a large value (4 minutes).
	openPatience = time.Minute
	// lastWords is the longest time for writing our NOTIFICATION, and for finding the reason for the end of a session.
	lastWords = time.Second
)

// session is one connection with the peer.
type session struct {
	speaker *Speaker
	link    link
	in      *bufio.Reader
	log     *slog.Logger

	agreed  agreement
	path    path
	sent    map[netip.Prefix]*Attributes
	refresh chan bool  // families that the peer requested by ROUTE-REFRESH: true is IPv6
	ended   chan error // why the session must end, unless ctx ends it
	writes  writing
}

// writing bounds the time for which one message of a session may be written.
type writing struct {
	mu      sync.Mutex
	most    time.Duration // longest time for a message; 0 allows only the final NOTIFICATION
	closing bool          // the final NOTIFICATION is being written
}

// agreement holds the parameters of a session that follow from the OPENs of both sides.
type agreement struct {
	peer       open
	ipv4, ipv6 bool
	hold       time.Duration // the negotiated hold time; 0: no hold timer
	keepalive  time.Duration
	restart    bool
}

// session returns a new session over a connection.
func (s *Speaker) session(l link) *session {
	return &session{
		speaker: s, link: l, in: bufio.NewReaderSize(l, 16<<10), log: s.log,
		sent:    map[netip.Prefix]*Attributes{},
		refresh: make(chan bool, 2), ended: make(chan error, 1),
	}
}

// run runs the session until it ends, and returns the reason. If the context connecting is done before the session is established, by the end of ctx
// or by Leave, run closes the connection and returns errStopped.
func (s *session) run(ctx, connecting context.Context) error {
	hangUp := context.AfterFunc(connecting, func() { _ = s.link.Close() })
	err := s.open()
	if !hangUp() {
		return errStopped
	}
	defer s.link.Close() // which ends the reader
	if err == nil {
		s.writes.most = cmp.Or(s.agreed.hold, holdOfNone)
		go func() { s.end(s.read()) }()
		err = s.write(ctx)
	}
	s.notify(err)
	return err
}

// notify sends the peer the NOTIFICATION for err, the reason why the session ends. It sends none if the peer ended the session, or if the
// peer is to keep the routes (graceful restart).
func (s *session) notify(err error) {
	var n *notification
	switch {
	case errors.Is(err, errStopped) && s.agreed.restart:
		return // the peer keeps the routes for our next start
	case errors.Is(err, errStopped):
		n = &notification{code: bgp.BGP_ERROR_CEASE, subcode: bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN}
	case !errors.As(err, &n) || n.received:
		return
	}
	s.writes.mu.Lock()
	s.writes.closing = true
	_ = s.link.SetWriteDeadline(time.Now().Add(lastWords))
	s.writes.mu.Unlock()
	_ = s.send(serialize(bgp.NewBGPNotificationMessage(n.code, n.subcode, n.data))) // it goes either way
}

// openOf returns the OPEN that this side sends on a connection. restarting sets the restart bit of graceful restart.
func openOf(p Peer, l link, restarting bool) open {
	o := open{as: p.LocalAS, id: p.RouterID, hold: p.Timers.Hold, ipv4: p.IPv4, ipv6: p.IPv6, restarting: restarting}
	if !o.id.IsValid() {
		o.id = l.routerID()
	}
	o.nextHop6 = p.IPv4 && l.local.Is6()
	if p.Timers.Restart > 0 {
		o.restart = &p.Timers.Restart
	}
	return o
}

// routerID returns the router ID of a speaker that has none configured: an IPv4 address of the connection, or a hash of its IPv6 address.
func (l link) routerID() netip.Addr {
	for _, a := range []netip.Addr{l.local, l.next4} {
		if a.Is4() && !a.IsUnspecified() {
			return a
		}
	}
	h := fnv.New32a()
	_, _ = h.Write(l.local.AsSlice()) // it never fails
	sum := h.Sum32() | 1
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// open sends our OPEN, checks the peer's and waits for the first KEEPALIVE. Then the session is established.
func (s *session) open() error {
	peer := s.speaker.peer
	mine := openOf(peer, s.link, s.speaker.State().Counters.Established == 0)
	_ = s.link.SetWriteDeadline(time.Now().Add(openPatience))
	if err := s.send(mine.encode()); err != nil {
		return err
	}
	s.speaker.enter(OpenSent)
	s.patience(openPatience)
	body, err := s.expect(typeOpen, bgp.BGP_ERROR_SUB_RECEIVE_UNEXPECTED_MESSAGE_IN_OPENSENT_STATE)
	if err != nil {
		return err
	}
	theirs, err := parseOpen(body)
	if err != nil {
		return err
	}
	if err := accept(peer, mine, theirs); err != nil {
		return err
	}
	s.agreed = agree(peer, mine, theirs)
	s.path = pathOf(peer, s.link, theirs)
	if err := s.send(keepalive()); err != nil {
		return err
	}
	s.speaker.enter(OpenConfirm)
	s.patience(openPatience)
	_, err = s.expect(typeKeepalive, bgp.BGP_ERROR_SUB_RECEIVE_UNEXPECTED_MESSAGE_IN_OPENCONFIRM_STATE)
	return err
}

// accept checks the peer's OPEN against the configuration. Its error is a *notification to send to the peer.
func accept(p Peer, mine, theirs open) error {
	refuse := func(subcode uint8, format string, args ...any) error {
		return &notification{code: bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, subcode: subcode, detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case p.RemoteAS != 0 && theirs.as != p.RemoteAS:
		return refuse(bgp.BGP_ERROR_SUB_BAD_PEER_AS, "the peer is AS %d, and AS %d is configured", theirs.as, p.RemoteAS)
	case p.Dynamic == Internal && !p.internal(theirs.as):
		return refuse(bgp.BGP_ERROR_SUB_BAD_PEER_AS, "the peer is AS %d, and an internal peer would be AS %d", theirs.as, p.LocalAS)
	case p.Dynamic == External && p.internal(theirs.as):
		return refuse(bgp.BGP_ERROR_SUB_BAD_PEER_AS, "the peer is AS %d as we are, and an external one is configured", theirs.as)
	case theirs.as == 0 || theirs.as == asTrans && !p.internal(asTrans) && theirs.fourAS:
		return refuse(bgp.BGP_ERROR_SUB_BAD_PEER_AS, "the peer has AS %d, which no speaker has", theirs.as)
	case theirs.id.IsUnspecified():
		return refuse(bgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER, "the peer has no router ID")
	case theirs.id == mine.id && p.internal(theirs.as):
		return refuse(bgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER, "the peer has our router ID %s: give one of both another", theirs.id)
	case theirs.hold != 0 && theirs.hold < minHold:
		return refuse(bgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME, "the peer offers a hold time of %s; 3 s is the least", theirs.hold)
	case !(mine.ipv4 && theirs.ipv4) && !(mine.ipv6 && theirs.ipv6):
		return refuse(bgp.BGP_ERROR_SUB_UNSUPPORTED_CAPABILITY, "the peer takes no routes of a family that is configured here")
	}
	return nil
}

func agree(p Peer, mine, theirs open) agreement {
	a := agreement{
		peer: theirs, ipv4: mine.ipv4 && theirs.ipv4, ipv6: mine.ipv6 && theirs.ipv6,
		hold: min(mine.hold, theirs.hold), restart: mine.restart != nil && theirs.restart != nil,
	}
	a.keepalive = a.hold / 3
	if p.Timers.Keepalive > 0 && p.Timers.Keepalive < a.keepalive {
		a.keepalive = p.Timers.Keepalive
	}
	return a
}

// pathOf computes the path attributes that all routes to this peer share, and the next hops of
// each family.
func pathOf(p Peer, l link, theirs open) path {
	at := path{as: p.LocalAS, peerAS: theirs.as, fourAS: theirs.fourAS}
	add := func(to *[]netip.Addr, a netip.Addr) {
		if a.IsValid() {
			*to = append(*to, a.WithZone(""))
		}
	}
	add(&at.next6, l.next6)
	if l.linkLocal.IsValid() {
		if !l.next6.IsValid() { // as others do, the link-local address is in both places
			add(&at.next6, l.linkLocal)
		}
		add(&at.next6, l.linkLocal)
	}
	switch {
	case l.local.Is4():
		add(&at.next4, l.local)
	case theirs.nextHop6 && len(at.next6) > 0:
		at.next4 = at.next6
	default:
		add(&at.next4, l.next4)
	}
	return at
}

func (s *session) send(message []byte) error {
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("BGP message sent", "peer", s.speaker.peer.String(), "message", hex.EncodeToString(message))
	}
	_, err := s.link.Write(message)
	return err
}

// patience sets the read deadline to d from now, or removes it if d is 0.
func (s *session) patience(d time.Duration) {
	var until time.Time
	if d > 0 {
		until = time.Now().Add(d)
	}
	_ = s.link.SetReadDeadline(until)
}

// expect reads one message of type kind and returns its body. If a NOTIFICATION arrives instead, that is the error. For any other type the error is a
// Finite State Machine Error with the given subcode.
func (s *session) expect(kind, subcode uint8) ([]byte, error) {
	h, body, err := s.next()
	if err != nil {
		return nil, err
	}
	switch h.kind {
	case kind:
		return body, nil
	case typeNotification:
		return nil, parseNotification(body)
	}
	return nil, &notification{
		code: bgp.BGP_ERROR_FSM_ERROR, subcode: subcode,
		detail: fmt.Sprintf("the peer sent a message of type %d before the session was up", h.kind),
	}
}

// next reads a message. The body of an UPDATE is discarded.
func (s *session) next() (header, []byte, error) {
	var head [headerLength]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return header{}, nil, err
	}
	h, err := parseHeader(head[:])
	if err != nil {
		return header{}, nil, err
	}
	if h.kind == typeUpdate {
		_, err := s.in.Discard(h.length - headerLength)
		return h, nil, err
	}
	body := make([]byte, h.length-headerLength)
	if _, err := io.ReadFull(s.in, body); err != nil {
		return header{}, nil, err
	}
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("BGP message received", "peer", s.speaker.peer.String(), "message", hex.EncodeToString(append(head[:], body...)))
	}
	return h, body, nil
}

// explain returns, in words, why there is no session, and what to check.
func explain(p Peer, phase Phase, err error) string {
	var n *notification
	switch {
	case errors.As(err, &n) && n.received:
		return "the peer ended the session: " + n.words(p)
	case errors.As(err, &n):
		return n.detail
	case errors.Is(err, errStopped), errors.Is(err, context.Canceled):
		return errStopped.Error()
	case phase == Connect:
		return explainDial(p, err)
	case errors.Is(err, os.ErrDeadlineExceeded) && phase != Established:
		return "the peer accepted the connection and then sent nothing: it may want packets with TTL 255 (ttl security), or hang"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "the peer stopped in the middle of a message, or takes none"
	case closed(err) && phase == OpenSent:
		return "the peer closed the connection without a reason: it may not be configured for this box's address, or had a connection of its own under way"
	case closed(err):
		return "the peer closed the connection without a reason: it was stopped, restarts, or takes fewer prefixes than we announce"
	}
	return err.Error()
}

func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

func explainDial(p Peer, err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the peer refused the connection: no BGP speaker listens there, or it is not configured for this box's address"
	case errors.Is(err, syscall.ECONNRESET):
		return "the peer reset the connection: it is not configured for this box's address"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		words := "there is no way to the peer: its address does not answer, or no route leads there"
		if !p.MultiHop {
			words += "; one that is more than a hop away needs multihop"
		}
		return words
	case errors.Is(err, syscall.EAFNOSUPPORT):
		family := "AF_INET"
		if p.Addr.Addr().Is6() || p.Interface != "" {
			family = "AF_INET6"
		}
		return "this process may open no socket of the peer's family: the sandbox of its unit forbids it, or the kernel lacks it; " +
			"write RestrictAddressFamilies=" + family + " into [Service] with `systemctl edit svcctl-announce`, and restart it"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Sprintf("this box forbids the connection: the sandbox of the unit (write IPAddressAllow=%s into [Service] with `systemctl edit svcctl-announce`), "+
			"or a packet filter", p.Addr.Addr())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("this box does not have the source address %s", p.Source)
	case errors.As(err, &timeout) && timeout.Timeout():
		words := "no answer from the peer: it is down, or a packet filter is in the way"
		if os.Getenv("INVOCATION_ID") != "" { // under systemd (systemd.exec(5)), whose filter drops a SYN in silence
			words += " (IPAddressDeny= of the unit is one: `systemctl cat svcctl-announce`)"
		}
		if p.Password != "" {
			words += "; or no BGP speaker listens there, or it has another password or none (what is not signed with ours is dropped in silence)"
		} else {
			words += "; or it wants a password"
		}
		if p.TTLSecurity > 0 {
			words += "; or it does not send with TTL 255, which ttl security wants"
		}
		return words
	}
	return err.Error()
}

// words describes a NOTIFICATION from the peer for operators.
func (n *notification) words(p Peer) string {
	name := func(names ...string) string {
		if int(n.subcode) < len(names) && names[n.subcode] != "" {
			return names[n.subcode]
		}
		return fmt.Sprintf("error %d, subcode %d", n.code, n.subcode)
	}
	switch n.code {
	case bgp.BGP_ERROR_MESSAGE_HEADER_ERROR:
		return "it could not read a message of ours: " + name("header error", "not synchronized", "bad length", "bad type")
	case bgp.BGP_ERROR_OPEN_MESSAGE_ERROR:
		return name("it did not take our OPEN", "it speaks another version of BGP",
			fmt.Sprintf("it expects another AS than our %d", p.LocalAS), "it does not take our router ID",
			"it does not support a parameter of our OPEN", "authentication failed", fmt.Sprintf("it does not take our hold time of %s", p.Timers.Hold),
			"it does not take our capabilities: compare the address families of both sides", "", "", "", "it expects another role")
	case bgp.BGP_ERROR_UPDATE_MESSAGE_ERROR:
		return fmt.Sprintf("it did not take an UPDATE of ours (subcode %d)", n.subcode)
	case bgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return "it received nothing from this box for the hold time"
	case bgp.BGP_ERROR_FSM_ERROR:
		return fmt.Sprintf("it did not expect a message of ours (subcode %d)", n.subcode)
	case bgp.BGP_ERROR_CEASE:
		return name("cease", "we announce more prefixes than it takes", "administrative shutdown", "it has no such peer any more",
			"administrative reset", "it rejected the connection", "its configuration changed", "it has another connection with this box",
			"it is out of resources", "hard reset", "BFD lost this box") + n.message()
	}
	return fmt.Sprintf("error %d, subcode %d", n.code, n.subcode)
}

// message returns the text that the peer's operator sent with a shutdown or reset (RFC 9003); "" if there is none.
func (n *notification) message() string {
	withText := n.subcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN || n.subcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET
	if !withText || len(n.data) < 2 || int(n.data[0]) > len(n.data)-1 {
		return ""
	}
	text := n.data[1 : 1+int(n.data[0])]
	if len(text) == 0 || !utf8.Valid(text) {
		return ""
	}
	return fmt.Sprintf(" (%q)", strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, string(text)))
}

// Error returns the detail, or the code and subcode of the NOTIFICATION.
func (n *notification) Error() string {
	if n.detail != "" {
		return n.detail
	}
	return fmt.Sprintf("NOTIFICATION %d/%d", n.code, n.subcode)
}
