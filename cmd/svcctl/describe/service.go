package describe

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Facts is the input of the description of a Service: the object, its slices, and what the appliance reports about them.
type Facts struct {
	Service *object.Service
	Slices  []*object.EndpointSlice
	Status  *wire.Status
	Created string // creation time and age
	// State is the state of the Service in the appliance, nil if it is not available.
	State *wire.ServiceState
	// Health has a header row, and a row for each endpoint with a health check.
	Health [][]string
}

// Service writes the fields of a Service, its addresses, its endpoints, and whether it is in the kernel.
func (p *Page) Service(f Facts) {
	svc := f.Service
	p.line("Name", "%s", svc.Metadata.Name)
	p.line("Namespace", "%s", svc.Metadata.Namespace)
	p.line("Created", "%s", f.Created)
	p.given("Managed By", strings.Join(diagnose.Managers(svc), ", "))
	if f.State != nil {
		p.given("Declared In", f.State.Declared)
	}
	p.pairs("Labels", svc.Metadata.Labels)
	p.pairs("Annotations", svc.Metadata.Annotations)
	p.line("Selector", "%s", cmp.Or(object.Pairs(svc.Spec.Selector), "<none>"))
	p.line("Type", "%s", svc.Spec.Type)
	serviceAddresses(p, svc)
	for _, port := range svc.Spec.Ports {
		p.line("Port", "%s  %d/%s", cmp.Or(port.Name, "<unset>"), port.Port, port.Protocol)
		p.line("TargetPort", "%s/%s", port.TargetPort, port.Protocol)
		if port.NodePort > 0 {
			p.line("NodePort", "%s  %d/%s", cmp.Or(port.Name, "<unset>"), port.NodePort, port.Protocol)
		}
		p.line("Endpoints", "%s", usable(svc, f.Slices, port))
	}
	servicePolicies(p, svc)
	if how := annotation.RelayOf(svc); how.Fronted() && f.State != nil {
		fronts(p, svc, how, f.State)
	}
	describeSlices(p, svc, f.Slices)
	p.health(f.Health)
	p.line("Kernel", "%s", inKernel(svc, f.Status))
	for _, c := range svc.Status.Conditions {
		p.line("Condition", "%s is %s: %s", c.Type, c.Status, strings.TrimSuffix(cmp.Or(c.Message, c.Reason), "\n"))
	}
}

// health writes the states of the endpoints with a health check.
func (p *Page) health(rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.heading("Health")
	shown := rows[:min(len(rows), 1+shownInSlice)]
	p.WriteString(output.TrimLines(output.Indent(new(output.Grid).Text(shown...), "  ")))
	if more := len(rows) - len(shown); more > 0 {
		fmt.Fprintf(p, "  and %d more\n", more)
	}
}

// fronts writes which ports terminate TLS or relay HTTP, and the Secrets of their certificates.
func fronts(p *Page, svc *object.Service, how annotation.Relay, state *wire.ServiceState) {
	for i, f := range how.Fronts {
		var words []string
		if len(f.Secrets) > 0 {
			words = append(words, "TLS ended with Secret "+strings.Join(f.Secrets, ", "))
		}
		if f.HTTP {
			words = append(words, "HTTP")
		}
		if f.BackendTLS {
			words = append(words, "TLS to endpoints")
		}
		for _, s := range f.Services {
			if s.Service == "" {
				words = append(words, s.ServerName+" reset")
			} else {
				words = append(words, s.ServerName+" to Service "+s.Service)
			}
		}
		switch {
		case f.Why != "":
			words = []string{"not served: " + f.Why}
		case len(words) == 0:
			continue
		}
		p.line("Relayed Port", "%d/%s  %s", svc.Spec.Ports[i].Port, svc.Spec.Ports[i].Protocol, output.Printable(strings.Join(words, ", ")))
	}
	for _, c := range state.Certificates {
		p.line("Certificate", "%s", output.Printable(c.String()))
	}
}

