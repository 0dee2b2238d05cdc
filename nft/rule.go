package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// Field is a value that a rule reads from a packet, its connection or the kernel, usually as part of a map key.
type Field struct {
	Kind FieldKind
	Mod  uint32 // number of slots for FieldNumgen and hashes; the value is in [0, Mod)
	// Offset is added to the value of FieldNumgen.
	Offset uint32
	// Bits is the number of leading bits of FieldSaddr and FieldDaddr that are kept; the other bits are set to 0. 0 keeps all bits.
	Bits uint8
	// Ranged is set for FieldIif and FieldOif in the key of an interval set. The kernel compares such keys byte by byte, so the number of the interface
	// is looked up in network byte order.
	Ranged bool
	// Port is the value of FieldPort.
	Port uint16
}

// FieldKind selects what a Field reads. The comments of the values give the nft syntax in table ip; table ip6 has ip6 and icmpv6.
type FieldKind uint8

const (
	FieldSaddr         FieldKind = iota + 1 // ip saddr, with Bits ip saddr & 255.255.255.0
	FieldDaddr                              // ip daddr
	FieldL4Proto                            // meta l4proto
	FieldDport                              // th dport
	FieldOriginalDaddr                      // ct original ip daddr (NFT_CT_DST_IP, kernel 4.17)
	FieldOriginalDport                      // ct original proto-dst
	FieldSport                              // th sport
	FieldNumgen                             // numgen random mod Mod
	FieldIif                                // iif
	FieldOif                                // oif
	FieldHashSource                         // jhash ip saddr mod Mod seed HashSeed (CONFIG_NFT_HASH)
	FieldHashFlow                           // jhash ip saddr . th sport mod Mod seed HashSeed
	FieldTurn                               // numgen inc mod Mod, with a separate counter for each rule
	FieldPort                               // the constant Port, such as 8443
)

// The fields without a parameter, which make rules read like their nft text.
var (
	Saddr         = Field{Kind: FieldSaddr}
	Daddr         = Field{Kind: FieldDaddr}
	L4Proto       = Field{Kind: FieldL4Proto}
	Dport         = Field{Kind: FieldDport}
	Sport         = Field{Kind: FieldSport}
	OriginalDaddr = Field{Kind: FieldOriginalDaddr}
	OriginalDport = Field{Kind: FieldOriginalDport}
	Iif           = Field{Kind: FieldIif}
	Oif           = Field{Kind: FieldOif}
)

// Numgen returns `numgen random mod n`: a random slot in [0, n).
func Numgen(n uint32) Field { return Field{Kind: FieldNumgen, Mod: n} }

// Mask returns the netmask of an address with f.Bits leading bits, as an address.
func (f Field) Mask(family Family) netip.Addr {
	ones := [16]byte{}
	for i := range ones {
		ones[i] = 0xff
	}
	all, _ := netip.AddrFromSlice(ones[:family.AddrLen()])
	return netip.PrefixFrom(all, int(f.Bits)).Masked().Addr()
}

// Type returns the datatype of what the field reads.
func (f Field) Type() Type {
	switch f.Kind {
	case FieldSaddr, FieldDaddr, FieldOriginalDaddr:
		return TypeAddr
	case FieldL4Proto:
		return TypeProto
	case FieldDport, FieldOriginalDport, FieldSport, FieldPort:
		return TypeService
	case FieldNumgen, FieldHashSource, FieldHashFlow, FieldTurn:
		return TypeSlot
	case FieldIif, FieldOif:
		return TypeIface
	}
	panic("nft: field of no kind")
}

// Rule is a list of statements, evaluated left to right until one does not match.
type Rule []Statement

// Statement is one match or action of a rule. The set of statements is closed:
// the text form, the simulator and the kernel encoder implement each of them.
type Statement interface {
	text(t ruleText, in context) ruleText
}

