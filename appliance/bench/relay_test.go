package bench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// relayBench is a box with two relays to the same endpoint: an appliance with a Service in userspace mode, and
// haproxy in TCP mode with splice. Clients and the endpoint are this process, in other namespaces.
type relayBench struct {
	gw, client, server *netlab.Host
	ways               []*relayWay
	mu                 sync.Mutex
	held               []net.Conn // of the endpoint
}

// relayWay is one of the relays. The first one of a bench is haproxy.
type relayWay struct {
	name, pid string
	to        netip.AddrPort
	http      netip.AddrPort             // where it passes requests on, if it does
	took      map[string][]time.Duration // CPU times of the process, round by round, by what they are of
}

const (
	haproxyRelay = `
global
	maxconn 4000
defaults
	mode tcp
	option splice-auto
	timeout connect 5s
	timeout client 1h
	timeout server 1h
listen relay
	bind %s
	server one %s
`
	relayedService = `
apiVersion: v1
kind: Service
metadata: {name: relayed, annotations: {svcctl.io/proxy-mode: userspace}}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: relayed, labels: {kubernetes.io/service-name: relayed}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.9.2.2]}]
`
)

// What a client asks the endpoint for, by its first byte.
const (
	askShort = 's' // so many bytes back
	askBulk  = 'b' // bulkBytes back
	askIdle  = 'i' // a byte back, and then nothing

	shortBytes = 1000
	bulkBytes  = 256 << 20
	shorts     = 2000 // connections of a turn
	together   = 8    // connections at a time
)

func newRelayBench(b *testing.B) *relayBench {
	b.Helper()
	x := newRelayLab(b)
	at := netip.MustParseAddrPort("10.9.1.1:9000")
	svcctl := x.appliance(b, relayedService)
	x.addWay("haproxy", x.haproxy(b, fmt.Sprintf(haproxyRelay, at, "10.9.2.2:8080")), at, netip.AddrPort{})
	x.addWay("svcctl", svcctl, vip, netip.AddrPort{})
	return x
}

// newRelayLab is a bench without relays.
func newRelayLab(b *testing.B) *relayBench {
	b.Helper()
	lab := netlab.New(b)
	x := &relayBench{gw: lab.Host("gw"), client: lab.Host("client"), server: lab.Host("server")}
	lab.Segment("out").Attach(x.gw, "out0", "10.9.1.1/24").Attach(x.client, "eth0", "10.9.1.2/24")
	lab.Segment("in").Attach(x.gw, "in0", "10.9.2.1/24").Attach(x.server, "eth0", "10.9.2.2/24")
	x.client.Route("10.96.0.0/12", "10.9.1.1")
	x.serve(b)
	return x
}

// appliance starts one with a manifest.
func (x *relayBench) appliance(b *testing.B, manifest string) (pid int) {
	b.Helper()
	svcctl := x.gw.Appliance(*program, boxFlags...)
	svcctl.Manifests.Write("relayed.yaml", manifest)
	svcctl.Start()
	return svcctl.PID()
}

// haproxy runs one until the end.
func (x *relayBench) haproxy(b *testing.B, config string) (pid int) {
	b.Helper()
	dir := b.TempDir()
	path, pidFile := filepath.Join(dir, "haproxy.cfg"), filepath.Join(dir, "haproxy.pid")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	if _, errOut, err := x.gw.Run("haproxy", "-D", "-p", pidFile, "-f", path); err != nil {
		b.Fatalf("haproxy: %v: %s", err, errOut)
	}
	text, err := os.ReadFile(pidFile)
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return pid
}

func (x *relayBench) addWay(name string, pid int, to, http netip.AddrPort) {
	x.ways = append(x.ways, &relayWay{name: name, pid: strconv.Itoa(pid), to: to, http: http, took: map[string][]time.Duration{}})
}

// serve answers at the endpoint.
func (x *relayBench) serve(b *testing.B) {
	b.Helper()
	var l net.Listener
	if err := x.server.Do(func() (err error) { l, err = net.Listen("tcp4", "10.9.2.2:8080"); return err }); err != nil {
		b.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { x.answer(c) })
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		x.mu.Lock()
		for _, c := range x.held {
			_ = c.Close()
		}
		x.mu.Unlock()
		all.Wait()
	})
}

