package node

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace runs a test in a network namespace of its own, on a thread that ends
// with it. Goroutines that the test starts are in the old namespace.
func inNamespace(t *testing.T, test func(t *testing.T, box *box)) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("PRIVILEGED TEST cannot run: it must be root to make network namespaces")
		}
		t.Skip("PRIVILEGED TEST SKIPPED: it must be root to make network namespaces")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread is not used again
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("make a network namespace: %v", err)
			return
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			t.Errorf("open rtnetlink: %v", err)
			return
		}
		defer h.Close()
		test(t, &box{t, h})
	}()
	<-done
}

// box changes the host of a test.
type box struct {
	*testing.T
	*netlink.Handle
}

func (b *box) must(err error) {
	b.Helper()
	if err != nil {
		b.Error(err)
		runtime.Goexit()
	}
}

// addLink makes an interface that is down. Its other end stays down too.
func (b *box) addLink(name string) netlink.Link {
	b.Helper()
	b.must(b.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "far-" + name}))
	link, err := b.LinkByName(name)
	b.must(err)
	return link
}

func (b *box) addAddr(link netlink.Link, prefix string) {
	b.Helper()
	addr, err := netlink.ParseAddr(prefix)
	b.must(err)
	addr.Flags = unix.IFA_F_NODAD
	b.must(b.AddrAdd(link, addr))
}

func (b *box) addDefault(link netlink.Link, gateway, source string) {
	b.Helper()
	b.must(b.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway), Src: net.ParseIP(source)}))
}

// global leaves out the link-local addresses that IPv6 makes by itself.
func global(f Facts) (prefixes []string) {
	for _, a := range f.Addresses {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			prefixes = append(prefixes, a.Interface+" "+a.Prefix.String())
		}
	}
	return prefixes
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestRead(t *testing.T) {
	inNamespace(t, func(t *testing.T, b *box) {
		lo, err := b.LinkByName("lo")
		b.must(err)
		ext, alt, down := b.addLink("ext0"), b.addLink("alt0"), b.addLink("down0")
		b.addAddr(ext, "192.0.2.1/24")
		b.addAddr(ext, "2001:db8::1/64")
		b.addAddr(alt, "192.0.3.1/24")
		b.addAddr(alt, "192.0.3.9/32")
		b.addAddr(down, "192.0.4.1/24")
		for _, link := range []netlink.Link{lo, ext, alt} {
			b.must(b.LinkSetUp(link))
		}
		b.addDefault(alt, "192.0.3.254", "")
		b.addDefault(ext, "2001:db8::fe", "")
		f, err := Read()
		b.must(err)
		if got, want := global(f), []string{
			"lo 127.0.0.1/8", "lo ::1/128", "ext0 192.0.2.1/24", "ext0 2001:db8::1/64", "alt0 192.0.3.1/24", "alt0 192.0.3.9/32",
		}; !reflect.DeepEqual(got, want) {
			t.Errorf("addresses are %v\nwant %v", got, want)
		}
		if want := addrs("192.0.3.1", "2001:db8::1"); !reflect.DeepEqual(f.Primary, want) {
			t.Errorf("primary addresses are %v, want %v", f.Primary, want)
		}
		if want := addrs("192.0.3.254", "2001:db8::fe"); !reflect.DeepEqual(f.Gateways, want) {
			t.Errorf("gateways are %v, want %v", f.Gateways, want)
		}
		want := []Interface{
			{1, "lo", true, false, false}, {uint32(ext.Attrs().Index), "ext0", false, false, true}, {uint32(alt.Attrs().Index), "alt0", false, false, true},
		}
		if !reflect.DeepEqual(f.Interfaces, want) {
			t.Errorf("interfaces are %v, want %v", f.Interfaces, want)
		}
	})
}

// The oldest address of an interface came with it; networks without a next hop are connected.
func TestBridges(t *testing.T) {
	inNamespace(t, func(t *testing.T, b *box) {
		for name, prefix := range map[string]string{"br4": "192.0.2.1/24", "br6": "2001:db8::1/64", "plain": "", "down": "192.0.3.1/24"} {
			b.must(b.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}))
			link, err := b.LinkByName(name)
			b.must(err)
			if prefix != "" {
				b.addAddr(link, prefix)
			}
			if name != "down" {
				b.must(b.LinkSetUp(link))
			}
		}
		ext := b.addLink("ext0")
		b.addAddr(ext, "192.0.4.1/24")
		b.must(b.LinkSetUp(ext))
		port := b.addLink("port0")
		bridge, err := b.LinkByName("br4")
		b.must(err)
		b.must(b.LinkSetMaster(port, bridge))
		b.must(b.LinkSetUp(port))
		f, err := Read()
		b.must(err)
		var forwards []string
		for _, i := range f.Interfaces {
			if i.Forwards {
				forwards = append(forwards, i.Name)
			}
		}
		slices.Sort(forwards)
		if want := []string{"br4", "br6", "ext0", "plain"}; !slices.Equal(forwards, want) {
			t.Errorf("what is routed leaves by %v, want %v without the port of a bridge", forwards, want)
		}
		got := f.Bridges()
		slices.Sort(got)
		if want := []string{"br4", "br6"}; !slices.Equal(got, want) {
			t.Errorf("bridges with an address are %v, want %v", got, want)
		}
	})
}

