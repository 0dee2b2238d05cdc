package nft

import (
	"slices"
	"strconv"
	"strings"
)

// Affinity of a whole Service: where an endpoint answers a client at one port, the client is
// remembered for the others too, with the same address and their own number. An element can take
// an address from a packet, and a number from the rule: so there is a set of addresses for each number that
// endpoints of a port have, mostly one, and a rule.

// remembersWith are the other ports for which the clients of this one are remembered.
func (p *compiledPort) remembersWith(all []*compiledPort) (others []*compiledPort) {
	if p.Affinity == 0 || !p.AffinityOptions.WholeService {
		return nil
	}
	for _, o := range all {
		if o != p && o.Family == p.Family && o.Affinity > 0 && o.AffinityOptions == p.AffinityOptions {
			others = append(others, o)
		}
	}
	return others
}

// number is the set of the addresses of a pool's endpoints that have a number.
func (p *compiledPort) number(pool Pool, port uint16) Set {
	return Set{Name: "members" + pools[pool].qualifier + "-" + strconv.Itoa(int(port)) + "/" + p.ID, Key: []Type{TypeAddr}}
}

// numbers returns the port numbers of a pool's endpoints, sorted.
func (p *compiledPort) numbers(pool Pool) []uint16 {
	var list []uint16
	for _, ap := range p.slots[pool] {
		if !slices.Contains(list, ap.Port()) {
			list = append(list, ap.Port())
		}
	}
	slices.Sort(list)
	return list
}

// addNumbers adds the sets that the other ports look into.
func (p *compiledPort) addNumbers(f *fragment, pool Pool) {
	if len(p.others) == 0 {
		return
	}
	for _, port := range p.numbers(pool) {
		f.sets = append(f.sets, p.number(pool, port))
	}
	for _, ap := range p.slots[pool] {
		f.elements = append(f.elements, placed{p.number(pool, ap.Port()).Name, AddrKey(ap.Addr()), ""})
	}
}

// parsePrefix reads from the name of an affinity map how much of a client's address counts; false: all of it, or
// the set is another one.
func parsePrefix(set string) (bits uint8, id string, ok bool) {
	kind, id, _ := strings.Cut(set, "/")
	if !strings.HasPrefix(kind, "affinity") {
		return 0, "", false
	}
	n, err := strconv.ParseUint(kind[strings.LastIndexByte(kind, '-')+1:], 10, 8)
	return uint8(n), id, err == nil
}
