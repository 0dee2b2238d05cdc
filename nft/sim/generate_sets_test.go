package sim_test

import (
	"net/netip"
	"time"

	"svcctl.io/svcctl/nft"
)

// sets makes every set that random rules name, with random elements.
func (g *generator) sets() {
	addr, proto, port := nft.TypeAddr, nft.TypeProto, nft.TypeService
	verdict, endpoint := []nft.Type{nft.TypeVerdict}, []nft.Type{addr, port}
	key := func(types ...nft.Type) []nft.Type { return types }
	const life = 24 * time.Hour

	g.add(nft.Set{Name: "backends", Key: key(addr, proto, port, nft.TypeSlot), Data: endpoint}, g.backends())
	g.add(nft.Set{Name: "affinity", Key: key(addr), Data: endpoint, Timeout: life, Dynamic: true, Size: g.size()}, nil)
	g.add(nft.Set{Name: "seen", Key: key(addr, port), Timeout: life, Dynamic: true, Size: g.size()}, nil)
	for _, kind := range []string{front, back, inside} {
		g.add(nft.Set{Name: kind[:len(kind)-1], Key: key(addr, proto, port), Data: verdict}, g.verdicts(kind, g.frontends()))
	}
	var addresses, nodePorts, portKeys []string
	for _, a := range some(g, append(g.vips, g.box...)) {
		addresses = append(addresses, nft.AddrKey(a))
	}
	for _, n := range ports {
		portKeys = append(portKeys, nft.JoinKey(nft.Value{Type: port, Num: uint32(n)}))
		for _, p := range some(g, protocols) {
			nodePorts = append(nodePorts, string(nft.Key(nil).Proto(p).Port(n)))
		}
	}
	g.add(nft.Set{Name: "front-addresses", Key: key(addr), Data: verdict}, g.verdicts(front, addresses))
	g.add(nft.Set{Name: "front-nodeports", Key: key(proto, port), Data: verdict}, g.verdicts(front, nodePorts))
	g.add(nft.Set{Name: "front-ports", Key: key(port), Data: verdict}, g.verdicts(front, some(g, portKeys)))

	g.add(nft.Set{Name: "networks", Key: key(addr), Interval: true}, g.ranges(nil))
	g.add(nft.Set{Name: "on-link", Key: key(nft.TypeIface, addr), Interval: true}, g.ranges(nft.Key(nil).Iface(pick(g, []uint32{in0, out0}))))
	allowed := nft.Elements{}
	for _, f := range g.frontends() {
		for k := range g.ranges(nft.Key(f)) {
			allowed[k] = ""
		}
	}
	g.add(nft.Set{Name: "allowed", Key: key(addr, proto, port, addr), Interval: true}, allowed)
	g.add(nft.Set{Name: "same-interface", Key: key(nft.TypeIface, nft.TypeIface)}, nft.Elements{
		string(nft.Key(nil).Iface(in0).Iface(in0)): "", string(nft.Key(nil).Iface(out0).Iface(out0)): "",
		string(nft.Key(nil).Iface(in0).Iface(0)): "", string(nft.Key(nil).Iface(0).Iface(in0)): "",
	})
	hairpin, protos, portSet := nft.Elements{}, nft.Elements{}, nft.Elements{}
	for _, e := range some(g, g.endpoints) {
		hairpin[nft.AddrKey(e)+nft.AddrKey(e)] = ""
	}
	for _, p := range some(g, protocols) {
		protos[string([]byte{byte(p)})] = ""
	}
	for _, k := range some(g, portKeys) {
		portSet[k] = ""
	}
	sources := nft.Elements{}
	for _, source := range some(g, g.clients) {
		sources[nft.AddrKey(source)] = nft.AddrKey(pick(g, g.vips))
	}
	g.add(nft.Set{Name: "sources", Key: key(addr), Data: key(addr)}, sources)
	g.add(nft.Set{Name: "hairpin", Key: key(addr, addr)}, hairpin)
	g.add(nft.Set{Name: "protocols", Key: key(proto)}, protos)
	g.add(nft.Set{Name: "ports", Key: key(port)}, portSet)
}

func (g *generator) add(s nft.Set, elements nft.Elements) {
	g.table.Sets[s.Name] = &nft.SetContent{Set: s, Elements: elements}
}

// size is small, so that sets become full, or the default.
func (g *generator) size() uint32 { return pick(g, []uint32{1, 2, 65535}) }

// frontends is most of the keys that packets are sent to.
func (g *generator) frontends() []string {
	var keys []string
	for _, vip := range append(g.vips[:2:2], g.box[0]) {
		for _, p := range protocols {
			for _, n := range ports {
				if g.IntN(4) > 0 {
					keys = append(keys, string(nft.Key(nil).Addr(vip).Proto(p).Port(n)))
				}
			}
		}
	}
	return keys
}

// backends leaves a slot out now and then.
func (g *generator) backends() nft.Elements {
	elements := nft.Elements{}
	for _, f := range g.frontends() {
		for slot := range uint32(3) {
			if g.IntN(8) > 0 {
				to := netip.AddrPortFrom(pick(g, g.endpoints), pick(g, ports))
				elements[string(nft.Key(f).Slot(slot))] = nft.AddrPortData(to)
			}
		}
	}
	return elements
}

func (g *generator) verdicts(kind string, keys []string) nft.Elements {
	elements := nft.Elements{}
	for _, k := range keys {
		elements[k] = g.verdict(kind, mapped).String()
	}
	return elements
}

// ranges puts some of the networks behind a key: whole, or from their second address on.
func (g *generator) ranges(key nft.Key) nft.Elements {
	elements := nft.Elements{}
	for _, p := range some(g, g.networks) {
		r := nft.PrefixRange(p)
		if g.IntN(2) == 0 && r.First != r.Last {
			r.First = r.First.Next()
		}
		lower := string(key.Addr(r.First))
		elements[lower+string(key.Addr(r.Last))] = ""
	}
	return elements
}
