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
	restarts := f.restarts
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
		if r.Context().Err() != nil || f.restarts != restarts {
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

func Test987_nomad_registrations(t *testing.T) {
	for _, notFound := range []bool{false, true} {
		f := newFake()
		f.notFound = notFound
		server := httptest.NewServer(f)
		t.Cleanup(server.Close)
		p := open(t, server.URL, nil)
		web, prod, shop := providertest.Follow(t, p, "web"), providertest.Follow(t, p, "web?tag=prod&tag=v1"), providertest.Follow(t, p, "web?namespace=shop")
		idle := providertest.Follow(t, p, "idle")
		web.Answer()
		shop.Answer()
		idle.Answer()
		for i := range 20 {
			a := fmt.Sprint("10.0.0.", i)
			f.set("default", "web", registration{Address: a, Port: 20001, Tags: []string{"prod", "v1"}}, registration{Address: "10.0.0.99", Port: 20002, Tags: []string{"prod"}})
			web.Answer(a+":20001", "10.0.0.99:20002")
			prod.Answer(a + ":20001")
		}
		f.set("default", "web")
		web.Answer()
		prod.Answer()
		f.set("shop", "web", registration{Address: "10.1.0.1", Port: 1})
		shop.Answer("10.1.0.1:1")
		if failed := slices.Concat(web.Failures(), prod.Failures(), shop.Failures()); len(failed) > 0 {
			t.Errorf("failures: %v", failed)
		}
		f.mu.Lock()
		if f.requests["/v1/event/stream"] != 2 || f.requests["/v1/service/idle"] != 1 {
			t.Errorf("a stream for each namespace, and no list without an event: %v", f.requests)
		}
		f.mu.Unlock()
	}
}

func Test987_nomad_failures_are_no_answers(t *testing.T) {
	agent := newFake()
	server := httptest.NewServer(agent)
	t.Cleanup(server.Close)
	proxy := providertest.NewProxy(t, "tcp", strings.TrimPrefix(server.URL, "http://"))
	p := open(t, proxy.URL, nil)
	agent.set("default", "web", registration{Address: "10.0.0.1", Port: 80})
	f := providertest.Follow(t, p, "web")
	f.Answer("10.0.0.1:80")
	providertest.Faults(t, proxy, f, "X-Nomad-Index", "7", "X-Nomad-KnownLeader", "true")
	f.Answer("10.0.0.1:80")
	proxy.Break(providertest.Status(200, "[]"))
	f.Fails("X-Nomad-Index")
	proxy.Break(nil)
	f.Answer("10.0.0.1:80")
	agent.mu.Lock()
	agent.leader = false
	agent.mu.Unlock()
	agent.set("default", "web")
	f.Fails("no leader")
	for _, a := range f.Answers() {
		if len(a.Endpoints) == 0 {
			t.Fatal("a failure was taken as an empty answer")
		}
	}
	agent.mu.Lock()
	agent.leader = true
	agent.mu.Unlock()
	f.Answer()
	proxy.Delay(2 * time.Second)
	agent.set("default", "web", registration{Address: "10.0.0.2", Port: 80})
	f.Answer("10.0.0.2:80")
	proxy.Break(nil)
	for range 50 {
		agent.set("default", "other", registration{Address: "10.0.0.3", Port: 80})
	}
	agent.restart()
	f.Fails("the stream of events ended")
	f.Answer()
	agent.set("default", "web", registration{Address: "10.0.0.4", Port: 80})
	f.Answer("10.0.0.4:80")
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
