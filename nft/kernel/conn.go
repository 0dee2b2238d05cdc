package kernel

import (
	"errors"
	"fmt"
	"iter"
	"sync"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Options selects the network namespace of a Conn. The zero value selects the current one.
type Options struct {
	// NetNS is a file descriptor of the network namespace; 0 means the current one. It must stay open until Close, because a socket that fails is
	// replaced.
	NetNS int
}

// Conn changes and reads the nf_tables of one network namespace. Its methods are safe for concurrent use; calls are serialized.
type Conn struct {
	options  Options
	features Features

	foreignTx *foreignTxLog
	counting  counting

	mu       sync.Mutex
	socket   *socket // nil after a failure, until the next use
	port     uint32  // the netlink port of socket, reused for a new socket if possible
	sentinel *socket // owns the sentinel tables; nil if there are none
	watches  map[*watch]struct{}
	closed   bool
	without  map[string]bool // flowtable devices in the current batch that the kernel refused
}

// errClosed is returned by all methods of a closed Conn.
var errClosed = errors.New("nft/kernel: the connection is closed")

// Open connects to nf_tables and probes the kernel's features. It fails with
// ErrPermission without CAP_NET_ADMIN, and with ErrUnsupported, naming the missing
// feature, on a kernel that the product cannot work with.
func Open(options Options) (*Conn, error) {
	c := &Conn{options: options, foreignTx: newForeignTxLog(), watches: map[*watch]struct{}{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	for range openAttempts {
		var s *socket
		if s, err = c.ensureSocket(); err != nil {
			return nil, err
		}
		if _, err = readGeneration(s); err == nil {
			c.features, err = probe(s)
		}
		if err == nil {
			return c, nil
		}
		c.closeSocket()
		if !isErrno(err, unix.EINTR, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM) {
			break
		}
	}
	return nil, openError(err)
}

// openAttempts bounds the attempts of a probe that was interrupted, or that the kernel had no memory for.
const openAttempts = 5

// openError converts an error of opening the socket, and adds advice to its message.
func openError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return ErrPermission
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return fmt.Errorf("%w: it has no netfilter netlink; it needs CONFIG_NETFILTER_NETLINK and CONFIG_NF_TABLES (`modprobe nf_tables`)", ErrUnsupported)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: it has no nf_tables; it needs CONFIG_NF_TABLES (`modprobe nf_tables`)", ErrUnsupported)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: it has no netlink sockets here, or they are forbidden by a sandbox (AF_NETLINK)", ErrUnsupported)
	}
	return fmt.Errorf("open nf_tables: %w", err)
}

// Close closes the sockets. The ruleset stays; the sentinel tables of this Conn go away.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	err := c.counting.close()
	if c.socket != nil {
		err = errors.Join(err, c.socket.Close())
	}
	if c.sentinel != nil {
		err = errors.Join(err, c.sentinel.Close())
	}
	c.socket, c.sentinel = nil, nil
	return err
}

// ensureSocket returns the socket, and opens a new one after a failure.
func (c *Conn) ensureSocket() (*socket, error) {
	switch {
	case c.closed:
		return nil, errClosed
	case c.socket != nil:
		return c.socket, nil
	}
	s, err := dial(c.options.NetNS, c.port)
	if errors.Is(err, unix.EADDRINUSE) { // another socket took the port meanwhile
		s, err = dial(c.options.NetNS, 0)
	}
	if err != nil {
		return nil, openError(err)
	}
	c.socket, c.port = s, s.Port()
	c.foreignTx.addOwnPort(c.port)
	return s, nil
}

// closeSocket closes the socket after a failure, because messages still queued on it belong to an abandoned request.
func (c *Conn) closeSocket() {
	if c.socket != nil {
		c.socket.Close()
		c.socket = nil
	}
}

// readGeneration returns the generation of the ruleset, which every transaction increments. It is never 0.
func readGeneration(s *socket) (generation uint32, err error) {
	err = s.request(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(m message) {
		generation = uint32(nfnetlink.Number(m.Attribute(unix.NFTA_GEN_ID)))
	})
	if err == nil && generation == 0 {
		err = nfnetlink.ErrNoMessage
	}
	return generation, err
}

// nextGeneration returns the generation after one more transaction.
func nextGeneration(generation uint32) uint32 { return max(generation+1, 1) }

// Commit carries out a batch as one transaction and returns the generation after it.
// The kernel refuses the batch with ErrStale unless its ruleset is still the one of the
// given generation, which Read or Commit returned. Generation 0 matches any, and then Commit
// returns 0 too. If a Watch saw that other programs have changed only their own tables since that
// generation, Commit tries again with the current one.
//
// An empty batch is not sent, and leaves the generation as it is. A refused operation is an
// *OpError. Except after ErrOutcomeUnknown, an error means that nothing was changed. A batch
// that changes nothing (AddTable of a table that exists) increments the generation that is
// returned but not the kernel's: the next Commit with it returns ErrStale.
func (c *Conn) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := c.commit(b, generation)
	for range maxRebases {
		now, still := c.rebase(err, generation)
		if !still {
			break
		}
		generation = now
		next, err = c.commit(b, generation)
	}
	if entryExpired(b, err) {
		next, err = c.commit(b, generation)
	}
	if err != nil && !isAnswer(err) {
		c.closeSocket()
	}
	return next, err
}

