package dashboard

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"html/template"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	slashes "path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Path is the path of the pages.
const Path = "/dashboard/"

//go:embed pages static
var files embed.FS

// manual is the documentation as a website. Only programs in packages contain it: .ci/package/build copies it to this directory.
const manual = "static/manual.zip"

// policy is the Content-Security-Policy of every page: nothing from elsewhere, nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// Handler serves the pages below Path. mayAdmin reports whether the user of a request is an admin. When a page panics, Handler panics with an
// http.Handler that answers with an error page. The caller has to recover it, write it to the log and call it.
func Handler(source Source, mayAdmin func(*http.Request) bool) http.Handler {
	h := &handler{source: source, mayAdmin: mayAdmin}
	mux := http.NewServeMux()
	mux.Handle(Path+"static/", http.StripPrefix(Path+"static/", http.FileServerFS(must(fs.Sub(files, "static")))))
	if site, err := files.Open(manual); err == nil {
		archive := must(zip.NewReader(site.(io.ReaderAt), must(site.Stat()).Size()))
		mux.Handle(Path+"manual/", http.StripPrefix(Path+"manual/", http.FileServerFS(archive)))
	}
	mux.HandleFunc(Path+"live.json", h.live(mux))
	mux.HandleFunc(Path+"{$}", h.overview)
	mux.HandleFunc(Path+"services", h.services)
	mux.HandleFunc(Path+"services/{namespace}/{name}", h.service)
	mux.HandleFunc(Path+"connections", h.connections)
	mux.HandleFunc(Path+"addresses", func(w http.ResponseWriter, r *http.Request) {
		h.show(w, r, http.StatusOK, "addresses", "Addresses", h.source.Allocations())
	})
	mux.HandleFunc(Path+"journal", h.journal)
	mux.HandleFunc(Path+"trace", h.trace)
	mux.HandleFunc(Path, func(w http.ResponseWriter, r *http.Request) {
		h.fail(w, r, http.StatusNotFound, "There is no such page.")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer failing()
		guard(w.Header(), policy)
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			h.fail(w, r, http.StatusMethodNotAllowed, "Pages are only read: nothing is changed here.")
			return
		}
		runtime.LockOSThread() // so that what the page costs is known
		defer runtime.UnlockOSThread()
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), begun{}, used())))
	})
}

// must returns the value of a call that cannot fail for embedded files. It panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// guard sets the headers that every answer has.
func guard(header http.Header, policy string) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
}

// begun is the context key for the CPU time of the thread at the start of a request.
type begun struct{}

// used returns the CPU time of this thread.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_THREAD, &u) // of this thread it does not fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// An open page is refreshed every everyShare times the CPU time that rendering it took, so that it uses at most half a percent of a core, not
// counting reads of connections. everyLeast and everyMost bound the interval.
const (
	everyLeast = 3 * time.Second
	everyMost  = 30 * time.Second
	everyShare = 200
)

// every returns the time until the next fetch of a page that took this CPU time.
func every(cost time.Duration) time.Duration {
	return min(everyMost, max(everyLeast, everyShare*cost))
}

type handler struct {
	source   Source
	mayAdmin func(*http.Request) bool
}

// pages returns the templates of the pages, each with the layout. They are parsed for the first page that is shown.
var pages = sync.OnceValue(func() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "pages/layout.html", "pages/parts.html"))
	pages := map[string]*template.Template{}
	for _, name := range []string{"overview", "services", "service", "connections", "addresses", "journal", "trace", "error"} {
		pages[name] = template.Must(template.Must(layout.Clone()).ParseFS(files, "pages/"+name+".html"))
	}
	return pages
})

// page has the values that the layout of every page uses.
type page struct {
	Title  string
	Here   string // the name of the page in the menu
	Status *wire.Status
	Admin  bool
	Now    time.Time
	URL    string // path and query below /dashboard/, with which the page polls live.json; "" if the page is static
	Data   any
	began  time.Duration // the CPU time of the thread when the request began
}

// changing is the data of a page that changes while it is open.
type changing interface {
	// values returns the new texts of HTML elements, keyed by their attribute data-k.
	values() map[string]string
	// shape returns a text that changes when the page changes in more than values, so that it must be fetched again.
	shape() string
}

// State returns bad, warn or good, the color of the page.
func (p *page) State() string {
	switch worst := p.Status.Worst(); {
	case worst == wire.SeverityError || p.Status.Verdict.Fails > 0:
		return "bad"
	case worst != "" || !p.Status.Ready || !p.Status.Synced:
		return "warn"
	}
	return "good"
}

