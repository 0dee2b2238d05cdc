package object

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The tests build objects by changing a good one.

func goodService(changes ...func(*Service)) *Service {
	s := &Service{
		TypeMeta: TypeMeta{Kind: KindService, APIVersion: APIVersionCore},
		Metadata: ObjectMeta{Name: "web", Namespace: "shop"},
		Spec: ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports:    []ServicePort{{Name: "http", Port: 80}},
		},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func goodEndpoints(changes ...func(*Endpoints)) *Endpoints {
	e := &Endpoints{
		TypeMeta: TypeMeta{Kind: KindEndpoints, APIVersion: APIVersionCore},
		Metadata: ObjectMeta{Name: "web", Namespace: "shop"},
		Subsets: []EndpointSubset{{
			Addresses: []EndpointAddress{{IP: "10.180.0.1"}},
			Ports:     []EndpointPort{{Port: new(int32(8080))}},
		}},
	}
	for _, change := range changes {
		change(e)
	}
	return e
}

func goodSlice(changes ...func(*EndpointSlice)) *EndpointSlice {
	e := &EndpointSlice{
		TypeMeta:    TypeMeta{Kind: KindEndpointSlice, APIVersion: APIVersionDiscovery},
		Metadata:    ObjectMeta{Name: "web-1", Namespace: "shop", Labels: map[string]string{LabelServiceName: "web"}},
		AddressType: IPv4,
		Endpoints:   []Endpoint{{Addresses: []string{"10.180.0.1"}}},
		Ports:       []EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for _, change := range changes {
		change(e)
	}
	return e
}

// ofType is a Service of a type with what the type needs.
func ofType(serviceType string) func(*Service) {
	return func(s *Service) {
		s.Spec.Type = serviceType
		if serviceType == TypeExternalName {
			s.Spec.ExternalName = "db.example.com"
		}
	}
}

func headless(s *Service) { s.Spec.ClusterIP = ClusterIPNone }

func selectorless(s *Service) { s.Spec.Selector = nil }

func texts(errs Errors) []string {
	out := []string{}
	for _, e := range errs {
		out = append(out, e.Error())
	}
	return out
}

// wantTexts compares errors, in order, with their whole texts.
func wantTexts(t *testing.T, errs Errors, want ...string) {
	t.Helper()
	if got := texts(errs); !slices.Equal(got, want) {
		t.Errorf("errors:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func decode(t *testing.T, o Object, document string) Object {
	t.Helper()
	d := json.NewDecoder(bytes.NewBufferString(document))
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return o
}

func TestNew(t *testing.T) {
	for _, tc := range []struct {
		apiVersion, kind string
		want             Object
	}{
		{"v1", "Service", &Service{}},
		{"v1", "Endpoints", &Endpoints{}},
		{"v1", "Pod", &Pod{}},
		{"discovery.k8s.io/v1", "EndpointSlice", &EndpointSlice{}},
		{"discovery.k8s.io/v1beta1", "EndpointSlice", nil},
		{"discovery.k8s.io/v1", "Service", nil},
		{"v1", "EndpointSlice", nil},
		{"v1", "List", nil},
		{"v1", "service", nil},
		{"", "", nil},
	} {
		s := StrategyFor(tc.apiVersion, tc.kind)
		if (s != nil) != (tc.want != nil) {
			t.Errorf("StrategyFor(%q, %q): %v, want %v", tc.apiVersion, tc.kind, s, tc.want)
		}
		if s == nil {
			continue
		}
		o := s.New()
		if reflect.TypeOf(o) != reflect.TypeOf(tc.want) {
			t.Errorf("New(%q, %q) is a %T, want %T", tc.apiVersion, tc.kind, o, tc.want)
		}
		if *o.GetTypeMeta() != (TypeMeta{Kind: tc.kind, APIVersion: tc.apiVersion}) {
			t.Errorf("New(%q, %q) has TypeMeta %v", tc.apiVersion, tc.kind, *o.GetTypeMeta())
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, tc := range []struct {
		err  Errors
		want string
	}{
		{invalid(root("spec.ports[0].port"), int32(0), "must be between 1 and 65535, inclusive"), `spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive`},
		{invalid(root("a"), "1\"0", "bad"), `a: Invalid value: "1\"0": bad`},
		{invalid(root("a"), []string{"x", "y"}, "bad"), `a: Invalid value: ["x","y"]: bad`},
		{invalid(root("a"), (*string)(nil), "bad"), `a: Invalid value: null: bad`},
		{invalid(root("a"), new("x"), "bad"), `a: Invalid value: "x": bad`},
		{invalid(root("a"), func() {}, "bad"), ``},
		{required(root("a"), ""), `a: Required value`},
		{required(root("a"), "because"), `a: Required value: because`},
		{duplicate(root("a"), int32(30007)), `a: Duplicate value: 30007`},
		{duplicate(root("a"), protocolPort{Protocol: "TCP", Port: 80}), `a: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}`},
		{notSupported(root("a"), "x", []string{"b", "c"}), `a: Unsupported value: "x": supported values: "b", "c"`},
		{forbidden(root("a"), "may not"), `a: Forbidden: may not`},
		{tooMany(root("a"), 9, 8), `a: Too many: 9: must have at most 8 items`},
		{tooLong(root("a"), 5), `a: Too long: may not be more than 5 bytes`},
		{append(required(root("a"), ""), append(required(root("b"), ""), required(root("a"), "")...)...), `[a: Required value, b: Required value]`},
	} {
		got := tc.err.Error()
		if tc.want == "" { // a value that JSON cannot say must still give a text
			if !strings.HasPrefix(got, "a: Invalid value: (func())") {
				t.Errorf("got %s", got)
			}
			continue
		}
		if got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

func TestErrorTypesAreStatusReasons(t *testing.T) {
	for errorType, want := range map[ErrorType]string{
		FieldValueInvalid: "FieldValueInvalid", FieldValueRequired: "FieldValueRequired",
		FieldValueDuplicate: "FieldValueDuplicate", FieldValueNotSupported: "FieldValueNotSupported",
		FieldValueForbidden: "FieldValueForbidden", FieldValueTooLong: "FieldValueTooLong",
		FieldValueTooMany: "FieldValueTooMany",
	} {
		if string(errorType) != want {
			t.Errorf("%s, want %s", errorType, want)
		}
		if titles[errorType] == "" {
			t.Errorf("%s has no text", errorType)
		}
	}
}

// fill sets everything reachable to something that is not zero.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 4))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), n)
			}
		}
	case reflect.String:
		v.SetString("s" + strings.Repeat("x", *n%7))
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Bool:
		v.SetBool(true)
	}
}

// shared names the places where a and b share memory.
func shared(at string, a, b reflect.Value) []string {
	var out []string
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return nil
		}
		if a.Kind() == reflect.Interface && a.Elem().Type() != b.Elem().Type() {
			return nil
		}
		if a.Kind() == reflect.Pointer && a.Pointer() == b.Pointer() {
			out = append(out, at)
		}
		return append(out, shared(at, a.Elem(), b.Elem())...)
	case reflect.Slice:
		if a.Cap() > 0 && a.Pointer() == b.Pointer() {
			out = append(out, at)
		}
		for i := range min(a.Len(), b.Len()) {
			out = append(out, shared(at+"[]", a.Index(i), b.Index(i))...)
		}
	case reflect.Map:
		if !a.IsNil() && a.Pointer() == b.Pointer() {
			out = append(out, at)
		}
	case reflect.Struct:
		for i := range a.NumField() {
			if a.Type().Field(i).IsExported() {
				out = append(out, shared(at+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))...)
			}
		}
	}
	return out
}

func TestDeepCopySharesNothing(t *testing.T) {
	for _, o := range []Object{&Service{}, &Endpoints{}, &EndpointSlice{}, &Pod{}} {
		n := 0
		fill(reflect.ValueOf(o).Elem(), &n)
		c := DeepCopy(o)
		if !reflect.DeepEqual(o, c) {
			t.Errorf("the copy of %T differs:\n%s\n%s", o, toJSON(t, o), toJSON(t, c))
		}
		if places := shared("", reflect.ValueOf(o), reflect.ValueOf(c)); len(places) > 0 {
			t.Errorf("%T and its copy share %s", o, strings.Join(places, " "))
		}
	}
	for _, o := range []Object{&Service{}, &Endpoints{}, &EndpointSlice{}, &Pod{}} {
		if c := DeepCopy(o); !reflect.DeepEqual(o, c) {
			t.Errorf("the copy of an empty %T differs: %v", o, c)
		}
	}
}

// What is done to a draft before it is published does not show in the original.
func TestDraftLeavesTheOriginal(t *testing.T) {
	for _, o := range []Object{
		&Service{
			TypeMeta: TypeMeta{KindService, APIVersionCore},
			Metadata: ObjectMeta{Name: "web", Labels: map[string]string{"a": "b"}},
			Spec: ServiceSpec{
				Type: TypeLoadBalancer, Ports: []ServicePort{{Port: 80}, {Port: 81, NodePort: 30081}}, ClusterIPs: make([]string, 0, 4),
				SessionAffinity: AffinityClientIP, SessionAffinityConfig: &SessionAffinityConfig{ClientIP: &ClientIPConfig{}},
			},
			Status: ServiceStatus{LoadBalancer: LoadBalancerStatus{Ingress: []LoadBalancerIngress{{IP: "198.51.100.1"}}}},
		},
		&EndpointSlice{
			TypeMeta: TypeMeta{KindEndpointSlice, APIVersionDiscovery},
			Metadata: ObjectMeta{Name: "web-1"}, AddressType: IPv4,
			Endpoints: []Endpoint{{Addresses: []string{"10.1.2.3"}}}, Ports: []EndpointPort{{}},
		},
		&Endpoints{
			TypeMeta: TypeMeta{KindEndpoints, APIVersionCore}, Metadata: ObjectMeta{Name: "web"},
			Subsets: []EndpointSubset{{Addresses: []EndpointAddress{{IP: "10.1.2.3"}}, Ports: []EndpointPort{{Port: new(int32)}}}},
		},
	} {
		before := DeepCopy(o)
		d := Draft(o)
		Default(d)
		d.GetMeta().UID, d.GetMeta().Generation = "u", 7
		if svc, is := d.(*Service); is {
			svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, "10.96.0.1")
			svc.Spec.Ports[0].NodePort = 30080
			svc.Status.LoadBalancer.Ingress[0].IP = "198.51.100.2"
			DefaultFamilies(svc, nil, []string{IPv4})
		}
		if !reflect.DeepEqual(o, before) {
			t.Errorf("%s has changed to %+v, was %+v", RefOf(o), o, before)
		}
		if reflect.DeepEqual(d, before) {
			t.Errorf("%s: the draft has not changed", RefOf(o))
		}
		if svc, is := o.(*Service); is && len(svc.Spec.ClusterIPs[:1]) == 1 && svc.Spec.ClusterIPs[:1][0] != "" {
			t.Error("the draft writes into the original's spare room")
		}
	}
}
