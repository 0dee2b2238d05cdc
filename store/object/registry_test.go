package object

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// apiKinds are an empty object of every kind that only the API knows.
func apiKinds(t *testing.T) []Object {
	t.Helper()
	var all []Object
	for _, meta := range []TypeMeta{
		{KindNamespace, APIVersionCore}, {KindNode, APIVersionCore}, {KindEvent, APIVersionCore}, {KindEvent, APIVersionEvents},
		{KindConfigMap, APIVersionCore}, {KindSecret, APIVersionCore}, {KindServiceCIDR, APIVersionNetworking},
		{KindIPAddress, APIVersionNetworking}, {KindLease, "coordination.k8s.io/v1"}, {KindSelfSubjectAccessReview, "authorization.k8s.io/v1"},
		{KindSelfSubjectRulesReview, "authorization.k8s.io/v1"}, {KindSelfSubjectReview, "authentication.k8s.io/v1"},
	} {
		o := StrategyFor(meta.APIVersion, meta.Kind).New()
		if *o.GetTypeMeta() != meta {
			t.Fatalf("the new object of %v has %v", meta, *o.GetTypeMeta())
		}
		all = append(all, o)
	}
	return all
}

func TestCopiesOfAPIKinds(t *testing.T) {
	for _, o := range apiKinds(t) {
		if c := DeepCopy(o); !reflect.DeepEqual(o, c) {
			t.Errorf("the copy of an empty %T differs: %v", o, c)
		}
		n := 0
		fill(reflect.ValueOf(o).Elem(), &n)
		c := DeepCopy(o)
		if !reflect.DeepEqual(o, c) {
			t.Errorf("the copy of %T differs:\n%#v\n%#v", o, o, c)
		}
		if places := shared("", reflect.ValueOf(o), reflect.ValueOf(c)); len(places) > 0 {
			t.Errorf("%T and its copy share %s", o, strings.Join(places, " "))
		}
	}
	secret := &Secret{Data: map[string][]byte{"a": {1}}}
	DeepCopy(secret).Data["a"][0] = 2
	if secret.Data["a"][0] != 1 {
		t.Error("a Secret and its copy share a value")
	}
}

func TestDefaultsOfAPIKinds(t *testing.T) {
	for _, test := range []struct{ before, after string }{
		{`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a"}}`,
			`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a","labels":{"kubernetes.io/metadata.name":"a"}},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}}`},
		{`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"data":{"a":"eA==","b":"eQ=="},"stringData":{"a":"z"}}`,
			`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"data":{"a":"eg==","b":"eQ=="},"type":"Opaque"}`},
		{`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"stringData":{"a":"z"},"type":"t"}`,
			`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"data":{"a":"eg=="},"type":"t"}`},
		{`{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}`, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"a"}}`},
		{`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"}}`,
			`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a","namespace":"default"}}`},
	} {
		o := decodeDocument(t, test.before)
		Default(o)
		Default(o)
		if want := decodeDocument(t, test.after); !reflect.DeepEqual(o, want) {
			t.Errorf("got  %s\nwant %s", toJSON(t, o), test.after)
		}
	}
}

func TestValidateAPIKinds(t *testing.T) {
	for _, test := range []struct {
		document string
		want     []string
	}{
		{`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a"}}`, nil},
		{`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a.b","namespace":"c"}}`, []string{
			`metadata.name: Invalid value: "a.b": must not contain dots`, `metadata.namespace: Forbidden: not allowed on this type`}},
		{`{"kind":"Node","apiVersion":"v1","metadata":{"name":"gw1.example.com"}}`, nil},
		{`{"kind":"ServiceCIDR","apiVersion":"networking.k8s.io/v1","metadata":{"name":"a"},"spec":{"cidrs":["10.96.0.0/12","fd00::/112"]}}`, nil},
		{`{"kind":"ServiceCIDR","apiVersion":"networking.k8s.io/v1","metadata":{"name":"a"}}`, []string{`spec.cidrs: Required value: at least one CIDR required`}},
		{`{"kind":"ServiceCIDR","apiVersion":"networking.k8s.io/v1","metadata":{"name":"a"},"spec":{"cidrs":["10.96.0.1/12","x"]}}`, []string{
			`spec.cidrs[0]: Invalid value: "10.96.0.1/12": must be in canonical form (10.96.0.0/12)`,
			`spec.cidrs[1]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)`}},
		{`{"kind":"ServiceCIDR","apiVersion":"networking.k8s.io/v1","metadata":{"name":"a"},"spec":{"cidrs":["10.0.0.0/8","11.0.0.0/8"]}}`, []string{
			`spec.cidrs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64`}},
		{`{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"10.96.0.1"},"spec":{"parentRef":{"resource":"services","namespace":"a","name":"b"}}}`, nil},
		{`{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"fd00:0::1"},"spec":{"parentRef":{}}}`, []string{
			`metadata.name: Invalid value: "fd00:0::1": must be a valid IP address in canonical form`,
			`spec.parentRef.resource: Required value`, `spec.parentRef.name: Required value`}},
		{`{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"web"}}`, []string{
			`metadata.name: Invalid value: "web": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`, `spec.parentRef: Required value`}},
		{`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"},"spec":{"leaseDurationSeconds":0,"leaseTransitions":-1}}`, []string{
			`spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0`, `spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0`}},
		{`{"kind":"Event","apiVersion":"v1","metadata":{"name":"a","namespace":"n"},"involvedObject":{"kind":"Service","namespace":"n"}}`, nil},
		{`{"kind":"Event","apiVersion":"v1","metadata":{"name":"a","namespace":"n"},"involvedObject":{"kind":"Service","namespace":"m"}}`, []string{
			`involvedObject.namespace: Invalid value: "m": does not match event.namespace "n"`}},
		{`{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"a"},"regarding":{"kind":"Node","name":"gw1"}}`, nil},
		{`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k.e_y-1":"v"},"binaryData":{"b":"eA=="}}`, nil},
		{`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"v","..":""},"binaryData":{"k":"eA=="}}`, []string{
			`data[..]: Invalid value: "..": must not be '..'`, `data[k]: Invalid value: "k": duplicate of key present in binaryData`}},
		{`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"data":{"a b":""}}`, []string{
			`data[a b]: Invalid value: "a b": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`}},
		{`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"type":"kubernetes.io/tls","data":{"tls.crt":"","tls.key":""}}`, nil},
		{`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"type":"kubernetes.io/tls","stringData":{"tls.crt":"x"}}`, []string{`data[tls.key]: Required value`}},
		{`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"nonResourceAttributes":{"path":"/"}}}`, nil},
		{`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1"}`, []string{
			`spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified`}},
		{`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`, nil},
	} {
		o := decodeDocument(t, test.document)
		Default(o)
		t.Run(test.document, func(t *testing.T) { wantTexts(t, Validate(o, Options{}), test.want...) })
	}
}

