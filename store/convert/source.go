package convert

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// An Imported is the result of a Source: the objects and settings that it describes.
type Imported struct {
	Virtuals []*Virtual
	// Kept are the objects that are imported without conversion.
	Kept []*Kept
	// Settings are svcctl command lines with flags that correspond to settings of the source.
	Settings []string
	// Losses has the losses that belong to no virtual service, in the order of the source.
	Losses []Loss
	// What names the items of the source, such as "virtual server". Described counts all items, Done the imported ones.
	What            string
	Described, Done int
}

// Summary returns a line as "3 of 4 virtual servers imported; 1 needs you".
func (m *Imported) Summary() string {
	text := fmt.Sprintf("%d of %d %ss imported", m.Done, m.Described, m.What)
	if m.Described == 1 {
		text = strings.Replace(text, m.What+"s", m.What, 1)
	}
	switch left := m.Described - m.Done; {
	case left == 1:
		text += "; 1 needs you"
	case left > 1:
		text += fmt.Sprintf("; %d need you", left)
	}
	return text
}

// An Error is an error in the source, with its line.
type Error struct {
	Line int // line number in the source, from 1
	Text string
	// Name is the host name that Options.Names has no address for; empty for other errors.
	Name string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// A Source converts the configuration of another load balancer, or the objects of a cluster. Its error joins all values of type Error; if there is an
// error, nothing is imported.
type Source func(text string, options Options) (*Imported, error)

// Options supply what the text of a source does not have.
type Options struct {
	// Namespace is the namespace of the created objects; if empty, the objects have none.
	Namespace string
	// Addresses stand for "all addresses of the box" in a source that listens at them.
	Addresses []netip.Addr
	// Names maps host names to their addresses. A host name in the source that is missing here is an error.
	Names map[string][]netip.Addr
	// KeepClusterIPs keeps the cluster IPs of Services of a cluster.
	KeepClusterIPs bool
}

// Sources returns the Source functions by the name of their format.
func Sources() map[string]Source {
	return map[string]Source{"keepalived": Keepalived, "ipvs": IPVS, "haproxy": HAProxy, "nftlb": NFTLB, "cluster": Cluster, "metallb": Cluster}
}

// YAML returns the manifests as YAML, with each Loss as a comment.
func (m *Imported) YAML() (string, error) {
	var b strings.Builder
	for _, loss := range m.Losses {
		b.WriteString(comment(loss.String()))
	}
	for _, line := range m.Settings {
		b.WriteString("# settings: " + printable(line) + "\n")
	}
	var errs []error
	add := func(text string, err error) {
		if errs = append(errs, err); b.Len() > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(text)
	}
	for _, v := range m.Virtuals {
		add(v.YAML())
	}
	for _, k := range m.Kept {
		add(k.YAML())
	}
	return b.String(), errors.Join(errs...)
}

// AllLosses returns all losses, ordered by their lines in the source.
func (m *Imported) AllLosses() []Loss {
	all := slices.Clone(m.Losses)
	for _, v := range m.Virtuals {
		all = append(all, v.Losses...)
	}
	for _, k := range m.Kept {
		all = append(all, k.Losses...)
	}
	slices.SortStableFunc(all, func(a, b Loss) int { return a.Line - b.Line })
	return slices.Compact(all) // services of one group lose the same
}

// reading is the state that all Source functions share: the result, the options, the errors and the names that are in use.
type reading struct {
	out     Imported
	options Options
	errs    []error
	names   map[string]int
}

func (r *reading) fail(line int, format string, args ...any) {
	r.errs = append(r.errs, &Error{Line: line, Text: fmt.Sprintf(format, args...)})
}

// lose records a loss of a virtual service, or of the whole source if v is nil. line is the line of the lost feature in the source.
func (r *reading) lose(v *Virtual, line int, format string, args ...any) {
	loss := Loss{line, fmt.Sprintf(format, args...)}
	if v == nil {
		r.out.Losses = append(r.out.Losses, loss)
	} else if !slices.Contains(v.Losses, loss) { // defaults hold for several servers
		v.Losses = append(v.Losses, loss)
	}
}

// natural parses a non-negative 32-bit number behind a keyword. It records an error for any other text.
func (r *reading) natural(line int, keyword, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		r.fail(line, "%s %q is no number", keyword, text)
	}
	return n
}

