package nomad

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// fake is an agent of Nomad with so much of its API as the tests use. Its stream has no header before the first event or heartbeat, as
// that of Nomad, and begins at the index that is asked for.
type fake struct {
	mu       sync.Mutex
	changed  chan struct{} // closed at each change
	index    uint64
	services map[string][]registration // by namespace and name: "default/web"
	events   []event
	notFound bool // versions that have no empty list
	leader   bool
	requests map[string]int // by path
	restarts int
	reads    string // the token that may read; "": there are no ACLs
}

type registration struct {
	ID, ServiceName, Namespace, NodeID, Datacenter, JobID, AllocID, Address string
	Tags                                                                    []string
	Port                                                                    int
	CreateIndex, ModifyIndex                                                uint64
}

type event struct {
	space string
	index uint64
	text  []byte
}

func newFake() *fake {
	f := &fake{changed: make(chan struct{}), services: map[string][]registration{}, leader: true, requests: map[string]int{}, index: 5}
	return f
}

// set replaces the registrations of a service.
func (f *fake) set(space, name string, all ...registration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	before := f.services[space+"/"+name]
	for i := range all {
		r := &all[i]
		r.ID, r.ServiceName, r.Namespace, r.NodeID, r.Datacenter = fmt.Sprint("_nomad-task-", i), name, space, "0a2c0e6b", "dc1"
		r.JobID, r.AllocID, r.CreateIndex, r.ModifyIndex = "job", fmt.Sprint("alloc", i), f.index, f.index
	}
	f.services[space+"/"+name] = all
	kind, of := "ServiceRegistration", all
	if len(all) < len(before) {
		kind, of = "ServiceDeregistration", before
	}
	var list []any
	for _, r := range of {
		list = append(list, map[string]any{
			"Topic": "Service", "Type": kind, "Key": r.ID, "Namespace": space, "FilterKeys": []string{r.JobID, name}, "Index": f.index,
			"Payload": map[string]any{"Service": r},
		})
	}
	text, _ := json.Marshal(map[string]any{"Index": f.index, "Events": list})
	f.events = append(f.events, event{space, f.index, text})
	f.wake()
}

func (f *fake) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// restart is an agent that comes back without state.
func (f *fake) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index, f.events, f.services = 3, nil, map[string][]registration{}
	f.restarts++
	f.wake()
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	space := r.URL.Query().Get("namespace")
	f.requests[r.URL.Path]++
	if f.reads != "" && (r.Header.Get("X-Nomad-Token") != f.reads || space != "default") {
		w.WriteHeader(403)
		fmt.Fprint(w, "Permission denied")
		return
	}
	if r.URL.Path == "/v1/event/stream" {
		f.stream(w, r, space)
		return
	}
	w.Header().Set("X-Nomad-Index", fmt.Sprint(f.index))
	w.Header().Set("X-Nomad-KnownLeader", fmt.Sprint(f.leader))
	w.Header().Set("X-Nomad-LastContact", "0")
	name, is := strings.CutPrefix(r.URL.Path, "/v1/service/")
	switch {
	case r.URL.Path == "/v1/services":
		_, _ = w.Write([]byte("[]"))
	case !is:
		http.NotFound(w, r)
	default:
		all := f.services[space+"/"+name]
		if len(all) == 0 && f.notFound {
			w.WriteHeader(404)
			fmt.Fprint(w, "service registrations not found")
			return
		}
		if all == nil {
			all = []registration{}
		}
		_ = json.NewEncoder(w).Encode(all)
	}
}

// stream is called with the lock.
func (f *fake) stream(w http.ResponseWriter, r *http.Request, space string) {
	index, err := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	if err != nil || index == 0 || r.URL.Query().Get("topic") != "Service" {
		w.WriteHeader(400)
		return
	}
	restarts, reads := f.restarts, f.reads
	for {
		for _, e := range f.events {
			if e.space == space && e.index >= index {
				fmt.Fprintf(w, "%s\n", e.text)
				w.(http.Flusher).Flush()
			}
		}
		index = f.index + 1
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		case <-time.After(10 * time.Second): // real time: the heartbeat of Nomad
			fmt.Fprintln(w, "{}")
			w.(http.Flusher).Flush()
		}
		f.mu.Lock()
		if r.Context().Err() != nil || f.restarts != restarts || f.reads != reads {
			return
		}
	}
}

