package oracle

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// The annotations about health checks (behaviors 160 to 166).
const (
	annotationCheck      = "svcctl.io/health-check"
	annotationMinHealthy = "svcctl.io/health-check-min-healthy"
	annotationOut        = "svcctl.io/out"
)

// judge takes from the backends of a port what an annotation takes out and what does not answer
// the check of the Service.
func (w *World) judge(f frontend, all []backend) []backend {
	out := strings.Split(f.service.Metadata.Annotations[annotationOut], ",")
	for i := range all {
		b := &all[i]
		if slices.Contains(out, b.address.Addr().String()) {
			b.ready, b.draining = false, false // behavior 166
		}
		b.said = b.ready
	}
	judged := slices.Clone(all)
	asked := false
	for i := range judged {
		b := &judged[i]
		if at, is := checkedAt(f, b.address); is && (b.ready || b.draining) {
			asked = true
			if w.Down[at] {
				b.ready, b.draining = false, false // behavior 160
			}
		}
	}
	if !asked {
		return all
	}
	// Endpoints that get no new connection anyhow neither replace one that is down nor count as one
	// that is ready (docs, health: Up and down).
	gets := func(b backend) bool { return b.weight > 0 }
	offered := len(keep(keep(all, gets), func(b backend) bool { return b.ready }))
	up := len(keep(keep(judged, gets), func(b backend) bool { return b.ready }))
	left := len(keep(keep(judged, gets), func(b backend) bool { return b.ready || b.draining }))
	minHealthy, _ := strconv.Atoi(strings.TrimSuffix(f.service.Metadata.Annotations[annotationMinHealthy], "%"))
	if left == 0 || up*100 < minHealthy*offered {
		return all // behavior 161: as if they were not checked
	}
	return judged
}

// checkedAt returns where a backend is asked, and whether it is.
func checkedAt(f frontend, address netip.AddrPort) (netip.AddrPort, bool) {
	_, port, given := strings.Cut(f.service.Metadata.Annotations[annotationCheck], ":")
	switch number, _ := strconv.Atoi(port); {
	case given:
		// "With PORT the check is about the server, and holds for all ports of the Service."
		return netip.AddrPortFrom(address.Addr(), uint16(number)), true
	case f.service.Metadata.Annotations[annotationCheck] == "tcp":
		return address, f.port.Protocol == object.ProtocolTCP
	}
	return netip.AddrPort{}, false
}

// checks generates the annotations about health checks.
func (g *generator) checks(service *object.Service) {
	all := service.Metadata.Annotations
	if oneIn(g.Rand, 12) {
		all[annotationOut] = pick(g.Rand, endpointIPs[g.IntN(len(families))]).String()
	}
	if !oneIn(g.Rand, 3) {
		return
	}
	all[annotationCheck] = pick(g.Rand, []string{"tcp", "tcp:8080", "http:80"})
	if oneIn(g.Rand, 4) {
		all[annotationMinHealthy] = pick(g.Rand, []string{"30%", "50", "100%"})
	}
}

// servers generates which of them do not answer checks.
func (g *generator) servers() {
	g.world.Down = map[netip.AddrPort]bool{}
	of := pick(g.Rand, []int{2, 3, 5})
	for _, addr := range slices.Concat(endpointIPs...) {
		for _, port := range targetPorts {
			if oneIn(g.Rand, of) {
				g.world.Down[netip.AddrPortFrom(addr, uint16(port))] = true
			}
		}
	}
}
