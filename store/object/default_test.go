package object

import (
	"reflect"
	"testing"
)

func TestDefault(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		o              func() Object
	}{
		{
			"a Service that says little",
			`{"metadata":{"name":"web"},"spec":{"ports":[{"port":80}]}}`,
			`{"metadata":{"name":"web","namespace":"default"},"spec":{"type":"ClusterIP","sessionAffinity":"None","internalTrafficPolicy":"Cluster",
			  "ports":[{"port":80,"protocol":"TCP","targetPort":80}]}}`,
			func() Object { return &Service{} },
		},
		{
			"what is said stays",
			`{"metadata":{"name":"web","namespace":"shop"},"spec":{"type":"NodePort","sessionAffinity":"ClientIP","internalTrafficPolicy":"Local",
			  "sessionAffinityConfig":{"clientIP":{"timeoutSeconds":5}},"externalTrafficPolicy":"Local",
			  "ports":[{"port":80,"protocol":"UDP","targetPort":"dns"},{"port":81,"targetPort":8081}]}}`,
			`{"metadata":{"name":"web","namespace":"shop"},"spec":{"type":"NodePort","sessionAffinity":"ClientIP","internalTrafficPolicy":"Local",
			  "sessionAffinityConfig":{"clientIP":{"timeoutSeconds":5}},"externalTrafficPolicy":"Local",
			  "ports":[{"port":80,"protocol":"UDP","targetPort":"dns"},{"port":81,"protocol":"TCP","targetPort":8081}]}}`,
			func() Object { return &Service{} },
		},
		{
			"targetPort 0 and empty are absent",
			`{"metadata":{"namespace":"a"},"spec":{"ports":[{"port":80,"targetPort":0},{"port":81,"targetPort":""}]}}`,
			`{"metadata":{"namespace":"a"},"spec":{"type":"ClusterIP","sessionAffinity":"None","internalTrafficPolicy":"Cluster",
			  "ports":[{"port":80,"protocol":"TCP","targetPort":80},{"port":81,"protocol":"TCP","targetPort":81}]}}`,
			func() Object { return &Service{} },
		},
		{
			"ClientIP without a timeout",
			`{"metadata":{"namespace":"a"},"spec":{"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{}}}}`,
			`{"metadata":{"namespace":"a"},"spec":{"type":"ClusterIP","sessionAffinity":"ClientIP","internalTrafficPolicy":"Cluster",
			  "sessionAffinityConfig":{"clientIP":{"timeoutSeconds":10800}}}}`,
			func() Object { return &Service{} },
		},
		{
			"a timeout without ClientIP",
			`{"metadata":{"namespace":"a"},"spec":{"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":86401}}}}`,
			`{"metadata":{"namespace":"a"},"spec":{"type":"ClusterIP","sessionAffinity":"None","internalTrafficPolicy":"Cluster"}}`,
			func() Object { return &Service{} },
		},
		{
			"LoadBalancer with an address from elsewhere",
			`{"metadata":{"namespace":"a"},"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"},{"hostname":"lb.example.com"},{"ip":"192.0.2.8","ipMode":"Proxy"}]}}}`,
			`{"metadata":{"namespace":"a"},"spec":{"type":"LoadBalancer","sessionAffinity":"None","internalTrafficPolicy":"Cluster",
			  "externalTrafficPolicy":"Cluster","allocateLoadBalancerNodePorts":true},
			  "status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7","ipMode":"VIP"},{"hostname":"lb.example.com"},{"ip":"192.0.2.8","ipMode":"Proxy"}]}}}`,
			func() Object { return &Service{} },
		},
		{
			"external IPs make a Service externally accessible",
			`{"metadata":{"namespace":"a"},"spec":{"externalIPs":["192.0.2.7"]}}`,
			`{"metadata":{"namespace":"a"},"spec":{"type":"ClusterIP","sessionAffinity":"None","internalTrafficPolicy":"Cluster",
			  "externalTrafficPolicy":"Cluster","externalIPs":["192.0.2.7"]}}`,
			func() Object { return &Service{} },
		},
		{
			"ExternalName has no traffic policies",
			`{"metadata":{"namespace":"a"},"spec":{"type":"ExternalName","externalName":"db.example.com","externalIPs":["192.0.2.7"]}}`,
			`{"metadata":{"namespace":"a"},"spec":{"type":"ExternalName","externalName":"db.example.com","sessionAffinity":"None","externalIPs":["192.0.2.7"]}}`,
			func() Object { return &Service{} },
		},
		{
			"Endpoints",
			`{"metadata":{"name":"web"},"subsets":[{"addresses":[{"ip":"1.2.3.4"}],"ports":[{"port":9376},{"name":"b","port":1,"protocol":"UDP"}]}]}`,
			`{"metadata":{"name":"web","namespace":"default"},"subsets":[{"addresses":[{"ip":"1.2.3.4"}],"ports":[{"port":9376,"protocol":"TCP"},{"name":"b","port":1,"protocol":"UDP"}]}]}`,
			func() Object { return &Endpoints{} },
		},
		{
			"EndpointSlice",
			`{"metadata":{"name":"web"},"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"]}],"ports":[{"port":9376},{"name":"b","protocol":"UDP"}]}`,
			`{"metadata":{"name":"web","namespace":"default"},"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"]}],"ports":[{"name":"","port":9376,"protocol":"TCP"},{"name":"b","protocol":"UDP"}]}`,
			func() Object { return &EndpointSlice{} },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, want := decode(t, tc.o(), tc.in), decode(t, tc.o(), tc.want)
			Default(got)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %s\nwant %s", toJSON(t, got), toJSON(t, want))
			}
			again := DeepCopy(got)
			Default(again)
			if !reflect.DeepEqual(got, again) {
				t.Errorf("again: %s\nwant %s", toJSON(t, again), toJSON(t, got))
			}
		})
	}
}

