package look

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/store/object"
)

// explainAddress explains an address that a client wants to reach: that of a Service, a port of the box, or an endpoint.
func explainAddress(ctx context.Context, env *cli.Env, v *cli.Verb, q diagnose.Question) error {
	c, err := env.Client(v)
	if err != nil {
		return err
	}
	q.Address = q.Address.WithZone("")
	k, _ := resource.KindNamed("services")
	having := func(field, value string) ([]*object.Service, error) {
		return resource.TypedList[object.Service](ctx, c, resource.CollectionPath(k, ""), url.Values{"fieldSelector": {field + "=" + value}})
	}
	var all, withPort []*object.Service
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
		if resource.Typed(ctx, c, resource.Target{Kind: k, Namespace: svc.Metadata.Namespace, Name: svc.Metadata.Name}.Path(), alone) == nil {
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

// answering is one of the Services with an address: that with the port if there is one. Without an address it is one of those with a
// node port, on the protocol.
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

// served returns which of the Services with an address and port the kernel serves there, first if none is, and those that
// ask for both and are not served: of two Services with one address, the one that asked first has it.
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

// backendsAt returns the Services that an address is an endpoint of; with a port, on a port of that number if one is.
func backendsAt(ctx context.Context, c *client.Client, q diagnose.Question) (backends []diagnose.Backend, err error) {
	k, _ := resource.KindNamed("endpointslices")
	all, err := resource.TypedList[object.EndpointSlice](ctx, c, resource.CollectionPath(k, ""), url.Values{"fieldSelector": {selector.FieldAddress + "=" + q.Address.String()}})
	if err != nil {
		return nil, err
	}
	var exact []diagnose.Backend
	seen := map[string]bool{}
	for _, s := range all {
		service := s.Metadata.Namespace + "/" + s.Metadata.Labels[resource.ServiceLabel]
		i := slices.IndexFunc(s.Endpoints, func(e object.Endpoint) bool { return slices.Contains(e.Addresses, q.Address.String()) })
		if i < 0 || s.Metadata.Labels[resource.ServiceLabel] == "" || seen[service] {
			continue
		}
		seen[service] = true
		health, err := client.Call(ctx, c, wire.GetHealth, wire.ObjectQuery{Namespace: s.Metadata.Namespace, Name: s.Metadata.Labels[resource.ServiceLabel]})
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
		backends = append(backends, b)
		if slices.ContainsFunc(s.Ports, func(p object.EndpointPort) bool { return p.Port != nil && *p.Port == int32(q.Port) }) {
			exact = append(exact, b)
		}
	}
	if len(exact) > 0 {
		return exact, nil
	}
	return backends, nil
}
