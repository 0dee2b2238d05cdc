package gateway

import (
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"
	"svcctl.io/svcctl/store/object"
)

// Test1210_the_listener_with_the_most_specific_hostname_gets_a_name: of listeners at one port, the one with the most specific hostname gets the
// connections for a server name, whatever the order of the listeners and the hostnames of routes at the others (GatewaySpec.listeners).
func Test1210_the_listener_with_the_most_specific_hostname_gets_a_name(t *testing.T) {
	const (
		wild     = `{name: wild, port: 443, protocol: TLS, hostname: "*.example.com", tls: {mode: Passthrough}}`
		foo      = `{name: foo, port: 443, protocol: TLS, hostname: foo.example.com, tls: {mode: Passthrough}}`
		below    = `{name: below, port: 443, protocol: TLS, hostname: "*.foo.example.com", tls: {mode: Passthrough}}`
		any      = `{name: any, port: 443, protocol: TLS, tls: {mode: Passthrough}}`
		services = "edge-svcctl: tcp-443 tls-services.tcp-443="
	)
	at := func(listener, hostnames string) string {
		return routeDoc("TLSRoute", "at-"+listener, "parentRefs: [{name: edge, sectionName: "+listener+"}], hostnames: ["+hostnames+"], "+toBlue)
	}
	const atWild = `foo.example.com, x.example.com, a.foo.example.com, "*.foo.example.com"`
	for _, tt := range []struct{ name, listeners, want string }{
		{"the less specific one comes first", wild + ", " + foo, "*=,**.example.com=,**.foo.example.com=WILD,a.foo.example.com=WILD,foo.example.com=FOO,x.example.com=WILD"},
		{"it comes last", foo + ", " + wild, "*=,**.example.com=,**.foo.example.com=WILD,a.foo.example.com=WILD,foo.example.com=FOO,x.example.com=WILD"},
		{"all names but one are those of others", any + ", " + wild + ", " + below + ", " + foo, "*=,**.example.com=,**.foo.example.com=,foo.example.com=FOO,other.org=ANY,x.example.com=WILD"},
	} {
		docs := []string{gatewayDoc(tt.listeners), serviceDoc("blue", one), at("wild", atWild), at("foo", "foo.example.com"), at("any", "foo.example.com, x.example.com, other.org")}
		want := strings.NewReplacer("WILD", "for TLSRoute/default/at-wild@wild", "FOO", "for TLSRoute/default/at-foo@foo", "ANY", "for TLSRoute/default/at-any@any").Replace(services + tt.want)
		if got := served(newWorld(t, docs...).plan(t, "198.51.100.1")); len(got) == 0 || got[0] != want {
			t.Errorf("%s: serves\n%s\nwant %s", tt.name, strings.Join(got, "\n"), want)
		}
	}
	docs := []string{gatewayDoc(wild + ", " + foo), serviceDoc("blue", one), at("wild", atWild)}
	if got := served(newWorld(t, docs...).plan(t, "198.51.100.1")); !strings.Contains(got[0], ",foo.example.com=,") {
		t.Errorf("a name of a listener without routes leads to another listener: %s", got[0])
	}
}

