package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/netlab"
)

// domain is where the Services of these tests are.
const domain = ".default.svc.cluster.local"

// newDNS is a box that answers names on its primary addresses.
func newDNS(t *testing.T, other flags) *box {
	t.Helper()
	if _, err := exec.LookPath("dig"); err != nil && os.Geteuid() == 0 {
		t.Fatalf("DNS tests need the program dig: install the package dnsutils (%v)", err)
	}
	f := flags{"dns-listen": {ipv4.boxAddr() + ":53", "[" + ipv6.boxAddr() + "]:53"}}
	for name, values := range other {
		f[name] = values
	}
	return newBox(t, f)
}

// dug is the output of dig.
type dug struct {
	status string
	flags  []string
	// answer and additional are records as "name type data", sorted, but for the order of
	// aliases.
	answer, additional []string
	text               string
}

// dig asks a server, with dig if there are args, which come before the name.
func dig(t *testing.T, from *netlab.Host, server, name, kind string, args ...string) dug {
	t.Helper()
	d, err := tryDig(from, server, name, kind, args...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	digStatus = regexp.MustCompile(`(?m)^;; (?:->>HEADER<<- )?opcode: .*status: (\w+),`)
	digFlags  = regexp.MustCompile(`(?m)^;; flags: ([a-z ]*);`)
)

func tryDig(from *netlab.Host, server, name, kind string, args ...string) (dug, error) {
	if len(args) == 0 {
		out, err := from.Resolve(server, name, kind)
		if err != nil {
			return dug{}, err
		}
		return parseDig(out)
	}
	out, _, err := from.Run("dig", slices.Concat([]string{"-r", "+time=4", "+tries=2", "@" + server}, args, []string{name, kind})...)
	if err != nil {
		return dug{}, fmt.Errorf("%w\n%s", err, out)
	}
	return parseDig(out)
}

// parseDig reads an answer in the format of dig.
func parseDig(out string) (dug, error) {
	d := dug{text: out}
	status, flags := digStatus.FindStringSubmatch(out), digFlags.FindStringSubmatch(out)
	if status == nil || flags == nil {
		return d, fmt.Errorf("no answer in what dig says:\n%s", out)
	}
	d.status, d.flags = status[1], strings.Fields(flags[1])
	var section *[]string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, ";; ANSWER"):
			section = &d.answer
		case strings.HasPrefix(line, ";; ADDITIONAL"):
			section = &d.additional
		case strings.HasPrefix(line, ";;"):
			section = nil
		case section != nil && len(fields) > 4:
			*section = append(*section, fields[0]+" "+strings.Join(fields[3:], " "))
		}
	}
	slices.Sort(d.additional)
	if !strings.Contains(strings.Join(d.answer, "\n"), " CNAME ") {
		slices.Sort(d.answer)
	}
	return d, nil
}

// resolves asserts what a server answers: the status, and the records in order.
func resolves(t *testing.T, from *netlab.Host, server, name, kind, status string, records ...string) dug {
	t.Helper()
	d := dig(t, from, server, name, kind)
	if status != "SERVFAIL" && d.status == "SERVFAIL" { // a moment after a start, until the index is complete
		eventually(t, time.Minute, func() error {
			if d = dig(t, from, server, name, kind); d.status == "SERVFAIL" {
				return fmt.Errorf("%s asks %s for %s %s: SERVFAIL, want %s", from.Name, server, name, kind, status)
			}
			return nil
		})
	}
	if d.status != status || !slices.Equal(d.answer, records) {
		t.Errorf("%s asks %s for %s %s: %s %q, want %s %q\n%s", from.Name, server, name, kind, d.status, d.answer, status, records, d.text)
	}
	return d
}

// address is the record type for addresses of the family.
func (f family) address() string { return f.pick("A", "AAAA") }

// hostedEndpoint is an endpoint with a host name.
func (f family) hostedEndpoint(h *netlab.Host, hostname string, isReady bool) string {
	return fmt.Sprintf("{addresses: [%q], hostname: %s, conditions: {ready: %t}}", f.of(h), hostname, isReady)
}

