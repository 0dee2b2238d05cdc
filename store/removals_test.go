package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
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
