package conntrack

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// socket is a netlink socket to ctnetlink.
type socket struct{ *nfnetlink.Socket }

// dial opens a socket in the network namespace of the file descriptor (0: the current
// one).
func dial(netns int) (*socket, error) {
	s, err := nfnetlink.Dial(nfnetlink.Options{NetNS: netns})
	if err != nil {
		return nil, err
	}
	return &socket{s}, nil
}

// count asks for the number of entries in this network namespace, those included that are
// not complete yet. Walking an empty table takes the kernel milliseconds, this does not.
func (s *socket) count() (entries uint32, err error) {
	var w writer
	sequence := s.Sequence(1)
	w.begin(messageStats, 0, sequence, unix.AF_UNSPEC)
	w.End()
	if err := s.Send(w.Buf); err != nil {
		return 0, err
	}
	datagram, err := s.Receive()
	if err != nil {
		return 0, err
	}
	for m := range nfnetlink.Messages(datagram) {
		switch {
		case m.Sequence != sequence:
		case m.Kind == unix.NLMSG_ERROR && m.Errno() != 0:
			return 0, m.Errno()
		case m.Kind == messageStats:
			if entries := m.Attribute(ctaStatsEntries); len(entries) == 4 {
				return binary.BigEndian.Uint32(entries), nil
			}
		}
	}
	return 0, errors.New("the kernel does not report how many entries there are")
}

// dump asks for the entries that match the query and hands each datagram of the answer
// to take.
func (s *socket) dump(q query, take func(datagram []byte, sequence uint32) error) error {
	return s.request(familyNumber(q.family), func(w *writer) { w.filter(q) }, take)
}

// dumpAll asks for all entries. Nothing is filtered: for a filter that matches little the kernel
// walks its table at one go, with softirqs held back.
func (s *socket) dumpAll(take func(datagram []byte, sequence uint32) error) error {
	return s.request(unix.AF_UNSPEC, func(*writer) {}, take)
}

// request asks for a dump and reads its answer.
func (s *socket) request(family uint8, filter func(*writer), take func(datagram []byte, sequence uint32) error) error {
	var w writer
	sequence := s.Sequence(1)
	w.begin(messageGet, unix.NLM_F_DUMP, sequence, family)
	filter(&w)
	w.End()
	if err := s.Send(w.Buf); err != nil {
		return err
	}
	for {
		datagram, err := s.Receive()
		if err != nil {
			return err // also when it is quiet: a dump has an end mark
		}
		for m := range nfnetlink.Messages(datagram) {
			if m.Sequence == sequence && (m.Kind == unix.NLMSG_DONE || m.Kind == unix.NLMSG_ERROR) {
				if errno := m.Errno(); errno != 0 {
					return errno
				}
				return take(datagram, sequence)
			}
		}
		if err := take(datagram, sequence); err != nil {
			return err
		}
	}
}

// filter has the kernel leave out what cannot match (since 5.8). It compares the ports
// of TCP and UDP alone, and asked for an address of IPv6 it gives the entries that have
// another one: so of IPv6 no address is asked for.
func (w *writer) filter(q query) {
	flags := uint32(filterProto)
	nobody := netip.IPv4Unspecified()
	if q.family == nft.IPv6 {
		nobody = netip.IPv6Unspecified()
	}
	to := nobody
	if q.addr.Is4() {
		flags, to = flags|filterIPDst, q.addr
	}
	if q.port != 0 {
		flags |= filterDstPort
	}
	if q.unanswered {
		w.Uint32(ctaStatus, 0)
		w.Uint32(ctaStatusMask, statusSeenReply)
	}
	w.tuple(ctaTupleOrig, q.protocol, netip.AddrPortFrom(nobody, 0), netip.AddrPortFrom(to, q.port))
	w.nest(ctaFilter, func() {
		w.attribute(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags)...)
	})
}

func familyNumber(f nft.Family) uint8 {
	if f == nft.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// Events reads DESTROY events of connections through Services, and NEW events on request. The kernel reports only
// connections that began while a socket listened (nf_conntrack_events=2, its default).
//
// The reader takes the waiting messages a few times a second, and is woken by the first of them: a wake-up for each
// connection would cost twice as much as the message. Messages that do not fit into the buffer are lost and counted.
// Begins may be called beside Read; otherwise one method is called at a time, but for Close.
type Events struct {
	stream *nfnetlink.Stream
	begins bool // group NEW is joined
	drops  uint32
	entry  entry
	conn   Connection
}

// eventsBuffer has room for some 6,500 messages, each of which the kernel charges 1,280 bytes.
const eventsBuffer = 8 << 20

// Event is a message of the kernel about a connection. It is valid until the next one.
type Event struct {
	*Connection
	// Over reports that the kernel forgot the connection; else it began.
	Over bool
	// Ended is the time of its last packet, as far as it is known: the time of the message less the silence
	// after which the kernel forgets a connection in this state.
	Ended time.Time
}

// Listen joins the groups in a network namespace (its file descriptor, 0: the current one).
func Listen(netns int) (*Events, error) {
	return listen(netns, translated, eventsBuffer)
}

// listen joins the group of DESTROY events with a filter, and a receive buffer in bytes.
func listen(netns int, program []bpf.Instruction, buffer int) (*Events, error) {
	filter, err := bpf.Assemble(program)
	if err != nil {
		return nil, err
	}
	stream, err := nfnetlink.OpenStream(nfnetlink.Options{NetNS: netns}, filter, buffer, groupDestroy)
	if err != nil {
		return nil, explain(err)
	}
	return &Events{stream: stream}, nil
}

// translated is a program (bpf(7), classic) that passes messages about entries with the status bit DST_NAT, and
// those without a status.
var translated = []bpf.Instruction{
	bpf.LoadConstant{Dst: bpf.RegX, Val: ctaStatus},
	bpf.LoadConstant{Dst: bpf.RegA, Val: nfnetlink.HeaderLen + nfnetlink.GenHeaderLen},
	bpf.LoadExtension{Num: bpf.ExtNetlinkAttr},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 3},
	bpf.TAX{},
	bpf.LoadIndirect{Off: 4, Size: 4}, // behind the attribute's header
	bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: statusDstNAT, SkipTrue: 1},
	bpf.RetConstant{Val: math.MaxUint32},
	bpf.RetConstant{Val: 0},
}

