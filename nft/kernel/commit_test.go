package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Nothing is lost on the way, however many elements there are.
func TestEveryElementArrives(t *testing.T) {
	for _, count := range []int{3_999, 4_096, 4_097, 65_537, 100_000} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			c := n.open()
			elements := make([]nft.Element, count)
			for i := range elements {
				elements[i] = slotElement(nft.IPv4, i)
			}
			commit(t, c, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
				nft.AddElements{Family: nft.IPv4, Set: backends, Elements: elements})
			ruleset, generation := read(t, c)
			if got := len(ruleset[nft.IPv4].Sets["backends"].Elements); got != count {
				t.Errorf("Read gives %d", got)
			}
			netlab.Eventually(t, time.Minute, func() error { // a listing while the kernel resizes the set may lack some
				if got := listed(t, c, "backends"); got != count {
					return fmt.Errorf("the kernel lists %d", got)
				}
				return nil
			})
			if count < 5_000 || os.Getenv("SVCCTL_SEEDS") == "all" { // nft takes ten seconds of CPU for the largest
				if got := strings.Count(n.nft("list", "map", "ip", "svcctl", "backends"), " . tcp . 80 . "); got != count {
					t.Errorf("nft lists %d", got)
				}
			}
			commit(t, c, generation, nft.DeleteElements{Family: nft.IPv4, Set: backends, Elements: elements})
			ruleset, _ = read(t, c)
			if got := len(ruleset[nft.IPv4].Sets["backends"].Elements); got != 0 {
				t.Errorf("%d are left after all were deleted", got)
			}
		})
	}
}

