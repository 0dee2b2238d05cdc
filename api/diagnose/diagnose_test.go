package diagnose_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// facts are those of a Service with nothing wrong; change makes something so.
func facts(change func(*diagnose.Facts)) diagnose.Facts {
	http, number, local, other := "http", int32(8080), "gw1", "gw2"
	f := diagnose.Facts{
		Namespace: "default", Name: "web", NodelessLocal: true,
		Service: &object.Service{
			Metadata: object.ObjectMeta{Name: "web", Namespace: "default", ResourceVersion: "7"},
			Spec: object.ServiceSpec{
				Type: object.TypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []string{object.IPv4},
				Ports: []object.ServicePort{{Name: "http", Port: 80, Protocol: object.ProtocolTCP, NodePort: 30080}},
			},
		},
		Slices: []*object.EndpointSlice{{
			Metadata: object.ObjectMeta{Name: "web-1"}, AddressType: object.IPv4,
			Ports:     []object.EndpointPort{{Name: &http, Port: &number}},
			Endpoints: []object.Endpoint{{Addresses: []string{"10.1.2.11"}, NodeName: &local}, {Addresses: []string{"10.1.2.12"}, NodeName: &other}},
		}},
		Status: &wire.Status{NodeName: "gw1", Ready: true, Synced: true, Revision: wire.Revision{Accepted: 9, Programmed: 9}},
	}
	if change != nil {
		change(&f)
	}
	return f
}

// state is that of the Service of facts without endpoints.
func state(frontends ...string) *wire.ServiceState {
	return &wire.ServiceState{Ports: []wire.PortState{{
		Name: "http", Protocol: object.ProtocolTCP, Family: object.IPv4, Frontends: frontends, Endpoints: []string{},
	}}}
}

// text is findings as lines.
func text(findings []diagnose.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%s %s\n", map[diagnose.Level]string{diagnose.Good: "+", diagnose.Doubt: "?", diagnose.Bad: "-"}[f.Level], f.Text)
		for _, line := range f.Details {
			fmt.Fprintf(&b, "    %s\n", line)
		}
		if f.Next != "" {
			fmt.Fprintf(&b, "> %s\n", f.Next)
		}
	}
	return b.String()
}

