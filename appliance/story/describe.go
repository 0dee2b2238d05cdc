package story

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/sim"
	"svcctl.io/svcctl/nft/trace"
)

// Facts holds the state of this host that is needed to describe a packet.
type Facts struct {
	// Served holds the ports of all Services, by "namespace/name".
	Served map[string][]nft.ServicePort
	Box    nft.Box
	// Interface returns the name of the interface with an index.
	Interface func(index int) string
	// Connection is the conntrack entry of the packet; nil if there is none.
	Connection *conntrack.Connection
}

// Describe returns a description of the path of one packet, from its trace steps in order.
func Describe(steps []trace.Step, facts *Facts) wire.TracedPacket {
	t := &description{facts: facts}
	for i := range steps {
		t.step(&steps[i])
	}
	t.end()
	return t.packet
}

type description struct {
	facts  *Facts
	packet wire.TracedPacket
	first  *trace.Header // the headers of the packet as it arrived
	now    *trace.Header // the headers of the packet after the last step so far
	in     int
	out    int
	over   bool // the packet was dropped or refused
	// predicted is set if the packet is only simulated.
	predicted bool
	said      map[string]bool
}

func (t *description) say(state, where, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.said == nil {
		t.said = map[string]bool{}
	}
	if t.said[text] {
		return
	}
	t.said[text] = true
	t.packet.Lines = append(t.packet.Lines, wire.TraceLine{State: state, Text: text, Where: where})
}

// step adds the description of one trace step.
func (t *description) step(s *trace.Step) {
	t.packet.Steps = append(t.packet.Steps, wire.TraceStep{
		Table: s.Family + " " + s.Table, Chain: s.Chain, Rule: s.Rule, Verdict: s.Verdict, Policy: s.Kind == trace.KindPolicy,
	})
	if s.In != 0 {
		t.in = s.In
	}
	if s.Out != 0 {
		t.out = s.Out
	}
	if s.Header != nil {
		if t.first == nil {
			t.first = s.Header
			t.begin()
		}
		if t.now != nil && t.now.To != s.Header.To {
			t.say(wire.TraceGood, "", "sent to endpoint %s", s.Header.To)
		}
		t.now = s.Header
	}
	if s.Table == nft.TableName {
		t.ours(s)
	} else {
		t.others(s)
	}
}

// begin adds a description of the packet, and of the Service that it is addressed to.
func (t *description) begin() {
	h := t.first
	t.packet.From, t.packet.To, t.packet.Protocol = nft.EndpointText(h.From), nft.EndpointText(h.To), protocolName(h.Protocol)
	what := fmt.Sprintf("%s -> %s/%s", t.packet.From, t.packet.To, t.packet.Protocol)
	if h.SYN {
		what += ", SYN"
	}
	if t.in != 0 {
		what += ", came in by " + t.facts.Interface(t.in)
	} else {
		what += ", sent by this host"
	}
	t.packet.What = what
	if c := t.facts.Connection; c != nil && h.To != c.To {
		t.known(c)
		return
	}
	key, port, kind := t.servicePort(h)
	switch t.packet.Service, t.packet.Port = key, port; {
	case key != "" && port != "":
		t.say(wire.TraceGood, "", "is for Service %s, port %s%s", key, port, kind)
	case key != "":
		t.say(wire.TraceGood, "", "is for Service %s%s", key, kind)
	case t.isVIP(h.To.Addr()):
		t.say(wire.TraceBad, "", "%s is a Service's address, and nothing is served at %d/%s", h.To.Addr(), h.To.Port(), protocolName(h.Protocol))
	default:
		t.say(wire.TraceNote, "", "no Service has %s", t.packet.To)
	}
}

// known adds a description of a packet that belongs to c, a connection in the conntrack table. Conntrack translates such a packet; no rule selects an
// endpoint for it.
func (t *description) known(c *conntrack.Connection) {
	key, _, _ := t.servicePort(&trace.Header{Protocol: byte(c.Protocol), From: c.Client, To: c.To})
	if key == "" {
		t.say(wire.TraceNote, "", "belongs to a tracked connection of %s to %s, of no Service", c.Client, c.To)
		return
	}
	t.say(wire.TraceGood, "", "belongs to a tracked connection of %s to %s: is for Service %s", c.Client, c.To, key)
	if t.first.From == c.Endpoint {
		t.say(wire.TraceGood, "", "is an answer of endpoint %s, and goes back as %s", c.Endpoint, c.To)
	} else {
		t.say(wire.TraceGood, "", "sent to endpoint %s, which was picked at its first packet", c.Endpoint)
	}
}

