package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/store/object"
)

// Member is one address behind a Service under one host name: what a name of a headless
// Service stands for.
type Member struct {
	Addr     netip.Addr
	Hostname string // "" when none is given
	// Ready endpoints are the ones a name stands for, unless the Service publishes all
	// of them (core/v1 ServiceSpec.publishNotReadyAddresses).
	Ready bool
	// Ports are its ports that named ports of the Service stand for.
	Ports []MemberPort
}

// MemberPort is a named port of a member.
type MemberPort struct {
	Name     string
	Protocol string // as in YAML: "TCP"
	Port     uint16
}

// Members lists the addresses behind a Service, merged from all objects that name them,
// in order of address and host name. It leaves out the addresses that Service leaves
// out, and takes an endpoint for ready where Service does. Unlike Service it also lists
// endpoints without a port. One that is demoted on all its ports is not ready.
func Members(in Input, facts *Facts) []Member {
	r := &resolver{Input: in, facts: facts, ref: object.RefOf(in.Service)}
	type key struct {
		addr     netip.Addr
		hostname string
	}
	found := map[key]*Member{}
	taken, _ := health.Out(in.Service)
	r.visit(func(addr netip.Addr, ep endpoint, hostname string, ports []object.EndpointPort) {
		if taken[addr] {
			return
		}
		m := found[key{addr, hostname}]
		if m == nil {
			m = &Member{Addr: addr, Hostname: hostname}
			found[key{addr, hostname}] = m
		}
		usable := r.usablePorts(addr, ports)
		m.Ready = m.Ready || ep.state == ready && (len(usable) > 0 || len(ports) == 0)
		for i := range usable {
			if p, ok := r.memberPort(&usable[i]); ok && !slices.Contains(m.Ports, p) {
				m.Ports = append(m.Ports, p)
			}
		}
	})
	members := make([]Member, 0, len(found))
	for _, m := range found {
		slices.SortFunc(m.Ports, func(a, b MemberPort) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
		})
		members = append(members, *m)
	}
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Hostname, b.Hostname))
	})
	return members
}

// usablePorts are the ports of an address that are not demoted.
func (r *resolver) usablePorts(addr netip.Addr, ports []object.EndpointPort) []object.EndpointPort {
	if len(r.Demoted) == 0 {
		return ports
	}
	return slices.DeleteFunc(slices.Clone(ports), func(p object.EndpointPort) bool {
		name, proto, ok := matches(&p)
		return ok && slices.ContainsFunc(r.Demoted, func(d Demoted) bool {
			return d.Port == name && d.Protocol == proto.Name() && d.Addr == netip.AddrPortFrom(addr, uint16(*p.Port))
		})
	})
}

// memberPort is an endpoint's port that a named port of the Service stands for.
func (r *resolver) memberPort(port *object.EndpointPort) (MemberPort, bool) {
	name, proto, ok := matches(port)
	if !ok || name == "" {
		return MemberPort{}, false
	}
	for i := range r.Service.Spec.Ports {
		p := &r.Service.Spec.Ports[i]
		if p.Name == name && p.Protocol == proto.Name() {
			return MemberPort{Name: name, Protocol: p.Protocol, Port: uint16(*port.Port)}, true
		}
	}
	return MemberPort{}, false
}
