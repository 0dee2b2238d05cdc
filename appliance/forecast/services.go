package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

// Service returns the changes between two lists of ports of a Service, in the order of ports, frontends before endpoints.
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

// portChanges returns the changes between two versions of a port; nil stands for a missing one.
func portChanges(before, after *nft.ServicePort) (changes []wire.PlannedChange) {
	none := &nft.ServicePort{}
	was, is, named := cmp.Or(before, none), cmp.Or(after, none), cmp.Or(after, before)
	_, port := nft.SplitID(named.ID)
	add := func(did, of, name string) *wire.PlannedChange {
		changes = append(changes, wire.PlannedChange{Did: did, Of: of, Port: port, Protocol: named.Protocol.Name(), Family: named.Family.Name(), Name: name})
		return &changes[len(changes)-1]
	}
	for _, list := range []struct {
		of      string
		was, is []string
	}{{wire.OfFrontend, object.Texts(was.Frontends, frontend), object.Texts(is.Frontends, frontend)}, {wire.OfEndpoint, endpoints(was), endpoints(is)}} {
		for _, name := range list.was {
			if !slices.Contains(list.is, name) {
				add(wire.Ends, list.of, name)
			}
		}
		for _, name := range list.is {
			if !slices.Contains(list.was, name) {
				add(wire.Begins, list.of, name)
			}
		}
	}
	if before == nil || after == nil {
		return changes
	}
	differ := func(of, name string, was, is []aspect) {
		for i, a := range was {
			if a.value != is[i].value {
				c := add(wire.Changes, of, name)
				c.What, c.From, c.To = a.name, a.value, is[i].value
			}
		}
	}
	differ(wire.OfPort, "", portAspects(was), portAspects(is))
	for i := range is.Frontends {
		name := frontend(is.Frontends[i])
		if at := slices.Index(object.Texts(was.Frontends, frontend), name); at >= 0 {
			differ(wire.OfFrontend, name, frontendAspects(&was.Frontends[at]), frontendAspects(&is.Frontends[i]))
		}
	}
	return changes
}

// endpoints returns the endpoints of all pools of a port, as text and without duplicates.
func endpoints(p *nft.ServicePort) (names []string) {
	seen := map[netip.AddrPort]bool{}
	for _, ap := range slices.Concat(p.Pools[:]...) {
		if !seen[ap] {
			seen[ap] = true
			names = append(names, nft.EndpointText(ap))
		}
	}
	return names
}

// frontend returns a frontend as ADDRESS:PORT, a node port as the port alone.
func frontend(f nft.Frontend) string { return strings.TrimPrefix(f.Text(), ":") }

// aspect is a property of a port or frontend, with its value as text. Two versions of a port are compared by their aspects.
type aspect struct{ name, value string }

func portAspects(p *nft.ServicePort) []aspect {
	weights := slices.SortedFunc(maps.Keys(p.Weights[nft.PoolCluster]), netip.AddrPort.Compare)
	client := func(bits uint8) string { return " of a client" + when(bits > 0, " (of a /%d)", bits) }
	o, l := p.AffinityOptions, p.Limits
	return []aspect{
		{"balance", cmp.Or(resolve.BalanceName(p.Balance), "random")},
		{"weights", words(" ", object.Texts(weights, func(ap netip.AddrPort) string {
			return fmt.Sprintf("%s=%d", nft.EndpointText(ap), p.Weights[nft.PoolCluster][ap])
		})...)},
		{"refused share", when(p.Refused[nft.PoolCluster] > 0, "%d", p.Refused[nft.PoolCluster])},
		{"slots", resolve.Choose(p.Tables[nft.PoolCluster] == nil, "by weights", "by open connections")},
		{"local endpoints", words(" ", slices.Sorted(slices.Values(object.Texts(p.Pools[nft.PoolLocal], nft.EndpointText)))...)},
		{"session affinity", words(", ", when(p.Affinity > 0, "%v%s", p.Affinity, client(o.PrefixLen)), when(o.WholeService, "for all ports of the Service"), when(o.Refresh, "again with each answer"))},
		{"idle timeout", cmp.Or(when(p.Idle > 0, "%v", p.Idle), "the host's")},
		{"limits", words(", ", when(l.Rate.Count > 0, "%v", l.Rate), when(l.ClientRate.Count > 0, "%v%s", l.ClientRate, client(l.ClientRatePrefix)),
			when(l.ClientConnections > 0, "%d open%s", l.ClientConnections, client(l.ClientConnectionsPrefix)))},
		{"egress", words("", when(len(p.Egress.Sources) > 0, "%v for %s", &p.Egress, strings.Join(object.Texts(p.Egress.Sources, netip.Addr.String), ", ")))},
		{"relay", words("", when(p.Relayed(), "%v", p.Relay[nft.PoolCluster]))},
	}
}

