package oracle

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// annotationRanges has a Service answer on ranges of ports (behaviors 389 to 391).
const annotationRanges = "svcctl.io/port-ranges"

func (f frontend) isRange() bool { return f.last != 0 }

// rangesOf returns the ranges of a Service that the endpoints of a port serve, at each of its addresses but those of the
// host, and at no node port (docs, port ranges).
func (w *World) rangesOf(service *object.Service, port object.ServicePort) []frontend {
	var all []frontend
	for entry := range strings.SplitSeq(service.Metadata.Annotations[annotationRanges], ",") {
		name, numbers, named := strings.Cut(strings.TrimSpace(entry), "=")
		if !named {
			name, numbers = "", name // the only port has no name
		}
		if numbers == "" || name != port.Name {
			continue
		}
		numbers, protocol, given := strings.Cut(numbers, "/")
		of := []string{protocol}
		if !given {
			of = []string{port.Protocol}
		}
		if protocol == "*" || !given && numbers == "*" {
			of = []string{object.ProtocolTCP, object.ProtocolUDP, object.ProtocolSCTP}
		}
		first, last := "1", "65535"
		if numbers != "*" {
			var two bool
			if first, last, two = strings.Cut(numbers, "-"); !two {
				last = first
			}
		}
		for _, vip := range w.vipsOf(service) {
			if w.isHosts(vip.address) {
				continue
			}
			for _, protocol := range of {
				all = append(all, frontend{
					service: service, port: port, place: vip.place, family: familyOf(vip.address), address: vip.address,
					number: portOf(first), last: portOf(last), protocol: Protocol(protocol),
				})
			}
		}
	}
	return all
}

func portOf(text string) uint16 {
	number, _ := strconv.Atoi(text)
	return uint16(number)
}

// grantedRanges returns the indexes of the ranges that are served at an address: of two Services whose ranges have a port in common
// the older one has its range, and the other one nothing (behavior 390).
func grantedRanges(all []frontend, address netip.Addr, protocol Protocol) []int {
	var granted []int
	for i, f := range all {
		if !f.isRange() || f.address != address || f.protocol != protocol {
			continue
		}
		taken := slices.ContainsFunc(granted, func(j int) bool {
			return all[j].service != f.service && all[j].number <= f.last && f.number <= all[j].last
		})
		if !taken {
			granted = append(granted, i)
		}
	}
	return granted
}

// ranges generates the annotation: ranges that begin or end at ports that others have, whole protocols and whole addresses.
func (g *generator) ranges(service *object.Service) {
	if !oneIn(g.Rand, 3) {
		return
	}
	name := pick(g.Rand, service.Spec.Ports).Name
	prefix := ""
	if name != "" || oneIn(g.Rand, 2) {
		prefix = name + "="
	}
	var entries []string
	for _, ranges := range [][]string{{"53-80/TCP", "80/TCP", "*/TCP", "443-9999/TCP"}, {"53-443/UDP", "9999-9999/UDP", "*/UDP"}, {"50-60/SCTP", "*/SCTP"}} {
		if oneIn(g.Rand, 2) {
			entries = append(entries, prefix+pick(g.Rand, ranges))
		}
	}
	if len(entries) == 0 {
		entries = append(entries, prefix+pick(g.Rand, []string{"*", "79-9999", "5353", "100-200/*"}))
	}
	service.Metadata.Annotations[annotationRanges] = strings.Join(entries, ", ")
}
