package nft

import (
	"maps"
	"slices"
)

// Fork is the state of a Compiler, for a second Compiler that continues from it.
type Fork struct {
	box      Box
	services map[string][]*compiledPort
}

// Fork returns what the Compiler stands at. It copies a reference for each Service.
func (c *Compiler) Fork() Fork { return Fork{c.box, maps.Clone(c.services)} }

// Compiler makes a Compiler that stands where the other one stood, with endpoints in the same slots. Its work is
// that of all Services, without that of their elements.
func (x Fork) Compiler() *Compiler {
	c := NewCompiler()
	c.box, c.services = x.box, maps.Clone(x.services)
	for _, t := range c.tables {
		t.tells = true
		t.begin(false)
	}
	var f fragment
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		for _, p := range c.services[name] {
			f.fill(p, &c.box)
			c.tables[p.Family].add(&f, p.Family, &c.box)
		}
	}
	for _, f := range Families {
		c.tables[f].finish(f, &c.box, nil)
	}
	return c
}

// Ports are the ports of a Service, nil when there are none. What they share with the Compiler must not be changed.
func (x Fork) Ports(service string) (ports []ServicePort) {
	for _, p := range x.services[service] {
		ports = append(ports, *p.ServicePort)
	}
	return ports
}

// Interfaces are the names of the interfaces of the box, by their indexes.
func (x Fork) Interfaces() map[uint32]string {
	names := make(map[uint32]string, len(x.box.Interfaces))
	for _, i := range x.box.Interfaces {
		names[i.Index] = i.Name
	}
	return names
}
