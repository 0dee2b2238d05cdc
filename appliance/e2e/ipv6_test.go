package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// The example for IPv6 alone, on hosts that have no IPv4 address, not even 127.0.0.1: Services answer, a neighbor finds
// an address by NDP and a router the other one by BGP, every listener is reached, and no problem is about IPv4.
func Test777_box_without_IPv4(t *testing.T) {
	lab := netlab.New(t)
	client, router, box := lab.Host("client"), lab.Router("router"), lab.Router("box")
	servers := []*netlab.Host{lab.Host("s1"), lab.Host("s2")}
	lab.Segment("lan").Attach(box, "eth0", "2001:db8::11/64").Attach(router, "box", "2001:db8::1/64")
	lab.Segment("far").Attach(router, "cli", "2001:db8:c::1/64").Attach(client, "eth0", "2001:db8:c::2/64")
	back := lab.Segment("back").Attach(box, "eth1", "fd00:1:2::1/64")
	for i, s := range servers {
		back.Attach(s, "eth0", fmt.Sprintf("fd00:1:2::1%d/64", i+1))
		s.Route("::/0", "fd00:1:2::1")
		s.Serve("tcp", 8080, 8443)
	}
	client.Route("::/0", "2001:db8:c::1")
	box.Route("2001:db8:c::/64", "2001:db8::1")
	box.Sysctl("net.ipv4.ip_forward", "0")
	for _, h := range append([]*netlab.Host{client, router, box}, servers...) {
		if out, errOut, err := h.Run("ip", "-4", "addr", "flush", "dev", "lo"); err != nil {
			t.Fatalf("%v: %s%s", err, out, errOut)
		}
		if out, _, _ := h.Run("ip", "-4", "-o", "addr"); strings.TrimSpace(out) != "" {
			t.Fatalf("%s has an IPv4 address: %s", h.Name, out)
		}
	}
	const example = "../../examples/ipv6"
	svcctl := box.Appliance(binary, "--service-cluster-ip-range", "fd00:10:96::/112", "--load-balancer-pool", "2001:db8::200-2001:db8::220,2001:db8:198::/124",
		"--metrics-listen", "[::]:9753", "--listen", ":6443", "--dns-listen", "[::]:53")
	for _, name := range []string{"web.yaml", "api.yaml"} {
		text, err := os.ReadFile(filepath.Join(example, name))
		if err != nil {
			t.Fatal(err)
		}
		svcctl.Manifests.Write(name, string(text))
	}
	svcctl.Start()
	svcctl.Announcer("--l2", "eth0", "--asn", "64512", "--peer", "64513@2001:db8::1").Launch()
	text, err := os.ReadFile(filepath.Join(example, "bird.conf"))
	if err != nil {
		t.Fatal(err)
	}
	birdOn(t, router, string(text))

	answered := func(to string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			_, err := client.Ask("tcp", netip.MustParseAddrPort(to))
			return err
		})
	}
	answered("[2001:db8::200]:80")    // by NDP: the router asks
	answered("[2001:db8:198::1]:443") // by the route of BGP
	answered("[2001:db8::11]:30080")  // the node port
	if reply, err := client.Ask("tcp", netip.MustParseAddrPort("[2001:db8::200]:80")); err != nil || !slices.Contains([]string{"s1", "s2"}, reply.Server) {
		t.Errorf("the neighbor's address: %v, %v", reply, err)
	}
	if _, err := client.Ask("tcp", netip.MustParseAddrPort("[2001:db8::200]:81")); netlab.RefusalOf(err) != netlab.Refused {
		t.Errorf("another port of it: %v, want a refusal", err)
	}
	if mac := macOf(t, router, "box", ipv6, "2001:db8::201"); mac != "" {
		t.Errorf("%s answers for an address that nobody has", mac)
	}

	// Listeners at [::] and without a host.
	if answer, err := client.Get(netip.MustParseAddrPort("[2001:db8::11]:9753"), "/metrics"); err != nil || answer.Status != 200 {
		t.Errorf("metrics: %v, %v", answer.Status, err)
	}
	out, errOut, err := client.Run("curl", "-gsk", "-o", "/dev/null", "-w", "%{http_code}", "https://[2001:db8::11]:6443/livez")
	if err != nil || out != "200" {
		t.Errorf("the API: %s, %v %s", out, err, errOut)
	}
	out, _, _ = client.Run("dig", "+short", "+time=5", "@2001:db8::11", "AAAA", "web.default.svc.cluster.local")
	if !strings.HasPrefix(out, "fd00:10:96::") {
		t.Errorf("DNS answers %q", out)
	}

	// Nothing is said about IPv4.
	eventually(t, time.Minute, func() error {
		out, errOut, code := svcctl.Svcctl("status", "-o", "json")
		var status struct {
			Problems []struct{ Message string }
		}
		if err := json.Unmarshal([]byte(out), &status); err != nil || code != 0 || len(status.Problems) > 0 {
			return fmt.Errorf("status: exit code %d, %v: %v %s", code, err, status.Problems, errOut)
		}
		return nil
	})
	out, _, _ = svcctl.Svcctl("doctor", "-o", "json")
	var findings struct {
		Findings []struct{ Check, Level, Message string }
	}
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("doctor: %v: %s", err, out)
	}
	seen := false
	for _, f := range findings.Findings {
		if f.Check == "forwarding" {
			seen = true
			if f.Level != "ok" {
				t.Errorf("doctor: %+v", f)
			}
		}
	}
	if !seen {
		t.Errorf("doctor has no finding about forwarding: %s", out)
	}
	box.Sysctl("net.ipv6.conf.all.forwarding", "0")
	eventually(t, time.Minute, func() error {
		if out, _, _ := svcctl.Svcctl("status"); !strings.Contains(out, "sysctl -w net.ipv6.conf.all.forwarding=1`") || strings.Contains(out, "net.ipv4") {
			return fmt.Errorf("status: %s", out)
		}
		return nil
	})
}

// With the defaults a box without IPv4 has a warning that names the flag.
func Test778_defaults_without_IPv4(t *testing.T) {
	lab := netlab.New(t)
	box := lab.Router("box")
	lab.Segment("lan").Attach(box, "eth0", "2001:db8::11/64")
	svcctl := box.Appliance(binary)
	svcctl.Start()
	warned := func(want bool) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			out, _, _ := svcctl.Svcctl("status")
			if got := strings.Contains(out, "this box has no IPv4 address") && strings.Contains(out, "--service-cluster-ip-range"); got != want {
				return fmt.Errorf("a warning: %t, want %t: %s", got, want, out)
			}
			return nil
		})
	}
	warned(true)
	box.AddAddr("eth0", "192.0.2.11/24")
	warned(false)
}
