package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Connection is a tracked connection whose destination was translated, or one that was adopted. It has more than 15 fields: what
// an entry of the kernel tells, by the roles of a Service.
type Connection struct {
	// ID is the kernel's id of the entry, distinct from those of older entries with the same addresses; `conntrack -o id` prints
	// it.
	ID       uint32
	Family   nft.Family
	Protocol nft.Protocol
	// Client sent to To; Endpoint answers, and takes As for its client.
	Client, To, Endpoint, As netip.AddrPort
	// State is the TCP state, as conntrack names it; "" for other protocols.
	State string
	// Answered reports that the endpoint has sent something.
	Answered bool
	// Open reports that Answered holds and neither side has closed the connection.
	Open bool
	// Expires is the time after which the kernel forgets the entry unless a packet arrives.
	Expires time.Duration
	// In and Out are the bytes that the client and the endpoint sent, IP headers included. Counted reports
	// that the kernel counts them: net.netfilter.nf_conntrack_acct was set when the connection began.
	In, Out uint64
	Counted bool
	// Adopted reports that a segment of the endpoint's had the kernel take the connection up, which translates its source. Every
	// connection whose source alone is translated looks like that, as masqueraded ones do, so To has to be a frontend.
	Adopted bool
	// Began is told where net.netfilter.nf_conntrack_timestamp was set then; otherwise it is zero.
	Began time.Time
}

// tcpStates are the names of nf_conntrack_proto_tcp.c, by tcpState.
var tcpStates = [...]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// Look reads the connection tracking table of a network namespace (its file descriptor, 0: the
// current one) and hands each translated connection to each. It returns how many entries it
// read, those of other protocols left out. An entry that comes or goes meanwhile may be missed.
func Look(netns int, each func(*Connection)) (entries int, err error) {
	s, err := dial(netns)
	if err != nil {
		return 0, explain(err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if n, err := s.count(); err == nil && n == 0 {
		return 0, nil
	}
	var e entry
	var c Connection
	err = s.dumpAll(func(datagram []byte, sequence uint32) error {
		for m := range nfnetlink.Messages(datagram) {
			if m.Kind != messageNew || m.Sequence != sequence || !e.decode(m.Body) {
				continue
			}
			entries++
			if !e.isThrough() && !e.adopted {
				continue
			}
			e.describe(&c)
			each(&c)
		}
		return nil
	})
	if err != nil {
		return entries, explain(err)
	}
	return entries, nil
}

// isThrough reports whether the entry is a connection that an endpoint was chosen for: translated,
// and not what is left of one that was ended.
func (e *entry) isThrough() bool { return e.to != e.replyFrom && !e.isDeadEnd() }

func (e *entry) describe(c *Connection) {
	client, endpoint := e.directions()
	*c = Connection{
		ID: binary.BigEndian.Uint32(e.id), Family: e.family, Protocol: e.protocol,
		Client: client[0], To: client[1], Endpoint: endpoint[0], As: endpoint[1],
		Answered: e.answered || e.adopted, Open: (e.answered || e.adopted) && !e.isEnding(), Adopted: e.adopted,
		Expires: time.Duration(e.timeout) * time.Second,
		In:      e.in, Out: e.out, Counted: e.counted,
	}
	if e.adopted {
		c.In, c.Out = e.out, e.in
	}
	if e.began != 0 {
		c.Began = time.Unix(0, int64(e.began))
	}
	if e.protocol == nft.TCP && int(e.state) < len(tcpStates) {
		c.State = tcpStates[e.state]
	}
}

// ErrGone reports that a connection ended before it could be killed.
var ErrGone = errors.New("there is no such connection any more")

// Kill ends the connection of an ID, if may allows it: of TCP whichever end speaks next is
// answered by a reset; other entries are forgotten, and their next packet begins anew. local are
// the addresses of this host, which the resets come from; without one of its family
// the entry is forgotten. The error is ErrGone when there is no such connection.
func Kill(netns int, id uint32, local []netip.Addr, may func(*Connection) bool) (err error) {
	t := &kernelTable{netns: netns}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.open(); err != nil {
		return explain(err)
	}
	found := false
	box := resettersOf(local)
	var c Connection
	err = t.reader.dumpAll(func(datagram []byte, sequence uint32) error {
		t.entries, t.verdicts = t.entries[:0], t.verdicts[:0]
		for m := range nfnetlink.Messages(datagram) {
			var e entry
			if found || m.Kind != messageNew || m.Sequence != sequence || !e.decode(m.Body) ||
				!e.isThrough() && !e.adopted || binary.BigEndian.Uint32(e.id) != id {
				continue
			}
			if e.describe(&c); !may(&c) {
				continue
			}
			found = true
			verdict := forget
			if e.protocol == nft.TCP {
				verdict = reset
			}
			t.entries, t.verdicts = append(t.entries, e), append(t.verdicts, verdict)
		}
		if len(t.entries) == 0 {
			return nil
		}
		done, err := t.carryOut(box)
		if err == nil && done.forgotten+done.reset == 0 {
			return ErrGone
		}
		return err
	})
	switch {
	case errors.Is(err, ErrGone):
		return err
	case err != nil:
		return fmt.Errorf("end connection %d: %w", id, err)
	case !found:
		return ErrGone
	}
	return nil
}
