package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/pki"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// world has the objects of documents. It implements Objects.
type world struct {
	objects   map[object.Ref]object.Object
	generated map[object.Ref]bool
	trouble   []Trouble
}

// newWorld reads documents. An object is a second older than the one after it.
func newWorld(t *testing.T, docs ...string) *world {
	t.Helper()
	w := &world{objects: map[object.Ref]object.Object{}, generated: map[object.Ref]bool{}}
	w.add(Class())
	for i, doc := range docs {
		f := manifest.Decode("a.yaml", []byte(doc), manifest.DefaultLimits())
		if f.Err != nil || len(f.Problems) > 0 {
			t.Fatal(doc, f.Err, f.Problems)
		}
		for j := range f.Documents {
			o := f.Documents[j].Object
			at := time.Unix(int64(1000+i), 0)
			meta := o.GetMeta()
			meta.CreationTimestamp, meta.Generation, meta.UID = &at, 3, meta.Name
			object.Default(o)
			if errs := object.Validate(o, object.Options{}); len(errs) > 0 {
				t.Fatal(doc, errs)
			}
			w.add(o)
		}
	}
	return w
}

func (w *world) add(o object.Object) {
	ref := object.RefOf(o)
	if ref.Namespace == "" && object.StrategyOf(o).Namespaced {
		o.GetMeta().Namespace, ref.Namespace = "default", "default"
	}
	w.objects[ref] = o
}

func (w *world) Get(ref object.Ref) object.Object {
	if o, is := w.objects[ref]; is {
		return o
	}
	return nil
}

func (w *world) sorted() (all []object.Object) {
	for _, o := range w.objects {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b object.Object) int {
		return strings.Compare(object.RefOf(a).String(), object.RefOf(b).String())
	})
	return all
}

func (w *world) Service(key string) (*object.Service, []*object.EndpointSlice) {
	svc, _ := w.Get(object.ServiceRef(key)).(*object.Service)
	var list []*object.EndpointSlice
	for _, o := range w.sorted() {
		if s, is := o.(*object.EndpointSlice); is && s.Metadata.Namespace+"/"+s.Metadata.Labels[object.LabelServiceName] == key {
			list = append(list, s)
		}
	}
	return svc, list
}

func (w *world) Children(parent object.Ref) (all []object.Object) {
	for _, o := range w.sorted() {
		if slices.Contains(ParentsOf(o), parent) {
			all = append(all, o)
		}
	}
	return all
}

func (w *world) Families() []string { return []string{object.IPv4} }

func (w *world) Grants(namespace string) (all []*object.ReferenceGrant) {
	for _, o := range w.sorted() {
		if g, is := o.(*object.ReferenceGrant); is && g.Metadata.Namespace == namespace {
			all = append(all, g)
		}
	}
	return all
}

func (w *world) IsGenerated(ref object.Ref) bool { return w.generated[ref] }
func (w *world) Trouble(string) []Trouble        { return w.trouble }
func (w *world) Holder(string) object.Ref {
	return object.Ref{Kind: object.KindGateway, Namespace: "default", Name: "edge"}
}

// plan plans the Gateway edge, stores its objects with an address, and plans it once more, as programmed.
func (w *world) plan(t *testing.T, address string) Planned {
	t.Helper()
	gw := w.Get(object.Ref{Kind: object.KindGateway, Namespace: "default", Name: "edge"}).(*object.Gateway)
	first := Plan(gw, w, false)
	for _, o := range first.Generated {
		w.add(o)
		w.generated[object.RefOf(o)] = true
		object.Default(o)
		if errs := object.Validate(o, object.Options{}); len(errs) > 0 {
			t.Errorf("generated %s: %v", object.RefOf(o), errs)
		}
		if svc, is := o.(*object.Service); is && svc.Spec.Type == object.TypeLoadBalancer && address != "" {
			svc.Status.LoadBalancer.Ingress = []object.LoadBalancerIngress{{IP: address}}
		}
	}
	return Plan(gw, w, true)
}

