package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// table is a connection tracking table: the kernel's, or a fake in tests.
type table interface {
	// deleteMatching calls judge with batches of the entries that match any of the queries, and carries out the verdicts. The entries are valid
	// until judge returns. It stops when ctx is done. If it returns an error, some entries may have been deleted.
	deleteMatching(ctx context.Context, queries []query, judge filterFunc) (tally, error)
	close() error
}

// A filterFunc appends a verdict for each entry. box is the address of the box, by family, for the dead ends of reset connections; a family
// without an address is missing.
type filterFunc func(entries []entry, verdicts []verdict) (_ []verdict, box map[nft.Family]netip.Addr)

// tally counts entries that were read, deleted, and reset.
type tally struct {
	seen, forgotten, reset int
}

func (t *tally) add(o tally) {
	t.seen += o.seen
	t.forgotten += o.forgotten
	t.reset += o.reset
}

// kernelTable is the conntrack table of a network namespace. It reads entries as a stream on one socket, and changes entries on a second
// socket at the same time.
type kernelTable struct {
	netns           int
	reader, changer *socket // nil before the first use, and after a failure until the next use
	entries         []entry
	verdicts        []verdict
	change          change
}

func (t *kernelTable) open() error {
	if t.reader != nil {
		return nil
	}
	reader, err := dial(t.netns)
	if err != nil {
		return err
	}
	changer, err := dial(t.netns)
	if err != nil {
		return errors.Join(err, reader.Close())
	}
	t.reader, t.changer = reader, changer
	return nil
}

func (t *kernelTable) close() error {
	if t.reader == nil {
		return nil
	}
	err := errors.Join(t.reader.Close(), t.changer.Close())
	t.reader, t.changer = nil, nil
	return err
}

// explain adds the remedy to an error of ctnetlink.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("connection tracking cannot be changed: run as root or with CAP_NET_ADMIN: %w", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel does not let connection tracking be read: it needs CONFIG_NF_CT_NETLINK (`modprobe nf_conntrack_netlink`): %w", err)
	}
	return fmt.Errorf("look through the tracked connections: %w", err)
}

// deleteMatching implements table on the kernel's table.
func (t *kernelTable) deleteMatching(ctx context.Context, queries []query, judge filterFunc) (tally, error) {
	if err := t.open(); err != nil {
		return tally{}, explain(err)
	}
	var total tally
	entries, err := t.reader.count()
	if err == nil && entries == 0 {
		return total, nil
	}
	asked := queries
	take := func(datagram []byte, sequence uint32) error {
		t.entries = t.entries[:0]
		for m := range nfnetlink.Messages(datagram) {
			if m.Kind != messageNew || m.Sequence != sequence {
				continue
			}
			t.entries = append(t.entries, entry{})
			last := &t.entries[len(t.entries)-1]
			if !last.decode(m.Body) || !slices.ContainsFunc(asked, func(q query) bool { return q.has(last) }) {
				t.entries = t.entries[:len(t.entries)-1]
			}
		}
		var box map[nft.Family]netip.Addr
		t.verdicts, box = judge(t.entries, t.verdicts[:0])
		done, err := t.deleteEntries(box)
		total.add(done)
		return err
	}
	if err == nil && entries <= fewEntries && len(queries) > 1 {
		err = t.reader.dumpAll(take)
	} else {
		err = nil
		for i := 0; i < len(queries) && err == nil && ctx.Err() == nil; i++ {
			asked = queries[i : i+1]
			err = t.reader.dump(queries[i], take)
		}
	}
	if err != nil {
		// The messages queued on the sockets answer a request that is no longer waited for.
		err = errors.Join(explain(err), t.close())
	}
	return total, err
}

// deleteEntries carries out the verdicts on the entries. box has the addresses for dead ends, by family.
func (t *kernelTable) deleteEntries(box map[nft.Family]netip.Addr) (tally, error) {
	t.change.begin(t.changer.Sequence(0))
	for i, v := range t.verdicts {
		switch e := &t.entries[i]; {
		case v == forget, v == reset && (e.zoned || !box[e.family].IsValid()):
			t.change.forget(e)
		case v == reset:
			t.change.reset(e, box[e.family])
		}
	}
	seen := tally{seen: len(t.entries)}
	if len(t.change.kinds) == 0 {
		return seen, nil
	}
	t.changer.Sequence(len(t.change.kinds))
	if err := t.changer.Send(t.change.Buf); err != nil {
		return seen, fmt.Errorf("delete entries: %w", err)
	}
	done, err := t.change.answers(t.changer)
	done.seen = seen.seen
	return done, err
}

// Connection is a tracked connection with a translated destination, or one that was adopted from another box. It has more than 15 fields:
// those of a kernel entry, named by their roles for a Service.
type Connection struct {
	// ID is the kernel's id of the entry, as printed by `conntrack -o id`. It differs from the ids of older entries with the same addresses.
	ID       uint32
	Family   nft.Family
	Protocol nft.Protocol
	// Client sends to To. Endpoint answers, and sees As as the client.
	Client, To, Endpoint, As netip.AddrPort
	// State is the TCP state in conntrack's notation; "" for other protocols.
	State string
	// Answered reports that the endpoint has sent a packet.
	Answered bool
	// Open reports that Answered is set and the connection was not closed by both sides.
	Open bool
	// Expires is the time until the kernel removes the entry, unless a packet arrives.
	Expires time.Duration
	// In and Out count the bytes sent by the client and by the endpoint, including IP headers. Counted reports that the kernel counts them,
	// because net.netfilter.nf_conntrack_acct was set when the connection began.
	In, Out uint64
	Counted bool
	// Adopted reports that the connection seems to have begun on another box, because the first tracked segment came from the endpoint and only
	// its source is translated. Masqueraded and other source-translated connections look the same, so the caller must check that To is a
	// frontend.
	Adopted bool
	// Left reports that only the source of the connection is translated, for any protocol: Endpoint connected to Client, and Client sees To as
	// the source.
	Left bool
	// Fast reports that packets of the connection are forwarded by a flowtable.
	Fast bool
	// Began is when the connection began; zero unless net.netfilter.nf_conntrack_timestamp was set then.
	Began time.Time
}

