package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
)

// Service lists the changes of the ports of a Service, in the order of ports, frontends before endpoints.
func Service(before, after []nft.ServicePort) (changes []wire.PlannedChange) {
	type id struct {
		id     string
		family nft.Family
	}
	old, now := map[id]*nft.ServicePort{}, map[id]*nft.ServicePort{}
	var order []id
	for i := range before {
		key := id{before[i].ID, before[i].Family}
		old[key] = &before[i]
		order = append(order, key)
	}
	for i := range after {
		key := id{after[i].ID, after[i].Family}
		if now[key] = &after[i]; old[key] == nil {
			order = append(order, key)
		}
	}
	slices.SortFunc(order, func(a, b id) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.family, b.family)) })
	for _, key := range order {
		changes = append(changes, portChanges(old[key], now[key])...)
	}
	return changes
}

// portChanges lists the changes of a port; nil: the port does not exist.
func portChanges(before, after *nft.ServicePort) (changes []wire.PlannedChange) {
	none := &nft.ServicePort{}
	was, is, named := cmp.Or(before, none), cmp.Or(after, none), cmp.Or(after, before)
	_, name := nft.SplitID(named.ID)
	tell := func(did, of, what string) {
		changes = append(changes, wire.PlannedChange{Did: did, Of: of, Port: name, Protocol: named.Protocol.Name(), Family: named.Family.Name(), Name: what})
	}
	beginsAndEnds(frontends(was), frontends(is), func(did, what string) { tell(did, wire.OfFrontend, what) })
	beginsAndEnds(endpoints(was), endpoints(is), func(did, what string) { tell(did, wire.OfEndpoint, what) })
	if before == nil || after == nil {
		return changes
	}
	differ := func(of, what string, aspects, now []aspect) {
		for i, a := range aspects {
			if from, to := a.value, now[i].value; from != to {
				tell(wire.Changes, of, what)
				last := &changes[len(changes)-1]
				last.What, last.From, last.To = a.name, from, to
			}
		}
	}
	differ(wire.OfPort, "", portAspects(was), portAspects(is))
	old := frontends(was)
	for i := range is.Frontends {
		what := Frontend(is.Frontends[i])
		if at, had := old[what]; had {
			differ(wire.OfFrontend, what, frontendAspects(&was.Frontends[at]), frontendAspects(&is.Frontends[i]))
		}
	}
	return changes
}

// beginsAndEnds calls tell for each name that is only in before (wire.Ends), then for each that is only
// in after (wire.Begins), in the order of their numbers.
func beginsAndEnds(before, after map[string]int, tell func(did, what string)) {
	byPlace := func(of map[string]int) []string {
		return slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Compare(of[a], of[b]) })
	}
	for _, what := range byPlace(before) {
		if _, stays := after[what]; !stays {
			tell(wire.Ends, what)
		}
	}
	for _, what := range byPlace(after) {
		if _, was := before[what]; !was {
			tell(wire.Begins, what)
		}
	}
}

// frontends are the places of the frontends of a port.
func frontends(p *nft.ServicePort) map[string]int {
	all := make(map[string]int, len(p.Frontends))
	for i := range p.Frontends {
		all[Frontend(p.Frontends[i])] = i
	}
	return all
}

// endpoints are the endpoints of all pools of a port.
func endpoints(p *nft.ServicePort) map[string]int {
	all := map[string]int{}
	for _, pool := range p.Pools {
		for _, ap := range pool {
			if text := endpoint(ap); len(all) == 0 || !has(all, text) {
				all[text] = len(all)
			}
		}
	}
	return all
}

func has(m map[string]int, key string) bool { _, is := m[key]; return is }

// Frontend is the address and port of a frontend, of a node port the port alone.
func Frontend(f nft.Frontend) string {
	if !f.Addr.IsValid() {
		return strconv.Itoa(int(f.Port))
	}
	text := netip.AddrPortFrom(f.Addr, f.Port).String()
	if f.IsRange() {
		text += "-" + strconv.Itoa(int(f.Last))
	}
	return text
}

// endpoint is an endpoint; of a range of ports the address alone.
func endpoint(ap netip.AddrPort) string {
	if ap.Port() == 0 {
		return ap.Addr().String()
	}
	return ap.String()
}

// aspect is something that a port or frontend has in any case, with its value in words.
type aspect struct{ name, value string }

