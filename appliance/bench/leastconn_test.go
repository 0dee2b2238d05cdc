package bench

import (
	"fmt"
	"math"
	"net/netip"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

const slowServers = `
apiVersion: v1
kind: Service
metadata: {name: %[1]s, annotations: {svcctl.io/balance: %[1]s}}
spec: {clusterIP: %[2]s, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: 80, protocol: TCP}]
endpoints: [{addresses: [10.9.2.2]}, {addresses: [10.9.2.3]}, {addresses: [10.9.2.4]}, {addresses: [10.9.2.5]}]
`

// openAt counts the connections that each of four servers has open.
type openAt struct {
	mu     sync.Mutex
	open   map[string]float64
	sum    map[string]float64 // of open, over samples
	spread float64            // sum of standard deviation / mean
	n      float64
}

func (o *openAt) add(server string, n float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open[server] += n
}

func (o *openAt) sample() {
	o.mu.Lock()
	defer o.mu.Unlock()
	sum, squares := 0.0, 0.0
	for server, n := range o.open {
		o.sum[server] += n
		sum += n
		squares += n * n
	}
	mean := sum / float64(len(o.open))
	o.spread += math.Sqrt(squares/float64(len(o.open))-mean*mean) / mean
	o.n++
}

// BenchmarkSlowServers has 150 connections a second go to four servers, of which two keep each for 2 s and two for 6 s,
// at random and by least connection at the same time: how evenly connections are open.
func BenchmarkSlowServers(b *testing.B) {
	const rate, warm, all = 150, 2000, 6000
	lab := netlab.New(b)
	gw, client := lab.Host("gw"), lab.Host("client")
	lab.Segment("out").Attach(gw, "out0", "10.9.1.1/24").Attach(client, "eth0", "10.9.1.2/24")
	gw.Sysctl("net.ipv4.ip_forward", "1")
	client.Route("10.96.0.0/12", "10.9.1.1")
	in := lab.Segment("in").Attach(gw, "in0", "10.9.2.1/24")
	lives := map[string]time.Duration{}
	for i, life := range []time.Duration{2 * time.Second, 6 * time.Second, 2 * time.Second, 6 * time.Second} {
		s := lab.Host(fmt.Sprintf("s%d", i))
		in.Attach(s, "eth0", fmt.Sprintf("10.9.2.%d/24", 2+i))
		s.Route("10.9.1.0/24", "10.9.2.1")
		s.Serve("tcp", 80)
		lives[s.Name] = life
	}
	box := gw.Appliance(*program, boxFlags...)
	vips := map[string]netip.AddrPort{}
	for i, kind := range []string{"random", "least-connection"} {
		vips[kind] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)}), 80)
		box.Manifests.Write(kind+".yaml", fmt.Sprintf(slowServers, kind, vips[kind].Addr()))
	}
	box.Start()
	for _, to := range vips {
		if _, err := client.Ask("tcp", to, netlab.Within(patience)); err != nil {
			b.Fatal(err)
		}
	}
	var each sync.WaitGroup
	counts := map[string]*openAt{}
	for kind, to := range vips {
		o := &openAt{open: map[string]float64{}, sum: map[string]float64{}}
		for server := range lives {
			o.open[server] = 0
		}
		counts[kind] = o
		each.Go(func() {
			var wg sync.WaitGroup
			tick := time.NewTicker(time.Second / rate)
			defer tick.Stop()
			for i := range all {
				<-tick.C
				wg.Go(func() {
					c, err := client.Dial(to, netlab.Within(patience))
					if err != nil {
						b.Errorf("connection %d to %s: %v", i, to, err)
						return
					}
					defer c.Close()
					o.add(c.Reply.Server, 1)
					time.Sleep(lives[c.Reply.Server])
					o.add(c.Reply.Server, -1)
				})
				if i >= warm {
					o.sample()
				}
			}
			wg.Wait()
		})
	}
	each.Wait()
	for _, kind := range []string{"random", "least-connection"} {
		o := counts[kind]
		results.add("Open connections at four servers, two of which take three times as long", kind,
			fmt.Sprintf("standard deviation %.1f %% of the mean", 100*o.spread/o.n),
			fmt.Sprintf("%.0f, %.0f, %.0f, %.0f open on average", o.sum["s0"]/o.n, o.sum["s1"]/o.n, o.sum["s2"]/o.n, o.sum["s3"]/o.n))
	}
}
