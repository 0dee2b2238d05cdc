package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// transaction is a batch as nfnetlink takes it: NFNL_MSG_BATCH_BEGIN, messages,
// NFNL_MSG_BATCH_END, all sent with one sendmsg.
type transaction struct {
	writer
	socket        *socket
	table         string // the table that all messages are about
	firstSequence uint32 // sequence number of NFNL_MSG_BATCH_BEGIN
	parts         []part // the messages after NFNL_MSG_BATCH_BEGIN, with consecutive sequence numbers
	op            int    // index of the operation that is being written
	setID         uint32
	timeout       time.Duration   // timeout of the elements being added; 0 means the set's default
	echo          bool            // the kernel echoes deleted elements with their counts
	last          []nft.Count     // last counts of deleted elements, complete after the commit
	err           error           // the first encoding error
	without       map[string]bool // flowtable devices to leave out, because the kernel refused them
}

// part maps a message of a transaction to its operation.
type part struct {
	op      int
	start   int    // offset of the message in the buffer, in bytes
	element int    // index of the first element in the message
	device  string // the device that is added to or removed from a flowtable; "" for none
}

// newTransaction starts a transaction. The kernel refuses it unless its current generation equals the given one; 0 matches any generation.
func newTransaction(s *socket, table string, generation uint32) *transaction {
	t := &transaction{socket: s, table: table, firstSequence: s.Sequence(1)}
	t.Buf, s.spare = s.spare[:0], nil // there is one transaction at a time
	t.Begin(unix.NFNL_MSG_BATCH_BEGIN, 0, t.firstSequence, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		t.Uint32(unix.NFNL_BATCH_GENID, generation)
	}
	t.End()
	return t
}

// attrTable is the first attribute of every message that changes something: NFTA_TABLE_NAME, NFTA_CHAIN_TABLE,
// NFTA_SET_TABLE and so on.
const attrTable = 1

// message starts a message of the transaction, about the table or something in it; End completes it.
func (t *transaction) message(kind, flags uint16, f nft.Family) {
	t.parts = append(t.parts, part{op: t.op, start: len(t.Buf)})
	t.Begin(nftMessage(kind), flags, t.socket.Sequence(1), protocols[f].family, 0)
	t.Text(attrTable, t.table)
}

// abort ends the transaction with an operation that is bound to fail, so that the kernel undoes all of it.
func (t *transaction) abort(op int) {
	t.op, t.table = op, probeTable+"-absent"
	t.message(unix.NFT_MSG_DELTABLE, 0, nft.IPv4)
	t.End()
}

func (t *transaction) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// empty reports whether there is nothing to commit.
func (t *transaction) empty() bool { return len(t.parts) == 0 }

