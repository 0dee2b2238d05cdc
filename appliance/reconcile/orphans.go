package reconcile

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/manifest"
)

// reasonOrphans is the reason of the problem that the kernel serves what no object declares.
const reasonOrphans = "UnknownServicesHeld"

// Orphans are the frontends that the kernel serves and no object declares, since the data directory
// lost its state.db or is not mounted. They stay in force, as Service ports without a Service,
// until an object declares them or `svcctl confirm --removals` lets them go.
type Orphans struct {
	box   nft.Box // to read the ports back
	ports map[string]nft.ServicePort
	// changed has the ports whose change the compiler has not got yet.
	changed map[string]bool
	byKey   map[frontend]string
	byAddr  map[netip.Addr]map[string]bool
	byName  map[string][]string // those with session affinity, by Service
}

// frontend is the key of a frontend in the dataplane.
type frontend struct {
	family nft.Family
	proto  nft.Protocol
	addr   netip.Addr // the zero Addr: a node port
	port   uint16
	last   uint16 // of a range of ports
}

// FindOrphans looks for frontends in the kernel that the store has lost: when the store has no
// Service, or had none when it was opened first and that has not been settled since. The frontends are
// reserved in the store; with release (--allow-mass-removal) none is kept. nil: there are none.
func FindOrphans(objects *store.Store, read func() (nft.Ruleset, uint32, error), box nft.Box, release bool, log *slog.Logger) (*Orphans, error) {
	if !objects.Blank() && !objects.HasReserved() {
		return nil, nil
	}
	have, _, err := read()
	if err != nil {
		return nil, fmt.Errorf("read what is in force: %w", err)
	}
	o := &Orphans{box: box}
	o.adopt(have)
	if len(o.ports) > 0 && release {
		log.Warn("the kernel serves what the data directory does not have; as --allow-mass-removal is given, it is removed", "frontends", o.frontends())
	}
	if len(o.ports) == 0 || release {
		o, err = nil, objects.Unreserve()
	} else {
		err = objects.Reserve(o.reserved())
	}
	if err != nil { // the disk may be full: what the kernel serves is held all the same
		log.Warn("after a restart, addresses that the kernel serves and no object declares may not be recognized", "err", err)
	}
	return o, nil
}

// adopt makes all frontends of the kernel orphans, before the plan takes out the declared ones.
func (o *Orphans) adopt(have nft.Ruleset) {
	o.ports, o.changed = map[string]nft.ServicePort{}, map[string]bool{}
	o.byKey, o.byAddr, o.byName = map[frontend]string{}, map[netip.Addr]map[string]bool{}, map[string][]string{}
	for i, p := range nft.Recover(have, &o.box) {
		key := fmt.Sprintf("?%d", i) // no Service has that name
		o.ports[key], o.changed[key] = p, true
		if parts := strings.SplitN(p.ID, "/", 3); len(parts) > 1 {
			service := parts[0] + "/" + parts[1]
			o.byName[service] = append(o.byName[service], key)
		}
		for j := range p.Frontends {
			fe := frontendOf(&p, &p.Frontends[j])
			o.byKey[fe] = key
			if fe.addr.IsValid() {
				if o.byAddr[fe.addr] == nil {
					o.byAddr[fe.addr] = map[string]bool{}
				}
				o.byAddr[fe.addr][key] = true
			}
		}
	}
}

func frontendOf(p *nft.ServicePort, fe *nft.Frontend) frontend {
	return frontend{p.Family, p.Protocol, fe.Addr, fe.Port, fe.Last}
}

// frontends counts them.
func (o *Orphans) frontends() int {
	n := 0
	if o != nil {
		for _, p := range o.ports {
			n += len(p.Frontends)
		}
	}
	return n
}

