package control

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// Test1177_routes_without_a_parent: a route or ListenerSet that names no parent, or one that does not exist, has a problem as long as that is so,
// whatever comes first. Parents of other kinds, and Gateways of other controllers, are none of svcctl's business.
func Test1177_routes_without_a_parent(t *testing.T) {
	const route = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {name: web}\nspec: {PARENTS, rules: [{backendRefs: [{name: blue, port: 5432}]}]}\n"
	const set = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {name: more}\nspec: {parentRef: {name: PARENT}, listeners: [{name: web, port: 81, protocol: TCP}]}\n"
	const others = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: others}\nspec: {controllerName: example.com/controller}\n" +
		"---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: other}\nspec: {gatewayClassName: others, listeners: [{name: web, port: 80, protocol: HTTP}]}\n"
	text := strings.Replace(gatewayText, "spec:\n  gateway", "spec:\n  allowedListeners: {namespaces: {from: Same}}\n  gateway", 1)
	of := func(parents string) string { return text + others + strings.Replace(route, "PARENTS", parents, 1) }
	const noParent = "TCPRoute default/web: parentRefs name no Gateway and no ListenerSet: nothing of it is served"
	missing := func(who, parent string) string {
		return who + ": there is no " + parent + ", which it names as a parent: nothing of it is served there"
	}
	r := newGatewayRig(t)
	for _, c := range []struct{ text, want string }{
		{of("parentRefs: [{name: egde}]"), missing("TCPRoute default/web", "Gateway default/egde")},
		{of("parentRefs: [{name: edge}]"), ""},
		{of("parentRefs: [{name: edge}, {name: egde}]"), missing("TCPRoute default/web", "Gateway default/egde")},
		{of("parentRefs: [{name: other}]"), ""},
		{of("parentRefs: []"), noParent},
		{of("parentRefs: [{group: '', kind: Service, name: blue}]"), noParent},
		{of("parentRefs: [{kind: ListenerSet, name: more}]"), missing("TCPRoute default/web", "ListenerSet default/more")},
		{of("parentRefs: [{kind: ListenerSet, name: more}]") + strings.Replace(set, "PARENT", "egde", 1), missing("ListenerSet default/more", "Gateway default/egde")},
		{of("parentRefs: [{kind: ListenerSet, name: more}]") + strings.Replace(set, "PARENT", "edge", 1), ""},
		{of("parentRefs: [{kind: ListenerSet, name: more}]"), missing("TCPRoute default/web", "ListenerSet default/more")},
		{strings.Replace(text, "metadata: {name: edge}", "metadata: {name: late}", 1), missing("TCPRoute default/db", "Gateway default/edge")},
		{text, ""},
	} {
		for _, restart := range []bool{false, true} {
			if restart {
				r.restart()
			}
			r.files(c.text)
			r.settle()
			var got []string
			for _, p := range r.c.Problems() {
				if p.Reason == "OrphanRoute" && p.Warning {
					got = append(got, p.Object.String()+": "+p.Message)
				}
			}
			if strings.Join(got, "; ") != c.want {
				t.Errorf("restart %t: problems %q, want %q of\n%s", restart, got, c.want, strings.TrimPrefix(c.text, text))
			}
			if n := r.settle(); n != 0 {
				t.Errorf("restart %t: %d changes without a cause", restart, n)
			}
		}
	}
	if gw := r.get(object.KindGateway, "edge").(*object.Gateway); len(gw.Status.Addresses) != 1 {
		t.Errorf("the Gateway has addresses %v", gw.Status.Addresses)
	}
}
