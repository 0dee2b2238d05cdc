package traffic

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/conntrack"
)

// index maps the address and port that a client connected to, to a Service port.
type index struct {
	services map[string][]Port // the ports of each Service ("namespace/name"), sorted
	rows     []*row            // sorted by key
	at       conntrack.Index[*Port]
	egress   egressIndex
	counted  []*PortCounts // the counts of the current scan
}

// row is a Service port, with its Port in each IP family.
type row struct {
	key, service, name string // "namespace/name/port", "namespace/name", "port"
	ports              []Port
}

// shown returns the name of the port in tables: "namespace/name:port", or "namespace/name".
func (r *row) shown() string {
	if r.name == "" {
		return r.service
	}
	return r.service + ":" + r.name
}

// place returns the position in rows of the row with this key, or, if there is none (has is false), the position to insert it.
func place(rows []*row, key string) (at int, has bool) {
	return slices.BinarySearchFunc(rows, key, func(r *row, key string) int { return strings.Compare(r.key, key) })
}

// indexOf returns an index of Service ports. of holds them by Service ("namespace/name").
func indexOf(of map[string][]Port) *index {
	x := &index{services: of, at: conntrack.NewIndex[*Port](len(of))}
	for _, ports := range of {
		x.rows = append(x.rows, x.add(ports)...)
	}
	slices.SortFunc(x.rows, func(a, b *row) int { return strings.Compare(a.key, b.key) })
	x.egress.index()
	return x
}

// change replaces the ports of some Services. of holds their new ports by Service ("namespace/name"). A Service without ports is removed.
func (x *index) change(of map[string][]Port) {
	x.rows = slices.Clone(x.rows) // Snapshots have the former ones
	for service := range of {     // first, as another one may have a frontend now
		x.remove(x.services[service])
	}
	for service, ports := range of {
		if x.services[service] = ports; len(ports) == 0 {
			delete(x.services, service)
		}
		for _, r := range x.add(ports) {
			at, _ := place(x.rows, r.key)
			x.rows = slices.Insert(x.rows, at, r)
		}
	}
	x.egress.index()
}

// add sorts the ports of a Service and adds them to the index, except for their rows. It returns the rows, which the caller must add to x.rows.
func (x *index) add(ports []Port) (list []*row) {
	slices.SortFunc(ports, func(a, b Port) int { return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family)) })
	for i := range ports {
		p := &ports[i]
		key := p.Key()
		if i == 0 || list[len(list)-1].key != key {
			list = append(list, &row{key, p.Service, p.Name, ports[i:i:i]})
		}
		p.row = list[len(list)-1]
		p.row.ports = ports[i-len(p.row.ports) : i+1 : i+1]
		for _, fe := range p.Frontends {
			x.at.Set(fe, p)
		}
		if p.egress != nil {
			x.egress.ports = append(x.egress.ports, p)
			x.egress.addresses = nil
		}
	}
	return list
}

// remove removes the ports of a Service, and their rows.
func (x *index) remove(ports []Port) {
	for i := range ports {
		p := &ports[i]
		if p == &p.row.ports[0] {
			at, _ := place(x.rows, p.row.key)
			x.rows = slices.Delete(x.rows, at, at+1)
		}
		for _, fe := range p.Frontends {
			if x.at.Of[fe] == p {
				x.at.Delete(fe)
			}
		}
		if p.egress != nil {
			x.egress.ports = slices.DeleteFunc(x.egress.ports, func(o *Port) bool { return o == p })
			x.egress.addresses = nil
		}
	}
}

// byKey orders ports of an index by key, then by IP family.
func byKey(a, b *Port) int {
	return cmp.Or(strings.Compare(a.row.key, b.row.key), cmp.Compare(a.Family, b.Family))
}

// countsOf returns the counts of a port in the current scan. It creates them if there are none yet.
func (x *index) countsOf(p *Port) *PortCounts {
	if p.counts == nil {
		p.counts = &PortCounts{Port: p}
		x.counted = append(x.counted, p.counts)
	}
	return p.counts
}

// end moves the counts of the current scan from the index to l.
func (x *index) end(l *Snapshot) {
	l.rows, l.Ports = x.rows, x.counted
	x.counted = nil
	if len(l.Ports) < len(x.rows)/8 {
		slices.SortFunc(l.Ports, func(a, b *PortCounts) int { return byKey(a.Port, b.Port) })
	} else { // cheaper than to sort them
		l.Ports = l.Ports[:0]
		for _, r := range x.rows {
			for i := range r.ports {
				if p := r.ports[i].counts; p != nil {
					l.Ports = append(l.Ports, p)
				}
			}
		}
	}
	for _, p := range l.Ports {
		p.Port.counts = nil
	}
}

// find returns the Service port of a connection; nil if it does not belong to a Service.
func (x *index) find(c *conntrack.Connection) *Port {
	to := conntrack.Frontend{Addr: c.To.Addr(), Family: c.Family, Protocol: c.Protocol, Port: c.To.Port()}
	p, _ := x.at.At(to, nil)
	if c.Adopted || c.Left {
		if p = x.at.Of[to]; p != nil && !p.Adopts {
			p = nil
		}
	} else if p == nil {
		to.Addr = netip.Addr{} // a node port, at whatever address
		p = x.at.Of[to]
	}
	return p
}
