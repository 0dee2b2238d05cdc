package neighbor

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/bpf"
)

var (
	box    = MAC{2, 0, 0, 0, 0, 1}
	client = MAC{2, 0, 0, 0, 0, 2}
	rival  = MAC{2, 0, 0, 0, 0, 3}

	start = time.Unix(1_000_000, 0)
	vips  = []netip.Addr{netip.MustParseAddr("192.0.2.50"), netip.MustParseAddr("2001:db8::50")}
	hosts = map[bool]netip.Addr{false: netip.MustParseAddr("192.0.2.9"), true: netip.MustParseAddr("2001:db8::9")}
)

// rig is a machine with a clock.
type rig struct {
	*testing.T
	*machine
	now time.Time
}

func newRig(t *testing.T) *rig {
	return &rig{t, newMachine(box, func(time.Duration) time.Duration { return 0 }), start}
}

// until gives the frames until a time from the start, by the offset at which they are sent.
func (r *rig) until(offset time.Duration) map[time.Duration][][]byte {
	r.Helper()
	all := map[time.Duration][][]byte{}
	end := start.Add(offset)
	for {
		frames, next := r.tick(r.now)
		if len(frames) > 0 {
			all[r.now.Sub(start)] = append(all[r.now.Sub(start)], frames...)
		}
		if next.IsZero() || next.After(end) {
			r.now = end
			return all
		}
		if !next.After(r.now) {
			r.Fatalf("next is %s, not after %s", next, r.now)
		}
		r.now = next
	}
}

func (r *rig) is(a netip.Addr, want State) {
	r.Helper()
	if got := r.entries[a]; got == nil || got.State != want {
		r.Errorf("%s at %s: %+v, want %s", a, r.now.Sub(start), got, want)
	}
}

// ask is a client's question, claim another host's answer, want another host's probe.
func ask(a netip.Addr) []byte {
	if a.Is4() {
		return arp(arpRequest, broadcast, client, hosts[false], MAC{}, a)
	}
	return ndp(solicitation, 0, optSource, groupMAC(groupOf(a)), client, hosts[true], groupOf(a), a)
}

func claim(a netip.Addr) []byte { return announcements(rival, a)[0] }
func want(a netip.Addr) []byte  { return probe(rival, a) }

func TestGain(t *testing.T) {
	for _, a := range vips {
		r := newRig(t)
		r.add(start, a, false)
		r.is(a, Probing)
		if out := r.receive(start, ask(a)); out != nil {
			t.Errorf("%s is answered while it is probed", a)
		}
		sent := r.until(70 * time.Second)
		r.is(a, Announced)
		for i := range probeCount {
			at := time.Duration(i) * probeInterval
			if len(sent[at]) != 1 || !bytes.Equal(sent[at][0], probe(box, a)) {
				t.Errorf("%s: at %s %x, want a probe", a, at, sent[at])
			}
			delete(sent, at)
		}
		gained := probeCount * probeInterval
		for _, after := range append([]time.Duration{0, 5*time.Second + repeat}, bursts...) {
			if got := sent[gained+after]; len(got) != len(announcements(box, a)) || !bytes.Equal(got[0], announcements(box, a)[0]) {
				t.Errorf("%s: %s after the gain %x, want an announcement", a, after, got)
			}
			delete(sent, gained+after)
		}
		if len(sent) != 0 {
			t.Errorf("%s: there was more: %v", a, sent)
		}
		out := r.receive(r.now, ask(a))
		if len(out) != 1 {
			t.Fatalf("%s: answers are %x", a, out)
		}
		if m, ok := parse(out[0]); !ok || m.claims != a || m.by != box || MAC(out[0][:6]) != client {
			t.Errorf("%s: the answer says %+v", a, m)
		}
		if out := r.receive(r.now, want(a)); len(out) != 1 {
			t.Errorf("%s: a host that wants it is answered %x", a, out)
		} else if m, ok := parse(out[0]); !ok || m.claims != a || m.by != box {
			t.Errorf("%s: a host that wants it is answered %+v", a, m)
		}
		r.is(a, Announced)
		r.remove(a)
		if out := r.receive(r.now, ask(a)); out != nil || len(r.until(3*time.Minute)) != 0 {
			t.Errorf("%s is not silent after it has gone", a)
		}
	}
}

