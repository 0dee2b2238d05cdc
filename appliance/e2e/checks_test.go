package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// checkedAt is a Service whose endpoints are on L1 and R1 and are asked for /healthz at a port of
// their own. n is of its cluster IP.
func (b *box) checkedAt(f family, n, port int) []string {
	name := fmt.Sprintf("web%d", n)
	return []string{
		"apiVersion: v1\nkind: Service\nmetadata:\n  name: " + f.name(name) + "\n  annotations:\n" +
			fmt.Sprintf("    svcctl.io/health-check: http:%d/healthz\n", port) +
			"    svcctl.io/health-check-interval: 300ms\n    svcctl.io/health-check-timeout: 2s\n" +
			"spec:\n" + indent([]string{"ipFamilies: [" + f.String() + "]", "clusterIP: " + f.vip(n), "ports: [{name: p80, port: 80}]"}),
		f.slice(name, "p80: 80", b.L1, b.R1),
	}
}

// comesTo waits until new connections are answered by some endpoints, and asserts then that none fails.
func (b *box) comesTo(t *testing.T, f family, n int, hosts ...*netlab.Host) {
	t.Helper()
	at := f.on(80, hosts...)
	eventually(t, time.Minute, func() error { return b.tryReaches(b.IN, "tcp", f.at(f.vip(n), 80), plain, at...) })
	const enough = 60 // an endpoint of four that fails is missed with a probability of 3e-8
	if tally := b.IN.AskMany(enough, "tcp", f.at(f.vip(n), 80), patiently); len(tally.Failures) > 0 {
		t.Errorf("%s: after that connections fail: %s", f, tally)
	}
}

// healthServer is an HTTP server that fails as it is told.
type healthServer struct{ mode atomic.Value }

// How a healthServer fails.
const (
	healthy  = "answers"
	serves5  = "serves an error"
	hangs    = "hangs after accept"
	trickles = "trickles its answer"
	closes   = "closes at once"
	lingers  = "answers after a second"
)

