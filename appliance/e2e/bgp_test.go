package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// routedVIP is an address in a pool that no router has a route to.
func (f family) routedVIP(n int) string {
	return fmt.Sprintf(f.pick("198.18.0.%d", "2001:db8:99::%x"), 16+n)
}

// told has Services at addresses that no router knows, and an announcer with RTR as its peer.
func told(t *testing.T, announcer ...string) (b *box, a *netlab.Appliance) {
	t.Helper()
	b = newBox(t, flags{"metrics-listen": {metricsAddr}, "load-balancer-pool": {"198.18.0.16/28", "2001:db8:99::10/124"}})
	b.write("web.yaml", b.toldDocuments(b.L1))
	b.svcctl.Start()
	return b, b.svcctl.Announcer(append([]string{"--asn", "64512", "--peer", "tor=64513@192.0.2.254"}, announcer...)...)
}

func (b *box) toldDocuments(endpoints ...*netlab.Host) func(f family) []string {
	return func(f family) []string {
		balanced := func(name, ip string) string {
			return f.service(name, "type: LoadBalancer", "loadBalancerIP: "+ip, "ports: [{name: p80, port: 80}]")
		}
		return []string{
			balanced("web", f.routedVIP(1)), f.slice("web", "p80: 80", endpoints...),
			balanced("other", f.routedVIP(2)), f.slice("other", "p80: 80", b.R1),
		}
	}
}

// runs starts a router's program on a host and kills it when the test ends. What it says is shown if the test fails.
func runs(t testing.TB, h *netlab.Host, path string, args ...string) *os.Process {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(path)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := h.Do(cmd.Start); err != nil {
		t.Fatalf("start %s (.ci/deps installs it): %v", path, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
		if text, err := os.ReadFile(out.Name()); err == nil && t.Failed() {
			t.Logf("%s on %s:\n%s", filepath.Base(path), h.Name, text)
		}
	})
	return cmd.Process
}

// bird makes RTR a peer of the box with BIRD, with more options for the session and more protocols.
func (b *box) bird(t testing.TB, options, more string) bird {
	t.Helper()
	return birdOn(t, b.RTR, fmt.Sprintf(`
router id 192.0.2.254;
protocol device { scan time 1; }
protocol kernel { ipv4 { export where source = RTS_BGP; import none; }; }
protocol kernel { ipv6 { export where source = RTS_BGP; import none; }; }
protocol bgp box {
	local 192.0.2.254 as 64513;
	neighbor 192.0.2.1 as 64512;
	passive on;
	error wait time 1, 1;
	ipv4 { import all; export none; };
	ipv6 { import all; export none; };
	%s
}
%s`, options, more))
}

// birdOf starts BIRD on RTR.
func (b *box) birdOf(t *testing.T, text string) bird {
	t.Helper()
	return birdOn(t, b.RTR, text)
}

// bird is a BIRD that runs.
type bird struct {
	*os.Process
	control func(command string) string // by birdc
}

// birdOn starts BIRD on a host.
func birdOn(t testing.TB, h *netlab.Host, text string) bird {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "ctl")
	return bird{runs(t, h, "/usr/sbin/bird", "-f", "-c", config, "-s", socket), func(command string) string {
		out, errOut, _ := h.Run("/usr/sbin/birdc", "-s", socket, command)
		return out + errOut
	}}
}

// frr makes RTR a peer of the box with FRR.
func (b *box) frr(t *testing.T) {
	t.Helper()
	b.frrOf(t, `
router bgp 64513
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 192.0.2.254
 neighbor 192.0.2.1 remote-as 64512
 neighbor 192.0.2.1 passive
 address-family ipv4 unicast
  neighbor 192.0.2.1 activate
 exit-address-family
 address-family ipv6 unicast
  neighbor 192.0.2.1 activate
 exit-address-family
`, "zebra", "bgpd")
}

// frrOf starts programs of FRR on RTR. When all run, vtysh gives each what is its own of a configuration, as frr.service does with frr.conf.
func (b *box) frrOf(t *testing.T, text string, programs ...string) {
	t.Helper()
	b.frrOn(t, b.RTR, text, programs...)
}

