package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network interface that is up, with what the sender of frames needs.
type Link struct {
	Index int
	Name  string
	// MAC is its Ethernet address; nil when it is no Ethernet.
	MAC net.HardwareAddr
	// Carrier reports whether frames go out.
	Carrier bool
	// Addresses lists all addresses of the link, each with the prefix length of its segment.
	Addresses []netip.Prefix
}

// WatchLinks is Watch for links, sorted by index.
func WatchLinks(ctx context.Context, log *slog.Logger) (<-chan []Link, error) {
	return watch(ctx, log, readLinks, func(a, b *[]Link) bool { return reflect.DeepEqual(*a, *b) })
}

func readLinks(h *netlink.Handle) ([]Link, error) {
	all, err := h.LinkList()
	if err := partial(err); err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	var links []Link
	for _, l := range all {
		a := l.Attrs()
		if a.Flags&net.FlagUp == 0 {
			continue
		}
		link := Link{Index: a.Index, Name: a.Name, Carrier: a.Flags&net.FlagRunning != 0}
		if a.EncapType == "ether" && len(a.HardwareAddr) == 6 {
			link.MAC = a.HardwareAddr
		}
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		if errors.Is(err, unix.ENODEV) {
			continue // it has just gone
		}
		if err := partial(err); err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", a.Name, err)
		}
		for _, addr := range addrs {
			if p, ok := prefixOf(addr.IPNet); ok && usable(addr) {
				link.Addresses = append(link.Addresses, p)
			}
		}
		slices.SortFunc(link.Addresses, netip.Prefix.Compare)
		links = append(links, link)
	}
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Index, b.Index) })
	return links, nil
}