func Test139_dns_cluster_ip(t *testing.T) {
	b := newDNS(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Manifests.Write("dual.yaml", service("dual", "ipFamilyPolicy: RequireDualStack",
		"clusterIP: "+ipv4.vip(50), "clusterIPs: ["+ipv4.vip(50)+", "+ipv6.vip(50)+"]", "ports: [{name: http, port: 80}]"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		web := f.name("web") + domain + "."
		other := family{!f.v6}
		for _, from := range []*netlab.Host{b.IN, b.EXT, b.GW1} {
			resolves(t, from, f.boxAddr(), web, f.address(), "NOERROR", web+" "+f.address()+" "+f.vip(41))
			if d := resolves(t, from, f.boxAddr(), web, other.address(), "NOERROR"); !slices.Contains(d.flags, "aa") {
				t.Errorf("flags %v, want aa", d.flags)
			}
			resolves(t, from, f.boxAddr(), "none"+domain, "A", "NXDOMAIN")
		}
		resolves(t, b.IN, f.boxAddr(), "WeB"+f.pick("-4", "-6")+strings.ToUpper(domain), f.address(), "NOERROR",
			"WeB"+f.pick("-4", "-6")+strings.ToUpper(domain)+". "+f.address()+" "+f.vip(41))
		resolves(t, b.IN, f.boxAddr(), "dual"+domain, "A", "NOERROR", "dual"+domain+". A "+ipv4.vip(50))
		resolves(t, b.IN, f.boxAddr(), "dual"+domain, "AAAA", "NOERROR", "dual"+domain+". AAAA "+ipv6.vip(50))
		d := resolves(t, b.IN, f.boxAddr(), "_http._tcp.dual"+domain, "SRV", "NOERROR", "_http._tcp.dual"+domain+". SRV 0 100 80 dual"+domain+".")
		if want := []string{"dual" + domain + ". A " + ipv4.vip(50), "dual" + domain + ". AAAA " + ipv6.vip(50)}; !slices.Equal(d.additional, want) {
			t.Errorf("additional: %q, want %q", d.additional, want)
		}
		resolves(t, b.IN, f.boxAddr(), "dns-version.cluster.local", "TXT", "NOERROR", `dns-version.cluster.local. TXT "1.1.0"`)
		pointer := dig(t, b.IN, f.boxAddr(), f.vip(50), "PTR", "-x")
		if len(pointer.answer) != 1 || !strings.HasSuffix(pointer.answer[0], " PTR dual"+domain+".") {
			t.Errorf("the name of %s: %s %q", f.vip(50), pointer.status, pointer.answer)
		}
	})
}

// The name leaves with the Service, and comes with the next one, within a sync.
func Test139_dns_deleted_service(t *testing.T) {
	b := newDNS(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1))
	b.write("other.yaml", func(f family) []string { return []string{f.service("other", "ports: [{port: 80}]")} })
	b.svcctl.Start()
	for _, f := range families {
		resolves(t, b.IN, f.boxAddr(), f.name("web")+domain+".", f.address(), "NOERROR", f.name("web")+domain+". "+f.address()+" "+f.vip(41))
	}
	b.change(func() { b.svcctl.Manifests.Remove("web.yaml") })
	for _, f := range families {
		resolves(t, b.IN, f.boxAddr(), f.name("web")+domain+".", f.address(), "NXDOMAIN")
	}
	b.rewrite("web.yaml", b.webDocuments(b.L1))
	for _, f := range families {
		resolves(t, b.IN, f.boxAddr(), f.name("web")+domain+".", f.address(), "NOERROR", f.name("web")+domain+". "+f.address()+" "+f.vip(41))
	}
	b.svcctl.Kill()
	b.svcctl.Start()
	for _, f := range families {
		resolves(t, b.IN, f.boxAddr(), f.name("web")+domain+".", f.address(), "NOERROR", f.name("web")+domain+". "+f.address()+" "+f.vip(41))
	}
}

