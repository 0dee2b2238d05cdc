package kernel

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// register is the number of a 4-byte register. The fields of a concatenation are in
// consecutive registers.
type register = uint32

// firstRegister is the register that every rule loads first.
const firstRegister register = unix.NFT_REG32_00

// Offsets in the transport headers, in bytes (RFC 9293, 768, 9260).
const (
	offsetSport     = 0
	offsetDport     = 2
	offsetTCPFlags  = 13
	offsetICMPType  = 0
	offsetSCTPChunk = 12
)

// The SYN and the RST bit of a TCP header's flags (RFC 9293).
const (
	flagSYN = 0x02
	flagRST = 0x04
)

// chunkInitAck is the type of an SCTP INIT ACK chunk (RFC 9260).
const chunkInitAck = 2

// protocol holds the numbers and header offsets of an address family.
type protocol struct {
	family                           uint8  // NFPROTO_*
	saddr, daddr                     uint32 // offsets in the header, in bytes (RFC 791, 8200)
	originalDaddr                    expr.CtKey
	icmp                             byte   // IPPROTO_ICMP or IPPROTO_ICMPV6
	echoRequest                      byte   // ICMP type of an echo request (RFC 792, 4443)
	hostUnreachable, portUnreachable uint8  // ICMP codes of destination unreachable (RFC 792, 4443)
	address                          uint32 // number of the address datatype in nft (enum datatypes in its datatype.h)
	loopback                         netip.Addr
	headerDesc, headerDaddr          uint32 // the header and its field in nft: PROTO_DESC_IP and IPHDR_DADDR, or PROTO_DESC_IP6 and IP6HDR_DADDR
}

var protocols = [...]protocol{
	nft.IPv4: {
		family: unix.NFPROTO_IPV4, saddr: 12, daddr: 16, originalDaddr: expr.CtKeyDSTIP, icmp: unix.IPPROTO_ICMP, echoRequest: 8,
		hostUnreachable: 1, portUnreachable: 3, address: 7, headerDesc: 12, headerDaddr: 12, loopback: netip.AddrFrom4([4]byte{127, 0, 0, 1}),
	},
	nft.IPv6: {
		family: unix.NFPROTO_IPV6, saddr: 8, daddr: 24, originalDaddr: expr.CtKeyDSTIP6, icmp: unix.IPPROTO_ICMPV6, echoRequest: 128,
		hostUnreachable: 3, portUnreachable: 4, address: 8, headerDesc: 13, headerDaddr: 9, loopback: netip.IPv6Loopback(),
	},
}

// stateInvalid is NF_CT_STATE_INVALID_BIT, what nft calls `ct state invalid`.
const stateInvalid = 1 << 0

// IPS_ASSURED and IPS_DST_NAT, what nft calls `ct status assured` and `ct status dnat`.
const (
	statusAssured = 1 << 2
	statusDNAT    = 1 << 5
)

// expressions encodes a rule as nf_tables expressions.
func expressions(f nft.Family, r nft.Rule) []expr.Any {
	e := encoder{Family: f}
	for _, s := range r {
		e.statement(s)
	}
	return e.out
}

// encoder writes the expressions of one rule.
type encoder struct {
	nft.Family
	out []expr.Any
}

func (e *encoder) add(more ...expr.Any) { e.out = append(e.out, more...) }

