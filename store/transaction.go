package store

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// transaction is the work of one call: what shall change, decided and allocated before
// anything is written. It has more than 15 fields: what is decided, and what is committed with it.
type transaction struct {
	s    *Store
	host Host // as of its beginning
	declaring
	changes map[object.Ref]*change
	removes bool // objects without a declaration may be removed

	settled
	// joint are the Services with external IPs among the changes that are being allocated for together.
	joint index.Externals
	// revision is the last one that was given to a change, created the last creation time.
	revision uint64
	created  *time.Time
	// dry is set for a dry run: the changes are rolled back after staging.
	dry bool
	// feeding has the objects of changes by the Service that they belong to; see backing.
	feeding map[string][]object.Object
	// extra is committed together with the changes, and so is sourced, unless nil.
	extra   engine.Transaction
	sourced *sourcesUpdate
	// announced is set when other machines have to learn of extra.
	announced bool
	// rolled is the rollout afterwards, unless nil; staged is what was there before the changes that belong to one.
	rolled *rollout
	staged map[object.Ref]*record
}

// declaring has the documents of files as of a transaction; declarations and duplicates have only those that differ.
type declaring struct {
	files        manifest.Files
	declarations map[object.Ref][]declaration
	duplicates   map[string][]manifest.Problem
	// trusted are objects that are as their files say, see trust.
	trusted []object.Ref
}

// settled are the changes of a transaction that were decided one after the other, before all others.
type settled struct {
	order []*change
	last  map[object.Ref]*change // the last one of each object
	// base is the state of the allocator up to which they took and released.
	base mark
	// externals has those of them with external IPs.
	externals index.Externals
}

// add makes a change the last one that is settled; now is the allocator with it.
func (d *settled) add(c *change, now mark) {
	d.order = append(d.order, c)
	d.last[c.ref] = c
	if svc, isService := c.next.(*object.Service); isService {
		d.externals.Add(c.ref.Key(), svc)
	}
	d.base = now
}

// change is one object of a transaction: its stored version, the one that is wanted, and the outcome.
type change struct {
	ref   object.Ref
	old   *record // nil: it is new
	owner Owner
	// by is the client of the API that asks for it, nil for files and controllers.
	by *Caller
	// wanted is the new version before allocation; nil when the object stays as it
	// is, or is removed.
	wanted object.Object
	remove bool
	// err is why the wanted version is not accepted.
	err error
	// notes are about documents and what they ask for.
	notes []note
	// keepOld is set when allocation failed: the stored version stays in force.
	keepOld bool
	// waits is set when a retry may succeed after others release values.
	waits bool
	assigned
	written
}

// assigned has the values that allocation gave a wanted version.
type assigned struct {
	// next is wanted with its values, nil when there is none; request and
	// ingress (its load balancer IPs) lead to it.
	next    object.Object
	request alloc.Request
	ingress []netip.Addr
	// outcome is about what it got.
	outcome []note
	// outside is set when it asks for a value that no range has.
	outside bool
}

// written has the stored form of a change.
type written struct {
	// record and its stored form (see encode) are nil when nothing is written;
	// revision is that of the record, or of its removal.
	record   *record
	encoded  []byte
	revision uint64
	// same is set when record differs from the old one only in shared memory.
	same bool
}

func (s *Store) begin() *transaction {
	s.allocator.begin()
	return &transaction{
		s: s, host: s.hostNow(), revision: s.latest(),
		declaring: declaring{files: s.declared.files, declarations: map[object.Ref][]declaration{}, duplicates: map[string][]manifest.Problem{}},
		changes:   map[object.Ref]*change{},
		settled:   settled{last: map[object.Ref]*change{}, externals: index.Externals{}},
	}
}

// latest is the revision that the next one follows on.
func (s *Store) latest() uint64 { return max(s.feed.revision, s.numbers.seed, s.storage.head) }

// examineWaiting adds the Services that wait for released values. It returns false when there are
// no new ones.
func (t *transaction) examineWaiting() bool {
	found := false
	examine := func(ref object.Ref) {
		if t.changes[ref] == nil {
			t.examine(ref)
			found = true
		}
	}
	for ref := range t.s.outcomes.waiting {
		examine(ref)
	}
	for ref, c := range t.last {
		if c.waits {
			examine(ref)
		}
	}
	return found
}

// record is an object as of this transaction; nil when there is none.
func (t *transaction) record(ref object.Ref) *record {
	switch c := t.last[ref]; {
	case c == nil:
		return t.s.table.records[ref]
	case c.remove:
		return nil
	case c.record != nil:
		return c.record
	default:
		return c.old
	}
}

// sorted returns the changes in the order in which they get values: by age, then by name.
func (t *transaction) sorted() []*change {
	changes := make([]*change, 0, len(t.changes))
	for _, c := range t.changes {
		changes = append(changes, c)
	}
	sortByAge(changes, func(c *change) (object.Ref, *record) { return c.ref, c.old })
	return changes
}

// sortByAge puts the oldest objects first, those of one age in the order of their names, and
// last those that are not there yet.
func sortByAge[T any](all []T, of func(T) (object.Ref, *record)) {
	type aged struct {
		since uint64 // the revision of its creation
		ref   object.Ref
		one   T
	}
	keyed := make([]aged, len(all))
	for i, one := range all {
		ref, r := of(one)
		keyed[i] = aged{math.MaxUint64, ref, one}
		if r != nil {
			keyed[i].since = r.since().Created
		}
	}
	slices.SortFunc(keyed, func(a, b aged) int {
		if a.since != b.since {
			return cmp.Compare(a.since, b.since)
		}
		return compareRefs(a.ref, b.ref)
	})
	for i := range keyed {
		all[i] = keyed[i].one
	}
}

func createdAt(o object.Object) time.Time {
	if at := o.GetMeta().CreationTimestamp; at != nil {
		return *at
	}
	return time.Time{}
}

func compareRefs(a, b object.Ref) int {
	if a.Namespace != b.Namespace {
		return strings.Compare(a.Namespace, b.Namespace)
	}
	if a.Name != b.Name {
		return strings.Compare(a.Name, b.Name)
	}
	return strings.Compare(a.Kind, b.Kind)
}
