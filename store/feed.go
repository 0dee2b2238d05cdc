package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
	"svcctl.io/svcctl/store/record"
)

// maxLog is the number of changes that are kept for Store.Changes. For older ones ChangeSet.All is set: after so many changes, reading everything
// costs no more.
const maxLog = 100_000

// maxLogged is the maximum number of changes of one transaction that are kept. If a transaction has more, as at program start, ChangeSet.All is set.
const maxLogged = maxLog / 4

// feed keeps the recent changes of the store for readers that follow it. It is changed only while Store.writer and Store.mu are held.
type feed struct {
	// revision is the revision of the last change, dataplane that of the last change that may affect the
	// dataplane.
	revision, dataplane uint64
	log                 changeLog
	journal             *journal.Journal
	published           chan struct{} // closed by the next change, see Store.Published
	ephemeral           chan struct{} // closed by the next change of a Lease or an Event
	changed             chan struct{} // receives a value at a change for the dataplane, see Store.Changed
}

// restart sets the current revision and forgets all changes up to it.
func (f *feed) restart(revision uint64) {
	f.revision, f.dataplane = revision, revision
	f.log.reset(revision)
	f.journal.Reset(revision)
}

// advance sets the current revision and wakes those that wait for a change. If dataplane is set, it wakes
// the reader of Store.Changed, too; if ephemeral is set, the readers of Store.PublishedEphemeral.
func (f *feed) advance(revision uint64, u journal.Update, dataplane, ephemeral bool) {
	if revision != f.revision {
		f.revision = revision
		f.journal.Apply(u)
		close(f.published)
		f.published = make(chan struct{})
		if ephemeral {
			close(f.ephemeral)
			f.ephemeral = make(chan struct{})
		}
	}
	if dataplane {
		f.dataplane = revision
		select {
		case f.changed <- struct{}{}:
		default: // it is signaled already
		}
	}
}

// since returns the changes after a revision; see Store.Changes.
func (f *feed) since(revision uint64) ChangeSet {
	set := ChangeSet{Revision: f.revision}
	if revision < f.log.since || revision > f.revision || revision == 0 {
		set.All = true
		return set
	}
	for _, entry := range f.log.after(revision) {
		switch entry.of {
		case ofPod:
			set.Pods = append(set.Pods, entry.key)
		case ofSecret:
			set.Secrets = append(set.Secrets, entry.key)
		case ofService:
			set.Services = append(set.Services, entry.key)
		case ofOther:
			ref, _ := record.RefOfKey(entry.key)
			set.Others = append(set.Others, ref)
		}
	}
	set.Services, set.Pods, set.Secrets = sortedOnce(set.Services), sortedOnce(set.Pods), sortedOnce(set.Secrets)
	return set
}

// changeLog has the objects that the latest revisions changed, except Leases and Events.
type changeLog struct {
	// since is the last revision whose changes are no longer in the log.
	since   uint64
	entries []logEntry // in the order of revisions
}

type logEntry struct {
	revision uint64
	key      string // "namespace/name"; for ofOther the key in the engine
	of       logKind
}

// logKind is the kind of object that a logEntry is about.
type logKind uint8

const (
	ofService logKind = iota
	ofPod
	ofSecret
	ofOther
)

// reset forgets all entries up to a revision.
func (l *changeLog) reset(revision uint64) { *l = changeLog{since: revision} }

// addChange records the Services, the Pod, the Secret or the other object that a change affects. The parameters was and is are the versions before
// and after the change. The version before is nil for a new object, the version after is nil for a removed one.
func (l *changeLog) addChange(revision uint64, ref object.Ref, was, is *record.Record) {
	service := ""
	for _, r := range []*record.Record{was, is} {
		if r == nil {
			continue
		}
		if key := index.ServiceKey(r.Object); key != service && key != "" {
			l.add(logEntry{revision, key, ofService})
			service = key
		}
	}
	switch ref.Kind {
	case object.KindPod:
		l.add(logEntry{revision, ref.Key(), ofPod})
	case object.KindSecret:
		l.add(logEntry{revision, ref.Key(), ofSecret})
	case object.KindService, object.KindEndpointSlice, object.KindEndpoints:
	default:
		if !isEphemeral(ref.Kind) {
			l.add(logEntry{revision, record.Key(ref), ofOther})
		}
	}
}

