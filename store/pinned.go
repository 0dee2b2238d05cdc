package store

import (
	"fmt"
	"slices"

	"svcctl.io/svcctl/store/object"
)

// ReasonUnpinned is the reason of the problem that a Service does not say all of its addresses and ports, and the
// store gives none (Config.Pinned).
const ReasonUnpinned = "Unpinned"

// unpinned returns an error for each value that the Service does not name and would be given. The Service has its
// defaults.
func (s *Store) unpinned(svc *object.Service) (errs object.Errors) {
	if !s.cfg.Pinned {
		return nil
	}
	missing := func(field, what string) {
		errs = append(errs, object.Error{Type: object.FieldValueRequired, Field: field, Detail: fmt.Sprintf(
			"this appliance gives no values (--allocate never), and the Service names no %s: write it, or have `svcctl pin` write it", what)})
	}
	spec := &svc.Spec
	if named := len(spec.ClusterIPs); svc.NeedsClusterIP() && !svc.Headless() && named < len(spec.IPFamilies) {
		field := "spec.clusterIP"
		if named > 0 {
			field = fmt.Sprintf("spec.clusterIPs[%d]", named)
		}
		missing(field, string(spec.IPFamilies[named])+" cluster IP")
	}
	if svc.AllocatesNodePorts() {
		for i := range spec.Ports {
			if spec.Ports[i].NodePort == 0 {
				missing(fmt.Sprintf("spec.ports[%d].nodePort", i), "node port")
			}
		}
	}
	if svc.NeedsHealthCheckNodePort() && spec.HealthCheckNodePort == 0 {
		missing("spec.healthCheckNodePort", "node port for health checks")
	}
	if !isOurLoadBalancer(svc) {
		return errs
	}
	named := askedIngress(svc)
	for _, family := range spec.IPFamilies {
		known := slices.ContainsFunc(named, func(a asked) bool { return a.addr.IsValid() && familyOf(a.addr) == family })
		if !known && s.allocator.pools.Serves(family == object.IPv4, requestOf(svc).Internal) {
			missing("spec.loadBalancerIP", string(family)+" load balancer IP")
		}
	}
	return errs
}

// unpinnedDocument is unpinned of the document of a file, whatever the stored version has.
func (s *Store) unpinnedDocument(document object.Object) object.Errors {
	original, isService := document.(*object.Service)
	if !isService || !s.cfg.Pinned {
		return nil
	}
	svc := original.DeepCopy().(*object.Service)
	object.Default(svc)
	if errs := object.DefaultFamilies(svc, nil, s.cfg.families()); len(errs) > 0 {
		return nil // it is refused for that
	}
	return s.unpinned(svc)
}
