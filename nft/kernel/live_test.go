package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
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
	if features.Release == "" || len(features.Present())+len(features.Missing()) != 3 {
		t.Errorf("features are %v and %v on %q", features.Present(), features.Missing(), features.Release)
	}
}

func TestJudgeNamesWhatIsMissing(t *testing.T) {
	var features Features
	attempts := trials(&features)
	parts, refused := []part{}, map[int]failure{}
	for i, a := range attempts {
		parts = append(parts, part{op: i})
		switch {
		case a.needs == "CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6", a.needs == "CONFIG_NFT_MASQ":
			refused[i] = failure{errno: unix.ENOENT}
		case a.found == &features.Destroy:
			refused[i] = failure{errno: unix.EINVAL}
		}
	}
	parts = append(parts, part{op: len(attempts)}) // the operation that is meant to fail
	refused[len(attempts)] = failure{errno: unix.ENOENT}
	err := judge(parts, attempts, refused)
	want := "this kernel cannot run svcctl: it lacks CONFIG_NFT_FIB_IPV4 and CONFIG_NFT_FIB_IPV6, CONFIG_NFT_MASQ"
	if !errors.Is(err, ErrUnsupported) || err.Error() != want {
		t.Errorf("judge says %v\nwant %s", err, want)
	}
	if features.Destroy || !features.Owner || !features.Persist {
		t.Errorf("features are %+v", features)
	}
}

// affinity is a map of remembered clients, with a few.
func affinity(t *testing.T, n *namespace, c *Conn, f nft.Family) nft.Set {
	set := nft.Set{Name: "affinity", Key: frontendKey[:1], Data: endpoint, Dynamic: true, Timeout: time.Hour, Size: 1000}
	commit(t, c, 0, nft.AddTable{Family: f}, nft.AddSet{Family: f, Set: set})
	var script strings.Builder
	for i := range 300 {
		fmt.Fprintf(&script, "add element %s svcctl affinity { %v timeout 1h : %v . %d }\n", f, address(f, i), address(f, 1000+i%3), 8080)
	}
	n.nftScript(script.String())
	return set
}

func TestForgetData(t *testing.T) {
	for _, destroy := range []bool{true, false} {
		for _, f := range nft.Families {
			t.Run(fmt.Sprintf("%v destroy %v", f, destroy), func(t *testing.T) {
				n := newNamespace(t)
				c := n.open()
				if destroy && !c.features.Destroy {
					t.Skip("this kernel has no destroy element")
				}
				c.features.Destroy = destroy
				set := affinity(t, n, c, f)
				_, generation := read(t, c)
				forget := nft.ForgetData{Family: f, Set: set, Data: []string{
					nft.AddrPortData(netip.AddrPortFrom(address(f, 1000), 8080)),
					nft.AddrPortData(netip.AddrPortFrom(address(f, 1001), 9999)), // another port
				}}
				next, err := c.Forget(forget, generation)
				if err != nil || next != nextGeneration(generation) {
					t.Fatalf("Forget gives %d, %v", next, err)
				}
				listing := n.nft("list", "map", f.String(), "svcctl", "affinity")
				for i, want := range []int{0, 100, 100} {
					if got := strings.Count(listing, fmt.Sprintf(": %v . 8080", address(f, 1000+i))); got != want {
						t.Errorf("%d clients are remembered on endpoint %d, want %d", got, i, want)
					}
				}
				if again, err := c.Forget(forget, next); err != nil || again != next {
					t.Errorf("nothing is left to forget, and Forget gives %d, %v", again, err)
				}
				absent := forget
				absent.Set.Name = "absent"
				if _, err := c.Forget(absent, next); err != nil {
					t.Errorf("Forget of a map that does not exist: %v", err)
				}
			})
		}
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
		case <-time.After(2 * time.Second):
			return Change{}, false
		}
	}
	// Our own commits are not told, the sentinel's among them.
	generation := commit(t, c, 0, everything(nft.IPv4)...)
	if err := c.HoldSentinel(); err != nil {
		t.Fatal(err)
	}
	n.nftScript("table ip other { chain x { }; }")
	change, ok := next()
	_, generation = read(t, c)
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
	changes, err := c.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	elements := make([]nft.Element, 50_000)
	for i := range elements {
		elements[i] = slotElement(nft.IPv4, i)
	}
	for range 3 {
		commit(t, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
			nft.AddElements{Family: nft.IPv4, Set: backends, Elements: elements})
		commit(t, c, 0, nft.DeleteTable{Family: nft.IPv4})
	}
	n.nftScript("table ip other { }")
	if change := <-changes; change.Lost || change.Comm != "nft" {
		t.Errorf("the first change is %+v", change)
	}
}

