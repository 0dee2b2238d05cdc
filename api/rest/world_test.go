package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// world is a server over a store in memory, and what its users do with them.
type world struct {
	testing.TB
	store   *store.Store
	engine  *faulty.Memory
	server  *Server
	handler http.Handler
	user    auth.User
}

var admin = auth.User{Name: "root", Groups: []string{"system:masters"}, Role: auth.Admin}

// noon is the time in a world.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newWorld(t testing.TB) *world {
	t.Helper()
	engine := faulty.NewMemory()
	uids := 0
	objects, err := store.Open(engine, store.Config{
		ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/108")},
		Pools:           []alloc.Pool{{First: netip.MustParseAddr("192.0.2.10"), Last: netip.MustParseAddr("192.0.2.99")}},
		Clock:           func() time.Time { return noon },
		NewUID:          func() string { uids++; return fmt.Sprintf("00000000-0000-4000-8000-%012d", uids) },
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, store: objects, engine: engine, user: admin}
	w.server = New(Config{
		Objects: objects, Now: func() time.Time { return noon.Add(90 * time.Second) }, MaxWatches: 20,
		Log: slog.New(slog.NewTextHandler(logTo{t}, nil)),
	})
	w.handler = http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		w.server.Handler().ServeHTTP(to, r.WithContext(auth.With(r.Context(), w.user)))
	})
	w.put(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"default"}}`)
	return w
}

// logTo writes what the server logs to the log of a test.
type logTo struct{ t testing.TB }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Logf("server: %s", p)
	return len(p), nil
}

// read is an object as it is written in JSON. Its namespace is default.
func read(t testing.TB, text string) object.Object {
	t.Helper()
	var meta object.TypeMeta
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	k, ok := kind.ByName(meta.APIVersion, meta.Kind)
	if !ok {
		t.Fatalf("%s: no such kind", text)
	}
	o := k.New()
	if err := json.Unmarshal([]byte(text), o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if k.Namespaced && o.GetMeta().Namespace == "" {
		o.GetMeta().Namespace = "default"
	}
	object.Default(o)
	return o
}

// put creates or replaces objects.
func (w *world) put(texts ...string) []object.Object {
	w.Helper()
	var all []object.Object
	for _, text := range texts {
		o := read(w, text)
		all = append(all, w.write(store.Write{Ref: object.RefOf(o), Object: o}).Object)
	}
	return all
}

func (w *world) write(change store.Write) store.Written {
	w.Helper()
	old, _ := w.store.Get(change.Ref)
	change.Create = old == nil
	results, err := w.store.Write(change)
	if err != nil || results[0].Err != nil {
		w.Fatalf("%s: %v, %v", change.Ref, err, results)
	}
	return results[0]
}

// remove deletes an object of the namespace default.
func (w *world) remove(kind, name string) {
	w.Helper()
	w.write(store.Write{Ref: object.Ref{Kind: kind, Namespace: "default", Name: name}, Delete: true})
}

// files makes the store read manifests: paths and contents.
func (w *world) files(texts map[string]string) {
	w.Helper()
	files := map[string]*manifest.File{}
	for path, text := range texts {
		files[path] = manifest.Decode(path, []byte(text), manifest.DefaultLimits())
	}
	if _, err := w.store.SyncFiles(manifest.FilesOf(files)); err != nil {
		w.Fatal(err)
	}
}

func service(name, more string) string {
	if more != "" {
		more = "," + more
	}
	return fmt.Sprintf(`{"kind":"Service","apiVersion":"v1","metadata":{"name":%q,"labels":{"app":%q}},"spec":{"ports":[{"port":80}],"selector":{"app":%q}%s}}`, name, name, name, more)
}

// ask makes a request with headers ("Accept: text") and gives the answer.
func (w *world) ask(method, path string, headers ...string) *httptest.ResponseRecorder {
	w.Helper()
	r := httptest.NewRequest(method, path, nil)
	for _, header := range headers {
		key, value, _ := strings.Cut(header, ": ")
		r.Header.Add(key, value)
	}
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	return answer
}

// get is the answer to a GET in JSON, which has to be a 200.
func (w *world) get(path string, headers ...string) map[string]any {
	w.Helper()
	answer := w.ask(http.MethodGet, path, headers...)
	if answer.Code != http.StatusOK {
		w.Fatalf("GET %s: %d %s", path, answer.Code, answer.Body)
	}
	return decoded(w, answer.Body.Bytes())
}

func decoded(t testing.TB, text []byte) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

// at returns the value in a document under keys, and numbers for items of lists.
func at(document any, path ...any) any {
	for _, step := range path {
		switch d := document.(type) {
		case map[string]any:
			key, _ := step.(string)
			document = d[key]
		case []any:
			i, ok := step.(int)
			if !ok || i >= len(d) {
				return nil
			}
			document = d[i]
		default:
			return nil
		}
	}
	return document
}

// names are those of the items of a list.
func names(list map[string]any) string {
	var all []string
	items, _ := list["items"].([]any)
	for _, item := range items {
		all = append(all, fmt.Sprint(at(item, "metadata", "name")))
	}
	return strings.Join(all, " ")
}

// watcher is a client that watches.
type watcher struct {
	testing.TB
	Code   int
	Header http.Header
	lines  chan string
	stop   context.CancelFunc
	done   chan struct{}
}

// watch begins a watch through a connection.
func (w *world) watch(path string, headers ...string) *watcher {
	w.Helper()
	server := httptest.NewServer(w.handler)
	w.Cleanup(server.Close)
	return w.watchAt(server, path, headers...)
}

func (w *world) watchAt(server *httptest.Server, path string, headers ...string) *watcher {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, nil)
	if err != nil {
		w.Fatal(err)
	}
	for _, header := range headers {
		key, value, _ := strings.Cut(header, ": ")
		r.Header.Add(key, value)
	}
	answer, err := server.Client().Do(r)
	if err != nil {
		w.Fatal(err)
	}
	c := &watcher{TB: w, Code: answer.StatusCode, Header: answer.Header, lines: make(chan string, 100), stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		defer close(c.lines)
		defer answer.Body.Close()
		lines := bufio.NewReader(answer.Body)
		for {
			line, err := lines.ReadString('\n')
			if line != "" {
				select {
				case c.lines <- line:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	w.Cleanup(func() { cancel(); <-c.done })
	return c
}

// next is the next event.
func (c *watcher) next() map[string]any {
	c.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.Fatal("the watch is over")
		}
		return decoded(c, []byte(line))
	case <-time.After(time.Minute):
		c.Fatal("no event")
	}
	return nil
}

// wants reads events and compares them with what is wanted: "ADDED web".
func (c *watcher) wants(events ...string) {
	c.Helper()
	for _, want := range events {
		event := c.next()
		if got := fmt.Sprint(event["type"], " ", at(event, "object", "metadata", "name")); got != want {
			c.Fatalf("got %s, want %s: %v", got, want, event)
		}
	}
}

// ends waits for the end of the watch, with nothing before it.
func (c *watcher) ends() {
	c.Helper()
	select {
	case line, ok := <-c.lines:
		if ok {
			c.Fatalf("got %s", line)
		}
	case <-time.After(time.Minute):
		c.Fatal("the watch goes on")
	}
}

// send makes a request with a body in JSON.
func (w *world) send(method, path, body string) *httptest.ResponseRecorder {
	w.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", typeJSON)
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	return answer
}