func Test139_dns_headless(t *testing.T) {
	b := newDNS(t, nil)
	documents := func(l1, r1 bool) func(f family) []string {
		return func(f family) []string {
			return []string{
				f.service("db", "clusterIP: None", "ports: [{name: http, port: 80}]"),
				f.rawSlice("db", "db", "http: 8080", f.hostedEndpoint(b.L1, "db-0", l1), f.hostedEndpoint(b.R1, "db-1", r1)),
				f.service("all", "clusterIP: None", "publishNotReadyAddresses: true", "ports: [{name: http, port: 80}]"),
				f.rawSlice("all", "all", "http: 8080", f.hostedEndpoint(b.L1, "db-0", l1), f.hostedEndpoint(b.R1, "db-1", r1)),
			}
		}
	}
	record := func(f family, name string, h *netlab.Host) string {
		return fmt.Sprintf("%s. %s %s", name, f.address(), f.of(h))
	}
	b.write("db.yaml", documents(true, true))
	b.svcctl.Start()
	for _, f := range families {
		db, all := f.name("db")+domain, f.name("all")+domain
		resolves(t, b.IN, f.boxAddr(), db, f.address(), "NOERROR", record(f, db, b.L1), record(f, db, b.R1))
		resolves(t, b.IN, f.boxAddr(), "db-1."+db, f.address(), "NOERROR", record(f, "db-1."+db, b.R1))
		d := resolves(t, b.IN, f.boxAddr(), "_http._tcp."+db, "SRV", "NOERROR",
			"_http._tcp."+db+". SRV 0 100 8080 db-0."+db+".", "_http._tcp."+db+". SRV 0 100 8080 db-1."+db+".")
		if want := []string{record(f, "db-0."+db, b.L1), record(f, "db-1."+db, b.R1)}; !slices.Equal(d.additional, want) {
			t.Errorf("additional: %q, want %q", d.additional, want)
		}
		pointer := dig(t, b.IN, f.boxAddr(), f.of(b.R1).String(), "PTR", "-x")
		if text := strings.Join(pointer.answer, "\n"); len(pointer.answer) != 2 || !strings.Contains(text, "PTR db-1."+db+".") || !strings.Contains(text, "PTR db-1."+all+".") {
			t.Errorf("the names of R1: %s %q", pointer.status, pointer.answer)
		}
		// What the answer says is there.
		if reply := answers(t, b.IN, "tcp", f.on(8080, b.R1)[0]); reply.Server != "R1" {
			t.Errorf("answered by %s", reply)
		}
	}
	b.rewrite("db.yaml", documents(true, false))
	for _, f := range families {
		db, all := f.name("db")+domain, f.name("all")+domain
		resolves(t, b.IN, f.boxAddr(), db, f.address(), "NOERROR", record(f, db, b.L1))
		resolves(t, b.IN, f.boxAddr(), "db-1."+db, f.address(), "NXDOMAIN")
		resolves(t, b.IN, f.boxAddr(), "_http._tcp."+db, "SRV", "NOERROR", "_http._tcp."+db+". SRV 0 100 8080 db-0."+db+".")
		resolves(t, b.IN, f.boxAddr(), all, f.address(), "NOERROR", record(f, all, b.L1), record(f, all, b.R1))
	}
	b.rewrite("db.yaml", documents(false, false))
	for _, f := range families {
		resolves(t, b.IN, f.boxAddr(), f.name("db")+domain, f.address(), "NXDOMAIN")
		resolves(t, b.IN, f.boxAddr(), f.name("db")+domain, "TXT", "NXDOMAIN")
	}
}

