package bench

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// viewFor is the time that a client watches.
const viewFor = time.Minute

// BenchmarkViewer measures the CPU of the appliance while nobody looks, which is that of recording traffic, and while a client
// has the busiest Services and their endpoints shown every second, as `svcctl top -A --endpoints` does, or a page of the dashboard is open and
// asks live.json as its script does: every 3 seconds, and for the whole page when its version is another. The first look, which has more to
// do, has a row of its own.
func BenchmarkViewer(b *testing.B) {
	const section = "A viewer: CPU of the appliance"
	share := func(used time.Duration) float64 { return 100 * float64(used) / float64(viewFor) }
	for _, services := range []int{10_000, 50_000} {
		x := newBox(b, netlab.New(b), services)
		cpu := func(what func()) time.Duration {
			before := x.cpu(b)
			what()
			return x.cpu(b) - before
		}
		rest := func() time.Duration {
			connections(b, x, busyServices)
			x.settle(b)
			x.rests(b)
			return cpu(func() { time.Sleep(viewFor) })
		}
		x.Start()
		idle := rest()
		results.add(section, number(services)+" Services, nobody looks", fmt.Sprintf("%.2f %% of a core", share(idle)), "traffic is recorded")
		size := 0
		top := func() time.Duration {
			size = len(x.get(b, "/svcctl/v1/traffic?sort=open&endpoints=true&limit=100"))
			return time.Second
		}
		page := func(path string) func() time.Duration {
			version, due := "", time.Now()
			return func() time.Duration {
				live := "/dashboard/live.json"
				whole := !time.Now().Before(due)
				if whole {
					live += "?page=" + url.QueryEscape(path)
				}
				text := x.get(b, live)
				var answer struct {
					Version string
					Every   int64
				}
				if err := json.Unmarshal(text, &answer); err != nil {
					b.Fatal(err)
				}
				if size = len(text); whole {
					due = time.Now().Add(time.Duration(answer.Every) * time.Millisecond)
					if version != answer.Version {
						version = answer.Version
						x.get(b, "/dashboard/"+path)
					}
				}
				return 3 * time.Second
			}
		}
		results.add(section, number(services)+" Services, the first answer", ms(cpu(func() { top() })), "")
		for _, viewer := range []struct {
			name string
			ask  func() time.Duration
		}{{"asked every second", top}, {"the overview is open", page("?")}, {"the list of Services is open", page("services")}} {
			asks := 0
			used := cpu(func() {
				next := time.Now()
				for end := next.Add(viewFor); next.Before(end); asks++ {
					next = next.Add(viewer.ask())
					time.Sleep(time.Until(next))
				}
			})
			results.add(section, number(services)+" Services, "+viewer.name, fmt.Sprintf("%.2f %% of a core", share(used)),
				fmt.Sprintf("%.2f %% without; %d answers, the last of %d kB", share(idle), asks, size/1000))
		}
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
			_, _ = conn.Write([]byte("x")) // a connection, whichever endpoint answers
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

// BenchmarkBesideViewer measures changes beside a client that has the busiest Services shown every second, in turns with changes
// alone: from the file to the first packet, so often that the slowest of a hundred is known.
func BenchmarkBesideViewer(b *testing.B) {
	const services, turns, each = 10_000, 10, 40
	x := newBox(b, netlab.New(b), services)
	x.writeSingle(singleAt[0])
	x.Start()
	connections(b, x, busyServices)
	x.settle(b)
	x.rests(b)
	var took [2][]time.Duration // alone, and beside the viewer
	for turn := range 2 * turns {
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for turn%2 == 1 {
				x.get(b, "/svcctl/v1/traffic?sort=open&endpoints=true&limit=100")
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
				}
			}
		}()
		for n := range each {
			at := singleAt[(n+1)%2]
			took[turn%2] = append(took[turn%2], x.packet(b, single, at, func() { x.writeSingle(at) }))
			time.Sleep(time.Duration(n%7) * 20 * time.Millisecond) // not in step with the viewer
		}
		close(stop)
		<-stopped
	}
	figures := func(list []time.Duration) string {
		return fmt.Sprintf("p50 %s, p99 %s", ms(median(list)), ms(quantile(list, 0.99)))
	}
	const section, what = "Change: to the first packet that goes there", "file that replaces an endpoint, 10,000 Services, "
	results.add(section, what+"alone", figures(took[0]), "")
	results.add(section, what+"beside a viewer", figures(took[1]), fmt.Sprintf("p50 %.2fx, p99 %.2fx of alone",
		float64(median(took[1]))/float64(median(took[0])), float64(quantile(took[1], 0.99))/float64(quantile(took[0], 0.99))))
}
