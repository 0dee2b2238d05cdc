package oracle

import (
	"maps"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// Shrink removes from a copy of a failing World what is not needed for the failure:
// Services, slices, Endpoints, their parts, settings of the host. The result fails, and
// no single further removal does.
func (w *World) Shrink(fails func(*World) bool) *World {
	smallest := w.clone()
	for {
		simpler := smallest.simpler()
		i := slices.IndexFunc(simpler, fails)
		if i < 0 {
			return smallest
		}
		smallest = simpler[i]
	}
}

// simpler returns the Worlds that are one removal smaller.
func (w *World) simpler() []*World {
	var all []*World
	try := func(change func(*World)) {
		smaller := w.clone()
		change(smaller)
		all = append(all, smaller)
	}
	for i := range w.Services {
		try(func(w *World) { w.Services = slices.Delete(w.Services, i, i+1) })
	}
	for i := range w.Slices {
		try(func(w *World) { w.Slices = slices.Delete(w.Slices, i, i+1) })
		for j := range w.Slices[i].Endpoints {
			try(func(w *World) { w.Slices[i].Endpoints = slices.Delete(w.Slices[i].Endpoints, j, j+1) })
			endpoint := w.Slices[i].Endpoints[j]
			if endpoint.Conditions != (object.EndpointConditions{}) {
				try(func(w *World) { w.Slices[i].Endpoints[j].Conditions = object.EndpointConditions{} })
			}
			if endpoint.Hints != nil {
				try(func(w *World) { w.Slices[i].Endpoints[j].Hints = nil })
			}
			if endpoint.Zone != nil {
				try(func(w *World) { w.Slices[i].Endpoints[j].Zone = nil })
			}
			if endpoint.NodeName != nil {
				try(func(w *World) { w.Slices[i].Endpoints[j].NodeName = nil })
			}
		}
	}
	for i := range w.Endpoints {
		try(func(w *World) { w.Endpoints = slices.Delete(w.Endpoints, i, i+1) })
	}
	for i := range w.Gateways {
		try(func(w *World) { w.Gateways = slices.Delete(w.Gateways, i, i+1) })
		for j := range w.Gateways[i].Spec.Addresses {
			try(func(w *World) { w.Gateways[i].Spec.Addresses = slices.Delete(w.Gateways[i].Spec.Addresses, j, j+1) })
		}
		for j := range w.Gateways[i].Spec.Listeners {
			if len(w.Gateways[i].Spec.Listeners) > 1 {
				try(func(w *World) { w.Gateways[i].Spec.Listeners = slices.Delete(w.Gateways[i].Spec.Listeners, j, j+1) })
			}
		}
	}
	for i := range w.Routes {
		try(func(w *World) { w.Routes = slices.Delete(w.Routes, i, i+1) })
	}
	for i, r := range w.routes() {
		for j := range r.spec.Rules[0].BackendRefs {
			if len(r.spec.Rules[0].BackendRefs) > 1 {
				try(func(w *World) {
					rule := &w.routes()[i].spec.Rules[0]
					rule.BackendRefs = slices.Delete(rule.BackendRefs, j, j+1)
				})
			}
		}
	}
	for i := range w.Grants {
		try(func(w *World) { w.Grants = slices.Delete(w.Grants, i, i+1) })
	}
	for i, service := range w.Services {
		for _, change := range simplerServices(service) {
			try(func(w *World) { change(w.Services[i]) })
		}
	}
	for at := range w.Down {
		try(func(w *World) { delete(w.Down, at) })
	}
	for i := range w.Programs {
		try(func(w *World) { w.Programs = slices.Delete(w.Programs, i, i+1) })
	}
	for _, change := range simplerBoxes(&w.Box) {
		try(func(w *World) { change(&w.Box) })
	}
	return all
}

func simplerServices(service *object.Service) []func(*object.Service) {
	var all []func(*object.Service)
	add := func(possible bool, change func(*object.Service)) {
		if possible {
			all = append(all, change)
		}
	}
	spec := &service.Spec
	for i := range spec.Ports {
		add(len(spec.Ports) > 1, func(s *object.Service) { s.Spec.Ports = slices.Delete(s.Spec.Ports, i, i+1) })
		add(spec.Ports[i].NodePort != 0, func(s *object.Service) { s.Spec.Ports[i].NodePort = 0 })
	}
	for i := range spec.ExternalIPs {
		add(true, func(s *object.Service) { s.Spec.ExternalIPs = slices.Delete(s.Spec.ExternalIPs, i, i+1) })
	}
	for i := range spec.ClusterIPs {
		add(len(spec.ClusterIPs) > 1, func(s *object.Service) {
			s.Spec.ClusterIPs = slices.Delete(s.Spec.ClusterIPs, i, i+1)
			s.Spec.IPFamilies = slices.Delete(s.Spec.IPFamilies, i, i+1)
			s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		})
	}
	for i := range service.Status.LoadBalancer.Ingress {
		add(true, func(s *object.Service) {
			s.Status.LoadBalancer.Ingress = slices.Delete(s.Status.LoadBalancer.Ingress, i, i+1)
		})
	}
	for key := range service.Metadata.Annotations {
		add(true, func(s *object.Service) { delete(s.Metadata.Annotations, key) })
	}
	cluster := object.PolicyCluster
	add(spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == object.PolicyLocal,
		func(s *object.Service) { s.Spec.InternalTrafficPolicy = &cluster })
	add(spec.ExternalTrafficPolicy == object.PolicyLocal,
		func(s *object.Service) { s.Spec.ExternalTrafficPolicy = cluster })
	add(spec.TrafficDistribution != nil, func(s *object.Service) { s.Spec.TrafficDistribution = nil })
	add(len(spec.LoadBalancerSourceRanges) > 0, func(s *object.Service) { s.Spec.LoadBalancerSourceRanges = nil })
	add(spec.SessionAffinity == object.AffinityClientIP, func(s *object.Service) {
		s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = object.AffinityNone, nil
	})
	return all
}

func simplerBoxes(box *Box) []func(*Box) {
	var all []func(*Box)
	add := func(possible bool, change func(*Box)) {
		if possible {
			all = append(all, change)
		}
	}
	add(box.Zone != "", func(b *Box) { b.Zone = "" })
	add(len(box.InternalSources) > 0, func(b *Box) { b.InternalSources = nil })
	add(len(box.ExternalIPRanges) > 0, func(b *Box) { b.ExternalIPRanges = nil })
	add(len(box.Pools) > 0, func(b *Box) { b.Pools = nil })
	add(len(box.InternalPools) > 0, func(b *Box) { b.InternalPools = nil })
	add(len(box.InsideSources) > 0, func(b *Box) { b.InsideSources = nil })
	add(len(box.InsideInterfaces) > 0, func(b *Box) { b.InsideInterfaces = nil })
	add(box.ClusterIPsInside, func(b *Box) { b.ClusterIPsInside = false })
	add(box.NodePortPrimary, func(b *Box) { b.NodePortPrimary = false })
	add(len(box.NodePortAddresses) > 0, func(b *Box) { b.NodePortAddresses = nil })
	add(box.NodelessRemote, func(b *Box) { b.NodelessRemote = false })
	add(box.SNATNever, func(b *Box) { b.SNATNever = false })
	add(box.MasqueradeAll, func(b *Box) { b.MasqueradeAll = false })
	add(box.SourceRangesApplyAll, func(b *Box) { b.SourceRangesApplyAll = false })
	add(len(box.SourceSets) > 0, func(b *Box) { b.SourceSets = nil })
	add(len(box.EgressFrom) > 0, func(b *Box) { b.EgressFrom = nil })
	add(box.Ping != PingWhenReady, func(b *Box) { b.Ping = PingWhenReady })
	for i := range box.Interfaces {
		if box.Interfaces[i].Name != boundVIPs {
			continue
		}
		for j := range box.Interfaces[i].Addresses {
			add(true, func(b *Box) { b.Interfaces[i].Addresses = slices.Delete(b.Interfaces[i].Addresses, j, j+1) })
		}
	}
	return all
}

func (w *World) clone() *World {
	copied := &World{Box: w.Box, Down: maps.Clone(w.Down), Programs: slices.Clone(w.Programs)}
	copied.Box.Interfaces = slices.Clone(w.Box.Interfaces)
	for i := range copied.Box.Interfaces {
		copied.Box.Interfaces[i].Addresses = slices.Clone(copied.Box.Interfaces[i].Addresses)
	}
	for _, o := range w.Services {
		copied.Services = append(copied.Services, object.DeepCopy(o))
	}
	for _, o := range w.Slices {
		copied.Slices = append(copied.Slices, object.DeepCopy(o))
	}
	for _, o := range w.Gateways {
		copied.Gateways = append(copied.Gateways, object.DeepCopy(o))
	}
	for _, o := range w.Routes {
		copied.Routes = append(copied.Routes, object.DeepCopy(o))
	}
	for _, o := range w.Grants {
		copied.Grants = append(copied.Grants, object.DeepCopy(o))
	}
	for _, o := range w.Endpoints {
		copied.Endpoints = append(copied.Endpoints, object.DeepCopy(o))
	}
	return copied
}
