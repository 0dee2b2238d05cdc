package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcctl.io/svcctl/appliance/task"
)

// Phase is a state of a BGP session (RFC 4271, section 8).
type Phase string

// The values of Phase. Idle waits for the next attempt to connect.
const (
	Idle        Phase = "Idle"
	Connect     Phase = "Connect"
	OpenSent    Phase = "OpenSent"
	OpenConfirm Phase = "OpenConfirm"
	Established Phase = "Established"
)

// State describes a session at the time of the call.
type State struct {
	Phase Phase
	Since time.Time // when Phase last changed
	// Local and Remote are the session's addresses, Agreed its negotiated parameters; set
	// while it is established.
	Local, Remote netip.AddrPort
	Agreed        Agreed
	// Routes counts the routes that were sent to the peer and not withdrawn.
	Routes int
	// CannotIPv4 and CannotIPv6 are the reasons why no route of a family can be sent in this session, "" if they can.
	CannotIPv4, CannotIPv6 string
	// Pending reports whether there are changes that were not sent yet.
	Pending bool
	// LastDown is why the session last ended or failed to establish, and DownAt when.
	LastDown string
	DownAt   time.Time
	Counters Counters
}

// Agreed has parameters of a session that follow from the OPENs of both sides.
type Agreed struct {
	RemoteAS        uint32
	GracefulRestart bool
}

// Counters count events of a Speaker since New.
type Counters struct {
	Established uint64 // sessions that were established
	Updates     uint64 // UPDATE messages sent
	Dropped     uint64 // UPDATE messages received; all are discarded unread
}

// link is a connection with the addresses of its local side.
type link struct {
	net.Conn
	local netip.Addr // with a zone if it is link-local
	// next4 and next6 are addresses of the local interface that can be next hops, and
	// linkLocal the local address of an unnumbered session.
	next4, next6, linkLocal netip.Addr
}

