package simulate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/test/judge"
	"svcctl.io/svcctl/appliance/test/oracle"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/object"
)

const (
	// calm is the time without faults before the invariants are judged: longer than the longest wait between two tries.
	calm = 100 * time.Second
	// refused is the longest wait until Services that the kernel refused are tried again.
	refused = 5 * time.Minute
	// packetsPerRest are tried on each world.
	packetsPerRest = 60
)

// rest ends all faults, waits, and judges.
func (b *box) rest(restart bool) error {
	b.stats.Rests++
	b.disk.calm()
	if b.tables.calm() {
		time.Sleep(refused)
	}
	if b.life.broken.Load() {
		b.life.kill()
	}
	if err := b.revive(); err != nil {
		return err
	}
	time.Sleep(calm)
	if b.guarded && b.life.board.Status().HeldRemovals > 0 { // the operator lets them go
		done := make(chan wire.Released, 1)
		b.life.requests <- reconcile.Release(done)
		<-done
		time.Sleep(calm)
	}
	if b.life.dead.Load() {
		return fmt.Errorf("the process ended without a fault")
	}
	if err := b.life.failed.Load(); err != nil {
		return fmt.Errorf("the process failed: %w", *err)
	}
	world, err := b.stored()
	if err != nil {
		return err
	}
	for _, invariant := range []func(*oracle.World) error{b.commitsWereRight, func(*oracle.World) error { return b.watchEqualsList() }, b.statusIsTrue, b.filesAreStored, b.writesAreStored, b.poolsGive, b.holdersStay, b.valuesStay, b.packetsArrive, b.gatewaysAreServed, b.fastPathIsThere} {
		if err := invariant(world); err != nil {
			return err
		}
	}
	if err := b.nothingHappens("at rest", calm); err != nil || !restart {
		return err
	}
	disk, kernel := b.disk.commits, b.tables.commits
	b.stop()
	if err := b.restart(); err != nil {
		return err
	}
	time.Sleep(calm)
	if disk != b.disk.commits || kernel != b.tables.commits {
		return fmt.Errorf("a restart at rest: %d commits of the disk, %d of the kernel", b.disk.commits-disk, b.tables.commits-kernel)
	}
	return nil
}

// commitsWereRight reports what was wrong at a commit of the kernel.
func (b *box) commitsWereRight(*oracle.World) error {
	if len(b.tables.wrong) > 0 {
		return fmt.Errorf("%s", b.tables.wrong[0])
	}
	if b.tables.reads > b.tables.doubts+b.stats.Rests {
		return fmt.Errorf("the tables were read %d times, for %d reasons", b.tables.reads, b.tables.doubts)
	}
	return nil
}

func (b *box) statusIsTrue(*oracle.World) error {
	switch s := b.life.board.Status(); {
	case !s.Ready:
		return fmt.Errorf("not ready at rest: %s", s.Reason)
	case !s.Synced:
		return fmt.Errorf("not synced at rest: %s", s.Reason)
	case s.RulesAway:
		return fmt.Errorf("rules are away at rest")
	case s.HeldRemovals+s.PendingRemovals+s.UnknownFrontends > 0:
		return fmt.Errorf("held at rest: %d, %d, %d", s.HeldRemovals, s.PendingRemovals, s.UnknownFrontends)
	}
	return nil
}

// filesAreStored: each object of a file is stored as the file has it, or the file has a problem and what was good last is in force.
func (b *box) filesAreStored(*oracle.World) error {
	problems := map[string]bool{}
	for _, p := range b.life.board.Status().Problems {
		problems[p.File] = true
	}
	of := map[object.Ref]bool{}
	maps.DeleteFunc(b.good, func(name, _ string) bool { return b.files[name] == "" })
	for _, name := range slices.Sorted(maps.Keys(b.files)) {
		reported := problems[b.manifests+"/"+name]
		objects := b.decode(b.files[name])
		if objects == nil && !reported {
			return fmt.Errorf("%s is junk, and no problem names it", name)
		}
		for _, o := range objects {
			of[object.RefOf(o)] = true
			have, _ := b.life.store.Get(object.RefOf(o))
			if (have == nil || have.GetMeta().Annotations[version] != o.GetMeta().Annotations[version]) && !reported {
				return fmt.Errorf("%s of %s is not stored, and no problem names the file", object.RefOf(o), name)
			}
		}
		if objects != nil && !reported {
			b.good[name] = b.files[name]
		}
		if objects == nil {
			for ref := range b.versions {
				of[ref] = of[ref] || fileOf(ref) == name
			}
			for _, o := range b.decode(b.good[name]) { // what was good at the last rest is in force, unless a newer one was good since
				if have, _ := b.life.store.Get(object.RefOf(o)); have == nil {
					return fmt.Errorf("%s of %s is not stored any more, though the file is junk", object.RefOf(o), name)
				}
			}
		}
	}
	for ref := range b.versions {
		if b.allowed[ref] == nil && !of[ref] {
			if have, _ := b.life.store.Get(ref); have != nil && have.GetMeta().Annotations[version] != "" {
				return fmt.Errorf("%s is stored, and in no file; problems: %v; sources %+v", ref, b.life.board.Status().Problems, b.life.board.Status().Sources)
			}
		}
	}
	return nil
}

