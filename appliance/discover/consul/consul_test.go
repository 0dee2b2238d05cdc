package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// agent is an agent of Consul, a real one or a fake.
type agent struct {
	t       *testing.T
	address string
	restart func() // without its state
	fake    *fake  // nil: a real one
	token   string // of calls of the API
	secure  string // address of a real one over TLS
}

// put calls the API of the agent.
func (a *agent) put(path, body string) []byte {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+a.address+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("X-Consul-Token", a.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 || err != nil {
		a.t.Fatalf("PUT %s: %s %s %v", path, resp.Status, text, err)
	}
	return text
}

// register makes an instance with a check of its own, in a state; "": without a check.
func (a *agent) register(id, name, address, status string, more string) {
	a.t.Helper()
	check := ""
	if status != "" {
		check = fmt.Sprintf(`, "Check": {"CheckID": %q, "TTL": "1h", "Status": %q}`, id, status)
	}
	a.put("/v1/agent/service/register", fmt.Sprintf(`{"ID": %q, "Name": %q, "Address": %q, "Port": 80%s%s}`, id, name, address, check, more))
}

func (a *agent) check(id, word string) { a.t.Helper(); a.put("/v1/agent/check/"+word+"/"+id, "") }

func (a *agent) deregister(id string) { a.t.Helper(); a.put("/v1/agent/service/deregister/"+id, "") }

// agents runs a test with a fake, and with a real agent where there is one: make discover-servers builds it.
func agents(t *testing.T, test func(t *testing.T, a *agent)) {
	t.Run("recorded", func(t *testing.T) {
		t.Parallel()
		f := newFake()
		server := httptest.NewServer(f)
		t.Cleanup(server.Close)
		test(t, &agent{t, strings.TrimPrefix(server.URL, "http://"), f.restart, f, "", ""})
	})
	if os.Getenv("SVCCTL_CONSUL") == "" {
		return // make discover-servers builds one
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		test(t, real(t, "", nil))
	})
}

// real runs an agent with more configuration, which the test asks with this environment.
func real(t *testing.T, more string, env map[string]string) *agent {
	a := &agent{t: t}
	var ports []string
	for _, name := range []string{"http", "https", "serf_lan", "serf_wan", "server"} {
		port := providertest.FreePort(t)
		switch name {
		case "http":
			a.address = fmt.Sprintf("127.0.0.1:%d", port)
		case "https":
			if !strings.Contains(more, "tls ") {
				continue
			}
			a.secure = fmt.Sprintf("127.0.0.1:%d", port)
		}
		ports = append(ports, fmt.Sprintf("%s = %d", name, port))
	}
	config := filepath.Join(t.TempDir(), "consul.hcl")
	text := "node_meta { zone = \"a\" }\nports { dns = -1\ngrpc = -1\n" + strings.Join(ports, "\n") + "\n}\n" + more
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	running := providertest.Run(t, syscall.SIGKILL, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var all []any
		p, err := New(provider.Config{URL: "http://" + a.address, Env: env})
		if err == nil {
			_, err = p.(*Provider).client.JSON(ctx, "/v1/health/state/any", nil, 0, &all)
		}
		if err == nil && len(all) == 0 {
			err = errors.New("it has no checks")
		}
		return err
	}, os.Getenv("SVCCTL_CONSUL"), "agent", "-dev", "-bind", "127.0.0.1", "-node", "box1", "-log-level", "warn", "-config-file", config)
	a.restart = running.Restart
	return a
}

