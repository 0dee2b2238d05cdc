package fleet_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// BenchmarkFleet prints the figures of docs/performance.md, once each: -benchtime 1x.
func BenchmarkFleet(b *testing.B) {
	c := startEtcd(b, 3)
	c.init()
	boxes := make([]*box, 8)
	for i := range boxes {
		boxes[i] = c.join(fmt.Sprintf("b%d", i))
	}
	median := func(all []time.Duration) (p50, p99 float64) {
		slices.Sort(all)
		return all[len(all)/2].Seconds() * 1000, all[len(all)*99/100].Seconds() * 1000
	}
	var write, lag []time.Duration
	for n := range 300 {
		began := time.Now()
		if err := boxes[0].create(fmt.Sprintf("one%d", n)); err != nil {
			b.Fatal(err)
		}
		write = append(write, time.Since(began))
		revision := boxes[0].Revision()
		for _, other := range boxes[1:] {
			for other.Revision() < revision {
				<-time.After(50 * time.Microsecond)
			}
		}
		lag = append(lag, time.Since(began))
	}
	p50, p99 := median(write)
	b.ReportMetric(p50, "write-p50-ms")
	b.ReportMetric(p99, "write-p99-ms")
	p50, p99 = median(lag)
	b.ReportMetric(p50, "last-of-8-p50-ms")
	b.ReportMetric(p99, "last-of-8-p99-ms")

	var names []string
	for n := range 10_000 {
		names = append(names, fmt.Sprintf("large%d", n))
	}
	began := time.Now()
	if err := boxes[0].create(names...); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "10000-Services-s")
	for _, other := range boxes[1:] {
		for other.clusterIP("large9999") == "" {
			<-time.After(time.Millisecond)
		}
	}
	b.ReportMetric(time.Since(began).Seconds(), "10000-on-all-s")
	began = time.Now()
	if err := boxes[0].create("next"); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "next-commit-s")

	last := boxes[7]
	last.stop()
	for i := range c.members {
		c.kill(i)
	}
	began = time.Now()
	again := c.open(last.cfg, storeConfig)
	if again.clusterIP("large9999") == "" {
		b.Fatal("the replica does not have it")
	}
	b.ReportMetric(time.Since(began).Seconds(), "start-without-etcd-s")
}

// BenchmarkWriters is how many writes of one Service each boxes make together in five seconds.
func BenchmarkWriters(b *testing.B) {
	c := startEtcd(b, 3)
	c.init()
	boxes := []*box{c.join("a"), c.join("b"), c.join("c"), c.join("d")}
	for _, n := range []int{1, 2, 4} {
		var wg sync.WaitGroup
		var mu sync.Mutex
		done, before := 0, lostOf(boxes)
		end := time.Now().Add(5 * time.Second)
		for i, box := range boxes[:n] {
			wg.Go(func() {
				for k := 0; time.Now().Before(end); k++ {
					if err := box.create(fmt.Sprintf("w%d-%d-%d", n, i, k)); err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					done++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(done)/5, fmt.Sprintf("writes/s-of-%d", n))
		b.ReportMetric(float64(lostOf(boxes)-before)/float64(done), fmt.Sprintf("lost/write-of-%d", n))
	}
}

func lostOf(boxes []*box) (lost uint64) {
	for _, b := range boxes {
		lost += b.Lost()
	}
	return lost
}

// BenchmarkFollowers measures boxes that follow others: their CPU time for each object that changes, how late the last of them is,
// and the cost for etcd, for some numbers of boxes. The boxes are stores in this process, each with a replica of its own; what
// eight take is the difference between nine and one.
func BenchmarkFollowers(b *testing.B) {
	const objects, together = 1_000, 20
	for _, n := range []struct{ boxes, commits int }{{1, 50}, {9, 50}, {40, 10}} { // in commits a second, of together objects
		b.Run(fmt.Sprintf("boxes=%d,objects=%d", n.boxes, n.commits*together), func(b *testing.B) {
			c := startEtcd(b, 3)
			c.init()
			boxes := make([]*box, n.boxes)
			for i := range boxes {
				boxes[i] = c.join(fmt.Sprintf("b%d", i))
			}
			var names []string
			for i := range objects {
				names = append(names, fmt.Sprintf("s%d", i))
			}
			if err := boxes[0].create(names...); err != nil {
				b.Fatal(err)
			}
			caughtUp := func() {
				for revision := boxes[0].Revision(); slices.ContainsFunc(boxes, func(o *box) bool { return o.Revision() < revision }); {
					time.Sleep(100 * time.Microsecond)
				}
			}
			caughtUp()
			var lag []time.Duration
			tick := time.NewTicker(time.Second / time.Duration(n.commits))
			defer tick.Stop()
			cpu, etcd, began := cpuOfSelf(b), c.cpu(b), time.Now()
			commits := 10 * n.commits
			for k := range commits {
				<-tick.C
				var writes []store.Write
				for i := range together {
					o := service(names[(k*together+i)%objects])
					o.Metadata.Annotations = map[string]string{"example.com/version": fmt.Sprint(k)}
					writes = append(writes, store.Write{Ref: object.RefOf(o), Object: o, By: store.Caller{User: "test"}})
				}
				at := time.Now()
				if _, err := boxes[0].Write(writes...); err != nil {
					b.Fatal(err)
				}
				if k%10 == 0 {
					caughtUp()
					lag = append(lag, time.Since(at))
				}
			}
			caughtUp()
			took := time.Since(began).Seconds()
			changes := float64(commits * together)
			b.ReportMetric(changes/took, "objects/s")
			b.ReportMetric((cpuOfSelf(b)-cpu).Seconds()/changes*1e6, "µs-CPU/object")
			b.ReportMetric((c.cpu(b)-etcd).Seconds()/took, "etcd-cores")
			slices.Sort(lag)
			b.ReportMetric(lag[len(lag)/2].Seconds()*1000, "last-p50-ms")
			b.ReportMetric(lag[len(lag)*99/100].Seconds()*1000, "last-p99-ms")
		})
	}
}

func cpuOfSelf(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// cpu returns the CPU time of the members.
func (c *cluster) cpu(b *testing.B) (all time.Duration) {
	b.Helper()
	for _, m := range c.members {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.Process.Pid))
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest)
		for _, ticks := range fields[11:13] { // utime and stime of proc(5), in 10 ms
			n, err := strconv.Atoi(ticks)
			if err != nil {
				b.Fatal(err)
			}
			all += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return all
}
