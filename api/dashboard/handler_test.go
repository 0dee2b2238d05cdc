package dashboard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
)

const hostile = `<script>alert(1)</script>"'&`

// shown is a Source with one hostile Service and many others.
type shown struct {
	status   wire.Status
	services int
	query    Query
	conns    wire.ConnectionQuery
	traced   []wire.TraceQuery
	trace    func(ctx context.Context, each func(wire.TracedPacket)) error
	err      error
}

func (s *shown) Trace(ctx context.Context, q wire.TraceQuery, each func(wire.TracedPacket)) error {
	s.traced = append(s.traced, q)
	if q.Predict {
		each(wire.TracedPacket{What: "if a packet came", Lines: []wire.TraceLine{{State: wire.TraceGood, Text: "goes to endpoint 10.1.2.11:8080"}}})
		return s.err
	}
	return s.trace(ctx, each)
}

func (s *shown) Status() wire.Status { return s.status }

func (s *shown) row(i int) Row {
	rate, made, refused := float64(i), uint64(70_000*i), uint64(1_300*i)
	return Row{
		Namespace: "shop", Name: fmt.Sprintf("web-%d", i), Type: "ClusterIP", Addresses: []string{"10.96.0.10"}, Ports: []string{"80/TCP"},
		Endpoints: i, ServiceTraffic: wire.ServiceTraffic{
			ConnectionCounts: wire.ConnectionCounts{Open: 1000 * i, Unanswered: i % 2, Rate: &rate},
			TrafficTotals:    wire.TrafficTotals{Connections: &made, Refused: &refused, RefusedRate: &rate},
		},
		History: []wire.TrafficSample{{At: time.Unix(0, 0), Open: 1}, {At: time.Unix(5, 0), Open: 3}},
	}
}

func (s *shown) Services(q Query) (*Services, error) {
	s.query = q
	list := &Services{Total: s.services, Namespaces: []string{"default", "shop"}}
	for i := (q.Page - 1) * PageRows; i < min(q.Page*PageRows, s.services); i++ {
		list.Rows = append(list.Rows, s.row(i))
	}
	return list, s.err
}

func (s *shown) Busiest(_ string, most int, listed func(*wire.ServiceTraffic) bool) (rows []Row, err error) {
	for i := range s.services {
		if row := s.row(i); len(rows) < most && listed(&row.ServiceTraffic) {
			rows = append(rows, row)
		}
	}
	return rows, s.err
}

func (s *shown) Service(namespace, name string) (*Service, error) {
	if namespace != "shop" {
		return nil, s.err
	}
	return &Service{
		Clients: wire.ServiceClients{Counted: true, Clients: []wire.ClientTraffic{{Client: "203.0.113.7", Open: 1200}, {Client: "203.0.113.8", Unanswered: 3}}, More: 4321},
		Row:     s.row(1), File: "/etc/web.yaml", Line: 7, Annotations: map[string]string{hostile: hostile},
		Problems: []wire.Problem{{Object: "Service shop/web", Message: hostile, Severity: wire.SeverityError}},
		State: wire.ServiceState{Ports: []wire.PortState{{
			Name: "http", Protocol: "TCP", Family: "IPv4", Frontends: []string{"10.96.0.10:80", ":30080"},
			Endpoints: []string{"10.1.2.11:8080", "10.1.2.12:8080"}, Local: []string{"10.1.2.12:8080"},
			Balance: "maglev", Weights: map[string]uint16{"10.1.2.11:8080": 5},
		}, {
			Name: "tls", Protocol: "TCP", Family: "IPv4", Frontends: []string{"10.96.0.10:443"}, Endpoints: []string{"10.1.2.11:8443", "10.1.2.12:8443"}, Relay: "10.1.2.1:40001",
		}}, Health: []wire.EndpointHealth{
			{Port: "http", Protocol: "TCP", Endpoint: "10.1.2.11:8080", State: "up"},
			{Port: "http", Protocol: "TCP", Endpoint: "10.1.2.13:8080", State: "down", Why: hostile, Failures: 5},
		}, Announcements: []wire.Announcement{
			{Address: "198.51.100.4", Places: []wire.Place{{By: "l2 eth0", State: "announced"}}},
			{Address: "198.51.100.5", Withheld: hostile},
		}},
		Ports: []wire.PortTraffic{{Port: "http", Protocol: "TCP", Endpoints: []wire.EndpointTraffic{
			{Endpoint: "10.1.2.11:8080", ConnectionCounts: wire.ConnectionCounts{Open: 1234}},
			{Endpoint: "10.1.2.12:8080", ConnectionCounts: wire.ConnectionCounts{Unanswered: 5}},
		}}, {Port: "tls", Protocol: "TCP", Endpoints: []wire.EndpointTraffic{
			{Endpoint: "10.1.2.1:40001", Relay: true, ConnectionCounts: wire.ConnectionCounts{Open: 71}},
			{Endpoint: "10.1.2.12:8443", Relayed: true, ConnectionCounts: wire.ConnectionCounts{Open: 70}},
		}}},
	}, s.err
}

