package control

import (
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/store/object"
)

// Test1211_gateways_whose_Services_have_one_name: of two Gateways whose names lead to one name of a Service, as u.v and u-v, the first has it, with
// its own endpoints alone, also after a restart. The other one has the reason in its status, gets the name when the first goes, and takes nothing of
// the first along when it goes itself.
func Test1211_gateways_whose_Services_have_one_name(t *testing.T) {
	text := func(name, backend string) string {
		of := gatewayText[:strings.LastIndex(gatewayText, "---\napiVersion: v1")]
		return strings.NewReplacer("name: edge", "name: "+name, "name: db}\nspec", "name: "+backend+"}\nspec", "[{name: blue, port: 5432, weight: 9}, {name: green, port: 5432}]", "[{name: "+backend+", port: 5432}]").Replace(of) + "---\n"
	}
	backends := gatewayText[strings.LastIndex(gatewayText, "apiVersion: v1"):]
	backends += "---\n" + strings.NewReplacer("blue", "green", "10.1.0.", "10.2.0.").Replace(backends)
	first, second := text("u-v", "blue"), text("u.v", "green")
	blue, green := []string{"default/blue:5432=1 10.1.0.1 10.1.0.2"}, []string{"default/green:5432=1 10.2.0.1 10.2.0.2"}
	const served, refused = "Accepted=True/Accepted@1 Programmed=True/Programmed@1", "Accepted=True/Accepted@1 Programmed=False/Invalid@1"
	r := newGatewayRig(t)
	is := func(when string, shares []string, want map[string]string) {
		t.Helper()
		if got := r.shares("u-v-svcctl"); !slices.Equal(got, shares) {
			t.Errorf("%s: the Service has the endpoints %q, want %q", when, got, shares)
		}
		for name, want := range want {
			status := r.get(object.KindGateway, name).(*object.Gateway).Status
			if got := conditionsOf(status.Conditions); got != want || (want == served) != (len(status.Addresses) == 1) {
				t.Errorf("%s: %s has %s and %d addresses, want %s", when, name, got, len(status.Addresses), want)
			}
		}
	}
	const orphan = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {name: orphan}\nspec: {rules: [{backendRefs: [{name: blue, port: 5432}]}]}\n"
	r.files(first + second + backends + orphan)
	r.settle()
	is("both at once", blue, map[string]string{"u-v": served, "u.v": refused})
	status := r.get(object.KindGateway, "u.v").(*object.Gateway).Status
	if why := status.Conditions[1].Message; !strings.Contains(why, "Service default/u-v-svcctl of Gateway default/u-v") {
		t.Errorf("the reason is %q", why)
	}
	if n := r.settle(); n != 0 {
		t.Errorf("%d changes without a cause", n)
	}
	r.restart()
	r.files(first + second + backends)
	if n := r.settle(); n != 0 {
		t.Errorf("%d changes after a restart", n)
	}
	r.files(first + backends)
	r.settle()
	is("the second is gone", blue, map[string]string{"u-v": served})
	r.files(first + second + backends)
	r.settle()
	r.files(second + backends)
	r.settle()
	is("the first is gone", green, map[string]string{"u.v": served})
	r.files(first + second + backends)
	r.settle()
	is("the first is back", green, map[string]string{"u.v": served, "u-v": refused})

	// Another box of a fleet, which reads all of it at once, leaves the name to the Gateway that has it.
	r = newGatewayRig(t)
	this, other := r.c, NewEndpoints(endpoints.Facts{}, r.objects)
	r.c = other
	r.settle()
	r.c = this
	r.files(second + backends)
	r.settle()
	r.files(first + second + backends)
	for _, r.c = range []*Endpoints{other, this, other} {
		r.settle()
		is("two boxes", green, map[string]string{"u.v": served, "u-v": refused})
	}
	if n := r.settle(); n != 0 {
		t.Errorf("two boxes: %d changes without a cause", n)
	}
}

// Test1212_reason_for_which_a_new_Gateway_is_not_served: a Gateway whose first Service is refused has the reason in its status.
func Test1212_reason_for_which_a_new_Gateway_is_not_served(t *testing.T) {
	r := newGatewayRig(t)
	r.files(strings.Replace(gatewayText, "  listeners:", "  infrastructure: {annotations: {svcctl.io/proxy-protocol: v1, svcctl.io/proxy-mode: kernel}}\n  listeners:", 1))
	r.settle()
	condition := r.get(object.KindGateway, "edge").(*object.Gateway).Status.Conditions[1]
	if condition.Status != "False" || !strings.Contains(condition.Message, "svcctl.io/proxy-mode") {
		t.Errorf("%s: %s", condition.Reason, condition.Message)
	}
}
