package trace

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// Kind is the kind of decision in a Step.
type Kind uint8

// The kinds of steps (enum nft_trace_types).
const (
	KindPolicy Kind = unix.NFT_TRACETYPE_POLICY // a base chain ended with its policy
	KindReturn Kind = unix.NFT_TRACETYPE_RETURN // a chain ended and its caller goes on
	KindRule   Kind = unix.NFT_TRACETYPE_RULE   // a rule gave a verdict
)

// Step is one decision about a packet.
type Step struct {
	// Packet is the same for all steps of a packet (a hash: two packets may share it).
	Packet       uint32
	Family       string // of the table: ip, ip6, inet, bridge
	Table, Chain string
	Rule         uint64 // its handle, of KindRule
	Kind         Kind
	// Verdict is accept, drop, continue, return, queue, or "goto CHAIN", "jump CHAIN".
	Verdict string
	// Header is the packet as this chain sees it; nil but at a chain's first step.
	Header *Header
	// In and Out are interface indexes, 0 where there is none.
	In, Out int
	// Connection is the ID of the tracked connection, 0 before kernel 6.18.
	Connection uint32
}

// Header holds the fields of a packet's IP and transport headers that a story needs.
type Header struct {
	Protocol byte
	From, To netip.AddrPort // with port 0 for protocols without
	SYN      bool
}

var familyNames = map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_ARP: "arp"}

// The attributes of struct nft_trace that package unix lacks (kernel 6.18).
const traceConnectionID = 18

// decode reads a message of NFNLGRP_NFTRACE.
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
			if len(value) == 8 {
				s.Rule = binary.BigEndian.Uint64(value)
			}
		case unix.NFTA_TRACE_TYPE:
			s.Kind = Kind(number(value))
		case unix.NFTA_TRACE_ID:
			s.Packet = number(value)
		case unix.NFTA_TRACE_VERDICT:
			verdict = value
		case unix.NFTA_TRACE_POLICY:
			policy = value
		case unix.NFTA_TRACE_NETWORK_HEADER:
			network = value
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = value
		case unix.NFTA_TRACE_IIF:
			s.In = int(number(value))
		case unix.NFTA_TRACE_OIF:
			s.Out = int(number(value))
		case traceConnectionID:
			s.Connection = number(value)
		}
	}
	switch {
	case verdict != nil:
		s.Verdict = verdictText(verdict)
	case policy != nil:
		s.Verdict = codeText(int32(number(policy)))
	}
	s.Header = headerOf(network, transport)
	return s, s.Table != "" && s.Packet != 0
}

func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func verdictText(b []byte) string {
	code, chain := int32(0), ""
	for kind, value := range nfnetlink.Attributes(b) {
		switch kind {
		case unix.NFTA_VERDICT_CODE:
			code = int32(number(value))
		case unix.NFTA_VERDICT_CHAIN:
			chain = nfnetlink.Text(value)
		}
	}
	return strings.TrimSpace(codeText(code) + " " + chain)
}

// codeText names a verdict of the kernel.
func codeText(code int32) string {
	switch code {
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return "continue"
	case unix.NFT_JUMP:
		return "jump"
	case unix.NFT_GOTO:
		return "goto"
	case unix.NFT_RETURN:
		return "return"
	}
	switch code & 0xff { // the rest is the number of a queue
	case 0:
		return "drop"
	case 1:
		return "accept"
	case 2:
		return "stolen"
	case 3:
		return "queue"
	}
	return "unknown"
}

// headerOf reads the headers as far as they are there: the kernel gives the first bytes of each.
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
