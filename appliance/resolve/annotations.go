package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Reasons of Problems about annotations.
const (
	reasonNotInternal      = "NotInternal"
	reasonTLSNotTerminated = "TLSNotTerminated"
	reasonUnreadableAccess = "UnreadableAccess"
)

// asks holds the settings from the annotations of a Service. It has more than 15 fields: one for each setting.
type asks struct {
	internal    annotation.Internal
	prefersZone bool
	// sources are the source ranges, from the field or from annotations. If nil, all clients may connect.
	sources []string
	relayed annotation.Relay
	// balanceNamed is set if an annotation of the Service specifies the algorithm, so that it is not the default.
	balanceNamed bool
	// unkeyed and encrypted have an element for each port. unkeyed is true if the port lacks a certificate or a CA. encrypted is true if the port is
	// not served because its relay, HTTP or TLS settings cannot be applied.
	unkeyed, encrypted []bool
	// wrong holds the fields with a value that is invalid for every Service, see isWrong.
	wrong map[string]bool

	idle      time.Duration
	options   map[nft.Family]nft.AffinityOptions
	algorithm nft.Balance
	limits    map[nft.Family]nft.Limits
	ranges    []object.PortRange
	adopted   bool
	egress    egress
	slow      string // reason for messages why connections bypass the fast path; "" if they use it
}

// readAnnotations reads annotations into r.asks, and reports problems with them.
func (r *resolver) readAnnotations() {
	svc := r.Service
	var bad []annotation.Bad
	r.internal = annotation.InternalOf(svc)
	r.prefersZone, bad = annotation.PrefersZone(svc)
	r.relayed = annotation.RelayOf(svc)
	r.report(slices.Concat(r.internal.Bad, bad, r.relayed.Bad, annotation.Values(svc))...)
	r.readLogging()
	if svc.Spec.Type != object.TypeLoadBalancer {
		return
	}
	ranges := svc.Spec.LoadBalancerSourceRanges
	if len(ranges) == 0 {
		var key string
		ranges, key = annotation.SourceRanges(svc.Metadata.Annotations)
		for _, text := range ranges {
			if _, err := netip.ParsePrefix(strings.TrimSpace(text)); err != nil {
				r.warnValue(key, ReasonInvalidAnnotation, "%q is no prefix and lets no client in; write it as 192.0.2.0/24", strings.TrimSpace(text))
			}
		}
	}
	if len(ranges) == 0 {
		ranges = r.internal.Sources
	}
	switch key := annotation.UnreadableAccess(svc); {
	case key == "":
	case len(ranges) > 0:
		r.warn(r.ref, annotation.Field(key), reasonUnreadableAccess, "it names a list of clients that svcctl cannot read: the source ranges of the Service hold instead")
	default:
		r.refuse(annotation.Field(key), reasonUnreadableAccess,
			"it names a list of clients that svcctl cannot read, so load balancer IPs let no client in: write the prefixes in spec.loadBalancerSourceRanges")
		ranges = []string{}
	}
	r.sources = ranges
}

// report adds a warning for each bad value of an annotation in list.
func (r *resolver) report(list ...annotation.Bad) {
	for _, b := range list {
		if b.Idle {
			r.warnNoEffect(b.Key, "%s", b.Text)
			continue
		}
		r.warnValue(b.Key, ReasonInvalidAnnotation, "%s", b.Text)
	}
}

// warnValue adds a warning about an invalid value of the annotation key.
func (r *resolver) warnValue(key, reason, format string, args ...any) {
	r.isWrong(annotation.Field(key))
	r.warn(r.ref, annotation.Field(key), reason, format, args...)
}

// parsed parses the value of the annotation key. ok is false if there is none or, after a warning with the consequence otherwise, if it is invalid.
func parsed[T any](r *resolver, key string, parse func(string) (T, error), otherwise string) (value T, ok bool) {
	text, given := r.Service.Metadata.Annotations[key]
	if !given {
		return value, false
	}
	value, err := parse(text)
	if err != nil {
		r.warn(r.ref, annotation.Field(key), reasonUnknownValue, "%v: %s", err, otherwise)
		return *new(T), false
	}
	return value, true
}

// warnNoEffect adds a warning that the value of the annotation key is valid but has no effect on this Service.
func (r *resolver) warnNoEffect(key, format string, args ...any) {
	r.warn(r.ref, annotation.Field(key), reasonNoEffect, format, args...)
}

