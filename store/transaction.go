package store

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// transaction is the work of one call: what shall change, decided and allocated before
// anything is written.
type transaction struct {
	s *Store
	// files and claims are as of this transaction; claims has only those that differ.
	files      map[string]*manifest.File
	claims     map[object.Ref][]claim
	duplicates map[string][]manifest.Problem
	changes    map[object.Ref]*change
	removes    bool // objects that nobody claims any more may be removed
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
	// waits says that the outcome may be better when others release something.
	waits bool

	// record and its stored form are what is written, nil when nothing is; revision is
	// that of the record, or of its removal.
	record   *record
	encoded  []byte
	revision uint64
	// same says that record differs from the old one only in what it shares memory with.
	same bool
}

func (s *Store) begin() *transaction {
	s.ledger.begin()
	return &transaction{
		s: s, files: s.files,
		claims:     map[object.Ref][]claim{},
		duplicates: map[string][]manifest.Problem{},
		changes:    map[object.Ref]*change{},
	}
}

// examine decides what an object becomes, by its claims.
func (t *transaction) examine(ref object.Ref) {
	claims := t.claimsOn(ref)
	c := &change{ref: ref, old: t.s.records[ref]}
	t.changes[ref] = c
	winner, verdict := t.decide(c.old, claims)
	switch verdict {
	case use:
		c.owner = Owner{File: winner.path}
		if c.takesOver() {
			c.note(c.owner.File, "", ReasonConflict, fmt.Sprintf(
				"%s had made an object of this name, whose place this document takes", c.old.owner), true)
		}
		c.want(t.s, winner.object)
		c.contest(claims, c.owner)
	case remove:
		if c.remove = t.removes; !c.remove {
			c.stay(claims)
		}
	case keep:
		c.stay(claims)
	}
}

// stay asks for nothing new; but what the object waits for may be there now.
func (c *change) stay(claims []claim) {
	if c.old == nil {
		return
	}
	c.owner = c.old.owner
	if c.ref.Kind == object.KindService {
		c.wanted = c.old.object
	}
	c.contest(claims, c.owner)
}

// want makes a document the new version of the object, or says why it cannot be. The
// version keeps parts of the document.
func (c *change) want(s *Store, document object.Object) {
	next := object.Draft(document)
	if s.cfg.LegacyIPs {
		next = document.DeepCopy()
		object.NormalizeLegacyIPs(next)
	}
	c.ownMetadata(next.GetMeta())
	svc, isService := next.(*object.Service)
	if isService {
		c.ownStatus(svc)
	}
	object.Default(next)
	var errs object.Errors
	if isService {
		var before *object.Service
		if c.old != nil {
			before = c.old.object.(*object.Service)
			if c.owner.File != "" && svc.NeedsNodePort() && before.NeedsNodePort() {
				object.KeepNodePorts(svc, before) // a file is applied, not put
			}
			object.PatchFromOld(svc, before)
		}
		errs = object.DefaultFamilies(svc, before, s.families)
		errs = append(errs, s.checkExternalIPs(svc, before)...)
	}
	if before := c.before(); before != nil {
		errs = object.Join(errs, object.ValidateUpdate(next, before.object, s.cfg.Objects))
	} else {
		errs = object.Join(errs, object.Validate(next, s.cfg.Objects))
	}
	if len(errs) > 0 {
		c.err = errs
		c.notes = append(c.notes, c.notesOf(errs, "")...)
		return
	}
	for _, warning := range object.Warnings(next) {
		c.note(c.owner.File, "", ReasonUnusual, warning, true)
	}
	c.wanted = next
}

// takesOver tells whether a file's document takes the place of what a controller made.
func (c *change) takesOver() bool {
	return c.old != nil && c.old.owner.Controller != "" && c.owner.Controller == ""
}

// before is the version that the new one is an update of; nil for what is a new object.
func (c *change) before() *record {
	if c.takesOver() {
		return nil
	}
	return c.old
}

// ownMetadata replaces what only the server says about an object. When a Pod ends is for
// those to say who run it.
func (c *change) ownMetadata(meta *object.ObjectMeta) {
	meta.UID, meta.ResourceVersion, meta.Generation = "", "", 0
	meta.CreationTimestamp = nil
	if c.ref.Kind != object.KindPod {
		meta.DeletionTimestamp = nil
	}
	old := c.before()
	if old == nil {
		return
	}
	before := old.object.GetMeta()
	meta.UID, meta.ResourceVersion, meta.Generation = before.UID, before.ResourceVersion, before.Generation
	meta.CreationTimestamp = before.CreationTimestamp
}

