package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/appliance/netlab"
)

// pair is two boxes between a segment with a client and one with a server. They have the same
// manifests.
type pair struct {
	t              *testing.T // nil in benchmarks
	client, server *netlab.Host
	lan            *netlab.Segment
	hosts          [2]*netlab.Host
	boxes          [2]*netlab.Appliance
	announcers     [2]*netlab.Appliance
}

// The addresses of the pair: of the Service, and of both families of a flow.
func (f family) pairVIP() netip.AddrPort { return f.at(f.pick("192.0.2.50", "2001:db8::50"), 80) }

// newPair makes both boxes, with announcers that are told flags, and starts the boxes.
func newPair(t *testing.T, announcer func(n int) []string) *pair {
	t.Helper()
	t.Parallel()
	p := makePair(t, announcer)
	p.t = t
	return p
}

// makePair is newPair for benchmarks, too.
func makePair(t testing.TB, announcer func(n int) []string) *pair {
	t.Helper()
	l := netlab.New(t)
	p := &pair{client: l.Host("client"), server: l.Host("server")}
	p.lan = l.Segment("lan").Attach(p.client, "eth0", "192.0.2.9/24", "2001:db8::9/64")
	inside := l.Segment("inside").Attach(p.server, "eth0", "10.1.0.11/24", "fd00:10:1::11/64")
	p.server.Serve("tcp", 80)
	p.server.Serve("udp", 80)
	for n := range p.hosts {
		box := p.attach(n, l, p.lan, inside)
		box.Manifests.Write("web.yaml", both(func(f family) []string {
			return []string{
				f.service("web", "type: LoadBalancer", "loadBalancerIP: "+f.pairVIP().Addr().String(),
					"ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]"),
				f.slice("web", "t: 80, u: 80/UDP", p.server),
			}
		}))
		box.Start()
		p.announcers[n] = box.Announcer(announcer(n)...)
	}
	return p
}

// attach makes one of the boxes between two segments, which has no manifests yet.
func (p *pair) attach(n int, l *netlab.Lab, lan, inside *netlab.Segment, more ...string) *netlab.Appliance {
	h := l.Router(fmt.Sprintf("box%d", n+1))
	lan.Attach(h, "lan0", fmt.Sprintf("192.0.2.%d/24", n+1), fmt.Sprintf("2001:db8::%d/64", n+1))
	inside.Attach(h, "int0", fmt.Sprintf("10.1.0.%d/24", n+1), fmt.Sprintf("fd00:10:1::%d/64", n+1))
	p.hosts[n], p.boxes[n] = h, h.Appliance(binary, append(more, "--node-name", h.Name, "--cluster-cidr", "10.0.0.0/8,fd00:10::/32",
		"--load-balancer-pool", "192.0.2.50-192.0.2.59,2001:db8::50-2001:db8::59")...)
	return p.boxes[n]
}

// answersAs waits until neighbors get answers from one of the boxes, and asserts that the other one is silent.
func (p *pair) answersAs(t *testing.T, n int) {
	t.Helper()
	want := macInside(t, p.hosts[n], "lan0")
	for _, f := range families {
		eventually(t, time.Minute, func() error {
			if mac := macOf(t, p.client, "eth0", f, f.pairVIP().Addr().String()); mac != want {
				return fmt.Errorf("%q answers for %s, want %s", mac, f.pairVIP().Addr(), want)
			}
			return nil
		})
	}
}

// asks asks by UDP, where nothing is sent twice, until the end is called, which gives how many were lost.
func (p *pair) asks(t *testing.T, f family) (end func() (asked, lost int)) {
	t.Log("asked under load: a failure counts at once")
	t.Helper()
	return asks(p.client, f.pairVIP(), 0, patiently)
}

