package parts

import (
	"net/netip"

	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/nft"
)

// add has a node port served on the loopback addresses of its family. A client there is the host
// itself, which counts as internal.
func (r *Relay) add(svc *reconcile.Service, p *nft.ServicePort, fe *nft.Frontend) {
	for _, a := range r.loopback {
		if nft.FamilyOf(a) != p.Family {
			continue
		}
		port := relay.Port{ID: p.ID, Listen: netip.AddrPortFrom(a, fe.Port), Protocol: p.Protocol.String(), Endpoints: p.Pools[fe.Inside.Pool], Pick: relay.Pick{Affinity: p.Affinity}}
		if p.Relayed() {
			if svc.Relay == nil {
				return // whether in the clear or not is unknown
			}
			port = r.relayedPort(svc, p, fe.Inside.Pool)
			port.Listen = netip.AddrPortFrom(a, fe.Port)
			port.Names = r.named(svc, p, fe.Inside.Pool)
		} else {
			port.Pick.Choose = p.Chooser(fe.Inside.Pool)
			if p.Balance == nft.LeastConnection {
				for _, share := range p.Shares(fe.Inside.Pool) {
					port.Pick.Weights = append(port.Pick.Weights, uint16(share*10000))
				}
			} else {
				port.Pick.Weights = weightsOf(p, port.Endpoints)
			}
		}
		r.ports[svc.Key] = append(r.ports[svc.Key], port)
		r.dirty = true
	}
}

// redirect gives the ports of a Service that the kernel redirects: one for each pool that clients
// may be sent to.
func (r *Relay) redirect(svc *reconcile.Service) (ports []relay.Port) {
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !p.Relayed() || svc.Relay == nil {
			continue
		}
		for pool := range nft.NumPools {
			port := r.relayedPort(svc, p, pool)
			port.Names = r.named(svc, p, pool)
			port.Frontends = []netip.AddrPort{}
			for _, fe := range p.Frontends {
				if fe.Inside.Pool == pool || fe.Outside.Pool == pool {
					port.Frontends = append(port.Frontends, netip.AddrPortFrom(fe.Addr, fe.Port))
				}
			}
			if len(port.Frontends) > 0 {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// relayedPort describes a pool of a port to the relay.
func (r *Relay) relayedPort(svc *reconcile.Service, p *nft.ServicePort, pool nft.Pool) relay.Port {
	port := relay.Port{
		ID: p.ID, Listen: p.Relay[pool], Protocol: p.Protocol.String(),
		Endpoints: p.Pools[pool], Serving: p.Serving, Ended: ended(svc, p), Pick: pickOf(p, pool), Logged: svc.Logged,
	}
	if svc.Drain.On {
		port.Drain = &svc.Drain.Timeout
	}
	if how := svc.Relay; how != nil {
		port.Pick.Affinity, port.IdleTimeout = how.Affinity, how.IdleTimeout
		port.Connect = relay.Connect{Retries: how.ConnectRetries, Timeout: how.ConnectTimeout, ProxyProtocol: how.ProxyProtocol, Transparent: how.Transparent}
		port.ProxyFrom = how.ProxyFrom
		port.Front = r.fronts.of(svc.Key, p.ID)
	}
	return port
}

// pickOf returns how the relay picks an endpoint of a pool. A port of the kernel, which a server name leads to, has
// its endpoints take turns instead of drawing them by chance: the shares are the same.
func pickOf(p *nft.ServicePort, pool nft.Pool) relay.Pick {
	pick := relay.Pick{By: relay.RoundRobin, Choose: p.Chooser(pool), Weights: weightsOf(p, p.Pools[pool])}
	switch {
	case p.Balance == nft.LeastConnection:
		pick.By = relay.LeastConnection
	case p.Balance == nft.Random && p.Relayed():
		pick.By = relay.Random
	}
	return pick
}

// weightsOf returns the weights of endpoints, in their order; nil: all are alike.
func weightsOf(p *nft.ServicePort, endpoints []netip.AddrPort) []uint16 {
	if p.Weights == nil {
		return nil
	}
	weights := make([]uint16, len(endpoints))
	for i, ap := range endpoints {
		weights[i] = uint16(p.Weight(ap))
	}
	return weights
}