// listed returns how many elements of a map of IPv4 the kernel lists, by their keys. They are counted in its messages, without what
// Read decodes and puts together.
func listed(t *testing.T, c *Conn, name string) int {
	t.Helper()
	s, err := c.ensureSocket()
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	err = s.dump(unix.NFT_MSG_GETSETELEM, protocols[nft.IPv4].family,
		func(w *writer) {
			w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, nft.TableName)
			w.Text(unix.NFTA_SET_ELEM_LIST_SET, name)
		},
		func(m message) {
			for kind, elements := range m.Attributes() {
				if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
					continue
				}
				for _, element := range nfnetlink.Attributes(elements) {
					for kind, value := range nfnetlink.Attributes(element) {
						if kind == unix.NFTA_SET_ELEM_KEY {
							keys[string(value)] = true
						}
					}
				}
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	return len(keys)
}

func TestCommitOfAStaleGenerationChangesNothing(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	_, generation := read(t, c)
	n.nftScript("table ip other { }")
	if _, err := c.Commit(&nft.Batch{Ops: everything(nft.IPv4)}, generation); !errors.Is(err, ErrStale) {
		t.Fatalf("Commit says %v, want ErrStale", err)
	}
	ruleset, generation := read(t, c)
	if len(ruleset) != 0 {
		t.Error("a stale batch changed something")
	}
	if next := commit(t, c, generation); next != generation {
		t.Error("an empty batch has a generation")
	}
	commit(t, c, generation, everything(nft.IPv4)...)
}

// A batch of which one operation is refused changes nothing, and says which one it is.
func TestRefusedBatches(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	before, generation := read(t, c)
	services := nft.Set{Name: "services", Key: frontendKey, Data: verdict}
	ranges := nft.Set{Name: "sources", Key: frontendKey[:1], Interval: true}
	many := make([]nft.Element, 5000)
	for i := range many {
		many[i] = slotElement(nft.IPv4, 100_000+i)
	}
	clash := slotElement(nft.IPv4, 7)
	clash.Data = nft.AddrPortData(netip.MustParseAddrPort("10.9.9.9:9"))
	many[4321] = clash
	fine := nft.AddElements{Family: nft.IPv4, Set: backends, Elements: []nft.Element{slotElement(nft.IPv4, 99_999)}}
	for _, test := range []struct {
		name  string
		op    nft.Op
		text  string
		errno error
	}{
		{"element of no set", nft.AddElements{Family: nft.IPv4, Set: nft.Set{Name: "absent", Key: frontendKey}, Elements: []nft.Element{{Key: string(nft.Key(nil).Addr(address(nft.IPv4, 1)).Proto(nft.TCP).Port(1))}}},
			"add element ip svcctl absent { 10.0.0.1 . tcp . 1 }", unix.ENOENT},
		{"goto no chain", nft.AddElements{Family: nft.IPv4, Set: services, Elements: []nft.Element{{Key: string(nft.Key(nil).Addr(address(nft.IPv4, 9)).Proto(nft.TCP).Port(1)), Data: "goto absent"}}},
			"add element ip svcctl services { 10.0.0.9 . tcp . 1 : goto absent }", unix.ENOENT},
		{"one element of many", nft.AddElements{Family: nft.IPv4, Set: backends, Elements: many},
			"add element ip svcctl backends { 10.0.0.7 . tcp . 80 . 2 : 10.9.9.9 . 9 }", unix.EEXIST},
		{"absent element", nft.DeleteElements{Family: nft.IPv4, Set: backends, Elements: []nft.Element{{Key: slotElement(nft.IPv4, 1).Key}, {Key: many[1].Key}}},
			"delete element ip svcctl backends { 10.1.134.161 . tcp . 80 . 1 }", unix.ENOENT},
		{"overlap", nft.AddElements{Family: nft.IPv4, Set: ranges, Elements: []nft.Element{
			{Key: nft.AddrKey(address(nft.IPv4, 1000)) + nft.AddrKey(address(nft.IPv4, 1001))},
			{Key: nft.AddrKey(address(nft.IPv4, 15)) + nft.AddrKey(address(nft.IPv4, 40))}}},
			"add element ip svcctl sources { 10.0.0.15-10.0.0.40 }", unix.EEXIST},
		{"set that exists", nft.AddSet{Family: nft.IPv4, Set: backends}, "add map ip svcctl backends", unix.EEXIST},
		{"chain that exists", nft.AddChain{Family: nft.IPv4, Chain: nft.Chain{Name: "pick-5"}}, "add chain ip svcctl pick-5", unix.EEXIST},
		{"chain in use", nft.DeleteChain{Family: nft.IPv4, Name: "pick-5"}, "delete chain ip svcctl pick-5", unix.EBUSY},
		{"rule of no chain", nft.SetRules{Family: nft.IPv4, Chain: "absent", Rules: []nft.Rule{{nft.Masquerade{}}}},
			"flush chain ip svcctl absent; add rule ip svcctl absent masquerade", unix.ENOENT},
		{"masquerade in prerouting", nft.SetRules{Family: nft.IPv4, Chain: "prerouting", Rules: []nft.Rule{{nft.Masquerade{}}}},
			"flush chain ip svcctl prerouting; add rule ip svcctl prerouting masquerade", unix.EOPNOTSUPP},
	} {
		t.Run(test.name, func(t *testing.T) {
			next, err := c.Commit(&nft.Batch{Ops: []nft.Op{fine, test.op, fine}}, generation)
			var refused *OpError
			if !errors.As(err, &refused) {
				t.Fatalf("Commit says %v, want an OpError", err)
			}
			if refused.Op != 1 || !strings.HasPrefix(refused.Text, test.text) || !errors.Is(err, test.errno) {
				t.Errorf("Commit says %v\nwant %v for %s", err, test.errno, test.text)
			}
			if after, now := read(t, c); next != generation || now != generation || !reflect.DeepEqual(before, after) {
				t.Error("a refused batch changed something")
			}
		})
	}
	commit(t, c, generation, fine)
}

// A reader never sees half of what another one commits: every element of a large map,
// and in two others the data of the same transaction.
func TestReadDuringCommits(t *testing.T) {
	n := newNamespace(t)
	writer, reader := n.open(), n.open()
	const count = 2000
	elements := make([]nft.Element, count)
	for i := range elements {
		elements[i] = slotElement(nft.IPv4, i)
	}
	twins := [2]nft.Set{{Name: "a", Key: frontendKey[:1], Data: endpoint[:1]}, {Name: "b", Key: frontendKey[:1], Data: endpoint[:1]}}
	mark := func(i int) []nft.Element {
		return []nft.Element{{Key: nft.AddrKey(address(nft.IPv4, 0)), Data: nft.AddrKey(address(nft.IPv4, i))}}
	}
	commit(t, writer, 0, nft.AddTable{Family: nft.IPv4}, nft.AddSet{Family: nft.IPv4, Set: backends},
		nft.AddElements{Family: nft.IPv4, Set: backends, Elements: elements},
		nft.AddSet{Family: nft.IPv4, Set: twins[0]}, nft.AddElements{Family: nft.IPv4, Set: twins[0], Elements: mark(0)},
		nft.AddSet{Family: nft.IPv4, Set: twins[1]}, nft.AddElements{Family: nft.IPv4, Set: twins[1], Elements: mark(0)})
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() { // commit again and again, with pauses that a reading fits in
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(i%8) * time.Millisecond):
			}
			one := elements[i%count : i%count+1]
			ops := []nft.Op{
				nft.DeleteElements{Family: nft.IPv4, Set: backends, Elements: one},
				nft.AddElements{Family: nft.IPv4, Set: backends, Elements: one},
			}
			for _, twin := range twins {
				ops = append(ops, nft.DeleteElements{Family: nft.IPv4, Set: twin, Elements: mark(0)},
					nft.AddElements{Family: nft.IPv4, Set: twin, Elements: mark(i)})
			}
			if _, err := writer.Commit(&nft.Batch{Ops: ops}, 0); err != nil {
				t.Errorf("writer: %v", err)
				return
			}
		}
	})
	complete := 0
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline) && !t.Failed(); { // real time: another one writes meanwhile
		ruleset, _, err := reader.Read()
		if errors.Is(err, ErrChanging) {
			continue
		}
		if err != nil {
			t.Error(err)
			break
		}
		complete++
		sets := ruleset[nft.IPv4].Sets
		if got := len(sets["backends"].Elements); got != count {
			t.Errorf("a reading gives %d elements of %d", got, count)
		}
		if !reflect.DeepEqual(sets["a"].Elements, sets["b"].Elements) {
			t.Error("a reading is of two transactions")
		}
	}
	close(stop)
	done.Wait()
	if complete == 0 {
		t.Error("no reading was complete")
	}
	t.Logf("%d readings", complete)
}

