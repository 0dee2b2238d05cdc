package apiserver

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"context"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// serve serves the endpoints of answers. The function that it returns checks an answer to an admin.
func serve(t *testing.T, a *answers) func(method, path string, code int, text string) {
	t.Helper()
	a.log = slog.New(slog.DiscardHandler)
	socket := filepath.Join(t.TempDir(), "s")
	srv := api.New(api.Config{Socket: api.Socket{Path: socket}, Endpoints: a.endpoints()}, &seen{}, a.log)
	ln, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() { stop(); <-served })
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }, DisableKeepAlives: true,
	}}
	return func(method, path string, code int, text string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://svcctl/svcctl/v1/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != code || !strings.Contains(string(body), text) {
			t.Errorf("%s %s: %d %s, %v; want %d and %q", method, path, resp.StatusCode, body, err, code, text)
		}
	}
}

func TestEnvironment(t *testing.T) {
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"shop", "default"} {
		svc := &object.Service{
			TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore}, Metadata: object.ObjectMeta{Name: "in-" + namespace, Namespace: namespace},
			Spec: object.ServiceSpec{Ports: []object.ServicePort{{Port: 80, Protocol: object.ProtocolTCP}}},
		}
		if _, err := objects.Write(store.Write{Ref: object.RefOf(svc), Object: svc, Create: true}); err != nil {
			t.Fatal(err)
		}
	}
	get := serve(t, &answers{objects: objects})
	get(http.MethodGet, "env", http.StatusOK, `{"namespace":"default","variables":[{"name":"IN_DEFAULT_SERVICE_HOST"`)
	get(http.MethodGet, "env?namespace=shop", http.StatusOK, `{"namespace":"shop","variables":[{"name":"IN_SHOP_SERVICE_HOST"`)
	get(http.MethodGet, "env?namespace=empty", http.StatusOK, `{"namespace":"empty","variables":[]}`)
	get(http.MethodGet, "env?namespace=Sh%2Fop", http.StatusBadRequest, "want lower case letters")
}
