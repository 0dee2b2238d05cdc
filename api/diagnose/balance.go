package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// balance adds the balancing of ports whose endpoints do not get equal shares.
func (d *diagnosis) balance() {
	for _, port := range d.ports() {
		for _, s := range d.states(port) {
			name := fmt.Sprintf("port %d/%s", port.Port, port.Protocol)
			if len(s.Endpoints) == 0 || s.Balance == "" || s.Balance == object.BalanceRandom && len(s.Weights)+len(s.Starting) == 0 && s.Client == "" {
				continue
			}
			by, written := s.Balance, d.Service.Metadata.Annotations[object.AnnotationBalance]
			if alias, err := object.ParseBalance(written); err == nil && alias == by && written != by {
				by += " (" + written + ")" // what the author knows it as
			}
			d.good("%s (%s) picks by %s%s", name, s.Family, by, weightsText(s))
			d.details(sharesText(s)...)
			d.details(d.chosen(s)...)
			if len(s.Adopted) > 0 {
				d.good("connections to %s go on when another box with the same endpoints takes over", strings.Join(s.Adopted, " and "))
			}
		}
	}
	d.portRanges()
	d.limits()
	if after, err := object.ParseRetryAfter(d.Service.Metadata.Annotations[object.AnnotationRetryAfter]); err == nil {
		d.good("a SYN that gets no answer for %s is forgotten: the client's next one picks an endpoint anew", after)
	}
}

// weightsText is the weights of the endpoints that are used.
func weightsText(s wire.PortState) string {
	if len(s.Weights) == 0 {
		return ""
	}
	var parts []string
	for _, ap := range slices.Sorted(maps.Keys(s.Weights)) {
		parts = append(parts, fmt.Sprintf("%s has %d", ap, s.Weights[ap]))
	}
	return ", with weights: " + strings.Join(shortened(parts), ", ")
}

// sharesText are lines about shares that change.
func sharesText(s wire.PortState) (lines []string) {
	var parts []string
	for _, ap := range slices.Sorted(maps.Keys(s.Shares)) {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", ap, 100*s.Shares[ap]))
	}
	if len(parts) > 0 {
		lines = append(lines, "shares of new connections for now: "+strings.Join(shortened(parts), ", "))
	}
	if len(s.Starting) > 0 {
		lines = append(lines, "new, with a share that grows: "+strings.Join(shortened(s.Starting), ", "))
	}
	return lines
}

// chosen are lines about what the client in question gets.
func (d *diagnosis) chosen(s wire.PortState) (lines []string) {
	if s.Client == "" {
		return nil
	}
	affinity := ""
	if d.Service.Spec.SessionAffinity == object.AffinityClientIP {
		affinity = ", unless session affinity remembers another"
	}
	for _, c := range s.Chosen {
		switch {
		case c.Endpoint != "":
			lines = append(lines, fmt.Sprintf("%s gets %s at %s%s", s.Client, c.Endpoint, c.Frontend, affinity))
		case s.Balance == object.BalanceRoundRobin:
			lines = append(lines, fmt.Sprintf("the endpoint of %s at %s depends on earlier connections%s", s.Client, c.Frontend, affinity))
		case s.Balance == object.BalanceMaglev:
			lines = append(lines, fmt.Sprintf("what %s gets at %s depends on its port: ask with --client ADDRESS:PORT", s.Client, c.Frontend))
		default:
			lines = append(lines, fmt.Sprintf("what %s gets at %s is left to chance%s", s.Client, c.Frontend, affinity))
		}
	}
	return lines
}

// standsBy returns why weight or priority exclude an endpoint from new connections, "" if they
// do not.
func (d *diagnosis) standsBy(address string) string {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return ""
	}
	weight, priority, best := uint16(0), uint8(object.MaxPriority), uint8(object.MaxPriority)
	weights := d.weights()
	for _, s := range d.Slices {
		for i := range s.Endpoints {
			w := weights.in(s, &s.Endpoints[i])
			if w > 0 {
				best = min(best, s.Metadata.PriorityOf())
			}
			if a := s.Endpoints[i].Addresses; len(a) > 0 && a[0] == addr.String() {
				weight, priority = max(weight, w), min(priority, s.Metadata.PriorityOf())
			}
		}
	}
	switch {
	case weight == 0:
		return "gets no new connections: its weight is 0"
	case priority > best:
		return fmt.Sprintf("stands by: its priority is %d, and endpoints of a lower one serve", priority)
	}
	return ""
}

// weights are the Service's own, by address.
type weights map[string]uint16

func (d *diagnosis) weights() weights {
	list, _ := object.ParseWeights(d.Service.Metadata.Annotations[object.AnnotationWeights])
	of := make(weights, len(list))
	for _, w := range list {
		of[w.Addr.String()] = w.Weight
	}
	return of
}

// in is the weight of an endpoint of a slice.
func (w weights) in(s *object.EndpointSlice, e *object.Endpoint) uint16 {
	if len(e.Addresses) > 0 {
		if own, given := w[e.Addresses[0]]; given {
			return own
		}
	}
	return s.Metadata.WeightOf()
}

// hasBalance reports whether weights or priorities choose among endpoints that are ready.
func (d *diagnosis) hasBalance() bool {
	weights := d.weights()
	return slices.ContainsFunc(d.Slices, func(s *object.EndpointSlice) bool {
		return s.Metadata.PriorityOf() > 0 || slices.ContainsFunc(s.Endpoints, func(e object.Endpoint) bool { return weights.in(s, &e) == 0 })
	})
}
