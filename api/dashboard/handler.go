package dashboard

import (
	"archive/zip"
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// Path is the path of the pages.
const Path = "/dashboard/"

//go:embed pages static
var files embed.FS

// manual is the documentation as a site. Only the programs of packages have it: .ci/package/build lays it over this directory.
const manual = "static/manual.zip"

// policy is the Content-Security-Policy of every page: nothing from elsewhere, nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

// Handler serves the pages below Path. mayAdmin reports whether the user of a request is an admin. A bug of a page is a panic with
// an http.Handler, which answers with a page: the caller that recovers names the log.
func Handler(source Source, mayAdmin func(*http.Request) bool) http.Handler {
	h := &handler{source: source, mayAdmin: mayAdmin, pages: parse()}
	mux := http.NewServeMux()
	mux.Handle(Path+"static/", http.StripPrefix(Path+"static/", http.FileServerFS(must(fs.Sub(files, "static")))))
	if site, err := files.Open(manual); err == nil {
		info := must(site.Stat())
		archive := must(zip.NewReader(site.(io.ReaderAt), info.Size()))
		mux.Handle(Path+"manual/", http.StripPrefix(Path+"manual/", http.FileServerFS(archive)))
	}
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

// must returns an embedded value: an error is a bug.
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

// begun is the key of what the thread had used when a request began.
type begun struct{}

// used is the CPU time of this thread; 0 where that is not known.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The interval at which an open page is fetched again: it takes at most half a percent of a core, without the readings of connections,
// and is at most half a minute.
const (
	everyLeast = 3 * time.Second
	everyMost  = 30 * time.Second
	everyShare = 200
)

// every is the time to the next version of a page that cost so much.
func every(cost time.Duration) time.Duration {
	return min(everyMost, max(everyLeast, everyShare*cost))
}

type handler struct {
	source   Source
	mayAdmin func(*http.Request) bool
	pages    map[string]*template.Template
}

// parse reads the pages, each with the layout around it.
func parse() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "pages/layout.html", "pages/parts.html"))
	pages := map[string]*template.Template{}
	for _, name := range []string{"overview", "services", "service", "connections", "addresses", "journal", "trace", "error"} {
		page := template.Must(layout.Clone())
		pages[name] = template.Must(page.ParseFS(files, "pages/"+name+".html"))
	}
	return pages
}

// page has the values that every page is given.
type page struct {
	Title  string
	Here   string // the name of the page in the menu
	Status *wire.Status
	Admin  bool
	Now    time.Time
	Data   any
	began  time.Duration // what the thread had used when the request began
}

// Every is the interval in milliseconds at which an open page is fetched again. The layout evaluates it last, when
// the cost of the page is known.
func (p *page) Every() int64 { return every(used() - p.began).Milliseconds() }

// show renders a page whole before anything of it is sent.
func (h *handler) show(w http.ResponseWriter, r *http.Request, code int, name, title string, data any) {
	var b bytes.Buffer
	h.render(&b, h.page(r, name, title, data))
	send(w, code, b.Bytes())
}

// send answers with a page that is whole.
func send(w http.ResponseWriter, code int, page []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(page)))
	w.WriteHeader(code)
	_, _ = w.Write(page)
}

func (h *handler) page(r *http.Request, name, title string, data any) *page {
	status := h.source.Status()
	began, _ := r.Context().Value(begun{}).(time.Duration)
	return &page{Title: title, Here: name, Status: &status, Admin: h.mayAdmin(r), Now: time.Now().UTC(), Data: data, began: began}
}

// render writes a page to a writer that does not fail.
func (h *handler) render(to io.Writer, p *page) {
	if err := h.pages[p.Here].ExecuteTemplate(to, "layout.html", p); err != nil {
		panic(fmt.Sprintf("dashboard: page %s: %v", p.Here, err)) // our own template: a bug
	}
}

func (h *handler) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	h.show(w, r, code, "error", titleOf(code), why)
}

// busiest is the number of Services on the overview.
const busiest = 10

// mostProblems bounds the problems on the overview.
const mostProblems = 50

