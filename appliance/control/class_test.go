package control

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// Test1154_gateway_whose_class_is_gone: a Gateway that was served is reported as one that nothing serves once its class is gone, or once it names
// another class, also if that happens between two processes. A class that does not exist is an error of the Gateway, and one of another controller, as in
// a manifest for it, a warning.
func Test1154_gateway_whose_class_is_gone(t *testing.T) {
	const mine = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: mine}\nspec: {controllerName: svcctl.io/gateway-controller}\n"
	const others = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: others}\nspec: {controllerName: example.com/controller}\n"
	const noClass = "there is no GatewayClass mine: nothing of this Gateway is served; make it, or name class svcctl"
	const another = "GatewayClass others is of another controller: nothing of this Gateway is served here; name class svcctl"
	text := strings.Replace(gatewayText, "gatewayClassName: svcctl", "gatewayClassName: mine", 1)
	for _, c := range []struct {
		name, text, problem string
		restart             bool
	}{
		{"its class is gone", text, noClass, false},
		{"its class went between two processes", text, noClass, true},
		{"it names a class of another controller", strings.Replace(text, "gatewayClassName: mine", "gatewayClassName: others", 1) + mine + others, another, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newGatewayRig(t)
			r.files(text + mine)
			r.settle()
			is := func(conditions string, addresses, parents int) {
				t.Helper()
				status := r.get(object.KindGateway, "edge").(*object.Gateway).Status
				if got := conditionsOf(status.Conditions); got != conditions || len(status.Addresses) != addresses || len(status.Listeners) != addresses {
					t.Errorf("conditions %s, %d addresses, %d listeners, want %s and %d each", got, len(status.Addresses), len(status.Listeners), conditions, addresses)
				}
				if route := r.get(object.KindTCPRoute, "db").(*object.TCPRoute); len(route.Status.Parents) != parents {
					t.Errorf("the route has %d parents, want %d", len(route.Status.Parents), parents)
				}
			}
			is("Accepted=True/Accepted@1 Programmed=True/Programmed@1", 1, 1)

			if c.restart {
				r.restart()
			}
			r.files(c.text)
			r.settle()
			is("Accepted=Unknown/Pending@0 Programmed=Unknown/Pending@0", 0, 0)
			problem := ""
			for _, p := range r.c.Problems() {
				if p.Object == object.RefOf(r.get(object.KindGateway, "edge")) {
					problem += p.Message
					if p.Warning != (c.problem == another) {
						t.Errorf("warning %t: %s", p.Warning, p.Message)
					}
				}
			}
			if problem != c.problem {
				t.Errorf("problem %q, want %q", problem, c.problem)
			}
			if n := r.settle(); n != 0 {
				t.Errorf("%d changes without a cause", n)
			}
			r.restart()
			r.files(c.text)
			if n := r.settle(); n != 0 {
				t.Errorf("%d changes after a restart", n)
			}

			r.files(text + mine)
			r.settle()
			if got := conditionsOf(r.get(object.KindGateway, "edge").(*object.Gateway).Status.Conditions); !strings.HasPrefix(got, "Accepted=True/Accepted@") || !strings.Contains(got, "Programmed=True/Programmed@") {
				t.Errorf("with its class again: %s", got)
			}
		})
	}
}
