package e2e

import (
	endian "encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// BenchmarkTakeover measures the outage of a client of a pair when the active box goes, by the announcer and by keepalived, with the same
// interval. A client sends a datagram each millisecond through a Service on both boxes:
//
//	go test -run '^$' -bench Takeover -benchtime 5x ./appliance/e2e
//
// ms-gap is the longest time without an answer of all rounds, lost the datagrams of a round, owners how many boxes answered an
// ARP request in the end (a second after the heal of a split), and ms-healed the longest time until the client followed the box that stayed,
// of at most unhealed.
func BenchmarkTakeover(b *testing.B) {
	for _, by := range []string{"svcctl", "keepalived"} {
		for _, of := range []string{"planned", "killed", "dead", "split"} {
			b.Run(fmt.Sprintf("by=%s/case=%s", by, of), func(b *testing.B) {
				p := newRace(b, by)
				var lost, owners int
				var gap, healed time.Duration
				for round, active := 0, 0; b.Loop(); round, active = round+1, 1-active {
					p.rest(b, active)
					if of == "split" {
						healed = max(healed, p.heals(b, round))
						time.Sleep(time.Second)
						owners, active = max(owners, p.owners()), 1 // the first one stays
						continue
					}
					end := p.probe(b)
					time.Sleep(300 * time.Millisecond)
					p.ends(of, active)
					time.Sleep(2 * time.Second)
					n, longest := end()
					lost, gap, owners = lost+n, max(gap, longest), max(owners, p.owners())
					p.revive(of, active)
				}
				if b.ReportMetric(float64(owners), "owners"); of == "split" {
					b.ReportMetric(float64(healed.Microseconds())/1000, "ms-healed")
					return
				}
				b.ReportMetric(float64(lost)/float64(b.N), "lost")
				b.ReportMetric(float64(gap.Microseconds())/1000, "ms-gap")
			})
		}
	}
}

// race is a pair whose first box answers in the beginning.
type race struct {
	*pair
	b          *testing.B
	keepalived [2]*keepalived // nil: the announcers
}

// keepalived is one on a box.
type keepalived struct {
	b    *testing.B
	h    *netlab.Host
	dir  string
	prio int
}

func newRace(b *testing.B, by string) *race {
	b.Helper()
	r := &race{pair: makePair(b, election), b: b}
	for n, box := range r.boxes {
		box.Manifests.Write("echo.yaml", ipv4.service("echo", "type: LoadBalancer", "loadBalancerIP: 192.0.2.51", "ports: [{name: u, port: 7, protocol: UDP}]")+
			"---\n"+ipv4.slice("echo", "u: 7/UDP", r.server))
		if by == "keepalived" {
			r.keepalived[n] = &keepalived{b, r.hosts[n], b.TempDir(), 200 - n}
		}
	}
	if err := r.server.Do(func() error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 7})
		if err != nil {
			return err
		}
		b.Cleanup(func() { conn.Close() })
		go func() {
			for buf := make([]byte, 64); ; {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}()
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	for n := range r.hosts {
		r.start(n)
		r.rest(b, 0)
	}
	return r
}

func (r *race) start(n int) {
	if k := r.keepalived[n]; k != nil {
		k.start()
		return
	}
	r.announcers[n].Launch()
}

// start starts it, with the interval of an election by default.
func (k *keepalived) start() {
	k.b.Helper()
	conf := filepath.Join(k.dir, "conf")
	text := fmt.Sprintf(`global_defs { vrrp_garp_master_delay 0
 vrrp_version 3 }
vrrp_instance vip { state BACKUP
 nopreempt
 interface lan0
 virtual_router_id 52
 priority %d
 advert_int 0.1
 virtual_ipaddress { 192.0.2.51/32 dev lan0 } }
`, k.prio)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		k.b.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(k.dir, name) }
	k.h.Background("keepalived", "-n", "-l", "-f", conf, "-p", at("parent"), "-r", at("vrrp"), "-c", at("check"))
}

