package announce

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/announce/vrrp"
	"svcctl.io/svcctl/appliance/node"
)

// adverts are frames of both families.
func adverts() map[string][]byte {
	l := link(1, "eth0")
	all := map[string][]byte{}
	for name, own := range map[string]string{"IPv4": "192.0.2.1", "IPv6": "fe80::1"} {
		h := &heartbeat{link: l, own: netip.MustParseAddr(own)}
		all[name] = advert(h, vrrp.Advert{VRID: 51, Priority: 200, Interval: time.Second, Addresses: []netip.Addr{netip.MustParseAddr(map[string]string{"IPv4": "192.0.2.50", "IPv6": "2001:db8::50"}[name])}})
	}
	return all
}

func TestAdverts(t *testing.T) {
	for name, frame := range adverts() {
		a, ok := parseAdvert(frame)
		if !ok || a.VRID != 51 || a.Priority != 200 || len(a.Addresses) != 1 || a.Addresses[0].Is4() != a.Source.Is4() {
			t.Errorf("%s: %t %+v", name, ok, a)
		}
		for i := range frame {
			if _, ok := parseAdvert(frame[:i]); ok {
				t.Errorf("%s: %d bytes are an advert", name, i)
			}
		}
		routed := append([]byte(nil), frame...)
		routed[etherLen+map[string]int{"IPv4": 8, "IPv6": 7}[name]] = 254
		if _, ok := parseAdvert(routed); ok {
			t.Errorf("%s: an advert that a router passed on is heard", name)
		}
		if mac := net.HardwareAddr(frame[:6]).String(); mac != map[string]string{"IPv4": "01:00:5e:00:00:12", "IPv6": "33:33:00:00:00:12"}[name] {
			t.Errorf("%s: it is sent to %s", name, mac)
		}
	}
}

func FuzzParseAdvert(f *testing.F) {
	for _, frame := range adverts() {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if a, ok := parseAdvert(frame); ok && (!a.Source.IsValid() || a.Interval == 0) {
			t.Errorf("%x is %+v", frame, a)
		}
	})
}

func TestSource(t *testing.T) {
	for addrs, want := range map[[2]string]string{
		{"192.0.2.1/24", "fe80::1/64"}: "192.0.2.1", {"192.0.2.9/32", "fe80::1/64"}: "fe80::1", {"192.0.2.9/32", "2001:db8::1/64"}: "invalid IP",
	} {
		l := link(1, "eth0", addrs[0], addrs[1])
		if got := source(&l).String(); got != want {
			t.Errorf("%v: %s, want %s", addrs, got, want)
		}
	}
}

// A box whose first carrier comes back joins as backup, and stays unwell if it was: another link may be missing.
func TestCarrierComesBack(t *testing.T) {
	e := newElection(vrrp.Config{VRID: 51, Priority: 200, Interval: time.Second}, slog.New(slog.DiscardHandler))
	e.set(true, [2][]netip.Addr{})
	e.m.Tick(e.m.Next()) // alone, it became active
	if err := e.setLinks(t.Context(), map[int]node.Link{1: link(1, "eth0")}, nil); err != nil {
		t.Fatal(err)
	}
	if state, _ := e.m.State(); state != vrrp.Backup {
		t.Errorf("it is %s, want backup", state)
	}
	if got := e.m.Tick(e.m.Next()); len(got) != 1 || got[0] != 1 {
		t.Errorf("its priority is %d, want 1, of a box that others should take over from", got)
	}
}

