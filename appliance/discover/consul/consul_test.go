package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// agent is an agent of Consul, a real one or a fake.
type agent struct {
	t       *testing.T
	address string
	restart func() // without its state
	fake    *fake  // nil: a real one
}

// put calls the API of the agent.
func (a *agent) put(path, body string) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+a.address+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 {
		a.t.Fatalf("PUT %s: %s %s", path, resp.Status, text)
	}
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
		test(t, &agent{t, strings.TrimPrefix(server.URL, "http://"), f.restart, f})
	})
	binary := os.Getenv("SVCCTL_CONSUL")
	if binary == "" {
		return // make discover-servers builds one
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		a := &agent{t: t}
		var ports []string
		for _, name := range []string{"http", "serf_lan", "serf_wan", "server"} {
			port := freePort(t)
			ports = append(ports, fmt.Sprintf("%s = %d", name, port))
			if name == "http" {
				a.address = fmt.Sprintf("127.0.0.1:%d", port)
			}
		}
		config := filepath.Join(t.TempDir(), "consul.hcl")
		text := "node_meta { zone = \"a\" }\nports { dns = -1\ngrpc = -1\nhttps = -1\n" + strings.Join(ports, "\n") + "\n}\n"
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var running *exec.Cmd
		stop := func() {
			if running != nil {
				_ = running.Process.Kill()
				_ = running.Wait()
			}
		}
		start := func() {
			running = exec.Command(binary, "agent", "-dev", "-bind", "127.0.0.1", "-node", "box1", "-log-level", "warn", "-config-file", config)
			running.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := running.Start(); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // real time: another program starts
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				var all []any
				client, err := remote.NewClient(remote.Server{URL: "http://" + a.address})
				if err == nil {
					_, err = client.JSON(ctx, "/v1/health/state/any", nil, 0, &all)
				}
				cancel()
				if err == nil && len(all) > 0 {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("the agent of Consul does not answer: %v", err)
				}
			}
		}
		start()
		t.Cleanup(stop)
		a.restart = func() { stop(); start() }
		test(t, a)
	})
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
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
				proxy.Break(nil)
				proxy.Delay(2 * time.Second) // slow is no failure
				f.Fresh()
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

// 300 questions are answered in time with few polls, whatever kind of instance changes.
func Test982_consul_many_questions(t *testing.T) {
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
			if a.fake.lists > 100 {
				t.Errorf("%d lists for the changes of two services of %d", a.fake.lists, n)
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
