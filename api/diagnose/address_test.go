package diagnose_test

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// TestEndpoint: an address that is an endpoint is named with its Services and its worst state.
func TestEndpoint(t *testing.T) {
	no, since := false, time.Date(2026, 3, 1, 20, 39, 0, 0, time.UTC)
	down := []wire.EndpointHealth{{State: wire.HealthDown, Since: &since, Why: "connection refused", Check: "tcp"}}
	up := []wire.EndpointHealth{{State: wire.HealthUp, Since: &since, Check: "tcp"}}
	for name, tt := range map[string]struct {
		backends []diagnose.Backend
		worst    diagnose.Level
		want     string
	}{
		"unchecked": {[]diagnose.Backend{{Service: "shop/web", Slice: "web-1"}}, diagnose.Good,
			"+ 10.1.2.12 is an endpoint of shop/web: ready, as EndpointSlice web-1 has it; no health check asks it\n"},
		"up": {[]diagnose.Backend{{Service: "shop/web", Slice: "web-1", Health: up}}, diagnose.Good,
			"+ 10.1.2.12 is an endpoint of shop/web: up since 2026-03-01 20:39:00Z (tcp)\n"},
		"up, of a new Service": {[]diagnose.Backend{{Service: "shop/web", Slice: "web-1", Health: []wire.EndpointHealth{{State: wire.HealthUp, Check: "tcp"}}}}, diagnose.Good,
			"+ 10.1.2.12 is an endpoint of shop/web: up since the first check (tcp)\n"},
		"down in one of three": {[]diagnose.Backend{{Service: "a/a", Slice: "a-1", Health: up}, {Service: "shop/web", Slice: "web-1", Health: down}, {Service: "z/z", Slice: "z-1"}}, diagnose.Bad,
			"- 10.1.2.12 is an endpoint of shop/web and 2 other Services: down since 2026-03-01 20:39:00Z: connection refused (tcp)\n    a/a: up since"},
		"not ready": {[]diagnose.Backend{{Service: "shop/web", Slice: "web-1", Conditions: object.EndpointConditions{Ready: &no}}}, diagnose.Doubt,
			"? 10.1.2.12 is an endpoint of shop/web: not ready, as EndpointSlice web-1 has it\n> look at that server; `svcctl explain svc/web -n shop` follows the Service\n"},
	} {
		f := facts(func(f *diagnose.Facts) {
			f.Service, f.Traffic, f.Question.Address = nil, &wire.Traffic{}, netip.MustParseAddr("10.1.2.12")
		})
		findings := diagnose.Endpoint(f, tt.backends)
		if got := text(findings); !strings.HasPrefix(got, tt.want) || diagnose.Worst(findings) != tt.worst {
			t.Errorf("%s: worst %d:\n%swant %d:\n%s", name, diagnose.Worst(findings), got, tt.worst, tt.want)
		}
	}
}

// TestEndpointThatLeaves: problems of the address that an endpoint leaves with are problems of its connections.
func TestEndpointThatLeaves(t *testing.T) {
	const nowhere = " is announced nowhere: the announcer is not running"
	f := facts(func(f *diagnose.Facts) {
		f.Service, f.Question.Address = nil, netip.MustParseAddr("10.1.2.12")
		f.Traffic = &wire.Traffic{Egress: []wire.EgressTraffic{{Namespace: "shop", Service: "web", Address: "198.51.100.4", Sources: []wire.EgressSource{{Address: "10.1.2.12", Open: 1}}}}}
		f.Status.Problems = []wire.Problem{{Object: "Service shop/web", Reason: "AnnouncerMissing", Message: "198.51.100.4" + nowhere}, {Object: "Service shop/a", Reason: "AnnouncerMissing", Message: "198.51.100.5" + nowhere}}
	})
	got := text(diagnose.Endpoint(f, []diagnose.Backend{{Service: "shop/web", Slice: "web-1"}}))
	want := "+ it leaves with 198.51.100.4 of shop/web\n? answers to its connections may not come back: 198.51.100.4" + nowhere + "\n> `svcctl explain 198.51.100.4` has the next step\n"
	if !strings.Contains(got, want) || strings.Contains(got, "198.51.100.5") {
		t.Error(got)
	}
}

