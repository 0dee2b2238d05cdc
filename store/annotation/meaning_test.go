package annotation

import (
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// Each cloud's way to ask for an internal load balancer is understood, its way to ask for none
// too, and what is neither is internal, with a word about it.
func TestInternalOf(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		internal   bool
		sources    []string
		bad        int
	}{
		{aws + "internal", "0.0.0.0/0", true, nil, 0},
		{aws + "internal", "10.1.2.3/8", true, []string{"10.0.0.0/8"}, 0},
		{aws + "internal", "true", true, nil, 0},
		{aws + "internal", "false", false, nil, 0},
		{aws + "internal", "", false, nil, 0},
		{aws + "internal", "yes", true, nil, 1},
		{aws + "scheme", "internal", true, nil, 0},
		{aws + "scheme", "internet-facing", false, nil, 0},
		{aws + "scheme", "10.0.0.0/8", true, nil, 1},
		{"cloud.google.com/load-balancer-type", "Internal", true, nil, 0},
		{"cloud.google.com/load-balancer-type", "internal", true, nil, 0},
		{"cloud.google.com/load-balancer-type", "External", false, nil, 0},
		{"networking.gke.io/load-balancer-type", "Internal", true, nil, 0},
		{azure + "load-balancer-internal", "true", true, nil, 0},
		{azure + "load-balancer-internal", "False", false, nil, 0},
		{"service.beta.kubernetes.io/openstack-internal-load-balancer", "true", true, nil, 0},
		{"service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", "private", true, nil, 0},
		{"service.kubernetes.io/ibm-load-balancer-cloud-provider-ip-type", "public", false, nil, 0},
		{oracle + "internal", "true", true, nil, 0},
		{"oci-network-load-balancer.oraclecloud.com/internal", "true", true, nil, 0},
		{alibaba + "address-type", "intranet", true, nil, 0},
		{alibaba + "address-type", "internet", false, nil, 0},
		{alibabaOld + "address-type", "intranet", true, nil, 0},
		{"service.kubernetes.io/qcloud-loadbalancer-internal-subnetid", "subnet-1", true, nil, 0},
		{"service.beta.kubernetes.io/cce-load-balancer-internal-vpc", "true", true, nil, 0},
		{digitalOcean + "network", "INTERNAL", true, nil, 0},
		{digitalOcean + "network", "EXTERNAL", false, nil, 0},
	} {
		got := InternalOf(annotated(tt.key, tt.value))
		if (got.Key == tt.key) != tt.internal || !slices.Equal(got.Sources, tt.sources) || len(got.Bad) != tt.bad {
			t.Errorf("%s: %q is %+v", tt.key, tt.value, got)
		}
	}
	svc := annotated(aws+"internal", "true")
	svc.Spec.Type = object.TypeNodePort
	if got := InternalOf(svc); got.Key != "" {
		t.Errorf("a NodePort is internal: %+v", got)
	}
	if got := InternalOf(annotated(aws+"scheme", "internet-facing", aws+"internal", "true")); got.Key != aws+"internal" {
		t.Errorf("of two that differ: %+v", got)
	}
}

func TestPrefersZone(t *testing.T) {
	for _, tt := range []struct {
		values  []string
		prefers bool
		bad     int
	}{
		{nil, false, 0},
		{[]string{awsCrossZone, "true"}, false, 0},
		{[]string{awsCrossZone, "false"}, true, 0},
		{[]string{awsCrossZone, ""}, false, 0},
		{[]string{awsCrossZone, "no"}, false, 1},
		{[]string{awsAttributes, "a=b, " + attributeCrossZone + "=false"}, true, 0},
		{[]string{awsAttributes, attributeCrossZone + "=true"}, false, 0},
		{[]string{awsAttributes, attributeCrossZone + "=x"}, false, 1},
		{[]string{awsAttributes, attributeCrossZone + "=false", awsCrossZone, "true"}, false, 0},
	} {
		if prefers, bad := PrefersZone(annotated(tt.values...)); prefers != tt.prefers || len(bad) != tt.bad {
			t.Errorf("%v: %v, %v", tt.values, prefers, bad)
		}
	}
}

