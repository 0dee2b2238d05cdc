package object

import (
	"strings"
	"testing"
	"time"
)

// stored is a good Service as it stands in the store, with what was allocated.
func stored(changes ...func(*Service)) *Service {
	s := goodService(append([]func(*Service){families("172.30.0.9|172.30.0.9|SingleStack|IPv4")}, changes...)...)
	s.Metadata.UID = "u-1"
	Default(s)
	return s
}

// update processes a document for an existing Service as the store does.
func update(s, old *Service) Errors {
	Default(s)
	PatchFromOld(s, old)
	errs := DefaultFamilies(s, old, dual)
	return Join(errs, ValidateUpdate(s, old, Options{}))
}

func withPorts(ports ...ServicePort) func(*Service) {
	return func(s *Service) { s.Spec.Ports = ports }
}

func TestUpdateKeepsAllocatedValues(t *testing.T) {
	localLoadBalancer := func(s *Service) {
		ofType(TypeLoadBalancer)(s)
		s.Spec.ExternalTrafficPolicy = PolicyLocal
	}
	for _, tc := range []struct {
		name      string
		old       []func(*Service)
		document  []func(*Service)
		nodePorts []int32
		health    int32
	}{
		{"by name",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "a", Port: 1, NodePort: 30001}, ServicePort{Name: "b", Port: 2, NodePort: 30002})},
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "b", Port: 1}, ServicePort{Name: "c", Port: 3}, ServicePort{Name: "a", Port: 2})},
			[]int32{30002, 0, 30001}, 0},
		{"a port that was renamed",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Port: 1, NodePort: 30001})},
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "b", Port: 2}, ServicePort{Name: "a", Port: 1})},
			[]int32{0, 30001}, 0},
		{"another protocol is not the renamed port",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "a", Port: 1, NodePort: 30001})},
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "b", Port: 1, Protocol: "UDP"})},
			[]int32{0}, 0},
		{"the name goes before the renamed port",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "a", Port: 1, NodePort: 30001})},
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "c", Port: 1}, ServicePort{Name: "a", Port: 5})},
			[]int32{0, 30001}, 0},
		{"a number moved to another port by the document",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "a", Port: 1, NodePort: 30001}, ServicePort{Name: "b", Port: 2, NodePort: 30002})},
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "a", Port: 1}, ServicePort{Name: "b", Port: 2, NodePort: 30001})},
			[]int32{0, 30001}, 0},
		{"one number for two protocols",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "a", Port: 53, NodePort: 30053}, ServicePort{Name: "b", Port: 53, Protocol: "UDP", NodePort: 30053})},
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Name: "a", Port: 53, NodePort: 30053}, ServicePort{Name: "b", Port: 53, Protocol: "UDP"})},
			[]int32{30053, 30053}, 0},
		{"a number of the document's own",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Port: 1, NodePort: 30001})},
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Port: 1, NodePort: 30009})},
			[]int32{30009}, 0},
		{"NodePort to LoadBalancer",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Port: 1, NodePort: 30001})},
			[]func(*Service){ofType(TypeLoadBalancer), withPorts(ServicePort{Port: 1})},
			[]int32{30001}, 0},
		{"health-check port",
			[]func(*Service){localLoadBalancer, withPorts(ServicePort{Port: 1, NodePort: 30001}), func(s *Service) { s.Spec.HealthCheckNodePort = 32000 }},
			[]func(*Service){localLoadBalancer, withPorts(ServicePort{Port: 1})},
			[]int32{30001}, 32000},
		{"no health-check port without Local",
			[]func(*Service){localLoadBalancer, withPorts(ServicePort{Port: 1, NodePort: 30001}), func(s *Service) { s.Spec.HealthCheckNodePort = 32000 }},
			[]func(*Service){ofType(TypeLoadBalancer), withPorts(ServicePort{Port: 1})},
			[]int32{30001}, 0},
		{"node ports given back",
			[]func(*Service){ofType(TypeLoadBalancer), withPorts(ServicePort{Name: "a", Port: 1, NodePort: 30001}, ServicePort{Name: "b", Port: 2, NodePort: 30002})},
			[]func(*Service){ofType(TypeLoadBalancer), withPorts(ServicePort{Name: "a", Port: 1}, ServicePort{Name: "b", Port: 2, NodePort: 30002}), func(s *Service) { s.Spec.AllocateLoadBalancerNodePorts = new(false) }},
			[]int32{0, 30002}, 0},
		{"NodePort to ClusterIP",
			[]func(*Service){ofType(TypeNodePort), withPorts(ServicePort{Port: 1, NodePort: 30001})},
			[]func(*Service){withPorts(ServicePort{Port: 1})},
			[]int32{0}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old, s := stored(tc.old...), goodService(tc.document...)
			before := toJSON(t, old)
			wantTexts(t, update(s, old))
			if toJSON(t, old) != before {
				t.Errorf("the stored Service changed")
			}
			if familiesOf(s) != familiesOf(old) {
				t.Errorf("families %s, want %s", familiesOf(s), familiesOf(old))
			}
			for i, want := range tc.nodePorts {
				if got := s.Spec.Ports[i].NodePort; got != want {
					t.Errorf("port %d has node port %d, want %d", i, got, want)
				}
			}
			if s.Spec.HealthCheckNodePort != tc.health {
				t.Errorf("healthCheckNodePort %d, want %d", s.Spec.HealthCheckNodePort, tc.health)
			}
		})
	}
}

