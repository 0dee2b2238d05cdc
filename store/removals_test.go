package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/manifest"
)

// Test1155_gateways_count_among_removals: the guard is asked about Gateways that vanish from the files as about Services, as a Service is generated from
// each. It gets the number of both that files declare.
func Test1155_gateways_count_among_removals(t *testing.T) {
	gateway := func(name string) string {
		return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: %s}\n", name) +
			"spec: {gatewayClassName: svcctl, listeners: [{name: db, port: 5432, protocol: TCP}]}\n"
	}
	b := newBox(t)
	b.apply("a.yaml", "web {}")
	b.apply("b.yaml", gateway("web")+gateway("db"))

	var asked []string
	decision := Keep
	b.guard = func(r Removals) func(string) Decision {
		slices.Sort(r.Files["b.yaml"])
		asked = append(asked, fmt.Sprint(r.Files, r.Declared))
		return func(string) Decision { return decision }
	}
	b.apply("b.yaml", gateway("web"))
	b.apply("b.yaml", "")
	decision = Remove
	b.sync()
	b.apply("a.yaml", "")
	want := "map[b.yaml:[Gateway default/db]] 3\nmap[b.yaml:[Gateway default/db Gateway default/web]] 3\n" +
		"map[b.yaml:[Gateway default/db Gateway default/web]] 3\nmap[a.yaml:[default/web]] 1"
	if got := strings.Join(asked, "\n"); got != want {
		t.Errorf("asked about\n%s\nwant\n%s", got, want)
	}
}

// Test1155_class_of_gateways: a GatewayClass of svcctl that vanishes from the files counts as the Gateways that nothing serves without it, of files and
// of clients.
func Test1155_class_of_gateways(t *testing.T) {
	of := func(kind, name, spec string) string {
		return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: %s}\nspec: {%s}\n", kind, name, spec)
	}
	gateway := func(name, class string) string {
		return of("Gateway", name, "gatewayClassName: "+class+", listeners: [{name: db, port: 5432, protocol: TCP}]")
	}
	b := newBox(t)
	b.apply("gateways.yaml", gateway("web", "edge")+gateway("db", "edge")+gateway("other", "svcctl")+gateway("far", "far"))
	b.apply("far.yaml", of("GatewayClass", "far", "controllerName: example.com/other"))
	b.apply("class.yaml", of("GatewayClass", "edge", "controllerName: svcctl.io/gateway-controller"))
	if _, err := b.put(manifest.Decode("mine.yaml", []byte(gateway("mine", "edge")), manifest.DefaultLimits()).Documents[0].Object); err != nil {
		t.Fatal(err)
	}
	var asked []string
	b.guard = func(r Removals) func(string) Decision {
		slices.Sort(r.Files["class.yaml"])
		asked = append(asked, fmt.Sprint(r.Files))
		return func(string) Decision { return Keep }
	}
	b.apply("class.yaml", "")
	b.apply("far.yaml", "")
	want := "map[class.yaml:[Gateway default/db Gateway default/mine Gateway default/web]]\n" +
		"map[class.yaml:[Gateway default/db Gateway default/mine Gateway default/web] far.yaml:[]]"
	if got := strings.Join(asked, "\n"); got != want {
		t.Errorf("asked about\n%s\nwant\n%s", got, want)
	}
}
