package kernel

import (
	"net/netip"
	"testing"

	"svcctl.io/svcctl/nft"
)

// Packets are delivered in every stage of a changed frontend, the ruleset reads back as it was committed, and nft prints and loads it.
func TestPacketsToUnsettledFrontends(t *testing.T) {
	p := newPath(t)
	was := byKeyFrom
	byKeyFrom = 1
	defer func() { byKeyFrom = was }()
	p.state.Box.SettleFrom = 1
	for f := range p.vips {
		p.state.Services["default/"+f.String()][0].Affinity = 0
	}
	c := nft.NewCompiler()
	have, generation := read(t, p.kernel)
	tr := c.Adopt(have, p.state)
	generation = commit(t, p.kernel, generation, tr.Apply.Ops...)
	if !tr.Cleanup.Empty() {
		generation = commit(t, p.kernel, generation, tr.Cleanup.Ops...)
	}
	next := map[string][]nft.ServicePort{} // a new frontend for each family, and an endpoint less
	for f, vip := range p.vips {
		name := "default/" + f.String()
		less, more := p.state.Services[name][0], p.state.Services[name][0]
		less.Pools[nft.PoolCluster] = less.Pools[nft.PoolCluster][:1]
		more.ID, more.Frontends = name+"/new", []nft.Frontend{{Addr: vip.Addr(), Port: 81, SNAT: nft.SNATNever}}
		next[name], next[name+"-new"] = []nft.ServicePort{less}, []nft.ServicePort{more}
	}
	for stage, name := range []string{"unsettled", "with goto", "settled"} {
		if stage > 0 {
			c.Settle()
			next = nil
		}
		tr = c.Update(nil, next)
		commit(t, p.kernel, generation, tr.Apply.Ops...)
		have, _ = read(t, p.kernel)
		if tr := c.From(have); !tr.Empty() {
			t.Errorf("%s: what was committed is not what was wanted: %+v", name, tr)
		}
		for f, vip := range p.vips {
			if set, is := have[f].Sets["unsettled"]; !is || (len(set.Elements) > 0) != (stage < 2) {
				t.Errorf("%s: %v has the set %+v", name, f, set)
			}
			if stage == 0 && countsElements(t, p.kernel) && !byKey(t, p.kernel, f, have[f], "backends") {
				t.Errorf("the endpoints of unsettled frontends of %v are not read by key", f)
			}
			ports := map[uint16]map[uint16]int{80: {}, 81: {}}
			for range 40 {
				for port := range ports {
					reply, err := p.client.Ask("tcp", netip.AddrPortFrom(vip.Addr(), port))
					if err != nil {
						t.Fatalf("%s: %v: %v", name, vip, err)
					}
					ports[port][reply.At.Port()]++
				}
			}
			if len(ports[80]) != 1 || len(ports[81]) != 2 {
				t.Errorf("%s: %v: endpoints get %v", name, vip, ports)
			}
			if _, err := p.client.Ask("tcp", netip.AddrPortFrom(vip.Addr(), 82)); err == nil {
				t.Errorf("%s: port 82 of %v answers", name, vip)
			}
		}
		listing := p.box.Nft("list", "ruleset")
		p.box.Nft("flush", "ruleset")
		p.box.LoadNft(listing)
		have, generation = read(t, p.kernel)
		tr = c.From(have)
		for _, op := range tr.Apply.Ops { // rules that were loaded have no marks, and that is all
			if _, is := op.(nft.SetRules); !is {
				t.Errorf("%s: after its listing was loaded the ruleset lacks %+v", name, op)
			}
		}
		generation = commit(t, p.kernel, generation, tr.Apply.Ops...)
	}
}