// The ports that ask for TLS, of TCP 80 (http) and 443 (https), and UDP 443.
func TestTLSKey(t *testing.T) {
	ports := []object.ServicePort{
		{Name: "http", Protocol: object.ProtocolTCP, Port: 80},
		{Name: "https", Protocol: object.ProtocolTCP, Port: 443},
		{Name: "quic", Protocol: object.ProtocolUDP, Port: 443},
	}
	const both, one, none = "http https", "https", ""
	for _, tt := range []struct {
		want   string
		values []string
	}{
		{none, nil},
		{both, []string{awsCert, "arn:x"}},
		{both, []string{awsCert, "arn:x", awsSSLPorts, "*"}},
		{one, []string{awsCert, "arn:x", awsSSLPorts, "443,8443"}},
		{one, []string{awsCert, "arn:x", awsSSLPorts, " https "}},
		{both, []string{awsCert, "arn:x", awsSSLPorts, "8443"}},
		{one, []string{awsSSLPorts, "443"}},
		{both, []string{openStack + "default-tls-container-ref", "http://barbican/x"}},
		{one, []string{oracle + "ssl-ports", "443"}},
		{one, []string{oracle + "ssl-ports", "443", oracle + "tls-secret", "s"}},
		{both, []string{oracle + "tls-secret", "s"}},
		{one, []string{alibaba + "cert-id", "c", alibaba + "protocol-port", "https:443,http:80"}},
		{one, []string{alibabaOld + "protocol-port", "tcpssl:443"}},
		{both, []string{alibaba + "cert-id", "c"}},
		{one, []string{tencentCloud + "specify-protocol", `{"80":{"protocol":["HTTP"]},"443":{"protocol":["HTTPS"],"tls":"s"}}`}},
		{none, []string{tencentCloud + "specify-protocol", `{"80":{"protocol":["TCP"]}}`}},
		{both, []string{tencentCloud + "specify-protocol", `[443`}},
		{one, []string{digitalOcean + "tls-ports", "443", digitalOcean + "certificate-id", "c"}},
		{one, []string{digitalOcean + "http2-ports", "443"}},
		{none, []string{digitalOcean + "tls-ports", "443", digitalOcean + "tls-passthrough", "true"}},
		{both, []string{digitalOcean + "certificate-name", "c"}},
		{both, []string{hetzner + "http-certificates", ""}},
		{both, []string{hetzner + "protocol", "https"}},
		{none, []string{hetzner + "protocol", "tcp"}},
		{both, []string{scaleway + "certificate-ids", "x"}},
		{one, []string{linode + "default-protocol", "https", linode + "port-80", `{"protocol":"http"}`}},
		{both, []string{linode + "default-protocol", "https"}},
		{both, []string{digitalOcean + "protocol", "https"}},
		{none, []string{digitalOcean + "protocol", "http"}},
	} {
		svc, got := annotated(tt.values...), ""
		svc.Spec.Ports = ports
		for i := range ports {
			key, _ := TLSKey(svc, &ports[i])
			if r := table().byKey[key]; key != "" && key != awsSSLPorts && (r == nil || r.Effect != Refused) {
				t.Errorf("%v: asked for by %s, whose row is %+v", tt.values, key, r)
			}
			if key != "" {
				got += " " + ports[i].Name
			}
		}
		if got != "" && got[1:] != tt.want || got == "" && tt.want != "" {
			t.Errorf("%v: %q ask for TLS, want %q", tt.values, got, tt.want)
		}
	}
}

func TestAddressesAndSharing(t *testing.T) {
	a := annotated("metallb.io/loadBalancerIPs", "192.0.2.1, 2001:db8::1", azure+"load-balancer-ipv4", "192.0.2.2", LoadBalancerIPs, "192.0.2.3,").Metadata.Annotations
	want := []Asked{{LoadBalancerIPs, "192.0.2.3"}, {"metallb.io/loadBalancerIPs", "192.0.2.1"}, {"metallb.io/loadBalancerIPs", "2001:db8::1"}, {azure + "load-balancer-ipv4", "192.0.2.2"}}
	if got := Addresses(a); !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
	if got := Sharing(annotated("metallb.universe.tf/allow-shared-ip", "k").Metadata.Annotations); got != "k" {
		t.Errorf("sharing key %q", got)
	}
}

func TestSourceRangesAndLists(t *testing.T) {
	if ranges, key := SourceRanges(annotated(azure+"allowed-ip-ranges", "10.0.0.0/8,192.0.2.0/24").Metadata.Annotations); len(ranges) != 2 || key != azure+"allowed-ip-ranges" {
		t.Errorf("ranges %v of %s", ranges, key)
	}
	svc := annotated(tencentCloud+"security-groups", "sg-1")
	if got := UnreadableAccess(svc); got != tencentCloud+"security-groups" {
		t.Errorf("a list of clients is %q", got)
	}
	svc.Spec.Type = object.TypeClusterIP
	if got := UnreadableAccess(svc) + UnreadableAccess(annotated()); got != "" {
		t.Errorf("a list of clients where there is none: %q", got)
	}
}

