package nft

import (
	"net/netip"
	"slices"
)

// setBoxElements makes the elements of the sets that describe the box. There are a
// few of them for each address and interface, so they are simply all compared.
func (t *tableState) setBoxElements(f Family, box *Box) {
	want := map[string]Elements{setNPAddresses: {}, setInternalSources: {}, setSameInterface: {}, setOnLink: {}, setOwned: {}}
	var nodeAddrs []netip.Addr
	if t.has(setNodePorts) {
		for _, a := range box.NodePortAddresses {
			if FamilyOf(a) == f && !t.addresses[a].isVIP() {
				want[setNPAddresses][AddrKey(a)] = ""
				nodeAddrs = append(nodeAddrs, a)
			}
		}
	}
	if internal := mergePrefixes(box.InternalSources, f); len(mergedPrefixes(box.InternalSources, f)) > fewInternalSources {
		for _, r := range internal {
			want[setInternalSources][AddrKey(r.First)+AddrKey(r.Last)] = ""
		}
	}
	for _, r := range mergeRanges(box.Owned, f) {
		want[setOwned][AddrKey(r.First)+AddrKey(r.Last)] = ""
	}
	if t.has(setHairpin) {
		for _, i := range box.Interfaces {
			key := Key(nil).Iface(i.Index)
			want[setSameInterface][string(key.Iface(i.Index))] = ""
			if !box.MasqueradeOnLink {
				continue
			}
			for _, r := range mergePrefixes(i.Prefixes, f) {
				first := string(key.Addr(r.First))
				want[setOnLink][first+string(key.Addr(r.Last))] = ""
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

// setInsideElements makes the elements of the sets of clients inside, which are there while
// something asks for them. Settled addresses say whether something does.
func (t *tableState) setInsideElements(f Family, box *Box) {
	sources, interfaces := Elements{}, Elements{}
	if t.hasInsideOnly() {
		for _, r := range mergePrefixes(slices.Concat(box.InternalSources, box.InsideSources), f) {
			sources[AddrKey(r.First)+AddrKey(r.Last)] = ""
		}
		for _, i := range box.Interfaces {
			if i.Inside {
				interfaces[string(Key(nil).Iface(i.Index))] = ""
			}
		}
	}
	t.setElements(setInsideSources, sources)
	t.setElements(setInsideInterfaces, interfaces)
}

// setNodeAddresses makes these the node-port addresses of the map in postrouting, which
// holds VIPs too.
func (t *tableState) setNodeAddresses(addrs []netip.Addr) {
	for _, list := range [][]netip.Addr{t.nodeAddrs, addrs} {
		for _, a := range list {
			uses := t.touch(a)
			uses.node = slices.Contains(addrs, a)
			t.addresses[a] = uses
		}
	}
	t.nodeAddrs = addrs
}

// setElements makes elements the content of a set that describes the box, in the order of their keys: nft lists sets of
// ranges as they came to the kernel.
func (t *tableState) setElements(set string, elements Elements) {
	for _, key := range sortedKeys(t.box[set]) {
		if _, ok := elements[key]; !ok {
			t.delete(placed{set: set, key: key})
		}
	}
	for _, key := range sortedKeys(elements) {
		if _, ok := t.box[set][key]; !ok {
			t.put(placed{set: set, key: key})
		}
	}
	t.box[set] = elements
}