// finish completes the transaction. Only its last message requests an acknowledgement: the kernel reports errors in any case, and an acknowledgement
// for each message of a large batch would overflow the receive buffer.
func (t *transaction) finish() error {
	last := t.Buf[t.parts[len(t.parts)-1].start:]
	binary.NativeEndian.PutUint16(last[6:], binary.NativeEndian.Uint16(last[6:])|unix.NLM_F_ACK)
	t.Begin(unix.NFNL_MSG_BATCH_END, 0, t.socket.Sequence(1), unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	t.End()
	if t.err == nil && len(t.Buf) > math.MaxInt32/2 { // half of the largest SO_SNDBUF
		t.err = fmt.Errorf("%w (%d bytes)", ErrTooBig, len(t.Buf))
	}
	return t.err
}

// outcome holds the kernel's answers to a transaction.
type outcome struct {
	acknowledged bool
	lost         error                     // why some answers may be missing; nil if all were received
	whole        nfnetlink.Failure         // why the transaction as a whole was refused
	refused      map[int]nfnetlink.Failure // failed messages by index in parts
}

// send sends the transaction and reads the kernel's answers. An error means that the kernel has not processed it.
func (t *transaction) send() (outcome, error) {
	o := outcome{refused: map[int]nfnetlink.Failure{}}
	if err := t.finish(); err != nil {
		return o, err
	}
	if err := t.socket.send(t.Buf); err != nil {
		return o, err
	}
	if cap(t.Buf) <= maxSpare {
		t.socket.spare = t.Buf // for the next one; until then it is read
	}
	for {
		datagram, err := t.socket.Receive()
		switch {
		case errors.Is(err, nfnetlink.ErrNoMessage):
			return o, nil
		case errors.Is(err, unix.ENOBUFS):
			o.lost = err // the rest of the queue is still there
			continue
		case err != nil:
			o.lost = err
			return o, nil
		}
		for m := range nfnetlink.Messages(datagram) {
			index := int(int32(m.Sequence-t.firstSequence)) - 1
			if m.Kind == nftMessage(unix.NFT_MSG_DELSETELEM) && t.echo {
				t.last = echoed(&m, t.last)
				continue
			}
			if m.Kind != unix.NLMSG_ERROR || index < -1 || index >= len(t.parts) {
				continue
			}
			switch f := m.Failure(); {
			case index == -1:
				o.whole = f
			case f.Errno != 0:
				o.refused[index] = f
			case index == len(t.parts)-1:
				o.acknowledged = true
			}
		}
	}
}

// commit sends the transaction and combines the kernel's answers into one error. text formats an operation for the error: one of its elements by
// index, or the whole operation if element is -1.
func (t *transaction) commit(text func(op, element int) string) error {
	o, err := t.send()
	return t.result(o, err, text)
}

// result converts the kernel's answers to an error, nil if the transaction was committed. err is the error of sending it.
func (t *transaction) result(o outcome, err error, text func(op, element int) string) error {
	switch {
	case err != nil:
		return commitError(err)
	case o.whole.Errno != 0:
		return commitError(o.whole.Errno)
	case len(o.refused) > 0:
		return t.refusedError(o.refused, text)
	case o.lost != nil:
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, o.lost)
	case !o.acknowledged:
		return ErrOutcomeUnknown
	}
	return nil
}

func commitError(err error) error {
	switch {
	case errors.Is(err, unix.ERESTART):
		return ErrStale
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return ErrPermission
	case errors.Is(err, ErrTooBig):
		return err
	}
	return fmt.Errorf("commit to nf_tables: %w", err)
}

// opError returns an OpError for the first message that was refused.
func (t *transaction) opError(refused map[int]nfnetlink.Failure, text func(op, element int) string) error {
	first := len(t.parts)
	for i := range refused {
		first = min(first, i)
	}
	p, f := t.parts[first], refused[first]
	element := -1
	if n, ok := t.elementAt(p.start, f.Offset); ok {
		element = p.element + n
	}
	return &OpError{Op: p.op, Text: text(p.op, element), Errno: f.Errno, Hint: f.Hint}
}

