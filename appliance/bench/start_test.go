package bench

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft/kernel"
)

// BenchmarkStart is a cold start, from the process to the last element in the kernel, in
// turns with the kernel's part of it alone; a start over what is there; and what the
// process holds and does afterwards.
func BenchmarkStart(b *testing.B) {
	for _, start := range starts {
		x := newBox(b, netlab.New(b), start.services)
		size := number(start.services) + " Services"
		x.starts(b, size, start.rounds)
		x.idle(b, size)
	}
}

// starts measures cold starts and starts over what is there, at most so many of each.
func (x *box) starts(b *testing.B, size string, most int) {
	b.Helper()
	var cold, warm, bare, coldCPU, warmCPU []time.Duration
	start := func() (took, cpu time.Duration) {
		began := time.Now()
		x.Start()
		took, cpu = time.Since(began), x.cpu(b)
		x.Stop()
		return took, cpu
	}
	for range min(*rounds, most) {
		x.empty(b)
		took, cpu := start()
		cold, coldCPU = append(cold, took), append(coldCPU, cpu)
		bare = append(bare, x.load(b))
		took, cpu = start()
		warm, warmCPU = append(warm, took), append(warmCPU, cpu)
	}
	results.add("Start", "cold, "+size, ms(median(cold)), fmt.Sprintf("%.1fx the kernel's load of the same elements, %s; CPU %s",
		median(ratios(cold, bare)), ms(median(bare)), ms(median(coldCPU))))
	results.add("Start", "over the same, "+size, ms(median(warm)), fmt.Sprintf("%d commits; CPU %s", x.adopts(b), ms(median(warmCPU))))
}

// empty takes everything away that a start finds.
func (x *box) empty(b *testing.B) {
	b.Helper()
	if err := os.RemoveAll(x.Data); err != nil {
		b.Fatal(err)
	}
	x.host.LoadNft("flush ruleset")
}

// load is how long the kernel takes for the elements of the box, from messages that wait
// in memory.
func (x *box) load(b *testing.B) time.Duration {
	b.Helper()
	batch := x.bare(b)
	h := netlab.New(b).Host("bare")
	conn, err := kernel.Open(kernel.Options{NetNS: h.Namespace()})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	runtime.GC() // or the batch's garbage is collected while the kernel works
	began := time.Now()
	if _, err := conn.Commit(batch, 0); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	h.LoadNft("flush ruleset")
	return took
}

// adopts starts over what is there and counts the transactions on our tables. The box
// stays started.
func (x *box) adopts(b *testing.B) (commits int) {
	x.watch(b)
	x.Start()
	for {
		select {
		case c := <-x.changes:
			if c.Ours {
				commits++
			}
		case <-time.After(time.Second):
			return commits
		}
	}
}

// idle looks at a process that has nothing to do.
func (x *box) idle(b *testing.B, size string) {
	const watched = 30 * time.Second
	time.Sleep(3 * time.Second) // what the start left is collected
	x.restart(b)
	now, peak := x.memory(b)
	results.add("Memory", "after a cold start, "+size, fmt.Sprintf("%d MiB", now), fmt.Sprintf("at most %d MiB", peak))
	for step := range 20 {
		x.Manifests.Write("probe.yaml", probeAt(vip, 5, step%2))
		x.settle(b)
	}
	now, _ = x.memory(b)
	results.add("Memory", "20 changes later, "+size, fmt.Sprintf("%d MiB", now), "")
	time.Sleep(5 * time.Second)
	cpu, wakes := x.cpu(b), x.field(b, "task/*/status", "voluntary_ctxt_switches")
	time.Sleep(watched)
	cpu, wakes = x.cpu(b)-cpu, x.field(b, "task/*/status", "voluntary_ctxt_switches")-wakes
	results.add("Idle", size, fmt.Sprintf("%.3f %% of a core", 100*cpu.Seconds()/watched.Seconds()),
		fmt.Sprintf("%.1f wake-ups a second", float64(wakes)/watched.Seconds()))
}

// restart starts the box anew from nothing.
func (x *box) restart(b *testing.B) {
	b.Helper()
	x.Stop()
	x.empty(b)
	x.Start()
	x.steady(b)
}

// steady waits until the memory of the box does not change any more.
func (x *box) steady(b *testing.B) {
	b.Helper()
	// What the start left is given back in the background, at the end of which its huge pages end ("hg" are parts of the
	// memory that may have some). That takes as long as the machine is busy.
	before, now := 0, 0
	for i := range 30 {
		time.Sleep(3 * time.Second)
		mappings, err := os.ReadFile("/proc/" + x.pid(b) + "/smaps")
		if err != nil {
			b.Fatal(err)
		}
		before, now = now, x.field(b, "status", "VmRSS")
		// What runs every 10 s maps pages of the program: it has run twice.
		if i >= 7 && !strings.Contains(string(mappings), " hg") && now*100 > before*99 && now < before*101/100 {
			return
		}
	}
	b.Log("the memory has not become steady")
}

// starts are the numbers of Services to start with, and how often that is measured at
// most: it is long.
var starts = []struct{ services, rounds int }{{10_000, 5}, {50_000, 3}}
