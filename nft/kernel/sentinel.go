package kernel

import (
	"fmt"
	"net/netip"

	"svcctl.io/svcctl/nft"
)

// SentinelName is the name of the sentinel table in both families.
const SentinelName = "svcctl-sentinel"

// HoldSentinel makes a tiny table in each family that keeps established connections alive while our
// table is missing, for example after a foreign flush of the ruleset: with the last NAT chain gone
// the kernel would unregister its hooks, and connections would reach their peers without their
// translation and be reset.
//
// The tables belong to this Conn (flag owner, kernel 5.12): no other program can change or flush
// them, and they are deleted with it. Older kernels get plain tables, which a flush takes. Calling
// it again creates missing ones. ErrPermission means that another live process holds them.
func (c *Conn) HoldSentinel() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	if c.sentinel != nil {
		if n, err := countSentinels(c.sentinel); n == len(nft.Families) || err != nil {
			return err
		}
	} else {
		s, err := dial(c.options.NetNS, 0)
		if err != nil {
			return openError(err)
		}
		c.sentinel = s
		c.foreignTx.addOwnPort(s.Port())
	}
	if err := makeSentinel(c.sentinel, c.features.Owner); err != nil {
		c.releaseSentinel()
		return fmt.Errorf("hold table %s (does another svcctl run here?): %w", SentinelName, err)
	}
	return nil
}

// DropSentinel removes the sentinel tables. With them goes what protects established
// connections, so it belongs to the end of everything.
func (c *Conn) DropSentinel() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseSentinel()
	s, err := c.ensureSocket()
	if err != nil {
		return err
	}
	if n, err := countSentinels(s); n == 0 || err != nil {
		return err
	}
	t := newTransaction(s, SentinelName, 0)
	for _, f := range nft.Families {
		t.deleteTable(f)
	}
	if err := t.commit(sentinelText); err != nil {
		return fmt.Errorf("delete table %s: %w", SentinelName, err)
	}
	return nil
}

func (c *Conn) releaseSentinel() {
	if c.sentinel != nil {
		c.sentinel.Close()
		c.sentinel = nil
	}
}

// countSentinels returns the number of families that have a sentinel table.
func countSentinels(s *socket) (n int, err error) {
	for _, f := range nft.Families {
		_, exists, err := tableFlags(s, SentinelName, f)
		if err != nil {
			return 0, err
		}
		if exists {
			n++
		}
	}
	return n, nil
}

// makeSentinel is, in both families,
//
//	add table ip svcctl-sentinel; delete table ip svcctl-sentinel
//	table ip svcctl-sentinel {
//		flags owner
//		chain hold {
//			type nat hook postrouting priority srcnat; policy accept;
//			ip daddr 127.0.0.1 ip daddr != 127.0.0.1 masquerade
//		}
//	}
//
// The rule never matches. It must be there: a chain without a rule that masquerades
// does not hold connections.
func makeSentinel(s *socket, owner bool) error {
	var flags uint32
	if owner {
		flags = tableOwner
	}
	t := newTransaction(s, SentinelName, 0)
	for _, f := range nft.Families {
		localhost := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if f == nft.IPv6 {
			localhost = netip.IPv6Loopback()
		}
		match := nft.MatchPrefix{Field: nft.Daddr, Prefix: netip.PrefixFrom(localhost, localhost.BitLen())}
		contrary := match
		contrary.Negate = true
		// A plain table of a former process cannot become an owned one.
		t.deleteTable(f)
		t.addTable(f, flags)
		t.addChain(f, nft.Chain{Name: "hold", Hook: nft.HookPostrouting, Priority: nft.PrioritySrcNAT})
		t.addRule(f, "hold", nft.Rule{match, contrary, nft.Masquerade{}})
	}
	return t.commit(sentinelText)
}

func sentinelText(int, int) string { return "table " + SentinelName }