// addOnce appends those values to a list that it does not contain yet.
func addOnce[T comparable](list []T, values ...T) []T {
	for _, v := range values {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// described counts a virtual server of the source for Imported.Described, and for Imported.Done if it was imported.
func (r *reading) described(imported bool) {
	r.out.What = "virtual server"
	if r.out.Described++; imported {
		r.out.Done++
	}
}

// limit sets svcctl.io/endpoint-connections, the bound of open connections of each server, from the first server that has one. text is the
// statement in the source, for the loss.
func (r *reading) limit(v *Virtual, line int, server netip.Addr, text string, n uint64) {
	const most = 65535 // svcctl.io/endpoint-connections
	switch {
	case n == 0:
		return // unbounded, in all sources
	case v.Annotations[object.AnnotationProxyMode] != "":
		r.lose(v, line, "%s of %s has no counterpart at a relayed port: its connections are not bounded", text, server)
		return
	}
	value := strconv.FormatUint(min(n, most), 10)
	switch has := v.Annotations[annotationEndpointConnections]; {
	case has == "":
		v.Annotations[annotationEndpointConnections] = value
		r.lose(v, line, "%s of %s is "+annotationEndpointConnections+" %s, for each server: a connection beyond it goes to another server, and is refused when all are full", text, server, value)
	case has != value:
		r.lose(v, line, "%s of %s is left out: all servers of a Service have one bound, %s", text, server, has)
	}
}

const (
	annotationEndpointConnections = "svcctl.io/endpoint-connections"
	annotationRateLimit           = "svcctl.io/rate-limit"
)

// rate sets svcctl.io/rate-limit to n new connections a second for each port.
func (r *reading) rate(v *Virtual, line int, text string, n uint64) {
	const most = 1_000_000 // svcctl.io/rate-limit
	if n == 0 {
		return // unbounded
	}
	v.Annotations[annotationRateLimit] = strconv.FormatUint(min(n, most), 10) + "/s"
	r.lose(v, line, "%s is "+annotationRateLimit+" %s: what is above it gets no answer and tries again; it does not wait in a queue", text, v.Annotations[annotationRateLimit])
}

// result returns all that was imported, or all errors.
func (r *reading) result() (*Imported, error) {
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return &r.out, nil
}

// name derives a unique Service name (an RFC 1035 label) from a text.
func (r *reading) name(text string) string {
	const longest = 50 // leaves room for suffixes in the 63 of a label
	text = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '-'
	}, strings.ToLower(text))
	text = strings.Trim(text[:min(len(text), longest)], "-")
	if text == "" || text[0] < 'a' {
		text = strings.TrimRight("v-"+text, "-")
	}
	if r.names == nil {
		r.names = map[string]int{}
	}
	for {
		r.names[text]++
		n := r.names[text]
		if n == 1 {
			return text
		}
		if other := text + "-" + strconv.Itoa(n); r.names[other] == 0 {
			r.names[other]++
			return other
		}
	}
}

// add adds a finished virtual service to the result.
func (r *reading) add(v *Virtual) {
	v.Namespace = r.options.Namespace
	is4, is6 := v.families()
	for _, six := range []bool{false, true} {
		has := slices.ContainsFunc(v.Servers, func(s Server) bool { return s.Addr.Is6() == six })
		switch wanted := six && is6 || !six && is4; {
		case wanted && len(v.Servers) == 0:
			r.lose(v, v.Line, "no server is left: clients are refused")
			is4, is6 = false, false // said once
		case wanted && !has:
			r.lose(v, v.Line, "no server has an address of the family of %s: its clients are refused", v.addressOf(six))
		case has && !wanted:
			r.lose(v, v.Line, "servers of a family in which there is no address to connect to are not used")
		}
	}
	r.out.Virtuals = append(r.out.Virtuals, v)
}

