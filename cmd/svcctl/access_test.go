package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// serveAccess serves an appliance whose API is served over TLS too, as far as it says.
func serveAccess(t *testing.T) (socket string, tokens *auth.Tokens) {
	t.Helper()
	dir := t.TempDir()
	quiet := slog.New(slog.DiscardHandler)
	tokens, err := auth.OpenTokens(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := auth.OpenAuthority(filepath.Join(dir, "keys"), nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	minute := func(n int) time.Time { return time.Date(2026, 1, 1, 12, n, 0, 0, time.UTC) }
	journal := []wire.JournalEntry{
		{Time: minute(1), Revision: 7, Verb: "create", Kind: "Service", Namespace: "default", Name: "web", File: "/m/web.yaml"},
		{Time: minute(1), Revision: 8, Verb: "create", Kind: "Namespace", Name: "default", Controller: "namespaces"},
		{Time: minute(5), Revision: 9, Verb: "patch", Kind: "Service", Namespace: "default", Name: "web", User: "root:ci", Manager: "kubectl-edit", Agent: "kubectl/v1"},
		{Time: minute(7), Revision: 10, Verb: "delete", Kind: "Service", Namespace: "default", Name: "web", User: "evil\x1b[2J"},
	}
	story := []wire.HistoryEntry{
		{Time: minute(3), Kind: "endpoint", Severity: wire.SeverityWarning, Text: "10.1.2.12:8080 of default/web and 10 others went down: connection refused", Services: []string{"default/web"}, Concerned: 11},
		{Time: minute(4), Kind: "condition", Severity: wire.SeverityError, Text: "default/web does not answer: both endpoints are down\n\x1b[2Jשלום"},
		{Time: minute(6), Kind: "condition", Text: "default/web answers again after 2 min"},
	}
	srv := api.New(api.Config{
		Socket: api.Socket{Path: socket},
		TLS:    &api.TLS{Tokens: tokens, Certificate: authority.Certificate, CA: authority.CA, Address: "127.0.0.1:6443"},
		Endpoints: []api.Endpoint{api.Stream(wire.GetJournal, func(_ *http.Request, q wire.JournalQuery, each func(wire.JournalEntry) error) error {
			for _, entry := range journal[max(0, len(journal)-q.Limit):] {
				if err := each(entry); err != nil {
					return err
				}
			}
			return nil
		}), api.Answer(wire.GetHistory, func(_ *http.Request, q wire.HistoryQuery) (wire.History, error) {
			if q.Name != "" && (q.Namespace != "shop" || q.Since != 2*time.Hour) {
				return wire.History{}, fmt.Errorf("asked for %+v", q)
			}
			return wire.History{At: minute(8), From: minute(2), Entries: story[max(0, len(story)-q.Limit):]}, nil
		})},
	}, &fake{}, quiet)
	ln, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- srv.Serve(t.Context(), ln) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket, tokens
}

func TestToken(t *testing.T) {
	socket, tokens := serveAccess(t)
	b := newBench()
	if code := b.run("admin", "token", "--socket", socket, "--role", "reader", "--name", "ci", "--duration", "10m"); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, b.err.String())
	}
	text := strings.TrimSuffix(b.out.String(), "\n")
	if u, _, err := tokens.Verify(text); err != nil || u.Role != auth.Reader || !strings.HasSuffix(u.Name, ":ci") {
		t.Errorf("%q is for %+v, %v", text, u, err)
	}
	if code := b.run("admin", "token", "--socket", socket, "--revoke-all"); code != cli.ExitDone || b.out.String() != "all tokens are revoked\n" {
		t.Errorf("revoke: exit %d, %s%s", code, b.out.String(), b.err.String())
	}
	if _, _, err := tokens.Verify(text); !errors.Is(err, auth.ErrToken) {
		t.Errorf("a revoked token: %v", err)
	}
	for args, want := range map[string]string{
		"--duration x":               `--duration "x": want a duration`,
		"--duration 1ms":             `--duration "1ms": want a duration`,
		"--role god":                 `--role "god": want one of admin, endpoints, reader`,
		"--revoke-all --role reader": "--revoke-all gives no token, and --role is about one",
	} {
		if code := b.run(append([]string{"admin", "token", "--socket", socket}, strings.Fields(args)...)...); code != cli.ExitUsage || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d: %s", args, code, b.err.String())
		}
	}
	for args, want := range map[string]string{
		"--duration 721h": "a token cannot be valid for 721h0m0s: give a duration from 1s to 720h",
		"--name a/b":      `"a/b" cannot name a token`,
	} {
		if code := b.run(append([]string{"admin", "token", "--socket", socket}, strings.Fields(args)...)...); code != cli.ExitNo || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d: %s", args, code, b.err.String())
		}
	}
	plain := serveFake(t, &fake{})
	for _, verb := range []string{"token", "kubeconfig"} {
		if code := b.run("admin", verb, "--socket", plain); code != cli.ExitNo || !strings.Contains(b.err.String(), "start `svcctl serve` with --listen") {
			t.Errorf("%s without TLS: exit %d: %s", verb, code, b.err.String())
		}
		if code := b.run("admin", verb, "--socket", plain+"x"); code != cli.ExitUnreachable {
			t.Errorf("%s without an appliance: exit %d: %s", verb, code, b.err.String())
		}
	}
}

