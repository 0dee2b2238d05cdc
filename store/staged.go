package store

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/deadline"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// StagedKinds are the kinds of objects that a rollout (staged set) may change.
func StagedKinds() []string {
	return []string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindSecret}
}

// BeginStaged begins a rollout (staged set). Writes with its ID (in their Caller) are programmed by no machine until Advance sets the machines. If
// the caller does not call Advance within the given time, it has to undo the rollout. Errors: ErrAlone, *StagedError.
func (s *Store) BeginStaged(head pending.Head, within time.Duration) (pending.Head, error) {
	if s.storage.shared == nil {
		return pending.Head{}, pending.ErrAlone
	}
	if err := s.storage.shared.Rolls(); err != nil {
		return pending.Head{}, err
	}
	head.Phase, head.Turn, head.Boxes, head.Everyone = pending.Gathering, 1, nil, false
	return head, s.changePending(func() error {
		if staged := s.pending.staged(); staged.Pending() {
			return &pending.StagedError{ID: staged.ID}
		}
		return s.putHead(pending.Staged, s.inPhase(head, within))
	})
}

// Advance replaces the head of the rollout by next, with a phase that ends after a duration; 0 means that it never ends. It fails if another machine
// has changed the rollout since the caller read it. Errors: ErrNoStaged, ErrMoved.
func (s *Store) Advance(next pending.Head, ends time.Duration) error {
	return s.changePending(func() error {
		if err := s.expectStaged(&next); err != nil {
			return err
		}
		head := next
		head.Turn++
		return s.putHead(pending.Staged, s.inPhase(head, ends))
	})
}

// inPhase returns the head with its phase beginning now and ending after a duration; 0 means never.
func (s *Store) inPhase(head pending.Head, ends time.Duration) pending.Head {
	head.Since, head.Ends = s.now(), deadline.Deadline{}
	if ends > 0 {
		head.Ends = deadline.After(ends, s.cfg.Clocks())
	}
	return head
}

// Finish ends the rollout: all machines program its changes. It returns the same errors as Advance.
func (s *Store) Finish(head pending.Head) error {
	_, err := s.endStaged(head, pending.Done, nil)
	return err
}

// Undo ends the rollout and restores its objects, with the uids, addresses and ports that they had. The Why of head is stored. It returns the same
// errors as Advance.
func (s *Store) Undo(head pending.Head, by Caller) ([]Revived, error) {
	by.Verb = verbUndo
	return s.endStaged(head, pending.Undone, &by)
}

// endStaged ends the rollout and sets its final phase. seen is the head that the caller has read. If restore is not nil, endStaged restores the
// objects, with restore as the Caller in the journal.
func (s *Store) endStaged(seen pending.Head, phase pending.Phase, restore *Caller) (restored []Revived, err error) {
	err = s.changePending(func() error {
		if err := s.expectStaged(&seen); err != nil {
			return err
		}
		t := s.begin()
		head := *s.pending.staged().Head
		head.Phase, head.Turn, head.Plan = phase, head.Turn+1, seen.Plan
		head = s.inPhase(head, 0)
		if restore != nil {
			head.Why = seen.Why
		}
		if err := t.endSet(pending.Staged, &head); err != nil {
			return err
		}
		if restore != nil {
			if restored, err = t.restoreVersions(s.pending.staged().Before, restore); err != nil {
				return err
			}
		}
		_, err := t.run()
		return err
	})
	return restored, err
}

// verbUndo is the journal's verb for undoing a rollout.
const verbUndo = "rollout-undo"

// expectStaged returns an error if the rollout is not in the state that the caller has read.
func (s *Store) expectStaged(seen *pending.Head) error {
	switch staged := s.pending.staged(); {
	case !staged.Pending():
		return pending.ErrNoStaged
	case staged.ID != seen.ID || staged.Turn != seen.Turn:
		return pending.ErrMoved
	}
	return nil
}

// GenerateBefore is Generate for the machines that do not program the changes of a rollout yet (see Before). puts and deletes are what a controller
// generates from the versions before the rollout. Without a rollout under way it does nothing.
func (s *Store) GenerateBefore(controller string, puts []object.Object, deletes []object.Ref) error {
	return s.changePending(func() error {
		if !s.pending.staged().Pending() {
			return nil
		}
		t := s.begin()
		before := map[object.Ref]*record.Record{}
		t.announced, t.pending.before[pending.Staged] = true, before
		for _, o := range puts {
			r, err := t.recordBefore(Owner{Controller: controller}, o)
			if err != nil {
				return fmt.Errorf("generate %s for boxes outside of the rollout: %w", object.RefOf(o), err)
			}
			before[object.RefOf(r.Object)] = r
		}
		for _, ref := range deletes {
			before[ref] = nil
		}
		for ref, r := range before {
			if err := pending.Staged.AddBefore(ref, r, s.feed.revision, &t.extra); err != nil {
				return err
			}
		}
		_, err := t.run()
		return err
	})
}

