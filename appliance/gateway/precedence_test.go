package gateway

import (
	"strings"
	"testing"
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
