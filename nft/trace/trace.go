package trace

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// TableName is the name of the table that chooses the traced packets.
const TableName = "svcctl-trace"

// perSecond bounds the packets that are traced in a second.
const perSecond = 10

// buffer is the size of the receive buffer in bytes. It is not smaller than the default of Linux.
const buffer = 256 << 10

// Filter selects packets to trace. A zero field matches all.
type Filter struct {
	Family   nft.Family
	From     netip.Prefix
	To       netip.Addr
	Protocol nft.Protocol
	Port     uint16 // destination port; requires Protocol
	// Established selects packets of established connections instead of first packets.
	Established bool
}

// ErrBusy means that another trace is running. Only one trace can run at a time.
var ErrBusy = errors.New("another trace runs already: wait until it ends")

// Run traces the packets selected by filters until ctx is done. It calls the function each for every Step. netns is a file descriptor of the network
// namespace; 0 means the current one.
func Run(ctx context.Context, netns int, filters []Filter, each func(Step)) error {
	heard, err := nfnetlink.OpenStream(nfnetlink.Options{NetNS: netns}, nil, buffer, unix.NFNLGRP_NFTRACE)
	if err != nil {
		return fmt.Errorf("listen for traces: %w", err)
	}
	defer heard.Close()
	rules, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(netns))
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	defer func() { _ = rules.CloseLasting() }() // its table goes with it
	if err := choose(rules, filters, nftables.TableFlagOwner); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		// Before 5.12 a table has no owner.
		if err := choose(rules, filters, 0); err != nil {
			return err
		}
		defer remove(rules, filters)
	} else if err != nil {
		return err
	}
	ended := context.AfterFunc(ctx, func() { _ = heard.Close() })
	defer ended()
	for {
		datagram, err := heard.Next()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue // some were lost: a packet whose story has a gap
		case err != nil:
			return fmt.Errorf("listen for traces: %w", err)
		}
		for m := range nfnetlink.Messages(datagram) {
			if step, ok := decode(&m); ok && step.Table != TableName {
				each(step)
			}
		}
	}
}

func tableOf(f nft.Family, flags nftables.TableFlags) *nftables.Table {
	family := map[nft.Family]nftables.TableFamily{nft.IPv4: nftables.TableFamilyIPv4, nft.IPv6: nftables.TableFamilyIPv6}[f]
	return &nftables.Table{Family: family, Name: TableName, Flags: flags}
}

// remove deletes the trace tables, unless a socket owns them (flag owner).
func remove(conn *nftables.Conn, filters []Filter) {
	for _, f := range familiesOf(filters) {
		conn.DelTable(tableOf(f, 0))
	}
	_ = conn.Flush()
}

func familiesOf(filters []Filter) (families []nft.Family) {
	for _, f := range filters {
		if !slices.Contains(families, f.Family) {
			families = append(families, f.Family)
		}
	}
	return families
}

// choose adds the table that selects packets, for each family of the filters:
//
//	create table ip svcctl-trace { flags owner; }
//	chain prerouting { type filter hook prerouting priority mangle; … meta nftrace set 1; }
//	chain output { type filter hook output priority mangle; … meta nftrace set 1; }
func choose(conn *nftables.Conn, filters []Filter, flags nftables.TableFlags) error {
	for _, family := range familiesOf(filters) {
		table := conn.CreateTable(tableOf(family, flags))
		for name, hook := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput} {
			chain := conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityMangle})
			for _, f := range filters {
				if f.Family == family {
					conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: f.expressions()})
				}
			}
		}
	}
	err := conn.Flush()
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EPERM) {
		return ErrBusy
	}
	if err != nil {
		return fmt.Errorf("make table %s: %w", TableName, err)
	}
	return nil
}

// expressions returns the expressions of the rule that traces the packets of the filter: ip saddr … ip daddr … meta l4proto … th dport … ct state new
// limit rate 10/second meta nftrace set 1. It omits the matches for zero fields.
func (f *Filter) expressions() (out []expr.Any) {
	add := func(more ...expr.Any) { out = append(out, more...) }
	source, destination, length := uint32(12), uint32(16), uint32(4)
	if f.Family == nft.IPv6 {
		source, destination, length = 8, 24, 16
	}
	if f.From.IsValid() {
		add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: length},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: net.CIDRMask(f.From.Bits(), f.From.Addr().BitLen()), Xor: make([]byte, length)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.From.Masked().Addr().AsSlice()})
	}
	if f.To.IsValid() {
		add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: length},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.To.AsSlice()})
	}
	if f.Protocol != 0 {
		add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(f.Protocol)}})
	}
	if f.Port != 0 {
		add(&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(f.Port)})
	}
	state := uint32(expr.CtStateBitNEW | expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED)
	if f.Established {
		state = expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED
	}
	add(&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(state), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Limit{Type: expr.LimitTypePkts, Rate: perSecond, Unit: expr.LimitTimeSecond, Burst: perSecond},
		&expr.Immediate{Register: 1, Data: []byte{1}},
		&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: 1})
	return out
}

// Kind is the kind of a Step: the verdict of a rule, the return from a chain, or the policy of a base chain.
type Kind uint8

// The kinds of steps (enum nft_trace_types).
const (
	KindPolicy Kind = unix.NFT_TRACETYPE_POLICY // a base chain ended with its policy
	KindReturn Kind = unix.NFT_TRACETYPE_RETURN // a chain ended and evaluation continues in its caller
	KindRule   Kind = unix.NFT_TRACETYPE_RULE   // a rule gave a verdict
)