// refuseValue adds an error about an invalid value of the annotation key, because of which the Service does not work as specified.
func (r *resolver) refuseValue(key, reason, format string, args ...any) {
	r.isWrong(annotation.Field(key))
	r.refuse(annotation.Field(key), reason, format, args...)
}

func (r *resolver) isWrong(field string) {
	if r.wrong == nil {
		r.wrong = map[string]bool{}
	}
	r.wrong[field] = true
}

// mayBeInternal reports whether the Service may be served at an address: no annotation asks for an internal load balancer, or the address is in an
// internal pool. Otherwise it adds an error to the problems.
func (r *resolver) mayBeInternal(field string, a netip.Addr) bool {
	if r.internal.Key == "" || r.facts.isInternal(a) {
		return true
	}
	r.refuse(field, reasonNotInternal, "%s is not served: the annotation %s asks for an internal load balancer, and the address lies in no internal pool; "+
		"name that pool with --load-balancer-internal-pool, or leave the annotation out", a, r.internal.Key)
	return false
}

// isInternal reports whether an address lies in a pool of internal addresses (--load-balancer-internal-pool).
func (f *Facts) isInternal(a netip.Addr) bool {
	return slices.ContainsFunc(f.InternalPools, func(p nft.Range) bool { return p.Contains(a) })
}

// asksTLS reports whether the port with the index i must not be served, because its annotations specify TLS that cannot be terminated, and without
// TLS the port would be passed through in clear text. If asksTLS returns true, it has added an error to the problems.
func (r *resolver) asksTLS(i int) bool {
	port := &r.Service.Spec.Ports[i]
	key, why := annotation.TLSKey(r.Service, port)
	if key == "" || len(r.front(i).Secrets)+len(r.front(i).Services) > 0 || annotation.WithoutTLS(r.Service, port) {
		return false
	}
	field := fmt.Sprintf("spec.ports[%d]", i)
	if why != "" {
		r.refuse(field, reasonTLSNotTerminated, "port %d is not served, rather than passed through in the clear: the annotation %s asks for TLS, and %s; correct it, or write %s",
			port.Port, key, why, annotation.TLSSecret)
		return true
	}
	r.refuse(field, reasonTLSNotTerminated, "port %d is not served: the annotation %s asks for TLS with a certificate that svcctl cannot read, and without it the port would be passed through in the clear; "+
		"put the certificate and its key into a Secret of type kubernetes.io/tls (`kubectl create secret tls`), and name that in %s", port.Port, key, annotation.TLSSecret)
	return true
}

const (
	reasonNotSupported = "NotSupported"
	// reasonLimitOfNobody is the Reason of the problem that a limit can never be reached because of another limit.
	reasonLimitOfNobody = "LimitNeverReached"
	// reasonFull is the Reason of the problem that endpoints have reached the maximum number of open connections.
	reasonFull = "EndpointFull"
)

// readLimits returns the limits on connections that the annotations set, by IP family; nil if they set none.
func (r *resolver) readLimits() map[nft.Family]nft.Limits {
	l := r.readLimitsOfAll()
	if !l.Any() {
		return nil // mostly
	}
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

// limitOf returns the value of the annotation key without its prefix lengths. Only the limits for each client have them: clients of one prefix are
// counted together. A value that cannot be parsed is returned unchanged.
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

// leaveOutFull gives no new connections to endpoints that have reached the maximum number of open connections. Their open connections continue.
func (r *resolver) leaveOutFull(endpoints map[portKey][]endpoint) {
	limit := r.out.EndpointConnections
	if limit == 0 {
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
			limited := Limited{Port: name, Frontends: r.frontendAddrs(family, port)}
			uncounted := map[netip.AddrPort]bool{}
			for i := range list {
				e := &list[i]
				counted := e.addr
				if ranged { // whatever the port, and the protocol
					counted = netip.AddrPortFrom(e.addr.Addr(), 0)
				}
				limited.Endpoints = append(limited.Endpoints, counted)
				switch is := r.Observed.Full[name][counted]; {
				case !is.Full || e.weight == 0 || e.state < draining:
				case is.Counted:
					e.weight = 0
					full = append(full, e.addr.Addr())
				default:
					uncounted[e.addr] = true
				}
			}
			if r.Observed.Full[name] == nil && len(list) > 0 {
				r.out.Demand.Limited = append(r.out.Demand.Limited, limited)
			}
			r.leaveOutUncounted(port, family, list, uncounted)
		}
	}
	for _, addr := range sortedOnce(full) {
		r.warn(r.ref, annotation.Field(object.AnnotationEndpointConnections), reasonFull,
			"endpoint %s is left out: it has as many open connections as %s allows, %d; it gets new ones when a tenth of them are closed", addr, object.AnnotationEndpointConnections, limit)
	}
}