func TestValidateUpdateOfAPIKinds(t *testing.T) {
	for _, test := range []struct {
		before, after string
		want          []string
	}{
		{`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"type":"x"}`, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"type":"y"}`,
			[]string{`type: Invalid value: "y": field is immutable`}},
		{`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"immutable":true,"data":{"a":"b"}}`, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"a":"c"}}`,
			[]string{"immutable: Forbidden: field is immutable when `immutable` is set", "data: Forbidden: field is immutable when `immutable` is set"}},
		{`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"immutable":true,"data":{"a":"eA=="}}`, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a","labels":{"a":"b"}},"immutable":true,"data":{"a":"eA=="}}`, nil},
	} {
		before, after := decodeDocument(t, test.before), decodeDocument(t, test.after)
		Default(before)
		Default(after)
		wantTexts(t, ValidateUpdate(after, before, Options{}), test.want...)
	}
}

// An event is the same in both its forms.
func TestEventViews(t *testing.T) {
	e := &Event{}
	n := 0
	fill(reflect.ValueOf(e).Elem(), &n)
	e.TypeMeta = TypeMeta{KindEvent, APIVersionCore}
	view := e.View()
	if view.APIVersion != APIVersionEvents || view.Note != e.Message || view.Regarding != e.InvolvedObject || view.ReportingController != e.ReportingComponent {
		t.Errorf("the view is %+v", view)
	}
	if back := view.Event(); !reflect.DeepEqual(back, e) {
		t.Errorf("there and back:\n%+v\n%+v", back, e)
	}
	if places := shared("", reflect.ValueOf(e), reflect.ValueOf(view.Event())); len(places) > 0 {
		t.Errorf("they share %v", places)
	}
}

func TestMicroTime(t *testing.T) {
	at := MicroTime{time.Date(2026, 1, 2, 3, 4, 5, 6789, time.FixedZone("", 3600))}
	b, err := json.Marshal(at)
	if err != nil || string(b) != `"2026-01-02T02:04:05.000006Z"` {
		t.Errorf("%s %v", b, err)
	}
	var back MicroTime
	if err := json.Unmarshal(b, &back); err != nil || !back.Equal(at.Truncate(time.Microsecond)) {
		t.Errorf("%v %v", back, err)
	}
	if b, err := json.Marshal(MicroTime{}); err != nil || string(b) != "null" {
		t.Errorf("%s %v", b, err)
	}
	if err := json.Unmarshal([]byte("null"), &back); err != nil || !back.IsZero() {
		t.Errorf("%v %v", back, err)
	}
	if err := json.Unmarshal([]byte(`"yesterday"`), &back); err == nil {
		t.Error("yesterday is a time")
	}
}

func TestDoc(t *testing.T) {
	if text := Doc("ServicePort.protocol"); text != "TCP (the default), UDP or SCTP." {
		t.Errorf("%q", text)
	}
	if text := Doc("ServicePort.bogus"); text != "" {
		t.Errorf("%q", text)
	}
	names := documented()
	if !slices.IsSorted(names) || len(names) < 300 {
		t.Errorf("%d names", len(names))
	}
	for _, name := range names {
		if text := Doc(name); !strings.HasSuffix(text, ".") || strings.Contains(text, "  ") {
			t.Errorf("%s: %q is no sentence", name, text)
		}
	}
}

func TestRefString(t *testing.T) {
	for ref, want := range map[Ref]string{
		{Kind: "Service", Namespace: "default", Name: "web"}: "Service default/web",
		{Kind: "Node", Name: "gw1"}:                          "Node gw1",
	} {
		if got := ref.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The generation counts what is asked for: neither metadata nor what the server reports.
func TestSameSpec(t *testing.T) {
	for i := range strategies {
		s := &strategies[i]
		o := s.New()
		n := 0
		fill(reflect.ValueOf(o).Elem(), &n)
		other := DeepCopy(o)
		*other.GetMeta() = ObjectMeta{Name: "other"}
		if s.HasStatus {
			reflect.ValueOf(other).Elem().FieldByName("Status").SetZero()
		}
		if !s.SameSpec(o, other) {
			t.Errorf("%s: metadata or status count", s.Name)
		}
		if spec := reflect.ValueOf(other).Elem().FieldByName("Spec"); spec.IsValid() && spec.NumField() > 0 {
			if spec.SetZero(); s.SameSpec(o, other) {
				t.Errorf("%s: the spec does not count", s.Name)
			}
		}
	}
}
