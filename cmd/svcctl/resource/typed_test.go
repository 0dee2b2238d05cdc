package resource

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// The result of a health check is there before the problem that follows from it: the status of before is not the one to judge by.
func TestSettleWaitsForTheProblemOfACheck(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/svcctl/v1/status", func(w http.ResponseWriter, _ *http.Request) {
		var s wire.Status
		if asked.Add(1) > 2 {
			s.Problems = []wire.Problem{{Object: "Service default/down", Reason: "FailingOpen", Severity: wire.SeverityError}}
		}
		_ = json.NewEncoder(w).Encode(s)
	})
	mux.HandleFunc("/svcctl/v1/health", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(wire.Health{Endpoints: []wire.EndpointHealth{
			{Service: "default/down", Protocol: "TCP", Endpoint: "10.180.0.9:80", State: wire.HealthDown, Check: "tcp", Failures: 3},
		}})
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(ln) }()
	defer server.Close()
	s, err := Settle(t.Context(), client.New(socket), []string{"default/down"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if asked.Load() != 3 || s.Errors() != 1 {
		t.Errorf("the status was asked for %d times, and has %d errors", asked.Load(), s.Errors())
	}
}
