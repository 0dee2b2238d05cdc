package conntrack

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// ChangeTracker tracks the endpoints of every frontend and computes which connections a change makes stale, like the change trackers of
// kube-proxy. A Cleaner deletes these connections. The cost of a change is proportional to the Services that it affects. A ChangeTracker is
// not safe for concurrent use.
type ChangeTracker struct {
	nodePorts, local []netip.Addr
	services         map[string][]Port // by Service, "namespace/name"
	adopting         bool              // set until the first Update, while the previous Services are unknown
	work             map[Frontend]Flows
	leaving
	begun      map[Frontend]bool // frontends with connections that may predate their rules; true: the rules were missing
	exactPorts exactPorts
}

// adopted is the key in services for the frontends that Adopt read from the kernel's ruleset.
const adopted = ""

// NewChangeTracker returns a ChangeTracker without Services.
func NewChangeTracker() *ChangeTracker {
	return &ChangeTracker{services: map[string][]Port{}, adopting: true, work: map[Frontend]Flows{}, begun: map[Frontend]bool{}}
}

// Adopt records the frontends of the ruleset that is in the kernel at the start. It must be called before the first Update. The ruleset
// does not contain endpoints that were removed before, so stale connections are searched for among all connections of its frontends.
func (l *ChangeTracker) Adopt(have nft.Ruleset) {
	l.services[adopted], l.nodePorts = frontendsOf(have)
}

// Update records the box, unless it is nil, and the ports of the Services that changed; a Service without ports was removed. The first call
// must contain all Services, because all other endpoints count as removed.
func (l *ChangeTracker) Update(box *nft.Box, changes map[string][]Port) {
	if l.adopting {
		changes = maps.Clone(changes)
		if changes == nil {
			changes = map[string][]Port{}
		}
		changes[adopted] = nil
	}
	if box != nil && !slices.Equal(box.NodePortAddresses, l.nodePorts) {
		defer l.move(l.nodePorts, l.nodePortFrontends())
		l.nodePorts = box.NodePortAddresses
	}
	if box != nil {
		l.local, l.inside = box.LocalAddresses, slices.Concat(box.EgressFrom, box.InternalSources)
	}
	before, was := map[Frontend]Flows{}, make(map[string][]Port, len(changes))
	for name := range changes {
		was[name] = l.services[name]
		for i := range l.services[name] {
			p := &l.services[name][i]
			for j, fe := range p.Frontends {
				before[fe] = p.flows(j)
			}
		}
	}
	for name, ports := range changes {
		for i := range ports {
			for j, fe := range ports[i].Frontends {
				was, known := before[fe]
				l.changed(was, known && !l.adopting, ports[i].flows(j))
				delete(before, fe)
			}
		}
		if l.services[name] = ports; len(ports) == 0 {
			delete(l.services, name)
		}
	}
	for fe, was := range before {
		l.gone(fe, was.Drain)
	}
	l.follow(was, changes)
	l.leave(was, changes)
	l.adopting = false
}

// changed records the new rules for the connections of a frontend. If known is set, the frontend existed before, with the rules in before.
func (l *ChangeTracker) changed(before Flows, known bool, flows Flows) {
	if !known && !l.adopting && flows.Frontend.Protocol == nft.TCP {
		l.begun[flows.Frontend] = false
	}
	switch {
	case known && slices.Equal(before.Keep, flows.Keep) && before.Drain == flows.Drain && slices.Equal(before.Ended, flows.Ended) && before.Sources.equal(flows.Sources):
		return
	case !flows.concerned():
		// No connection is stale, but some may be waited for since they were drained.
		if l.adopting {
			return
		}
	case !known:
		flows.Look = true
	default:
		flows.Look = before.Drain != flows.Drain || flows.Sources != nil && !before.Sources.equal(flows.Sources) ||
			slices.ContainsFunc(before.Keep, func(a netip.AddrPort) bool { return !contains(flows.Keep, a) }) ||
			slices.ContainsFunc(flows.Ended, func(a netip.AddrPort) bool { return !contains(before.Ended, a) })
	}
	l.note(flows)
}

func (l *ChangeTracker) gone(fe Frontend, drain Drain) {
	flows := Flows{Frontend: fe, Drain: drain, Gone: true, Look: true}
	if flows.concerned() {
		l.note(flows)
	}
}

