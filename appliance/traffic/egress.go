package traffic

import (
	"bufio"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
)

// egressIndex holds the Service ports that have egress sources (nft.Egress), and maps of their egress addresses and sources. When the ports change,
// addresses is set to nil, and the method index rebuilds the maps. Without ports nothing is counted.
type egressIndex struct {
	ports     []*Port
	addresses map[netip.Addr]bool
	sources   map[netip.Addr]*Port // the port, by egress source
}

// index rebuilds the maps if the ports have changed.
func (x *egressIndex) index() {
	if x.addresses != nil {
		return
	}
	slices.SortFunc(x.ports, byKey)
	x.addresses, x.sources = map[netip.Addr]bool{}, map[netip.Addr]*Port{}
	for _, p := range x.ports {
		x.addresses[p.egress.Addr] = true
		for _, source := range p.egress.Sources {
			x.sources[source] = p
		}
	}
}

// egressLook holds the connections in one scan that endpoints opened and that use the address of a Service as their source.
type egressLook struct {
	Egress   []wire.EgressTraffic
	outbound map[outbound]int // numbers of connections; leave sums them up and sets it to nil
}

// either returns the Service port of a client's connection. For a connection opened by an endpoint (out is true) it returns the port with that egress
// source. It returns nil for other connections, and if the egress source no longer belongs to a Service.
func (x *index) either(c *conntrack.Connection) (p *Port, out bool) {
	if p = x.find(c); p == nil && c.Left && x.egress.addresses[c.To.Addr()] {
		p, out = x.egress.sources[c.Endpoint.Addr()], true
	}
	return p, out
}

// mark sets whether an endpoint opened a connection (out). Such a connection belongs to no port of a Service, so mark clears c.Port.
func mark(c *wire.Connection, out bool) {
	if c.Out = out; out {
		c.Port = ""
	}
}

// outbound is the key for counting connections: those of one egress source (source) with one egress address (addr) to one destination.
type outbound struct {
	addr, source netip.Addr
	to           netip.AddrPort
	protocol     nft.Protocol
}

// depart counts a connection if it uses an egress address, even if its source no longer belongs to a Service: it still occupies a source port of the
// address. It reports whether only the source of the connection is translated.
func (l *Snapshot) depart(x *egressIndex, c *conntrack.Connection) bool {
	if !c.Left || !x.addresses[c.To.Addr()] {
		return c.Left // masqueraded, and none of ours
	}
	if l.outbound == nil {
		l.outbound = map[outbound]int{}
	}
	l.outbound[outbound{c.To.Addr(), c.Endpoint.Addr(), c.Client, c.Protocol}]++
	return true
}

