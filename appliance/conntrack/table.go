package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// table is a connection tracking table.
type table interface {
	// clean hands the entries that match the query, and perhaps others, to judge,
	// some at a time, and does to each what judge says. The entries are valid until
	// judge returns. Even with an error some may have been dealt with.
	clean(q query, judge judge) (tally, error)
	close() error
}

// judge appends what is to become of each entry, and gives by family the address that
// dead ends lead to: the zero Addr for a family in which the box has none.
type judge func(entries []entry, verdicts []verdict) (_ []verdict, box map[nft.Family]netip.Addr)

// tally counts entries.
type tally struct {
	seen, forgotten, reset int
}

func (t *tally) add(o tally) {
	t.seen += o.seen
	t.forgotten += o.forgotten
	t.reset += o.reset
}

// kernelTable is the conntrack table of a network namespace. Entries are read as a stream on one
// socket and changed on another one meanwhile.
type kernelTable struct {
	netns           int
	reader, changer *socket // nil after a failure, until the next use
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

// explain adds the next step to an error of ctnetlink.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("connection tracking cannot be changed: run as root or with CAP_NET_ADMIN: %w", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel does not let connection tracking be read: it needs CONFIG_NF_CT_NETLINK (`modprobe nf_conntrack_netlink`): %w", err)
	}
	return fmt.Errorf("look through the tracked connections: %w", err)
}

// clean implements table.
func (t *kernelTable) clean(q query, judge judge) (tally, error) {
	if err := t.open(); err != nil {
		return tally{}, explain(err)
	}
	var total tally
	if entries, err := t.reader.count(); err == nil && entries == 0 {
		return total, nil
	}
	err := t.reader.dump(q, func(datagram []byte, sequence uint32) error {
		t.entries = t.entries[:0]
		for m := range nfnetlink.Messages(datagram) {
			if m.Kind != messageNew || m.Sequence != sequence {
				continue
			}
			t.entries = append(t.entries, entry{})
			if !t.entries[len(t.entries)-1].decode(m.Body) {
				t.entries = t.entries[:len(t.entries)-1]
			}
		}
		var box map[nft.Family]netip.Addr
		t.verdicts, box = judge(t.entries, t.verdicts[:0])
		done, err := t.carryOut(box)
		total.add(done)
		return err
	})
	if err != nil {
		// The messages queued on the sockets answer a request that is no longer waited for.
		err = errors.Join(explain(err), t.close())
	}
	return total, err
}

// carryOut does to the entries what the verdicts say.
func (t *kernelTable) carryOut(box map[nft.Family]netip.Addr) (tally, error) {
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