// recordBefore returns the record of an object that a controller generated from versions before the rollout. It has the uid and the resourceVersion
// that the object had then, or new ones if the object did not exist.
func (t *transaction) recordBefore(owner Owner, o object.Object) (*record.Record, error) {
	ref := refInFile(object.RefOf(o))
	was, staged := t.s.pending.staged().Before[ref]
	if !staged {
		was = t.s.table.get(ref)
	}
	c := &change{ref: ref, old: was, owner: owner}
	if was != nil && was.Owner != owner {
		return nil, &OwnedError{Ref: ref, Owner: was.Owner}
	}
	if c.proposeFrom(t.s, o); c.err != nil {
		return nil, c.err
	}
	r := &record.Record{Object: c.wanted, Owner: owner, Created: t.s.latest() + 1}
	if was != nil {
		r.Created, r.Asked = was.Created, was.Asked
		return r, nil
	}
	meta := r.Object.GetMeta()
	meta.UID, meta.CreationTimestamp, meta.ResourceVersion = t.s.cfg.NewUID(), t.creation(), strconv.FormatUint(t.s.latest(), 10)
	return r, nil
}

// View has the objects of the store, except that those in a rollout may have their versions before it. Each read has the newest state. The
// caller must not change the objects.
type View struct {
	s      *Store
	before bool // use the versions before the rollout, even if this machine programs its changes
}

// InForce returns a view of the objects that this machine programs. If it does not program a rollout yet, objects in the rollout have their versions
// before it.
func (s *Store) InForce() View { return View{s, false} }

// Before returns a view of the objects as programmed by the machines that the rollout has not reached yet.
func (s *Store) Before() View { return View{s, true} }

// versions returns the records that the view shows in place of those in the store: the versions from before the rollout, with a nil record for an
// object that did not exist then. The map is nil if the view shows the store as it is. Store.mu must be held.
func (v View) versions() map[object.Ref]*record.Record {
	if set := v.s.pending.staged(); v.before || set.Outside {
		return set.Before
	}
	return nil
}

// Service is Store.Service.
func (v View) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	svc, list, endpoints := v.s.table.service(key)
	if v.versions() == nil {
		return svc, list, endpoints
	}
	return v.s.pending.staged().Service(key, svc, list, endpoints)
}

// Get is Store.Get.
func (v View) Get(ref object.Ref) (object.Object, Owner) {
	r := v.record(ref)
	return record.ObjectOf(r.Whole()), record.OwnerOf(r)
}

// Services is Store.Services, in no order.
func (v View) Services() []string {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	before := v.versions()
	keys := slices.DeleteFunc(v.s.services(), func(key string) bool { _, is := before[object.ServiceRef(key)]; return is })
	for ref, r := range before {
		if ref.Kind == object.KindService && r != nil && !r.Withheld {
			keys = append(keys, ref.Key())
		}
	}
	return keys
}

// Mentions reports whether a Service or one of its EndpointSlices may have one of the addresses, see record.Mentions. It also returns true if the view
// has versions from before a rollout.
func (v View) Mentions(key string, addrs map[netip.Addr]bool) bool {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	all := append(v.s.table.slices(key), v.s.table.records[object.ServiceRef(key)])
	return v.versions() != nil || slices.ContainsFunc(all, func(r *record.Record) bool { return r != nil && record.Mentions(r.Object, addrs) })
}

// Since returns the age of a Service, given as "namespace/name", and of its requests for ports.
func (v View) Since(key string) record.Since {
	if r := v.record(object.ServiceRef(key)); r != nil {
		return r.Since()
	}
	return record.Since{}
}

// Secret returns the Secret of a "namespace/name", nil when there is none.
func (v View) Secret(key string) *object.Secret {
	namespace, name, _ := strings.Cut(key, "/")
	secret, _ := record.ObjectOf(v.record(object.Ref{Kind: object.KindSecret, Namespace: namespace, Name: name})).(*object.Secret)
	return secret
}

// Pod is Store.Pod: Pods are in no rollout.
func (v View) Pod(key string) *object.Pod { return v.s.Pod(key) }

// Selecting is Store.Selecting, with the selectors of all versions.
func (v View) Selecting(namespace string, labels map[string]string) []string {
	return v.s.Selecting(namespace, labels)
}

// record returns a record, which may be packed.
func (v View) record(ref object.Ref) *record.Record {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	if before, staged := v.versions()[ref]; staged {
		return before
	}
	return v.s.table.records[ref]
}