// leave computes l.Egress from the numbers of connections. counted has the kernel's count of connections since the start, by egress source. last is
// the previous scan, nil if there was none.
func (l *Snapshot) leave(found *index, counted map[netip.Addr]uint64, last *Snapshot) {
	x := &found.egress
	if len(x.ports) == 0 {
		return
	}
	type use struct {
		ports int
		by    outbound // the source with most of them
	}
	open, towards, used, most := map[netip.Addr]int{}, map[netip.Addr]outbound{}, map[outbound]use{}, map[netip.Addr]outbound{}
	for of, n := range l.outbound {
		if p := x.sources[of.source]; p != nil && p.egress.Addr == of.addr {
			open[of.source] += n
			was := towards[of.source]
			if more := cmp.Or(cmp.Compare(n, l.outbound[was]), was.to.Compare(of.to)); more > 0 || !was.to.IsValid() {
				towards[of.source] = of
			}
		}
		at := of
		at.source = netip.Addr{} // all of them
		u := used[at]
		if more := cmp.Compare(n, l.outbound[u.by]); more > 0 || more == 0 && of.source.String() < u.by.source.String() {
			u.by = of
		}
		u.ports += n
		used[at] = u
	}
	for at, u := range used {
		was := most[at.addr]
		if more := cmp.Or(cmp.Compare(u.ports, used[was].ports), -at.to.Compare(was.to)); more > 0 || !was.addr.IsValid() {
			most[at.addr] = at
		}
	}
	before := map[string]*uint64{} // by Service and address
	if last != nil {
		for _, e := range last.Egress {
			before[e.Namespace+"/"+e.Service+" "+e.Address] = e.Connections
		}
	}
	for _, p := range x.ports {
		namespace, name, _ := strings.Cut(p.Service, "/")
		e := wire.EgressTraffic{Namespace: namespace, Service: name, Address: p.egress.Addr.String(), To: p.egress.Destinations(), Sources: []wire.EgressSource{}}
		if l.Counted {
			e.Connections = new(uint64)
		}
		for _, source := range p.egress.Sources {
			s := wire.EgressSource{Address: source.String(), Open: open[source]}
			if at, is := towards[source]; is {
				s.Towards = at.to.String() + "/" + at.protocol.Name()
			}
			if e.Open += s.Open; l.Counted {
				s.Connections = new(counted[source])
				*e.Connections += *s.Connections
			}
			e.Sources = append(e.Sources, s)
		}
		if at, is := most[p.egress.Addr]; is {
			e.Ports, e.Fullest, e.By = used[at].ports, at.to.String()+"/"+at.protocol.Name(), used[at].by.source.String()
		}
		if was := before[p.Service+" "+e.Address]; was != nil && e.Connections != nil && *e.Connections >= *was && l.Since > 0 {
			e.Rate = new(float64(*e.Connections-*was) / l.Since.Seconds())
		}
		l.Egress = append(l.Egress, e)
	}
	l.outbound = nil
}

// egress returns the rows of Egress that a query selects.
func (l *Snapshot) egress(q *wire.TrafficQuery) (rows []wire.EgressTraffic) {
	for _, e := range l.Egress {
		i := slices.IndexFunc(e.Sources, func(s wire.EgressSource) bool { return s.Address == q.Source.String() })
		if (q.Namespace == "" || q.Namespace == e.Namespace) && (q.Service == "" || q.Service == e.Service) && (i >= 0 || !q.Source.IsValid()) {
			if i >= 0 {
				e.Sources = []wire.EgressSource{e.Sources[i]}
				to, _, _ := strings.Cut(e.Sources[0].Towards, "/")
				if at, err := netip.ParseAddrPort(to); err == nil {
					e.Sources[0].Uplink = node.Leaves(q.Source, at.Addr())
				}
			}
			rows = append(rows, e)
		}
	}
	return rows
}

// Leave sets the function that receives the egress traffic after each scan while Services have egress, and once when they no longer have any. It must
// be called before the first scan.
func (a *Queries) Leave(take func([]wire.EgressTraffic)) { a.observer.leave = take }

// egressSeries writes the metrics of egress traffic in the Prometheus text format.
func egressSeries(out *bufio.Writer, rows []wire.EgressTraffic) {
	if len(rows) == 0 {
		return
	}
	total := map[string]uint64{}
	var services []string
	for i := range rows {
		labels := fmt.Sprintf("namespace=%q,service=%q", rows[i].Namespace, rows[i].Service)
		if _, is := total[labels]; !is {
			services = append(services, labels)
		}
		total[labels] += value(rows[i].Connections)
	}
	if rows[0].Connections != nil {
		fmt.Fprint(out, "# HELP svcctl_egress_connections_total Connections that endpoints of a Service began themselves and that left with its address.\n# TYPE svcctl_egress_connections_total counter\n")
		for _, labels := range services {
			fmt.Fprintf(out, "svcctl_egress_connections_total{%s} %d\n", labels, total[labels])
		}
	}
	fmt.Fprint(out, "# HELP svcctl_egress_port_use_ratio Share of the ports of an address that connections of endpoints use towards the place where most are used.\n# TYPE svcctl_egress_port_use_ratio gauge\n")
	seen := map[string]bool{}
	for i := range rows {
		if e := &rows[i]; !seen[e.Address] {
			seen[e.Address] = true
			fmt.Fprintf(out, "svcctl_egress_port_use_ratio{address=%q} %.4f\n", e.Address, e.PortRatio())
		}
	}
}
