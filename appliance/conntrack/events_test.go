package conntrack

import (
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// translate makes n entries of UDP to a VIP that are translated, and deletes them.
func translate(t *testing.T, h *netlab.Host, n int) {
	t.Helper()
	s, err := dial(h.Namespace())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range n {
		translateOne(t, s, i)
	}
}

// translateOne makes an entry as translate does, and deletes it.
func translateOne(t *testing.T, s *socket, i int) {
	t.Helper()
	endpoint := netip.MustParseAddr("10.180.0.1")
	{
		client, vip := netip.AddrPortFrom(addrOf(0x0a000000+i), 40000), netip.AddrPortFrom(addrOf(0xac1e0029), 53)
		var w writer
		w.begin(messageNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, s.Sequence(1), unix.AF_INET)
		w.tuple(ctaTupleOrig, nft.UDP, client, vip)
		w.tuple(ctaTupleReply, nft.UDP, vip, client)
		w.Uint32(ctaTimeout, 600)
		w.Uint32(ctaStatus, statusConfirmed)
		w.nest(ctaNATDst, func() {
			w.addr(ctaNATIPv4Min, ctaNATIPv6Min, endpoint)
			w.addr(ctaNATIPv4Max, ctaNATIPv6Max, endpoint)
		})
		w.End()
		w.begin(messageDelete, unix.NLM_F_ACK, s.Sequence(1), unix.AF_INET)
		w.tuple(ctaTupleOrig, nft.UDP, client, vip)
		w.End()
		if err := s.Send(w.Buf); err != nil {
			t.Fatal(err)
		}
		for {
			datagram, err := s.Receive()
			if err != nil {
				break
			}
			for m := range nfnetlink.Messages(datagram) {
				if errno := m.Errno(); errno != 0 {
					t.Fatalf("entry %d: %v", i, errno)
				}
			}
		}
	}
}

// Ends of translated connections are told, beginnings if asked, and others never; what finds no room is counted
// one by one.
func TestEvents(t *testing.T) {
	h := netlab.New(t).Host("box")
	events, err := Listen(h.Namespace())
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	now := time.Unix(1_800_000_000, 0)
	read := func(when string, wantBegun, wantOver, wantLost int) {
		t.Helper()
		var begun, over int
		lost, err := events.Read(now, func(e *Event) {
			if e.To.Addr() != addrOf(0xac1e0029) || e.Endpoint.String() != "10.180.0.1:53" || e.Protocol != nft.UDP {
				t.Fatalf("%s: %+v", when, e.Connection)
			}
			if begun++; e.Over {
				begun, over = begun-1, over+1
				if !e.Ended.Equal(now) { // it was deleted with time left
					t.Fatalf("%s: ended %s", when, e.Ended)
				}
			}
		})
		if err != nil || begun+over+int(lost) != wantBegun+wantOver+wantLost || wantLost == 0 && (begun != wantBegun || over != wantOver) {
			t.Errorf("%s: %d begun, %d over, %d lost, %v; want %d, %d, %d", when, begun, over, lost, err, wantBegun, wantOver, wantLost)
		}
		if wantLost > 0 && lost == 0 {
			t.Errorf("%s: none was lost", when)
		}
	}
	insert(t, h, 100, func(n int, e *entry) { // not translated
		e.protocol, e.timeout = nft.UDP, 600
		e.from, e.to = netip.AddrPortFrom(addrOf(0x0b000000+n), 40000), netip.AddrPortFrom(addrOf(0xc6330000+n), 53)
		e.replyFrom, e.replyTo = e.to, e.from
	})
	h.Conntrack("-D", "-p", "udp")
	read("of others", 0, 0, 0)
	translate(t, h, 10)
	if err := events.Wait(); err != nil {
		t.Error(err)
	}
	read("ends", 0, 10, 0)
	if err := events.Begins(true); err != nil {
		t.Fatal(err)
	}
	translate(t, h, 10)
	read("beginnings and ends", 10, 10, 0)
	if err := events.Begins(false); err != nil {
		t.Fatal(err)
	}
	translate(t, h, 10)
	read("ends again", 0, 10, 0)
	const many = 20_000
	translate(t, h, many)
	read("more than there is room for", 0, many-1, 1)
	translate(t, h, 10)
	read("afterwards", 0, 10, 0)

	closed := make(chan error)
	go func() { closed <- events.Wait() }()
	_ = events.Close()
	if err := <-closed; !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed while somebody waits: %v", err)
	}
}

