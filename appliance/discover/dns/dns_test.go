package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/test/providertest"
)

// script is a name server that a test writes line by line.
type script struct {
	address string

	mu      sync.Mutex
	records map[string][]dns.RR // by name and type: "web.test. A"
	alter   func(m *dns.Msg, tcp bool) *dns.Msg
	asked   map[string]int
}

const soa = "test. 60 IN SOA ns.test. root.test. 1 60 60 60 1"

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{records: map[string][]dns.RR{}, asked: map[string]int{}}
	for range 100 { // one port that is free for both
		udp, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s.address = udp.LocalAddr().String()
		tcp, err := net.Listen("tcp", s.address)
		if err != nil {
			udp.Close()
			continue
		}
		for _, server := range []*dns.Server{{PacketConn: udp, Handler: s}, {Listener: tcp, Handler: s}} {
			go func() { _ = server.ActivateAndServe() }()
			t.Cleanup(func() { _ = server.Shutdown() })
		}
		return s
	}
	t.Fatal("no port is free")
	return nil
}

func (s *script) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	s.mu.Lock()
	m := new(dns.Msg)
	m.SetReply(q)
	name, kind := dns.CanonicalName(q.Question[0].Name), dns.TypeToString[q.Question[0].Qtype]
	s.asked[name+" "+kind]++
	m.Answer = append(m.Answer, s.records[name+" CNAME"]...)
	for _, rr := range m.Answer {
		name = rr.(*dns.CNAME).Target
	}
	m.Answer = append(m.Answer, s.records[name+" "+kind]...)
	if len(m.Answer) == 0 {
		rr, _ := dns.NewRR(soa)
		m.Ns = append(m.Ns, rr)
	}
	m.Compress = true
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	if s.alter != nil {
		m = s.alter(m, tcp)
	}
	s.mu.Unlock()
	if m == nil {
		return
	}
	if !tcp {
		m.Truncate(size)
	}
	_ = w.WriteMsg(m)
}

// set replaces all records.
func (s *script) set(t *testing.T, records ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.records)
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Fatal(err)
		}
		key := rr.Header().Name + " " + dns.TypeToString[rr.Header().Rrtype]
		s.records[key] = append(s.records[key], rr)
	}
}

// answer alters all answers; nil: none.
func (s *script) answer(alter func(m *dns.Msg, tcp bool) *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alter = alter
}

func rcode(code int) func(*dns.Msg, bool) *dns.Msg {
	return func(m *dns.Msg, _ bool) *dns.Msg {
		m.Rcode, m.Answer = code, nil
		return m
	}
}

func open(t testing.TB, address string) *Provider {
	t.Helper()
	p, err := New(provider.Config{URL: "dns://" + address})
	if err != nil {
		t.Fatal(err)
	}
	return p.(*Provider)
}

