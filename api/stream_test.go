package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
)

// ticking streams a line each time it gets a value, and says in ended when its request ended.
type ticking struct {
	ticks chan string
	ended chan error
}

func newTicking() *ticking { return &ticking{ticks: make(chan string), ended: make(chan error, 1000)} }

func (h *ticking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "true" {
		after, _ := time.ParseDuration(r.URL.Query().Get("after"))
		time.Sleep(after) // real time: it takes as long as the test asks for
		_, _ = io.WriteString(w, "listed\n")
		return
	}
	rc := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if err := rc.Flush(); err != nil {
		h.ended <- err
		return
	}
	for {
		select {
		case <-r.Context().Done():
			h.ended <- context.Cause(r.Context())
			return
		case line := <-h.ticks:
			// The deadlines are the transport's: this one must not end the stream later.
			_ = rc.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			if _, err := io.WriteString(w, line+"\n"); err != nil {
				h.ended <- err
				return
			}
			if err := rc.Flush(); err != nil {
				h.ended <- err
				return
			}
		}
	}
}

// wayIn is one of the ways to the API.
type wayIn struct {
	client *http.Client
	url    string
	header http.Header
	stop   func() error
}

// eachWay calls test for each of them.
func eachWay(t *testing.T, test func(t *testing.T, h *ticking, way wayIn), more ...func(*api.Server)) {
	more = append(more, func(s *api.Server) { s.SetWriteTimeout(writeTimeout) })
	t.Run("unix", func(t *testing.T) {
		t.Parallel()
		h := newTicking()
		s := serve(t, newBackend(), api.Config{Objects: h}, more...)
		test(t, h, wayIn{s.client(), "http://svcctl", nil, s.stop})
	})
	for _, protocol := range []int{1, 2} {
		t.Run(fmt.Sprint("TLS, HTTP/", protocol), func(t *testing.T) {
			t.Parallel()
			h := newTicking()
			s := serveTLS(t, newBackend(), api.Config{Objects: h}, more...)
			test(t, h, wayIn{s.client(t, protocol), "https://" + s.address, http.Header{"Authorization": {"Bearer " + s.token(t, auth.Admin)}}, s.stop})
		})
	}
}

func (way wayIn) watch(t *testing.T, ctx context.Context) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, way.url+"/api/v1/services?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range way.header {
		req.Header[name] = values
	}
	resp, err := way.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// TestWatchesOutliveTimeouts: a watch that is silent for longer than an answer may take goes on.
func TestWatchesOutliveTimeouts(t *testing.T) {
	eachWay(t, func(t *testing.T, h *ticking, way wayIn) {
		resp := way.watch(t, t.Context())
		lines := bufio.NewReader(resp.Body)
		for i := range 3 {
			time.Sleep(writeTimeout * 3 / 2) // real time: longer than an answer may take
			select {
			case h.ticks <- fmt.Sprint("tick ", i):
			case err := <-h.ended:
				t.Fatalf("the watch ended: %v", err)
			}
			if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("tick %d\n", i) {
				t.Fatalf("got %q, %v", line, err)
			}
		}
	})
}

// TestSlowAnswers: what takes longer to find than a client may take to read it is answered.
func TestSlowAnswers(t *testing.T) {
	eachWay(t, func(t *testing.T, h *ticking, way wayIn) {
		req, _ := http.NewRequest(http.MethodGet, way.url+"/api/v1/services?after=1500ms", nil)
		req.Header = way.header
		resp, err := way.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "listed\n" {
			t.Errorf("answered %q, %v", body, err)
		}
	})
}

// TestGoneWatchers: the request of a client that hangs up ends.
func TestGoneWatchers(t *testing.T) {
	eachWay(t, func(t *testing.T, h *ticking, way wayIn) {
		ctx, cancel := context.WithCancel(t.Context())
		way.watch(t, ctx)
		cancel()
		select {
		case <-h.ended:
		case <-time.After(time.Minute):
			t.Error("the server still serves a client that has gone")
		}
	})
}

// TestSlowWatchers: a client that takes nothing is let go, however much there is for it.
func TestSlowWatchers(t *testing.T) {
	eachWay(t, func(t *testing.T, h *ticking, way wayIn) {
		way.watch(t, t.Context())
		piece := strings.Repeat("x", 1<<20)
		deadline := time.After(time.Minute)
		for {
			select {
			case h.ticks <- piece:
			case <-h.ended:
				return
			case <-deadline:
				t.Fatal("the server still waits for a client that takes nothing")
			}
		}
	})
}

// TestStopEndsWatches: open watches are ended at once and cleanly, not cut when the time to stop is over.
func TestStopEndsWatches(t *testing.T) {
	eachWay(t, func(t *testing.T, h *ticking, way wayIn) {
		const watchers = 20
		var all []*http.Response
		for range watchers {
			all = append(all, way.watch(t, t.Context()))
		}
		if err := way.stop(); err != nil {
			t.Errorf("stopped with %v", err)
		}
		for range watchers {
			if err := <-h.ended; err == nil || err.Error() != "the appliance is stopping" {
				t.Errorf("a watch ended with %v", err)
			}
		}
		for _, resp := range all {
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Errorf("a client saw its watch end with %v, want a clean end", err)
			}
		}
	})
}

