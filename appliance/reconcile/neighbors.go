package reconcile

import (
	"net/netip"
	"slices"
	"strconv"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/nft"
)

// unanswered returns the addresses that lie in the network of an interface and that neither the box
// answers for nor the announcer takes care of: neighbors get no answer by ARP (RFC 826) or NDP
// (RFC 4861), and only clients whose packets are routed to the box reach them.
func (g *Grants) unanswered(box *nft.Box, addrs []netip.Addr) []wire.Unanswered {
	var list []wire.Unanswered
	for _, a := range addrs {
		if at := onSegment(box, a); at != nil && !g.seenTo(a, at.name) && !node.AnswersFor(a, int(at.index)) {
			list = append(list, wire.Unanswered{Address: a.String(), Interface: at.name, Network: at.prefix.String()})
		}
	}
	return list
}

// segment is a network of an interface.
type segment struct {
	index  uint32
	name   string
	prefix netip.Prefix
}

// onSegment is the network that an address lies in which is none of the box's own; nil when
// there is none.
func onSegment(box *nft.Box, a netip.Addr) *segment {
	if slices.Contains(box.LocalAddresses, a) {
		return nil
	}
	for i := range box.Interfaces {
		for _, p := range box.Interfaces[i].Prefixes {
			if p.Contains(a) {
				return &segment{box.Interfaces[i].Index, box.Interfaces[i].Name, p}
			}
		}
	}
	return nil
}

// frontendAddrs are the addresses of a port.
func frontendAddrs(p *nft.ServicePort) (addrs []netip.Addr) {
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Addr.IsValid() {
			addrs = append(addrs, f.Addr)
		}
	}
	return addrs
}

func sortedAddrs(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

func texts[T any](list []T, text func(T) string) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = text(v)
	}
	return out
}

func portText(port uint16) string { return ":" + strconv.Itoa(int(port)) }