// Count returns the number in the window title: the number of problem groups with severity error, or of Services that do not answer, whichever is
// greater.
func (p *page) Count() int {
	n := 0
	for i := range p.Status.Verdict.Groups {
		if p.Status.Verdict.Groups[i].Severity == wire.SeverityError {
			n++
		}
	}
	return max(n, p.Status.Verdict.Fails)
}

// Version returns a text that differs when the page has to be fetched again.
func (p *page) Version() string {
	hash := fnv.New64a()
	c, _ := p.Data.(changing)
	shape := ""
	if c != nil {
		shape = c.shape()
	}
	fmt.Fprintln(hash, p.Here, p.Status.Verdict.Text, p.Status.Reason, p.Status.Ready, p.Status.Synced, p.Status.HeldRemovals, p.Status.UnknownFrontends, p.Status.RulesAway, shape)
	return strconv.FormatUint(hash.Sum64(), 36)
}

// Every returns the interval in milliseconds at which an open page asks for new values. The layout evaluates it last, when the cost of the
// page is measured.
func (p *page) Every() int64 { return every(used() - p.began).Milliseconds() }

// asked is the context key that marks a request of a page made by live.json.
type asked struct{}

// live answers GET live.json of an open page with the state of the box and the new values of the page. Without a page in the query it is
// cheap, and answers with the state alone.
func (h *handler) live(mux *http.ServeMux) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		at, err := url.Parse(Path + r.FormValue("page"))
		if err != nil {
			at = &url.URL{}
		}
		if at.Path = slashes.Clean(at.Path); at.Path+"/" == Path {
			at.Path = Path
		}
		if r.FormValue("page") == "" || !strings.HasPrefix(at.Path, Path) || at.Path == Path+"live.json" || at.Path == Path+"trace" {
			h.answer(w, h.page(r, "", "", nil))
			return
		}
		r = r.Clone(context.WithValue(r.Context(), asked{}, true))
		r.URL = &url.URL{Path: at.Path, RawQuery: at.RawQuery}
		mux.ServeHTTP(w, r)
	}
}

