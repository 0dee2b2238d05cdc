package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// RangeAt reports whether one of a Service's ranges of ports has a port; protocol "": any.
func RangeAt(svc *object.Service, port uint16, protocol string) bool {
	return slices.ContainsFunc(svc.PortRanges(), func(r object.PortRange) bool {
		return r.First <= port && port <= r.Last && (protocol == "" || protocol == r.Protocol)
	})
}

// ranges are the ranges of ports that are asked for. A port of spec is none of them.
func (d *diagnosis) ranges() (list []object.PortRange) {
	q := d.Question
	if d.asksNodePort() || d.Service.Headless() {
		return nil
	}
	for _, r := range d.Service.PortRanges() {
		exact := slices.ContainsFunc(d.Service.Spec.Ports, func(p object.ServicePort) bool {
			return q.Port != 0 && p.Port == int32(q.Port) && p.Protocol == r.Protocol
		})
		if !exact && (q.Port == 0 || r.First <= q.Port && q.Port <= r.Last) && (q.Protocol == "" || strings.EqualFold(q.Protocol, r.Protocol)) {
			list = append(list, r)
		}
	}
	return list
}

// behindRanges are the ports whose endpoints serve the ranges that are asked for.
func (d *diagnosis) behindRanges() (ports []object.ServicePort) {
	for _, r := range d.ranges() {
		for _, p := range d.Service.Spec.Ports {
			if p.Name == r.Name && !slices.ContainsFunc(ports, func(o object.ServicePort) bool { return o.Name == p.Name }) {
				ports = append(ports, p)
			}
		}
	}
	return ports
}

// rangeFrontends are the frontends of the ranges that are asked for, as the state has them.
func (d *diagnosis) rangeFrontends() (list []string) {
	for _, r := range d.ranges() {
		for _, addr := range d.addresses() {
			if !d.Question.Address.IsValid() || addr == d.Question.Address {
				list = append(list, fmt.Sprintf("%s %s-%d", r.Protocol, netip.AddrPortFrom(addr, r.First), r.Last))
			}
		}
	}
	return list
}

// portRanges adds findings about the port ranges that are programmed.
func (d *diagnosis) portRanges() {
	if d.State == nil {
		return
	}
	for _, r := range d.ranges() {
		name := strings.TrimPrefix(fmt.Sprintf("%s/%s-%d-%d", r.Name, strings.ToLower(r.Protocol), r.First, r.Last), "/")
		at := slices.DeleteFunc(slices.Clone(d.State.Ports), func(s wire.PortState) bool {
			return s.Name != name || s.Protocol != r.Protocol || !d.wantsFamily(s.Family) || len(s.Frontends) == 0
		})
		for _, s := range at {
			if len(s.Endpoints) == 0 {
				d.add(Bad, d.makeReady(), "ports %d-%d/%s (%s) have no endpoint: clients are refused", r.First, r.Last, r.Protocol, s.Family)
				continue
			}
			d.good("ports %d-%d/%s (%s) go to the same port of %s, picked by %s%s", r.First, r.Last, r.Protocol, s.Family, count(len(s.Endpoints), "endpoint"), s.Balance, weightsText(s))
			d.details(d.chosen(s)...)
		}
	}
}
