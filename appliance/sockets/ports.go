package sockets

import "slices"

// Ports are ports of TCP and UDP. The zero value has none. It is a value of 16 KiB: copies are
// independent.
type Ports struct {
	sets [len(kinds)][1 << 16 / 64]uint64 // a bit for each port
	n    [len(kinds)]int
}

// indexOf gives the index of a protocol ("tcp", "udp") in kinds; -1: it is none of them.
func indexOf(protocol string) int {
	return slices.IndexFunc(kinds[:], func(k kind) bool { return k.name == protocol })
}

// Add adds a port of a protocol, "tcp" or "udp". Any other protocol has no ports here.
func (p *Ports) Add(protocol string, port uint16) {
	if i := indexOf(protocol); i >= 0 && !p.has(i, port) {
		p.sets[i][port/64] |= 1 << (port % 64)
		p.n[i]++
	}
}

// AddRange adds the ports from first to last of a protocol.
func (p *Ports) AddRange(protocol string, first, last uint16) {
	for port := int(first); port <= int(last); port++ {
		p.Add(protocol, uint16(port))
	}
}

// Remove removes a port of a protocol.
func (p *Ports) Remove(protocol string, port uint16) {
	if i := indexOf(protocol); i >= 0 && p.has(i, port) {
		p.sets[i][port/64] &^= 1 << (port % 64)
		p.n[i]--
	}
}

// Has reports whether a port of a protocol is among them.
func (p *Ports) Has(protocol string, port uint16) bool {
	i := indexOf(protocol)
	return i >= 0 && p.has(i, port)
}

// Empty reports whether there are none.
func (p *Ports) Empty() bool { return p.n == [len(kinds)]int{} }

func (p *Ports) has(i int, port uint16) bool { return p.sets[i][port/64]&(1<<(port%64)) != 0 }

// bounds are the lowest and the highest port of a kind; without any, ok is false.
func (p *Ports) bounds(i int) (first, last uint16, ok bool) {
	if p.n[i] == 0 {
		return 0, 0, false
	}
	port := 0
	for !p.has(i, uint16(port)) {
		port++
	}
	first = uint16(port)
	for port = 1<<16 - 1; !p.has(i, uint16(port)); port-- {
	}
	return first, uint16(port), true
}
