package resolve

import (
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

const (
	reasonNotSupported = "NotSupported"
	// reasonLimitOfNobody: a limit that another one makes idle.
	reasonLimitOfNobody = "LimitNeverReached"
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

func (r *resolver) clientConnections() uint32 {
	const key = object.AnnotationClientConnections
	value, given := r.Service.Metadata.Annotations[key]
	if !given {
		return 0
	}
	n, err := object.ParseConnections(value)
	switch {
	case err != nil:
		r.warn(r.ref, annotation.Field(key), reasonUnknownValue, "%v: connections of a client are not limited", err)
		return 0
	case r.facts.NoConnectionCounts:
		r.warn(r.ref, annotation.Field(key), reasonNotSupported, "has no effect: this kernel does not count connections for nf_tables; it needs CONFIG_NFT_CONNLIMIT and kernel 4.18")
		return 0
	}
	return n
}
