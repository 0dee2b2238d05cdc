package resolve

import (
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// defaultAffinitySeconds is core/v1 DefaultClientIPServiceAffinitySeconds.
const defaultAffinitySeconds = 10800

func (r *resolver) affinity() time.Duration {
	if r.Service.Spec.SessionAffinity != object.AffinityClientIP {
		return 0
	}
	seconds := int32(defaultAffinitySeconds)
	if c := r.Service.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return time.Duration(seconds) * time.Second
}

// affinityOptions reads the annotations about affinity, by family.
func (r *resolver) affinityOptions() map[nft.Family]nft.AffinityOptions {
	annotations := r.Service.Metadata.Annotations
	var s nft.AffinityOptions
	v4, v6 := uint8(32), uint8(128)
	given := false
	for _, key := range []string{object.AnnotationAffinityScope, object.AnnotationAffinityRefresh, object.AnnotationAffinityPrefix} {
		value, is := annotations[key]
		if !is {
			continue
		}
		given = true
		var err error
		switch {
		case r.affinity() == 0:
			r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect: the Service has no session affinity; write spec.sessionAffinity: ClientIP")
		case r.relayed.Asked():
			r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect on ports that are relayed")
		}
		switch {
		case key == object.AnnotationAffinityPrefix:
			if v4, v6, err = object.ParseAffinityPrefix(value); err != nil {
				r.warnValue(key, reasonUnknownValue, "%v: each address is a client", err)
			}
		case key == object.AnnotationAffinityScope && value == object.AffinityScopeService:
			s.WholeService = true
		case key == object.AnnotationAffinityRefresh && value == object.AffinityRefreshPackets:
			s.Refresh = true
		case value != object.AffinityScopePort && value != object.AffinityRefreshConnections:
			r.warnValue(key, reasonUnknownValue, "%q is not known: it is as without the annotation", value)
		}
	}
	if !given || r.affinity() == 0 {
		return nil // mostly
	}
	of := map[nft.Family]nft.AffinityOptions{nft.IPv4: s, nft.IPv6: s}
	for family, bits := range map[nft.Family]uint8{nft.IPv4: v4, nft.IPv6: v6} {
		if int(bits) < 8*family.AddrLen() {
			s.PrefixLen = bits
			of[family] = s
		}
	}
	return of
}
