package object

import (
	"strings"
	"testing"
)

const (
	label1123Detail = `a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`
	label1035Detail = `a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')`
	subdomainDetail = `a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`
	keyNameDetail   = `name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`
	valueDetail     = `a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`
)

type serviceCase struct {
	name   string
	change func(*Service)
	want   []string
}

// runServices validates each changed Service after the defaults.
func runServices(t *testing.T, cases []serviceCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			s := goodService(tc.change)
			Default(s)
			before := toJSON(t, s)
			wantTexts(t, Validate(s, Options{}), tc.want...)
			if after := toJSON(t, s); after != before {
				t.Errorf("Validate changed the object:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

func TestValidateMeta(t *testing.T) {
	runServices(t, []serviceCase{
		{"good", func(s *Service) {}, nil},
		{"name absent", func(s *Service) { s.Metadata.Name = "" }, []string{
			"metadata.name: Required value: name or generateName is required"}},
		{"only generateName", func(s *Service) { s.Metadata.Name, s.Metadata.GenerateName = "", "web-" }, []string{
			"metadata.name: Required value: generateName makes a name only for an object created through the API: give this one a name"}},
		{"name begins with a digit", func(s *Service) { s.Metadata.Name = "1abc" }, []string{
			`metadata.name: Invalid value: "1abc": ` + label1035Detail}},
		{"name in upper case and too long", func(s *Service) { s.Metadata.Name = strings.Repeat("A", 64) }, []string{
			`metadata.name: Invalid value: "` + strings.Repeat("A", 64) + `": must be no more than 63 bytes`,
			`metadata.name: Invalid value: "` + strings.Repeat("A", 64) + `": ` + label1035Detail}},
		{"namespace with a dot", func(s *Service) { s.Metadata.Namespace = "a.b" }, []string{
			`metadata.namespace: Invalid value: "a.b": must not contain dots`}},
		{"namespace with a blank", func(s *Service) { s.Metadata.Namespace = "a b" }, []string{
			`metadata.namespace: Invalid value: "a b": ` + label1123Detail}},
		{"labels, in the order of their keys", func(s *Service) {
			s.Metadata.Labels = map[string]string{"b/": "ok", "/a": "ok", "a/b/c": "ok", "-x": "b d", "UPPER.example.com/x": "", "ok": ""}
		}, []string{
			`metadata.labels: Invalid value: "-x": ` + keyNameDetail,
			`metadata.labels: Invalid value: "b d": ` + valueDetail,
			`metadata.labels: Invalid value: "/a": prefix part must be non-empty`,
			`metadata.labels: Invalid value: "UPPER.example.com/x": prefix part ` + subdomainDetail,
			`metadata.labels: Invalid value: "a/b/c": a valid label key ` + strings.TrimPrefix(keyNameDetail, "name part ") + ` with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')`,
			`metadata.labels: Invalid value: "b/": name part must be non-empty`,
			`metadata.labels: Invalid value: "b/": ` + keyNameDetail,
		}},
		{"label value too long", func(s *Service) { s.Metadata.Labels = map[string]string{"a": strings.Repeat("v", 64)} }, []string{
			`metadata.labels: Invalid value: "` + strings.Repeat("v", 64) + `": must be no more than 63 bytes`}},
		{"annotation keys may be in upper case", func(s *Service) {
			s.Metadata.Annotations = map[string]string{"EXAMPLE.com/A": "any text, of any form", "b c": ""}
		}, []string{`metadata.annotations: Invalid value: "b c": ` + keyNameDetail}},
		{"annotations too large", func(s *Service) {
			s.Metadata.Annotations = map[string]string{"abcd": strings.Repeat("x", 256<<10-3)}
		}, []string{"metadata.annotations: Too long: may not be more than 262144 bytes"}},
		{"annotations as large as allowed", func(s *Service) {
			s.Metadata.Annotations = map[string]string{"abcd": strings.Repeat("x", 256<<10-4)}
		}, nil},
		{"one owner that is a controller", func(s *Service) {
			s.Metadata.OwnerReferences = []OwnerReference{{APIVersion: "v1", Kind: "A", Name: "a", UID: "1", Controller: new(true)}}
		}, nil},
		{"owners", func(s *Service) {
			s.Metadata.OwnerReferences = []OwnerReference{
				{APIVersion: "apps/v1", Kind: "A", Name: "a", UID: "1", Controller: new(true)},
				{APIVersion: "a/b/c", Kind: "B", Name: "b", UID: "2", Controller: new(true)},
				{Controller: new(false)},
			}
		}, []string{
			`metadata.ownerReferences[1].apiVersion: Invalid value: "a/b/c": must be <group>/<version> or <version>`,
			`metadata.ownerReferences[2].apiVersion: Required value: must not be empty`,
			`metadata.ownerReferences[2].kind: Required value: must not be empty`,
			`metadata.ownerReferences[2].name: Required value: must not be empty`,
			`metadata.ownerReferences[2].uid: Required value: must not be empty`,
			`metadata.ownerReferences: Invalid value: [{"apiVersion":"apps/v1","kind":"A","name":"a","uid":"1","controller":true},{"apiVersion":"a/b/c","kind":"B","name":"b","uid":"2","controller":true},{"apiVersion":"","kind":"","name":"","uid":"","controller":false}]: Only one reference can have Controller set to true. Found "true" in references for A/a and B/b`,
		}},
		{"finalizers", func(s *Service) { s.Metadata.Finalizers = []string{"orphan", "foregroundDeletion", "a b"} }, []string{
			`metadata.finalizers: Invalid value: "a b": ` + keyNameDetail,
			`metadata.finalizers[2]: Invalid value: "a b": name is neither a standard finalizer name nor is it fully qualified`,
			`metadata.finalizers: Invalid value: ["orphan","foregroundDeletion","a b"]: finalizer orphan and foregroundDeletion cannot be both set`}},
		{"one of the two finalizers", func(s *Service) { s.Metadata.Finalizers = []string{"orphan"} }, nil},
		{"finalizer with a domain", func(s *Service) { s.Metadata.Finalizers = []string{"example.com/held"} }, nil},
		{"finalizer of nobody", func(s *Service) { s.Metadata.Finalizers = []string{"held"} }, []string{
			`metadata.finalizers[0]: Invalid value: "held": name is neither a standard finalizer name nor is it fully qualified`}},
		{"generation", func(s *Service) { s.Metadata.Generation = -1 }, []string{
			"metadata.generation: Invalid value: -1: must be greater than or equal to 0"}},
	})
}

func TestValidateNamespaceAbsent(t *testing.T) {
	s := goodService()
	Default(s)
	s.Metadata.Namespace = ""
	wantTexts(t, Validate(s, Options{}), "metadata.namespace: Required value")
}

func TestRelaxedServiceNames(t *testing.T) {
	for _, name := range []string{"1abc", "abc", "1"} {
		s := goodService(func(s *Service) { s.Metadata.Name = name })
		Default(s)
		wantTexts(t, Validate(s, Options{RelaxedServiceNames: true}))
	}
	s := goodService(func(s *Service) { s.Metadata.Name = "a_b" })
	Default(s)
	wantTexts(t, Validate(s, Options{RelaxedServiceNames: true}), `metadata.name: Invalid value: "a_b": `+label1123Detail)
}

func TestValidatePorts(t *testing.T) {
	ports := func(list ...ServicePort) func(*Service) {
		return func(s *Service) { s.Spec.Ports = list }
	}
	runServices(t, []serviceCase{
		{"none", ports(), []string{"spec.ports: Required value"}},
		{"none, headless", func(s *Service) { ports()(s); headless(s) }, nil},
		{"none, ExternalName", func(s *Service) { ports()(s); ofType(TypeExternalName)(s) }, nil},
		{"one may be without a name", ports(ServicePort{Port: 1}), nil},
		{"several may not", ports(ServicePort{Port: 1}, ServicePort{Port: 2, Name: "b"}, ServicePort{Port: 3}), []string{
			"spec.ports[0].name: Required value", "spec.ports[2].name: Required value"}},
		{"same name", ports(ServicePort{Port: 1, Name: "a"}, ServicePort{Port: 2, Name: "a"}), []string{
			`spec.ports[1].name: Duplicate value: "a"`}},
		{"same protocol and port", ports(ServicePort{Port: 80, Name: "a"}, ServicePort{Port: 80, Name: "b"}), []string{
			`spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}`}},
		{"same port, other protocol", ports(ServicePort{Port: 53, Name: "a"}, ServicePort{Port: 53, Name: "b", Protocol: "UDP"}, ServicePort{Port: 53, Name: "c", Protocol: "SCTP"}), nil},
		{"numbers", ports(ServicePort{Port: 0, TargetPort: FromInt(1)}), []string{
			"spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"}},
		{"numbers", ports(ServicePort{Port: 65536, TargetPort: FromInt(-1)}), []string{
			"spec.ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive",
			"spec.ports[0].targetPort: Invalid value: -1: must be between 1 and 65535, inclusive"}},
		{"largest and smallest", ports(ServicePort{Port: 65535, Name: "a"}, ServicePort{Port: 1, Name: "b"}), nil},
		{"targetPort names", ports(
			ServicePort{Port: 1, Name: "a", TargetPort: FromString("sixteen-letters-")},
			ServicePort{Port: 2, Name: "b", TargetPort: FromString("8080")},
			ServicePort{Port: 3, Name: "c", TargetPort: FromString("HTTP")},
			ServicePort{Port: 4, Name: "d", TargetPort: FromString("a--b")},
			ServicePort{Port: 5, Name: "e", TargetPort: FromString("fifteen-letters")},
		), []string{
			`spec.ports[0].targetPort: Invalid value: "sixteen-letters-": must be no more than 15 bytes`,
			`spec.ports[0].targetPort: Invalid value: "sixteen-letters-": must not begin or end with a hyphen`,
			`spec.ports[1].targetPort: Invalid value: "8080": must contain at least one letter (a-z)`,
			`spec.ports[2].targetPort: Invalid value: "HTTP": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)`,
			`spec.ports[2].targetPort: Invalid value: "HTTP": must contain at least one letter (a-z)`,
			`spec.ports[3].targetPort: Invalid value: "a--b": must not contain consecutive hyphens`,
		}},
		{"protocol", ports(ServicePort{Port: 1, Protocol: "ICMP"}), []string{
			`spec.ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"`}},
		{"names", ports(
			ServicePort{Port: 1, Name: "123_abc"}, ServicePort{Port: 2, Name: "-web"},
			ServicePort{Port: 3, Name: "123-abc"}, ServicePort{Port: 4, Name: "web"}, ServicePort{Port: 5, Name: "a.b"},
		), []string{
			`spec.ports[0].name: Invalid value: "123_abc": ` + label1123Detail,
			`spec.ports[1].name: Invalid value: "-web": ` + label1123Detail,
			`spec.ports[4].name: Invalid value: "a.b": must not contain dots`,
		}},
		{"appProtocol", ports(
			ServicePort{Port: 1, Name: "a", AppProtocol: new("kubernetes.io/h2c")},
			ServicePort{Port: 2, Name: "b", AppProtocol: new("HTTP")},
			ServicePort{Port: 3, Name: "c", AppProtocol: new("not valid")},
		), []string{`spec.ports[2].appProtocol: Invalid value: "not valid": ` + keyNameDetail}},
	})
}

func TestValidateType(t *testing.T) {
	runServices(t, []serviceCase{
		{"unknown", ofType("Ingress"), []string{
			`spec.type: Unsupported value: "Ingress": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"`}},
		{"NodePort without a cluster IP", func(s *Service) { ofType(TypeNodePort)(s); headless(s) }, []string{
			`spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services`}},
		{"LoadBalancer without a cluster IP", func(s *Service) { ofType(TypeLoadBalancer)(s); headless(s) }, []string{
			`spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for LoadBalancer services`}},
		{"ExternalName: digits and dots", func(s *Service) { ofType(TypeExternalName)(s); s.Spec.ExternalName = "1.2.3.4" }, nil},
		{"ExternalName: dot at the end", func(s *Service) { ofType(TypeExternalName)(s); s.Spec.ExternalName = "db.example.com." }, nil},
		{"ExternalName: none", func(s *Service) { s.Spec.Type = TypeExternalName }, []string{
			"spec.externalName: Required value"}},
		{"ExternalName: only a dot", func(s *Service) { ofType(TypeExternalName)(s); s.Spec.ExternalName = "." }, []string{
			"spec.externalName: Required value"}},
		{"ExternalName: too long", func(s *Service) { ofType(TypeExternalName)(s); s.Spec.ExternalName = strings.Repeat("a", 254) }, []string{
			`spec.externalName: Invalid value: "` + strings.Repeat("a", 254) + `": must be no more than 253 bytes`}},
		{"ExternalName: upper case", func(s *Service) { ofType(TypeExternalName)(s); s.Spec.ExternalName = "DB.example.com" }, []string{
			`spec.externalName: Invalid value: "DB.example.com": ` + subdomainDetail}},
		{"ExternalName: with a cluster IP", func(s *Service) {
			ofType(TypeExternalName)(s)
			s.Spec.ClusterIP, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "172.30.0.1", []string{IPv4}, new(SingleStack)
		}, []string{
			"spec.clusterIPs: Forbidden: may not be set for ExternalName services",
			"spec.ipFamilies: Forbidden: may not be set for ExternalName services",
			"spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services"}},
		{"topology annotations", func(s *Service) {
			s.Metadata.Annotations = map[string]string{"service.kubernetes.io/topology-mode": "Auto", "service.kubernetes.io/topology-aware-hints": "Disabled"}
		}, []string{
			`metadata.annotations[service.kubernetes.io/topology-mode]: Invalid value: "Auto": must match annotations[service.kubernetes.io/topology-aware-hints] when both are specified`}},
		{"one of the two topology annotations", func(s *Service) {
			s.Metadata.Annotations = map[string]string{"service.kubernetes.io/topology-mode": "Auto"}
		}, nil},
		{"selector", func(s *Service) { s.Spec.Selector = map[string]string{"a b": "c d"} }, []string{
			`spec.selector: Invalid value: "a b": ` + keyNameDetail,
			`spec.selector: Invalid value: "c d": ` + valueDetail}},
	})
}

func TestValidateSessionAffinity(t *testing.T) {
	timeout := func(seconds int32) func(*Service) {
		return func(s *Service) {
			s.Spec.SessionAffinity = AffinityClientIP
			s.Spec.SessionAffinityConfig = &SessionAffinityConfig{ClientIP: &ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
	runServices(t, []serviceCase{
		{"unknown", func(s *Service) { s.Spec.SessionAffinity = "Cookie" }, []string{
			`spec.sessionAffinity: Unsupported value: "Cookie": supported values: "ClientIP", "None"`}},
		{"1 second", timeout(1), nil},
		{"a day", timeout(86400), nil},
		{"0 seconds", timeout(0), []string{
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400"}},
		{"more than a day", timeout(86401), []string{
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 and less than 86400"}},
		{"a timeout with None", func(s *Service) { timeout(86401)(s); s.Spec.SessionAffinity = AffinityNone }, nil},
		{"a timeout and no affinity", func(s *Service) { timeout(86401)(s); s.Spec.SessionAffinity = "" }, nil},
	})
	for _, tc := range []struct {
		config *SessionAffinityConfig
		want   string
	}{
		{nil, "spec.sessionAffinityConfig: Required value: when session affinity type is ClientIP"},
		{&SessionAffinityConfig{}, "spec.sessionAffinityConfig.clientIP: Required value: when session affinity type is ClientIP"},
		{&SessionAffinityConfig{ClientIP: &ClientIPConfig{}}, "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Required value: when session affinity type is ClientIP"},
	} {
		s := goodService()
		Default(s)
		s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = AffinityClientIP, tc.config
		wantTexts(t, Validate(s, Options{}), tc.want)
	}
}

func TestValidateAddresses(t *testing.T) {
	externalIPs := func(ips ...string) func(*Service) {
		return func(s *Service) { s.Spec.ExternalIPs = ips }
	}
	const bad = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
	runServices(t, []serviceCase{
		{"good", externalIPs("198.51.100.99", "2001:db8::1", "FE81:0:0::1"), []string{
			`spec.externalIPs[2]: Invalid value: "FE81:0:0::1": may not be in the link-local range (169.254.0.0/16, fe80::/10)`}},
		{"malformed", externalIPs("", "x", "1.2.3", "1.2.3.256", "1.2.3.4/32", "2001:db8::1%eth0", "::ffff:1.2.3.256"), []string{
			`spec.externalIPs[0]: Invalid value: "": ` + bad,
			`spec.externalIPs[1]: Invalid value: "x": ` + bad,
			`spec.externalIPs[2]: Invalid value: "1.2.3": ` + bad,
			`spec.externalIPs[3]: Invalid value: "1.2.3.256": ` + bad,
			`spec.externalIPs[4]: Invalid value: "1.2.3.4/32": ` + bad,
			`spec.externalIPs[5]: Invalid value: "2001:db8::1%eth0": ` + bad,
			`spec.externalIPs[6]: Invalid value: "::ffff:1.2.3.256": ` + bad,
		}},
		{"ambiguous", externalIPs("1.2.3.004", "::ffff:1.2.3.4"), []string{
			`spec.externalIPs[0]: Invalid value: "1.2.3.004": must not have leading 0s`,
			`spec.externalIPs[1]: Invalid value: "::ffff:1.2.3.4": must not be an IPv4-mapped IPv6 address`,
		}},
		{"special", externalIPs("0.0.0.0", "127.0.0.1", "169.254.169.254", "224.0.0.1", "::", "::1", "fe80::1", "ff02::1", "::ffff:127.0.0.1"), []string{
			`spec.externalIPs[0]: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)`,
			`spec.externalIPs[1]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			`spec.externalIPs[2]: Invalid value: "169.254.169.254": may not be in the link-local range (169.254.0.0/16, fe80::/10)`,
			`spec.externalIPs[3]: Invalid value: "224.0.0.1": may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)`,
			`spec.externalIPs[4]: Invalid value: "::": may not be unspecified (::)`,
			`spec.externalIPs[5]: Invalid value: "::1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			`spec.externalIPs[6]: Invalid value: "fe80::1": may not be in the link-local range (169.254.0.0/16, fe80::/10)`,
			`spec.externalIPs[7]: Invalid value: "ff02::1": may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)`,
			`spec.externalIPs[8]: Invalid value: "::ffff:127.0.0.1": must not be an IPv4-mapped IPv6 address`,
			`spec.externalIPs[8]: Invalid value: "::ffff:127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
		}},
		{"an ordinary multicast address", externalIPs("224.0.1.1"), nil},
		{"cluster IPs", func(s *Service) { s.Spec.ClusterIP = "172.30.0.041" }, []string{
			`spec.clusterIPs[0]: Invalid value: "172.30.0.041": must not have leading 0s`}},
		{"loadBalancerIP is whatever the load balancer makes of it", func(s *Service) {
			ofType(TypeLoadBalancer)(s)
			s.Spec.LoadBalancerIP = "my-address"
		}, nil},
	})
}

func TestValidateNodePorts(t *testing.T) {
	nodePorts := func(serviceType string, ports ...ServicePort) func(*Service) {
		return func(s *Service) { s.Spec.Type, s.Spec.Ports = serviceType, ports }
	}
	runServices(t, []serviceCase{
		{"ClusterIP", nodePorts(TypeClusterIP, ServicePort{Port: 1, NodePort: 30007}), []string{
			"spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"}},
		{"same twice", nodePorts(TypeNodePort, ServicePort{Name: "a", Port: 1, NodePort: 30007}, ServicePort{Name: "b", Port: 2, NodePort: 30007}), []string{
			"spec.ports[1].nodePort: Duplicate value: 30007"}},
		{"same for two protocols", nodePorts(TypeLoadBalancer, ServicePort{Name: "a", Port: 1, NodePort: 30007}, ServicePort{Name: "b", Port: 2, NodePort: 30007, Protocol: "UDP"}), nil},
		{"allocateLoadBalancerNodePorts on another type", func(s *Service) { s.Spec.AllocateLoadBalancerNodePorts = new(false) }, []string{
			"spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'"}},
		{"healthCheckNodePort for Cluster", func(s *Service) { ofType(TypeLoadBalancer)(s); s.Spec.HealthCheckNodePort = 32000 }, []string{
			"spec.healthCheckNodePort: Invalid value: 32000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"}},
		{"healthCheckNodePort for Local", func(s *Service) {
			ofType(TypeLoadBalancer)(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = PolicyLocal, 32000
		}, nil},
		{"healthCheckNodePort not allocated yet", func(s *Service) { ofType(TypeLoadBalancer)(s); s.Spec.ExternalTrafficPolicy = PolicyLocal }, nil},
		{"healthCheckNodePort out of range", func(s *Service) {
			ofType(TypeLoadBalancer)(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = PolicyLocal, 70000
		}, []string{"spec.healthCheckNodePort: Invalid value: 70000: must be between 1 and 65535, inclusive"}},
	})
}

func TestValidateLoadBalancer(t *testing.T) {
	loadBalancer := func(change func(*Service)) func(*Service) {
		return func(s *Service) { ofType(TypeLoadBalancer)(s); change(s) }
	}
	const badCIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
	annotated := func(text string) func(*Service) {
		return func(s *Service) { s.Metadata.Annotations = map[string]string{AnnotationSourceRanges: text} }
	}
	runServices(t, []serviceCase{
		{"ranges, with blanks", loadBalancer(func(s *Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", " 203.0.113.0/25", "2001:db8::/64", "0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/8"}
		}), nil},
		{"bad ranges", loadBalancer(func(s *Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.1", "10.0.0.1/8", "010.0.0.0/8", "10.0.0.0/08", "::ffff:10.0.0.0/104", "10.0.0.0/33", ""}
		}), []string{
			`spec.loadBalancerSourceRanges[0]: Invalid value: "192.0.2.1": ` + badCIDR,
			`spec.loadBalancerSourceRanges[1]: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length`,
			`spec.loadBalancerSourceRanges[2]: Invalid value: "010.0.0.0/8": must not have leading 0s in IP or prefix length`,
			`spec.loadBalancerSourceRanges[3]: Invalid value: "10.0.0.0/08": must not have leading 0s in IP or prefix length`,
			`spec.loadBalancerSourceRanges[4]: Invalid value: "::ffff:10.0.0.0/104": must not have an IPv4-mapped IPv6 address`,
			`spec.loadBalancerSourceRanges[5]: Invalid value: "10.0.0.0/33": ` + badCIDR,
			`spec.loadBalancerSourceRanges[6]: Invalid value: "": ` + badCIDR,
		}},
		{"ranges on another type", func(s *Service) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} }, []string{
			"spec.loadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'"}},
		{"annotation", loadBalancer(annotated(" 10.0.0.0/8 , 192.0.2.0/24")), nil},
		{"empty annotation", loadBalancer(annotated(" ")), nil},
		{"bad annotation", loadBalancer(annotated("10.0.0.0/8,x")), []string{
			`metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Invalid value: "x": ` + badCIDR}},
		{"annotation on another type", annotated(""), []string{
			"metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: Forbidden: may only be used when `type` is 'LoadBalancer'"}},
		{"annotation behind the field", loadBalancer(func(s *Service) {
			annotated("x")(s)
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
		}), nil},
		{"class", loadBalancer(func(s *Service) { s.Spec.LoadBalancerClass = new("example.com/internal-vip") }), nil},
		{"bad class", loadBalancer(func(s *Service) { s.Spec.LoadBalancerClass = new("") }), []string{
			`spec.loadBalancerClass: Invalid value: "": name part must be non-empty`,
			`spec.loadBalancerClass: Invalid value: "": ` + keyNameDetail}},
		{"class on another type", func(s *Service) { s.Spec.LoadBalancerClass = new("a") }, []string{
			"spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"}},
		{"ingress", loadBalancer(func(s *Service) {
			s.Status.LoadBalancer.Ingress = []LoadBalancerIngress{
				{IP: "192.0.2.7"}, {Hostname: "lb.example.com"}, {IPMode: new(IPModeVIP), Hostname: "a"},
				{IP: "x", IPMode: new("Magic")}, {Hostname: "192.0.2.7"}, {Hostname: "a_b"},
			}
		}), []string{
			"status.loadBalancer.ingress[2].ipMode: Forbidden: may not be specified when `ip` is not set",
			`status.loadBalancer.ingress[3].ipMode: Unsupported value: "Magic": supported values: "Proxy", "VIP"`,
			`status.loadBalancer.ingress[3].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`,
			`status.loadBalancer.ingress[4].hostname: Invalid value: "192.0.2.7": must be a DNS name, not an IP address`,
			`status.loadBalancer.ingress[5].hostname: Invalid value: "a_b": ` + subdomainDetail,
		}},
		{"ingress on another type", func(s *Service) {
			s.Status.LoadBalancer.Ingress = []LoadBalancerIngress{{IP: "192.0.2.7"}}
		}, []string{"status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"}},
	})
}

func TestValidateTrafficPolicies(t *testing.T) {
	runServices(t, []serviceCase{
		{"external on an internal Service", func(s *Service) { s.Spec.ExternalTrafficPolicy = PolicyLocal }, []string{
			`spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services`}},
		{"external with external IPs", func(s *Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.ExternalIPs = PolicyLocal, []string{"192.0.2.7"}
		}, nil},
		{"unknown", func(s *Service) {
			ofType(TypeNodePort)(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.InternalTrafficPolicy, s.Spec.TrafficDistribution = "Global", new("local"), new("PreferFar")
		}, []string{
			`spec.externalTrafficPolicy: Unsupported value: "Global": supported values: "Cluster", "Local"`,
			`spec.internalTrafficPolicy: Unsupported value: "local": supported values: "Cluster", "Local"`,
			`spec.trafficDistribution: Unsupported value: "PreferFar": supported values: "PreferClose", "PreferSameZone", "PreferSameNode"`,
		}},
		{"distribution PreferClose", func(s *Service) { s.Spec.TrafficDistribution = new(PreferClose) }, nil},
		{"distribution PreferSameZone", func(s *Service) { s.Spec.TrafficDistribution = new(PreferSameZone) }, nil},
		{"distribution PreferSameNode", func(s *Service) { s.Spec.TrafficDistribution = new(PreferSameNode) }, nil},
	})
}

func TestValidateWithoutDefaults(t *testing.T) {
	s := &Service{Spec: ServiceSpec{Type: TypeLoadBalancer, Ports: []ServicePort{{}}}}
	wantTexts(t, Validate(s, Options{}),
		"metadata.name: Required value: name or generateName is required",
		"metadata.namespace: Required value",
		"spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
		"spec.ports[0].protocol: Required value",
		"spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
		"spec.sessionAffinity: Required value",
		"spec.allocateLoadBalancerNodePorts: Required value",
		"spec.externalTrafficPolicy: Required value",
		"spec.internalTrafficPolicy: Required value",
	)
	s = goodService(ofType(TypeLoadBalancer))
	Default(s)
	s.Status.LoadBalancer.Ingress = []LoadBalancerIngress{{IP: "192.0.2.7"}}
	wantTexts(t, Validate(s, Options{}), "status.loadBalancer.ingress[0].ipMode: Required value: must be specified when `ip` is set")
	wantTexts(t, Validate(&Service{Metadata: ObjectMeta{Name: "a", Namespace: "b"}}, Options{}),
		"spec.ports: Required value",
		"spec.type: Required value",
		"spec.sessionAffinity: Required value",
	)
}
