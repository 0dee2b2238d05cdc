package control

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/appliance/gateway"
	"svcctl.io/svcctl/appliance/test/pki"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

const gatewayText = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: svcctl
  listeners: [{name: db, port: 5432, protocol: TCP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: db}
spec:
  parentRefs: [{name: edge}]
  rules: [{backendRefs: [{name: blue, port: 5432, weight: 9}, {name: green, port: 5432}]}]
---
apiVersion: v1
kind: Service
metadata: {name: blue}
spec: {ports: [{port: 5432}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: blue-1, labels: {kubernetes.io/service-name: blue}}
addressType: IPv4
ports: [{port: 15432, name: ""}]
endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2]}]
`

// gatewayRig is a store with the controller.
type gatewayRig struct {
	*testing.T
	memory  engine.Engine
	objects *store.Store
	c       *Endpoints
	pools   []alloc.Pool
}

func newGatewayRig(t *testing.T) *gatewayRig {
	r := &gatewayRig{T: t, memory: engine.NewMemory()}
	for _, pool := range [][2]string{{"198.51.100.0", "198.51.100.15"}, {"2001:db8::", "2001:db8::f"}} {
		r.pools = append(r.pools, alloc.Pool{First: netip.MustParseAddr(pool[0]), Last: netip.MustParseAddr(pool[1])})
	}
	r.restart()
	return r
}

func (r *gatewayRig) restart() {
	r.Helper()
	var err error
	r.objects, err = store.Open(r.memory, store.Config{
		ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
		Pools:           r.pools,
	})
	if err != nil {
		r.Fatal(err)
	}
	r.c = NewEndpoints(endpoints.Facts{}, r.objects)
}

// files has the objects of files be those of a text.
func (r *gatewayRig) files(text string) {
	r.Helper()
	f := manifest.Decode("a.yaml", []byte(text), manifest.DefaultLimits())
	if f.Err != nil || len(f.Problems) > 0 {
		r.Fatal(f.Err, f.Problems)
	}
	if _, err := r.objects.SyncFiles(manifest.FilesOf(map[string]*manifest.File{"a.yaml": f})); err != nil {
		r.Fatal(err)
	}
}

// settle runs the controller until nothing is left to do, as the loop does, and returns the number of changes.
func (r *gatewayRig) settle() (changes uint64) {
	r.Helper()
	before := r.objects.Revision()
	for range 10 {
		at := r.objects.Revision()
		if err := r.c.Sync(); err != nil {
			r.Fatal(err)
		}
		again, err := r.c.Programmed(r.objects.Revision(), nil)
		if err != nil {
			r.Fatal(err)
		}
		if !again && at == r.objects.Revision() {
			return at - before
		}
	}
	r.Fatal("the controller does not settle")
	return 0
}

func (r *gatewayRig) get(kind, name string) object.Object {
	r.Helper()
	o, _ := r.objects.Get(object.Ref{Kind: kind, Namespace: "default", Name: name})
	if o == nil {
		r.Fatalf("there is no %s %s", kind, name)
	}
	return o
}

// shares are the shares and endpoints of the slices of a Service.
func (r *gatewayRig) shares(service string) []string {
	_, list, _ := r.objects.Service("default/" + service)
	return sharesOf(list)
}

func sharesOf(list []*object.EndpointSlice) (all []string) {
	for _, s := range list {
		text := s.Metadata.Annotations[object.AnnotationShare]
		for _, e := range s.Endpoints {
			text += " " + e.Addresses[0]
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

// conditionsOf are conditions, as "Accepted=True/Accepted".
func conditionsOf(list []object.Condition) string {
	var all []string
	for _, c := range list {
		all = append(all, fmt.Sprintf("%s=%s/%s@%d", c.Type, c.Status, c.Reason, c.ObservedGeneration))
	}
	return strings.Join(all, " ")
}

func TestGatewayBecomesAService(t *testing.T) {
	r := newGatewayRig(t)
	r.files(gatewayText)
	r.settle()
	want := []string{"default/blue:5432=9 10.1.0.1 10.1.0.2", "default/green:5432=1"}
	if got := r.shares("edge-svcctl"); !slices.Equal(got, want) {
		t.Errorf("shares %q, want %q", got, want)
	}
	gw := r.get(object.KindGateway, "edge").(*object.Gateway)
	if got, want := conditionsOf(gw.Status.Conditions), "Accepted=True/Accepted@1 Programmed=True/Programmed@1"; got != want || len(gw.Status.Addresses) != 1 {
		t.Errorf("conditions %s, want %s; addresses %v", got, want, gw.Status.Addresses)
	}
	if route := r.get(object.KindTCPRoute, "db").(*object.TCPRoute); len(route.Status.Parents) != 1 {
		t.Errorf("parents %v", route.Status.Parents)
	} else if got, want := conditionsOf(route.Status.Parents[0].Conditions), "Accepted=True/Accepted@1 ResolvedRefs=False/BackendNotFound@1"; got != want {
		t.Errorf("conditions of the route %s, want %s", got, want)
	}
	if class, _ := r.objects.Get(object.RefOf(gateway.Class())); class == nil || len(class.(*object.GatewayClass).Status.SupportedFeatures) == 0 {
		t.Errorf("the GatewayClass is %v", class)
	}

	// Idle, and after a restart, nothing is written.
	if n := r.settle(); n != 0 {
		t.Errorf("%d changes without a cause", n)
	}
	for range 1000 {
		err := r.c.Sync()
		again, late := r.c.Programmed(r.objects.Revision(), nil)
		if err != nil || late != nil || again {
			t.Fatal(err, late, "an idle step has something to write")
		}
	}
	r.restart()
	r.files(gatewayText)
	if n := r.settle(); n != 0 {
		t.Errorf("%d changes after a restart", n)
	}

	// A backend that comes changes its slice alone, and the condition of its route.
	r.files(gatewayText + "---\napiVersion: v1\nkind: Service\nmetadata: {name: green}\nspec: {ports: [{port: 5432}]}\n---\n" +
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: green-1, labels: {kubernetes.io/service-name: green}}\naddressType: IPv4\nports: [{port: 1, name: \"\"}]\nendpoints: [{addresses: [10.1.0.3]}]\n")
	if n := r.settle(); n != 3 { // the empty slice goes
		t.Errorf("%d changes for a backend, want 3", n)
	}
	want[1] = "default/green:5432=1 10.1.0.3"
	if got := r.shares("edge-svcctl"); !slices.Equal(got, want) {
		t.Errorf("shares %q, want %q", got, want)
	}

	// Clients are refused.
	svc := object.DeepCopy(r.get(object.KindService, "edge-svcctl"))
	results, err := r.objects.Write(store.Write{Ref: object.RefOf(svc), Object: svc})
	if err != nil || results[0].Err == nil || results[0].Err.Error() != "Service default/edge-svcctl belongs to Gateway default/edge: change that" {
		t.Errorf("a client's write: %v, %v", err, results[0].Err)
	}

	// An annotation on a route has no effect, with a warning.
	route := object.DeepCopy(r.get(object.KindTCPRoute, "db"))
	if route.GetMeta().Annotations = map[string]string{"svcctl.io/balance": "maglev"}; !slices.Equal(object.Warnings(route),
		[]string{"metadata.annotations[svcctl.io/balance]: has no effect on a TCPRoute: it is read in spec.infrastructure.annotations of the Gateway"}) {
		t.Errorf("warnings %q", object.Warnings(route))
	}

	// With the Gateway all goes that was generated of it, and the route has no parent here any more.
	_, rest, _ := strings.Cut(gatewayText, "---\n")
	r.files(rest)
	r.settle()
	if svc, list, _ := r.objects.Service("default/edge-svcctl"); svc != nil || len(list) > 0 {
		t.Errorf("left: %v, %v", svc, list)
	}
	if route := r.get(object.KindTCPRoute, "db").(*object.TCPRoute); len(route.Status.Parents) != 0 {
		t.Errorf("the route has %v", route.Status.Parents)
	}
	if len(r.c.gateways.known)+len(r.c.gateways.users)+len(r.c.gateways.of)+len(r.c.gateways.waiting) > 0 {
		t.Errorf("indexes are left: %+v", r.c.gateways)
	}
}

// What was generated of a Gateway that went while no process ran goes at the next start: Services, EndpointSlices and the
// copy of a certificate.
func TestGatewayGoesBetweenProcesses(t *testing.T) {
	r := newGatewayRig(t)
	crt, key := pki.PEM(t, pki.Issue(t, nil, time.Unix(0, 0), time.Unix(1<<33, 0), "www.example.com"))
	rest := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: www, namespace: certs}\ntype: kubernetes.io/tls\nstringData: {tls.crt: %q, tls.key: %q}\n---\n", crt, key) +
		"apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: certs}\nspec:\n" +
		"  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: default}]\n  to: [{group: \"\", kind: Secret}]\n---\n" +
		"apiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\nmetadata: {name: www}\nspec:\n" +
		"  hostnames: [www.example.com]\n  parentRefs: [{name: edge}]\n  rules: [{backendRefs: [{name: www, port: 80}]}]\n"
	r.files(rest + "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec:\n  gatewayClassName: svcctl\n" +
		"  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: www, namespace: certs}]}}]\n")
	r.settle()
	kinds := map[string]int{}
	for _, o := range r.objects.Generated(GatewaysOwner) {
		kinds[o.GetTypeMeta().Kind]++
	}
	if want := map[string]int{object.KindGatewayClass: 1, object.KindService: 2, object.KindEndpointSlice: 1, object.KindSecret: 1}; !maps.Equal(kinds, want) {
		t.Fatalf("generated %v, want %v", kinds, want)
	}
	r.restart()
	r.files(rest)
	r.settle()
	if left := r.objects.Generated(GatewaysOwner); len(left) != 1 || object.RefOf(left[0]) != object.RefOf(gateway.Class()) {
		t.Errorf("left: %v", left)
	}
}

// The backends of a Gateway are those before a rollout until that ends: what is generated is for all boxes.
func TestGatewayWaitsForARollout(t *testing.T) {
	r := &gatewayRig{T: t, memory: engine.Alone{Memory: engine.NewMemory()}}
	r.restart()
	for _, text := range strings.Split(gatewayText, "---\n") {
		f := manifest.Decode("a.yaml", []byte(text), manifest.DefaultLimits())
		o := f.Documents[0].Object
		o.GetMeta().Namespace = "default"
		if w, err := r.objects.Write(store.Write{Ref: object.RefOf(o), Object: o}); err != nil || w[0].Err != nil {
			t.Fatal(err, w[0].Err)
		}
	}
	r.settle()
	_, err := r.objects.BeginStaged(pending.Head{ID: "one", Plan: []byte(`{"steps":["gw1","100%"]}`)}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := object.DeepCopy(r.get(object.KindEndpointSlice, "blue-1")).(*object.EndpointSlice)
	s.Endpoints = s.Endpoints[:1]
	if w, err := r.objects.Write(store.Write{Ref: object.RefOf(s), Object: s, By: store.Caller{User: "root", Rollout: "one"}}); err != nil || w[0].Err != nil {
		t.Fatal(err, w[0].Err)
	}
	r.settle()
	if got := r.shares("edge-svcctl"); got[0] != "default/blue:5432=9 10.1.0.1 10.1.0.2" {
		t.Errorf("during the rollout: %q", got)
	}
	head, _ := r.objects.PendingHead(pending.Staged)
	if err := r.objects.Finish(head); err != nil {
		t.Fatal(err)
	}
	r.settle()
	if got := r.shares("edge-svcctl"); got[0] != "default/blue:5432=9 10.1.0.1" {
		t.Errorf("after the rollout: %q", got)
	}
}

// A weight, a grant and a backend that is emptied are in the dataplane before what follows from them is stored: such a change
// costs no commit more than one of a Service.
func TestGatewayChangesAreStoredLate(t *testing.T) {
	const (
		green = "---\napiVersion: v1\nkind: Service\nmetadata: {name: green, namespace: shop}\nspec: {ports: [{port: 5432}]}\n---\n" +
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: green-1, namespace: shop, labels: {kubernetes.io/service-name: green}}\naddressType: IPv4\nports: [{port: 1, name: \"\"}]\nendpoints: [{addresses: [10.1.0.3]}]\n"
		grant = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: shop}\nspec:\n" +
			"  from: [{group: gateway.networking.k8s.io, kind: TCPRoute, namespace: default}]\n  to: [{group: \"\", kind: Service}]\n"
	)
	all := strings.Replace(gatewayText, "{name: green, port", "{name: green, namespace: shop, port", 1) + green + grant
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"weight":  {strings.Replace(all, "weight: 9", "weight: 4", 1), []string{"default/blue:5432=4 10.1.0.1 10.1.0.2", "shop/green:5432=1 10.1.0.3"}},
		"grant":   {strings.Replace(all, grant, "", 1), []string{"default/blue:5432=9 10.1.0.1 10.1.0.2", "shop/green:5432=1"}},
		"emptied": {strings.Replace(all, "{addresses: [10.1.0.3]}", "", 1), []string{"default/blue:5432=9 10.1.0.1 10.1.0.2", "shop/green:5432=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newGatewayRig(t)
			r.files(all)
			r.settle()
			r.files(c.text)
			at := r.objects.Revision()
			if err := r.c.Sync(); err != nil {
				t.Fatal(err)
			}
			if got := sharesOf(r.c.Ahead()["default/edge-svcctl"]); !slices.Equal(got, c.want) || r.objects.Revision() != at {
				t.Errorf("the dataplane gets %q, want %q; %d changes are stored first", got, c.want, r.objects.Revision()-at)
			}
			r.settle()
			if got := r.shares("edge-svcctl"); !slices.Equal(got, c.want) || r.c.Ahead() != nil {
				t.Errorf("stored are %q, want %q", got, c.want)
			}
			// The dataplane refuses it: it is stored by the next step.
			r.files(all)
			for range 2 {
				if err := r.c.Sync(); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := r.shares("edge-svcctl"), []string{"default/blue:5432=9 10.1.0.1 10.1.0.2", "shop/green:5432=1 10.1.0.3"}; !slices.Equal(got, want) {
				t.Errorf("stored are %q, want %q", got, want)
			}
		})
	}
}

// A Gateway that cannot have an address, or one whose listener is taken, is left alone once its status says so: what is written is
// no reason to write again, nor is a restart.
func Test1131_gateway_without_an_address_is_left_alone(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"of no pool": func(text string) string {
			return strings.Replace(text, "  listeners:", "  addresses: [{value: 203.0.113.9}]\n  listeners:", 1)
		},
		"of any pool": func(text string) string { return text },
	} {
		r := newGatewayRig(t)
		r.pools = []alloc.Pool{}
		r.memory = engine.NewMemory()
		r.restart()
		r.files(change(gatewayText))
		r.settle()
		if n := r.settle(); n > 0 {
			t.Errorf("%s: %d changes at rest", name, n)
		}
		gw := r.get(object.KindGateway, "edge").(*object.Gateway)
		if got := conditionsOf(gw.Status.Conditions); !strings.Contains(got, "Programmed=False/AddressNot") {
			t.Errorf("%s: %s", name, got)
		}
		r.files(strings.Replace(change(gatewayText), "10.1.0.1", "10.1.0.9", 1))
		if n := r.settle(); n == 0 || n > 3 {
			t.Errorf("%s: an endpoint changes: %d changes", name, n)
		}
		r.restart()
		r.files(strings.Replace(change(gatewayText), "10.1.0.1", "10.1.0.9", 1))
		if n := r.settle(); n > 0 {
			t.Errorf("%s: %d changes at a restart", name, n)
		}
	}
}

// A Gateway whose address lies in no pool any more keeps it, and is served: that is a warning about its Service, and it stays
// Programmed. One that is to be internal and has an address that is not is not served.
func Test1121_gateway_keeps_an_address_whose_pool_is_gone(t *testing.T) {
	const internal = "  infrastructure: {annotations: {networking.gke.io/load-balancer-type: Internal}}\n  listeners:"
	for name, want := range map[string]string{"  listeners:": "Programmed=True", internal: "Programmed=False/AddressNotUsable"} {
		r := newGatewayRig(t)
		for i := range r.pools {
			r.pools[i].Internal = name == internal
		}
		r.restart()
		text := strings.Replace(gatewayText, "  listeners:", name, 1)
		r.files(text)
		r.settle()
		for i, status := range []string{"Programmed=True", want} {
			gw := r.get(object.KindGateway, "edge").(*object.Gateway)
			if got := conditionsOf(gw.Status.Conditions); !strings.Contains(got, status) || len(gw.Status.Addresses) != 1 {
				t.Errorf("step %d: %s, addresses %v; want %s", i+1, got, gw.Status.Addresses, status)
			}
			r.pools = []alloc.Pool{}
			r.restart()
			r.files(strings.Replace(text, "port: 5432, protocol", "port: 5433, protocol", 1))
			r.settle()
		}
	}
}

// The status of a Gateway that waits for an address has the reason of now, as after a restart, though its Service does not change.
func Test1122_reason_for_which_a_Gateway_waits(t *testing.T) {
	gateway := func(name, address, port string) string {
		return strings.NewReplacer("name: edge", "name: "+name, "  listeners:", address+"\n  listeners:", "port: 5432", "port: "+port).Replace(gatewayText[:strings.Index(gatewayText, "---")]) + "---\n"
	}
	const asks = "  addresses: [{value: 198.51.100.5}]"
	r := newGatewayRig(t)
	for _, step := range []struct{ first, port, reason string }{{asks, "80", "both serve TCP port 80"}, {asks, "81", "serves it"}, {"", "80", "must ask for it by name"}, {asks, "80", "both serve TCP port 80"}} {
		text := gateway("first", asks, "80") + gateway("second", asks, step.port)
		if step.first == "" { // the second comes when the first asks for none any more, and keeps what it has
			r.files(gateway("first", asks, "80"))
			r.settle()
			text = gateway("first", "", "80") + gateway("second", asks, "80")
		}
		r.files(text)
		r.settle()
		reason := func() string {
			return r.get(object.KindGateway, "second").(*object.Gateway).Status.Conditions[1].Message
		}
		if got := reason(); !strings.Contains(got, step.reason) {
			t.Errorf("%+v: the second Gateway: %s", step, got)
		}
		if n := r.settle(); n > 0 {
			t.Errorf("%+v: %d changes at rest", step, n)
		}
		r.restart()
		r.files(text)
		if n := r.settle(); n > 0 {
			t.Errorf("%+v: %d changes at a restart: %s", step, n, reason())
		}
	}
	r.files("")
	r.settle()
	if c := r.c.gateways; len(c.shown)+len(c.trouble) > 0 {
		t.Errorf("nothing is left of deleted Gateways but %v, %v", c.shown, c.trouble)
	}
}

// Two Gateways have one address. A port that one of them asks for is the other one's: it keeps what it had, until the other one
// gives the port up.
func Test1135_gateway_gets_a_port_that_becomes_free(t *testing.T) {
	text := func(first, second string) string {
		gateway := func(name, port string) string {
			return strings.NewReplacer("name: edge", "name: "+name, "  listeners:", "  addresses: [{value: 198.51.100.5}]\n  listeners:", "port: 5432", "port: "+port).Replace(gatewayText[:strings.Index(gatewayText, "---")])
		}
		return gateway("first", first) + "---\n" + gateway("second", second)
	}
	r := newGatewayRig(t)
	for _, step := range []struct{ first, second, has string }{{"80", "81", "81"}, {"80", "80", "81"}, {"82", "80", "80"}} {
		r.files(text(step.first, step.second))
		r.settle()
		svc := r.get(object.KindService, "second-svcctl").(*object.Service)
		if got := fmt.Sprint(svc.Spec.Ports[0].Port); got != step.has {
			t.Errorf("ports %s and %s: the second Gateway serves %s, want %s", step.first, step.second, got, step.has)
		}
		if n := r.settle(); n > 0 {
			t.Errorf("ports %s and %s: %d changes at rest", step.first, step.second, n)
		}
	}
}

// A Gateway asks for other addresses, and for addresses of other families, in any order: it has them, and each of their families
// has its endpoints. Without addresses it has one of each family that it had.
func Test1130_gateway_changes_the_families_of_its_addresses(t *testing.T) {
	const none, four, six, both = "", "198.51.100.5", "2001:db8::5", "2001:db8::6,198.51.100.6"
	backend := strings.ReplaceAll(gatewayText, "spec: {ports: [{port: 5432}]}", "spec: {clusterIP: None, ports: [{port: 5432}]}") + `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: blue-2, labels: {kubernetes.io/service-name: blue}}
