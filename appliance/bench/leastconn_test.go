package bench

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
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
	counts := map[string]*netlab.OpenCounts{}
	for kind, to := range vips {
		o := netlab.NewOpenCounts(slices.Collect(maps.Keys(lives))...)
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
					o.Add(c.Reply.Server, 1)
					time.Sleep(lives[c.Reply.Server])
					o.Add(c.Reply.Server, -1)
				})
				if i >= warm {
					o.Sample()
				}
			}
			wg.Wait()
		})
	}
	each.Wait()
	for _, kind := range []string{"random", "least-connection"} {
		o := counts[kind]
		results.add("Open connections at four servers, two of which take three times as long", kind,
			fmt.Sprintf("standard deviation %.1f %% of the mean", 100*o.Spread()),
			fmt.Sprintf("%.0f, %.0f, %.0f, %.0f open on average", o.Mean("s0"), o.Mean("s1"), o.Mean("s2"), o.Mean("s3")))
	}
}
