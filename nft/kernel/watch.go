package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Change is one foreign transaction in this network namespace.
type Change struct {
	Generation uint32 // of the ruleset behind it
	PID        uint32 // of the thread that committed, in the first process namespace
	Comm       string // its name, at most 15 bytes
	Ours       bool   // it touched one of our tables
	// Lost means that changes happened which are not known: read everything. The other
	// fields are zero.
	Lost bool
}

// watchBuffer is the receive buffer of a watch: a foreign transaction of some 100,000
// elements.
const watchBuffer = 32 << 20

// Watch reports the transactions of other programs until the context ends, which closes the
// channel. Commits of this Conn are left out. A reader that is too slow, or a transaction that is
// too large, gives a Change with Lost.
func (c *Conn) Watch(ctx context.Context) (<-chan Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.ensureSocket(); err != nil {
		return nil, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: c.options.NetNS})
	if err != nil {
		return nil, openError(err)
	}
	err = errors.Join(conn.SetReadBuffer(watchBuffer), ignorePort(conn, c.port), conn.JoinGroup(unix.NFNLGRP_NFTABLES))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("watch nf_tables: %w", err)
	}
	w := &watch{conn: conn, changes: make(chan Change, changeBacklog)}
	w.ctx, w.end = context.WithCancel(ctx)
	c.watches[w] = struct{}{}
	go c.follow(w)
	return w.changes, nil
}

// changeBacklog bounds the changes that wait for a slow reader. When it is full, changes that do
// not concern our tables are dropped.
const changeBacklog = 1024

// watch is one Watch that is under way.
type watch struct {
	conn        *netlink.Conn
	changes     chan Change
	ctx         context.Context
	end         context.CancelFunc
	lossReports sync.WaitGroup // goroutines that send a Change with Lost
}

func (w *watch) send(change Change) bool {
	if !change.Ours && !change.Lost && len(w.changes) == cap(w.changes) {
		return true
	}
	select {
	case w.changes <- change:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// muteNotifications keeps the kernel from writing notifications of a large transaction of ours, one
// for each element: nothing of ours would read them, and the kernel takes as long to write them as
// for the transaction itself. restore ends that; committed is the error of the transaction.
func (c *Conn) muteNotifications(s *socket) (restore func(committed error)) {
	before, err := readGeneration(s)
	if err != nil || len(c.watches) == 0 {
		return func(error) {}
	}
	muted := true
	for w := range c.watches {
		muted = w.conn.LeaveGroup(unix.NFNLGRP_NFTABLES) == nil && muted
	}
	return func(committed error) {
		want := before
		if committed == nil {
			want = nextGeneration(before)
		}
		for w := range c.watches {
			if w.conn.JoinGroup(unix.NFNLGRP_NFTABLES) != nil {
				w.conn.Close() // its end is reported as a loss
			}
		}
		// No other program may have committed in between.
		if after, err := readGeneration(s); muted && (err != nil || after != want) {
			for w := range c.watches {
				w.lossReports.Go(func() { w.send(Change{Lost: true}) })
			}
		}
	}
}

// ignorePort makes the kernel drop the notifications of commits through a port: there is
// one for each element. All messages of a datagram are of the same
// transaction, so the first one's port is enough. A number that a filter loads is taken
// for network byte order, which a netlink header is not in.
func ignorePort(conn *netlink.Conn, port uint32) error {
	const portOffset = 12 // of nlmsg_pid in struct nlmsghdr
	loaded := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: portOffset, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: loaded, SkipFalse: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: math.MaxUint32},
	})
	if err != nil {
		return err
	}
	return conn.SetBPF(filter)
}

// follow reads the notifications of a watch until it ends.
func (c *Conn) follow(w *watch) {
	defer c.unwatch(w)
	stop := context.AfterFunc(w.ctx, func() { w.conn.Close() }) // ends the reading
	defer stop()
	var next Change // of the transaction whose notifications are being read
	for {
		received, err := w.conn.Receive()
		switch {
		case w.ctx.Err() != nil:
			return
		case err != nil:
			// An overrun (ENOBUFS), or nothing that a reader can do anything about.
			if !w.send(Change{Lost: true}) || !errors.Is(err, unix.ENOBUFS) {
				return
			}
			next = Change{}
			continue
		}
		for _, m := range received {
			change, done := next.merge(message{
				Kind: uint16(m.Header.Type), Port: m.Header.PID, Body: m.Data,
			})
			next = change
			if !done {
				continue
			}
			if !c.foreignTx.isOwnPort(m.Header.PID) {
				c.foreignTx.record(next)
				if !w.send(next) {
					return
				}
			}
			next = Change{}
		}
	}
}

// unwatch ends a watch and closes its channel.
func (c *Conn) unwatch(w *watch) {
	c.mu.Lock()
	delete(c.watches, w)
	c.mu.Unlock()
	w.end()
	w.conn.Close()
	w.lossReports.Wait()
	close(w.changes)
}

// merge takes one notification in; done means that it was the last one of a transaction.
func (c Change) merge(m message) (change Change, done bool) {
	if m.Kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return c, false
	}
	if m.Kind != nftMessage(unix.NFT_MSG_NEWGEN) {
		c.Ours = c.Ours || isOurs(&m)
		return c, false
	}
	for kind, value := range m.Attributes() {
		switch kind {
		case unix.NFTA_GEN_ID:
			c.Generation = uint32(nfnetlink.Number(value))
		case unix.NFTA_GEN_PROC_PID:
			c.PID = uint32(nfnetlink.Number(value))
		case unix.NFTA_GEN_PROC_NAME:
			c.Comm = nfnetlink.Text(value)
		}
	}
	return c, true
}

// isOurs reports whether a notification is about our table of either family. Every kind
// of message has the table's name as its first attribute.
func isOurs(m *message) bool {
	if f := m.Family(); f != unix.NFPROTO_IPV4 && f != unix.NFPROTO_IPV6 {
		return false
	}
	for kind, value := range m.Attributes() {
		if kind == unix.NFTA_TABLE_NAME {
			return nfnetlink.Text(value) == nft.TableName
		}
	}
	return false
}
