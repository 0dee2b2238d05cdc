package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

func TestOpenWithoutPrivilege(t *testing.T) {
	n := newNamespace(t)
	n.inside(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Errorf("drop capabilities: %v", err)
			return
		}
		c, err := Open(Options{})
		if !errors.Is(err, ErrPermission) {
			t.Errorf("Open says %v, want ErrPermission", err)
		}
		if err == nil {
			c.Close()
		}
	})
}

func TestProbeLeavesNothingBehind(t *testing.T) {
	n := newNamespace(t)
	before := n.open()
	_, generation := read(t, before)
	c := n.open()
	if _, now := read(t, c); now != generation {
		t.Error("opening committed something")
	}
	if out := n.nft("list", "ruleset"); out != "" {
		t.Errorf("opening left this behind:\n%s", out)
	}
	features := c.Probe()
	t.Logf("%+v", features)
	if features.Release == "" || len(features.Present())+len(features.Missing()) != 8 {
		t.Errorf("features are %v and %v on %q", features.Present(), features.Missing(), features.Release)
	}
}

// A transaction that the kernel refuses at its end leaves it strict until the next one
// that succeeds. That may be an operator's typing error just before a start.
func TestK10_probeAfterARefusal(t *testing.T) {
	n := newNamespace(t)
	if n.loads("table ip x {\n chain c {\n type nat hook prerouting priority dstnat;\n masquerade\n }\n}\n") {
		t.Fatal("the kernel takes a masquerade in prerouting")
	}
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
}

func TestJudgeNamesWhatIsMissing(t *testing.T) {
	all := func(trial) bool { return true }
	for _, test := range []struct {
		name    string
		lacks   func(trial) bool
		errno   syscall.Errno
		want    string
		destroy bool
	}{
		{"nothing", func(trial) bool { return false }, 0, "", true},
		{"destroy", func(a trial) bool { return a.needs == "" && !a.prerequisite }, unix.EINVAL, "", false},
		{"expressions", func(a trial) bool { return strings.Contains(a.needs, "FIB") || strings.Contains(a.needs, "MASQ") }, unix.ENOENT,
			"this kernel cannot run svcctl: it lacks CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6 (it answers: no such file or directory), CONFIG_NFT_MASQ (it answers: no such file or directory)", true},
		{"a family", all, unix.EAFNOSUPPORT, "this kernel cannot run svcctl: it lacks CONFIG_NF_TABLES_IPV4 and CONFIG_NF_TABLES_IPV6 (it answers: address family not supported by protocol)", true},
		{"permission", all, unix.EPERM, "operation not permitted", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var features Features
			attempts := trials(&features)
			parts, refused := []part{}, map[int]nfnetlink.Failure{}
			for i, a := range attempts {
				parts = append(parts, part{op: i})
				if test.lacks(a) {
					refused[i] = nfnetlink.Failure{Errno: test.errno}
				}
			}
			parts = append(parts, part{op: len(attempts)}) // the operation that is meant to fail
			refused[len(attempts)] = nfnetlink.Failure{Errno: unix.ENOENT}
			err := evaluateTrials(parts, attempts, refused)
			if got := fmt.Sprint(err); got != test.want && (err != nil || test.want != "") {
				t.Errorf("evaluateTrials says %v\nwant %s", err, test.want)
			}
			if features.Destroy != test.destroy {
				t.Errorf("features are %+v", features)
			}
		})
	}
}

