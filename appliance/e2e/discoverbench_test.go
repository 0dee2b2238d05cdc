package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

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
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms-p99")
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
