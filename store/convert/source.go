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

// An Imported has the objects that a source describes.
type Imported struct {
	Virtuals []*Virtual
	// Kept are objects that are taken over as they are.
	Kept []*Kept
	// Settings are command lines of svcctl with the flags for settings of the source.
	Settings []string
	// Losses has the losses that belong to no virtual service, in the order of the source.
	Losses []Loss
	// What names what the source describes, as "virtual server"; Described counts those, and Done those that are imported.
	What            string
	Described, Done int
}

// Summary is the line with how many of what the source describes are imported, and how many are left to the reader.
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

// An Error is a place of a source that is not understood.
type Error struct {
	Line int // from 1
	Text string
	// Name is the host name for which Options.Names has no address; "": it is another error.
	Name string
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// A Source is a reader of a configuration. The error joins all Errors; nothing is imported then.
type Source func(text string, options Options) (*Imported, error)

// Options say what a source does not.
type Options struct {
	// Namespace is the namespace of the objects; empty: it is left out.
	Namespace string
	// Addresses stand for "all addresses of the box" in a source that listens at them.
	Addresses []netip.Addr
	// Names has the addresses of host names; a name that is not among them is an error.
	Names map[string][]netip.Addr
	// KeepClusterIPs keeps the cluster IPs of Services of a cluster.
	KeepClusterIPs bool
}

// Sources are the readers by name.
func Sources() map[string]Source {
	return map[string]Source{"keepalived": Keepalived, "ipvs": IPVS, "haproxy": HAProxy, "nftlb": NFTLB, "cluster": Cluster, "metallb": Cluster}
}

// YAML writes the manifests, with a comment for each Loss.
func (m *Imported) YAML() (string, error) {
	var b strings.Builder
	for _, loss := range m.Losses {
		b.WriteString(comment(loss.String()))
	}
	for _, line := range m.Settings {
		b.WriteString("# settings: " + printable(line) + "\n")
	}
	for _, v := range m.Virtuals {
		text, err := v.YAML()
		if err != nil {
			return "", err
		}
		if b.Len() > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(text)
	}
	for _, k := range m.Kept {
		text, err := k.YAML()
		if err != nil {
			return "", err
		}
		if b.Len() > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// AllLosses returns all losses, in the order of the source's lines.
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

// reading is the state that all sources share while they read.
type reading struct {
	out     Imported
	options Options
	errs    []error
	names   map[string]int
}

func (r *reading) fail(line int, format string, args ...any) {
	r.errs = append(r.errs, &Error{Line: line, Text: fmt.Sprintf(format, args...)})
}

// lose adds a loss to a virtual service, or to the head of the output when v is nil.
func (r *reading) lose(v *Virtual, line int, format string, args ...any) {
	loss := Loss{line, fmt.Sprintf(format, args...)}
	if v == nil {
		r.out.Losses = append(r.out.Losses, loss)
	} else if !slices.Contains(v.Losses, loss) { // defaults hold for several servers
		v.Losses = append(v.Losses, loss)
	}
}

// natural reads a number from 0 that follows a keyword.
func (r *reading) natural(line int, keyword, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		r.fail(line, "%s %q is no number", keyword, text)
	}
	return n
}

// addOnce appends the values that a list does not have.
func addOnce[T comparable](list []T, values ...T) []T {
	for _, v := range values {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// described counts a virtual server of the source; imported is set when it has become a Service.
func (r *reading) described(imported bool) {
	r.out.What = "virtual server"
	if r.out.Described++; imported {
		r.out.Done++
	}
}

// limit bounds the open connections of each server, as the first one that has a bound. The source's text names it.
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

// rate bounds the new connections a second of each port.
func (r *reading) rate(v *Virtual, line int, text string, n uint64) {
	const most = 1_000_000 // svcctl.io/rate-limit
	if n == 0 {
		return // unbounded
	}
	v.Annotations[annotationRateLimit] = strconv.FormatUint(min(n, most), 10) + "/s"
	r.lose(v, line, "%s is "+annotationRateLimit+" %s: what is above it gets no answer and tries again; it does not wait in a queue", text, v.Annotations[annotationRateLimit])
}

// result returns what was read, or all errors.
func (r *reading) result() (*Imported, error) {
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return &r.out, nil
}

// name makes a name of a Service (RFC 1035 label) of a text, another one each time.
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

// add takes a finished virtual service.
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

func (v *Virtual) addressOf(six bool) netip.Addr {
	for _, addr := range v.ExternalIPs {
		if addr.Is6() == six {
			return addr
		}
	}
	return netip.Addr{}
}

// schedulers are the schedulers of IPVS that have a counterpart.
var schedulers = map[string]string{
	"rr": object.BalanceRoundRobin, "wrr": object.BalanceRoundRobin,
	"sh": object.BalanceSourceHash, "mh": object.BalanceMaglev, "dh": object.BalanceDestinationHash,
	"lc": object.BalanceLeastConnection, "wlc": object.BalanceLeastConnection, "sed": object.BalanceLeastConnection, "nq": object.BalanceLeastConnection,
}

// balance sets the algorithm by the name of the scheduler; without a counterpart it adds a loss.
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

// hashPort has the hash of a client include its port, if a line asks for that: Maglev hashes both.
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

// granularity sets how much of a client's address counts: a mask of IPv4, or a prefix length of IPv6.
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

// affinity sets how long a client keeps its server, in seconds.
func (r *reading) affinity(v *Virtual, line int, seconds int64) {
	const most = 86400 // spec.sessionAffinityConfig.clientIP.timeoutSeconds
	if seconds > most {
		r.lose(v, line, "clients keep their server for %d s at most, not for %d s", most, seconds)
		seconds = most
	}
	v.AffinitySeconds = int32(seconds)
}

// The annotations of a check, behind svcctl.io/health-check; "" is the CHECK.
type check map[string]string

const annotationCheck = "svcctl.io/health-check"

// A checked is a server with how it is checked; nil: not at all.
type checked struct {
	server Server
	line   int
	check  check
}

// check sets how the servers are checked: as the first one that is. Others are losses.
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

// bounded sets a time of a check between its bounds; another time is a loss.
func (r *reading) bounded(v *Virtual, c check, line int, key string, is, least, most time.Duration) {
	to := max(least, min(most, is))
	if to != is {
		r.lose(v, line, "the %s of checks is %s to %s: it is %s, not %s", key, short(least), short(most), short(to), short(is))
	}
	c[key] = short(to)
}

// times sets how many answers in a row count, 1 to 10; another number is a loss.
func (r *reading) times(v *Virtual, c check, line int, key string, n int64) {
	to := max(1, min(10, n))
	if to != n {
		r.lose(v, line, "the %s is 1 to 10: it is %d, not %d", key, to, n)
	}
	c[key] = strconv.FormatInt(to, 10)
}

// The bounds of svcctl.io/health-check-interval and -timeout.
const (
	leastInterval, mostInterval = 200 * time.Millisecond, time.Hour
	leastTimeout, mostTimeout   = 50 * time.Millisecond, time.Minute
	defaultTimeout              = 2 * time.Second
)

// short is a duration without parts that are zero: 1m, not 1m0s.
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
