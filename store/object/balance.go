package object

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Annotations that control which endpoint a new connection gets. Services and EndpointSlices have no fields for this;
// kube-router, loxilb and Cilium use annotations too.
const (
	// AnnotationBalance is the annotation of a Service that selects the balancing algorithm; for its values see BalanceNames.
	AnnotationBalance = "svcctl.io/balance"
	// AnnotationWeight of an EndpointSlice, Endpoints or Pod is the weight of its endpoints.
	AnnotationWeight = "svcctl.io/weight"
	// AnnotationWeights of a Service lists weights by endpoint address, such as "10.1.2.3=5, 10.1.2.4=0". They take precedence over AnnotationWeight.
	AnnotationWeights = "svcctl.io/weights"
	// AnnotationPriority of an EndpointSlice, Endpoints or Pod is the priority tier of its endpoints, from 0 to MaxPriority. Lower tiers are used
	// first.
	AnnotationPriority = "svcctl.io/priority"
	// AnnotationShare of an EndpointSlice is the relative share of the port's connections that its backend gets, such as "9". The form "BACKEND=9"
	// names the backend, for several EndpointSlices that form one backend.
	AnnotationShare = "svcctl.io/share"

	// These annotations of Cilium for balancing apply where the corresponding annotation of svcctl is absent.
	AnnotationCiliumBalance = "service.cilium.io/lb-algorithm"
	AnnotationCiliumWeight  = "service.cilium.io/weight"
)

// The balancing algorithms, values of AnnotationBalance.
const (
	BalanceRandom          = "random"
	BalanceMaglev          = "maglev"
	BalanceRoundRobin      = "round-robin"
	BalanceSourceHash      = "source-hash"
	BalanceDestinationHash = "destination-hash"
	BalanceLeastConnection = "least-connection"
)

// The largest weight, priority and share. The limit of shares is that of BackendRef.weight in the Gateway API.
const (
	MaxWeight   = 65535
	MaxPriority = 9
	MaxShare    = 1_000_000
)

// BalanceNames returns the algorithms, sorted.
func BalanceNames() []string {
	return []string{BalanceDestinationHash, BalanceLeastConnection, BalanceMaglev, BalanceRandom, BalanceRoundRobin, BalanceSourceHash}
}

// balanceAliases maps the names of IPVS schedulers, and their long forms, to algorithms.
var balanceAliases = map[string]string{
	"rr": BalanceRoundRobin, "wrr": BalanceRoundRobin, "mh": BalanceMaglev, "sh": BalanceSourceHash, "dh": BalanceDestinationHash,
	// All of them even out open connections by weight. That sed counts the one to come, and nq takes idle
	// endpoints first, shows with a handful of connections alone.
	"lc": BalanceLeastConnection, "wlc": BalanceLeastConnection, "sed": BalanceLeastConnection, "nq": BalanceLeastConnection, "twos": BalanceLeastConnection,
}

// ParseBalance returns the algorithm with a name, or with an alias that is the name of an IPVS scheduler.
func ParseBalance(value string) (name string, err error) {
	if errs := checkBalance(root(""), value); len(errs) > 0 {
		return "", fmt.Errorf("%s", errs[0].Body())
	}
	if name, is := balanceAliases[value]; is {
		return name, nil
	}
	return value, nil
}

func checkBalance(p path, value string) Errors {
	if _, alias := balanceAliases[value]; alias || slices.Contains(BalanceNames(), value) {
		return nil
	}
	return notSupported(p, value, append(BalanceNames(), sortedKeys(balanceAliases)...))
}

// ParseWeight reads the value of AnnotationWeight.
func ParseWeight(value string) (uint16, error) {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("must be an integer from 0 to %d", MaxWeight)
	}
	return uint16(n), nil
}

// ParsePriority reads the value of AnnotationPriority.
func ParsePriority(value string) (uint8, error) {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n > MaxPriority {
		return 0, fmt.Errorf("must be an integer from 0 to %d", MaxPriority)
	}
	return uint8(n), nil
}

// BackendShare is a relative share of the connections of a port, and the name of the backend that gets it. If the name is "", the backend is the
// EndpointSlice with the annotation.
type BackendShare struct {
	Backend string
	Share   uint32
}

// ParseShare reads the value of AnnotationShare.
func ParseShare(value string) (BackendShare, error) {
	at := strings.LastIndexByte(value, '=')
	n, err := strconv.ParseUint(value[at+1:], 10, 32)
	if backend := value[:max(at, 0)]; err == nil && n <= MaxShare && at != 0 && !strings.ContainsFunc(backend, unicode.IsSpace) {
		return BackendShare{backend, uint32(n)}, nil
	}
	return BackendShare{}, fmt.Errorf("must be an integer from 0 to %d, or BACKEND=INTEGER", MaxShare)
}