// overview is the first page.
func (h *handler) overview(w http.ResponseWriter, r *http.Request) {
	var data struct {
		Problems                   []wire.Problem
		More                       int
		Busy, Unanswered, Refusing []Row
		NoTraffic                  string
	}
	status := h.source.Status()
	data.Problems = slices.Clone(status.Problems)
	slices.SortStableFunc(data.Problems, func(a, b wire.Problem) int { return strings.Compare(a.Severity, b.Severity) }) // errors first
	if len(data.Problems) > mostProblems {
		data.Problems, data.More = data.Problems[:mostProblems], len(data.Problems)-mostProblems
	}
	for _, list := range []struct {
		rows   *[]Row
		order  string
		listed func(*wire.ServiceTraffic) bool
	}{
		{&data.Busy, byOpen, func(t *wire.ServiceTraffic) bool { return t.Open+t.Unanswered > 0 }},
		{&data.Unanswered, byUnanswered, func(t *wire.ServiceTraffic) bool { return t.Unanswered > 0 }},
		{&data.Refusing, byRefused, func(t *wire.ServiceTraffic) bool { return t.RefusedRate != nil && *t.RefusedRate > 0 }},
	} {
		var err error
		if *list.rows, err = h.source.Busiest(list.order, busiest, list.listed); err != nil {
			data.NoTraffic = err.Error()
			break
		}
	}
	h.show(w, r, http.StatusOK, "overview", "Overview", data)
}

// services is the list of Services.
func (h *handler) services(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	q := Query{
		Namespace: values.Get("namespace"), Search: strings.TrimSpace(values.Get("search")),
		Problems: values.Get("problems") != "", Sort: values.Get("sort"), Page: 1,
	}
	if q.Sort == "" {
		q.Sort = byName
	}
	if !slices.Contains(sorts, q.Sort) {
		h.fail(w, r, http.StatusBadRequest, "Services are sorted by "+strings.Join(sorts, ", ")+".")
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
	h.show(w, r, http.StatusOK, "services", "Services", struct {
		*Services
		Query Query
		Links listLinks
		First int
		Last  int
	}{list, q, linksOf(q, list.Total), (q.Page-1)*PageRows + 1, (q.Page-1)*PageRows + len(list.Rows)})
}

// listLinks are the ways from a page of the list to others.
type listLinks struct {
	Sort           map[string]string
	Previous, Next string // "" where there is none
}

func linksOf(q Query, total int) listLinks {
	link := func(sort string, page int) string {
		v := url.Values{}
		for name, value := range map[string]string{"namespace": q.Namespace, "search": q.Search, "sort": sort} {
			if value != "" && (name != "sort" || value != byName) {
				v.Set(name, value)
			}
		}
		if q.Problems {
			v.Set("problems", "on")
		}
		if page > 1 {
			v.Set("page", strconv.Itoa(page))
		}
		return "?" + v.Encode()
	}
	links := listLinks{Sort: map[string]string{}}
	for _, s := range sorts {
		links.Sort[s] = link(s, 1)
	}
	if q.Page > 1 {
		links.Previous = link(q.Sort, q.Page-1)
	}
	if q.Page*PageRows < total {
		links.Next = link(q.Sort, q.Page+1)
	}
	return links
}

// service is the page of one Service.
func (h *handler) service(w http.ResponseWriter, r *http.Request) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")
	svc, err := h.source.Service(namespace, name)
	switch {
	case err != nil:
		h.fail(w, r, http.StatusServiceUnavailable, err.Error())
	case svc == nil:
		h.fail(w, r, http.StatusNotFound, "There is no Service "+namespace+"/"+name+".")
	default:
		h.show(w, r, http.StatusOK, "service", namespace+"/"+name, struct {
			*Service
			Paths []path
		}{svc, pathsOf(svc)})
	}
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
	h.show(w, r, http.StatusOK, "connections", "Connections", struct {
		*wire.Connections
		Namespace, Name, Client string
	}{list, q.Namespace, q.Service, values.Get("client")})
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
