package script

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Host is a machine of the network that scripts run in.
type Host struct {
	Name string
	// Interface is the box's interface by which packets of this host arrive; empty for
	// the box itself.
	Interface string
	// Addresses has one address of each family, IPv4 first.
	Addresses [2]netip.Addr
}

// Interface is a network interface of the box.
type Interface struct {
	Name     string
	Prefixes []netip.Prefix
}

// BoxName is the host that the appliance runs on.
const BoxName = "gw1"

// Interfaces lists the interfaces of the box; netlab.Standard makes them on the wire.
var Interfaces = []Interface{
	{"lo", prefixes("127.0.0.1/8", "::1/128")},
	{"ext0", prefixes("192.0.2.1/24", "2001:db8::1/64")},
	{"alt0", prefixes("192.0.3.1/24", "2001:db8:1::2/64")},
	{"int2", prefixes("10.0.0.1/24", "fd00:10::1/64")},
	{"int0", prefixes("10.180.255.254/16", "fd00:10:180::ffff/64")},
	{"int1", prefixes("10.181.255.254/16", "fd00:10:181::ffff/64")},
}

// Hosts are the machines around the box, and the box.
var Hosts = []Host{
	{BoxName, "", addresses("192.0.2.1", "2001:db8::1")},
	{"IN", "int2", addresses("10.0.0.2", "fd00:10::2")},
	{"EXT", "ext0", addresses("203.0.113.2", "2001:db8:203::2")},
	{"BLK", "ext0", addresses("203.0.113.130", "2001:db8:203:0:8000::2")},
	{"near", "int0", addresses("10.180.0.77", "fd00:10:180::77")},
	{"L1", "int0", addresses("10.180.0.1", "fd00:10:180::1")},
	{"L2", "int0", addresses("10.180.0.2", "fd00:10:180::2")},
	{"R1", "int1", addresses("10.181.1.1", "fd00:10:181::1")},
	{"R2", "int1", addresses("10.181.1.2", "fd00:10:181::2")},
}

// Ports lists the ports that each of L1, L2, R1 and R2 serves, by protocol.
var Ports = map[string][]uint16{
	"tcp":  {53, 80, 443, 5353, 8080, 8443, 9376},
	"udp":  {53, 80, 5353, 8080, 9376},
	"sctp": {53, 5353, 9376},
}

// Gateways are the next hops of the box's default routes.
var Gateways = addresses("192.0.2.254", "2001:db8::fe")

