package store

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// Revived reports the outcome for one object that was to be as it was before.
type Revived struct {
	Ref object.Ref
	// Did is one of the Revive words.
	Did string
	// Why is why it was left, or what is missing.
	Why string
}

// What became of an object that was to be as it was.
const (
	ReviveCreated  = "created"  // it had been deleted
	ReviveChanged  = "changed"  // it had been changed
	ReviveDeleted  = "deleted"  // it had not been there
	ReviveLeft     = "left"     // it belongs to a file, or a controller
	ReviveConflict = "conflict" // it is there, and not served: another one has a value of it
)

// The verbs of the journal for what goes back.
const (
	verbGoBack   = "go-back"
	verbRollback = "rollback"
)

// GoBack takes back what a trial has changed: objects are what they were, with the uids, addresses and
// ports that they had. Files that differ from what they were before the trial are held: the next SyncFiles
// take them as they were, until they change once more, or Confirm. found is what the files say now.
// Errors: ErrNoTrial.
func (s *Store) GoBack(found manifest.Files) ([]Revived, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	var revived []Revived
	err := s.decide(func() (err error) {
		revived, err = s.goBack(found)
		return err
	})
	return revived, err
}

// goBack is GoBack once.
func (s *Store) goBack(found manifest.Files) ([]Revived, error) {
	if !s.trial.Pending() {
		return nil, ErrNoTrial
	}
	head := *s.trial.Trial
	now := s.cfg.Clock().UTC().Round(0)
	head.Back = &now
	t := s.begin()
	t.announced = true
	// The copies of files that wait are stored first, with what was there before them.
	if err := s.flush(); err != nil {
		return nil, fmt.Errorf("go back: %w", err)
	}
	held, err := s.trial.holdFiles(s, found, &t.extra)
	if err != nil {
		return nil, fmt.Errorf("go back: %w", err)
	}
	for ref := range s.trial.before {
		t.extra.Deletes = append(t.extra.Deletes, trialObjectPrefix+objectKey(ref))
	}
	if len(held) == 0 {
		t.extra.Deletes = append(t.extra.Deletes, trialKey)
	} else if err := head.addTo(&t.extra, s.feed.revision); err != nil {
		return nil, err
	}
	s.allocator.unkeep(trialOwner)
	revived, err := t.revive(s.trial.before, &Caller{User: "svcctl", Verb: verbGoBack})
	if err == nil {
		_, err = t.run()
	}
	if err != nil {
		s.allocator.rollback()
		return nil, fmt.Errorf("go back: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trial = trial{}
	delete(s.allocator.kept, trialOwner)
	if len(held) > 0 {
		s.trial = trial{Trial: &head, held: held, files: map[string]bool{}}
		for path := range held {
			s.trial.files[path] = true
		}
	}
	return revived, nil
}

// revive settles changes that make objects what they were; nil records were not there.
func (t *transaction) revive(before map[object.Ref]*record, by *Caller) ([]Revived, error) {
	var changes []*change
	for _, ref := range slices.SortedFunc(maps.Keys(before), compareRefs) {
		was, is := before[ref], t.s.table.records[ref]
		if was == is || was != nil && is != nil && sameVersion(was, is) {
			continue
		}
		c := &change{ref: ref, old: is, by: by, remove: was == nil}
		if was != nil {
			c.owner = was.owner
		} else {
			c.owner = is.owner
		}
		changes = append(changes, c)
	}
	l := t.s.allocator
	for _, c := range changes { // all give before anybody takes
		if c.ref.Kind == object.KindService && c.holds() {
			c.giveAll(l)
		}
	}
	// Who is older keeps what two of them have.
	ordered := slices.Clone(changes)
	sortByAge(ordered, func(c *change) (object.Ref, *record) { return c.ref, before[c.ref] })
	why := map[object.Ref]string{}
	for _, c := range ordered {
		if was := before[c.ref]; was != nil {
			if err := c.resurrect(t, was); err != nil {
				return nil, err
			}
			if c.record.withheld {
				why[c.ref] = c.notes[len(c.notes)-1].message
			}
		} else {
			t.number(c)
		}
		t.settled.add(c, l.mark())
	}
	t.base = l.mark()
	revived := make([]Revived, 0, len(changes))
	for _, c := range changes {
		r := Revived{Ref: c.ref, Did: ReviveChanged, Why: why[c.ref]}
		switch {
		case r.Why != "":
			r.Did = ReviveConflict
		case c.remove:
			r.Did = ReviveDeleted
		case c.old == nil:
			r.Did = ReviveCreated
		}
		revived = append(revived, r)
	}
	return revived, nil
}

// sameVersion reports whether two records are of one version of one object.
func sameVersion(a, b *record) bool {
	return a.object.GetMeta().ResourceVersion == b.object.GetMeta().ResourceVersion
}

// giveAll gives back all that the stored version of a Service has.
func (c *change) giveAll(l *allocator) {
	owner, before := c.ref.Key(), c.held()
	for _, addr := range before.clusterIPs {
		l.releaseAddress(addr, owner)
	}
	for _, port := range before.ports {
		l.releasePort(port, owner)
	}
	for _, addr := range before.ingress {
		l.releaseIngress(addr, owner)
	}
	if len(index.ExternalIPs(c.oldService())) > 0 {
		l.released = true // a load balancer may have waited for the address
	}
}

// resurrect makes an earlier version the next one, as it was but for its resourceVersion and generation,
// which do not go back. When another Service has a value of it by now it is withheld, as at a start.
func (c *change) resurrect(t *transaction, was *record) error {
	c.next = object.Draft(was.object)
	t.number(c)
	meta := c.next.GetMeta()
	if !t.dry {
		meta.ResourceVersion = strconv.FormatUint(c.revision, 10)
	}
	s := object.StrategyOf(c.next)
	if c.old != nil && meta.UID == c.old.object.GetMeta().UID && s.HasGeneration() && !s.SameSpec(c.old.object, c.next) {
		meta.Generation = c.old.object.GetMeta().Generation + 1
	}
	if err := c.encodeAs(was.owner, Since{was.created, was.asked}); err != nil {
		return err
	}
	svc, isService := c.next.(*object.Service)
	if !isService {
		return nil
	}
	if err := t.s.allocator.holdAll(svc); err != nil {
		c.record.withheld, c.waits = true, true
		c.note(was.owner.File, "", ReasonConflict, fmt.Sprintf(
			"it is as it was again, and %v by now; nothing is programmed for it: delete one of the two", err), false)
	}
	return nil
}

// holdAll registers all that a stored Service has, or nothing.
func (l *allocator) holdAll(svc *object.Service) error {
	owner, v, request, before := index.ServiceKey(svc), valuesOf(svc), requestOf(svc), l.mark()
	err := func() error {
		for _, addr := range v.clusterIPs {
			if err := l.holdAddress(addr, owner); err != nil {
				return fmt.Errorf("cluster IP %s: %w", addr, err)
			}
		}
		for _, port := range v.ports {
			if err := l.holdPort(port, owner); err != nil {
				return fmt.Errorf("node %s: %w", port, err)
			}
		}
		for _, addr := range v.ingress {
			if err := l.holdIngress(addr, request); err != nil {
				return fmt.Errorf("load balancer IP %s: %w", addr, err)
			}
		}
		return nil
	}()
	if err != nil {
		l.back(before)
	}
	return err
}

// trialOwner holds what Services gave up in a trial, rolloutOwner what they gave up in a rollout. No Service has such a name.
const (
	trialOwner   = "(on trial: it goes back unless confirmed)"
	rolloutOwner = "(in a rollout: some boxes serve it until that is done)"
)

// kept are values that trialOwner or rolloutOwner holds, and who gave them up.
type kept struct {
	addresses map[netip.Addr]string
	ports     map[alloc.Port]string
	ingress   map[netip.Addr]string
}

// keepOf reserves the values that a Service had before a trial or a rollout and has lost, unless another holds
// them by now.
func (l *allocator) keepOf(holder string, svc *object.Service) {
	if l.kept == nil {
		l.kept = map[string]*kept{}
	}
	if l.kept[holder] == nil {
		l.kept[holder] = &kept{map[netip.Addr]string{}, map[alloc.Port]string{}, map[netip.Addr]string{}}
	}
	to, key, v, request := l.kept[holder], index.ServiceKey(svc), valuesOf(svc), requestOf(svc)
	for _, addr := range v.clusterIPs {
		if _, held := l.owner(addr); !held && l.holdAddress(addr, holder) == nil {
			to.addresses[addr] = key
		}
	}
	for _, port := range v.ports {
		if _, held := l.ports.Owner(port); !held && l.holdPort(port, holder) == nil {
			to.ports[port] = key
		}
	}
	for _, addr := range v.ingress {
		if _, has := l.pools.RequestOf(addr, key); has {
			continue
		}
		request.Owner = holder
		if l.holdIngress(addr, request) == nil {
			to.ingress[addr] = key
		}
	}
}

// unkeep gives everything free that is kept by a holder.
func (l *allocator) unkeep(holder string) {
	of := l.kept[holder]
	if of == nil {
		return
	}
	for addr := range of.addresses {
		l.releaseAddress(addr, holder)
	}
	for port := range of.ports {
		l.releasePort(port, holder)
	}
	for addr := range of.ingress {
		l.releaseIngress(addr, holder)
	}
}

// regainAddress gives a Service what it gave up in a trial or a rollout, if it asks for it. So do the other two.
func (l *allocator) regainAddress(addr netip.Addr, owner string) {
	l.regain(owner, func(k *kept) string { return k.addresses[addr] }, func(holder string) { l.releaseAddress(addr, holder) })
}

func (l *allocator) regainPort(port alloc.Port, owner string) {
	l.regain(owner, func(k *kept) string { return k.ports[port] }, func(holder string) { l.releasePort(port, holder) })
}

func (l *allocator) regainIngress(addr netip.Addr, owner string) {
	l.regain(owner, func(k *kept) string { return k.ingress[addr] }, func(holder string) { l.releaseIngress(addr, holder) })
}

// regain releases a value that is kept for its owner, which nobody else has missed.
func (l *allocator) regain(owner string, gaveUp func(*kept) string, release func(holder string)) {
	for holder, k := range l.kept {
		if gaveUp(k) == owner {
			released := l.released
			release(holder)
			l.released = released
		}
	}
}
