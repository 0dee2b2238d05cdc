package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// traced runs `svcctl trace` while packets are sent again and again, until it has told of one.
func (v *verbs) traced(send func(), args ...string) string {
	v.t.Helper()
	done := make(chan string, 1)
	go func() {
		out, errOut, code := v.svcctl.Svcctl("trace", append(args, "-c", "1", "--for", "60s", "--steps")...)
		done <- fmt.Sprintf("exit %d\n%s%s", code, out, errOut)
	}()
	for {
		select {
		case text := <-done:
			return text
		default:
			send() // the trace may not listen yet
		}
	}
}

// `svcctl trace` tells what became of a packet: served, masqueraded, refused, dropped by us or by
// somebody else.
func Test332_trace_tells_what_became_of_a_packet(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", func(f family) []string {
		return []string{
			f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: http, port: 80}]"), f.slice("web", "http: 80", b.L1),
			f.service("empty", "clusterIP: "+f.vip(42), "ports: [{name: p80, port: 80}]"),
			f.service("sticky", "clusterIP: "+f.vip(43), "sessionAffinity: ClientIP", "ports: [{name: p80, port: 80}]"), f.slice("sticky", "p80: 80", b.L1),
		}
	})
	b.svcctl.Start()
	b.GW1.LoadNft(`table inet fw {
		chain forward {
			type filter hook forward priority 0;
			tcp dport 81 drop
		}
	}`)
	v := b.verbs(t)
	// One trace at a time: both families after each other.
	for _, f := range families {
		endpoint := f.on(80, b.L1)[0]
		tells := func(what, text string, wants ...string) {
			t.Helper()
			for _, want := range append(wants, "exit 0") {
				if !strings.Contains(text, want) {
					t.Errorf("%s, %s: the trace does not say %q:\n%s", f, what, want, text)
				}
			}
		}
		ask := func(from *netlab.Host, network string, to netip.AddrPort) func() {
			return func() { _, _ = from.Ask(network, to, netlab.Within(300*time.Millisecond)) } // real time: some are not answered
		}
		to := f.at(f.vip(41), 80)
		tells("served", v.traced(ask(b.IN, "tcp", to), f.of(b.IN).String(), to.String()),
			" -> "+to.String()+"/TCP, SYN, came in by ", "✓ is for Service default/"+f.name("web")+", port http", "✓ one endpoint", "✓ sent to endpoint "+endpoint.String(), "the endpoint has answered")
		tells("masqueraded", v.traced(ask(b.EXT, "tcp", to), f.of(b.EXT).String(), to.String()),
			"the client's address is masqueraded", "✓ sent to endpoint "+endpoint.String())
		tells("of the box itself", v.traced(ask(b.GW1, "tcp", to), to.String()), "sent by this host", "sent to endpoint "+endpoint.String())
		empty := f.at(f.vip(42), 80)
		tells("refused", v.traced(ask(b.IN, "tcp", empty), empty.String()), "✗ refused: Service default/"+f.name("empty")+" has no endpoint for this client")
		closed := f.at(f.vip(41), 8888)
		tells("no such port", v.traced(ask(b.IN, "tcp", closed), closed.String()), "is a Service's address, and nothing is served at 8888/TCP", "✗ refused: nothing is served at this port")
		free := f.at(f.vip(50), 80)
		tells("no such address", v.traced(ask(b.IN, "tcp", free), free.String()), "is in the service range, and no Service has it")
		udp := f.at(f.vip(41), 80)
		tells("another protocol", v.traced(ask(b.IN, "udp", udp), udp.String()+"/udp"), "nothing is served at 80/UDP")
		sticky := f.at(f.vip(43), 80)
		tells("affinity", v.traced(ask(b.IN, "tcp", sticky), sticky.String()), "✓ session affinity: a known client goes to its endpoint", "sent to endpoint "+endpoint.String())
		behind := netip.AddrPortFrom(endpoint.Addr(), 81)
		tells("dropped by somebody else", v.traced(ask(b.IN, "tcp", behind), behind.String()),
			"no Service has "+behind.String(), "✗ dropped by table inet fw, chain forward, the rule with handle ", "inet fw  forward")
		conn, err := b.IN.Dial(to, patiently)
		if err != nil {
			t.Fatal(err)
		}
		tells("established", v.traced(func() { _ = conn.Echo("more", patiently) }, to.String(), "--established"), "is for Service default/"+f.name("web"), "sent to endpoint "+endpoint.String())
		conn.Close()
	}
	if tables := b.GW1.Nft("list", "tables"); strings.Contains(tables, "svcctl-trace") {
		t.Errorf("after the last trace there is its table:\n%s", tables)
	}
	v.says(1, []string{"no such packet came in 1 s"}, "trace", "203.0.113.99", "--for", "1s")
}

