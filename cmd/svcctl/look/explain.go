package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/explain"
	"svcctl.io/svcctl/cmd/svcctl/output"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/convert"
	"svcctl.io/svcctl/store/object"
)

func ExplainVerb() *cli.Verb {
	return &cli.Verb{
		Name: "explain",
		Options: slices.Concat([]*cli.Option{
			settings.NamespaceOption(),
			{Name: "client", Arg: "ADDRESS[:PORT]", Group: cli.GroupOutput, Usage: "for a Service with a hash: show the endpoint of this client"},
			{Name: "probe", Group: cli.GroupOutput, Usage: "for a Service: connect to each of its TCP endpoints now (admins)"},
			{Name: "recursive", Group: cli.GroupOutput, Usage: "for a kind: list nested fields too, without their meaning"},
			{Name: "output", Letter: "o", Arg: "FORM", Words: []string{"wide"}, Group: cli.GroupOutput, Usage: "wide: for a Service, its revision and programmed state too"},
		}, settings.ConnectOptions()),
		Run: runExplain,
	}
}

// runExplain explains a Service, a Gateway, an address or a field.
func runExplain(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
	switch {
	case len(args) == 0:
		return cli.Usagef("explain what? Give a Service as svc/web, a Gateway as gtw/edge, an address as 10.96.0.10:80, or a field as service.spec.type")
	case args[0] == annotationsWord && len(args) == 1:
		return env.Print(explain.Annotations())
	case args[0] == annotationsWord && len(args) == 2:
		text, err := explain.Annotation(args[1])
		if err != nil {
			return err
		}
		return env.Print(text)
	case len(args) > 2:
		return cli.Usagef("explain takes one Service or Gateway, one address or one field: run `svcctl explain --help`")
	}
	if form := v.Option("output").Text(); form != "" && form != "wide" {
		return cli.Usagef("-o %q: want wide, or nothing", form)
	}
	q, isAddress, err := parseQuestion(args[0])
	if err != nil {
		return err
	}
	switch {
	case isAddress && len(args) == 1:
		return explainAddress(ctx, env, v, q)
	case len(args) == 2 || strings.Contains(args[0], "/"):
		what, err := resource.Targets(args, settings.Namespace(env, v))
		if err != nil {
			return err
		}
		switch t := what[0]; {
		case len(what) == 1 && t.Kind.Plural == "gateways":
			return explainGateway(ctx, env, v, t)
		case len(what) > 1 || t.Kind.Plural != "services":
			return cli.Usagef("explain follows one Service or Gateway, as svc/web; `svcctl describe %s` describes other objects", t)
		}
		if name, port, is := strings.Cut(what[0].Name, ":"); is {
			return cli.Usagef("%q is no name of a Service: a port goes with an address, as 10.96.0.10:%s; `svcctl explain svc/%s` covers all ports", what[0].Name, port, name)
		}
		return explainService(ctx, env, v, what[0])
	}
	k, path, err := resource.KindOfPath(args[0])
	if err != nil {
		return err
	}
	text, err := explain.Field(k, path, v.Option("recursive").On())
	if err != nil {
		return err
	}
	return env.Print(text)
}

// annotationsWord is the argument that makes explain print the table of annotations.
const annotationsWord = "annotations"

// parseQuestion parses ADDRESS, ADDRESS:PORT or :PORT, each with an optional /PROTOCOL. It returns false, without an error, if text has none of these
// forms.
func parseQuestion(text string) (q diagnose.Question, is bool, err error) {
	place, protocol, slash := strings.Cut(text, "/")
	host, port := place, ""
	switch {
	case strings.HasPrefix(place, "["):
		end := strings.Index(place, "]")
		if end < 0 {
			return q, true, cli.Usagef("%q: a ] is missing", text)
		}
		host, port = place[1:end], strings.TrimPrefix(place[end+1:], ":")
	case strings.Count(place, ":") == 1:
		host, port, _ = strings.Cut(place, ":")
	}
	if host != "" {
		if q.Address, err = netip.ParseAddr(host); err != nil {
			return q, false, nil // a name of something
		}
	} else if port == "" {
		return q, false, nil
	}
	if port != "" {
		if q.Port, err = convert.ParsePort(port); err != nil {
			return q, true, cli.Usagef("%q: %w", text, err)
		}
	}
	if slash {
		q.Protocol = strings.ToUpper(protocol)
		if !slices.Contains([]string{object.ProtocolTCP, object.ProtocolUDP, object.ProtocolSCTP}, q.Protocol) {
			return q, true, cli.Usagef("%q: %q is no protocol: want tcp, udp or sctp", text, protocol)
		}
	}
	return q, true, nil
}