// ownStatus replaces the status by that of the stored version.
func (c *change) ownStatus(svc *object.Service) {
	if len(svc.Status.LoadBalancer.Ingress) > 0 || len(svc.Status.Conditions) > 0 {
		c.note(c.owner.File, "status", manifest.ReasonIgnoredField,
			"the status is written by the appliance; ask for an address with spec.loadBalancerIP", true)
	}
	svc.Status = object.ServiceStatus{}
	if c.old != nil {
		svc.Status = c.old.object.DeepCopy().(*object.Service).Status
	}
}

// checkExternalIPs asks the policy about the external IPs that are new.
func (s *Store) checkExternalIPs(svc, before *object.Service) object.Errors {
	var errs object.Errors
	if s.cfg.ExternalIP == nil {
		return nil
	}
	for i, text := range svc.Spec.ExternalIPs {
		addr, err := netip.ParseAddr(text)
		if err != nil || before != nil && slices.Contains(before.Spec.ExternalIPs, text) {
			continue // Validate says what is wrong with the form
		}
		if err := s.cfg.ExternalIP(addr); err != nil {
			errs = append(errs, object.Error{
				Type: object.FieldValueInvalid, Field: fmt.Sprintf("spec.externalIPs[%d]", i), Value: text, Detail: err.Error(),
			})
		}
	}
	return errs
}

// sorted are the changes in the order in which they are served: who was there first
// comes first, then by name.
func (t *transaction) sorted() []*change {
	changes := make([]*change, 0, len(t.changes))
	for _, c := range t.changes {
		changes = append(changes, c)
	}
	slices.SortFunc(changes, func(a, b *change) int {
		return cmp.Or(compareAge(a.old, b.old), compareRefs(a.ref, b.ref))
	})
	return changes
}

// compareAge puts older objects first, and those that are not there yet last.
func compareAge(a, b *record) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return createdAt(a.object).Compare(createdAt(b.object))
}

func createdAt(o object.Object) time.Time {
	if at := o.GetMeta().CreationTimestamp; at != nil {
		return *at
	}
	return time.Time{}
}

func compareRefs(a, b object.Ref) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
}

// prepare numbers the new versions from the revision on and encodes them. Versions
// that say the same as the old ones are dropped. It gives the last revision used.
func (t *transaction) prepare(changes []*change, revision uint64) (uint64, error) {
	for _, c := range changes {
		switch {
		case c.remove:
			revision++
			c.revision = revision
			continue
		case c.next == nil:
			continue
		}
		fresh := c.before() == nil || c.old.withheld
		if !fresh {
			_, digest, err := encodeRecord(c.next, c.owner)
			if err != nil {
				return 0, err
			}
			if digest == c.old.digest {
				if !t.s.synced && c.owner.File != "" { // what was read from the engine is in the file, too
					c.record = &record{object: c.next, owner: c.owner, digest: digest}
					c.same = true
				}
				c.next = nil
				continue
			}
		}
		revision++
		c.revision = revision
		t.s.stamp(c)
		value, digest, err := encodeRecord(c.next, c.owner)
		if err != nil {
			return 0, err
		}
		c.encoded = value
		c.record = &record{object: c.next, owner: c.owner, digest: digest}
	}
	return revision, nil
}

// creation is the creation time of a new object: now, but never before that of an object
// that is there, or a clock that was set back would make the newcomer the older one.
func (s *Store) creation() time.Time {
	now := s.cfg.Clock().UTC().Truncate(time.Second)
	if now.Before(s.newest) {
		now = s.newest.Add(time.Second)
	}
	s.newest = now
	return now
}

// stamp sets what the server says about a version.
func (s *Store) stamp(c *change) {
	meta := c.next.GetMeta()
	meta.ResourceVersion = strconv.FormatUint(c.revision, 10)
	if c.before() == nil {
		now := s.creation()
		meta.UID, meta.CreationTimestamp, meta.Generation = s.cfg.NewUID(), &now, 1
		return
	}
	if !sameSpec(c.old.object, c.next) {
		meta.Generation++
	}
}

// sameSpec tells whether two versions differ in metadata and status alone.
func sameSpec(a, b object.Object) bool {
	switch a := a.(type) {
	case *object.Service:
		return reflect.DeepEqual(a.Spec, b.(*object.Service).Spec)
	case *object.EndpointSlice:
		b := b.(*object.EndpointSlice)
		return a.AddressType == b.AddressType && reflect.DeepEqual(a.Endpoints, b.Endpoints) && reflect.DeepEqual(a.Ports, b.Ports)
	case *object.Endpoints:
		return reflect.DeepEqual(a.Subsets, b.(*object.Endpoints).Subsets)
	case *object.Pod:
		return reflect.DeepEqual(a.Spec, b.(*object.Pod).Spec)
	}
	return false
}