// asks is that for a host and a frontend, with a pause after each question.
func asks(from *netlab.Host, to netip.AddrPort, pause time.Duration, opts ...netlab.Option) (end func() (asked, lost int)) {
	stop, done := make(chan struct{}), make(chan [2]int)
	go func() {
		var n [2]int
		for {
			select {
			case <-stop:
				done <- n
				return
			case <-time.After(pause):
			}
			n[0]++
			if _, err := from.Ask("udp", to, opts...); err != nil {
				n[1]++
			}
		}
	}()
	return func() (int, int) {
		close(stop)
		n := <-done
		return n[0], n[1]
	}
}

// election are flags of an election that the first box wins.
func election(n int) []string {
	return []string{"--l2", "lan0", "--vrid", "51", "--priority", fmt.Sprint(200 - n)}
}

// A planned hand-over loses nothing, and who was replaced does not take over again by itself.
func Test268_planned_hand_over(t *testing.T) {
	p := newPair(t, election)
	p.announcers[0].Launch()
	p.answersAs(t, 0)
	p.announcers[1].Launch()
	for _, f := range families {
		if err := p.client.Ping(f.pairVIP().Addr(), patiently); err != nil {
			t.Error(err)
		}
	}
	eventually(t, time.Minute, func() error { return p.says(1, "l2 lan0 standby 192.0.2.1") })
	p.answersAs(t, 0)
	for turn := range 4 {
		from, to := turn%2, (turn+1)%2
		end4, end6 := p.asks(t, ipv4), p.asks(t, ipv6)
		p.announcers[from].Stop()
		p.answersAs(t, to)
		for f, end := range map[family]func() (int, int){ipv4: end4, ipv6: end6} {
			asked, lost := end()
			if t.Logf("%s: %d asked, %d lost", f, asked, lost); lost > 0 {
				t.Errorf("%s: %d of %d were lost in a planned hand-over", f, lost, asked)
			}
		}
		p.announcers[from].Launch()
		eventually(t, time.Minute, func() error { return p.says(from, "l2 lan0 standby "+fmt.Sprintf("192.0.2.%d", to+1)) })
		p.answersAs(t, to)
	}
}

// says compares what a box tells of the Service's IPv4 address.
func (p *pair) says(n int, want string) error {
	b := &box{svcctl: p.boxes[n], t: p.t}
	if got := b.announcement(ipv4.pairVIP().Addr().String()); got != want {
		return fmt.Errorf("box %d says %q, want %q", n+1, got, want)
	}
	return nil
}

// The other box takes over when one dies, or its announcer does; when the dead one is back, there is
// one that answers.
func Test269_box_dies(t *testing.T) {
	p := newPair(t, election)
	p.announcers[0].Launch()
	p.answersAs(t, 0)
	p.announcers[1].Launch()
	eventually(t, time.Minute, func() error { return p.says(1, "l2 lan0 standby 192.0.2.1") })

	// On a busy machine the interval is longer than the 10cs that it is configured as.
	adverts, _, err := p.client.Run("timeout", "60", "tcpdump", "-n", "-v", "-c", "2", "-i", "eth0", "ip proto 112")
	if err != nil || !regexp.MustCompile(`VRRPv3, Advertisement, vrid 51, prio 200, intvl [1-5][0-9]cs`).MatchString(adverts) || !strings.Contains(adverts, "ttl 255") || strings.Contains(adverts, "bad") {
		t.Errorf("tcpdump reads adverts as %s (%v)", adverts, err)
	}
	p.hosts[0].SetDown("lan0")
	died := time.Now()
	eventually(t, time.Minute, func() error {
		_, err := p.client.Ask("udp", ipv4.pairVIP(), netlab.Within(20*time.Millisecond))
		return err
	})
	t.Logf("served again after %s", time.Since(died).Round(time.Millisecond))
	p.answersAs(t, 1)
	p.hosts[0].SetUp("lan0")
	p.hosts[0].AddAddr("lan0", "2001:db8::1/64") // goes with the link
	eventually(t, time.Minute, func() error { return p.says(0, "l2 lan0 standby 192.0.2.2") })
	p.answersAs(t, 1)

	p.announcers[1].Kill()
	p.answersAs(t, 0)
	if _, err := p.client.Ask("tcp", ipv6.pairVIP(), patiently); err != nil {
		t.Error(err)
	}
}