// A patch of the type alone leaves all other fields as they were stored.
func TestUpdateOfTheTypeDropsWhatItHasNoUseFor(t *testing.T) {
	loadBalancer := stored(ofType(TypeLoadBalancer), func(s *Service) {
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort, s.Spec.LoadBalancerClass = PolicyLocal, 32000, new("a")
		s.Spec.Ports[0].NodePort = 30001
		s.Status.LoadBalancer.Ingress = []LoadBalancerIngress{{IP: "192.0.2.7"}}
	})
	patched := func(change func(*Service)) *Service {
		s := DeepCopy(loadBalancer)
		change(s)
		return s
	}

	s := patched(func(s *Service) { s.Spec.Type = TypeClusterIP })
	wantTexts(t, update(s, loadBalancer))
	want := stored(func(s *Service) { s.Spec.Ports[0].TargetPort = FromInt(80) })
	if toJSON(t, s) != toJSON(t, want) {
		t.Errorf("as ClusterIP:\n%s\nwant\n%s", toJSON(t, s), toJSON(t, want))
	}

	s = patched(func(s *Service) { s.Spec.Type = TypeNodePort })
	wantTexts(t, update(s, loadBalancer))
	if s.Spec.Ports[0].NodePort != 30001 || s.Spec.ExternalTrafficPolicy != PolicyLocal || s.Spec.HealthCheckNodePort != 0 {
		t.Errorf("as NodePort: %s", toJSON(t, s))
	}

	s = patched(func(s *Service) { s.Spec.Type, s.Spec.ExternalName = TypeExternalName, "db.example.com" })
	wantTexts(t, update(s, loadBalancer))
	if familiesOf(s) != "|||" || s.Spec.InternalTrafficPolicy != nil || s.Spec.Ports[0].NodePort != 0 {
		t.Errorf("as ExternalName: %s", toJSON(t, s))
	}

	s = patched(func(s *Service) {
		s.Spec.Type, s.Spec.ExternalName = TypeExternalName, "db.example.com"
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00::9")
	})
	wantTexts(t, update(s, loadBalancer), "spec.clusterIPs: Forbidden: may not be set for ExternalName services")

	s = patched(func(s *Service) { s.Spec.Type, s.Spec.ExternalName = TypeExternalName, "db.example.com" })
	wantTexts(t, update(s, loadBalancer))

	// And back: a new cluster IP is allocated, nothing of the old one is left.
	external := s
	s = DeepCopy(external)
	s.Spec.Type, s.Spec.ExternalName = TypeClusterIP, ""
	wantTexts(t, update(s, external))
	if familiesOf(s) != "||SingleStack|IPv4" {
		t.Errorf("back from ExternalName: %s", familiesOf(s))
	}

	s = patched(func(s *Service) { s.Spec.Type, s.Spec.ExternalIPs = TypeClusterIP, []string{"192.0.2.8"} })
	wantTexts(t, update(s, loadBalancer))
	if s.Spec.ExternalTrafficPolicy != PolicyLocal {
		t.Errorf("external IPs keep a meaning for externalTrafficPolicy, but it is %q", s.Spec.ExternalTrafficPolicy)
	}

	// What the update itself changes is not dropped, but refused.
	s = patched(func(s *Service) {
		s.Spec.Type, s.Spec.HealthCheckNodePort, s.Spec.ExternalTrafficPolicy = TypeClusterIP, 32001, PolicyCluster
		s.Spec.AllocateLoadBalancerNodePorts, s.Spec.LoadBalancerClass, s.Spec.Ports[0].NodePort = new(false), new("b"), 30002
	})
	wantTexts(t, update(s, loadBalancer),
		"spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
		"spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'",
		"spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
		`spec.externalTrafficPolicy: Invalid value: "Cluster": may only be set for externally-accessible services`,
		"spec.healthCheckNodePort: Invalid value: 32001: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
	)
}

