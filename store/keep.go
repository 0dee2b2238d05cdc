package store

import (
	"fmt"
	"net/netip"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
)

// holdAll registers all that a stored Service has, or nothing.
func (l *allocator) holdAll(svc *object.Service) error {
	owner, v, request, before := index.ServiceKey(svc), valuesOf(svc), requestOf(svc), l.mark()
	err := func() error {
		for _, addr := range v.clusterIPs {
			if err := l.holdAddress(addr, owner); err != nil {
				return fmt.Errorf("cluster IP %s: %w", addr, err)
			}
		}
		for _, port := range v.ports {
			if err := l.holdPort(port, owner); err != nil {
				return fmt.Errorf("node %s: %w", port, err)
			}
		}
		for _, addr := range v.ingress {
			if err := l.holdIngress(addr, request); err != nil {
				return fmt.Errorf("load balancer IP %s: %w", addr, err)
			}
		}
		return nil
	}()
	if err != nil {
		l.back(before)
	}
	return err
}

// keepOf reserves the values that a Service had before a trial or a rollout and has lost, unless another holds
// them by now.
func (l *allocator) keepOf(holder string, svc *object.Service) {
	if l.kept == nil {
		l.kept = map[string]*kept{}
	}
	if l.kept[holder] == nil {
		l.kept[holder] = &kept{map[netip.Addr]string{}, map[alloc.Port]string{}, map[netip.Addr]string{}}
	}
	to, key, v, request := l.kept[holder], index.ServiceKey(svc), valuesOf(svc), requestOf(svc)
	for _, addr := range v.clusterIPs {
		if _, held := l.owner(addr); !held && l.holdAddress(addr, holder) == nil {
			to.addresses[addr] = key
		}
	}
	for _, port := range v.ports {
		if _, held := l.ports.Owner(port); !held && l.holdPort(port, holder) == nil {
			to.ports[port] = key
		}
	}
	for _, addr := range v.ingress {
		if _, has := l.pools.RequestOf(addr, key); has {
			continue
		}
		request.Owner = holder
		if l.holdIngress(addr, request) == nil {
			to.ingress[addr] = key
		}
	}
}

// unkeep gives everything free that is kept by a holder.
func (l *allocator) unkeep(holder string) {
	of := l.kept[holder]
	if of == nil {
		return
	}
	for addr := range of.addresses {
		l.releaseAddress(addr, holder)
	}
	for port := range of.ports {
		l.releasePort(port, holder)
	}
	for addr := range of.ingress {
		l.releaseIngress(addr, holder)
	}
}
