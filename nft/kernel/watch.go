package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// Change is one transaction that somebody else committed in this network namespace.
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

// Watch tells of the transactions of others from now on, until the context ends, which
// closes the channel. What this Conn commits is not told. A reader that is too slow, or
// a transaction that is too large, gives a Change with Lost.
func (c *Conn) Watch(ctx context.Context) (<-chan Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.use(); err != nil {
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
	changes := make(chan Change)
	go c.watch(ctx, conn, changes)
	return changes, nil
}

// ignorePort makes the kernel drop the notifications of what is committed through a
// port: there is one for each element. All messages of a datagram are of the same
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

func (c *Conn) watch(ctx context.Context, conn *netlink.Conn, changes chan<- Change) {
	defer close(changes)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() }) // ends the reading
	defer stop()
	var next Change // what is known of the transaction that is being told
	for {
		received, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// An overrun (ENOBUFS), or nothing that a reader can do anything about.
			next = Change{Lost: true}
			if !send(ctx, changes, next) || !errors.Is(err, unix.ENOBUFS) {
				return
			}
			next = Change{}
			continue
		}
		for _, m := range received {
			change, done := next.note(message{
				kind: uint16(m.Header.Type), port: m.Header.PID, body: m.Data,
			})
			next = change
			if !done {
				continue
			}
			if !c.isOwn(m.Header.PID) && !send(ctx, changes, next) {
				return
			}
			next = Change{}
		}
	}
}

func send(ctx context.Context, changes chan<- Change, change Change) bool {
	select {
	case changes <- change:
		return true
	case <-ctx.Done():
		return false
	}
}

// note takes one notification in; done means that it was the last one of a transaction.
func (c Change) note(m message) (change Change, done bool) {
	if m.kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return c, false
	}
	if m.kind != nftMessage(unix.NFT_MSG_NEWGEN) {
		c.Ours = c.Ours || isOurs(&m)
		return c, false
	}
	for kind, value := range m.attributes() {
		switch kind {
		case unix.NFTA_GEN_ID:
			c.Generation = uint32(number(value))
		case unix.NFTA_GEN_PROC_PID:
			c.PID = uint32(number(value))
		case unix.NFTA_GEN_PROC_NAME:
			c.Comm = text(value)
		}
	}
	return c, true
}

// isOurs tells whether a notification is about our table of either family. Every kind
// of message has the table's name as its first attribute.
func isOurs(m *message) bool {
	if f := m.family(); f != unix.NFPROTO_IPV4 && f != unix.NFPROTO_IPV6 {
		return false
	}
	for kind, value := range m.attributes() {
		if kind == unix.NFTA_TABLE_NAME {
			return text(value) == nft.TableName
		}
	}
	return false
}