// leaveOutUncounted gives no new connections to the endpoints in uncounted, which may be full: their connections are not counted yet, and the kernel
// served the port without them. It excludes only endpoints that would be selected, not those that a traffic policy, topology or priority passes over.
// Since excluding one endpoint may select others, it repeats this until none of uncounted is selected.
func (r *resolver) leaveOutUncounted(port *object.ServicePort, family nft.Family, list []endpoint, uncounted map[netip.AddrPort]bool) {
	vips := r.vips.of(family)
	for len(uncounted) > 0 && vips.cluster.IsValid() {
		sel := r.selectEndpoints(list)
		used := map[netip.AddrPort]bool{}
		for _, fe := range r.frontends(port, vips, sel) {
			for _, addr := range slices.Concat(sel.pools[fe.Internal.Pool], sel.pools[fe.External.Pool]) {
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

// connections returns the number of connections that the annotation key specifies, 0 if the annotation is missing or invalid. otherwise is a text for
// the warning about an invalid value, and states its consequence.
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

// Drain specifies what happens to connections whose endpoint has been removed. The zero value is the behavior of Kubernetes: TCP connections stay
// open, and the conntrack entries of other protocols are deleted at once.
type Drain struct {
	On bool
	// Timeout is the maximum time for which a connection continues after its endpoint was removed.
	Timeout time.Duration
}

// Annotations that enable draining. AnnotationDrain takes precedence; the others are those of AWS load balancers.
const (
	AnnotationDrain        = "svcctl.io/drain-timeout" // such as "60s", or "60" for seconds
	AnnotationELBDrain     = "service.beta.kubernetes.io/aws-load-balancer-connection-draining-enabled"
	AnnotationELBDrainTime = "service.beta.kubernetes.io/aws-load-balancer-connection-draining-timeout" // in seconds
)

// Bounds and defaults of the drain timeout in annotations.
const (
	maxDrain        = 7 * 24 * time.Hour
	elbDrainTimeout = 300 * time.Second // the default of AWS load balancers
	minELBDrain     = time.Second       // minimum and maximum of AWS load balancers
	maxELBDrain     = 3600 * time.Second
)

// readDrain reads the annotations for draining into r.out.Drain.
func (r *resolver) readDrain() {
	annotations := r.Service.Metadata.Annotations
	if text, given := annotations[AnnotationDrain]; given {
		timeout, err := object.ParseSeconds(text)
		if err != nil || timeout < 0 || timeout > maxDrain {
			r.warnValue(AnnotationDrain, ReasonInvalidAnnotation, `%q is not a time between 0s and %s, so connections are not drained; write it like "60s", or in seconds`, text, maxDrain)
			return
		}
		r.out.Drain = Drain{true, timeout}
		return
	}
	enabled, given := annotations[AnnotationELBDrain]
	text, timed := annotations[AnnotationELBDrainTime]
	timeout := elbDrainTimeout
	if timed {
		var err error
		if timeout, err = object.ParseSeconds(text); err != nil || timeout < minELBDrain || timeout > maxELBDrain {
			r.warnValue(AnnotationELBDrainTime, ReasonInvalidAnnotation, "%q is no number of seconds from 1 to 3600, so connections are not drained: write one, or %s for a longer time", text, AnnotationDrain)
			return
		}
	}
	switch on, err := strconv.ParseBool(strings.TrimSpace(enabled)); {
	case on:
		r.out.Drain = Drain{true, timeout}
	case given && err != nil:
		r.warnValue(AnnotationELBDrain, ReasonInvalidAnnotation, `%q is neither "true" nor "false", so connections are not drained`, enabled)
	case timed && !given:
		r.warnNoEffect(AnnotationELBDrainTime, "has no effect: write %s: \"true\" too, or %s", AnnotationELBDrain, AnnotationDrain)
	}
}

// Annotations for the idle timeout: the time without packets after which a connection ends. AnnotationIdle takes precedence; AnnotationELBIdle is
// that of AWS load balancers.
const (
	AnnotationIdle    = "svcctl.io/idle-timeout"                                               // such as "60s", or "60" for seconds
	AnnotationELBIdle = "service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout" // in seconds, from 1 to 4000
)

const (
	maxIdle    = 7 * 24 * time.Hour
	maxELBIdle = 4000 * time.Second // the maximum of AWS load balancers
)

// idleTimeout returns the idle timeout from the annotations, 0 if the conntrack timeouts of the host apply.
func (r *resolver) idleTimeout() time.Duration {
	annotations := r.Service.Metadata.Annotations
	key, most, unit := AnnotationIdle, maxIdle, "write it like \"60s\", or in seconds"
	text, given := annotations[key]
	if !given {
		key, most, unit = AnnotationELBIdle, maxELBIdle, "write seconds, from 1 to 4000"
		if text, given = annotations[key]; !given {
			return 0
		}
		if r.Service.Spec.Type != object.TypeLoadBalancer {
			return 0
		}
	}
	idle, ok := parseIdle(strings.TrimSpace(text), key == AnnotationIdle)
	switch {
	case !ok || idle > most:
		r.warnValue(key, ReasonInvalidAnnotation,
			"%q is no time from 1s to %s in whole seconds, so connections live by the settings of the host: %s", text, most, unit)
		return 0
	case r.facts.NoTimeouts:
		r.warn(r.ref, annotation.Field(key), "NotSupported",
			"has no effect: this kernel has no timeouts of connection tracking for nf_tables; it needs CONFIG_NF_CONNTRACK_TIMEOUT and kernel 4.19")
		return 0
	}
	if slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolSCTP }) {
		r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect on ports of SCTP")
	}
	return idle
}

// parseIdle parses an idle timeout. text is a number of seconds or, if units is set, a duration with a unit. It returns false unless the timeout is a
// positive number of whole seconds.
func parseIdle(text string, units bool) (time.Duration, bool) {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, seconds > 0
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && units && d >= time.Second && d%time.Second == 0
}

// retryAfter returns the value of svcctl.io/retry-after: the time after which a client's repeated SYN goes to another endpoint if the first got no
// answer. 0 means never.
func (r *resolver) retryAfter(balance nft.Balance) time.Duration {
	field := annotation.Field(object.AnnotationRetryAfter)
	after, ok := parsed(r, object.AnnotationRetryAfter, object.ParseRetryAfter, "clients stay with an endpoint that does not answer")
	switch {
	case !ok:
	case !slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolTCP }):
		r.warn(r.ref, field, reasonNoEffect, "has no effect: the Service has no port of TCP")
		return 0
	case r.relayed.Asked():
		r.warn(r.ref, field, reasonNoEffect, "has no effect on ports that are relayed: %s and %s set when and how often another endpoint is tried", annotation.ConnectTimeout, annotation.ConnectRetries)
	case balance == nft.Maglev || balance == nft.SourceHash || balance == nft.DestinationHash:
		r.warn(r.ref, field, "RetrySame",
			"with %s a client's next SYN gets the same endpoint until a health check has taken that out: write svcctl.io/health-check too", BalanceName(balance))
	case r.affinity() > 0:
		r.warn(r.ref, field, "RetrySame",
			"with session affinity a client that is remembered gets the same endpoint until a health check has taken that out: write svcctl.io/health-check too")
	}
	return after
}

// readLogging reads the annotations for logging the Service's connections.
func (r *resolver) readLogging() {
	asks := annotation.LoggingOf(r.Service)
	r.report(asks.Bad...)
	where := "nowhere, as the box has no --connection-log"
	if r.facts.ConnectionLog != "" {
		where = r.facts.ConnectionLog + " of the box"
	}
	for _, key := range asks.Buckets {
		r.warn(r.ref, annotation.Field(key), reasonNoEffect, "has no effect: nothing is written to a cloud; the log of connections is written to %s", where)
	}
	switch {
	case asks.Key == "":
	case r.facts.ConnectionLog == "":
		r.warn(r.ref, annotation.Field(asks.Key), reasonNoEffect, "no connection is logged: the box has no --connection-log; give it one, as /var/log/svcctl/connections.log")
	default:
		r.out.Logged = true
	}
}