func (e *encoder) statement(s nft.Statement) {
	switch s := s.(type) {
	case nft.MatchProto:
		e.matchProto(byte(s.Proto))
	case nft.MatchPrefix:
		e.matchPrefix(s)
	case nft.MatchSet:
		e.load(s.Key, firstRegister)
		e.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Set, Invert: s.Negate})
	case nft.MatchNotDNAT:
		e.matchBit(&expr.Ct{Key: expr.CtKeySTATUS, Register: firstRegister}, statusDNAT, expr.CmpOpEq)
	case nft.MatchLocalSource:
		e.matchLocal(expr.Fib{FlagSADDR: true})
	case nft.MatchLocalDest:
		e.matchLocal(expr.Fib{FlagDADDR: true})
	case nft.MatchAssured:
		e.matchBit(&expr.Ct{Key: expr.CtKeySTATUS, Register: firstRegister}, statusAssured, expr.CmpOpNeq)
	case nft.MatchSYN:
		e.matchTCPFlag(flagSYN, expr.CmpOpNeq)
	case nft.MatchRST:
		e.matchTCPFlag(flagRST, expr.CmpOpNeq)
	case nft.MatchInitAck:
		e.matchProto(unix.IPPROTO_SCTP)
		e.add(payload(expr.PayloadBaseTransportHeader, offsetSCTPChunk, 1, firstRegister), equals([]byte{chunkInitAck}))
	case nft.MatchICMP:
		e.matchProto(protocols[e.Family].icmp)
	case nft.MatchReply:
		e.add(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: firstRegister}, equals([]byte{expr.CtDirReply}))
	case nft.MatchInvalid:
		e.matchBit(&expr.Ct{Key: expr.CtKeySTATE, Register: firstRegister}, stateInvalid, expr.CmpOpNeq)
	case nft.MatchNoSYN:
		e.matchTCPFlag(flagSYN, expr.CmpOpEq)
	case nft.MatchEchoRequest:
		e.matchProto(protocols[e.Family].icmp)
		e.add(payload(expr.PayloadBaseTransportHeader, offsetICMPType, 1, firstRegister), equals([]byte{protocols[e.Family].echoRequest}))
	case nft.MatchNotICMP:
		e.matchProto(protocols[e.Family].icmp)
		e.out[len(e.out)-1].(*expr.Cmp).Op = expr.CmpOpNeq
	case nft.VerdictMap:
		e.load(s.Key, firstRegister)
		e.add(&expr.Lookup{SourceRegister: firstRegister, SetName: s.Map, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true})
	case nft.DNAT:
		e.nat(expr.NATTypeDestNAT, s.Key, s.Map, s.KeepPort)
	case nft.SourceMap:
		e.nat(expr.NATTypeSourceNAT, s.Key, s.Map, s.KeepPort)
	case nft.Update:
		e.update(s)
	case nft.Over:
		e.add(limit(s.Rate))
	case nft.Delete:
		e.load(s.Key, firstRegister)
		e.add(&expr.Dynset{SrcRegKey: firstRegister, SetName: s.Set, Operation: dynsetDelete})
	case nft.MatchFast:
		e.matchFast(s)
	case nft.FlowAdd:
		e.add(&expr.FlowOffload{Name: s.Flowtable})
	case nft.SetTimeout:
		e.add(&expr.Objref{Type: objectTimeout, Name: s.Timeout.Name()})
	case nft.Counter:
		e.add(&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: s.Name}) // counter name "stray"
	case nft.Masquerade:
		e.add(&expr.Masq{}) // masquerade
	case nft.Redirect:
		e.add(&expr.Redir{}) // redirect
	case nft.Reject:
		e.reject(s.With)
	case nft.Verdict:
		e.verdict(s)
	default:
		panic("nft/kernel: statement of no kind")
	}
}

// matchProto appends the expressions of a match like `meta l4proto tcp`.
func (e *encoder) matchProto(proto byte) {
	e.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister}, equals([]byte{proto}))
}

func equals(data []byte) *expr.Cmp {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: data}
}

// matchPrefix appends the expressions of a match like `ip daddr 10.96.0.0/16`, or with != if negated. If the prefix ends at a byte boundary, only its
// bytes are loaded and compared; otherwise the whole address is masked and compared. nft does the same, so that it lists the match as a prefix. An
// address of conntrack is always loaded as a whole.
func (e *encoder) matchPrefix(m nft.MatchPrefix) {
	load := e.load1(m.Field, firstRegister)
	value, bits := m.Prefix.Masked().Addr().AsSlice(), m.Prefix.Bits()
	e.add(load)
	if bits > 0 && bits%8 == 0 {
		value = value[:bits/8]
		if header, is := load.(*expr.Payload); is {
			header.Len = uint32(len(value))
		}
	} else {
		e.add(masked(firstRegister, net.CIDRMask(bits, len(value)*8)))
	}
	compare := equals(value)
	if m.Negate {
		compare.Op = expr.CmpOpNeq
	}
	e.add(compare)
}

// matchBit appends the expressions that load conntrack data and test a bit. With != they match if it is set, as in `ct state invalid` and `ct status
// assured`; with == if it is not set, as in `ct status & dnat == 0`, which nft prints as `ct status ! dnat`.
func (e *encoder) matchBit(load *expr.Ct, bit uint32, compare expr.CmpOp) {
	e.add(load, masked(firstRegister, hostOrder(bit)), &expr.Cmp{Op: compare, Register: firstRegister, Data: hostOrder(0)})
}

