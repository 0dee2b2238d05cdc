package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// seen stands for Traffic, a Backend with problems, and Grants.
type seen struct {
	traffic  map[string]*wire.ServiceTraffic
	asked    []string // for histories
	problems []wire.Problem
	judged   map[string]verdict.State
}

// grants stands for Grants.
type grants struct{}

func (s *seen) Traffic(q wire.TrafficQuery) (*wire.Traffic, error) {
	return &wire.Traffic{Ports: []wire.PortTraffic{{Namespace: q.Namespace, Service: q.Service, Port: "http", Protocol: "TCP"}}}, nil
}
func (s *seen) Connections(wire.ConnectionQuery) (*wire.Connections, error) { return nil, nil }
func (s *seen) Kill(uint32) (*wire.Connection, error)                       { return nil, nil }
func (s *seen) Services() (busy map[string]*wire.ServiceTraffic, quiet *wire.ServiceTraffic, err error) {
	return s.traffic, &wire.ServiceTraffic{}, nil
}
func (s *seen) Clients(service string, _ int) (wire.ServiceClients, error) {
	return wire.ServiceClients{Counted: true, Clients: []wire.ClientTraffic{{Client: "of " + service}}}, nil
}
func (s *seen) Histories(services []string) map[string][]wire.TrafficSample {
	s.asked = append(s.asked, services...)
	told := map[string][]wire.TrafficSample{}
	for _, service := range services {
		told[service] = []wire.TrafficSample{{Open: len(service)}}
	}
	return told
}

func (s *seen) Of(*object.Service) ([]object.Condition, bool)        { return nil, true }
func (s *seen) Since(uint64) ([]string, uint64, bool)                { return nil, 0, true }
func (s *seen) Changed() <-chan struct{}                             { return nil }
func (s *seen) State(key string) verdict.State                       { return s.judged[key] }
func (s *seen) Healthy() error                                       { return nil }
func (s *seen) Ready() error                                         { return nil }
func (s *seen) Status() wire.Status                                  { return wire.Status{Problems: s.problems} }
func (s *seen) Synced(context.Context, uint64) error                 { return nil }
func (grants) Addresses() []wire.BoxAddress                          { return nil }
func (s *seen) Release(context.Context) (r wire.Released, err error) { return r, nil }
func (grants) Unanswered(int) (list []wire.Unanswered, more int)     { return nil, 0 }
func (grants) State(_, name string, _ netip.AddrPort) wire.ServiceState {
	if name == "s0" {
		return wire.ServiceState{}
	}
	return wire.ServiceState{Ports: []wire.PortState{{Endpoints: []string{"10.1.0.1:80", "10.1.0.2:80"}, Local: []string{"10.1.0.2:80"}}}}
}

// pagesOf are pages of n Services in namespaces shop and other, in turns.
func pagesOf(t testing.TB, n int, s *seen) *pages {
	t.Helper()
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
	if err != nil {
		t.Fatal(err)
	}
	var writes []store.Write
	for i := range n {
		svc := &object.Service{
			TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
			Metadata: object.ObjectMeta{Name: fmt.Sprint("s", i), Namespace: []string{"shop", "other"}[i%2]},
			Spec:     object.ServiceSpec{Ports: []object.ServicePort{{Port: 80, Protocol: object.ProtocolTCP}}},
		}
		writes = append(writes, store.Write{Ref: object.RefOf(svc), Object: svc, Create: true})
	}
	if _, err := objects.Write(writes...); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	views := Views{Grants: grants{}, Traffic: s, Conditions: s, Checked: func(string, string) []wire.EndpointHealth { return nil }}
	return &pages{answers: &answers{cfg: &c, objects: objects, views: views}, backend: s}
}

func names(rows []dashboard.Row) (list []string) {
	for _, row := range rows {
		list = append(list, row.Namespace+"/"+row.Name)
	}
	return list
}

func open(n int) *wire.ServiceTraffic {
	return &wire.ServiceTraffic{ConnectionCounts: wire.ConnectionCounts{Open: n}}
}