// writesAreStored: an answered write is stored, and one without an answer is stored whole or not at all.
func (b *box) writesAreStored(*oracle.World) error {
	for ref, allowed := range b.allowed {
		is := ""
		if have, _ := b.life.store.Get(ref); have != nil {
			is = have.GetMeta().Annotations[version]
		}
		if is == "" && ref.Kind == object.KindEndpoints && b.endpointsGo(ref) {
			allowed = map[string]bool{"": true}
		}
		if !allowed[is] {
			return fmt.Errorf("%s is stored with version %q; clients were told %q", ref, is, slices.Sorted(maps.Keys(allowed)))
		}
		b.allowed[ref] = map[string]bool{is: true}
	}
	return nil
}

// endpointsGo reports whether a controller removes or replaces an Endpoints object: its Service is gone, or has a selector.
func (b *box) endpointsGo(ref object.Ref) bool {
	have, _ := b.life.store.Get(object.Ref{Kind: object.KindService, Namespace: ref.Namespace, Name: ref.Name})
	service, is := have.(*object.Service)
	return !is || len(service.Spec.Selector) > 0
}

// valuesStay: no value is given twice, and none changes by itself.
func (b *box) valuesStay(world *oracle.World) error {
	holders := map[string]object.Ref{}
	for _, s := range world.Services {
		ref := object.RefOf(s)
		values := []string{s.Metadata.UID, b.writtenAs(s)}
		for _, ip := range s.Spec.ClusterIPs {
			if ip != object.ClusterIPNone {
				values = append(values, "cluster IP "+ip)
			}
		}
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 {
				values = append(values, fmt.Sprintf("node port %d/%s", p.NodePort, p.Protocol))
			}
		}
		for _, value := range values[2:] {
			if other, taken := holders[value]; taken && other != ref {
				return fmt.Errorf("%s is held by %s and %s", value, other, ref)
			}
			holders[value] = ref
		}
		before := b.values[ref]
		if len(before) > 0 && before[0] == values[0] && before[1] == values[1] && !slices.Equal(before, values) {
			return fmt.Errorf("the values of %s changed by themselves from %v to %v", ref, before[2:], values[2:])
		}
		b.values[ref] = values
	}
	return nil
}

// poolsGive: no load balancer IP is given twice, and none that another Service has the port of already. Gateways that name an address
// may share it.
func (b *box) poolsGive(world *oracle.World) error {
	now, of := map[object.Ref][]string{}, map[string]object.Ref{}
	for _, s := range world.Services {
		ref := object.RefOf(s)
		for _, in := range s.Status.LoadBalancer.Ingress {
			if len(s.Metadata.OwnerReferences) > 0 {
				continue
			}
			if other, taken := of[in.IP]; taken {
				return fmt.Errorf("load balancer IP %s is held by %s and %s", in.IP, other, ref)
			}
			of[in.IP], now[ref] = ref, append(now[ref], in.IP)
			for _, p := range s.Spec.Ports {
				key := fmt.Sprintf("%s/%s", netip.AddrPortFrom(netip.MustParseAddr(in.IP), uint16(p.Port)), strings.ToLower(p.Protocol))
				other, had := b.before.holders[key]
				stays, _ := b.life.store.Get(other)
				of, is := stays.(*object.Service)
				if had && is && other != ref && b.isUnchanged(of) && slices.Contains(of.Spec.ExternalIPs, in.IP) && !slices.Contains(b.before.ingress[ref], in.IP) {
					return fmt.Errorf("a pool gave %s to %s, and %s has had its port %d", in.IP, ref, other, p.Port)
				}
			}
		}
	}
	b.before.ingress = now
	return nil
}

// isUnchanged reports whether a Service was not written since the last rest.
func (b *box) isUnchanged(s *object.Service) bool {
	before := b.values[object.RefOf(s)]
	return len(before) > 0 && before[0] == s.Metadata.UID && before[1] == b.writtenAs(s)
}