// maxRebases bounds how often a transaction is tried again because other programs committed first.
const maxRebases = 5

// rebase returns the current generation if err is ErrStale and a Watch is running, otherwise 0. still reports whether other programs have changed
// only their own tables since the given generation.
func (c *Conn) rebase(err error, generation uint32) (now uint32, still bool) {
	if !errors.Is(err, ErrStale) || len(c.watches) == 0 {
		return 0, false
	}
	now, err = readGeneration(c.socket)
	return now, err == nil && c.foreignTx.ownTablesUntouched(generation, now)
}

// isAnswer reports whether an error is the kernel's answer to a batch, or kept the batch from being
// sent. After any other error the socket may still receive messages that belong to the batch.
func isAnswer(err error) bool {
	var refused *OpError
	return errors.As(err, &refused) || errors.Is(err, ErrStale) || errors.Is(err, ErrPermission) || errors.Is(err, ErrTooBig)
}

// muteSize is the size in bytes above which a transaction is sent with notifications turned off. That is some 1,000 elements; their notifications
// take the kernel a millisecond.
const muteSize = 64 << 10

func (c *Conn) commitOnce(b *nft.Batch, generation uint32) (next uint32, err error) {
	t, err := c.write(b, generation)
	if err != nil || t.empty() {
		return generation, err
	}
	if len(t.Buf) > muteSize {
		restore := c.muteNotifications(t.socket)
		defer func() { restore(err) }()
	}
	text := func(op, element int) string { return opText(b.Ops, op, element) }
	if b.Takes() {
		err = c.commitCounts(t, b, text)
	} else {
		err = t.commit(text)
	}
	if err != nil {
		return generation, err
	}
	if generation == 0 {
		return 0, nil
	}
	return nextGeneration(generation), nil
}

// commitCounts commits a transaction that deletes counters, and adds their last counts to the totals.
func (c *Conn) commitCounts(t *transaction, b *nft.Batch, text func(op, element int) string) error {
	tally := &c.counting.tally
	tally.Committing()
	if err := t.commit(text); err != nil {
		tally.Committed(nil, nil)
		return err
	}
	tally.Committed(b, t.last)
	return nil
}

// write encodes a batch as a transaction, after reading from the kernel what its operations depend on.
func (c *Conn) write(b *nft.Batch, generation uint32) (*transaction, error) {
	s, err := c.ensureSocket()
	if err != nil {
		return nil, err
	}
	// Before the transaction, for these are dialogs of their own.
	entries, err := readEntries(s, b.Ops)
	if err != nil {
		return nil, err
	}
	echo, last, err := countsBefore(s, b)
	if err != nil {
		return nil, err
	}
	t := newTransaction(s, nft.TableName, generation)
	t.echo, t.last, t.without = echo, last, c.without
	for i, op := range b.Ops {
		t.op = i
		t.operation(op, entries[i], c.features.Destroy)
		if t.err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, t.err)
		}
	}
	return t, nil
}

// Forget commits a batch with a single ForgetData. It deletes the entries that packets added to a dynamic map while an earlier batch with the same
// ForgetData was being committed.
func (c *Conn) Forget(f nft.ForgetData, generation uint32) (uint32, error) {
	return c.Commit(&nft.Batch{Ops: []nft.Op{f}}, generation)
}

// operation writes the messages of one operation; entries is the result of readEntries for it. destroy reports whether the kernel supports `destroy
// element`.
func (t *transaction) operation(op nft.Op, entries []nft.Element, destroy bool) {
	switch op := op.(type) {
	case nft.AddTable:
		t.addTable(op.Family, 0)
	case nft.DeleteTable:
		t.deleteTable(op.Family)
	case nft.AddCounter:
		t.addCounter(op.Family, op.Name)
	case nft.DeleteCounter:
		t.deleteObject(op.Family, op.Name, unix.NFT_OBJECT_COUNTER)
	case nft.AddSet:
		t.addSet(op.Family, &op.Set)
	case nft.DeleteSet:
		t.message(unix.NFT_MSG_DELSET, 0, op.Family)
		t.Text(unix.NFTA_SET_NAME, op.Name)
		t.End()
	case nft.AddTimeout:
		t.addTimeout(op.Family, op.Timeout)
	case nft.DeleteTimeout:
		t.deleteObject(op.Family, op.Name, objectTimeout)
	case nft.SetFlowtable, nft.DeleteFlowtable:
		t.flowtableOp(op, entries)
	case nft.AddChain:
		t.addChain(op.Family, op.Chain)
	case nft.SetRules:
		t.setRules(op.Family, op.Chain, op.Rules)
	case nft.DeleteChain:
		t.message(unix.NFT_MSG_DELCHAIN, 0, op.Family)
		t.Text(unix.NFTA_CHAIN_NAME, op.Name)
		t.End()
	case nft.AddElements:
		t.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, op.Family, &op.Set, op.Elements)
	case nft.DeleteElements:
		flags := uint16(0)
		if t.echo && op.Set.Counted {
			flags = unix.NLM_F_ECHO
		}
		t.elements(unix.NFT_MSG_DELSETELEM, flags, op.Family, &op.Set, op.Elements)
	case nft.ForgetData:
		t.forget(op.Family, &op.Set, entries, destroy)
	case nft.CapTimeouts:
		t.forget(op.Family, &op.Set, entries, destroy)
		t.addCapped(op, entries)
	default:
		panic("nft/kernel: operation of no kind")
	}
}