func TestKnownIsAnnouncedAtOnce(t *testing.T) {
	r := newRig(t)
	for _, a := range vips {
		r.add(start, a, true)
		r.is(a, Announced)
		if len(r.receive(start, ask(a))) != 1 {
			t.Errorf("%s is not answered", a)
		}
	}
	if sent := r.until(0); len(sent[0]) != 3 {
		t.Errorf("at once %x is sent, want announcements of both", sent[0])
	}
}

func TestConflict(t *testing.T) {
	for _, a := range vips {
		r := newRig(t)
		r.add(start, a, false)
		r.until(probeInterval)
		r.receive(r.now, claim(a))
		r.is(a, Conflict)
		if r.entries[a].Rival != rival || r.receive(r.now, ask(a)) != nil {
			t.Errorf("%s: rival is %s, or it is answered", a, r.entries[a].Rival)
		}
		sent := r.until(probeInterval + reprobe - time.Millisecond)
		if len(sent) != 0 {
			t.Errorf("%s: meanwhile %v is sent", a, sent)
		}
		r.until(r.now.Sub(start) + time.Millisecond)
		r.is(a, Probing)
		r.receive(r.now, claim(a)) // still there
		r.is(a, Conflict)
		r.until(r.now.Sub(start) + reprobe + time.Second) // and gone
		r.is(a, Announced)
		if r.Conflicts != 2 {
			t.Errorf("%d conflicts are counted, want 2", r.Conflicts)
		}
	}
}

// A host that claims an announced address meets one defense, and has it when it goes on.
func TestDefense(t *testing.T) {
	for _, a := range vips {
		r := newRig(t)
		r.add(start, a, true)
		r.until(10 * time.Second)
		if out := r.receive(r.now, claim(a)); len(out) == 0 {
			t.Errorf("%s is not defended", a)
		}
		r.is(a, Announced)
		r.until(r.now.Sub(start) + defend)
		if out := r.receive(r.now, claim(a)); len(out) == 0 {
			t.Errorf("%s is not defended after a while", a)
		}
		r.receive(r.now.Add(time.Second), claim(a))
		r.is(a, Conflict)
	}
}

// Of two that want an address at the same time, both step back, for different times.
func TestContention(t *testing.T) {
	for _, a := range vips {
		r := newRig(t)
		r.add(start, a, false)
		r.until(0)
		r.receive(r.now, want(a))
		r.is(a, Conflict)
		r.until(contend + time.Second)
		r.is(a, Announced)
	}
}

func TestPassive(t *testing.T) {
	r := newRig(t)
	r.setPassive(start, true)
	for _, a := range vips {
		r.add(start, a, false)
		r.is(a, Standby)
		if r.receive(start, ask(a)) != nil {
			t.Errorf("%s is answered by the box that stands by", a)
		}
		r.receive(start, claim(a)) // the other box
		r.is(a, Standby)
	}
	if sent := r.until(2 * time.Hour); len(sent) != 0 {
		t.Errorf("the box that stands by sends %v", sent)
	}
	r.setPassive(r.now, false)
	for _, a := range vips {
		r.is(a, Announced)
	}
	if sent := r.until(2 * time.Hour); len(sent[2*time.Hour]) != 3 {
		t.Errorf("after it has taken over it sends %v", sent)
	}
}

