package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/history"
	"svcctl.io/svcctl/appliance/verdict"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// seen stands for Traffic, a Backend with problems, and Grants.
type seen struct {
	traffic  map[string]*wire.ServiceTraffic
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
func (s *seen) Graph(service string, _ bool) wire.TrafficGraph {
	return wire.TrafficGraph{Points: make([]wire.TrafficPoint, len(service))}
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
	views := Views{Grants: grants{}, Traffic: s, Conditions: s, Checked: func(_, name string) (all []wire.EndpointHealth) {
		if name == "s3" || name == "" {
			all = append(all, wire.EndpointHealth{Service: "other/s3", Endpoint: "10.1.0.1:80", State: wire.HealthUp, Check: "tcp"})
		}
		if name == "s1" || name == "" {
			all = append(all, wire.EndpointHealth{Service: "other/s1", Endpoint: "10.1.0.2:80", State: wire.HealthOut})
		}
		return all
	}}
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
		{dashboard.Query{Page: 1, Sort: "state", Namespace: "other"}, []string{"other/s1", "other/s3"}, 2},
		{dashboard.Query{Page: 1, State: "good"}, []string{"other/s3", "shop/s0", "shop/s2", "shop/s4"}, 4},
		{dashboard.Query{Page: 1, State: "warning"}, nil, 0},
		{dashboard.Query{Page: 1, State: "unchecked"}, []string{"other/s1", "shop/s2", "shop/s4"}, 3}, // s0 has no ports, s3 is checked
		{dashboard.Query{Page: 1, Sort: "open"}, []string{"other/s3", "shop/s2", "other/s1", "shop/s0", "shop/s4"}, 5},
		{dashboard.Query{Page: 1, Namespace: "shop"}, []string{"shop/s0", "shop/s2", "shop/s4"}, 3},
		{dashboard.Query{Page: 1, Search: "S3"}, []string{"other/s3"}, 1},
		{dashboard.Query{Page: 1, State: "bad"}, []string{"other/s1"}, 1},
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
	if s1, s0 := list.Rows[0], list.Rows[2]; s1.State != wire.ServiceFails || s1.Why != "it has no endpoint" || s0.State != wire.ServiceAnswers || s1.All != 2 || s1.Up != 1 || s0.All != -1 || !s1.Unchecked || list.Rows[1].Unchecked || len(s1.Graph.Points) != len("other/s1") || list.Rows[3].Open != 2 {
		t.Errorf("rows %+v", list.Rows)
	}
	// The address is searched, too.
	address := list.Rows[4].Addresses[0]
	if list, err = p.Services(dashboard.Query{Page: 1, Search: address}); err != nil || len(list.Rows) != 1 || list.Rows[0].Name != "s4" {
		t.Errorf("of address %s: %v, %v", address, names(list.Rows), err)
	}
}

func TestPagesOfTheBusiest(t *testing.T) {
	s := &seen{traffic: map[string]*wire.ServiceTraffic{"shop/s0": open(0), "shop/s2": open(2), "other/s3": open(3), "shop/s4": open(2), "shop/gone": open(9)}}
	p := pagesOf(t, 5, s)
	rows, err := p.Busiest(2)
	if diff := cmp.Diff([]string{"other/s3", "shop/s2"}, names(rows)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	all, err := p.Busiest(9)
	if diff := cmp.Diff([]string{"other/s3", "shop/s2", "shop/s4"}, names(all)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestPageOfAService(t *testing.T) {
	s := &seen{traffic: map[string]*wire.ServiceTraffic{"shop/s2": open(2)}, problems: []wire.Problem{{Object: "Service shop/s2", Message: "mine"}, {Object: "Service shop/s4", Message: "another's"}}}
	p := pagesOf(t, 5, s)
	svc, err := p.Service("shop", "s2")
	if err != nil {
		t.Fatal(err)
	}
	if svc.Open != 2 || len(svc.Problems) != 1 || svc.Problems[0].Message != "mine" || len(svc.Ports) != 1 || svc.Ports[0].Service != "s2" || len(svc.State.Ports) != 1 {
		t.Errorf("its page is %+v", svc)
	}
	if svc, err := p.Service("shop", "nobody"); svc != nil || err != nil {
		t.Errorf("of nobody %+v, %v", svc, err)
	}
}

// Changes of one author within seconds are one event, and those of controllers are none.
func TestChangesAsEvents(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	entry := func(after time.Duration, user, verb, name string) wire.JournalEntry {
		return wire.JournalEntry{Time: at.Add(after), User: user, Verb: verb, Kind: "Service", Namespace: "shop", Name: name}
	}
	var got []string
	for _, e := range changesOf([]wire.JournalEntry{
		entry(-time.Hour, "anna", "create", "old"), entry(0, "anna", "create", "web"), entry(time.Second, "anna", "update", "api"), entry(2*time.Second, "bob", "delete", "web"),
		{Time: at.Add(3 * time.Second), Controller: "endpoints", Kind: "EndpointSlice", Name: "web-1"}, entry(time.Minute, "bob", "apply", "web"),
	}, at, func(*wire.JournalEntry) bool { return true }) {
		got = append(got, e.Text)
	}
	if diff := cmp.Diff([]string{"anna changed 2 objects", "bob deleted Service shop/web", "bob changed Service shop/web"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The times in which endpoints were down follow from transitions, also of those before the first that is kept.
func TestTimesOfBeingDown(t *testing.T) {
	b := history.Open(t.TempDir(), "gw1", time.Now().Add(-time.Hour), slog.New(slog.DiscardHandler))
	p := &pages{answers: &answers{views: Views{History: b}}}
	at := time.Now().Add(-30 * time.Minute)
	key := func(service, endpoint string) history.Key {
		return history.Key{Kind: history.KindEndpoint, Object: service, What: endpoint}
	}
	b.Note(key("Service shop/web", "10.1.0.1:80 tcp"), "down", "refused", at)
	b.Note(key("Service shop/web", "10.1.0.1:80 tcp"), "", "", at.Add(time.Minute))
	b.Note(key("Service shop/web", "10.1.0.1:80 tcp"), "down", "refused", at.Add(2*time.Minute))
	b.Note(key("", "10.1.0.2:80"), "dead", "no answer", at, "shop/web")
	b.Note(key("Service shop/api", "10.1.0.1:80 tcp"), "down", "refused", at)
	spans, known := p.down("shop", "web")
	one, two := spans["10.1.0.1:80"], spans["10.1.0.2:80"]
	if len(spans) != 2 || len(one) != 2 || !one[0].To.Equal(at.Add(time.Minute).UTC().Round(0)) || time.Since(one[1].To) > time.Minute || len(two) != 1 || !two[0].From.Equal(at.UTC().Round(0)) || time.Since(known) < time.Minute {
		t.Errorf("known from %s: %+v", known, spans)
	}
}
