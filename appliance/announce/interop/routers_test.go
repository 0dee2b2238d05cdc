package interop

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/announce/bgp"
	"svcctl.io/svcctl/appliance/netlab"
)

// The addresses of every test: a box, and a router with clients behind it.
const (
	boxAS, routerAS  = 64512, 64513
	box4, box6       = "192.0.2.11", "2001:db8:2::11"
	router4, router6 = "192.0.2.1", "2001:db8:2::1"
	vip4, vip6       = "203.0.113.1", "2001:db8:113::1"
)

// place is a network: client - router - box.
type place struct {
	t                   *testing.T
	lab                 *netlab.Lab
	client, router, box *netlab.Host
	other               *netlab.Host // see second
	link                *netlab.Segment
}

func newPlace(t *testing.T) *place {
	t.Helper()
	l := netlab.New(t)
	p := &place{t: t, lab: l, client: l.Host("client"), router: l.Router("router"), box: l.Router("box")}
	l.Segment("lan").Attach(p.client, "eth0", "10.1.0.2/24", "2001:db8:1::2/64").Attach(p.router, "eth1", "10.1.0.1/24", "2001:db8:1::1/64")
	p.link = l.Segment("link").Attach(p.router, "eth0", router4+"/24", router6+"/64").Attach(p.box, "eth0", box4+"/24", box6+"/64")
	p.client.Route("0.0.0.0/0", "10.1.0.1")
	p.client.Route("::/0", "2001:db8:1::1")
	p.box.Route("10.1.0.0/24", router4)
	p.box.Route("2001:db8:1::/64", router6)
	p.box.AddAddr("lo", vip4+"/32")
	p.box.AddAddr("lo", vip6+"/128")
	return p
}

// need is a program that the tests use.
func need(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this test needs %s: install the package %s (.ci/deps does)", name, pkg)
	}
	return path
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// bird starts BIRD on a Host with protocols besides those for the kernel, and gives its command
// line.
func bird(t *testing.T, h *netlab.Host, protocols string) (birdc func(command string) string) {
	t.Helper()
	birdc, _ = birdProcess(t, h, protocols)
	return birdc
}

func birdProcess(t *testing.T, h *netlab.Host, protocols string) (birdc func(command string) string, process *program) {
	t.Helper()
	program, control := need(t, "bird", "bird2"), need(t, "birdc", "bird2")
	dir := t.TempDir()
	socket := filepath.Join(dir, "ctl")
	config := write(t, dir, "bird.conf", `
router id 192.0.2.1;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { merge paths on; ipv4 { export where source = RTS_BGP; import none; }; }
protocol kernel { merge paths on; ipv6 { export where source = RTS_BGP; import none; }; }
`+protocols)
	process = start(t, h, nil, program, "-f", "-c", config, "-s", socket)
	return func(command string) string {
		out, _, err := h.Run(control, "-s", socket, command)
		if err != nil {
			return err.Error()
		}
		return out
	}, process
}

// birdPeer is a BGP protocol of BIRD for the box.
func birdPeer(name, neighbor, options string) string {
	return fmt.Sprintf(`
protocol bgp %s {
	local as %d;
	neighbor %s as %d;
	passive on;
	error wait time 1, 1;
	%s
}
`, name, routerAS, neighbor, boxAS, options)
}

const birdBoth = "ipv4 { import all; export none; }; ipv6 { import all; export none; };"

