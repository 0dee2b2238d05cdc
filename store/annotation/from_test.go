package annotation

import (
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

// The refusals of docs/discovery.md that the Service alone shows, with their texts.
func Test970_endpoints_from_is_refused_with_the_way_out(t *testing.T) {
	service := func(change ...func(*object.Service)) *object.Service {
		svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService}}
		svc.Spec.Type = object.TypeClusterIP
		svc.Spec.Ports = []object.ServicePort{{Name: "http", Port: 80, TargetPort: object.FromInt(8080)}}
		svc.Metadata.Annotations = map[string]string{}
		for _, f := range change {
			f(svc)
		}
		return svc
	}
	from := func(value string) func(*object.Service) {
		return func(s *object.Service) { s.Metadata.Annotations[EndpointsFrom] = value }
	}
	byName := func(s *object.Service) { s.Spec.Ports[0].TargetPort = object.IntOrString{Name: "web", IsString: true} }
	for _, c := range []struct {
		svc  *object.Service
		want string // of the only text; "": none
	}{
		{service(), ""},
		{service(from("consul:web?tag=prod dns:old.example.com")), ""},
		{service(from("dns:_http._tcp.app.example.com"), byName), ""},
		{service(from("consul:web"), byName), ""},
		{service(from("docker:app=web?published=true"), byName), ""},
		{service(from("dns:app.example.com"), byName), "spec.ports[0].targetPort: must be a number: the answer to \"dns:app.example.com\" has no ports"},
		{service(from("docker:app=web"), byName), "spec.ports[0].targetPort: must be a number"},
		{service(from("consul:web"), func(s *object.Service) { s.Spec.Selector = map[string]string{"app": "web"} }), "spec.selector: must be empty with svcctl.io/endpoints-from"},
		{service(from("dns:a.example.com"), func(s *object.Service) { s.Spec.Type = object.TypeExternalName }), "spec.type: ExternalName has no address to balance: use type ClusterIP and svcctl.io/endpoints-from: dns:NAME"},
		{service(from(" ")), "it is empty"},
		{service(from("web")), `"web" is no source of endpoints`},
		{service(from("consul:")), `"consul:" is no source of endpoints`},
		{service(from("https://consul:8500/web")), `names no provider`},
		{service(from("exec:/bin/list")), "no command is run: have a script write a file for the provider targets, or use `svcctl apply`"},
		{service(from("consul:web?hold=never")), "hold=never of \"consul:web?hold=never\" is no time from 1s to 24h"},
		{service(from("consul:web?hold=1ms")), "is no time from 1s to 24h"},
		{service(from("consul:web?a=%zz")), "has parameters that cannot be read"},
		{service(from("consul:" + strings.Repeat("a", 10_000))), "is longer than 512 characters"},
		{service(from(strings.Repeat("consul:web ", 17))), "it has 17 sources, and at most 16 are read"},
		{service(func(s *object.Service) { s.Metadata.Annotations[EndpointsFrom+".https"] = "consul:web" }), `the Service has no port named "https"`},
		{service(func(s *object.Service) { s.Metadata.Annotations[EndpointsFrom+".http"] = "dns:a.example.com" }, byName), "spec.ports[0].targetPort: must be a number"},
	} {
		bad := Remarks(c.svc)
		switch {
		case c.want == "" && len(bad) > 0:
			t.Errorf("%v: %v", c.svc.Metadata.Annotations, bad)
		case c.want != "" && (len(bad) != 1 || !bad[0].Refused || !strings.Contains(bad[0].String(), c.want)):
			t.Errorf("%.60v: %v, want %s", c.svc.Metadata.Annotations, bad, c.want)
		}
	}
}

func TestSourcesOfAPort(t *testing.T) {
	svc := &object.Service{}
	svc.Metadata.Annotations = map[string]string{
		EndpointsFrom: "consul:web?tag=b&tag=a&hold=5m&dc=x  dns:a.example.com consul:web?tag=b&tag=a&hold=5m&dc=x wrong", EndpointsFrom + ".admin": "docker:app=web",
	}
	got := Sources(svc, "http")
	want := []Source{{"consul", "web", "dc=x&tag=b&tag=a", 5 * time.Minute}, {Provider: "dns", Name: "a.example.com"}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Sources(svc, "admin"); len(got) != 1 || got[0].String() != "docker:app=web" {
		t.Errorf("of a port: %v", got)
	}
	svc.Spec.Selector = map[string]string{"a": "b"}
	if got := Sources(svc, "http"); got != nil {
		t.Errorf("with a selector: %v", got)
	}
}