type (
	// MatchProto is `meta l4proto tcp`. nft also needs it before `ct original proto-dst`, because that field depends on the protocol.
	MatchProto struct{ Proto Protocol }
	// MatchPrefix is `ip daddr 10.96.0.0/16`, with != when negated.
	MatchPrefix struct {
		Field  Field // Saddr, Daddr or OriginalDaddr
		Prefix netip.Prefix
		Negate bool
	}
	// MatchSet is `ip daddr @set`, with != when negated.
	MatchSet struct {
		Key    []Field
		Set    string
		Negate bool
	}
	// MatchNotDNAT is `ct status & dnat == 0`: the destination of the connection was not translated.
	MatchNotDNAT struct{}
	// MatchLocalSource is `fib saddr type local`: the box itself is the sender.
	MatchLocalSource struct{}
	// MatchLocalDest is `fib daddr type local`: the box itself is the receiver.
	MatchLocalDest struct{}
	// MatchReply is `ct direction reply`. In a NAT chain it matches only the reset that answers a refused connection: NAT chains see no other
	// replies.
	MatchReply struct{}
	// MatchAssured is `ct status assured`: both ends have sent packets. TCP is assured from the client's first ACK on, UDP after 2 s with replies.
	MatchAssured struct{}
	// MatchInvalid is `ct state invalid`: conntrack cannot assign the packet to a connection, so NAT does not translate it.
	MatchInvalid struct{}
	// MatchNoSYN is `tcp flags ! syn`: a TCP segment that is neither a SYN nor a SYN-ACK.
	MatchNoSYN struct{}
	// MatchSYN is `tcp flags syn`, MatchRST `tcp flags rst`.
	MatchSYN struct{}
	MatchRST struct{}
	// MatchInitAck is `meta l4proto sctp @th,96,8 0x2`: the first chunk is INIT ACK
	// (RFC 9260, section 3.2), which accepts an association.
	MatchInitAck struct{}
	// MatchEchoRequest is `icmp type echo-request` (icmpv6 in table ip6).
	MatchEchoRequest struct{}
	// MatchNotICMP is `meta l4proto != icmp` (ipv6-icmp in table ip6), MatchICMP the opposite.
	MatchNotICMP struct{}
	MatchICMP    struct{}
	// VerdictMap is `key vmap @map`. If the map does not contain the key, the rule does not match.
	VerdictMap struct {
		Key []Field
		Map string
	}
	// DNAT is `dnat ip to key map @map`. The data of the map is address . port, or with KeepPort an address alone. If the map does not contain the
	// key, the rule does not match.
	DNAT struct {
		Key      []Field
		Map      string
		KeepPort bool
	}
	// SourceMap is `snat ip to key map @map`. The data of the map is address . port, or with KeepPort an address alone; then the source port is kept
	// if it is free. If the map does not contain the key, the rule does not match.
	SourceMap struct {
		Key      []Field
		Map      string
		KeepPort bool
	}
	// Update is `update @map { key timeout T : data }`, which adds an element that expires after Timeout. An existing element keeps its data, and its
	// timeout starts again. With Add it is `add @map { ... }`, which leaves an existing element unchanged. If the map is full, the rule does not
	// match.
	Update struct {
		Map     string
		Key     []Field
		Data    []Field // nil if Map is a set
		Timeout time.Duration
		Add     bool
		// With a Rate or Connections, each element has a separate limit, and the statement matches if the limit is exceeded: `{ ip saddr timeout 2m
		// limit rate over 10/second burst 10 packets }`, `{ ip saddr ct count over 20 }` (CONFIG_NFT_LIMIT, CONFIG_NFT_CONNLIMIT). An existing
		// element keeps its limit.
		Rate        Rate
		Connections uint32
	}
	// Over is `limit rate over 100/second burst 100 packets`, which matches packets that exceed the rate.
	Over struct{ Rate Rate }
	// Delete is `delete @set { key }`, which matches if the set contained the key.
	Delete struct {
		Set string
		Key []Field
	}
	// SetTimeout is `ct timeout set "idle-tcp-60"`: the connection gets the timeouts of the timeout object named Timeout.Name(). It has an effect
	// only on a connection's first packet.
	SetTimeout struct{ Timeout Timeout }
	// Counter is `counter name "no-endpoint"`: it counts the packets that reach it.
	Counter struct{ Name string }
	// Masquerade is `masquerade`: the source becomes the outgoing interface's address.
	Masquerade struct{}
	// Redirect is `redirect`: the destination becomes an address of the box.
	Redirect struct{}
	// Reject is `reject with ...`, which drops the packet and sends an answer to the sender.
	Reject struct{ With RejectWith }
	// Verdict ends the evaluation of a chain.
	Verdict struct {
		Kind  VerdictKind
		Chain string // target of Goto and Jump
	}
)

