package store

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// maxRounds bounds the attempts of one allocation. An attempt is repeated if a Service would give up values but cannot get the values that it
// requests instead.
const maxRounds = 16

// errTooManyMoves ends an allocation after maxRounds. It means that each Service of a chain waits for a value that the next one will release.
var errTooManyMoves = errors.New("too many Services exchange addresses and ports at the same time: " +
	"it is tried again with the next change")

// allocate allocates values to the changes of a transaction, and returns the changes in order. A value that one change releases is available to all
// others. Requested values are allocated before automatic ones, and Services that hold values come before new ones. A Service that cannot get the
// values that it requests keeps all of its current values; allocation is then repeated without it, so that no other Service gets them.
func (t *transaction) allocate() []*change {
	changes := t.sorted()
	for _, c := range changes {
		c.keepOld = false
	}
	for round := 1; t.attempt(changes); round++ {
		if round == maxRounds {
			stopMoves(changes, t.s.allocator)
		}
	}
	return changes
}

// stopMoves makes every Service that would release a value keep its stored version. This ends a chain of exchanges that is too long for one
// transaction; later transactions continue it.
func stopMoves(changes []*change, l *allocator) {
	for _, c := range changes {
		if c.ref.Kind == object.KindService && c.wanted != nil && c.holds() && !c.keepOld && c.gives(l) {
			c.restart()
			c.fail(errTooManyMoves)
		}
	}
}

// gives reports whether the new version of a Service releases a value that the old version holds.
func (c *change) gives(l *allocator) bool {
	c.restart()
	now := valuesOf(c.service())
	for v := range c.held().all {
		if !c.keeps(l, v, now) {
			return true
		}
	}
	return false
}

// keeps reports whether the new version of a Service keeps the value v, which the old version holds. The values in the spec of the new version are in
// `now`; load balancer IPs are judged by keepsIngress instead.
func (c *change) keeps(l *allocator, v value, now values) bool {
	if v.kind == PoolLoadBalancer {
		return c.keepsIngress(l, v.addr)
	}
	return now.has(v)
}

// allocation lists the steps that allocate the values of a Service, in order. Values that the Service does not need any more are released before the
// first step.
var allocation = [...]func(*change, *transaction) error{
	(*change).takeAsked, (*change).takeAny, (*change).takeAskedIngress, (*change).takeAnyIngress, (*change).finish,
}

// attempt allocates for all changes except those that keep their stored version. It returns true if
// one more Service has to keep its stored version, so that the attempt has to be repeated.
func (t *transaction) attempt(changes []*change) (again bool) {
	l := t.s.allocator
	l.back(t.base)
	services := make([]*change, 0, len(changes))
	for _, c := range changes {
		switch {
		case c.keepOld:
			c.next = nil
		case c.ref.Kind == object.KindService && (c.wanted != nil || c.remove):
			services = append(services, c)
		default:
			c.next = c.wanted
		}
	}
	parallel.Do(len(services), parallel.Share, func(i int) { services[i].restart() })
	t.joint = index.Externals{}
	for _, c := range services {
		if c.next != nil {
			t.joint.Add(c.ref.Key(), index.ExternalIPs(c.service())...)
		}
		c.release(t)
	}
	for _, step := range allocation {
		for _, c := range services {
			if c.next == nil {
				continue
			}
			if err := step(c, t); err != nil {
				again = again || c.holds()
				c.giveBack(l)
				c.fail(err)
			}
		}
	}
	return again
}

// restart resets the change to its state before an attempt to allocate.
func (c *change) restart() {
	c.err, c.waits, c.assigned = nil, false, assigned{}
	if c.wanted != nil {
		svc := object.Draft(c.wanted).(*object.Service)
		c.next, c.request = svc, requestOf(svc)
	}
}