// matchTCPFlag appends the expressions that test a flag. With != they match if it is set (`tcp flags syn`); with == if it is not set (`tcp flags &
// syn == 0`, which nft prints as `tcp flags ! syn`).
func (e *encoder) matchTCPFlag(flag byte, compare expr.CmpOp) {
	e.matchProto(unix.IPPROTO_TCP)
	e.add(payload(expr.PayloadBaseTransportHeader, offsetTCPFlags, 1, firstRegister),
		masked(firstRegister, []byte{flag}), &expr.Cmp{Op: compare, Register: firstRegister, Data: []byte{0}})
}

// matchLocal appends the expressions of `fib saddr type local` or `fib daddr type local`.
func (e *encoder) matchLocal(which expr.Fib) {
	which.Register, which.ResultADDRTYPE = firstRegister, true
	e.add(&which, equals(hostOrder(unix.RTN_LOCAL)))
}

// nat appends the expressions of a statement like `dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 5 map @backends`, or `snat ip to
// ip saddr . th sport map @adopted`. The address and port from the map are loaded into the registers of the key.
func (e *encoder) nat(kind expr.NATType, key []nft.Field, set string, keepPort bool) {
	e.load(key, firstRegister)
	to := &expr.NAT{
		Type: kind, Family: uint32(protocols[e.Family].family),
		RegAddrMin: firstRegister, RegProtoMin: firstRegister + registers(e.AddrLen()),
	}
	if keepPort {
		to.RegProtoMin = 0
	}
	e.add(&expr.Lookup{SourceRegister: firstRegister, SetName: set, DestRegister: firstRegister, IsDestRegSet: true}, to)
}

// reject appends the expressions of `reject with tcp reset`, `reject with icmp port-unreachable` or `reject with icmp host-unreachable`.
func (e *encoder) reject(with nft.RejectWith) {
	r := &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH}
	switch with {
	case nft.RejectTCPReset:
		r.Type = unix.NFT_REJECT_TCP_RST
	case nft.RejectPortUnreachable:
		r.Code = protocols[e.Family].portUnreachable
	case nft.RejectHostUnreachable:
		r.Code = protocols[e.Family].hostUnreachable
	default:
		panic("nft/kernel: reject of no kind")
	}
	e.add(r)
}

// verdict appends the expression of a verdict: `accept`, `drop`, `return`, `goto pick-5` or `jump pick-5`.
func (e *encoder) verdict(v nft.Verdict) {
	kinds := map[nft.VerdictKind]expr.VerdictKind{
		nft.Accept: expr.VerdictAccept,
		nft.Drop:   expr.VerdictDrop,
		nft.Return: expr.VerdictReturn,
		nft.Goto:   expr.VerdictGoto,
		nft.Jump:   expr.VerdictJump,
	}
	e.add(&expr.Verdict{Kind: kinds[v.Kind], Chain: v.Chain})
}

// load reads fields into consecutive registers, which is how nf_tables concatenates,
// and returns the next free one.
func (e *encoder) load(fields []nft.Field, r register) (next register) {
	for _, field := range fields {
		e.field(field, r)
		r += registers(field.Type().Len(e.Family))
	}
	return r
}

// registers returns the number of 4-byte registers for a number of bytes.
func registers(bytes int) uint32 { return uint32(nfnetlink.Align(bytes) / 4) }

// field loads a field into the registers starting at r.
func (e *encoder) field(field nft.Field, r register) {
	switch field.Kind {
	case nft.FieldHashSource: // jhash ip saddr mod 256 seed 0x73766363
		e.hash(field, r, nft.Saddr)
	case nft.FieldHashFlow: // jhash ip saddr . th sport mod 256 seed 0x73766363
		e.hash(field, r, nft.Saddr, nft.Sport)
	default:
		e.add(e.load1(field, r))
	}
	if field.Bits > 0 { // ip saddr & 255.255.255.0
		e.add(masked(r, field.Mask(e.Family).AsSlice()))
	}
	if field.Ranged { // see swapHostOrder
		e.add(&expr.Byteorder{SourceRegister: r, DestRegister: r, Op: expr.ByteorderHton, Len: 4, Size: 4})
	}
}

// hashedBehind is the distance, in registers, from the register of a hash to the registers of the fields that are hashed.
const hashedBehind = 5