// Step is one step in the evaluation of a packet.
type Step struct {
	// Packet is an ID that all steps of a packet have in common. It is a hash, so two packets may have the same one.
	Packet       uint32
	Family       string // family of the table: ip, ip6, inet, bridge
	Table, Chain string
	Rule         uint64 // the handle of the rule, for KindRule
	Kind         Kind
	// Verdict is accept, drop, continue, return, queue, or "goto CHAIN", "jump CHAIN".
	Verdict string
	// Header holds the headers of the packet in this chain. It is set only in the first step of a chain, otherwise nil.
	Header *Header
	// In and Out are the indexes of the incoming and outgoing interface, 0 if there is none.
	In, Out int
	// Connection is the conntrack ID of the packet's connection; 0 before kernel 6.18.
	Connection uint32
}

// Header holds the fields of a packet's IP and transport headers that are used to describe a trace.
type Header struct {
	Protocol byte
	From, To netip.AddrPort // port 0 for protocols without ports
	SYN      bool
}

var familyNames = map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_ARP: "arp"}

// traceConnectionID is NFTA_TRACE_CT_ID (kernel 6.18), which package unix does not define.
const traceConnectionID = 18

// decode decodes a message of NFNLGRP_NFTRACE; false for other messages.
func decode(m *nfnetlink.Message) (s Step, ok bool) {
	if m.Kind != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
		return s, false
	}
	s.Family = familyNames[m.Family()]
	var network, transport, verdict, policy []byte
	for kind, value := range m.Attributes() {
		switch kind {
		case unix.NFTA_TRACE_TABLE:
			s.Table = nfnetlink.Text(value)
		case unix.NFTA_TRACE_CHAIN:
			s.Chain = nfnetlink.Text(value)
		case unix.NFTA_TRACE_RULE_HANDLE:
			s.Rule = nfnetlink.Number(value)
		case unix.NFTA_TRACE_TYPE:
			s.Kind = Kind(nfnetlink.Number(value))
		case unix.NFTA_TRACE_ID:
			s.Packet = uint32(nfnetlink.Number(value))
		case unix.NFTA_TRACE_VERDICT:
			verdict = value
		case unix.NFTA_TRACE_POLICY:
			policy = value
		case unix.NFTA_TRACE_NETWORK_HEADER:
			network = value
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = value
		case unix.NFTA_TRACE_IIF:
			s.In = int(nfnetlink.Number(value))
		case unix.NFTA_TRACE_OIF:
			s.Out = int(nfnetlink.Number(value))
		case traceConnectionID:
			s.Connection = uint32(nfnetlink.Number(value))
		}
	}
	switch {
	case verdict != nil:
		code, chain := int32(0), ""
		for kind, value := range nfnetlink.Attributes(verdict) {
			switch kind {
			case unix.NFTA_VERDICT_CODE:
				code = int32(nfnetlink.Number(value))
			case unix.NFTA_VERDICT_CHAIN:
				chain = nfnetlink.Text(value)
			}
		}
		s.Verdict = strings.TrimSpace(codeText(code) + " " + chain)
	case policy != nil:
		s.Verdict = codeText(int32(nfnetlink.Number(policy)))
	}
	s.Header = headerOf(network, transport)
	return s, s.Table != "" && s.Packet != 0
}

// rulesetVerdicts names the verdicts after which evaluation continues (NFT_*), packetVerdicts those that end it (NF_*).
var (
	rulesetVerdicts = map[int32]string{unix.NFT_CONTINUE: "continue", unix.NFT_BREAK: "continue", unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto", unix.NFT_RETURN: "return"}
	packetVerdicts  = map[int32]string{0: "drop", 1: "accept", 2: "stolen", 3: "queue"}
)

// codeText returns the name of a verdict code. For the verdict queue, the bits above the low byte are the number of the queue.
func codeText(code int32) string {
	return cmp.Or(rulesetVerdicts[code], packetVerdicts[code&0xff], "unknown")
}

// headerOf decodes the IP and transport headers. The kernel sends only their first bytes. It returns nil if the IP header is incomplete.
func headerOf(network, transport []byte) *Header {
	var h Header
	var from, to netip.Addr
	switch {
	case len(network) >= 20 && network[0]>>4 == 4:
		h.Protocol = network[9]
		from, to = netip.AddrFrom4([4]byte(network[12:16])), netip.AddrFrom4([4]byte(network[16:20]))
	case len(network) >= 40 && network[0]>>4 == 6:
		h.Protocol = network[6]
		from, to = netip.AddrFrom16([16]byte(network[8:24])), netip.AddrFrom16([16]byte(network[24:40]))
	default:
		return nil
	}
	var fromPort, toPort uint16
	switch nft.Protocol(h.Protocol) {
	case nft.TCP, nft.UDP, nft.SCTP:
		if len(transport) >= 4 {
			fromPort, toPort = binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
		}
		if nft.Protocol(h.Protocol) == nft.TCP && len(transport) >= 14 {
			const syn, ack = 0x02, 0x10
			h.SYN = transport[13]&(syn|ack) == syn
		}
	}
	h.From, h.To = netip.AddrPortFrom(from, fromPort), netip.AddrPortFrom(to, toPort)
	return &h
}
