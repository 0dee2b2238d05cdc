package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// manyServices are Services with a cluster IP each.
func manyServices(n int) map[string]resolve.Input {
	all := map[string]resolve.Input{}
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		all["default/"+name] = resolve.Input{Service: clusterIPService(name, fmt.Sprintf("10.96.%d.%d", i>>8, i&255))}
	}
	return all
}

func clusterIPService(name, ip string) *object.Service {
	return &object.Service{
		Metadata: object.ObjectMeta{Namespace: "default", Name: name},
		Spec: object.ServiceSpec{Type: object.TypeClusterIP, ClusterIPs: []string{ip},
			Ports: []object.ServicePort{{Name: "http", Protocol: object.ProtocolTCP, Port: 80}}},
	}
}

const benchServices = 10_000

// BenchmarkServe measures questions over UDP, asked one after the other by as many
// clients as there are processors: this Server beside a bare miekg/dns server that
// answers from a map, so that what is between the two is ours.
func BenchmarkServe(b *testing.B) {
	s, err := Listen(config(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	s.Update(manyServices(benchServices))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go func() { _ = s.Run(ctx) }()

	names := map[string]net.IP{}
	for key, in := range manyServices(benchServices) {
		_, name, _ := strings.Cut(key, "/")
		names[name+".default.svc.cluster.local."] = net.ParseIP(in.Service.Spec.ClusterIPs[0]).To4()
	}
	bare := newResolver(b, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		name := q.Question[0].Name
		if ip := names[name]; ip != nil {
			m.Answer = []dns.RR{&dns.A{Hdr: header(name, dns.TypeA), A: ip}}
		} else {
			m.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(m)
	})
	for _, server := range []struct{ name, addr string }{{"svcctl", s.Addresses()[0].String()}, {"bare", bare.addr.String()}} {
		b.Run(server.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("udp", server.addr)
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				packet, err := question("s4711.default.svc.cluster.local.", dns.TypeA).Pack()
				if err != nil {
					b.Error(err)
					return
				}
				answer := make([]byte, datagram)
				for pb.Next() {
					if _, err := conn.Write(packet); err != nil {
						b.Error(err)
						return
					}
					if n, err := conn.Read(answer); err != nil || answer[7] != 1 { // one answer
						b.Errorf("% x, %v", answer[:n], err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
		})
	}
}

// BenchmarkRespond measures the making of an answer without the network.
func BenchmarkRespond(b *testing.B) {
	s := newServer(config(), slog.New(slog.DiscardHandler))
	s.Update(manyServices(benchServices))
	s.Update(parse(b, crowd(100)))
	from := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	for _, bm := range []struct {
		name     string
		question *dns.Msg
	}{
		{"A", question("s4711.default.svc.cluster.local.", dns.TypeA, edns(1232))},
		{"NXDOMAIN", question("none.default.svc.cluster.local.", dns.TypeA, edns(1232))},
		{"SRV", question("_http._tcp.s4711.default.svc.cluster.local.", dns.TypeSRV, edns(1232))},
		{"PTR", question("103.18.96.10.in-addr.arpa.", dns.TypePTR, edns(1232))},
		{"headless-100", question("crowd.default.svc.cluster.local.", dns.TypeA, edns(1232))},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if m := s.respond(from, bm.question); len(m.Answer)+len(m.Ns) == 0 {
					b.Fatal(m)
				}
			}
		})
	}
}

// BenchmarkUpdate changes one Service among n: the cost is that of the change.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{10, 1_000, 50_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := newServer(config(), slog.New(slog.DiscardHandler))
			s.Update(manyServices(n))
			states := []map[string]resolve.Input{
				{"default/s7": {Service: clusterIPService("s7", "10.96.0.7")}},
				{"default/s7": {Service: clusterIPService("s7", "10.96.255.7")}},
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Update(states[i%2])
				i++
			}
		})
	}
}
