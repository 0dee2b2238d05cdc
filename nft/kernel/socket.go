package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// socket is a netlink socket to nf_tables.
type socket struct {
	*nfnetlink.Socket
	spare []byte // the buffer of the last transaction
}

// maxSpare is the size of the largest buffer that is kept for the next transaction.
const maxSpare = 1 << 20

// dial opens a socket in the network namespace of the file descriptor (0: the current
// one). port is the netlink port to bind, 0 for any.
func dial(netns int, port uint32) (*socket, error) {
	s, err := nfnetlink.Dial(nfnetlink.Options{NetNS: netns, Port: port})
	if err != nil {
		return nil, err
	}
	return &socket{Socket: s}, nil
}

// send hands whole messages to the kernel. When it fails the kernel has not seen them.
func (s *socket) send(b []byte) error {
	err := s.Send(b)
	if errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("%w (%d bytes)", ErrTooBig, len(b))
	}
	return err
}

// request sends one message that asks for something and hands every message of the
// answer to each. A refusal is returned as a syscall.Errno.
func (s *socket) request(kind, flags uint16, family uint8, attributes func(*writer), each func(message)) error {
	var w writer
	sequence := s.Sequence(1)
	w.Begin(nftMessage(kind), flags, sequence, family, 0)
	if attributes != nil {
		attributes(&w)
	}
	w.End()
	if err := s.send(w.Buf); err != nil {
		return err
	}
	interrupted, result := false, nfnetlink.ErrNoMessage
	if flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
		result = nil // a single answer has no end mark
	}
	for {
		datagram, err := s.Receive()
		if errors.Is(err, nfnetlink.ErrNoMessage) {
			return result
		}
		if err != nil {
			return err
		}
		for m := range nfnetlink.Messages(datagram) {
			if m.Sequence != sequence {
				continue // the end of an answer that was given up
			}
			if m.Flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = true
			}
			switch m.Kind {
			case unix.NLMSG_DONE:
				result = endOf(&m, interrupted)
			case unix.NLMSG_ERROR:
				if errno := m.Failure().Errno; errno != 0 {
					result = errno
				}
			default:
				each(m)
			}
		}
	}
}

// endOf returns the error of a dump by its NLMSG_DONE message, nil if it is complete.
func endOf(m *message, interrupted bool) error {
	if errno := m.Errno(); errno != 0 {
		return errno
	}
	if interrupted {
		return ErrChanging
	}
	return nil
}

// dump is request for a list. ErrChanging means that it may be incomplete.
func (s *socket) dump(kind uint16, family uint8, attributes func(*writer), each func(message)) error {
	return s.request(kind, unix.NLM_F_DUMP, family, attributes, each)
}

type (
	writer  = nfnetlink.Writer
	message = nfnetlink.Message
)

// nftMessage is the type of an nf_tables message in a netlink header.
func nftMessage(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// protocolFamily is NFPROTO_IPV4 or NFPROTO_IPV6.
func protocolFamily(f nft.Family) uint8 {
	if f == nft.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// object begins a message about a named object of a type (NFT_OBJECT_*).
func (t *transaction) object(kind, flags uint16, f nft.Family, name string, objectType uint32) {
	t.message(kind, flags, f)
	t.Text(unix.NFTA_OBJ_TABLE, t.table)
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

// dumpObjects hands the name and the content of every object of a type in our table to each.
func dumpObjects(s *socket, f nft.Family, objectType uint32, each func(name string, data []byte)) error {
	return s.dump(unix.NFT_MSG_GETOBJ, protocolFamily(f),
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