func prefixes(all ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range all {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addresses(v4, v6 string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

// hostNamed finds a Host.
func hostNamed(name string) (Host, bool) {
	i := slices.IndexFunc(Hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return Host{}, false
	}
	return Hosts[i], true
}

// HostOf finds the host that has an address.
func HostOf(addr netip.Addr) (Host, bool) {
	i := slices.IndexFunc(Hosts, func(h Host) bool { return slices.Contains(h.Addresses[:], addr) })
	if i < 0 {
		return Host{}, false
	}
	return Hosts[i], true
}

// Serves reports whether the host has a server on a port.
func (h Host) Serves(network string, port uint16) bool {
	return slices.Contains([]string{"L1", "L2", "R1", "R2"}, h.Name) && slices.Contains(Ports[network], port)
}

// Question is a connection, a datagram or a ping that a host begins.
type Question struct {
	From   string     // the name of the host
	Source netip.Addr // the address it asks from; invalid: the kernel of the box chooses
	Port   uint16     // the source port; 0: any
	// Clients is the number of client addresses that ask in turn, beginning with Source.
	Clients int
	// Network is tcp, udp, sctp or ping; a ping has no port.
	Network string
	To      netip.AddrPort
	// Silent is set when the script expects no answer, or not this one, so that none is waited for that a busy machine
	// delays.
	Silent bool
	// Try counts the questions of a command that eventually repeats, from 1; 0: it asks once, so what must come is awaited.
	Try int
}

func (q Question) String() string {
	return fmt.Sprintf("%s to %s/%s", q.From, q.Network, q.To)
}

// SourceOf is the address that the i-th connection of the question comes from.
func (q Question) SourceOf(i int) netip.Addr {
	addr := q.Source
	if q.Clients > 1 {
		for range i % q.Clients {
			addr = addr.Next()
		}
	}
	return addr
}

// Interface is the interface of the box by which its packets arrive; empty: the box itself
// sends them.
func (q Question) Interface() string {
	host, _ := hostNamed(q.From)
	for _, i := range Interfaces { // the router of the clients is on ext0 and alt0
		behind := func(p netip.Prefix) bool { return p.Contains(q.To.Addr()) }
		if host.Interface == "ext0" && i.Name == "alt0" && slices.ContainsFunc(i.Prefixes, behind) {
			return i.Name
		}
	}
	return host.Interface
}

// parseQuestion reads HOST[@ADDRESS[+CLIENTS]][:PORT] and [NETWORK/]ADDRESS:PORT, or an address
// alone for a ping.
func parseQuestion(from, to string, ping bool) (Question, error) {
	q := Question{Network: "tcp"}
	i := strings.IndexAny(from, "@:")
	if i < 0 {
		i = len(from)
	}
	q.From = from[:i]
	host, known := hostNamed(q.From)
	if !known {
		return q, fmt.Errorf("no host is called %q", q.From)
	}
	var err error
	if ping {
		addr, err := netip.ParseAddr(to)
		if err != nil {
			return q, err
		}
		q.Network, q.To = "ping", netip.AddrPortFrom(addr, 0)
	} else {
		if network, rest, found := strings.Cut(to, "/"); found {
			q.Network, to = network, rest
		}
		if Ports[q.Network] == nil {
			return q, fmt.Errorf("network %q is unknown: use tcp, udp or sctp", q.Network)
		}
		if q.To, err = netip.ParseAddrPort(to); err != nil {
			return q, err
		}
	}
	if q.From != BoxName {
		q.Source = host.Addresses[index(q.To.Addr())]
	}
	if rest, is := strings.CutPrefix(from[i:], "@"); is {
		if at, err := netip.ParseAddrPort(rest); err == nil {
			q.Source, q.Port = at.Addr(), at.Port()
			return q, nil
		}
		rest, clients, found := strings.Cut(rest, "+")
		if found {
			if q.Clients, err = strconv.Atoi(clients); err != nil {
				return q, err
			}
		}
		q.Source, err = netip.ParseAddr(rest)
		return q, err
	}
	if rest, is := strings.CutPrefix(from[i:], ":"); is {
		port, err := strconv.ParseUint(rest, 10, 16)
		q.Port = uint16(port)
		return q, err
	}
	return q, nil
}

// index is the place of an address's family in Host.Addresses.
func index(addr netip.Addr) int {
	if addr.Is6() {
		return 1
	}
	return 0
}

// Outcome is the outcome of a Question: the server that answered and the client that it saw, or the
// refusal.
type Outcome struct {
	Server string // "L1:8080"; empty: no server answered
	Seen   string // the host whose address the server saw
	Word   string // refused, timeout, port-unreachable, host-unreachable, reply
}

// The words of outcomes without a server.
const (
	Refused         = "refused"          // TCP: a reset
	Timeout         = "timeout"          // silence
	PortUnreachable = "port-unreachable" // ICMP 3/3, ICMPv6 1/4
	HostUnreachable = "host-unreachable" // ICMP 3/1, ICMPv6 1/3
	EchoReply       = "reply"            // of a ping
)

// Answered is the outcome of a question that a server at an address and port answered,
// which saw a client's address. The client is named by the host that it belongs to: gw1 is
// the box's address on the interface towards the server, gw1/ext0 one of another interface.
func Answered(q Question, at netip.AddrPort, seen netip.Addr) Outcome {
	name := at.Addr().String()
	if host, known := HostOf(at.Addr()); known {
		name = host.Name
	}
	return Outcome{Server: fmt.Sprintf("%s:%d", name, at.Port()), Seen: client(q, at.Addr(), seen)}
}

func client(q Question, server, seen netip.Addr) string {
	for i := range max(1, q.Clients) {
		if seen == q.SourceOf(i) {
			return q.From
		}
	}
	for _, i := range Interfaces {
		for _, p := range i.Prefixes {
			if p.Addr() != seen {
				continue
			}
			if p.Contains(server) {
				return BoxName
			}
			return BoxName + "/" + i.Name
		}
	}
	if host, known := HostOf(seen); known {
		return host.Name
	}
	return seen.String()
}

func (o Outcome) String() string {
	if o.Server == "" {
		return o.Word
	}
	return o.Server + " sees " + o.Seen
}

// Expectation has the outcomes that a script expects of a question.
type Expectation struct {
	outcomes []Outcome
	oneOf    bool // all answers come from one of them
}

// parseExpectation reads "L1:80 R1:80 sees IN, L2:80 sees gw1", "one of L1:80 L2:80 sees IN"
// or a word as "refused".
func parseExpectation(words []string) (Expectation, error) {
	var e Expectation
	text := strings.Join(words, " ")
	text, e.oneOf = strings.CutPrefix(text, "one of ")
	for part := range strings.SplitSeq(text, ", ") {
		servers, seen, found := strings.Cut(part, " sees ")
		if !found {
			if slices.Contains([]string{Refused, Timeout, PortUnreachable, HostUnreachable, EchoReply}, part) {
				e.outcomes = append(e.outcomes, Outcome{Word: part})
				continue
			}
			return e, fmt.Errorf("%q is neither SERVER:PORT... sees HOST nor a refusal", part)
		}
		for server := range strings.FieldsSeq(servers) {
			e.outcomes = append(e.outcomes, Outcome{Server: server, Seen: seen})
		}
	}
	return e, nil
}

func (e Expectation) silent() bool {
	return slices.Contains(e.outcomes, Outcome{Word: Timeout})
}

// Check compares the outcomes of questions with the expectation.
func (e Expectation) Check(got []Outcome) error {
	seen := map[Outcome]bool{}
	for _, o := range got {
		seen[o] = true
	}
	wanted := 0
	for _, o := range e.outcomes {
		if seen[o] {
			wanted++
		}
	}
	if wanted == len(seen) && (wanted == len(e.outcomes) || e.oneOf && wanted == 1) {
		return nil
	}
	return fmt.Errorf("got %s, want %s", list(got), e)
}

func (e Expectation) String() string {
	if e.oneOf {
		return "one of " + list(e.outcomes)
	}
	return list(e.outcomes)
}

func list(outcomes []Outcome) string {
	var all []string
	for _, o := range outcomes {
		all = append(all, o.String())
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}
