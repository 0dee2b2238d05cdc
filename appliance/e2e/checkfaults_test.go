package e2e

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"

	"svcctl.io/svcctl/appliance/netlab"
)

// Numbers of health checks.
const (
	fellDown = `svcctl_health_transitions_total{to="down"}`
	inFlight = "svcctl_health_checks_in_flight"
)

// outcome is the number of checks of a type that came to a result.
func outcome(kind, result string) string {
	return fmt.Sprintf("svcctl_health_checks_total{result=%q,type=%q}", result, kind)
}

// askedOften is a Service of n endpoints at L1, by ports from first on; a single failure is enough.
func (b *box) askedOften(f family, name, check string, vip, first, n int, settings ...string) []string {
	var ports, slices []string
	for i := range n {
		ports = append(ports, fmt.Sprintf("{name: p%d, port: %d}", i, 80+i))
		slices = append(slices, fmt.Sprintf("p%d: %d", i, first+i))
	}
	annotations := append([]string{"svcctl.io/health-check: " + check, `svcctl.io/health-check-unhealthy-threshold: "1"`}, settings...)
	return []string{
		"apiVersion: v1\nkind: Service\nmetadata:\n  name: " + f.name(name) + "\n  annotations:\n    " + strings.Join(annotations, "\n    ") +
			"\nspec:\n" + indent([]string{"ipFamilies: [" + f.String() + "]", "clusterIP: " + f.vip(vip), "ports: [" + strings.Join(ports, ", ") + "]"}),
		f.slice(name, strings.Join(slices, ", "), b.L1),
	}
}

// goesOn waits until so many more checks came to a result.
func (b *box) goesOn(t *testing.T, name string, more int) {
	t.Helper()
	before := b.metric(t, name)
	eventually(t, time.Minute, func() error {
		if now := b.metric(t, name); now < before+more {
			return fmt.Errorf("%s grew from %d to %d, want %d more", name, before, now, more)
		}
		return nil
	})
}

// occupy has other programs use all CPUs until end is called, or the test ends.
func occupy(t *testing.T) (end func()) {
	t.Helper()
	var loops []*exec.Cmd
	end = sync.OnceFunc(func() {
		for _, loop := range loops {
			_ = loop.Process.Kill()
			_ = loop.Wait() // it was killed
		}
	})
	t.Cleanup(end)
	for range runtime.NumCPU() {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		loops = append(loops, loop)
	}
	return end
}

// The servers take a second to answer, so that checks are under way when the appliance stops, for
// longer than a check may take.
func Test170_stopped_for_a_while(t *testing.T) {
	b := newBox(t, metered)
	for i := range 4 {
		healthAt(t, b.L1, uint16(9000+i)).mode.Store(lingers)
	}
	b.write("web.yaml", func(f family) []string {
		return append(b.askedOften(f, "slow", "http/healthz", 41, 9000, 4, "svcctl.io/health-check-interval: 300ms", "svcctl.io/health-check-timeout: 3500ms"),
			b.askedOften(f, "tcp", "tcp", 42, 9000, 4, "svcctl.io/health-check-interval: 300ms", "svcctl.io/health-check-timeout: 1s")...)
	})
	b.svcctl.Start()
	b.goesOn(t, outcome("http", "pass"), 16)
	void := b.metric(t, outcome("http", "void"))
	// found reports whether a check was under way when the appliance stopped.
	found := func() bool { return b.metric(t, outcome("http", "void")) > void }
	for round := 0; round < 2 || round < 10 && !found(); round++ { // on a busy machine those that are counted may be over when it stops
		eventually(t, time.Minute, func() error {
			if n := b.metric(t, inFlight); n < 4 {
				return fmt.Errorf("%d checks are under way", n)
			}
			return nil
		})
		b.freeze(t)
		time.Sleep(4 * time.Second) // real time: longer than a check may take
		end := occupy(t)            // from before it goes on: what is judged then is judged on a busy machine
		b.svcctl.Signal(syscall.SIGCONT)
		b.goesOn(t, outcome("http", "pass"), 16)
		b.goesOn(t, outcome("tcp", "pass"), 16)
		end()
	}
	if !found() {
		t.Error("nothing was under way when it stopped: the test shows nothing")
	}
	if n := b.metric(t, fellDown); n != 0 {
		t.Errorf("%d endpoints were taken for down, by a process that stood still:\n%s", n, b.svcctl.Log())
	}
}