// TestWatchBudget: so many watches and no more, and others are served beside them.
func TestWatchBudget(t *testing.T) {
	eachWay(t, func(t *testing.T, h *ticking, way wayIn) {
		ctx, cancel := context.WithCancel(t.Context())
		for range 5 {
			if resp := way.watch(t, ctx); resp.StatusCode != http.StatusOK {
				t.Fatalf("a watch within the budget: %d", resp.StatusCode)
			}
		}
		resp := way.watch(t, t.Context())
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), "at most 5 are served") {
			t.Errorf("one more: %d %s", resp.StatusCode, body)
		}
		req, _ := http.NewRequest(http.MethodGet, way.url+"/api/v1/services?watch=false", nil)
		req.Header = way.header
		list, err := way.client.Do(req)
		if err != nil || list.StatusCode != http.StatusOK {
			t.Errorf("a list beside them: %v, %v", list, err)
		}
		cancel()
		for range 5 {
			<-h.ended
		}
		for end := time.Now().Add(time.Minute); time.Now().Before(end); { // the count goes down a moment later
			if resp = way.watch(t, t.Context()); resp.StatusCode == http.StatusOK {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("no room again after watches have ended")
	}, func(s *api.Server) { s.SetWatches(5) })
}

// TestWaitsAreWatches: waits count as watches, so that they leave room for others.
func TestWaitsAreWatches(t *testing.T) {
	eachWay(t, func(t *testing.T, h *ticking, way wayIn) {
		if resp := way.watch(t, t.Context()); resp.StatusCode != http.StatusOK {
			t.Fatalf("a watch within the budget: %d", resp.StatusCode)
		}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, way.url+"/svcctl/v1/wait?for=ready", nil)
		req.Header = way.header
		resp, err := way.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("a wait beyond the budget: %d", resp.StatusCode)
		}
	}, func(s *api.Server) { s.SetWatches(1) })
}

// TestReadersLeaveRoom: who may only read can take half of the room, and no more.
func TestReadersLeaveRoom(t *testing.T) {
	release := make(chan struct{})
	began := make(chan struct{}, 10)
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	s := serveTLS(t, newBackend(), api.Config{Objects: slow}, func(s *api.Server) { s.SetRequests(4); s.SetWatches(2) })
	ask := func(role auth.Role, path string) int {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		resp, err := s.client(t, 2).Do(s.request(t, ctx, s.token(t, role), http.MethodGet, path, ""))
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	codes := make(chan int, 10)
	begin := func(role auth.Role, path string) {
		go func() { codes <- ask(role, path) }()
		<-began
	}
	begin(auth.Reader, "/api")
	begin(auth.Reader, "/api")
	begin(auth.Reader, "/api?watch=1")
	for _, path := range []string{"/api", "/api?watch=1", "/svcctl/v1/wait?for=ready"} {
		if code := ask(auth.Reader, path); code != http.StatusTooManyRequests {
			t.Errorf("a reader beyond half of the room: %s is answered %d", path, code)
		}
	}
	begin(auth.Admin, "/api")
	begin(auth.Admin, "/api?watch=1")
	if code := ask(auth.Admin, "/svcctl/v1/wait?for=ready"); code != http.StatusTooManyRequests {
		t.Errorf("an admin beyond all of the room: %d", code)
	}
	close(release)
	for range 5 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("answered %d, want 200", code)
		}
	}
}

// TestRequestBudget: one HTTP/2 connection has many requests, but not any number of them.
func TestRequestBudget(t *testing.T) {
	release := make(chan struct{})
	began := make(chan struct{}, 100)
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-release
	})
	s := serveTLS(t, newBackend(), api.Config{Objects: slow}, func(s *api.Server) { s.SetRequests(10) })
	client, token := s.client(t, 2), s.token(t, auth.Admin)
	codes := make(chan int, 30)
	for range 30 {
		go func() {
			resp, err := client.Do(s.request(t, context.Background(), token, http.MethodGet, "/api", ""))
			if err != nil {
				codes <- 0
				return
			}
			_ = resp.Body.Close()
			codes <- resp.StatusCode
		}()
	}
	for range 20 {
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Errorf("answered %d, want 429", code)
		}
	}
	close(release)
	for range 10 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("answered %d, want 200", code)
		}
	}
	if len(began) != 10 {
		t.Errorf("%d requests were served", len(began))
	}
}

// TestLargeTLSHeader: too many headers are refused over HTTP/2 too.
func TestLargeTLSHeader(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, newBackend(), api.Config{})
	for _, protocol := range []int{1, 2} {
		req := s.request(t, context.Background(), "", http.MethodGet, "/healthz", "")
		req.Header.Set("X-Large", strings.Repeat("x", 80<<10))
		resp, err := s.client(t, protocol).Do(req)
		if err != nil {
			continue // the connection is closed: refused, too
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("HTTP/%d: 80 KiB of headers: %d", protocol, resp.StatusCode)
		}
	}
}

// TestRefusedBodiesHoldNobody: who is refused is refused before the body is there.
func TestRefusedBodiesHoldNobody(t *testing.T) {
	s := serveTLS(t, newBackend(), api.Config{Objects: whoami})
	body, writer := net.Pipe() // a body that never comes
	defer writer.Close()
	for _, protocol := range []int{1, 2} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+s.address+"/api/v1/services", body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client(t, protocol).Do(req)
		if err != nil {
			t.Fatalf("HTTP/%d: %v", protocol, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("HTTP/%d: %d", protocol, resp.StatusCode)
		}
	}
}
