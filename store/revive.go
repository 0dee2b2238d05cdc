package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"svcctl.io/svcctl/store/index"
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
