package reconcile

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/kernel"
)

// poisoned is the kernel, but the Services of some VIPs are to go to a chain that does
// not exist, which the kernel refuses.
type poisoned struct {
	*kernel.Conn
	vips []string // as bytes
}

func (p *poisoned) poison(b *nft.Batch) *nft.Batch {
	out := &nft.Batch{Ops: slices.Clone(b.Ops)}
	for i, op := range out.Ops {
		add, ok := op.(nft.AddElements)
		if !ok || add.Set.Name != "services" {
			continue
		}
		add.Elements = slices.Clone(add.Elements)
		for j, e := range add.Elements {
			if slices.ContainsFunc(p.vips, func(vip string) bool { return strings.HasPrefix(e.Key, vip) }) {
				add.Elements[j].Data = strings.Replace(e.Data, "pick-", "no-such-", 1)
			}
		}
		out.Ops[i] = add
	}
	return out
}

func (p *poisoned) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	return p.Conn.Commit(p.poison(b), generation)
}

func (p *poisoned) Check(b *nft.Batch, generation uint32) error {
	return p.Conn.Check(p.poison(b), generation)
}

func TestK08_realKernel(t *testing.T) {
	host := netlab.New(t).Host("box")
	conn, err := kernel.Open(kernel.Options{NetNS: host.Namespace()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := newRig(t)
	bad := &poisoned{conn, []string{"\x0a\x60\x01\x07", "\x0a\x60\x01\x40"}}
	r.applier.kernel = bad
	r.host()
	docs := ""
	for i := range 100 {
		docs += "---\n" + web("s"+string(rune('a'+i/26))+string(rune('a'+i%26)), "10.96.1."+strconv.Itoa(i+1), "10.1.0.1")
	}
	r.write("a.yaml", docs)
	r.step()
	if s := r.board.Status(); !s.Ready || !s.Synced || s.Errors() != 2 {
		t.Fatalf("ready %v, synced %v, %d errors, want 2\n%s", s.Ready, s.Synced, s.Errors(), r.logged.String())
	}
	for _, p := range r.board.Status().Problems {
		if p.Reason != reasonRefused || !strings.Contains(p.Message, "no such file or directory") || !strings.Contains(p.Message, "no-such-1") {
			t.Errorf("problem %v", p)
		}
	}
	listing := host.Nft("list", "map", "ip", "svcctl", "services")
	if n := strings.Count(listing, "goto pick-1"); n != 98 || strings.Contains(listing, "10.96.1.7 ") || strings.Contains(listing, "10.96.1.64 ") {
		t.Errorf("%d Services of 98 are served:\n%s", n, listing)
	}
	bad.vips = nil
	r.clock = r.clock.Add(refusedLast)
	r.step()
	if s := r.board.Status(); len(s.Problems) != 0 {
		t.Errorf("problems of what the kernel takes now: %v", s.Problems)
	}
	if n := strings.Count(host.Nft("list", "map", "ip", "svcctl", "services"), "goto pick-1"); n != 100 {
		t.Errorf("%d Services of 100 are served", n)
	}
}