// Test1213_settings_of_TLS_reach_what_ends_TLS: annotations of a Gateway about TLS of clients are those of the Services that end TLS. Elsewhere they
// would have no certificate, and the ports would not be served.
func Test1213_settings_of_TLS_reach_what_ends_TLS(t *testing.T) {
	const settings = ", infrastructure: {annotations: {svcctl.io/tls-policy: '1.3', svcctl.io/tls-alpn: h2, svcctl.io/tls-client-ca: ca, svcctl.io/balance: maglev}}"
	crt, key := pki.PEM(t, pki.Issue(t, nil, time.Unix(0, 0), time.Unix(1<<33, 0), "www.example.com"))
	w := newWorld(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: cert}\ntype: kubernetes.io/tls\ndata: {tls.crt: eA==, tls.key: eA==}\n",
		gatewayDoc(`{name: p, port: 443, protocol: TLS, hostname: p.example.com, tls: {mode: Passthrough}}, {name: t, port: 443, protocol: TLS, hostname: t.example.com, tls: {mode: Terminate, certificateRefs: [{name: cert}]}}`, settings), serviceDoc("blue", one),
		routeDoc("TLSRoute", "r", "parentRefs: [{name: edge}], hostnames: [p.example.com, t.example.com], "+toBlue))
	secret := w.Get(object.Ref{Kind: object.KindSecret, Namespace: "default", Name: "cert"}).(*object.Secret)
	secret.Data = map[string][]byte{object.TLSCert: crt, object.TLSKey: key}
	got := served(w.plan(t, "198.51.100.1"))
	for _, want := range []string{
		"edge-svcctl: tcp-443 balance=maglev tls-services.tcp-443=*=,p.example.com=for TLSRoute/default/r@p,t.example.com=for TLSRoute/default/r@t",
		"for TLSRoute/default/r@p: tcp-443 balance=maglev",
		"for TLSRoute/default/r@t: tcp-443 balance=maglev tls-alpn=h2 tls-client-ca=ca tls-policy=1.3 tls-secret=cert",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("serves\n%s\nwant %s", strings.Join(got, "\n"), want)
		}
	}
	w = newWorld(t, gatewayDoc(`{name: h, port: 80, protocol: HTTP}`, settings))
	if got := served(w.plan(t, "198.51.100.1")); !strings.Contains(got[0], "tls-client-ca=ca") {
		t.Errorf("no listener ends TLS, and it serves in the clear what is to ask for certificates: %s", got[0])
	}
}

// Test1215_annotations_about_ports_of_a_Gateway: an annotation of a Gateway about one port is that of the Services that have the port, and one about
// the protocol of endpoints is about HTTP ports and what ends TLS: connections that are passed on by server name stay as they are.
func Test1215_annotations_about_ports_of_a_Gateway(t *testing.T) {
	crt, key := pki.PEM(t, pki.Issue(t, nil, time.Unix(0, 0), time.Unix(1<<33, 0), "www.example.com"))
	const listeners = `{name: h, port: 80, protocol: HTTP}, {name: t, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}, ` +
		`{name: p, port: 444, protocol: TLS, tls: {mode: Passthrough}}, {name: none, port: 445, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}`
	for _, tt := range []struct{ name, annotations, gateway, ends, passes string }{
		{"of all ports", "svcctl.io/backend-protocol: http", " backend-protocol=http backend-protocol.tcp-443=tcp backend-protocol.tcp-444=tcp", " backend-protocol=http", " backend-protocol=http backend-protocol.tcp-444=tcp"},
		{"of single ports", "svcctl.io/backend-protocol.tcp-443: http, svcctl.io/backend-protocol.tcp-445: http, svcctl.io/health-check.tcp-80: http",
			" backend-protocol.tcp-443=tcp health-check.tcp-80=http", " backend-protocol.tcp-443=http", ""},
		{"of none", "svcctl.io/balance: random", " balance=random", " balance=random", " balance=random"},
	} {
		w := newWorld(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: cert}\ntype: kubernetes.io/tls\ndata: {tls.crt: eA==, tls.key: eA==}\n",
			gatewayDoc(listeners, ", infrastructure: {annotations: {"+tt.annotations+"}}"), serviceDoc("blue", one),
			routeDoc("HTTPRoute", "r", "parentRefs: [{name: edge}], "+toBlue), routeDoc("TLSRoute", "p", "parentRefs: [{name: edge}], hostnames: [p.example.com], "+toBlue))
		w.Get(object.Ref{Kind: object.KindSecret, Namespace: "default", Name: "cert"}).(*object.Secret).Data = map[string][]byte{object.TLSCert: crt, object.TLSKey: key}
		got := served(w.plan(t, "198.51.100.1"))
		for _, want := range []string{
			"edge-svcctl: tcp-80 tcp-443 tcp-444" + tt.gateway + " tls-services.tcp-443=*=for HTTPRoute/default/r@t tls-services.tcp-444=*=,p.example.com=for TLSRoute/default/p@p",
			"for HTTPRoute/default/r@t: tcp-443" + tt.ends + " tls-secret=cert", "for TLSRoute/default/p@p: tcp-444" + tt.passes,
		} {
			if !slices.Contains(got, want) {
				t.Errorf("%s: serves\n%s\nwant %s", tt.name, strings.Join(got, "\n"), want)
			}
		}
	}
}