// With --follow the box answers that has an address, however it came there.
func Test270_follow_an_address(t *testing.T) {
	p := newPair(t, func(int) []string { return []string{"--follow", "192.0.2.3"} })
	for _, a := range p.announcers {
		a.Launch()
	}
	eventually(t, time.Minute, func() error { return p.says(0, "l2 lan0 standby") })
	for n := range p.hosts {
		p.hosts[n].AddAddr("lan0", "192.0.2.3/24")
		p.answersAs(t, n)
		eventually(t, time.Minute, func() error { return p.says(n, "l2 lan0 announced") }) // else the next standby may be the one before
		p.hosts[n].RemoveAddr("lan0", "192.0.2.3/24")
		eventually(t, time.Minute, func() error { return p.says(n, "l2 lan0 standby") })
	}
	if mac := macOf(t, p.client, "eth0", ipv4, ipv4.pairVIP().Addr().String()); mac != "" {
		t.Errorf("%s answers, and no box has the address", mac)
	}
}

// Adverts of the active box are lost on their way: both boxes have a problem, and the active one knows that it is the other
// that does not receive. With the adverts back, one box answers and no problem is left.
// One forged advert with the longest interval that there is silences a segment for a few intervals of the box itself. At a lower
// priority, for another group or with a wrong checksum it does nothing.
func Test826_forged_advert(t *testing.T) {
	p := newPair(t, election)
	p.announcers[0].Launch()
	p.answersAs(t, 0)
	forge := func(spoil func(a *vrrp.Advert, packet []byte)) {
		t.Helper()
		a := vrrp.Advert{VRID: 51, Priority: 255, Interval: vrrp.MaxInterval, Source: netip.MustParseAddr("192.0.2.9"), Destination: vrrp.Group4}
		a.Addresses = []netip.Addr{ipv4.pairVIP().Addr()}
		spoil(&a, nil)
		packet := a.Marshal()
		spoil(&a, packet)
		if err := p.client.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, vrrp.Protocol)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, 255),
				unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, a.Source.As4()),
				unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: a.Destination.As4()}))
		}); err != nil {
			t.Fatal(err)
		}
	}
	forge(func(a *vrrp.Advert, _ []byte) { a.Priority = 1 })
	forge(func(a *vrrp.Advert, _ []byte) { a.VRID = 52 })
	forge(func(_ *vrrp.Advert, packet []byte) {
		if packet != nil {
			packet[6]++
		}
	})
	p.answersAs(t, 0)
	if log := p.announcers[0].Log(); strings.Contains(log, "state=backup") {
		t.Errorf("adverts that say nothing made it a backup:\n%s", log)
	}
	forge(func(*vrrp.Advert, []byte) {})
	eventually(t, time.Minute, func() error {
		if log := p.announcers[0].Log(); !strings.Contains(log, "state=backup") {
			return fmt.Errorf("the forged advert had no effect:\n%s", log)
		}
		return nil
	})
	p.answersAs(t, 0)
}

func Test784_adverts_are_lost_one_way(t *testing.T) {
	p := newPair(t, election)
	for n := range p.announcers {
		p.announcers[n].Launch()
		p.answersAs(t, 0) // the first one comes first
	}
	has := func(n int, text string, want bool) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			out, _, _ := p.boxes[n].Svcctl("status")
			if strings.Contains(out, text) != want {
				return fmt.Errorf("box %d: a problem with %q: %t, want %t: %s", n+1, text, !want, want, out)
			}
			return nil
		})
	}
	p.hosts[0].LoadNft("table netdev deaf { chain out { type filter hook egress device lan0 priority 0; ip protocol 112 drop; ip6 nexthdr 112 drop; }; }")
	has(0, "the box 192.0.2.2 answers too, with priority 199: it does not receive the adverts of this one", true)
	has(1, "two boxes answer for", true)
	p.hosts[0].Nft("delete", "table", "netdev", "deaf")
	has(0, "answers too", false)
	has(1, "two boxes answer for", false)
	p.answersAs(t, 0)
}