func (l *changeLog) add(entry logEntry) {
	if entry.revision <= l.since {
		return // dropped before it is delivered
	}
	if len(l.entries) >= maxLog {
		l.trim(maxLog / 2)
	}
	l.entries = append(l.entries, entry)
}

// trim forgets all but the latest entries.
func (l *changeLog) trim(most int) {
	if n := len(l.entries) - most; n > 0 {
		l.since = l.entries[n-1].revision
		l.entries = slices.Clone(l.entries[n:])
	}
}

// after returns the entries after a revision.
func (l *changeLog) after(revision uint64) []logEntry {
	from, _ := slices.BinarySearchFunc(l.entries, revision+1, func(e logEntry, revision uint64) int {
		return cmp.Compare(e.revision, revision)
	})
	return l.entries[from:]
}

// ChangeSet lists the objects that changed after a revision.
type ChangeSet struct {
	// Revision is the revision to pass to the next call of Store.Changes.
	Revision uint64
	// All is set if the individual changes are not available. The caller has to read all Services, Pods and Secrets.
	All bool
	// Services has the "namespace/name" of Services that were created, updated or deleted, or whose
	// EndpointSlices or Endpoints were; sorted. Empty when All is set.
	Services []string
	// Pods has the "namespace/name" of Pods that were created, updated or deleted; sorted. Empty when All is set.
	Pods []string
	// Secrets has the "namespace/name" of Secrets that were created, updated or deleted; sorted. Empty when All is set.
	Secrets []string
	// Others has the objects of other kinds that were created, updated or deleted, except Leases and Events, with one entry for each change.
	Others []object.Ref
}

func sortedOnce(keys []string) []string {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ErrExpired means that the history does not have the revision, which is too old or in the
// future. A client has to read everything again (HTTP 410).
var ErrExpired = journal.ErrExpired

// Event is one change of one object.
type Event struct {
	Revision uint64
	At       time.Time
	Ref      object.Ref
	// Old is nil when the object was created, New when it was deleted.
	Old, New object.Object
	By       Caller
	Owner    Owner
}

// Events returns the changes after a revision in order, at most limit (0: no limit). The error is ErrExpired if the journal does not reach back to
// the revision, or the revision is in the future. The caller must not change the objects.
func (s *Store) Events(after uint64, limit int) ([]Event, error) {
	return s.EventsAbout(after, limit, nil)
}

// EventsAbout is Events without the object versions of events for which about returns
// false, which saves decoding them. A nil about includes all objects.
func (s *Store) EventsAbout(after uint64, limit int, about func(object.Ref) bool) ([]Event, error) {
	s.mu.RLock()
	entries, err := s.entriesAfter(after)
	if limit > 0 && len(entries) > limit {
		entries = entries[:limit]
	}
	versions := make([][2]journal.Version, len(entries))
	for i, e := range entries {
		if about == nil || about(e.Ref) {
			versions[i] = [2]journal.Version{e.Before(), e.After(record.ObjectOf(s.table.get(e.Ref)))}
		}
	}
	s.mu.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("%w: %d", err, after)
	}
	events, d := make([]Event, len(entries)), journal.Decoder{}
	for i, e := range entries {
		event := Event{Revision: e.Revision, At: e.At, Ref: e.Ref, By: e.By, Owner: e.Owner}
		if event.Old, err = d.Decode(e.Ref, versions[i][0]); err != nil {
			return nil, err
		}
		if event.New, err = d.Decode(e.Ref, versions[i][1]); err != nil {
			return nil, err
		}
		events[i] = event
	}
	return events, nil
}