func TestService(t *testing.T) {
	no, yes := false, true
	ask := func(address string, port uint16) diagnose.Question {
		q := diagnose.Question{Port: port}
		if address != "" {
			q.Address = netip.MustParseAddr(address)
		}
		return q
	}
	for name, tt := range map[string]struct {
		change func(*diagnose.Facts)
		worst  diagnose.Level
		want   []string // lines that have to be there
		not    []string
	}{
		"well": {nil, diagnose.Good, []string{"+ port 80/TCP has 2 endpoints, all ready", "+ its present version is in the kernel",
			"+ the settings of the box are as they should be; rules of other programs are not looked at: see `svcctl doctor`"}, []string{"being deleted"}},
		"no such": {func(f *diagnose.Facts) { f.Service = nil }, diagnose.Bad, []string{"- there is no Service web in the namespace default"}, []string{"kernel"}},
		"refused": {func(f *diagnose.Facts) {
			f.Service = nil
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", File: "a.yaml", Line: 3, Message: "bad", Severity: wire.SeverityError}}
		}, diagnose.Bad, []string{"- the Service was refused", "    a.yaml:3: bad"}, nil},
		"in a file that cannot be read": {func(f *diagnose.Facts) {
			f.Service = nil
			f.Status.Problems = []wire.Problem{{File: "a.yaml", Line: 3, Message: "no YAML", Severity: wire.SeverityError}}
		}, diagnose.Bad,
			[]string{"    a file that cannot be read may declare it: a.yaml:3: no YAML"}, nil},
		"in a directory that is away": {func(f *diagnose.Facts) {
			f.Service = nil
			f.Status.Sources = []wire.Source{{Dir: "/m", State: wire.SourceUnavailable, Error: "gone"}}
			f.Status.Problems = []wire.Problem{{File: "/m", Message: "unavailable", Severity: wire.SeverityError}}
		}, diagnose.Bad, []string{"    the directory /m is unavailable: gone"}, []string{"    a file that cannot be read may declare it: /m: unavailable"}},
		"partly refused": {func(f *diagnose.Facts) {
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", Message: "conflict", Severity: wire.SeverityError}}
		}, diagnose.Bad, []string{"- 1 problem with it", "    conflict"}, nil},
		"warned": {func(f *diagnose.Facts) {
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", Message: "odd", Severity: wire.SeverityWarning}}
		}, diagnose.Doubt, []string{"? 1 warning about it", "    odd"}, nil},
		"being deleted": {func(f *diagnose.Facts) {
			at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			f.Service.Metadata.DeletionTimestamp, f.Service.Metadata.Finalizers = &at, []string{"example.com/a", "example.com/b"}
		}, diagnose.Doubt, []string{"? it is being deleted, since 2026-01-02T03:04:05Z, and serves until its finalizers are gone: example.com/a, example.com/b",
			"> the program that set them has to remove them; if that was a controller of a cluster, which does not run here, remove metadata.finalizers: `svcctl edit svc/web -n default`"}, nil},
		"of others": {func(f *diagnose.Facts) {
			f.Status.Problems = []wire.Problem{{Object: "Service default/web2", Message: "odd", Severity: wire.SeverityError}}
		}, diagnose.Good, nil, []string{"odd"}},
		"headless": {func(f *diagnose.Facts) {
			f.Service.Spec.ClusterIP, f.Service.Spec.ClusterIPs = "None", []string{"None"}
		}, diagnose.Doubt, []string{"? it is headless"}, []string{"kernel"}},
		"external name": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Spec.ExternalName = object.TypeExternalName, "a.example"
		}, diagnose.Doubt, []string{"? it is an ExternalName: it has no VIP, its name leads to a.example"}, nil},
		"no cluster IP":        {func(f *diagnose.Facts) { f.Service.Spec.ClusterIPs = nil }, diagnose.Bad, []string{"- it has no cluster IP"}, nil},
		"pending":              {func(f *diagnose.Facts) { f.Service.Spec.Type = object.TypeLoadBalancer }, diagnose.Bad, []string{"- it waits for a load balancer IP"}, nil},
		"wrong port":           {func(f *diagnose.Facts) { f.Question = ask("10.96.0.10", 81) }, diagnose.Bad, []string{"- it does not serve port 81: it has 80/TCP (node port 30080)"}, []string{"endpoints"}},
		"wrong protocol":       {func(f *diagnose.Facts) { f.Question = ask("10.96.0.10", 80); f.Question.Protocol = "UDP" }, diagnose.Bad, []string{"- it does not serve port 80/UDP"}, nil},
		"node port":            {func(f *diagnose.Facts) { f.Question = ask("", 30080) }, diagnose.Good, []string{"+ port 80/TCP has 2 endpoints"}, nil},
		"node port of the box": {func(f *diagnose.Facts) { f.Question = ask("192.0.2.1", 30080) }, diagnose.Good, []string{"+ port 80/TCP has 2 endpoints"}, nil},
		"node port where none answers": {func(f *diagnose.Facts) {
			f.Question = ask("192.0.2.9", 30080)
			f.Box = []wire.BoxAddress{{Address: "192.0.2.1", NodePorts: true}, {Address: "192.0.2.9"}}
		}, diagnose.Bad, []string{"- 192.0.2.9 is an address of this box, and node ports do not answer there: --nodeport-addresses leaves it out", "> ask at 192.0.2.1, or name it"}, []string{"endpoints"}},
		"node port at loopback": {func(f *diagnose.Facts) {
			f.Question, f.Box = ask("127.0.0.1", 30080), []wire.BoxAddress{{Address: "127.0.0.1"}}
		}, diagnose.Bad, []string{"- 127.0.0.1 is an address of this box, and node ports do not answer there: --nodeport-addresses has to name a prefix with it"}, []string{"endpoints"}},
		"node port at an address of the box": {func(f *diagnose.Facts) {
			f.Question, f.Box = ask("192.0.2.1", 30080), []wire.BoxAddress{{Address: "192.0.2.1", NodePorts: true}}
		}, diagnose.Good, []string{"+ port 80/TCP has 2 endpoints"}, nil},
		"a rival": {func(f *diagnose.Facts) {
			f.State, f.Rivals = state("10.96.0.10:80", ":30080"), []string{"default/aa1"}
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
		},
			diagnose.Doubt, []string{"? Service default/aa1 asks for the same address and port, and is not served there"}, nil},
		"no route of the box": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			f.State.Unrouted = []string{"10.96.0.10"}
		}, diagnose.Doubt, []string{"? the box itself has no route to 10.96.0.10: its own programs get \"Network is unreachable\""}, nil},
		"refused for want of TLS": {func(f *diagnose.Facts) {
			f.State = state()
			f.State.Ports = nil
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", Field: "spec.ports[0]", Reason: "TLSNotTerminated", Severity: wire.SeverityError,
				Message: "port 80 is not served: the annotation x asks for TLS with a certificate that svcctl cannot read"}}
		}, diagnose.Bad, []string{"- port 80/TCP is not served, and clients get no answer", "    port 80 is not served: the annotation x asks for TLS",
			"> fix that in the Service, or in the Secret that it names: its endpoints are not the reason"}, []string{"load balanced", "none of them is used", "not served for this Service"}},
		"refused for a Secret": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Relay = "192.0.2.1:10270"
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", Reason: "SecretUnusable", Severity: wire.SeverityError, Message: "Secret default/nosuch: it is not there; until then clients are refused"}}
		}, diagnose.Bad, []string{"- port 80/TCP is not served, and clients are refused", "    Secret default/nosuch: it is not there"}, []string{"load balanced", "none of them is used"}},
		"an error of another port": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", Severity: wire.SeverityError, Message: "port 8080 is not served: something"}}
		}, diagnose.Bad, []string{"- port 80/TCP has 2 endpoints, and none of them is used"}, []string{"port 80/TCP is not served"}},
		"some down": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080"}
			f.State.Health = []wire.EndpointHealth{{Service: "default/web", Port: "http", Protocol: "TCP", Endpoint: "10.1.2.11:8080", State: wire.HealthUp},
				{Service: "default/web", Port: "http", Protocol: "TCP", Endpoint: "10.1.2.12:8080", State: wire.HealthDown, Why: "connection refused"}}
		}, diagnose.Doubt, []string{"+ port 80/TCP has 2 endpoints; their health is below", "? port 80/TCP: 1 of 2 endpoints is down and gets no new connections"}, []string{"all ready"}},
		"waits for an address": {func(f *diagnose.Facts) {
			f.Service.Spec.Type = object.TypeLoadBalancer
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", Reason: "Pending", Severity: wire.SeverityWarning, Message: "the pool tiny is full"}}
		}, diagnose.Bad, []string{"- it waits for a load balancer IP: the pool tiny is full"}, []string{"--load-balancer-pool"}},
		"node port at a link": {func(f *diagnose.Facts) { f.Question = ask("fe80::1", 30080) }, diagnose.Bad,
			[]string{"- node ports do not answer at link-local addresses of IPv6, as fe80::1: the kernel forwards no packet of their clients"}, []string{"endpoints"}},
		"behind a bridge": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			f.State.Bridged = []wire.BridgedEndpoint{{Address: "10.1.2.11", Bridge: "br0", Setting: "net.bridge.bridge-nf-call-iptables"}}
		}, diagnose.Doubt, []string{"? an endpoint that is balanced to itself gets no answer: it has 1 endpoint that is behind a bridge whose packets pass the rules for routed ones",
			"    10.1.2.11 is behind br0, and net.bridge.bridge-nf-call-iptables is 1"}, nil},
		"some not ready": {func(f *diagnose.Facts) { f.Slices[0].Endpoints[1].Conditions.Ready = &no }, diagnose.Good,
			[]string{"+ port 80/TCP has 2 endpoints, 1 of them ready", "    10.1.2.12 is not ready, in EndpointSlice web-1"}, nil},
		"none ready": {func(f *diagnose.Facts) {
			for i := range f.Slices[0].Endpoints {
				f.Slices[0].Endpoints[i].Conditions.Ready = &no
			}
			f.Slices[0].Endpoints[0].TargetRef = &object.ObjectReference{Kind: "Pod", Name: "web-a"}
			f.Pods = []*object.Pod{{Metadata: object.ObjectMeta{Name: "web-a", DeletionTimestamp: new(time.Time)}}}
		}, diagnose.Bad, []string{"- port 80/TCP has 2 endpoints, and none is ready", "    10.1.2.11 is not ready: Pod web-a is being deleted, in EndpointSlice web-1"}, nil},
		"draining": {func(f *diagnose.Facts) {
			for i := range f.Slices[0].Endpoints {
				f.Slices[0].Endpoints[i].Conditions = object.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
			}
		}, diagnose.Doubt, []string{"? port 80/TCP has no endpoint that is ready: it uses 2 endpoints that are terminating"}, nil},
		"port of another name": {func(f *diagnose.Facts) { f.Service.Spec.Ports[0].Name = "web" }, diagnose.Bad, []string{`- port 80/TCP is called "web", and no EndpointSlice has a port of that name and protocol: they have "http"/TCP`}, nil},
		"other family":         {func(f *diagnose.Facts) { f.Service.Spec.IPFamilies = []string{object.IPv6} }, diagnose.Bad, []string{"- port 80/TCP has no endpoints of the family of its addresses"}, nil},
		"no slice":             {func(f *diagnose.Facts) { f.Slices = nil }, diagnose.Bad, []string{"- no EndpointSlice names endpoints of it, and it has no selector"}, nil},
		"no pod":               {func(f *diagnose.Facts) { f.Slices, f.Service.Spec.Selector = nil, map[string]string{"app": "web"} }, diagnose.Bad, []string{"- no Pod has the labels app=web"}, nil},
		"pod without slice": {func(f *diagnose.Facts) {
			f.Slices, f.Service.Spec.Selector, f.Pods = nil, map[string]string{"app": "web"}, []*object.Pod{{}}
		}, diagnose.Bad, []string{"- 1 Pod has the labels app=web, and no EndpointSlice has them"}, nil},
		"local here": {func(f *diagnose.Facts) { policy := object.PolicyLocal; f.Service.Spec.InternalTrafficPolicy = &policy }, diagnose.Good, []string{"+ internalTrafficPolicy is Local, and port 80/TCP has 1 endpoint on this box (gw1)"}, nil},
		"local nowhere": {func(f *diagnose.Facts) {
			policy := object.PolicyLocal
			f.Service.Spec.InternalTrafficPolicy, f.Status.NodeName = &policy, "gw3"
		}, diagnose.Bad, []string{"- internalTrafficPolicy is Local, and no usable endpoint of port 80/TCP is on this box (gw3)"}, nil},
		"local outside, asked inside": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Spec.ExternalTrafficPolicy, f.Status.NodeName = object.TypeNodePort, object.PolicyLocal, "gw3"
			f.Question = ask("10.96.0.10", 80)
		}, diagnose.Good, nil, []string{"Local"}},
		"pending internal": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Metadata.Annotations = object.TypeLoadBalancer, map[string]string{"networking.gke.io/load-balancer-type": "Internal"}
		}, diagnose.Bad, []string{"- it waits for an internal load balancer IP"}, nil},
		"internal": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Metadata.Annotations = object.TypeLoadBalancer, map[string]string{"networking.gke.io/load-balancer-type": "Internal"}
			f.Service.Status.LoadBalancer.Ingress = []object.LoadBalancerIngress{{IP: "198.51.100.1"}}
		}, diagnose.Doubt, []string{"? it is internal, as networking.gke.io/load-balancer-type asks"}, nil},
		"source ranges": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Spec.LoadBalancerSourceRanges = object.TypeLoadBalancer, []string{"203.0.113.0/24"}
			f.Service.Status.LoadBalancer.Ingress = []object.LoadBalancerIngress{{IP: "198.51.100.1"}}
		}, diagnose.Doubt, []string{"? its load balancer IP answers only clients from 203.0.113.0/24"}, nil},
		"source ranges everywhere": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Spec.LoadBalancerSourceRanges = object.TypeLoadBalancer, []string{"203.0.113.0/24"}
			f.Service.Metadata.Annotations = map[string]string{"svcctl.io/source-ranges-apply": "all"}
			f.Service.Status.LoadBalancer.Ingress = []object.LoadBalancerIngress{{IP: "198.51.100.1"}}
		}, diagnose.Doubt, []string{"? its addresses and node ports answer only clients from 203.0.113.0/24"}, nil},
		"source sets": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Metadata.Annotations = object.TypeNodePort, map[string]string{"svcctl.io/source-sets": "office,!bots"}
		}, diagnose.Doubt, []string{"? source sets limit which of its clients may connect: office,!bots"}, nil},
		"source sets, asked inside": {func(f *diagnose.Facts) {
			f.Service.Spec.Type, f.Service.Metadata.Annotations = object.TypeNodePort, map[string]string{"svcctl.io/source-sets": "office"}
			f.Question = ask("10.96.0.10", 80)
		}, diagnose.Good, nil, []string{"source sets"}},
		"not programmed": {func(f *diagnose.Facts) { f.Service.Metadata.ResourceVersion = "12" }, diagnose.Bad, []string{"- its present version is not in the kernel yet"}, nil},
		"not ready":      {func(f *diagnose.Facts) { f.Status.Ready, f.Status.Reason = false, "reading" }, diagnose.Bad, []string{"- the appliance is not ready: reading"}, nil},
		"quarantined": {func(f *diagnose.Facts) {
			f.Status.Problems = []wire.Problem{{Object: "Service default/web", Reason: "RefusedByKernel", Message: "EINVAL", Severity: wire.SeverityError}}
		}, diagnose.Bad, []string{"- the kernel does not take it: EINVAL"}, []string{"1 problem"}},
		"brake": {func(f *diagnose.Facts) {
			f.Status.Problems = []wire.Problem{{Reason: "MassRemovalHeld", Message: "30 Services", Severity: wire.SeverityError}}
		}, diagnose.Doubt, []string{"? what vanished from the manifests, or endpoints from the answers of a provider, is kept in force: 30 Services"}, nil},
		"all left out": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.Status.Problems = []wire.Problem{
				{Object: "Service default/web", Message: "endpoint 10.1.2.11 is left out: it is an address of Service default/other", Severity: wire.SeverityWarning},
				{Object: "EndpointSlice default/web-1", Message: "endpoint 10.1.2.12 is left out: it lies in the service range 10.1.0.0/16", Severity: wire.SeverityWarning},
			}
		}, diagnose.Bad, []string{"? 2 warnings about it", "- port 80/TCP has 2 endpoints, and none of them is used: clients are refused",
			"    10.1.2.11 is left out: it is an address of Service default/other", "    10.1.2.12 is left out: it lies in the service range"}, []string{"all ready", "nothing in it was refused"}},
		"some left out": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080"}
			f.Slices[0].Endpoints[1].Addresses[0] = "224.0.0.9"
			f.Status.Problems = []wire.Problem{{Object: "EndpointSlice default/web-1", Message: "endpoint 224.0.0.9 is left out: multicast", Severity: wire.SeverityWarning}}
		}, diagnose.Doubt, []string{"? 1 warning about it", "? port 80/TCP has 2 endpoints, and uses 1 of them", "    224.0.0.9 is left out: multicast"}, []string{"all ready"}},
		"all used": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
		}, diagnose.Good, []string{"+ port 80/TCP has 2 endpoints, all ready"}, nil},
		"topology": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080"}
			near := "PreferSameNode"
			f.Service.Spec.TrafficDistribution = &near
		}, diagnose.Good, []string{"+ port 80/TCP has 2 endpoints, and this box uses 1 of them", "    10.1.2.12 is not used by this box: topology hints"}, nil},
		"one family": {func(f *diagnose.Facts) {
			f.Service.Spec.ClusterIPs, f.Service.Spec.IPFamilies = []string{"10.96.0.10", "fd00::10"}, []string{object.IPv4, object.IPv6}
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			six := f.State.Ports[0]
			six.Family, six.Frontends, six.Endpoints = object.IPv6, []string{"[fd00::10]:80"}, []string{}
			f.State.Ports = append(f.State.Ports, six)
		}, diagnose.Doubt, []string{"? port 80/TCP has no IPv6 endpoint that is used"}, nil},
		"frontend of somebody else": {func(f *diagnose.Facts) {
			f.State = state(":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
		}, diagnose.Bad, []string{"- not served for this Service: 10.96.0.10:80/TCP"}, nil},
		"local says the appliance": {func(f *diagnose.Facts) {
			policy := object.PolicyLocal
			f.Service.Spec.InternalTrafficPolicy = &policy
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
		}, diagnose.Bad, []string{"- internalTrafficPolicy is Local, and no usable endpoint of port 80/TCP is on this box"}, nil},
		"rules away": {func(f *diagnose.Facts) {
			f.Status.RulesAway, f.Status.Synced, f.Status.Reason = true, false, "nft (process 7) changed the tables"
		}, diagnose.Bad, []string{"- its rules are not in the kernel: nft (process 7) changed the tables"}, []string{"its present version is in the kernel"}},
		"a fight": {func(f *diagnose.Facts) {
			f.Status.Problems = []wire.Problem{{Reason: "ForeignInterference", Message: "nft keeps changing the tables", Severity: wire.SeverityError}}
		}, diagnose.Bad, []string{"- another program changes the tables again and again, and clients fail whenever it does: nft keeps"}, nil},
		"not stored": {func(f *diagnose.Facts) {
			f.Service, f.State = nil, &wire.ServiceState{NotStored: &wire.NotStored{File: "m/n30.yaml", Line: 2, Why: "the disk is full"}}
		}, diagnose.Bad, []string{"- m/n30.yaml:2 declares it, but it is not stored yet: the disk is full"}, []string{"there is no Service"}},
		"newer not stored": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			f.State.NotStored = &wire.NotStored{File: "m/n30.yaml", Why: "the disk is full"}
		}, diagnose.Bad, []string{"- the present content of m/n30.yaml is not stored yet, and an earlier version is in force: the disk is full"}, nil},
		"no ARP": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			f.State.Unanswered = []wire.Unanswered{{Address: "10.96.0.10", Interface: "eth0", Network: "10.96.0.0/24"}}
		}, diagnose.Doubt, []string{"? 10.96.0.10 lies in the network 10.96.0.0/24 of eth0, and no interface of the box has it: neighbors there get no answer to ARP"}, nil},
		"announcements": {func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			f.State.Announcements = []wire.Announcement{
				{Address: "192.0.2.50", Places: []wire.Place{{By: "l2 eth0", State: "announced"}, {By: "l2 eth1", State: "conflict", With: "02:00:00:00:00:01"}}},
				{Address: "192.0.2.51", Withheld: "no ready endpoint"},
			}
		}, diagnose.Bad, []string{
			"+ 192.0.2.50 is announced on eth0: neighbors there get answers",
			"- 192.0.2.50 is not announced on eth1: the host with the Ethernet address 02:00:00:00:00:01 answers for it",
			"? 192.0.2.51 is not announced to neighbors: no ready endpoint",
		}, nil},
		"a slice that is newer": {func(f *diagnose.Facts) { f.Slices[0].Metadata.ResourceVersion = "12" }, diagnose.Bad, []string{"- its present version is not in the kernel yet"}, nil},
		"wide":                  {func(f *diagnose.Facts) { f.Wide = true }, diagnose.Good, []string{"+ its present version is in the kernel (revision 7; all up to 9 is programmed)"}, nil},
		"host": {func(f *diagnose.Facts) {
			f.Status.Problems = []wire.Problem{{Reason: "Host", Message: "ip_forward is 0", Severity: wire.SeverityWarning}}
		}, diagnose.Doubt, []string{"? a setting of the box: ip_forward is 0"}, nil},
	} {
		findings := diagnose.Service(facts(tt.change))
		got := text(findings)
		if worst := diagnose.Worst(findings); worst != tt.worst {
			t.Errorf("%s: worst is %d, want %d:\n%s", name, worst, tt.worst, got)
		}
		for _, want := range tt.want {
			if !strings.Contains("\n"+got, "\n"+want) {
				t.Errorf("%s: no line %q in\n%s", name, want, got)
			}
		}
		for _, not := range tt.not {
			if strings.Contains(got, not) {
				t.Errorf("%s: %q in\n%s", name, not, got)
			}
		}
		for _, f := range findings {
			if f.Level == diagnose.Bad && f.Next == "" {
				t.Errorf("%s: nothing to do about %q", name, f.Text)
			}
		}
	}
}

