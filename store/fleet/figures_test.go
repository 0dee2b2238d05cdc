package fleet_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
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