// reserved returns the frontends in the form of the store.
func (o *Orphans) reserved() (all []store.ReservedFrontend) {
	for _, key := range slices.Sorted(maps.Keys(o.ports)) {
		p := o.ports[key]
		var endpoints []netip.Addr
		for _, ap := range p.Serving {
			endpoints = append(endpoints, ap.Addr())
		}
		for _, fe := range p.Frontends {
			port := alloc.Port{Protocol: p.Protocol.Name(), Number: fe.Port}
			all = append(all, store.ReservedFrontend{Addr: fe.Addr, Port: port, Endpoints: endpoints})
		}
	}
	return all
}

// claimFrontends gives up the frontends of a declared Service; all others at its cluster IPs, which belong to one
// Service each; and those with its name, which session affinity shows.
func (o *Orphans) claimFrontends(service string, ports []nft.ServicePort) {
	if len(ports) > 0 {
		for _, key := range o.byName[service] {
			o.drop(key, func(frontend) bool { return true })
		}
	}
	for i := range ports {
		o.claimEgress(&ports[i].Egress)
		for j := range ports[i].Frontends {
			fe := frontendOf(&ports[i], &ports[i].Frontends[j])
			if key, is := o.byKey[fe]; is {
				o.drop(key, func(f frontend) bool { return f == fe })
			}
			if fe.addr.IsValid() && slices.ContainsFunc(o.box.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(fe.addr) }) {
				for key := range maps.Clone(o.byAddr[fe.addr]) {
					o.drop(key, func(f frontend) bool { return f.addr == fe.addr })
				}
			}
		}
	}
}

// drop takes frontends from an orphan.
func (o *Orphans) drop(key string, goes func(frontend) bool) {
	p := o.ports[key]
	var kept []nft.Frontend
	for i := range p.Frontends {
		fe := frontendOf(&p, &p.Frontends[i])
		if !goes(fe) {
			kept = append(kept, p.Frontends[i])
			continue
		}
		delete(o.byKey, fe)
	}
	if len(kept) == len(p.Frontends) {
		return
	}
	for _, fe := range p.Frontends {
		if !slices.ContainsFunc(kept, func(k nft.Frontend) bool { return k.Addr == fe.Addr }) {
			delete(o.byAddr[fe.Addr], key)
		}
	}
	o.changed[key] = true
	if p.Frontends = kept; len(kept) > 0 {
		o.ports[key] = p
	} else {
		delete(o.ports, key)
	}
}

// release gives up all of them, and counts them.
func (o *Orphans) release() int {
	n := o.frontends()
	for key := range o.ports {
		o.drop(key, func(frontend) bool { return true })
	}
	return n
}

// take gives the orphans that have changed since the last call, as Services without a name; those
// without ports are gone.
func (o *Orphans) take() (changed []Service) {
	for _, key := range slices.Sorted(maps.Keys(o.changed)) {
		svc := Service{Key: key}
		if p, is := o.ports[key]; is {
			svc.Ports = []nft.ServicePort{p}
		}
		changed = append(changed, svc)
	}
	clear(o.changed)
	return changed
}

// problem returns the problem of the status while there are orphans; false: there are none.
func (o *Orphans) problem(dataDir string) (p manifest.Problem, is bool) {
	n := o.frontends()
	if n == 0 {
		return p, false
	}
	var examples []string
	for _, fe := range o.reserved() {
		at := fmt.Sprintf("node port %d", fe.Port.Number)
		if fe.Addr.IsValid() {
			at = netip.AddrPortFrom(fe.Addr, fe.Port.Number).String()
		}
		if examples = append(examples, at+"/"+fe.Port.Protocol); len(examples) == 3 && n > 3 {
			examples = append(examples, "...")
			break
		}
	}
	return manifest.Problem{Reason: reasonOrphans, Message: fmt.Sprintf(
		"data directory %s was new or empty at the start, but the kernel serves %d addresses and ports that no object declares (%s); they stay in force as they are: "+
			"if the directory was not mounted or was moved, stop svcctl, put it back and start; if it is lost, apply the objects again; "+
			"confirm with `svcctl confirm --removals` that what is left is to go", dataDir, n, strings.Join(examples, ", "))}, true
}
