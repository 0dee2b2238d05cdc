package conntrack

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// manyEntries is how many entries are in the table that none of ours is among.
const manyEntries = 200_000

// newMany is a host with many UDP entries in its table, half of them to port 53 of
// somebody. The limit is machine-wide and may be lower; then there are fewer.
func newMany(tb testing.TB) (h *netlab.Host, entries int) {
	tb.Helper()
	lab := netlab.New(tb)
	h = lab.Host("many")
	limit := limitOfEntries(tb)
	entries = min(manyEntries, limit-10_000)
	if entries < manyEntries {
		tb.Logf("ONLY %d ENTRIES instead of %d: net.netfilter.nf_conntrack_max is %d", entries, manyEntries, limit)
	}
	insert(tb, h, entries, func(n int, e *entry) {
		e.protocol, e.timeout = nft.UDP, 600
		e.from = netip.AddrPortFrom(addrOf(0x0a000000+n), 40000)
		e.to = netip.AddrPortFrom(addrOf(0xc6330000+n%65536), 53+uint16(n%2))
		e.replyFrom, e.replyTo = e.to, e.from
	})
	return h, entries
}

// limitOfEntries is how many entries a table has at most.
func limitOfEntries(tb testing.TB) int {
	tb.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		tb.Fatalf("how many connections are tracked at most: %v", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		tb.Fatal(err)
	}
	return limit
}

func addrOf(n int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(n))))
}

// insert makes entries in the host's table.
func insert(tb testing.TB, h *netlab.Host, n int, fill func(n int, e *entry)) {
	tb.Helper()
	s, err := dial(h.Namespace())
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	var w writer
	for i := range n {
		var e entry
		fill(i, &e)
		w.begin(messageNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, s.Sequence(1), familyNumber(nft.FamilyOf(e.to.Addr())))
		w.tuple(ctaTupleOrig, e.protocol, e.from, e.to)
		w.tuple(ctaTupleReply, e.protocol, e.replyFrom, e.replyTo)
		w.Uint32(ctaTimeout, e.timeout)
		status := uint32(1 << 3) // confirmed
		if e.answered {
			status |= statusSeenReply
		}
		if e.assured {
			status |= statusAssured
		}
		w.Uint32(ctaStatus, status)
		if e.state != 0 {
			w.nest(ctaProtoInfo, func() { w.nest(ctaProtoInfoTCP, func() { w.attribute(ctaTCPState, byte(e.state)) }) })
		}
		if e.zone != nil {
			w.attribute(ctaZone, e.zone...)
		}
		w.End()
		if len(w.Buf) < 1<<16 && i < n-1 {
			continue
		}
		if err := s.Send(w.Buf); err != nil {
			tb.Fatal(err)
		}
		w.Buf = w.Buf[:0]
		for {
			datagram, err := s.Receive()
			if err != nil {
				break
			}
			for m := range nfnetlink.Messages(datagram) {
				if errno := m.Errno(); errno != 0 {
					tb.Fatalf("make entry %d: %v", i, errno)
				}
			}
		}
	}
}

// ours makes entries of 100 clients each to an endpoint that is gone and to one that is
// not, at a frontend.
func ours(tb testing.TB, h *netlab.Host, fe Frontend, gone, stays netip.AddrPort, timeout uint32) {
	tb.Helper()
	client := addrOf(0xcb007100)
	if fe.Family == nft.IPv6 {
		client = netip.MustParseAddr("2001:db8:203::2")
	}
	insert(tb, h, 200, func(n int, e *entry) {
		e.protocol, e.timeout = fe.Protocol, timeout
		e.from, e.to = netip.AddrPortFrom(client, uint16(10000+n)), netip.AddrPortFrom(fe.Addr, fe.Port)
		e.replyFrom, e.replyTo = gone, e.from
		if n%2 == 0 {
			e.replyFrom = stays
		}
	})
}

