package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
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
		Up: i, All: i + 1, ServiceTraffic: wire.ServiceTraffic{
			ConnectionCounts: wire.ConnectionCounts{Open: 1000 * i, Unanswered: i % 2, Rate: &rate},
			TrafficTotals:    wire.TrafficTotals{Connections: &made, Refused: &refused, RefusedRate: &rate},
		},
		Graph: graphed,
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

func (s *shown) Busiest(most int) (rows []Row, err error) {
	for i := range min(s.services, most) {
		rows = append(rows, s.row(i))
	}
	return rows, s.err
}

func (s *shown) Box() (Box, error) {
	return Box{ServiceTraffic: s.row(7).ServiceTraffic, Tracked: 19_311, MostTracked: 262_144, Announced: 35, Addresses: 36}, s.err
}

func (s *shown) Graph(string, bool) wire.TrafficGraph { return graphed }

func (s *shown) Happened(_, _ string, _ time.Duration, _ int, admin bool) []Event {
	events := []Event{{At: graphed.From.Add(5 * time.Minute), Level: "bad", Text: hostile + " does not answer", Mark: true}, {At: graphed.From, Level: "good", Text: "10.1.4.9:80 came up after 3 min"}}
	if admin {
		events = append(events, Event{At: graphed.From, Text: "anna changed 2 objects"})
	}
	return events
}

// graphed is traffic of 15 minutes, of which the first 5 are not known.
var graphed = wire.TrafficGraph{From: time.Now().UTC().Add(-15 * time.Minute), Step: 10 * time.Second, Points: func() (points []wire.TrafficPoint) {
	for i := range 90 {
		points = append(points, wire.TrafficPoint{})
		if i >= 30 {
			points[i] = wire.TrafficPoint{Known: true, New: 1800, Open: 17_000, Refused: float64(i / 80 * 40), Failed: float64(i / 80 * 10)}
		}
	}
	return points
}()}

