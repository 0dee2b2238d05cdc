package admission

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

func TestAddressCheck(t *testing.T) {
	reads, failing := 0, error(nil)
	cfg := &config.Config{}
	check := New(cfg, opened(t), nil)
	check.read = func() (node.Facts, error) {
		reads++
		return node.Facts{
			Addresses: []node.Address{
				{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Interface: "eth0"},
				{Prefix: netip.MustParsePrefix("198.51.100.7/32"), Interface: "lo"},
			},
			Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.254")},
		}, failing
	}
	purpose := map[string]string{resolve.AnnotationHostAddress: "true"}
	inRange := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	for _, c := range []struct {
		addr        string
		annotations map[string]string
		ranges      []netip.Prefix
		want        string
	}{
		{"192.0.2.1", nil, nil, "it is an address of this host, on eth0"},
		{"192.0.2.254", nil, nil, "it is a gateway of this host"},
		{"192.0.2.1", purpose, nil, ""},
		{"198.51.100.7", nil, nil, ""}, // that is how a VIP is bound
		{"203.0.113.9", nil, inRange, ""},
		{"198.51.100.9", nil, inRange, "it is in no --external-ip-range [203.0.113.0/24]"},
		{"192.0.2.1", purpose, inRange, "it is in no --external-ip-range"},
	} {
		check.Look(nil)
		if len(c.ranges) > 0 {
			check.seen.facts.ExternalIPRanges = c.ranges // as if it had been started with them
		}
		svc := &object.Service{Metadata: object.ObjectMeta{Annotations: c.annotations}}
		err := check.seen.ExternalIP(svc, netip.MustParseAddr(c.addr))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.addr, err, c.want)
		}
	}
	if reads > 2 {
		t.Errorf("looked %d times", reads)
	}
	failing, check.at = errors.New("no netlink"), time.Time{}
	check.Look(nil)
	if err := check.seen.ExternalIP(&object.Service{}, netip.MustParseAddr("192.0.2.1")); err != nil {
		t.Errorf("refused without knowing: %v", err)
	}
}