// hash computes the hash of some fields (the parameter of) and loads it into r. The fields themselves are loaded hashedBehind registers after r, as
// nft does. This overwrites no field of the key, because the hash is the last field of every key.
func (e *encoder) hash(field nft.Field, r register, of ...nft.Field) {
	from := r + hashedBehind
	end := e.load(of, from)
	e.add(&expr.Hash{
		SourceRegister: from, DestRegister: r, Length: (end - from) * 4,
		Modulus: field.Mod, Seed: nft.HashSeed, Type: expr.HashTypeJenkins,
	})
}

// load1 returns the expression that reads a field, for fields that need only one expression.
func (e *encoder) load1(field nft.Field, r register) expr.Any {
	switch protocol := &protocols[e.Family]; field.Kind {
	case nft.FieldSaddr: // ip saddr
		return payload(expr.PayloadBaseNetworkHeader, protocol.saddr, uint32(e.AddrLen()), r)
	case nft.FieldDaddr: // ip daddr
		return payload(expr.PayloadBaseNetworkHeader, protocol.daddr, uint32(e.AddrLen()), r)
	case nft.FieldL4Proto: // meta l4proto
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: r}
	case nft.FieldSport: // th sport
		return payload(expr.PayloadBaseTransportHeader, offsetSport, 2, r)
	case nft.FieldDport: // th dport
		return payload(expr.PayloadBaseTransportHeader, offsetDport, 2, r)
	case nft.FieldOriginalDaddr: // ct original ip daddr; the key without a family cannot be listed
		return &expr.Ct{Key: protocol.originalDaddr, Direction: expr.CtDirOriginal, Register: r}
	case nft.FieldOriginalDport: // ct original proto-dst
		return &expr.Ct{Key: expr.CtKeyPROTODST, Direction: expr.CtDirOriginal, Register: r}
	case nft.FieldNumgen: // numgen random mod 5
		return &expr.Numgen{Register: r, Modulus: field.Mod, Type: unix.NFT_NG_RANDOM, Offset: field.Offset}
	case nft.FieldTurn: // numgen inc mod 5
		return &expr.Numgen{Register: r, Modulus: field.Mod, Type: unix.NFT_NG_INCREMENTAL}
	case nft.FieldPort: // 8443
		return &expr.Immediate{Register: r, Data: binary.BigEndian.AppendUint16(nil, field.Port)}
	case nft.FieldIif: // iif
		return &expr.Meta{Key: expr.MetaKeyIIF, Register: r}
	case nft.FieldOif: // oif
		return &expr.Meta{Key: expr.MetaKeyOIF, Register: r}
	}
	panic("nft/kernel: field of no kind")
}

func payload(base expr.PayloadBase, offset, length uint32, r register) *expr.Payload {
	return &expr.Payload{OperationType: expr.PayloadLoad, Base: base, Offset: offset, Len: length, DestRegister: r}
}

// masked returns an expression that clears the bits outside mask in the registers starting at r.
func masked(r register, mask []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: r, DestRegister: r, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))}
}

// hostOrder returns the 4 bytes of a number in host byte order, as the kernel holds it in a register.
func hostOrder(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// dynsetDelete is NFT_DYNSET_OP_DELETE (linux/netfilter/nf_tables.h), since kernel 5.4.
const dynsetDelete = 2

// update appends the expressions of a statement like `update @affinity-1 { ip saddr timeout 3h : ip daddr . th dport }`, or the same with `add`.
func (e *encoder) update(u nft.Update) {
	dynset := &expr.Dynset{
		SrcRegKey: firstRegister, SetName: u.Map,
		Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: u.Timeout,
	}
	if u.Add {
		dynset.Operation = unix.NFT_DYNSET_OP_ADD
	}
	if u.Rate.Count > 0 {
		dynset.Exprs = append(dynset.Exprs, limit(u.Rate))
	}
	if u.Connections > 0 {
		dynset.Exprs = append(dynset.Exprs, &expr.Connlimit{Count: u.Connections, Flags: expr.NFT_CONNLIMIT_F_INV})
	}
	next := e.load(u.Key, firstRegister)
	if len(u.Data) > 0 {
		dynset.SrcRegData = firstRegister + (next-firstRegister+3)/4*4 // the next block of 16 bytes, where nft puts values that are not part of a concatenation
		e.load(u.Data, dynset.SrcRegData)
	}
	e.add(dynset)
}

// limit returns the expression of a rate limit like `limit rate over 100/second burst 100 packets`.
func limit(r nft.Rate) *expr.Limit {
	return &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(r.Count), Over: true, Unit: expr.LimitTime(r.Per / time.Second), Burst: r.Burst()}
}
