package soak

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

func TestZeroDrop_updates(t *testing.T) {
	b := newBench(t)
	b.svcctl.Start()
	l := b.start(t)
	for range updates.value(t) {
		b.update()
		b.pause(150 * time.Millisecond)
	}
	b.converged(t)
	l.stop(t)
}

func TestP01_stoppedUnderLoad(t *testing.T) {
	b := newBench(t)
	b.svcctl.Start()
	l := b.start(t)
	for range stops.value(t) {
		b.update()
		b.pause(200 * time.Millisecond)
		b.svcctl.Stop()
		b.update()
		b.pause(50 * time.Millisecond)
		b.svcctl.Start()
	}
	b.converged(t)
	l.stop(t)
}

// All Services are relayed, and the program is executed anew again and again, between updates.
func TestP11_handedOverUnderLoad(t *testing.T) {
	b := newBenchOf(t, true)
	b.svcctl.Start()
	l := b.start(t)
	for range upgrades.value(t) {
		b.update()
		b.pause(400 * time.Millisecond)
		b.svcctl.HandOver()
	}
	b.converged(t)
	l.stop(t)
}

func TestP02_killedUnderLoad(t *testing.T) {
	b := newBench(t)
	b.svcctl.Start()
	l := b.start(t)
	for i := range kills.value(t) {
		b.update()
		b.pause(200 * time.Millisecond)
		b.svcctl.Kill()
		b.svcctl.Launch()
		if i%3 == 0 { // and in the middle of a start
			b.pause(100 * time.Millisecond)
			b.svcctl.Kill()
			b.svcctl.Launch()
		}
		b.pause(300 * time.Millisecond)
	}
	b.converged(t)
	l.stop(t)
}

// flushPause is between two flushes: more than five in ten seconds would be a fight.
const flushPause = 2500 * time.Millisecond

func TestK01_flushedUnderLoad(t *testing.T) {
	b := newBench(t)
	b.svcctl.Start()
	l := b.start(t)
	for range flushes.value(t) {
		time.Sleep(flushPause) // real time: the load goes on
		l.mayFail()
		b.heal(t)
		l.mustNotFail()
	}
	time.Sleep(time.Second) // real time: the load goes on
	b.converged(t)
	l.stop(t)
}

// heal flushes the ruleset and waits until it is back; it gives the time between.
func (b *bench) heal(t *testing.T) time.Duration {
	t.Helper()
	m := b.GW1.Monitor()
	defer m.Close()
	start := time.Now()
	b.GW1.Nft("flush", "ruleset")
	for {
		for _, tr := range m.Transactions() {
			if tr.Process == "svcctl" && tr.Count("add table") > 0 {
				return time.Since(start)
			}
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("the ruleset is not back %s after a flush:\n%s", time.Since(start), b.svcctl.Log())
		}
		time.Sleep(time.Millisecond)
	}
}

// TestK01_healingTime times how long the rules are away after a flush.
func TestK01_healingTime(t *testing.T) {
	b := newBench(t)
	n := healed.value(t)
	const perFile = 250
	for first := 0; first < n; first += perFile {
		var docs []string
		for i := first; i < min(first+perFile, n); i++ {
			docs = append(docs, fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: many%[1]d}
spec: {ipFamilies: [IPv4], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many%[1]d, labels: {kubernetes.io/service-name: many%[1]d}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.180.1.1]}, {addresses: [10.180.1.2]}, {addresses: [10.180.1.3]}, {addresses: [10.180.1.4]}, {addresses: [10.180.1.5]}]
`, i))
		}
		b.svcctl.Manifests.Write(fmt.Sprintf("many%d.yaml", first), strings.Join(docs, "---\n"))
	}
	b.svcctl.Start()
	conn, err := b.EXT.Dial(netip.AddrPortFrom(vip(1, 1, false), 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var times []time.Duration
	for range heals.value(t) {
		time.Sleep(flushPause) // real time: what follows the last heal is over
		times = append(times, b.heal(t))
		if err := conn.Echo("still here", netlab.Within(time.Minute)); err != nil {
			t.Fatalf("a connection opened before: %v", err)
		}
		if _, err := b.IN.Ask("tcp", netip.AddrPortFrom(vip(2, 1, true), 80), netlab.Within(time.Minute)); err != nil {
			t.Errorf("a new connection after the heal: %v", err)
		}
	}
	slices.Sort(times)
	percentile := func(p int) time.Duration {
		return times[min(len(times)*p/100, len(times)-1)].Round(100 * time.Microsecond)
	}
	t.Logf("%d Services, %d flushes: from the start of `nft flush ruleset` until the rules are back: p50 %s, p99 %s, at most %s",
		n, len(times), percentile(50), percentile(99), times[len(times)-1].Round(100*time.Microsecond))
	// A busy machine makes some of them late, a loop that gets no event of the flush is late each time. The kernel takes its part for each Service.
	if most := time.Second + time.Duration(n)*100*time.Microsecond; times[0] > most {
		t.Errorf("the fastest took %s, want at most %s", times[0], most)
	}
}
