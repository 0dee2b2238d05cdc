package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/wire"
)

// backend is an appliance that is as its fields say.
type backend struct {
	mu             sync.Mutex
	status         wire.Status
	healthy, ready error
	synced         chan struct{} // closed: everything is in the kernel
	asked          uint64        // the revision Synced was asked for
	panics         atomic.Bool   // Status panics
	held           int           // what Release lets go
}

func newBackend() *backend {
	return &backend{
		status: wire.Status{Version: "v0.1.0", NodeName: "gw1", Ready: true, Synced: true, Sources: []wire.Source{}, Problems: []wire.Problem{}},
		synced: make(chan struct{}),
	}
}

func (b *backend) Status() wire.Status {
	if b.panics.Load() {
		panic("the status is broken")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

func (b *backend) Synced(ctx context.Context, revision uint64) error {
	b.mu.Lock()
	b.asked = revision
	b.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.synced:
		return nil
	}
}

func (b *backend) Healthy() error { b.mu.Lock(); defer b.mu.Unlock(); return b.healthy }
func (b *backend) Ready() error   { b.mu.Lock(); defer b.mu.Unlock(); return b.ready }

func (b *backend) Release(context.Context) (wire.Released, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return wire.Released{Services: b.held}, b.healthy
}

func (b *backend) set(f func(*backend)) { b.mu.Lock(); defer b.mu.Unlock(); f(b) }

// server is a running Server with what a test wants to know of it.
type server struct {
	socket string
	log    *bytes.Buffer
	panics atomic.Int32
	stop   func() error // stops it; returns what Serve returned
}

// start serves b on a socket of its own.
func start(t *testing.T, b api.Backend) *server {
	t.Helper()
	return serve(t, b, api.Config{})
}

// serve is start for a server that is told more, and may be given other limits.
func serve(t *testing.T, b api.Backend, cfg api.Config, more ...func(*api.Server)) *server {
	t.Helper()
	s := &server{socket: filepath.Join(t.TempDir(), "run", "svcctl.sock"), log: &bytes.Buffer{}}
	cfg.Socket.Path, cfg.Version, cfg.Panicked = s.socket, "v0.1.0", func() { s.panics.Add(1) }
	srv := api.New(cfg, b, slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, f := range more {
		f(srv)
	}
	ln, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	s.stop = sync.OnceValue(func() error { cancel(); return <-served })
	t.Cleanup(func() { _ = s.stop() })
	return s
}

// client is an HTTP client on the socket; every request has a connection of its own.
func (s *server) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", s.socket) },
		DisableKeepAlives: true,
	}}
}

