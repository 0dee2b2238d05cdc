package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

func versionOf(t *testing.T, event map[string]any) uint64 {
	t.Helper()
	version, err := strconv.ParseUint(fmt.Sprint(at(event, "object", "metadata", "resourceVersion")), 10, 64)
	if err != nil {
		t.Fatalf("%v: %v", event, err)
	}
	return version
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	w.put(service("a", ""))
	watch := w.watch("/api/v1/namespaces/default/services?watch=True")
	if watch.Code != http.StatusOK || watch.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v", watch.Code, watch.Header)
	}
	watch.wants("ADDED a")
	w.put(service("b", ""), service("a", `"type":"NodePort"`))
	watch.wants("ADDED b")
	event := watch.next()
	if event["type"] != "MODIFIED" || at(event, "object", "kind") != "Service" || at(event, "object", "apiVersion") != "v1" || at(event, "object", "spec", "type") != "NodePort" {
		t.Errorf("%v", event)
	}
	before := versionOf(t, event)
	w.remove("Service", "a")
	event = watch.next()
	if event["type"] != "DELETED" || at(event, "object", "spec", "type") != "NodePort" || versionOf(t, event) <= before || versionOf(t, event) != w.store.Revision() {
		t.Errorf("%v", event)
	}
	// Who saw the first of these goes on behind it.
	again := w.watch(fmt.Sprintf("/api/v1/watch/services?resourceVersion=%d", before))
	if event = again.next(); event["type"] != "DELETED" || at(event, "object", "metadata", "name") != "a" {
		t.Errorf("%v", event)
	}
	w.put(service("c", ""))
	again.wants("ADDED c")
	named := w.watch("/api/v1/watch/namespaces/default/services/c")
	named.wants("ADDED c")
	w.put(service("d", ""), service("c", `"type":"NodePort"`))
	named.wants("MODIFIED c")
}