// servicePort returns the Service ("namespace/name") and port name that a packet is addressed to, and a note for messages, such as " (node port)";
// all are "" if it is addressed to no Service.
func (t *description) servicePort(h *trace.Header) (key, port, kind string) {
	var ranged []string
	for service, ports := range t.facts.Served {
		for i := range ports {
			p := &ports[i]
			if p.Protocol != nft.Protocol(h.Protocol) || (p.Family == nft.IPv6) != h.To.Addr().Is6() {
				continue
			}
			for _, fe := range p.Frontends {
				if !fe.HasPort(h.To.Port()) {
					continue
				}
				switch _, name := nft.SplitID(p.ID); {
				case fe.Addr == h.To.Addr() && fe.IsRange():
					ranged = []string{service, name, " (range of ports)"} // an exact port goes first
				case fe.Addr == h.To.Addr():
					return service, name, ""
				case !fe.Addr.IsValid() && slices.Contains(t.facts.Box.NodePortAddresses, h.To.Addr()):
					key, port, kind = service, name, " (node port)"
				}
			}
		}
	}
	if ranged != nil {
		return ranged[0], ranged[1], ranged[2]
	}
	return key, port, kind
}

func (t *description) isVIP(a netip.Addr) bool {
	for _, ports := range t.facts.Served {
		for i := range ports {
			for _, fe := range ports[i].Frontends {
				if fe.Addr == a {
					return true
				}
			}
		}
	}
	return false
}

// ours adds a description of a step in a table of svcctl, based on the name of its chain.
func (t *description) ours(s *trace.Step) {
	where := s.Chain
	switch verb, target, _ := strings.Cut(s.Verdict, " "); {
	case verb == "drop":
		t.over = true
		switch {
		case s.Chain == "refuse", s.Chain == "refuse-port":
			t.say(wire.TraceBad, where, "refused: %s", t.refusal())
		case s.Chain == "refuse-client":
			t.say(wire.TraceBad, where, "refused: the client has as many open connections as svcctl.io/client-connections allows")
		case strings.HasPrefix(s.Chain, "limits-"):
			t.say(wire.TraceBad, where, "dropped: more new connections than svcctl.io/rate-limit or svcctl.io/client-rate-limit lets through; a TCP client tries again")
		case s.Chain == "stray":
			t.say(wire.TraceBad, where, "dropped: it belongs to no connection that is tracked, and a Service's address must not get it")
		case t.first != nil && t.inServiceRange(t.first.To.Addr()):
			t.say(wire.TraceBad, where, "dropped: %s is in the service range, and no Service has it", t.first.To.Addr())
		default:
			t.say(wire.TraceBad, where, "dropped by our rule %d of chain %s", s.Rule, s.Chain)
		}
	case verb == "goto" || verb == "jump":
		t.chosen(where, target)
	}
}

