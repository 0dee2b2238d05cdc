package apiserver

import (
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
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
	asks := serve(t, &answers{cfg: &config.Config{NodeName: "gw1"}, objects: pagesOf(t, 0, &seen{}).objects, views: Views{Traffic: f}})
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

// Test1114: the traffic of a Service of a Gateway has its listeners, routes and backends, those by server name included, and no other Service's.
func Test1114_traffic_has_the_routes_of_a_Gateway(t *testing.T) {
	p := pagesOf(t, 5, &seen{})
	a := p.answers
	labels := map[string]string{object.LabelGateway: "edge", object.LabelGatewayClass: "svcctl"}
	var writes []store.Write
	for _, name := range []string{"edge-svcctl", "edge-svcctl-www"} {
		svc := &object.Service{
			TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore}, Metadata: object.ObjectMeta{Name: name, Namespace: "shop", Labels: labels},
			Spec: object.ServiceSpec{Ports: []object.ServicePort{{Name: "p443", Port: 443, Protocol: object.ProtocolTCP}}},
		}
		of := maps.Clone(labels)
		of[object.LabelServiceName] = name
		slice := &object.EndpointSlice{
			TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: "discovery.k8s.io/v1"}, AddressType: object.IPv4,
			Metadata: object.ObjectMeta{
				Name: name + "-1", Namespace: "shop", Labels: of, OwnerReferences: []object.OwnerReference{{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "edge", UID: "1"}},
				Annotations: map[string]string{object.AnnotationRoute: "TLSRoute/shop/" + name, object.AnnotationListener: "Gateway/shop/edge/tls"},
			},
			Ports:     []object.EndpointPort{{Name: new("p443"), Port: new(int32(8443)), Protocol: new(object.ProtocolTCP)}},
			Endpoints: []object.Endpoint{{Addresses: []string{"10.1.2.11"}}},
		}
		writes = append(writes, store.Write{Ref: object.RefOf(svc), Object: svc, Create: true}, store.Write{Ref: object.RefOf(slice), Object: slice, Create: true})
	}
	if _, err := a.objects.Write(writes...); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(a.routes("shop", "edge-svcctl"), "\n")
	for _, want := range []string{"shop/edge-svcctl:p443: listener Gateway/shop/edge/tls, TLSRoute/shop/edge-svcctl: ", "TLSRoute/shop/edge-svcctl-www: "} {
		if !strings.Contains(got, want) {
			t.Errorf("the routes lack %q:\n%s", want, got)
		}
	}
	for _, name := range []string{"s0", "none", ""} {
		if got := a.routes("shop", name); len(got) > 0 {
			t.Errorf("Service %q has the routes %q", name, got)
		}
	}
	if page, err := p.Service("shop", "edge-svcctl"); err != nil || len(page.Routes) != 2 {
		t.Errorf("%v: the page of the Service has %+v", err, page)
	}
}
