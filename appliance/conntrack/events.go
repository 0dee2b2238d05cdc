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

// socket is a netlink socket for ctnetlink.
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

// count returns the number of entries in this network namespace, unconfirmed ones included. It takes microseconds, where a dump of an empty
// table takes milliseconds.
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

// dump requests the entries that match the query, and calls take with each datagram of the response.
func (s *socket) dump(q query, take func(datagram []byte, sequence uint32) error) error {
	return s.request(familyNumber(q.family), func(w *writer) { w.filter(q) }, take)
}

// dumpAll requests all entries, and calls take with each datagram of the response. It uses no filter: for one that matches little the
// kernel walks its table in one go, with softirqs blocked.
func (s *socket) dumpAll(take func(datagram []byte, sequence uint32) error) error {
	return s.request(unix.AF_UNSPEC, func(*writer) {}, take)
}

// request sends a request for a dump, to which filter appends attributes, and calls take with each datagram of the response.
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

// filter appends the attributes by which the kernel (since 5.8) leaves out entries that cannot match. It filters by port for TCP and UDP
// only. By IPv6 address it would return exactly the entries with other addresses, so only IPv4 addresses are filtered by.
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

// Events reads the kernel's DESTROY events of connections through Services, and NEW events on request. The kernel sends events only for
// connections that began while a socket listened (nf_conntrack_events=2, its default). The first event wakes the reader up, which then
// reads what waits a few times a second: a wake-up for each connection would cost twice as much as its event. Events that do not fit into
// the buffer are lost and counted. Begins may be called concurrently with Read; otherwise one method is called at a time, except for Close.
type Events struct {
	stream *nfnetlink.Stream
	begins bool // group NEW is joined
	drops  uint32
	entry  entry
	conn   Connection
}

// eventsBuffer is the size of the receive buffer in bytes. It has room for some 6,500 events, for each of which the kernel charges 1,280
// bytes.
const eventsBuffer = 8 << 20

// Event is an event of the kernel about a connection. It is valid until the next one.
type Event struct {
	*Connection
	// Over reports that the kernel forgot the connection; else it began.
	Over bool
	// Ended is the time of its last packet, as far as it is known: the time of the message less the silence
	// after which the kernel forgets a connection in this state.
	Ended time.Time
}

// Listen subscribes to DESTROY events in a network namespace (its file descriptor, 0: the current one).
func Listen(netns int) (*Events, error) {
	return listen(netns, translated, eventsBuffer)
}

// listen subscribes to DESTROY events that pass a BPF filter, with a receive buffer of so many bytes.
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

// translated is a classic BPF program (bpf(7)) that passes events about entries with the status bit DST_NAT, and those without a status.
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

// Begins turns NEW events on or off.
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

// Wait returns nil when there is an event to Read, and os.ErrClosed after Close.
func (v *Events) Wait() error { return v.stream.Wait() }

// readAtOnce is the largest number of datagrams for one Read, far more than the buffer has room for: those beyond it arrived meanwhile.
const readAtOnce = 50_000

// Read calls each with the waiting events, and returns how many were lost since the last Read. It never waits. It leaves events to the next
// Read when they arrive faster than they are read.
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

// lost returns the number of events that were lost since the last call, at least 1.
func (v *Events) lost() uint64 {
	drops, err := v.stream.Drops()
	if err != nil || drops == v.drops {
		return 1
	}
	n := drops - v.drops // modulo 2^32, as the kernel counts
	v.drops = drops
	return uint64(n)
}

// Close closes the socket, which ends a Wait.
func (v *Events) Close() error { return v.stream.Close() }

// silence has the kernel's default timeout of a TCP connection by state (nf_conntrack_proto_tcp.c tcp_timeouts), for states in which no
// packets are expected.
var silence = map[tcpState]time.Duration{
	tcpSynSent: 2 * time.Minute, tcpSynReceived: time.Minute, tcpFinWait: 2 * time.Minute, tcpCloseWait: time.Minute,
	tcpLastAck: 30 * time.Second, tcpTimeWait: 2 * time.Minute, tcpClose: 10 * time.Second,
}

// The kernel's default timeouts of UDP entries (nf_conntrack_proto_udp.c udp_timeouts).
const (
	udpSilence       = 30 * time.Second
	udpStreamSilence = 2 * time.Minute // of one with several packets in both directions
)

// lastPacket returns the time of the last packet of an entry that expired: now, or the recorded end, less the timeout of its state. An
// entry with time left was deleted, and its end is now. Without recorded times (net.netfilter.nf_conntrack_timestamp) the result is up to a
// minute late, as the kernel's event is.
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

// Settings are the sysctls that determine what conntrack events contain. The product only reads them.
type Settings struct {
	Bytes  bool // net.netfilter.nf_conntrack_acct
	Events bool // net.netfilter.nf_conntrack_events
}

// ReadSettings reads the Settings of the network namespace of the process. What cannot be read counts as the kernel's default: no bytes,
// and events.
func ReadSettings() Settings {
	read := func(name string) string {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
		return strings.TrimSpace(string(text))
	}
	return Settings{Bytes: read("acct") == "1", Events: read("events") != "0"}
}
