package parts

import (
	"log/slog"
	"net/netip"
	"testing"

	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
)

// Until connections are counted, an endpoint that the kernel was left without is full; and none, where no Service had a
// limit at the start: one that gets a limit later has endpoints that the kernel of the start did not know.
func TestFullnessBeforeItHasCounted(t *testing.T) {
	at := netip.MustParseAddrPort
	vip := at("10.96.0.1:80")
	port := nft.ServicePort{ID: "default/web", Family: nft.IPv4, Protocol: nft.TCP, Frontends: []nft.Frontend{{Addr: vip.Addr(), Port: vip.Port()}}}
	port.Pools[nft.PoolCluster] = []netip.AddrPort{at("10.1.0.1:80")}
	for _, limit := range []uint32{20, 0} {
		f := NewFullness(slog.New(slog.DiscardHandler))
		full := func(endpoint string) bool {
			port := resolve.Port{Service: "default/web", Protocol: "TCP", Family: nft.IPv4}
			var o resolve.Observed
			f.Meet("default/web", &resolve.Demand{Limited: []resolve.Limited{{Port: port, Frontends: []netip.AddrPort{vip}, Endpoints: []netip.AddrPort{at(endpoint)}}}}, &o)
			state := o.Full[port][at(endpoint)]
			if state.Counted {
				t.Errorf("%s is counted without a look", endpoint)
			}
			return state.Full
		}
		f.Adopt(nft.Compile(nft.State{Services: map[string][]nft.ServicePort{"default/web": {port}}}))
		if full("10.1.0.1:80") || !full("10.1.0.2:80") {
			t.Errorf("limit %d, before the first plan: full are not those that the kernel was left without", limit)
		}
		f.Planned(&reconcile.Host{}, []reconcile.Service{{Key: "default/web", Ports: []nft.ServicePort{port}, Settings: resolve.Settings{EndpointConnections: limit}}})
		if got, want := full("10.1.0.2:80"), limit > 0; got != want {
			t.Errorf("limit %d, after the first plan: full %t, want %t", limit, got, want)
		}
		f.Planned(nil, []reconcile.Service{{Key: "default/other"}})
		if got, want := full("10.1.0.2:80"), limit > 0; got != want {
			t.Errorf("limit %d, when another Service was planned: full %t, want %t", limit, got, want)
		}
	}
}