// TestEndpointThatDoesNotLeave: why an endpoint has no address of its Service, where the problem names it, may be about it, or is about all.
func TestEndpointThatDoesNotLeave(t *testing.T) {
	const field, shared = "metadata.annotations[svcctl.io/egress]", "10.1.2.12 leaves with 198.51.100.5 of default/a, which comes first by name"
	for _, tt := range []struct {
		problem wire.Problem
		leaves  bool // with an address of the Service
		want    bool
	}{
		{wire.Problem{Reason: "EgressNotAllowed", Message: "10.1.2.11, 10.1.2.12 leave with their own addresses"}, false, true},
		{wire.Problem{Reason: "EgressNotAllowed", Message: "10.1.2.11 leaves with its own address"}, false, false},
		{wire.Problem{Reason: "EgressNotAllowed", Message: "10.1.2.11 and 2 more leave with their own addresses"}, false, true},
		{wire.Problem{Reason: "EgressNotAllowed", Message: "10.1.2.11 and 2 more leave with their own addresses"}, true, false},
		{wire.Problem{Reason: "EgressNotAllowed", Message: "endpoints leave with their own addresses: there is no --egress-from"}, false, true},
		{wire.Problem{Reason: "NoAddress", Message: "endpoints leave with their own addresses over IPv6"}, false, true},
		{wire.Problem{Reason: "NoAddress", Message: "endpoints leave with their own addresses over IPv6", Object: "Service shop/other"}, false, false},
		{wire.Problem{Reason: "UnknownSourceSet", Message: "there is no --source-set x", Field: "metadata.annotations[svcctl.io/egress-to]"}, false, true},
		{wire.Problem{Reason: "UnknownSourceSet", Message: "there is no --source-set x", Field: "metadata.annotations[svcctl.io/source-sets]"}, false, false},
		{wire.Problem{Reason: "SharedEndpoint", Message: shared}, true, true},
	} {
		f := facts(func(f *diagnose.Facts) {
			f.Service, f.Question.Address, f.Traffic = nil, netip.MustParseAddr("10.1.2.12"), &wire.Traffic{}
			if tt.leaves {
				f.Traffic.Egress = []wire.EgressTraffic{{Namespace: "shop", Service: "web", Address: "198.51.100.4", Sources: []wire.EgressSource{{Address: "10.1.2.12", Open: 1}}}}
			}
			tt.problem.Object, tt.problem.Field = cmp.Or(tt.problem.Object, "Service shop/web"), cmp.Or(tt.problem.Field, field)
			f.Status.Problems = []wire.Problem{tt.problem}
		})
		got := text(diagnose.Endpoint(f, []diagnose.Backend{{Service: "shop/web", Slice: "web-1"}}))
		if is := strings.Contains(got, "? "+tt.problem.Object+": "+tt.problem.Message); is != tt.want {
			t.Errorf("%+v: is there: %v\n%s", tt.problem, is, got)
		}
	}
}

// TestNobodyAtTheBox: an address of the box is no address of somebody else.
func TestNobodyAtTheBox(t *testing.T) {
	f := facts(func(f *diagnose.Facts) {
		f.Service, f.Allocations = nil, &wire.Allocations{}
		f.Box = []wire.BoxAddress{{Address: "192.0.2.1", NodePorts: true}}
		f.Question = diagnose.Question{Address: netip.MustParseAddr("192.0.2.1"), Port: 31234}
	})
	got := text(diagnose.Nobody(f))
	if !strings.HasPrefix(got, "- 192.0.2.1 is an address of this box, and no Service has the node port 31234\n") || strings.Contains(got, "not ours") {
		t.Error(got)
	}
	if findings := diagnose.Nobody(f); diagnose.Worst(findings) != diagnose.Bad {
		t.Error("that nobody answers is not bad")
	}
}