// serviceAddresses writes the addresses and ports of a Service.
func serviceAddresses(p *Page, svc *object.Service) {
	spec := &svc.Spec
	if spec.Type == object.TypeExternalName {
		p.line("External Name", "%s", spec.ExternalName)
		return
	}
	p.given("IP Family Policy", object.Deref(spec.IPFamilyPolicy))
	p.line("IP Families", "%s", commas(spec.IPFamilies))
	p.line("IPs", "%s", commas(spec.ClusterIPs))
	p.given("External IPs", strings.Join(spec.ExternalIPs, ","))
	p.given("Desired LoadBalancer IP", spec.LoadBalancerIP)
	if spec.Type == object.TypeLoadBalancer {
		var all []string
		for _, i := range svc.Status.LoadBalancer.Ingress {
			text := cmp.Or(i.IP, i.Hostname)
			if i.IPMode != nil {
				text += " (" + *i.IPMode + ")"
			}
			all = append(all, text)
		}
		p.line("LoadBalancer Ingress", "%s", cmp.Or(strings.Join(all, ", "), "<pending>"))
	}
}

// servicePolicies writes the policies, affinity and limits of a Service.
func servicePolicies(p *Page, svc *object.Service) {
	spec := &svc.Spec
	affinity := spec.SessionAffinity
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		affinity += fmt.Sprintf(", %d s", *c.ClientIP.TimeoutSeconds)
	}
	if affinity != "" {
		p.line("Session Affinity", "%s%s", affinity, affinityExtras(svc))
	}
	for _, line := range [][2]string{{"Balance", object.AnnotationBalance}, {"Weights", object.AnnotationWeights}, {"Slow Start", object.AnnotationSlowStart}, {"Retry After", object.AnnotationRetryAfter}, {"Port Ranges", object.AnnotationPortRanges},
		{"Rate Limit", object.AnnotationRateLimit}, {"Client Rate Limit", object.AnnotationClientRateLimit}, {"Client Connections", object.AnnotationClientConnections}, {"Endpoint Connections", object.AnnotationEndpointConnections}} {
		if text, given := svc.Metadata.Annotations[line[1]]; given {
			if name, err := object.ParseBalance(text); err == nil {
				text = name
			}
			p.line(line[0], "%s", output.Printable(text))
		}
	}
	p.given("External Traffic Policy", spec.ExternalTrafficPolicy)
	p.given("Internal Traffic Policy", object.Deref(spec.InternalTrafficPolicy))
	p.given("Traffic Distribution", object.Deref(spec.TrafficDistribution))
	if spec.HealthCheckNodePort > 0 {
		p.line("HealthCheck NodePort", "%d", spec.HealthCheckNodePort)
	}
	p.given("Source Ranges", strings.Join(spec.LoadBalancerSourceRanges, ","))
	if spec.PublishNotReadyAddresses {
		p.line("Publish Not Ready", "true")
	}
}

// commas joins words with commas; "<none>" if there are none.
func commas(words []string) string { return cmp.Or(strings.Join(words, ","), "<none>") }

// shownEndpoints is the maximum number of endpoints in the line of a port.
const shownEndpoints = 5

// unused returns why no address of a Service uses the endpoints of a slice: the Service has no address of that IP family. It returns "" if one does.
func unused(svc *object.Service, s *object.EndpointSlice) string {
	if families := svc.Spec.IPFamilies; svc.Headless() || len(families) == 0 || slices.Contains(families, s.AddressType) {
		return ""
	}
	return "not used: the Service has no " + s.AddressType + " address"
}

