package dns

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// everything is a Service of each kind.
var everything = service("web", "clusterIP: 10.96.0.10, ports: [{name: http, port: 80}, {name: metrics, port: 9090, protocol: UDP}]") +
	slice("web", "IPv4", "{name: http, port: 8080}", "{addresses: [10.1.2.11], hostname: web-0}") +
	service("dual", "clusterIPs: [10.96.0.11, 'fd00:10:96::11'], ports: [{name: dns, port: 53, protocol: UDP}]") +
	service("six", "clusterIPs: ['fd00:10:96::12'], ports: [{port: 80}]") +
	service("plain", "clusterIP: 10.96.0.13, ports: [{port: 80}]") +
	service("db", "clusterIP: None, ports: [{name: pg, port: 5432}]") +
	slice("db", "IPv4", "{name: pg, port: 15432}, {name: stray, port: 1}",
		"{addresses: [10.1.2.21], hostname: db-0}", "{addresses: [10.1.2.22]}",
		"{addresses: [10.1.2.23], hostname: db-2, conditions: {ready: false}}",
		"{addresses: [10.1.2.24], hostname: db-3, conditions: {ready: false, serving: true, terminating: true}}",
		"{addresses: [10.96.0.99], hostname: vip}") +
	slice("db", "IPv6", "{name: pg, port: 15432}", "{addresses: ['fd00:1::21'], hostname: db-0}", "{addresses: ['fd00:1::22']}", "{addresses: ['fd00:1::23'], conditions: {ready: false}}") +
	service("all", "clusterIP: None, publishNotReadyAddresses: true, ports: [{name: pg, port: 5432}]") +
	slice("all", "IPv4", "{name: pg, port: 5432}", "{addresses: [10.1.2.31], hostname: all-0, conditions: {ready: false}}") +
	service("idle", "clusterIP: None, ports: [{name: pg, port: 5432}]") +
	slice("idle", "IPv4", "{name: pg, port: 5432}", "{addresses: [10.1.2.41], hostname: idle-0, conditions: {ready: false}}") +
	service("portless", "clusterIP: None") +
	slice("portless", "IPv4", "", "{addresses: [10.1.2.51], hostname: p-0}") +
	service("ext", "type: ExternalName, externalName: my.database.example.com") +
	service("ext-dot", "type: ExternalName, externalName: my.database.example.com.") +
	service("digits", "type: ExternalName, externalName: 1.2.3.4") +
	service("inner", "type: ExternalName, externalName: Web.default.svc.cluster.local") +
	service("gone", "type: ExternalName, externalName: nobody.default.svc.cluster.local") +
	service("circle", "type: ExternalName, externalName: circle.default.svc.cluster.local") +
	"---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.7.7, ports: [{name: http, port: 80}]}\n"

const (
	soaOfZone = "authority: cluster.local. SOA"
	noData    = "NOERROR aa; " + soaOfZone
	noName    = "NXDOMAIN aa; " + soaOfZone
	refused   = "REFUSED"
)