func frontendAspects(f *nft.Frontend) []aspect {
	route := func(r nft.Route) string {
		return resolve.Choose(r.Pool == nft.PoolLocal, "local endpoints", "all endpoints") + resolve.Choose(r.Fallback == nft.Blackhole, ", else dropped", ", else refused")
	}
	clients := "everybody"
	if f.Sources != nil {
		clients = words(" ", slices.Sorted(slices.Values(object.Texts(f.Sources, netip.Prefix.String)))...)
	}
	if f.Sets != nil {
		name := func(s *nft.SourceSet) string { return s.Name }
		clients += when(len(f.Sets.Allow) > 0, ", of %s", strings.Join(object.Texts(f.Sets.Allow, name), " ")) + when(len(f.Sets.Deny) > 0, ", not of %s", strings.Join(object.Texts(f.Sets.Deny, name), " "))
	}
	return []aspect{
		{"clients outside", route(f.External)},
		{"clients inside", route(f.Internal)},
		{"source addresses", [...]string{nft.SNATNever: "kept", nft.SNATOutside: "those from outside are masqueraded", nft.SNATSelf: "that of the box is masqueraded", nft.SNATAlways: "masqueraded"}[f.SNAT]},
		{"permitted clients", clients},
		{"reached by", resolve.Choose(f.InsideOnly, "clients inside", "everybody")},
		{"rest of the address", resolve.Choose(f.HostOwned, "the host's", resolve.Choose(f.NamedPortsOnly, "left alone", "refused"))},
		{"takeover of connections", resolve.Choose(f.Adopt, "yes", "no")},
	}
}

// when returns the formatted text if its first argument is true, otherwise "".
func when(is bool, format string, args ...any) string {
	if !is {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// words joins the non-empty texts in all, with the separator given as with. It returns "none" if all texts are empty.
func words(with string, all ...string) string {
	return cmp.Or(strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), with), "none")
}

// Tables returns what a transition of a Compiler changes in the kernel, by table in the order of nft.Families. The parts of a table are
// sorted by name.
func Tables(tr *nft.Transition, p nft.Printer) []wire.PlannedTable {
	all := tables{printer: p, of: map[nft.Family]*table{}}
	for _, batch := range []nft.Batch{tr.Apply, tr.Cleanup} {
		for _, op := range batch.Ops {
			all.take(op)
		}
	}
	for _, dropped := range tr.Dropped {
		all.elements(dropped.Family, &dropped.Set, dropped.Elements, false)
	}
	list := []wire.PlannedTable{}
	for _, f := range nft.Families {
		if t := all.of[f]; t != nil {
			list = append(list, t.planned(f, p))
		}
	}
	return list
}

// tables collects the operations of a transition by table.
type tables struct {
	printer nft.Printer
	of      map[nft.Family]*table
}

type table struct {
	did            string
	sets           map[string]*set
	chains, others map[string]*wire.PlannedChain
}

// set has the changes of one set: its elements by key.
type set struct {
	did        string
	definition nft.Set
	gone, come map[string]nft.Element
	order      []string // keys of gone and come
	forgotten  []string
	capped     wire.Duration
}

func (a *tables) table(f nft.Family) *table {
	t := a.of[f]
	if t == nil {
		t = &table{sets: map[string]*set{}, chains: map[string]*wire.PlannedChain{}, others: map[string]*wire.PlannedChain{}}
		a.of[f] = t
	}
	return t
}

func (t *table) set(name string) *set {
	s := t.sets[name]
	if s == nil {
		s = &set{gone: map[string]nft.Element{}, come: map[string]nft.Element{}}
		t.sets[name] = s
	}
	return s
}