func open(t testing.TB, url string) *Provider {
	t.Helper()
	p, err := New(provider.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	return p.(*Provider)
}

func Test980_consul_instances(t *testing.T) {
	t.Parallel()
	agents(t, func(t *testing.T, a *agent) {
		p := open(t, "http://"+a.address)
		all, prod := providertest.Follow(t, p, "web"), providertest.Follow(t, p, "web?tag=prod&tag=v1")
		all.Answer()
		a.register("w1", "web", "10.0.0.1", "passing", `, "Tags": ["prod", "v1"], "Weights": {"Passing": 5, "Warning": 2}`)
		all.Answer("10.0.0.1:80 w5 box1/a")
		a.register("w2", "web", "", "critical", `, "Tags": ["prod"]`) // has the address of its node
		all.Answer("10.0.0.1:80 w5 box1/a", "127.0.0.1:80 down w1 box1/a")
		prod.Answer("10.0.0.1:80 w5 box1/a")
		a.check("w2", "pass")
		all.Answer("10.0.0.1:80 w5 box1/a", "127.0.0.1:80 w1 box1/a")
		a.check("w1", "warn")
		all.Answer("10.0.0.1:80 w2 box1/a", "127.0.0.1:80 w1 box1/a")
		a.put("/v1/agent/service/maintenance/w1?enable=true", "")
		all.Answer("10.0.0.1:80 terminating w2 box1/a", "127.0.0.1:80 w1 box1/a")
		a.put("/v1/agent/service/maintenance/w1?enable=false", "")
		a.put("/v1/agent/maintenance?enable=true", "")
		all.Answer("10.0.0.1:80 terminating w2 box1/a", "127.0.0.1:80 terminating w1 box1/a")
		a.put("/v1/agent/maintenance?enable=false", "")
		a.check("w1", "fail")
		a.check("w2", "fail")
		all.Answer("10.0.0.1:80 down w5 box1/a", "127.0.0.1:80 down w1 box1/a")
		a.deregister("w1")
		a.deregister("w2")
		all.Answer()
		prod.Answer()
		if failed := append(all.Failures(), prod.Failures()...); len(failed) > 0 {
			t.Errorf("failures: %v", failed)
		}
	})
}

func Test981_consul_failures_are_no_answers(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for half a minute")
	}
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			agents(t, func(t *testing.T, a *agent) {
				proxy := providertest.NewProxy(t, "tcp", a.address)
				p := open(t, proxy.URL)
				if shared {
					p.slots = nil // no question has a poll of its own
				}
				a.register("w1", "web", "10.0.0.1", "passing", "")
				f := providertest.Follow(t, p, "web")
				f.Answer("10.0.0.1:80 w1 box1/a")
				providertest.Faults(t, proxy, f, "X-Consul-Index", "7", "X-Consul-KnownLeader", "true")
				f.Answer("10.0.0.1:80 w1 box1/a")
				proxy.Break(providertest.Status(200, "[]", "X-Consul-Index", "9", "X-Consul-KnownLeader", "false", "X-Consul-Query-Backend", "blocking-query"))
				f.Fails("no leader")
				proxy.Break(providertest.Status(200, "[]"))
				f.Fails("X-Consul-Index")
				f.Fresh(func() {
					proxy.Break(nil)
					proxy.Delay(2 * time.Second) // slow is no failure
				})
				failed := len(f.Failures())
				a.register("w2", "web", "10.0.0.2", "passing", "")
				f.Answer("10.0.0.1:80 w1 box1/a", "10.0.0.2:80 w1 box1/a")
				if more := f.Failures()[failed:]; len(more) > 0 {
					t.Errorf("a slow agent: %v", more)
				}
				proxy.Break(nil)
				before := len(f.Answers())
				for range 20 { // the index is above that of the agent that comes back
					a.check("w1", "warn")
					a.check("w1", "pass")
				}
				a.restart()
				a.register("w3", "web", "10.0.0.3", "passing", "")
				f.Answer("10.0.0.3:80 w1 box1/a")
				a.register("w4", "web", "10.0.0.4", "passing", "")
				f.Answer("10.0.0.3:80 w1 box1/a", "10.0.0.4:80 w1 box1/a")
				t.Logf("%d answers over a restart", len(f.Answers())-before)
			})
		})
	}
}