// Of two boxes that an election gave an address, as after a split, none gives up by itself; and they do not
// answer each other's announcements without end.
func TestElectedDoesNotYield(t *testing.T) {
	for _, a := range vips {
		r := newRig(t)
		r.setPassive(start, false)
		r.add(start, a, false)
		r.is(a, Announced)
		const seconds = 20
		frames := -2 // two more when the contest begins: a probe, every 10 s
		for range seconds * 100 {
			for _, sent := range r.until(r.now.Sub(start) + 10*time.Millisecond) {
				frames += len(sent)
			}
			frames += len(r.receive(r.now, claim(a)))
			r.refresh(r.now) // as for each advert of a box that does not receive ours
		}
		r.is(a, Announced)
		if most := seconds * len(announcements(box, a)); frames < 3 || frames > most {
			t.Errorf("%s is announced by %d frames in %d s of another one's claims, want at most %d", a, frames, seconds, most)
		}
		if !r.entries[a].Contested {
			t.Errorf("%s: it is not contested", a)
		}
	}
}

func TestOwnFramesAreNoConflict(t *testing.T) {
	r := newRig(t)
	r.mine[rival] = true // another interface of the box, on the same segment
	for _, a := range vips {
		r.add(start, a, false)
		r.receive(start, claim(a))
		r.receive(start, announcements(box, a)[0])
		r.is(a, Probing)
	}
}

func TestRefresh(t *testing.T) {
	r := newRig(t)
	r.add(start, vips[0], true)
	r.until(20 * time.Second)
	r.add(r.now, vips[1], false)
	r.receive(r.now, claim(vips[1]))
	r.refresh(r.now)
	r.is(vips[1], Probing)
	if sent := r.until(20 * time.Second); len(sent[20*time.Second]) != 3 { // two of ARP, and a probe
		t.Errorf("after a refresh %v is sent", sent)
	}
}

func TestFilter(t *testing.T) {
	prefixes := []netip.Prefix{netip.MustParsePrefix("192.0.2.48/28"), netip.MustParsePrefix("2001:db8::40/122"), netip.MustParsePrefix("198.51.100.7/32")}
	foreign := map[bool]netip.Addr{false: netip.MustParseAddr("192.0.2.80"), true: netip.MustParseAddr("2001:db8::80")}
	for _, v6 := range []bool{false, true} {
		raw, err := filter(prefixes, v6)
		if err != nil {
			t.Fatal(err)
		}
		program, _ := bpf.Disassemble(raw)
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		ours := vips[0]
		if v6 {
			ours = vips[1]
		}
		for _, test := range []struct {
			name  string
			frame []byte
			want  bool
		}{
			{"a question for ours", ask(ours), true}, {"a claim of ours", claim(ours), true}, {"a probe of ours", want(ours), true},
			{"a question for others", ask(foreign[v6]), false}, {"a claim of others", claim(foreign[v6]), false},
			{"a rival's question", arp(arpRequest, broadcast, rival, vips[0], MAC{}, hosts[false]), !v6},
			{"the other family", ask(vips[map[bool]int{true: 0, false: 1}[v6]]), false},
			{"short", ask(ours)[:30], false},
		} {
			if n, err := vm.Run(test.frame); err != nil || (n > 0) != test.want {
				t.Errorf("v6 %t: %s: passes %d bytes, %v", v6, test.name, n, err)
			}
		}
	}
	// Kernels before 6.7 take no program of IPv6 prefixes that is longer than 485 instructions, and of IPv4 prefixes none longer than 517.
	var many []netip.Prefix
	for i := range 100 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32), netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 15: byte(i)}), 128))
		for _, v6 := range []bool{false, true} {
			if raw, err := filter(many, v6); err != nil || len(raw) > map[bool]int{false: 517, true: 485}[v6] {
				t.Errorf("v6 %t: a program of %d instructions for %d prefixes: %v", v6, len(raw), i+1, err)
			}
		}
	}
}