func Test139_dns_large_answer(t *testing.T) {
	b := newDNS(t, nil)
	const n = 200
	b.write("crowd.yaml", func(f family) []string {
		var endpoints []string
		for i := range n {
			endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q]}", fmt.Sprintf(f.pick("10.180.1.%d", "fd00:10:180::1:%d"), i)))
		}
		return []string{f.service("crowd", "clusterIP: None", "ports: [{name: http, port: 80}]"), f.rawSlice("crowd", "crowd", "http: 80", endpoints...)}
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		crowd := f.name("crowd") + domain
		for _, arg := range []string{"+noedns", "+bufsize=4096"} {
			d := dig(t, b.EXT, f.boxAddr(), crowd, f.address(), arg, "+ignore")
			if !slices.Contains(d.flags, "tc") || len(d.answer) == 0 || len(d.answer) == n {
				t.Errorf("over UDP with %s: flags %v, %d answers", arg, d.flags, len(d.answer))
			}
			// dig comes again over TCP by itself.
			if d := dig(t, b.EXT, f.boxAddr(), crowd, f.address(), arg); slices.Contains(d.flags, "tc") || len(d.answer) != n || !strings.Contains(d.text, "(TCP)") {
				t.Errorf("in the end with %s: flags %v, %d answers\n%s", arg, d.flags, len(d.answer), d.text)
			}
		}
	})
}

// upstream is a resolver on R2: another svcctl, whose Service db.prod.svc.example.com is
// what other names lead to.
func upstream(t *testing.T, s *netlab.Standard) {
	t.Helper()
	a := s.R2.Appliance(binary, "--node-name=r2", "--cluster-domain=example.com", "--dns-listen=:5300",
		"--service-cluster-ip-range=10.97.0.0/16")
	a.Manifests.Write("db.yaml", strings.Replace(service("db", "clusterIP: 10.97.0.77", "ports: [{port: 80}]"), "  name: db\n", "  name: db\n  namespace: prod\n", 1))
	a.Start()
}

func Test139_dns_external_name(t *testing.T) {
	b := newDNS(t, nil)
	b.flags["dns-upstream"] = []string{"192.0.2.199:53", ipv4.of(b.R2).String() + ":5300", "[" + ipv6.of(b.R2).String() + "]:5300"}
	b.svcctl = b.GW1.Appliance(binary, b.flags.args()...)
	upstream(t, b.Standard)
	b.svcctl.Manifests.Write("ext.yaml", service("ext", "type: ExternalName", "externalName: db.prod.svc.example.com")+
		"---\n"+service("lost", "type: ExternalName", "externalName: nobody.prod.svc.example.com")+
		"---\n"+service("digits", "type: ExternalName", "externalName: 1.2.3.4"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		alias := "ext" + domain + ". CNAME db.prod.svc.example.com."
		for _, from := range []*netlab.Host{b.IN, b.GW1} { // whom other names are resolved for
			resolves(t, from, f.boxAddr(), "ext"+domain, "A", "NOERROR", alias, "db.prod.svc.example.com. A 10.97.0.77")
			resolves(t, from, f.boxAddr(), "ext"+domain, "AAAA", "NOERROR", alias)
			resolves(t, from, f.boxAddr(), "ext"+domain, "CNAME", "NOERROR", alias)
			resolves(t, from, f.boxAddr(), "lost"+domain, "A", "NXDOMAIN", "lost"+domain+". CNAME nobody.prod.svc.example.com.")
			resolves(t, from, f.boxAddr(), "db.prod.svc.example.com", "A", "NOERROR", "db.prod.svc.example.com. A 10.97.0.77")
			resolves(t, from, f.boxAddr(), "digits"+domain, "A", "REFUSED", "digits"+domain+". CNAME 1.2.3.4.")
		}
		resolves(t, b.EXT, f.boxAddr(), "ext"+domain, "A", "NOERROR", alias)
		resolves(t, b.EXT, f.boxAddr(), "db.prod.svc.example.com", "A", "REFUSED")
	})
}

func Test139_dns_without_upstream(t *testing.T) {
	b := newDNS(t, nil)
	b.svcctl.Manifests.Write("ext.yaml", service("ext", "type: ExternalName", "externalName: my.database.example.com"))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		for _, from := range []*netlab.Host{b.IN, b.EXT, b.GW1} {
			resolves(t, from, f.boxAddr(), "ext"+domain, "A", "NOERROR", "ext"+domain+". CNAME my.database.example.com.")
			if d := resolves(t, from, f.boxAddr(), "example.com", "A", "REFUSED"); slices.Contains(d.flags, "ra") {
				t.Errorf("%s is told that other names are resolved: %v", from.Name, d.flags)
			}
		}
	})
}

