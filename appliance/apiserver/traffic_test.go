package apiserver

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
)

// recorded is a Traffic that records its queries.
type recorded struct {
	seen
	traffic wire.TrafficQuery
	conns   wire.ConnectionQuery
	err     error
}

func (f *recorded) Traffic(q wire.TrafficQuery) (*wire.Traffic, error) {
	f.traffic = q
	return &wire.Traffic{Ports: []wire.PortTraffic{}}, f.err
}

func (f *recorded) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	f.conns = q
	return &wire.Connections{Connections: []wire.Connection{}}, f.err
}

func (f *recorded) Kill(id uint32) (*wire.Connection, error) {
	if id != 7 {
		return nil, f.err
	}
	return &wire.Connection{ID: 7, Namespace: "default", Service: "web"}, f.err
}

func TestTraffic(t *testing.T) {
	f := &recorded{}
	asks := serve(t, &answers{cfg: &config.Config{NodeName: "gw1"}, views: Views{Traffic: f}})
	asks(http.MethodGet, "traffic", http.StatusOK, `"ports":[]`)
	asks(http.MethodGet, "traffic", http.StatusOK, `"node":"gw1"`)
	if want := (wire.TrafficQuery{Sort: "open", Limit: 100}); f.traffic != want {
		t.Errorf("asked for %+v, want %+v", f.traffic, want)
	}
	asks(http.MethodGet, "traffic?namespace=shop&name=web&sort=unanswered&limit=3&endpoints=true&history=true&filter=we*", http.StatusOK, "")
	if want := (wire.TrafficQuery{Namespace: "shop", Service: "web", Filter: "we*", Sort: "unanswered", Limit: 3, Endpoints: true, History: true}); f.traffic != want {
		t.Errorf("asked for %+v, want %+v", f.traffic, want)
	}
	asks(http.MethodGet, "traffic?namespace=shop&name=web&clients=true&limit=5", http.StatusOK, "")
	if want := (wire.TrafficQuery{Namespace: "shop", Service: "web", Sort: "open", Limit: 5, Clients: true}); f.traffic != want {
		t.Errorf("asked for %+v, want %+v", f.traffic, want)
	}
	for _, query := range []string{"", "&namespace=shop", "&name=web"} {
		asks(http.MethodGet, "traffic?clients=true"+query, http.StatusBadRequest, "give namespace and name")
	}
	asks(http.MethodGet, "traffic?sort=beauty", http.StatusBadRequest, "want open, rate, unanswered, refused, name")
	asks(http.MethodGet, "traffic?limit=0", http.StatusBadRequest, "from 1 to 10000")
	asks(http.MethodGet, "traffic?filter="+strings.Repeat("x", 513), http.StatusBadRequest, "512 is the most")

	asks(http.MethodGet, "conns?name=web&client=203.0.113.7&endpoint=10.1.2.11", http.StatusOK, `"connections":[]`)
	if f.conns.Client.String() != "203.0.113.7/32" || f.conns.EndpointAddr.String() != "10.1.2.11" || f.conns.Endpoint.IsValid() {
		t.Errorf("asked for %+v", f.conns)
	}
	asks(http.MethodGet, "conns?client=nobody", http.StatusBadRequest, "want an address or a prefix")
	asks(http.MethodGet, "conns?endpoint=nobody", http.StatusBadRequest, "want an address")

	asks(http.MethodGet, "conns/kill?id=7", http.StatusMethodNotAllowed, "use POST")
	asks(http.MethodPost, "conns/kill?id=seven", http.StatusBadRequest, "want the number")
	asks(http.MethodPost, "conns/kill?id=8", http.StatusNotFound, "no Service has a connection 8")
	asks(http.MethodPost, "conns/kill?id=7", http.StatusOK, `"id":7`)
	f.err = errors.New("no rights")
	for path, method := range map[string]string{"traffic": http.MethodGet, "conns": http.MethodGet, "conns/kill?id=7": http.MethodPost} {
		asks(method, path, http.StatusServiceUnavailable, "no rights")
	}
}