// usable returns the addresses of a port's ready endpoints as text.
func usable(svc *object.Service, endpoints []*object.EndpointSlice, p object.ServicePort) string {
	var all []string
	for _, s := range endpoints {
		if unused(svc, s) != "" {
			continue // the list of slices has them
		}
		for _, port := range s.Ports {
			if port.Port == nil || object.Deref(port.Name) != p.Name || cmp.Or(object.Deref(port.Protocol), object.ProtocolTCP) != p.Protocol {
				continue
			}
			for _, e := range s.Endpoints {
				if Ready(&e) && len(e.Addresses) > 0 {
					all = append(all, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) > shownEndpoints {
		return fmt.Sprintf("%s + %d more", strings.Join(all[:shownEndpoints], ","), len(all)-shownEndpoints)
	}
	return commas(all)
}

// shownInSlice is the maximum number of endpoints listed for a slice.
const shownInSlice = 20

// describeSlices writes the endpoints, slice by slice.
func describeSlices(p *Page, svc *object.Service, endpoints []*object.EndpointSlice) {
	if len(endpoints) == 0 {
		p.line("EndpointSlices", "<none>")
		return
	}
	p.heading("EndpointSlices")
	for _, s := range endpoints {
		var ports []string
		for _, p := range s.Ports {
			text := "*"
			if p.Port != nil {
				text = fmt.Sprintf("%d/%s", *p.Port, cmp.Or(object.Deref(p.Protocol), object.ProtocolTCP))
			}
			if name := object.Deref(p.Name); name != "" {
				text = name + " " + text
			}
			ports = append(ports, text)
		}
		fmt.Fprintf(p, "  %s, %s, ports %s%s", s.Metadata.Name, s.AddressType, commas(ports), sliceShare(s))
		if why := unused(svc, s); why != "" {
			fmt.Fprintf(p, " (%s)", why)
		}
		p.WriteString("\n")
		rows := [][]string{}
		for i := range s.Endpoints[:min(len(s.Endpoints), shownInSlice)] {
			e := &s.Endpoints[i]
			rows = append(rows, []string{strings.Join(e.Addresses, ","), endpointState(e), endpointPlace(e)})
		}
		var g output.Grid
		p.WriteString(output.TrimLines(output.Indent(g.Text(rows...), "    ")))
		if more := len(s.Endpoints) - shownInSlice; more > 0 {
			fmt.Fprintf(p, "    and %d more\n", more)
		}
	}
}

// sliceShare returns the weight, share and priority of a slice as text; "" if all have their defaults.
func sliceShare(s *object.EndpointSlice) (text string) {
	if w := s.Metadata.WeightOf(); w != 1 {
		text += fmt.Sprintf(", weight %d", w)
	}
	if share, has := s.Metadata.Annotations[object.AnnotationShare]; has {
		text += ", share " + share
	}
	if p := s.Metadata.PriorityOf(); p != 0 {
		text += fmt.Sprintf(", priority %d", p)
	}
	return text
}

// endpointState describes whether an endpoint is ready, terminating or serving.
func endpointState(e *object.Endpoint) string {
	serving := e.Conditions.Serving == nil || *e.Conditions.Serving
	switch terminating := object.Deref(e.Conditions.Terminating); {
	case Ready(e) && terminating:
		return "ready, terminating"
	case Ready(e):
		return "ready"
	case terminating && serving:
		return "terminating, still serving"
	case terminating:
		return "terminating"
	}
	return "not ready"
}

// endpointPlace returns the target object, node and zone of an endpoint, as far as they are set.
func endpointPlace(e *object.Endpoint) string {
	var all []string
	add := func(name, text string) {
		if text != "" {
			all = append(all, name+" "+text)
		}
	}
	if e.TargetRef != nil {
		add(strings.ToLower(cmp.Or(e.TargetRef.Kind, "object")), e.TargetRef.Name)
	}
	add("node", object.Deref(e.NodeName))
	add("zone", object.Deref(e.Zone))
	return output.Printable(strings.Join(all, ", "))
}

// Ready reports whether an endpoint takes new connections. Conditions that are absent count as met (discovery/v1 EndpointConditions).
func Ready(e *object.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// inKernel describes whether the current version of a Service is in the kernel.
func inKernel(svc *object.Service, status *wire.Status) string {
	version, err := strconv.ParseUint(svc.Metadata.ResourceVersion, 10, 64)
	programmed := status.Revision.Programmed
	refused := slices.ContainsFunc(status.Problems, func(p wire.Problem) bool {
		return p.Reason == "RefusedByKernel" && p.Object == object.RefOf(svc).String()
	})
	switch {
	case refused:
		return "refused: the last version that it took is in force, if any"
	case err != nil:
		return "unknown"
	case version <= programmed && status.Ready:
		return fmt.Sprintf("in force, as of revision %d", programmed)
	}
	return fmt.Sprintf("not yet: this is revision %d, %d is in force", version, programmed)
}

// affinityExtras describes the affinity settings in a Service's annotations.
func affinityExtras(svc *object.Service) (text string) {
	annotations := svc.Metadata.Annotations
	if annotations[object.AnnotationAffinityScope] == object.AffinityScopeService {
		text += ", for all ports together"
	}
	if lengths, given := annotations[object.AnnotationAffinityPrefix]; given {
		text += ", clients by prefixes of " + lengths
	}
	if annotations[object.AnnotationAffinityRefresh] == object.AffinityRefreshPackets {
		text += ", refreshed by packets"
	}
	return text
}
