package trace

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// message is one of NFNLGRP_NFTRACE with attributes.
func message(family byte, attributes map[uint16][]byte) *nfnetlink.Message {
	b := make([]byte, nfnetlink.GenHeaderLen)
	b[0] = family
	for kind, value := range attributes {
		b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = append(b, value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	return &nfnetlink.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE, Body: b}
}

func be32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func nested(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

func TestDecode(t *testing.T) {
	verdict := append(nested(unix.NFTA_VERDICT_CODE, be32(uint32(0xfffffffc))), nested(unix.NFTA_VERDICT_CHAIN, []byte("pick-3\x00\x00"))...) // NFT_GOTO
	ip := make([]byte, 20)
	ip[0], ip[9] = 0x45, unix.IPPROTO_TCP
	copy(ip[12:], netip.MustParseAddr("203.0.113.7").AsSlice())
	copy(ip[16:], netip.MustParseAddr("10.96.0.10").AsSlice())
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, 4000)
	binary.BigEndian.PutUint16(tcp[2:], 80)
	tcp[13] = 0x02
	s, ok := decode(message(unix.NFPROTO_IPV4, map[uint16][]byte{
		unix.NFTA_TRACE_TABLE: []byte("svcctl\x00"), unix.NFTA_TRACE_CHAIN: []byte("prerouting\x00"), unix.NFTA_TRACE_ID: be32(7),
		unix.NFTA_TRACE_RULE_HANDLE: binary.BigEndian.AppendUint64(nil, 12), unix.NFTA_TRACE_TYPE: be32(unix.NFT_TRACETYPE_RULE),
		unix.NFTA_TRACE_VERDICT: verdict, unix.NFTA_TRACE_NETWORK_HEADER: ip, unix.NFTA_TRACE_TRANSPORT_HEADER: tcp,
		unix.NFTA_TRACE_IIF: be32(3), traceConnectionID: be32(99),
	}))
	if !ok || s.Family != "ip" || s.Table != "svcctl" || s.Chain != "prerouting" || s.Rule != 12 || s.Kind != KindRule ||
		s.Verdict != "goto pick-3" || s.Packet != 7 || s.In != 3 || s.Connection != 99 {
		t.Errorf("%t %+v", ok, s)
	}
	if h := s.Header; h == nil || h.From.String() != "203.0.113.7:4000" || h.To.String() != "10.96.0.10:80" || !h.SYN {
		t.Errorf("the header is %+v", s.Header)
	}
	policy, ok := decode(message(unix.NFPROTO_INET, map[uint16][]byte{
		unix.NFTA_TRACE_TABLE: []byte("fw\x00"), unix.NFTA_TRACE_ID: be32(7), unix.NFTA_TRACE_TYPE: be32(unix.NFT_TRACETYPE_POLICY), unix.NFTA_TRACE_POLICY: be32(0),
	}))
	if !ok || policy.Verdict != "drop" || policy.Kind != KindPolicy || policy.Family != "inet" {
		t.Errorf("%t %+v", ok, policy)
	}
	if _, ok := decode(message(unix.NFPROTO_IPV4, nil)); ok {
		t.Error("an empty message is a step")
	}
}

// FuzzDecode: what the kernel may send in another version breaks nothing.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 6, 0, 0, 0, 0, 7})
	f.Fuzz(func(_ *testing.T, data []byte) {
		decode(&nfnetlink.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE, Body: data})
	})
}

func TestFilterExpressions(t *testing.T) {
	f := Filter{Family: nft.IPv6, From: netip.MustParsePrefix("2001:db8::/33"), To: netip.MustParseAddr("2001:db8::1"), Protocol: nft.UDP, Port: 53}
	var limit *expr.Limit
	var mask []byte
	for _, e := range f.expressions() {
		switch e := e.(type) {
		case *expr.Limit:
			limit = e
		case *expr.Bitwise:
			if mask == nil {
				mask = e.Mask
			}
		}
	}
	if limit == nil || limit.Rate != perSecond {
		t.Errorf("the trace is limited by %+v", limit)
	}
	if len(mask) != 16 || mask[3] != 0xff || mask[4] != 0x80 || mask[5] != 0 {
		t.Errorf("the mask of a /33 is %x", mask)
	}
}
