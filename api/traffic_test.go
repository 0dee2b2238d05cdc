package api_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// told is a Traffic that remembers what it was asked.
type told struct {
	traffic wire.TrafficQuery
	conns   wire.ConnectionQuery
	err     error
}

func (f *told) Traffic(q wire.TrafficQuery) (*wire.Traffic, error) {
	f.traffic = q
	return &wire.Traffic{Ports: []wire.PortTraffic{}}, f.err
}

func (f *told) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	f.conns = q
	return &wire.Connections{Connections: []wire.Connection{}}, f.err
}

func (f *told) Kill(id uint32) (*wire.Connection, error) {
	if id != 7 {
		return nil, f.err
	}
	return &wire.Connection{ID: 7, Namespace: "default", Service: "web"}, f.err
}

func TestTraffic(t *testing.T) {
	f := &told{}
	remote := serveTLS(t, &backend{}, api.Config{Traffic: f})
	reader, admin := remote.token(t, auth.Reader), remote.token(t, auth.Admin)
	asks := func(token, method, path string, code int, says string) {
		t.Helper()
		if got, body := remote.do(t, token, method, path, ""); got != code || !strings.Contains(body, says) {
			t.Errorf("%s %s: %d %s, want %d and %q", method, path, got, body, code, says)
		}
	}
	asks("", http.MethodGet, "/svcctl/v1/traffic", http.StatusUnauthorized, "")
	asks(reader, http.MethodGet, "/svcctl/v1/traffic", http.StatusOK, `"ports":[]`)
	if want := (wire.TrafficQuery{Sort: "open", Limit: 100}); f.traffic != want {
		t.Errorf("asked for %+v, want %+v", f.traffic, want)
	}
	asks(reader, http.MethodGet, "/svcctl/v1/traffic?namespace=shop&name=web&sort=unanswered&limit=3&endpoints=true&history=true&filter=we*", http.StatusOK, "")
	if want := (wire.TrafficQuery{Namespace: "shop", Service: "web", Filter: "we*", Sort: "unanswered", Limit: 3, Endpoints: true, History: true}); f.traffic != want {
		t.Errorf("asked for %+v, want %+v", f.traffic, want)
	}
	asks(reader, http.MethodGet, "/svcctl/v1/traffic?namespace=shop&name=web&clients=true&limit=5", http.StatusOK, "")
	if want := (wire.TrafficQuery{Namespace: "shop", Service: "web", Sort: "open", Limit: 5, Clients: true}); f.traffic != want {
		t.Errorf("asked for %+v, want %+v", f.traffic, want)
	}
	for _, query := range []string{"", "&namespace=shop", "&name=web"} {
		asks(reader, http.MethodGet, "/svcctl/v1/traffic?clients=true"+query, http.StatusBadRequest, "give namespace and name")
	}
	asks(reader, http.MethodGet, "/svcctl/v1/traffic?sort=beauty", http.StatusBadRequest, "want open, rate, unanswered, refused, name")
	asks(reader, http.MethodGet, "/svcctl/v1/traffic?limit=0", http.StatusBadRequest, "from 1 to 10000")
	asks(reader, http.MethodGet, "/svcctl/v1/traffic?filter="+strings.Repeat("x", 513), http.StatusBadRequest, "512 is the most")

	asks(reader, http.MethodGet, "/svcctl/v1/conns?name=web&client=203.0.113.7&endpoint=10.1.2.11", http.StatusOK, `"connections":[]`)
	if f.conns.Client.String() != "203.0.113.7/32" || f.conns.EndpointAddr.String() != "10.1.2.11" || f.conns.Endpoint.IsValid() {
		t.Errorf("asked for %+v", f.conns)
	}
	asks(reader, http.MethodGet, "/svcctl/v1/conns?client=nobody", http.StatusBadRequest, "want an address or a prefix")
	asks(reader, http.MethodGet, "/svcctl/v1/conns?endpoint=nobody", http.StatusBadRequest, "want an address")

	asks(reader, http.MethodPost, "/svcctl/v1/conns/kill?id=7", http.StatusForbidden, "")
	asks(admin, http.MethodGet, "/svcctl/v1/conns/kill?id=7", http.StatusMethodNotAllowed, "use POST")
	asks(admin, http.MethodPost, "/svcctl/v1/conns/kill?id=seven", http.StatusBadRequest, "want the number")
	asks(admin, http.MethodPost, "/svcctl/v1/conns/kill?id=8", http.StatusNotFound, "no Service has a connection 8")
	asks(admin, http.MethodPost, "/svcctl/v1/conns/kill?id=7", http.StatusOK, `"id":7`)
	f.err = errors.New("no rights")
	for path, method := range map[string]string{"traffic": http.MethodGet, "conns": http.MethodGet, "conns/kill?id=7": http.MethodPost} {
		asks(admin, method, "/svcctl/v1/"+path, http.StatusServiceUnavailable, "no rights")
	}
}
