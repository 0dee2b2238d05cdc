package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft/kernel"
)

// percentiles reports the median and the 99th of a hundred times.
func percentiles(b *testing.B, name string, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-"+name+"p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms-"+name+"p99")
}

// BenchmarkProviderToPacket is the time from a change at a provider to the first packet that goes to the new endpoint: one instance of a
// Service moves to another port. The name server is asked once a second, as its TTL has it, so up to a second of its time is the TTL.
func BenchmarkProviderToPacket(b *testing.B) {
	for _, kind := range []string{"targets", "consul", "dns"} {
		b.Run(kind, func(b *testing.B) {
			s := netlab.NewStandard(b)
			for _, port := range []uint16{8081, 8082} {
				s.L1.Serve("udp", port)
			}
			dir, err := os.MkdirTemp("", "provider") // short: it has sockets
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = os.RemoveAll(dir) })
			address := ipv4.of(s.L1)
			var from, question string
			var move func(port int)
			switch kind {
			case "targets":
				path := filepath.Join(dir, "t.json")
				from, question = "targets+file://"+path, "targets:web"
				move = func(port int) {
					text := fmt.Sprintf(`[{"targets": ["%s:%d"], "labels": {"job": "web"}}]`, address, port)
					if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
						b.Fatal(err)
					}
					if err := os.Rename(path+".new", path); err != nil {
						b.Fatal(err)
					}
				}
			case "consul":
				socket := startConsul(b, s.GW1, dir)
				from, question = "consul+unix://"+socket, "consul:web"
				move = func(port int) {
					body := fmt.Sprintf(`{"ID": "w", "Name": "web", "Address": %q, "Port": %d, "Check": {"CheckID": "w", "TTL": "1h", "Status": "passing"}}`, address, port)
					if err := putUnix(socket, "/v1/agent/service/register", body); err != nil {
						b.Fatal(err)
					}
				}
			case "dns":
				knotd, err := exec.LookPath("knotd")
				if err != nil {
					b.Skip("knotd is missing: make deps")
				}
				serial := 0
				zone := func(port int) {
					serial++
					text := fmt.Sprintf("$ORIGIN test.\n$TTL 1\n@ SOA ns root %d 60 60 60 1\n@ NS ns\nns A 127.0.0.1\nweb A %s\n_s._udp SRV 1 1 %d web\n", serial, address, port)
					if err := os.WriteFile(filepath.Join(dir, "test.zone"), []byte(text), 0o600); err != nil {
						b.Fatal(err)
					}
				}
				conf := strings.ReplaceAll(`server:
  rundir: DIR
  listen: 127.0.0.1@5300
database:
  storage: DIR
control:
  listen: DIR/ctl
template:
- id: default
  storage: DIR
  zonefile-sync: -1
  zonefile-load: whole
  journal-content: none
zone:
- domain: test
`, "DIR", dir)
				if err := os.WriteFile(filepath.Join(dir, "knot.conf"), []byte(conf), 0o600); err != nil {
					b.Fatal(err)
				}
				zone(8081)
				stop := s.GW1.Background(knotd, "-c", filepath.Join(dir, "knot.conf"))
				b.Cleanup(func() { stop() })
				from, question = "dns+dns://127.0.0.1:5300", "dns:_s._udp.test"
				move = func(port int) {
					zone(port)
					out, err := exec.Command("knotc", "-b", "-s", filepath.Join(dir, "ctl"), "zone-reload", "test").CombinedOutput() // -b: until it is served
					if err != nil && serial > 2 {
						b.Fatalf("%v: %s", err, out)
					}
				}
			}
			svcctl := s.GW1.Appliance(binary, standardFlags().args()...)
			svcctl.Manifests.Write("probe.yaml", strings.Replace(ipv4.service("probe", "clusterIP: 172.30.0.41", "ports: [{name: p, port: 80, protocol: UDP}]"),
				"metadata:\n", "metadata:\n  annotations: {svcctl.io/endpoints-from: \""+question+"\"}\n", 1))
			svcctl.Start()
			svcctl.Discoverer("--from", from).Launch()
			reached := func(port int, within time.Duration) time.Time {
				for deadline := time.Now().Add(within); ; {
					reply, err := s.IN.Ask("udp", netip.MustParseAddrPort("172.30.0.41:80"), netlab.Within(200*time.Millisecond))
					if err == nil && reply.At.Port() == uint16(port) {
						return time.Now()
					}
					if time.Now().After(deadline) {
						b.Fatalf("still answered by %v (%v), want port %d\n%s", reply, err, port, svcctl.Log())
					}
				}
			}
			move(8081)
			reached(8081, 2*time.Minute)
			var took []time.Duration
			port := 8081
			for b.Loop() {
				time.Sleep(400*time.Millisecond + time.Duration(len(took)*37%600)*time.Millisecond) // real time: changes of one Service are not written more often than each 200 ms
				port = 8081 + 8082 - port
				start := time.Now()
				move(port)
				if kind == "dns" {
					start = time.Now()
				}
				took = append(took, reached(port, time.Minute).Sub(start))
			}
			percentiles(b, "", took)
		})
	}
}