// AddressWeight is the weight of an address.
type AddressWeight struct {
	Addr   netip.Addr
	Weight uint16
}

// An entryError is an error about one entry of AnnotationWeights or AnnotationPortRanges.
type entryError struct{ entry, detail string }

func (e *entryError) Error() string { return fmt.Sprintf("%q: %s", e.entry, e.detail) }

// ParseWeights reads the value of AnnotationWeights.
func ParseWeights(value string) ([]AddressWeight, error) {
	var list []AddressWeight
	seen := map[netip.Addr]bool{}
	for entry := range strings.SplitSeq(value, ",") {
		entry = strings.TrimSpace(entry)
		address, number, two := strings.Cut(entry, "=")
		addr, err := netip.ParseAddr(strings.TrimSpace(address))
		if !two || err != nil || addr.Zone() != "" {
			return nil, &entryError{entry, "must be ADDRESS=WEIGHT, separated by commas"}
		}
		addr = addr.Unmap()
		weight, err := ParseWeight(strings.TrimSpace(number))
		if err != nil {
			return nil, &entryError{entry, "the weight " + err.Error()}
		}
		if seen[addr] {
			return nil, &entryError{entry, "names an address a second time"}
		}
		seen[addr] = true
		list = append(list, AddressWeight{addr, weight})
	}
	return list, nil
}

// checkServiceAnnotations validates the annotations of a Service about balancing, affinity, ranges of ports and limits. Values that are unchanged from
// old are not checked.
func checkServiceAnnotations(s, old *Service) (errs Errors) {
	var before *ObjectMeta
	if old != nil {
		before = &old.Metadata
	}
	check := func(key string, by func(path, string) Errors) {
		errs = append(errs, checkAnnotation(&s.Metadata, before, key, by)...)
	}
	check(AnnotationBalance, checkBalance)
	check(AnnotationAffinityScope, checkOneOf(AffinityScopePort, AffinityScopeService))
	check(AnnotationAffinityRefresh, checkOneOf(AffinityRefreshConnections, AffinityRefreshPackets))
	check(AnnotationAffinityPrefix, checkBy(func(value string) (uint8, error) {
		bits, _, err := ParseAffinityPrefix(value)
		return bits, err
	}))
	check(AnnotationRetryAfter, checkBy(ParseRetryAfter))
	for _, key := range []string{AnnotationAdopt, AnnotationEject, AnnotationFastPath} {
		check(key, checkBy(ParseBool))
	}
	check(AnnotationSlowStart, checkBy(ParseSlowStart))
	check(AnnotationWeights, checkBy(ParseWeights))
	errs = append(errs, checkPortRanges(s, old)...)
	rate := checkBy(func(value string) (uint32, error) {
		n, _, err := ParseRate(value)
		return n, err
	})
	check(AnnotationRateLimit, rate)
	check(AnnotationClientRateLimit, ofClients(rate))
	check(AnnotationClientConnections, ofClients(checkBy(ParseConnections)))
	check(AnnotationEndpointConnections, checkBy(ParseConnections))
	return errs
}

// checkOneOf returns a check that a value is one of several.
func checkOneOf(values ...string) func(path, string) Errors {
	return func(p path, value string) Errors { return oneOf(p, value, values) }
}

// checkEndpointWeights validates the balancing annotations of an object that lists endpoints. old is the previous version, nil for a new object.
func checkEndpointWeights(meta, old *ObjectMeta) Errors {
	weight := checkBy(ParseWeight)
	errs := checkAnnotation(meta, old, AnnotationWeight, weight)
	if _, ours := meta.Annotations[AnnotationWeight]; !ours {
		errs = append(errs, checkAnnotation(meta, old, AnnotationCiliumWeight, weight)...)
	}
	errs = append(errs, checkAnnotation(meta, old, AnnotationShare, checkBy(ParseShare))...)
	return append(errs, checkAnnotation(meta, old, AnnotationPriority, checkBy(ParsePriority))...)
}

// checkBy returns a check that adds the error of parse, if any, with a field path.
func checkBy[T any](parse func(string) (T, error)) func(path, string) Errors {
	return func(p path, value string) Errors {
		switch _, err := parse(value); of := err.(type) {
		case nil:
			return nil
		case *entryError:
			return invalid(p, of.entry, of.detail)
		default:
			return invalid(p, value, of.Error())
		}
	}
}