// named returns the entry for a chain, or for another named object, in a map of planned changes. It adds the entry if it is missing. A created object
// counts as created even if rules are added to it, and one that is emptied before its deletion counts as deleted.
func named(in map[string]*wire.PlannedChain, name, did string) *wire.PlannedChain {
	c := in[name]
	if c == nil {
		c = &wire.PlannedChain{Name: name, Did: did}
		in[name] = c
	}
	if did == wire.Deleted {
		c.Did, c.Rules = did, nil
	}
	return c
}

// take records one operation.
func (a *tables) take(op nft.Op) {
	switch op := op.(type) {
	case nft.AddTable:
		a.table(op.Family).did = wire.Added
	case nft.DeleteTable:
		a.table(op.Family).did = wire.Deleted
	case nft.AddCounter:
		named(a.table(op.Family).others, "counter "+op.Name, wire.Added)
	case nft.DeleteCounter:
		named(a.table(op.Family).others, "counter "+op.Name, wire.Deleted)
	case nft.AddTimeout:
		named(a.table(op.Family).others, "ct timeout "+op.Timeout.Name(), wire.Added)
	case nft.DeleteTimeout:
		named(a.table(op.Family).others, "ct timeout "+op.Name, wire.Deleted)
	case nft.AddSet:
		s := a.table(op.Family).set(op.Set.Name)
		s.did, s.definition = wire.Added, op.Set
	case nft.DeleteSet:
		a.table(op.Family).set(op.Name).did = wire.Deleted
	case nft.AddChain:
		named(a.table(op.Family).chains, op.Chain.Name, wire.Added)
	case nft.SetRules:
		c := named(a.table(op.Family).chains, op.Chain, wire.Changed)
		c.Rules = nil
		for _, r := range op.Rules {
			c.Rules = append(c.Rules, r.Text(op.Family))
		}
	case nft.DeleteChain:
		named(a.table(op.Family).chains, op.Name, wire.Deleted)
	case nft.AddElements:
		a.elements(op.Family, &op.Set, op.Elements, true)
	case nft.DeleteElements:
		a.elements(op.Family, &op.Set, op.Elements, false)
	case nft.ForgetData:
		s := a.table(op.Family).set(op.Set.Name)
		s.definition = op.Set
		for _, data := range op.Data {
			s.forgotten = append(s.forgotten, a.printer.Data(op.Set, op.Family, data))
		}
	case nft.CapTimeouts:
		s := a.table(op.Family).set(op.Set.Name)
		s.definition, s.capped = op.Set, wire.Duration(op.Timeout)
	default:
		panic("forecast: operation of no kind")
	}
}

// elements records elements of a set: as added if come is true, and otherwise as removed.
func (a *tables) elements(f nft.Family, in *nft.Set, elements []nft.Element, come bool) {
	s := a.table(f).set(in.Name)
	s.definition = *in
	for _, e := range elements {
		_, goes := s.gone[e.Key]
		if _, comes := s.come[e.Key]; !goes && !comes {
			s.order = append(s.order, e.Key)
		}
		if come {
			s.come[e.Key] = e
		} else {
			s.gone[e.Key] = e
		}
	}
}

// planned returns the changes of the table in the type of the API.
func (t *table) planned(f nft.Family, p nft.Printer) wire.PlannedTable {
	out := wire.PlannedTable{Family: f.String(), Did: t.did, Sets: []wire.PlannedSet{}}
	for name, s := range t.sets {
		out.Sets = append(out.Sets, s.planned(name, f, p))
	}
	slices.SortFunc(out.Sets, func(a, b wire.PlannedSet) int { return cmp.Compare(a.Name, b.Name) })
	out.Chains, out.Others = sorted(t.chains), sorted(t.others)
	return out
}

func sorted(chains map[string]*wire.PlannedChain) (list []wire.PlannedChain) {
	for _, c := range chains {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b wire.PlannedChain) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (s *set) planned(name string, f nft.Family, p nft.Printer) wire.PlannedSet {
	out := wire.PlannedSet{Name: name, Did: s.did, Forgotten: s.forgotten, Capped: s.capped}
	text := func(e nft.Element) string { return p.Element(s.definition, f, e) }
	slices.Sort(s.order)
	for _, key := range s.order {
		gone, goes := s.gone[key]
		switch come, comes := s.come[key]; {
		case !goes:
			out.Added = append(out.Added, text(come))
		case !comes:
			out.Removed = append(out.Removed, text(gone))
		default:
			out.Changed = append(out.Changed, wire.ElementChange{From: text(gone), To: text(come)})
		}
	}
	return out
}
