package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const (
	// lastReading is the time for which a session still reads after its hold timer expired: a process that was stopped for a while reads what
	// has arrived before it declares the peer dead.
	lastReading = time.Second
	// shutdownNotice is how long Leave waits for the peer to choose other paths, withdrawNotice how long it waits for the peer to remove
	// withdrawn routes.
	shutdownNotice, withdrawNotice = 2 * time.Second, time.Second
	// holdOfNone limits the time to write a message when no hold time was agreed. leavePatience limits it after Leave.
	holdOfNone, leavePatience = 90 * time.Second, 5 * time.Second
	// subBFDDown is the subcode of the Cease that is sent when BFD detects the loss of the peer (RFC 9384).
	subBFDDown = 10
)

// read reads the messages of an established session until it ends, and returns the reason.
func (s *session) read() error {
	for {
		// A message is to be there, whole, when the hold time ends.
		s.patience(s.agreed.hold)
		_, err := s.in.Peek(1)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.patience(lastReading)
			_, err = s.in.Peek(1)
		}
		var h header
		var body []byte
		if err == nil {
			h, body, err = s.next()
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &notification{
				code: bgp.BGP_ERROR_HOLD_TIMER_EXPIRED, detail: fmt.Sprintf("the peer was silent for the hold time of %s", s.agreed.hold),
			}
		case err != nil:
			return err
		}
		switch h.kind {
		case typeNotification:
			return parseNotification(body)
		case typeOpen:
			return &notification{
				code: bgp.BGP_ERROR_FSM_ERROR, subcode: bgp.BGP_ERROR_SUB_RECEIVE_UNEXPECTED_MESSAGE_IN_ESTABLISHED_STATE,
				detail: "the peer sent a second OPEN",
			}
		case typeUpdate:
			s.speaker.publish(func(st *State) { st.Counters.Dropped++ })
		case typeRefresh:
			ipv4, ipv6 := parseRefresh(body)
			if !ipv4 && !ipv6 {
				continue
			}
			select {
			case s.refresh <- ipv6:
			case <-time.After(lastWords): // the writer has many of them to do: this one comes too often
			}
		}
	}
}

// write sends routes, their changes and keepalives to the peer until the session ends, and returns the reason.
func (s *session) write(ctx context.Context) error {
	var keep <-chan time.Time
	if s.agreed.keepalive > 0 {
		ticker := time.NewTicker(s.agreed.keepalive)
		defer ticker.Stop()
		keep = ticker.C
	}
	s.speaker.established(s)
	done := make(chan struct{})
	defer close(done)
	go s.watch(ctx, done)
	err := s.begin()
	for err == nil {
		select {
		case <-ctx.Done():
			return errStopped
		case ended := <-s.ended:
			return ended
		case <-s.speaker.leave:
			return s.farewell(ctx, keep)
		case <-s.speaker.wake:
			err = s.sendChanges(s.speaker.changes(false))
		case ipv6 := <-s.refresh:
			again := maps.Clone(s.sent) // RFC 2918
			maps.DeleteFunc(again, func(p netip.Prefix, _ *Attributes) bool { return p.Addr().Is6() != ipv6 })
			err = s.announce(again)
		case <-keep:
			err = s.say(keepalive())
		}
	}
	return s.why(ctx, err)
}

// watch bounds a write that blocks because the peer reads nothing: it aborts the write when ctx ends or the session is reset, and shortens
// its deadline after Leave. It returns when done is closed, or earlier.
func (s *session) watch(ctx context.Context, done <-chan struct{}) {
	for leave := s.speaker.leave; ; {
		select {
		case <-done:
			return
		case <-ctx.Done():
			s.limit(0)
			return
		case words := <-s.speaker.reset:
			s.end(&notification{code: bgp.BGP_ERROR_CEASE, subcode: subBFDDown, detail: words})
			return
		case <-leave:
			s.limit(leavePatience)
			leave = nil
		}
	}
}

// end ends the session with a reason; later reasons are ignored.
func (s *session) end(why error) {
	select {
	case s.ended <- why:
	default:
	}
	s.limit(0)
}

// limit shortens the time that the write in progress, and each later one, may take.
func (s *session) limit(most time.Duration) {
	s.writes.mu.Lock()
	defer s.writes.mu.Unlock()
	if most < s.writes.most && !s.writes.closing {
		s.writes.most = most
		_ = s.link.SetWriteDeadline(time.Now().Add(most))
	}
}

// begin sends all routes to the peer, and the End-of-RIB markers (RFC 4724).
func (s *session) begin() error {
	if err := s.sendChanges(s.speaker.changes(true)); err != nil {
		return err
	}
	for _, family := range []struct{ carried, ipv6 bool }{{s.agreed.ipv4, false}, {s.agreed.ipv6, true}} {
		if !family.carried {
			continue
		}
		if err := s.say(serialize(bgp.NewEndOfRib(familyOf(family.ipv6)))); err != nil {
			return err
		}
	}
	return nil
}