func TestWatchSelectors(t *testing.T) {
	w := newWorld(t)
	w.put(service("a", ""), service("b", `"type":"NodePort"`))
	w.put(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"other"}}`)
	watch := w.watch("/api/v1/namespaces/default/services?watch=1&fieldSelector=spec.type=NodePort")
	watch.wants("ADDED b")
	w.put(service("a", `"type":"NodePort"`)) // begins to be selected
	watch.wants("ADDED a")
	w.put(strings.Replace(service("x", `"type":"NodePort"`), `"name":"x"`, `"name":"x","namespace":"other"`, 1))
	all := w.watch(fmt.Sprintf("/api/v1/namespaces/default/services?watch=1&resourceVersion=%d", w.store.Revision()))
	w.put(service("b", "")) // ends to be
	event := all.next()
	if event["type"] != "MODIFIED" || at(event, "object", "spec", "type") != "ClusterIP" {
		t.Errorf("%v", event)
	}
	event = watch.next()
	if event["type"] != "DELETED" || at(event, "object", "metadata", "name") != "b" || at(event, "object", "spec", "type") != "NodePort" || versionOf(t, event) != w.store.Revision() {
		t.Errorf("%v", event)
	}
	w.put(service("b", `"publishNotReadyAddresses":true`))
	w.remove("Service", "b")
	w.put(service("a", `"type":"NodePort","publishNotReadyAddresses":true`))
	watch.wants("MODIFIED a")
}

func TestWatchList(t *testing.T) {
	w := newWorld(t)
	w.put(service("a", ""), service("b", ""))
	const query = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	watch := w.watch("/api/v1/services" + query)
	watch.wants("ADDED a", "ADDED b")
	want := fmt.Sprintf(`{"object":{"apiVersion":"v1","kind":"Service","metadata":{"annotations":{"k8s.io/initial-events-end":"true"},"resourceVersion":"%d"}},"type":"BOOKMARK"}`, w.store.Revision())
	if text, _ := json.Marshal(watch.next()); string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	w.put(service("c", ""))
	watch.wants("ADDED c")

	metadata := w.watch("/api/v1/services"+query+"&resourceVersion="+fmt.Sprint(w.store.Revision()), "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
	metadata.wants("ADDED a", "ADDED b", "ADDED c")
	event := metadata.next()
	if event["type"] != "BOOKMARK" || at(event, "object", "kind") != "PartialObjectMetadata" || at(event, "object", "metadata", "annotations", "k8s.io/initial-events-end") != "true" {
		t.Errorf("%v", event)
	}
	w.put(service("c", `"type":"NodePort"`))
	event = metadata.next()
	if event["type"] != "MODIFIED" || at(event, "object", "kind") != "PartialObjectMetadata" || at(event, "object", "spec") != nil {
		t.Errorf("%v", event)
	}

	silent := w.watch("/api/v1/services?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
	unmarked := w.watch("/api/v1/services?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=app=a")
	unmarked.wants("ADDED a")
	w.put(service("a", `"type":"NodePort"`))
	silent.wants("MODIFIED a")
	unmarked.wants("MODIFIED a")

	empty := w.watch("/api/v1/configmaps" + query)
	if event = empty.next(); event["type"] != "BOOKMARK" {
		t.Errorf("%v", event)
	}
}

func TestWatchTable(t *testing.T) {
	w := newWorld(t)
	w.put(service("a", ""))
	watch := w.watch("/api/v1/services?watch=1&resourceVersion=0", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	event := watch.next()
	if event["type"] != "ADDED" || at(event, "object", "kind") != "Table" || at(event, "object", "columnDefinitions", 0, "name") != "Name" || at(event, "object", "rows", 0, "cells", 0) != "a" {
		t.Errorf("%v", event)
	}
	w.remove("Service", "a")
	event = watch.next()
	if event["type"] != "DELETED" || at(event, "object", "columnDefinitions") != nil || at(event, "object", "rows", 0, "cells", 0) != "a" || at(event, "object", "rows", 0, "object", "metadata", "resourceVersion") != fmt.Sprint(w.store.Revision()) {
		t.Errorf("%v", event)
	}
	marked := w.watch("/api/v1/services?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
	event = marked.next()
	if event["type"] != "BOOKMARK" || at(event, "object", "kind") != "Table" || at(event, "object", "rows", 0, "object", "metadata", "annotations", "k8s.io/initial-events-end") != "true" {
		t.Errorf("%v", event)
	}
}

// Sixteen write at the same time; each of those who watch sees every change once, in order,
// and so do those who come later, or come back.
func TestWatchersSeeEverythingOnce(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewServer(w.handler)
	t.Cleanup(server.Close)
	start := w.store.Revision()
	const writers, changes, watchers = 16, 12, 4
	path := fmt.Sprintf("/api/v1/services?watch=1&resourceVersion=%d", start)
	var early []*watcher
	for range watchers {
		early = append(early, w.watchAt(server, path))
	}
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := range changes {
				o := read(t, service(fmt.Sprintf("web-%d", i), fmt.Sprintf(`"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":%d}}`, n+1)))
				change := store.Write{Ref: object.RefOf(o), Object: o, Create: n == 0}
				if n == changes-1 {
					change = store.Write{Ref: object.RefOf(o), Delete: true}
				}
				if results, err := w.store.Write(change); err != nil || results[0].Err != nil {
					t.Errorf("%v %v", err, results)
				}
			}
		})
	}
	late := w.watchAt(server, path)
	wg.Wait()
	history, err := w.store.Events(start, 0)
	if err != nil || len(history) != writers*changes {
		t.Fatalf("%d changes, %v", len(history), err)
	}
	for _, c := range append(early, late) {
		for i, change := range history {
			event := c.next()
			if versionOf(t, event) != change.Revision || at(event, "object", "metadata", "name") != change.Ref.Name {
				t.Fatalf("event %d is %v, want %d of %s", i, event, change.Revision, change.Ref)
			}
			want := "MODIFIED"
			if change.Old == nil {
				want = "ADDED"
			} else if change.New == nil {
				want = "DELETED"
			}
			if event["type"] != want {
				t.Fatalf("event %d is %v, want %s", i, event, want)
			}
		}
	}
	middle := history[len(history)/2].Revision
	back := w.watchAt(server, fmt.Sprintf("/api/v1/services?watch=1&resourceVersion=%d", middle))
	for _, change := range history[len(history)/2+1:] {
		if event := back.next(); versionOf(t, event) != change.Revision {
			t.Fatalf("%v, want %d", event, change.Revision)
		}
	}
}

// Watches go over HTTP/2, many over one connection, and end with it.
func TestWatchOverHTTP2(t *testing.T) {
	w := newWorld(t)
	server := httptest.NewUnstartedServer(w.handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	first, second := w.watchAt(server, "/api/v1/services?watch=1"), w.watchAt(server, "/api/v1/namespaces?watch=1")
	second.wants("ADDED default")
	w.put(service("a", ""))
	first.wants("ADDED a")
	server.CloseClientConnections()
	first.ends()
	second.ends()
}

// A watch that the history has left behind ends with an ERROR event that says so.
func TestWatchExpires(t *testing.T) {
	w := newWorld(t)
	w.put(service("a", ""))
	recorder := httptest.NewRecorder()
	r := &request{http: httptest.NewRequest("GET", "/api/v1/services?watch=1", nil), verb: "watch", user: admin}
	if _, err := r.read([]string{"api", "v1", "services"}); err != nil {
		t.Fatal(err)
	}
	l := &watchSession{server: w.server, request: r, options: &listOptions{}, stream: newStream(recorder), after: 1}
	l.run(t.Context())
	event := decoded(t, recorder.Body.Bytes())
	if event["type"] != "ERROR" || at(event, "object", "kind") != "Status" || at(event, "object", "reason") != "Expired" || at(event, "object", "code") != 410.0 {
		t.Errorf("%v", event)
	}
}

// deaf is a client that takes nothing after the headers within the server's deadline.
type deaf struct{ *httptest.ResponseRecorder }

func (d *deaf) Write(p []byte) (int, error) { return 0, context.DeadlineExceeded }

// A watch ends with the first write that fails, though its request goes on.
func TestDeafWatchersAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.put(service("a", ""))
		start := time.Now()
		w.handler.ServeHTTP(&deaf{httptest.NewRecorder()}, httptest.NewRequest("GET", "/api/v1/services?watch=1", nil))
		if took := time.Since(start); took != 0 {
			t.Errorf("given up after %s", took)
		}
	})
}

// quiet is a client that keeps what it is sent.
type quiet struct {
	*httptest.ResponseRecorder
	mu       sync.Mutex
	deadline time.Time
}

func (q *quiet) SetWriteDeadline(at time.Time) error { q.deadline = at; return nil }

func (q *quiet) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ResponseRecorder.Write(p)
}

func (q *quiet) lines() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return strings.Split(strings.TrimSuffix(q.Body.String(), "\n"), "\n")
}

func TestBookmarksAndTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ask := func(ctx context.Context, query string) (*quiet, time.Duration) {
			q := &quiet{ResponseRecorder: httptest.NewRecorder()}
			start := time.Now()
			w.handler.ServeHTTP(q, httptest.NewRequest("GET", "/api/v1/services?watch=1"+query, nil).WithContext(ctx))
			return q, time.Since(start)
		}
		// One a minute, and one at the end.
		q, took := ask(t.Context(), "&allowWatchBookmarks=true&timeoutSeconds=150")
		if took != 150*time.Second || len(q.lines()) != 3 {
			t.Errorf("%s: %q", took, q.lines())
		}
		for _, line := range q.lines() {
			event := decoded(t, []byte(line))
			if event["type"] != "BOOKMARK" || versionOf(t, event) != w.store.Revision() || at(event, "object", "metadata", "annotations") != nil {
				t.Errorf("%s", line)
			}
		}
		if !q.deadline.IsZero() { // which would end a quiet stream of HTTP/2
			t.Errorf("a deadline is left: %s", q.deadline)
		}
		if q, took = ask(t.Context(), "&timeoutSeconds=150"); took != 150*time.Second || q.Body.Len() != 0 || !q.Flushed {
			t.Errorf("%s: %q", took, q.Body)
		}
		if _, took = ask(t.Context(), ""); took < 30*time.Minute || took > 60*time.Minute {
			t.Errorf("%s", took)
		}
		// What ends because the client or the server goes has no last bookmark.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if q, took = ask(ctx, "&allowWatchBookmarks=true"); took != time.Second || q.Body.Len() != 0 {
			t.Errorf("%s: %q", took, q.Body)
		}
	})
}

func TestTooManyWatches(t *testing.T) {
	w := newWorld(t)
	before := runtime.NumGoroutine()
	server := httptest.NewServer(w.handler)
	var all []*watcher
	for range cap(w.server.watches) {
		all = append(all, w.watchAt(server, "/api/v1/services?watch=1"))
	}
	answer := w.ask("GET", "/api/v1/services?watch=1")
	if answer.Code != http.StatusTooManyRequests || answer.Header().Get("Retry-After") != "5" || at(decoded(t, answer.Body.Bytes()), "details", "retryAfterSeconds") != 5.0 {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	if answer = w.ask("GET", "/api/v1/endpoints?watch=1"); answer.Code != http.StatusTooManyRequests || len(w.server.views) != 0 {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	all[0].stop()
	<-all[0].done
	for len(w.server.watches) == cap(w.server.watches) {
		time.Sleep(time.Millisecond)
	}
	for range cap(w.server.views) {
		w.server.views <- struct{}{}
	}
	if answer = w.ask("GET", "/api/v1/endpoints?watch=1"); answer.Code != http.StatusTooManyRequests || len(w.server.watches) != cap(w.server.watches)-1 {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	// Lists of what is computed hold as much, as long as their clients take; others do not.
	for path, code := range map[string]int{
		"/api/v1/endpoints": http.StatusTooManyRequests, "/apis/networking.k8s.io/v1/ipaddresses": http.StatusTooManyRequests,
		"/api/v1/services": http.StatusOK,
	} {
		if answer := w.ask("GET", path); answer.Code != code {
			t.Errorf("%s: %d %s", path, answer.Code, answer.Body)
		}
	}
	for _, c := range all {
		c.stop()
		<-c.done
	}
	server.Client().CloseIdleConnections()
	server.Close()
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before || len(w.server.watches) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, before the watches %d; %d watches", runtime.NumGoroutine(), before, len(w.server.watches))
		}
	}
}

// A version of an object is encoded once for all who watch it.
func TestEncodings(t *testing.T) {
	e, calls := newEncodings(), 0
	encode := func(size int) func() ([]byte, error) {
		return func() ([]byte, error) { calls++; return make([]byte, size), nil }
	}
	first := encodingKey{revision: 1, kind: "Service"}
	for range 3 {
		if text, err := e.of(first, encode(10)); len(text) != 10 || err != nil {
			t.Fatal(len(text), err)
		}
	}
	if calls != 1 {
		t.Errorf("encoded %d times", calls)
	}
	if _, err := e.of(encodingKey{revision: 2}, func() ([]byte, error) { return nil, context.Canceled }); err != context.Canceled {
		t.Error(err)
	}
	for i := range 20 {
		e.of(encodingKey{revision: uint64(10 + i)}, encode(1<<20))
	}
	if e.size > maxEncodings || len(e.texts) != len(e.order) || len(e.texts) != maxEncodings>>20 {
		t.Errorf("%d bytes in %d of %d", e.size, len(e.texts), len(e.order))
	}
	if _, err := e.of(first, encode(10)); err != nil || calls != 22 {
		t.Errorf("encoded %d times, %v", calls, err)
	}
}