// There are more checks under way than descriptors.
func Test171_few_descriptors(t *testing.T) {
	const ports = 60
	b := newBox(t, metered)
	b.svcctl.Wrapper = []string{"prlimit", "--nofile=64:64"}
	for i := range ports {
		healthAt(t, b.L1, uint16(9000+i)).mode.Store(lingers)
	}
	b.write("web.yaml", func(f family) []string {
		return b.askedOften(f, "web", "http/healthz", 41, 9000, ports, "svcctl.io/health-check-interval: 1s", "svcctl.io/health-check-timeout: 30s")
	})
	b.svcctl.Start()
	// The API needs descriptors as well, and does not get one at every time.
	eventually(t, time.Minute, func() error {
		out, errOut, _ := b.svcctl.Svcctl("status", "-o", "json")
		if !strings.Contains(out, "CheckNotMade") || !strings.Contains(out, "too many open files") {
			return fmt.Errorf("svcctl status: %s%s", out, errOut)
		}
		return nil
	})
	numbers := map[string]int{}
	eventually(t, time.Minute, func() (err error) {
		for _, name := range []string{outcome("http", "pass"), outcome("http", "void"), outcome("http", "refused"), outcome("http", "silent"), fellDown} {
			if numbers[name], err = b.tryMetric(name); err != nil {
				return err
			}
		}
		if n := numbers[outcome("http", "pass")]; n < 3*2*ports {
			return fmt.Errorf("%d checks passed", n)
		}
		return nil
	})
	if numbers[outcome("http", "void")] == 0 || numbers[outcome("http", "refused")]+numbers[outcome("http", "silent")]+numbers[fellDown] > 0 {
		t.Errorf("endpoints were judged by the descriptors of the box: %v", numbers)
	}
}

// certified serves HTTPS at a port of a host in both families until the test ends, or the function
// is called that it returns.
func certified(t *testing.T, h *netlab.Host, port uint16, certificate *tls.Certificate) (stop func()) {
	t.Helper()
	server := &http.Server{
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*certificate}}, ReadHeaderTimeout: time.Minute,
	}
	for _, f := range families {
		var listener net.Listener
		eventually(t, time.Minute, func() error { // a process that another test forks holds closed sockets until it is executed
			return h.Do(func() (err error) {
				listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(f.on(port, h)[0]))
				return err
			})
		})
		go func() { _ = server.ServeTLS(listener, "", "") }()
	}
	t.Cleanup(func() { _ = server.Close() })
	return func() { _ = server.Close() }
}

// certificateOf is a certificate of web.example, signed by an authority, or an authority if there is none.
func certificateOf(t *testing.T, until time.Time, by *tls.Certificate) *tls.Certificate {
	t.Helper()
	return pki.Issue(t, by, time.Now().Add(-48*time.Hour), until, "web.example")
}

// One Service has certificates verified, the other does not.
func Test172_expired_certificate(t *testing.T) {
	b := newBox(t, nil)
	authority := certificateOf(t, time.Now().AddDate(1, 0, 0), nil)
	good := certificateOf(t, time.Now().AddDate(1, 0, 0), authority)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate[0]}), 0o600); err != nil {
		t.Fatal(err)
	}
	b.svcctl.Wrapper = []string{"env", "SSL_CERT_FILE=" + roots}
	stop := certified(t, b.L1, 9443, good)
	certified(t, b.R1, 9443, good)
	b.write("web.yaml", func(f family) []string {
		var all []string
		for n, verify := range map[int]string{41: "true", 42: "false"} {
			checked := strings.NewReplacer("http:9443/healthz",
				"https:9443/healthz\n    svcctl.io/health-check-host: web.example\n    svcctl.io/health-check-verify: "+fmt.Sprintf("%q", verify),
				"timeout: 2s", "timeout: 30s") // a busy machine takes its time for a handshake
			all = append(all, checked.Replace(b.checkedAt(f, n, 9443)[0]), b.checkedAt(f, n, 9443)[1])
		}
		return all
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		b.comesTo(t, f, 41, b.L1, b.R1)
		b.comesTo(t, f, 42, b.L1, b.R1)
	})
	stop()
	stop = certified(t, b.L1, 9443, certificateOf(t, time.Now().Add(-24*time.Hour), authority))
	b.each(t, func(t *testing.T, b *box, f family) {
		b.hasProblem(t, f.object("Service", "web41"), "EndpointDown", "the certificate has expired or is not valid yet")
		b.comesTo(t, f, 41, b.R1)
		b.comesTo(t, f, 42, b.L1, b.R1)
	})
	stop()
	certified(t, b.L1, 9443, good)
	b.each(t, func(t *testing.T, b *box, f family) { b.comesTo(t, f, 41, b.L1, b.R1) })
}

// Targets that are silent, from before their fall to long after it, fill no table.
func Test173_silent_targets_in_the_table_of_connections(t *testing.T) {
	const ports, rounds = 20, 15
	b := newBox(t, metered)
	b.L1.Nft("add table inet silent; add chain inet silent input { type filter hook input priority 0; }; add rule inet silent input tcp dport 9000-9199 drop")
	b.write("web.yaml", func(f family) []string {
		var all []string
		for i, check := range []string{"tcp", "http"} {
			all = append(all, b.askedOften(f, check, check, 41+i, 9000+100*i, ports, "svcctl.io/health-check-interval: 300ms", "svcctl.io/health-check-timeout: 200ms")...)
		}
		return all
	})
	b.svcctl.Start()
	for _, kind := range []string{"tcp", "http"} {
		b.goesOn(t, outcome(kind, "silent"), rounds*2*ports)
	}
	count := map[netip.AddrPort]int{}
	for e := range b.entries(t) {
		count[e.to]++
	}
	for _, f := range families {
		for i := range ports {
			for _, first := range []int{9000, 9100} {
				at := f.on(uint16(first+i), b.L1)[0]
				if n := count[at]; n < 1 || n > 3 {
					t.Errorf("%s was asked %d times or so, and has %d entries in the table of connections, want 1 to 3", at, rounds, n)
				}
			}
		}
	}
}
