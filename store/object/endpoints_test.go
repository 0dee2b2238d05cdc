package object

import (
	"fmt"
	"strings"
	"testing"
)

// manyIPs is n different addresses.
func manyIPs(n int) []string {
	ips := make([]string, n)
	for i := range ips {
		ips[i] = fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)
	}
	return ips
}

func manyAddresses(n int) []EndpointAddress {
	addresses := make([]EndpointAddress, n)
	for i, ip := range manyIPs(n) {
		addresses[i].IP = ip
	}
	return addresses
}

func TestValidateEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Endpoints)
		want   []string
	}{
		{"good", func(e *Endpoints) {}, nil},
		{"no subsets", func(e *Endpoints) { e.Subsets = nil }, nil},
		{"a name with dots", func(e *Endpoints) { e.Metadata.Name = "web.v1" }, nil},
		{"a bad name", func(e *Endpoints) { e.Metadata.Name = "Web" }, []string{
			`metadata.name: Invalid value: "Web": ` + subdomainDetail}},
		{"no addresses", func(e *Endpoints) { e.Subsets[0].Addresses = nil }, []string{
			"subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"}},
		{"no ports", func(e *Endpoints) { e.Subsets[0].Ports = nil }, nil},
		{"addresses", func(e *Endpoints) {
			e.Subsets[0].Addresses = []EndpointAddress{{IP: "127.0.0.1"}, {IP: "169.254.0.1"}, {IP: "224.0.0.9"}, {IP: "0.0.0.0"}, {IP: "::1"}, {IP: "x"}}
			e.Subsets[0].NotReadyAddresses = []EndpointAddress{{IP: "fe80::1"}, {IP: "::ffff:127.0.0.1"}, {IP: "1.2.3.004"}}
		}, []string{
			`subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			`subsets[0].addresses[1].ip: Invalid value: "169.254.0.1": may not be in the link-local range (169.254.0.0/16, fe80::/10)`,
			`subsets[0].addresses[2].ip: Invalid value: "224.0.0.9": may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)`,
			`subsets[0].addresses[3].ip: Invalid value: "0.0.0.0": may not be unspecified (0.0.0.0)`,
			`subsets[0].addresses[4].ip: Invalid value: "::1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			`subsets[0].addresses[5].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`,
			`subsets[0].notReadyAddresses[0].ip: Invalid value: "fe80::1": may not be in the link-local range (169.254.0.0/16, fe80::/10)`,
			`subsets[0].notReadyAddresses[1].ip: Invalid value: "::ffff:127.0.0.1": must not be an IPv4-mapped IPv6 address`,
			`subsets[0].notReadyAddresses[1].ip: Invalid value: "::ffff:127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			`subsets[0].notReadyAddresses[2].ip: Invalid value: "1.2.3.004": must not have leading 0s`,
		}},
		{"hostname and nodeName", func(e *Endpoints) {
			e.Subsets[0].Addresses[0].Hostname = "a.b"
			e.Subsets[0].Addresses[0].NodeName = new("Node")
		}, []string{
			`subsets[0].addresses[0].hostname: Invalid value: "a.b": must not contain dots`,
			`subsets[0].addresses[0].nodeName: Invalid value: "Node": ` + subdomainDetail,
		}},
		{"ports", func(e *Endpoints) {
			e.Subsets[0].Ports = []EndpointPort{{Port: new(int32(1))}, {Name: new("A"), Port: new(int32(70000)), Protocol: new("ICMP")}, {Name: new("c")}}
		}, []string{
			`subsets[0].ports[0].name: Required value`,
			`subsets[0].ports[1].name: Invalid value: "A": ` + label1123Detail,
			`subsets[0].ports[1].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"`,
			`subsets[0].ports[1].port: Invalid value: 70000: must be between 1 and 65535, inclusive`,
			`subsets[0].ports[2].port: Invalid value: 0: must be between 1 and 65535, inclusive`,
		}},
		{"1000 addresses", func(e *Endpoints) { e.Subsets[0].Addresses = manyAddresses(1000) }, nil},
		{"1001 addresses", func(e *Endpoints) {
			e.Subsets[0].Addresses = manyAddresses(600)
			e.Subsets = append(e.Subsets, EndpointSubset{NotReadyAddresses: manyAddresses(401)})
		}, []string{"subsets: Too many: 1001: must have at most 1000 items"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := goodEndpoints(tc.change)
			Default(e)
			wantTexts(t, Validate(e, Options{}), tc.want...)
		})
	}
}

