package kernel
import ("testing";"fmt";"time";"net/netip";"os"
"svcctl.io/svcctl/nft")
func manyz(n int) nft.State {
	s := nft.State{Services: map[string][]nft.ServicePort{}}
	for i := range n { p:=onez(i); s.Services[p.ID] = []nft.ServicePort{p} }
	return s
}
func onez(i int) nft.ServicePort {
		p := nft.ServicePort{ID: fmt.Sprintf("default/s%d", i), Family: nft.IPv4, Protocol: nft.TCP}
		p.Frontends = []nft.Frontend{{Addr: netip.AddrFrom4([4]byte{10, byte(96+i>>16), byte(i >> 8), byte(i)}), Port: 80}}
		for e := range 5 { k:=i*5+e
			p.Pools[0] = append(p.Pools[0], netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + k>>16), byte(k >> 8), byte(k)}), 8080)) }
	return p
}
func TestZZ(t *testing.T) {
	for _, mode := range []string{"as is","one rule", "jump"} {
		ns := newNamespace(t)
		c := ns.open()
		comp := nft.NewCompiler()
		tr := comp.Load(manyz(10000))
		for i, op := range tr.Apply.Ops {
			if op, ok := op.(nft.SetRules); ok && op.Chain == "pick-5" && mode != "as is" { op.Rules = op.Rules[:1]; tr.Apply.Ops[i] = op }
		}
		if _, err := c.Commit(&tr.Apply, 0); err != nil { t.Fatal(err) }
		for k := range 6 {
			p := onez(20000+k)
			tr := comp.Update(nil, map[string][]nft.ServicePort{p.ID: {p}})
			t0 := time.Now()
			if _, err := c.Commit(&tr.Apply, 0); err != nil { t.Fatal(err) }
			fmt.Fprint(os.Stderr, mode, " add ", time.Since(t0), "\n")
		}
		for range 3 {
			b := nft.Batch{Ops: []nft.Op{nft.AddChain{Family: nft.IPv4, Chain: nft.Chain{Name: "x"}}, nft.SetRules{Family: nft.IPv4, Chain: "x", Rules: []nft.Rule{{nft.Verdict{Kind: nft.Drop}}}}}}
			t0 := time.Now()
			if _, err := c.Commit(&b, 0); err != nil { t.Fatal(err) }
			fmt.Fprint(os.Stderr, mode, " add chain ", time.Since(t0), "\n")
			b = nft.Batch{Ops: []nft.Op{nft.SetRules{Family: nft.IPv4, Chain: "x"}, nft.DeleteChain{Family: nft.IPv4, Name: "x"}}}
			t0 = time.Now()
			if _, err := c.Commit(&b, 0); err != nil { t.Fatal(err) }
			fmt.Fprint(os.Stderr, mode, " del chain ", time.Since(t0), "\n")
		}
	}
}