// A box that answers compares with no other: one that stands by has to be as it is, and may be heard no more.
func TestWhoAnswersDoesNotDiffer(t *testing.T) {
	e := newElection(vrrp.Config{VRID: 51, Priority: 200, Interval: time.Second}, slog.New(slog.DiscardHandler))
	e.m.Tick(e.m.Next()) // alone, it became active
	e.set(false, [2][]netip.Addr{{netip.MustParseAddr("192.0.2.50")}})
	e.compare(time.Now(), &vrrp.Advert{VRID: 51, Priority: 100, Source: netip.MustParseAddr("192.0.2.1"), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.51")}})
	if d := e.group().Differs; d != nil {
		t.Errorf("it differs by %+v", d)
	}
}

// A box that stands by and did not run for a while reads the adverts that came meanwhile before it judges. One that answered
// and did not run decides whether it may answer when it has done so.
func TestAdvertsThatWait(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	f := os.NewFile(uintptr(ends[0]), "link")
	conn, err := net.FilePacketConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, frame := range adverts() {
		e := newElection(vrrp.Config{VRID: 51, Priority: 100, Interval: time.Second}, slog.New(slog.DiscardHandler))
		e.m = vrrp.New(time.Now().Add(-time.Hour), e.cfg) // it should have become active long ago
		e.links[1] = &heartbeat{conn: conn, raw: raw, link: link(1, "eth0"), own: netip.MustParseAddr("192.0.2.2")}
		if _, err := unix.Write(ends[1], frame); err != nil {
			t.Fatal(err)
		}
		e.do(e.m.Tick)
		if state, _ := e.m.State(); state != vrrp.Backup || !e.m.Master().IsValid() {
			t.Errorf("%s: it is %s, and the master %s", name, state, e.m.Master())
		}
		for _, replaced := range []bool{true, false} {
			e.m = vrrp.New(time.Now().Add(-time.Hour), e.cfg)
			e.m.Tick(e.m.Next()) // an hour ago, it became active
			if replaced {
				if _, err := unix.Write(ends[1], frame); err != nil {
					t.Fatal(err)
				}
			}
			if may := e.isActive(); may == replaced {
				t.Errorf("%s: an active box that was away, and replaced: %t, may answer: %t", name, replaced, may)
			}
			if state, _ := e.m.State(); (state == vrrp.Active) == replaced || e.m.Silent(time.Now()) {
				t.Errorf("%s: replaced: %t, and it is %s", name, replaced, state)
			}
		}
	}
}

// The socket gets adverts, and no other traffic of the link.
func TestOnlyAdverts(t *testing.T) {
	for name, frame := range adverts() {
		raw, err := onlyAdverts(name == "IPv6")
		if err != nil {
			t.Fatal(err)
		}
		program, _ := bpf.Disassemble(raw)
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := vm.Run(frame); n < len(frame) || err != nil {
			t.Errorf("%s: %d bytes of %d pass, %v", name, n, len(frame), err)
		}
		frame[etherLen+map[string]int{"IPv4": 9, "IPv6": 6}[name]] = unix.IPPROTO_TCP
		if n, err := vm.Run(frame); n != 0 || err != nil {
			t.Errorf("%s: %d bytes of TCP pass, %v", name, n, err)
		}
	}
}

// Another box that advertises with a lower priority while this one is active does not receive its adverts: a problem after
// three seconds of it, until it has been silent for three. One advert, as after a split, is none.
func Test784_rival_of_the_active_box(t *testing.T) {
	at := time.Unix(1000, 0)
	a := vrrp.Advert{VRID: 51, Priority: 90, Source: netip.MustParseAddr("192.0.2.12")}
	var r rival
	r.note(at, &a, "eth0")
	for _, tc := range []struct {
		after time.Duration
		hears bool
		want  bool
	}{
		{time.Second, true, false}, {2900 * time.Millisecond, true, false}, {3 * time.Second, true, true}, {5 * time.Second, false, true},
		{6 * time.Second, false, false}, {10 * time.Second, true, false}, {11 * time.Second, true, false}, {13 * time.Second, true, true},
	} {
		now := at.Add(tc.after)
		if tc.hears {
			r.note(now, &a, "eth0")
		}
		if got := r.lasts(now); got != tc.want {
			t.Errorf("after %s it is a rival: %t, want %t", tc.after, got, tc.want)
		}
	}
	other := a
	other.Source = netip.MustParseAddr("192.0.2.13")
	if r.note(at.Add(14*time.Second), &other, "eth0"); r.lasts(at.Add(14 * time.Second)) {
		t.Error("a box that was just heard is one at once")
	}
	slow := rival{}
	a.Interval = 5 * time.Second // as of a pair with --interval 5s, or of a busy box
	slow.note(at, &a, "eth0")
	slow.note(at.Add(5*time.Second), &a, "eth0")
	if !slow.lasts(at.Add(9*time.Second)) || slow.lasts(at.Add(20*time.Second)) {
		t.Error("a box with an interval of 5 s is no rival after two adverts, or one without adverts")
	}
}