// An address is judged by its own family: what fails at the addresses of the other one is a note.
func Test1046_an_address_is_judged_by_its_family(t *testing.T) {
	const noReady, allOther, down = "port http over IPv6: none of its 1 endpoint takes new connections: not ready, taken out, or of weight 0",
		"all 2 endpoints are IPv4, so every client of its IPv6 addresses is refused: name IPv6 endpoints", "port http: its only endpoint is down, so traffic still goes to it; fix a server, or the check"
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")
	for _, tt := range []struct{ field, message, cause string }{
		{"spec.ports[0]", noReady, ""}, {"spec.ipFamilies", allOther, ""}, {"spec.ports[0]", down, "[fd00::1:11]:8080 (connection refused)"},
	} {
		f := facts(nil)
		f.Service.Spec.ClusterIPs, f.Service.Spec.IPFamilies = []string{four.String(), six.String()}, []string{object.IPv4, object.IPv6}
		f.Service.Status.Conditions = []object.Condition{
			{Type: wire.ConditionReady, Status: "False", Reason: "Any", Message: tt.message}, {Type: wire.ConditionProgrammed, Status: "True"},
		}
		f.Status.Problems = []wire.Problem{{Object: "Service default/web", Field: tt.field, Reason: "Any", Message: tt.message, Cause: tt.cause, Severity: wire.SeverityError}}
		ask := func(addr netip.Addr, port uint16, worst diagnose.Level, want string) {
			t.Helper()
			f.Question = diagnose.Question{Address: addr, Port: port}
			if findings := diagnose.Service(f); diagnose.Worst(findings) != worst || !strings.Contains(text(findings), want) {
				t.Errorf("%s: %s, port %d: want %q, got\n%s", tt.message, addr, port, want, text(findings))
			}
		}
		for _, port := range []uint16{80, 0} {
			ask(four, port, diagnose.Good, "+ it answers there\n")
			ask(four, port, diagnose.Good, "1 problem with other ports or addresses of it")
			ask(six, port, diagnose.Bad, "- it does not answer: "+tt.message)
			ask(netip.Addr{}, port, diagnose.Bad, "- it does not answer: "+tt.message)
		}
		if tt.cause != "" { // a relay would connect clients of IPv4 to that endpoint
			f.Service.Metadata.Annotations = map[string]string{"svcctl.io/proxy-mode": "userspace"}
			ask(four, 80, diagnose.Bad, "- it does not answer: "+tt.message)
		}
		f.Slices = nil // IPv4 fails, too
		ask(four, 80, diagnose.Bad, "")
	}
}

// The first line answers the question: of a port that the Service does not have, and of an address beside one whose port another Service has.
func Test1119_the_first_line_answers_the_question(t *testing.T) {
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")
	f := facts(nil)
	f.Service.Spec.ClusterIPs, f.Service.Spec.IPFamilies = []string{four.String(), six.String()}, []string{object.IPv4, object.IPv6}
	ask := func(addr netip.Addr, port uint16, want string) {
		t.Helper()
		f.Question = diagnose.Question{Address: addr, Port: port}
		if got := text(diagnose.Service(f)); !strings.HasPrefix(got, want) {
			t.Errorf("%s port %d: want %q, got\n%s", addr, port, want, got)
		}
	}
	f.Service.Status.Conditions = []object.Condition{{Type: wire.ConditionReady, Status: "True", Message: "every port"}, {Type: wire.ConditionProgrammed, Status: "True"}}
	ask(four, 80, "+ it answers: every port\n")
	ask(four, 81, "- it does not serve port 81: it has 80/TCP (node port 30080)\n")
	const message = "fd00::10 port 80/TCP is not served for this Service: Service default/first, which asked for it first, has it"
	f.Service.Status.Conditions[0] = object.Condition{Type: wire.ConditionReady, Status: "False", Reason: "PortConflict", Message: message}
	f.Status.Problems = []wire.Problem{{Object: "Service default/web", Reason: "PortConflict", Message: message, Severity: wire.SeverityError}}
	ask(four, 80, "+ it answers there\n")
	ask(six, 80, "- it does not answer: "+message)
	ask(netip.Addr{}, 80, "- it does not answer: "+message)
}
