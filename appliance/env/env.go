package env

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Variable is an environment variable of a container.
type Variable struct{ Name, Value string }

// Of returns the environment variables for the Services of one namespace, as Kubernetes sets them (pkg/kubelet/envvars). If two Services yield the
// same variable (for example web-port-80-tcp and web), the later one by name wins.
func Of(services []*object.Service) []Variable {
	services = slices.Clone(services)
	slices.SortFunc(services, func(a, b *object.Service) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	var all []Variable
	last := map[string]int{} // where a name comes last
	for _, svc := range services {
		for _, v := range ofService(svc) {
			last[v.Name] = len(all)
			all = append(all, v)
		}
	}
	kept := all[:0]
	for i, v := range all {
		if last[v.Name] == i {
			kept = append(kept, v)
		}
	}
	return kept
}

// ofService returns the variables of one Service: its address and ports, and those of Docker's container links.
func ofService(svc *object.Service) []Variable {
	host, ports := svc.Spec.ClusterIP, svc.Spec.Ports
	if svc.Spec.Type == object.TypeExternalName || svc.Headless() || host == "" || len(ports) == 0 {
		return nil
	}
	prefix := nameOf(svc.Metadata.Name)
	port := prefix + "_SERVICE_PORT"
	all := []Variable{{prefix + "_SERVICE_HOST", host}, {port, number(ports[0].Port)}}
	for _, p := range ports {
		if p.Name != "" {
			all = append(all, Variable{port + "_" + nameOf(p.Name), number(p.Port)})
		}
	}
	for i, p := range ports {
		protocol := strings.ToLower(p.Protocol)
		url := protocol + "://" + inURL(host) + ":" + number(p.Port)
		if i == 0 {
			all = append(all, Variable{prefix + "_PORT", url})
		}
		link := prefix + "_PORT_" + number(p.Port) + "_" + p.Protocol
		all = append(all,
			Variable{link, url}, Variable{link + "_PROTO", protocol},
			Variable{link + "_PORT", number(p.Port)}, Variable{link + "_ADDR", host})
	}
	return all
}

// inURL returns an address in the form that precedes a port in a URL (RFC 3986, section 3.2.2).
func inURL(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// nameOf returns the name of a Service as a part of the name of a variable.
func nameOf(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

func number(port int32) string { return strconv.Itoa(int(port)) }
