package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// backend is an appliance that is never synced.
type backend struct{}

func (backend) Status() wire.Status { return wire.Status{NodeName: "gw1"} }
func (backend) Healthy() error      { return nil }
func (backend) Release(context.Context) (wire.Released, error) {
	return wire.Released{Services: 3}, nil
}
func (backend) Ready() error { return nil }
func (backend) Synced(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

// serve serves h, or the real API for nil, and returns the socket.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	log := slog.New(slog.DiscardHandler)
	srv := api.New(api.Config{Socket: api.Socket{Path: socket}, Version: "v0.1.0"}, backend{}, log)
	if h == nil {
		h = srv.Handler()
	}
	ln, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, ln, h, log, nil) }()
	t.Cleanup(func() { cancel(); <-served })
	return socket
}

func TestCalls(t *testing.T) {
	c := client.New(serve(t, nil))
	if s, err := c.Status(t.Context()); err != nil || s.NodeName != "gw1" {
		t.Errorf("Status: %+v, %v", s, err)
	}
	if v, err := c.Version(t.Context()); err != nil || v.GitVersion != "v1.37.0+svcctl.0.1.0" {
		t.Errorf("Version: %+v, %v", v, err)
	}
	if s, err := c.Wait(t.Context(), client.Ready, time.Second); err != nil || s.NodeName != "gw1" {
		t.Errorf("Wait for ready: %+v, %v", s, err)
	}
	if r, err := client.Call(t.Context(), c, wire.Release, wire.None{}); err != nil || r.Services != 3 {
		t.Errorf("Release: %+v, %v", r, err)
	}
	_, err := c.Wait(t.Context(), client.Synced, 50*time.Millisecond)
	if f, ok := errors.AsType[*wire.Failure](err); !ok || f.Reason != wire.ReasonTimeout {
		t.Errorf("Wait for synced: %v", err)
	}
	if client.NotRunning(err) {
		t.Error("an appliance that answered is said not to run")
	}
}

func TestUnreachable(t *testing.T) {
	for name, socket := range map[string]string{
		"no socket": filepath.Join(t.TempDir(), "none"),
		"left over": leftOver(t),
	} {
		_, err := client.New(socket).Status(t.Context())
		if e, ok := errors.AsType[*client.UnreachableError](err); !ok || e.Socket != socket || !client.NotRunning(err) ||
			!strings.HasPrefix(err.Error(), "cannot reach the appliance at "+socket+": is `svcctl serve` running?") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// leftOver is a socket without a listener.
func leftOver(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	return socket
}

// TestStrangers has servers that are no appliance, or one that breaks.
func TestStrangers(t *testing.T) {
	answer := func(code int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		})
	}
	for _, tt := range []struct {
		name string
		h    http.Handler
		want string
	}{
		{"refusal", answer(503, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the disk is full","reason":"ServiceUnavailable","code":503}`), "the disk is full"},
		{"web server", answer(404, "<html>"), "the server answered 404 Not Found: is it svcctl that serves there?"},
		{"text", answer(200, "hello"), "is it an svcctl of the same version that serves there?"},
		{"hang-up", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "no answer from the appliance at "},
	} {
		_, err := client.New(serve(t, tt.h)).Status(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "http://") {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

func TestContext(t *testing.T) {
	socket := serve(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // real time: nothing is synced meanwhile
	defer cancel()
	if _, err := client.New(socket).Wait(ctx, client.Synced, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 150*time.Millisecond) // real time: nobody serves meanwhile
	defer cancel()
	if _, err := client.New(filepath.Join(t.TempDir(), "none")).Wait(ctx, client.Synced, time.Minute); err == nil {
		t.Errorf("Wait for nobody: %v", err)
	}
}