// why returns the reason for which the session ends: the end of ctx, or the one passed to end. If there is none within lastWords, it returns err,
// the error of a write.
func (s *session) why(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return errStopped
	case known := <-s.ended:
		return known
	case <-time.After(lastWords):
		return err
	}
}

// say sends a message of an established session. An error after the hold time means that the peer reads nothing.
func (s *session) say(message []byte) error {
	s.writes.mu.Lock()
	_ = s.link.SetWriteDeadline(time.Now().Add(s.writes.most))
	s.writes.mu.Unlock()
	return s.send(message)
}

// sendChanges sends changed routes to the peer; a nil value is a withdrawal. Announcements precede withdrawals, so that a more general
// route takes over without a gap.
func (s *session) sendChanges(changes map[netip.Prefix]*Attributes) error {
	announce, withdraw := map[netip.Prefix]*Attributes{}, map[netip.Prefix]*Attributes{}
	for prefix, a := range changes {
		if a != nil && s.cannot(prefix.Addr().Is6()) != "" {
			continue
		}
		switch old, had := s.sent[prefix]; {
		case a == nil && had:
			withdraw[prefix] = plain
		case a != nil && (!had || !old.equal(a)):
			announce[prefix] = a
		}
	}
	if err := s.announce(announce); err != nil {
		return err
	}
	return s.withdraw(withdraw)
}

// cannot returns why this session cannot carry routes of a family; "" when it can.
func (s *session) cannot(ipv6 bool) string {
	switch {
	case ipv6 && !s.agreed.ipv6:
		return "the session carries no IPv6 routes"
	case !ipv6 && !s.agreed.ipv4:
		return "the session carries no IPv4 routes"
	case ipv6 && len(s.path.next6) == 0:
		return "there is no IPv6 next hop: give the interface a global IPv6 address"
	case !ipv6 && len(s.path.next4) == 0:
		return "there is no IPv4 next hop: give the interface an IPv4 address, or enable extended next hops (RFC 8950) on the peer"
	}
	return ""
}

func (s *session) announce(routes map[netip.Prefix]*Attributes) error {
	for _, g := range grouped(routes) {
		if err := s.sayAll(s.path.updates(g)); err != nil {
			return err
		}
		for _, prefix := range g.prefixes {
			s.sent[prefix] = g.attributes
		}
	}
	s.account()
	return nil
}

func (s *session) withdraw(routes map[netip.Prefix]*Attributes) error {
	for _, g := range grouped(routes) {
		if err := s.sayAll(withdrawals(g)); err != nil {
			return err
		}
		for _, prefix := range g.prefixes {
			delete(s.sent, prefix)
		}
	}
	s.account()
	return nil
}

func (s *session) sayAll(messages [][]byte) error {
	for _, m := range messages {
		if err := s.say(m); err != nil {
			return err
		}
	}
	s.speaker.publish(func(st *State) { st.Counters.Updates += uint64(len(messages)) })
	return nil
}

// account publishes how many routes were sent to the peer.
func (s *session) account() {
	s.speaker.publish(func(st *State) { st.Routes, st.Pending = len(s.sent), len(s.speaker.routes.dirty) > 0 })
	s.speaker.changed()
}

// farewell ends the session without loss of packets: it asks the peer to prefer other paths (RFC 8326), then withdraws the routes, then
// closes. It takes shutdownNotice and withdrawNotice.
func (s *session) farewell(ctx context.Context, keep <-chan time.Time) error {
	if all := maps.Clone(s.sent); len(all) > 0 {
		for _, step := range []struct {
			do   func(map[netip.Prefix]*Attributes) error
			with map[netip.Prefix]*Attributes
			wait time.Duration
		}{{s.announce, Leaving(all), shutdownNotice}, {s.withdraw, all, withdrawNotice}} {
			if err := step.do(step.with); err != nil {
				return s.why(ctx, err)
			}
			if err := s.pause(ctx, step.wait, keep); err != nil {
				return err
			}
		}
	}
	return &notification{code: bgp.BGP_ERROR_CEASE, subcode: bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, detail: "this speaker left"}
}

// pause waits for d while the session goes on with keepalives (keep). It returns an error if the session ends before.
func (s *session) pause(ctx context.Context, d time.Duration, keep <-chan time.Time) error {
	over := time.After(d)
	for {
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return errStopped
		case err := <-s.ended:
			return err
		case <-keep:
			if err := s.say(keepalive()); err != nil {
				return s.why(ctx, err)
			}
		}
	}
}