// chosen adds a description of why a packet passes from one chain of svcctl (where) to another (target).
func (t *description) chosen(where, target string) {
	word, _, _ := strings.Cut(target, "/") // recall/default/web
	switch {
	case strings.HasPrefix(word, "pick-"), strings.HasPrefix(word, "nodeport-pick-"), strings.HasPrefix(word, "local-pick-"):
		if n := word[strings.LastIndexByte(word, '-')+1:]; !strings.HasPrefix(where, "pick-") { // the next smaller one is asked when a slot is empty
			t.say(wire.TraceGood, where+" -> "+target, "%s", pickText(n))
		}
	case strings.HasPrefix(word, "hash-"), strings.HasPrefix(word, "source-") && word != "source-nat":
		t.say(wire.TraceGood, where+" -> "+target, "the endpoint is picked by a hash of the client")
	case strings.HasPrefix(word, "weigh-"):
		t.say(wire.TraceGood, where+" -> "+target, "the endpoint is picked by weight")
	case word == "round-robin":
		t.say(wire.TraceGood, where+" -> "+target, "the next endpoint in turn is picked")
	case strings.HasSuffix(word, "recall"):
		t.say(wire.TraceGood, where+" -> "+target, "session affinity: a known client goes to its endpoint")
	case strings.HasPrefix(word, "range-clients-"):
		if !strings.HasSuffix(word, "-in") {
			t.say(wire.TraceGood, where+" -> "+target, "a range of ports; the client's address decides: source ranges, or policy Local")
		}
	case word == "range", word == "range-local":
		t.say(wire.TraceGood, where+" -> "+target, "a range of ports: one of the endpoints is picked, at the same port")
	case word == "by-client":
		t.say(wire.TraceGood, where+" -> "+target, "the client's address decides: source ranges, or policy Local")
	case word == "limited", word == "limited-outside", word == "nodeport-limited", word == "nodeport-limited-outside":
		t.say(wire.TraceGood, where+" -> "+target, "the Service has limits, which are asked first")
	case t.predicted: // what becomes of its address is known
	case word == "source-nat", word == "masquerade":
		t.say(wire.TraceNote, where+" -> "+target, "the client's address may be masqueraded")
	}
}

func pickText(n string) string {
	if n == "1" {
		return "one endpoint"
	}
	return n + " endpoints, one is picked at random"
}

// refusal returns the reason for which a packet came to a chain that rejects it.
func (t *description) refusal() string {
	key, port, _ := t.servicePort(t.first)
	for _, p := range t.facts.Served[key] {
		if _, name := nft.SplitID(p.ID); name == port && (p.Family == nft.IPv6) == t.first.To.Addr().Is6() && p.Refused != [nft.NumPools]uint16{} {
			return fmt.Sprintf("a share of the connections to Service %s is refused, as its backend has no usable endpoint: %s has the reason", key, explain(key))
		}
	}
	if key != "" {
		return fmt.Sprintf("Service %s has no endpoint for this client: %s has the reason", key, explain(key))
	}
	return "nothing is served at this port"
}

// explain returns the command line of `svcctl explain` for a Service ("namespace/name").
func explain(key string) string {
	namespace, name, _ := strings.Cut(key, "/")
	return "svcctl explain svc/" + name + " -n " + namespace
}

