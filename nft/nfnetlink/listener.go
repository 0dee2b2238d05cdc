package nfnetlink

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Listener receives the messages of a multicast group.
type Listener struct{ conn *netlink.Conn }

// Listen joins a group in the network namespace of Options. buffer is the size of the receive
// buffer in bytes; messages that do not fit are lost (ENOBUFS).
func Listen(o Options, group uint32, buffer int) (*Listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: o.NetNS})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(conn.SetReadBuffer(buffer), conn.JoinGroup(group)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Listener{conn}, nil
}

// Receive waits for messages.
func (l *Listener) Receive() ([]Message, error) {
	heard, err := l.conn.Receive()
	if err != nil {
		return nil, err
	}
	messages := make([]Message, len(heard))
	for i, m := range heard {
		messages[i] = Message{Kind: uint16(m.Header.Type), Flags: uint16(m.Header.Flags), Sequence: m.Header.Sequence, Body: m.Data}
	}
	return messages, nil
}

// Close ends a Receive that waits.
func (l *Listener) Close() error { return l.conn.Close() }