// Begins sets whether there are messages about connections that begin too.
func (v *Events) Begins(want bool) (err error) {
	switch {
	case want && !v.begins:
		err = v.stream.Join(groupNew)
	case !want && v.begins:
		err = v.stream.Leave(groupNew)
	}
	if err == nil {
		v.begins = want
	}
	return err
}

// Wait returns when there is something to Read, and os.ErrClosed after Close.
func (v *Events) Wait() error { return v.stream.Wait() }

// readAtOnce bounds the datagrams of one Read, far above what the buffer has room for: the others arrived meanwhile.
const readAtOnce = 50_000

// Read hands each event that waits to each, and returns how many were lost since the last Read. It never waits, and leaves
// the rest to the next Read when events come faster than they are read.
func (v *Events) Read(now time.Time, each func(*Event)) (lost uint64, err error) {
	for range readAtOnce {
		datagram, err := v.stream.Receive()
		switch {
		case errors.Is(err, nfnetlink.ErrNoMessage):
			return lost, nil
		case errors.Is(err, unix.ENOBUFS):
			lost += v.lost()
			continue
		case err != nil:
			return lost, err
		}
		for m := range nfnetlink.Messages(datagram) {
			if m.Kind != messageNew && m.Kind != messageDelete || !v.entry.decode(m.Body) || !v.entry.isThrough() {
				continue
			}
			v.entry.describe(&v.conn)
			e := Event{Connection: &v.conn, Over: m.Kind == messageDelete}
			if e.Over {
				e.Ended = v.entry.lastPacket(now)
			}
			each(&e)
		}
	}
	return lost, nil
}

// lost counts the messages that were lost since the last call, 1 at least.
func (v *Events) lost() uint64 {
	drops, err := v.stream.Drops()
	if err != nil || drops == v.drops {
		return 1
	}
	n := drops - v.drops // modulo 2^32, as the kernel counts
	v.drops = drops
	return uint64(n)
}

// Close ends a Wait.
func (v *Events) Close() error { return v.stream.Close() }

// silence is the timeout of a TCP connection in the kernel by its state (nf_conntrack_proto_tcp.c tcp_timeouts, the defaults), for
// states in which no packets are expected.
var silence = map[tcpState]time.Duration{
	tcpSynSent: 2 * time.Minute, tcpSynReceived: time.Minute, tcpFinWait: 2 * time.Minute, tcpCloseWait: time.Minute,
	tcpLastAck: 30 * time.Second, tcpTimeWait: 2 * time.Minute, tcpClose: 10 * time.Second,
}

// The silence after which a UDP mapping is forgotten (nf_conntrack_proto_udp.c udp_timeouts).
const (
	udpSilence       = 30 * time.Second
	udpStreamSilence = 2 * time.Minute // of one with several packets in both directions
)

// lastPacket returns the time of the last packet of an entry that the kernel has forgotten: now less the timeout
// of its state. An entry that had time left was deleted, and ended now. The kernel reports up to a minute late,
// unless it keeps times of entries (net.netfilter.nf_conntrack_timestamp).
func (e *entry) lastPacket(now time.Time) time.Time {
	if e.ended != 0 {
		now = time.Unix(0, int64(e.ended))
	}
	if e.timeout > 0 {
		return now
	}
	switch {
	case e.protocol == nft.TCP:
		return now.Add(-silence[e.state])
	case e.protocol == nft.UDP && e.assured:
		return now.Add(-udpStreamSilence)
	case e.protocol == nft.UDP:
		return now.Add(-udpSilence)
	}
	return now
}

// Settings are the sysctls that decide what the kernel reports of connections. The product only
// reads them.
type Settings struct {
	Bytes  bool // net.netfilter.nf_conntrack_acct
	Events bool // net.netfilter.nf_conntrack_events
}

// ReadSettings reads them for the network namespace of the process. What cannot be read counts as the kernel's default:
// no bytes, and events.
func ReadSettings() Settings {
	read := func(name string) string {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
		return strings.TrimSpace(string(text))
	}
	return Settings{Bytes: read("acct") == "1", Events: read("events") != "0"}
}