// writtenAs is the version that a Service was written in: of a generated one that of its Gateway.
func (b *box) writtenAs(s *object.Service) string {
	for _, owner := range s.Metadata.OwnerReferences {
		if gw, _ := b.life.store.Get(object.Ref{Kind: owner.Kind, Namespace: s.Metadata.Namespace, Name: owner.Name}); gw != nil {
			return owner.UID + " " + gw.GetMeta().Annotations[version]
		}
	}
	return s.Metadata.Annotations[version]
}

// holdersStay: a frontend that several Services ask for stays with the one that has it, as long as that one is not written and asks for
// it. The Service of a Gateway that waits keeps the ports of before, and gives them up with those that it waited for.
func (b *box) holdersStay(world *oracle.World) error {
	now, atHost := map[string]object.Ref{}, map[string]object.Ref{}
	stays := map[string]bool{} // ports of Services that were not written, "Service NAMESPACE/NAME:PORT/PROTOCOL"
	facts := b.host()
	nodePorts := b.config.Box(&facts).NodePortAddresses
	for _, s := range world.Services {
		ref := object.RefOf(s)
		for _, p := range s.Spec.Ports {
			stays[fmt.Sprintf("%s:%d/%s", ref, p.Port, strings.ToLower(p.Protocol))] = b.isUnchanged(s)
		}
		for _, p := range b.life.grants.Of(ref.Key()) {
			for _, fe := range p.Frontends {
				if fe.IsRange() {
					continue
				}
				if !fe.Addr.IsValid() || fe.HostOwned {
					for _, addr := range nodePorts { // a port of the host is a node port, or an external IP has it
						key := fmt.Sprintf("%s/%s", netip.AddrPortFrom(addr, fe.Port), p.Protocol)
						if fe.Addr.IsValid() && fe.Addr != addr || nft.FamilyOf(addr) != p.Family {
							continue
						}
						if other, twice := atHost[key]; twice && other != ref {
							return fmt.Errorf("%s of the host is granted to %s and %s", key, other, ref)
						}
						atHost[key] = ref
					}
					continue
				}
				key := fmt.Sprintf("%s/%s", netip.AddrPortFrom(fe.Addr, fe.Port), p.Protocol)
				if other, twice := now[key]; twice && other != ref {
					return fmt.Errorf("%s is granted to %s and %s", key, other, ref)
				}
				now[key] = ref
			}
		}
	}
	for key, before := range b.before.holders {
		port := key[strings.LastIndexByte(key, ':'):]
		if ref, has := now[key]; has && before != ref && stays[before.String()+port] {
			return fmt.Errorf("%s went from %s, which was not written and asks for it, to %s", key, before, ref)
		}
	}
	for _, s := range world.Services {
		for _, p := range s.Spec.Ports {
			for _, a := range s.Spec.ExternalIPs {
				key := fmt.Sprintf("%s/%s", netip.AddrPortFrom(netip.MustParseAddr(a), uint16(p.Port)), strings.ToLower(p.Protocol))
				if ref, has := now[key]; has && ref != object.RefOf(s) {
					b.stats.Contested++
				}
			}
		}
	}
	b.before.holders = now
	return nil
}

// packetsArrive compares packets through the tables of the kernel with the oracle.
func (b *box) packetsArrive(world *oracle.World) error {
	world.Hold()
	contested := contestedAddresses(world)
	ruleset := b.ruleset()
	packets := world.Packets(b.packets, packetsPerRest)
	for range packetsPerRest * len(world.Box.EgressFrom) / 2 {
		packets = append(packets, world.OutgoingPacket(b.packets))
	}
	for _, packet := range packets {
		if contested[packet.To.Addr()] {
			continue
		}
		outcomes := world.Decide(packet)
		if outcomes[0].Kind == oracle.Untouched {
			if slices.ContainsFunc(world.MayLeaveWith(packet.From.Addr()), func(a netip.Addr) bool { return contested[a] }) {
				continue
			}
			if world.Leaves(packet) != packet.From.Addr() {
				b.stats.Left++
			}
		}
		b.stats.Packets++
		for _, outcome := range outcomes {
			b.stats.Kinds[string(outcome.Kind)]++
		}
		if wrong := judge.Disagreement(world, ruleset, packet); wrong != "" {
			return fmt.Errorf("%v: %s\n%s", packet, wrong, world)
		}
	}
	return nil
}

// gatewaysAreServed: the conditions of Gateways, listeners and routes are what becomes of their clients.
func (b *box) gatewaysAreServed(world *oracle.World) error {
	contested := contestedAddresses(world)
	for addr := range sharedAddresses(world) {
		contested[addr] = true
	}
	alone := func(gw *object.Gateway) bool {
		b.stats.Gateways++
		if slices.ContainsFunc(gw.Spec.Addresses, func(a object.GatewayAddress) bool { return contested[netip.MustParseAddr(*a.Value)] }) {
			return false
		}
		return !slices.ContainsFunc(world.Serving(gw).Status.LoadBalancer.Ingress, func(i object.LoadBalancerIngress) bool {
			return contested[netip.MustParseAddr(i.IP)]
		})
	}
	get := func(ref object.Ref) object.Object {
		o, _ := b.life.store.Get(ref)
		return o
	}
	if kind, text := judge.Conditions(world, alone, get, func(string) {}); kind != "" {
		return fmt.Errorf("%s: %s\n%s", kind, text, world)
	}
	return nil
}