// The table of a trace goes with the process, however that ends.
func Test333_trace_leaves_no_table_behind(t *testing.T) {
	b := newBox(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	go b.svcctl.Svcctl("trace", "--for", "60s", "-c", "1000")
	eventually(t, syncTimeout, func() error {
		if tables := b.GW1.Nft("list", "tables"); !strings.Contains(tables, "ip6 svcctl-trace") {
			return fmt.Errorf("no table: %s", tables)
		}
		return nil
	})
	v := b.verbs(t)
	v.says(1, []string{"another trace runs already"}, "trace", "--for", "1s")
	b.svcctl.Kill()
	eventually(t, syncTimeout, func() error {
		if tables := b.GW1.Nft("list", "tables"); strings.Contains(tables, "svcctl-trace") {
			return fmt.Errorf("the table is left: %s", tables)
		}
		return nil
	})
}

// The dashboard's page of a trace tells an admin what becomes of packets while they come, and predicts one. A reader is told that it
// is not for them, and who shows no token gets nothing.
func Test345_page_of_a_trace(t *testing.T) {
	b := newBox(t, flags{"listen": {"127.0.0.1:6444"}})
	b.write("web.yaml", func(f family) []string {
		return []string{f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: http, port: 80}]"), f.slice("web", "http: 80", b.L1)}
	})
	b.svcctl.Start()
	c := b.api(t)
	page := func(query string, code int) string {
		resp := c.start(http.MethodGet, "/dashboard/trace?"+query, "")
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != code {
			t.Fatalf("%s: %d, %v, want %d: %s", query, resp.StatusCode, err, code, text)
		}
		return string(text)
	}
	for _, f := range families {
		to, endpoint := f.at(f.vip(41), 80), f.on(80, b.L1)[0].String()
		query := url.Values{"from": {f.of(b.EXT).String()}, "to": {to.String()}, "count": {"1"}, "seconds": {"60"}, "do": {"follow"}}
		told := make(chan string, 1)
		go func() { told <- page(query.Encode(), http.StatusOK) }()
		var text string
		for text == "" {
			select {
			case text = <-told:
			default:
				_, _ = b.EXT.Ask("tcp", to, netlab.Within(300*time.Millisecond)) // real time: the trace may not listen yet
			}
		}
		for _, want := range []string{"1 packet: the trace is over", "is for Service default/" + f.name("web") + ", port http", "sent to endpoint " + endpoint, "masqueraded", "decisions of the kernel"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the page does not say %q:\n%s", f, want, text)
			}
		}
		query.Set("do", "predict")
		if text := page(query.Encode(), http.StatusOK); !strings.Contains(text, "goes to endpoint "+endpoint) {
			t.Errorf("%s: the prediction does not name %s:\n%s", f, endpoint, text)
		}
	}
	if tables := b.GW1.Nft("list", "tables"); strings.Contains(tables, "svcctl-trace") {
		t.Errorf("after the last trace there is its table:\n%s", tables)
	}
	out, _, _ := b.svcctl.Svcctl("admin", "token", "--role", "reader")
	c.token = strings.TrimSpace(out)
	if text := page("do=follow", http.StatusForbidden); !strings.Contains(text, "it is for administrators") {
		t.Errorf("a reader is told %s", text)
	}
	c.token = "nobody"
	page("do=follow", http.StatusUnauthorized)
	c.token = ""
	if text := page("do=follow", http.StatusUnauthorized); !strings.Contains(text, "<h1>401 Unauthorized</h1>") || !strings.Contains(text, "Run svcctl dashboard") {
		t.Errorf("who shows no token is told %s", text)
	}
}