func TestPagesOfServices(t *testing.T) {
	s := &seen{
		traffic: map[string]*wire.ServiceTraffic{"shop/s2": open(2), "other/s3": open(3), "shop/gone": open(9)},
		judged:  map[string]verdict.State{"other/s1": {Failing: verdict.Why{Reason: "NoEndpoints", Message: "it has no endpoint"}, Doubt: verdict.Why{Reason: "NoEffect"}}},
	}
	p := pagesOf(t, 5, s)
	for _, c := range []struct {
		query dashboard.Query
		want  []string
		total int
	}{
		{dashboard.Query{Page: 1}, []string{"other/s1", "other/s3", "shop/s0", "shop/s2", "shop/s4"}, 5},
		{dashboard.Query{Page: 2}, nil, 5},
		{dashboard.Query{Page: 1, Sort: "open"}, []string{"other/s3", "shop/s2", "other/s1", "shop/s0", "shop/s4"}, 5},
		{dashboard.Query{Page: 1, Namespace: "shop"}, []string{"shop/s0", "shop/s2", "shop/s4"}, 3},
		{dashboard.Query{Page: 1, Search: "S3"}, []string{"other/s3"}, 1},
		{dashboard.Query{Page: 1, Problems: true}, []string{"other/s1"}, 1},
	} {
		list, err := p.Services(c.query)
		if err != nil || list.Total != c.total {
			t.Errorf("%+v: %d in all, %v; want %d", c.query, list.Total, err, c.total)
		}
		if diff := cmp.Diff(c.want, names(list.Rows)); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c.query, diff)
		}
	}
	list, err := p.Services(dashboard.Query{Page: 1})
	if err != nil {
		t.Fatal(err)
	}
	if s1, s0 := list.Rows[0], list.Rows[2]; s1.State != wire.ServiceFails || s1.Why != "it has no endpoint" || s0.State != wire.ServiceAnswers || s1.Endpoints != 2 || s0.Endpoints != -1 || list.Rows[3].Open != 2 {
		t.Errorf("rows %+v", list.Rows)
	}
	// The address is searched, too.
	address := list.Rows[4].Addresses[0]
	if list, err = p.Services(dashboard.Query{Page: 1, Search: address}); err != nil || len(list.Rows) != 1 || list.Rows[0].Name != "s4" {
		t.Errorf("of address %s: %v, %v", address, names(list.Rows), err)
	}
	if len(s.asked) != 0 {
		t.Errorf("a list asks for histories of %v, which it does not show", s.asked)
	}
}

func TestPagesOfTheBusiest(t *testing.T) {
	s := &seen{traffic: map[string]*wire.ServiceTraffic{"shop/s0": open(0), "shop/s2": open(2), "other/s3": open(3), "shop/s4": open(2), "shop/gone": open(9)}}
	p := pagesOf(t, 5, s)
	rows, err := p.Busiest("open", 2, func(t *wire.ServiceTraffic) bool { return t.Open > 0 })
	if diff := cmp.Diff([]string{"other/s3", "shop/s2"}, names(rows)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	all, err := p.Busiest("open", 9, func(t *wire.ServiceTraffic) bool { return t.Open > 0 })
	if diff := cmp.Diff([]string{"other/s3", "shop/s2", "shop/s4"}, names(all)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if len(rows[0].History) != 1 || rows[0].History[0].Open != len("other/s3") {
		t.Errorf("its history is %+v", rows[0].History)
	}
}

func TestPageOfAService(t *testing.T) {
	s := &seen{traffic: map[string]*wire.ServiceTraffic{"shop/s2": open(2)}, problems: []wire.Problem{{Object: "Service shop/s2", Message: "mine"}, {Object: "Service shop/s4", Message: "another's"}}}
	p := pagesOf(t, 5, s)
	svc, err := p.Service("shop", "s2")
	if err != nil {
		t.Fatal(err)
	}
	if svc.Open != 2 || len(svc.Problems) != 1 || svc.Problems[0].Message != "mine" || len(svc.Ports) != 1 || svc.Ports[0].Service != "s2" || len(svc.History) != 1 || len(svc.State.Ports) != 1 {
		t.Errorf("its page is %+v", svc)
	}
	if svc, err := p.Service("shop", "nobody"); svc != nil || err != nil {
		t.Errorf("of nobody %+v, %v", svc, err)
	}
}