// getent looks up a name as programs do, with a resolv.conf of the client's own.
func getent(t *testing.T, from *netlab.Host, conf, database, name string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for file, content := range map[string]string{"resolv.conf": conf, "nsswitch.conf": "hosts: files dns\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err := from.Run("unshare", "--mount", "sh", "-ec",
		`mount --bind "$1/resolv.conf" /etc/resolv.conf; mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf; exec getent "$2" "$3"`,
		"sh", dir, database, name)
	return out, err
}

func Test139_dns_search(t *testing.T) {
	b := newDNS(t, flags{"dns-client-namespaces": {"10.0.0.0/8=default", "10.0.0.0/24=shop,fd00:10::/64=shop"}})
	b.write("web.yaml", func(f family) []string {
		docs := b.webDocuments(b.L1)(f)
		shop := strings.Replace(f.service("web", "clusterIP: "+f.vip(60), "ports: [{name: p80, port: 80}]"), "metadata:\n", "metadata:\n  namespace: shop\n", 1)
		return append(docs, shop)
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		server := "nameserver " + f.boxAddr() + "\noptions timeout:4\n"
		search := server + "search default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
		database := f.pick("ahostsv4", "ahostsv6")
		for _, tt := range []struct {
			from       *netlab.Host
			conf, name string
			want       int // of the VIPs; 0: no such name
		}{
			// A client with a search list, as a Pod has it.
			{b.EXT, search, "web", 41},
			{b.EXT, search, "web.shop", 60},
			{b.EXT, search, "web.shop.svc", 60},
			{b.EXT, search, "web.shop.svc.cluster.local", 60},
			{b.EXT, search, "web.nowhere", 0},
			// Clients without one, whose namespace is known by their address.
			{b.IN, server, "web", 60},
			{b.EXT, server, "web", 0},
			{b.IN, server, "none", 0},
		} {
			name, rest, dotted := strings.Cut(tt.name, ".")
			if name = f.name(name); dotted {
				name += "." + rest
			}
			out, err := getent(t, tt.from, tt.conf, database, name)
			fields := strings.Fields(out)
			switch {
			case tt.want == 0 && err == nil:
				t.Errorf("%s finds %s: %s", tt.from.Name, name, out)
			case tt.want != 0 && (err != nil || len(fields) == 0 || fields[0] != f.vip(tt.want)):
				t.Errorf("%s looks up %s with\n%s%s, %v; want %s", tt.from.Name, name, tt.conf, out, err, f.vip(tt.want))
			}
		}
		// From the name to the Service.
		b.reaches(t, b.EXT, "tcp", f.at(f.vip(41), 80), masq, f.on(80, b.L1)...)
	})
}

// Asked under any of its addresses, the box answers from that address.
func Test139_dns_on_every_address(t *testing.T) {
	b := newDNS(t, flags{"dns-listen": {":53"}})
	b.write("web.yaml", b.webDocuments(b.L1))
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		web := f.name("web") + domain + "."
		for _, server := range []string{f.boxAddr(), f.altAddr()} {
			resolves(t, b.EXT, server, web, f.address(), "NOERROR", web+" "+f.address()+" "+f.vip(41))
		}
	})
}