// frr starts zebra, bgpd and, if it is configured, bfdd on a Host, and gives the last of them.
func frr(t *testing.T, h *netlab.Host, bfd, config string) (process *program) {
	t.Helper()
	need(t, "vtysh", "frr")
	dir, err := os.MkdirTemp("", "frr") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// FRR drops its rights to those of its own user, which must reach its sockets.
	owner, err := user.Lookup("frr")
	if err == nil {
		var uid, gid int
		_, err = fmt.Sscan(owner.Uid+" "+owner.Gid, &uid, &gid)
		err = errors.Join(err, os.Chown(dir, uid, gid))
	}
	if err != nil {
		t.Fatal(err)
	}
	configs := map[string]string{"bgpd": config, "bfdd": bfd}
	for _, daemon := range []string{"zebra", "bgpd", "bfdd"} {
		if daemon == "bfdd" && bfd == "" {
			continue
		}
		file := write(t, dir, daemon+".conf", "hostname router\nlog stdout informational\n"+configs[daemon])
		args := []string{
			"-f", file, "-P", "0", "--vty_socket", dir, "-z", filepath.Join(dir, "zserv"),
			"-i", filepath.Join(dir, daemon+".pid"), "--log", "stdout",
		}
		if daemon == "bfdd" {
			args = append(args, "--bfdctl", filepath.Join(dir, "bfdd.sock"))
		}
		process = start(t, h, nil, filepath.Join("/usr/lib/frr", daemon), args...)
		process.vtysh = func(command string) string {
			out, _, err := h.Run("vtysh", "--vty_socket", dir, "-c", command)
			if err != nil {
				return err.Error()
			}
			return out
		}
		eventually(t, func() error {
			_, err := os.Stat(filepath.Join(dir, daemon+".vty"))
			return err
		})
	}
	return process
}

// frrBoth has FRR take both families over the sessions that are named.
func frrBoth(neighbors ...string) string {
	text := ""
	for _, family := range []string{"ipv4", "ipv6"} {
		text += " address-family " + family + " unicast\n"
		for _, n := range neighbors {
			text += "  neighbor " + n + " activate\n"
		}
		text += " exit-address-family\n"
	}
	return text
}

// peer is the router as a peer of the box.
func peer(addr string) bgp.Peer {
	return bgp.Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 0), LocalAS: boxAS, RemoteAS: routerAS, IPv4: true, IPv6: true}
}

func prefixes(all ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range all {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func vips() []netip.Prefix { return prefixes(vip4+"/32", vip6+"/128") }

// kernel lists the routes of a Host to a prefix, as the kernel has them.
func kernel(h *netlab.Host, prefix string) string {
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	out, _, err := h.Run("ip", family, "route", "show", prefix)
	if err != nil {
		return err.Error()
	}
	return out
}

// routed waits until the router's kernel sends both VIPs to the box.
func (p *place) routed(next4, next6 string) {
	p.t.Helper()
	for prefix, next := range map[string]string{vip4 + "/32": next4, vip6 + "/128": next6} {
		eventually(p.t, func() error {
			if got := kernel(p.router, prefix); !strings.Contains(got, "via "+next) && !strings.Contains(got, "via inet6 "+next) {
				return fmt.Errorf("the router's kernel has %q for %s, want it via %s", got, prefix, next)
			}
			return nil
		})
	}
}

// unrouted waits until the router's kernel has no route to the VIPs.
func (p *place) unrouted() {
	p.t.Helper()
	for _, prefix := range []string{vip4 + "/32", vip6 + "/128"} {
		eventually(p.t, func() error {
			if got := kernel(p.router, prefix); got != "" {
				return fmt.Errorf("the router's kernel still has %q for %s", got, prefix)
			}
			return nil
		})
	}
}

// second is another box with the same addresses.
func (p *place) second() *netlab.Host {
	p.t.Helper()
	other := p.lab.Router("other")
	p.other = other
	p.link.Attach(other, "eth0", "192.0.2.12/24", "2001:db8:2::12/64")
	other.Route("10.1.0.0/24", router4)
	other.Route("2001:db8:1::/64", router6)
	other.AddAddr("lo", vip4+"/32")
	other.AddAddr("lo", vip6+"/128")
	return other
}

// answeredBy asks at both VIPs, from the client.
func (p *place) answeredBy(name string) {
	p.t.Helper()
	host := p.box
	if name != host.Name {
		host = p.other
	}
	server := host.Serve("tcp", 80)
	defer server.Close()
	for _, vip := range []string{vip4, vip6} {
		reply, err := p.client.Ask("tcp", netip.AddrPortFrom(netip.MustParseAddr(vip), 80))
		if err != nil || reply.Server != name || reply.Client.Addr() != p.client.Addr4() && reply.Client.Addr() != p.client.Addr6() {
			p.t.Errorf("the client asked %s: %v, %v", vip, reply, err)
		}
	}
}
