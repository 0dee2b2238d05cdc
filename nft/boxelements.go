package nft

import (
	"net/netip"
	"slices"
)

// setBoxElements makes the elements of the sets that describe the box. There are a
// few of them for each address and interface, so they are simply all compared.
func (t *tableState) setBoxElements(f Family, box *Box) {
	want := map[string]Elements{setNPAddresses: {}, setInternalSources: {}, setSameInterface: {}, setOnLink: {}}
	var nodeAddrs []netip.Addr
	if t.has(setNodePorts) {
		for _, a := range box.NodePortAddresses {
			if _, vip := t.vips[a]; familyOf(a) == f && !vip {
				want[setNPAddresses][AddrKey(a)] = ""
				nodeAddrs = append(nodeAddrs, a)
			}
		}
	}
	if internal := mergePrefixes(box.InternalSources, f); len(mergedPrefixes(box.InternalSources, f)) > fewInternalSources {
		for _, r := range internal {
			want[setInternalSources][AddrKey(r.first)+AddrKey(r.last)] = ""
		}
	}
	if t.has(setHairpin) {
		for _, i := range box.Interfaces {
			key := Key(nil).Iface(i.Index)
			want[setSameInterface][string(key.Iface(i.Index))] = ""
			if !box.MasqueradeOnLink {
				continue
			}
			for _, r := range mergePrefixes(i.Prefixes, f) {
				first := string(key.Addr(r.first))
				want[setOnLink][first+string(key.Addr(r.last))] = ""
			}
		}
	}
	for name, elements := range want {
		t.setElements(name, elements)
	}
	t.nodeAddrs = t.setNodeAddresses(setAddresses, chainNodePort, t.nodeAddrs, nodeAddrs, func(a netip.Addr) bool { return t.vips[a].frontends > 0 })
	if !t.has(setNPSourceNAT) {
		nodeAddrs = nil
	}
	t.originalNodeAddrs = t.setNodeAddresses(setOriginal, chainNPSourceNAT, t.originalNodeAddrs, nodeAddrs, func(a netip.Addr) bool { return t.original[a] > 0 })
}

// setNodeAddresses makes these the node-port addresses of a map, which holds other
// addresses too: those that are owned. It gives those that it has put in.
func (t *tableState) setNodeAddresses(set, chain string, before, addrs []netip.Addr, owned func(netip.Addr) bool) (now []netip.Addr) {
	for _, a := range before {
		if !owned(a) && !slices.Contains(addrs, a) {
			t.deleteElement(set, AddrKey(a))
		}
	}
	verdict := GotoChain(chain).String()
	for _, a := range addrs {
		if owned(a) {
			continue
		}
		if s := t.Sets[set]; s == nil || !holds(s.Elements, AddrKey(a), verdict) {
			t.putElement(set, AddrKey(a), verdict)
		}
		now = append(now, a)
	}
	return now
}

// setElements makes elements the content of a set.
func (t *tableState) setElements(name string, elements Elements) {
	if s := t.Sets[name]; s != nil {
		for key := range s.Elements {
			if _, ok := elements[key]; !ok {
				t.deleteElement(name, key)
			}
		}
	}
	for key, data := range elements {
		if s := t.Sets[name]; s == nil || !holds(s.Elements, key, data) {
			t.putElement(name, key, data)
		}
	}
}

func holds(e Elements, key, data string) bool {
	have, ok := e[key]
	return ok && have == data
}
