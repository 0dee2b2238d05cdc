package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/nft"
)

const portRanges = "svcctl.io/port-ranges"

// mediaPorts are ports of a range of 10,000: its ends, and others.
var mediaPorts = func() []uint16 {
	r := rand.New(rand.NewPCG(1, 2))
	ports := []uint16{10000, 20000}
	for len(ports) < 24 {
		if p := uint16(10001 + r.IntN(9998)); !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	return ports
}()

// sip is a Service for calls: signaling at 5060, which endpoints serve at 5353, and media at a range.
// media is another one of both on the load balancer IP of the first, with a port within its range.
func (b *box) sip(f family, annotations []string, hosts ...*netlab.Host) []string {
	annotations = append(annotations, fmt.Sprintf("%s: %q", portRanges, "sip=10000-20000/UDP"), sharedIP+": calls")
	svc := f.service("sip", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "externalTrafficPolicy: Local",
		"ports: [{name: sip, port: 5060, protocol: UDP, nodePort: "+f.port(30060)+"}]")
	return []string{withAnnotations(svc, annotations...), f.slice("sip", "sip: 5353/UDP", hosts...)}
}

// A client's call: what it signals and both of its media flows reach one endpoint, at the port that it
// has sent to, and no other; explain says which one.
func Test385_calls_reach_one_endpoint(t *testing.T) {
	b := newBox(t, nil)
	for _, host := range []*netlab.Host{b.L1, b.L2, b.R1} {
		host.Serve("udp", mediaPorts...)
	}
	b.write("sip.yaml", func(f family) []string {
		return b.sip(f, []string{"svcctl.io/balance: source-hash"}, b.L1, b.L2, b.R1)
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		met := map[netip.Addr]int{}
		for i := range 40 {
			client := f.client(i)
			at := answers(t, b.EXT, "udp", f.at(f.lb(4), 5060), netlab.From(client)).At
			if at.Port() != 5353 {
				t.Errorf("signaling is answered at %s, want port 5353", at)
			}
			met[at.Addr()]++
			for k := range 2 { // one flow each for audio and video, of two datagrams
				port := mediaPorts[(2*i+k)%len(mediaPorts)]
				for range 2 {
					reply := answers(t, b.EXT, "udp", f.at(f.lb(4), port), netlab.From(client), netlab.FromPort(uint16(30000+k)))
					if want := netip.AddrPortFrom(at.Addr(), port); reply.At != want || reply.Client.Addr() != client {
						t.Errorf("media of %s to port %d: answered at %s, which saw %s; want %s and the client itself", client, port, reply.At, reply.Client, want)
					}
				}
			}
		}
		if met[f.of(b.L1)] == 0 || met[f.of(b.L2)] == 0 || met[f.of(b.R1)] != 0 {
			t.Errorf("calls of 40 clients went to %v, want both endpoints of the box and no other", met)
		}
		v := b.verbs(t)
		client := f.client(7)
		at := answers(t, b.EXT, "udp", f.at(f.lb(4), 10000), netlab.From(client)).At
		text := v.does(0, "explain", f.at(f.lb(4), 10000).String()+"/udp", "--client", client.String())
		want := fmt.Sprintf("%s gets %s at %s-20000", client, at.Addr(), f.at(f.lb(4), 10000))
		if !strings.Contains(text, want) || !strings.Contains(text, "ports 10000-20000/UDP ("+f.String()+") go to the same port of 3 endpoints, picked by source-hash") {
			t.Errorf("explain does not say %q:\n%s", want, text)
		}
	})
}

// A datagram flow to a port of a range moves when its endpoint goes, as any other; a flow to a port
// within the range that another Service has is none of it, nor is TCP.
func Test386_media_flows_of_an_endpoint_that_goes(t *testing.T) {
	b := newBox(t, metered)
	for _, host := range []*netlab.Host{b.L1, b.L2} {
		host.Serve("udp", mediaPorts...)
		host.Serve("tcp", mediaPorts[0])
	}
	inner := mediaPorts[3]
	docs := func(host *netlab.Host) func(f family) []string {
		return func(f family) []string {
			docs := b.sip(f, nil, host)
			docs[0] = strings.Replace(docs[0], "sip=10000-20000/UDP", "sip=10000-20000/*", 1)
			stats := f.service("stats", "type: LoadBalancer", "clusterIP: "+f.vip(42), "loadBalancerIP: "+f.lb(4), "externalTrafficPolicy: Local",
				fmt.Sprintf("ports: [{name: stats, port: %d, protocol: UDP, nodePort: %s}]", inner, f.port(30062)))
			return append(docs, withAnnotations(stats, sharedIP+": calls"), f.slice("stats", "stats: 9376/UDP", b.L1))
		}
	}
	b.write("sip.yaml", docs(b.L1))
	b.svcctl.Start()
	b.remember()
	b.looked(t)
	media := func(f family) []flow {
		return []flow{
			{f, "udp", b.EXT, f.at(f.lb(4), mediaPorts[0]), 40000}, {f, "udp", b.EXT, f.at(f.lb(4), mediaPorts[1]), 40001},
			{f, "udp", b.IN, f.at(f.vip(41), mediaPorts[2]), 40002},
		}
	}
	var moves, stays []flow
	conns := map[family]*netlab.Conn{}
	for _, f := range families {
		moves = append(moves, media(f)...)
		stays = append(stays, flow{f, "udp", b.EXT, f.at(f.lb(4), inner), 40003})
		conn, err := b.EXT.Dial(f.at(f.lb(4), mediaPorts[0]), patiently)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		conns[f] = conn
	}
	for _, fl := range moves {
		lead(t, []flow{fl}, b.L1, fl.to.Port())
	}
	lead(t, stays, b.L1, 9376)
	before := b.entriesOf(t, stays...)
	b.rewrite("sip.yaml", docs(b.L2))
	for _, fl := range moves {
		lead(t, []flow{fl}, b.L2, fl.to.Port())
	}
	for e, id := range b.entriesOf(t, stays...) {
		if before[e] != id {
			t.Errorf("the flow %s, of an exact port, was forgotten", e)
		}
	}
	for f, conn := range conns {
		if err := conn.Echo("still here", patiently); err != nil {
			t.Errorf("%s: a TCP connection to a port of the range: %v", f, err)
		}
	}
	// A restart finds nothing to do.
	entries := b.entriesOf(t, append(moves, stays...)...)
	monitor := b.GW1.Monitor()
	b.svcctl.Stop()
	b.svcctl.Start()
	eventually(t, syncTimeout, func() error { // once the numbers are there
		if n, err := b.tryMetric(looks); err != nil || n < 2 {
			return fmt.Errorf("%s is %d, want 2: %v", looks, n, err)
		}
		return nil
	})
	if done := monitor.Transactions(); slices.ContainsFunc(done, ours) {
		t.Errorf("a restart commits %v", done)
	}
	for e, id := range b.entriesOf(t, append(moves, stays...)...) {
		if entries[e] != id {
			t.Errorf("after a restart the flow %s is another one", e)
		}
	}
	// Without the range its flows are refused.
	b.rewrite("sip.yaml", func(f family) []string {
		all := docs(b.L2)(f)
		all[0] = strings.Replace(all[0], fmt.Sprintf("%s: %q, ", portRanges, "sip=10000-20000/*"), "", 1)
		return all
	})
	b.refused(t, moves)
}

// ours reports whether a transaction changes the product's tables.
func ours(tx netlab.Transaction) bool {
	for change := range tx.Changes {
		if change.Table == "ip "+nft.TableName || change.Table == "ip6 "+nft.TableName {
			return true
		}
	}
	return false
}

// ftpServer runs a server of FTP on a host that sends files by passive connections to ports 21000 to
// 21099, whose address is the Service's.
func ftpServer(t *testing.T, f family, host *netlab.Host) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "files")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for path := dir; path != "/"; path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o005 != 0o005 {
			_ = os.Chmod(path, info.Mode().Perm()|0o055) // the server reads it as another user
		}
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "vsftpd.conf")
	lines := []string{
		f.pick("listen=YES", "listen=NO"), f.pick("listen_ipv6=NO", "listen_ipv6=YES"), "background=NO", "anonymous_enable=YES", "local_enable=NO",
		"anon_root=" + root, "secure_chroot_dir=" + empty, "ftpd_banner=" + host.Name, "listen_port=" + f.pick("2121", "2122"),
		"pasv_min_port=21000", "pasv_max_port=21099", "seccomp_sandbox=NO", "connect_from_port_20=NO", "xferlog_enable=NO",
	}
	if !f.v6 {
		lines = append(lines, "pasv_address="+f.lb(4))
	}
	for path, text := range map[string]string{config: strings.Join(lines, "\n") + "\n", filepath.Join(root, "who"): host.Name + "\n" + strings.Repeat("x", 100_000)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stop := host.Background("vsftpd", config)
	t.Cleanup(func() {
		if out := stop(); t.Failed() {
			t.Logf("vsftpd on %s:\n%s", host.Name, out)
		}
	})
}