// texts are the statuses, a line for each object and listener: "Gateway edge: Accepted Programmed", with a reason for each
// condition that is not as it should be.
func texts(p Planned) (all []string) {
	short := func(list []object.Condition) string {
		var words []string
		for _, c := range list {
			switch {
			case c.ObservedGeneration != 3:
				words = append(words, fmt.Sprintf("%s@%d", c.Type, c.ObservedGeneration))
			case c.Status == "True" && c.Reason == c.Type:
				words = append(words, c.Type)
			case c.Type == "Conflicted" && c.Status == "False":
			default:
				words = append(words, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
			}
		}
		return strings.Join(words, " ")
	}
	listeners := func(list []object.ListenerStatus) {
		for _, l := range list {
			kinds := ""
			for _, k := range l.SupportedKinds {
				kinds += " " + k.Kind
			}
			all = append(all, fmt.Sprintf("  %s: %s;%s %d", l.Name, short(l.Conditions), kinds, l.AttachedRoutes))
		}
	}
	for _, o := range p.Statuses {
		ref := object.RefOf(o)
		switch o := o.(type) {
		case *object.Gateway:
			text := fmt.Sprintf("Gateway %s: %s", ref.Name, short(o.Status.Conditions))
			for _, a := range o.Status.Addresses {
				text += " " + a.Value
			}
			if n := *o.Status.AttachedListenerSets; n > 0 {
				text += fmt.Sprintf(" sets %d", n)
			}
			all = append(all, text)
			listeners(o.Status.Listeners)
		case *object.ListenerSet:
			all = append(all, fmt.Sprintf("ListenerSet %s: %s", ref.Name, short(o.Status.Conditions)))
			listeners(o.Status.Listeners)
		default:
			for _, s := range routeOf(o).status.Parents {
				all = append(all, fmt.Sprintf("%s %s: %s", ref.Kind, ref.Name, short(s.Conditions)))
			}
		}
	}
	return all
}

// served are the generated objects, a line for each: its name, ports and annotations, or its share and endpoints.
func served(p Planned) (all []string) {
	names := map[string]string{} // hashes differ with each rule of naming
	for _, o := range p.Generated {
		name := o.GetMeta().Name
		if _, has := names[name]; !has {
			names[name] = name
			if svc, is := o.(*object.Service); is && svc.Spec.Type == object.TypeClusterIP {
				names[name] = "for " + strings.TrimPrefix(svc.Metadata.Annotations[object.AnnotationRoute]+"@"+svc.Metadata.Annotations[object.AnnotationListener][strings.LastIndex(svc.Metadata.Annotations[object.AnnotationListener], "/")+1:], "")
			}
		}
	}
	clear := func(text string) string {
		for name, as := range names {
			text = strings.ReplaceAll(text, name, as)
		}
		return text
	}
	for _, o := range p.Generated {
		switch o := o.(type) {
		case *object.Service:
			text := clear(o.Metadata.Name) + ":"
			for _, port := range o.Spec.Ports {
				text += " " + port.Name
			}
			keys := []string{}
			for key := range o.Metadata.Annotations {
				if key != object.AnnotationRoute && key != object.AnnotationListener {
					keys = append(keys, key)
				}
			}
			slices.Sort(keys)
			for _, key := range keys {
				text += " " + strings.TrimPrefix(key, "svcctl.io/") + "=" + clear(o.Metadata.Annotations[key])
			}
			all = append(all, text)
		case *object.EndpointSlice:
			share := o.Metadata.Annotations[object.AnnotationShare]
			if share == "" {
				share = "nothing"
			}
			text := fmt.Sprintf("  %s %s of %s", object.Deref(o.Ports[0].Name), share, clear(o.Metadata.Labels[object.LabelServiceName]))
			for _, e := range o.Endpoints {
				text += fmt.Sprintf(" %s:%d", e.Addresses[0], *o.Ports[0].Port)
			}
			all = append(all, text)
		case *object.Secret:
			all = append(all, "Secret "+o.Metadata.Name)
		}
	}
	return all
}

// The documents of tests.
func gatewayDoc(listeners string, more ...string) string {
	return "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec: {gatewayClassName: svcctl, listeners: [" + listeners + "]" + strings.Join(more, "") + "}\n"
}

func routeDoc(kind, name, spec string) string {
	namespace := "default"
	if ns, rest, has := strings.Cut(name, "/"); has {
		namespace, name = ns, rest
	}
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", kind, name, namespace, spec)
}

func serviceDoc(name, endpoints string) string {
	namespace := "default"
	if ns, rest, has := strings.Cut(name, "/"); has {
		namespace, name = ns, rest
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {ports: [{name: a, port: 80}, {name: u, port: 53, protocol: UDP}]}\n---\n"+
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, namespace: %s, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [{name: a, port: 8080}, {name: u, port: 5353, protocol: UDP}]\nendpoints: [%s]\n",
		name, namespace, name, namespace, name, endpoints)
}

const (
	one, two = "{addresses: [10.1.0.1]}", "{addresses: [10.1.0.2]}"
	toBlue   = "rules: [{backendRefs: [{name: blue, port: 80}]}]"
)

func TestPlan(t *testing.T) {
	crt, key := pki.PEM(t, pki.Issue(t, nil, time.Unix(0, 0), time.Unix(1<<33, 0), "www.example.com"))
	secretDoc := func(namespace string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: cert, namespace: %s}\ntype: kubernetes.io/tls\nstringData:\n  tls.crt: |\n    %s\n  tls.key: |\n    %s\n",
			namespace, strings.ReplaceAll(string(crt), "\n", "\n    "), strings.ReplaceAll(string(key), "\n", "\n    "))
	}
	blue, green := serviceDoc("blue", one), serviceDoc("green", two)
	const grant = "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: shop}\nspec: {from: [{group: gateway.networking.k8s.io, kind: %s, namespace: default}], to: [{group: \"\", kind: %s}]}\n"
	for name, tt := range map[string]struct {
		docs             []string
		address          string
		statuses, serves []string
	}{
		"shares": {
			docs: []string{gatewayDoc("{name: db, port: 5432, protocol: TCP}"), blue, green,
				routeDoc("TCPRoute", "db", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: blue, port: 80, weight: 9}, {name: green, port: 80}, {name: green, port: 80, weight: 0}, {name: none, port: 80, weight: 3}]}]")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  db: Accepted Programmed ResolvedRefs; TCPRoute 1", "TCPRoute db: Accepted ResolvedRefs=False/BackendNotFound"},
			serves: []string{"edge-svcctl: tcp-5432", "  tcp-5432 default/blue:80=9 of edge-svcctl 10.1.0.1:8080", "  tcp-5432 default/green:80=1 of edge-svcctl 10.1.0.2:8080",
				"  tcp-5432 default/green:80#2=0 of edge-svcctl 10.1.0.2:8080", "  tcp-5432 default/none:80=3 of edge-svcctl"},
		},
		"no route": {
			docs:     []string{gatewayDoc("{name: db, port: 5432, protocol: TCP}")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  db: Accepted Programmed ResolvedRefs; TCPRoute 0"},
			serves:   []string{"edge-svcctl: tcp-5432", "  tcp-5432 nothing of edge-svcctl"},
		},
		"the oldest route has the connections": {
			docs:     []string{gatewayDoc("{name: db, port: 1, protocol: TCP}"), blue, green, routeDoc("TCPRoute", "z", "parentRefs: [{name: edge}], "+toBlue), routeDoc("TCPRoute", "a", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: green, port: 80}]}]")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  db: Accepted Programmed ResolvedRefs; TCPRoute 2", "TCPRoute z: Accepted ResolvedRefs", "TCPRoute a: Accepted ResolvedRefs"},
			serves:   []string{"edge-svcctl: tcp-1", "  tcp-1 default/blue:80=1 of edge-svcctl 10.1.0.1:8080"},
		},
		"parentRefs": {
			docs: []string{gatewayDoc("{name: a, port: 1, protocol: TCP}, {name: b, port: 2, protocol: TCP}, {name: u, port: 2, protocol: UDP}"), blue,
				routeDoc("TCPRoute", "by-port", "parentRefs: [{name: edge, port: 1}], "+toBlue),
				routeDoc("TCPRoute", "by-name", "parentRefs: [{name: edge, sectionName: b}], "+toBlue),
				routeDoc("TCPRoute", "neither", "parentRefs: [{name: edge, sectionName: a, port: 2}], "+toBlue),
				routeDoc("TCPRoute", "wrong-kind", "parentRefs: [{name: edge, sectionName: u}], "+toBlue),
				routeDoc("UDPRoute", "dns", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: blue, port: 53}]}]"),
				routeDoc("TCPRoute", "elsewhere", "parentRefs: [{name: other}], "+toBlue),
				routeDoc("TCPRoute", "wrong-port", "parentRefs: [{name: edge, sectionName: a}], rules: [{backendRefs: [{name: blue, port: 53}]}]")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  a: Accepted Programmed ResolvedRefs; TCPRoute 2", "  b: Accepted Programmed ResolvedRefs; TCPRoute 1",
				"  u: Accepted Programmed ResolvedRefs; UDPRoute 1", "TCPRoute by-port: Accepted ResolvedRefs", "TCPRoute by-name: Accepted ResolvedRefs",
				"TCPRoute neither: Accepted=False/NoMatchingParent ResolvedRefs", "TCPRoute wrong-kind: Accepted=False/NotAllowedByListeners ResolvedRefs",
				"UDPRoute dns: Accepted ResolvedRefs", "TCPRoute wrong-port: Accepted ResolvedRefs=False/UnsupportedProtocol"},
			serves: []string{"edge-svcctl: tcp-1 tcp-2 udp-2", "  tcp-1 default/blue:80=1 of edge-svcctl 10.1.0.1:8080", "  tcp-2 default/blue:80=1 of edge-svcctl 10.1.0.1:8080", "  udp-2 default/blue:53=1 of edge-svcctl 10.1.0.1:5353"},
		},
		"namespaces": {
			docs: []string{gatewayDoc("{name: same, port: 1, protocol: TCP}, {name: all, port: 2, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}, {name: some, port: 3, protocol: TCP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}}"),
				routeDoc("TCPRoute", "shop/r", "parentRefs: [{name: edge, namespace: default}], rules: [{backendRefs: [{name: blue, port: 80}]}]"), serviceDoc("shop/blue", one)},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  same: Accepted Programmed ResolvedRefs; TCPRoute 0", "  all: Accepted Programmed ResolvedRefs; TCPRoute 1", "  some: Accepted Programmed ResolvedRefs; TCPRoute 0", "TCPRoute r: Accepted ResolvedRefs"},
			serves:   []string{"edge-svcctl: tcp-1 tcp-2 tcp-3", "  tcp-1 nothing of edge-svcctl", "  tcp-2 shop/blue:80=1 of edge-svcctl 10.1.0.1:8080", "  tcp-3 nothing of edge-svcctl"},
		},
		"no grant": {
			docs:     []string{gatewayDoc("{name: db, port: 1, protocol: TCP}"), serviceDoc("shop/blue", one), fmt.Sprintf(grant, "UDPRoute", "Service"), routeDoc("TCPRoute", "r", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: blue, namespace: shop, port: 80}]}]")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  db: Accepted Programmed ResolvedRefs; TCPRoute 1", "TCPRoute r: Accepted ResolvedRefs=False/RefNotPermitted"},
			serves:   []string{"edge-svcctl: tcp-1", "  tcp-1 shop/blue:80=1 of edge-svcctl"},
		},
		"grant": {
			docs:     []string{gatewayDoc("{name: db, port: 1, protocol: TCP}"), serviceDoc("shop/blue", one), fmt.Sprintf(grant, "TCPRoute", "Service"), routeDoc("TCPRoute", "r", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: blue, namespace: shop, port: 80}]}]")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  db: Accepted Programmed ResolvedRefs; TCPRoute 1", "TCPRoute r: Accepted ResolvedRefs"},
			serves:   []string{"edge-svcctl: tcp-1", "  tcp-1 shop/blue:80=1 of edge-svcctl 10.1.0.1:8080"},
		},
		"other kinds of backends": {
			docs: []string{gatewayDoc("{name: db, port: 1, protocol: TCP}"), routeDoc("TCPRoute", "r", "parentRefs: [{name: edge}], rules: [{backendRefs: [{kind: Bucket, group: x.y, name: blue, port: 80}]}]"),
				"apiVersion: v1\nkind: Service\nmetadata: {name: far}\nspec: {type: ExternalName, externalName: a.b, ports: [{port: 80}]}\n", routeDoc("TCPRoute", "s", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: far, port: 80}]}]")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  db: Accepted Programmed ResolvedRefs; TCPRoute 2", "TCPRoute r: Accepted ResolvedRefs=False/InvalidKind", "TCPRoute s: Accepted ResolvedRefs=False/BackendNotFound"},
			serves:   []string{"edge-svcctl: tcp-1", "  tcp-1 default/blue:80=1 of edge-svcctl"},
		},
		"protocols in conflict, and one that there is not": {
			docs: []string{gatewayDoc("{name: t, port: 80, protocol: TCP}, {name: h, port: 80, protocol: HTTP}, {name: u, port: 80, protocol: UDP}, {name: x, port: 1, protocol: QUIC}")},
			statuses: []string{"Gateway edge: Accepted=True/ListenersNotValid Programmed 198.51.100.1",
				"  t: Accepted=False/ProtocolConflict Programmed=False/ProtocolConflict ResolvedRefs Conflicted=True/ProtocolConflict; TCPRoute 0",
				"  h: Accepted=False/ProtocolConflict Programmed=False/ProtocolConflict ResolvedRefs Conflicted=True/ProtocolConflict; HTTPRoute 0",
				"  u: Accepted Programmed ResolvedRefs; UDPRoute 0", "  x: Accepted=False/UnsupportedProtocol Programmed=False/Invalid ResolvedRefs; 0"},
			serves: []string{"edge-svcctl: udp-80", "  udp-80 nothing of edge-svcctl"},
		},
		"nothing valid": {
			docs:     []string{gatewayDoc("{name: x, port: 1, protocol: QUIC}")},
			statuses: []string{"Gateway edge: Accepted=False/ListenersNotValid Programmed=False/Invalid", "  x: Accepted=False/UnsupportedProtocol Programmed=False/Invalid ResolvedRefs; 0"},
		},
		"kinds": {
			docs: []string{gatewayDoc("{name: a, port: 1, protocol: TCP, allowedRoutes: {kinds: [{kind: UDPRoute}]}}, {name: b, port: 2, protocol: TCP, allowedRoutes: {kinds: [{kind: TCPRoute}, {kind: X}]}}"), blue, routeDoc("TCPRoute", "r", "parentRefs: [{name: edge}], "+toBlue)},
			statuses: []string{"Gateway edge: Accepted=True/ListenersNotValid Programmed 198.51.100.1", "  a: Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidRouteKinds; 0",
				"  b: Accepted Programmed ResolvedRefs=False/InvalidRouteKinds; TCPRoute 1", "TCPRoute r: Accepted ResolvedRefs"},
			serves: []string{"edge-svcctl: tcp-2", "  tcp-2 default/blue:80=1 of edge-svcctl 10.1.0.1:8080"},
		},
		"address of another kind": {
			docs:     []string{gatewayDoc("{name: a, port: 1, protocol: TCP}", ", addresses: [{type: Hostname, value: a.b}]")},
			statuses: []string{"Gateway edge: Accepted=False/UnsupportedAddress Programmed=False/Invalid", "  a: Accepted Programmed=False/Invalid ResolvedRefs; TCPRoute 0"},
		},
		"address that is not to be had": {
			docs: []string{gatewayDoc("{name: a, port: 1, protocol: TCP}", ", addresses: [{value: 203.0.113.9}]")}, address: "none",
			statuses: []string{"Gateway edge: Accepted Programmed=False/AddressNotUsable", "  a: Accepted Programmed=False/Invalid ResolvedRefs; TCPRoute 0"},
			serves:   []string{"edge-svcctl: tcp-1 load-balancer-ips=203.0.113.9", "  tcp-1 nothing of edge-svcctl"},
		},
		"no address left": {
			docs: []string{gatewayDoc("{name: a, port: 1, protocol: TCP}", ", addresses: [{type: IPAddress}]")}, address: "none",
			statuses: []string{"Gateway edge: Accepted Programmed=False/AddressNotAssigned", "  a: Accepted Programmed=False/Invalid ResolvedRefs; TCPRoute 0"},
			serves:   []string{"edge-svcctl: tcp-1", "  tcp-1 nothing of edge-svcctl"},
		},
		"parameters": {
			docs:     []string{gatewayDoc("{name: a, port: 1, protocol: TCP}", ", infrastructure: {parametersRef: {group: a.b, kind: C, name: d}}")},
			statuses: []string{"Gateway edge: Accepted=False/InvalidParameters Programmed=False/Invalid", "  a: Accepted Programmed=False/Invalid ResolvedRefs; TCPRoute 0"},
		},
		"infrastructure": {
			docs:     []string{gatewayDoc("{name: a, port: 1, protocol: TCP}, {name: s, port: 7, protocol: svcctl.io/SCTP}", ", infrastructure: {annotations: {svcctl.io/balance: maglev, svcctl.io/port-ranges: tcp-1=10-20/TCP, svcctl.io/tls-secret: x}}")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  a: Accepted Programmed ResolvedRefs; TCPRoute 0", "  s: Accepted Programmed ResolvedRefs; TCPRoute 0"},
			serves:   []string{"edge-svcctl: tcp-1 sctp-7 balance=maglev port-ranges=tcp-1=10-20/TCP", "  tcp-1 nothing of edge-svcctl", "  sctp-7 nothing of edge-svcctl"},
		},
		"the Service's name is taken": {
			docs:     []string{serviceDoc("edge-svcctl", one), gatewayDoc("{name: a, port: 1, protocol: TCP}")},
			statuses: []string{"Gateway edge: Accepted Programmed=False/Invalid", "  a: Accepted Programmed=False/Invalid ResolvedRefs; TCPRoute 0"},
		},
		"names": {
			docs: []string{gatewayDoc(`{name: p, port: 443, protocol: TLS, hostname: "*.example.com", tls: {mode: Passthrough}}, {name: any, port: 443, protocol: TLS, tls: {mode: Passthrough}}`), blue, green,
				routeDoc("TLSRoute", "www", "parentRefs: [{name: edge, sectionName: p}], hostnames: [www.example.com, other.org], "+toBlue),
				routeDoc("TLSRoute", "late", "parentRefs: [{name: edge, sectionName: p}], hostnames: [www.example.com], "+toBlue),
				routeDoc("TLSRoute", "rest", `parentRefs: [{name: edge, sectionName: any}], hostnames: ["*.org", "*.com"], rules: [{backendRefs: [{name: green, port: 80}]}]`),
				routeDoc("TLSRoute", "none", "parentRefs: [{name: edge, sectionName: p}], hostnames: [a.org], "+toBlue)},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  p: Accepted Programmed ResolvedRefs; TLSRoute 2", "  any: Accepted Programmed ResolvedRefs; TLSRoute 1",
				"TLSRoute www: Accepted ResolvedRefs", "TLSRoute late: Accepted ResolvedRefs", "TLSRoute rest: Accepted ResolvedRefs", "TLSRoute none: Accepted=False/NoMatchingListenerHostname ResolvedRefs"},
			serves: []string{"edge-svcctl: tcp-443 tls-services.tcp-443=*=,**.com=for TLSRoute/default/rest@any,**.example.com=,**.org=for TLSRoute/default/rest@any,www.example.com=for TLSRoute/default/www@p",
				"for TLSRoute/default/www@p: tcp-443", "  tcp-443 default/blue:80=1 of for TLSRoute/default/www@p 10.1.0.1:8080",
				"for TLSRoute/default/rest@any: tcp-443", "  tcp-443 default/green:80=1 of for TLSRoute/default/rest@any 10.1.0.2:8080"},
		},
		"the hostname of the route goes before its age": {
			docs: []string{gatewayDoc(`{name: a, port: 443, protocol: TLS, hostname: abc.example.com, tls: {mode: Passthrough}}, {name: b, port: 444, protocol: TLS, hostname: "*.example.com", tls: {mode: Passthrough}}`), blue, green,
				routeDoc("TLSRoute", "old", `parentRefs: [{name: edge}], hostnames: ["*.com"], `+toBlue),
				routeDoc("TLSRoute", "wild", `parentRefs: [{name: edge}], hostnames: ["*.example.com"], rules: [{backendRefs: [{name: green, port: 80}]}]`),
				routeDoc("TLSRoute", "exact", `parentRefs: [{name: edge, sectionName: a}], hostnames: [abc.example.com], `+toBlue),
				routeDoc("TLSRoute", "late", `parentRefs: [{name: edge}], hostnames: [abc.example.com, "*.example.com"], `+toBlue)},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  a: Accepted Programmed ResolvedRefs; TLSRoute 4", "  b: Accepted Programmed ResolvedRefs; TLSRoute 3",
				"TLSRoute old: Accepted ResolvedRefs", "TLSRoute wild: Accepted ResolvedRefs", "TLSRoute exact: Accepted ResolvedRefs", "TLSRoute late: Accepted ResolvedRefs"},
			serves: []string{"edge-svcctl: tcp-443 tcp-444 tls-services.tcp-443=*=,abc.example.com=for TLSRoute/default/exact@a tls-services.tcp-444=*=,**.example.com=for TLSRoute/default/wild@b,abc.example.com=for TLSRoute/default/late@b",
				"for TLSRoute/default/exact@a: tcp-443", "  tcp-443 default/blue:80=1 of for TLSRoute/default/exact@a 10.1.0.1:8080",
				"for TLSRoute/default/wild@b: tcp-444", "  tcp-444 default/green:80=1 of for TLSRoute/default/wild@b 10.1.0.2:8080",
				"for TLSRoute/default/late@b: tcp-444", "  tcp-444 default/blue:80=1 of for TLSRoute/default/late@b 10.1.0.1:8080"},
		},
		"termination, and both at a port": {
			docs: []string{secretDoc("default"), gatewayDoc(`{name: t, port: 443, protocol: TLS, hostname: www.example.com, tls: {mode: Terminate, certificateRefs: [{name: cert}]}}, {name: p, port: 443, protocol: TLS, hostname: p.example.com, tls: {mode: Passthrough}}`), blue,
				routeDoc("TLSRoute", "r", "parentRefs: [{name: edge}], hostnames: [www.example.com, p.example.com], "+toBlue)},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  t: Accepted Programmed ResolvedRefs; TLSRoute 1", "  p: Accepted Programmed ResolvedRefs; TLSRoute 1", "TLSRoute r: Accepted ResolvedRefs"},
			serves: []string{"edge-svcctl: tcp-443 tls-services.tcp-443=*=,p.example.com=for TLSRoute/default/r@p,www.example.com=for TLSRoute/default/r@t",
				"for TLSRoute/default/r@t: tcp-443 tls-secret=cert", "  tcp-443 default/blue:80=1 of for TLSRoute/default/r@t 10.1.0.1:8080",
				"for TLSRoute/default/r@p: tcp-443", "  tcp-443 default/blue:80=1 of for TLSRoute/default/r@p 10.1.0.1:8080"},
		},
		"certificates": {
			docs: []string{secretDoc("shop"), gatewayDoc(`{name: none, port: 1, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}, {name: far, port: 2, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: shop}]}}, {name: map, port: 3, protocol: HTTPS, tls: {certificateRefs: [{kind: ConfigMap, name: cert}]}}`)},
			statuses: []string{"Gateway edge: Accepted=False/ListenersNotValid Programmed=False/Invalid", "  none: Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef; HTTPRoute 0",
				"  far: Accepted Programmed=False/Invalid ResolvedRefs=False/RefNotPermitted; HTTPRoute 0", "  map: Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef; HTTPRoute 0"},
		},
		"certificate of another namespace": {
			docs: []string{secretDoc("shop"), fmt.Sprintf(grant, "Gateway", "Secret"), gatewayDoc(`{name: far, port: 2, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: shop}]}}`), blue,
				routeDoc("HTTPRoute", "r", "parentRefs: [{name: edge}], "+toBlue)},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  far: Accepted Programmed ResolvedRefs; HTTPRoute 1", "HTTPRoute r: Accepted ResolvedRefs"},
			serves: []string{"edge-svcctl: tcp-2 tls-services.tcp-2=*=for HTTPRoute/default/r@far", "Secret edge-svcctl-67127e83", "for HTTPRoute/default/r@far: tcp-2 tls-secret=edge-svcctl-67127e83",
				"  tcp-2 default/blue:80=1 of for HTTPRoute/default/r@far 10.1.0.1:8080"},
		},
		"HTTP": {
			docs: []string{gatewayDoc(`{name: a, port: 80, protocol: HTTP}, {name: b, port: 81, protocol: HTTP, hostname: b.org}`), blue,
				routeDoc("HTTPRoute", "one", "parentRefs: [{name: edge}], "+toBlue), routeDoc("HTTPRoute", "two", "parentRefs: [{name: edge, sectionName: a}], "+toBlue),
				routeDoc("HTTPRoute", "filters", "parentRefs: [{name: edge, sectionName: b}], rules: [{filters: [{type: RequestRedirect, requestRedirect: {hostname: a.b}}]}]"),
				routeDoc("HTTPRoute", "paths", "parentRefs: [{name: edge, sectionName: b}], rules: [{matches: [{path: {value: /a}}], backendRefs: [{name: blue, port: 80}]}]")},
			statuses: []string{"Gateway edge: Accepted Programmed 198.51.100.1", "  a: Accepted Programmed ResolvedRefs; HTTPRoute 1", "  b: Accepted Programmed ResolvedRefs; HTTPRoute 1",
				"HTTPRoute one: Accepted ResolvedRefs", "HTTPRoute two: Accepted=False/UnsupportedValue ResolvedRefs", "HTTPRoute filters: Accepted=False/UnsupportedValue ResolvedRefs", "HTTPRoute paths: Accepted=False/UnsupportedValue ResolvedRefs"},
			serves: []string{"edge-svcctl: tcp-80 tcp-81 http-hosts.tcp-81=b.org", "  tcp-80 default/blue:80=1 of edge-svcctl 10.1.0.1:8080", "  tcp-81 default/blue:80=1 of edge-svcctl 10.1.0.1:8080"},
		},
		"ListenerSets": {
			docs: []string{gatewayDoc("{name: a, port: 1, protocol: TCP}", ", allowedListeners: {namespaces: {from: Same}}"), blue,
				routeDoc("ListenerSet", "s1", "parentRef: {name: edge}, listeners: [{name: a, port: 1, protocol: TCP}, {name: b, port: 2, protocol: TCP}]"),
				routeDoc("ListenerSet", "s0", "parentRef: {name: edge}, listeners: [{name: b, port: 2, protocol: TCP}]"),
				routeDoc("ListenerSet", "shop/far", "parentRef: {name: edge, namespace: default}, listeners: [{name: c, port: 3, protocol: TCP}]"),
				routeDoc("TCPRoute", "r", "parentRefs: [{kind: ListenerSet, name: s1}], "+toBlue)},
			statuses: []string{"ListenerSet s1: Accepted=True/ListenersNotValid Programmed",
				"  a: Accepted=False/ProtocolConflict Programmed=False/ProtocolConflict ResolvedRefs Conflicted=True/ProtocolConflict; TCPRoute 1", "  b: Accepted Programmed ResolvedRefs; TCPRoute 1",
				"ListenerSet s0: Accepted=False/ListenersNotValid Programmed=False/ListenersNotValid", "  b: Accepted=False/ProtocolConflict Programmed=False/ProtocolConflict ResolvedRefs Conflicted=True/ProtocolConflict; TCPRoute 0",
				"ListenerSet far: Accepted=False/NotAllowed Programmed=False/NotAllowed", "Gateway edge: Accepted Programmed 198.51.100.1 sets 1", "  a: Accepted Programmed ResolvedRefs; TCPRoute 0", "TCPRoute r: Accepted ResolvedRefs"},
			serves: []string{"edge-svcctl: tcp-1 tcp-2", "  tcp-1 nothing of edge-svcctl", "  tcp-2 default/blue:80=1 of edge-svcctl 10.1.0.1:8080"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := "198.51.100.1"
			if tt.address != "" {
				address = ""
			}
			got := newWorld(t, tt.docs...).plan(t, address)
			if statuses := texts(got); !slices.Equal(statuses, tt.statuses) {
				t.Errorf("statuses\n%s\nwant\n%s", strings.Join(statuses, "\n"), strings.Join(tt.statuses, "\n"))
			}
			if serves := served(got); !slices.Equal(serves, tt.serves) {
				t.Errorf("serves\n%s\nwant\n%s", strings.Join(serves, "\n"), strings.Join(tt.serves, "\n"))
			}
		})
	}
}