// tcpStates holds the names of TCP states in nf_conntrack_proto_tcp.c, indexed by tcpState.
var tcpStates = [...]string{
	"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// Scan reads the connection tracking table of the network namespace of the file descriptor netns (0: the current one), and calls each with
// every translated connection. It returns the number of entries read, excluding other protocols. It may miss entries that are added or
// deleted during the scan.
func Scan(netns int, each func(*Connection)) (entries int, err error) {
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
			if !e.isThrough() && !e.left {
				continue
			}
			e.describeLeft(&c)
			each(&c)
		}
		return nil
	})
	if err != nil {
		return entries, explain(err)
	}
	return entries, nil
}

// isThrough reports whether the entry is a connection that was translated to an endpoint, and not a dead end.
func (e *entry) isThrough() bool { return e.to != e.replyFrom && !e.isDeadEnd() }

func (e *entry) describe(c *Connection) {
	client, endpoint := e.directions()
	*c = Connection{
		ID: binary.BigEndian.Uint32(e.id), Family: e.family, Protocol: e.protocol,
		Client: client[0], To: client[1], Endpoint: endpoint[0], As: endpoint[1],
		Answered: e.answered || e.adopted, Open: (e.answered || e.adopted) && !e.isEnding(), Adopted: e.adopted, Fast: e.fast,
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

// ErrGone is the error of Kill for a connection that has ended.
var ErrGone = errors.New("there is no such connection any more")

// Kill ends the connection with the given ID, if `may` returns true for it. For TCP the next packet of either side is answered by a reset. Entries of
// other protocols are deleted, so that their next packet counts as a first one. local holds the addresses of this host, from which resets are sent;
// without an address of the family a TCP entry is deleted instead. The error is ErrGone if there is no such connection.
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
				!e.isThrough() && !e.left || binary.BigEndian.Uint32(e.id) != id {
				continue
			}
			if e.describeLeft(&c); !may(&c) {
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
		done, err := t.deleteEntries(box)
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

// query selects entries of the connection tracking table. The kernel may return additional entries.
type query struct {
	family   nft.Family
	protocol nft.Protocol
	port     uint16     // destination port of the client's packets; 0 means any
	addr     netip.Addr // destination address of the client's packets; the zero Addr means any
	// unanswered leaves out entries that got a reply.
	unanswered bool
}

// maxQueries is the maximum number of queries for single ports; with more ports, whole protocols are queried. For each query the kernel
// walks the whole table in one go with softirqs of that CPU blocked: 45 ms with 200,000 entries (measured on 6.18), of which 10 ms for an
// empty table of 262,144 buckets. Reading and judging that many entries takes 380 ms, in steps of less than a millisecond.
const maxQueries = 4

// fewEntries is the number of entries up to which one unfiltered dump replaces several queries: reading and judging 5,000 entries takes as
// long as walking the table once more.
const fewEntries = 4096

// has reports whether an entry matches the query. The check is necessary because kernels without filters return the whole table.
func (q *query) has(e *entry) bool {
	return q.family == e.family && q.protocol == e.protocol && (q.port == 0 || q.port == e.to.Port()) &&
		(!q.addr.IsValid() || q.addr == e.to.Addr()) && !(q.unanswered && e.answered)
}

// single returns the port of a frontend; 0 if it is a range.
func (f *Frontend) single() uint16 {
	if f.Last != 0 {
		return 0
	}
	return f.Port
}

// queriesFor returns queries that cover the frontends of all items: one for each port up to maxQueries ports, otherwise one for each
// protocol.
func queriesFor(items []*item) []query {
	ports := map[query]netip.Addr{} // with the address all frontends of the port have, if they have one
	for _, it := range items {
		fe := it.flows.Frontend
		q := query{family: fe.Family, protocol: fe.Protocol, port: fe.single()}
		if addr, known := ports[q]; known && addr != fe.Addr {
			ports[q] = netip.Addr{}
		} else {
			ports[q] = fe.Addr
		}
	}
	queries := make([]query, 0, min(len(ports), maxQueries))
	for q, addr := range ports {
		if len(ports) > maxQueries {
			q.port, addr = 0, netip.Addr{}
		}
		q.addr = addr
		if !slices.Contains(queries, q) {
			queries = append(queries, q)
		}
	}
	return queries
}

// queriesOf returns queries that cover the frontends: one for each port up to maxQueries ports, otherwise one for each protocol. If unanswered is
// set, they leave out entries that got a reply. The queries do not overlap.
func queriesOf[V any](frontends map[Frontend]V, unanswered bool) (queries []query) {
	whole, single := map[query]bool{}, map[query]bool{}
	for fe := range frontends {
		whole[query{family: fe.Family, protocol: fe.Protocol, unanswered: unanswered}] = true
		single[query{family: fe.Family, protocol: fe.Protocol, port: fe.single(), unanswered: unanswered}] = true
	}
	if len(single) <= maxQueries {
		whole = single
	}
	for q := range whole {
		if q.port == 0 || !whole[query{family: q.family, protocol: q.protocol, unanswered: unanswered}] {
			queries = append(queries, q)
		}
	}
	return queries
}