// addressesByPort returns the distinct ports of some frontends, and the distinct addresses at each of them, both in the order of the frontends.
func addressesByPort(frontends []netip.AddrPort) (ports []uint16, addrs map[uint16][]netip.Addr) {
	addrs = map[uint16][]netip.Addr{}
	for _, f := range frontends {
		ports = addOnce(ports, f.Port())
		addrs[f.Port()] = addOnce(addrs[f.Port()], f.Addr())
	}
	return ports, addrs
}

// part returns the n-th of several Services, from 0, that a virtual service becomes. The first one has the losses.
func (v *Virtual) part(n int, name string, ports []Port) *Virtual {
	one := *v
	one.Name, one.Ports, one.Annotations = name, ports, maps.Clone(v.Annotations)
	if n > 0 {
		one.Losses = nil
	}
	return &one
}

func (v *Virtual) addressOf(six bool) netip.Addr {
	for _, addr := range v.ExternalIPs {
		if addr.Is6() == six {
			return addr
		}
	}
	return netip.Addr{}
}

// schedulers maps the schedulers of IPVS to the algorithms of svcctl.io/balance.
var schedulers = map[string]string{
	"rr": object.BalanceRoundRobin, "wrr": object.BalanceRoundRobin,
	"sh": object.BalanceSourceHash, "mh": object.BalanceMaglev, "dh": object.BalanceDestinationHash,
	"lc": object.BalanceLeastConnection, "wlc": object.BalanceLeastConnection, "sed": object.BalanceLeastConnection, "nq": object.BalanceLeastConnection,
}

// balance sets the balancing algorithm from the name of an IPVS scheduler; one without a counterpart is a loss.
func (r *reading) balance(v *Virtual, line int, name string) {
	switch name {
	case "rr", "lc": // ip_vs_rr.c, ip_vs_lc.c
		for i, s := range v.Servers {
			if s.Weight > 1 {
				v.Servers[i].Weight = 1
				r.lose(v, line, "the scheduler %s counts no weights: server %s has the share of the others, as there", name, s.Addr)
			}
		}
	}
	algorithm, known := schedulers[name]
	if !known {
		r.lose(v, line, "the scheduler %s has no counterpart: servers are drawn at random, by weight", name)
		return
	}
	v.Annotations[object.AnnotationBalance] = algorithm
}

// hashPort includes the client's port in the hash that selects a server, if the statement on a line asks for that. Only Maglev can do so; with other
// algorithms a loss is recorded.
func (r *reading) hashPort(v *Virtual, line int) {
	switch algorithm := v.Annotations[object.AnnotationBalance]; {
	case line == 0:
	case algorithm == object.BalanceSourceHash:
		v.Annotations[object.AnnotationBalance] = object.BalanceMaglev
		r.lose(v, line, "a hash of the client's address and port is maglev: the servers of clients are others")
	case algorithm != object.BalanceMaglev:
		r.lose(v, line, "the port of clients has no counterpart in %s and is left out", cmp.Or(algorithm, object.BalanceRandom))
	}
}

// granularity sets the part of a client's address that counts for affinity, from an IPv4 netmask or an IPv6 prefix length.
func (r *reading) granularity(v *Virtual, line int, text string) {
	if bits, err := strconv.ParseUint(text, 10, 8); err == nil && bits >= 1 && bits <= 128 {
		v.Annotations[object.AnnotationAffinityPrefix] = fmt.Sprintf("32,%d", bits)
		return
	}
	if mask, err := netip.ParseAddr(text); err == nil && mask.Is4() {
		for bits := 1; bits <= 32; bits++ {
			if all := netip.AddrFrom4([4]byte{255, 255, 255, 255}); netip.PrefixFrom(all, bits).Masked().Addr() == mask {
				v.Annotations[object.AnnotationAffinityPrefix] = strconv.Itoa(bits)
				return
			}
		}
	}
	r.fail(line, "%q is no mask of IPv4 addresses, as 255.255.255.0, and no prefix length of IPv6", text)
}