// startConsul runs an agent on a host, and returns its socket.
func startConsul(t testing.TB, host *netlab.Host, dir string) (socket string) {
	t.Helper()
	program := os.Getenv("SVCCTL_CONSUL")
	if program == "" {
		t.Skip("SVCCTL_CONSUL names no program: make discover-servers")
	}
	socket = filepath.Join(dir, "consul.sock")
	stop := host.Background(program, "agent", "-dev", "-bind", "127.0.0.1", "-log-level", "warn", "-hcl", fmt.Sprintf("addresses { http = %q }\nports { dns = -1\ngrpc = -1 }", "unix://"+socket))
	t.Cleanup(func() { stop() })
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // real time: another program starts
		err := putUnix(socket, "/v1/agent/check/register", `{"ID": "up", "Name": "up", "TTL": "1h", "Status": "passing"}`)
		if err == nil {
			return socket
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// putUnix sends a PUT to a server on a socket.
func putUnix(socket, path, body string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return nil
}

// BenchmarkContainerToMap is the time from the start and from the end of a container, by the clock of the daemon, to the map of the
// kernel. One container stays, so that the Service has an endpoint.
func BenchmarkContainerToMap(b *testing.B) {
	for _, program := range []string{"dockerd", "docker", "go"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skip(program + " is missing: make deps")
		}
	}
	s := netlab.NewStandard(b)
	dir, err := os.MkdirTemp("", "docker") // short: it has sockets
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { // what the daemon mounted is in the way
		mounts, _ := os.ReadFile("/proc/self/mounts")
		for line := range strings.Lines(string(mounts)) {
			if fields := strings.Fields(line); strings.HasPrefix(fields[1], dir+"/") {
				_ = unix.Unmount(fields[1], unix.MNT_DETACH)
			}
		}
		_ = os.RemoveAll(dir)
	})
	run := func(program string, args ...string) string {
		b.Helper()
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+dir+"/sock", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%s %v: %v: %s", program, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	stop := s.GW1.Background("dockerd", "--iptables=false", "--ip6tables=false", "--bip=192.168.77.1/24", "--storage-driver=vfs", "--data-root="+dir+"/root", "--exec-root="+dir+"/run", "--pidfile="+dir+"/pid", "-H", "unix://"+dir+"/sock")
	b.Cleanup(func() { stop() })
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // real time: another program starts
		if conn, err := net.DialTimeout("unix", dir+"/sock", time.Minute); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(end) {
			b.Fatal(stop())
		}
	}
	const waits = "package main\n\nimport (\n\t\"os\"\n\t\"os/signal\"\n\t\"syscall\"\n)\n\nfunc main() {\n\tend := make(chan os.Signal, 1)\n\tsignal.Notify(end, syscall.SIGTERM)\n\t<-end\n}\n"
	if err := os.WriteFile(dir+"/app.go", []byte(waits), 0o600); err != nil {
		b.Fatal(err)
	}
	run("go", "build", "-o", dir+"/app", dir+"/app.go")
	run("tar", "-C", dir, "-cf", dir+"/app.tar", "app")
	run("docker", "import", "-c", `ENTRYPOINT ["/app"]`, dir+"/app.tar", "app:1")
	run("docker", "run", "-d", "--name", "stays", "-l", "app=web", "app:1")
	svcctl := s.GW1.Appliance(binary, standardFlags().args()...)
	svcctl.Manifests.Write("web.yaml", ipv4.discovered("web", "docker:app=web", "172.30.0.41"))
	svcctl.Start()
	svcctl.Discoverer("--from", "docker+unix://"+dir+"/sock").Launch()
	var tables *kernel.Conn
	if err := s.GW1.Do(func() (err error) { tables, err = kernel.Open(kernel.Options{}); return err }); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = tables.Close() })
	monitor := s.GW1.Monitor()
	// have waits until the maps have so many containers, and returns when the last transaction before that was seen.
	container := regexp.MustCompile(`192\.168\.77\.\d+ \. 80`)
	have := func(want int) time.Time {
		b.Helper()
		seen := time.Now()
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Microsecond) { // real time: other programs
			at := time.Now()
			if n := len(monitor.Transactions()); n > 0 {
				monitor.Forget()
				seen = at
			}
			rules, _, err := tables.Read()
			if err != nil {
				continue // a change came meanwhile
			}
			var text strings.Builder
			if err := rules.WriteText(&text); err != nil {
				b.Fatal(err)
			}
			found := map[string]bool{}
			for _, at := range container.FindAllString(text.String(), -1) {
				found[at] = true
			}
			if len(found) == want {
				return seen
			}
			if time.Now().After(end) {
				b.Fatalf("the maps have %v, want %d\n%s", found, want, text.String())
			}
		}
	}
	have(1)
	by := func(name, field string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, run("docker", "inspect", "-f", "{{.State."+field+"}}", name))
		if err != nil {
			b.Fatal(err)
		}
		return at
	}
	var started, ended []time.Duration
	for b.Loop() {
		name := fmt.Sprint("c", len(started))
		run("docker", "create", "--name", name, "-l", "app=web", "app:1")
		for _, way := range []struct {
			verb, stamp string
			want        int
			took        *[]time.Duration
		}{{"start", "StartedAt", 2, &started}, {"kill", "FinishedAt", 1, &ended}} {
			done := make(chan struct{})
			go func() { defer close(done); run("docker", way.verb, name) }()
			at := have(way.want)
			<-done
			*way.took = append(*way.took, max(0, at.Sub(by(name, way.stamp))))
			time.Sleep(250 * time.Millisecond) // real time: changes of one Service are not written more often than each 200 ms
		}
	}
	percentiles(b, "start-", started)
	percentiles(b, "die-", ended)
}