// Frames that are not as the RFCs want them are dropped.
func TestBadFrames(t *testing.T) {
	good := map[string][]byte{"ARP": ask(vips[0]), "NS": ask(vips[1]), "NA": claim(vips[1])}
	for name, frame := range good {
		if _, ok := parse(frame); !ok {
			t.Errorf("%s is not understood", name)
		}
		for i := range frame {
			if _, ok := parse(frame[:i]); ok {
				t.Errorf("%s of %d bytes is understood", name, i)
			}
		}
	}
	for name, change := range map[string]func(f []byte){
		"a hop limit of 254":  func(f []byte) { f[etherLen+7] = 254 },
		"a wrong checksum":    func(f []byte) { f[etherLen+ipv6Len+2] ^= 1 },
		"a code":              func(f []byte) { f[etherLen+ipv6Len+1] = 1 },
		"an option of none":   func(f []byte) { f[etherLen+ipv6Len+ndpLen+1] = 0 },
		"an option too long":  func(f []byte) { f[etherLen+ipv6Len+ndpLen+1] = 2 },
		"another next header": func(f []byte) { f[etherLen+6] = 17 },
	} {
		f := ask(vips[1])
		change(f)
		if name != "a wrong checksum" && name != "a hop limit of 254" {
			icmp := f[etherLen+ipv6Len:]
			icmp[2], icmp[3] = 0, 0
			sum := checksum(hosts[true], groupOf(vips[1]), icmp)
			icmp[2], icmp[3] = byte(sum>>8), byte(sum)
		}
		if m, ok := parse(f); ok {
			t.Errorf("%s: understood as %+v", name, m)
		}
	}
}

func FuzzReceive(f *testing.F) {
	for _, a := range vips {
		for _, frame := range [][]byte{ask(a), claim(a), want(a), announcements(client, a)[0]} {
			f.Add(frame)
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m := newMachine(box, func(time.Duration) time.Duration { return 0 })
		for _, a := range vips {
			m.add(start, a, true)
		}
		for _, out := range m.receive(start, frame) {
			answer, ok := parse(out)
			if !ok || answer.by != box || m.entries[answer.claims] == nil {
				t.Errorf("%x is answered by %x, which says %+v", frame, out, answer)
			}
		}
	})
}

// A box that leaves its addresses to another one asks for one of them. Three probes without an answer are a problem, until
// there is one; an answer ends the doubt.
func Test786_nobody_answers(t *testing.T) {
	r := newRig(t)
	for _, a := range vips {
		r.add(start, a, false)
	}
	r.setPassive(start, true)
	r.verify(start)
	unanswered := func() (n int) {
		for _, e := range r.entries {
			if e.Unanswered {
				n++
			}
		}
		return n
	}
	frames := func(sent map[time.Duration][][]byte) (n int) {
		for _, f := range sent {
			n += len(f)
		}
		return n
	}
	if n := frames(r.until(3500 * time.Millisecond)); n != 3 || unanswered() != 0 {
		t.Errorf("%d probes and %d addresses without an answer before the last probe had its second", n, unanswered())
	}
	clear(r.changed)
	if n := frames(r.until(5 * time.Second)); n != 1 || unanswered() != 1 || len(r.changed) != 1 {
		t.Errorf("then %d probes, %d addresses without an answer, changed %v", n, unanswered(), r.changed)
	}
	lowest := slices.MinFunc(vips, netip.Addr.Compare)
	clear(r.changed)
	if out := r.receive(r.now, claim(lowest)); len(out) != 0 || unanswered() != 0 || len(r.changed) != 1 {
		t.Errorf("with an answer %d frames are sent, %d addresses are without one, changed %v", len(out), unanswered(), r.changed)
	}
	if n := frames(r.until(30 * time.Minute)); n != 0 {
		t.Errorf("after that %d frames are sent", n)
	}
	r.verify(r.now)
	r.until(r.now.Sub(start) + 10*time.Second)
	if unanswered() != 1 {
		t.Errorf("at the next doubt %d addresses are without an answer", unanswered())
	}
	if r.setPassive(r.now, false); unanswered() != 0 {
		t.Error("the box answers, and nobody does")
	}
}
