package selector

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

const labelKeyText = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character " +
	"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"

func TestLabels(t *testing.T) {
	web, db, none := map[string]string{"app": "web", "tier": "1"}, map[string]string{"app": "db", "old": ""}, map[string]string(nil)
	for _, test := range []struct {
		selector, text string
		want           [3]bool // of web, db, none
	}{
		{"", "", [3]bool{true, true, true}},
		{"app=web", "app=web", [3]bool{true, false, false}},
		{"app==web", "app==web", [3]bool{true, false, false}},
		{" app = web ", "app=web", [3]bool{true, false, false}},
		{"app!=web", "app!=web", [3]bool{false, true, true}},
		{"app", "app", [3]bool{true, true, false}},
		{"!app", "!app", [3]bool{false, false, true}},
		{"app in (web, db),!old", "app in (db,web),!old", [3]bool{true, false, false}},
		{"app notin (web)", "app notin (web)", [3]bool{false, true, true}},
		{"old=", "old=", [3]bool{false, true, false}},
		{"old in ()", "old in ()", [3]bool{false, true, false}},
		{"old notin ()", "old notin ()", [3]bool{true, false, true}},
		{"old in (,a)", "old in (,a)", [3]bool{false, true, false}},
		{"tier>0,tier<2", "tier>0,tier<2", [3]bool{true, false, false}},
		{"tier>1", "tier>1", [3]bool{false, false, false}},
		{"app>1", "app>1", [3]bool{false, false, false}},
		{"in in (in)", "in in (in)", [3]bool{false, false, false}},
		{"tier,app=web", "app=web,tier", [3]bool{true, false, false}},
		{"!service.kubernetes.io/service-proxy-name", "!service.kubernetes.io/service-proxy-name", [3]bool{true, true, true}},
	} {
		l, err := ParseLabels(test.selector)
		if err != nil {
			t.Errorf("%s: %v", test.selector, err)
			continue
		}
		if got := [3]bool{l.Matches(web), l.Matches(db), l.Matches(none)}; got != test.want {
			t.Errorf("%s selects %v, want %v", test.selector, got, test.want)
		}
		if l.String() != test.text || l.Empty() != (test.text == "") {
			t.Errorf("%s is %s", test.selector, l)
		}
	}
}

func TestLabelRefusals(t *testing.T) {
	for selector, want := range map[string]string{
		",":             "found ',', expected: !, identifier, or 'end of string'",
		"a,":            "found '', expected: identifier after ','",
		"a,,b":          "found ',', expected: identifier after ','",
		"a b":           "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
		"!a=b":          "found '=', expected: ',' or 'end of string'",
		"!":             "unable to parse requirement: found '', expected: identifier",
		"a=(":           "unable to parse requirement: found '(', expected: identifier",
		"a in b":        "unable to parse requirement: found 'b' expected: '('",
		"a in (":        "unable to parse requirement: found '', expected: ',', ')' or identifier",
		"a in (b":       "unable to parse requirement: found '', expected: ',' or ')'",
		"a in (b=c)":    "unable to parse requirement: found '=', expected: ',' or ')'",
		"a in (b,!)":    "unable to parse requirement: found '!', expected: ',', or identifier",
		"a>b":           "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
		"-a":            `unable to parse requirement: <nil>: Invalid value: "-a": ` + labelKeyText,
		"a=-b":          `unable to parse requirement: values[0][a]: Invalid value: "-b": a valid label must be an empty string or consist of`,
		"a in (-b,c,-)": `unable to parse requirement: [values[0][a]: Invalid value: "-": a valid label must be`,
	} {
		if _, err := ParseLabels(selector); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", selector, err, want)
		}
	}
}

func kindOf(t testing.TB, apiVersion, name string) kind.Kind {
	t.Helper()
	k, ok := kind.ByName(apiVersion, name)
	if !ok {
		t.Fatalf("no kind %s", name)
	}
	return k
}

