package index

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// FuzzSelectors: three Pods and two Services with any labels find each other as a plain
// comparison says, also after one Pod and one Service went.
func FuzzSelectors(f *testing.F) {
	f.Add("app=web", "app=web", "app=web,tier=front", "app=dns", "tier=front")
	f.Add("", "a=", "a=b", "b=a", "a=b,b=a")
	f.Fuzz(func(t *testing.T, first, second, a, b, c string) {
		parse := func(text string) map[string]string {
			labels := map[string]string{}
			for pair := range strings.SplitSeq(text, ",") {
				if name, value, found := strings.Cut(pair, "="); found {
					labels[name] = value
				}
			}
			return labels
		}
		x := New()
		services, pods := map[string]object.Object{}, map[string]object.Object{}
		for name, text := range map[string]string{"first": first, "second": second} {
			services[name] = &object.Service{Metadata: object.ObjectMeta{Namespace: "n", Name: name}, Spec: object.ServiceSpec{Selector: parse(text)}}
			x.Add(services[name])
		}
		for name, text := range map[string]string{"a": a, "b": b, "c": c} {
			pods[name] = &object.Pod{Metadata: object.ObjectMeta{Namespace: "n", Name: name, Labels: parse(text)}}
			x.Add(pods[name])
		}
		service := func(key string) *object.Service {
			return services[strings.TrimPrefix(key, "n/")].(*object.Service)
		}
		check := func() {
			for _, s := range services {
				selector := s.(*object.Service).Spec.Selector
				var want []string
				for name, p := range pods {
					if labels := p.GetMeta().Labels; len(selector) > 0 && object.HasLabels(labels, selector) {
						want = append(want, name)
						if !slices.Contains(x.Selecting("n", labels, service), ServiceKey(s)) {
							t.Errorf("%v does not find the selector %v", labels, selector)
						}
					}
				}
				slices.Sort(want)
				if got := names(x.Selected("n", selector)); got != strings.Join(want, " ") {
					t.Errorf("%v selects %s, want %s", selector, got, want)
				}
			}
		}
		check()
		x.Remove(services["first"])
		x.Remove(pods["a"])
		delete(services, "first")
		delete(pods, "a")
		check()
		x.Remove(services["second"])
		x.Remove(pods["b"])
		x.Remove(pods["c"])
		if n := len(x.selectors) + len(x.podsWith) + len(x.pods); n > 0 {
			t.Errorf("%d entries are left of nothing", n)
		}
	})
}

// Services that share a label stay apart in an index and its copy, whatever is added to and removed from either.
func TestCloneOfSelectors(t *testing.T) {
	svc := func(name string) *object.Service {
		return &object.Service{Metadata: object.ObjectMeta{Namespace: "n", Name: name}, Spec: object.ServiceSpec{Selector: map[string]string{"app": "web"}}}
	}
	a, b, c := svc("a"), svc("b"), svc("c")
	x := New()
	for _, s := range []*object.Service{a, b, c} {
		x.Add(s)
	}
	alone := svc("alone")
	alone.Spec.Selector = map[string]string{"app": "dns"}
	x.Add(alone)
	y := x.Clone()
	y.Remove(alone)
	if got := x.Selecting("n", alone.Spec.Selector, func(string) *object.Service { return alone }); len(got) != 1 || got[0] != "n/alone" {
		t.Errorf("without it in the copy: %v", got)
	}
	x.Remove(a)
	x.Add(svc("d"))
	y.Add(svc("e"))
	y.Remove(b)
	x.Add(svc("f"))
	for _, tt := range []struct {
		of   *Index
		want string
	}{{x, "n/b n/c n/d n/f"}, {y, "n/a n/c n/e"}} {
		if got := strings.Join(tt.of.Selecting("n", map[string]string{"app": "web"}, func(string) *object.Service { return a }), " "); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}

func names(pods []*object.Pod) string {
	var list []string
	for _, p := range pods {
		list = append(list, p.Metadata.Name)
	}
	return strings.Join(list, " ")
}

// Addresses are found whether the index of endpoints was made before or after they came.
func TestEndpointsAt(t *testing.T) {
	at := netip.MustParseAddr("10.0.0.1")
	slice := func(name string) *object.EndpointSlice {
		return &object.EndpointSlice{
			Metadata:  object.ObjectMeta{Namespace: "n", Name: name, Labels: map[string]string{object.LabelServiceName: "web"}},
			Endpoints: []object.Endpoint{{Addresses: []string{"10.0.0.1"}}},
		}
	}
	x := New()
	early, late := slice("web-1"), slice("web-2")
	whole := func(string) []*object.EndpointSlice { return []*object.EndpointSlice{early} }
	x.Add(early)
	if got := x.EndpointsAt(at, whole); len(got) != 1 || got[0] != "n/web" {
		t.Errorf("at the first look: %v", got)
	}
	x.Add(late)
	x.Remove(early)
	if got := x.EndpointsAt(at, nil); len(got) != 1 || got[0] != "n/web" {
		t.Errorf("after one came and one went: %v", got)
	}
	if x.Remove(late); len(x.EndpointsAt(at, nil)) != 0 {
		t.Errorf("after both went: %v", x.EndpointsAt(at, nil))
	}
}