func TestNobody(t *testing.T) {
	pools := &wire.Allocations{Pools: []wire.Pool{
		{Kind: wire.PoolClusterIP, Range: "10.96.0.0/16", Holders: []wire.Holder{{Value: "10.96.0.10", Services: []string{"default/web"}}}},
		{Kind: wire.PoolLoadBalancer, Range: "198.51.100.4-198.51.100.9"},
	}}
	for address, want := range map[string]string{
		"fd00::2157:80": "? it lies in none of the appliance's ranges: packets to it are not ours\n> if 80 is meant as a port, write [fd00::2157]:80\n",
		"10.96.0.11":    "? it lies in the range of cluster IPs 10.96.0.0/16 and no Service has it: clients get no answer\n",
		"10.96.0.10":    "- it is held by default/web, which does not answer on it\n",
		"198.51.100.5":  "? it lies in the pool of load balancer IPs 198.51.100.4-198.51.100.9 and no Service has it: clients get no answer, unless it is on a network of the box\n",
		"198.51.100.3":  "? it lies in none of the appliance's ranges: packets to it are not ours\n",
		"fd00::1":       "? it lies in none of the appliance's ranges: packets to it are not ours\n",
	} {
		f := facts(func(f *diagnose.Facts) {
			f.Service, f.Allocations = nil, pools
			f.Question.Address = netip.MustParseAddr(address)
		})
		got := text(diagnose.Nobody(f))
		if !strings.HasPrefix(got, "- no Service answers at "+address+"\n> `svcctl get services -A -o wide` lists the Services with their addresses\n"+want) {
			t.Errorf("%s:\n%s", address, got)
		}
	}
}

