package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft/nfnetlink"
)

// change is a number of messages that are sent as one, and what each of them does.
type change struct {
	writer
	first uint32 // sequence number
	kinds []changeKind
	done  tally // if no message fails
}

type changeKind uint8

const (
	forgets changeKind = iota // deletes an entry
	resets                    // deletes an entry that dead ends take the place of
	blocks                    // makes a dead end
)

func (c *change) begin(first uint32) {
	*c = change{writer: writer{nfnetlink.Writer{Buf: c.Buf[:0]}}, first: first, kinds: c.kinds[:0]}
}

func (c *change) next(kind changeKind) (sequence uint32) {
	c.kinds = append(c.kinds, kind)
	return c.first + uint32(len(c.kinds)) - 1
}

func (c *change) forget(e *entry) {
	c.delete(e, c.next(forgets))
	c.done.forgotten++
}

func (c *change) reset(e *entry, box netip.Addr) {
	c.delete(e, c.next(resets))
	sequence := c.next(blocks)
	c.next(blocks)
	c.deadEnds(e, box, sequence)
	c.done.reset++
}

// answers reads what the kernel had to say about the messages that were sent, which is
// nothing for those that succeeded.
func (c *change) answers(s *socket) (tally, error) {
	done := c.done
	var failed error
	for {
		datagram, err := s.Receive()
		if errors.Is(err, nfnetlink.ErrNoMessage) {
			return done, failed
		}
		if err != nil {
			return tally{}, fmt.Errorf("read whether entries were deleted: %w", err)
		}
		for m := range nfnetlink.Messages(datagram) {
			index := m.Sequence - c.first
			errno := m.Errno()
			if m.Kind != unix.NLMSG_ERROR || index >= uint32(len(c.kinds)) || errno == 0 {
				continue
			}
			switch kind := c.kinds[index]; {
			case kind == forgets:
				done.forgotten--
			case kind == resets:
				done.reset--
			}
			if failed == nil {
				failed = c.kinds[index].failure(errno)
			}
		}
	}
}

// failure returns the error of an errno; nil when the entry was gone already, or when a newer one has
// the place of a dead end.
func (k changeKind) failure(errno unix.Errno) error {
	switch {
	case errno == unix.ENOENT && k != blocks, errno == unix.EEXIST && k == blocks:
		return nil
	case k == blocks:
		return fmt.Errorf("have the box reset a connection: %w", errno)
	}
	return fmt.Errorf("delete an entry: %w", errno)
}
