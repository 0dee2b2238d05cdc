package kernel

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
)

// path is a client, a box and a server, with a VIP of each family on the box that the
// server stands behind.
type path struct {
	client, box, server *netlab.Host
	kernel              *Conn
	state               nft.State
	vips                map[nft.Family]netip.AddrPort
}

func newPath(t *testing.T) *path {
	newNamespace(t) // skips, or fails, where there is no privilege
	lab := netlab.New(t)
	p := &path{client: lab.Host("client"), box: lab.Router("box"), server: lab.Host("server")}
	lab.Segment("left").Attach(p.client, "eth0", "10.1.0.2/24", "fd00:1::2/64").Attach(p.box, "left0", "10.1.0.1/24", "fd00:1::1/64")
	lab.Segment("right").Attach(p.box, "right0", "10.2.0.1/24", "fd00:2::1/64").Attach(p.server, "eth0", "10.2.0.2/24", "fd00:2::2/64")
	p.client.Route("default", "10.1.0.1")
	p.client.Route("default", "fd00:1::1")
	p.server.Route("default", "10.2.0.1")
	p.server.Route("default", "fd00:2::1")
	p.server.Serve("tcp", 8080)
	p.server.Serve("tcp", 8081)

	p.vips = map[nft.Family]netip.AddrPort{
		nft.IPv4: netip.MustParseAddrPort("10.96.0.10:80"), nft.IPv6: netip.MustParseAddrPort("[fd00:96::10]:80"),
	}
	p.state = nft.State{Box: nft.Box{MasqueradeOnLink: true}, Services: map[string][]nft.ServicePort{}}
	for f, endpoint := range map[nft.Family]string{nft.IPv4: "10.2.0.2:8080", nft.IPv6: "[fd00:2::2]:8080"} {
		first := netip.MustParseAddrPort(endpoint)
		name := "default/" + f.String()
		p.state.Services[name] = []nft.ServicePort{{
			ID: name + "/p", Family: f, Protocol: nft.TCP, Affinity: time.Hour,
			Frontends: []nft.Frontend{{Addr: p.vips[f].Addr(), Port: p.vips[f].Port(), SNAT: nft.SNATNever}},
			Pools: [nft.NumPools][]netip.AddrPort{nft.PoolCluster: {
				first, netip.AddrPortFrom(first.Addr(), 8081),
			}},
		}}
	}
	var err error
	if p.kernel, err = Open(Options{NetNS: p.box.Namespace()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kernel.Close() })
	p.program(t)
	return p
}

func (p *path) program(t *testing.T) {
	t.Helper()
	have, generation := read(t, p.kernel)
	tr := compiled(p.state).From(have)
	commit(t, p.kernel, generation, tr.Apply.Ops...)
}

// Packets go where the committed rules say, and the clients they make the kernel
// addCapped stay with their endpoint.
func TestPacketsFollowWhatIsCommitted(t *testing.T) {
	p := newPath(t)
	for f, vip := range p.vips {
		tally := p.client.AskMany(20, "tcp", vip)
		t.Logf("%v: %v", f, tally)
		var first netlab.Reply
		for i := range 10 {
			reply, err := p.client.Ask("tcp", vip)
			if err != nil {
				t.Fatal(err)
			}
			if reply.Server != "server" || reply.Client.Addr().Is4() != (f == nft.IPv4) {
				t.Errorf("%v answers %v", vip, reply)
			}
			if i > 0 && reply.At != first.At {
				t.Errorf("a client of %v is sent to %v and then to %v", vip, first.At, reply.At)
			}
			first = reply
		}
		// The client is remembered on an endpoint; forgotten, it may get the other one.
		ports := map[uint16]bool{}
		for range 40 {
			forget := nft.ForgetData{Family: f, Data: []string{
				nft.AddrPortData(netip.AddrPortFrom(first.At.Addr(), 8080)), nft.AddrPortData(netip.AddrPortFrom(first.At.Addr(), 8081)),
			}}
			for _, set := range nft.Compile(p.state)[f].Sets {
				if !set.Dynamic || len(set.Data) == 0 {
					continue // no client is remembered there
				}
				forget.Set = set.Set
				if _, err := p.kernel.Forget(forget, 0); err != nil {
					t.Fatal(err)
				}
			}
			reply, err := p.client.Ask("tcp", vip)
			if err != nil {
				t.Fatal(err)
			}
			ports[reply.At.Port()] = true
		}
		if len(ports) != 2 {
			t.Errorf("a client of %v that is forgotten again and again is sent to ports %v", vip, ports)
		}
	}
}

// A client on the endpoint's own segment is masqueraded, because its answer would pass
// the box by: a lookup of an interface in ranges.
func TestInterfaceInRanges(t *testing.T) {
	p := newPath(t)
	p.state.Box.Interfaces = []nft.Interface{{Index: p.index(t, "left0"), Name: "left0", Prefixes: []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}}}
	p.client.Serve("tcp", 9090)
	for f, endpoint := range map[nft.Family]string{nft.IPv4: "10.1.0.77:9090", nft.IPv6: "[fd00:1::77]:9090"} {
		at := netip.MustParseAddrPort(endpoint)
		prefix := netip.PrefixFrom(at.Addr(), f.AddrLen()*8).String()
		p.client.AddAddr("eth0", prefix)
		p.state.Services["default/"+f.String()][0].Affinity = 0
		p.state.Services["default/"+f.String()][0].Pools[nft.PoolCluster] = []netip.AddrPort{at}
	}
	p.program(t)
	for f, vip := range p.vips {
		reply, err := p.client.Ask("tcp", vip)
		if err != nil {
			t.Errorf("%v: %v", vip, err)
			continue
		}
		if box := map[nft.Family]string{nft.IPv4: "10.1.0.1", nft.IPv6: "fd00:1::1"}[f]; reply.Client.Addr().String() != box {
			t.Errorf("the endpoint of %v sees %v, want the box", vip, reply.Client)
		}
	}
}

func (p *path) index(t *testing.T, name string) (index uint32) {
	t.Helper()
	err := p.box.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			index = uint32(i.Index)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// While a foreign flush has taken our tables away, established connections live on the
// sentinel; without one they are reset.
func TestConnectionsOutliveAFlush(t *testing.T) {
	for _, hold := range []bool{true, false} {
		p := newPath(t)
		if !p.kernel.Probe().Owner {
			t.Skip("this kernel has no table flag owner")
		}
		if hold {
			if err := p.kernel.HoldSentinel(); err != nil {
				t.Fatal(err)
			}
		}
		for f, vip := range p.vips {
			conn, err := p.client.Dial(vip)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			p.box.Nft("flush", "ruleset")
			wait := netlab.Within(time.Minute)
			if !hold {
				wait = netlab.Within(time.Second) // real time: silence
			}
			err = conn.Echo("still here", wait)
			if hold && err != nil {
				t.Errorf("%v: with a sentinel: %v", f, err)
			}
			if !hold && err == nil {
				t.Errorf("%v: a connection lives without a sentinel, so this test shows nothing", f)
			}
			p.program(t)
			if err := conn.Echo("and now", wait); hold && err != nil {
				t.Errorf("%v: after the tables came back: %v", f, err)
			}
		}
	}
}