// note adds the Flows of a frontend to the next Take. If a scan of the frontend is already pending, it stays pending.
func (l *ChangeTracker) note(flows Flows) {
	flows.Look = flows.Look || l.work[flows.Frontend].Look
	l.work[flows.Frontend] = flows
}

// nodePortFrontends returns the frontends of all node ports, with the Service port of each.
func (l *ChangeTracker) nodePortFrontends() map[Frontend]*Port {
	all := map[Frontend]*Port{}
	for _, ports := range l.services {
		for i := range ports {
			for _, fe := range ports[i].Frontends {
				if !fe.Addr.IsValid() {
					all[fe] = &ports[i]
				}
			}
		}
	}
	return all
}

// move handles a change of the addresses on which node ports answer. from holds the previous addresses. before maps the frontends of node ports to
// their previous ports. Existing connections to an added address were not translated. Connections to a removed address are treated like those to a
// removed frontend.
func (l *ChangeTracker) move(from []netip.Addr, before map[Frontend]*Port) {
	removed := without(from, l.nodePorts)
	for fe, p := range before {
		for _, addr := range removed {
			if nft.FamilyOf(addr) == fe.Family {
				at := fe
				at.Addr = addr
				l.gone(at, p.Drain)
			}
		}
	}
	added := len(without(l.nodePorts, from)) > 0
	for _, ports := range l.services {
		for i := range ports {
			for j, fe := range ports[i].Frontends {
				if flows, ok := l.work[fe]; ok && flows.Gone {
					// A VIP of this port is served at that address.
					flows := ports[i].flows(j)
					flows.Look = true
					l.note(flows)
				} else if added && !fe.Addr.IsValid() {
					flows := ports[i].flows(j)
					flows.Look = true
					if flows.concerned() {
						l.note(flows)
					}
				}
			}
		}
	}
}

func without(list, other []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return slices.Contains(other, a) })
}

// Restored records that the rules were missing for a time, for example after another program flushed them. The change whose Work the next Take
// returns restores them. Connections that began meanwhile were not translated, and outgoing connections of egress sources used the sources' own
// addresses.
func (l *ChangeTracker) Restored() {
	for of, p := range leavers(l.services) {
		l.look(of, p, Drain{})
	}
	for _, ports := range l.services {
		for i := range ports {
			for _, fe := range ports[i].Frontends {
				l.begun[fe] = true
			}
		}
	}
}

// Pending returns the Work that the next Take will return, as input for (*Cleaner).Expect.
func (l *ChangeTracker) Pending() Work {
	return Work{NodePorts: l.nodePorts, Local: l.local, Flows: l.flows()}
}

// Take returns the Work of all changes since the last call. It must be called after these changes are in the kernel.
func (l *ChangeTracker) Take() Work {
	work := Work{NodePorts: l.nodePorts, Local: l.local, Departed: l.left, Begun: l.begun, Flows: l.flows()}
	slices.SortFunc(work.Flows, func(a, b Flows) int { return a.Frontend.compare(b.Frontend) })
	l.work = map[Frontend]Flows{} // one that was cleared keeps its room, which Pending and Take walk
	l.begun, l.left = map[Frontend]bool{}, map[leaver]Departed{}
	return work
}

// flows returns the recorded Flows of all changed frontends. For a port range each Flows lists the exact ports within the range.
func (l *ChangeTracker) flows() []Flows {
	list := slices.AppendSeq(slices.Grow([]Flows(nil), len(l.work)), maps.Values(l.work))
	for i := range list {
		list[i].ExactPorts = l.exactPorts.of(list[i].Frontend)
	}
	return list
}

// setNodePortAddresses is the name of the nft set that holds the addresses on which node ports answer. servedSets are the nft sets that
// have frontends as elements.
const setNodePortAddresses = "nodeport-addresses"

var servedSets = [...]string{"services", "outside-services", "nodeports", "outside-nodeports", "port-ranges"}

