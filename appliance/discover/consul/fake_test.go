package consul

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fake is an agent of Consul with so much of its API as the tests use: what it answers was recorded from one of version 1.12 (testdata).
type fake struct {
	mu        sync.Mutex
	changed   chan struct{} // closed at each change
	index     uint64
	services  map[string]*registration // by ID
	checks    map[string]*fakeCheck    // by CheckID
	streaming bool                     // answers with an index come from the streaming backend
	leader    bool
	reads     string // the token that may read everything; "": there are no ACLs
	polls     int    // open, and the most there were
	most      int
	lists     int
}

type registration struct {
	ID, Name, Address string
	Port              int
	Tags              []string
	Weights           struct{ Passing, Warning int }
	Check             *struct{ CheckID, Status string }
	index             uint64
}

type fakeCheck struct {
	Node, CheckID, Status, ServiceID, ServiceName string
	ModifyIndex                                   uint64
}

func newFake() *fake {
	f := &fake{streaming: true, leader: true}
	f.restart()
	return f
}

// restart is an agent that comes back without state: its index falls.
func (f *fake) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.services, f.index = map[string]*registration{}, 10
	f.checks = map[string]*fakeCheck{"serfHealth": {Node: "box1", CheckID: "serfHealth", Status: "passing", ModifyIndex: 10}}
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = make(chan struct{})
}

// change is called with the lock.
func (f *fake) change() uint64 {
	f.index++
	close(f.changed)
	f.changed = make(chan struct{})
	return f.index
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, last, _ := cutLast(r.URL.Path)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch path {
	case "/v1/health/service", "/v1/health/state", "/v1/catalog":
		f.query(w, r, path, last)
	case "/v1/agent/service":
		var s registration
		if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
			w.WriteHeader(400)
			return
		}
		if s.Weights.Passing == 0 {
			s.Weights.Passing, s.Weights.Warning = 1, 1
		}
		s.index = f.change()
		f.services[s.ID] = &s
		if s.Check != nil {
			status := s.Check.Status
			if status == "" {
				status = "critical"
			}
			now := fakeCheck{"box1", s.Check.CheckID, status, s.ID, s.Name, f.index}
			if before := f.checks[s.Check.CheckID]; before != nil && before.Status == status && before.ServiceName == s.Name {
				now.ModifyIndex = before.ModifyIndex // one that is as it was
			}
			f.checks[s.Check.CheckID] = &now
		}
	case "/v1/agent/service/deregister":
		if s := f.services[last]; s != nil {
			f.change()
			maps.DeleteFunc(f.checks, func(_ string, c *fakeCheck) bool { return c.ServiceID == last })
			delete(f.services, last)
			for _, other := range f.services { // the index of a service is of all its instances
				if other.Name == s.Name {
					other.index = f.index
				}
			}
		}
	case "/v1/agent/service/maintenance":
		f.maintain("_service_maintenance:"+last, last, f.services[last].Name, r)
	case "/v1/agent":
		f.maintain("_node_maintenance", "", "", r)
	case "/v1/agent/check/pass", "/v1/agent/check/warn", "/v1/agent/check/fail":
		c := f.checks[last]
		c.Status = map[string]string{"pass": "passing", "warn": "warning", "fail": "critical"}[path[len(path)-4:]]
		c.ModifyIndex = f.change()
	default:
		w.WriteHeader(404)
	}
}

func cutLast(path string) (before, last string, found bool) {
	i := strings.LastIndex(path, "/")
	return path[:i], path[i+1:], i >= 0
}

func (f *fake) maintain(check, id, service string, r *http.Request) {
	index := f.change()
	if r.URL.Query().Get("enable") == "true" {
		f.checks[check] = &fakeCheck{"box1", check, "critical", id, service, index}
	} else {
		delete(f.checks, check)
	}
}

// query is called with the lock. An index is of one service, or of all checks, or of all services, as Consul has them.
func (f *fake) query(w http.ResponseWriter, r *http.Request, path, last string) {
	index, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	at := func() (at uint64) {
		for _, s := range f.services {
			if path == "/v1/catalog" || s.Name == last {
				at = max(at, s.index)
			}
		}
		for _, c := range f.checks {
			if last == "any" || c.ServiceName == last || c.ServiceName == "" && path != "/v1/catalog" {
				at = max(at, c.ModifyIndex)
			}
		}
		if path != "/v1/health/service" || at == 0 || f.index < 20 {
			at = max(at, f.index)
		}
		return at
	}
	f.lists++
	if index > 0 {
		f.lists--
		f.polls++
		f.most = max(f.most, f.polls)
		wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
		deadline := time.After(wait)
	waiting:
		for at() == index {
			changed := f.changed
			f.mu.Unlock()
			select {
			case <-changed:
				f.mu.Lock()
			case <-deadline:
				f.mu.Lock()
				break waiting
			case <-r.Context().Done():
				f.mu.Lock()
				break waiting
			}
		}
		f.polls--
	}
	backend, leader := "blocking-query", f.leader
	if index > 0 && f.streaming && path == "/v1/health/service" {
		backend, leader = "streaming", false // on every answer of it
	}
	w.Header().Set("X-Consul-Index", fmt.Sprint(at()))
	w.Header().Set("X-Consul-Knownleader", fmt.Sprint(leader))
	w.Header().Set("X-Consul-Query-Backend", backend)
	var answer any
	token := r.Header.Get("X-Consul-Token")
	if f.reads != "" {
		w.Header().Set("X-Consul-Default-Acl-Policy", "deny")
	}
	switch path {
	case "/v1/health/service":
		all := []any{}
		if token != f.reads && f.reads != "" {
			if backend != "streaming" && token != "" {
				w.Header().Set("X-Consul-Results-Filtered-By-Acls", "true")
			}
			answer = all
			break
		}
		for _, id := range slices.Sorted(maps.Keys(f.services)) {
			s := f.services[id]
			if s.Name != last || slices.ContainsFunc(r.URL.Query()["tag"], func(tag string) bool { return !slices.Contains(s.Tags, tag) }) {
				continue
			}
			checks := []*fakeCheck{}
			for _, name := range slices.Sorted(maps.Keys(f.checks)) {
				if c := f.checks[name]; c.ServiceID == id || c.ServiceID == "" {
					checks = append(checks, c)
				}
			}
			all = append(all, map[string]any{
				"Node":    map[string]any{"Node": "box1", "Address": "127.0.0.1", "Meta": map[string]string{"zone": "a"}},
				"Service": map[string]any{"ID": id, "Service": s.Name, "Address": s.Address, "Port": s.Port, "Tags": s.Tags, "Weights": s.Weights},
				"Checks":  checks,
			})
		}
		answer = all
	case "/v1/health/state":
		answer = slices.Collect(maps.Values(f.checks))
	default:
		names := map[string][]string{"consul": {}}
		for _, s := range f.services {
			names[s.Name] = append(names[s.Name], s.Tags...)
		}
		answer = names
	}
	_ = json.NewEncoder(w).Encode(answer)
}