// checkAnnotation runs a check on an annotation if it exists and differs from the one in the old object.
func checkAnnotation(meta, old *ObjectMeta, key string, check func(path, string) Errors) Errors {
	value, has := meta.Annotations[key]
	if !has {
		return nil
	}
	if old != nil {
		if was, had := old.Annotations[key]; had && was == value {
			return nil
		}
	}
	return check(metaPath.child("annotations").key(key), value)
}

// WeightOf returns the weight that the annotations of an object give to its endpoints, 1 where
// they give none.
func (m *ObjectMeta) WeightOf() uint16 {
	value, has := m.Annotations[AnnotationWeight]
	if !has {
		value, has = m.Annotations[AnnotationCiliumWeight]
	}
	if has {
		if weight, err := ParseWeight(value); err == nil {
			return weight
		}
	}
	return 1 // also of what validation refuses
}

// PriorityOf returns the priority tier of an object's endpoints; 0 if its annotations set none.
func (m *ObjectMeta) PriorityOf() uint8 {
	if value := m.Annotations[AnnotationPriority]; value != "" {
		priority, _ := ParsePriority(value) // refused by validation: 0
		return priority
	}
	return 0
}

// ShareOf returns the share of an EndpointSlice. If the annotation names no backend, Backend is the name of the EndpointSlice. Without a valid
// annotation, the share is 1 and Backend is empty.
func (m *ObjectMeta) ShareOf() BackendShare {
	share, err := ParseShare(m.Annotations[AnnotationShare])
	if err != nil {
		return BackendShare{Share: 1} // absent, or refused by validation
	}
	share.Backend = cmp.Or(share.Backend, m.Name)
	return share
}

// Annotations of a Service with session affinity.
const (
	// AnnotationAffinityScope is the scope of session affinity: each port, or all ports of the Service. spec
	// has no field for it (kubernetes#103000).
	AnnotationAffinityScope = "svcctl.io/affinity-scope"
	// AnnotationAffinityPrefix holds the prefix lengths, for IPv4 and IPv6, of the client networks that share one affinity entry, such as "24,64".
	AnnotationAffinityPrefix = "svcctl.io/affinity-prefix"
	// AnnotationAffinityRefresh selects what restarts the affinity timeout: new connections, or all packets.
	AnnotationAffinityRefresh = "svcctl.io/affinity-refresh"
)

// The values of AnnotationAffinityScope and AnnotationAffinityRefresh; the first of each is the default.
const (
	AffinityScopePort          = "port"
	AffinityScopeService       = "service"
	AffinityRefreshConnections = "connections"
	AffinityRefreshPackets     = "packets"
)

// ParseAffinityPrefix parses the value of AnnotationAffinityPrefix. Without an IPv6 length, ipv6 is 128. If the value is invalid, the lengths are 32
// and 128.
func ParseAffinityPrefix(value string) (ipv4, ipv6 uint8, err error) {
	four, six, both := strings.Cut(value, ",")
	if !both {
		six = "128"
	}
	v4, err4 := strconv.ParseUint(strings.TrimSpace(four), 10, 8)
	v6, err6 := strconv.ParseUint(strings.TrimSpace(six), 10, 8)
	if err4 != nil || err6 != nil || v4 < 1 || v4 > 32 || v6 < 1 || v6 > 128 {
		return 32, 128, fmt.Errorf("must be a prefix length of IPv4 from 1 to 32, or one of each family, as \"24,64\"")
	}
	return uint8(v4), uint8(v6), nil
}

// AnnotationRetryAfter of a Service is the time for which an endpoint may leave a client's SYN unanswered, such as "1s" or "1". After it, the next
// SYN of the client goes to another endpoint.
const AnnotationRetryAfter = "svcctl.io/retry-after"

// These are the bounds of AnnotationRetryAfter. A client retransmits its SYN after a second; a shorter time would give up endpoints that merely have
// a long round-trip time.
const (
	MinRetryAfter = time.Second
	MaxRetryAfter = 30 * time.Second
)

// AnnotationSlowStart of a Service is the time in which the weight of a new endpoint grows to its full value, such as "30s".
const AnnotationSlowStart = "svcctl.io/slow-start"

// These are the bounds of AnnotationSlowStart.
const (
	MinSlowStart = time.Second
	MaxSlowStart = 15 * time.Minute
)

// AnnotationEject of a Service, if "true", takes endpoints without a health check out of balancing while they do not accept connections.
const AnnotationEject = "svcctl.io/eject"

// AnnotationFastPath of a Service, if "true", lets packets of established connections bypass rules and routing (nftables flowtable).
const AnnotationFastPath = "svcctl.io/fast-path"

