package healthport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/listen"
	"svcctl.io/svcctl/appliance/test/providertest"
)

const patience = time.Minute

var (
	local = netip.MustParseAddr("127.0.0.1")
	other = netip.MustParseAddr("127.0.0.2")
)

// start runs Servers that retry fast until the test ends, or stop is called.
func start(t *testing.T) (s *Servers, stop func()) {
	t.Helper()
	s = New(slog.New(slog.DiscardHandler))
	s.retry = 20 * time.Millisecond
	s.listeners = listen.NewReconciler[Problem](s.retry)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		t.Helper()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(stop)
	return s, stop
}

// freePort is a TCP port without a listener on any address, and that no client is given:
// the kernel gives them 32768 and up (net.ipv4.ip_local_port_range).
func freePort(t *testing.T) uint16 { t.Helper(); return uint16(providertest.FreePort(t)) }

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

type reply struct {
	status int
	body   string
	header http.Header
}

// ask asks without keeping the connection.
func ask(method string, addr netip.Addr, port uint16, path string) (reply, error) {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequest(method, "http://"+netip.AddrPortFrom(addr, port).String()+path, nil)
	if err != nil {
		return reply{}, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(body), resp.Header}, err
}

func answers(addr netip.Addr, port uint16) bool {
	_, err := ask("GET", addr, port, "/")
	return err == nil
}

func refuses(addr netip.Addr, port uint16) bool {
	_, err := ask("GET", addr, port, "/")
	return errors.Is(err, syscall.ECONNREFUSED)
}
