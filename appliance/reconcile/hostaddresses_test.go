package reconcile

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfttest/fake"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// hostWith has addresses on ext0; those with a "!" came with the interface, and the one with
// "=" is what the host sends from.
func hostWith(texts ...string) *node.Facts {
	f := &node.Facts{Interfaces: []node.Interface{{Index: 2, Name: "ext0"}}}
	for _, text := range texts {
		p := netip.MustParsePrefix(strings.TrimRight(text, "!="))
		f.Addresses = append(f.Addresses, node.Address{Prefix: p, Interface: "ext0", Index: 2, First: strings.HasSuffix(text, "!")})
		if strings.HasSuffix(text, "=") {
			f.Primary = append(f.Primary, p.Addr())
		}
	}
	return f
}

func TestHostAddresses(t *testing.T) {
	cfg := config.Default()
	cfg.Addresses.LoadBalancerPools = []nft.Range{{First: netip.MustParseAddr("198.51.100.1"), Last: netip.MustParseAddr("198.51.100.9")}}
	cfg.Addresses.ExternalIPRanges.Prefixes = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/28")}
	services := map[netip.Addr]bool{}
	for _, text := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "198.51.100.3"} {
		services[netip.MustParseAddr(text)] = true
	}
	objects, err := store.Open(faulty.NewMemory(), cfg.Store())
	if err != nil {
		t.Fatal(err)
	}
	h := control.NewHostAddresses(cfg.IsSetAside, objects, control.NodeOwner)
	if err := h.Place(hostWith("192.0.2.3/24"), func(netip.Addr) (bool, error) { return false, nil }); err != nil { // it is the host's
		t.Fatal(err)
	}
	claimed := func(addr netip.Addr) (bool, error) { return services[addr], nil }
	for _, step := range []struct {
		name string
		host *node.Facts
		vips string
	}{
		{"the primary address is the host's", hostWith("192.0.2.1/24="), ""},
		{"one that was a Service's before it came", hostWith("192.0.2.1/24=", "192.0.2.2/24"), "192.0.2.2"},
		{"one that was the host's", hostWith("192.0.2.3/24", "192.0.2.2/24"), "192.0.2.2"},
		{"nobody's is the host's", hostWith("192.0.2.5/24", "192.0.2.2/24"), "192.0.2.2"},
		{"the host's comes back", hostWith("192.0.2.1/24", "192.0.2.5/24"), ""},
		{"a host prefix is not asked about", hostWith("192.0.2.2/32"), ""},
		{"set aside", hostWith("198.51.100.4/24", "203.0.113.4/24"), "198.51.100.4 203.0.113.4"},
		{"set aside, but first on its interface", hostWith("198.51.100.5/24!", "203.0.113.5/24="), ""},
		{"a Service's, and first on its interface", hostWith("198.51.100.3/24!"), "198.51.100.3"},
		{"link-local and loopback", hostWith("169.254.0.1/16", "127.0.0.1/8"), ""},
	} {
		if err := h.Place(step.host, claimed); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range step.host.Addresses {
			if h.IsVIP(a.Prefix.Addr()) {
				got = append(got, a.Prefix.Addr().String())
			}
		}
		if strings.Join(got, " ") != step.vips {
			t.Errorf("%s: VIPs are %v, want %s", step.name, got, step.vips)
		}
	}
	// What cannot be told is not the host's for good.
	asked := errors.New("no netlink")
	if err := h.Place(hostWith("192.0.2.9/24"), func(netip.Addr) (bool, error) { return false, asked }); !errors.Is(err, asked) {
		t.Errorf("place: %v", err)
	}
	services[netip.MustParseAddr("192.0.2.9")] = true
	if err := h.Place(hostWith("192.0.2.9/24"), claimed); err != nil || !h.IsVIP(netip.MustParseAddr("192.0.2.9")) {
		t.Errorf("it is no VIP; %v", err)
	}
	if (*control.HostAddresses)(nil).IsVIP(netip.MustParseAddr("192.0.2.9")) {
		t.Error("there is a VIP on no host")
	}
}

// A process that starts anew knows from the Node what was the host's, and from the store and
// the kernel what was a Service's.
func TestHostAddressesOverARestart(t *testing.T) {
	external := func(name, ip, addr string) string {
		return strings.Replace(web(name, ip, "10.1.0.1"), "spec: {", "spec: {externalIPs: ["+addr+"], ", 1)
	}
	r := newRig(t)
	r.host()
	r.write("a.yaml", external("a", "10.96.0.10", "203.0.113.9"))
	r.write("b.yaml", external("b", "10.96.0.11", "192.0.2.1"))
	r.step()
	r.want("203.0.113.9 . tcp . 80", "!192.0.2.1 . tcp . 80")
	for _, when := range []string{"with the kernel", "after a reboot"} {
		files := r.files
		if when == "after a reboot" {
			r.kernel = fake.New()
		}
		r.start()
		r.files = files
		r.observed.facts, r.observed.moved = hostWith("192.0.2.1/24!", "203.0.113.9/24"), true
		r.write("c.yaml", web("c", "10.96.0.12", "10.1.0.2"))
		r.step()
		r.want("203.0.113.9 . tcp . 80", "!192.0.2.1 . tcp . 80")
		o, _ := r.store.Get(object.Ref{Kind: object.KindNode, Name: "gw1"})
		var listed []string
		for _, a := range o.(*object.Node).Status.Addresses {
			listed = append(listed, a.Address)
		}
		if !slices.Equal(listed, []string{"192.0.2.1", "gw1"}) {
			t.Errorf("%s: the Node lists %v", when, listed)
		}
	}
	// On a box of which nothing is known, what is there was there first.
	r.engine = faulty.NewMemory()
	r.start()
	r.observed.facts, r.observed.moved = hostWith("192.0.2.1/24!", "203.0.113.8/24"), true
	r.write("a.yaml", external("a", "10.96.0.10", "203.0.113.8"))
	r.step()
	r.want("!203.0.113.8 . tcp . 80")
}