// Hostile Gateways: as many listeners and sets as there may be, in conflict; all weights 0; a backend that another Gateway generated; a
// grant that comes and goes. What is wrong has its condition, and everything else is served.
func Test1093_hostile_gateways(t *testing.T) {
	var listeners []string
	for i := range 64 {
		listeners = append(listeners, fmt.Sprintf("{name: l%d, port: %d, protocol: TCP, allowedRoutes: {namespaces: {from: All}}}", i, 1000+i))
	}
	docs := []string{gatewayDoc(strings.Join(listeners, ", "), ", allowedListeners: {namespaces: {from: All}}"), serviceDoc("blue", one), serviceDoc("green", two),
		routeDoc("TCPRoute", "all", "parentRefs: [{name: edge}], "+toBlue)}
	for i := range 4 { // each repeats the listeners of the Gateway, and has one of its own, which the first of them has
		docs = append(docs, routeDoc("ListenerSet", fmt.Sprintf("s%d", i), "parentRef: {name: edge}, listeners: ["+strings.Join(listeners[:63], ", ")+", {name: own, port: 9, protocol: TCP}]"))
	}
	p := newWorld(t, docs...).plan(t, "198.51.100.1")
	svc := p.Generated[0].(*object.Service)
	if len(svc.Spec.Ports) != 65 || len(p.Generated) != 1+65 {
		t.Errorf("%d ports and %d objects are generated, want those of 64 listeners and of one of the sets", len(svc.Spec.Ports), len(p.Generated))
	}
	valid := 0
	for _, o := range p.Statuses {
		if set, is := o.(*object.ListenerSet); is {
			for _, l := range set.Status.Listeners {
				conflicted := false
				for _, c := range l.Conditions {
					conflicted = conflicted || c.Type == "Conflicted" && c.Status == "True"
				}
				if !conflicted {
					valid++
				}
			}
		}
	}
	if valid != 1 {
		t.Errorf("%d listeners of sets are served, want one", valid)
	}

	for name, tt := range map[string]struct {
		docs   []string
		serves []string
		route  string
	}{
		"all weights are 0": {
			docs:   []string{serviceDoc("blue", one), serviceDoc("green", two), routeDoc("TCPRoute", "r", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: blue, port: 80, weight: 0}, {name: green, port: 80, weight: 0}]}]")},
			serves: []string{"edge-svcctl: tcp-1", "  tcp-1 default/blue:80=0 of edge-svcctl 10.1.0.1:8080", "  tcp-1 default/green:80=0 of edge-svcctl 10.1.0.2:8080"},
			route:  "TCPRoute r: Accepted ResolvedRefs",
		},
		"its own Service is the backend": {
			docs:   []string{routeDoc("TCPRoute", "r", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: edge-svcctl, port: 1}]}]")},
			serves: []string{"edge-svcctl: tcp-1", "  tcp-1 default/edge-svcctl:1=1 of edge-svcctl"},
			route:  "TCPRoute r: Accepted ResolvedRefs=False/InvalidKind",
		},
		"one backend of each kind of wrong": {
			docs: []string{serviceDoc("blue", one), serviceDoc("shop/far", two), "apiVersion: v1\nkind: Service\nmetadata: {name: out}\nspec: {type: ExternalName, externalName: a.example}\n",
				routeDoc("TCPRoute", "r", "parentRefs: [{name: edge}], rules: [{backendRefs: [{name: out, port: 80}, {name: far, namespace: shop, port: 80}, {name: blue, port: 81}, {kind: Pod, name: blue, port: 80}, {name: blue, port: 80, weight: 6}]}]")},
			serves: []string{"edge-svcctl: tcp-1", "  tcp-1 default/out:80=1 of edge-svcctl", "  tcp-1 shop/far:80=1 of edge-svcctl", "  tcp-1 default/blue:81=1 of edge-svcctl",
				"  tcp-1 default/blue:80=1 of edge-svcctl", "  tcp-1 default/blue:80#2=6 of edge-svcctl 10.1.0.1:8080"},
			route: "TCPRoute r: Accepted ResolvedRefs=False/BackendNotFound",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := newWorld(t, append([]string{gatewayDoc("{name: a, port: 1, protocol: TCP}")}, tt.docs...)...).plan(t, "198.51.100.1")
			if serves := served(got); !slices.Equal(serves, tt.serves) {
				t.Errorf("serves\n%s\nwant\n%s", strings.Join(serves, "\n"), strings.Join(tt.serves, "\n"))
			}
			if statuses := texts(got); !slices.Contains(statuses, tt.route) {
				t.Errorf("statuses\n%s\nwant %s", strings.Join(statuses, "\n"), tt.route)
			}
		})
	}
}