// fail records that allocation failed for one Service. Its stored version stays, and allocation is retried when other Services release values.
func (c *change) fail(err error) {
	c.next, c.err, c.waits = nil, err, true
	c.keepOld = c.holds()
	reason := ReasonConflict
	switch {
	case errors.Is(err, alloc.ErrFull):
		reason = ReasonFull
	case c.outside:
		reason = ReasonOutside
	}
	c.outcome = append(c.outcome, c.notesOf(err, reason)...)
}

// release releases the values that the stored version holds and the new version does not ask for.
func (c *change) release(t *transaction) {
	if !c.holds() {
		return
	}
	l := t.s.allocator
	owner := c.ref.Key()
	var now values
	if !c.remove {
		now = valuesOf(c.service())
	}
	if c.leavesExternal() {
		l.released = true // a load balancer may have waited for the address
	}
	for v := range c.held().all {
		if c.remove || !c.keeps(l, v, now) {
			l.release(v, owner)
		} else if had, _ := l.requestOf(v, owner); v.kind == PoolLoadBalancer && !had.Equal(c.request) { // others get the ports that it gives up
			kept := c.request
			kept.Ports = slices.DeleteFunc(slices.Clone(kept.Ports), func(p alloc.Port) bool { return !slices.Contains(had.Ports, p) })
			_ = l.hold(v, kept) // in its turn it loses an address that it cannot share any more
		}
	}
	for _, set := range t.s.pending.sets {
		if set.Belongs(c.pendingView()) {
			l.keepOf(set.Kind.Holder(), c.oldService())
		}
	}
}

// leavesExternal reports whether the new version drops an external IP of the old one, or a port at external IPs.
func (c *change) leavesExternal() bool {
	before := index.ExternalIPs(c.oldService())
	if len(before) == 0 || c.remove {
		return len(before) > 0
	}
	svc := c.service()
	missing := func(addr netip.Addr) bool { return !slices.Contains(index.ExternalIPs(svc), addr) }
	return slices.ContainsFunc(before, missing) ||
		slices.ContainsFunc(portsOf(c.oldService()), func(port alloc.Port) bool { return !slices.Contains(portsOf(svc), port) })
}

// giveBack releases the values that a Service without stored values got before its allocation failed. It does nothing for a Service with stored
// values, because then the whole attempt is repeated.
func (c *change) giveBack(l *allocator) {
	if c.holds() {
		return
	}
	for v := range valuesOf(c.service()).all {
		l.cede(v, c.ref.Key()) // nobody missed them
	}
}