// healthAt serves a port of a host in both families.
func healthAt(t *testing.T, h *netlab.Host, port uint16) *healthServer {
	t.Helper()
	s := &healthServer{}
	s.mode.Store(healthy)
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { _ = server.Close() })
	for _, f := range families {
		var listener net.Listener
		at := f.on(port, h)[0]
		if err := h.Do(func() (err error) {
			listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		go func() { _ = server.Serve(listener) }()
	}
	return s
}

func (s *healthServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mode := s.mode.Load()
	switch mode {
	case serves5:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case healthy, lingers:
		if mode == lingers {
			time.Sleep(time.Second) // real time: the server is slow
		}
		if r.URL.Path == "/healthz" && r.Host != "" {
			_, _ = io.WriteString(w, "ok")
			return
		}
		w.WriteHeader(http.StatusNotFound)
		return
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if mode == closes {
		return
	}
	for range 600 { // a minute, or until the check goes away
		if mode == trickles {
			if _, err := io.WriteString(conn, "H"); err != nil {
				return
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

func Test167_servers_that_fail_over_http(t *testing.T) {
	b := newBox(t, nil)
	modes := []string{serves5, hangs, trickles, closes}
	var left, right []*healthServer
	for i := range modes {
		left = append(left, healthAt(t, b.L1, uint16(9000+i)))
		right = append(right, healthAt(t, b.R1, uint16(9000+i)))
	}
	b.write("web.yaml", func(f family) (documents []string) {
		for i := range modes {
			documents = append(documents, b.checkedAt(f, 41+i, 9000+i)...)
		}
		return documents
	})
	b.svcctl.Start()
	come := func(hosts ...*netlab.Host) {
		t.Helper()
		for i := range modes {
			b.each(t, func(t *testing.T, b *box, f family) { b.comesTo(t, f, 41+i, hosts...) })
		}
	}
	come(b.L1, b.R1)
	for i, mode := range modes {
		left[i].mode.Store(mode)
	}
	come(b.R1)
	// Nobody answers as it should: all are used, until one does.
	for i, mode := range modes {
		right[i].mode.Store(mode)
	}
	come(b.L1, b.R1)
	for i := range modes {
		left[i].mode.Store(healthy)
	}
	come(b.L1)
}

// program is a server of another project on a host, stopped when the test is over.
type program struct {
	start   []string
	host    *netlab.Host
	pidFile string
}

func (p *program) run(t *testing.T) {
	t.Helper()
	if _, errOut, err := p.host.Run(p.start[0], p.start[1:]...); err != nil {
		t.Fatalf("%s: %v: %s", p.start[0], err, errOut)
	}
}

// signal sends a signal to the program, if it runs.
func (p *program) signal(t *testing.T, s unix.Signal) {
	t.Helper()
	text, err := os.ReadFile(p.pidFile)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
			_ = unix.Kill(pid, s)
		}
	}
}

// stop ends it and waits until it is gone.
func (p *program) stop(t *testing.T) {
	t.Helper()
	p.signal(t, unix.SIGTERM)
	eventually(t, time.Minute, func() error {
		text, err := os.ReadFile(p.pidFile)
		if err != nil {
			return nil
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err == nil && unix.Kill(pid, 0) == nil {
			return fmt.Errorf("%s still runs", p.start[0])
		}
		return nil
	})
	_ = os.Remove(p.pidFile)
}

const nginxConfig = `
pid %[1]s/nginx.pid;
error_log %[1]s/nginx.log;
worker_processes 1;
events {}
http {
	access_log off;
	server {
		listen %[2]s;
		listen %[3]s;
		location /healthz { return %[4]d "healthy"; }
	}
}
`

const haproxyConfig = `
global
	maxconn 100
defaults
	mode http
	timeout client 10s
	timeout connect 10s
	timeout server 10s
frontend health
	bind %s
	bind %s
	http-request return status 200 content-type text/plain string healthy if { path /healthz }
	http-request return status 404
`

func Test168_nginx_and_haproxy(t *testing.T) {
	b := newBox(t, nil)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	nginxOf := func(status int) string {
		return write("nginx.conf", fmt.Sprintf(nginxConfig, dir, ipv4.on(9000, b.L1)[0], ipv6.on(9000, b.L1)[0], status))
	}
	nginx := &program{host: b.L1, pidFile: filepath.Join(dir, "nginx.pid"), start: []string{"nginx", "-e", filepath.Join(dir, "nginx.log"), "-c", nginxOf(200)}}
	haproxy := &program{host: b.R1, pidFile: filepath.Join(dir, "haproxy.pid"), start: []string{
		"haproxy", "-D", "-p", filepath.Join(dir, "haproxy.pid"), "-f", write("haproxy.cfg", fmt.Sprintf(haproxyConfig, ipv4.on(9000, b.R1)[0], ipv6.on(9000, b.R1)[0]))}}
	for _, p := range []*program{nginx, haproxy} {
		p.run(t)
		t.Cleanup(func() { p.signal(t, unix.SIGCONT); p.stop(t) })
	}
	b.write("web.yaml", func(f family) []string { return b.checkedAt(f, 41, 9000) })
	b.svcctl.Start()
	both := func(hosts ...*netlab.Host) {
		t.Helper()
		b.each(t, func(t *testing.T, b *box, f family) { b.comesTo(t, f, 41, hosts...) })
	}
	both(b.L1, b.R1)
	nginxOf(503)
	nginx.signal(t, unix.SIGHUP)
	both(b.R1)
	nginxOf(200)
	nginx.signal(t, unix.SIGHUP)
	both(b.L1, b.R1)
	nginx.stop(t)
	both(b.R1)
	nginx.run(t)
	both(b.L1, b.R1)
	haproxy.signal(t, unix.SIGSTOP)
	both(b.L1)
	haproxy.signal(t, unix.SIGCONT)
	both(b.L1, b.R1)
}