func TestUpdateOfTheAffinity(t *testing.T) {
	old := stored(func(s *Service) { s.Spec.SessionAffinity = AffinityClientIP })
	s := DeepCopy(old)
	s.Spec.SessionAffinity = AffinityNone
	wantTexts(t, update(s, old))
	if s.Spec.SessionAffinityConfig != nil {
		t.Errorf("the timeout of the old affinity is still there")
	}
	s = DeepCopy(old)
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds = AffinityNone, new(int32(5))
	wantTexts(t, update(s, old))
	if s.Spec.SessionAffinityConfig != nil {
		t.Errorf("a timeout without ClientIP is still there")
	}
}

func TestUpdateRefuses(t *testing.T) {
	const once = "may not change once set"
	clusterIP := func(ip string) func(*Service) { return func(s *Service) { s.Spec.ClusterIP = ip } }
	class := func(name string) func(*Service) {
		return func(s *Service) { ofType(TypeLoadBalancer)(s); s.Spec.LoadBalancerClass = new(name) }
	}
	healthPort := func(port int32) func(*Service) {
		return func(s *Service) {
			ofType(TypeLoadBalancer)(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = PolicyLocal, port
		}
	}
	for _, tc := range []struct {
		name     string
		old      func(*Service)
		document func(*Service)
		want     []string
	}{
		{"nothing", func(s *Service) {}, func(s *Service) {}, nil},
		{"the cluster IP it has", func(s *Service) {}, clusterIP("172.30.0.9"), nil},
		{"another cluster IP", func(s *Service) {}, clusterIP("172.30.0.8"), []string{
			`spec.clusterIPs[0]: Invalid value: ["172.30.0.8"]: ` + once}},
		{"no cluster IP", func(s *Service) {}, headless, []string{
			`spec.clusterIPs[0]: Invalid value: ["None"]: ` + once}},
		{"a cluster IP for a headless Service", families("None|None|SingleStack|IPv4"), clusterIP("172.30.0.9"), []string{
			`spec.clusterIPs[0]: Invalid value: ["172.30.0.9"]: ` + once}},
		{"headless stays headless", families("None|None|SingleStack|IPv4"), func(s *Service) {}, nil},
		{"families of a headless Service may change", families("None|None|SingleStack|IPv4"), func(s *Service) { s.Spec.IPFamilies = []string{IPv6} }, nil},
		{"another primary family", func(s *Service) {}, families("||PreferDualStack|IPv6,IPv4"), []string{
			"spec.clusterIPs[0]: Invalid value: \"172.30.0.9\": expected an IPv6 value as indicated by `ipFamilies[0]`",
			`spec.ipFamilies[0]: Invalid value: ["IPv6","IPv4"]: ` + once}},
		{"another second cluster IP", families("172.30.0.9|172.30.0.9,fd00::9|RequireDualStack|IPv4,IPv6"), families("172.30.0.9|172.30.0.9,fd00::8||"), []string{
			`spec.clusterIPs[1]: Invalid value: ["172.30.0.9","fd00::8"]: ` + once}},
		{"a second cluster IP given up without saying so", families("172.30.0.9|172.30.0.9,fd00::9|RequireDualStack|IPv4,IPv6"), families("172.30.0.9|172.30.0.9||IPv4"), []string{
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be 'SingleStack' to release the secondary cluster IP`,
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be 'SingleStack' to release the secondary IP family`,
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be set to 'SingleStack' when releasing the secondary clusterIP`,
			`spec.ipFamilyPolicy: Invalid value: "RequireDualStack": must be set to 'SingleStack' when releasing the secondary ipFamily`}},
		{"the class it has", class("a"), class("a"), nil},
		{"another class", class("a"), class("b"), []string{`spec.loadBalancerClass: Invalid value: "b": ` + once}},
		{"a class taken away", class("a"), ofType(TypeLoadBalancer), []string{`spec.loadBalancerClass: Invalid value: null: ` + once}},
		{"a class with the type", func(s *Service) {}, class("b"), nil},
		{"the health-check port it has", healthPort(32000), healthPort(32000), nil},
		{"another health-check port", healthPort(32000), healthPort(32001), []string{
			"spec.healthCheckNodePort: Forbidden: field is immutable"}},
		{"name, namespace, uid", func(s *Service) {}, func(s *Service) {
			s.Metadata.Name, s.Metadata.Namespace, s.Metadata.UID = "WEB", "other", "u-2"
		}, []string{
			`metadata.name: Invalid value: "WEB": field is immutable`,
			`metadata.namespace: Invalid value: "other": field is immutable`,
			`metadata.uid: Invalid value: "u-2": field is immutable`}},
		{"finalizers while it is deleted", func(s *Service) {
			s.Metadata.DeletionTimestamp, s.Metadata.Finalizers = new(time.Unix(1, 0)), []string{"example.com/a"}
		}, func(s *Service) { s.Metadata.Finalizers = []string{"example.com/b", "example.com/a"} }, []string{
			`metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"example.com/b"}`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantTexts(t, update(goodService(tc.document), stored(tc.old)), tc.want...)
		})
	}
}

func TestUpdateWithoutPatch(t *testing.T) {
	s := goodService()
	Default(s)
	wantTexts(t, ValidateUpdate(s, stored(), Options{}),
		"spec.clusterIPs[0]: Invalid value: null: primary clusterIP can not be unset",
		"spec.ipFamilies[0]: Invalid value: null: primary ipFamily can not be unset")
}

// A client that only knows clusterIP clears it; without PatchFromOld it is gone.
func TestUpdateThatClearsClusterIP(t *testing.T) {
	old := stored()
	s := DeepCopy(old)
	s.Spec.ClusterIP = ""
	wantTexts(t, DefaultFamilies(s, old, dual))
	if familiesOf(s) != "||SingleStack|IPv4" {
		t.Errorf("got %s", familiesOf(s))
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = "", DeepCopy(old).Spec.ClusterIPs
	wantTexts(t, update(s, old))
	if familiesOf(s) != familiesOf(old) {
		t.Errorf("got %s", familiesOf(s))
	}
}

// A Service stored while nothing could be allocated for it has no families yet.
func TestUpdateOfWhatHasNoFamilies(t *testing.T) {
	old := goodService()
	Default(old)
	wantTexts(t, update(goodService(), old))
}

// What was once stored stays, in whatever form.
func TestUpdateKeepsLegacyValues(t *testing.T) {
	legacyService := func(s *Service) {
		s.Metadata.Name = "1abc"
		ofType(TypeLoadBalancer)(s)
		s.Spec.ExternalIPs = []string{"1.2.3.004"}
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.1/8"}
		s.Status.LoadBalancer.Ingress = []LoadBalancerIngress{{IP: "192.0.2.007"}}
		families("172.30.0.041|172.30.0.041|SingleStack|IPv4")(s)
	}
	s := goodService(legacyService, func(s *Service) { s.Spec.LoadBalancerSourceRanges[0] = " 10.0.0.1/8" })
	wantTexts(t, update(s, stored(legacyService)))
	s = goodService(legacyService, func(s *Service) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "1.2.3.005")
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, "10.0.0.2/8")
	})
	wantTexts(t, update(s, stored(legacyService)),
		`spec.externalIPs[1]: Invalid value: "1.2.3.005": must not have leading 0s`,
		`spec.loadBalancerSourceRanges[1]: Invalid value: "10.0.0.2/8": must not have bits set beyond the prefix length`)

	legacyEndpoints := func(e *Endpoints) { e.Subsets[0].Addresses = []EndpointAddress{{IP: "1.2.3.004"}, {IP: "127.0.0.1"}} }
	old, e := goodEndpoints(legacyEndpoints), goodEndpoints(legacyEndpoints)
	e.Subsets[0].NotReadyAddresses, e.Subsets[0].Addresses = e.Subsets[0].Addresses, []EndpointAddress{{IP: "127.0.0.2"}}
	Default(e)
	wantTexts(t, ValidateUpdate(e, old, Options{}),
		`subsets[0].addresses[0].ip: Invalid value: "127.0.0.2": may not be in the loopback range (127.0.0.0/8, ::1/128)`)

	legacySlice := func(e *EndpointSlice) { e.Endpoints[0].Addresses = []string{"1.2.3.004"} }
	oldSlice, slice := goodSlice(legacySlice), goodSlice(legacySlice, func(e *EndpointSlice) {
		e.Endpoints = append(e.Endpoints, Endpoint{Addresses: []string{"1.2.3.05"}})
	})
	Default(slice)
	wantTexts(t, ValidateUpdate(slice, oldSlice, Options{}),
		`endpoints[1].addresses[0]: Invalid value: "1.2.3.05": must not have leading 0s`)
}

func TestUpdateOfSlices(t *testing.T) {
	slice := goodSlice(func(e *EndpointSlice) { e.AddressType, e.Endpoints[0].Addresses = IPv6, []string{"2001:db8::1"} })
	Default(slice)
	wantTexts(t, ValidateUpdate(slice, goodSlice(), Options{}), `addressType: Invalid value: "IPv6": field is immutable`)
}

func TestUpdateOfAnotherKind(t *testing.T) {
	slice := goodSlice()
	Default(slice)
	wantTexts(t, ValidateUpdate(slice, goodService(), Options{}), `kind: Invalid value: "EndpointSlice": field is immutable`)
}

func TestWarnings(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    Object
		want []string
	}{
		{"good Service", goodService(), nil},
		{"good headless Service", goodService(headless), nil},
		{"good Endpoints", goodEndpoints(), nil},
		{"good slice", goodSlice(), nil},
		{"headless", goodService(headless, func(s *Service) {
			s.Spec.LoadBalancerIP, s.Spec.ExternalIPs, s.Spec.SessionAffinity = "192.0.2.1", []string{"192.0.2.2"}, AffinityClientIP
		}), []string{
			"spec.loadBalancerIP is ignored for headless services",
			"spec.externalIPs is ignored for headless services",
			"spec.SessionAffinity is ignored for headless services"}},
		{"headless, another target port", goodService(headless, func(s *Service) {
			s.Spec.Selector, s.Spec.Ports[0].Port, s.Spec.Ports[0].TargetPort = nil, 80, IntOrString{Int: 8080}
		}), []string{"spec.ports[0].targetPort: 8080 is not the port, 80, and a headless Service without a selector translates none: clients connect to the port of its endpoints"}},
		{"ExternalName", goodService(ofType(TypeExternalName), func(s *Service) { s.Spec.ExternalIPs = []string{"192.0.2.2"} }), []string{
			`spec.externalIPs is ignored when spec.type is "ExternalName"`}},
		{"fields of other types", goodService(func(s *Service) { s.Spec.ExternalName, s.Spec.LoadBalancerIP = "a.b", "192.0.2.1" }), []string{
			`spec.loadBalancerIP is ignored when spec.type is not "LoadBalancer"`,
			`spec.externalName is ignored when spec.type is not "ExternalName"`}},
		{"topology", goodService(func(s *Service) {
			s.Metadata.Annotations = map[string]string{annotationTopologyHints: "Auto"}
			s.Spec.TrafficDistribution = new(PreferClose)
		}), []string{
			"annotation service.kubernetes.io/topology-aware-hints is deprecated, please use service.kubernetes.io/topology-mode instead",
			`spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`}},
		{"addresses", goodService(ofType(TypeLoadBalancer), func(s *Service) {
			s.Spec.ClusterIP, s.Spec.ExternalIPs, s.Spec.LoadBalancerIP = "FD00::9", []string{"1.2.3.004", "192.0.2.1"}, "my-ip"
		}), []string{
			`spec.clusterIPs[0]: IPv6 address "FD00::9" should be in RFC 5952 canonical format ("fd00::9")`,
			`spec.externalIPs[0]: non-standard IP address "1.2.3.004" is invalid: use "1.2.3.4"`,
			`spec.loadBalancerIP: "my-ip" is not an IP address and is ignored`}},
		{"ranges", goodService(ofType(TypeLoadBalancer), func(s *Service) {
			s.Spec.IPFamilies = []string{IPv4, IPv6}
			s.Spec.LoadBalancerSourceRanges = []string{" 10.0.0.0/8", "10.0.0.1/8"}
		}), []string{
			`spec.loadBalancerSourceRanges[1]: non-standard CIDR value "10.0.0.1/8" is invalid: use "10.0.0.0/8"`,
			"spec.loadBalancerSourceRanges has no IPv6 range: the IPv6 address of the load balancer is closed to all clients"}},
		{"ranges of the other family", goodService(ofType(TypeLoadBalancer), func(s *Service) {
			s.Spec.IPFamilies = []string{IPv4}
			s.Metadata.Annotations = map[string]string{AnnotationSourceRanges: "2001:DB8::/64"}
		}), []string{
			`metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: IPv6 CIDR value "2001:DB8::/64" should be in RFC 5952 canonical format ("2001:db8::/64")`,
			"spec.loadBalancerSourceRanges has no IPv4 range: the IPv4 address of the load balancer is closed to all clients"}},
		{"Endpoints", goodEndpoints(func(e *Endpoints) {
			e.Subsets[0].Addresses[0].IP = "2001:DB8::1"
			e.Subsets[0].NotReadyAddresses = []EndpointAddress{{IP: "2001:0db8::1"}}
		}), []string{
			`subsets[0].addresses[0].ip: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")`,
			`subsets[0].notReadyAddresses[0].ip: IPv6 address "2001:0db8::1" should be in RFC 5952 canonical format ("2001:db8::1")`}},
		{"slice", goodSlice(func(e *EndpointSlice) {
			e.Metadata.Labels = nil
			e.Endpoints[0].Addresses = []string{"10.180.0.1", "10.180.0.2"}
			e.Ports = append(e.Ports, EndpointPort{Name: new("b")})
		}), []string{
			"metadata.labels: without kubernetes.io/service-name the slice belongs to no Service and is ignored",
			"endpoints[0].addresses: only the first address is used",
			"ports[1]: a port without a number is ignored"}},
		{"slice of names", goodSlice(func(e *EndpointSlice) { e.AddressType, e.Endpoints[0].Addresses = FQDN, []string{"a.example.com"} }), []string{
			`addressType: "FQDN" is ignored, traffic is only sent to IP addresses: have svcctl.io/endpoints-from: dns:NAME of the Service follow the name`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			Default(tc.o)
			got := Warnings(tc.o)
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("warnings:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(tc.want, "\n  "))
			}
		})
	}
}