func TestFirstAndConnected(t *testing.T) {
	inNamespace(t, func(t *testing.T, b *box) {
		lo, err := b.LinkByName("lo")
		b.must(err)
		ext := b.addLink("ext0")
		for _, prefix := range []string{"192.0.2.9/24", "192.0.2.1/24", "198.51.100.1/24", "2001:db8::9/64", "2001:db8::1/64"} {
			b.addAddr(ext, prefix)
		}
		b.addAddr(lo, "198.51.100.2/24")
		for _, link := range []netlink.Link{lo, ext} {
			b.must(b.LinkSetUp(link))
		}
		b.addDefault(ext, "192.0.2.254", "")
		_, onLink, _ := net.ParseCIDR("10.96.5.0/24")
		b.must(b.RouteAdd(&netlink.Route{LinkIndex: ext.Attrs().Index, Dst: onLink, Scope: netlink.SCOPE_LINK}))
		_, routed, _ := net.ParseCIDR("10.97.0.0/24")
		b.must(b.RouteAdd(&netlink.Route{Dst: routed, Gw: net.ParseIP("192.0.2.254")}))
		f, err := Read()
		b.must(err)
		var first []netip.Addr
		for _, a := range f.Addresses {
			if a.First {
				first = append(first, a.Prefix.Addr())
			}
		}
		if want := addrs("192.0.2.9", "2001:db8::9"); !reflect.DeepEqual(first, want) {
			t.Errorf("first addresses are %v, want %v", first, want)
		}
		if want := addrs("192.0.2.9"); !reflect.DeepEqual(f.Primary[:1], want) {
			t.Errorf("primary addresses are %v, want %v", f.Primary, want)
		}
		var connected []string
		for _, p := range f.Connected {
			if !p.Addr().IsLinkLocalUnicast() {
				connected = append(connected, p.String())
			}
		}
		if want := []string{"10.96.5.0/24", "192.0.2.0/24", "198.51.100.0/24", "2001:db8::/64"}; !reflect.DeepEqual(connected, want) {
			t.Errorf("connected networks are %v, want %v", connected, want)
		}
	})
}

func TestPrimary(t *testing.T) {
	for _, test := range []struct {
		name   string
		source string // of the default route; "-": no route
		want   string
	}{
		{"preferred source of the default route", "192.0.2.7", "192.0.2.7"},
		{"first address of its interface", "", "192.0.2.1"},
		{"no default route", "-", "192.0.2.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNamespace(t, func(t *testing.T, b *box) {
				ext := b.addLink("ext0")
				b.addAddr(ext, "192.0.2.1/24")
				b.addAddr(ext, "192.0.2.7/24")
				b.must(b.LinkSetUp(ext))
				if test.source != "-" {
					b.addDefault(ext, "192.0.2.254", test.source)
				}
				f, err := Read()
				b.must(err)
				if want := addrs(test.want); !reflect.DeepEqual(f.Primary, want) {
					t.Errorf("primary addresses are %v, want %v", f.Primary, want)
				}
			})
		})
	}
}

func TestUsable(t *testing.T) {
	for _, test := range []struct {
		flags int
		want  bool
	}{
		{0, true},
		{unix.IFA_F_PERMANENT, true},
		{unix.IFA_F_DEPRECATED, true},
		{unix.IFA_F_TENTATIVE, false},
		{unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC, true},
		{unix.IFA_F_DADFAILED | unix.IFA_F_TENTATIVE, false},
		{unix.IFA_F_DADFAILED | unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC, false},
	} {
		if got := usable(netlink.Addr{Flags: test.flags}); got != test.want {
			t.Errorf("an address with flags %#x is usable: %v", test.flags, got)
		}
	}
}

func TestWatch(t *testing.T) {
	inNamespace(t, func(t *testing.T, b *box) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		facts, err := Watch(ctx, slog.New(slog.NewTextHandler(io.Discard, nil)))
		b.must(err)
		// settled gives the facts once they are as wanted.
		settled := func(want ...string) {
			t.Helper()
			deadline := time.After(time.Minute)
			var got []string
			for {
				select {
				case f := <-facts:
					if got = global(f); reflect.DeepEqual(got, want) {
						return
					}
				case <-deadline:
					t.Errorf("addresses are %v, want %v", got, want)
					runtime.Goexit()
				}
			}
		}
		settled()
		ext := b.addLink("ext0")
		b.must(b.LinkSetUp(ext))
		b.addAddr(ext, "192.0.2.1/24")
		settled("ext0 192.0.2.1/24")
		b.addAddr(ext, "2001:db8::1/64")
		settled("ext0 192.0.2.1/24", "ext0 2001:db8::1/64")
		b.must(b.LinkSetDown(ext))
		settled()
		b.must(b.LinkSetUp(ext))
		settled("ext0 192.0.2.1/24")
		b.must(b.LinkDel(ext))
		settled()

		// A change that changes nothing we know of is not told.
		other := b.addLink("other0")
		b.must(b.LinkSetMTU(other, 1400))
		b.addAddr(other, "192.0.4.1/24")
		select {
		case f := <-facts:
			t.Errorf("facts are told again: %+v", f)
		case <-time.After(5 * atMost): // real time: nothing comes meanwhile
		}
	})
}

// A burst of changes comes as few facts, and a reader who was away gets the newest.
func TestWatchBurst(t *testing.T) {
	inNamespace(t, func(t *testing.T, b *box) {
		facts, err := Watch(t.Context(), slog.New(slog.NewTextHandler(io.Discard, nil)))
		b.must(err)
		<-facts
		ext := b.addLink("ext0")
		b.must(b.LinkSetUp(ext))
		const count = 200
		for i := range count {
			b.addAddr(ext, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}).String()+"/32")
		}
		told := 0
		for deadline := time.After(time.Minute); ; {
			select {
			case f := <-facts:
				told++
				if len(global(f)) == count {
					if told > count/4 {
						t.Errorf("%d changes are told %d times", count, told)
					}
					return
				}
			case <-deadline:
				t.Error("the newest facts are not told")
				return
			}
		}
	})
}