// TestExecCredential runs the verb as kubectl does.
func TestExecCredential(t *testing.T) {
	socket, tokens := serveAccess(t)
	b := newBench()
	for _, version := range []string{"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"} {
		b.env["KUBERNETES_EXEC_INFO"] = `{"kind":"ExecCredential","apiVersion":"` + version + `","spec":{"interactive":false}}`
		if code := b.run("admin", "token", "--socket", socket); code != cli.ExitDone {
			t.Fatalf("exit %d: %s", code, b.err.String())
		}
		var c struct {
			Kind, APIVersion string
			Status           struct {
				Token               string
				ExpirationTimestamp time.Time
			}
		}
		if err := json.Unmarshal(b.out.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if u, _, err := tokens.Verify(c.Status.Token); err != nil || u.Role != auth.Admin {
			t.Errorf("%s: a token for %+v, %v", version, u, err)
		}
		if left := time.Until(c.Status.ExpirationTimestamp); c.Kind != "ExecCredential" || c.APIVersion != version || left > time.Hour-30*time.Second || left < 58*time.Minute {
			t.Errorf("%s: %s", version, b.out.String())
		}
	}
	for _, info := range []string{"nonsense", `{"apiVersion":"client.authentication.k8s.io/v2"}`, "{}"} {
		b.env["KUBERNETES_EXEC_INFO"] = info
		if code := b.run("admin", "token", "--socket", socket); code != cli.ExitNo || b.out.Len() > 0 || !strings.Contains(b.err.String(), "KUBERNETES_EXEC_INFO") {
			t.Errorf("%s: exit %d, %s%s", info, code, b.out.String(), b.err.String())
		}
	}
}

// kubeconfig is what a client reads of a kubeconfig.
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Clusters       []struct {
		Name    string `json:"name"`
		Cluster struct {
			Server string `json:"server"`
			CA     []byte `json:"certificate-authority-data"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string `json:"name"`
		User struct {
			Token string `json:"token"`
			Exec  *struct {
				APIVersion      string   `json:"apiVersion"`
				Command         string   `json:"command"`
				Args            []string `json:"args"`
				InteractiveMode string   `json:"interactiveMode"`
			} `json:"exec"`
		} `json:"user"`
	} `json:"users"`
	Contexts []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster string `json:"cluster"`
			User    string `json:"user"`
		} `json:"context"`
	} `json:"contexts"`
}

// readKubeconfig reads what the verb printed, as YAML with the names that clients know.
func readKubeconfig(t *testing.T, text string) (k kubeconfig) {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &k); err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKubeconfig(t *testing.T) {
	socket, tokens := serveAccess(t)
	b := newBench()
	t.Chdir(filepath.Dir(socket))
	if code := b.run("admin", "kubeconfig", "--socket", "s", "--role", "reader"); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, b.err.String())
	}
	k := readKubeconfig(t, b.out.String())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	exec := k.Users[0].User.Exec
	if exec == nil || exec.Command != self || strings.Join(exec.Args, " ") != "admin token --socket "+socket+" --role reader" ||
		exec.InteractiveMode != "Never" || exec.APIVersion != "client.authentication.k8s.io/v1" || k.Users[0].User.Token != "" {
		t.Errorf("the user is %+v", exec)
	}
	if c := k.Clusters[0].Cluster; c.Server != "https://127.0.0.1:6443" || !x509.NewCertPool().AppendCertsFromPEM(c.CA) {
		t.Errorf("the cluster is %s, %q", c.Server, c.CA)
	}
	if c := k.Contexts[0]; k.CurrentContext != "svcctl" || c.Name != "svcctl" || c.Context.Cluster != k.Clusters[0].Name || c.Context.User != k.Users[0].Name {
		t.Errorf("the context is %+v", c)
	}

	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte("a CA"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := b.run("admin", "kubeconfig", "--socket", socket, "--server", "https://gw1.example:443", "--ca", ca, "--name", "gw1", "--embed-token", "2h"); code != cli.ExitDone {
		t.Fatalf("exit %d: %s", code, b.err.String())
	}
	k = readKubeconfig(t, b.out.String())
	if c := k.Clusters[0]; c.Name != "gw1" || c.Cluster.Server != "https://gw1.example:443" || string(c.Cluster.CA) != "a CA" {
		t.Errorf("the cluster is %+v", c)
	}
	if u, _, err := tokens.Verify(k.Users[0].User.Token); err != nil || k.Users[0].User.Exec != nil || !strings.HasSuffix(u.Name, ":kubeconfig") {
		t.Errorf("the token is for %+v, %v", u, err)
	}
	for args, want := range map[string]int{
		"--server http://gw1": cli.ExitUsage, "--role god": cli.ExitUsage, "--server gw1:443": cli.ExitUsage, "--embed-token x": cli.ExitUsage,
		"--ca /no/such/file": cli.ExitNo, "--embed-token 721h": cli.ExitNo,
	} {
		if code := b.run(append([]string{"admin", "kubeconfig", "--socket", socket}, strings.Fields(args)...)...); code != want || b.out.Len() > 0 {
			t.Errorf("%s: exit %d, %s%s", args, code, b.out.String(), b.err.String())
		}
	}
}

// Changes and the history of the box are one list by time; readers get the history alone.
func Test935_journal(t *testing.T) {
	socket, _ := serveAccess(t)
	b := newBench()
	if code := b.run("journal", "--socket", socket); code != cli.ExitDone || b.err.Len() > 0 {
		t.Fatalf("exit %d: %s", code, b.err.String())
	}
	golden(t, "journal.txt", b.out.String())
	if code := b.run("journal", "--socket", socket, "-o", "json", "--limit", "3"); code != cli.ExitDone || strings.Count(b.out.String(), "\n") != 3 ||
		!strings.HasPrefix(b.out.String(), `{"revision":9,"time":"2026-01-01T12:05:00Z","verb":"patch","kind":"Service","namespace":"default","name":"web","user":"root:ci","manager":"kubectl-edit","agent":"kubectl/v1"}
{"time":"2026-01-01T12:06:00Z","kind":"condition","text":"default/web answers again after 2 min"}`) {
		t.Errorf("exit %d: %s%s", code, b.out.String(), b.err.String())
	}
	if code := b.run("journal", "svc/web", "-n", "shop", "--since", "2h", "--socket", socket); code != cli.ExitDone || b.err.String() != "the history begins at 2026-01-01 12:02:00 UTC\n" {
		t.Errorf("exit %d: %s%s", code, b.out.String(), b.err.String())
	}
	for args, want := range map[string]string{
		"--limit 0": "want a number from 1 to 10000", "--limit x": "want a number", "--limit 10001": "want a number from 1 to 10000", "-o yaml": "table, json", "--since soon": "want a duration as 90m or 24h",
		"--since 0s": "want a duration", "svc/web -A": "give -n NAMESPACE, not -A", "svc/web svc/api": "takes one Service", "pod/web": "wants a Service",
	} {
		if code := b.run(append([]string{"journal", "--socket", socket}, strings.Fields(args)...)...); code != cli.ExitUsage || !strings.Contains(b.err.String(), want) {
			t.Errorf("%s: exit %d: %s", args, code, b.err.String())
		}
	}
	reader := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", reader)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == wire.GetHistory.Path {
			_ = json.NewEncoder(w).Encode(wire.History{Entries: []wire.HistoryEntry{{Kind: "problem", Text: "it is over"}}})
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(wire.NewFailure(http.StatusForbidden, wire.ReasonForbidden, "for administrators"))
	})}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	if code := b.run("journal", "--socket", reader); code != cli.ExitDone || !strings.Contains(b.err.String(), "they are for administrators") || !strings.Contains(b.out.String(), "✓ it is over") {
		t.Errorf("a reader: exit %d: %s%s", code, b.out.String(), b.err.String())
	}
}