// answer answers a request of live.json.
func (h *handler) answer(w http.ResponseWriter, p *page) {
	answer := struct {
		At      time.Time         `json:"at"`
		State   string            `json:"state"`
		Count   int               `json:"count"`
		Version string            `json:"version,omitempty"`
		Every   int64             `json:"every"`
		Values  map[string]string `json:"k"`
	}{At: p.Now, State: p.State(), Count: p.Count(), Values: map[string]string{}}
	if p.Here != "" {
		answer.Version = p.Version()
	}
	if c, is := p.Data.(changing); is {
		answer.Values = c.values()
	}
	answer.Every = p.Every()
	text, err := json.Marshal(answer)
	if err != nil {
		panic(fmt.Sprintf("dashboard: live.json: %v", err)) // our own values: a bug
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

// show renders a whole page before it sends any of it. If live.json requests the page, show answers with its new values instead.
func (h *handler) show(w http.ResponseWriter, r *http.Request, code int, name, title string, data any) {
	p := h.page(r, name, title, data)
	if r.Context().Value(asked{}) != nil {
		h.answer(w, p)
		return
	}
	var b bytes.Buffer
	h.render(&b, p)
	send(w, code, b.Bytes())
}

// send answers with a page that is rendered.
func send(w http.ResponseWriter, code int, page []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	w.WriteHeader(code)
	_, _ = w.Write(page)
}

func (h *handler) page(r *http.Request, name, title string, data any) *page {
	status := h.source.Status()
	began, _ := r.Context().Value(begun{}).(time.Duration)
	p := &page{Title: title, Here: name, Status: &status, Admin: h.mayAdmin(r), Now: time.Now().UTC(), Data: data, began: began}
	if _, is := data.(changing); is {
		if p.URL = strings.TrimPrefix(r.URL.RequestURI(), Path); p.URL == "" {
			p.URL = "?"
		}
	}
	return p
}

// render writes a page to a writer that does not fail.
func (h *handler) render(to io.Writer, p *page) {
	if err := pages()[p.Here].ExecuteTemplate(to, "layout.html", p); err != nil {
		panic(fmt.Sprintf("dashboard: page %s: %v", p.Here, err)) // our own template: a bug
	}
}

func (h *handler) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	h.show(w, r, code, "error", titleOf(code), why)
}

// The greatest numbers of Services, problems and events on the overview.
const (
	busiest      = 8
	mostProblems = 20
	mostEvents   = 10
)

// overview is the first page.
func (h *handler) overview(w http.ResponseWriter, r *http.Request) {
	d := &overview{Day: r.URL.Query().Get("period") == "24h"}
	v := h.source.Status().Verdict
	d.Headline, d.Rest, _ = strings.Cut(v.Text, "; ")
	d.Problems = v.Groups
	for i := range v.Groups {
		if g := &v.Groups[i]; g.Severity == wire.SeverityError && !g.Since.IsZero() && (d.Newest == nil || g.Since.After(d.Newest.Since)) {
			d.Newest = g
		}
	}
	if len(d.Problems) > mostProblems {
		d.Problems, d.More = d.Problems[:mostProblems], len(d.Problems)-mostProblems
	}
	var err error
	if d.Box, err = h.source.Box(); err == nil {
		d.Busy, err = h.source.Busiest(busiest)
	}
	if err != nil {
		d.NoTraffic = err.Error()
	}
	d.Happened = h.source.Happened("", "", 24*time.Hour, mostEvents, h.mayAdmin(r))
	d.Graph = h.source.Graph("", d.Day)
	h.show(w, r, http.StatusOK, "overview", "Overview", d)
}

// services is the list of Services.
func (h *handler) services(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q := Query{
		Namespace: values.Get("namespace"), Search: strings.TrimSpace(values.Get("search")),
		State: values.Get("state"), Sort: values.Get("sort"), Page: 1,
	}
	q.Sort = cmp.Or(q.Sort, byState)
	if !slices.Contains(sorts, q.Sort) {
		h.fail(w, r, http.StatusBadRequest, "Services are sorted by "+strings.Join(sorts, ", ")+".")
		return
	}
	if !slices.Contains(states, q.State) {
		h.fail(w, r, http.StatusBadRequest, "Services are chosen by the states "+strings.Join(states[1:], ", ")+".")
		return
	}
	if text := values.Get("page"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1_000_000 {
			h.fail(w, r, http.StatusBadRequest, "There is no such page of the list.")
			return
		}
		q.Page = n
	}
	list, err := h.source.Services(q)
	if err != nil {
		h.fail(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	h.show(w, r, http.StatusOK, "services", "Services", &listed{list, q, linksOf(q, list.Total), (q.Page-1)*PageRows + 1, (q.Page-1)*PageRows + len(list.Rows),
		max(1, (list.Total+PageRows-1)/PageRows)})
}

// service is the page of one Service.
func (h *handler) service(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	svc, err := h.source.Service(namespace, name)
	switch {
	case err != nil:
		h.fail(w, r, http.StatusServiceUnavailable, err.Error())
		return
	case svc == nil:
		h.fail(w, r, http.StatusNotFound, "There is no Service "+namespace+"/"+name+".")
		return
	}
	d := &shownService{Service: svc, Day: r.URL.Query().Get("period") == "24h", Paths: pathsOf(svc, time.Now())}
	d.Headline, d.Level = headline(svc)
	d.Happened = h.source.Happened(namespace, name, 24*time.Hour, mostEvents, h.mayAdmin(r))
	d.Graph = h.source.Graph(namespace+"/"+name, d.Day)
	d.Do = stepsOf(svc, d.Paths)
	h.show(w, r, http.StatusOK, "service", namespace+"/"+name, d)
}

// mostConnections bounds the connections on a page.
const mostConnections = 500

// connections is the page of connections.
func (h *handler) connections(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q := wire.ConnectionQuery{Namespace: values.Get("namespace"), Service: values.Get("name"), Limit: mostConnections}
	if client := strings.TrimSpace(values.Get("client")); client != "" {
		prefix, err := wire.ParseClients(client)
		if err != nil {
			h.fail(w, r, http.StatusBadRequest, "A client is an address or a prefix, as 203.0.113.0/24.")
			return
		}
		q.Client = prefix
	}
	list, err := h.source.Connections(q)
	if err != nil {
		h.fail(w, r, http.StatusServiceUnavailable, err.Error())
		return
	}
	h.show(w, r, http.StatusOK, "connections", "Connections", &connections{list, q.Namespace, q.Service, values.Get("client")})
}

// journalLines is the number of changes on the journal's page.
const journalLines = 100

// journal is the page of changes, for admins.
func (h *handler) journal(w http.ResponseWriter, r *http.Request) {
	if !h.mayAdmin(r) {
		h.fail(w, r, http.StatusForbidden, "The journal is for administrators.")
		return
	}
	entries, err := h.source.Journal(journalLines)
	if err != nil {
		h.fail(w, r, http.StatusServiceUnavailable, "The journal cannot be read: "+err.Error())
		return
	}
	slices.Reverse(entries)
	h.show(w, r, http.StatusOK, "journal", "Journal", entries)
}
