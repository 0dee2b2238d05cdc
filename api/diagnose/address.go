package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store/object"
)

// Nobody returns the findings about an address that no Service has.
func Nobody(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	q := f.Question
	what := q.Address.String()
	if !q.Address.IsValid() {
		what = fmt.Sprintf("port %d%s of this box", q.Port, slashed(q.Protocol))
	}
	onBox := slices.ContainsFunc(f.Box, func(a wire.BoxAddress) bool { return a.Address == what })
	switch {
	case onBox && q.Port != 0:
		d.add(Bad, "`svcctl get services -A` lists the node ports, as 30080 of 80:30080/TCP", "%s is an address of this box, and no Service has the node port %d%s", what, q.Port, slashed(q.Protocol))
	case onBox:
		d.add(Bad, "give the port too, as "+netip.AddrPortFrom(q.Address, 30080).String(), "%s is an address of this box: of Services, only node ports answer there", what)
	default:
		d.add(Bad, "`svcctl get services -A -o wide` lists the Services with their addresses", "no Service answers at %s", what)
	}
	if f.Allocations != nil && !onBox {
		d.place(q)
	}
	for _, p := range f.Status.Problems {
		if p.Severity == wire.SeverityError && q.Address.IsValid() && strings.Contains(p.Message, q.Address.String()) {
			d.add(Bad, "fix it where it is written", "a problem names it: %s", p.String())
		}
	}
	d.appliance()
	return d.findings
}

// place adds the range that contains an address or port without a holder.
func (d *diagnosis) place(q Question) {
	for _, pool := range d.Allocations.Pools {
		for _, h := range pool.Holders {
			if q.Address.IsValid() && h.Value == q.Address.String() {
				d.add(Bad, "wait for it, or run `svcctl admin alloc check`", "it is held by %s, which does not answer on it", strings.Join(h.Services, ", "))
				return
			}
		}
		if q.Address.IsValid() && inRange(q.Address, pool.Range) {
			if pool.Kind == wire.PoolClusterIP {
				d.add(Doubt, "", "it lies in the range of cluster IPs %s and no Service has it: clients get no answer", pool.Range)
			} else {
				d.add(Doubt, "", "it lies in the pool of load balancer IPs %s and no Service has it: clients get no answer, unless it is on a network of the box", pool.Range)
			}
			return
		}
	}
	if q.Address.IsValid() {
		d.add(Doubt, portHint(q.Address), "it lies in none of the appliance's ranges: packets to it are not ours")
	}
}

// portHint returns how to write an IPv6 address with a port, for one whose last group may be meant as one; "": none is.
func portHint(addr netip.Addr) string {
	text := addr.String()
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return ""
	}
	before, err := netip.ParseAddr(text[:i])
	if port, wrong := strconv.ParseUint(text[i+1:], 10, 16); err != nil || wrong != nil || port == 0 {
		return ""
	}
	return fmt.Sprintf("if %s is meant as a port, write [%s]:%s", text[i+1:], before, text[i+1:])
}

// inRange reports whether an address lies in 10.0.0.0/8 or 10.0.0.1-10.0.0.9.
func inRange(addr netip.Addr, text string) bool {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Contains(addr)
	}
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		return false
	}
	a, err1 := netip.ParseAddr(first)
	b, err2 := netip.ParseAddr(last)
	return err1 == nil && err2 == nil && a.BitLen() == addr.BitLen() && a.Compare(addr) <= 0 && addr.Compare(b) <= 0
}

// HealthPort returns the findings about the health-check node port of a Service, at the address of the question.
func HealthPort(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	d.good("port %d is the health-check node port of Service %s/%s: it answers HTTP with 200 while the Service has a local endpoint, else with 503",
		f.Question.Port, f.Namespace, f.Name)
	d.details("clients of the Service do not use it: load balancers in front of this box ask there; see `svcctl explain svc/" + f.Name + " -n " + f.Namespace + "` for its addresses and ports")
	if f.Question.Address.IsValid() {
		d.answersAt()
	}
	d.appliance()
	return d.findings
}

// Backend is a Service that an address is an endpoint of.
type Backend struct {
	Service string // "namespace/name"
	Slice   string
	// Conditions are those of the endpoint in the slice.
	Conditions object.EndpointConditions
	// Health has its checks; nil: none asks it.
	Health []wire.EndpointHealth
}

// text returns the state of the endpoint in the Service, and how good that is.
func (b *Backend) text() (string, Level) {
	if ready := b.Conditions.Ready; ready != nil && !*ready {
		if terminating := b.Conditions.Terminating; terminating != nil && *terminating {
			return "terminating, as EndpointSlice " + b.Slice + " has it", Doubt
		}
		return "not ready, as EndpointSlice " + b.Slice + " has it", Doubt
	}
	worst, level := "", Good
	for i := range b.Health {
		e := &b.Health[i]
		switch _, text, _ := strings.Cut(verdictText(e), " is "); e.State {
		case wire.HealthUp:
			worst = cmp.Or(worst, text)
		case wire.HealthDown:
			worst, level = text, Bad
		case wire.HealthOut:
			if level < Bad {
				worst, level = "taken out: `svcctl in` lets it in again", Doubt
			}
		default:
			if level < Bad {
				worst, level = text, Doubt
			}
		}
	}
	if worst == "" {
		return "ready, as EndpointSlice " + b.Slice + " has it; no health check asks it", Good
	}
	return worst, level
}

// Endpoint returns the findings about an address that is an endpoint of Services, and no address of one. There must be a
// backend.
func Endpoint(f Facts, backends []Backend) []Finding {
	d := &diagnosis{Facts: f}
	var lines []string
	worst, first := Good, 0
	for i := range backends {
		text, level := backends[i].text()
		lines = append(lines, backends[i].Service+": "+text)
		if level > worst {
			worst, first = level, i
		}
	}
	of := backends[first].Service
	namespace, name, _ := strings.Cut(of, "/")
	switch n := len(backends); {
	case n == 2:
		of += " and 1 other Service"
	case n > 2:
		of += fmt.Sprintf(" and %d other Services", n-1)
	}
	_, state, _ := strings.Cut(lines[first], ": ")
	next := ""
	if worst > Good {
		next = "look at that server; `svcctl explain svc/" + name + " -n " + namespace + "` follows the Service"
	}
	d.add(worst, next, "%s is an endpoint of %s: %s", f.Question.Address, of, state)
	if len(lines) > 1 {
		d.details(shortened(lines)...)
	}
	d.good("clients do not connect to it: they connect to an address of a Service, as `svcctl get svc -A` lists them")
	d.leaves(f.Question.Address)
	d.appliance()
	return d.findings
}