// TestClusterIPClients: a cluster IP for internal clients alone is named as that, a node port of the same Service is not.
func TestClusterIPClients(t *testing.T) {
	const want = "? its cluster IP answers only the box, --cluster-cidr and --load-balancer-internal-from, as --cluster-ip-clients internal asks"
	f := facts(func(f *diagnose.Facts) {
		f.Service.Spec.Type, f.State = object.TypeNodePort, state("10.96.0.10:80", ":30080")
		f.State.InsideOnly = []string{"10.96.0.10:80"}
	})
	if got := text(diagnose.Service(f)); !strings.Contains(got, want) {
		t.Errorf("without %q:\n%s", want, got)
	}
	f.Question = diagnose.Question{Port: 30080}
	if got := text(diagnose.Service(f)); strings.Contains(got, want) {
		t.Errorf("of the node port:\n%s", got)
	}
}

// Test814_explain_takes_the_verdict: the first finding is the condition of the Service, and no reason is worse than it;
// what the appliance did not judge, as the question, may be.
func Test814_explain_takes_the_verdict(t *testing.T) {
	conditions := func(ready, programmed, message string) func(*diagnose.Facts) {
		return func(f *diagnose.Facts) {
			f.Service.Status.Conditions = []object.Condition{{Type: "Ready", Status: ready, Reason: "R", Message: message}, {Type: "Programmed", Status: programmed, Reason: "P", Message: message}}
		}
	}
	refused := func(f *diagnose.Facts) {
		f.Status.Problems = []wire.Problem{{Object: "Service default/web", Reason: "X", Message: "conflict", Severity: wire.SeverityError}}
	}
	empty := func(f *diagnose.Facts) { f.Slices = nil }
	for name, c := range map[string]struct {
		changes []func(*diagnose.Facts)
		worst   diagnose.Level
		first   string
		not     string
	}{
		"it answers":              {[]func(*diagnose.Facts){conditions("True", "True", "every port is served")}, diagnose.Good, "+ it answers: every port is served", "- "},
		"it answers, for a slice": {[]func(*diagnose.Facts){conditions("True", "True", "m"), empty}, diagnose.Doubt, "+ it answers: m", "- "},
		"it answers, for a word":  {[]func(*diagnose.Facts){conditions("True", "True", "m"), refused}, diagnose.Doubt, "+ it answers: m", "- "},
		"it does not":             {[]func(*diagnose.Facts){conditions("False", "True", "no endpoint"), empty}, diagnose.Bad, "- it does not answer: no endpoint", ""},
		"only the verdict has it": {[]func(*diagnose.Facts){conditions("False", "True", "announced nowhere")}, diagnose.Bad, "- it does not answer: announced nowhere", ""},
		"an earlier version":      {[]func(*diagnose.Facts){conditions("True", "False", "refused")}, diagnose.Bad, "- it answers, in an earlier version: refused", ""},
		"not known":               {[]func(*diagnose.Facts){conditions("Unknown", "False", "later")}, diagnose.Bad, "- whether it answers is not known: later", ""},
		"another port": {[]func(*diagnose.Facts){conditions("True", "True", "m"), func(f *diagnose.Facts) {
			f.Question = diagnose.Question{Port: 81, Address: netip.MustParseAddr("10.96.0.10")}
		}},
			diagnose.Bad, "- it does not serve port 81: it has 80/TCP (node port 30080)", ""},
		"probed in vain": {[]func(*diagnose.Facts){conditions("True", "True", "m"), func(f *diagnose.Facts) {
			f.State = state("10.96.0.10:80", ":30080")
			f.State.Ports[0].Endpoints = []string{"10.1.2.11:8080", "10.1.2.12:8080"}
			f.Probed = []wire.Probed{{Port: "http", Protocol: "TCP", Endpoint: "10.1.2.11:8080", Why: "refused"}}
		}}, diagnose.Bad, "- port 80/TCP: none of its endpoints accepted a connection of this box just now (1)", ""},
	} {
		findings := diagnose.Service(facts(func(f *diagnose.Facts) {
			for _, change := range c.changes {
				change(f)
			}
		}))
		got := text(findings)
		if diagnose.Worst(findings) != c.worst || !strings.HasPrefix(got, c.first+"\n") || c.not != "" && strings.Contains("\n"+got, "\n"+c.not) {
			t.Errorf("%s: worst %d, want %d, %q first:\n%s", name, diagnose.Worst(findings), c.worst, c.first, got)
		}
	}
}