// RejectWith is the answer that Reject sends.
type RejectWith uint8

const (
	RejectTCPReset        RejectWith = iota + 1 // tcp reset
	RejectPortUnreachable                       // icmp port-unreachable (3/3), icmpv6 port-unreachable (1/4)
	RejectHostUnreachable                       // icmp host-unreachable (3/1), icmpv6 addr-unreachable (1/3)
)

// VerdictKind is the kind of a verdict on a packet.
type VerdictKind uint8

const (
	Accept VerdictKind = iota + 1
	Drop
	Return
	Goto
	Jump
)

// GotoChain returns `goto chain`.
func GotoChain(chain string) Verdict { return Verdict{Kind: Goto, Chain: chain} }

// String returns the verdict in nft syntax, which is also how a verdict map's data is held.
func (v Verdict) String() string {
	switch v.Kind {
	case Goto:
		return "goto " + v.Chain
	case Jump:
		return "jump " + v.Chain
	case Accept, Drop, Return:
		return [...]string{Accept: "accept", Drop: "drop", Return: "return"}[v.Kind]
	}
	panic("nft: verdict of no kind")
}

// Protocol is an IP protocol number (IANA). Only TCP, UDP and SCTP carry services.
type Protocol uint8

const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// protocolNames are the protocols in Kubernetes (core/v1 Protocol).
var protocolNames = map[Protocol]string{TCP: "TCP", UDP: "UDP", SCTP: "SCTP"}

// Name returns the name of the protocol in Kubernetes (core/v1 Protocol); "" for any other than TCP, UDP and SCTP.
func (p Protocol) Name() string { return protocolNames[p] }

// ProtocolNamed returns the protocol with a name in Kubernetes (core/v1 Protocol); false for any other than TCP, UDP and SCTP.
func ProtocolNamed(name string) (Protocol, bool) {
	for p, is := range protocolNames {
		if is == name {
			return p, true
		}
	}
	return 0, false
}

// String returns the protocol in nft syntax.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	panic("nft: protocol that no service has")
}

// Rate is a number of new connections a second, or a minute.
type Rate struct {
	Count uint32
	Per   time.Duration // time.Second or time.Minute
}

// Burst returns the number of connections that may arrive at once: the number for one second, but at least 1.
func (r Rate) Burst() uint32 {
	if r.Per == time.Minute {
		return max(1, r.Count/60)
	}
	return r.Count
}

// String returns the rate in nft syntax, "100/second".
func (r Rate) String() string {
	unit := "second"
	if r.Per == time.Minute {
		unit = "minute"
	}
	return strconv.FormatUint(uint64(r.Count), 10) + "/" + unit
}

// Timeout is a timeout object of connection tracking, for connections of one protocol.
type Timeout struct {
	Protocol Protocol // TCP or UDP
	Idle     time.Duration
}

// Name returns the name of the timeout object, such as "idle-tcp-60", with Idle in seconds; "" for the zero Timeout.
func (t Timeout) Name() string {
	if t == (Timeout{}) {
		return ""
	}
	return prefixIdle + t.Protocol.String() + "-" + strconv.FormatInt(int64(t.Idle/time.Second), 10)
}

// definition returns the lines between the braces of the timeout object, in nft syntax.
func (t Timeout) definition(f Family) []string {
	seconds := int64(t.Idle / time.Second)
	policy := fmt.Sprintf("established : %d", seconds)
	if t.Protocol == UDP {
		policy = fmt.Sprintf("unreplied : %d, replied : %d", seconds, seconds)
	}
	return []string{"protocol " + t.Protocol.String(), "l3proto " + f.String(), "policy = { " + policy + " }"}
}