func TestAnswers(t *testing.T) {
	s := serve(t, config(), everything)
	for _, tt := range []struct {
		name string // ~ stands for default.svc.cluster.local.
		kind uint16
		want string
	}{
		// Services with cluster IPs.
		{"web.~", dns.TypeA, "NOERROR aa; web.~ A 10.96.0.10"},
		{"web.~", dns.TypeAAAA, noData},
		{"web.~", dns.TypeMX, noData},
		{"web.~", dns.TypeSRV, noData},
		{"web.~", dns.TypeANY, `NOERROR aa; web.~ HINFO "RFC8482" ""`},
		{"web.shop.svc.cluster.local.", dns.TypeA, "NOERROR aa; web.shop.svc.cluster.local. A 10.96.7.7"},
		{"dual.~", dns.TypeA, "NOERROR aa; dual.~ A 10.96.0.11"},
		{"dual.~", dns.TypeAAAA, "NOERROR aa; dual.~ AAAA fd00:10:96::11"},
		{"six.~", dns.TypeA, noData},
		{"six.~", dns.TypeAAAA, "NOERROR aa; six.~ AAAA fd00:10:96::12"},
		{"web-0.web.~", dns.TypeA, noName}, // endpoints have names in headless Services alone
		{"none.~", dns.TypeA, noName},

		// Named ports.
		{"_http._tcp.web.~", dns.TypeSRV, "NOERROR aa; _http._tcp.web.~ SRV 0 100 80 web.~; additional: web.~ A 10.96.0.10"},
		{"_metrics._udp.web.~", dns.TypeSRV, "NOERROR aa; _metrics._udp.web.~ SRV 0 100 9090 web.~; additional: web.~ A 10.96.0.10"},
		{"_dns._udp.dual.~", dns.TypeSRV, "NOERROR aa; _dns._udp.dual.~ SRV 0 100 53 dual.~; additional: dual.~ A 10.96.0.11; additional: dual.~ AAAA fd00:10:96::11"},
		{"_http._tcp.web.~", dns.TypeA, noData},
		{"_tcp.web.~", dns.TypeSRV, noData},
		{"_udp.web.~", dns.TypeA, noData},
		{"_sctp.web.~", dns.TypeSRV, noName},
		{"_http._udp.web.~", dns.TypeSRV, noName},
		{"_http._tcp.plain.~", dns.TypeSRV, noName},
		{"__tcp.plain.~", dns.TypeSRV, noName},
		{"_tcp.plain.~", dns.TypeSRV, noName}, // an unnamed port has no SRV record

		// Headless Services.
		{"db.~", dns.TypeA, "NOERROR aa; db.~ A 10.1.2.21; db.~ A 10.1.2.22"},
		{"db.~", dns.TypeAAAA, "NOERROR aa; db.~ AAAA fd00:1::21; db.~ AAAA fd00:1::22"},
		{"db-0.db.~", dns.TypeA, "NOERROR aa; db-0.db.~ A 10.1.2.21"},
		{"db-0.db.~", dns.TypeAAAA, "NOERROR aa; db-0.db.~ AAAA fd00:1::21"},
		{"db-0.db.~", dns.TypeTXT, noData},
		{"10-1-2-22.db.~", dns.TypeA, "NOERROR aa; 10-1-2-22.db.~ A 10.1.2.22"},
		{"10-1-2-22.db.~", dns.TypeAAAA, noData},
		{"fd00-0001-0000-0000-0000-0000-0000-0022.db.~", dns.TypeAAAA, "NOERROR aa; fd00-0001-0000-0000-0000-0000-0000-0022.db.~ AAAA fd00:1::22"},
		{"10-1-2-21.db.~", dns.TypeA, noName}, // it has a host name
		{"db-2.db.~", dns.TypeA, noName},
		{"db-3.db.~", dns.TypeA, noName}, // draining is not ready
		{"vip.db.~", dns.TypeA, noName},
		{"_pg._tcp.db.~", dns.TypeSRV, "NOERROR aa; " +
			"_pg._tcp.db.~ SRV 0 100 15432 10-1-2-22.db.~; _pg._tcp.db.~ SRV 0 100 15432 db-0.db.~; " +
			"_pg._tcp.db.~ SRV 0 100 15432 fd00-0001-0000-0000-0000-0000-0000-0022.db.~; " +
			"additional: 10-1-2-22.db.~ A 10.1.2.22; additional: db-0.db.~ A 10.1.2.21; additional: db-0.db.~ AAAA fd00:1::21; " +
			"additional: fd00-0001-0000-0000-0000-0000-0000-0022.db.~ AAAA fd00:1::22"},
		{"_stray._tcp.db.~", dns.TypeSRV, noName}, // no port of the Service
		{"_tcp.db.~", dns.TypeSRV, noData},
		{"idle.~", dns.TypeA, noName},
		{"idle.~", dns.TypeAAAA, noName},
		{"_pg._tcp.idle.~", dns.TypeSRV, noName},
		{"all.~", dns.TypeA, "NOERROR aa; all.~ A 10.1.2.31"},
		{"all-0.all.~", dns.TypeA, "NOERROR aa; all-0.all.~ A 10.1.2.31"},
		{"portless.~", dns.TypeA, "NOERROR aa; portless.~ A 10.1.2.51"},
		{"p-0.portless.~", dns.TypeA, "NOERROR aa; p-0.portless.~ A 10.1.2.51"},

		// ExternalName.
		{"ext.~", dns.TypeA, "NOERROR aa; ext.~ CNAME my.database.example.com."},
		{"ext.~", dns.TypeAAAA, "NOERROR aa; ext.~ CNAME my.database.example.com."},
		{"ext.~", dns.TypeCNAME, "NOERROR aa; ext.~ CNAME my.database.example.com."},
		{"ext.~", dns.TypeTXT, "NOERROR aa; ext.~ CNAME my.database.example.com."},
		{"ext-dot.~", dns.TypeA, "NOERROR aa; ext-dot.~ CNAME my.database.example.com."},
		{"digits.~", dns.TypeA, "NOERROR aa; digits.~ CNAME 1.2.3.4."},
		{"inner.~", dns.TypeA, "NOERROR aa; inner.~ CNAME Web.~; Web.~ A 10.96.0.10"},
		{"inner.~", dns.TypeAAAA, "NOERROR aa; inner.~ CNAME Web.~; " + soaOfZone},
		{"gone.~", dns.TypeA, "NXDOMAIN aa; gone.~ CNAME nobody.~; " + soaOfZone},
		{"circle.~", dns.TypeA, "SERVFAIL"},
		{"_http._tcp.ext.~", dns.TypeSRV, noName},

		// What is there besides Services.
		{"cluster.local.", dns.TypeSOA, "NOERROR aa; cluster.local. SOA"},
		{"cluster.local.", dns.TypeNS, "NOERROR aa; cluster.local. NS ns.dns.cluster.local.; additional: ns.dns.cluster.local. A 127.0.0.1"},
		{"cluster.local.", dns.TypeA, noData},
		{"ns.dns.cluster.local.", dns.TypeA, "NOERROR aa; ns.dns.cluster.local. A 127.0.0.1"},
		{"dns.cluster.local.", dns.TypeA, noData},
		{"dns-version.cluster.local.", dns.TypeTXT, `NOERROR aa; dns-version.cluster.local. TXT "1.1.0"`},
		{"dns-version.cluster.local.", dns.TypeA, noData},
		{"svc.cluster.local.", dns.TypeA, noData},
		{"~", dns.TypeA, noData},
		{"shop.svc.cluster.local.", dns.TypeNS, noData},
		{"nowhere.svc.cluster.local.", dns.TypeA, noName},
		{"web.nowhere.svc.cluster.local.", dns.TypeA, noName},
		{"pod.cluster.local.", dns.TypeA, noName},
		{"a.b.c.d.web.~", dns.TypeA, noName},
		{"*.~", dns.TypeA, noName},
		{`web\.default.svc.cluster.local.`, dns.TypeA, noName},
		{`web\000.~`, dns.TypeA, noName},

		// Outside the zone.
		{"example.com.", dns.TypeA, refused},
		{".", dns.TypeNS, refused},
		{"local.", dns.TypeSOA, refused},
		{`foo\.cluster.local.`, dns.TypeA, refused},
		{"xcluster.local.", dns.TypeA, refused},
		{"web.", dns.TypeA, refused}, // this client is in no namespace
	} {
		for _, network := range []string{"udp", "tcp"} {
			name := strings.ReplaceAll(tt.name, "~", "default.svc.cluster.local.")
			want := strings.ReplaceAll(tt.want, "~", "default.svc.cluster.local.")
			if got := text(ask(t, s, network, question(name, tt.kind))); got != want {
				t.Errorf("%s %s over %s:\n got %s\nwant %s", tt.name, dns.TypeToString[tt.kind], network, got, want)
			}
		}
	}
}