// A probe connects over TCP, so it shows nothing about other ports: each has a note, and no finding that is good or bad.
func TestProbeNamesWhatItLeavesOut(t *testing.T) {
	for _, probed := range []bool{true, false} {
		got := text(diagnose.Service(facts(func(f *diagnose.Facts) {
			f.Service.Spec.Ports[0].Protocol, f.State = object.ProtocolUDP, state("10.96.0.10:80")
			if probed {
				f.Probed = []wire.Probed{}
			}
		})))
		if strings.Contains(got, "port 80/UDP was not probed") != probed {
			t.Errorf("probed %t:\n%s", probed, got)
		}
	}
}

// A port that is refused is recognized by the Reason and the field, whatever the words are; those of another port do not count.
func TestRefusalsAreRecognizedByTheirReason(t *testing.T) {
	for field, own := range map[string]bool{"spec.ports[0]": true, "spec.ports[1]": false, "metadata.annotations[svcctl.io/tls-secret]": true,
		"metadata.annotations[svcctl.io/tls-secret.http]": true, "metadata.annotations[svcctl.io/tls-secret.other]": false} {
		for _, reason := range []string{"TLSNotTerminated", "PortMismatch"} {
			findings := text(diagnose.Service(facts(func(f *diagnose.Facts) {
				f.Service.Spec.Ports = append(f.Service.Spec.Ports, object.ServicePort{Name: "other", Port: 81, Protocol: object.ProtocolTCP})
				f.State = state()
				f.State.Ports = nil
				f.Status.Problems = []wire.Problem{{Object: "Service default/web", Field: field, Reason: reason, Severity: wire.SeverityError, Message: "other words"}}
			})))
			if want := own && reason == "TLSNotTerminated"; strings.Contains(findings, "port 80/TCP is not served") != want {
				t.Errorf("%s at %s: want %v:\n%s", reason, field, want, findings)
			}
		}
	}
}

