package parts

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/health"
	"svcctl.io/svcctl/appliance/resolve"
)

// shown is an endpoint with its address, to be sorted by.
type shown struct {
	wire.EndpointHealth
	at netip.AddrPort
}

// State is the health of the endpoints of a Service, or of all those of a namespace if name is
// empty, or of all if that is empty too. It may be called from any goroutine, and keeps the loop
// waiting only while the Services are picked.
func (h *Health) State(namespace, name string) []wire.EndpointHealth {
	var list []shown
	for key, s := range h.picked(namespace, name) {
		for i := range s.checked {
			list = append(list, shown{h.endpoint(key, &s.checked[i]), s.checked[i].Endpoint})
		}
		for i := range s.dead {
			d := &s.dead[i]
			e := wire.EndpointHealth{Service: key, Port: d.Port.Name, Protocol: d.Port.Protocol, Endpoint: d.Endpoint.String(), State: wire.HealthDown, Check: wire.CheckOfFailures, Why: d.Why, Ejected: s.eject}
			if !d.Since.IsZero() {
				since := d.Since.UTC().Truncate(time.Second)
				e.Since = &since
			}
			list = append(list, shown{e, d.Endpoint})
		}
		for _, d := range s.demoted {
			if d.Out {
				list = append(list, shown{wire.EndpointHealth{Service: key, Port: d.Port, Protocol: d.Protocol, Endpoint: d.Addr.String(), State: wire.HealthOut}, d.Addr})
			}
		}
	}
	slices.SortFunc(list, func(a, b shown) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), a.at.Compare(b.at))
	})
	all := make([]wire.EndpointHealth, len(list))
	for i := range list {
		all[i] = list[i].EndpointHealth
	}
	return all
}

// picked are the Services that State is about. What they hold is never changed afterwards.
func (h *Health) picked(namespace, name string) map[string]checkedService {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if name != "" {
		key := namespace + "/" + name
		return map[string]checkedService{key: h.services[key]}
	}
	picked := map[string]checkedService{}
	for key, s := range h.services {
		if in, _, _ := strings.Cut(key, "/"); namespace == "" || in == namespace {
			picked[key] = s
		}
	}
	return picked
}

// endpoint shows one endpoint with the verdict on it.
func (h *Health) endpoint(key string, c *resolve.Checked) wire.EndpointHealth {
	e := wire.EndpointHealth{Service: key, Port: c.Port.Name, Protocol: c.Port.Protocol, Endpoint: c.Endpoint.String(), Check: c.Text}
	v, known := h.prober.Verdict(c.Target)
	if !known || !v.Asked && (v.State == health.Up || v.NotMade != "") { // what it began with is no result
		e.State, e.Why = wire.HealthNotAsked, strings.TrimPrefix(v.NotMade, "not asked: ")
		if !known {
			e.Why = "there are more endpoints than can be asked"
		}
		return e
	}
	e.State, e.Why = v.State.String(), v.Last.Why
	if v.NotMade != "" {
		e.Why = "the last check was not made: " + strings.TrimPrefix(v.NotMade, "not asked: ")
	}
	e.Failures, e.Passes, e.Took = v.Failures, v.Passes, wire.Duration(v.Last.Took)
	e.Held = wire.Duration(v.Held)
	if !v.Since.IsZero() {
		since := v.Since.UTC().Truncate(time.Second)
		e.Since = &since
	}
	return e
}
