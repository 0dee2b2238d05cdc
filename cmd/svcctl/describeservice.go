package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// service describes a Service.
func (d *describing) service(ctx context.Context, b *description, t target) error {
	var svc object.Service
	if err := typed(ctx, d.c, t.path(), &svc); err != nil {
		return err
	}
	endpoints, err := slicesOf(ctx, d.c, t.namespace, t.name)
	if err != nil {
		return err
	}
	b.line("Name", "%s", svc.Metadata.Name)
	b.line("Namespace", "%s", svc.Metadata.Namespace)
	b.line("Created", "%s", d.since(svc.Metadata.CreationTimestamp))
	if managers := diagnose.Managers(&svc); len(managers) > 0 {
		b.line("Managed By", "%s", strings.Join(managers, ", "))
	}
	how := annotation.RelayOf(&svc)
	var state *wire.ServiceState
	if d.status.Fleet != nil || how.Fronted() {
		if state, err = d.state(ctx, t); err != nil {
			return err
		}
	}
	if state != nil && state.Declared != "" {
		b.line("Declared In", "%s", state.Declared)
	}
	b.pairs("Labels", svc.Metadata.Labels)
	b.pairs("Annotations", svc.Metadata.Annotations)
	b.line("Selector", "%s", pairsText(svc.Spec.Selector))
	b.line("Type", "%s", svc.Spec.Type)
	serviceAddresses(b, &svc)
	for _, p := range svc.Spec.Ports {
		b.line("Port", "%s  %d/%s", cmp.Or(p.Name, "<unset>"), p.Port, p.Protocol)
		b.line("TargetPort", "%s/%s", p.TargetPort, p.Protocol)
		if p.NodePort > 0 {
			b.line("NodePort", "%s  %d/%s", cmp.Or(p.Name, "<unset>"), p.NodePort, p.Protocol)
		}
		b.line("Endpoints", "%s", usable(endpoints, p))
	}
	servicePolicies(b, &svc)
	if how.Fronted() && state != nil {
		fronts(b, &svc, how, state)
	}
	describeSlices(b, endpoints)
	if err := d.health(ctx, b, t); err != nil {
		return err
	}
	b.line("Kernel", "%s", d.inKernel(&svc))
	for _, c := range svc.Status.Conditions {
		b.line("Condition", "%s is %s: %s", c.Type, c.Status, strings.TrimSuffix(cmp.Or(c.Message, c.Reason), "\n"))
	}
	return nil
}

// state asks what becomes of a Service; nil where the appliance does not tell, as an older one.
func (d *describing) state(ctx context.Context, t target) (*wire.ServiceState, error) {
	state, err := d.c.Service(ctx, t.namespace, t.name, "")
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return nil, nil
	}
	return state, err
}

// fronts writes which ports have TLS or HTTP, and with which certificates.
func fronts(b *description, svc *object.Service, how annotation.Relay, state *wire.ServiceState) {
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
			words = append(words, s.ServerName+" to Service "+s.Service)
		}
		switch {
		case f.Why != "":
			words = []string{"not served: " + f.Why}
		case len(words) == 0:
			continue
		}
		b.line("Relayed Port", "%d/%s  %s", svc.Spec.Ports[i].Port, svc.Spec.Ports[i].Protocol, output.Printable(strings.Join(words, ", ")))
	}
	for _, c := range state.Certificates {
		b.line("Certificate", "%s", output.Printable(c.String()))
	}
}

// health writes which of the endpoints that are checked are up.
func (d *describing) health(ctx context.Context, b *description, t target) error {
	h, err := d.c.Health(ctx, t.namespace, t.name)
	if f, is := errors.AsType[*wire.Failure](err); is && f.Code == 404 {
		return nil // an appliance of a version without checks
	}
	if err != nil || len(h.Endpoints) == 0 {
		return err
	}
	b.heading("Health")
	rows := [][]string{}
	for _, row := range healthRows(h.Endpoints[:min(len(h.Endpoints), shownInSlice)], d.p.now(), true) {
		rows = append(rows, row[1:])
	}
	b.WriteString(trimLines(output.Indent(new(output.Grid).Text(rows...), "  ")))
	if more := len(h.Endpoints) - shownInSlice; more > 0 {
		fmt.Fprintf(b, "  and %d more\n", more)
	}
	return nil
}