// takeAsked allocates the values that the spec of the Service specifies: cluster IPs, node ports and the health-check node port. Of the specified
// load balancer IPs it allocates only those that the Service already holds, to update their requests.
func (c *change) takeAsked(t *transaction) error {
	l := t.s.allocator
	svc, before := c.service(), c.held()
	var errs object.Errors
	for _, addr := range valuesOf(svc).clusterIPs {
		if slices.Contains(before.clusterIPs, addr) {
			continue
		}
		if err := c.asked(l.take(clusterIP(addr), c.request)); err != nil {
			errs = append(errs, object.Invalid("spec.clusterIPs", svc.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %s: %v", addr, err)))
		}
	}
	for i, port := range svc.Spec.Ports {
		if port.NodePort == 0 {
			continue
		}
		if err := c.asked(l.take(nodePort(alloc.Port{Protocol: port.Protocol, Number: uint16(port.NodePort)}), c.request)); err != nil {
			errs = append(errs, object.Invalid(fmt.Sprintf("spec.ports[%d].nodePort", i), port.NodePort, err.Error()))
		}
	}
	if number := svc.Spec.HealthCheckNodePort; number != 0 {
		if err := c.asked(c.takeHealthCheckPort(l, uint16(number))); err != nil {
			errs = append(errs, object.Invalid("spec.healthCheckNodePort", number, err.Error()))
		}
	}
	for _, asked := range askedIngress(svc) {
		if !slices.Contains(before.ingress, asked.addr) || !c.keepsIngress(l, asked.addr) {
			continue
		}
		if err := l.take(loadBalancerIP(asked.addr), c.request); err != nil {
			errs = append(errs, object.Invalid(asked.field, asked.addr.String(), err.Error()))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// asked returns err, the error of a requested value, and sets c.outside if the value lies outside of the range (*alloc.RangeError).
func (c *change) asked(err error) error {
	if _, is := errors.AsType[*alloc.RangeError](err); is {
		c.outside = true
	}
	return err
}

func (c *change) takeHealthCheckPort(l *allocator, number uint16) error {
	for _, port := range c.service().Spec.Ports {
		if port.Protocol == object.ProtocolTCP && port.NodePort == int32(number) {
			return &alloc.HeldError{What: "port", Owner: c.ref.Key()}
		}
	}
	return l.take(nodePort(alloc.Port{Protocol: object.ProtocolTCP, Number: number}), c.request)
}

// takeAny allocates the cluster IPs, node ports and health-check node port that the Service needs and that its spec does not specify.
func (c *change) takeAny(t *transaction) error {
	if err := c.anyClusterIPs(t); err != nil {
		return fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", c.ref.Name, err)
	}
	if err := c.anyNodePorts(t); err != nil {
		return fmt.Errorf("failed to allocate a nodePort for Service %q: %w", c.ref.Name, err)
	}
	svc := c.service()
	if !svc.NeedsHealthCheckNodePort() || svc.Spec.HealthCheckNodePort != 0 {
		return nil
	}
	number, err := t.s.allocator.nextPort([]string{object.ProtocolTCP}, c.ref.Key(), c.ref.Key()+"/health-check")
	if err != nil {
		return fmt.Errorf("failed to allocate a healthCheckNodePort for Service %q: %w", c.ref.Name, err)
	}
	svc.Spec.HealthCheckNodePort = int32(number)
	return nil
}

func (c *change) anyClusterIPs(t *transaction) error {
	svc, l := c.service(), t.s.allocator
	if !svc.NeedsClusterIP() || svc.Headless() {
		return nil
	}
	for _, family := range svc.Spec.IPFamilies[min(len(svc.Spec.ClusterIPs), len(svc.Spec.IPFamilies)):] {
		addr, was := c.formerAddress(t, family == object.IPv4)
		var err error
		if was {
			err = l.take(clusterIP(addr), c.request)
		} else {
			addr, err = l.nextAddress(family == object.IPv4, c.ref.Key(), t.avoidAddress)
		}
		if err != nil {
			return err
		}
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, addr.String())
	}
	if len(svc.Spec.ClusterIPs) > 0 {
		svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	}
	return nil
}

// anyNodePorts allocates the node ports that the spec does not specify. Entries of spec.ports with the same port number and different protocols get
// the same node port, as in Kubernetes (such as TCP and UDP port 53 of a name server).
func (c *change) anyNodePorts(t *transaction) error {
	svc := c.service()
	if !svc.AllocatesNodePorts() {
		return nil
	}
	owner := c.ref.Key()
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		if port.NodePort != 0 || c.shareNodePort(t.s.allocator, port) {
			continue
		}
		var protocols []string
		for _, twin := range svc.Spec.Ports {
			if twin.Port == port.Port && twin.NodePort == 0 && !slices.Contains(protocols, twin.Protocol) {
				protocols = append(protocols, twin.Protocol)
			}
		}
		number, err := c.anyPort(t, protocols, owner+"/"+strconv.Itoa(int(port.Port)))
		if err != nil {
			return err
		}
		for j := range svc.Spec.Ports {
			if twin := &svc.Spec.Ports[j]; twin.Port == port.Port && twin.NodePort == 0 {
				twin.NodePort = int32(number)
			}
		}
	}
	return nil
}

// anyPort allocates a node port that is free for all of the protocols. It prefers the reserved node port that the Service seems to have had before
// (see formerPort).
func (c *change) anyPort(t *transaction, protocols []string, seed string) (uint16, error) {
	l := t.s.allocator
	number, was := c.formerPort(t, protocols, seed)
	if !was {
		return l.nextPort(protocols, c.ref.Key(), seed)
	}
	for _, protocol := range protocols {
		if err := l.take(nodePort(alloc.Port{Protocol: protocol, Number: number}), c.request); err != nil {
			return 0, err
		}
	}
	return number, nil
}

// shareNodePort gives a port the node port of another entry of spec.ports with the same port number and another protocol, if that node port is free.
// It reports whether it gave one.
func (c *change) shareNodePort(l *allocator, port *object.ServicePort) bool {
	for _, twin := range c.service().Spec.Ports {
		if twin.Port != port.Port || twin.NodePort == 0 || twin.Protocol == port.Protocol {
			continue
		}
		wanted := alloc.Port{Protocol: port.Protocol, Number: uint16(twin.NodePort)}
		if _, held := l.ports.Owner(wanted); !held && l.take(nodePort(wanted), c.request) == nil {
			port.NodePort = twin.NodePort
			return true
		}
	}
	return false
}

// mostPassed bounds the values that a search examines.
const mostPassed = 64

// search searches for the reserved value that a Service had before the data was lost. It examines values in the order in which allocation tries them
// for the Service's name, and skips values that other Services hold or may have held.
type search struct {
	seen  int
	found bool
}

// passes reports whether the search must continue with the next value. The search ends at a free value, after mostPassed values, or at a reserved
// value for which resembles returns true; in the last case passes sets found.
func (s *search) passes(free, reserved bool, resembles func() bool) bool {
	s.seen++
	if free || s.seen > mostPassed {
		return false
	}
	s.found = reserved && resembles()
	return !s.found
}

// formerAddress returns the reserved cluster IP that a Service seems to have had before the data was lost; false if there is none.
func (c *change) formerAddress(t *transaction, ipv4 bool) (netip.Addr, bool) {
	l := t.s.allocator
	in := l.addresses[ipv4]
	if len(l.reserved.addresses) == 0 || in == nil {
		return netip.Addr{}, false
	}
	// Another Service may have been given the home of this one. Where few addresses are
	// taken, that is next to impossible.
	rare := uint64(len(l.reserved.addresses)) < in.Size()/100
	var s search
	addr, _ := in.Home(c.ref.Key(), func(addr netip.Addr) bool {
		owner, held := in.Owner(addr)
		at := l.reserved.addresses[addr]
		return s.passes(!held && !t.avoidAddress(addr), owner == reservedOwner, func() bool { return c.resembles(at, false) && c.reaches(t, at, rare && s.seen == 1) })
	})
	return addr, s.found
}

// formerIngress returns the reserved load balancer IP that a Service seems to have had before the data was lost; false if there is none.
func (c *change) formerIngress(t *transaction, ipv4 bool) (netip.Addr, bool) {
	l := t.s.allocator
	if len(l.reserved.addresses) == 0 {
		return netip.Addr{}, false
	}
	var s search
	addr, _ := l.pools.Home(ipv4, &c.request, func(addr netip.Addr) bool {
		_, reserved := l.pools.RequestOf(addr, reservedOwner)
		at := l.reserved.addresses[addr]
		free := len(l.pools.Sharing(addr)) == 0 && !t.avoidIngress(addr, c.request)
		return s.passes(free, reserved, func() bool { return c.resembles(at, c.request.SharingKey != "") && c.reaches(t, at, false) })
	})
	return addr, s.found
}

// formerPort returns the node port that a Service seems to have had before the data was lost, if it is reserved for all of the protocols; false if
// there is none.
func (c *change) formerPort(t *transaction, protocols []string, seed string) (uint16, bool) {
	l := t.s.allocator
	if len(l.reserved.nodePorts) == 0 {
		return 0, false
	}
	var s search
	number, _ := l.ports.Home(seed, func(number uint16) bool {
		free, reserved := true, true
		var at []ReservedFrontend
		for _, protocol := range protocols {
			port := alloc.Port{Protocol: protocol, Number: number}
			owner, held := l.ports.Owner(port)
			free, reserved = free && !held, reserved && held && owner == reservedOwner
			at = append(at, l.reserved.nodePorts[port]...)
		}
		return s.passes(free, reserved, func() bool { return c.reaches(t, at, false) })
	})
	return number, s.found
}

// resembles reports whether the frontends of a reserved address have all ports of the Service. Unless shares is set (several Services may share the
// address), they must have no other ports.
func (c *change) resembles(frontends []ReservedFrontend, shares bool) bool {
	var had []alloc.Port
	for _, f := range frontends {
		had = append(had, f.Port)
	}
	has := portsOf(c.service())
	return (shares || len(had) == len(has)) && !slices.ContainsFunc(has, func(p alloc.Port) bool { return !slices.Contains(had, p) })
}

// reaches reports whether a Service and some reserved frontends have an endpoint address in common. The parameter `unknown` is the result if the
// endpoints of either are not available yet.
func (c *change) reaches(t *transaction, frontends []ReservedFrontend, unknown bool) bool {
	known := t.backing(c.service())
	if len(known) == 0 {
		// The frontends at its cluster IPs lead to them.
		for _, addr := range valuesOf(c.service()).clusterIPs {
			for _, f := range t.s.allocator.reserved.addresses[addr] {
				known = append(known, f.Endpoints...)
			}
		}
	}
	var behind []netip.Addr
	for _, f := range frontends {
		behind = append(behind, f.Endpoints...)
	}
	if len(known) == 0 || len(behind) == 0 {
		return unknown
	}
	return slices.ContainsFunc(known, func(a netip.Addr) bool { return slices.Contains(behind, a) })
}

// backing returns the addresses of a Service's endpoints and of the Pods that it selects, as of
// this transaction. It is only called while values are reserved.
func (t *transaction) backing(svc *object.Service) (addrs []netip.Addr) {
	for _, o := range t.behind(svc, func(object.Object) bool { return true }) {
		addrs = append(addrs, object.Addrs(index.AddressesOf(o, svc.Spec.Selector))...)
	}
	return addrs
}

// behind returns the EndpointSlices, the Endpoints and the selected Pods of a Service: all that the transaction writes, and the stored ones for which
// stays returns true. A Pod that the transaction writes may lack the labels.
func (t *transaction) behind(svc *object.Service, stays func(object.Object) bool) []object.Object {
	if t.feeding == nil {
		t.feeding = map[string][]object.Object{}
		for _, c := range t.changes {
			switch o := c.wanted.(type) {
			case nil, *object.Service:
			case *object.Pod:
				t.feeding[podsOf+o.Metadata.Namespace] = append(t.feeding[podsOf+o.Metadata.Namespace], o)
			default:
				if of := index.ServiceKey(o); of != "" {
					t.feeding[of] = append(t.feeding[of], o)
				}
			}
		}
	}
	key := index.ServiceKey(svc)
	all := slices.Clone(t.feeding[key])
	add := func(o object.Object) {
		if stays(o) {
			all = append(all, o)
		}
	}
	_, stored, endpoints := t.s.table.service(key)
	for _, slice := range stored {
		add(slice)
	}
	if endpoints != nil {
		add(endpoints)
	}
	if len(svc.Spec.Selector) > 0 {
		all = append(all, t.feeding[podsOf+svc.Metadata.Namespace]...)
		for _, pod := range t.s.table.index.Selected(svc.Metadata.Namespace, svc.Spec.Selector) {
			add(pod)
		}
	}
	return all
}

// podsOf, followed by a namespace, is the key of the Pods of that namespace in transaction.feeding. No key of a Service begins with podsOf.
const podsOf = "pods of "
