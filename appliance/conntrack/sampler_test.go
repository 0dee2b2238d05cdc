package conntrack

import (
	"net/netip"
	"testing"

	"svcctl.io/svcctl/nft"
)

// A look finds the connections of the ports that it is about, with their endpoints, and changes nothing.
func TestSampler(t *testing.T) {
	at := netip.MustParseAddrPort
	tables := map[string]struct {
		change func(*entry)
		want   *Tracked // nil: it is none of the ports'
	}{
		"waits for its answer": {nil, &Tracked{Port: 0, ID: 1, Endpoint: at("10.180.0.1:80")}},
		"established":          {func(e *entry) { e.answered, e.state = true, tcpEstablished }, &Tracked{Port: 0, ID: 1, Endpoint: at("10.180.0.1:80")}},
		"half closed":          {func(e *entry) { e.answered, e.state = true, tcpCloseWait }, &Tracked{Port: 0, ID: 1, Endpoint: at("10.180.0.1:80")}},
		"closed":               {func(e *entry) { e.answered, e.state = true, tcpTimeWait }, &Tracked{Port: 0, ID: 1, Endpoint: at("10.180.0.1:80"), Ending: true}},
		"at the node port":     {func(e *entry) { e.to = at("192.0.2.1:30080") }, &Tracked{Port: 0, ID: 1, Endpoint: at("10.180.0.1:80")}},
		"over UDP":             {func(e *entry) { e.protocol, e.state = nft.UDP, 0 }, &Tracked{Port: 1, ID: 1, Endpoint: at("10.180.0.1:80")}},
		"of another Service":   {func(e *entry) { e.to = at("172.30.0.42:80") }, nil},
		"not translated":       {func(e *entry) { e.replyFrom = e.to }, nil},
		"of a dead end":        {func(e *entry) { e.state, e.replyFrom = tcpEstablished, at("192.0.2.1:0") }, nil},
	}
	asked := retryAsked()
	ports := []*nft.ServicePort{&asked.ports[0], &asked.ports[1]}
	of := NewAsked(&nft.Box{NodePortAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, ports)
	for name, tt := range tables {
		table := &fakeTable{entries: []entry{unansweredEntry(tt.change)}}
		seen := map[Tracked]bool{} // the fake table gives all entries to each query
		if err := (&Sampler{table}).Scan(of, func(c Tracked) { seen[c] = true }); err != nil {
			t.Fatal(err)
		}
		if tt.want != nil && (len(seen) != 1 || !seen[*tt.want]) || tt.want == nil && len(seen) > 0 || len(table.entries) != 1 {
			t.Errorf("%s: %v, want %v; %d entries are left", name, seen, tt.want, len(table.entries))
		}
	}
	table := &fakeTable{fails: 1}
	if err := (&Sampler{table}).Scan(of, func(Tracked) {}); err == nil {
		t.Error("a look that fails is none")
	}
}
