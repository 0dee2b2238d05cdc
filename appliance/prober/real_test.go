package prober

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// start runs a server of others, until the returned function or the end of the test stops it.
func start(t *testing.T, program string, args ...string) (stop func()) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	stop = func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its workers too
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// free is a port of a loopback address without a listener.
func free(t *testing.T) netip.AddrPort { t.Helper(); return closed(t, "127.0.0.1") }

// follow asks targets often, and waits for states.
func follow(t *testing.T, targets ...health.Target) (become func(string, ...health.State)) {
	t.Helper()
	p := New(Options{SourcePorts: DefaultPorts})
	var all []Request
	for _, x := range targets {
		all = append(all, Request{Target: x})
	}
	p.Set("default/web", all)
	run(t, p)
	return func(what string, want ...health.State) {
		t.Helper()
		var verdicts []health.Verdict
		for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			verdicts = verdicts[:0]
			same := true
			for i, x := range targets {
				v, _ := p.Verdict(x)
				verdicts = append(verdicts, v)
				same = same && v.State == want[i]
			}
			if same {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %+v, want %v", what, verdicts, want)
			}
		}
	}
}

// often is a check that a test can wait for.
func often(kind health.Kind) health.Check {
	return health.Check{Kind: kind, Interval: 200 * time.Millisecond, Timeout: 10 * time.Second, Rise: 2, Fall: 2}
}

// A server of nginx passes as its pages do, and its log has the checks by HTTP alone.
func TestNginx(t *testing.T) {
	dir, at := t.TempDir(), free(t)
	log := filepath.Join(dir, "access.log")
	write(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf(`daemon off; user root; pid %[1]s/pid; error_log %[1]s/error.log;
events {}
http {
  access_log %[2]s;
  client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  server { listen %[3]s; location = /healthz { return 200 "all is well"; } location = /sick { return 503; } location = /moved { return 301 http://169.254.169.254/; } }
}
`, dir, log, at))
	serving := often(health.HTTP)
	serving.Path, serving.Expect = "/healthz", "well"
	sick, moved := often(health.HTTP), often(health.HTTP)
	sick.Path, moved.Path = "/sick", "/moved"
	become := follow(t, health.Target{Addr: at, Check: often(health.TCP)}, health.Target{Addr: at, Check: serving},
		health.Target{Addr: at, Check: sick}, health.Target{Addr: at, Check: moved})
	become("before nginx", health.Down, health.Down, health.Down, health.Down)
	stop := start(t, "nginx", "-c", filepath.Join(dir, "nginx.conf"))
	become("nginx serves", health.Up, health.Up, health.Down, health.Up)
	stop()
	become("after nginx", health.Down, health.Down, health.Down, health.Down)
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		if !strings.Contains(line, "HTTP/1.1\" ") || !strings.Contains(line, "svcctl-health") {
			t.Errorf("nginx logs %s", line)
		}
	}
	if len(lines) == 0 {
		t.Error("nginx logs nothing: it was not asked")
	}
}

// The frontends are in TCP and in HTTP mode; without a server behind it, it answers 503.
func TestHAProxy(t *testing.T) {
	dir, web, pass := t.TempDir(), free(t), free(t)
	file := filepath.Join(dir, "haproxy.cfg")
	write(t, file, fmt.Sprintf(`defaults
  timeout connect 5s
  timeout client 30s
  timeout server 30s
frontend web
  mode http
  bind %s
  use_backend nobody if { path /nobody }
  http-request return status 200 content-type text/plain string ok if { path / }
frontend pass
  mode tcp
  bind %s
  default_backend none
backend nobody
  mode http
backend none
  mode tcp
`, web, pass))
	nobody := often(health.HTTP)
	nobody.Path = "/nobody"
	become := follow(t, health.Target{Addr: web, Check: often(health.HTTP)}, health.Target{Addr: pass, Check: often(health.TCP)},
		health.Target{Addr: web, Check: nobody})
	become("before haproxy", health.Down, health.Down, health.Down)
	stop := start(t, "haproxy", "-db", "-f", file)
	become("haproxy serves", health.Up, health.Up, health.Down)
	stop()
	become("after haproxy", health.Down, health.Down, health.Down)
}

// A server made with grpc-go, which etcd is, serves the empty name, and knows no service of another.
func TestEtcd(t *testing.T) {
	dir, at, peer := t.TempDir(), free(t), free(t)
	unknown := often(health.GRPC)
	unknown.Name = "nobody"
	become := follow(t, health.Target{Addr: at, Check: often(health.GRPC)}, health.Target{Addr: at, Check: unknown})
	become("before etcd", health.Down, health.Down)
	stop := start(t, "etcd", "--data-dir", dir, "--listen-client-urls", "http://"+at.String(), "--advertise-client-urls", "http://"+at.String(),
		"--listen-peer-urls", "http://"+peer.String(), "--initial-advertise-peer-urls", "http://"+peer.String(),
		"--initial-cluster", "default=http://"+peer.String(), "--unsafe-no-fsync", "--log-level", "error")
	become("etcd serves", health.Up, health.Down)
	target := health.Target{Addr: at, Check: unknown}
	target.Check.Rise, target.Check.Fall = 1, 1
	if r, _ := first(t, target); r.Why != "gRPC status 5: the server does not have this service" {
		t.Errorf("of a service that it does not know: %+v", r)
	}
	stop()
	become("after etcd", health.Down, health.Down)
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