// Test876_events_that_never_end: a reader that events come faster to than it reads them goes on after a bound, and is not lost to those
// who wait for what it has.
func Test876_events_that_never_end(t *testing.T) {
	h := netlab.New(t).Host("box")
	events, err := Listen(h.Namespace())
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	s, err := dial(h.Namespace())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	translateOne(t, s, 0)
	read := 0
	if _, err := events.Read(time.Now(), func(*Event) {
		if read++; read > 2*readAtOnce {
			return
		}
		translateOne(t, s, read) // the next one is there before this one is done
	}); err != nil {
		t.Fatal(err)
	}
	if read > readAtOnce || read < 1000 {
		t.Errorf("%d events are read at once, %d are the most", read, readAtOnce)
	}
}

// The end of a connection is told late, by the silence after which its state is forgotten.
func TestLastPacket(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, tt := range []struct {
		of   entry
		want time.Duration
	}{
		{entry{protocol: nft.TCP, state: tcpTimeWait}, -2 * time.Minute},
		{entry{protocol: nft.TCP, state: tcpClose}, -10 * time.Second},
		{entry{protocol: nft.TCP, state: tcpEstablished, timeout: 400}, 0},
		{entry{protocol: nft.UDP}, -30 * time.Second},
		{entry{protocol: nft.UDP, assured: true}, -2 * time.Minute},
		{entry{protocol: nft.UDP, assured: true, ended: uint64(now.Add(-time.Minute).UnixNano())}, -3 * time.Minute},
		{entry{protocol: nft.SCTP}, 0},
	} {
		if got := tt.of.lastPacket(now).Sub(now); got != tt.want {
			t.Errorf("%+v ended %s ago, want %s", tt.of, -got, -tt.want)
		}
	}
}

// Of TCP connections through a VIP those that the endpoint did not answer are told, as they failed. One that was
// answered, and UDP without an answer, wake nobody.
func TestFailedOnly(t *testing.T) {
	lab := netlab.NewStandard(t)
	endpoint := lab.L1.Addr4().String()
	lab.GW1.LoadNft("table ip vip { chain pre { type nat hook prerouting priority -100;\n" +
		"ip daddr 172.30.0.41 tcp dport 80 dnat to " + endpoint + ":80\n" +
		"ip daddr 172.30.0.41 tcp dport 81 dnat to " + endpoint + ":9\n" +
		"ip daddr 172.30.0.41 udp dport 82 dnat to 10.180.99.99:82\n}\n}\n")
	events, err := ListenFailed(lab.GW1.Namespace())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = events.Close() })
	vip := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("172.30.0.41"), port) }
	for range 5 {
		if _, err := lab.IN.Ask("tcp", vip(80)); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = lab.IN.Ask("udp", vip(82), netlab.Within(100*time.Millisecond)) // real time: nobody answers
	lab.GW1.Conntrack("-F")                                                // all end now
	const refused = 3
	for range refused {
		if _, err := lab.IN.Ask("tcp", vip(81)); netlab.RefusalOf(err) != netlab.Refused {
			t.Fatalf("nobody listens at port 9: %v", err)
		}
	}
	seen := 0
	for deadline := time.Now().Add(time.Minute); seen < refused && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := events.Read(time.Now(), func(e *Event) {
			if e.Failure() != Refused || e.To != vip(81) || e.Endpoint.Port() != 9 {
				t.Errorf("told of a connection to %s, endpoint %s, in state %s: failure %d", e.To, e.Endpoint, e.State, e.Failure())
			}
			seen++
		}); err != nil {
			t.Fatal(err)
		}
	}
	if seen != refused {
		t.Errorf("%d refusals are told, want %d", seen, refused)
	}
}
