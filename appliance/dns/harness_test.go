package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// parse reads manifests as what Update takes.
func parse(t testing.TB, yaml string) map[string]resolve.Input {
	t.Helper()
	file := manifest.Decode("test.yaml", []byte(yaml), manifest.DefaultLimits())
	for _, p := range file.Problems {
		t.Fatal(p)
	}
	inputs := map[string]resolve.Input{}
	for _, d := range file.Documents {
		object.Default(d.Object)
		namespace := d.Object.GetMeta().Namespace
		service := func(name string) (string, resolve.Input) { return namespace + "/" + name, inputs[namespace+"/"+name] }
		switch o := d.Object.(type) {
		case *object.Service:
			if o.Spec.ClusterIP != "" && len(o.Spec.ClusterIPs) == 0 {
				o.Spec.ClusterIPs = []string{o.Spec.ClusterIP}
			}
			key, in := service(o.Metadata.Name)
			in.Service = o
			inputs[key] = in
		case *object.EndpointSlice:
			key, in := service(o.Metadata.Labels["kubernetes.io/service-name"])
			in.Slices = append(in.Slices, o)
			inputs[key] = in
		}
	}
	return inputs
}

func service(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {%s}\n", name, spec)
}

func slice(service, kind, ports string, endpoints ...string) string {
	return fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: %s-%s-%d, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\nports: [%s]\nendpoints: [%s]\n",
		service, strings.ToLower(kind), len(endpoints), service, kind, ports, strings.Join(endpoints, ", "))
}

// config is a Config on a free port of the loopback interface.
func config() Config {
	return Config{
		Addresses: []string{"127.0.0.1:0"}, Domain: "cluster.local",
		ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")},
	}
}

// listenOn starts a Server without any Service.
func listenOn(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := Listen(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// serve starts a Server for manifests.
func serve(t testing.TB, cfg Config, yaml string) *Server {
	t.Helper()
	s := listenOn(t, cfg)
	s.Update(parse(t, yaml))
	s.Complete()
	return s
}

// question is a message that asks.
func question(name string, kind uint16, edit ...func(*dns.Msg)) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, kind)
	for _, f := range edit {
		f(m)
	}
	return m
}

// ask asks the Server over "udp" or "tcp".
func ask(t testing.TB, s *Server, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: time.Minute, UDPSize: dns.MaxMsgSize}
	answer, _, err := c.Exchange(m, s.Addresses()[0].String())
	if err != nil {
		t.Fatalf("%v over %s: %v", m.Question, network, err)
	}
	if answer.Id != m.Id || !answer.Response || len(answer.Question) != 1 || answer.Question[0] != m.Question[0] {
		t.Fatalf("the answer to %v is no answer to it:\n%v", m.Question, answer)
	}
	return answer
}

// text is an answer in one line: the code, flags, and the records of each section in
// order, without what all have in common.
func text(m *dns.Msg) string {
	parts := []string{dns.RcodeToString[m.Rcode]}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"aa", m.Authoritative}, {"tc", m.Truncated}, {"ra", m.RecursionAvailable}, {"ad", m.AuthenticatedData}} {
		if flag.set {
			parts[0] += " " + flag.name
		}
	}
	for _, section := range []struct {
		name string
		rrs  []dns.RR
	}{{"", m.Answer}, {"authority: ", m.Ns}, {"additional: ", m.Extra}} {
		var lines []string
		for _, rr := range section.rrs {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			fields := strings.Fields(rr.String())
			if rr.Header().Rrtype == dns.TypeSOA {
				fields = fields[:4] // the serial is of the moment
			}
			lines = append(lines, section.name+fields[0]+" "+strings.Join(fields[3:], " "))
		}
		if !slices.ContainsFunc(section.rrs, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeCNAME }) {
			slices.Sort(lines) // the order of other records means nothing
		}
		parts = append(parts, lines...)
	}
	return strings.Join(parts, "; ")
}
