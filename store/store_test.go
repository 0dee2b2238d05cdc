package store

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

const endpointsOfWeb = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.1]}]
ports: [{port: 8080}]
---
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets: [{addresses: [{ip: 10.1.0.2}], ports: [{port: 8080}]}]
`

func TestSyncMakesObjects(t *testing.T) {
	b := newBox(t)
	before := b.s.Revision()
	result := b.apply("web.yaml", yamlOf("web {type: NodePort}")+endpointsOfWeb)
	if result != (SyncResult{Revision: before + 3, Changes: 3}) {
		t.Errorf("got %+v", result)
	}
	svc, slices, endpoints := b.s.Service("default/web")
	if svc == nil || len(slices) != 1 || endpoints == nil {
		t.Fatalf("got %v, %v, %v", svc, slices, endpoints)
	}
	if svc.Metadata.UID == "" || svc.Metadata.Generation != 1 || !svc.Metadata.CreationTimestamp.Equal(b.now) {
		t.Errorf("metadata %+v", svc.Metadata)
	}
	if !strings.HasPrefix(svc.Spec.ClusterIP, "172.30.0.") || !netip.MustParsePrefix("172.30.0.0/24").Contains(netip.MustParseAddr(svc.Spec.ClusterIP)) {
		t.Errorf("cluster IP %s", svc.Spec.ClusterIP)
	}
	if port := svc.Spec.Ports[0].NodePort; port < 30086 || port > 32767 {
		t.Errorf("node port %d", port)
	}
	b.wantProblems()
}

func TestNoChangeWritesNothing(t *testing.T) {
	b := newBox(t)
	text := yamlOf("web {type: LoadBalancer, externalTrafficPolicy: Local, ipFamilyPolicy: PreferDualStack}") + endpointsOfWeb
	b.apply("web.yaml", text)
	commits, before := b.engine.Commits(), b.service("web")
	changes := b.s.Changes(0)
	for name, step := range map[string]func(){
		"same pointers": func() {},
		"read again":    func() { b.write("web.yaml", text) },
		"a comment":     func() { b.write("web.yaml", "# hello\n"+text) },
		"other order": func() {
			b.write("web.yaml", endpointsOfWeb+yamlOf("web {ipFamilyPolicy: PreferDualStack, externalTrafficPolicy: Local, type: LoadBalancer}"))
		},
		"restart": func() { b.restart(); b.write("web.yaml", text) },
	} {
		step()
		result := b.sync()
		if result.Changes != 0 {
			t.Errorf("%s: %+v", name, result)
		}
		if b.s.Revision() != changes.Revision {
			t.Errorf("%s: revision %d, was %d", name, b.s.Revision(), changes.Revision)
		}
	}
	if b.engine.Commits() != 0 { // a reopened engine counts from zero
		t.Errorf("%d commits after the restart, %d before", b.engine.Commits(), commits)
	}
	if after := b.service("web"); after.Spec.ClusterIP != before.Spec.ClusterIP {
		t.Errorf("cluster IP %s, was %s", after.Spec.ClusterIP, before.Spec.ClusterIP)
	}
}

func TestReapplyKeepsValues(t *testing.T) {
	b := newBox(t)
	text := "web {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: a, port: 80}, {name: b, port: 443}]}"
	b.apply("web.yaml", text)
	before := b.service("web")
	b.apply("web.yaml", "web {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: b, port: 443}, {name: a, port: 8080}]}")
	after := b.service("web")
	if after.Spec.ClusterIP != before.Spec.ClusterIP || after.Spec.HealthCheckNodePort != before.Spec.HealthCheckNodePort ||
		after.Spec.Ports[1].NodePort != before.Spec.Ports[0].NodePort || after.Spec.Ports[0].NodePort != before.Spec.Ports[1].NodePort {
		t.Errorf("before %+v\nafter %+v", before.Spec, after.Spec)
	}
	if after.Metadata.Generation != 2 || after.Metadata.UID != before.Metadata.UID || after == before {
		t.Errorf("metadata before %+v\nafter %+v", before.Metadata, after.Metadata)
	}
	b.wantProblems()
}

func TestErrorsNameFileLineFieldAndOwner(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: NodePort, clusterIP: 172.30.0.5, ports: [{port: 80, nodePort: 30007}]}")
	b.apply("b.yaml", strings.Join([]string{
		"in-use {clusterIP: 172.30.0.5}",
		"outside {clusterIP: 10.0.0.1}",
		"port-in-use {type: NodePort, ports: [{port: 80, nodePort: 30007}]}",
		"port-outside {type: NodePort, ports: [{port: 80, nodePort: 80}]}",
		"bad {ports: [{port: 0}]}",
		"good {}",
	}, "\n"))
	b.wantProblems(
		`b.yaml:5:29: Service default/in-use: spec.clusterIPs: Invalid value: ["172.30.0.5"]: failed to allocate IP 172.30.0.5: provided IP is already allocated to Service default/web`,
		`b.yaml:10:29: Service default/outside: spec.clusterIPs: Invalid value: ["10.0.0.1"]: failed to allocate IP 10.0.0.1: the provided IP (10.0.0.1) is not in the valid range. The range of valid IPs is 172.30.0.0/24`,
		`b.yaml:15:43: Service default/port-in-use: spec.ports[0].nodePort: Invalid value: 30007: provided port is already allocated to Service default/web`,
		`b.yaml:20:43: Service default/port-outside: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767`,
		`b.yaml:25:16: Service default/bad: spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive`,
		`b.yaml:25:17: Service default/bad: spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive`,
	)
	if !b.has("good") {
		t.Error("the good object did not get through")
	}
	// Positions follow the documents without another look at the objects.
	b.apply("b.yaml", "# one line more\n"+yamlOf("in-use {clusterIP: 172.30.0.5}"))
	b.wantProblems("b.yaml:6:29: Service default/in-use")
}

func TestFullRanges(t *testing.T) {
	b := newBox(t, func(c *Config) {
		c.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/30")}
		c.NodePorts = PortRange{30000, 30000}
	})
	b.apply("a.yaml", "a {type: NodePort}")
	b.apply("b.yaml", "b {type: NodePort}\nc {}\nd {}")
	b.wantProblems(
		`b.yaml:2:1: Service default/b: failed to allocate a nodePort for Service "b": range is full`,
		`b.yaml:12:1: Service default/d: failed to allocate a serviceIP for Service "d": range is full`,
	)
	// What failed took nothing, and is tried again when something is free.
	b.apply("a.yaml", "")
	b.wantProblems(`failed to allocate a serviceIP for Service "d"`)
	if b.nodePort("b") != 30000 {
		t.Errorf("node port %d", b.nodePort("b"))
	}
}

func TestBadVersionsKeepTheLastGoodOne(t *testing.T) {
	good := yamlOf("web {type: NodePort}\nother {}")
	for name, test := range map[string]struct{ text, problem string }{
		"invalid value":     {yamlOf("web {type: NodePort, ports: [{port: 0}]}\nother {}"), "must be between 1 and 65535"},
		"unknown field":     {yamlOf("web {type: NodePort, bogus: 1}\nother {}"), "bogus"},
		"immutable field":   {yamlOf("web {type: NodePort, clusterIP: 172.30.0.9}\nother {}"), "may not change once set"},
		"port out of range": {yamlOf("web {type: NodePort, ports: [{port: 80, nodePort: 1}]}\nother {}"), "not in the valid range"},
		"no name":           {strings.Replace(good, "name: web", "x: y", 1), `unknown field "metadata.x"`},
		"syntax":            {good + "---\n{", "parse"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			b.apply("web.yaml", good)
			before := b.service("web")
			for range 2 {
				b.apply("web.yaml", test.text)
				if !reflect.DeepEqual(b.service("web"), before) || !b.has("other") {
					t.Errorf("web changed, or other went")
				}
				if !strings.Contains(b.problems(), test.problem) {
					t.Errorf("problems: %s", b.problems())
				}
				b.restart()
				before = b.service("web")
			}
			b.apply("web.yaml", yamlOf("other {}"))
			if b.has("web") {
				t.Error("web is still there after it was taken out of a good file")
			}
			b.wantProblems()
		})
	}
}

func TestRemovedFileRemovesItsObjects(t *testing.T) {
	b := newBox(t)
	b.write("a.yaml", "a {clusterIP: 172.30.0.5}\nb {}")
	b.write("b.yaml", "c {}")
	b.sync()
	if result := b.apply("a.yaml", ""); result.Changes != 2 || b.has("a") || b.has("b") || !b.has("c") {
		t.Errorf("got %+v", result)
	}
	b.apply("c.yaml", "d {clusterIP: 172.30.0.5}")
	b.wantProblems()
	// Also when it went while the store was closed.
	b.restart()
	if result := b.apply("c.yaml", ""); result.Changes != 1 || b.has("d") || !b.has("c") {
		t.Errorf("after a restart: %+v", result)
	}
}

func TestOneObjectInTwoFiles(t *testing.T) {
	b := newBox(t)
	b.write("b.yaml", "web {type: NodePort}")
	b.write("c.yaml", "web {}")
	b.sync()
	conflict := []string{
		"b.yaml:2:1: warning: Service default/web: it is in c.yaml too, where it is ignored",
		"c.yaml:2:1: Service default/web: it comes from b.yaml, which keeps it; this document is ignored",
	}
	b.wantProblems(conflict...)
	// A newcomer with a lower path does not take it, nor does it after a restart.
	ip, uid := b.ip("web"), b.service("web").Metadata.UID
	b.apply("a.yaml", "web {type: ExternalName, externalName: x.example}")
	for range 2 {
		if b.ip("web") != ip || b.service("web").Spec.Type != "NodePort" || len(b.s.Problems()) != 4 {
			t.Errorf("%+v\n%s", b.service("web").Spec, b.problems())
		}
		b.restart()
		b.sync()
	}
	b.apply("a.yaml", "")
	b.wantProblems(conflict...)
	// When the holder lets go, the other takes over; the object stays the same one.
	b.apply("b.yaml", "")
	if b.ip("web") != ip || b.service("web").Metadata.UID != uid || b.service("web").Spec.Type != "ClusterIP" {
		t.Errorf("%+v", b.service("web"))
	}
	b.wantProblems()
	if path, line := b.s.Location(object.Ref{Kind: "Service", Namespace: "default", Name: "web"}); path != "c.yaml" || line != 2 {
		t.Errorf("location %s:%d", path, line)
	}
}

// An object that moves to another file with a mistake in it stays what it was.
func TestMoveWithAMistakeKeepsTheObject(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: NodePort}")
	before := b.service("web")
	b.write("a.yaml", "")
	b.apply("b.yaml", "web {type: NodePort, bogus: 1}")
	b.restart()
	b.sync()
	if after := b.service("web"); after.Metadata.ResourceVersion != before.Metadata.ResourceVersion {
		t.Errorf("it has changed: %+v", after)
	}
	b.apply("b.yaml", "web {type: NodePort}")
	if path, _ := b.s.Location(ref("web")); path != "b.yaml" || b.ip("web") != before.Spec.ClusterIP {
		t.Errorf("it belongs to %s, cluster IP %s", path, b.ip("web"))
	}
	b.wantProblems()
}

func TestOneObjectTwiceInOneFile(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: NodePort}\nweb {}")
	b.wantProblems("a.yaml:7:1: Service default/web: the same object is in line 2 of this file")
	if b.service("web").Spec.Type != "NodePort" {
		t.Error("the second document was used")
	}
}

func TestConflictWithUnreadableHolder(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {type: NodePort}")
	b.write("a.yaml", "{")
	b.apply("b.yaml", "web {}")
	b.wantProblems("a.yaml", "b.yaml:2:1: Service default/web: it comes from a.yaml, which keeps it")
	if b.service("web").Spec.Type != "NodePort" {
		t.Error("the newcomer took it")
	}
	b.apply("a.yaml", "")
	b.wantProblems()
	if b.service("web").Spec.Type != "ClusterIP" {
		t.Error("nobody took it")
	}
}

func TestExternalIPPolicy(t *testing.T) {
	forbidden := netip.MustParseAddr("192.0.2.1")
	refuse := false
	b := newBox(t)
	b.s.SetHost(hostOf{externalIP: func(_ *object.Service, addr netip.Addr) error {
		if refuse && addr == forbidden {
			return fmt.Errorf("it is an address of this box")
		}
		return nil
	}})
	b.apply("a.yaml", "a {externalIPs: [192.0.2.1]}")
	refuse = true
	want := `spec.externalIPs[1]: Invalid value: "192.0.2.1": it is an address of this box`
	if got := b.ask(write(refine(document(t, "b {externalIPs: [203.0.113.1, 192.0.2.1]}")))); got.Err == nil || got.Err.Error() != want {
		t.Errorf("%v, want %s", got.Err, want)
	}
	// Who has it already may be edited, and what a file says is accepted: it is told of elsewhere.
	b.must(changed(b, ref("a"), func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"a": "b"} }))
	b.apply("c.yaml", "c {externalIPs: [192.0.2.1], ports: [{port: 81}]}")
	b.wantProblems()
}

func TestStatusInAFileIsIgnored(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", yamlOf("web {type: LoadBalancer}")+"status: {loadBalancer: {ingress: [{ip: 192.0.2.127}]}}\n")
	b.wantProblems("a.yaml:6:1: warning: Service default/web: status: the status is written by the appliance")
	if strings.Contains(b.ingress("web"), "192.0.2.127") {
		t.Error("the status of the file was taken")
	}
}

// The status of a Gateway in a file is the server's: the default first, then what was written to it, whatever the file has.
func Test941_status_of_Gateways_in_files(t *testing.T) {
	b := newBox(t)
	file := func(more string) {
		b.apply("a.yaml", "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge}, "+
			"spec: {gatewayClassName: svcctl, listeners: [{name: a, port: 1, protocol: TCP}]}"+more+"}\n")
	}
	edge := object.Ref{Kind: object.KindGateway, Namespace: "default", Name: "edge"}
	has := func(when, reason string) {
		t.Helper()
		stored, _ := b.s.Get(edge)
		if c := stored.(*object.Gateway).Status.Conditions; len(c) == 0 || c[0].Reason != reason {
			t.Errorf("%s: %+v", when, c)
		}
	}
	file("")
	has("at first", "Pending")
	stored, _ := b.s.Get(edge)
	next := object.DeepCopy(stored).(*object.Gateway)
	next.Status.Conditions[0].Reason = "Served"
	b.must(Write{Ref: edge, Object: next, Status: true})
	file(", status: {conditions: [{type: Accepted, status: 'True', reason: Mine, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}]}")
	has("after the file has changed", "Served")
	b.wantProblems("a.yaml:1:165: warning: Gateway default/edge: status: the status is written by the appliance")
}

func TestLegacyIPs(t *testing.T) {
	for _, accept := range []bool{false, true} {
		b := newBox(t, func(c *Config) { c.LegacyIPs = accept })
		b.apply("a.yaml", `web {clusterIP: "172.30.0.041"}`)
		if b.has("web") != accept || accept && b.ip("web") != "172.30.0.41" {
			t.Errorf("accept %t: %s", accept, b.problems())
		}
	}
}

func TestConfigProblemsAllAtOnce(t *testing.T) {
	_, err := Open(faulty.NewMemory(), Config{
		ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/48")},
		NodePorts:       PortRange{9, 8},
		Pools:           []alloc.Pool{{}},
	})
	for _, want := range []string{"two ranges of cluster IPs in one family", "fd00::/48 is too large", "9-8 is empty", "pool"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if _, err := Open(faulty.NewMemory(), Config{}); err == nil {
		t.Error("no range of cluster IPs was accepted")
	}
}

func TestServicesAreSortedAndImmutable(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "b/x {}\na/y {}\na/x {}\nc {}")
	keys := b.s.Services()
	for _, key := range keys {
		if svc, _, _ := b.s.Service(key); index.ServiceKey(svc) != key {
			t.Errorf("%s holds %s", key, index.ServiceKey(svc))
		}
	}
	if want := []string{"a/x", "a/y", "b/x", "default/c"}; !slices.Equal(keys, want) {
		t.Errorf("got %v", keys)
	}
	before := b.service("c")
	copied := object.DeepCopy(before)
	b.apply("a.yaml", "c {type: NodePort}")
	if !reflect.DeepEqual(object.Object(before), copied) {
		t.Error("a published object has changed")
	}
}

// What a reader has stays as it is while slices come and go.
func TestSlicesOfAReaderStay(t *testing.T) {
	b := newBox(t)
	b.apply("web.yaml", "web {}")
	slice := func(name string) string {
		return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " + name + ", labels: {kubernetes.io/service-name: web}}\n" +
			"addressType: IPv4\nendpoints: []\nports: []\n"
	}
	names := func(list []*object.EndpointSlice) string {
		var all []string
		for _, s := range list {
			all = append(all, s.Metadata.Name)
		}
		return strings.Join(all, " ")
	}
	type view struct {
		slices []*object.EndpointSlice
		names  string
	}
	var views []view
	look := func() {
		_, list, _ := b.s.Service("default/web")
		views = append(views, view{list, names(list)})
	}
	for i := range 9 {
		b.apply(fmt.Sprint(i, ".yaml"), slice(fmt.Sprint("s", 9-i)))
		look()
	}
	for i := range 9 {
		b.apply(fmt.Sprint(i, ".yaml"), "")
		look()
	}
	for i, v := range views {
		if got := names(v.slices); got != v.names {
			t.Errorf("view %d is %q, was %q", i, got, v.names)
		}
	}
	if views[8].names != "s1 s2 s3 s4 s5 s6 s7 s8 s9" || views[17].names != "" {
		t.Errorf("got %q and %q", views[8].names, views[17].names)
	}
}