// entriesAfter returns the journal entries after a revision. The error is ErrExpired if the journal no longer has them, or if the revision was lost
// in a crash, as its clients may have read changes that were never stored. Store.mu must be held.
func (s *Store) entriesAfter(revision uint64) ([]*journal.Entry, error) {
	entries, err := s.feed.journal.After(revision, s.feed.revision)
	if s.storage.shared == nil && len(entries) > 0 && entries[0].Previous < revision {
		return nil, ErrExpired
	}
	return entries, err
}

// Published returns a channel that is closed at the next change. To miss no change, callers must get the channel before they read the store.
func (s *Store) Published() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.published
}

// PublishedEphemeral returns a channel that is closed at the next change of a Lease or an Event. To miss no change, callers must get the channel
// before they read the store.
func (s *Store) PublishedEphemeral() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.ephemeral
}

// Recent returns the revision with which Events returns the newest changes: the given number of changes for which about returns true, or all changes
// in the journal if there are fewer. A nil about counts all.
func (s *Store) Recent(changes int, about func(object.Ref) bool) (after uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.journal.Recent(changes, about)
}

// Since is the age of a Service and of its requests for ports, see record.Since.
type Since = record.Since

// maxLost is the longest time for which a call is repeated because other machines committed first.
const maxLost = 20 * time.Second

// errLost means that other machines committed first on every attempt within maxLost.
var errLost = &engine.AwayError{Why: "other boxes have changed something each time before this change could be made; try again"}

// Follow takes over the commits of other machines as they arrive, until ctx is done. On a store of one machine it only waits.
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
		s.TakeOver()
	}
}

// Fresh waits until the store has all that any machine committed before the call. On a store of one
// machine it returns at once.
func (s *Store) Fresh(ctx context.Context) error {
	if s.storage.shared == nil {
		return nil
	}
	return s.storage.shared.Fresh(ctx)
}

// decide runs call. On ErrConflict it applies the commits of other machines and runs call again, for maxLost at most. Store.writer must be held.
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

// change runs call as decide does, while holding Store.writer.
func (s *Store) change(call func() error) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.decide(call)
}

// decided runs a call as change does, and returns its result.
func decided[T any](s *Store, call func() (T, error)) (result T, err error) {
	err = s.change(func() (err error) {
		result, err = call()
		return err
	})
	return result, err
}

// Lost returns the number of commits of this machine that had to be repeated because another machine committed first.
func (s *Store) Lost() uint64 { return s.storage.lost.Load() }

// follow applies the commits of other machines that have arrived. Store.writer must be held.
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

// takeOver applies a commit of another machine to this store.
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

// followed returns the changes in a commit of another machine, in the order of their revisions.
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

// reassign updates the allocator to the values that changed Services have after a commit of another
// machine. It releases all old values first, as a value may have moved from one Service to another.
func (t *transaction) reassign(changes []*change) {
	s := t.s
	for _, k := range pending.Kinds {
		s.allocator.unkeep(k.Holder())
	}
	clear(s.allocator.kept)
	defer func() {
		t.keepBefore()
		s.allocator.begin()
	}()
	for _, c := range changes {
		if c.ref.Kind == object.KindService && c.old != nil && !c.old.Withheld {
			c.releaseAll(s.allocator)
		}
	}
	s.allocator.begin()
	for _, c := range changes {
		if c.record == nil || c.ref.Kind != object.KindService {
			continue
		}
		svc := c.record.Object.(*object.Service)
		for v := range valuesOf(svc).all {
			s.allocator.cede(v, reservedOwner) // until now nobody's
		}
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

// TakeOver applies the commits of other machines that have arrived so far and returns. Follow does so continuously.
func (s *Store) TakeOver() {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.follow()
}