// fetch gets the file of a server of FTP by a passive connection. It returns the server's banner and
// the first line of the file.
func fetch(host *netlab.Host, from netip.Addr, server netip.AddrPort, extended bool) (banner, file string, err error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: time.Minute, Control: func(_, _ string, c syscall.RawConn) (err error) {
		if !from.Is6() {
			return nil
		}
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) })
		return err
	}}
	dial := func(to netip.AddrPort) (conn net.Conn, err error) {
		err = host.Do(func() error {
			conn, err = dialer.Dial("tcp", to.String())
			return err
		})
		return conn, err
	}
	control, err := dial(server)
	if err != nil {
		return "", "", fmt.Errorf("control connection: %w", err)
	}
	defer control.Close()
	_ = control.SetDeadline(time.Now().Add(time.Minute))
	lines := bufio.NewReader(control)
	say := func(command, code string) string {
		if err != nil {
			return ""
		}
		if command != "" {
			_, err = fmt.Fprintf(control, "%s\r\n", command)
		}
		var line string
		if line, err = lines.ReadString('\n'); err == nil && !strings.HasPrefix(line, code+" ") {
			err = fmt.Errorf("%q is answered by %q", command, line)
		}
		return strings.TrimSpace(strings.TrimPrefix(line, code+" "))
	}
	banner = say("", "220")
	say("USER anonymous", "331")
	say("PASS a@example.com", "230")
	say("TYPE I", "200")
	at := server
	if extended {
		var port uint16
		_, scanned := fmt.Sscanf(strings.TrimPrefix(say("EPSV", "229"), "Entering Extended Passive Mode "), "(|||%d|)", &port)
		if err == nil {
			err = scanned
		}
		at = netip.AddrPortFrom(server.Addr(), port)
	} else {
		var a [4]byte
		var high, low uint16
		_, scanned := fmt.Sscanf(strings.TrimPrefix(say("PASV", "227"), "Entering Passive Mode "), "(%d,%d,%d,%d,%d,%d)", &a[0], &a[1], &a[2], &a[3], &high, &low)
		if err == nil {
			err = scanned
		}
		at = netip.AddrPortFrom(netip.AddrFrom4(a), high<<8|low)
	}
	if err != nil {
		return banner, "", err
	}
	data, err := dial(at)
	if err != nil {
		return banner, "", fmt.Errorf("data connection to %s: %w", at, err)
	}
	defer data.Close()
	_ = data.SetDeadline(time.Now().Add(time.Minute))
	say("RETR who", "150")
	content, readErr := io.ReadAll(data)
	say("", "226")
	if err == nil {
		err = readErr
	}
	if len(content) < 100_000 && err == nil {
		err = fmt.Errorf("the file has %d bytes", len(content))
	}
	file, _, _ = strings.Cut(string(content), "\n")
	return banner, file, err
}