func TestWatch(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := c.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := func() (Change, bool) {
		select {
		case change, open := <-changes:
			return change, open
		case <-time.After(time.Minute):
			return Change{}, false
		}
	}
	// Our own commits are not reported, those of the sentinel included.
	commit(t, c, 0, everything(nft.IPv4)...)
	if err := c.HoldSentinel(); err != nil {
		t.Fatal(err)
	}
	n.nftScript("table ip other { chain x { }; }")
	change, ok := next()
	_, generation := read(t, c)
	if want := (Change{Generation: generation, PID: change.PID, Comm: "nft"}); !ok || change != want || change.PID == 0 {
		t.Errorf("a foreign table gives %+v, want %+v", change, want)
	}
	n.nft("add", "element", "ip", "svcctl", "empty", "{ 10.7.7.7 }")
	if change, ok := next(); !ok || !change.Ours || change.Comm != "nft" {
		t.Errorf("a change of our table gives %+v", change)
	}
	n.nft("flush", "ruleset")
	if change, ok := next(); !ok || !change.Ours {
		t.Errorf("a flush gives %+v", change)
	}
	cancel()
	if change, ok := next(); ok {
		t.Errorf("after the end comes %+v", change)
	}
}

// What this connection commits does not overrun its own watch, however large it is.
func TestWatchIgnoresOwnElements(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	filter, err := ignorePort(c.port)
	if err != nil {
		t.Fatal(err)
	}
	const small = 8 << 10 // bytes: less than the notifications of one transaction
	stream, err := nfnetlink.OpenStream(nfnetlink.Options{NetNS: c.options.NetNS}, filter, small, unix.NFNLGRP_NFTABLES)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	elements := make([]nft.Element, 2000)
	for i := range elements {
		elements[i] = slotElement(nft.IPv4, i)
	}
	commit(t, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
		nft.AddElements{Family: nft.IPv4, Set: backends, Elements: elements})
	n.nftScript("table ip other { }")
	datagram, err := stream.Next()
	if err != nil {
		t.Fatal(err)
	}
	for m := range nfnetlink.Messages(datagram) {
		if m.Port == c.port || m.Kind != nftMessage(unix.NFT_MSG_NEWTABLE) {
			t.Errorf("the first notification is %+v", m)
		}
		return
	}
	t.Error("the first datagram has no notification")
}

// When notifications are lost, the reader is told.
func TestWatchOverrun(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	stream, err := nfnetlink.OpenStream(nfnetlink.Options{NetNS: c.options.NetNS}, nil, 1, unix.NFNLGRP_NFTABLES)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close() // ends the watch
	other := n.open()
	for range 20 {
		commit(t, other, 0, nft.AddTable{Family: nft.IPv4}, nft.DeleteTable{Family: nft.IPv4})
	}
	w := &watch{stream: stream, changes: make(chan Change)}
	w.ctx, w.end = context.WithCancel(t.Context())
	defer w.end()
	go c.follow(w)
	for change := range w.changes {
		if change.Lost {
			if change != (Change{Lost: true}) {
				t.Errorf("lost changes are %+v", change)
			}
			return
		}
	}
	t.Error("nothing is said to be lost")
}