func Test988_dns_records(t *testing.T) {
	s := newScript(t)
	p := open(t, s.address)
	s.set(t, "web.test. 1 A 10.0.0.1", "web.test. 1 A 10.0.0.2", "web.test. 1 AAAA fd00::1",
		"alias.test. 1 CNAME web.test.", "zone.test. 1 CNAME deep.test.", "deep.test. 1 CNAME web.test.",
		"_http._tcp.web.test. 1 SRV 10 5 8080 web.test.", "_http._tcp.web.test. 1 SRV 20 0 8081 alias.test.", "_http._tcp.web.test. 1 SRV 20 7 8082 gone.test.",
		"_no._tcp.web.test. 1 SRV 0 0 0 .", "loop.test. 1 CNAME loop.test.")
	want := []string{"10.0.0.1", "10.0.0.2", "[fd00::1]"}
	for i, a := range want {
		want[i] = strings.Trim(a, "[]")
	}
	f := providertest.Follow(t, p, "Web.Test")
	f.Answer(want...)
	providertest.Follow(t, p, "web.test.?family=ipv6").Answer("fd00::1")
	providertest.Follow(t, p, "web.test?family=ipv4").Answer("10.0.0.1", "10.0.0.2")
	providertest.Follow(t, p, "alias.test").Answer(want...)
	zone := providertest.Follow(t, p, "zone.test") // the server has one alias in an answer
	zone.Answer(want...)
	srv := providertest.Follow(t, p, "_http._tcp.web.test")
	srv.Answer("10.0.0.1:8080 w5", "10.0.0.2:8080 w5", "[fd00::1]:8080 w5", "10.0.0.1:8081 w1 p1", "10.0.0.2:8081 w1 p1", "[fd00::1]:8081 w1 p1")
	providertest.Follow(t, p, "_no._tcp.web.test").Answer()
	providertest.Follow(t, p, "none.test").Answer()
	providertest.Follow(t, p, "loop.test").Fails("aliases")
	s.set(t, "web.test. 1 A 10.0.0.3", "_http._tcp.web.test. 1 SRV 10 5 8080 web.test.")
	f.Answer("10.0.0.3")
	srv.Answer("10.0.0.3:8080 w5")
	s.answer(rcode(dns.RcodeNameError))
	f.Answer()
	srv.Answer()
	s.answer(func(m *dns.Msg, _ bool) *dns.Msg { // some servers have no name for the family that they lack
		if m.Question[0].Qtype == dns.TypeAAAA {
			m.Rcode, m.Answer = dns.RcodeNameError, nil
		}
		return m
	})
	f.Answer("10.0.0.3")
	for _, tt := range [][2]string{
		{"web.test?family=v4", `must be ipv4 or ipv6`}, {"web.test?ttl=4", `"ttl" is no parameter: there are family, hold`},
		{"", "is no domain name"}, {"a..b", "is no domain name"}, {strings.Repeat("a", 64) + ".test", "is no domain name"}, {strings.Repeat("abc.", 99), "is no domain name"},
	} {
		providertest.Follow(t, p, tt[0]).Fails(tt[1])
	}
	for url, want := range map[string]string{"dns://ns.test": "must be an IP address", "https://1.1.1.1/": "must be dns://", "dns://": "must be dns://"} {
		if _, err := New(provider.Config{URL: url}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func Test989_dns_failures_are_no_answers(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for half a minute")
	}
	s := newScript(t)
	var many, want []string
	for i := range 3000 {
		a := fmt.Sprintf("10.0.%d.%d", i/250, i%250)
		many, want = append(many, "many.test. 1 A "+a), append(want, a)
	}
	s.set(t, append(many, "web.test. 1 A 10.0.0.1", "t1.test. 1 A 10.0.0.1", "t2.test. 1 A 10.0.0.2",
		"_a._tcp.test. 1 SRV 1 1 1 t1.test.", "_a._tcp.test. 1 SRV 1 1 2 t2.test.")...)
	p := open(t, s.address)
	f, srv, large := providertest.Follow(t, p, "web.test"), providertest.Follow(t, p, "_a._tcp.test"), providertest.Follow(t, p, "many.test")
	f.Answer("10.0.0.1")
	srv.Answer("10.0.0.1:1 w1", "10.0.0.2:2 w1")
	large.Answer(want...) // over TCP
	for name, fault := range map[string]struct {
		text  string
		alter func(m *dns.Msg, tcp bool) *dns.Msg
	}{
		"SERVFAIL": {"SERVFAIL", rcode(dns.RcodeServerFailure)},
		"REFUSED":  {"REFUSED", rcode(dns.RcodeRefused)},
		"NOTIMP":   {"NOTIMP", rcode(dns.RcodeNotImplemented)},
		"one family": {"t2.test. AAAA: ", func(m *dns.Msg, _ bool) *dns.Msg {
			if m.Question[0].Qtype == dns.TypeAAAA && m.Question[0].Name != "t1.test." {
				m.Rcode = dns.RcodeServerFailure
			}
			return m
		}},
		"a referral": {"refers to other servers", func(m *dns.Msg, _ bool) *dns.Msg {
			ns, _ := dns.NewRR("test. 60 NS ns.test.")
			m.Answer, m.Ns = nil, []dns.RR{ns}
			return m
		}},
		"another question": {"another question", func(m *dns.Msg, _ bool) *dns.Msg {
			m.Question[0].Name, m.Answer = "evil.test.", nil
			return m
		}},
		"cut over TCP, too": {"cut over TCP", func(m *dns.Msg, _ bool) *dns.Msg {
			m.Truncated, m.Answer = true, nil
			return m
		}},
		"no answer over TCP": {"", func(m *dns.Msg, tcp bool) *dns.Msg {
			if tcp {
				return nil
			}
			m.Truncated, m.Answer = true, m.Answer[:min(1, len(m.Answer))]
			return m
		}},
		"silence": {"timeout", func(*dns.Msg, bool) *dns.Msg { return nil }},
	} {
		s.answer(fault.alter)
		srv.Fails(fault.text)
		srv.Fresh(func() { s.answer(nil) })
		srv.Answer("10.0.0.1:1 w1", "10.0.0.2:2 w1")
		t.Logf("%s: %v", name, srv.Failures()[len(srv.Failures())-1])
	}
	f.Answer("10.0.0.1")
	for i, f := range []*providertest.Following{f, srv, large} {
		for _, a := range f.Answers() {
			if n := len(a.Endpoints); n != []int{1, 2, 3000}[i] {
				t.Errorf("an answer with %d endpoints: %s", n, providertest.Text(a))
			}
		}
	}
}

func TestPauses(t *testing.T) {
	p := pauses{}
	for i, tt := range []struct {
		ttl   time.Duration
		empty bool
		want  time.Duration
	}{
		{0, false, time.Second}, {0, false, time.Second}, // it was never more
		{30 * time.Second, false, 30 * time.Second}, {0, false, soon}, {0, false, soon}, {2 * time.Second, false, 2 * time.Second},
		{0, false, soon}, {0, false, soon}, {0, false, soon}, {0, false, soon}, {0, false, soon}, {0, false, time.Second}, {0, false, time.Second},
		{0, true, time.Second}, {3 * time.Second, true, 3 * time.Second}, {time.Hour, true, 5 * time.Second}, {48 * time.Hour, false, time.Hour},
	} {
		if got := p.next(tt.ttl, tt.empty); got != tt.want {
			t.Errorf("%d: %v, want %v", i, got, tt.want)
		}
	}
}

// The least time to live of all that an answer is made of.
func TestTimeToLive(t *testing.T) {
	s := newScript(t)
	s.set(t, "web.test. 50 A 10.0.0.1", "web.test. 40 AAAA fd00::1", "alias.test. 30 CNAME web.test.", "_a._tcp.test. 20 SRV 1 1 1 web.test.", "_b._tcp.test. 60 SRV 1 1 1 alias.test.")
	l := lookup{servers: []string{s.address}, types: []uint16{dns.TypeA, dns.TypeAAAA}}
	for name, want := range map[string]time.Duration{
		"web.test.": 40 * time.Second, "alias.test.": 30 * time.Second, "_a._tcp.test.": 20 * time.Second, "_b._tcp.test.": 30 * time.Second, "none.test.": time.Second,
	} {
		if _, ttl, err := l.endpoints(context.Background(), name); err != nil || ttl != want {
			t.Errorf("%s: %v, %v, want %v", name, ttl, err, want)
		}
	}
}

func TestResolvConf(t *testing.T) {
	s := newScript(t)
	s.set(t, "web.test. 1 A 10.0.0.1")
	dead, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	p, err := New(provider.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p.(*Provider).conf = conf
	f := providertest.Follow(t, p, "web.test")
	f.Fails("no such file")
	if err := os.WriteFile(conf, []byte("search example.com\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Fails("has no nameserver")
	// The second one answers when the first one refuses.
	refusing := newScript(t)
	refusing.answer(rcode(dns.RcodeRefused))
	l := lookup{servers: []string{refusing.address, s.address}, types: []uint16{dns.TypeA}}
	if all, _, err := l.endpoints(context.Background(), "web.test."); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := l.endpoints(ctx, "web.test."); !errors.Is(err, context.Canceled) {
		t.Errorf("after a stop: %v", err)
	}
}

// process runs a name server of others.
func process(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil || testing.Short() {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") != "" {
			t.Fatalf("%s is missing: make deps", name)
		}
		t.Skipf("%s is missing: make deps", name)
	}
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// knot is a Knot DNS with one zone.
type knot struct {
	t       *testing.T
	dir     string
	port    string
	serial  int
	running *exec.Cmd
}

func newKnot(t *testing.T) *knot {
	k := &knot{t: t, dir: t.TempDir(), port: strconv.Itoa(providertest.FreePort(t))}
	conf := fmt.Sprintf("server:\n  rundir: %q\n  listen: 127.0.0.1@%s\ndatabase:\n  storage: %q\ntemplate:\n- id: default\n  storage: %q\n  zonefile-sync: -1\n  zonefile-load: whole\n  journal-content: none\nzone:\n- domain: test\n", k.dir, k.port, k.dir, k.dir)
	if err := os.WriteFile(filepath.Join(k.dir, "knot.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *knot) zone(ttl int, records ...string) {
	k.t.Helper()
	k.serial++
	text := fmt.Sprintf("$ORIGIN test.\n$TTL %d\n@ SOA ns root %d 60 60 60 1\n@ NS ns\nns A 127.0.0.1\n%s\n", ttl, k.serial, strings.Join(records, "\n"))
	if err := os.WriteFile(filepath.Join(k.dir, "test.zone"), []byte(text), 0o600); err != nil {
		k.t.Fatal(err)
	}
	if k.running != nil {
		_ = k.running.Process.Signal(syscall.SIGHUP)
	}
}

func (k *knot) start() { k.running = process(k.t, "knotd", "-c", filepath.Join(k.dir, "knot.conf")) }

func (k *knot) stop() {
	_ = k.running.Process.Kill()
	_ = k.running.Wait()
	k.running = nil
}

func Test988_knot_and_dnsmasq(t *testing.T) {
	k := newKnot(t)
	k.zone(1, "web A 10.0.0.1", "_http._tcp SRV 10 5 8080 web")
	k.start()
	port := strconv.Itoa(providertest.FreePort(t))
	process(t, "dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--pid-file=", "--bind-interfaces", "--listen-address=127.0.0.1", "--port="+port, "--server=127.0.0.1#"+k.port)
	var all []*providertest.Following
	for _, port := range []string{k.port, port} {
		p := open(t, "127.0.0.1:"+port)
		all = append(all, providertest.Follow(t, p, "web.test"), providertest.Follow(t, p, "_http._tcp.test"))
	}
	each := func(addresses ...string) {
		t.Helper()
		for i, f := range all {
			var want []string
			for _, a := range addresses {
				if i%2 == 1 {
					a += ":8080 w5"
				}
				want = append(want, a)
			}
			f.Answer(want...)
		}
	}
	each("10.0.0.1")
	k.zone(2, "web A 10.0.0.1", "web A 10.0.0.2", "_http._tcp SRV 10 5 8080 web")
	each("10.0.0.1", "10.0.0.2")
	var many, want []string
	for i := range 120 {
		many, want = append(many, fmt.Sprintf("web A 10.0.1.%d", i)), append(want, fmt.Sprintf("10.0.1.%d", i))
	}
	k.zone(1, append(many, "_http._tcp SRV 10 5 8080 web")...)
	each(want...) // over TCP
	k.stop()
	for _, f := range all {
		f.Fails("")
		if answers := f.Answers(); len(answers[len(answers)-1].Endpoints) != 120 {
			t.Errorf("an answer while the server was away: %v", answers[len(answers)-1])
		}
	}
	k.zone(1, "web A 10.0.0.4", "_http._tcp SRV 10 5 8080 web")
	k.start()
	each("10.0.0.4")
	k.zone(1, "other A 10.0.0.4")
	each()
	k.zone(1, "web A 10.0.0.5", "_http._tcp SRV 10 5 8080 web")
	each("10.0.0.5")
}