func (x *relayBench) answer(c net.Conn) {
	question := make([]byte, 100)
	if _, err := io.ReadFull(c, question); err != nil {
		_ = c.Close()
		return
	}
	switch question[0] {
	case askShort:
		_, _ = c.Write(make([]byte, shortBytes)) // the client sees what is missing
	case askBulk:
		piece := make([]byte, 1<<20)
		for range bulkBytes / len(piece) {
			if _, err := c.Write(piece); err != nil {
				break
			}
		}
	case askIdle:
		_, _ = c.Write([]byte{1})
		x.mu.Lock()
		x.held = append(x.held, c)
		x.mu.Unlock()
		return
	}
	_ = c.Close()
}

func (x *relayBench) dial(to netip.AddrPort) (c net.Conn, err error) {
	err = x.client.Do(func() error {
		c, err = net.DialTimeout("tcp4", to.String(), patience)
		return err
	})
	return c, err
}

// ask opens a connection, and takes so many bytes.
func (x *relayBench) ask(to netip.AddrPort, what byte, want int64) (net.Conn, error) {
	c, err := x.dial(to)
	if err != nil {
		return nil, err
	}
	if err := take(c, what, want); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// take asks the endpoint for so many bytes.
func take(c net.Conn, what byte, want int64) error {
	question := make([]byte, 100)
	question[0] = what
	_, err := c.Write(question)
	if err == nil {
		_, err = io.CopyN(io.Discard, c, want)
	}
	return err
}

// parallel does something so many times, a few at a time, until it fails.
func parallel(b *testing.B, times int, do func() error) {
	var all sync.WaitGroup
	for range together {
		all.Go(func() {
			for range times / together {
				if err := do(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// measure notes the CPU time of a way's process for so many of something.
func (w *relayWay) measure(b *testing.B, what string, many time.Duration, do func()) {
	b.Helper()
	before := cpuOf(b, w.pid)
	do()
	w.took[what] = append(w.took[what], (cpuOf(b, w.pid)-before)/many)
}

// compare has each way measured in turn, round by round, and adds each thing that was to a section.
func (x *relayBench) compare(section string, measure func(w *relayWay), whats ...string) {
	for round := range *rounds + 1 {
		for _, w := range x.ways {
			if measure(w); round == 0 { // it warms up
				clear(w.took)
			}
		}
	}
	for _, what := range whats {
		for _, w := range x.ways {
			results.add(section, w.name+": "+what, ms(median(w.took[what])), fmt.Sprintf("%.2fx haproxy", median(ratios(w.took[what], x.ways[0].took[what]))))
		}
	}
}

const bulkMiBs = bulkBytes >> 20

// BenchmarkRelay compares what a relayed connection costs the process with what it costs haproxy.
func BenchmarkRelay(b *testing.B) {
	x := newRelayBench(b)
	const aShort, aMiB = "a short connection", "a MiB in bulk"
	x.compare("Relayed connections: CPU of the process", func(w *relayWay) {
		w.measure(b, aShort, shorts, func() { x.shorts(b, w.to) })
		w.measure(b, aMiB, bulkMiBs, func() {
			c, err := x.ask(w.to, askBulk, bulkBytes)
			if err != nil {
				b.Fatal(err)
			}
			_ = c.Close()
		})
	}, aShort, aMiB)
	for _, w := range x.ways {
		x.idle(b, w)
	}
}

// shorts makes the short connections of a turn.
func (x *relayBench) shorts(b *testing.B, to netip.AddrPort) {
	parallel(b, shorts, func() error {
		c, err := x.ask(to, askShort, shortBytes)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, c) // until the end
		return c.Close()
	})
}

// idle measures the cost of idle connections: as many as the limit of open files allows here.
func (x *relayBench) idle(b *testing.B, w *relayWay) {
	b.Helper()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		b.Fatal(err)
	}
	n := int(min(20_000, files.Cur/10))
	before := resident(b, w.pid)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for range n {
		c, err := x.ask(w.to, askIdle, 1)
		if err != nil {
			b.Fatalf("%s: connection %d of %d: %v", w.name, len(open), n, err)
		}
		open = append(open, c)
	}
	time.Sleep(time.Second)
	grown := resident(b, w.pid) - before
	each := float64(grown) / float64(n)
	results.add("Relayed connections that wait: memory of the process", w.name+": "+number(n)+" connections", fmt.Sprintf("%d MiB", grown>>10),
		fmt.Sprintf("%.1f KiB each, %.0f MiB for 20,000", each, each*20000/1024))
}

// resident is the resident memory of a process in KiB.
func resident(b *testing.B, pid string) int {
	b.Helper()
	content, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if key, value, _ := strings.Cut(line, ":"); key == "VmRSS" {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatalf("process %s tells nothing of its memory", pid)
	return 0
}