// get asks for a path and returns code and body.
func (s *server) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := s.client().Get("http://svcctl" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestHealth(t *testing.T) {
	b := newBackend()
	s := start(t, b)
	type want struct {
		path string
		code int
		body string
	}
	check := func(wants ...want) {
		t.Helper()
		for _, w := range wants {
			if code, body := s.get(t, w.path); code != w.code || body != w.body {
				t.Errorf("GET %s: %d %q, want %d %q", w.path, code, body, w.code, w.body)
			}
		}
	}
	check(
		want{"/healthz", 200, "ok"}, want{"/livez", 200, "ok"}, want{"/readyz", 200, "ok"},
		want{"/readyz?verbose", 200, "[+]ready ok\nreadyz check passed\n"},
		want{"/livez?verbose", 200, "[+]alive ok\nlivez check passed\n"},
	)
	b.set(func(b *backend) { b.ready = errors.New("manifests are not read yet") })
	check(want{"/livez", 200, "ok"},
		want{"/readyz", 503, "[-]ready failed: manifests are not read yet\nreadyz check failed\n"})
	b.set(func(b *backend) { b.healthy = errors.New("the loop hangs") })
	check(want{"/healthz", 500, "[-]alive failed: the loop hangs\nhealthz check failed\n"},
		want{"/livez", 500, "[-]alive failed: the loop hangs\nlivez check failed\n"},
		want{"/readyz", 503, "[-]alive failed: the loop hangs\nreadyz check failed\n"})
}

func TestVersion(t *testing.T) {
	s := start(t, newBackend())
	code, body := s.get(t, "/version?timeout=32s")
	var v wire.Version
	if err := json.Unmarshal([]byte(body), &v); code != 200 || err != nil {
		t.Fatalf("%d %q: %v", code, body, err)
	}
	if v.Major != "1" || v.Minor != "37" || v.GitVersion != "v1.37.0+svcctl.0.1.0" || !strings.HasPrefix(v.Platform, "linux/") {
		t.Errorf("version is %+v", v)
	}
}

func TestStatus(t *testing.T) {
	b := newBackend()
	b.status.LastTransaction = &wire.Transaction{Duration: wire.Duration(1250 * time.Microsecond), Operations: 2}
	s := start(t, b)
	code, body := s.get(t, "/svcctl/v1/status")
	var got wire.Status
	if err := json.Unmarshal([]byte(body), &got); code != 200 || err != nil {
		t.Fatalf("%d %q: %v", code, body, err)
	}
	if got.NodeName != "gw1" || got.LastTransaction.Duration != b.status.LastTransaction.Duration {
		t.Errorf("status is %+v", got)
	}
	if !strings.Contains(body, `"duration":"1.25ms"`) {
		t.Errorf("a duration is not as Go writes it: %s", body)
	}
}

func TestFailures(t *testing.T) {
	s := start(t, newBackend())
	for _, tt := range []struct {
		method, path, body string
		code               int
		reason, message    string
	}{
		{"GET", "/api", "", 404, "NotFound", "the server could not find the requested resource"},
		{"GET", "/apis/discovery.k8s.io/v1", "", 404, "NotFound", "the server could not find the requested resource"},
		{"GET", "/", "", 404, "NotFound", "the server could not find the requested resource"},
		{"POST", "/svcctl/v1/status", "", 405, "MethodNotAllowed", "POST is not allowed on /svcctl/v1/status: use GET"},
		{"DELETE", "/healthz", "", 405, "MethodNotAllowed", "DELETE is not allowed on /healthz: use GET"},
		{"GET", "/healthz", "hello", 400, "BadRequest", "GET takes no body: leave it out"},
		{"GET", "/svcctl/v1/wait", "", 400, "BadRequest", `for="": want synced or ready`},
		{"GET", "/svcctl/v1/wait?for=synced&timeout=5", "", 400, "BadRequest", `timeout="5": want a duration as 30s or 2m, at most 1h`},
		{"GET", "/svcctl/v1/wait?for=synced&timeout=-5s", "", 400, "BadRequest", `timeout="-5s": want a duration as 30s or 2m, at most 1h`},
		{"GET", "/svcctl/v1/wait?for=synced&revision=x", "", 400, "BadRequest", `revision="x": want a number`},
	} {
		req, err := http.NewRequest(tt.method, "http://svcctl"+tt.path, strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var f wire.Failure
		err = json.NewDecoder(resp.Body).Decode(&f)
		_ = resp.Body.Close()
		want := *wire.NewFailure(tt.code, tt.reason, tt.message)
		if err != nil || resp.StatusCode != tt.code || f != want {
			t.Errorf("%s %s: %d %+v (%v), want %+v", tt.method, tt.path, resp.StatusCode, f, err, want)
		}
	}
}

func TestWait(t *testing.T) {
	b := newBackend()
	s := start(t, b)
	b.set(func(b *backend) { b.ready = errors.New("not yet") })
	code, body := s.get(t, "/svcctl/v1/wait?for=ready&timeout=100ms")
	if code != 504 || !strings.Contains(body, "not ready after 100ms: not yet") {
		t.Errorf("wait for ready that does not come: %d %s", code, body)
	}
	b.set(func(b *backend) {
		b.status.Synced, b.status.Revision = false, wire.Revision{Accepted: 9, Programmed: 7}
	})
	code, body = s.get(t, "/svcctl/v1/wait?for=synced&timeout=100ms&revision=9")
	if code != 504 || !strings.Contains(body, "not synced after 100ms: revision 9 is accepted, 7 is programmed") {
		t.Errorf("wait for synced that does not come: %d %s", code, body)
	}
	if b.asked != 9 {
		t.Errorf("asked for revision %d, want 9", b.asked)
	}

	answers := make(chan int, 2)
	for _, cond := range []string{"ready", "synced"} {
		go func() {
			resp, err := s.client().Get("http://svcctl/svcctl/v1/wait?timeout=60s&for=" + cond)
			if err != nil {
				answers <- 0
				return
			}
			_ = resp.Body.Close()
			answers <- resp.StatusCode
		}()
	}
	select {
	case code := <-answers:
		t.Fatalf("answered %d too early", code)
	case <-time.After(100 * time.Millisecond): // real time: no answer comes meanwhile
	}
	b.set(func(b *backend) { b.ready = nil })
	close(b.synced)
	for range 2 {
		if code := <-answers; code != 200 {
			t.Errorf("wait answered %d", code)
		}
	}
}

func TestStopAnswersWaiters(t *testing.T) {
	t.Parallel()
	var srv *api.Server
	s := serve(t, newBackend(), api.Config{}, func(s *api.Server) { srv = s })
	idle, err := net.Dial("unix", s.socket) // a client that says nothing holds nobody up for long
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	answer := make(chan string, 1)
	go func() {
		resp, err := s.client().Get("http://svcctl/svcctl/v1/wait?for=synced&timeout=1m")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body) // half an answer does not match
		answer <- fmt.Sprint(resp.StatusCode, " ", string(body))
	}()
	for end := time.Now().Add(time.Minute); srv.Load().Watches == 0; time.Sleep(time.Millisecond) { // then both have been accepted, in their order
		if time.Now().After(end) {
			t.Fatal("the wait is not under way")
		}
	}
	if err := s.stop(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if got := <-answer; !strings.Contains(got, "503") || !strings.Contains(got, "not synced: the appliance is stopping") {
		t.Errorf("a waiter was told %q", got)
	}
	if _, err := os.Lstat(s.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestPeer(t *testing.T) {
	s := start(t, newBackend())
	s.get(t, "/healthz")
	_ = s.stop()
	if want := "path=/healthz code=200"; !strings.Contains(s.log.String(), want) {
		t.Errorf("the request is not logged:\n%s", s.log)
	}
	if want := fmt.Sprintf("uid=%d pid=%d", os.Getuid(), os.Getpid()); !strings.Contains(s.log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, s.log)
	}
}

// TestSlowClients opens more connections than there is room for, which send nothing,
// half a header, or keep-alive and nothing more.
func TestSlowClients(t *testing.T) {
	s := serve(t, newBackend(), api.Config{}, func(s *api.Server) { s.SetIdleTimeout(time.Hour) }) // so that an answer waits for room alone
	for i := range 600 {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		switch i % 3 {
		case 1:
			_, err = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: ")
		case 2:
			_, err = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: svcctl\r\n\r\n")
		}
		if err != nil && !errors.Is(err, net.ErrClosed) {
			t.Logf("connection %d: %v", i, err) // it had to go already
		}
		if i%50 == 49 {
			if code, _ := s.get(t, "/healthz"); code != 200 {
				t.Fatalf("with %d slow clients: %d", i, code)
			}
		}
	}
}

// TestTooManyRequests has as many requests under way as there is room for.
func TestTooManyRequests(t *testing.T) {
	release, begun := make(chan struct{}), make(chan struct{})
	slow := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	s := serve(t, newBackend(), api.Config{Objects: slow})
	var conns []net.Conn
	for range 256 {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /api HTTP/1.1\r\nHost: svcctl\r\n\r\n")
		conns = append(conns, conn)
		select {
		case <-begun: // a connection that no request has begun on gives way to the next one
		case <-time.After(time.Minute):
			t.Fatalf("request %d did not begin", len(conns))
		}
	}
	_, body := s.get(t, "/healthz")
	if !strings.Contains(body, "too many requests at once") {
		t.Fatalf("with %d requests another one was answered %q", len(conns), body)
	}
	close(release)
	answered := 0
	for _, conn := range conns {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if line, _ := bufio.NewReader(conn).ReadString('\n'); strings.Contains(line, "200") {
			answered++
		}
		_ = conn.Close()
	}
	if answered < 250 { // a check of ours that is still closing takes room too
		t.Errorf("%d requests were answered, want about 256", answered)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if code, _ := s.get(t, "/healthz"); code == 200 {
			return
		}
	}
	t.Error("no room again after the requests were answered")
}

// TestBodyHoldsNobody sends the headers of a request with a body, and no body.
func TestBodyHoldsNobody(t *testing.T) {
	t.Parallel()
	s := start(t, newBackend())
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: svcctl\r\nContent-Length: 100\r\n\r\n")
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestLargeHeader(t *testing.T) {
	t.Parallel()
	s := start(t, newBackend())
	req, _ := http.NewRequest("GET", "http://svcctl/healthz", nil)
	req.Header.Set("X-Large", strings.Repeat("x", 80<<10))
	resp, err := s.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("80 KiB of headers: %d", resp.StatusCode)
	}
}