// frrOn is frrOf on another host.
func (b *box) frrOn(t *testing.T, h *netlab.Host, text string, programs ...string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "frr") // the paths of its sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	owner, err := user.Lookup("frr") // whose rights it goes down to
	if err == nil {
		var uid, gid int
		_, err = fmt.Sscan(owner.Uid+" "+owner.Gid, &uid, &gid)
		err = errors.Join(err, os.Chown(dir, uid, gid))
	}
	if err != nil {
		t.Fatalf("FRR (.ci/deps installs it): %v", err)
	}
	for name, content := range map[string]string{"frr.conf": text, "vtysh.conf": "", "daemon.conf": "hostname router\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range programs {
		args := []string{"-f", filepath.Join(dir, "daemon.conf"), "-P", "0", "--vty_socket", dir, "-z", filepath.Join(dir, "zserv"), "-i", filepath.Join(dir, program+".pid"), "--log", "stdout"}
		if program == "bfdd" {
			args = append(args, "--bfdctl", filepath.Join(dir, "bfdd.sock"))
		}
		runs(t, h, "/usr/lib/frr/"+program, args...)
		eventually(t, time.Minute, func() error {
			_, err := os.Stat(filepath.Join(dir, program+".vty"))
			return err
		})
	}
	if out, errOut, err := h.Run("vtysh", "--config_dir", dir, "--vty_socket", dir, "-b"); err != nil {
		t.Fatalf("frr.conf: %v: %s%s", err, out, errOut)
	}
}

// routeTo is the route of RTR's kernel to an address alone.
func (b *box) routeTo(t *testing.T, f family, addr string) string {
	t.Helper()
	out, errOut, err := b.RTR.Run("ip", f.pick("-4", "-6"), "route", "show", addr+f.pick("/32", "/128"))
	if err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	return out
}

// leads waits until RTR's kernel sends an address to the box.
func (b *box) leads(t *testing.T, f family, addr string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if got := b.routeTo(t, f, addr); !strings.Contains(got, "via "+f.pick(netlab.BoxAddr4, netlab.BoxAddr6)+" ") {
			return fmt.Errorf("the router's kernel has %q for %s", got, addr)
		}
		return nil
	})
}

// leadsNowhere waits until RTR's kernel has no route to an address.
func (b *box) leadsNowhere(t *testing.T, f family, addr string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		if got := b.routeTo(t, f, addr); got != "" {
			return fmt.Errorf("the router's kernel still has %q for %s", got, addr)
		}
		return nil
	})
}

// peerProblem is the message of the problem PeerDown; "" without one.
func (b *box) peerProblem() string {
	for _, p := range b.status().Problems {
		if p.Reason == "PeerDown" {
			return p.Message
		}
	}
	return ""
}

// becomesProblem waits until the problem PeerDown has all words, or, without any, until there is none.
func (b *box) becomesProblem(t *testing.T, words ...string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		got := b.peerProblem()
		if len(words) == 0 && got != "" {
			return fmt.Errorf("still a problem: %s", got)
		}
		for _, w := range words {
			if !strings.Contains(got, w) {
				return fmt.Errorf("the problem is %q, want %q in it", got, w)
			}
		}
		return nil
	})
}

// Addresses of Services arrive as routes in the kernel of a router and lead its clients here, while somebody
// serves them and the announcer runs; with BGP alone nothing is heard on segments.
func Test325_routes_lead_to_the_box(t *testing.T) {
	for name, router := range map[string]func(t *testing.T, b *box){
		"BIRD": func(t *testing.T, b *box) { b.bird(t, "", "") },
		"FRR":  func(t *testing.T, b *box) { b.frr(t) },
	} {
		t.Run(name, func(t *testing.T) {
			b, announcer := told(t)
			router(t, b)
			for _, f := range families {
				if reply, err := b.EXT.Ask("tcp", f.at(f.routedVIP(1), 80)); err == nil {
					t.Fatalf("%s answers before there is a route", reply)
				}
			}
			announcer.Launch()
			b.each(t, func(t *testing.T, b *box, f family) {
				b.leads(t, f, f.routedVIP(1))
				b.becomes(t, f.routedVIP(1), "bgp tor announced")
				b.reaches(t, b.EXT, "tcp", f.at(f.routedVIP(1), 80), masq, f.on(80, b.L1)...)
			})
			if out, _, err := b.GW1.Run("cat", "/proc/net/packet"); err != nil || strings.Count(out, "\n") != 1 {
				t.Errorf("there are packet sockets on the box: %v\n%s", err, out)
			}
			b.rewrite("web.yaml", b.toldDocuments())
			b.each(t, func(t *testing.T, b *box, f family) {
				b.leadsNowhere(t, f, f.routedVIP(1))
				b.becomes(t, f.routedVIP(1), "no ready endpoint")
				b.leads(t, f, f.routedVIP(2))
			})
			b.rewrite("web.yaml", b.toldDocuments(b.L2))
			b.each(t, func(t *testing.T, b *box, f family) {
				b.leads(t, f, f.routedVIP(1))
				b.reaches(t, b.EXT, "tcp", f.at(f.routedVIP(1), 80), masq, f.on(80, b.L2)...)
			})
			announcer.Stop()
			for _, f := range families { // a stop returns when the routes are withdrawn
				b.leadsNowhere(t, f, f.routedVIP(1))
				b.leadsNowhere(t, f, f.routedVIP(2))
			}
		})
	}
}

