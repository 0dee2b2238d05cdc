package kernel

import (
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

type (
	writer  = nfnetlink.Writer
	message = nfnetlink.Message
)

// nftMessage is the type of an nf_tables message in a netlink header.
func nftMessage(kind uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | kind }

// protocolFamily is NFPROTO_IPV4 or NFPROTO_IPV6.
func protocolFamily(f nft.Family) uint8 {
	if f == nft.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}