// Consul leaves out of its answers what a token may not read: an empty answer of this kind is a failure, over the stream and without one,
// and with no token at all.
func Test1017_consul_leaves_out_what_a_token_may_not_read(t *testing.T) {
	t.Parallel()
	const first = "11111111-1111-1111-1111-111111111111"
	for _, shared := range []bool{false, true} {
		test := func(t *testing.T, a *agent, reads string, lose, regain func()) {
			file := filepath.Join(t.TempDir(), "token")
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			follow := func(env map[string]string) *providertest.Following {
				t.Helper()
				p, err := New(provider.Config{URL: "http://" + a.address, Env: env})
				if err != nil {
					t.Fatal(err)
				}
				if shared {
					p.(*Provider).slots = nil
				}
				return providertest.Follow(t, p, "web")
			}
			a.register("w1", "web", "10.0.0.1", "passing", "")
			anonymous := follow(nil)
			anonymous.Fails("CONSUL_HTTP_TOKEN_FILE")
			write("")
			f := follow(map[string]string{"CONSUL_HTTP_TOKEN_FILE": file})
			f.Fails(file + ": has no token")
			write(reads)
			f.Answer("10.0.0.1:80 w1 box1/a")
			lose()
			a.register("w1", "web", "10.0.0.2", "passing", "")
			f.Fails("it needs service:read and node:read")
			regain()
			f.Answer("10.0.0.2:80 w1 box1/a")
			a.deregister("w1")
			f.Answer()
			for _, answer := range append(f.Answers()[:len(f.Answers())-1], anonymous.Answers()...) {
				if len(answer.Endpoints) == 0 {
					t.Fatalf("an empty answer was taken: %v", f.Answers())
				}
			}
		}
		t.Run(fmt.Sprintf("recorded, shared=%v", shared), func(t *testing.T) {
			t.Parallel()
			f := newFake()
			f.reads = "t1"
			server := httptest.NewServer(f)
			t.Cleanup(server.Close)
			become := func(reads string) func() {
				return func() {
					f.mu.Lock()
					defer f.mu.Unlock()
					f.reads = reads
				}
			}
			test(t, &agent{t: t, address: strings.TrimPrefix(server.URL, "http://"), fake: f}, "t1", become("t2"), become("t1"))
		})
		if os.Getenv("SVCCTL_CONSUL") == "" {
			continue
		}
		t.Run(fmt.Sprintf("real, shared=%v", shared), func(t *testing.T) {
			t.Parallel()
			a := real(t, `acl {
 enabled = true
 default_policy = "deny"
 tokens {
  initial_management = "`+first+`"
  agent = "`+first+`"
 }
}
`, map[string]string{"CONSUL_HTTP_TOKEN": first})
			a.token = first
			var policy struct{ ID string }
			var token struct{ SecretID string }
			rules := func(path, rules string) {
				t.Helper()
				text, err := json.Marshal(map[string]string{"Name": "reads", "Rules": rules})
				if err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(a.put(path, string(text)), &policy); err != nil {
					t.Fatal(err)
				}
			}
			const all = `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`
			rules("/v1/acl/policy", all)
			if err := json.Unmarshal(a.put("/v1/acl/token", `{"Policies": [{"Name": "reads"}]}`), &token); err != nil {
				t.Fatal(err)
			}
			test(t, a, token.SecretID, func() { rules("/v1/acl/policy/"+policy.ID, `service_prefix "" { policy = "read" }`) }, func() { rules("/v1/acl/policy/"+policy.ID, all) })
		})
	}
}

// A failure of the agent has one text, whatever is asked.
func Test1021_one_reason_for_all_questions(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(403)
		fmt.Fprint(w, "ACL not found")
	}))
	t.Cleanup(server.Close)
	p := open(t, server.URL)
	reasons := map[string]bool{}
	for _, name := range []string{"web", "db", "web?tag=prod"} {
		f := providertest.Follow(t, p, name)
		f.Fails("ACL not found")
		reasons[f.Failures()[0].Error()] = true
	}
	if len(reasons) != 1 {
		t.Errorf("reasons: %v", reasons)
	}
}

