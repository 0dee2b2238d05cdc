package resolve

import (
	"net/netip"
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

// readLimits reads the annotations that limit connections.
func (r *resolver) readLimits() (l nft.Limits) {
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
	count, per, err := object.ParseRate(value)
	switch {
	case err != nil:
		r.warn(r.ref, annotation.Field(key), reasonUnknownValue, "%v: new connections are not limited", err)
		return rate
	case r.facts.NoRates:
		r.warn(r.ref, annotation.Field(key), reasonNotSupported, "has no effect: this kernel has no rate limits for nf_tables; it needs CONFIG_NFT_LIMIT")
		return rate
	}
	return nft.Rate{Count: count, Per: per}
}

// leaveOutFull takes new connections from endpoints that have as many open ones as the Service allows. Those
// that are open go on.
func (r *resolver) leaveOutFull(endpoints map[portKey][]endpoint) {
	limit := r.connections(object.AnnotationEndpointConnections, "connections of an endpoint are not limited")
	if r.out.EndpointConnections = limit; limit == 0 || r.facts.Full == nil {
		return
	}
	if r.relayed.Asked() {
		r.warn(r.ref, annotation.Field(object.AnnotationEndpointConnections), reasonNoEffect, "%s has no effect on connections that are relayed: they are the relay's own", object.AnnotationEndpointConnections)
	}
	ranged := len(r.Service.PortRanges()) > 0
	var full []netip.Addr
	for _, port := range r.Service.Spec.Ports {
		for _, family := range nft.Families {
			proto, _ := nft.ProtocolNamed(port.Protocol)
			list := endpoints[portKey{port.Name, proto, family}]
			name := Port{Service: r.ref.Key(), Name: port.Name, Protocol: port.Protocol, Family: family}
			at := r.frontendAddrs(family, &port)
			for i := range list {
				e := &list[i]
				counted := e.addr
				if ranged { // whatever the port, and the protocol
					counted = netip.AddrPortFrom(e.addr.Addr(), 0)
				}
				is, known := r.facts.Full(name, at, counted)
				if is && e.weight > 0 && e.state >= draining {
					e.weight = 0
					if known {
						full = append(full, e.addr.Addr())
					}
				}
			}
		}
	}
	for _, addr := range sortedOnce(full) {
		r.warn(r.ref, annotation.Field(object.AnnotationEndpointConnections), reasonFull,
			"endpoint %s is left out: it has as many open connections as %s allows, %d; it gets new ones when a tenth of them are closed", addr, object.AnnotationEndpointConnections, limit)
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
	n, err := object.ParseConnections(value)
	if err != nil {
		r.warn(r.ref, annotation.Field(key), reasonUnknownValue, "%v: %s", err, otherwise)
		return 0
	}
	return n
}
