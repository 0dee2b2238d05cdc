package control

import (
	"errors"
	"fmt"
	"slices"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

const (
	// reasonAssigned is the reason that other load balancers give.
	reasonAssigned = "IPAllocated"
	// assignedAtOnce bounds the load balancer IPs with an Event from one look to the next: for
	// more, as at a first start, Events are of no use, and the status has them.
	assignedAtOnce = 100
)

// assigned returns the load balancer IPs that were allocated and have no Event yet, up to a
// revision.
func (r *Recorder) assigned() (reported []happening, upTo uint64, err error) {
	if !r.assigns {
		return nil, 0, nil
	}
	upTo = r.store.Revision()
	events, err := r.store.EventsAbout(r.seen, 0, func(ref object.Ref) bool { return ref.Kind == object.KindService })
	if err != nil && !errors.Is(err, store.ErrExpired) {
		return nil, 0, fmt.Errorf("look for addresses that were given: %w", err)
	}
	for _, e := range events {
		upTo = max(upTo, e.Revision)
		svc, _ := e.New.(*object.Service)
		if svc == nil || svc.Spec.LoadBalancerClass != nil && *svc.Spec.LoadBalancerClass != store.LoadBalancerClass {
			continue // its status is another load balancer's
		}
		has := ingressOf(svc)
		before, _ := e.Old.(*object.Service)
		if len(has) == 0 || before != nil && slices.Equal(has, ingressOf(before)) || !r.spend(e.Ref, r.now()) {
			continue
		}
		if reported = append(reported, happening{object: e.Ref, reason: reasonAssigned, message: fmt.Sprintf("Assigned IP %q", has), normal: true}); len(reported) == assignedAtOnce {
			break
		}
	}
	return reported, upTo, nil
}

// ingressOf are the load balancer IPs of a Service.
func ingressOf(svc *object.Service) []string {
	var ips []string
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			ips = append(ips, ingress.IP)
		}
	}
	return ips
}