// Each TCP port that may be meant by an annotation of a cloud is not served, and each that cannot be is.
func TestPortsThatMayBeMeant(t *testing.T) {
	const arn = "arn:aws:acm:us-east-1:1:certificate/2"
	for name, tt := range map[string]struct {
		annotations map[string]string
		http, https string // why; "cert": an unreadable certificate, "": not asked
	}{
		"nothing":                       {nil, "", ""},
		"ARN":                           {map[string]string{awsCert: arn}, "cert", "cert"},
		"ARN of a port":                 {map[string]string{awsCert: arn, awsSSLPorts: "443"}, "", "cert"},
		"ARN of a port by name":         {map[string]string{awsCert: arn, awsSSLPorts: "HTTPS"}, "", "cert"},
		"ARN of a port that is not":     {map[string]string{awsCert: arn, awsSSLPorts: "4443"}, `"4443" is no TCP port`, `"4443" is no TCP port`},
		"Secret of a port that is not":  {map[string]string{awsCert: "secret:a", awsSSLPorts: "4443"}, `"4443" is no TCP port`, `"4443" is no TCP port`},
		"Secret of one port that is":    {map[string]string{awsCert: "secret:a", awsSSLPorts: "443, 4443"}, "", "cert"},
		"Secret of the other":           {map[string]string{awsCert: "secret:a", awsSSLPorts: "80, 4443"}, "cert", `"4443" is no TCP port`},
		"Secret of UDP":                 {map[string]string{awsCert: "secret:a", awsSSLPorts: "dns"}, `"dns" is no TCP port`, `"dns" is no TCP port`},
		"empty":                         {map[string]string{awsCert: ""}, "no certificate", "no certificate"},
		"empty for a port":              {map[string]string{awsCert: " ", awsSSLPorts: "443"}, "", "no certificate"},
		"ports alone":                   {map[string]string{awsSSLPorts: "443"}, "", "no certificate"},
		"all ports alone":               {map[string]string{awsSSLPorts: "*"}, "no certificate", "no certificate"},
		"a typo in ports alone":         {map[string]string{awsSSLPorts: "4443"}, `"4443" is no TCP port`, `"4443" is no TCP port`},
		"OpenStack, empty":              {map[string]string{openStack + "default-tls-container-ref": ""}, "no certificate", "no certificate"},
		"Oracle":                        {map[string]string{oracle + "ssl-ports": "443", oracle + "tls-secret": "a"}, "", "cert"},
		"Oracle, a typo":                {map[string]string{oracle + "ssl-ports": "4443", oracle + "tls-secret": "a"}, `"4443" is no TCP port`, `"4443" is no TCP port`},
		"Alibaba":                       {map[string]string{alibaba + "protocol-port": "https:443,http:80"}, "", "cert"},
		"Alibaba, a typo of a port":     {map[string]string{alibaba + "protocol-port": "https:4443,http:80"}, `"4443" is no TCP port`, `"4443" is no TCP port`},
		"Alibaba, a typo of a protocol": {map[string]string{alibaba + "protocol-port": "htps:443,http:80"}, "", "cert"},
		"Tencent, a typo of a port":     {map[string]string{tencentCloud + "specify-protocol": `{"4443":{"protocol":["HTTPS"]}}`}, `"4443" is no TCP port`, `"4443" is no TCP port`},
		"Tencent, a typo of a protocol": {map[string]string{tencentCloud + "specify-protocol": `{"443":{"protocol":["HTPS"]},"80":{"protocol":["HTTP"]}}`}, "", "cert"},
		"DigitalOcean":                  {map[string]string{digitalOcean + "tls-ports": "443", digitalOcean + "certificate-id": "x"}, "", "cert"},
		"DigitalOcean, a typo":          {map[string]string{digitalOcean + "tls-ports": "4443", digitalOcean + "certificate-id": "x"}, `"4443" is no TCP port`, `"4443" is no TCP port`},
		"DigitalOcean, passed through":  {map[string]string{digitalOcean + "tls-ports": "4443", digitalOcean + "tls-passthrough": "true"}, "", ""},
		"DigitalOcean, no protocol":     {map[string]string{digitalOcean + "protocol": "htps"}, "cert", "cert"},
	} {
		for _, kind := range []string{object.TypeLoadBalancer, object.TypeNodePort, object.TypeClusterIP} {
			svc := fronted(tt.annotations)
			svc.Spec.Type = kind
			for i, want := range []string{tt.http, tt.https, ""} {
				key, why := TLSKey(svc, &svc.Spec.Ports[i])
				switch {
				case want == "" && key == "", want == "cert" && key != "" && why == "", want != "" && key != "" && strings.Contains(why, want):
				default:
					t.Errorf("%s, %s: port %d: %q %q, want %q", name, kind, i, key, why, want)
				}
			}
		}
	}
}