func TestLostOutcome(t *testing.T) {
	n := newNamespace(t)
	n.open() // takes the port that the kernel gives first
	c := n.open()
	if err := unix.SetsockoptInt(c.socket.FD(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil { // the kernel makes it some 2 KiB
		t.Fatal(err)
	}
	var w writer
	w.Begin(nftMessage(unix.NFT_MSG_GETGEN), 0, c.socket.Sequence(1), unix.NFPROTO_UNSPEC, 0)
	w.End()
	for range 20 { // answers that are not read leave no room for another one
		if err := c.socket.send(w.Buf); err != nil {
			t.Fatal(err)
		}
	}
	port := c.port
	_, err := c.Commit(&nft.Batch{Ops: []nft.Op{nft.AddTable{Family: nft.IPv4}}}, 0)
	if !errors.Is(err, ErrOutcomeUnknown) {
		t.Fatalf("Commit says %v, want ErrOutcomeUnknown", err)
	}
	ruleset, generation := read(t, c)
	if ruleset[nft.IPv4] == nil {
		t.Error("the batch was committed, as it happens, and Read does not show it")
	}
	if c.port != port {
		t.Error("the socket has another port now, which a watch does not know")
	}
	commit(t, c, generation, nft.DeleteTable{Family: nft.IPv4})
}

func TestTableOfAnotherProcess(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	if !c.features.Owner {
		t.Skip("this kernel has no table flag owner")
	}
	other, err := dial(c.options.NetNS, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tr := newTransaction(other, nft.TableName, 0)
	tr.addTable(nft.IPv4, tableOwner)
	if err := tr.commit(sentinelText); err != nil {
		t.Fatal(err)
	}
	_, err = c.Commit(&nft.Batch{Ops: []nft.Op{nft.AddChain{Family: nft.IPv4, Chain: nft.Chain{Name: "x"}}}}, 0)
	var refused *OpError
	if !errors.Is(err, ErrPermission) || !errors.As(err, &refused) || !strings.Contains(err.Error(), "belongs to another process") {
		t.Errorf("Commit says %v", err)
	}
}

func TestSentinel(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	if !c.features.Owner {
		t.Skip("this kernel has no table flag owner")
	}
	// A former process on an older kernel left a plain one.
	n.nftScript("table ip svcctl-sentinel { chain old { }; }")
	for range 2 {
		if err := c.HoldSentinel(); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, c, 0, everything(nft.IPv6)...)
	n.nft("flush", "ruleset")
	if ruleset, _ := read(t, c); len(ruleset) != 0 {
		t.Error("a flush leaves our tables")
	}
	listing := n.nft("list", "ruleset")
	for _, want := range []string{
		"ip daddr 127.0.0.1 ip daddr != 127.0.0.1 masquerade", "ip6 daddr ::1 ip6 daddr != ::1 masquerade",
		"type nat hook postrouting priority srcnat; policy accept;", "flags owner",
	} {
		if !strings.Contains(listing, want) {
			t.Errorf("after a flush there is no `%s` in\n%s", want, listing)
		}
	}
	if strings.Contains(listing, "chain old") {
		t.Error("the plain table of a former process is still there")
	}
	other := n.open()
	if err := other.HoldSentinel(); !errors.Is(err, ErrPermission) {
		t.Errorf("another one may hold the sentinel: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if out := n.nft("list", "ruleset"); out != "" {
		t.Errorf("without its owner there is still\n%s", out)
	}
	if err := other.HoldSentinel(); err != nil {
		t.Errorf("the next one cannot hold it: %v", err)
	}
}

// On a kernel without owned tables the sentinel is a plain one, which is made anew
// after a flush, and deleted in the end.
func TestPlainSentinel(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	c.features.Owner = false
	for range 2 {
		if err := c.HoldSentinel(); err != nil {
			t.Fatal(err)
		}
	}
	_, generation := read(t, c)
	n.nft("flush", "ruleset")
	if err := c.HoldSentinel(); err != nil {
		t.Fatal(err)
	}
	if _, now := read(t, c); now != generation+2 {
		t.Errorf("%d transactions, want a flush and one that makes the tables", now-generation)
	}
	if got := strings.Count(n.nft("list", "ruleset"), "masquerade"); got != 2 {
		t.Errorf("%d rules hold connections, want 2", got)
	}
	for range 2 {
		if err := c.DropSentinel(); err != nil {
			t.Fatal(err)
		}
	}
	if out := n.nft("list", "ruleset"); out != "" {
		t.Errorf("the sentinel is still there:\n%s", out)
	}
}

func TestDeleteTableThatIsNotThere(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, nft.DeleteTable{Family: nft.IPv4}, nft.DeleteTable{Family: nft.IPv6})
	if ruleset, _ := read(t, c); len(ruleset) != 0 {
		t.Errorf("there is %v", ruleset)
	}
}

func TestClosed(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(); !errors.Is(err, errClosed) {
		t.Errorf("Read says %v", err)
	}
	if _, err := c.Commit(&nft.Batch{}, 0); !errors.Is(err, errClosed) {
		t.Errorf("Commit says %v", err)
	}
	if err := c.HoldSentinel(); !errors.Is(err, errClosed) {
		t.Errorf("HoldSentinel says %v", err)
	}
	if _, err := c.Watch(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("Watch says %v", err)
	}
}
