package parts

import (
	"log/slog"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// A Service that names another one and is planned by itself leads there as before.
func TestNamesStay(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:10270")
	endpoint := netip.MustParseAddrPort("10.1.0.7:8443")
	front := reconcile.Service{
		Key: "default/front", Ports: []nft.ServicePort{{ID: "default/front/https", Protocol: nft.TCP, Relay: [nft.NumPools]netip.AddrPort{at, at},
			Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.1"), Port: 443}}}},
		Settings: resolve.Settings{Relay: &resolve.Relay{Fronts: map[string]*annotation.Front{"default/front/https": {Key: annotation.TLSServices, Services: []annotation.NamedService{{ServerName: "www.example.com", Service: "default/www"}}}}}},
	}
	www := reconcile.Service{Key: "default/www", Ports: []nft.ServicePort{{ID: "default/www/https", Protocol: nft.TCP, Pools: [nft.NumPools][]netip.AddrPort{{endpoint}, {endpoint}},
		Frontends: []nft.Frontend{{Addr: netip.MustParseAddr("10.96.0.2"), Port: 443}}}}}
	r := NewRelay(slog.New(slog.DiscardHandler), func(string) *object.Secret { return nil }, nil, nil)
	var loop wakes
	r.Attach(loop.changed)
	for when, planned := range [][]reconcile.Service{{front, www}, {front}, {www}, {front}} {
		r.Planned(nil, planned)
		ports := r.redirected["default/front"]
		if len(ports) == 0 || len(ports[0].Names) != 1 {
			t.Fatalf("plan %d: %+v", when, ports)
		}
		if to := ports[0].Names[0].Port; to.ID != "default/www/https" || len(to.Endpoints) != 1 || to.Endpoints[0] != endpoint {
			t.Errorf("plan %d: clients of www.example.com go to %s, %v", when, to.ID, to.Endpoints)
		}
		if again := loop.take(); len(again) > 0 {
			t.Errorf("plan %d: %v are to be planned again, and nothing has changed", when, again)
		}
	}
	// Another Service that names it instead leads there at once.
	alone, heir := front, front
	alone.Relay = nil
	heir.Key = "default/heir"
	r.Planned(nil, []reconcile.Service{alone, heir})
	if ports := r.redirected["default/heir"]; len(ports) == 0 || len(ports[0].Names) != 1 || len(ports[0].Names[0].Port.Endpoints) != 1 {
		t.Errorf("who names it instead: %+v", ports)
	}
	if again := loop.take(); len(again) > 0 {
		t.Errorf("%v are to be planned again, and nothing of them has changed", again)
	}
	// Who is named no more is forgotten, and asked for when it is named again.
	heir.Relay = nil
	r.Planned(nil, []reconcile.Service{heir})
	if len(r.names.targets)+len(r.names.by)+len(r.names.naming) > 0 {
		t.Errorf("kept for nobody: %+v", r.names)
	}
	r.Planned(nil, []reconcile.Service{front})
	if again := loop.take(); len(again) != 1 || again[0] != "default/www" {
		t.Errorf("%v are to be planned again, want default/www", again)
	}
}
