package resolve

import (
	"maps"
	"slices"
)

// Clone returns claims that are decided upon as c decides, and on which nothing that c takes later has an influence.
func (c *Claims) Clone() *Claims {
	return &Claims{
		byFrontend: lists(c.byFrontend), byService: maps.Clone(c.byService), balancers: lists(c.balancers),
		externals: c.externals.clone(), loops: c.loops.clone(), ranges: c.ranges.clone(), host: c.host.clone(),
	}
}

// lists clones a map of lists that are changed in their place.
func lists[K comparable, V any](m map[K][]V) map[K][]V {
	if m == nil {
		return nil
	}
	clone := make(map[K][]V, len(m))
	for key, list := range m {
		clone[key] = slices.Clone(list)
	}
	return clone
}

func (c *rangeClaims) clone() rangeClaims { return rangeClaims{lists(c.at), lists(c.places)} }

func (h *hostPorts) clone() hostPorts {
	owned := maps.Clone(h.owned)
	for key, at := range owned {
		owned[key] = maps.Clone(at)
	}
	return hostPorts{h.nodePorts, owned}
}

func (l *loops) clone() loops {
	return loops{l.vips.clone(), l.backends.clone(), maps.Clone(l.hosts), maps.Clone(l.known)}
}

// clone copies those holders that are several Services; one alone is never changed.
func (x addressIndex) clone() addressIndex {
	clone := maps.Clone(x)
	for key, h := range clone {
		if h.more != nil {
			clone[key] = &holders{more: maps.Clone(h.more)}
		}
	}
	return clone
}