// Passive connections of FTP arrive at the server that offered them.
func Test387_passive_data_connections(t *testing.T) {
	b := newBox(t, nil)
	b.write("ftp.yaml", func(f family) []string {
		svc := f.service("ftp", "type: LoadBalancer", "clusterIP: "+f.vip(41), "loadBalancerIP: "+f.lb(4), "ports: [{name: ftp, port: 21, nodePort: "+f.port(30021)+"}]")
		return []string{
			withAnnotations(svc, "svcctl.io/balance: source-hash", portRanges+`: "ftp=21000-21099"`),
			f.slice("ftp", "ftp: "+f.pick("2121", "2122"), b.L1, b.R1),
		}
	})
	for _, f := range families {
		ftpServer(t, f, b.L1)
		ftpServer(t, f, b.R1)
	}
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		met := map[string]int{}
		for i := range 16 {
			var banner, file string
			eventually(t, time.Minute, func() (err error) { // the servers may not listen yet
				banner, file, err = fetch(b.EXT, f.client(i), f.at(f.lb(4), 21), f.v6)
				return err
			})
			if met[banner]++; banner == "" || banner != file {
				t.Errorf("client %d: %q has greeted and %q has sent the file", i, banner, file)
			}
		}
		if met[b.L1.Name] == 0 || met[b.R1.Name] == 0 {
			t.Errorf("clients were greeted by %v, want both servers", met)
		}
	})
}