func (s *shown) Service(namespace, name string) (*Service, error) {
	if namespace != "shop" {
		return nil, s.err
	}
	return &Service{
		Clients: wire.ServiceClients{Counted: true, Clients: []wire.ClientTraffic{{Client: "203.0.113.7", Open: 1200}, {Client: "203.0.113.8", Unanswered: 3}}, More: 4321},
		Row:     s.row(1), Down: map[string][]Span{"10.1.2.11:8080": {{From: time.Now().Add(-2 * time.Hour), To: time.Now().Add(-time.Hour)}}}, Known: time.Now().Add(-12 * time.Hour), File: "/etc/web.yaml", Line: 7, Annotations: map[string]string{hostile: hostile},
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
	return wire.Allocations{Pools: []wire.Pool{{Kind: "clusterIP", Family: "IPv4", Range: "10.96.0.0/16", Size: 65534, Used: 3, Held: 1, Holders: []wire.Holder{{Value: "10.96.0.10", Services: []string{"shop/web"}}}},
		{Kind: "loadBalancer", Family: "IPv6", Range: "2001:db8::/32", Size: math.MaxUint64, Used: 9_000, Held: 9_000, Holders: make([]wire.Holder, MostHolders)}}}
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
	s := &shown{services: 250, status: wire.Status{NodeName: hostile, Ready: true, HeldRemovals: 9, Counts: wire.Counts{Services: 250},
		Problems: []wire.Problem{{Message: "a warning", Severity: wire.SeverityWarning}, {Severity: wire.SeverityError}},
		Verdict: wire.Verdict{Text: "2 of 250 Services do not answer; 12 have a warning", Services: 250, Fails: 2, Answers: 236, Warning: 12, Unchecked: 41, Groups: []wire.ProblemGroup{
			{Severity: wire.SeverityError, Text: hostile, Next: "svcctl explain svc/web -n shop", Place: "web.yaml:7", Since: time.Now().Add(-4 * time.Minute), Services: []string{"shop/web"}, Concerned: 1},
			{Severity: wire.SeverityWarning, Text: "10.1.2.12 is down", Next: "correct it (web.yaml:7): svcctl explain annotations svcctl.io/balance", Services: []string{"shop/web", "shop/api"}, Concerned: 11},
		}},
	}}
	h := Handler(s, everybody)
	text := visit(t, h, http.MethodGet, "/dashboard/", http.StatusOK)
	says(t, text, "2 of 250 Services do not answer</span></h1>", "12 have a warning", "Newest: <b>shop/web</b>", ">4 min</time>", "9 Services vanished", "<code>web.yaml:7</code>",
		`<code>svcctl explain svc/web -n shop</code><button class="copy"`, `<code>svcctl explain annotations svcctl.io/balance</code>`, "2 of 11 Services", `data-state="bad"`, `data-count="2"`,
		"19,311</span> of 262,144", "35 of 36 addresses", "248 of 250 answer", "anna changed 2 objects", "10.1.4.9:80 came up", "2,000 new/s", "50 refused or failed/s", `class="event" d="M`)
	says(t, visit(t, h, http.MethodGet, "/dashboard/services?namespace=shop&search=+web+&state=bad&sort=open&page=2", http.StatusOK),
		"101 to 200 of 250", "Page 2 of 3", "rel=\"prev\"", "rel=\"next\"", "page=3", `<option selected>shop`, "103,000", `aria-sort="descending"`, `▲ Warning 12`, `state=unchecked`)
	if want := (Query{Namespace: "shop", Search: "web", State: "bad", Sort: "open", Page: 2}); s.query != want {
		t.Errorf("asked for %+v, want %+v", s.query, want)
	}
	says(t, visit(t, h, http.MethodGet, "/dashboard/services/shop/web", http.StatusOK),
		"/etc/web.yaml:7", "node port 30080", "1,234 open", "5 connections unanswered", "70,000", "1,300", "<svg class=\"broad\"",
		">maglev</text>", "class=\"num drop\">5</td>", "10.1.2.13:8080", "no new ones", ", 5 times", "l2 eth0", "withheld", "down once since", "way dn",
		"name=web-1&amp;client=203.0.113.7", ">1,200</td>", ">3</b>", "4,321 more", "by the relay at 10.1.2.1:40001, 71 open", ">70</span>",
		"svcctl explain svc/web-1 -n shop", "svcctl trace 10.96.0.10:80", "svcctl out svc/web-1 -n shop 10.1.2.1", "2,000 new/s", `class="event" d="M`)
	says(t, visit(t, h, http.MethodGet, "/dashboard/connections?client=203.0.113.7&name=web", http.StatusOK), "203.0.113.7:1", "✗ unanswered",
		"<code>10.1.2.11:8080</code>", "<code>10.1.2.12:8443</code> (relayed)")
	if s.conns.Client.String() != "203.0.113.7/32" || s.conns.Service != "web" {
		t.Errorf("asked for %+v", s.conns)
	}
	says(t, visit(t, h, http.MethodGet, "/dashboard/addresses", http.StatusOK), "10.96.0.0/16", "below 1 %", "/dashboard/services/shop/web", "65,534", "9,000", "18446744073709551615", "8,500 more")
	if journal := visit(t, h, http.MethodGet, "/dashboard/journal", http.StatusOK); strings.Index(journal, "old") < strings.Index(journal, "new") {
		t.Error("the oldest change comes first")
	}
	for _, path := range []string{"style.css", "live.js", "icon-good.svg", "icon-warn.svg", "icon-bad.svg"} {
		visit(t, h, http.MethodGet, "/dashboard/static/"+path, http.StatusOK)
	}
}

// An open page gets its values, and another version when more than they changed; without a page the answer is short. A trace is not begun.
func TestLive(t *testing.T) {
	s := &shown{services: 3, status: wire.Status{Ready: true, Synced: true, Verdict: wire.Verdict{Services: 3, Answers: 3}}}
	h := Handler(s, everybody)
	type answer struct {
		At             time.Time
		State, Version string
		Count          int
		Every          int64
		K              map[string]string
	}
	ask := func(page string) (a answer) {
		t.Helper()
		if err := json.Unmarshal([]byte(visit(t, h, http.MethodGet, "/dashboard/live.json?page="+url.QueryEscape(page), http.StatusOK)), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	for page, value := range map[string][2]string{"?": {"open", "7,000"}, "services?sort=open": {"shop/web-1 o", "1,000"}, "services/shop/web": {"http TCP 10.1.2.11:8080 o", "1,234"}} {
		text := visit(t, h, http.MethodGet, "/dashboard/"+strings.TrimPrefix(page, "?"), http.StatusOK)
		a := ask(page)
		if a.K[value[0]] != value[1] || a.State != "good" || !strings.Contains(text, `data-k="`+value[0]+`"`) || !strings.Contains(text, `data-version="`+a.Version+`"`) || a.Every < 3000 || time.Since(a.At) > time.Minute {
			t.Errorf("%s: %+v", page, a)
		}
		for k := range a.K {
			if page != "services/shop/web" && !strings.Contains(text, `data-k="`+k+`"`) {
				t.Errorf("%s has no place for the value %q", page, k)
			}
		}
		s.status.Verdict.Text, s.status.Verdict.Fails = "1 of 3 Services does not answer", 1
		if b := ask(page); b.Version == a.Version || b.State != "bad" || b.Count != 1 {
			t.Errorf("%s after an outage: %+v, before %+v", page, b, a)
		}
		s.status.Verdict.Text, s.status.Verdict.Fails = "", 0
		if s.services++; page != "services/shop/web" && ask(page).Version == a.Version {
			t.Errorf("%s has the same version with another Service", page)
		}
		s.services--
	}
	for _, page := range []string{"", "trace?do=follow", "live.json", "%zz", "../../etc", "journal"} {
		if a := ask(page); len(a.K) != 0 || a.At.IsZero() {
			t.Errorf("%q: %+v", page, a)
		}
	}
	if len(s.traced) != 0 {
		t.Errorf("%d traces were begun", len(s.traced))
	}
}

// Graphs are drawn of what is known, and of nothing.
func TestGraphs(t *testing.T) {
	if g := graphOf(wire.TrafficGraph{}, nil, false); g != nil {
		t.Errorf("without a history there is %+v", g)
	}
	g := graphOf(graphed, []Event{{At: graphed.From.Add(time.Minute), Level: "bad", Text: "a", Mark: true}, {At: graphed.From.Add(-time.Minute), Level: "bad", Text: "before", Mark: true}, {At: graphed.From.Add(time.Minute), Text: "a change"}}, false)
	if len(g.Events) != 1 || !strings.HasPrefix(g.Line, "M337.1 ") || strings.Count(g.Line, "M") != 1 || g.NewMost != "2,000 new/s" || strings.Count(g.Refused, "M") != 10 || strings.Count(g.Failed, "M") != 10 {
		t.Errorf("%+v", g)
	}
	if g := graphOf(wire.TrafficGraph{Step: time.Minute, Points: []wire.TrafficPoint{{Known: true, Refused: 7}, {Known: true, Failed: 9}}}, nil, false); !strings.Contains(g.Text, ", 7.0 refused, 9.0 failed,") || g.BadMost != "10 refused or failed/s" {
		t.Errorf("%+v", g)
	}
	if s := sparkOf(graphed); s == nil || !strings.HasPrefix(s.Line, "M31 ") {
		t.Errorf("%+v", s)
	}
	if s := sparkOf(wire.TrafficGraph{Points: make([]wire.TrafficPoint, 90)}); s != nil {
		t.Errorf("without traffic there is %+v", s)
	}
	for v, want := range map[float64]float64{0: 1, 1: 1, 1.1: 2, 42: 50, 1827: 2000, 17_806: 20_000, 1e6: 1e6} {
		if got := roundUp(v); got != want {
			t.Errorf("the edge above %v is %v, want %v", v, got, want)
		}
	}
	now := time.Date(2026, 11, 1, 12, 10, 0, 0, time.UTC)
	b := beatOf([]Span{{From: now.Add(-3 * time.Hour), To: now.Add(-3 * time.Hour).Add(time.Minute)}}, now.Add(-12*time.Hour), now)
	classes := map[string]int{}
	for _, c := range b.Cells {
		classes[c.Class]++
	}
	if classes["dn"] != 1 || classes["un"] != 23 || classes["up"] != 24 || !strings.HasPrefix(b.Text, "down once since 00:10") {
		t.Errorf("%v %q", classes, b.Text)
	}
}

// The command of a next step is what is copied.
func TestCommandOf(t *testing.T) {
	for next, want := range map[string][2]string{
		"svcctl health svc/web -n shop":                         {"svcctl health svc/web -n shop", ""},
		"svcctl explain svc/web -n shop lists the ways":         {"svcctl explain svc/web -n shop", "svcctl explain svc/web -n shop lists the ways"},
		"correct it (a.yaml:3): svcctl explain annotations a/b": {"svcctl explain annotations a/b", "correct it (a.yaml:3): svcctl explain annotations a/b"},
		"correct it; `svcctl validate /etc/a.yaml` checks it":   {"svcctl validate /etc/a.yaml", "correct it; `svcctl validate /etc/a.yaml` checks it"},
		"put it back; `svcctl confirm --removals` confirms it":  {"svcctl confirm --removals", "put it back; `svcctl confirm --removals` confirms it"},
		"systemctl restart svcctl, once the disk is right":      {"systemctl restart svcctl", "systemctl restart svcctl, once the disk is right"},
		"svcctl describe secret/…; correct it":                  {"", "svcctl describe secret/…; correct it"},
		"choose another address (a.yaml:3)":                     {"", "choose another address (a.yaml:3)"},
	} {
		if command, words := commandOf(next); command != want[0] || words != want[1] {
			t.Errorf("%q: %q and %q, want %q", next, command, words, want)
		}
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
	visit(t, h, http.MethodGet, "/dashboard/services?state=beauty", http.StatusBadRequest)
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
	sum := sha256.Sum256([]byte(style))
	if !ok || !strings.Contains(style, "prefers-color-scheme: dark") || !strings.Contains(w.Header().Get("Content-Security-Policy"), "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
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
	svc.State.Health = []wire.EndpointHealth{{Protocol: "TCP", Endpoint: "10.1.0.7:80", State: wire.HealthDown, Why: strings.Repeat("long ", 90)}}
	svc.State.Ports[0].Endpoints = slices.DeleteFunc(svc.State.Ports[0].Endpoints, func(at string) bool { return at == "10.1.0.7:80" })
	p := pathsOf(svc, time.Now())[0]
	if first := p.Endpoints[0]; len(p.Endpoints) != mostNodes || p.More != 40-mostNodes || first.Text != "10.1.0.7:80" || !first.Dead || first.Class != "dn" || len([]rune(first.Short())) > 50 || p.Endpoints[1].Open != 39 || p.Up != 39 || p.All != 40 {
		t.Errorf("%d endpoints and %d more, %d of %d up, the first %+v", len(p.Endpoints), p.More, p.Up, p.All, p.Endpoints[0])
	}
	if p.Endpoints[1].Width != short(maxLine) || p.Endpoints[2].Width == short(maxLine) {
		t.Errorf("lines as wide as %s and %s", p.Endpoints[1].Width, p.Endpoints[2].Width)
	}
	for i := range p.Endpoints {
		if y := p.Endpoints[i].Y; y <= 0 || y >= p.Height || i > 0 && y <= p.Endpoints[i-1].Y || p.Endpoints[i].Low >= p.Tall {
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
	h := &handler{source: &shown{}, mayAdmin: everybody}
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

// A long message has a head, and no message is lost.
func TestHeadOf(t *testing.T) {
	for text, want := range map[string][2]string{
		"short: and whole": {"short: and whole", ""},
		"billing/invoices does not answer: it has no endpoint: no EndpointSlice has the label kubernetes.io/service-name: invoices": {"billing/invoices does not answer: it has no endpoint", "no EndpointSlice has the label kubernetes.io/service-name: invoices"},
		"search/dark does not answer: port http: the only endpoint does not answer clients, nor this box: 192.0.2.77:8080":          {"search/dark does not answer", "port http: the only endpoint does not answer clients, nor this box: 192.0.2.77:8080"},
		strings.Repeat("x", 300):                  {strings.Repeat("x", 300), ""},
		"\u05e9:" + strings.Repeat(" \u05e9", 90): {"\u05e9", strings.Repeat(" \u05e9", 90)[1:]},
	} {
		if head, more := headOf(text); head != want[0] || more != want[1] {
			t.Errorf("%q: %q and %q, want %q", text, head, more, want)
		}
	}
}