func TestLostOutcome(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	if err := c.socket.conn.SetReadBuffer(1); err != nil { // the kernel makes it some 2 KiB
		t.Fatal(err)
	}
	var w writer
	w.begin(nftMessage(unix.NFT_MSG_GETGEN), 0, c.socket.nextSequence(), unix.NFPROTO_UNSPEC, 0)
	w.end()
	for range 20 { // answers that nobody reads leave no room for another one
		if err := c.socket.send(w.buf); err != nil {
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
	defer other.close()
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

// Whatever others put into our table is read without harm, and so that it can be told
// from what we want.
func TestForeignThingsInOurTable(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	before, _ := read(t, c)
	n.nftScript(`
		table ip svcctl {
			counter hits { }
			set marks { type mark; elements = { 1, 2 }; }
			set names { type ifname . ipv4_addr; flags interval; auto-merge; elements = { "eth0" . 10.0.0.0/8 }; }
			set vague { type ipv4_addr; flags timeout; }
			set unchanging { type ipv4_addr; flags constant; elements = { 1.1.1.1 }; }
			set counted { type ipv4_addr; counter; elements = { 1.1.1.1 }; }
			map objects { type ipv4_addr : counter; elements = { 1.1.1.1 : "hits" }; }
			set wide { type ipv6_addr . ipv6_addr . ipv6_addr; }
			chain forward { type filter hook forward priority 0; policy drop; }
			chain early { type nat hook prerouting priority dstnat - 5; policy drop; }
			chain mine { type nat hook input priority 100; policy accept; ip daddr { 1.1.1.1, 2.2.2.2 } jump { accept; }; counter name hits; }
		}
		add element ip svcctl empty { 10.99.0.1 }
		add element ip svcctl services { 10.99.0.1 . tcp . 1 : drop }
		add element ip svcctl sources { 10.9.9.0/24 }
		add rule ip svcctl pick-5 counter accept comment "foreign"
	`)
	ruleset, generation := read(t, c)
	table := ruleset[nft.IPv4]
	for _, name := range []string{"marks", "names", "vague", "unchanging", "counted", "objects", "wide"} {
		if s := table.Sets[name]; s == nil || s.Key != nil || s.Elements == nil {
			t.Errorf("foreign set %s is %+v", name, s)
		}
	}
	for _, name := range []string{"forward", "early"} {
		if chain := table.Chains[name]; chain == nil || chain.Hook != foreignHook {
			t.Errorf("foreign chain %s is %+v", name, chain)
		}
	}
	if chain := table.Chains["mine"]; chain == nil || chain.Hook != nft.HookInput || !reflect.DeepEqual(chain.Marks, []uint64{0, 0}) {
		t.Errorf("foreign chain mine is %+v", chain)
	}
	if marks := table.Chains["pick-5"].Marks; !reflect.DeepEqual(marks, []uint64{0}) {
		t.Errorf("a foreign rule has marks %v", marks)
	}
	for name, key := range map[string]string{
		"empty": "\x0a\x63\x00\x01", "services": "\x0a\x63\x00\x01\x06\x00\x00\x00\x00\x01\x00\x00",
		"sources": "\x0a\x09\x09\x00\x0a\x09\x09\xff",
	} {
		if _, ok := table.Sets[name].Elements[key]; !ok || len(table.Sets[name].Elements) != len(before[nft.IPv4].Sets[name].Elements)+1 {
			t.Errorf("the foreign element of %s is not read", name)
		}
	}
	for name := range table.Sets {
		if strings.HasPrefix(name, "__") {
			t.Errorf("anonymous set %s is read", name)
		}
	}
	for name := range table.Chains {
		if strings.HasPrefix(name, "__") {
			t.Errorf("anonymous chain %s is read", name)
		}
	}

	// What is not wanted can be deleted.
	var ops []nft.Op
	for _, name := range []string{"mine", "forward", "early"} {
		ops = append(ops, nft.DeleteChain{Family: nft.IPv4, Name: name})
	}
	for _, name := range []string{"marks", "names", "vague", "unchanging", "counted", "objects", "wide"} {
		ops = append(ops, nft.DeleteSet{Family: nft.IPv4, Name: name})
	}
	for name, key := range map[string]string{"empty": "\x0a\x63\x00\x01", "services": "\x0a\x63\x00\x01\x06\x00\x00\x00\x00\x01\x00\x00", "sources": "\x0a\x09\x09\x00\x0a\x09\x09\xff"} {
		ops = append(ops, nft.DeleteElements{Family: nft.IPv4, Set: table.Sets[name].Set, Elements: []nft.Element{{Key: key}}})
	}
	ops = append(ops, nft.SetRules{Family: nft.IPv4, Chain: "pick-5"})
	commit(t, c, generation, ops...)
	if after, _ := read(t, c); !reflect.DeepEqual(before, after) {
		t.Error("what was there before the foreign things came is not restored")
	}
}

// A catch-all element has no key that could be deleted by itself, so its set is foreign.
func TestForeignCatchAll(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	n.nft("add", "element", "ip", "svcctl", "vips", "{ * }")
	ruleset, _ := read(t, c)
	if s := ruleset[nft.IPv4].Sets["vips"]; s.Key != nil {
		t.Errorf("a set with a catch-all is %+v", s)
	}
}

// A dormant table does nothing, so it must not look like the wanted one.
func TestDormantTableIsReplaced(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	n.nft("add", "table", "ip", "svcctl", "{ flags dormant; }")
	ruleset, generation := read(t, c)
	if chain := ruleset[nft.IPv4].Chains["prerouting"]; chain == nil || chain.Hook != foreignHook {
		t.Errorf("a dormant table's chain is %+v", chain)
	}
	commit(t, c, generation, append([]nft.Op{nft.DeleteTable{Family: nft.IPv4}}, everything(nft.IPv4)...)...)
	if ruleset, _ = read(t, c); ruleset[nft.IPv4].Chains["prerouting"].Hook != nft.HookPrerouting {
		t.Error("the table is still dormant")
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

// The tests need root; this one fails where that must not go unnoticed.
func TestPrivilegedTestsRan(t *testing.T) {
	if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") != "1" {
		t.Skip("only where privileged tests are required")
	}
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Fatalf("privileged tests are required: user %d, %v", os.Geteuid(), err)
	}
}
