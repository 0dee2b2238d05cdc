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
	if !t.has(setNPSourceNAT) {
		nodeAddrs = nil
	}
	t.setNodeAddresses(nodeAddrs)
}

// setNodeAddresses makes these the node-port addresses of the map in postrouting, which
// holds VIPs too.
func (t *tableState) setNodeAddresses(addrs []netip.Addr) {
	for _, a := range t.nodeAddrs {
		if t.original[a] == 0 && !slices.Contains(addrs, a) {
			t.deleteElement(setOriginal, AddrKey(a))
		}
	}
	t.nodeAddrs = nil
	verdict := GotoChain(chainNPSourceNAT).String()
	for _, a := range addrs {
		if t.original[a] > 0 {
			continue // an address of the box with frontends of its own
		}
		if s := t.Sets[setOriginal]; s == nil || !holds(s.Elements, AddrKey(a), verdict) {
			t.putElement(setOriginal, AddrKey(a), verdict)
		}
		t.nodeAddrs = append(t.nodeAddrs, a)
	}
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