// pid is one of its processes; 0: it does not run.
func (k *keepalived) pid(name string) int {
	text, _ := os.ReadFile(filepath.Join(k.dir, name))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// end stops it, or kills both processes: the parent alone would have the other one end in good order.
func (k *keepalived) end(kill bool) {
	k.b.Helper()
	parent, child := k.pid("parent"), k.pid("vrrp")
	if parent == 0 || child == 0 {
		k.b.Fatal("keepalived does not run")
	}
	if !kill {
		_ = syscall.Kill(parent, syscall.SIGTERM)
	} else {
		_ = syscall.Kill(parent, syscall.SIGSTOP)
		_ = syscall.Kill(child, syscall.SIGKILL)
		_ = syscall.Kill(parent, syscall.SIGKILL)
	}
	for _, name := range []string{"parent", "vrrp"} {
		_ = os.Remove(filepath.Join(k.dir, name))
	}
}

// ends has a box end: it hands over, its process is killed, or all of it dies.
func (r *race) ends(how string, n int) {
	if how == "dead" {
		r.hosts[n].SetDown("lan0")
	}
	switch k := r.keepalived[n]; {
	case k != nil:
		k.end(how != "planned")
	case how == "planned":
		r.announcers[n].Stop()
	default:
		r.announcers[n].Kill()
	}
}

// revive has it be there again.
func (r *race) revive(how string, n int) {
	if how == "dead" {
		r.hosts[n].SetUp("lan0")
	}
	if r.keepalived[n] != nil {
		_, _, _ = r.hosts[n].Run("ip", "address", "del", "192.0.2.51/32", "dev", "lan0") // what a killed one left
	}
	r.start(n)
}

// rest waits until a box answers, the other one stands by, and clients are served.
func (r *race) rest(b *testing.B, active int) {
	b.Helper()
	want := macInside(b, r.hosts[active], "lan0")
	time.Sleep(time.Second) // of one that has just started
	eventually(b, time.Minute, func() error {
		if mac := macOf(b, r.client, "eth0", ipv4, "192.0.2.51"); mac != want {
			return fmt.Errorf("%q answers, want %s", mac, want)
		}
		_, _, _ = r.client.Run("ip", "neigh", "flush", "dev", "eth0")
		return r.asked()
	})
	if n := r.owners(); n != 1 {
		b.Fatalf("%d boxes answer", n)
	}
}

// asked asks once.
func (r *race) asked() error {
	return r.client.Do(func() error {
		conn, err := net.Dial("udp4", "192.0.2.51:7")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(make([]byte, 8))
		err = errors.Join(err, conn.SetReadDeadline(time.Now().Add(time.Second)))
		if err == nil {
			_, err = conn.Read(make([]byte, 64))
		}
		return err
	})
}

// owners returns the number of boxes that answer ARP for the address.
func (r *race) owners() int {
	out, _, _ := r.client.Run("arping", "-b", "-c", "2", "-w", "2", "-I", "eth0", "192.0.2.51")
	macs := map[string]bool{}
	for _, mac := range regexp.MustCompile(`(?i)(?:[0-9a-f]{2}:){5}[0-9a-f]{2}`).FindAllString(out, -1) {
		macs[mac] = true
	}
	return len(macs)
}

// probe sends a datagram each millisecond until the end is called, which gives how many were not answered, and the longest time
// between two that were.
func (r *race) probe(b *testing.B) (end func() (lost int, gap time.Duration)) {
	b.Helper()
	var conn *net.UDPConn
	if err := r.client.Do(func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.51:7")))
		return err
	}); err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	var sent []time.Time
	answered := map[uint64]bool{}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		for buf := make([]byte, 64); ; {
			n, err := conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if n == 8 {
				mu.Lock()
				answered[endian.BigEndian.Uint64(buf)] = true
				mu.Unlock()
			}
		}
	}()
	go func() {
		defer close(done)
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			select {
			case <-stop:
				tick.Stop()
				return
			default:
			}
			mu.Lock()
			sent = append(sent, time.Now())
			n := uint64(len(sent) - 1)
			mu.Unlock()
			_, _ = conn.Write(endian.BigEndian.AppendUint64(nil, n))
		}
	}()
	return func() (lost int, gap time.Duration) {
		close(stop)
		<-done
		time.Sleep(500 * time.Millisecond) // for the last answers
		conn.Close()
		mu.Lock()
		defer mu.Unlock()
		last := 0
		for n, at := range sent {
			if !answered[uint64(n)] {
				lost++
				continue
			}
			if n > last+1 {
				gap = max(gap, at.Sub(sent[last]))
			}
			last = n
		}
		return lost, gap
	}
}

// unhealed is how long a client is waited for to follow the box that stays.
const unhealed = 10 * time.Second

// heals splits the boxes until both answer, and gives how long the client, which followed the one that goes, takes to follow the
// other one when they hear each other again.
func (r *race) heals(b *testing.B, round int) time.Duration {
	b.Helper()
	for _, h := range r.hosts {
		h.LoadNft("table netdev split { chain in { type filter hook ingress device \"lan0\" priority 0; ip protocol 112 drop; }; }")
	}
	eventually(b, time.Minute, func() error {
		if n := r.owners(); n != 2 {
			return fmt.Errorf("%d boxes answer, want 2", n)
		}
		return nil
	})
	stays, goes := macInside(b, r.hosts[0], "lan0"), macInside(b, r.hosts[1], "lan0")
	if _, _, err := r.client.Run("ip", "neigh", "replace", "192.0.2.51", "lladdr", goes, "dev", "eth0", "nud", "reachable"); err != nil {
		b.Fatal(err)
	}
	time.Sleep(time.Duration(round%10) * 10 * time.Millisecond) // another one hears the other first
	for _, h := range r.hosts {
		h.Nft("delete", "table", "netdev", "split")
	}
	healed := time.Now()
	for time.Since(healed) < unhealed {
		if out, _, _ := r.client.Run("ip", "neigh", "show", "192.0.2.51"); strings.Contains(out, stays) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(healed)
}
