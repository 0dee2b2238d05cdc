package bgp

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// scripted is a peer whose every message the test decides, on the other end of a pipe.
type scripted struct {
	t    *testing.T
	conn net.Conn
	old  bool // it does not know AS numbers of four octets
}

// pipe makes a Speaker dial into scripted peers, one for each connection it asks for.
func pipe(t *testing.T, s *Speaker) <-chan *scripted {
	t.Helper()
	peers := make(chan *scripted)
	s.dial = func(ctx context.Context, _ Peer) (link, error) {
		near, far := net.Pipe()
		select {
		case peers <- &scripted{t: t, conn: far}:
			return link{Conn: near, local: v4("192.0.2.1"), next6: v4("2001:db8::1")}, nil
		case <-ctx.Done():
			return link{}, ctx.Err()
		}
	}
	return peers
}

func v4(s string) netip.Addr { return netip.MustParseAddr(s) }

// speaker is a Speaker of AS 64512 that speaks to AS 64513.
func speaker(t *testing.T, edit func(*Peer)) *Speaker {
	t.Helper()
	p := Peer{Addr: netip.MustParseAddrPort("192.0.2.2:179"), LocalAS: 64512, RemoteAS: 64513, IPv4: true, IPv6: true}
	if edit != nil {
		edit(&p)
	}
	s, err := New(p, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a Speaker until the returned function is called, within a bubble.
func run(s *Speaker) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	return func() { cancel(); <-done }
}

func (p *scripted) send(m *bgp.BGPMessage) {
	p.t.Helper()
	p.write(serialize(m))
}

func (p *scripted) write(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatalf("the peer could not send: %v", err)
	}
}

// receive reads one message; nil when the connection ended.
func (p *scripted) receive() *bgp.BGPMessage {
	p.t.Helper()
	head := make([]byte, headerLength)
	if _, err := io.ReadFull(p.conn, head); err != nil {
		return nil
	}
	body := make([]byte, int(binary.BigEndian.Uint16(head[16:]))-headerLength)
	if _, err := io.ReadFull(p.conn, body); err != nil {
		return nil
	}
	m, err := bgp.ParseBGPMessage(append(head, body...), &bgp.MarshallingOption{Use2ByteAS: p.old})
	if err != nil {
		p.t.Fatalf("the speaker sent %x: %v", append(head, body...), err)
	}
	return m
}

// skipping reads on to the first message that is no KEEPALIVE.
func (p *scripted) skipping() *bgp.BGPMessage {
	p.t.Helper()
	for {
		if m := p.receive(); m == nil || m.Header.Type != typeKeepalive {
			return m
		}
	}
}

// openFrom is an OPEN of a peer with the usual capabilities.
func openFrom(as uint32, hold uint16, more ...bgp.ParameterCapabilityInterface) *bgp.BGPMessage {
	caps := append([]bgp.ParameterCapabilityInterface{
		bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC),
		bgp.NewCapRouteRefresh(), bgp.NewCapFourOctetASNumber(as),
	}, more...)
	m, err := bgp.NewBGPOpenMessage(twoOctets(as), hold, v4("192.0.2.2"), []bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(caps)})
	if err != nil {
		panic(err)
	}
	return m
}

// greet takes the speaker's OPEN, answers, and establishes the session.
func (p *scripted) greet(answer *bgp.BGPMessage) *bgp.BGPOpen {
	p.t.Helper()
	m := p.receive()
	if m == nil || m.Header.Type != typeOpen {
		p.t.Fatalf("the speaker began with %+v", m)
	}
	p.send(answer)
	if m := p.receive(); m == nil || m.Header.Type != typeKeepalive {
		p.t.Fatalf("the speaker answered an OPEN with %+v", m)
	}
	p.write(keepalive())
	return m.Body.(*bgp.BGPOpen)
}

// endOfRIBs reads updates up to both ends of RIB.
func (p *scripted) endOfRIBs() []*bgp.BGPUpdate {
	p.t.Helper()
	var all []*bgp.BGPUpdate
	for ends := 0; ends < 2; {
		m := p.skipping()
		if m == nil {
			p.t.Fatal("the session ended before the end of RIB")
		}
		u, is := m.Body.(*bgp.BGPUpdate)
		if !is {
			p.t.Fatalf("the speaker sent %+v", m)
		}
		if end, _ := u.IsEndOfRib(); end {
			ends++
			continue
		}
		all = append(all, u)
	}
	return all
}

// attribute finds an attribute of an update.
func attribute[A bgp.PathAttributeInterface](u *bgp.BGPUpdate) (found A, is bool) {
	for _, a := range u.PathAttributes {
		if found, is := a.(A); is {
			return found, true
		}
	}
	return found, false
}

// announced lists the prefixes of an update, and withdrawn those that it takes back.
func announced(u *bgp.BGPUpdate) (all []string) {
	for _, n := range u.NLRI {
		all = append(all, n.NLRI.String())
	}
	if mp, is := attribute[*bgp.PathAttributeMpReachNLRI](u); is {
		for _, n := range mp.Value {
			all = append(all, n.NLRI.String())
		}
	}
	return all
}

func withdrawn(u *bgp.BGPUpdate) (all []string) {
	for _, n := range u.WithdrawnRoutes {
		all = append(all, n.NLRI.String())
	}
	if mp, is := attribute[*bgp.PathAttributeMpUnreachNLRI](u); is {
		for _, n := range mp.Value {
			all = append(all, n.NLRI.String())
		}
	}
	return all
}

// down waits until the session is down and compares why.
func down(t *testing.T, s *Speaker, want string) {
	t.Helper()
	synctest.Wait()
	if got := s.State(); got.Phase == Established || !strings.Contains(got.LastDown, want) {
		t.Errorf("%s, down because %q, want %q", got.Phase, got.LastDown, want)
	}
}

// notified reads on to the NOTIFICATION with which the speaker ends.
func (p *scripted) notified(code, subcode uint8) {
	p.t.Helper()
	for {
		m := p.receive()
		if m == nil {
			p.t.Errorf("the connection ended without a NOTIFICATION, want %d/%d", code, subcode)
			return
		}
		if n, is := m.Body.(*bgp.BGPNotification); is {
			if n.ErrorCode != code || n.ErrorSubcode != subcode {
				p.t.Errorf("NOTIFICATION %d/%d, want %d/%d", n.ErrorCode, n.ErrorSubcode, code, subcode)
			}
			return
		}
	}
}

func routes(prefixes ...string) map[netip.Prefix]*Attributes {
	all := map[netip.Prefix]*Attributes{}
	for _, p := range prefixes {
		all[netip.MustParsePrefix(p)] = nil
	}
	return all
}

const second = time.Second