// The Service of a Gateway is explained with the listener, the route and the backends of each port.
func TestGatewayIsNamed(t *testing.T) {
	f := facts(func(f *diagnose.Facts) {
		f.Service.Metadata.OwnerReferences = []object.OwnerReference{{Kind: object.KindGateway, Name: "edge"}}
		of := func(share string, s object.EndpointSlice) *object.EndpointSlice {
			s.Metadata.Annotations = map[string]string{object.AnnotationShare: share, object.AnnotationListener: "Gateway/default/edge/web", object.AnnotationRoute: "TCPRoute/default/web"}
			return &s
		}
		one := f.Slices[0]
		none := *one
		none.Endpoints = nil
		f.Slices = []*object.EndpointSlice{of("default/blue:80=9", *one), of("default/blue:80=9", *one), of("default/green:80=1", none)}
		f.Service.Metadata.Annotations = map[string]string{object.AnnotationTLSServices + "." + f.Service.Spec.Ports[0].Name: "*=,**.example.com=edge-www"}
		led := of("default/www:443=1", *one)
		led.Metadata.Labels = map[string]string{object.LabelServiceName: "edge-www"}
		led.Metadata.Annotations[object.AnnotationRoute] = "TLSRoute/default/www"
		f.Led = []*object.EndpointSlice{f.Slices[0], led}
	})
	got := text(diagnose.Service(f))
	for _, want := range []string{
		"+ it serves Gateway default/edge: `svcctl explain gtw/edge -n default` has all of it\n",
		"+ port 80/TCP: listener Gateway/default/edge/web, TCPRoute/default/web: default/blue:80 9/10 (4 endpoints), default/green:80 1/10 (0 endpoints)\n",
		"+ port 80/TCP, server name *.example.com: listener Gateway/default/edge/web, TLSRoute/default/www: default/www:443 1/1 (2 endpoints)\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %s", got, want)
		}
	}
}