func open(t *testing.T, url string, env map[string]string) provider.Provider {
	t.Helper()
	p, err := New(provider.Config{URL: url, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// agent is an agent of Nomad, a real one or a fake.
type agent struct {
	url     string
	set     func(space, name string, all ...registration)
	restart func() // without its state
	fake    *fake  // nil: a real one
}

// agents runs a test with fakes, and with a real agent where SVCCTL_NOMAD names the program.
func agents(t *testing.T, test func(t *testing.T, a *agent)) {
	for _, notFound := range []bool{false, true} {
		t.Run(fmt.Sprintf("recorded, 404 for no service: %v", notFound), func(t *testing.T) {
			t.Parallel()
			f := newFake()
			f.notFound = notFound
			server := httptest.NewServer(f)
			t.Cleanup(server.Close)
			test(t, &agent{server.URL, f.set, f.restart, f})
		})
	}
	if os.Getenv("SVCCTL_NOMAD") == "" {
		return // make discover-servers
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		r := providertest.StartNomad(t, "", nil)
		shop := func() { r.Call("PUT", "/v1/namespace", map[string]any{"Name": "shop"}, nil) }
		shop()
		test(t, &agent{url: r.URL, set: setter(r), restart: func() {
			r.Restart()
			shop()
		}})
	})
}

// setter has jobs register instances.
func setter(n *providertest.Nomad) func(space, name string, all ...registration) {
	return func(space, name string, all ...registration) {
		var services []providertest.NomadService
		for _, r := range all {
			services = append(services, providertest.NomadService{Address: r.Address, Port: r.Port, Tags: r.Tags})
		}
		n.Set(space, name, services...)
	}
}

func Test987_nomad_registrations(t *testing.T) {
	agents(t, func(t *testing.T, n *agent) {
		p := open(t, n.url, nil)
		web, prod, shop := providertest.Follow(t, p, "web"), providertest.Follow(t, p, "web?tag=prod&tag=v1"), providertest.Follow(t, p, "web?namespace=shop")
		idle := providertest.Follow(t, p, "idle")
		web.Answer()
		shop.Answer()
		idle.Answer()
		changes := 20
		if n.fake == nil {
			changes = 5
		}
		for i := range changes {
			a := fmt.Sprint("10.0.0.", i)
			n.set("default", "web", registration{Address: a, Port: 20001, Tags: []string{"prod", "v1"}}, registration{Address: "10.0.0.99", Port: 20002, Tags: []string{"prod"}})
			web.Answer(a+":20001", "10.0.0.99:20002")
			prod.Answer(a + ":20001")
		}
		n.set("default", "web", registration{Address: "10.0.0.1", Port: 20001})
		web.Answer("10.0.0.1:20001")
		prod.Answer()
		n.set("default", "web")
		web.Answer()
		n.set("shop", "web", registration{Address: "10.1.0.1", Port: 1})
		shop.Answer("10.1.0.1:1")
		web.Answer()
		if failed := slices.Concat(web.Failures(), prod.Failures(), shop.Failures()); len(failed) > 0 {
			t.Errorf("failures: %v", failed)
		}
		if n.fake == nil {
			return
		}
		n.fake.mu.Lock()
		if n.fake.requests["/v1/event/stream"] != 2 || n.fake.requests["/v1/service/idle"] != 1 {
			t.Errorf("a stream for each namespace, and no list without an event: %v", n.fake.requests)
		}
		n.fake.mu.Unlock()
	})
}

func Test987_nomad_failures_are_no_answers(t *testing.T) {
	agents(t, func(t *testing.T, n *agent) {
		proxy := providertest.NewProxy(t, "tcp", strings.TrimPrefix(n.url, "http://"))
		p := open(t, proxy.URL, nil)
		n.set("default", "web", registration{Address: "10.0.0.1", Port: 80})
		f := providertest.Follow(t, p, "web")
		f.Answer("10.0.0.1:80")
		before := len(f.Answers()) // a real agent was asked before the job ran
		providertest.Faults(t, proxy, f, "X-Nomad-Index", "7", "X-Nomad-KnownLeader", "true")
		f.Answer("10.0.0.1:80")
		proxy.Break(providertest.Status(200, "[]"))
		f.Fails("X-Nomad-Index")
		proxy.Break(nil)
		f.Answer("10.0.0.1:80")
		if n.fake != nil {
			n.fake.mu.Lock()
			n.fake.leader = false
			n.fake.mu.Unlock()
		} else {
			proxy.Break(providertest.Status(200, "[]", "X-Nomad-Index", "7", "X-Nomad-KnownLeader", "false"))
		}
		n.set("default", "web")
		f.Fails("no leader")
		for _, a := range f.Answers()[before:] {
			if len(a.Endpoints) == 0 {
				t.Fatal("a failure was taken as an empty answer")
			}
		}
		if n.fake != nil {
			n.fake.mu.Lock()
			n.fake.leader = true
			n.fake.mu.Unlock()
		}
		proxy.Break(nil)
		f.Answer()
		proxy.Delay(2 * time.Second)
		n.set("default", "web", registration{Address: "10.0.0.2", Port: 80})
		f.Answer("10.0.0.2:80")
		proxy.Break(nil)
		for i := range 50 { // the index is above that of the agent that comes back
			n.set("default", "other", registration{Address: fmt.Sprint("10.0.0.", i), Port: 80})
		}
		n.restart()
		if n.fake != nil {
			f.Fails("the stream of events ended")
		}
		f.Answer()
		n.set("default", "web", registration{Address: "10.0.0.4", Port: 80})
		f.Answer("10.0.0.4:80")
	})
}

// A token needs read-job in the namespace, and what it may not read is a failure, of the stream and of the lists.
func Test1016_nomad_tokens(t *testing.T) {
	// replace revokes the token that reads, and returns another one.
	test := func(t *testing.T, n *agent, reads, weak string, replace func() string) {
		file := filepath.Join(t.TempDir(), "token")
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n.set("default", "web", registration{Address: "10.0.0.1", Port: 80})
		providertest.Follow(t, open(t, n.url, nil), "web").Fails("403")
		f := providertest.Follow(t, open(t, n.url, map[string]string{"NOMAD_TOKEN_FILE": file}), "web")
		f.Fails("no such file")
		write("")
		f.Fails("has no token")
		for _, bad := range []string{"00000000-0000-0000-0000-000000000000", weak} {
			write(bad)
			f.Fails("403")
		}
		write(reads)
		f.Answer("10.0.0.1:80")
		n.set("default", "web", registration{Address: "10.0.0.2", Port: 80})
		f.Answer("10.0.0.2:80")
		providertest.Follow(t, open(t, n.url, map[string]string{"NOMAD_TOKEN": reads}), "web?namespace=other").Fails("403")
		before := len(f.Answers())
		again := replace()
		n.set("default", "web", registration{Address: "10.0.0.3", Port: 80})
		f.Fails("403")
		for _, a := range f.Answers()[before:] {
			if len(a.Endpoints) == 0 {
				t.Errorf("an answer without a right: %v", a)
			}
		}
		write(again)
		f.Answer("10.0.0.3:80")
	}
	t.Run("recorded", func(t *testing.T) {
		f := newFake()
		f.reads = "t1"
		server := httptest.NewServer(f)
		t.Cleanup(server.Close)
		test(t, &agent{server.URL, f.set, f.restart, f}, "t1", "t0", func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.reads = "t2"
			f.wake()
			return "t2"
		})
	})
	t.Run("real", func(t *testing.T) {
		s := providertest.StartNomad(t, "acl {\n enabled = true\n}\n", nil)
		var token struct{ SecretID, AccessorID string }
		s.Call("PUT", "/v1/acl/bootstrap", nil, &token)
		s.Token = token.SecretID
		issue := func(name, capability string) string {
			t.Helper()
			s.Call("PUT", "/v1/acl/policy/"+name, map[string]any{"Name": name, "Rules": `namespace "default" { capabilities = ["` + capability + `"] }`}, nil)
			s.Call("PUT", "/v1/acl/token", map[string]any{"Name": name, "Type": "client", "Policies": []string{name}}, &token)
			return token.SecretID
		}
		weak := issue("lists", "list-jobs")
		reads := issue("reads", "read-job")
		accessor := token.AccessorID
		test(t, &agent{url: s.URL, set: setter(s)}, reads, weak, func() string {
			again := issue("again", "read-job")
			s.Call("DELETE", "/v1/acl/token/"+accessor, nil, nil)
			return again
		})
	})
}

// An agent that asks its clients for certificates gets them, as they are in their files at each connection.
func Test1019_nomad_asks_for_certificates(t *testing.T) {
	dir := providertest.Certificates(t, "server.global.nomad", "client.global.nomad")
	test := func(t *testing.T, url string, closed func()) {
		providertest.Mutual(t, dir, New, func(ca, cert, key, name string) map[string]string {
			return map[string]string{"NOMAD_ADDR": url, "NOMAD_CACERT": ca, "NOMAD_CLIENT_CERT": cert, "NOMAD_CLIENT_KEY": key, "NOMAD_TLS_SERVER_NAME": name}
		}, closed).Answer()
	}
	t.Run("recorded", func(t *testing.T) {
		server := httptest.NewUnstartedServer(newFake())
		server.TLS = providertest.Server(t, dir)
		server.StartTLS()
		t.Cleanup(server.Close)
		test(t, server.URL, server.CloseClientConnections)
	})
	t.Run("real", func(t *testing.T) {
		s := providertest.StartNomad(t, strings.ReplaceAll(`tls {
 http = true
 ca_file = "DIR/ca.pem"
 cert_file = "DIR/cert.pem"
 key_file = "DIR/key.pem"
 verify_https_client = true
}
`, "DIR", dir), providertest.Server(t, dir))
		test(t, s.URL, s.Restart)
	})
}

func TestConfiguration(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type env = map[string]string
	for _, tt := range []struct {
		env          env
		token, query string // that the server gets
	}{
		{env{}, "", "namespace=default"},
		{env{"NOMAD_TOKEN": "t1", "NOMAD_TOKEN_FILE": token, "NOMAD_NAMESPACE": "shop", "NOMAD_REGION": "eu"}, "t1", "namespace=shop&region=eu"},
		{env{"NOMAD_TOKEN_FILE": token}, "secret", "namespace=default"},
	} {
		got := make(chan *http.Request, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case got <- r:
			default:
			}
			w.Header().Set("X-Nomad-Index", "1")
			_, _ = w.Write([]byte("[]"))
		}))
		tt.env["NOMAD_ADDR"] = server.URL
		f := providertest.Follow(t, open(t, "", tt.env), "web")
		f.Answer()
		f.Stop()
		if r := <-got; r.Header.Get("X-Nomad-Token") != tt.token || r.URL.RawQuery != tt.query {
			t.Errorf("%v: token %q, query %q", tt, r.Header.Get("X-Nomad-Token"), r.URL.RawQuery)
		}
		server.Close()
	}
	if _, err := New(provider.Config{Env: env{"NOMAD_SKIP_VERIFY": "perhaps"}}); err == nil || !strings.Contains(err.Error(), "NOMAD_SKIP_VERIFY: must be true or false") {
		t.Errorf("%v", err)
	}
	p := open(t, "http://127.0.0.1:1", nil)
	providertest.Follow(t, p, "web?namespace=*").Fails("must be one namespace")
	providertest.Follow(t, p, "web?dc=eu").Fails(`"dc" is no parameter: there are namespace, region, tag, hold`)
	providertest.Follow(t, p, "web").Fails("connection refused")
}
