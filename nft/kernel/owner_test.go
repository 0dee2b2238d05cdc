package kernel

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// owner is a program that makes our tables with flags.
func (n *namespace) owner(c *Conn, flags uint32, more ...func(*transaction)) (*socket, error) {
	n.Helper()
	s, err := dial(c.options.NetNS, 0)
	if err != nil {
		n.Fatal(err)
	}
	tr := newTransaction(s, nft.TableName, 0)
	tr.addTable(nft.IPv4, flags)
	for _, f := range more {
		f(tr)
	}
	return s, tr.commit(sentinelText)
}

// loads reports whether nft takes a script.
func (n *namespace) loads(script string) (ok bool) {
	n.inside(func() {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		ok = cmd.Run() == nil
	})
	return ok
}

// TestOwnedTables holds the facts that decided that our tables have no owner, and the
// sentinel to a process, without outliving it (see docs/reliability.md). If one of them
// changes, the decision is worth another look.
func TestOwnedTables(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	if !c.features.Persist {
		t.Skip("SKIPPED: this kernel has no table flag persist (6.9)")
	}
	const lasting = tableOwner | tablePersist
	chain := func(tr *transaction) { tr.addChain(nft.IPv4, nft.Chain{Name: "x"}) }
	s, err := n.owner(c, lasting, chain)
	if err != nil {
		t.Fatal(err)
	}
	generation := func() uint32 { _, g := read(t, c); return g }
	there := func() bool { return strings.Contains(n.nft("list", "tables"), "svcctl") }

	// While its owner lives, a flush passes it by, and no other program can change it.
	saved := n.nft("list", "ruleset")
	if before := generation(); !n.loads("flush ruleset") || !there() || generation() != before {
		t.Error("a flush takes an owned table, or fails")
	}
	for _, edit := range []string{"add rule ip svcctl x accept", "delete table ip svcctl", saved, "flush ruleset\n" + saved} {
		if n.loads(edit) {
			t.Errorf("others can load this while an owner lives:\n%s", edit)
		}
	}
	if _, err := n.owner(c, lasting); !isErrno(err, unix.EPERM) {
		t.Errorf("a second owner: %v", err)
	}

	// It outlives its owner, and has none then: any program can change or
	// flush it, or own it.
	before := generation()
	s.Close()
	if !there() || generation() != before || !n.loads("add rule ip svcctl x accept") {
		t.Error("without its owner it is gone, or cannot be changed")
	}
	if s, err = n.owner(c, lasting); err != nil || n.loads("add rule ip svcctl x accept") {
		t.Errorf("a table that lost its owner cannot be had by another one: %v", err)
	}
	s.Close()
	for _, flags := range []uint32{0, tableOwner} {
		if _, err := n.owner(c, flags); !isErrno(err, unix.EOPNOTSUPP) {
			t.Errorf("the flags of a table can be changed to %d: %v", flags, err)
		}
	}
	// And nft up to 1.0 lists it in a way that it cannot read: a saved ruleset that does
	// not load may leave a box without its firewall at the next boot.
	if orphan := n.nft("list", "ruleset"); !strings.Contains(orphan, "persist") && n.loads("flush ruleset\n"+orphan) {
		t.Error("the listing of a table without its owner loads")
	}
	if !n.loads("flush ruleset") || there() {
		t.Error("without its owner a flush does not take it")
	}
	if !n.loads(saved) || !strings.Contains(saved, "persist") && there() {
		t.Error("a saved owned table loads, and stays, from an nft that does not know persist")
	}

	// A table without an owner cannot become an owned one but by being made anew.
	n.nft("flush", "ruleset")
	if _, err := n.owner(c, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := n.owner(c, lasting); !isErrno(err, unix.EOPNOTSUPP) {
		t.Errorf("a table that nobody addOwnPort can be had: %v", err)
	}

	// What belongs to a process without persist goes with it, which is no transaction.
	if err := c.HoldSentinel(); err != nil {
		t.Fatal(err)
	}
	other := n.open()
	_, before = read(t, other)
	c.Close()
	if _, after := read(t, other); after != before || strings.Contains(n.nft("list", "tables"), SentinelName) {
		t.Errorf("the sentinel outlives its owner, or its end counts as %d transactions", after-before)
	}
}