func TestFields(t *testing.T) {
	meta := object.ObjectMeta{Name: "web", Namespace: "ns"}
	event := &object.Event{
		Metadata: meta, InvolvedObject: object.ObjectReference{Kind: "Service", Name: "db", UID: "u", Namespace: "ns", APIVersion: "v1", ResourceVersion: "5", FieldPath: "spec"},
		Reason: "Conflict", Type: "Warning", ReportingComponent: "svcctl",
	}
	for _, test := range []struct {
		apiVersion, kind string
		o                object.Object
		selector         string
		want             bool
	}{
		{"v1", "Service", &object.Service{Metadata: meta, Spec: object.ServiceSpec{Type: "ClusterIP", ClusterIP: "None"}}, "", true},
		{"v1", "Service", &object.Service{Metadata: meta, Spec: object.ServiceSpec{Type: "ClusterIP", ClusterIP: "None"}}, "metadata.name=web,metadata.namespace==ns,spec.type=ClusterIP", true},
		{"v1", "Service", &object.Service{Metadata: meta, Spec: object.ServiceSpec{ClusterIP: "None"}}, "spec.clusterIP!=None", false},
		{"v1", "Service", &object.Service{Metadata: meta, Spec: object.ServiceSpec{ClusterIP: "10.96.0.1"}}, "spec.clusterIP!=None", true},
		{"v1", "Service", &object.Service{Metadata: meta}, "metadata.name=web,metadata.name!=web", false},
		{"v1", "Pod", &object.Pod{Status: object.PodStatus{Phase: "Running", PodIP: "10.0.0.1"}}, "status.phase!=Failed,status.phase!=Succeeded,status.podIP=10.0.0.1,spec.hostNetwork=false", true},
		{"v1", "Pod", &object.Pod{Spec: object.PodSpec{NodeName: "a"}}, "spec.nodeName=a", true},
		{"v1", "Node", &object.Node{Metadata: meta, Spec: object.NodeSpec{Unschedulable: true}}, "metadata.name=web,spec.unschedulable=true", true},
		{"v1", "Namespace", &object.Namespace{Status: object.NamespaceStatus{Phase: "Active"}}, "status.phase=Active", true},
		{"v1", "Secret", &object.Secret{Type: "helm.sh/release.v1"}, "type=helm.sh/release.v1", true},
		{"v1", "Event", event, "involvedObject.kind=Service,involvedObject.name=db,involvedObject.uid=u,involvedObject.namespace=ns", true},
		{"v1", "Event", event, "involvedObject.apiVersion=v1,involvedObject.resourceVersion=5,involvedObject.fieldPath=spec,source=svcctl,type=Warning", true},
		{"v1", "Event", event, "reason=Other", false},
		{"events.k8s.io/v1", "Event", event, "regarding.kind=Service,regarding.name=db,reportingController=svcctl,reason=Conflict", true},
		{"events.k8s.io/v1", "Event", event.View(), "regarding.name=other", false},
		{"discovery.k8s.io/v1", "EndpointSlice", &object.EndpointSlice{Metadata: meta}, "metadata.namespace!=ns", false},
		{"v1", "Service", &object.Service{Spec: object.ServiceSpec{ClusterIPs: []string{"10.96.0.1", "FD00::0:1"}}}, "svcctl.io/address=fd00:0::1", true},
		{"v1", "Service", &object.Service{Status: object.ServiceStatus{LoadBalancer: object.LoadBalancerStatus{Ingress: []object.LoadBalancerIngress{{IP: "192.0.2.1"}}}}}, "svcctl.io/address=192.0.2.1", true},
		{"v1", "Service", &object.Service{Spec: object.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}}}, "svcctl.io/address!=10.96.0.1", false},
		{"v1", "Service", &object.Service{Spec: object.ServiceSpec{Ports: []object.ServicePort{{NodePort: 30080}}}}, "svcctl.io/nodePort=30080", true},
		{"discovery.k8s.io/v1", "EndpointSlice", &object.EndpointSlice{Endpoints: []object.Endpoint{{Addresses: []string{"10.1.0.1"}}, {Addresses: []string{"10.1.0.2"}}}}, "svcctl.io/address=10.1.0.2", true},
		{"v1", "ConfigMap", &object.ConfigMap{Metadata: object.ObjectMeta{Name: `a,=\`}}, `metadata.name=a\,\=\\`, true},
	} {
		f, err := ParseFields(kindOf(t, test.apiVersion, test.kind), test.selector)
		if err != nil {
			t.Errorf("%s %s: %v", test.kind, test.selector, err)
			continue
		}
		if got := f.Matches(test.o); got != test.want {
			t.Errorf("%s %s is %t", test.kind, test.selector, got)
		}
	}
}

func TestExactFields(t *testing.T) {
	f, err := ParseFields(kindOf(t, "v1", "Service"), "spec.type!=NodePort,metadata.name=web")
	if err != nil {
		t.Fatal(err)
	}
	if name, ok := f.Exact("metadata.name"); !ok || name != "web" {
		t.Errorf("%q %t", name, ok)
	}
	if kind, ok := f.Exact("spec.type"); ok {
		t.Errorf("%q", kind)
	}
}

func TestFieldRefusals(t *testing.T) {
	for _, test := range []struct{ apiVersion, kind, selector, want string }{
		{"v1", "Service", "spec.bogus=x", "field label not supported: spec.bogus"},
		{"v1", "Event", "regarding.name=x", "field label not supported: regarding.name"},
		{"events.k8s.io/v1", "Event", "involvedObject.name=x", "field label not supported: involvedObject.name"},
		{"v1", "Node", "metadata.namespace=x", "field label not supported: metadata.namespace"},
		{"discovery.k8s.io/v1", "EndpointSlice", "addressType=IPv4", `"addressType" is not a known field selector: only "metadata.name", "metadata.namespace"`},
		{"v1", "Service", "metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"},
		{"v1", "Service", `metadata.name=a\b`, `invalid field selector: invalid escape sequence: \b`},
		{"v1", "Service", `metadata.name=a\`, `invalid field selector: invalid escape sequence: \`},
		{"v1", "Service", "metadata.name=a=b", "invalid field selector: unescaped character in value: 61"},
	} {
		if _, err := ParseFields(kindOf(t, test.apiVersion, test.kind), test.selector); err == nil || err.Error() != test.want {
			t.Errorf("%s %s: %v\nwant %s", test.kind, test.selector, err, test.want)
		}
	}
}

// Every field that can be selected by is read.
func TestSelectableFieldsAreRead(t *testing.T) {
	filled := map[string]object.Object{
		"v1 Service":   &object.Service{Spec: object.ServiceSpec{ClusterIP: "x", ExternalIPs: []string{"x"}, Type: "x", HealthCheckNodePort: 1}},
		"v1 Pod":       &object.Pod{Spec: object.PodSpec{NodeName: "x", HostNetwork: true}, Status: object.PodStatus{Phase: "x", PodIP: "x"}},
		"v1 Node":      &object.Node{Spec: object.NodeSpec{Unschedulable: true}},
		"v1 Namespace": &object.Namespace{Status: object.NamespaceStatus{Phase: "x"}},
		"v1 Secret":    &object.Secret{Type: "x"},
	}
	event := &object.Event{
		InvolvedObject: object.ObjectReference{Kind: "x", Namespace: "x", Name: "x", UID: "x", APIVersion: "x", ResourceVersion: "x", FieldPath: "x"},
		Reason:         "x", Type: "x", ReportingComponent: "x", Source: object.EventSource{Component: "x"},
	}
	filled["v1 Event"], filled["events.k8s.io/v1 Event"] = event, event.View()
	for name, fields := range selectable {
		apiVersion, kindName, _ := strings.Cut(name, " ")
		for _, field := range fields {
			f, err := ParseFields(kindOf(t, apiVersion, kindName), field+"=x")
			if err != nil {
				t.Errorf("%s %s: %v", name, field, err)
				continue
			}
			yes, _ := ParseFields(kindOf(t, apiVersion, kindName), field+"=true")
			one, _ := ParseFields(kindOf(t, apiVersion, kindName), field+"=1")
			if !f.Matches(filled[name]) && !yes.Matches(filled[name]) && !one.Matches(filled[name]) {
				t.Errorf("%s: nothing is read for %s", name, field)
			}
			if empty := kindOf(t, apiVersion, kindName).New(); f.Matches(empty) || yes.Matches(empty) {
				t.Errorf("%s: %s is read from nothing", name, field)
			}
		}
	}
}

// What a selector prints as is read as the same selector.
func FuzzSelectors(f *testing.F) {
	for _, s := range []string{"a=b", "a in (b,,c),!d", "a notin (),x>5", "metadata.name=a,metadata.namespace!=b", `metadata.name=\,\=\\`, "=,!=", "in in (notin)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := ParseLabels(s); err == nil {
			again, err := ParseLabels(l.String())
			if err != nil || again.String() != l.String() {
				t.Fatalf("%q is %q and then %q, %v", s, l, again, err)
			}
			l.Matches(map[string]string{"a": "b"})
		}
		k := kindOf(t, "v1", "Service")
		if fields, err := ParseFields(k, s); err == nil {
			again, err := ParseFields(k, fields.String())
			if err != nil || again.String() != fields.String() {
				t.Fatalf("%q is %q and then %q, %v", s, fields, again, err)
			}
			fields.Matches(&object.Service{})
		}
	})
}