// count is the number of entries in the host's namespace.
func count(tb testing.TB, h *netlab.Host) (n int) {
	tb.Helper()
	err := h.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		n64, err := strconv.ParseUint(strings.Fields(lines[1])[0], 16, 32)
		n = int(n64)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// TestManyEntries: among 200,000 entries of others the stale ones, and they alone, are deleted. For one frontend the kernel sends its entries
// alone, for many all of the protocol.
func TestManyEntries(t *testing.T) {
	h, others := newMany(t)
	vip6 := netip.MustParseAddr("fd00:172:30::41")
	l16, r16 := netip.MustParseAddrPort("[fd00:10:180::1]:53"), netip.MustParseAddrPort("[fd00:10:181::1]:53")
	one := Work{Flows: []Flows{{Frontend: udp(vip, 53), Keep: to(r1), Look: true}}}
	six := Work{Flows: []Flows{{Frontend: udp(vip6, 53), Keep: to(r16), Look: true}}}
	many := Work{Flows: []Flows{{Frontend: udp(vip, 53), Keep: to(r1), Look: true}}}
	for n := range uint16(maxQueries) {
		many.Flows = append(many.Flows, Flows{Frontend: udp(vip, 1000+n), Look: true})
	}
	tests := []struct {
		name        string
		work        Work
		gone, stays netip.AddrPort
	}{
		{"a frontend", one, l1, r1},
		{"a frontend of IPv6", six, l16, r16},
		{"many frontends", many, l1, r1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const life = 3600 // seconds: to the end of the test
			fe := tt.work.Flows[0].Frontend
			before := count(t, h)
			ours(t, h, fe, tt.gone, tt.stays, life)
			if got := count(t, h) - before; got != 200 {
				t.Fatalf("%d entries were made, want 200", got)
			}
			c, err := New(Options{NetNS: h.Namespace(), Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.table.close()
			c.schedule.add(tt.work, time.Now())
			if _, err := c.scan(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			s := c.Stats()
			t.Logf("%+v", s)
			if s.Entries != 200 && len(tt.work.Flows) == 1 {
				t.Errorf("%d entries were read, want the 200 of the frontend", s.Entries)
			}
			if s.Forgotten != 100 {
				t.Errorf("%d entries were deleted, want 100", s.Forgotten)
			}
			if got := count(t, h); got != before+100 {
				t.Errorf("%d entries are left, want %d", got, before+100)
			}
			c.schedule.add(Work{Flows: []Flows{{Frontend: fe, Look: true}}}, time.Now()) // for the next test
			if _, err := c.scan(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
		})
	}
	if got := count(t, h); got != others {
		t.Errorf("%d entries of others are left, want %d", got, others)
	}
}

// Test1013_drained_connections_end_in_a_full_table: while no entry can be made, all drained connections end at the first scan. The dead end of a client
// takes the place of its entry; there is no place for that of the endpoint, which does not delay the other connections.
func Test1013_drained_connections_end_in_a_full_table(t *testing.T) {
	h := netlab.New(t).Host("full")
	const drained = 400 // several datagrams of a dump
	insert(t, h, drained, func(n int, e *entry) {
		e.protocol, e.timeout, e.state, e.answered, e.assured = nft.TCP, 3600, tcpEstablished, true, true
		e.from, e.to = netip.AddrPortFrom(addrOf(0xcb007102), uint16(10000+n)), netip.AddrPortFrom(vip, 80)
		e.replyFrom, e.replyTo = l1, e.from
	})
	limit := limitOfEntries(t)
	if limit > 1<<20 {
		t.Skipf("net.netfilter.nf_conntrack_max is %d: filling the table takes too long", limit)
	}
	insert(t, h, limit-drained, func(n int, e *entry) {
		e.protocol, e.timeout, e.state, e.answered, e.assured = nft.TCP, 3600, tcpEstablished, true, true
		e.from, e.to = netip.AddrPortFrom(addrOf(0x0a000000+n), 40000), netip.AddrPortFrom(addrOf(0xc6330000+n%65536), 81)
		e.replyFrom, e.replyTo = e.to, e.from
	})
	c, err := New(Options{NetNS: h.Namespace(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.table.close()
	removed := time.Now().Add(-time.Hour)
	c.schedule.add(Work{Flows: []Flows{{Frontend: tcp(vip, 80), Drain: Drain{true, time.Minute}, Look: true}}, Local: []netip.Addr{addrOf(0xc0000201)}}, removed)
	if _, err := c.scan(t.Context(), time.Now()); err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.Reset != drained || s.Failures != 0 {
		t.Errorf("%d of %d connections ended at the first scan, %d scans failed", s.Reset, drained, s.Failures)
	}
}

// TestZones: an entry in a zone of its own is deleted there, and its twin is left.
func TestZones(t *testing.T) {
	h := netlab.New(t).Host("zones")
	insert(t, h, 3, func(n int, e *entry) {
		*e = sent(udp(vip, 53), l1)
		e.timeout, e.zone = 77, []byte{0, byte(7 * n)}
		if n == 0 {
			e.replyFrom, e.zone = r1, nil
		}
	})
	c, err := New(Options{NetNS: h.Namespace(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.table.close()
	c.schedule.add(Work{Flows: []Flows{{Frontend: udp(vip, 53), Keep: to(r1), Look: true}}}, time.Now())
	if _, err := c.scan(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Entries != 3 || s.Forgotten != 2 || count(t, h) != 1 {
		t.Errorf("%+v, %d entries are left; want 2 of 3 forgotten", s, count(t, h))
	}
}

// Test1132_fake_table_is_conntrack has the same 50 flows in the kernel's table and in the one that the tests of the Cleaner have:
// three protocols, both families, translated or not, in each state of TCP, answered or not. Queries with filters give the same, of
// which the same are forgotten and reset, and the same are left.
func Test1132_fake_table_is_conntrack(t *testing.T) {
	lab := netlab.New(t)
	queries, forgotten, ended := 0, 0, 0
	for seed := range uint64(4) {
		r, h := rand.New(rand.NewPCG(seed, 8)), lab.Host(fmt.Sprintf("flows%d", seed))
		fake := &fakeTable{}
		insert(t, h, 50, func(n int, e *entry) {
			ips := [][]string{{"203.0.113.2", "198.51.100.1", "198.51.100.2", "10.180.0.1"}, {"2001:db8:203::2", "2001:db8:198::1", "2001:db8:198::2", "fd00:10:180::1"}}[r.IntN(2)]
			e.family = nft.FamilyOf(netip.MustParseAddr(ips[0]))
			e.protocol, e.timeout = []nft.Protocol{nft.TCP, nft.UDP, nft.SCTP}[r.IntN(3)], 600+uint32(r.IntN(600))
			e.from, e.to = netip.AddrPortFrom(netip.MustParseAddr(ips[0]), uint16(10_000+n)), netip.AddrPortFrom(netip.MustParseAddr(ips[1+r.IntN(2)]), []uint16{53, 80}[r.IntN(2)])
			e.replyFrom, e.replyTo = e.to, e.from
			if r.IntN(4) > 0 {
				e.replyFrom = netip.AddrPortFrom(netip.MustParseAddr(ips[3]), 8080)
			}
			if e.answered = r.IntN(2) == 0; e.answered {
				e.assured = r.IntN(2) == 0
			}
			if e.protocol == nft.TCP {
				e.state = tcpState(1 + r.IntN(8))
			}
			fake.entries = append(fake.entries, *e)
		})
		real := &kernelTable{netns: h.Namespace()}
		defer real.close()
		box := map[nft.Family]netip.Addr{nft.IPv4: addrOf(0x7f000001), nft.IPv6: netip.MustParseAddr("::1")}
		flow := func(e *entry) string {
			return fmt.Sprint(e.family, e.protocol, e.from, e.to, e.replyFrom, e.replyTo, e.state, e.answered, e.assured)
		}
		// ask has what a query gives of both, but for others than it asks for, and does the same to each.
		ask := func(on table, queries []query, of func(flow string) verdict) (all []string) {
			done, err := on.deleteMatching(t.Context(), queries, func(e *entry) (verdict, netip.Addr) {
				v := leave
				if slices.ContainsFunc(queries, func(q query) bool { return q.has(e) }) && !e.isDeadEnd() && e.from.Port() >= 10_000 { // no dead end of what was reset
					v = of(flow(e))
					all = append(all, fmt.Sprint(flow(e), v))
					if e.timeout == 0 || e.timeout > 1200 {
						t.Errorf("seed %d: %s is kept for %d s", seed, flow(e), e.timeout)
					}
				}
				return v, box[e.family]
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(all)
			return append(all, fmt.Sprint("forgotten ", done.forgotten, ", reset ", done.reset))
		}
		for range 30 {
			asked := make([]query, 1+r.IntN(3))
			for i := range asked {
				q := query{family: []nft.Family{nft.IPv4, nft.IPv6}[r.IntN(2)], protocol: []nft.Protocol{nft.TCP, nft.UDP, nft.SCTP}[r.IntN(3)], port: []uint16{0, 53, 80}[r.IntN(3)], unanswered: r.IntN(4) == 0}
				if r.IntN(3) == 0 {
					q.addr = netip.MustParseAddr(map[nft.Family]string{nft.IPv4: "198.51.100.1", nft.IPv6: "2001:db8:198::1"}[q.family])
				}
				asked[i] = q
			}
			salt := r.Uint32()
			of := func(flow string) verdict {
				sum := crc32.Update(salt, crc32.IEEETable, []byte(flow))
				switch {
				case sum%5 == 0:
					return forget
				case sum%5 == 1 && strings.Contains(flow, nft.TCP.String()):
					return reset
				}
				return leave
			}
			queries += len(asked)
			if err := real.open(&real.reader); err != nil {
				t.Fatal(err)
			}
			before := real.reader.Sequence(0)
			if want, have := ask(fake, asked, of), ask(real, asked, of); !slices.Equal(want, have) {
				t.Fatalf("seed %d: %+v: the fake gives\n%s\nand the kernel\n%s", seed, asked, strings.Join(want, "\n"), strings.Join(have, "\n"))
			} else if requests := real.reader.Sequence(0) - before; requests > 2 {
				t.Fatalf("seed %d: %+v: %d requests; want one for the number of entries, and one for the entries", seed, asked, requests)
			} else if last := want[len(want)-1]; last != "forgotten 0, reset 0" {
				forgotten++
			}
			ended = len(fake.reset)
		}
		if fake.left() == 0 || fake.left() == 50 || ended == 0 {
			t.Errorf("seed %d: %d of 50 are left, and %d were reset: it proves little", seed, fake.left(), ended)
		}
	}
	t.Logf("%d queries, %d of which changed the table", queries, forgotten)
}

// TestNewerEntry: what took the place of a stale entry since that was read is left. The
// kernel may give it the same id, when it also gets the same memory.
func TestNewerEntry(t *testing.T) {
	h := netlab.New(t).Host("newer")
	put := func(endpoint netip.AddrPort) {
		insert(t, h, 1, func(_ int, e *entry) {
			*e = sent(udp(vip, 53), endpoint)
			e.timeout = 77
		})
	}
	udpOf4 := []query{{family: nft.IPv4, protocol: nft.UDP}}
	id := func() (id string) {
		table := &kernelTable{netns: h.Namespace()}
		defer table.close()
		_, err := table.deleteMatching(t.Context(), udpOf4, func(e *entry) (verdict, netip.Addr) {
			id = string(e.id)
			return leave, netip.Addr{}
		})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	table := &kernelTable{netns: h.Namespace()}
	defer table.close()
	for range 50 {
		put(l1)
		same := false
		done, err := table.deleteMatching(t.Context(), udpOf4, func(e *entry) (verdict, netip.Addr) {
			h.Conntrack("-D", "-p", "udp")
			put(r1)
			same = id() == string(e.id)
			return forget, netip.Addr{}
		})
		if !same {
			if err != nil || done.seen != 1 || done.forgotten != 0 || count(t, h) != 1 {
				t.Errorf("%+v, %v, %d entries are left; want the newer one", done, err, count(t, h))
			}
			return
		}
	}
	t.Fatal("the newer entry had the id of the older one 50 times")
}

// TestForgottenAttempt: the client's next SYN may have the id of an entry that was forgotten. It waits since it was seen itself.
func TestForgottenAttempt(t *testing.T) {
	h := netlab.New(t).Host("attempt")
	a := NewAttempts(Options{NetNS: h.Namespace()})
	defer a.Close()
	start, ids := time.Now(), map[uint32]bool{}
	look := func(after, want time.Duration, forget bool) {
		t.Helper()
		_, found, err := a.Look(start.Add(after), func(c *Connection, waited time.Duration) bool {
			if ids[c.ID] = true; waited != want {
				t.Errorf("after %v: it waits for %v, want %v", after, waited, want)
			}
			return forget
		})
		if err != nil || found != 1 {
			t.Fatalf("%d found, %v", found, err)
		}
	}
	for n := range 20 {
		insert(t, h, 1, func(_ int, e *entry) {
			*e = inState(sent(tcp(vip, 80), l1), tcpSynSent)
			e.timeout = 77
		})
		after := time.Duration(n) * time.Minute
		look(after, 0, false)
		look(after+time.Second, time.Second, true)
		if len(a.seen) > 0 {
			t.Fatalf("forgotten, and remembered as seen: %v", a.seen)
		}
	}
	t.Logf("20 connections had %d ids", len(ids))
}

func BenchmarkLook(b *testing.B) {
	h, _ := newMany(b)
	for _, ports := range []int{1, maxQueries, maxQueries + 1} {
		b.Run(fmt.Sprintf("frontends=%d", ports), func(b *testing.B) {
			c, err := New(Options{NetNS: h.Namespace(), Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer c.table.close()
			var work Work
			for n := range ports {
				work.Flows = append(work.Flows, Flows{Frontend: udp(vip, 53+uint16(n)), Look: true})
			}
			for b.Loop() {
				c.schedule.add(work, time.Now())
				if _, err := c.scan(b.Context(), time.Now()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.Stats().Entries)/float64(c.Stats().Looks), "entries/op")
		})
	}
}