// affinity sets how long a client stays with its server, in seconds.
func (r *reading) affinity(v *Virtual, line int, seconds int64) {
	const most = 86400 // spec.sessionAffinityConfig.clientIP.timeoutSeconds
	if seconds > most {
		r.lose(v, line, "clients keep their server for %d s at most, not for %d s", most, seconds)
		seconds = most
	}
	v.AffinitySeconds = int32(seconds)
}

// check holds the annotations of a health check. Its keys lack the prefix svcctl.io/health-check; the key "" has the kind of check.
type check map[string]string

const annotationCheck = "svcctl.io/health-check"

// A checked is a server with its health check; a nil check means that it has none.
type checked struct {
	server Server
	line   int
	check  check
}

// check sets the health check of a Service, from the first server that has one. Servers with a different one, or none, are recorded as
// losses.
func (r *reading) check(v *Virtual, servers []checked) {
	i := slices.IndexFunc(servers, func(s checked) bool { return s.check != nil })
	if i < 0 {
		return
	}
	all := maps.Clone(servers[i].check)
	for _, s := range servers {
		switch {
		case s.server.Priority > 0 && s.check == nil: // a sorry server is checked along
		case s.check == nil:
			r.lose(v, s.line, "server %s is not checked there; here all servers of a Service are: svcctl.io/health-check", s.server.Addr)
		case !maps.Equal(s.check, servers[i].check):
			r.lose(v, s.line, "server %s is checked in another way (%s) than the first one; here all servers of a Service are checked alike", s.server.Addr, s.check[""])
		}
	}
	// A check without a port asks the port of the Service, which has to be of its protocol.
	kind, path, _ := strings.Cut(all[""], "/")
	if v.Ports[0].Protocol != object.ProtocolTCP && kind != "udp" && kind != "icmp" && !strings.Contains(kind, ":") {
		all[""] = fmt.Sprintf("%s:%d", kind, servers[i].server.port(v.Ports[0]))
		if path != "" {
			all[""] += "/" + path
		}
	}
	for key, value := range all {
		if key != "" {
			key = "-" + key
		}
		v.Annotations[annotationCheck+key] = value
	}
}

// bounded sets c[key] to a duration, which it limits to [least, most]. The parameter is holds the duration in the source. If that is out of these
// bounds, a loss is recorded.
func (r *reading) bounded(v *Virtual, c check, line int, key string, is, least, most time.Duration) {
	to := max(least, min(most, is))
	if to != is {
		r.lose(v, line, "the %s of checks is %s to %s: it is %s, not %s", key, short(least), short(most), short(to), short(is))
	}
	c[key] = short(to)
}

// times sets c[key], the number of successive results that change a server's health, to n, limited to the range from 1 to 10. A number outside of
// this range is recorded as a loss.
func (r *reading) times(v *Virtual, c check, line int, key string, n int64) {
	to := max(1, min(10, n))
	if to != n {
		r.lose(v, line, "the %s is 1 to 10: it is %d, not %d", key, to, n)
	}
	c[key] = strconv.FormatInt(to, 10)
}

// These are the bounds of svcctl.io/health-check-interval and svcctl.io/health-check-timeout.
const (
	leastInterval, mostInterval = 200 * time.Millisecond, time.Hour
	leastTimeout, mostTimeout   = 50 * time.Millisecond, time.Minute
	defaultTimeout              = 2 * time.Second
)

// short formats a duration without zero parts: 1m, not 1m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// ParsePort reads a port from 1 to 65535.
func ParsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port: want a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// parsePorts reads FIRST[-LAST].
func parsePorts(text string) (from, to uint16, err error) {
	first, last, isRange := strings.Cut(text, "-")
	from, err = ParsePort(first)
	if to = from; err == nil && isRange {
		to, err = ParsePort(last)
	}
	if err == nil && to < from {
		err = fmt.Errorf("%q ends before it begins", text)
	}
	return from, to, err
}

// parseAddr reads an address without zone.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is no address: write it as 192.0.2.1 or 2001:db8::1; names are not looked up", text)
	}
	addr = addr.Unmap()
	if addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast() {
		return netip.Addr{}, fmt.Errorf("%s cannot be the address of a Service or of a server: it is unspecified, loopback, multicast or link-local", addr)
	}
	return addr, nil
}
