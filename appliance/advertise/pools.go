package advertise

import (
	"fmt"
	"slices"
	"strings"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// makePools puts the pools of flags and of objects in their order. A pool with a range that overlaps another one, or
// the range of cluster IPs, is left out as a whole.
func (p *planner) makePools() {
	p.Pools = slices.Clone(p.box.Pools)
	for _, o := range p.objects.Pools {
		ranges, ok := p.rangesOf(o)
		if !ok {
			continue
		}
		p.Pools = append(p.Pools, ranges...)
		p.ranges[keyOf(o)], p.labels[keyOf(o)] = ranges, o.Metadata.Labels
	}
	slices.SortStableFunc(p.Pools, compareRank)
}

// rangesOf are the ranges of a pool; false: it is refused.
func (p *planner) rangesOf(o *object.IPAddressPool) (ranges []alloc.Pool, ok bool) {
	pool := alloc.Pool{
		Name: keyOf(o), OnRequest: o.Spec.AutoAssign != nil && !*o.Spec.AutoAssign, AvoidEnds: o.Spec.AvoidBuggyIPs,
		Internal: o.Metadata.Annotations[annotation.InternalPool] == "true",
	}
	if a := o.Spec.ServiceAllocation; a != nil {
		pool.For = &alloc.Audience{Namespaces: p.namespaces(a), Selectors: a.ServiceSelectors, Priority: int(a.Priority)}
	}
	for i, text := range o.Spec.Addresses {
		at := fmt.Sprintf("spec.addresses[%d]", i)
		var err error
		if pool.First, pool.Last, err = object.ParseAddressRange(text); err != nil {
			p.refuse(o, at, "%v: the pool is not used", err)
			return nil, false
		}
		if _, err := alloc.NewPools([]alloc.Pool{pool}); err != nil {
			p.refuse(o, at, "%v: the pool is not used", err)
			return nil, false
		}
		if what := p.overlapped(&pool, ranges); what != "" {
			p.refuse(o, at, "%s overlaps %s: the pool is not used; give each address to one", text, what)
			return nil, false
		}
		ranges = append(ranges, pool)
	}
	return ranges, true
}

// overlapped names what a range overlaps.
func (p *planner) overlapped(r *alloc.Pool, own []alloc.Pool) string {
	for _, s := range p.box.ServiceRanges {
		if s.Contains(r.First) || s.Contains(r.Last) || r.Contains(s.Addr()) {
			return "the range of cluster IPs " + s.String()
		}
	}
	for _, pools := range [...][]alloc.Pool{p.Pools, own} {
		i := slices.IndexFunc(pools, func(other alloc.Pool) bool { return other.Contains(r.First) || r.Contains(other.First) })
		if i < 0 {
			continue
		}
		if pools[i].Name == "" {
			return "the pool " + pools[i].String() + " of --load-balancer-pool"
		}
		return "the IPAddressPool " + pools[i].Name
	}
	return ""
}

// namespaces returns the namespaces whose Services may have addresses of a pool; nil: all; empty: none, as by
// selectors that match none.
func (p *planner) namespaces(a *object.ServiceAllocation) []string {
	if len(a.Namespaces)+len(a.NamespaceSelectors) == 0 {
		return nil
	}
	all := append([]string{}, a.Namespaces...)
	for _, ns := range p.objects.Namespaces {
		if len(a.NamespaceSelectors) > 0 && object.MatchesAny(a.NamespaceSelectors, ns.Metadata.Labels) {
			all = append(all, ns.Metadata.Name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// community are the values of a text: a name, or the values themselves.
func (p *planner) community(namespace, text string) ([]uint32, error) {
	for _, o := range p.objects.Communities {
		for _, alias := range o.Spec.Communities {
			if o.Metadata.Namespace == namespace && alias.Name == text {
				return object.ParseCommunity(alias.Value)
			}
		}
	}
	values, err := object.ParseCommunity(text)
	if err != nil && !strings.Contains(text, ":") {
		return nil, fmt.Errorf("no Community of the namespace %s has the name %q", namespace, text)
	}
	return values, err
}
