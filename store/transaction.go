package store

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// transaction is the state of one call that changes the store. It decides which objects change and allocates their values before anything is
// written. It has more than 15 fields: the decisions, and everything that is committed with them.
type transaction struct {
	s    *Store
	host Host // the host snapshot at the beginning of the transaction
	declaring
	changes map[object.Ref]*change
	removes bool // objects that no file declares any more may be removed

	settled
	// joint has the Services with external IPs among the changes for which values are being allocated together.
	joint index.Externals
	// revision is the last revision given to a change of the transaction. created is the last creation time.
	revision uint64
	created  *time.Time
	// dry is set for a dry run: the changes are rolled back after staging.
	dry bool
	// feeding has the objects that the transaction writes and that may have endpoints: Pods by namespace (with the prefix podsOf), EndpointSlices and
	// Endpoints by Service; see behind.
	feeding map[string][]object.Object
	// extra and sourced (nil for none) are committed together with the changes.
	extra   engine.Transaction
	sourced *sourcesUpdate
	// announced is set when other machines need extra: the commit then gets a revision even without changes of objects.
	announced bool
	pending   pendingUpdate
}

// declaring has the files as of a transaction, and those declarations and duplicates that differ from the store's.
type declaring struct {
	files        manifest.Files
	declarations map[object.Ref][]declaration
	duplicates   map[string][]manifest.Problem
	// trusted lists the objects that already equal the documents in their files; see trust.
	trusted []object.Ref
}

// settled has the changes of a transaction that were decided one after the other, each with its values allocated. They come before all
// others.
type settled struct {
	order []*change
	last  map[object.Ref]*change // the last change of each object in order
	// base is the state of the allocator after these changes. Each attempt to allocate for the other changes begins from it.
	base mark
	// externals has the Services with external IPs among these changes.
	externals index.Externals
}

// add appends a settled change. now is the state of the allocator after it.
func (d *settled) add(c *change, now mark) {
	d.order = append(d.order, c)
	d.last[c.ref] = c
	if svc, isService := c.next.(*object.Service); isService {
		d.externals.Add(c.ref.Key(), index.ExternalIPs(svc)...)
	}
	d.base = now
}

// change is the change of one object in a transaction: its stored version, the wanted one, and the outcome.
type change struct {
	ref   object.Ref
	old   *record.Record // nil for a new object
	owner Owner
	// by is the client of the API that asks for it, nil for files and controllers.
	by *Caller
	// wanted is the new version before allocation; nil when the object stays as it
	// is, or is removed.
	wanted object.Object
	remove bool
	// err is why the wanted version is not accepted.
	err error
	// notes are the problems of the object, except for those of the allocation.
	notes []note
	// keepOld is set when allocation failed: the stored version stays in force.
	keepOld bool
	// waits is set when a retry may succeed after others release values.
	waits bool
	assigned
	written
}

// assigned has the values that were allocated to the wanted version.
type assigned struct {
	// next is a copy of wanted with the allocated values; nil if the object is removed or stays as it is. request is the request for load balancer
	// IPs, and ingress has the IPs that were allocated.
	next    object.Object
	request alloc.Request
	ingress []netip.Addr
	// outcome has the problems of the allocation.
	outcome []note
	// outside is set when the Service asks for a value that no range has.
	outside bool
}

// written has the record of the new version, and its encoded form.
type written struct {
	// record and encoded, its stored form (see encode), are nil if nothing is written. revision is that of the record or of the removal.
	record   *record.Record
	encoded  []byte
	revision uint64
	// same is set when record has the same content as the old one, and only shares memory differently.
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

// record returns the record of an object after the settled changes of this transaction; nil if it does not exist.
func (t *transaction) record(ref object.Ref) *record.Record {
	switch c := t.last[ref]; {
	case c == nil:
		return t.s.table.get(ref)
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
	changes := slices.AppendSeq(make([]*change, 0, len(t.changes)), maps.Values(t.changes))
	record.SortByAge(changes, func(c *change) (object.Ref, *record.Record) { return c.ref, c.old })
	return changes
}

func (c *change) note(path, field, reason, message string, warning bool) {
	c.notes = append(c.notes, note{path: path, field: field, reason: reason, message: message, warning: warning})
}

// notesOf returns a note for each error in err, because of which a version is not accepted. reason is the Reason of the notes; "" means the type of
// each error.
func (c *change) notesOf(err error, reason string) []note {
	var fields object.Errors
	if !errors.As(err, &fields) {
		return []note{{path: c.owner.File, reason: reason, message: err.Error()}}
	}
	notes := make([]note, len(fields))
	for i, e := range fields {
		notes[i] = note{path: c.owner.File, field: e.Field, reason: cmp.Or(reason, string(e.Type)), message: e.Body()}
	}
	return notes
}

func (c *change) service() *object.Service { return c.next.(*object.Service) }

// holds reports whether the stored version holds the addresses and ports in it: it does not if it is withheld.
func (c *change) holds() bool { return c.old != nil && !c.old.Withheld }

// held returns the values of the stored version.
func (c *change) held() values {
	if !c.holds() {
		return values{}
	}
	return valuesOf(c.old.Object.(*object.Service))
}

// oldService returns the stored version of the Service of this change; nil if there is none.
func (c *change) oldService() *object.Service {
	if c.old == nil {
		return nil
	}
	return c.old.Object.(*object.Service)
}

// before returns the record that the new version updates. It is nil for a new object, and for an object of a file that replaces one of a controller.
func (c *change) before() *record.Record {
	if c.takesOver() {
		return nil
	}
	return c.old
}

// ownerOf returns the owner of the written or removed object.
func (c *change) ownerOf() Owner {
	if c.remove && c.old != nil {
		return c.old.Owner
	}
	return c.owner
}

// takesOver reports whether the document of a file replaces an object of a controller.
func (c *change) takesOver() bool {
	return c.old != nil && c.old.Owner.Controller != "" && c.owner.File != ""
}