func (t *description) inServiceRange(a netip.Addr) bool {
	return slices.ContainsFunc(t.facts.Box.ServiceRanges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// others adds a description of a step in a table that is not of svcctl.
func (t *description) others(s *trace.Step) {
	switch table := strings.TrimSpace(s.Family + " " + s.Table); {
	case s.Verdict == "drop" && s.Kind == trace.KindPolicy:
		t.over = true
		t.say(wire.TraceBad, s.Chain, "dropped by the policy of table %s, chain %s: nothing there accepts it", table, s.Chain)
	case s.Verdict == "drop":
		t.over = true
		t.say(wire.TraceBad, s.Chain, "dropped by table %s, chain %s, the rule with handle %d: `nft -a list chain %s %s` shows it", table, s.Chain, s.Rule, table, s.Chain)
	case s.Verdict == "queue":
		t.say(wire.TraceNote, s.Chain, "handed to a program by table %s, chain %s", table, s.Chain)
	}
}

// end adds a description of how the packet left this host, from its output interface and its conntrack entry.
func (t *description) end() {
	switch c := t.facts.Connection; {
	case t.over || t.first == nil:
		return
	case t.out == 0 && c == nil:
		t.say(wire.TraceNote, "", "came to this host itself")
	case c == nil:
		t.say(wire.TraceNote, "", "left by %s", t.facts.Interface(t.out))
	default:
		if c.As != c.Client {
			t.say(wire.TraceGood, "", "the endpoint sees %s: the client's address is masqueraded", c.As)
		}
		left := "went to this host itself"
		if t.out != 0 {
			left = "left by " + t.facts.Interface(t.out)
		}
		if c.Answered {
			t.say(wire.TraceGood, "", "%s as %s -> %s, and the endpoint has answered", left, c.As, c.Endpoint)
		} else {
			t.say(wire.TraceWarn, "", "%s as %s -> %s, and the endpoint has not answered: see whether it listens, and whether its answers come back through this host", left, c.As, c.Endpoint)
		}
	}
}

func protocolName(p byte) string {
	switch p {
	case 1, 58:
		return "ICMP"
	}
	return cmp.Or(nft.Protocol(p).Name(), fmt.Sprintf("protocol %d", p))
}

// Way is the route that the kernel selects for packets to an address.
type Way struct {
	Interface uint32     // index of the interface
	Local     bool       // the address belongs to this host
	From      netip.Addr // the source address that the kernel selects on this route
	// Unforwarded is why this host does not forward packets of the IP family, and how to fix that; "" if it does forward them.
	Unforwarded string
}

// predictedPort is the source port of a predicted packet.
const predictedPort = 40000

// mostOutcomes is the maximum number of endpoints that a prediction names.
const mostOutcomes = 20

// errWhereTo is the error for a prediction query without a destination address or port.
var errWhereTo = errors.New("a prediction is of a packet to an address with a port, as 10.96.0.10:80")

// predict computes the path of the first packet of a connection through the rules of svcctl. It sends no packet and ignores the rules of other
// programs.
func (t *Tracer) predict(q wire.TraceQuery) (wire.TracedPacket, error) {
	if !q.To.IsValid() || q.Port == 0 {
		return wire.TracedPacket{}, errWhereTo
	}
	protocol, _ := nft.ProtocolNamed(q.Protocol)
	facts := &Facts{Interface: interfaceName}
	facts.Served, facts.Box = t.served()
	p := sim.Packet{Daddr: q.To, Dport: q.Port, Proto: protocol, Sport: predictedPort}
	switch {
	case q.From.IsValid() && !slices.Contains(facts.Box.LocalAddresses, q.From.Addr()):
		p.Saddr = q.From.Addr()
		back, err := t.way(p.Saddr)
		if err != nil {
			return wire.TracedPacket{}, fmt.Errorf("find the interface that %s comes in by: %w", p.Saddr, err)
		}
		p.Iif = back.Interface
	case q.From.IsValid():
		p.Saddr = q.From.Addr()
	default: // this host itself
		way, err := t.way(q.To)
		if err != nil {
			return wire.TracedPacket{}, fmt.Errorf("find a way to %s: %w", q.To, err)
		}
		p.Saddr = way.From
	}
	return t.simulate(&p, facts), nil
}

// simulate describes all paths that a packet can take. There are several where an endpoint is selected at random.
func (t *Tracer) simulate(p *sim.Packet, facts *Facts) wire.TracedPacket {
	story := &description{facts: facts, in: int(p.Iif), predicted: true}
	story.first = &trace.Header{
		Protocol: byte(p.Proto), From: netip.AddrPortFrom(p.Saddr, p.Sport), To: netip.AddrPortFrom(p.Daddr, p.Dport), SYN: p.Proto == nft.TCP,
	}
	story.begin()
	story.packet.What = "if a packet came: " + story.packet.What
	host := sim.Host{
		Ruleset: nft.Compile(nft.State{Box: facts.Box, Services: concerned(facts.Served, p)}),
		Network: &hostNetwork{t, p.Saddr, facts.Box.LocalAddresses, map[uint32]netip.Addr{}},
	}
	outcomes := host.Outcomes(*p)
	if len(outcomes) > 0 {
		story.chains(outcomes[0].Trace())
	}
	story.outcomes(p, slices.DeleteFunc(outcomes, func(r sim.Result) bool {
		if r.Kind != sim.Delivered || p.Iif == 0 || !r.DNATed && !r.SNATed {
			return false
		}
		way, _ := t.way(r.Dst.Addr())
		if way.Local || way.Unforwarded == "" {
			return false
		}
		story.say(wire.TraceBad, "", "does not leave this host: %s", way.Unforwarded)
		return true
	}))
	story.say(wire.TraceNote, "", "predicted from the Services that are served: nothing was sent, rules of other programs were not asked, and a client with session affinity goes to its endpoint")
	return story.packet
}

// hostNetwork provides the routes and addresses of this host for the simulation of one client's packet.
type hostNetwork struct {
	*Tracer
	client     netip.Addr
	local      []netip.Addr
	masquerade map[uint32]netip.Addr // the masquerade source address, by index of the output interface
}

func (n *hostNetwork) Route(dst netip.Addr) (uint32, bool) {
	way, err := n.way(dst)
	if err != nil {
		return 0, false
	}
	n.masquerade[way.Interface] = way.From
	return way.Interface, way.Local
}

func (n *hostNetwork) IsLocal(a netip.Addr) bool { return slices.Contains(n.local, a) }

func (n *hostNetwork) MasqueradeAddr(iface uint32) netip.Addr {
	if a, known := n.masquerade[iface]; known {
		return a
	}
	way, _ := n.way(n.client) // of a redirected client: the interface that it came in by
	return way.From
}

// concerned returns the Services whose rules the packet may match: those with a frontend at its destination address, those with a node port equal to
// its destination port, and those with its source as an egress source.
func concerned(served map[string][]nft.ServicePort, p *sim.Packet) map[string][]nft.ServicePort {
	found := map[string][]nft.ServicePort{}
	for key, ports := range served {
		if slices.ContainsFunc(ports, func(port nft.ServicePort) bool {
			return slices.Contains(port.Egress.Sources, p.Saddr) || slices.ContainsFunc(port.Frontends, func(fe nft.Frontend) bool {
				return fe.Addr == p.Daddr || !fe.Addr.IsValid() && fe.Port == p.Dport
			})
		}) {
			found[key] = ports
		}
	}
	return found
}

// chains adds a description of a packet's path through the chains of svcctl. rules has a text "chain: rule" for each rule that matched.
func (t *description) chains(rules []string) {
	for _, text := range rules {
		chain, rule, _ := strings.Cut(text, ": ")
		for _, verb := range []string{"goto ", "jump "} {
			at := strings.LastIndex(rule, verb)
			if at < 0 {
				continue
			}
			target, _, _ := strings.Cut(rule[at+len(verb):], " ")
			t.chosen(chain, target)
		}
	}
}

// outcomes adds the descriptions of the possible outcomes of a simulated packet.
func (t *description) outcomes(p *sim.Packet, outcomes []sim.Result) {
	var to []string
	sources := map[netip.Addr]bool{}
	for _, r := range outcomes {
		switch {
		case r.Kind == sim.Rejected:
			t.say(wire.TraceBad, "", "refused, the client gets a %s: %s", rejection(r.RejectWith), t.refusal())
		case r.Kind == sim.Dropped:
			t.say(wire.TraceBad, "", "dropped, the client gets no answer: %s", t.silence())
		case !r.DNATed && r.SNATed:
			t.say(wire.TraceGood, "", "leaves with %s, an address of the Service that %s is an endpoint of", r.Src, p.Saddr)
		case !r.DNATed:
			t.say(wire.TraceNote, "", "passes without translation: no Service takes it")
		default:
			to, sources[r.Src] = append(to, r.Dst.String()), true
		}
	}
	if len(to) == 0 {
		return
	}
	slices.Sort(to)
	to = slices.Compact(to)
	which := "goes to endpoint "
	if len(to) > 1 {
		which = "goes to one of the endpoints "
	}
	t.say(wire.TraceGood, "", "%s%s", which, wire.First(to, mostOutcomes))
	if sources[p.Saddr] {
		t.say(wire.TraceGood, "", "the endpoint sees the client's own address, %s", p.Saddr)
	}
	for src := range sources {
		if src != p.Saddr {
			t.say(wire.TraceGood, "", "the endpoint sees %s: the client's address is masqueraded", src)
		}
	}
}

// silence returns the reason that a packet was dropped without a reply.
func (t *description) silence() string {
	if key, _, _ := t.servicePort(t.first); key != "" {
		return fmt.Sprintf("Service %s does not let this client in, or has no endpoint for it by its traffic policy: %s has the reason", key, explain(key))
	}
	if t.inServiceRange(t.first.To.Addr()) {
		return fmt.Sprintf("%s is in the service range, and no Service has it", t.first.To.Addr())
	}
	return "nothing leads there"
}

func rejection(with nft.RejectWith) string {
	switch with {
	case nft.RejectTCPReset:
		return "TCP reset"
	case nft.RejectHostUnreachable:
		return "host unreachable"
	}
	return "port unreachable"
}
