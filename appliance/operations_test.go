package appliance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/announcements"
	"svcctl.io/svcctl/appliance/apiserver"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/metrics"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/appliance/traffic"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
)

// Each operation is served, by its method alone, to those alone who may ask, and without a body where it has none.
func TestOperationsAreServed(t *testing.T) {
	cfg, log := config.Default(), slog.New(slog.DiscardHandler)
	cfg.DataDir, cfg.API.Listen, cfg.API.Socket = t.TempDir(), "127.0.0.1:0", filepath.Join(t.TempDir(), "s")
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		t.Fatal(err)
	}
	a := &assembly{
		opened: &opened{cfg: &cfg, log: log, store: objects}, claimed: &claimed{announced: announcements.New(nil)}, member: &member{},
		metrics: metrics.New("v0.1.0"), board: reconcile.NewBoard(objects.Revisions, nil, nil, nil, wire.Status{}), traffic: traffic.NewQueries(nil, nil, nil, nil),
	}
	server, err := apiserver.Open(&cfg, objects, a.board, a.views(), a.metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- task.Run(ctx, log, server.Tasks(log)...) }()
	t.Cleanup(func() { stop(); <-served })
	local := &http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", cfg.API.Socket) }, DisableKeepAlives: true,
	}}
	ask := func(method, path, body string, answer any) {
		t.Helper()
		req, err := http.NewRequest(method, "http://svcctl"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := local.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
			t.Fatal(err)
		}
	}
	var at wire.Endpoint
	ask(http.MethodGet, wire.GetEndpoint.Path, "", &at)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(at.CertificateAuthority))
	https := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	token := func(role auth.Role) string {
		var answer wire.Token
		ask(http.MethodPost, "/svcctl/v1/token", `{"role":"`+role.String()+`"}`, &answer)
		return answer.Token
	}
	do := func(token, method, path, body string) (int, string) {
		req, err := http.NewRequest(method, at.Server+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := https.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(answer)
	}
	admin, reader := token(auth.Admin), token(auth.Reader)
	for _, o := range wire.Operations() {
		other, allowed := http.MethodPost, "GET, HEAD"
		if o.Method == http.MethodPost {
			other, allowed = http.MethodGet, "POST"
		}
		if code, body := do(admin, other, o.Path, ""); code != http.StatusMethodNotAllowed || !strings.Contains(body, "use "+o.Method) {
			t.Errorf("%s %s: %d %s, want that %s is allowed", other, o.Path, code, body, allowed)
		}
		if code, _ := do(reader, other, o.Path, ""); (code == http.StatusForbidden) != o.Admin {
			t.Errorf("%s for a reader: %d, and it is for admins: %t", o.Path, code, o.Admin)
		}
		if code, _ := do("", o.Method, o.Path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", o.Path, code)
		}
		if o == wire.Plan.Operation || o == wire.ReportAnnouncements.Operation {
			continue // these take a body
		}
		if code, body := do(admin, o.Method, o.Path, "hello"); code != http.StatusBadRequest || !strings.Contains(body, o.Method+" takes no body") {
			t.Errorf("%s %s with a body: %d %s", o.Method, o.Path, code, body)
		}
	}
	if code, body := do(admin, http.MethodPost, wire.Probe.Path, ""); code != http.StatusBadRequest || !strings.Contains(body, "give the Service") {
		t.Errorf("a probe of no Service: %d %s", code, body)
	}
}