func (s *shown) Connections(q wire.ConnectionQuery) (*wire.Connections, error) {
	s.conns = q
	return &wire.Connections{Connections: []wire.Connection{{ID: 7, Namespace: "shop", Service: "web", Client: "203.0.113.7:1", To: "10.96.0.10:80", Endpoint: "10.1.2.11:8080"},
		{ID: 8, Namespace: "shop", Service: "web", Client: "203.0.113.7:2", Endpoint: "10.1.2.1:40001", RelayedTo: []string{"10.1.2.12:8443"}}}}, s.err
}

func (s *shown) Allocations() wire.Allocations {
	return wire.Allocations{Pools: []wire.Pool{{Kind: "clusterIP", Family: "IPv4", Range: "10.96.0.0/16", Size: 65534, Used: 3, Holders: []wire.Holder{{Value: "10.96.0.10", Services: []string{"shop/web"}}}},
		{Kind: "loadBalancer", Family: "IPv6", Range: "2001:db8::/32", Size: math.MaxUint64, Used: 9_000, Holders: make([]wire.Holder, 9_000)}}}
}

func (s *shown) Journal(int) ([]wire.JournalEntry, error) {
	return []wire.JournalEntry{{Revision: 41, Verb: "create", Kind: "Service", Name: "old", User: "root", Manager: hostile}, {Revision: 42, Verb: "delete", Kind: "Service", Name: "new"}}, s.err
}

// visit asks for a page.
func visit(t *testing.T, h http.Handler, method, path string, code int) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	if w.Code != code {
		t.Errorf("%s %s: %d, want %d", method, path, w.Code, code)
	}
	for name, want := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %s is %q, want %q", path, name, got, want)
		}
	}
	return w.Body.String()
}

func says(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q:\n%s", want, text)
		}
	}
}

func everybody(*http.Request) bool { return true }

func TestPages(t *testing.T) {
	s := &shown{services: 250, status: wire.Status{NodeName: hostile, Ready: true, HeldRemovals: 9, Verdict: wire.Verdict{Text: "1 of 3 Services does not answer"}, Problems: []wire.Problem{
		{Message: "a warning", Severity: wire.SeverityWarning}, {Object: hostile, File: "web.yaml", Line: 7, Message: hostile, Severity: wire.SeverityError},
	}}}
	h := Handler(s, everybody)
	text := visit(t, h, http.MethodGet, "/dashboard/", http.StatusOK)
	says(t, text, "✗ 1 of 3 Services does not answer", "▲ not synced", "9 Services vanished", "<code>web.yaml:7</code>", "<polyline points=")
	if strings.Index(text, "a warning") < strings.Index(text, "web.yaml:7") {
		t.Error("a warning comes before an error")
	}
	says(t, visit(t, h, http.MethodGet, "/dashboard/services?namespace=shop&search=+web+&problems=on&sort=open&page=2", http.StatusOK),
		"101 to 200 of 250 Services", "rel=\"prev\"", "rel=\"next\"", "page=3", `<option selected>shop`, "103,000", `aria-sort="descending"`)
	if want := (Query{Namespace: "shop", Search: "web", Problems: true, Sort: "open", Page: 2}); s.query != want {
		t.Errorf("asked for %+v, want %+v", s.query, want)
	}
	says(t, visit(t, h, http.MethodGet, "/dashboard/services/shop/web", http.StatusOK),
		"/etc/web.yaml:7", "node port 30080", "1,234 open", "5 connections unanswered", "70,000", "1,300", "<svg class=\"path\"",
		", balance maglev", ">up</td><td class=\"number\">5</td>", "10.1.2.13:8080", "gets no new ones", ", 5 times", "l2 eth0", "▲ withheld",
		"name=web-1&amp;client=203.0.113.7", ">1,200</td>", ">✗ 3</td>", "4,321 more",
		">10.1.2.1:40001, 71 open<", ">70 open</td>")
	says(t, visit(t, h, http.MethodGet, "/dashboard/connections?client=203.0.113.7&name=web", http.StatusOK), "203.0.113.7:1", "✗ unanswered",
		"<td><code>10.1.2.11:8080</code></td>", "<td><code>10.1.2.12:8443</code> (relayed)</td>")
	if s.conns.Client.String() != "203.0.113.7/32" || s.conns.Service != "web" {
		t.Errorf("asked for %+v", s.conns)
	}
	says(t, visit(t, h, http.MethodGet, "/dashboard/addresses", http.StatusOK), "10.96.0.0/16", "below 1 %", "/dashboard/services/shop/web", "65,534", "9,000", "18446744073709551615", "8,500 more")
	if journal := visit(t, h, http.MethodGet, "/dashboard/journal", http.StatusOK); strings.Index(journal, "old") < strings.Index(journal, "new") {
		t.Error("the oldest change comes first")
	}
	for _, path := range []string{"style.css", "live.js", "icon.svg"} {
		visit(t, h, http.MethodGet, "/dashboard/static/"+path, http.StatusOK)
	}
}

