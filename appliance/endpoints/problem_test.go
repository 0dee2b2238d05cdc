package endpoints

import (
	"testing"

	"svcctl.io/svcctl/store/object"
)

func TestAddressesThatLoop(t *testing.T) {
	w := newWorld(t)
	w.service("lb", selectorless, func(svc *object.Service) {
		svc.Spec.ClusterIPs = []string{"172.30.0.9"}
		svc.Spec.ExternalIPs = []string{"198.51.100.99"}
		svc.Status.LoadBalancer.Ingress = []object.LoadBalancerIngress{{IP: "198.51.100.4"}}
	})
	w.service("web")
	w.pod("web", 1)
	w.pod("web", 2, ips("172.30.7.7"))
	w.pod("web", 3, ips("198.51.100.4"))
	w.pod("web", 4, ips("198.51.100.99"))
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2")
	w.problems(
		"Pod default/web-00002: BadEndpointAddress: endpoint 172.30.7.7 is left out: it lies in the service range 172.30.0.0/16",
		"Pod default/web-00003: BadEndpointAddress: endpoint 198.51.100.4 is left out: it is an address of Service default/lb",
		"Pod default/web-00004: BadEndpointAddress: endpoint 198.51.100.99 is left out: it is an address of Service default/lb",
	)
	w.restart()
	// They count again when no Service has the address any more, and where the host has it.
	w.service("lb", selectorless, func(svc *object.Service) {
		svc.Spec.ExternalIPs = []string{"198.51.100.99"}
		svc.Metadata.Annotations = map[string]string{annotationHostAddress: "true"}
	})
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2 198.51.100.4 198.51.100.99")
	w.service("other", selectorless, func(svc *object.Service) { svc.Spec.ExternalIPs = []string{"10.0.0.2"} })
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 198.51.100.4 198.51.100.99")
	w.service("web", func(svc *object.Service) { svc.Spec.Selector = map[string]string{"app": "none"} })
	w.update()
	w.problems("Service default/web: NoEndpoints")
}

func TestProblemsOfPodsAndSelectors(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	w.update()
	w.problems("Service default/web: NoEndpoints: no Pod with an address matches the selector")
	handmade := &object.EndpointSlice{
		TypeMeta:    object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: object.APIVersionDiscovery},
		Metadata:    object.ObjectMeta{Name: "mine", Namespace: "default", Labels: map[string]string{object.LabelServiceName: "web"}},
		AddressType: object.IPv4,
		Endpoints:   []object.Endpoint{{Addresses: []string{"10.9.9.9"}}},
	}
	w.put(handmade, false)
	w.update()
	w.problems()
	w.remove(object.RefOf(handmade))
	w.update()
	w.problems("Service default/web: NoEndpoints")
	w.pod("web", 1)
	w.pod("web", 2, ips("10.0.0.2"))
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2 10.0.0.2")
	w.problems("Pod default/web-00002: SharedAddress: Pod default/web-00001 has the address 10.0.0.2 too")
	w.pod("web", 3, ips("10.0.0.2"))
	w.update()
	w.problems("Pod default/web-00002: SharedAddress: Pod default/web-00001 and 1 more have the address 10.0.0.2 too")
	for i := 1; i <= 3; i++ {
		w.pod("web", i, ips("10.0.0.2"), func(p *object.Pod) { p.Spec.HostNetwork = true })
	}
	w.update()
	w.problems()
}

func TestForget(t *testing.T) {
	w := newWorld(t)
	w.service("web")
	w.pod("web", 1)
	w.update()
	w.pod("web", 1, unready)
	w.pod("web", 2)
	w.service("dns")
	w.pod("dns", 1)
	batch := w.c.Update(w, w.take())
	if batch.Empty() {
		t.Fatal("nothing to write")
	}
	w.c.Forget(batch) // the disk was full
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2")
	w.update()
	w.want("web", "IPv4 p80/TCP/8080: 10.0.0.2! 10.0.0.3")
	w.want("dns", "IPv4 p80/TCP/8080: 10.0.0.2")
	w.restart()
}
