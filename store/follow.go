package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// maxLost bounds how long a call is decided again because other machines commit first.
const maxLost = 20 * time.Second

// errLost means that other machines committed first on every attempt.
var errLost = &engine.AwayError{Why: "other boxes have changed something each time before this change could be made; try again"}

// Follow takes over what other machines commit, until ctx is done. Without them it does nothing.
func (s *Store) Follow(ctx context.Context) error {
	if s.storage.shared == nil {
		<-ctx.Done()
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.storage.shared.Arrived():
		}
		s.writer.Lock()
		s.follow()
		s.writer.Unlock()
	}
}

// Fresh returns when all that was committed by any machine before the call can be read. On a store of
// one machine it always can.
func (s *Store) Fresh(ctx context.Context) error {
	if s.storage.shared == nil {
		return nil
	}
	return s.storage.shared.Fresh(ctx)
}

// decide makes a call, and makes it again, with the changes of other machines taken over, for as long as it fails because another
// machine wrote first; after maxLost it gives up. The writer must be held.
func (s *Store) decide(call func() error) error {
	s.follow()
	for began := time.Now(); ; {
		if err := call(); s.storage.shared == nil || !errors.Is(err, engine.ErrConflict) {
			return err
		}
		if time.Since(began) > maxLost {
			return errLost
		}
		s.storage.lost.Add(1)
		s.follow()
	}
}

// change decides a call, with the writer.
func (s *Store) change(call func() error) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.decide(call)
}

// decided is change for a call with a result.
func decided[T any](s *Store, call func() (T, error)) (result T, err error) {
	err = s.change(func() (err error) {
		result, err = call()
		return err
	})
	return result, err
}

// Lost counts the commits of this machine that another machine's overtook, so that they were
// decided again.
func (s *Store) Lost() uint64 { return s.storage.lost.Load() }

// follow takes over what has arrived. The writer must be held.
func (s *Store) follow() {
	if s.storage.shared == nil || s.storage.failed {
		return
	}
	arrived := s.storage.shared.Follow()
	for i := range arrived {
		if err := s.takeOver(&arrived[i]); err != nil {
			s.storage.failed = true
			s.storage.shared.Refuse(err)
			return
		}
	}
	if len(arrived) > 0 {
		s.storage.shared.Published()
	}
}

// takeOver makes a commit of another machine one of this store.
func (s *Store) takeOver(f *engine.Followed) error {
	if f.Again {
		for name := range maps.Clone(s.sources.reading) {
			s.letSource(name)
		}
		return nil
	}
	changes, at, err := s.followed(f)
	if err != nil {
		return err
	}
	if f.Reload { // objects are not what they were made of files any more
		for name := range maps.Clone(s.sources.reading) {
			s.letSource(name)
		}
	}
	if err := s.takeOverSources(f, changes); err != nil {
		return err
	}
	t := s.begin()
	t.revision = f.Revision
	if err := t.followPending(f); err != nil {
		return err
	}
	t.reassign(changes)
	var update journal.Update
	if f.Reload {
		update = s.feed.journal.Restart(f.Revision)
	} else if update, err = s.feed.journal.Plan(journalOf(changes), s.feed.revision, at); err != nil {
		return err
	}
	if update.Reset {
		update.Revision = f.Revision
	}
	var out engine.Transaction
	update.AddTo(&out)
	s.storage.shared.Keep(out)
	s.storage.head = f.Revision
	t.publish(changes, f.Revision, update)
	return nil
}

// followed are the changes of a commit, in the order of their revisions.
func (s *Store) followed(f *engine.Followed) (changes []*change, at time.Time, err error) {
	var n commitNote
	if len(f.Note) > 0 {
		if err := json.Unmarshal(f.Note, &n); err != nil {
			return nil, at, fmt.Errorf("read what a commit of another box changes: %w", err)
		}
	}
	byKey := make(map[string]*change, len(f.Puts)+len(f.Deletes))
	for _, pair := range f.Puts {
		if isSourceKey(pair.Key) || pending.IsKey(pair.Key) {
			continue // see takeOverSources and followPending
		}
		r, err := record.Decode(pair)
		if err != nil {
			return nil, at, err
		}
		ref := object.RefOf(r.Object)
		byKey[pair.Key] = &change{ref: ref, old: s.table.get(ref), owner: r.Owner, assigned: assigned{next: r.Object}, written: written{record: r}}
		s.numbers.sawCreation(record.CreatedAt(r.Object))
	}
	for _, key := range f.Deletes {
		ref, known := record.RefOfKey(key)
		if old := s.table.get(ref); known && old != nil {
			byKey[key] = &change{ref: ref, old: old, owner: old.Owner, remove: true}
		}
	}
	for _, nc := range n.Changes {
		ref := object.Ref{Kind: nc.Kind, Namespace: nc.Namespace, Name: nc.Name}
		if c := byKey[record.Key(ref)]; c != nil {
			c.revision, c.by = nc.Revision, nc.By
			changes = append(changes, c)
			delete(byKey, record.Key(ref))
		}
	}
	for _, c := range byKey { // a reload has no note
		c.revision = f.Revision
		changes = append(changes, c)
	}
	return changes, n.At, nil
}

// reassign has the allocator hold what Services have now instead of what they had. All is given up
// first: in one commit a value may have gone from one to another.
func (t *transaction) reassign(changes []*change) {
	s := t.s
	for _, k := range pending.Kinds {
		s.allocator.unkeep(k.Holder())
	}
	s.allocator.kept = nil
	defer func() {
		t.keepBefore()
		s.allocator.begin()
	}()
	for _, c := range changes {
		if c.ref.Kind == object.KindService && c.old != nil && !c.old.Withheld {
			old := *c
			old.next, old.remove, old.by = nil, true, nil // kept values follow below
			old.release(t)
		}
	}
	s.allocator.begin()
	for _, c := range changes {
		if c.record == nil || c.ref.Kind != object.KindService {
			continue
		}
		svc := c.record.Object.(*object.Service)
		s.allocator.cede(valuesOf(svc)) // until now nobody's
		if err := s.hold(svc); err != nil {
			c.record.Withheld, c.waits = true, true
			c.notes = append(c.notes, withheldNote(c.record, err))
		} else if notes := s.allocator.outside(svc, c.record.Owner); len(notes) > 0 {
			c.notes = append(c.notes, notes...)
		}
		c.waits = c.waits || s.lacksIngress(svc)
		s.allocator.begin()
	}
}

// cede gives up the reservations of some values.
func (l *allocator) cede(v values) {
	for _, addr := range v.clusterIPs {
		l.cedeAddress(addr)
	}
	for _, port := range v.ports {
		l.cedePort(port)
	}
	for _, addr := range v.ingress {
		l.cedeIngress(addr)
	}
}

// TakeOver takes over what has arrived of other machines. Follow does so by itself.
func (s *Store) TakeOver() {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.follow()
}
