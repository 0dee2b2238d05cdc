package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

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
