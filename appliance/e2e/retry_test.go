package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// Of three endpoints one is silent. With retry-after each of many clients of a cluster IP, a load
// balancer IP and a node port is answered by one of the others.
func Test234_retry_after(t *testing.T) {
	b := newBox(t, metered)
	// A client repeats its SYN every second for a while (Linux 6.5), and then less and less often. So that chance cannot send all
	// of them to the silent endpoint, it goes on; nine are sent in 255 s by one that waits twice as long each time. Of 240 such
	// clients one would get no answer in 1 of 80 runs, so fewer ask then.
	// On a busy machine it takes the box half a minute to look at them all.
	patience, clients := 10*time.Minute, 30
	_, err := os.Stat("/proc/sys/net/ipv4/tcp_syn_linear_timeouts")
	for _, h := range []*netlab.Host{b.IN, b.EXT} {
		if err == nil {
			h.Sysctl("net.ipv4.tcp_syn_linear_timeouts", "127")
			clients = 120
		}
		h.Sysctl("net.ipv4.tcp_syn_retries", "127")
	}
	b.L2.LoadNft("table inet silent { chain input { type filter hook input priority 0; tcp dport 80 drop; }; }")
	b.write("web.yaml", func(f family) []string {
		svc := f.service("web", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4),
			fmt.Sprintf("ports: [{name: tcp, port: 80, nodePort: %d}]", f.everywherePort("tcp")))
		return []string{withAnnotations(svc, "svcctl.io/retry-after: 1s"), f.slice("web", "tcp: 80", b.L1, b.L2, b.R1)}
	})
	b.svcctl.Start()
	before := b.metric(t, "svcctl_conntrack_retried_total")
	b.each(t, func(t *testing.T, b *box, f family) {
		begin := time.Now()
		tally := netlab.AskEach(clients, func(i int) (netlab.Reply, error) {
			long := netlab.Within(patience)
			switch i % 3 {
			case 0:
				return b.IN.Ask("tcp", f.at(f.vip(41), 80), long)
			case 1:
				return b.EXT.Ask("tcp", f.at(f.lb(4), 80), long)
			}
			return b.EXT.Ask("tcp", f.at(f.boxAddr(), f.everywherePort("tcp")), long)
		})
		t.Logf("%s, in %s", tally, time.Since(begin).Round(time.Millisecond))
		if len(tally.Failures) > 0 || len(tally.At) != 2 || tally.Servers[b.L2.Name] > 0 {
			t.Errorf("%s, want answers of %s and %s alone", tally, b.L1.Name, b.R1.Name)
		}
	})
	if n := b.metric(t, "svcctl_conntrack_retried_total") - before; n == 0 {
		t.Error("no connection is counted as forgotten")
	}
}