// A check says what a commit would, and leaves no trace.
func TestCheck(t *testing.T) {
	n := newNamespace(t)
	c := n.open()
	commit(t, c, 0, everything(nft.IPv4)...)
	before, generation := read(t, c)
	good := nft.AddElements{Family: nft.IPv4, Set: backends, Elements: []nft.Element{slotElement(nft.IPv4, 777)}}
	nowhere := good
	nowhere.Set.Name = "nowhere"
	for name, test := range map[string]struct {
		ops        []nft.Op
		generation uint32
		want       error
	}{
		"nothing":     {nil, generation, nil},
		"good":        {[]nft.Op{good, nft.AddTable{Family: nft.IPv6}}, generation, nil},
		"stale":       {[]nft.Op{good}, generation - 1, ErrStale},
		"refused":     {[]nft.Op{good, nowhere}, generation, unix.ENOENT},
		"only at all": {[]nft.Op{good}, 0, nil},
	} {
		if err := c.Check(&nft.Batch{Ops: test.ops}, test.generation); !errors.Is(err, test.want) {
			t.Errorf("%s: Check says %v, want %v", name, err, test.want)
		}
	}
	var refused *OpError
	if err := c.Check(&nft.Batch{Ops: []nft.Op{good, nowhere}}, 0); !errors.As(err, &refused) || refused.Op != 1 {
		t.Errorf("the refused operation is %+v, want number 1", refused)
	}
	if after, now := read(t, c); now != generation || !reflect.DeepEqual(after, before) {
		t.Error("a check committed something")
	}
	commit(t, c, generation, good)
}