// sharedAddresses are those that several Gateways ask for, or one while another Service has it.
func sharedAddresses(world *oracle.World) map[netip.Addr]bool {
	asked, shared := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, s := range world.Services {
		for _, in := range s.Status.LoadBalancer.Ingress {
			asked[netip.MustParseAddr(in.IP)] = !slices.ContainsFunc(world.Gateways, func(gw *object.Gateway) bool {
				return object.RefOf(s).Name == object.RefOf(gw).Name+"-svcctl" && slices.ContainsFunc(gw.Spec.Addresses, func(a object.GatewayAddress) bool { return *a.Value == in.IP })
			})
		}
	}
	for _, gw := range world.Gateways {
		for _, a := range gw.Spec.Addresses {
			addr := netip.MustParseAddr(*a.Value)
			if asked[addr] {
				shared[addr] = true
			}
			asked[addr] = true
		}
	}
	return shared
}

// fastPathIsThere: a flowtable has all links, and is there only if a port has the fast path, which no port has without being asked.
func (b *box) fastPathIsThere(world *oracle.World) error {
	links := map[string]bool{}
	for _, i := range b.host().Interfaces {
		if i.Forwards {
			links[i.Name] = true
		}
	}
	fast := false
	for _, s := range world.Services {
		for _, p := range b.life.grants.Of(object.RefOf(s).Key()) {
			if !p.Fast {
				continue
			}
			if value, given := s.Metadata.Annotations[object.AnnotationFastPath]; value == "false" || !given && b.config.Services.FastPath != config.FastPathAll {
				return fmt.Errorf("%s has the fast path and does not ask for it", object.RefOf(s))
			}
			fast = true
		}
	}
	for family, table := range b.ruleset() {
		for _, f := range table.Flowtables {
			b.stats.Flowtables++
			for _, d := range f.Devices {
				if !links[d.Name] {
					return fmt.Errorf("%v: the flowtable has the device %s, which is gone", family, d.Name)
				}
			}
			if len(f.Devices) != len(links) {
				return fmt.Errorf("%v: the flowtable has %d devices, and there are %d links", family, len(f.Devices), len(links))
			}
		}
		if !fast && len(table.Flowtables) > 0 {
			return fmt.Errorf("%v: there is a flowtable, and no port has the fast path", family)
		}
	}
	return nil
}

// contestedAddresses are those that several Services ask for. The first request gets them, and the oracle has no order of requests.
func contestedAddresses(world *oracle.World) map[netip.Addr]bool {
	asked := map[netip.Addr]int{}
	for _, s := range world.Services {
		for _, text := range s.Spec.ExternalIPs {
			asked[netip.MustParseAddr(text)]++
		}
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				asked[netip.MustParseAddr(ingress.IP)]++
			}
		}
	}
	contested := map[netip.Addr]bool{}
	for address, n := range asked {
		contested[address] = n > 1
	}
	// A port of the box is contested between node ports and addresses of the box that a Service asks for.
	var hosts []netip.Addr
	for _, i := range world.Box.Interfaces {
		for _, p := range i.Addresses {
			hosts = append(hosts, p.Addr())
		}
	}
	if slices.ContainsFunc(hosts, func(a netip.Addr) bool { return asked[a] > 0 }) {
		for _, a := range hosts {
			contested[a] = true
		}
	}
	return contested
}

// nothingHappens: without changes nothing is written and nothing committed.
func (b *box) nothingHappens(when string, most time.Duration) error {
	disk, kernel := b.disk.commits, b.tables.commits
	time.Sleep(most)
	if disk != b.disk.commits || kernel != b.tables.commits {
		return fmt.Errorf("%s: %d commits of the disk, %d of the kernel in %v", when, b.disk.commits-disk, b.tables.commits-kernel, most)
	}
	return nil
}

// fileOf is the name of the file that an object of the generator is in.
func fileOf(ref object.Ref) string {
	if !slices.Contains([]string{object.KindService, object.KindEndpointSlice, object.KindEndpoints}, ref.Kind) {
		return ref.Namespace + "-" + ref.Name + "-" + ref.Kind + ".yaml"
	}
	name, _, _ := strings.Cut(ref.Name, "-")
	return ref.Namespace + "-" + name + ".yaml"
}
