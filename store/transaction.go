package store

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// transaction is the work of one call: what shall change, decided and allocated before
// anything is written.
type transaction struct {
	s    *Store
	host Host // as of its beginning
	// files and claims are as of this transaction; claims has only those that differ.
	files      manifest.Files
	claims     map[object.Ref][]claim
	duplicates map[string][]manifest.Problem
	changes    map[object.Ref]*change
	removes    bool // objects that nobody claims any more may be removed

	// settled are the changes that were decided one after the other, before changes, and
	// last the last one of each object. What they took and released is in the ledger up
	// to base.
	settled []*change
	last    map[object.Ref]*change
	base    mark
	// externals are the settled Services with external IPs.
	externals externals
	// joint are those among the changes that are being allocated for together.
	joint externals
	// revision is the last one that was given to a change, created the last creation time.
	revision uint64
	created  *time.Time
	// dry says that what is settled is taken back.
	dry bool
	// feeding are what changes has for each Service; see backing.
	feeding map[string][]object.Object
	// trusted are objects that are as their files say, see trust.
	trusted []object.Ref
	// extra is committed together with the changes, and so is sourced, unless nil.
	extra   engine.Transaction
	sourced *sourcesUpdate
}

// change is what becomes of one object.
type change struct {
	ref   object.Ref
	old   *record // nil: it is new
	owner Owner
	// wanted is the new version before allocation; nil when the object stays as it
	// is, or is removed.
	wanted object.Object
	remove bool
	// err is why the wanted version is not accepted.
	err error
	// notes are about documents and what they ask for, outcome is about what they got.
	notes, outcome []note

	// next is wanted with its values, nil when it does not come to that; claim and
	// ingress (its load balancer IPs) are on the way there.
	next    object.Object
	claim   alloc.Claim
	ingress []netip.Addr
	// stays says that this holder could not have what it asks for.
	stays bool
	// outside says that it asks for a value that no range has.
	outside bool
	// waits says that the outcome may be better when others release something.
	waits bool

	// record and its stored form (see encodeRecord) are what is written, nil when nothing is;
	// revision is that of the record, or of its removal.
	record   *record
	encoded  []byte
	revision uint64
	// same says that record differs from the old one only in what it shares memory with.
	same bool
	// by is the client of the API that asks for it, nil when it is nobody of these.
	by *Caller
}

func (s *Store) begin() *transaction {
	s.ledger.begin()
	return &transaction{
		s: s, host: s.hostNow(), files: s.declared.files,
		claims:     map[object.Ref][]claim{},
		duplicates: map[string][]manifest.Problem{},
		changes:    map[object.Ref]*change{},
		last:       map[object.Ref]*change{},
		externals:  externals{},
		revision:   s.latest(),
	}
}

// latest is the revision that the next one follows on.
func (s *Store) latest() uint64 { return max(s.feed.revision, s.numbers.seed, s.storage.head) }

// examineWaiting takes those in that wait for others to release something. It gives false
// when there is nobody new.
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

// examine decides what objects become. No decision depends on another one.
func (t *transaction) examine(refs ...object.Ref) {
	changes := make([]*change, len(refs))
	parallel.Do(len(refs), parallel.Share, func(i int) { changes[i] = t.judge(refs[i]) })
	for i, ref := range refs {
		t.changes[ref] = changes[i]
	}
}

// judge decides what an object becomes, by its claims.
func (t *transaction) judge(ref object.Ref) *change {
	claims := t.claimsOn(ref)
	c := &change{ref: ref, old: t.record(ref)}
	winner, verdict := t.decide(c.old, claims)
	switch verdict {
	case use:
		c.owner = Owner{File: winner.path}
		if c.takesOver() {
			c.note(c.owner.File, "", ReasonConflict, fmt.Sprintf(
				"%s had made an object of this name, whose place this document takes", c.old.owner), true)
		}
		c.want(t.s, winner.wanted())
		c.contest(claims, c.owner)
	case remove:
		if c.remove = t.removes; !c.remove {
			c.stay(claims)
		}
	case keep:
		c.stay(claims)
	}
	return c
}

// stay asks for nothing new; but what the object waits for may be there now.
func (c *change) stay(claims []claim) {
	if c.old == nil {
		return
	}
	c.owner = c.old.owner
	if c.owner == (Owner{}) {
		c.unusual(c.old.object)
	}
	if c.ref.Kind == object.KindService {
		c.wanted = c.old.object
	}
	c.contest(claims, c.owner)
}

// sorted are the changes in the order in which they are served: who was there first
// comes first, then by name.
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
			keyed[i].since = r.since().created
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