// What the box's networks and its resolvers are is not taken by a client of the API either, nor
// given to anybody.
func TestAddressesThatAreNotGiven(t *testing.T) {
	cfg := config.Default()
	cfg.DNS.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53"), netip.MustParseAddrPort("198.51.100.53:53")}
	cfg.Addresses.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.0.0.0/24")}
	cfg.Addresses.LoadBalancerPools, _ = config.ParseAddrRanges([]string{"198.51.100.50-198.51.100.60"})
	check := New(&cfg, opened(t), nil)
	check.read = func() (node.Facts, error) {
		return node.Facts{Addresses: []node.Address{
			{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Interface: "eth0"},
			{Prefix: netip.MustParsePrefix("10.96.5.1/24"), Interface: "eth1"},
			{Prefix: netip.MustParsePrefix("10.0.0.1/8"), Interface: "eth2"},
			{Prefix: netip.MustParsePrefix("192.0.2.128/31"), Interface: "eth3"},
		}, Connected: []netip.Prefix{netip.MustParsePrefix("10.96.7.0/24"), netip.MustParsePrefix("10.96.0.0/16")}}, nil
	}
	check.Look(nil)
	for addr, want := range map[string]string{
		"192.0.2.255":     "it is a multicast, broadcast or reserved address",
		"239.1.2.3":       "it is a multicast, broadcast or reserved address",
		"250.1.2.3":       "it is a multicast, broadcast or reserved address",
		"192.0.2.129":     "", // of two addresses none is for broadcasts
		"10.96.9.9":       "it lies in the service range 10.96.0.0/16",
		"192.0.2.53":      "it is a resolver of this host",
		"198.51.100.53":   "", // set aside
		"203.0.113.53":    "",
		"255.255.255.255": "it is a multicast, broadcast or reserved address",
	} {
		err := check.seen.ExternalIP(&object.Service{}, netip.MustParseAddr(addr))
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
	for addr, want := range map[string]string{
		"192.0.2.255": "a broadcast address of this host", "192.0.2.1": "an address of this host, on eth0", "192.0.2.2": "",
	} {
		if got := check.seen.Reserved(nil, netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is reserved: %q, want %q", addr, got, want)
		}
	}
	endpoint := netip.MustParseAddr("10.0.0.9")
	for addr, want := range map[string]bool{
		"10.96.5.9": true, "10.96.7.9": true, "10.96.8.9": false, // the networks in the range, but not the one over it
		"10.0.0.8": false, "10.0.0.9": true,
	} {
		a := netip.MustParseAddr(addr)
		if got := check.seen.Avoid(a, func() bool { return a == endpoint }); got != want {
			t.Errorf("%s is passed over: %v, want %v", addr, got, want)
		}
	}
	facts, err := check.read()
	if err != nil {
		t.Fatal(err)
	}
	var problems []string
	for _, p := range cfg.OverlapProblems(&facts, nil) {
		if p.Warning || p.Reason != manifest.ReasonHost {
			t.Errorf("%+v is no error of the host", p)
		}
		what, _, _ := strings.Cut(p.Message, ":")
		problems = append(problems, what)
	}
	want := []string{
		"the service range 10.96.0.0/16 overlaps 10.96.5.1/24 on eth1", "the service range 10.96.0.0/16 overlaps 10.0.0.1/8 on eth2",
		"the service range 10.96.0.0/16 overlaps the connected network 10.96.7.0/24", "the service range 10.0.0.0/24 overlaps 10.0.0.1/8 on eth2",
	}
	if !slices.Equal(problems, want) {
		t.Errorf("problems\n%s\nwant\n%s", strings.Join(problems, "\n"), strings.Join(want, "\n"))
	}
}

// The store refuses by what was seen last: what comes later is known with the next look.
func TestStoreRefusesWhatWasSeen(t *testing.T) {
	cfg := config.Default()
	objects := opened(t)
	check := New(&cfg, objects, nil)
	facts := node.Facts{Addresses: []node.Address{{Prefix: netip.MustParsePrefix("192.0.2.2/24"), Interface: "eth0"}}}
	check.read = func() (node.Facts, error) { return facts, nil }
	programs := &programs{}
	check.ports = programs.view()
	ask := func(name string) error {
		svc := &object.Service{Metadata: object.ObjectMeta{Name: name}, Spec: object.ServiceSpec{
			Type: object.TypeNodePort, ExternalIPs: []string{"192.0.2.1"}, Ports: []object.ServicePort{{Port: 80, NodePort: 30080}},
		}}
		check.Look(svc)
		results, err := objects.Write(store.Write{Ref: object.Ref{Kind: object.KindService, Name: name}, Object: svc, Create: true, DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		return results[0].Err
	}
	if err := ask("a"); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
	check.Take(&node.Facts{Addresses: []node.Address{{Prefix: netip.MustParsePrefix("192.0.2.1/24"), Interface: "eth0"}}})
	check.at = time.Now().Add(time.Hour) // what was taken is believed
	if err := ask("b"); err == nil || !strings.Contains(err.Error(), "it is an address of this host, on eth0") {
		t.Errorf("an address of the host: %v", err)
	}
	check.Take(&facts)
	programs.listen("tcp", "0.0.0.0:30080")
	check.ports.at = time.Time{}
	if err := ask("c"); err == nil || !strings.Contains(err.Error(), "nginx (pid 812) listens on tcp 0.0.0.0:30080") {
		t.Errorf("a port where a program listens: %v", err)
	}
}

// The host is not looked at for a write that asks for nothing new, as of a label.
func TestNoLookForWhatIsHad(t *testing.T) {
	cfg := config.Default()
	objects := opened(t)
	check := New(&cfg, objects, nil)
	reads, programs := 0, &programs{}
	check.read = func() (node.Facts, error) { reads++; return node.Facts{}, nil }
	check.ports = programs.view()
	looks := func(svc *object.Service) bool {
		check.at, check.ports.at = time.Time{}, time.Time{}
		before := reads + programs.reads
		check.Look(svc)
		return reads+programs.reads > before
	}
	web := &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:     object.ServiceSpec{Type: object.TypeNodePort, Ports: []object.ServicePort{{Port: 80, NodePort: 30080}}},
	}
	if !looks(web) {
		t.Error("no look for a Service that is new")
	}
	r, err := objects.Write(store.Write{Ref: object.RefOf(web), Object: web, Create: true})
	if err != nil || r[0].Err != nil {
		t.Fatal(err, r)
	}
	for what, c := range map[string]struct {
		change func(*object.Service)
		want   bool
	}{
		"a label": {func(s *object.Service) { s.Metadata.Labels = map[string]string{"a": "b"} }, false},
		"an annotation": {func(s *object.Service) {
			s.Metadata.Annotations = map[string]string{resolve.AnnotationHostAddress: "true"}
		}, true},
		"another node port":    {func(s *object.Service) { s.Spec.Ports[0].NodePort++ }, true},
		"an external IP":       {func(s *object.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }, true},
		"a type with more IPs": {func(s *object.Service) { s.Spec.Type = object.TypeLoadBalancer }, true},
		"another name":         {func(s *object.Service) { s.Metadata.Name = "other" }, true},
	} {
		svc := object.DeepCopy(r[0].Object).(*object.Service)
		c.change(svc)
		if got := looks(svc); got != c.want {
			t.Errorf("%s: looked %v, want %v", what, got, c.want)
		}
	}
}

// Who waits for the host keeps no writer of the store waiting, nor the loop with its facts.
func TestSlowHostHoldsNobodyUp(t *testing.T) {
	cfg := config.Default()
	objects := opened(t)
	check := New(&cfg, objects, nil)
	looking, answer := make(chan struct{}), make(chan struct{})
	check.read = func() (node.Facts, error) {
		close(looking)
		<-answer
		return node.Facts{}, nil
	}
	var look sync.WaitGroup
	look.Go(func() { check.Look(nil) })
	<-looking
	done := make(chan error, 1)
	go func() {
		check.Take(&node.Facts{})
		o := &object.ConfigMap{Metadata: object.ObjectMeta{Name: "a"}}
		_, err := objects.Write(store.Write{Ref: object.Ref{Kind: object.KindConfigMap, Name: "a"}, Object: o, Create: true})
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a write waits for a look at the host")
	}
	close(answer)
	look.Wait()
}

// opened is a store without Services.
func opened(t *testing.T) *store.Store {
	t.Helper()
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}