addressType: IPv6
ports: [{port: 15432, name: ""}]
endpoints: [{addresses: ["fd00:1::1"]}]
`
	for _, steps := range [][]string{{none, six, four, both, none, six}, {four, six, none}, {six, both, four, six}, {both, four, none, six}} {
		r := newGatewayRig(t)
		for i, wanted := range steps {
			var addresses, has []string
			for a := range strings.SplitSeq(wanted, ",") {
				if a != "" {
					addresses = append(addresses, fmt.Sprintf("{value: %q}", a))
				}
			}
			r.files(strings.Replace(backend, "  listeners:", "  addresses: ["+strings.Join(addresses, ", ")+"]\n  listeners:", 1))
			r.settle()
			svc := r.get(object.KindService, "edge-svcctl").(*object.Service)
			families := map[string]bool{}
			for _, in := range svc.Status.LoadBalancer.Ingress {
				has = append(has, in.IP)
				families[map[bool]string{true: object.IPv6, false: object.IPv4}[strings.Contains(in.IP, ":")]] = true
			}
			want := strings.Split(wanted, ",")
			slices.Sort(has)
			slices.Sort(want)
			if wanted != none && !slices.Equal(has, want) || wanted == none && len(has) != 1 {
				t.Errorf("%q, step %d: the Gateway asks for %q and has %q", steps, i+1, wanted, has)
			}
			_, list, _ := r.objects.Service("default/edge-svcctl")
			for family := range families {
				if !slices.ContainsFunc(list, func(s *object.EndpointSlice) bool { return s.AddressType == family && len(s.Endpoints) > 0 }) {
					t.Errorf("%q, step %d: it has no endpoints of %s", steps, i+1, family)
				}
			}
		}
	}
}

// Statuses stay within the bounds of the CustomResourceDefinitions, whatever is in them already and however long names are:
// the entries of other controllers stay, and a message is cut.
func TestGatewayStatusesAreBounded(t *testing.T) {
	r := newGatewayRig(t)
	hosts := make([]string, 1024)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("h%d.%s", i, strings.Repeat("a", 60)+".example.org")
	}
	r.files(gatewayText + "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: tls}\nspec:\n  gatewayClassName: svcctl\n" +
		"  listeners: [{name: tls, port: 443, protocol: TLS, hostname: www.example.com, tls: {mode: Passthrough}}]\n" +
		"---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\nmetadata: {name: many}\nspec:\n  hostnames: [" + strings.Join(hosts, ", ") + "]\n" +
		"  parentRefs: [{name: tls}]\n  rules: [{backendRefs: [{name: blue, port: 5432}]}]\n")
	foreign := func(kind, name string, change func(o object.Object)) {
		t.Helper()
		o := object.DeepCopy(r.get(kind, name))
		change(o)
		if w, err := r.objects.Write(store.Write{Ref: object.RefOf(o), Object: o, Status: true}); err != nil || w[0].Err != nil {
			t.Fatal(err, w[0].Err)
		}
	}
	condition := func(i int) object.Condition {
		return object.Condition{Type: fmt.Sprintf("example.com/C%d", i), Status: "True", Reason: "R", LastTransitionTime: time.Unix(0, 0)}
	}
	foreign(object.KindTCPRoute, "db", func(o object.Object) {
		for i := range 32 {
			o.(*object.TCPRoute).Status.Parents = append(o.(*object.TCPRoute).Status.Parents, object.RouteParentStatus{
				ParentRef: object.ParentRef{Name: fmt.Sprintf("g%d", i)}, ControllerName: "example.com/other", Conditions: []object.Condition{condition(0)},
			})
		}
	})
	foreign(object.KindGateway, "edge", func(o object.Object) {
		o.(*object.Gateway).Status.Conditions = nil
		for i := range 8 {
			o.(*object.Gateway).Status.Conditions = append(o.(*object.Gateway).Status.Conditions, condition(i))
		}
	})
	r.settle()
	route := r.get(object.KindTCPRoute, "db").(*object.TCPRoute)
	if n := len(route.Status.Parents); n != 32 || route.Status.Parents[0].ControllerName != "example.com/other" {
		t.Errorf("%d entries, the first of %s", n, route.Status.Parents[0].ControllerName)
	}
	gw := r.get(object.KindGateway, "edge").(*object.Gateway)
	if got := conditionsOf(gw.Status.Conditions); len(gw.Status.Conditions) != 8 || !strings.Contains(got, "Accepted=True/Accepted@1") || !strings.Contains(got, "Programmed=True/Programmed@1") || !strings.Contains(got, "example.com/C2") {
		t.Errorf("the Gateway has %s", got)
	}
	many := r.get(object.KindTLSRoute, "many").(*object.TLSRoute)
	if message := many.Status.Parents[0].Conditions[0].Message; len(message) != 32768 || !strings.HasSuffix(message, "…") {
		t.Errorf("a message of %d bytes", len(message))
	}
	if n := r.settle(); n != 0 {
		t.Errorf("%d changes without a cause", n)
	}
	for _, p := range r.c.Problems() {
		if strings.Contains(p.Message, "Too") {
			t.Error(p)
		}
	}
}

// A Gateway that waits, for an address or for a port of another one, does not delay changes of others: they are in the dataplane before
// they are stored, and of the one that waits for an address nothing is planned.
func Test1091_gateways_that_wait_delay_no_others(t *testing.T) {
	named := func(name, address, port string) string {
		return strings.NewReplacer("name: edge", "name: "+name, "  listeners:", "  addresses: [{value: "+address+"}]\n  listeners:", "port: 5432", "port: "+port).Replace(gatewayText[:strings.Index(gatewayText, "---")]) + "---\n"
	}
	r := newGatewayRig(t)
	r.files(named("far", "203.0.113.1", "80") + named("first", "198.51.100.5", "80") + named("second", "198.51.100.5", "81") + gatewayText)
	r.settle()
	all := named("far", "203.0.113.1", "80") + named("first", "198.51.100.5", "80") + named("second", "198.51.100.5", "80") + gatewayText
	r.files(all)
	r.settle()
	if stuck := r.c.gateways.stuck; len(stuck) != 1 {
		t.Fatalf("Gateways that could not be stored as they were made: %v, want the second", stuck)
	}
	for _, weight := range []string{"4", "9"} {
		r.files(strings.NewReplacer("weight: 9", "weight: "+weight, "10.1.0.2", "10.1.0."+weight).Replace(all))
		at := r.objects.Revision()
		if err := r.c.Sync(); err != nil {
			t.Fatal(err)
		}
		if got, want := sharesOf(r.c.Ahead()["default/edge-svcctl"]), []string{"default/blue:5432=" + weight + " 10.1.0.1 10.1.0." + weight, "default/green:5432=1"}; !slices.Equal(got, want) || r.objects.Revision() != at {
			t.Errorf("the dataplane gets %q, want %q; %d changes are stored first", got, want, r.objects.Revision()-at)
		}
		if n := r.settle(); n != 2 {
			t.Errorf("%d changes are stored of a weight, want the slice and the status of the route", n)
		}
	}
}