// serviceAddresses writes where a Service can be reached.
func serviceAddresses(b *description, svc *object.Service) {
	spec := &svc.Spec
	if spec.Type == object.TypeExternalName {
		b.line("External Name", "%s", spec.ExternalName)
		return
	}
	if spec.IPFamilyPolicy != nil {
		b.line("IP Family Policy", "%s", *spec.IPFamilyPolicy)
	}
	b.line("IP Families", "%s", commas(spec.IPFamilies))
	b.line("IPs", "%s", commas(spec.ClusterIPs))
	if len(spec.ExternalIPs) > 0 {
		b.line("External IPs", "%s", commas(spec.ExternalIPs))
	}
	if spec.LoadBalancerIP != "" {
		b.line("Desired LoadBalancer IP", "%s", spec.LoadBalancerIP)
	}
	if spec.Type == object.TypeLoadBalancer {
		var all []string
		for _, i := range svc.Status.LoadBalancer.Ingress {
			text := cmp.Or(i.IP, i.Hostname)
			if i.IPMode != nil {
				text += " (" + *i.IPMode + ")"
			}
			all = append(all, text)
		}
		b.line("LoadBalancer Ingress", "%s", cmp.Or(strings.Join(all, ", "), "<pending>"))
	}
}

// servicePolicies writes how a Service treats its clients.
func servicePolicies(b *description, svc *object.Service) {
	spec := &svc.Spec
	affinity := spec.SessionAffinity
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		affinity += fmt.Sprintf(", %d s", *c.ClientIP.TimeoutSeconds)
	}
	if affinity != "" {
		b.line("Session Affinity", "%s%s", affinity, affinityExtras(svc))
	}
	for _, line := range [][2]string{{"Balance", object.AnnotationBalance}, {"Weights", object.AnnotationWeights}, {"Slow Start", object.AnnotationSlowStart}, {"Retry After", object.AnnotationRetryAfter}, {"Port Ranges", object.AnnotationPortRanges},
		{"Rate Limit", object.AnnotationRateLimit}, {"Client Rate Limit", object.AnnotationClientRateLimit}, {"Client Connections", object.AnnotationClientConnections}, {"Endpoint Connections", object.AnnotationEndpointConnections}} {
		if text, given := svc.Metadata.Annotations[line[1]]; given {
			if name, err := object.ParseBalance(text); err == nil {
				text = name
			}
			b.line(line[0], "%s", output.Printable(text))
		}
	}
	if spec.ExternalTrafficPolicy != "" {
		b.line("External Traffic Policy", "%s", spec.ExternalTrafficPolicy)
	}
	if spec.InternalTrafficPolicy != nil {
		b.line("Internal Traffic Policy", "%s", *spec.InternalTrafficPolicy)
	}
	if spec.TrafficDistribution != nil {
		b.line("Traffic Distribution", "%s", *spec.TrafficDistribution)
	}
	if spec.HealthCheckNodePort > 0 {
		b.line("HealthCheck NodePort", "%d", spec.HealthCheckNodePort)
	}
	if len(spec.LoadBalancerSourceRanges) > 0 {
		b.line("Source Ranges", "%s", commas(spec.LoadBalancerSourceRanges))
	}
	if spec.PublishNotReadyAddresses {
		b.line("Publish Not Ready", "true")
	}
}

// commas joins words, of which there may be none.
func commas(words []string) string { return cmp.Or(strings.Join(words, ","), "<none>") }

func pairsText(pairs map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		all = append(all, key+"="+pairs[key])
	}
	return commas(all)
}

// shownEndpoints bounds the endpoints in the line of a port.
const shownEndpoints = 5

