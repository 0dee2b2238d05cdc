package e2e

import (
	"fmt"
	"strings"

	"svcctl.io/svcctl/appliance/netlab"
)

// object is how a problem names an object of a family.
func (f family) object(kind, name string) string { return kind + " default/" + f.name(name) }

// name makes a name the family's own.
func (f family) name(name string) string { return name + f.pick("-4", "-6") }

// service is the document of a Service of this family alone; spec are the lines of its
// spec.
func (f family) service(name string, spec ...string) string {
	lines := append([]string{"ipFamilies: [" + f.String() + "]"}, spec...)
	return service(f.name(name), lines...)
}

// service is the document of a Service; spec are the lines of its spec.
func service(name string, spec ...string) string {
	return "apiVersion: v1\nkind: Service\nmetadata:\n  name: " + name + "\nspec:\n" + indent(spec)
}

func indent(lines []string) string {
	return "  " + strings.ReplaceAll(strings.Join(lines, "\n"), "\n", "\n  ") + "\n"
}

// slice is the document of an EndpointSlice of a Service: ports are "name: number", or
// "name: number/protocol", and the endpoints are hosts.
func (f family) slice(service, ports string, hosts ...*netlab.Host) string {
	return f.namedSlice(service, service, ports, hosts...)
}

// namedSlice is slice with a name of its own.
func (f family) namedSlice(name, service, ports string, hosts ...*netlab.Host) string {
	var endpoints []string
	for _, h := range hosts {
		endpoints = append(endpoints, f.endpoint(h))
	}
	return f.rawSlice(name, service, ports, endpoints...)
}

// rawSlice is namedSlice with endpoints as they are written in YAML.
func (f family) rawSlice(name, service, ports string, endpoints ...string) string {
	label := "{}"
	if service != "" {
		label = "{kubernetes.io/service-name: " + f.name(service) + "}"
	}
	doc := "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: " + f.name(name) +
		"\n  labels: " + label + "\naddressType: " + f.String() + "\nports: " + portList(ports) + "\n"
	if len(endpoints) == 0 {
		return doc + "endpoints: []\n"
	}
	return doc + "endpoints:\n- " + strings.Join(endpoints, "\n- ") + "\n"
}

// endpoint is a ready endpoint on a host, with the name of the node it is on: L1 and L2
// are on gw1.
func (f family) endpoint(h *netlab.Host) string {
	node := "other"
	if h.Name == "L1" || h.Name == "L2" {
		node = "gw1"
	}
	return fmt.Sprintf("{addresses: [%q], nodeName: %s, conditions: {ready: true}}", f.of(h), node)
}

// nodeless is an endpoint on a host that says nothing of its node.
func (f family) nodeless(h *netlab.Host) string { return fmt.Sprintf("{addresses: [%q]}", f.of(h)) }

// portList turns "a: 80, b: 53/UDP" into the ports of an EndpointSlice.
func portList(ports string) string {
	if strings.HasPrefix(ports, "[") {
		return ports
	}
	var all []string
	for port := range strings.SplitSeq(ports, ",") {
		name, number, _ := strings.Cut(strings.TrimSpace(port), ": ")
		number, protocol, found := strings.Cut(number, "/")
		if !found {
			protocol = "TCP"
		}
		all = append(all, fmt.Sprintf("{name: %s, port: %s, protocol: %s}", name, number, protocol))
	}
	return "[" + strings.Join(all, ", ") + "]"
}