func TestReverse(t *testing.T) {
	s := serve(t, config(), everything)
	const (
		zone4 = "authority: 96.10.in-addr.arpa. SOA"
		zone6 = "authority: 0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa. SOA"
	)
	six := func(last string) string {
		return strings.Join(strings.Split(last, ""), ".") + ".0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa."
	}
	host6, err := dns.ReverseAddr("fd00:1::21")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		kind uint16
		want string
	}{
		{"10.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa; 10.0.96.10.in-addr.arpa. PTR web.~"},
		{"10.0.96.10.in-addr.arpa.", dns.TypeA, "NOERROR aa; " + zone4},
		{"7.7.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa; 7.7.96.10.in-addr.arpa. PTR web.shop.svc.cluster.local."},
		{"200.0.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN aa; " + zone4},
		{"0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa; " + zone4},
		{"96.10.in-addr.arpa.", dns.TypeSOA, "NOERROR aa; 96.10.in-addr.arpa. SOA"},
		{"96.10.in-addr.arpa.", dns.TypeNS, "NOERROR aa; 96.10.in-addr.arpa. NS ns.dns.cluster.local."},
		{"96.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa; " + zone4},
		{"10.in-addr.arpa.", dns.TypeSOA, refused},
		{"in-addr.arpa.", dns.TypeSOA, refused},
		{"arpa.", dns.TypeSOA, refused},
		{six("1100"), dns.TypePTR, "NOERROR aa; " + six("1100") + " PTR dual.~"},
		{six("2100"), dns.TypePTR, "NOERROR aa; " + six("2100") + " PTR six.~"},
		{six("3100"), dns.TypePTR, "NXDOMAIN aa; " + zone6},
		{six("00"), dns.TypePTR, "NOERROR aa; " + zone6},
		// Endpoints of headless Services, under the names they have there.
		{"21.2.1.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa; 21.2.1.10.in-addr.arpa. PTR db-0.db.~"},
		{"22.2.1.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa; 22.2.1.10.in-addr.arpa. PTR 10-1-2-22.db.~"},
		{"21.2.1.10.in-addr.arpa.", dns.TypeA, "NOERROR aa"},
		{host6, dns.TypePTR, "NOERROR aa; " + host6 + " PTR db-0.db.~"},
		{"23.2.1.10.in-addr.arpa.", dns.TypePTR, refused}, // not ready
		{"31.2.1.10.in-addr.arpa.", dns.TypePTR, "NOERROR aa; 31.2.1.10.in-addr.arpa. PTR all-0.all.~"},
		{"11.2.1.10.in-addr.arpa.", dns.TypePTR, refused}, // of a Service with a cluster IP
		{"99.0.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN aa; " + zone4},
		// Not the names of addresses.
		{"010.0.96.10.in-addr.arpa.", dns.TypePTR, refused},
		{"1.10.0.96.10.in-addr.arpa.", dns.TypePTR, refused},
		{"256.0.96.10.in-addr.arpa.", dns.TypePTR, refused},
		{"+1.0.96.10.in-addr.arpa.", dns.TypePTR, refused},
		{"x." + six("3100"), dns.TypePTR, refused},
		{six("31g0"), dns.TypePTR, refused},
	} {
		want := strings.ReplaceAll(tt.want, "~", "default.svc.cluster.local.")
		if got := text(ask(t, s, "udp", question(tt.name, tt.kind))); got != want {
			t.Errorf("%s %s:\n got %s\nwant %s", tt.name, dns.TypeToString[tt.kind], got, want)
		}
	}
}