// entryExpired reports whether a batch was refused because an entry of a dynamic map expired between its reading and its deletion.
func entryExpired(b *nft.Batch, err error) bool {
	var refused *OpError
	if !errors.As(err, &refused) || refused.Errno != unix.ENOENT {
		return false
	}
	switch b.Ops[refused.Op].(type) {
	case nft.ForgetData, nft.CapTimeouts:
		return true
	}
	return false
}

// socket is a netlink socket to nf_tables.
type socket struct {
	*nfnetlink.Socket
	spare []byte // the buffer of the last transaction, to be reused
}

// maxSpare is the size in bytes of the largest buffer that is kept for the next transaction.
const maxSpare = 128 << 10

// dial opens a socket in the network namespace with a file descriptor; 0 means the current one. port is the netlink port to bind; 0 lets the kernel
// choose one.
func dial(netns int, port uint32) (*socket, error) {
	s, err := nfnetlink.Dial(nfnetlink.Options{NetNS: netns, Port: port})
	if err != nil {
		return nil, err
	}
	return &socket{Socket: s}, nil
}

// send sends whole messages to the kernel. If it fails, the kernel has not processed them.
func (s *socket) send(b []byte) error {
	err := s.Send(b)
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("%w (%d bytes)", ErrTooBig, len(b))
	}
	return err
}

// request sends one message that asks for an answer, and calls each with every message of the answer. A refusal is returned as a
// syscall.Errno.
func (s *socket) request(kind, flags uint16, family uint8, attributes func(*writer), each func(message)) error {
	var w writer
	w.Begin(nftMessage(kind), flags, s.Sequence(1), family, 0)
	if attributes != nil {
		attributes(&w)
	}
	w.End()
	err := s.Ask(w.Buf, func(messages iter.Seq[message]) error {
		for m := range messages {
			each(m)
		}
		return nil
	})
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		return ErrChanging
	}
	return err
}

// dump sends a request for a list. ErrChanging means that the list may be incomplete.
func (s *socket) dump(kind uint16, family uint8, attributes func(*writer), each func(message)) error {
	return s.request(kind, unix.NLM_F_DUMP, family, attributes, each)
}

type (
	writer  = nfnetlink.Writer
	message = nfnetlink.Message
)

// nftMessage returns the message type in the netlink header for a kind (NFT_MSG_*).
func nftMessage(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// object begins a message about a named object of a type (NFT_OBJECT_*).
func (t *transaction) object(kind, flags uint16, f nft.Family, name string, objectType uint32) {
	t.message(kind, flags, f)
	t.Text(unix.NFTA_OBJ_NAME, name)
	t.Uint32(unix.NFTA_OBJ_TYPE, objectType)
}

// addObject begins a message that creates an object; its content and End follow.
func (t *transaction) addObject(f nft.Family, name string, objectType uint32) {
	t.object(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f, name, objectType)
}

// deleteObject deletes an object.
func (t *transaction) deleteObject(f nft.Family, name string, objectType uint32) {
	t.object(unix.NFT_MSG_DELOBJ, 0, f, name, objectType)
	t.End()
}

// dumpObjects calls each with the name and the content of every object of a type in our table.
func dumpObjects(s *socket, f nft.Family, objectType uint32, each func(name string, data []byte)) error {
	return s.dump(unix.NFT_MSG_GETOBJ, protocols[f].family,
		func(w *writer) {
			w.Text(unix.NFTA_OBJ_TABLE, nft.TableName)
			w.Uint32(unix.NFTA_OBJ_TYPE, objectType)
		},
		func(m message) {
			var table, name string
			var kind uint64
			var data []byte
			for attribute, value := range m.Attributes() {
				switch attribute {
				case unix.NFTA_OBJ_TABLE:
					table = nfnetlink.Text(value)
				case unix.NFTA_OBJ_NAME:
					name = nfnetlink.Text(value)
				case unix.NFTA_OBJ_TYPE:
					kind = nfnetlink.Number(value)
				case unix.NFTA_OBJ_DATA:
					data = value
				}
			}
			if table == nft.TableName && kind == uint64(objectType) {
				each(name, data)
			}
		})
}