// What a client wrote into an object is text on every page.
func TestHostileText(t *testing.T) {
	s := &shown{services: 3, status: wire.Status{NodeName: hostile, Reason: hostile, Sources: []wire.Source{{Dir: hostile, Error: hostile}}, Problems: []wire.Problem{{Object: hostile, File: hostile, Field: hostile, Message: hostile}}}}
	h := Handler(s, everybody)
	for _, path := range []string{"", "services?search=%3Cscript%3Ealert(1)%3C/script%3E", "services/shop/web", "connections?name=%3Cscript%3E", "addresses", "journal"} {
		text := visit(t, h, http.MethodGet, "/dashboard/"+path, http.StatusOK)
		if strings.Contains(text, "<script>") || strings.Contains(text, "alert(1)<") && !strings.Contains(text, "alert(1)&lt;") {
			t.Errorf("/dashboard/%s holds what somebody wrote:\n%s", path, text)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := &shown{}
	h := Handler(s, func(*http.Request) bool { return false })
	says(t, visit(t, h, http.MethodGet, "/dashboard/journal", http.StatusForbidden), "for administrators")
	if text := visit(t, h, http.MethodGet, "/dashboard/", http.StatusOK); strings.Contains(text, "Journal") {
		t.Error("the menu leads a reader to the journal")
	}
	says(t, visit(t, h, http.MethodPost, "/dashboard/services", http.StatusMethodNotAllowed), "only read")
	visit(t, h, http.MethodGet, "/dashboard/nowhere", http.StatusNotFound)
	visit(t, h, http.MethodGet, "/dashboard/services/other/web", http.StatusNotFound)
	visit(t, h, http.MethodGet, "/dashboard/services?sort=beauty", http.StatusBadRequest)
	visit(t, h, http.MethodGet, "/dashboard/services?page=0", http.StatusBadRequest)
	visit(t, h, http.MethodGet, "/dashboard/connections?client=me", http.StatusBadRequest)
	s.err = errors.New("connection tracking cannot be read")
	for _, path := range []string{"services", "services/shop/web", "connections"} {
		says(t, visit(t, h, http.MethodGet, "/dashboard/"+path, http.StatusServiceUnavailable), "connection tracking cannot be read")
	}
	says(t, visit(t, h, http.MethodGet, "/dashboard/", http.StatusOK), "Connections cannot be counted")
}

// What fails is answered with a page that needs nothing else, by who recovers.
func TestFailure(t *testing.T) {
	h := Handler(nil, func(*http.Request) bool { return false })
	for _, path := range []string{"/dashboard/", "/dashboard/services/shop/web", "/dashboard/nowhere"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
		func() {
			defer func() {
				v := recover()
				page, is := v.(http.Handler)
				if why, tells := v.(error); !is || !tells || !strings.Contains(why.Error(), "nil pointer") {
					t.Fatalf("%s panics with %v, want its cause, which answers", path, v)
				}
				page.ServeHTTP(w, r)
			}()
			h.ServeHTTP(w, r)
		}()
		if w.Code != http.StatusInternalServerError {
			t.Errorf("%s is answered %d, want 500", path, w.Code)
		}
		says(t, w.Body.String(), "500 Internal Server Error", "Its log has the details", `<a href="/dashboard/">`)
	}
}

// A page that stands alone has its style in it, by the hash that its policy names, and shows text as text.
func TestRefuse(t *testing.T) {
	w := httptest.NewRecorder()
	Refuse(w, http.StatusForbidden, hostile, false)
	_, rest, _ := strings.Cut(w.Body.String(), "<style>")
	style, rest, ok := strings.Cut(rest, "</style>")
	if !ok || !strings.Contains(style, "prefers-color-scheme: dark") || !strings.Contains(w.Header().Get("Content-Security-Policy"), "style-src 'sha256-"+hashOf(style)+"'") {
		t.Errorf("the policy %q does not name the style of the page:\n%s", w.Header().Get("Content-Security-Policy"), style)
	}
	if w.Code != http.StatusForbidden || strings.Contains(rest, "<script>") || strings.Contains(rest, "href") || !strings.Contains(rest, "403 Forbidden") || !strings.Contains(rest, "&lt;script&gt;") {
		t.Errorf("%d: the page is\n%s", w.Code, rest)
	}
}

func TestPicture(t *testing.T) {
	svc := &Service{State: wire.ServiceState{Ports: []wire.PortState{{Protocol: "TCP", Frontends: []string{"a:1"}}}}}
	for i := range 40 {
		at := fmt.Sprintf("10.1.0.%d:80", i)
		svc.State.Ports[0].Endpoints = append(svc.State.Ports[0].Endpoints, at)
		svc.Ports = append(svc.Ports, wire.PortTraffic{Protocol: "TCP", Endpoints: []wire.EndpointTraffic{{Endpoint: at, ConnectionCounts: wire.ConnectionCounts{Open: i}}}})
	}
	p := pathsOf(svc)[0]
	if len(p.Endpoints) != mostNodes || p.More != 40-mostNodes || p.Endpoints[0].Open != 39 {
		t.Errorf("%d endpoints and %d more, the first with %d open", len(p.Endpoints), p.More, p.Endpoints[0].Open)
	}
	if p.Lines[0].Width != maxLine || p.Lines[len(p.Lines)-1].Width >= maxLine {
		t.Errorf("lines as wide as %v", p.Lines)
	}
	for i := range p.Endpoints {
		if y := p.Endpoints[i].Y; y <= 0 || y >= p.Height || i > 0 && y <= p.Endpoints[i-1].Y {
			t.Errorf("endpoint %d is at %d of %d", i, y, p.Height)
		}
	}
}

// A page that is dear to make is asked for more rarely, and says so.
func TestHowOftenAPageIsAskedFor(t *testing.T) {
	for cost, want := range map[time.Duration]time.Duration{0: everyLeast, 10 * time.Millisecond: everyLeast, 50 * time.Millisecond: 10 * time.Second, time.Second: everyMost} {
		if got := every(cost); got != want {
			t.Errorf("a page that costs %s is asked for every %s, want %s", cost, got, want)
		}
	}
	text := visit(t, Handler(&shown{}, everybody), http.MethodGet, "/dashboard/", http.StatusOK)
	_, after, _ := strings.Cut(text, `data-every="`)
	number, _, _ := strings.Cut(after, `"`)
	if n, err := strconv.Atoi(number); err != nil || n < int(everyLeast.Milliseconds()) || n > int(everyMost.Milliseconds()) {
		t.Errorf("the page is to be asked for anew after %q ms", number)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/dashboard/", nil)
	h := &handler{source: &shown{}, mayAdmin: everybody, pages: parse()}
	h.show(w, r.WithContext(context.WithValue(r.Context(), begun{}, used())), http.StatusOK, "error", "", dear(everyMost/everyShare))
	says(t, w.Body.String(), fmt.Sprintf(`data-every="%d"`, everyMost.Milliseconds()))
}

// dear is the CPU time that it takes to show it.
type dear time.Duration

func (d dear) String() string {
	for end := used() + time.Duration(d); used() < end; {
	}
	return "dear"
}

// The page for who shows no token says how to come in, and leads nowhere.
func TestUnauthorized(t *testing.T) {
	w := httptest.NewRecorder()
	Unauthorized(w, httptest.NewRequest(http.MethodGet, "/dashboard/services", nil))
	if w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "href=\"/") {
		t.Errorf("answered %d: %s", w.Code, w.Body)
	}
	says(t, w.Body.String(), "401 Unauthorized", "Run svcctl dashboard --server")
}