func portAspects(p *nft.ServicePort) []aspect {
	return []aspect{
		{"balance", cmp.Or(resolve.BalanceName(p.Balance), "random")},
		{"weights", weights(p)},
		{"slots", slots(p)},
		{"local endpoints", list(p.Pools[nft.PoolLocal], endpoint)},
		{"session affinity", affinity(p)},
		{"idle timeout", duration(p.Idle, "the host's")},
		{"limits", limits(p.Limits)},
		{"relay", relay(p)},
	}
}

func frontendAspects(f *nft.Frontend) []aspect {
	return []aspect{
		{"clients outside", route(f.Outside)},
		{"clients inside", route(f.Inside)},
		{"source addresses", [...]string{nft.SNATNever: "kept", nft.SNATOutside: "those from outside are masqueraded", nft.SNATSelf: "that of the box is masqueraded", nft.SNATAlways: "masqueraded"}[f.SNAT]},
		{"who may connect", sources(f)},
		{"who reaches it", choose(f.InsideOnly, "clients inside", "everybody")},
		{"rest of the address", choose(f.HostOwned, "the host's", choose(f.NamedPortsOnly, "left alone", "refused"))},
		{"takeover of connections", choose(f.Adopt, "yes", "no")},
	}
}

func choose(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

func duration(d time.Duration, zero string) string {
	if d == 0 {
		return zero
	}
	return d.String()
}

// list joins texts, sorted.
func list[T any](all []T, text func(T) string) string {
	texts := make([]string, len(all))
	for i := range all {
		texts[i] = text(all[i])
	}
	slices.Sort(texts)
	return cmp.Or(strings.Join(texts, " "), "none")
}

func weights(p *nft.ServicePort) string {
	all := slices.SortedFunc(maps.Keys(p.Weights), netip.AddrPort.Compare)
	if len(all) == 0 {
		return "all alike"
	}
	return list(all, func(ap netip.AddrPort) string { return fmt.Sprintf("%s=%d", endpoint(ap), p.Weights[ap]) })
}

// slots names what decides which endpoint is in which slot: the weights, or more than these.
func slots(p *nft.ServicePort) string {
	return choose(p.Tables[nft.PoolCluster] == nil, "by weights", "by open connections")
}

func affinity(p *nft.ServicePort) string {
	if p.Affinity == 0 {
		return "none"
	}
	text := "of a client's address, for " + p.Affinity.String()
	if n := p.AffinityOptions.PrefixLen; n > 0 {
		text = fmt.Sprintf("of a client's /%d, for %s", n, p.Affinity)
	}
	return text + choose(p.AffinityOptions.WholeService, ", for all ports of the Service", "") + choose(p.AffinityOptions.Refresh, ", anew with each answer", "")
}

func limits(l nft.Limits) string {
	var all []string
	if l.Rate.Count > 0 {
		all = append(all, l.Rate.String())
	}
	if l.ClientRate.Count > 0 {
		all = append(all, l.ClientRate.String()+" of a client"+prefix(l.ClientRatePrefix))
	}
	if l.ClientConnections > 0 {
		all = append(all, fmt.Sprintf("%d open of a client%s", l.ClientConnections, prefix(l.ClientConnectionsPrefix)))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

func prefix(bits uint8) string {
	if bits == 0 {
		return ""
	}
	return fmt.Sprintf(" (of a /%d)", bits)
}

func relay(p *nft.ServicePort) string {
	if !p.Relayed() {
		return "none"
	}
	return p.Relay[nft.PoolCluster].String()
}

func route(r nft.Route) string {
	return choose(r.Pool == nft.PoolLocal, "local endpoints", "all endpoints") + choose(r.Otherwise == nft.Blackhole, ", else dropped", ", else refused")
}

func sources(f *nft.Frontend) string {
	text := "everybody"
	if f.Sources != nil {
		text = list(f.Sources, netip.Prefix.String)
	}
	if f.Sets == nil {
		return text
	}
	name := func(s *nft.SourceSet) string { return s.Name }
	if len(f.Sets.Allow) > 0 {
		text += ", of " + list(f.Sets.Allow, name)
	}
	if len(f.Sets.Deny) > 0 {
		text += ", not of " + list(f.Sets.Deny, name)
	}
	return text
}