// A Gateway is explained from its conditions to the backends of each listener, with what is wrong and what to do.
func Test1092_a_Gateway_is_explained(t *testing.T) {
	is := func(kind, status, reason, message string) object.Condition {
		return object.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	yes := func(kinds ...string) (all []object.Condition) {
		for _, kind := range kinds {
			all = append(all, is(kind, "True", kind, ""))
		}
		return all
	}
	meta := func(namespace, name string) object.ObjectMeta {
		return object.ObjectMeta{Namespace: namespace, Name: name}
	}
	section, namespace, kind := "db", "default", object.KindListenerSet
	route := func(namespace, name, gateway string, conditions ...object.Condition) *diagnose.Route {
		r := &diagnose.Route{TypeMeta: object.TypeMeta{Kind: object.KindTCPRoute}, Metadata: meta(namespace, name)}
		of := "default"
		r.Status.Parents = []object.RouteParentStatus{{ParentRef: object.ParentRef{Name: gateway, Namespace: &of, SectionName: &section}, Conditions: conditions}}
		return r
	}
	slice := func(share string, endpoints int) *object.EndpointSlice {
		s := &object.EndpointSlice{Metadata: meta("default", "s"), Endpoints: make([]object.Endpoint, endpoints)}
		s.Metadata.Annotations = map[string]string{object.AnnotationShare: share, object.AnnotationListener: "Gateway/default/edge/db", object.AnnotationRoute: "TCPRoute/default/db"}
		return s
	}
	f := diagnose.GatewayFacts{
		Gateway: &object.Gateway{
			Metadata: meta("default", "edge"),
			Spec: object.GatewaySpec{GatewayClassName: "svcctl", Listeners: []object.Listener{
				{Name: "db", Port: 5432, Protocol: "TCP"}, {Name: "dns", Port: 53, Protocol: "UDP"}, {Name: "tls", Port: 443, Protocol: "TLS"},
			}},
			Status: object.GatewayStatus{
				Addresses:  []object.GatewayStatusAddress{{Value: "198.51.100.1"}},
				Conditions: append(yes("Programmed"), is("Accepted", "True", "ListenersNotValid", "tls")),
				Listeners: []object.ListenerStatus{
					{Name: "db", AttachedRoutes: 2, SupportedKinds: []object.RouteGroupKind{{Kind: object.KindTCPRoute}}, Conditions: yes("Accepted", "ResolvedRefs")},
					{Name: "dns", Conditions: yes("Accepted", "ResolvedRefs")},
					{Name: "tls", Conditions: append(yes("Accepted"), is("ResolvedRefs", "False", "InvalidCertificateRef", "there is no Secret default/web"))},
				},
			},
		},
		Sets: []*object.ListenerSet{{Metadata: meta("shop", "more"), Spec: object.ListenerSetSpec{ParentRef: object.ParentGatewayReference{Name: "edge", Namespace: &namespace}},
			Status: object.ListenerSetStatus{Conditions: []object.Condition{is("Accepted", "False", "NotAllowed", "takes no ListenerSets of namespace shop")}}}},
		Routes: []*diagnose.Route{
			route("default", "db", "edge", append(yes("Accepted"), is("ResolvedRefs", "False", "BackendNotFound", "there is no Service default/green"))...),
			route("default", "late", "edge", yes("Accepted", "ResolvedRefs")...),
			route("shop", "far", "edge", append(yes("ResolvedRefs"), is("Accepted", "False", "NotAllowedByListeners", "listener db takes no routes of namespace shop"))...),
			route("default", "other", "another", is("Accepted", "False", "NoMatchingParent", "")),
		},
		Slices: []*object.EndpointSlice{slice("default/blue:5432=9", 2), slice("default/green:5432=1", 0)},
	}
	f.Routes = append(f.Routes, route("default", "set", "more", is("Accepted", "False", "NoMatchingParent", "")))
	f.Routes[4].Status.Parents[0].ParentRef.Kind = &kind // of a ListenerSet of another namespace
	got := text(diagnose.Gateway(f))
	want := `? it is accepted, but ListenersNotValid: tls
+ it is programmed
+ it has the address 198.51.100.1: ` + "`svcctl explain 198.51.100.1` follows its packets" + `
- TCPRoute default/db is not resolved: BackendNotFound: there is no Service default/green
> make that Service, or correct backendRefs
- TCPRoute shop/far is not accepted: NotAllowedByListeners: listener db takes no routes of namespace shop
> allow it in allowedRoutes of the listener
+ listener db, port 5432, TCP: 2 attached
    TCPRoute default/db: default/blue:5432 9/10 (2 endpoints), default/green:5432 1/10 (0 endpoints)
    TCPRoute default/late: gets no connections here: an older route, or one with a more specific hostname, has them
? listener dns, port 53, UDP has no route: connections are refused
> make a route whose parentRefs have {kind: Gateway, namespace: default, name: edge, sectionName: dns}
- listener tls, port 443, TLS is not resolved: InvalidCertificateRef: there is no Secret default/web
> make that Secret, of type kubernetes.io/tls, or correct certificateRefs
- ListenerSet shop/more is not accepted: NotAllowed: takes no ListenerSets of namespace shop
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	f.Gateway.Status = object.GatewayStatus{}
	if got := text(diagnose.Gateway(f)); !strings.Contains(got, "there is no GatewayClass svcctl of this appliance") {
		t.Errorf("without a controller: %s", got)
	}
}

// A question about one port is answered by what concerns that port: what is wrong with another one, as a listener without a route, is a note.
func Test1040_a_port_is_judged_by_itself(t *testing.T) {
	f := facts(nil)
	f.Service.Spec.Ports = []object.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}, {Name: "idle", Port: 81, Protocol: "TCP"}}
	const message = "port 81/TCP: it has no endpoint: the EndpointSlice of the port has none"
	f.Service.Status.Conditions = []object.Condition{
		{Type: wire.ConditionReady, Status: "False", Reason: "NoEndpoints", Message: message}, {Type: wire.ConditionProgrammed, Status: "True"},
	}
	f.Status.Problems = []wire.Problem{{Object: "Service default/web", Field: "spec.ports[1]", Reason: "NoEndpoints", Message: message, Severity: wire.SeverityWarning}}
	for _, tt := range []struct {
		port  uint16
		worst diagnose.Level
		text  string
	}{
		{80, diagnose.Good, "+ it answers there\n"}, {80, diagnose.Good, "1 problem with other ports or addresses of it"},
		{81, diagnose.Bad, "- it does not answer: " + message}, {0, diagnose.Bad, "- it does not answer: " + message},
	} {
		f.Question = diagnose.Question{Address: netip.MustParseAddr("10.96.0.10"), Port: tt.port}
		findings := diagnose.Service(f)
		if got := text(findings); diagnose.Worst(findings) != tt.worst || !strings.Contains(got, tt.text) {
			t.Errorf("port %d: want %q, got\n%s", tt.port, tt.text, got)
		}
	}
	// The problem that makes the Service not Ready is another one's, and this port fails by itself.
	f.Question.Port, f.Slices[0].Endpoints = 80, nil
	if findings := diagnose.Service(f); diagnose.Worst(findings) != diagnose.Bad {
		t.Errorf("without an endpoint of port 80:\n%s", text(findings))
	}
}