// errNoAnswer is the error of explain for a Service that does not answer. The findings are already printed, so it has no text.
var errNoAnswer = &cli.ExitError{Code: cli.ExitNo}

// explainService prints findings about the Service t.
func explainService(ctx context.Context, env *cli.Env, v *cli.Verb, t resource.Target) error {
	c := env.Client(v)
	f := diagnose.Facts{Namespace: t.Namespace, Name: t.Name, NodelessLocal: true, Wide: v.Option("output").Text() == "wide"}
	var svc object.Service
	err := c.Typed(ctx, t.Path(), &svc)
	if refused, is := errors.AsType[*wire.Failure](err); err == nil {
		f.Service = &svc
	} else if !is || refused.Reason != wire.ReasonNotFound {
		return err
	}
	return explainFacts(ctx, env, v, c, f, "Service "+t.Namespace+"/"+t.Name)
}

// explainGateway prints findings about the Gateway t.
func explainGateway(ctx context.Context, env *cli.Env, v *cli.Verb, t resource.Target) (err error) {
	c := env.Client(v)
	f := diagnose.GatewayFacts{Gateway: new(object.Gateway)}
	if err := c.Typed(ctx, t.Path(), f.Gateway); err != nil {
		return err
	}
	for _, plural := range []string{"tcproutes", "udproutes", "tlsroutes", "httproutes"} {
		k, _ := resource.KindNamed(plural)
		routes, err := resource.List[diagnose.Route](ctx, c, plural, "", nil)
		if err != nil {
			return err
		}
		for _, r := range routes {
			r.Kind = k.Name // items of a list are without it
		}
		f.Routes = append(f.Routes, routes...)
	}
	if f.Sets, err = resource.List[object.ListenerSet](ctx, c, "listenersets", "", nil); err != nil {
		return err
	}
	if f.Slices, err = slicesOfGateways(ctx, c, t.Namespace); err != nil {
		return err
	}
	return printFindings(env, "Gateway "+t.Namespace+"/"+t.Name, diagnose.Gateway(f))
}

// slicesOfGateways returns the EndpointSlices that the appliance generates for Gateways in a namespace.
func slicesOfGateways(ctx context.Context, c *client.Client, namespace string) ([]*object.EndpointSlice, error) {
	return resource.List[object.EndpointSlice](ctx, c, "endpointslices", namespace, url.Values{"labelSelector": {object.LabelGateway}})
}

// questionText formats a question in the form of the command line.
func questionText(q diagnose.Question) string {
	text := ""
	switch {
	case !q.Address.IsValid():
		text = fmt.Sprintf(":%d", q.Port)
	case q.Port == 0:
		text = q.Address.String()
	default:
		text = netip.AddrPortFrom(q.Address, q.Port).String()
	}
	if q.Protocol != "" {
		text += "/" + strings.ToLower(q.Protocol)
	}
	return text
}

// explainFacts collects data about a Service and prints the findings that result.
func explainFacts(ctx context.Context, env *cli.Env, v *cli.Verb, c *client.Client, f diagnose.Facts, title string) error {
	var err error
	if f.Status, err = c.Status(ctx); err != nil {
		return err
	}
	f.State, err = client.Call(ctx, c, wire.GetService, wire.ServiceQuery{Namespace: f.Namespace, Name: f.Name, Client: v.Option("client").Text()})
	if refused, is := errors.AsType[*wire.Failure](err); is && refused.Reason == wire.ReasonNotFound {
		f.State = nil // an appliance of an earlier version
	} else if err != nil {
		return err
	}
	if v.Option("probe").On() && f.Service != nil {
		probes, err := client.Call(ctx, c, wire.Probe, wire.ObjectQuery{Namespace: f.Namespace, Name: f.Name})
		if err != nil {
			return err
		}
		f.Probed = append([]wire.Probed{}, probes.Endpoints...) // not nil: it was asked for
	}
	// Rates need two looks: this one and an earlier one of another viewer. Without it they are
	// absent.
	if f.Traffic, err = traffic(ctx, c, wire.TrafficQuery{Namespace: f.Namespace, Service: f.Name}); err != nil {
		return err
	}
	if f.Service != nil {
		if f.Slices, err = resource.SlicesOf(ctx, c, f.Namespace, f.Name); err != nil {
			return err
		}
		if f.Service.Metadata.Labels[object.LabelGateway] != "" {
			if f.Led, err = slicesOfGateways(ctx, c, f.Namespace); err != nil {
				return err
			}
		}
		if selector := f.Service.Spec.Selector; len(selector) > 0 {
			if f.Pods, err = resource.List[object.Pod](ctx, c, "pods", f.Namespace, url.Values{"labelSelector": {object.Pairs(selector)}}); err != nil {
				return err
			}
		}
	}
	return printFindings(env, title, diagnose.Service(f))
}