// An agent that asks its clients for certificates gets them, as they are in their files at each connection.
func Test1019_consul_asks_for_certificates(t *testing.T) {
	t.Parallel()
	dir := providertest.Certificates(t, "server.dc1.consul")
	test := func(t *testing.T, host string, closed func()) {
		providertest.Mutual(t, dir, New, func(ca, cert, key, name string) map[string]string {
			return map[string]string{
				"CONSUL_HTTP_ADDR": host, "CONSUL_HTTP_SSL": "true", "CONSUL_CACERT": ca, "CONSUL_CLIENT_CERT": cert, "CONSUL_CLIENT_KEY": key, "CONSUL_TLS_SERVER_NAME": name,
			}
		}, closed).Answer()
	}
	t.Run("recorded", func(t *testing.T) {
		server := httptest.NewUnstartedServer(newFake())
		server.TLS = providertest.Server(t, dir)
		server.StartTLS()
		t.Cleanup(server.Close)
		test(t, strings.TrimPrefix(server.URL, "https://"), server.CloseClientConnections)
	})
	if os.Getenv("SVCCTL_CONSUL") == "" {
		return
	}
	t.Run("real", func(t *testing.T) {
		a := real(t, strings.ReplaceAll(`tls {
 defaults {
  ca_file = "DIR/ca.pem"
  cert_file = "DIR/cert.pem"
  key_file = "DIR/key.pem"
  verify_incoming = true
 }
}
`, "DIR", dir), nil)
		test(t, a.secure, a.restart)
	})
}

// 300 questions are answered in time with few polls, whatever kind of instance changes.
func Test982_consul_many_questions(t *testing.T) {
	t.Parallel()
	agents(t, func(t *testing.T, a *agent) {
		const n = 300
		p := open(t, "http://"+a.address)
		var all []*providertest.Following
		for i := range n {
			a.register(fmt.Sprint("c", i), fmt.Sprint("s", i), "10.0.0.1", "passing", "")
		}
		for i := range n {
			all = append(all, providertest.Follow(t, p, fmt.Sprint("s", i)))
		}
		for _, f := range all {
			f.Answer("10.0.0.1:80 w1 box1/a")
		}
		begin := time.Now()
		if a.fake != nil {
			a.fake.mu.Lock()
			if a.fake.most > polls+2 {
				t.Errorf("%d polls at once", a.fake.most)
			}
			a.fake.lists = 0
			a.fake.mu.Unlock()
		}
		shared := providertest.Follow(t, p, "late") // comes after all slots are taken
		shared.Answer()
		plain := providertest.Follow(t, p, "plain")
		plain.Answer()
		a.register("l1", "late", "10.0.0.2", "critical", "")
		shared.Answer("10.0.0.2:80 down w1 box1/a")
		a.check("l1", "pass")
		shared.Answer("10.0.0.2:80 w1 box1/a")
		a.register("l1", "late", "10.0.0.9", "passing", "") // it moves, and its check stays as it is
		shared.Answer("10.0.0.9:80 w1 box1/a")
		a.register("p1", "plain", "10.0.0.3", "", "")
		plain.Answer("10.0.0.3:80 w1 box1/a")
		a.register("p2", "plain", "10.0.0.4", "", "")
		plain.Answer("10.0.0.3:80 w1 box1/a", "10.0.0.4:80 w1 box1/a")
		a.deregister("p1")
		plain.Answer("10.0.0.4:80 w1 box1/a")
		a.deregister("l1")
		shared.Answer()
		if a.fake != nil {
			a.fake.mu.Lock()
			defer a.fake.mu.Unlock()
			if most := 100 + n*(1+int(time.Since(begin)/(sweep*time.Second))); a.fake.lists > most {
				t.Errorf("%d lists for the changes of two services of %d, want at most %d", a.fake.lists, n, most)
			}
		}
	})
}

