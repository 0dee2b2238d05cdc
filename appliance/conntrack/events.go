package conntrack

import (
	"encoding/binary"
	"errors"
	"iter"
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

// dial opens a socket in the network namespace of the file descriptor netns; 0 means the current one.
func dial(netns int) (*socket, error) {
	s, err := nfnetlink.Dial(nfnetlink.Options{NetNS: netns})
	if err != nil {
		return nil, err
	}
	return &socket{s}, nil
}

// count returns the number of entries in this network namespace, including unconfirmed ones. It takes microseconds, whereas a dump of an
// empty table takes milliseconds.
func (s *socket) count() (entries uint32, err error) {
	var w writer
	w.begin(messageStats, 0, s.Sequence(1), unix.AF_UNSPEC)
	w.End()
	reported := false
	err = s.Ask(w.Buf, func(messages iter.Seq[nfnetlink.Message]) error {
		for m := range messages {
			if value := m.Attribute(ctaStatsEntries); m.Kind == messageStats && len(value) == 4 {
				entries, reported = binary.BigEndian.Uint32(value), true
			}
		}
		return nil
	})
	if err == nil && !reported {
		err = errors.New("the kernel does not report how many entries there are")
	}
	return entries, err
}

// dump requests the entries that match the query, and calls take with the messages of each datagram of the answer. The request for all entries has no
// filter: if few entries match a filter, the kernel walks the whole table in one go, with softirqs blocked.
func (s *socket) dump(q query, take func(iter.Seq[nfnetlink.Message]) error) error {
	var w writer
	w.begin(messageGet, unix.NLM_F_DUMP, s.Sequence(1), familyNumber(q.family))
	if q != (query{}) {
		w.filter(q)
	}
	w.End()
	return s.Ask(w.Buf, take)
}

// filter appends the attributes by which the kernel (since 5.8) leaves out entries that cannot match. It filters by port only for TCP and
// UDP. It does not filter by IPv6 address, because the kernel would return exactly the entries with other addresses.
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
	switch f {
	case nft.IPv4:
		return unix.AF_INET
	case nft.IPv6:
		return unix.AF_INET6
	}
	return unix.AF_UNSPEC
}

// Events reads the kernel's DESTROY events of connections through Services, and NEW events on request. The kernel sends events only for
// connections that began while a socket listened (nf_conntrack_events=2, its default). The first event wakes the reader, which then reads
// all pending events a few times a second, because waking for each connection would cost twice as much as the event itself. Events that do
// not fit into the buffer are lost and counted. Begins may be called concurrently with Read, and Close with any method; otherwise only one
// method may be called at a time.
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

// Event is a kernel event about a connection. It is valid only until the next event.
type Event struct {
	*Connection
	// Over reports that the kernel removed the connection; otherwise the connection began.
	Over bool
	// Ended is the estimated time of the last packet: the time of the event minus the timeout after which the kernel removes an idle connection
	// in this state.
	Ended time.Time
}

// Listen subscribes to DESTROY events in the network namespace of the file descriptor netns; 0 means the current one.
func Listen(netns int) (*Events, error) {
	return listen(netns, translated, eventsBuffer)
}

// listen subscribes to DESTROY events that pass a BPF filter, with a receive buffer of the given size in bytes.
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

// Begins(true) turns NEW events on, Begins(false) turns them off.
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

// readAtOnce is the maximum number of datagrams for one Read. It is far more than fit into the buffer, so a Read reaches it only if datagrams arrive
// meanwhile.
const readAtOnce = 50_000

// Read calls each with the pending events, and returns how many were lost since the last Read. It never blocks. If events arrive faster
// than they are read, the rest is left to the next Read.
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

// silence holds the kernel's default timeouts of TCP connections (nf_conntrack_proto_tcp.c tcp_timeouts) in states in which no packets are
// expected.
var silence = map[tcpState]time.Duration{
	tcpSynSent: 2 * time.Minute, tcpSynReceived: time.Minute, tcpFinWait: 2 * time.Minute, tcpCloseWait: time.Minute,
	tcpLastAck: 30 * time.Second, tcpTimeWait: 2 * time.Minute, tcpClose: 10 * time.Second,
}

// The kernel's default timeouts of UDP entries (nf_conntrack_proto_udp.c udp_timeouts).
const (
	udpSilence       = 30 * time.Second
	udpStreamSilence = 2 * time.Minute // for entries with several packets in both directions
)

// lastPacket returns the estimated time of the last packet of an ended entry: now, or the recorded end, minus the timeout of the entry's
// state. An entry with time left was deleted, and its end is returned unchanged. Without recorded times
// (net.netfilter.nf_conntrack_timestamp) the result is up to a minute late, like the kernel's event.
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

// Settings holds the sysctls that determine the content of conntrack events. svcctl only reads them.
type Settings struct {
	Bytes  bool // net.netfilter.nf_conntrack_acct
	Events bool // net.netfilter.nf_conntrack_events
}

// ReadSettings reads the Settings of the network namespace of the process. A sysctl that cannot be read counts as the kernel's default:
// bytes off, events on.
func ReadSettings() Settings {
	read := func(name string) string {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
		return strings.TrimSpace(string(text))
	}
	return Settings{Bytes: read("acct") == "1", Events: read("events") != "0"}
}