func TestValidateEndpointSlice(t *testing.T) {
	many := func(n int) []Endpoint {
		endpoints := make([]Endpoint, n)
		for i, ip := range manyIPs(n) {
			endpoints[i].Addresses = []string{ip}
		}
		return endpoints
	}
	zones := func(names ...string) *EndpointHints {
		hints := &EndpointHints{}
		for _, name := range names {
			hints.ForZones = append(hints.ForZones, ForZone{Name: name})
			hints.ForNodes = append(hints.ForNodes, ForNode{Name: name})
		}
		return hints
	}
	for _, tc := range []struct {
		name   string
		change func(*EndpointSlice)
		want   []string
	}{
		{"good", func(e *EndpointSlice) {}, nil},
		{"empty", func(e *EndpointSlice) { e.Endpoints, e.Ports = nil, nil }, nil},
		{"no address type", func(e *EndpointSlice) { e.AddressType = "" }, []string{"addressType: Required value"}},
		{"unknown address type", func(e *EndpointSlice) { e.AddressType = "IP" }, []string{
			`addressType: Unsupported value: "IP": supported values: "FQDN", "IPv4", "IPv6"`}},
		{"1000 endpoints", func(e *EndpointSlice) { e.Endpoints = many(1000) }, nil},
		{"1001 endpoints", func(e *EndpointSlice) { e.Endpoints = many(1001) }, []string{
			"endpoints: Too many: 1001: must have at most 1000 items"}},
		{"no addresses", func(e *EndpointSlice) { e.Endpoints[0].Addresses = nil }, []string{
			"endpoints[0].addresses: Required value: must contain at least 1 address"}},
		{"100 addresses", func(e *EndpointSlice) { e.Endpoints[0].Addresses = manyIPs(100) }, nil},
		{"101 addresses", func(e *EndpointSlice) { e.Endpoints[0].Addresses = manyIPs(101) }, []string{
			"endpoints[0].addresses: Too many: 101: must have at most 100 items"}},
		{"IPv4 addresses", func(e *EndpointSlice) {
			e.Endpoints[0].Addresses = []string{"1.2.3.4", "2001:db8::1", "x", "127.0.0.1", "1.2.3.04"}
		}, []string{
			`endpoints[0].addresses[1]: Invalid value: "2001:db8::1": must be an IPv4 address`,
			`endpoints[0].addresses[2]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)`,
			`endpoints[0].addresses[3]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)`,
			`endpoints[0].addresses[4]: Invalid value: "1.2.3.04": must not have leading 0s`,
		}},
		{"IPv6 addresses", func(e *EndpointSlice) {
			e.AddressType = IPv6
			e.Endpoints[0].Addresses = []string{"2001:db8::1", "1.2.3.4", "fe80::1", "::ffff:1.2.3.4"}
		}, []string{
			`endpoints[0].addresses[1]: Invalid value: "1.2.3.4": must be an IPv6 address`,
			`endpoints[0].addresses[2]: Invalid value: "fe80::1": may not be in the link-local range (169.254.0.0/16, fe80::/10)`,
			`endpoints[0].addresses[3]: Invalid value: "::ffff:1.2.3.4": must not be an IPv4-mapped IPv6 address`,
			`endpoints[0].addresses[3]: Invalid value: "::ffff:1.2.3.4": must be an IPv6 address`,
		}},
		{"names", func(e *EndpointSlice) {
			e.AddressType = FQDN
			e.Endpoints[0].Addresses = []string{"a.example.com", "example.com.", "", "localhost", "A.example.com", strings.Repeat("a", 64) + ".b"}
		}, []string{
			`endpoints[0].addresses[2]: Required value`,
			`endpoints[0].addresses[3]: Invalid value: "localhost": should be a domain with at least two segments separated by dots`,
			`endpoints[0].addresses[4]: Invalid value: "A.example.com": ` + subdomainDetail,
			`endpoints[0].addresses[5]: Invalid value: "` + strings.Repeat("a", 64) + `": must be no more than 63 bytes`,
		}},
		{"hostname, nodeName, topology", func(e *EndpointSlice) {
			e.Endpoints[0].Hostname, e.Endpoints[0].NodeName = new("A"), new("n_1")
			e.Endpoints[0].DeprecatedTopology = map[string]string{}
			for i := range 17 {
				e.Endpoints[0].DeprecatedTopology[fmt.Sprint("k", i)] = ""
			}
		}, []string{
			`endpoints[0].nodeName: Invalid value: "n_1": ` + subdomainDetail,
			`endpoints[0].deprecatedTopology: Too many: 17: must have at most 16 items`,
			`endpoints[0].hostname: Invalid value: "A": ` + label1123Detail,
		}},
		{"16 topology labels", func(e *EndpointSlice) {
			e.Endpoints[0].DeprecatedTopology = map[string]string{}
			for i := range 16 {
				e.Endpoints[0].DeprecatedTopology[fmt.Sprint("k", i)] = ""
			}
		}, nil},
		{"8 hints", func(e *EndpointSlice) { e.Endpoints[0].Hints = zones("a", "b", "c", "d", "e", "f", "g", "h") }, nil},
		{"9 hints", func(e *EndpointSlice) { e.Endpoints[0].Hints = zones("a", "b", "c", "d", "e", "f", "g", "h", "i") }, []string{
			"endpoints[0].hints.forZones: Too many: 9: must have at most 8 items",
			"endpoints[0].hints.forNodes: Too many: 9: must have at most 8 items"}},
		{"bad hints", func(e *EndpointSlice) { e.Endpoints[0].Hints = zones("a", "a", "b c") }, []string{
			`endpoints[0].hints.forZones[1].name: Duplicate value: "a"`,
			`endpoints[0].hints.forZones[2].name: Invalid value: "b c": ` + valueDetail,
			`endpoints[0].hints.forNodes[1].name: Duplicate value: "a"`,
			`endpoints[0].hints.forNodes[2].name: Invalid value: "b c": ` + subdomainDetail,
		}},
		{"ports", func(e *EndpointSlice) {
			e.Ports = []EndpointPort{
				{}, {Port: new(int32(0))}, {Name: new("A_1"), Protocol: new("TLS"), AppProtocol: new("-")},
				{Name: new("c"), Port: new(int32(65536))}, {Name: new("d"), Port: new(int32(-1))}, {Name: new("e"), Protocol: new("")},
			}
		}, []string{
			`ports[1].name: Duplicate value: ""`,
			`ports[2].name: Invalid value: "A_1": ` + label1123Detail,
			`ports[2].protocol: Unsupported value: "TLS": supported values: "SCTP", "TCP", "UDP"`,
			`ports[2].appProtocol: Invalid value: "-": ` + keyNameDetail,
			`ports[3].port: Invalid value: 65536: must be between 1 and 65535, inclusive`,
			`ports[4].port: Invalid value: -1: must be between 1 and 65535, inclusive`,
			`ports[5].protocol: Required value`,
		}},
		{"too many ports", func(e *EndpointSlice) { e.Ports = make([]EndpointPort, 20001) }, []string{
			"ports: Too many: 20001: must have at most 20000 items"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := goodSlice(tc.change)
			Default(e)
			wantTexts(t, Validate(e, Options{}), tc.want...)
		})
	}
}
