package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// table is a connection tracking table: the kernel's, or a fake in tests.
type table interface {
	// deleteMatching calls judge for each entry that matches any of the queries, and carries out the verdict. The entry is valid until judge
	// returns. It stops when ctx is done. If it returns an error, some entries may have been deleted.
	deleteMatching(ctx context.Context, queries []query, judge filterFunc) (tally, error)
	close() error
}

// A filterFunc returns the verdict on an entry. box is the address of the box for the dead ends of a connection to reset; without one, its entry is
// deleted instead.
type filterFunc func(e *entry) (v verdict, box netip.Addr)

// tally counts entries that were read, deleted, and reset.
type tally struct {
	seen, forgotten, reset int
	tracked                uint32 // number of entries in the table before the scan; 0 if the kernel does not report it
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
	reader, changer *socket // nil before the first use of each, and after a failure until the next use
	change          change
}

// open opens one of the sockets of the table, unless it is open.
func (t *kernelTable) open(s **socket) (err error) {
	if *s == nil {
		*s, err = dial(t.netns)
	}
	return err
}

func (t *kernelTable) close() (err error) {
	for _, s := range []**socket{&t.reader, &t.changer} {
		if *s != nil {
			err = errors.Join(err, (*s).Close())
			*s = nil
		}
	}
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
	if err := t.open(&t.reader); err != nil {
		return tally{}, explain(err)
	}
	entries, err := t.reader.count()
	total := tally{tracked: entries}
	if err == nil && entries == 0 {
		return total, nil
	}
	asked := queries
	var e entry
	take := func(messages iter.Seq[nfnetlink.Message]) error {
		t.change.kinds = t.change.kinds[:0]
		for m := range messages {
			if m.Kind != messageNew || !e.decode(m.Body) || !slices.ContainsFunc(asked, func(q query) bool { return q.has(&e) }) {
				continue
			}
			total.seen++
			v, box := judge(&e)
			if v == leave {
				continue
			}
			if len(t.change.kinds) == 0 {
				if err := t.open(&t.changer); err != nil {
					return err
				}
				t.change.begin(t.changer.Sequence(0))
			}
			if v == reset && !e.zoned && box.IsValid() {
				t.change.reset(&e, box)
			} else {
				t.change.forget(&e)
			}
		}
		done, err := t.change.send(t.changer)
		total.add(done)
		return err
	}
	if err == nil && entries <= fewEntries && len(queries) > 1 {
		err = t.reader.dump(query{}, take)
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
	t := &kernelTable{netns: netns}
	defer func() { err = errors.Join(err, t.close()) }()
	var c Connection
	total, err := t.deleteMatching(context.Background(), everything, func(e *entry) (verdict, netip.Addr) {
		if e.isThrough() || e.left {
			e.describeLeft(&c)
			each(&c)
		}
		return leave, netip.Addr{}
	})
	return total.seen, err
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
	found, resetters := false, resettersOf(local)
	var c Connection
	total, err := t.deleteMatching(context.Background(), everything, func(e *entry) (v verdict, box netip.Addr) {
		if !found && (e.isThrough() || e.left) && binary.BigEndian.Uint32(e.id) == id {
			if e.describeLeft(&c); may(&c) {
				found, v = true, forget
				if e.protocol == nft.TCP {
					v, box = reset, resetters[e.family]
				}
			}
		}
		return v, box
	})
	switch {
	case err != nil:
		return fmt.Errorf("end connection %d: %w", id, err)
	case total.forgotten+total.reset == 0:
		return ErrGone
	}
	return nil
}

// query selects entries of the connection tracking table. The kernel may return additional entries. All entries match the zero query.
type query struct {
	family   nft.Family
	protocol nft.Protocol
	port     uint16     // destination port of the client's packets; 0 means any
	addr     netip.Addr // destination address of the client's packets; the zero Addr means any
	// unanswered leaves out entries that got a reply.
	unanswered bool
}

// everything is the query for all entries.
var everything = []query{{}}

// maxQueries is the maximum number of queries for single ports; with more ports, whole protocols are queried. For each query the kernel
// walks the whole table in one go with softirqs of that CPU blocked: 45 ms with 200,000 entries (measured on 6.18), of which 10 ms for an
// empty table of 262,144 buckets. Reading and judging that many entries takes 380 ms, in steps of less than a millisecond.
const maxQueries = 4

// fewEntries is the number of entries up to which one unfiltered dump replaces several queries: reading and judging 5,000 entries takes as
// long as walking the table once more.
const fewEntries = 4096

// has reports whether an entry matches the query. The check is necessary because kernels without filters return the whole table.
func (q *query) has(e *entry) bool {
	return *q == (query{}) || q.family == e.family && q.protocol == e.protocol && (q.port == 0 || q.port == e.to.Port()) &&
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
