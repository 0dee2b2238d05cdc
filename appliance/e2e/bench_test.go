package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// BenchmarkFileToPacket is the time from a manifest that is renamed into place to the
// first packet that goes where it says: one endpoint of one Service is replaced while
// others stand by. The client asks without pause, so what one question takes is in it.
func BenchmarkFileToPacket(b *testing.B) {
	for _, services := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			s := netlab.NewStandard(b)
			svcctl := s.GW1.Appliance(binary, standardFlags().args()...)
			s.L1.Serve("udp", 8081)
			s.L1.Serve("udp", 8082)
			writeMany(svcctl.Manifests, services)
			write := func(port int) {
				svcctl.Manifests.Write("probe.yaml", ipv4.service("probe", "clusterIP: 172.30.0.41", "ports: [{name: p, port: 80, protocol: UDP}]")+
					"---\n"+ipv4.slice("probe", fmt.Sprintf("p: %d/UDP", port), s.L1))
			}
			write(8081)
			svcctl.Start()
			var took []time.Duration
			port := 8081
			for b.Loop() {
				port = 8081 + 8082 - port
				start := time.Now()
				write(port)
				for deadline := start.Add(10 * time.Second); ; {
					reply, err := s.IN.Ask("udp", netip.MustParseAddrPort("172.30.0.41:80"), netlab.Within(200*time.Millisecond))
					if err == nil && reply.At.Port() == uint16(port) {
						break
					}
					if time.Now().After(deadline) {
						b.Fatalf("still answered by %v (%v), want port %d\n%s", reply, err, port, svcctl.Log())
					}
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms-p99")
		})
	}
}

// writeMany writes Services with five endpoints each that get no traffic.
func writeMany(dir netlab.Dir, services int) {
	const perFile = 100
	for first := 0; first < services; first += perFile {
		var docs []string
		for i := first; i < first+perFile; i++ {
			name := fmt.Sprintf("s%05d", i)
			var list []string
			for e := range 5 {
				list = append(list, fmt.Sprintf("{addresses: [10.181.%d.%d]}", 10+i%200, 10+e))
			}
			docs = append(docs, ipv4.service(name, "ports: [{name: p80, port: 80}]"), ipv4.rawSlice(name, name, "p80: 80", list...))
		}
		dir.Write(fmt.Sprintf("many%05d.yaml", first), strings.Join(docs, "---\n"))
	}
}
