package api_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

var update = flag.Bool("update", false, "write the table of docs/api.md")

// The parts of the appliance, none of which is asked for anything.
type (
	changes       struct{ api.Changes }
	rollouts      struct{ api.Rollouts }
	fleet         struct{ api.Fleet }
	queries       = api.Traffic
	traffic       struct{ queries } // its method Traffic is none of a field by that name
	announcements struct{ api.Announcements }
)

// Each operation is served, by its method alone, to those alone who may ask, and without a body where it has none.
func TestOperationsAreServed(t *testing.T) {
	s := serveTLS(t, newBackend(), api.Config{
		Changes: changes{}, Rollouts: rollouts{}, Fleet: fleet{}, Traffic: traffic{}, Announcements: announcements{},
		Environment: func(string) []wire.Variable { return nil }, Journal: func(int, bool) ([]wire.JournalEntry, error) { return nil, nil },
		Allocations: func(bool) wire.Allocations { return wire.Allocations{} }, Health: func(string, string) []wire.EndpointHealth { return nil },
		Probe:   func(context.Context, string, string) ([]wire.Probed, error) { return nil, nil },
		Service: func(string, string, netip.AddrPort) wire.ServiceState { return wire.ServiceState{} }, Setup: func() wire.Setup { return wire.Setup{} },
		Trace: func(context.Context, wire.TraceQuery, func(wire.TracedPacket)) error { return nil },
		Plan:  func(http.ResponseWriter, *http.Request) (*wire.KernelPlan, error) { return nil, nil },
	})
	admin, reader := s.token(t, auth.Admin), s.token(t, auth.Reader)
	for _, o := range wire.Operations() {
		other, allowed := http.MethodPost, "GET, HEAD"
		if o.Method == http.MethodPost {
			other, allowed = http.MethodGet, "POST"
		}
		if code, body := s.do(t, admin, other, o.Path, ""); code != http.StatusMethodNotAllowed || !strings.Contains(body, "use "+o.Method) {
			t.Errorf("%s %s: %d %s, want that %s is allowed", other, o.Path, code, body, allowed)
		}
		if code, _ := s.do(t, reader, other, o.Path, ""); (code == http.StatusForbidden) != o.Admin {
			t.Errorf("%s for a reader: %d, and it is for admins: %t", o.Path, code, o.Admin)
		}
		if code, _ := s.do(t, "", o.Method, o.Path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d", o.Path, code)
		}
		takes := o == wire.Plan.Operation || o == wire.ReportAnnouncements.Operation
		if code, body := s.do(t, admin, o.Method, o.Path, "hello"); !takes && (code != http.StatusBadRequest || !strings.Contains(body, o.Method+" takes no body")) {
			t.Errorf("%s %s with a body: %d %s", o.Method, o.Path, code, body)
		}
	}
}

// docs/api.md has a row for each operation, in their order.
func TestOperationsAreDocumented(t *testing.T) {
	const page = "../docs/api.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	for _, o := range wire.Operations() {
		by := "readers"
		switch {
		case o == wire.ReportAnnouncements.Operation:
			by = "the announcer"
		case o.Admin:
			by = "admins"
		}
		fmt.Fprintf(&rows, "| `%s %s` | %s | %s |\n", o.Method, o.Path, by, o.Does)
	}
	before, rest, found := strings.Cut(string(text), "| operation | for | does |\n|---|---|---|\n")
	_, after, ends := strings.Cut(rest, "\n\n")
	if !found || !ends {
		t.Fatal("docs/api.md has no table of operations")
	}
	want := before + "| operation | for | does |\n|---|---|---|\n" + rows.String() + "\n" + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Error("docs/api.md is not what wire.Operations has: run go test ./api -run TestOperationsAreDocumented -update")
	}
}