// Connections to a range are counted, listed, ended and told of as those of the Service.
func Test388_ranges_are_seen(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		svc := f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]")
		return []string{withAnnotations(svc, portRanges+`: "p80=8000-8999"`), f.slice("web", "p80: 80", b.L1)}
	})
	b.svcctl.Start()
	for _, f := range families { // one trace at a time
		v, service := b.verbs(t), "svc/"+f.name("web")
		for range 3 {
			conn, err := b.IN.Dial(f.at(f.vip(41), 8080), patiently)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.Close)
		}
		answers(t, b.IN, "tcp", f.at(f.vip(41), 80))
		list := v.conns(service)
		ranged := slices.DeleteFunc(slices.Clone(list), func(c connection) bool { return c.Endpoint != f.on(8080, b.L1)[0].String() })
		if len(ranged) != 3 {
			t.Errorf("%s: connections are listed as %+v, want 3 to port 8080", f, list)
		}
		name := "p80/tcp-8000-8999"
		eventually(t, syncTimeout, func() error { // a look may be a moment old
			type port struct {
				Port              string
				Open, Connections int
				Endpoints         []struct{ Endpoint string }
			}
			var top struct{ Ports []port }
			if err := json.Unmarshal([]byte(v.does(0, "top", service, "--once", "-o", "json")), &top); err != nil {
				return err
			}
			at := slices.IndexFunc(top.Ports, func(p port) bool { return p.Port == name })
			if at < 0 || top.Ports[at].Open != 3 || top.Ports[at].Connections != 3 || len(top.Ports[at].Endpoints) != 1 || top.Ports[at].Endpoints[0].Endpoint != f.of(b.L1).String() {
				return fmt.Errorf("%s: top has %+v, want 3 connections of port %s, to %s", f, top.Ports, name, f.of(b.L1))
			}
			return nil
		})
		to := f.at(f.vip(41), 8081)
		text := v.traced(func() { _, _ = b.IN.Ask("tcp", to, shortly) }, f.of(b.IN).String(), to.String())
		for _, want := range []string{"is for Service default/" + f.name("web") + ", port " + name + " (range of ports)", "a range of ports: one of the endpoints is picked, at the same port", "sent to endpoint " + f.on(8081, b.L1)[0].String()} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: trace does not say %q:\n%s", f, want, text)
			}
		}
		if text := v.does(0, "explain", to.String()); !strings.Contains(text, "ports 8000-8999/TCP ("+f.String()+") go to the same port of 1 endpoint") {
			t.Errorf("%s: explain does not tell of the range:\n%s", f, text)
		}
		if text := v.does(0, "describe", service); !strings.Contains(text, "p80=8000-8999") {
			t.Errorf("%s: describe does not tell of the range:\n%s", f, text)
		}
	}
}
