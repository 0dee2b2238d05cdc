package netlab

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The attributes of the protocol's part of a tuple, CTA_PROTO_ICMP_ID and CTA_PROTO_ICMPV6_ID of
// linux/netfilter/nfnetlink_conntrack.h. The type and the code follow on the id.
const (
	ctaProtoICMPID   = 4
	ctaProtoICMPv6ID = 7
)

// PingSource returns the source address with which a ping left the Host: the address that its answer is sent to. It is not valid
// if the connection table has no entry of the ping. Tests ask for it hundreds of times, and each start of conntrack costs. To get
// one entry takes the kernel a tenth of what a list does, for which it visits the tables of all namespaces.
func (h *Host) PingSource(from, to netip.Addr, id uint16) netip.Addr {
	h.t.Helper()
	family, source, destination := uint8(unix.AF_INET), nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	protocol, echo, idOf := uint8(unix.IPPROTO_ICMP), uint8(8), ctaProtoICMPID
	if to.Is6() {
		family, source, destination = unix.AF_INET6, nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
		protocol, echo, idOf = unix.IPPROTO_ICMPV6, 128, ctaProtoICMPv6ID
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	addresses := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	addresses.AddRtAttr(source, from.AsSlice())
	addresses.AddRtAttr(destination, to.AsSlice())
	ping := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ping.AddRtAttr(nl.CTA_PROTO_NUM, []byte{protocol})
	ping.AddRtAttr(idOf, nl.BEUint16Attr(id))
	ping.AddRtAttr(idOf+1, []byte{echo})
	ping.AddRtAttr(idOf+2, []byte{0})
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK) // an entry comes as if more followed
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	request.AddData(tuple)
	var entries [][]byte
	err := h.Do(func() (err error) {
		entries, err = request.Execute(unix.NETLINK_NETFILTER, 0)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return netip.Addr{}
	}
	if err != nil || len(entries) != 1 {
		h.t.Fatalf("host %s: get the entry of a ping: %d entries, %v", h.Name, len(entries), err)
	}
	reply := attribute(entries[0][nl.SizeofNfgenmsg:], nl.CTA_TUPLE_REPLY)
	at, _ := netip.AddrFromSlice(attribute(attribute(reply, nl.CTA_TUPLE_IP), uint16(destination)))
	return at
}

// attribute returns the value of the first netlink attribute of a kind; nil if there is none.
func attribute(b []byte, kind uint16) []byte {
	attributes, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil
	}
	for _, a := range attributes {
		if a.Attr.Type&nl.NLA_TYPE_MASK == kind {
			return a.Value
		}
	}
	return nil
}
