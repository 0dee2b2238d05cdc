package store

import (
	"errors"
	"strconv"
	"time"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

// encode numbers new versions and encodes them. Those that say the same as the old ones are
// dropped.
func (t *transaction) encode(changes ...*change) error {
	errs := make([]error, len(changes))
	parallel.Do(len(changes), parallel.Share, func(i int) { errs[i] = t.dropUnchanged(changes[i]) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, c := range changes {
		if c.next != nil || c.remove {
			t.number(c)
		}
		if c.next != nil {
			t.setServerFields(c)
		}
	}
	parallel.Do(len(changes), parallel.Share, func(i int) { errs[i] = changes[i].encode() })
	return errors.Join(errs...)
}

// dropUnchanged drops a version that says the same as the old one.
func (t *transaction) dropUnchanged(c *change) error {
	if c.next == nil || c.before() == nil || c.old.withheld {
		return nil
	}
	digest, err := (&stored{c.sameOwner(), c.old.created, c.old.asked, c.next}).digest()
	if err != nil || digest != c.old.digest {
		return err
	}
	if !t.s.declared.synced && c.by == nil && c.owner.File != "" { // what was read from the engine is in the file, too
		c.record = &record{object: c.next, owner: c.owner, digest: digest, created: c.old.created, asked: c.old.asked}
		c.same = true
	}
	c.next = nil
	return nil
}

// encode makes the record of a new version and its stored form.
func (c *change) encode() error {
	if c.next == nil {
		return nil
	}
	return c.encodeAs(c.owner, c.sinceNow())
}

// encodeAs is encode for who owns the new version, and since when it has been what it is.
func (c *change) encodeAs(owner Owner, since Since) error {
	value, digest, err := (&stored{owner, since.Created, since.asked, c.next}).encode()
	if err != nil {
		return err
	}
	c.encoded = value
	c.record = &record{object: c.next, owner: owner, digest: digest, created: since.Created, asked: since.asked}
	return nil
}

// sameOwner returns the owner that the old version must have for the new one to be unchanged. A
// client that changes nothing does not become the owner of a controller's object.
func (c *change) sameOwner() Owner {
	if c.by != nil {
		return c.old.owner
	}
	return c.owner
}

// number gives a change its revision. A dry run uses none.
func (t *transaction) number(c *change) {
	if t.dry {
		return
	}
	t.revision++
	c.revision = t.revision
}

// creation is the creation time of a new object: now, but never before that of an object
// that is there, or a clock that was set back would make the newcomer the older one. What
// comes in one transaction shares it.
func (t *transaction) creation() *time.Time {
	if t.created == nil {
		s, now := t.s, t.s.now()
		if now.Before(s.numbers.newest) && s.storage.shared == nil { // the age is the revision; a clock of another box may be ahead
			now = s.numbers.newest.Add(time.Second)
		}
		s.numbers.newest, t.created = now, &now
	}
	return t.created
}

// setServerFields sets what the server says about a version.
func (t *transaction) setServerFields(c *change) {
	meta := c.next.GetMeta()
	if !t.dry {
		meta.ResourceVersion = strconv.FormatUint(c.revision, 10)
	}
	if c.before() == nil {
		meta.UID, meta.CreationTimestamp = t.s.cfg.NewUID(), t.creation()
		if object.StrategyOf(c.next).HasGeneration() {
			meta.Generation = 1
		}
		return
	}
	if s := object.StrategyOf(c.next); s.HasGeneration() && !s.SameSpec(c.old.object, c.next) {
		meta.Generation++
	}
}

// sinceNow is the age of the version that a change makes.
func (c *change) sinceNow() Since {
	var before Since
	had := map[string]bool{}
	if old := c.before(); old != nil {
		before = old.since()
		if svc, isService := old.object.(*object.Service); isService {
			for key := range asks(svc) {
				had[key] = true
			}
		}
	} else {
		before.Created = c.revision
	}
	now := Since{Created: before.Created}
	svc, isService := c.next.(*object.Service)
	if !isService || c.before() == nil {
		return now
	}
	for key := range asks(svc) {
		revision := c.revision
		if had[key] {
			revision = before.of(key)
		}
		if revision == now.Created {
			continue
		}
		if now.asked == nil {
			now.asked = map[string]uint64{}
		}
		now.asked[key] = revision
	}
	return now
}
