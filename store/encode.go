package store

import (
	"errors"
	"strconv"
	"time"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/record"
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

// dropUnchanged drops a version that is equal to the old one.
func (t *transaction) dropUnchanged(c *change) error {
	if c.next == nil || c.before() == nil || c.old.Withheld {
		return nil
	}
	digest, err := (&record.Record{Object: c.next, Owner: c.sameOwner(), Created: c.old.Created, Asked: c.old.Asked}).Sum()
	if err != nil || digest != c.old.Digest {
		return err
	}
	if !t.s.declared.synced && c.by == nil && c.owner.File != "" { // what was read from the engine is in the file, too
		c.record = &record.Record{Object: c.next, Owner: c.owner, Digest: digest, Created: c.old.Created, Asked: c.old.Asked}
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
	return c.encodeAs(c.owner, record.SinceNow(c.before(), c.next, c.revision))
}

// encodeAs is encode with the owner of the new version and the time of its last change.
func (c *change) encodeAs(owner Owner, since record.Since) error {
	r := &record.Record{Object: c.next, Owner: owner, Created: since.Created, Asked: since.Asked}
	var err error
	if c.encoded, r.Digest, err = r.Encode(); err != nil {
		return err
	}
	c.record = r
	return nil
}

// sameOwner returns the owner that the old version must have for the new one to be unchanged. A
// client that changes nothing does not become the owner of a controller's object.
func (c *change) sameOwner() Owner {
	if c.by != nil {
		return c.old.Owner
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

// setServerFields sets the fields of a version that belong to the server.
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
	if s := object.StrategyOf(c.next); s.HasGeneration() && !s.SameSpec(c.old.Object, c.next) {
		meta.Generation++
	}
}