// usable returns the ready endpoints of a port, as text.
func usable(endpoints []*object.EndpointSlice, p object.ServicePort) string {
	var all []string
	for _, s := range endpoints {
		for _, port := range s.Ports {
			if port.Port == nil || value(port.Name) != p.Name || cmp.Or(value(port.Protocol), object.ProtocolTCP) != p.Protocol {
				continue
			}
			for _, e := range s.Endpoints {
				if isReady(&e) && len(e.Addresses) > 0 {
					all = append(all, joinHostPort(e.Addresses[0], *port.Port))
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

func joinHostPort(address string, port int32) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return address + ":" + strconv.Itoa(int(port))
}

// value is a text that may be absent.
func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// shownInSlice bounds the endpoints of a slice that are listed.
const shownInSlice = 20

// describeSlices writes the endpoints, slice by slice.
func describeSlices(b *description, endpoints []*object.EndpointSlice) {
	if len(endpoints) == 0 {
		b.line("EndpointSlices", "<none>")
		return
	}
	b.heading("EndpointSlices")
	for _, s := range endpoints {
		var ports []string
		for _, p := range s.Ports {
			text := "*"
			if p.Port != nil {
				text = fmt.Sprintf("%d/%s", *p.Port, cmp.Or(value(p.Protocol), object.ProtocolTCP))
			}
			if name := value(p.Name); name != "" {
				text = name + " " + text
			}
			ports = append(ports, text)
		}
		fmt.Fprintf(b, "  %s, %s, ports %s%s\n", s.Metadata.Name, s.AddressType, commas(ports), sliceShare(s))
		rows := [][]string{}
		for i := range s.Endpoints[:min(len(s.Endpoints), shownInSlice)] {
			e := &s.Endpoints[i]
			rows = append(rows, []string{strings.Join(e.Addresses, ","), endpointState(e), endpointPlace(e)})
		}
		var g output.Grid
		b.WriteString(trimLines(output.Indent(g.Text(rows...), "    ")))
		if more := len(s.Endpoints) - shownInSlice; more > 0 {
			fmt.Fprintf(b, "    and %d more\n", more)
		}
	}
}

// sliceShare is the weight and priority of a slice, where they are not the usual ones.
func sliceShare(s *object.EndpointSlice) (text string) {
	if w := s.Metadata.WeightOf(); w != 1 {
		text += fmt.Sprintf(", weight %d", w)
	}
	if p := s.Metadata.PriorityOf(); p != 0 {
		text += fmt.Sprintf(", priority %d", p)
	}
	return text
}

// trimLines takes blanks off the ends of lines.
func trimLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// endpointState is whether an endpoint is used, in words.
func endpointState(e *object.Endpoint) string {
	c := e.Conditions
	serving := c.Serving == nil || *c.Serving
	terminating := c.Terminating != nil && *c.Terminating
	switch {
	case isReady(e) && terminating:
		return "ready, terminating"
	case isReady(e):
		return "ready"
	case terminating && serving:
		return "terminating, still serving"
	case terminating:
		return "terminating"
	}
	return "not ready"
}

// endpointPlace returns the node and zone of an endpoint, as far as they are known.
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
	add("node", value(e.NodeName))
	add("zone", value(e.Zone))
	return output.Printable(strings.Join(all, ", "))
}

// inKernel reports whether the version of a Service is in the kernel.
func (d *describing) inKernel(svc *object.Service) string {
	version, err := strconv.ParseUint(svc.Metadata.ResourceVersion, 10, 64)
	programmed := d.status.Revision.Programmed
	refused := slices.ContainsFunc(d.status.Problems, func(p wire.Problem) bool {
		return p.Reason == "RefusedByKernel" && p.Object == object.RefOf(svc).String()
	})
	switch {
	case refused:
		return "refused: the last version that it took is in force, if any"
	case err != nil:
		return "unknown"
	case version <= programmed && d.status.Ready:
		return fmt.Sprintf("in force, as of revision %d", programmed)
	}
	return fmt.Sprintf("not yet: this is revision %d, %d is in force", version, programmed)
}

// affinityExtras describes the settings of a Service's affinity by annotations.
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
