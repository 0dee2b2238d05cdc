package kernel

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

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

// Entries that have more life left get less, unless they are forgotten altogether.
func TestCapTimeouts(t *testing.T) {
	for _, destroy := range []bool{true, false} {
		for _, f := range nft.Families {
			t.Run(fmt.Sprintf("%v destroy %v", f, destroy), func(t *testing.T) {
				n := newNamespace(t)
				c := n.open()
				c.features.Destroy = c.features.Destroy && destroy
				set := affinity(t, n, c, f) // 300 with an hour
				short := fmt.Sprintf("%v timeout 5m", address(f, 5000))
				n.nft("add", "element", f.String(), "svcctl", "affinity", fmt.Sprintf("{ %s : %v . 80 }", short, address(f, 2000)))
				_, generation := read(t, c)
				limit := nft.CapTimeouts{Family: f, Set: set, Timeout: 10 * time.Minute}
				gone := nft.AddrPortData(netip.AddrPortFrom(address(f, 1000), 8080))
				generation = commit(t, c, generation, nft.ForgetData{Family: f, Set: set, Data: []string{gone}}, limit)
				listing := n.nft("list", "map", f.String(), "svcctl", "affinity")
				for text, want := range map[string]int{
					" timeout 1h ": 0, " timeout 10m ": 200, short + " ": 1,
					fmt.Sprintf(": %v . 8080", address(f, 1000)): 0, fmt.Sprintf(": %v . 8080", address(f, 1001)): 100,
				} {
					if got := strings.Count(listing, text); got != want {
						t.Errorf("%d entries with %q, want %d", got, text, want)
					}
				}
				if now := commit(t, c, generation, limit); now != generation {
					t.Error("nothing has a longer timeout, and yet there is a transaction")
				}
			})
		}
	}
}

func TestExpired(t *testing.T) {
	b := &nft.Batch{Ops: []nft.Op{nft.DeleteElements{}, nft.ForgetData{}, nft.CapTimeouts{}}}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{ErrStale, false},
		{&OpError{Op: 0, Errno: unix.ENOENT}, false},
		{&OpError{Op: 1, Errno: unix.EINVAL}, false},
		{&OpError{Op: 1, Errno: unix.ENOENT}, true},
		{&OpError{Op: 2, Errno: unix.ENOENT}, true},
	} {
		if got := entryExpired(b, test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}