// printFindings prints findings. It returns an error if one of them is bad.
func printFindings(env *cli.Env, title string, findings []diagnose.Finding) error {
	page := &output.Page{Color: env.Color}
	page.WriteString(page.Paint(output.Bold, output.Printable(title)) + "\n")
	marks := map[diagnose.Level][2]string{diagnose.Note: {output.Bold, "–"}, diagnose.Good: {output.Green, "✓"}, diagnose.Doubt: {output.Yellow, "!"}, diagnose.Bad: {output.Red, "✗"}}
	for _, f := range findings {
		mark := marks[f.Level]
		fmt.Fprintf(page, "  %s %s\n", page.Paint(mark[0], mark[1]), output.Printable(f.Text))
		for _, line := range f.Details {
			fmt.Fprintf(page, "      %s\n", output.Printable(line))
		}
		if f.Next != "" {
			fmt.Fprintf(page, "    → %s\n", output.Printable(f.Next))
		}
	}
	if err := env.Print(page.String()); err != nil {
		return err
	}
	if diagnose.Worst(findings) == diagnose.Bad {
		return errNoAnswer
	}
	return nil
}

// traffic requests traffic data. It returns nil if the appliance cannot provide them.
func traffic(ctx context.Context, c *client.Client, q wire.TrafficQuery) (*wire.Traffic, error) {
	seen, err := client.Call(ctx, c, wire.GetTraffic, q)
	if _, is := errors.AsType[*wire.Failure](err); is {
		return nil, nil
	}
	return seen, err
}

// explainAddress prints findings about the address that a client wants to reach: an address of a Service, a port of the box, or an endpoint.
func explainAddress(ctx context.Context, env *cli.Env, v *cli.Verb, q diagnose.Question) error {
	c := env.Client(v)
	q.Address = q.Address.WithZone("")
	k, _ := resource.KindNamed("services")
	having := func(field, value string) ([]*object.Service, error) {
		return resource.List[object.Service](ctx, c, "services", "", url.Values{"fieldSelector": {field + "=" + value}})
	}
	var all, withPort []*object.Service
	var err error
	if q.Address.IsValid() {
		if all, err = having(selector.FieldAddress, q.Address.String()); err != nil {
			return err
		}
	}
	f := diagnose.Facts{Question: q, NodelessLocal: true, Wide: v.Option("output").Text() == "wide"}
	svc := answering(all, q)
	if svc != nil && q.Port != 0 {
		if svc, f.Rivals, err = served(ctx, c, all, svc, q); err != nil {
			return err
		}
	}
	setup, err := client.Call(ctx, c, wire.GetSetup, wire.None{})
	if err != nil {
		return err
	}
	f.Box = setup.Addresses
	onBox := !q.Address.IsValid() || slices.ContainsFunc(f.Box, func(a wire.BoxAddress) bool { return a.Address == q.Address.String() })
	if svc == nil && onBox && q.Port != 0 {
		if withPort, err = having(selector.FieldNodePort, strconv.Itoa(int(q.Port))); err != nil {
			return err
		}
		svc = answering(withPort, diagnose.Question{Port: q.Port, Protocol: q.Protocol})
	}
	if svc == nil && onBox && q.Port != 0 {
		if i := slices.IndexFunc(withPort, func(s *object.Service) bool { return s.Spec.HealthCheckNodePort == int32(q.Port) }); i >= 0 && q.Protocol != object.ProtocolUDP {
			f.Namespace, f.Name = withPort[i].Metadata.Namespace, withPort[i].Metadata.Name
			if f.Status, err = c.Status(ctx); err != nil {
				return err
			}
			return printFindings(env, questionText(q), diagnose.HealthPort(f))
		}
	}
	if svc != nil {
		// A single read has its manager, if that is a file. The Service may be gone by now.
		alone := new(object.Service)
		if c.Typed(ctx, resource.Target{Kind: k, Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name}.Path(), alone) == nil {
			svc = alone
		}
		f.Namespace, f.Name, f.Service = svc.Metadata.Namespace, svc.Metadata.Name, svc
		return explainFacts(ctx, env, v, c, f, fmt.Sprintf("%s is Service %s/%s", questionText(q), f.Namespace, f.Name))
	}
	if f.Status, err = c.Status(ctx); err != nil {
		return err
	}
	if q.Address.IsValid() {
		backends, err := backendsAt(ctx, c, q)
		if err != nil {
			return err
		}
		if len(backends) > 0 {
			return explainEndpoint(ctx, env, c, f, backends)
		}
	}
	if !onBox {
		if f.Allocations, err = client.Call(ctx, c, wire.GetAllocations, wire.AllocationsQuery{Value: q.Address.String()}); err != nil {
			return err
		}
	}
	return printFindings(env, questionText(q), diagnose.Nobody(f))
}

