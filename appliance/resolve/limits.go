package resolve

import (
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

const (
	reasonNotSupported = "NotSupported"
	// reasonLimitOfNobody: a limit that another one makes idle.
	reasonLimitOfNobody = "LimitNeverReached"
	// reasonFull: an endpoint that has as many open connections as it may.
	reasonFull = "EndpointFull"
)

// readLimits reads the annotations that limit connections, for each family.
func (r *resolver) readLimits() map[nft.Family]nft.Limits {
	l := r.readLimitsOfAll()
	limits := map[nft.Family]nft.Limits{}
	for _, f := range nft.Families {
		limits[f] = l
	}
	for key, bits := range map[string]func(*nft.Limits) *uint8{
		object.AnnotationClientRateLimit:   func(l *nft.Limits) *uint8 { return &l.ClientRatePrefix },
		object.AnnotationClientConnections: func(l *nft.Limits) *uint8 { return &l.ClientConnectionsPrefix },
	} {
		_, v4, v6, err := object.CutPrefix(r.Service.Metadata.Annotations[key])
		if err != nil || key == object.AnnotationClientRateLimit && l.ClientRate.Count == 0 || key == object.AnnotationClientConnections && l.ClientConnections == 0 {
			continue
		}
		for _, f := range nft.Families {
			of := limits[f]
			if n := map[nft.Family]uint8{nft.IPv4: v4 % 32, nft.IPv6: v6 % 128}[f]; n > 0 {
				*bits(&of) = n
			}
			limits[f] = of
		}
	}
	return limits
}

// limitOf returns the value of an annotation without the prefix that clients have in common.
func limitOf(key, value string) string {
	if key != object.AnnotationClientRateLimit && key != object.AnnotationClientConnections {
		return value
	}
	limit, _, _, err := object.CutPrefix(value)
	if err != nil {
		return value // which is no limit
	}
	return limit
}

func (r *resolver) readLimitsOfAll() (l nft.Limits) {
	l.Rate = r.rate(object.AnnotationRateLimit)
	l.ClientRate = r.rate(object.AnnotationClientRateLimit)
	l.ClientConnections = r.clientConnections()
	if most, own := perMinute(l.Rate), perMinute(l.ClientRate); most > 0 && own > most {
		r.warn(r.ref, annotation.Field(object.AnnotationClientRateLimit), reasonLimitOfNobody,
			"%s for each client is more than the %s that %s lets through for all of them: write a smaller rate", l.ClientRate, l.Rate, object.AnnotationRateLimit)
	}
	return l
}

func perMinute(r nft.Rate) uint64 {
	if r.Per == time.Second {
		return uint64(r.Count) * 60
	}
	return uint64(r.Count)
}

func (r *resolver) rate(key string) (rate nft.Rate) {
	value, given := r.Service.Metadata.Annotations[key]
	if !given {
		return rate
	}
	count, per, err := object.ParseRate(limitOf(key, value))
	switch {
	case err != nil:
		r.warnValue(key, reasonUnknownValue, "%v: new connections are not limited", err)
		return rate
	case r.facts.NoRates:
		r.warn(r.ref, annotation.Field(key), reasonNotSupported, "has no effect: this kernel has no rate limits for nf_tables; it needs CONFIG_NFT_LIMIT")
		return rate
	}
	return nft.Rate{Count: count, Per: per}
}

// readEndpointConnections reads the limit of open connections of an endpoint.
func (r *resolver) readEndpointConnections() {
	r.out.EndpointConnections = r.connections(object.AnnotationEndpointConnections, "connections of an endpoint are not limited")
	if r.out.EndpointConnections > 0 && r.relayed.Asked() {
		r.warn(r.ref, annotation.Field(object.AnnotationEndpointConnections), reasonNoEffect, "%s has no effect on connections that are relayed: they are the relay's own", object.AnnotationEndpointConnections)
	}
}

// leaveOutFull takes new connections from endpoints that have as many open ones as the Service allows. Those
// that are open go on.
func (r *resolver) leaveOutFull(endpoints map[portKey][]endpoint) {
	limit := r.out.EndpointConnections
	if limit == 0 || r.facts.Full == nil {
		return
	}
	ranged := len(r.Service.PortRanges()) > 0
	var full []netip.Addr
	for i := range r.Service.Spec.Ports {
		port := &r.Service.Spec.Ports[i]
		for _, family := range nft.Families {
			proto, _ := nft.ProtocolNamed(port.Protocol)
			list := endpoints[portKey{port.Name, proto, family}]
			name := Port{Service: r.ref.Key(), Name: port.Name, Protocol: port.Protocol, Family: family}
			at := r.frontendAddrs(family, port)
			uncounted := map[netip.AddrPort]bool{}
			for i := range list {
				e := &list[i]
				counted := e.addr
				if ranged { // whatever the port, and the protocol
					counted = netip.AddrPortFrom(e.addr.Addr(), 0)
				}
				switch is, known := r.facts.Full(name, at, counted); {
				case !is || e.weight == 0 || e.state < draining:
				case known:
					e.weight = 0
					full = append(full, e.addr.Addr())
				default:
					uncounted[e.addr] = true
				}
			}
			r.leaveOutUncounted(port, family, list, uncounted)
		}
	}
	for _, addr := range sortedOnce(full) {
		r.warn(r.ref, annotation.Field(object.AnnotationEndpointConnections), reasonFull,
			"endpoint %s is left out: it has as many open connections as %s allows, %d; it gets new ones when a tenth of them are closed", addr, object.AnnotationEndpointConnections, limit)
	}
}

// leaveOutUncounted takes new connections from those of some endpoints, which the kernel was left without, that
// clients would be sent to if they were not full: a policy, topology or priority passes the others over,
// and that says nothing about their connections. Who is left out may bring others in, which are then asked about.
func (r *resolver) leaveOutUncounted(port *object.ServicePort, family nft.Family, list []endpoint, uncounted map[netip.AddrPort]bool) {
	vips := r.vips.of(family)
	for len(uncounted) > 0 && vips.cluster.IsValid() {
		sel := r.selectEndpoints(list)
		used := map[netip.AddrPort]bool{}
		for _, fe := range r.frontends(port, vips, sel) {
			for _, addr := range slices.Concat(sel.pools[fe.Inside.Pool], sel.pools[fe.Outside.Pool]) {
				used[addr] = uncounted[addr]
			}
		}
		found := false
		for i := range list {
			if e := &list[i]; used[e.addr] {
				e.weight, found = 0, true
				delete(uncounted, e.addr)
			}
		}
		if !found {
			return
		}
	}
}

func (r *resolver) clientConnections() uint32 {
	const key = object.AnnotationClientConnections
	n := r.connections(key, "connections of a client are not limited")
	if n > 0 && r.facts.NoConnectionCounts {
		r.warn(r.ref, annotation.Field(key), reasonNotSupported, "has no effect: this kernel does not count connections for nf_tables; it needs CONFIG_NFT_CONNLIMIT and kernel 4.18")
		return 0
	}
	return n
}

// connections reads an annotation with a number of connections; 0: there is none.
func (r *resolver) connections(key, otherwise string) uint32 {
	value, given := r.Service.Metadata.Annotations[key]
	if !given {
		return 0
	}
	n, err := object.ParseConnections(limitOf(key, value))
	if err != nil {
		r.warnValue(key, reasonUnknownValue, "%v: %s", err, otherwise)
		return 0
	}
	return n
}