// elementAt returns the index of the element of a message that contains the attribute at an offset; false if there is none. An interval of a set with
// a single field takes two elements in the message, of which the second is marked as an end.
func (t *transaction) elementAt(start, offset int) (n int, ok bool) {
	m := t.Buf[start:]
	if kind := binary.NativeEndian.Uint16(m[4:]); kind != nftMessage(unix.NFT_MSG_NEWSETELEM) && kind != nftMessage(unix.NFT_MSG_DELSETELEM) {
		return 0, false
	}
	m = m[:binary.NativeEndian.Uint32(m)]
	// All slices below share one array, so their capacities give their places in m.
	position := func(value []byte) int { return cap(m) - cap(value) - unix.SizeofNlAttr }
	for kind, list := range nfnetlink.Attributes(m[nfnetlink.HeaderLen+nfnetlink.GenHeaderLen:]) {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS || offset <= position(list) {
			continue
		}
		n = -1
		for _, element := range nfnetlink.Attributes(list) {
			if position(element) > offset {
				break
			}
			if nfnetlink.Number(nfnetlink.Attribute(element, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END == 0 {
				n++
			}
		}
		return n, n >= 0
	}
	return 0, false
}

// opText returns an operation, or one element of it, as nft commands on one line.
func opText(ops []nft.Op, op, element int) string {
	const longest = 400
	single := ops[op]
	if element >= 0 {
		switch o := single.(type) {
		case nft.AddElements:
			o.Elements = o.Elements[element : element+1]
			single = o
		case nft.DeleteElements:
			o.Elements = o.Elements[element : element+1]
			single = o
		}
	}
	var b strings.Builder
	_ = nft.Batch{Ops: []nft.Op{single}}.WriteText(&b) // a strings.Builder never fails
	line := strings.Join(slices.DeleteFunc(strings.FieldsFunc(b.String(), func(r rune) bool { return r == '\n' }),
		func(s string) bool { return s == "" }), "; ")
	line = strings.ReplaceAll(line, "\t", "")
	if len(line) > longest {
		line = line[:longest] + "..."
	}
	return line
}

// isErrno reports whether err is one of the given kernel errors.
func isErrno(err error, numbers ...syscall.Errno) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(numbers, errno)
}

var (
	// ErrStale means that another program committed since the generation the batch was computed
	// for. Nothing was changed: read, diff and commit again.
	ErrStale = errors.New("another program has changed nf_tables; read it again")
	// ErrOutcomeUnknown means that the kernel's answer to a batch was lost: it was
	// committed as a whole, or not at all. Read before the next Commit.
	ErrOutcomeUnknown = errors.New("the kernel's answer was lost, so nf_tables must be read again")
	// ErrPermission means that the process may not change nf_tables, or that another process owns the table.
	ErrPermission = errors.New("no permission to change nf_tables: run as root or with CAP_NET_ADMIN")
	// ErrTooBig means that the batch, or a single rule in it, is larger than a
	// netlink message can be. Nothing was changed: commit it in parts.
	ErrTooBig = errors.New("the transaction is larger than netlink accepts")
	// ErrUnsupported means that the kernel lacks something the product needs.
	ErrUnsupported = errors.New("this kernel cannot run svcctl")
	// ErrChanging means that no reading of the ruleset was complete, because another program kept
	// committing.
	ErrChanging = errors.New("nf_tables is changed faster than it can be read")
)

// OpError identifies the first operation of a batch that the kernel refused. No operation of the batch took effect. Later operations may be invalid
// too.
type OpError struct {
	Op    int           // index in Batch.Ops
	Text  string        // the operation, or the refused element of it, in nft syntax
	Errno syscall.Errno // the kernel's error number
	Hint  string        // the kernel's error message (NLMSGERR_ATTR_MSG), usually empty
}

func (e *OpError) Error() string {
	text := fmt.Sprintf("the kernel refuses operation %d, `%s`: %v", e.Op, e.Text, e.Errno)
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	if e.Errno == unix.EPERM {
		text += ": the table belongs to another process"
	}
	return text
}

// Unwrap returns the kernel's error number.
func (e *OpError) Unwrap() error { return e.Errno }

// Is reports whether target is ErrPermission and the kernel refused the operation with EPERM.
func (e *OpError) Is(target error) bool { return target == ErrPermission && e.Errno == unix.EPERM }

// Object type and attributes of timeout objects (linux/netfilter/nf_tables.h and nfnetlink_cttimeout.h) that package unix does not define.
const (
	objectTimeout = 7 // NFT_OBJECT_CT_TIMEOUT, kernel 4.19

	attrTimeoutL3Proto = 1 // NFTA_CT_TIMEOUT_L3PROTO
	attrTimeoutL4Proto = 2 // NFTA_CT_TIMEOUT_L4PROTO
	attrTimeoutData    = 3 // NFTA_CT_TIMEOUT_DATA

	timeoutTCPEstablished = 3 // CTA_TIMEOUT_TCP_ESTABLISHED
	timeoutUDPUnreplied   = 1 // CTA_TIMEOUT_UDP_UNREPLIED
	timeoutUDPReplied     = 2 // CTA_TIMEOUT_UDP_REPLIED
)

// addTimeout appends the message of a command like `create ct timeout ip svcctl idle-tcp-60 { protocol tcp; l3proto ip; policy = { established : 60
// }; }`. The other states keep the timeouts of the network namespace.
func (t *transaction) addTimeout(f nft.Family, timeout nft.Timeout) {
	t.addObject(f, timeout.Name(), objectTimeout)
	object := t.Nest(unix.NFTA_OBJ_DATA)
	t.Uint16(attrTimeoutL3Proto, uint16(protocols[f].family))
	t.Bytes(attrTimeoutL4Proto, []byte{byte(timeout.Protocol)})
	data := t.Nest(attrTimeoutData)
	for _, state := range idleStates(timeout.Protocol) {
		t.Uint32(state, uint32(timeout.Idle/time.Second))
	}
	t.EndNest(data)
	t.EndNest(object)
	t.End()
}

// idleStates returns the attributes of the conntrack states in which an idle timeout applies.
func idleStates(p nft.Protocol) []uint16 {
	if p == nft.UDP {
		return []uint16{timeoutUDPUnreplied, timeoutUDPReplied}
	}
	return []uint16{timeoutTCPEstablished}
}

// decodeTimeout decodes a timeout object. It returns the zero Timeout for a protocol other than TCP and UDP, or if the states in which svcctl sets
// the same timeout have different ones.
func decodeTimeout(b []byte) (t nft.Timeout) {
	seconds := map[uint16]uint32{}
	for attr, value := range nfnetlink.Attributes(b) {
		switch attr {
		case attrTimeoutL4Proto:
			t.Protocol = nft.Protocol(value[0])
		case attrTimeoutData:
			for state, value := range nfnetlink.Attributes(value) {
				if len(value) == 4 {
					seconds[state] = binary.BigEndian.Uint32(value)
				}
			}
		}
	}
	if t.Protocol != nft.TCP && t.Protocol != nft.UDP {
		return nft.Timeout{}
	}
	states := idleStates(t.Protocol)
	for _, state := range states {
		if seconds[state] != seconds[states[0]] {
			return nft.Timeout{}
		}
	}
	t.Idle = time.Duration(seconds[states[0]]) * time.Second
	return t
}

// readEntries reads the existing entries that operations will change: entries of dynamic maps, and devices of flowtables. The result is keyed by the
// index of the operation. For a CapTimeouts, entries that a ForgetData in the same batch deletes are left out.
func readEntries(s *socket, ops []nft.Op) (map[int][]nft.Element, error) {
	entries := map[int][]nft.Element{}
	for i, op := range ops {
		var err error
		switch op := op.(type) {
		case nft.ForgetData:
			entries[i], err = readMap(s, op.Family, &op.Set, func(e element) bool {
				return slices.Contains(op.Data, e.data)
			})
		case nft.SetFlowtable:
			entries[i], err = devicesBefore(s, ops[:i], op)
		case nft.CapTimeouts:
			entries[i], err = readMap(s, op.Family, &op.Set, func(e element) bool {
				return e.expiresIn > op.Timeout && !isForgotten(ops, op, e.data)
			})
		}
		if err != nil {
			return nil, fmt.Errorf("prepare operation %d, read a dynamic map: %w", i, err)
		}
	}
	return entries, nil
}

func isForgotten(ops []nft.Op, c nft.CapTimeouts, data string) bool {
	return slices.ContainsFunc(ops, func(op nft.Op) bool {
		f, ok := op.(nft.ForgetData)
		return ok && f.Family == c.Family && f.Set.Name == c.Set.Name && slices.Contains(f.Data, data)
	})
}

// readMap returns the entries of a dynamic map for which wanted returns true. It returns none if the map does not exist.
func readMap(s *socket, f nft.Family, set *nft.Set, wanted func(element) bool) (entries []nft.Element, err error) {
	seen := map[string]bool{}
	err = readAll(s, nft.TableName, f, set, -1, func(e element) bool {
		known := seen[e.key]
		seen[e.key] = true
		if !known && e.ours && wanted(e) {
			entries = append(entries, nft.Element{Key: e.key, Data: e.data})
		}
		return !known
	})
	switch {
	case isErrno(err, unix.ENOENT):
		return nil, nil // a map that does not exist yet remembers nothing
	case errors.Is(err, ErrChanging):
		return entries, nil // clients keep coming
	}
	return entries, err
}

// forget appends the messages of `destroy element ip svcctl affinity-1 { … }`. Kernels before 6.3 have only `delete element`, which fails if an entry
// has expired meanwhile.
func (t *transaction) forget(f nft.Family, set *nft.Set, entries []nft.Element, destroy bool) {
	kind := uint16(unix.NFT_MSG_DELSETELEM)
	if destroy {
		kind = msgDestroySetElem
	}
	t.elements(kind, 0, f, set, entries)
}

// addCapped appends the messages of `add element ip svcctl affinity-1 { ip saddr timeout 10m : … }` for entries that the transaction has deleted
// before. Only kernel 6.12 and later can change the timeout of an existing entry.
func (t *transaction) addCapped(c nft.CapTimeouts, entries []nft.Element) {
	t.timeout = c.Timeout
	t.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, c.Family, &c.Set, entries)
	t.timeout = 0
}