// addrPortOf returns the address of an end of a TCP connection; the zero AddrPort for other connections.
func addrPortOf(a net.Addr) netip.AddrPort {
	tcp, is := a.(*net.TCPAddr)
	if !is {
		return netip.AddrPort{}
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// errStopped is the reason of a session that ends because the program ends.
var errStopped = errors.New("this program ended the session")

// firstRetry is the wait after the first failed attempt. It doubles up to Timers.Connect.
const firstRetry = time.Second

// Speaker maintains a BGP session with one peer. All methods may be called concurrently.
type Speaker struct {
	peer    Peer
	dial    func(context.Context, Peer) (link, error)
	log     *slog.Logger
	changed func()

	wake  chan struct{} // capacity 1: routes changed
	reset chan string   // capacity 1: why an established session is to end
	leave chan struct{} // closed by Leave
	ended chan struct{} // closed when Run ended

	mu      sync.Mutex
	routes  rib
	state   State
	running bool
	leaving sync.Once

	lastWords string // reason in the last NOTIFICATION since a session was established; used only by Run
}

// New returns a Speaker that does nothing before its Run. changed is called after each change of its State except for counters; it must not
// block. Both log and changed may be nil.
func New(p Peer, log *slog.Logger, changed func()) (*Speaker, error) {
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("BGP peer %s: %w", p, err)
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	if changed == nil {
		changed = func() {}
	}
	return &Speaker{
		peer: p.withDefaults(), dial: dial, log: log, changed: changed,
		wake: make(chan struct{}, 1), reset: make(chan string, 1), leave: make(chan struct{}), ended: make(chan struct{}),
		routes: rib{map[netip.Prefix]*Attributes{}, map[netip.Prefix]struct{}{}}, state: State{Phase: Idle, Since: time.Now()},
	}, nil
}

// Set replaces the routes to the peer; only differences are sent. The Attributes are kept and must not change, the map may; a nil value
// means default Attributes. It returns an error, and changes nothing, if Attributes fit into no message.
func (s *Speaker) Set(routes map[netip.Prefix]*Attributes) error {
	if err := check(routes); err != nil {
		return err
	}
	s.change(func(r *rib) { r.set(routes) })
	return nil
}

// Update adds, changes and withdraws some routes, at a cost proportional to their number. It returns an error, and changes nothing, if
// Attributes fit into no message.
func (s *Speaker) Update(announce map[netip.Prefix]*Attributes, withdraw []netip.Prefix) error {
	if err := check(announce); err != nil {
		return err
	}
	s.change(func(r *rib) { r.update(announce, withdraw) })
	return nil
}

func check(routes map[netip.Prefix]*Attributes) error {
	var last *Attributes
	for prefix, a := range routes {
		if !prefix.IsValid() {
			return errors.New("a route has no prefix")
		}
		if a == nil || a == last {
			continue
		}
		if err := a.Check(); err != nil {
			return fmt.Errorf("route %s: %w", prefix, err)
		}
		last = a
	}
	return nil
}

func (s *Speaker) change(do func(*rib)) {
	s.mu.Lock()
	do(&s.routes)
	dirty := len(s.routes.dirty) > 0
	s.state.Pending = dirty
	s.mu.Unlock()
	if !dirty {
		return
	}
	task.Wake(s.wake)
}

// changes(true) returns all routes to announce. changes(false) returns the routes that changed since the last call; a nil value is a withdrawal. Both
// mark the routes as sent.
func (s *Speaker) changes(all bool) map[netip.Prefix]*Attributes {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all {
		clear(s.routes.dirty)
		return maps.Clone(s.routes.wanted)
	}
	return s.routes.take()
}

// State returns the state now.
func (s *Speaker) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Reset ends an established session for a reason outside of BGP (BFD lost the peer); Run connects again.
func (s *Speaker) Reset(why string) {
	select {
	case s.reset <- why:
	default:
	}
}

// Leave ends the session and Run. An established session with routes takes 3 s to close, so that the peer moves to other paths, if it has
// any, without packet loss. The error is ctx.Err() if ctx ends first.
func (s *Speaker) Leave(ctx context.Context) error {
	s.leaving.Do(func() { close(s.leave) })
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run connects to the peer and runs sessions with it, one after the other, until ctx ends or after Leave. It must be called once.
func (s *Speaker) Run(ctx context.Context) {
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	defer close(s.ended)
	connecting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.leave:
			cancel()
		case <-connecting.Done():
		}
	}()
	if s.peer.Interface != "" {
		advertised := make(chan struct{})
		go func() { defer close(advertised); s.advertise(connecting) }()
		defer func() { cancel(); <-advertised }()
	}
	wait := firstRetry
	for {
		began := time.Now()
		s.enter(Connect)
		l, err := s.dial(connecting, s.peer)
		if err == nil {
			err = s.session(l).run(ctx, connecting)
		}
		s.down(err)
		if connecting.Err() != nil {
			return
		}
		if time.Since(began) > 2*s.peer.Timers.Connect {
			wait = firstRetry // it held for a while
		}
		wait = min(wait, s.peer.Timers.Connect)
		if !task.Sleep(connecting, wait-time.Duration(rand.Int64N(int64(wait)/4+1))) {
			return
		}
		wait *= 2
	}
}

func (s *Speaker) enter(p Phase) {
	s.publish(func(st *State) { st.Phase, st.Since = p, time.Now() })
	s.changed()
}

func (s *Speaker) established(by *session) {
	s.lastWords = ""
	select {
	case <-s.reset: // of an earlier session
	default:
	}
	a := by.agreed
	s.publish(func(st *State) {
		st.Local, st.Remote = addrPortOf(by.link.LocalAddr()), addrPortOf(by.link.RemoteAddr())
		st.CannotIPv4, st.CannotIPv6 = by.cannot(false), by.cannot(true)
		st.Counters.Established++
		st.Agreed = Agreed{RemoteAS: a.peer.as, GracefulRestart: a.restart}
	})
	s.log.Info("BGP session established", "peer", s.peer.String(), "as", a.peer.as, "id", a.peer.id)
	s.enter(Established)
}

// down records in the State why the session ended or was not established.
func (s *Speaker) down(err error) {
	words := explain(s.peer, s.State().Phase, err)
	var n *notification
	switch {
	case errors.As(err, &n) && (n.received || n.code == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR):
		s.lastWords = words
	case n == nil && s.lastWords != "": // many close or refuse connections for a while after a side gave its reason
		vague, _, _ := strings.Cut(words, ": ")
		words = s.lastWords + "; after that " + vague
	}
	var was State
	s.publish(func(st *State) {
		was = *st
		*st = State{Phase: Idle, Since: time.Now(), LastDown: words, DownAt: time.Now(), Counters: was.Counters, Pending: len(s.routes.wanted) > 0}
	})
	if was.Phase == Established || was.LastDown != words {
		s.log.Warn("BGP session down", "peer", s.peer.String(), "phase", was.Phase, "reason", words)
	}
	s.changed()
}

func (s *Speaker) publish(do func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(&s.state)
}

// Port is the TCP port of BGP.
const Port = 179

// asTrans is AS_TRANS, which stands for a four-octet AS where only two octets fit (RFC 6793).
const asTrans = 23456

// maxPassword is the longest key of TCP_MD5SIG in bytes.
const maxPassword = 80

// Dynamic restricts the AS of a peer for which no AS number is configured.
type Dynamic string

// The values of Dynamic.
const (
	Internal Dynamic = "internal" // the same AS as ours
	External Dynamic = "external" // any other AS
)

// Peer is a neighbor, with the settings of the session with it.
type Peer struct {
	// Addr is the address and port of the peer; port 0 means 179. Either Addr or Interface is set.
	Addr netip.AddrPort
	// Interface names the interface on which the peer is found by its link-local address (an
	// unnumbered peer). Router advertisements with a lifetime of 0 are sent there.
	Interface string
	// Source is the local address. If it is not valid, the kernel chooses one.
	Source netip.Addr

	LocalAS uint32
	// RemoteAS is the AS of the peer. It is 0 if Dynamic is set.
	RemoteAS uint32
	Dynamic  Dynamic
	// RouterID is an IPv4 address that identifies this speaker. Unset, it is an IPv4
	// address of the host, or made from the local address.
	RouterID netip.Addr

	// IPv4 and IPv6 are the families of the routes that the session carries.
	IPv4, IPv6 bool
	Timers     Timers
	// Password is the key of TCP MD5 signatures (RFC 2385), at most 80 bytes.
	Password string
	// MultiHop lets an external peer be more than one hop away. Without it packets to an
	// external peer leave with a TTL of 1.
	MultiHop bool
	// TTLSecurity is the largest number of hops to the peer (GTSM, RFC 5082): 1 accepts packets
	// with TTL 255 only. 0 is off. The peer must send with TTL 255.
	TTLSecurity int
}

// Timers holds the timers of a session. 0 means a default of 90 s for Hold, a third of the agreed hold time for Keepalive and 10 s for
// Connect. 0 disables Restart.
type Timers struct {
	// Hold is the proposed hold time, at least 3 s: the session ends after this time without a message from the peer. The smaller proposal of
	// both sides applies. NoHold proposes none.
	Hold time.Duration
	// Keepalive is the interval of keepalives, at most a third of the agreed hold time.
	Keepalive time.Duration
	// Connect is the longest wait between connection attempts. The wait starts at 1 s and doubles after each failed attempt.
	Connect time.Duration
	// Restart asks the peer to keep the routes for this long when the session breaks (graceful restart, RFC 4724); at most 4095 s, 0 is off.
	Restart time.Duration
}

// NoHold, as Timers.Hold, proposes a session without hold timer and keepalives.
const NoHold = time.Duration(-1)

const (
	defaultHold    = 90 * time.Second
	defaultConnect = 10 * time.Second
	minHold        = 3 * time.Second
	maxHold        = 65535 * time.Second
	maxRestart     = 4095 * time.Second
)

// Check returns all errors of a Peer.
func (p Peer) Check() error {
	var all []error
	wrong := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	wrong(p.Addr.Addr().IsValid() == (p.Interface != ""), "give the peer either an address or an interface")
	wrong(p.Source.IsValid() && p.Addr.Addr().IsValid() && p.Source.Unmap().Is4() != p.Addr.Addr().Unmap().Is4(),
		"the source address %s and the peer's address %s are of different families", p.Source, p.Addr.Addr())
	wrong(p.LocalAS == 0, "the local AS is missing")
	wrong(p.LocalAS == asTrans || p.RemoteAS == asTrans, "AS %d stands for others and belongs to no network (RFC 6793)", asTrans)
	switch p.Dynamic {
	case "":
		wrong(p.RemoteAS == 0, "the peer's AS is missing")
	case Internal, External:
		wrong(p.RemoteAS != 0, "the peer's AS is given as %d and as %s: leave one out", p.RemoteAS, p.Dynamic)
	default:
		wrong(true, "the peer's AS is %q: use %q or %q", p.Dynamic, Internal, External)
	}
	wrong(p.RouterID.IsValid() && (!p.RouterID.Is4() || p.RouterID.IsUnspecified()), "the router ID %s is no IPv4 address", p.RouterID)
	wrong(!p.IPv4 && !p.IPv6, "the session would carry no routes: choose IPv4, IPv6 or both")
	wrong(len(p.Password) > maxPassword, "the password has %d bytes; TCP MD5 signatures take %d", len(p.Password), maxPassword)
	wrong(p.TTLSecurity < 0 || p.TTLSecurity > 254, "ttl security of %d hops is not from 0 to 254", p.TTLSecurity)
	wrong(p.TTLSecurity > 1 && !p.MultiHop, "ttl security of %d hops needs a multihop peer", p.TTLSecurity)
	t := p.Timers
	wrong(t.Hold != NoHold && t.Hold != 0 && (t.Hold < minHold || t.Hold > maxHold), "the hold time %s is not 0 or from 3 s to 65535 s", t.Hold)
	wrong(t.Keepalive < 0 || t.Connect < 0, "a time is negative")
	wrong(t.Keepalive > 0 && t.Hold > 0 && t.Keepalive >= t.Hold, "the keepalive time %s is not below the hold time %s", t.Keepalive, t.Hold)
	wrong(t.Restart < 0 || t.Restart > maxRestart, "the restart time %s is not from 0 to 4095 s", t.Restart)
	return errors.Join(all...)
}

// withDefaults returns p with defaults in the fields that are unset.
func (p Peer) withDefaults() Peer {
	if p.Addr.IsValid() {
		p.Addr = netip.AddrPortFrom(p.Addr.Addr().Unmap(), cmp.Or(p.Addr.Port(), Port))
	}
	p.Source = p.Source.Unmap()
	switch p.Timers.Hold {
	case 0:
		p.Timers.Hold = defaultHold
	case NoHold:
		p.Timers.Hold = 0
	}
	p.Timers.Connect = cmp.Or(p.Timers.Connect, defaultConnect)
	return p
}

// SameRouter reports whether p and o have the same address and port, or the same interface. A router has only one session with this box.
func (p Peer) SameRouter(o Peer) bool {
	p, o = p.withDefaults(), o.withDefaults()
	return p.Addr == o.Addr && p.Interface == o.Interface
}

// String returns the address of the peer or its interface.
func (p Peer) String() string {
	switch {
	case p.Interface != "":
		return p.Interface
	case p.Addr.Port() == Port || p.Addr.Port() == 0:
		return p.Addr.Addr().String()
	}
	return p.Addr.String()
}

// internal reports whether a peer of this AS is an internal one (iBGP).
func (p Peer) internal(as uint32) bool { return as == p.LocalAS }