// BenchmarkThousandServices is what 1,000 Services of Consul cost: at rest, and while 10 instances a second change. Each instance has a
// check of its own.
func BenchmarkThousandServices(b *testing.B) {
	const n, rest, busy = 1000, time.Minute, 20 * time.Second
	s := netlab.NewStandard(b)
	dir, err := os.MkdirTemp("", "consul") // short: it has sockets
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := startConsul(b, s.GW1, dir)
	set := func(i, port int) {
		body := fmt.Sprintf(`{"ID": "s%[1]d", "Name": "s%[1]d", "Address": %[2]q, "Port": %[3]d, "Check": {"CheckID": "s%[1]d", "TTL": "1h", "Status": "passing"}}`, i, ipv4.of(s.L1), port)
		if err := putUnix(socket, "/v1/agent/service/register", body); err != nil {
			b.Fatal(err)
		}
	}
	var documents []string
	for i := range n {
		set(i, 8080)
		name := fmt.Sprint("s", i)
		documents = append(documents, ipv4.discovered(name, "consul:"+name, fmt.Sprintf("172.30.%d.%d", 1+i/200, 1+i%200)))
	}
	// Requests are counted on their way.
	var requests atomic.Int64
	counting, err := net.Listen("unix", filepath.Join(dir, "counting.sock"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = counting.Close() })
	proxy := &httputil.ReverseProxy{
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // polls that end with the client
		Rewrite:  func(r *httputil.ProxyRequest) { requests.Add(1); r.Out.URL.Scheme, r.Out.URL.Host = "http", "consul" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
	}
	go func() { _ = http.Serve(counting, proxy) }()

	svcctl := s.GW1.Appliance(binary, standardFlags().args()...)
	svcctl.Manifests.Write("all.yaml", strings.Join(documents, "---\n"))
	svcctl.Start()
	discover := svcctl.Discoverer("--from", "consul+unix://"+dir+"/counting.sock")
	discover.Launch()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(500 * time.Millisecond) { // real time: another program
		out, _, _ := svcctl.Svcctl("get", "endpointslices", "-A", "-o", `jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}`)
		if got := strings.Count(out, "\n"); got == n {
			break
		} else if time.Now().After(end) {
			b.Fatalf("%d slices of %d", got, n)
		}
	}
	used := func() time.Duration { // user and system, in ticks of 10 ms
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", discover.PID()))
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
		user, _ := strconv.Atoi(fields[12])
		system, _ := strconv.Atoi(fields[13])
		return time.Duration(user+system) * 10 * time.Millisecond
	}
	memory := func(field string) float64 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", discover.PID()))
		if err != nil {
			b.Fatal(err)
		}
		_, after, _ := strings.Cut(string(text), field+":")
		kib, _ := strconv.Atoi(strings.Fields(after)[0])
		return float64(kib) / 1024
	}
	time.Sleep(40 * time.Second) // real time: after 30 s it gives back the memory of its start
	for b.Loop() {
		phase := func(name string, lasts time.Duration, work func(i int)) {
			asked, cpu, began := requests.Load(), used(), time.Now()
			for i := 0; time.Since(began) < lasts; i++ {
				work(i)
				time.Sleep(100 * time.Millisecond) // real time: ten changes a second
			}
			took := time.Since(began).Seconds()
			b.ReportMetric(float64(requests.Load()-asked)/took, name+"-requests/s")
			b.ReportMetric(100*(used()-cpu).Seconds()/took, name+"-%CPU")
			b.ReportMetric(memory("RssAnon"), name+"-MiB") // without the pages of the program file
			b.ReportMetric(memory("VmRSS"), name+"-MiB-with-program")
		}
		phase("idle", rest, func(int) {})
		phase("changes", busy, func(i int) { set(i%n, 8081+i/n) })
	}
}