// Test1048_listener_keeps_a_Secret_that_becomes_unusable: a listener that is served names the Secret as before, so that the relay goes on with its last
// usable certificate. One that was not served, or that changes while its Secret is unusable, is not.
func Test1048_listener_keeps_a_Secret_that_becomes_unusable(t *testing.T) {
	crt, key := pki.PEM(t, pki.Issue(t, nil, time.Unix(0, 0), time.Unix(1<<33, 0), "www.example.com"))
	w := newWorld(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: cert}\ntype: kubernetes.io/tls\ndata: {tls.crt: eA==, tls.key: eA==}\n",
		gatewayDoc(`{name: t, port: 443, protocol: TLS, hostname: www.example.com, tls: {mode: Terminate, certificateRefs: [{name: cert}]}}`), serviceDoc("blue", one),
		routeDoc("TLSRoute", "r", "parentRefs: [{name: edge}], hostnames: [www.example.com], "+toBlue))
	secret := w.Get(object.Ref{Kind: object.KindSecret, Namespace: "default", Name: "cert"}).(*object.Secret)
	edge := w.Get(object.Ref{Kind: object.KindGateway, Namespace: "default", Name: "edge"}).(*object.Gateway)
	const terminates = "for TLSRoute/default/r@t: tcp-443 tls-secret=cert"
	for _, step := range []struct {
		name, listener string
		change         func()
		serves         bool
	}{
		{"never usable", "  t: Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef; TLSRoute 1", func() {}, false},
		{"usable", "  t: Accepted Programmed ResolvedRefs; TLSRoute 1", func() { secret.Data = map[string][]byte{object.TLSCert: crt, object.TLSKey: key} }, true},
		{"broken", "  t: Accepted Programmed ResolvedRefs=False/InvalidCertificateRef; TLSRoute 1", func() { secret.Data = map[string][]byte{object.TLSCert: crt} }, true},
		{"still broken", "  t: Accepted Programmed ResolvedRefs=False/InvalidCertificateRef; TLSRoute 1", func() {}, true},
		{"and the Gateway changes", "  t: Accepted Programmed=False/Invalid ResolvedRefs=False/InvalidCertificateRef; TLSRoute 1", func() {
			for i := range edge.Status.Listeners[0].Conditions { // they are of the version before
				edge.Status.Listeners[0].Conditions[i].ObservedGeneration--
			}
		}, false},
	} {
		step.change()
		got := w.plan(t, "198.51.100.1")
		if serves := served(got); slices.Contains(serves, terminates) != step.serves {
			t.Errorf("%s: serves\n%s", step.name, strings.Join(serves, "\n"))
		}
		if statuses := texts(got); !slices.Contains(statuses, step.listener) {
			t.Errorf("%s: statuses\n%s\nwant %s", step.name, strings.Join(statuses, "\n"), step.listener)
		}
		for _, o := range got.Statuses {
			if gw, is := o.(*object.Gateway); is {
				edge.Status = gw.Status
			}
		}
	}
}
