package store

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/record"
)

// maxLog bounds the changes that are remembered. For older ones ChangeSet.All is set, which costs
// no more at that point.
const maxLog = 100_000

// maxLogged bounds the changes of one transaction that are remembered: after more of them, as at a
// start, ChangeSet.All is set.
const maxLogged = maxLog / 4

// feed keeps the changes for the followers of the store. Only the writer changes it, under Store.mu.
type feed struct {
	// revision is the revision of the last change, dataplane that of the last change that may affect the
	// dataplane.
	revision, dataplane uint64
	log                 changeLog
	journal             *journal.Journal
	published           chan struct{} // closed by the next change, see Store.Published
	changed             chan struct{} // see Store.Changed
}

func newFeed() feed {
	return feed{journal: journal.New(journal.DefaultBounds()), published: make(chan struct{}), changed: make(chan struct{}, 1)}
}

// restart makes a revision the present one, before which nothing is known.
func (f *feed) restart(revision uint64) {
	f.revision, f.dataplane = revision, revision
	f.log.reset(revision)
	f.journal.Reset(revision)
}

// advance makes a revision the present one and wakes those that wait for one. A change of the dataplane
// also wakes the reader of Changed.
func (f *feed) advance(revision uint64, u journal.Update, dataplane bool) {
	if revision != f.revision {
		f.revision = revision
		f.journal.Apply(u)
		close(f.published)
		f.published = make(chan struct{})
	}
	if dataplane {
		f.dataplane = revision
		select {
		case f.changed <- struct{}{}:
		default: // it is signaled already
		}
	}
}

// since returns what has changed after a revision; see Store.Changes.
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

// changeLog has the objects that changed in the last revisions, but for Leases and Events.
type changeLog struct {
	// since is the last revision that is forgotten.
	since   uint64
	entries []logEntry // by revision
}

type logEntry struct {
	revision uint64
	key      string // "namespace/name"; of others that of the engine
	of       logKind
}

// logKind is the subject of a logEntry.
type logKind uint8

const (
	ofService logKind = iota
	ofPod
	ofSecret
	ofOther
)

// reset forgets all up to a revision.
func (l *changeLog) reset(revision uint64) { *l = changeLog{since: revision} }

// addChange notes the Services, the Pod, the Secret or the other object that a change of an object touches; nil: it was
// not there, or is not any more.
func (l *changeLog) addChange(revision uint64, ref object.Ref, was, is *record.Record) {
	var before, now string
	if was != nil {
		before = index.ServiceKey(was.Object)
		l.addService(revision, before)
	}
	if is != nil {
		now = index.ServiceKey(is.Object)
	}
	if now != before {
		l.addService(revision, now)
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

// addService notes that a Service was touched, if it is one.
func (l *changeLog) addService(revision uint64, key string) {
	if key != "" {
		l.add(logEntry{revision, key, ofService})
	}
}

func (l *changeLog) add(entry logEntry) {
	if entry.revision <= l.since {
		return // dropped before it is delivered
	}
	if len(l.entries) >= maxLog {
		half := len(l.entries) / 2
		l.since = l.entries[half-1].revision
		l.entries = slices.Clone(l.entries[half:])
	}
	l.entries = append(l.entries, entry)
}

// after returns the entries after a revision.
func (l *changeLog) after(revision uint64) []logEntry {
	from, _ := slices.BinarySearchFunc(l.entries, revision+1, func(e logEntry, revision uint64) int {
		return cmp.Compare(e.revision, revision)
	})
	return l.entries[from:]
}

// ChangeSet has the changes after a revision.
type ChangeSet struct {
	// Revision is the revision for the next call.
	Revision uint64
	// All is set when the changes are not known: read all Services, Pods and Secrets.
	All bool
	// Services has the "namespace/name" of Services that were created, updated or deleted, or whose
	// EndpointSlices or Endpoints were; sorted. Empty when All is set.
	Services []string
	// Pods are the "namespace/name" of the Pods that changed, came or went; sorted. Empty
	// when All is set.
	Pods []string
	// Secrets are the same of Secrets.
	Secrets []string
	// Others are the objects of other kinds that changed, came or went, but for Leases and Events; each as often as it did.
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
	// Old is nil when the object came, New when it went.
	Old, New object.Object
	By       Caller
	Owner    Owner
}

// Events are the changes after a revision in order, at most limit (0: no limit); ErrExpired when
// not all are known any more, or the revision is not there yet. Nothing of them may be changed.
func (s *Store) Events(after uint64, limit int) ([]Event, error) {
	return s.EventsAbout(after, limit, nil)
}

// EventsAbout is Events for a reader of some objects: the versions of all others are
// left out, which saves the work of reading them. nil means all objects.
func (s *Store) EventsAbout(after uint64, limit int, about func(object.Ref) bool) ([]Event, error) {
	s.mu.RLock()
	entries, err := s.feed.journal.After(after, s.feed.revision)
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

// Published is closed with the next change. Take it before looking.
func (s *Store) Published() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.published
}

// Recent is the revision that the newest changes follow on, so many of those that are about
// some objects, or all that are known: what Events is asked for then. A nil about counts all.
func (s *Store) Recent(changes int, about func(object.Ref) bool) (after uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.feed.journal.Recent(changes, about)
}

// Since is the age of a Service and of its requests.
type Since = record.Since