// AnnotationEgress of a Service selects the source address of connections that its endpoints initiate and that leave the box. The value is "vip", for
// an address of the Service, or a list of addresses of the Service, at most one for each IP family.
const AnnotationEgress = "svcctl.io/egress"

// AnnotationAdopt of a Service, if "true", keeps TCP connections to its load balancer IPs and external IPs open when another box takes over.
const AnnotationAdopt = "svcctl.io/adopt-connections"

// ParseBool reads the value of an annotation that is "true" or "false".
func ParseBool(value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf(`must be "true" or "false"`)
}

// ParseSlowStart reads the value of AnnotationSlowStart.
func ParseSlowStart(value string) (time.Duration, error) {
	d, err := ParseSeconds(value)
	if err != nil || d < MinSlowStart || d > MaxSlowStart {
		return 0, fmt.Errorf("must be a time from 1s to 15m, as \"30s\"")
	}
	return d, nil
}

// ParseRetryAfter reads the value of AnnotationRetryAfter.
func ParseRetryAfter(value string) (time.Duration, error) {
	d, err := ParseSeconds(value)
	if err != nil || d < MinRetryAfter || d > MaxRetryAfter {
		return 0, fmt.Errorf("must be a time from %s to %s, as \"2s\"", MinRetryAfter, MaxRetryAfter)
	}
	return d, nil
}

// ParseSeconds parses a duration in an annotation, such as "5s", or "5" for a number of seconds.
func ParseSeconds(value string) (time.Duration, error) {
	text := strings.TrimSpace(value)
	if _, err := strconv.ParseUint(text, 10, 32); err == nil {
		text += "s"
	}
	return time.ParseDuration(text)
}

// Annotations of a Service that limit its connections.
const (
	// AnnotationRateLimit bounds the new connections of each port of the Service: "100/s", "600/m".
	AnnotationRateLimit = "svcctl.io/rate-limit"
	// AnnotationClientRateLimit limits the rate of new connections of each client to each port of the Service. Its values are like those of
	// AnnotationRateLimit.
	AnnotationClientRateLimit = "svcctl.io/client-rate-limit"
	// AnnotationClientConnections bounds the open connections of each client: 1 to 65535.
	AnnotationClientConnections = "svcctl.io/client-connections"
	// AnnotationEndpointConnections bounds the open connections of each endpoint: 1 to 65535.
	AnnotationEndpointConnections = "svcctl.io/endpoint-connections"
)

// The largest values in the annotations of limits.
const (
	MaxRate        = 1_000_000
	MaxConnections = 65535
)

// ParseRate parses a rate such as "100/s" or "600/m". count is the number of connections in the time per.
func ParseRate(value string) (count uint32, per time.Duration, err error) {
	number, unit, _ := strings.Cut(strings.TrimSpace(value), "/")
	per = map[string]time.Duration{"s": time.Second, "m": time.Minute}[unit]
	n, failed := strconv.ParseUint(number, 10, 32)
	if failed != nil || per == 0 || n == 0 || n > MaxRate {
		return 0, 0, fmt.Errorf("must be a rate from 1/m to %d/s, as \"100/s\" or \"600/m\"", MaxRate)
	}
	return uint32(n), per, nil
}

// ParseConnections reads a number of connections.
func ParseConnections(value string) (uint32, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
	if err != nil || n == 0 || n > MaxConnections {
		return 0, fmt.Errorf("must be an integer from 1 to %d", MaxConnections)
	}
	return uint32(n), nil
}

// CutPrefix splits the value of a limit for clients into the limit and the prefix lengths that follow it. "600/m per 32,64" counts all clients in an
// IPv4 prefix of length 32, or in an IPv6 prefix of length 64, as one. If the value has no prefix lengths, CutPrefix returns 32 and 128, so that each
// address is a client.
func CutPrefix(value string) (limit string, ipv4, ipv6 uint8, err error) {
	limit, lengths, given := strings.Cut(value, " per ")
	if !given {
		return value, 32, 128, nil
	}
	if ipv4, ipv6, err = ParseAffinityPrefix(lengths); err != nil {
		return limit, ipv4, ipv6, fmt.Errorf("what stands behind \"per\" %w", err)
	}
	return limit, ipv4, ipv6, nil
}

// ofClients returns a check for "LIMIT per BITS,BITS" that runs another check on LIMIT.
func ofClients(check func(path, string) Errors) func(path, string) Errors {
	return func(p path, value string) Errors {
		limit, _, _, err := CutPrefix(value)
		if err != nil {
			return invalid(p, value, err.Error())
		}
		return check(p, limit)
	}
}