// Neither the end of serve nor, with graceful restart, that of the announcer takes a route away, and what an
// announcer was told last it announces without serve. Stopping the announcer withdraws.
func Test326_routes_outlive_processes(t *testing.T) {
	b, announcer := told(t, "--graceful-restart", "120s")
	router := b.bird(t, "", "")
	announcer.Launch()
	for _, f := range families {
		b.becomes(t, f.routedVIP(1), "bgp tor announced")
		b.leads(t, f, f.routedVIP(1))
	}
	changes := b.RTR.Background("ip", "monitor", "route")
	for range 5 {
		b.svcctl.Kill()
		b.svcctl.Start()
	}
	for _, f := range families {
		b.becomes(t, f.routedVIP(1), "bgp tor announced")
	}
	b.svcctl.Kill()
	for range 2 {
		announcer.Kill()
		announcer.Launch()
		eventually(t, time.Minute, func() error {
			if !strings.Contains(announcer.Log(), "BGP session established") {
				return errors.New("no session yet")
			}
			// Routes that are still stale are deleted when the session is lost again (RFC 4724, section 4.2).
			if state := router.control("show protocols all box"); !strings.Contains(state, "Established") || strings.Contains(state, "graceful restart active") {
				return fmt.Errorf("the restart is not over:\n%s", state)
			}
			return nil
		})
	}
	for _, f := range families {
		b.leads(t, f, f.routedVIP(1))
		b.reaches(t, b.EXT, "tcp", f.at(f.routedVIP(1), 80), masq, f.on(80, b.L1)...)
	}
	for line := range strings.Lines(changes()) {
		if strings.HasPrefix(line, "Deleted") && (strings.Contains(line, "198.18.0.") || strings.Contains(line, "2001:db8:99:")) {
			t.Errorf("the router lost a route: %s", line)
		}
	}
	announcer.Stop() // that is meant: the router does not wait for a restart
	for _, f := range families {
		b.leadsNowhere(t, f, f.routedVIP(1))
	}
}

// A router that falls silent is noticed by BFD, told as a problem, and has its routes when it is back.
func Test327_BFD_notices_a_silent_router(t *testing.T) {
	b, announcer := told(t, "--bfd", "100msx25")
	router := b.bird(t, "bfd on;", `protocol bfd { interface "box" { min rx interval 100 ms; min tx interval 100 ms; multiplier 25; }; }`)
	announcer.Launch()
	eventually(t, time.Minute, func() error {
		if out, _, _ := b.svcctl.Svcctl("announce", "status"); !strings.Contains(out, " Up ") {
			return fmt.Errorf("BFD is not up:\n%s", out)
		}
		return nil
	})
	for _, f := range families {
		b.leads(t, f, f.routedVIP(1))
	}
	time.Sleep(2 * time.Second) // real time: BFD decides when it was up for a second
	if err := router.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.becomesProblem(t, "tor (192.0.2.254)", "BFD lost the peer")
	for _, f := range families {
		b.becomes(t, f.routedVIP(1), "bgp tor down")
	}
	if err := router.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.becomesProblem(t)
	for _, f := range families {
		b.becomes(t, f.routedVIP(1), "bgp tor announced")
		b.leads(t, f, f.routedVIP(1))
	}
}