// A box that takes over another one's addresses has none of its connection tracking entries, and with
// net.netfilter.nf_conntrack_tcp_loose=1 (the default) makes one of any segment of TCP in mid-stream. Of a client's it
// makes the right one, if the endpoint is picked by a hash of the client, as on the other box. Of an endpoint's it
// makes one that leads to the client from the endpoint's own address, which the client resets. Adopting translates
// such a segment's source to the frontend, so that the entry is the other one's mirror: what the client sends next is
// a reply of it and goes to the endpoint.
//
// An endpoint's segment does not say by which frontend the client came. So an endpoint is adopted for one frontend,
// and for none where two ask for it.

// addAdopted records the endpoints that are adopted for a frontend.
func (p *compiledPort) addAdopted(f *fragment, fe *Frontend) {
	if !fe.Adopt {
		return
	}
	frontend := f.keep(Key(AddrPortData(netip.AddrPortFrom(fe.Addr, fe.Port))))
	for _, ap := range fe.ofBoth(func(pool Pool) []netip.AddrPort { return p.chosen(fe, pool) }) {
		f.adopted = append(f.adopted, placed{setAdopted, f.keep(Key(AddrPortData(ap))), frontend})
	}
}

// useAdopted adds the endpoints that a fragment's frontends adopt to t.adopters (by is 1), or removes them (by is -1).
func (t *tableState) useAdopted(f *fragment, by int) {
	for _, e := range f.adopted {
		if _, kept := t.oldAdopted[e.key]; !kept {
			t.oldAdopted[e.key] = t.adopter(e.key)
		}
		of := t.adopters[e.key]
		if of == nil {
			of = map[string]int{}
			t.adopters[e.key] = of
		}
		if of[e.data] += by; of[e.data] == 0 {
			delete(of, e.data)
		}
		if len(of) == 0 {
			delete(t.adopters, e.key)
		}
	}
}

// adopter returns the frontend that an endpoint is adopted for, or "" if not exactly one frontend adopts it.
func (t *tableState) adopter(endpoint string) string {
	if len(t.adopters[endpoint]) != 1 {
		return ""
	}
	for frontend := range t.adopters[endpoint] {
		return frontend
	}
	return ""
}

// settleAdopted updates the elements of endpoints that are now adopted for another frontend, or for none.
func (t *tableState) settleAdopted() {
	for _, endpoint := range sortedKeys(t.oldAdopted) {
		if before := t.oldAdopted[endpoint]; before != "" {
			t.delete(placed{setAdopted, endpoint, before})
		}
	}
	for _, endpoint := range sortedKeys(t.oldAdopted) {
		if now := t.adopter(endpoint); now != "" {
			t.put(placed{setAdopted, endpoint, now})
		}
	}
}

// adoptedElements yields the elements of adopted endpoints. It returns false once yield does.
func (t *tableState) adoptedElements(yield func(string, Element) bool) bool {
	for _, endpoint := range sortedKeys(t.adopters) {
		if frontend := t.adopter(endpoint); frontend != "" && !yield(setAdopted, Element{endpoint, frontend}) {
			return false
		}
	}
	return true
}

// notTranslated returns the rule and chains of postrouting for connections that kept their destination.
//
//	chain adopt {
//		tcp flags ! syn snat ip to ip saddr . th sport map @adopted
//	}
func (t *tableState) notTranslated() (rule Rule, chains []Chain) {
	if !t.has(setAdopted) {
		return Rule{MatchNotDNAT{}, Verdict{Kind: Return}}, nil
	}
	adopt := Rule{MatchNoSYN{}, SourceMap{Key: []Field{Saddr, Sport}, Map: setAdopted}}
	return Rule{MatchNotDNAT{}, GotoChain(chainAdopt)}, []Chain{{Name: chainAdopt, Rules: []Rule{adopt}}}
}

// Adopts reports whether a ruleset adopts endpoints, or translates TCP segments to an egress address back to its source (egress-back).
func Adopts(have Ruleset) bool {
	for _, t := range have {
		if len(t.elements(setAdopted))+len(t.elements(setEgressBack)) > 0 {
			return true
		}
	}
	return false
}