// frontendsOf returns the frontends of a ruleset, as ports without endpoints, and the addresses on which node ports answer.
func frontendsOf(ruleset nft.Ruleset) (ports []Port, nodePorts []netip.Addr) {
	for _, family := range nft.Families {
		table := ruleset[family]
		if table == nil {
			continue
		}
		ports = append(ports, egressOf(family, table)...)
		for _, name := range servedSets {
			if set := table.Sets[name]; set != nil {
				for key := range set.Elements {
					if fe, ok := frontendOf(family, nft.SplitKey(set.Key, family, key)); ok {
						ports = append(ports, Port{Family: family, Protocol: fe.Protocol, Frontends: []Frontend{fe}})
					}
				}
			}
		}
		if set := table.Sets[setNodePortAddresses]; set != nil {
			for key := range set.Elements {
				if values := nft.SplitKey(set.Key, family, key); len(values) == 1 {
					nodePorts = append(nodePorts, values[0].Addr)
				}
			}
		}
	}
	slices.SortFunc(nodePorts, netip.Addr.Compare)
	return ports, nodePorts
}

// frontendOf decodes the key of an element: [address .] protocol . port, or both ends of a range of such keys. It returns false for other
// keys.
func frontendOf(family nft.Family, key []nft.Value) (Frontend, bool) {
	fe := Frontend{Family: family}
	if len(key) == 6 {
		fe.Last, key = uint16(key[5].Num), key[:3]
	}
	if len(key) == 3 {
		fe.Addr, key = key[0].Addr, key[1:]
	}
	if len(key) != 2 {
		return fe, false
	}
	fe.Protocol, fe.Port = nft.Protocol(key[0].Num), uint16(key[1].Num)
	return fe, true
}

// change is a batch of netlink messages that change conntrack entries, with the kind of each.
type change struct {
	writer
	first uint32 // sequence number of the first message
	kinds []changeKind
	done  tally // counts of changes, assuming that no message fails
}

type changeKind uint8

const (
	forgets changeKind = iota // deletes an entry
	resets                    // deletes an entry that two dead-end entries replace
	blocks                    // creates a dead-end entry
)

func (c *change) begin(first uint32) {
	*c = change{writer: writer{nfnetlink.Writer{Buf: c.Buf[:0]}}, first: first, kinds: c.kinds[:0]}
}

func (c *change) next(kind changeKind) (sequence uint32) {
	c.kinds = append(c.kinds, kind)
	return c.first + uint32(len(c.kinds)) - 1
}

func (c *change) forget(e *entry) {
	c.delete(e, c.next(forgets))
	c.done.forgotten++
}

func (c *change) reset(e *entry, box netip.Addr) {
	c.delete(e, c.next(resets))
	sequence := c.next(blocks)
	c.next(blocks)
	c.deadEnds(e, box, sequence)
	c.done.reset++
}

// send sends the batch to the kernel, and returns the counts of the successful messages. The kernel answers only messages that fail.
func (c *change) send(s *socket) (tally, error) {
	if len(c.kinds) == 0 {
		return tally{}, nil
	}
	s.Sequence(len(c.kinds))
	if err := s.Send(c.Buf); err != nil {
		return tally{}, fmt.Errorf("delete entries: %w", err)
	}
	done := c.done
	var failed error
	for {
		datagram, err := s.Receive()
		if errors.Is(err, nfnetlink.ErrNoMessage) {
			return done, failed
		}
		if err != nil {
			return tally{}, fmt.Errorf("read whether entries were deleted: %w", err)
		}
		for m := range nfnetlink.Messages(datagram) {
			index := m.Sequence - c.first
			errno := m.Errno()
			if m.Kind != unix.NLMSG_ERROR || index >= uint32(len(c.kinds)) || errno == 0 {
				continue
			}
			switch kind := c.kinds[index]; {
			case kind == forgets:
				done.forgotten--
			case kind == resets:
				done.reset--
			}
			if failed == nil {
				failed = c.kinds[index].failure(errno)
			}
		}
	}
}

// failure returns the error for an errno of a message of this kind. It returns nil if the entry to delete no longer exists, or if a dead end (see
// deadEnds) cannot be created because another entry exists in its place or the table is full: its connection is over all the same.
func (k changeKind) failure(errno unix.Errno) error {
	switch {
	case errno == unix.ENOENT && k != blocks, k == blocks && (errno == unix.EEXIST || errno == unix.ENOMEM):
		return nil
	case k == blocks:
		return fmt.Errorf("have the box reset a connection: %w", errno)
	}
	return fmt.Errorf("delete an entry: %w", errno)
}
