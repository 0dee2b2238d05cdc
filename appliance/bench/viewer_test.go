package bench

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/store/manifest/styles"
)

// viewFor is how long somebody watches.
const viewFor = 20 * time.Second

// BenchmarkViewer measures the CPU of the appliance while somebody has the busiest Services and their endpoints shown
// every second, as `svcctl top -A --endpoints` does, beside the same time without.
func BenchmarkViewer(b *testing.B) {
	const section = "A viewer: CPU of the appliance"
	for _, services := range []int{10_000, 50_000} {
		x := newBoxOf(b, netlab.New(b), func(d netlab.Dir) {
			for i := range services {
				writeFile(d, styles.All[0], i, 0)
			}
		})
		x.Start()
		connections(b, x, busyServices)
		x.settle(b)
		x.rests(b)
		before := x.cpu(b)
		time.Sleep(viewFor)
		idle := x.cpu(b) - before
		before = x.cpu(b)
		looks, size := 0, 0
		for begin := time.Now(); time.Since(begin) < viewFor; looks++ {
			next := begin.Add(time.Duration(looks+1) * time.Second)
			size = len(x.get(b, "/svcctl/v1/traffic?sort=open&endpoints=true&limit=100"))
			time.Sleep(time.Until(next))
		}
		share := 100 * float64(x.cpu(b)-before) / float64(viewFor)
		results.add(section, number(services)+" Services, asked every second", fmt.Sprintf("%.2f %% of a core", share),
			fmt.Sprintf("%.2f %% without; %d answers of %d KB", 100*float64(idle)/float64(viewFor), looks, size/1000))
		x.Stop()
	}
}

// rests waits until the appliance has done what a start leaves to do.
func (x *box) rests(b *testing.B) {
	b.Helper()
	const pause = 5 * time.Second
	for range 24 {
		before := x.cpu(b)
		time.Sleep(pause)
		if x.cpu(b)-before < pause/500 {
			return
		}
	}
	b.Log("the appliance was not idle when somebody began to watch")
}

// connections makes one through each of the first n Services.
func connections(b *testing.B, x *box, n int) {
	b.Helper()
	if _, stderr, err := x.host.Run("ip", "route", "add", "default", "dev", "lo"); err != nil {
		b.Fatalf("%v: %s", err, stderr)
	}
	err := x.host.Do(func() error {
		for i := range n {
			conn, err := net.Dial("udp", netip.AddrPortFrom(serviceAddr(i), 80).String())
			if err != nil {
				return err
			}
			_, _ = conn.Write([]byte("x")) // a connection, whoever answers
			if err := conn.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}
