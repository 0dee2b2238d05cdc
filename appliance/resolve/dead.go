package resolve

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// Reasons of Problems about endpoints without a check.
const (
	ReasonEndpointRefuses = "EndpointRefuses"
	ReasonEndpointSilent  = "EndpointSilent"
)

// Dead is an endpoint without a check that accepts no connection, as part of one port.
type Dead struct {
	Port     Port
	Endpoint netip.AddrPort
	health.Dead
	// Assumed is set for one that the kernel was left without before this process: it is to be asked.
	Assumed bool
}

// readEject reads the annotation.
func (r *resolver) readEject() {
	value, given := r.Service.Metadata.Annotations[object.AnnotationEject]
	if !given {
		return
	}
	field := annotation.Field(object.AnnotationEject)
	switch wanted, err := object.ParseBool(value); {
	case err != nil:
		r.warn(r.ref, field, reasonUnknownValue, "%v: no endpoint is taken out", err)
	case !wanted:
	case r.Service.Headless():
		r.warn(r.ref, field, reasonNoEffect, "has no effect: a headless Service is not load balanced, so no connection to it is seen; write svcctl.io/health-check")
	case !slices.ContainsFunc(r.Service.Spec.Ports, func(p object.ServicePort) bool { return p.Protocol == object.ProtocolTCP }):
		r.warn(r.ref, field, reasonNoEffect, "has no effect: the Service has no port of TCP, and only TCP shows that a connection failed; write svcctl.io/health-check")
	case r.Service.Spec.PublishNotReadyAddresses:
		r.warn(r.ref, field, reasonNoEffect, "has no effect: publishNotReadyAddresses has every endpoint used")
	case r.relayed.Asked():
		r.warn(r.ref, field, reasonNoEffect, "has no effect on ports that are relayed: the relay tries another endpoint by itself, by %s and %s", annotation.ConnectTimeout, annotation.ConnectRetries)
	default:
		r.out.Eject = true
	}
}

// bury reports the dead endpoints of a port without a check, and takes them out if the Service asks for that.
func (r *resolver) bury(index int, key portKey, list []endpoint) {
	port := &r.Service.Spec.Ports[index]
	name := Port{r.ref.Key(), port.Name, port.Protocol, key.family}
	// Those that nothing but eject can have left out before this process are Down.
	assumed := func(*endpoint) health.State { return health.Up }
	if r.out.Demand.Adopted = r.out.Demand.Adopted || r.out.Eject; r.out.Eject && r.Observed.Adopted != nil {
		assumed = r.starts(name, port, slices.Clone(list))
	}
	var refusing, silent []string
	usable, buried := 0, 0
	for i := range list {
		e := &list[i]
		if e.state < draining || e.weight == 0 {
			continue
		}
		usable++
		dead, is := r.Observed.Dead[e.addr]
		guess := !is && assumed(e) == health.Down
		if !is && !guess {
			continue
		}
		r.out.Dead = append(r.out.Dead, Dead{name, e.addr, dead, guess})
		switch text := fmt.Sprintf("%s (%s)", e.addr, dead.Why); {
		case guess:
		case dead.Refuses:
			refusing = append(refusing, text)
		default:
			silent = append(silent, text)
		}
		if r.out.Eject {
			e.state, e.notUp = failed, true
			buried++
		}
	}
	all := len(refusing)+len(silent) == usable
	r.reportDead(index, ReasonEndpointRefuses, refusing, usable, all)
	r.reportDead(index, ReasonEndpointSilent, silent, usable, all)
	if buried > 0 {
		r.failOpen(index, list, false, usable, usable-buried, slices.Concat(refusing, silent))
	}
}

// reportDead adds a problem about dead endpoints of a port: an error if it has no other one.
func (r *resolver) reportDead(index int, reason string, dead []string, usable int, all bool) {
	if len(dead) == 0 {
		return
	}
	what := "does not answer clients, nor this box"
	if reason == ReasonEndpointRefuses {
		what = "refuses connections of clients and of this box"
	}
	if len(dead) > 1 {
		what = strings.NewReplacer("does not", "do not", "refuses", "refuse").Replace(what)
	}
	next := fmt.Sprintf("start that server; with the annotation %s: \"true\", or %s, clients get other endpoints meanwhile", object.AnnotationEject, health.AnnotationCheck)
	switch {
	case all:
		next = "clients fail: start one of its servers, or correct their addresses in the EndpointSlice"
	case r.out.Eject:
		next = "it is taken out until it accepts connections"
		if len(dead) > 1 {
			next = "they are taken out until they accept connections"
		}
	}
	of := fmt.Sprintf("%d of %d endpoints", len(dead), usable)
	if usable == 1 {
		of = "the only endpoint"
	}
	r.out.Problems = append(r.out.Problems, Problem{Object: r.ref, Field: fmt.Sprintf("spec.ports[%d]", index), Reason: reason,
		Message: fmt.Sprintf("%s: %s %s: %s; %s", r.portText(index), of, what, First(dead, maxNamed), next), Warning: !all})
	r.cause(dead)
}