// A router that cannot be spoken to is a problem that says why, and others are told nevertheless.
func Test328_peer_that_is_down(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte("wrong\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, announcer := told(t, "--peer", "gone=64514@192.0.2.77", "--peer-password-file", secret, "--community", "64512:7")
	b.bird(t, `password "right"; bfd off;`, "")
	announcer.Launch()
	eventually(t, time.Minute, func() error {
		var got []string
		for _, p := range b.status().Problems {
			if p.Reason == "PeerDown" {
				got = append(got, p.Message)
			}
		}
		text := strings.Join(got, "\n")
		if len(got) != 2 || !strings.Contains(text, "tor (192.0.2.254)") || !strings.Contains(text, "another password") || !strings.Contains(text, "gone (192.0.2.77)") {
			return fmt.Errorf("problems are:\n%s", text)
		}
		return nil
	})
	announcer.Stop()
	if err := os.WriteFile(secret, []byte("right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	announcer.Launch()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.leads(t, f, f.routedVIP(1))
		b.becomes(t, f.routedVIP(1), "bgp tor announced, bgp gone down")
	})
	b.becomesProblem(t, "gone (192.0.2.77)")
	for name, want := range map[string]int{
		`svcctl_bgp_session_up{peer="tor"}`: 1, `svcctl_bgp_routes{peer="tor"}`: 4, `svcctl_bgp_session_up{peer="gone"}`: 0, `svcctl_bgp_routes{peer="gone"}`: 0,
	} {
		if got := b.metric(t, name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
}

// Addresses on a segment are answered for there and announced by BGP, at the same time.
func Test329_segments_and_routers_together(t *testing.T) {
	b := newBox(t, flags{"load-balancer-pool": {"192.0.2.100-192.0.2.131", "2001:db8::100-2001:db8::131"}})
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.segmentVIP(1), "ports: [{name: p80, port: 80}]"), f.slice("web", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.bird(t, "", "")
	announcer := b.svcctl.Announcer("--l2", "ext0", "--asn", "64512", "--peer", "64513@192.0.2.254")
	announcer.Launch()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.becomes(t, f.segmentVIP(1), "l2 ext0 announced, bgp 192.0.2.254 announced")
		b.leads(t, f, f.segmentVIP(1))
		b.isAnswered(t, "when it is announced", f, f.segmentVIP(1), macInside(t, b.GW1, "ext0"))
		b.reaches(t, b.EXT, "tcp", f.at(f.segmentVIP(1), 80), masq, f.on(80, b.L1)...)
	})
}

// The configurations of examples/bgp bring a router and a box together, with BFD, and take no route that lies
// outside of the pools.
func TestExampleBGP(t *testing.T) {
	const example = "../../examples/bgp/"
	at := strings.NewReplacer("192.0.2.11", netlab.BoxAddr4, "192.0.2.1", "192.0.2.254")
	for name, router := range map[string]func(t *testing.T, b *box, config string){
		"bird.conf": func(t *testing.T, b *box, config string) { b.birdOf(t, config) },
		"frr.conf":  func(t *testing.T, b *box, config string) { b.frrOf(t, config, "zebra", "bgpd", "bfdd") },
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(example + name)
			if err != nil {
				t.Fatal(err)
			}
			b := newBox(t, flags{"load-balancer-pool": {"198.51.100.0/28,2001:db8:198::/124,198.18.0.16/28,2001:db8:99::10/124"}})
			b.write("web.yaml", func(f family) []string {
				return append(b.toldDocuments(b.L1)(f), f.service("inside", "type: LoadBalancer", "loadBalancerIP: "+f.lb(4), "ports: [{name: p80, port: 80}]"),
					f.slice("inside", "p80: 80", b.L2))
			})
			b.svcctl.Start()
			router(t, b, strings.NewReplacer("300 ms", "100 ms", "multiplier 3", "multiplier 25", "interval 300", "interval 100").Replace(at.Replace(string(text))))
			b.svcctl.Announcer("--asn", "64512", "--bfd", "100msx25", "--peer", "tor-1=64513@192.0.2.254").Launch()
			b.each(t, func(t *testing.T, b *box, f family) {
				b.leads(t, f, f.lb(4))
				b.reaches(t, b.EXT, "tcp", f.at(f.lb(4), 80), masq, f.on(80, b.L2)...)
				b.becomes(t, f.routedVIP(1), "bgp tor-1 announced")
				if got := b.routeTo(t, f, f.routedVIP(1)); got != "" {
					t.Errorf("the router took a route outside of the pools: %s", got)
				}
			})
			eventually(t, time.Minute, func() error {
				if out, _, _ := b.svcctl.Svcctl("announce", "status"); !strings.Contains(out, " Up ") {
					return fmt.Errorf("BFD is not up:\n%s", out)
				}
				return nil
			})
		})
	}
}
