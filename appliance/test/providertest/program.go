package providertest

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/test/pki"
)

// Program is a server that a test runs.
type Program struct {
	t       testing.TB
	args    []string
	ready   func() error
	end     syscall.Signal
	running *exec.Cmd
}

// Run starts a program and waits until it is ready; the test ends it by a signal.
func Run(t testing.TB, end syscall.Signal, ready func() error, args ...string) *Program {
	t.Helper()
	p := &Program{t: t, args: args, ready: ready, end: end}
	t.Cleanup(p.stop)
	p.start()
	return p
}

// Restart ends the program and starts it again.
func (p *Program) Restart() {
	p.t.Helper()
	p.stop()
	p.start()
}

func (p *Program) start() {
	p.t.Helper()
	log, err := os.CreateTemp(p.t.TempDir(), "log")
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.running = exec.Command(p.args[0], p.args[1:]...)
	p.running.Stdout, p.running.Stderr = log, log
	p.running.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: p.end}
	if err := p.running.Start(); err != nil {
		p.t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // real time: another program starts
		err := p.ready()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			p.t.Fatalf("%s is not ready: %v\n%s", p.args[0], err, text)
		}
	}
}

func (p *Program) stop() {
	if p.running == nil {
		return
	}
	_ = p.running.Process.Signal(p.end)
	late := time.AfterFunc(patience, func() { _ = p.running.Process.Kill() }) // real time: another program ends
	defer late.Stop()
	_ = p.running.Wait()
	p.running = nil
}

// Server returns the configuration of a server with Certificates that asks its clients for theirs; it is also that of a client.
func Server(t testing.TB, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// FreePort returns a port of 127.0.0.1 for TCP and UDP, of this test alone until it ends. It is below those that the kernel gives by itself,
// and no other test process has it: the name of an abstract socket reserves it.
func FreePort(t testing.TB) int {
	t.Helper()
	const from, to = 10000, 32768
	for range 1000 {
		port := from + rand.IntN(to-from)
		at := fmt.Sprintf("127.0.0.1:%d", port)
		reserved, err := net.Listen("unix", fmt.Sprintf("@svcctl-test-port-%d", port))
		if err != nil {
			continue
		}
		tcp, err := net.Listen("tcp", at)
		if err == nil {
			_ = tcp.Close()
			var udp net.PacketConn
			if udp, err = net.ListenPacket("udp", at); err == nil {
				_ = udp.Close()
				t.Cleanup(func() { _ = reserved.Close() })
				return port
			}
		}
		_ = reserved.Close()
	}
	t.Fatal("no port is free")
	return 0
}

// Mutual follows a server that asks its clients for certificates: without one, with that of another authority, with a server of another
// name, and after the files were replaced. env returns the variables for a CA, a certificate and its key, and the name of the server;
// closed ends the connections of the server. It returns the following that has an answer.
func Mutual(t *testing.T, dir string, open func(provider.Config) (provider.Provider, error), env func(ca, cert, key, name string) map[string]string, closed func()) *Following {
	t.Helper()
	file := func(name string) string { return filepath.Join(dir, name) }
	other := Certificates(t)
	follow := func(ca, cert, key, name string) *Following {
		t.Helper()
		p, err := open(provider.Config{Env: env(ca, cert, key, name)})
		if err != nil {
			t.Fatal(err)
		}
		return Follow(t, p, "web")
	}
	for _, f := range []*Following{
		follow(file("ca.pem"), "", "", ""),
		follow(file("ca.pem"), filepath.Join(other, "cert.pem"), filepath.Join(other, "key.pem"), ""),
		follow(filepath.Join(other, "ca.pem"), file("cert.pem"), file("key.pem"), ""),
		follow(file("ca.pem"), file("cert.pem"), file("key.pem"), "elsewhere.test"),
	} {
		f.Fails("")
		if all := f.Failures(); !strings.Contains(all[0].Error(), "certificate") && !strings.Contains(all[0].Error(), "tls: ") || len(f.Answers()) > 0 {
			t.Errorf("%v, and %d answers", all[0], len(f.Answers()))
		}
		f.Stop()
	}
	mine := t.TempDir()
	replace := func(from string) {
		t.Helper()
		for _, name := range []string{"cert.pem", "key.pem"} {
			text, err := os.ReadFile(filepath.Join(from, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(mine, name), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	replace(dir)
	f := follow(file("ca.pem"), filepath.Join(mine, "cert.pem"), filepath.Join(mine, "key.pem"), "localhost")
	f.wait("an answer", func() bool { return len(f.answers) > 0 })
	replace(other)
	closed()
	f.Fails("")
	f.Fresh(func() { replace(dir) })
	return f
}

// Certificates writes ca.pem, and cert.pem and key.pem of a server at 127.0.0.1 and of its clients.
func Certificates(t testing.TB, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	authority := pki.Issue(t, nil, begin, end, "authority")
	ca, _ := pki.PEM(t, authority)
	cert, key := pki.PEM(t, pki.Issue(t, authority, begin, end, append([]string{"localhost", "127.0.0.1"}, names...)...))
	for name, text := range map[string][]byte{"ca.pem": ca, "cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
