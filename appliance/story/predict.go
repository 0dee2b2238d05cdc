package story

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/sim"
	"svcctl.io/svcctl/nft/trace"
)

// Way is the route of packets to an address.
type Way struct {
	Interface uint32     // its index
	Local     bool       // the address is this host's
	From      netip.Addr // the address of this host that is used on that way
	// Unforwarded is why this host forwards no packet of the family, with the next step; "": it does.
	Unforwarded string
}

// predictedPort is the source port of a packet for which none was given.
const predictedPort = 40000

// mostOutcomes bounds the endpoints that a prediction names.
const mostOutcomes = 20

// errWhereTo means that a prediction needs an address with a port.
var errWhereTo = errors.New("a prediction is of a packet to an address with a port, as 10.96.0.10:80")

// predict computes the path of the first packet of a connection through the rules of the Services. No packet is sent, and
// foreign rules are not considered.
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

// simulate has the packet go all ways that chance leaves it.
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

// hostNetwork is the network of this host for a packet of a client.
type hostNetwork struct {
	*Tracer
	client     netip.Addr
	local      []netip.Addr
	masquerade map[uint32]netip.Addr // of interfaces that were routed to
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

// concerned are the Services whose elements the packet may meet: those of its address, those of its node port, and those that its
// source leaves for.
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

// chains describes the way of a packet through our chains; rules has "chain: rule" for each rule that matched.
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

// outcomes describes the possible ends of the packet.
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

// silence is why a packet is dropped without a word.
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