// The DNS server on a VIP of its own, as clusters have it. Clients keep their addresses on
// the way, so that it is no way around who other names are resolved for.
func Test139_dns_on_a_vip(t *testing.T) {
	b := newDNS(t, nil)
	b.flags["dns-upstream"] = []string{ipv4.of(b.R2).String() + ":5300"}
	b.svcctl = b.GW1.Appliance(binary, b.flags.args()...)
	upstream(t, b.Standard)
	b.write("dns.yaml", func(f family) []string {
		return append(b.webDocuments(b.L1)(f),
			f.service("dns", "clusterIP: "+f.vip(53), "ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}]"),
			f.rawSlice("dns", "dns", "dns: 53/UDP, dns-tcp: 53", fmt.Sprintf("{addresses: [%q]}", f.boxAddr())))
	})
	b.svcctl.Start()
	b.each(t, func(t *testing.T, b *box, f family) {
		web := f.name("web") + domain + "."
		for _, from := range []*netlab.Host{b.IN, b.EXT, b.Near, b.GW1} {
			for _, args := range [][]string{nil, {"+tcp"}} {
				d := dig(t, from, f.vip(53), web, f.address(), args...)
				if want := web + " " + f.address() + " " + f.vip(41); len(d.answer) != 1 || d.answer[0] != want {
					t.Errorf("%s with %q: %s %q, want %q", from.Name, args, d.status, d.answer, want)
				}
			}
		}
		resolves(t, b.IN, f.vip(53), "db.prod.svc.example.com", "A", "NOERROR", "db.prod.svc.example.com. A 10.97.0.77")
		resolves(t, b.GW1, f.vip(53), "db.prod.svc.example.com", "A", "NOERROR", "db.prod.svc.example.com. A 10.97.0.77")
		resolves(t, b.EXT, f.vip(53), "db.prod.svc.example.com", "A", "REFUSED")
	})
}

// An address that is in use is a reason not to start, and the message says which.
func Test139_dns_address_in_use(t *testing.T) {
	b := newDNS(t, nil)
	b.GW1.Serve("udp", 53)
	b.svcctl.Launch()
	if state := b.svcctl.Wait(); state.Success() || !strings.Contains(b.svcctl.Log(), "open --dns-listen") {
		t.Errorf("%v:\n%s", state, b.svcctl.Log())
	}
}

// A Pod that becomes unready leaves the names and the traffic together.
func Test139_dns_follows_pods(t *testing.T) {
	b := newDNS(t, nil)
	pod := func(h *netlab.Host, isReady bool) string {
		name := strings.ToLower(h.Name)
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: db}}\n" +
			"spec: {nodeName: gw1, hostname: " + name + ", subdomain: db-4, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n" +
			fmt.Sprintf("status: {phase: Running, podIPs: [{ip: %s}, {ip: %q}], conditions: [{type: Ready, status: %q}]}\n",
				h.Addr4(), h.Addr6(), map[bool]string{true: "True", false: "False"}[isReady])
	}
	b.write("db.yaml", func(f family) []string {
		return []string{
			f.service("db", "clusterIP: None", "selector: {app: db}", "ports: [{name: http, port: 80, targetPort: http}]"),
			f.service("web", "clusterIP: "+f.vip(41), "selector: {app: db}", "ports: [{name: http, port: 80, targetPort: http}]"),
		}
	})
	pods := func(r1 bool) string { return pod(b.L1, true) + "---\n" + pod(b.R1, r1) }
	check := func(hosts ...*netlab.Host) {
		t.Helper()
		for _, f := range families {
			db := f.name("db") + domain
			var records []string
			for _, h := range hosts {
				records = append(records, fmt.Sprintf("%s. %s %s", db, f.address(), f.of(h)))
			}
			resolves(t, b.IN, f.boxAddr(), db, f.address(), "NOERROR", records...)
			b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(8080, hosts...)...)
		}
	}
	b.svcctl.Manifests.Write("pods.yaml", pods(true))
	b.svcctl.Start()
	check(b.L1, b.R1)
	// Those whose subdomain is the Service have their host name in it.
	resolves(t, b.IN, ipv4.boxAddr(), "r1.db-4"+domain, "A", "NOERROR", "r1.db-4"+domain+". A "+b.R1.Addr4().String())
	b.change(func() { b.svcctl.Manifests.Write("pods.yaml", pods(false)) })
	check(b.L1)
	resolves(t, b.IN, ipv4.boxAddr(), "r1.db-4"+domain, "A", "NXDOMAIN")
	b.change(func() { b.svcctl.Manifests.Write("pods.yaml", pods(true)) })
	check(b.L1, b.R1)
}