// answering returns the Service that answers at the address and port of q. all are the Services with the address. The first choice is a Service with
// the port, then one with a range that contains the port, then any. Without an address it returns the Service with the node port. It returns nil if
// there is none.
func answering(all []*object.Service, q diagnose.Question) *object.Service {
	var has *object.Service
	ranged := false // has answers by a range of ports: exact ports go first
	for _, svc := range all {
		for _, port := range svc.Spec.Ports {
			switch protocol := q.Protocol == "" || q.Protocol == port.Protocol; {
			case !q.Address.IsValid():
				if port.NodePort == int32(q.Port) && protocol {
					return svc
				}
			case (q.Port == 0 || port.Port == int32(q.Port)) && protocol:
				return svc
			case diagnose.RangeAt(svc, q.Port, q.Protocol):
				has, ranged = svc, true
			case !ranged:
				has = svc
			}
		}
	}
	return has
}

// served returns the Service in all that the kernel serves at the address and port of q. If fewer than two Services request them, or the kernel
// serves none, it returns first. rivals are the other Services that request the same address and port; the oldest request is granted.
func served(ctx context.Context, c *client.Client, all []*object.Service, first *object.Service, q diagnose.Question) (svc *object.Service, rivals []string, err error) {
	var asking []*object.Service
	for _, one := range all {
		if slices.ContainsFunc(one.Spec.Ports, func(p object.ServicePort) bool {
			return p.Port == int32(q.Port) && (q.Protocol == "" || q.Protocol == p.Protocol)
		}) {
			asking = append(asking, one)
		}
	}
	if len(asking) < 2 {
		return first, nil, nil
	}
	at := netip.AddrPortFrom(q.Address, q.Port).String()
	for _, one := range asking {
		state, err := client.Call(ctx, c, wire.GetService, wire.ServiceQuery{Namespace: one.Metadata.Namespace, Name: one.Metadata.Name})
		if err != nil {
			return nil, nil, err
		}
		has := slices.ContainsFunc(state.Ports, func(s wire.PortState) bool {
			return slices.Contains(s.Frontends, at) && (q.Protocol == "" || q.Protocol == s.Protocol)
		})
		switch {
		case !has:
			rivals = append(rivals, one.Metadata.Namespace+"/"+one.Metadata.Name)
		case svc == nil:
			svc = one
		}
	}
	if svc == nil {
		return first, nil, nil
	}
	return svc, rivals, nil
}

// backendsAt returns the Services with an endpoint at an address. If q has a port, and some of these Services have it as endpoint port, it returns
// only those.
func backendsAt(ctx context.Context, c *client.Client, q diagnose.Question) (backends []diagnose.Backend, err error) {
	all, err := resource.List[object.EndpointSlice](ctx, c, "endpointslices", "", url.Values{"fieldSelector": {selector.FieldAddress + "=" + q.Address.String()}})
	if err != nil {
		return nil, err
	}
	port := func(s *object.EndpointSlice) int {
		return slices.IndexFunc(s.Ports, func(p object.EndpointPort) bool { return p.Port != nil && *p.Port == int32(q.Port) })
	}
	// Of several slices of a Service, the one with the port counts.
	slices.SortStableFunc(all, func(a, b *object.EndpointSlice) int { return cmp.Compare(min(port(b), 0), min(port(a), 0)) })
	seen, found := map[string]bool{}, false // found is set when there is a backend with the port
	for _, s := range all {
		if found && port(s) < 0 {
			break
		}
		service := s.Metadata.Namespace + "/" + s.Metadata.Labels[object.LabelServiceName]
		i := slices.IndexFunc(s.Endpoints, func(e object.Endpoint) bool { return slices.Contains(e.Addresses, q.Address.String()) })
		if i < 0 || s.Metadata.Labels[object.LabelServiceName] == "" || seen[service] {
			continue
		}
		seen[service] = true
		health, err := client.Call(ctx, c, wire.GetHealth, wire.ObjectQuery{Namespace: s.Metadata.Namespace, Name: s.Metadata.Labels[object.LabelServiceName]})
		if err != nil {
			return nil, err
		}
		b := diagnose.Backend{Service: service, Slice: s.Metadata.Name, Conditions: s.Endpoints[i].Conditions}
		for j := range health.Endpoints {
			e := &health.Endpoints[j]
			if at, err := netip.ParseAddrPort(e.Endpoint); err == nil && at.Addr() == q.Address && (q.Port == 0 || at.Port() == q.Port) {
				b.Health = append(b.Health, *e)
			}
		}
		backends, found = append(backends, b), port(s) >= 0
	}
	return backends, nil
}