func TestNormalizeLegacyIPs(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		o              func() Object
	}{
		{
			"Service",
			`{"metadata":{"annotations":{"service.beta.kubernetes.io/load-balancer-source-ranges":"10.0.0.0/08, 192.0.2.0/24"}},"spec":{"clusterIP":"172.30.0.041","clusterIPs":["172.30.0.041","fd00::1"],"externalIPs":["1.2.3.004","::ffff:1.2.3.4","FE80::A","1.2.3.256"],
			  "loadBalancerIP":"010.1.2.3","loadBalancerSourceRanges":[" 192.168.000.5/24 ","10.0.0.0/8","nonsense"]},
			  "status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.007"}]}}}`,
			`{"metadata":{"annotations":{"service.beta.kubernetes.io/load-balancer-source-ranges":"10.0.0.0/8, 192.0.2.0/24"}},"spec":{"clusterIP":"172.30.0.41","clusterIPs":["172.30.0.41","fd00::1"],"externalIPs":["1.2.3.4","1.2.3.4","FE80::A","1.2.3.256"],
			  "loadBalancerIP":"10.1.2.3","loadBalancerSourceRanges":["192.168.0.0/24","10.0.0.0/8","nonsense"]},
			  "status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.7"}]}}}`,
			func() Object { return &Service{} },
		},
		{
			"headless Service",
			`{"spec":{"clusterIP":"None","clusterIPs":["None"]}}`,
			`{"spec":{"clusterIP":"None","clusterIPs":["None"]}}`,
			func() Object { return &Service{} },
		},
		{
			"Endpoints",
			`{"subsets":[{"addresses":[{"ip":"1.2.3.004"}],"notReadyAddresses":[{"ip":"01.2.3.5"}]}]}`,
			`{"subsets":[{"addresses":[{"ip":"1.2.3.4"}],"notReadyAddresses":[{"ip":"1.2.3.5"}]}]}`,
			func() Object { return &Endpoints{} },
		},
		{
			"EndpointSlice",
			`{"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.004"]}]}`,
			`{"addressType":"IPv4","endpoints":[{"addresses":["1.2.3.4"]}]}`,
			func() Object { return &EndpointSlice{} },
		},
		{
			"names are no addresses",
			`{"addressType":"FQDN","endpoints":[{"addresses":["1.2.3.004"]}]}`,
			`{"addressType":"FQDN","endpoints":[{"addresses":["1.2.3.004"]}]}`,
			func() Object { return &EndpointSlice{} },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, want := decode(t, tc.o(), tc.in), decode(t, tc.o(), tc.want)
			NormalizeLegacyIPs(got)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %s\nwant %s", toJSON(t, got), toJSON(t, want))
			}
		})
	}
}

func TestParseLegacyCIDR(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.0/8":             "10.0.0.0/8",
		"010.0.0.1/08":           "10.0.0.0/8",
		"2001:DB8::1/32":         "2001:db8::/32",
		"::ffff:192.0.2.0/120":   "192.0.2.0/24",
		"::ffff:192.0.2.0/24":    "",
		"::ffff:0.0.0.0/96":      "0.0.0.0/0",
		"10.0.0.0":               "",
		"10.0.0.0/33":            "",
		"10.0.0.0/-1":            "",
		"10.0.0.0/":              "",
		"/8":                     "",
		"fe80::1%eth0/64":        "",
		"::ffff:192.0.2.010/120": "192.0.2.0/24",
	} {
		got := ""
		if prefix, ok := parseLegacyCIDR(text); ok {
			got = prefix.String()
		}
		if got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}
