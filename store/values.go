package store

import (
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// values are the addresses and ports that one Service holds.
type values struct {
	clusterIPs []netip.Addr
	// ports are node ports, and the health-check node port, which is TCP.
	ports   []alloc.Port
	ingress []netip.Addr
}

// valuesOf reads off a Service what it holds, or before allocation what it asks for.
func valuesOf(svc *object.Service) values {
	var v values
	if svc.NeedsClusterIP() && !svc.Headless() {
		for _, text := range svc.Spec.ClusterIPs {
			if addr, err := netip.ParseAddr(text); err == nil {
				v.clusterIPs = append(v.clusterIPs, addr)
			}
		}
	}
	for _, port := range svc.Spec.Ports {
		if port.NodePort != 0 {
			v.ports = append(v.ports, alloc.Port{Protocol: port.Protocol, Number: uint16(port.NodePort)})
		}
	}
	if number := svc.Spec.HealthCheckNodePort; number != 0 {
		v.ports = append(v.ports, alloc.Port{Protocol: object.ProtocolTCP, Number: uint16(number)})
	}
	if isOurLoadBalancer(svc) {
		for _, ingress := range svc.Status.LoadBalancer.Ingress {
			if addr, err := netip.ParseAddr(ingress.IP); err == nil {
				v.ingress = append(v.ingress, addr)
			}
		}
	}
	return v
}

// isOurLoadBalancer reports whether load balancer IPs of the Service are for us to give.
func isOurLoadBalancer(svc *object.Service) bool {
	class := svc.Spec.LoadBalancerClass
	return svc.Spec.Type == object.TypeLoadBalancer && (class == nil || *class == LoadBalancerClass)
}

// requestOf returns the request of a load balancer on the pools.
func requestOf(svc *object.Service) alloc.Request {
	request := alloc.Request{
		Owner:      index.ServiceKey(svc),
		SharingKey: annotation.Sharing(svc.Metadata.Annotations),
		Internal:   annotation.InternalOf(svc).Key != "",
		Pool:       annotation.AddressPool(svc.Metadata.Annotations),
		Labels:     svc.Metadata.Labels,
	}
	for _, asked := range askedIngress(svc) {
		if asked.addr.IsValid() {
			request.Requested = append(request.Requested, asked.addr)
		}
	}
	for _, port := range svc.Spec.Ports {
		request.Ports = append(request.Ports, alloc.Port{Protocol: port.Protocol, Number: uint16(port.Port)})
	}
	return request
}

func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return object.IPv4
	}
	return object.IPv6
}

// asked is a load balancer IP that a Service asks for, and where it says so. The zero
// Addr is a text that is no address.
type asked struct {
	field string
	text  string
	addr  netip.Addr
}

// askedIngress are the load balancer IPs that a Service asks for, each once.
func askedIngress(svc *object.Service) []asked {
	if svc.Spec.Type != object.TypeLoadBalancer {
		return nil
	}
	var list []asked
	add := func(field, text string) {
		text = strings.TrimSpace(text)
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			addr = netip.Addr{}
		}
		addr = addr.Unmap()
		if text != "" && !(addr.IsValid() && slices.ContainsFunc(list, func(a asked) bool { return a.addr == addr })) {
			list = append(list, asked{field, text, addr})
		}
	}
	add("spec.loadBalancerIP", svc.Spec.LoadBalancerIP)
	for _, a := range annotation.Addresses(svc.Metadata.Annotations) {
		add(annotation.Field(a.Key), a.Text)
	}
	return list
}

func portsOf(svc *object.Service) []alloc.Port {
	ports := make([]alloc.Port, len(svc.Spec.Ports))
	for i, port := range svc.Spec.Ports {
		ports[i] = alloc.Port{Protocol: port.Protocol, Number: uint16(port.Port)}
	}
	return ports
}