// What an agent of version 1.12 answered.
func TestRecorded(t *testing.T) {
	read := func(name string, into any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	var all []instance
	read("health.json", &all)
	answer, _, err := answerOf(provider.Question{Name: "web"}, all)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := providertest.Text(answer), "10.0.0.1:8080 w5 box1/  127.0.0.1:8081 down w1 box1/"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var checks []check
	read("state.json", &checks)
	if len(checks) != 3 || checks[1].ServiceName != "web" || checks[1].ModifyIndex == 0 {
		t.Errorf("checks: %v", checks)
	}
	var names map[string][]string
	read("services.json", &names)
	if len(names["web"]) != 2 {
		t.Errorf("names: %v", names)
	}
}

func TestConfiguration(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type env = map[string]string
	for _, tt := range []struct {
		url   string
		env   env
		token string // that the server gets
		query string
		err   string
	}{
		{env: env{"CONSUL_HTTP_ADDR": "{host}"}},
		{env: env{"CONSUL_HTTP_ADDR": "http://{host}", "CONSUL_HTTP_TOKEN": "t1", "CONSUL_HTTP_TOKEN_FILE": token}, token: "t1"},
		{env: env{"CONSUL_HTTP_ADDR": "{host}", "CONSUL_HTTP_TOKEN_FILE": token}, token: "secret"},
		{url: "http://{host}", env: env{"CONSUL_HTTP_ADDR": "192.0.2.1:1", "CONSUL_NAMESPACE": "shop"}, query: "ns=shop"},
		{url: "http://user:password@{host}"},
		{url: "consul.example.com:8500", err: "must be http://"},
		{url: "ftp://consul", err: `"ftp://consul": must be http://HOST:PORT, https://HOST:PORT or unix:///PATH`},
		{env: env{"CONSUL_HTTP_SSL": "yes please"}, err: "CONSUL_HTTP_SSL: must be true or false"},
		{url: "https://{host}", env: env{"CONSUL_CACERT": "/does/not/exist"}, err: "no such file"},
		{url: "https://{host}", env: env{"CONSUL_CACERT": token}, err: "has no certificate"},
	} {
		got := make(chan *http.Request, 10)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case got <- r:
			default:
			}
			w.Header().Set("X-Consul-Index", "1")
			_, _ = w.Write([]byte("[]"))
		}))
		host := strings.TrimPrefix(server.URL, "http://")
		c := provider.Config{URL: strings.ReplaceAll(tt.url, "{host}", host), Env: env{}}
		for name, value := range tt.env {
			c.Env[name] = strings.ReplaceAll(value, "{host}", host)
		}
		p, err := New(c)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v: %v, want %s", tt, err, tt.err)
			}
			server.Close()
			continue
		}
		if err != nil {
			t.Fatalf("%v: %v", tt, err)
		}
		f := providertest.Follow(t, p, "web")
		f.Answer()
		f.Stop()
		r := <-got
		if r.Header.Get("X-Consul-Token") != tt.token || r.URL.RawQuery != tt.query {
			t.Errorf("%v: token %q, query %q", tt, r.Header.Get("X-Consul-Token"), r.URL.RawQuery)
		}
		if _, password, _ := r.BasicAuth(); strings.Contains(tt.url, "user") != (password == "password") {
			t.Errorf("%v: password %q", tt, password)
		}
		server.Close()
	}
	p := open(t, "http://127.0.0.1:1")
	providertest.Follow(t, p, "web?datacenter=eu").Fails(`"datacenter" is no parameter: there are dc, namespace, partition, tag, hold`)
	providertest.Follow(t, p, "web?dc=eu&dc=us").Fails(`more than once`)
	providertest.Follow(t, p, "web").Fails("http://127.0.0.1:1: connection refused")
}
